//! A client that calls an echo server, at a pace or as fast as it can, on one thread of its caller's.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use provost_insight::profile::Protocol;
use provost_insight::workload::{IN_FLIGHT_MAX, RATES_PER_S};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

use super::calls::CallPath;
use super::slice::LoadSlice;
use super::timer::ExactTimer;
use super::{MESSAGE_BYTES_MAX, message};
use crate::failure::{Doing, ProbeFailure};
use crate::stop::StopSignal;

/// A slice has no more calls: it is over sooner then. Each latency of it is kept.
const CALLS_MAX: usize = 1 << 20;
/// How often a slice is extended at most.
const EXTENSIONS_MAX: usize = 7;
/// How long the calls under way may take when a slice is over, and connecting.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two calls of a caller that keeps a pace, at most; well below that.
const INTERVAL_MAX: Duration = Duration::from_secs(2);

/// A call that leaves so long after it was due, though nothing but the client was to do anything, is late; timers are some
/// 50 µs late by themselves.
const LATE_MIN: Duration = Duration::from_micros(500);

/// When calls are made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LoadPace {
    /// The next one as soon as one has ended.
    Saturating,
    /// So many a second over all that are in flight, later when answers come later.
    PerSecond(f64),
}

/// What a load consists of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadShape {
    pub protocol: Protocol,
    /// Bytes of payload of a request, and of its response.
    pub size_bytes: usize,
    /// Calls in flight: a connection each with TCP and HTTP/1.1, else streams of one connection.
    pub in_flight: usize,
    /// When calls are made.
    pub pace: LoadPace,
}

impl LoadShape {
    /// Whether it makes sense.
    pub(crate) fn check(&self) -> Result<(), ProbeFailure> {
        let invalid = |what: String| Err(ProbeFailure::Invalid(what));
        if self.size_bytes > MESSAGE_BYTES_MAX {
            return invalid(format!("messages have at most {MESSAGE_BYTES_MAX} bytes"));
        }
        if !(1..=IN_FLIGHT_MAX).contains(&self.in_flight) {
            return invalid(format!("1 to {IN_FLIGHT_MAX} calls can be in flight"));
        }
        match self.pace {
            LoadPace::PerSecond(rate) if !RATES_PER_S.contains(&rate) => invalid(format!(
                "{rate} calls a second is no rate: one lies between {} and {}",
                RATES_PER_S.start(),
                RATES_PER_S.end()
            )),
            // Who waits longer for its next call is taken for one whose call has no answer.
            LoadPace::PerSecond(rate) if self.in_flight as f64 > rate * INTERVAL_MAX.as_secs_f64() => {
                invalid(format!(
                    "{rate} calls a second with {} in flight are too few: each makes one in {INTERVAL_MAX:?} at least",
                    self.in_flight
                ))
            }
            _ => Ok(()),
        }
    }
}

/// Connections to one address, through which load goes in slices.
pub struct LoadClient {
    runtime: Runtime,
    paths: Vec<CallPath>,
    message: Bytes,
    shape: LoadShape,
    calls_max: usize,
    stop: StopSignal,
}

impl LoadClient {
    /// Connects.
    ///
    /// # Errors
    /// If the shape makes no sense or nobody answers.
    pub fn connect(address: SocketAddr, shape: LoadShape) -> Result<LoadClient, ProbeFailure> {
        shape.check()?;
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .doing(|| "start a runtime".into())?;
        let connecting = CallPath::connect(address, shape.protocol, shape.in_flight);
        let paths = runtime
            .block_on(async { tokio::time::timeout(PATIENCE, connecting).await })
            .map_err(|_| {
                ProbeFailure::Load(format!("{address} took longer than {PATIENCE:?} to connect"))
            })??;
        Ok(LoadClient {
            runtime,
            paths,
            message: message(shape.protocol, shape.size_bytes),
            shape,
            calls_max: CALLS_MAX,
            stop: StopSignal::never(),
        })
    }

    /// The same client, whose slices fail as soon as somebody asks to stop.
    #[must_use]
    pub fn stopped_by(self, stop: &StopSignal) -> LoadClient {
        LoadClient {
            stop: stop.clone(),
            ..self
        }
    }

    /// Calls for so long, and longer if fewer than so many calls have ended by then: a busy machine may grant little.
    ///
    /// # Errors
    /// The first call's failure; then the connections are of no further use.
    pub fn run_enough(&mut self, time: Duration, calls_min: usize) -> Result<LoadSlice, ProbeFailure> {
        let mut slice = self.run(time)?;
        for _ in 0..EXTENSIONS_MAX {
            if slice.count() >= calls_min {
                break;
            }
            slice.append(self.run(time)?);
        }
        if slice.count() == 0 {
            return Err(ProbeFailure::Load(format!(
                "no call ended within {:?}",
                slice.time
            )));
        }
        Ok(slice)
    }

    /// Calls for so long, or until as many calls were made as a slice has at most.
    ///
    /// # Errors
    /// The first call's failure; then the connections are of no further use.
    pub fn run(&mut self, time: Duration) -> Result<LoadSlice, ProbeFailure> {
        let began = Instant::now();
        let slots = self.paths.len();
        let mut callers = JoinSet::new();
        let calls_left = Arc::new(AtomicUsize::new(self.calls_max));
        for (slot, path) in self.paths.drain(..).enumerate() {
            let caller = LoadCaller {
                path,
                message: self.message.clone(),
                schedule: CallSchedule::of(self.shape.pace, slot, slots, began),
                calls_left: calls_left.clone(),
                latencies_ns: Vec::with_capacity(1 << 12),
                late: 0,
            };
            callers.spawn_on(caller.keep_calling(began + time), self.runtime.handle());
        }
        let all = async {
            let mut ended = Vec::with_capacity(slots);
            while let Some(one) = callers.join_next().await {
                ended.push(one);
            }
            ended
        };
        let in_time = async {
            tokio::select! {
                biased;
                stopped = self.stop.requested() => Err(stopped),
                ended = tokio::time::timeout(time + PATIENCE, all) => ended
                    .map_err(|_| ProbeFailure::Load(format!("a call had no answer within {PATIENCE:?}"))),
            }
        };
        let ended = self.runtime.block_on(in_time);
        let took = began.elapsed();
        let ended = ended?;
        let (mut latencies_ns, mut late) = (Vec::new(), 0);
        for caller in ended {
            let mut caller =
                caller.map_err(|error| ProbeFailure::Load(format!("a caller ended: {error}")))??;
            latencies_ns.append(&mut caller.latencies_ns);
            late += caller.late;
            self.paths.push(caller.path);
        }
        Ok(LoadSlice::of(latencies_ns, took, late))
    }
}

/// When one caller's next call is due.
struct CallSchedule {
    next: Instant,
    interval: Option<Duration>,
}

impl CallSchedule {
    /// The callers' calls lie evenly between each other.
    fn of(pace: LoadPace, slot: usize, slots: usize, began: Instant) -> CallSchedule {
        match pace {
            LoadPace::Saturating => CallSchedule {
                next: began,
                interval: None,
            },
            LoadPace::PerSecond(rate) => {
                let interval = Duration::from_secs_f64(slots as f64 / rate);
                CallSchedule {
                    next: began + interval.mul_f64(slot as f64 / slots as f64),
                    interval: Some(interval),
                }
            }
        }
    }

    /// Nanoseconds from now until the next call, and the one after it. Calls that are late are not made up for.
    fn advance(&mut self, now: Instant) -> u64 {
        let Some(interval) = self.interval else {
            return 0;
        };
        let wait = self.next.saturating_duration_since(now);
        self.next = self.next.max(now) + interval;
        wait.as_nanos() as u64
    }
}

/// One of the calls in flight.
struct LoadCaller {
    path: CallPath,
    message: Bytes,
    schedule: CallSchedule,
    /// Of all callers of the slice.
    calls_left: Arc<AtomicUsize>,
    latencies_ns: Vec<u32>,
    late: usize,
}

impl LoadCaller {
    async fn keep_calling(mut self, end: Instant) -> Result<LoadCaller, ProbeFailure> {
        let timer = ExactTimer::new()?;
        loop {
            let asked = Instant::now();
            let wait_ns = self.schedule.advance(asked);
            timer.wait_ns(wait_ns).await?;
            let called = Instant::now();
            if called >= end || !self.takes_a_call() {
                return Ok(self);
            }
            // Without a wait, it was the call before it that took longer than until this one was due.
            let due = asked + Duration::from_nanos(wait_ns);
            self.late += usize::from(wait_ns > 0 && called > due + LATE_MIN);
            self.path.call(&self.message).await?;
            let latency = called.elapsed().as_nanos();
            self.latencies_ns.push(u32::try_from(latency).unwrap_or(u32::MAX));
        }
    }

    /// Takes one of the calls that are left to the slice, if there is one.
    fn takes_a_call(&self) -> bool {
        let take_one = |left: usize| left.checked_sub(1);
        self.calls_left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take_one)
            .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::EchoServer;

    #[test]
    fn a_slice_that_has_all_its_calls_is_over_and_its_rate_is_that_of_its_time() {
        const CALLS: usize = 50;
        let server = EchoServer::start(Protocol::Tcp).unwrap();
        let shape = LoadShape {
            protocol: Protocol::Tcp,
            size_bytes: 100,
            in_flight: 3,
            pace: LoadPace::Saturating,
        };
        let mut client = LoadClient::connect(server.address(), shape).unwrap();
        client.calls_max = CALLS;
        let an_hour = Duration::from_secs(3600);
        let slice = client.run(an_hour).unwrap();
        assert_eq!(slice.count(), CALLS);
        assert!(slice.time < an_hour && slice.rate() > CALLS as f64 / an_hour.as_secs_f64());
        // The next one has as many.
        assert_eq!(client.run(an_hour).unwrap().count(), CALLS);
    }
}
