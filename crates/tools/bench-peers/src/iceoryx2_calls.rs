//! Calls over iceoryx2. Messages are written into memory that is loaned from it, and read where they are.
//!
//! Who has nothing to do polls for a while as Provost's apps do, with what those wait by, and then waits at its listener. A notification is a system call, so
//! one is sent to who sleeps alone, once for each sleep: in a blackboard of iceoryx2's each side numbers its sleeps.

use std::collections::VecDeque;
use std::hint::black_box;
use std::sync::atomic::{Ordering::SeqCst, fence};
use std::time::{Duration, Instant};

use iceoryx2::pending_response::PendingResponse;
use iceoryx2::port::listener::{Listener, ListenerWaitError};
use iceoryx2::port::notifier::Notifier;
use iceoryx2::port::reader::EntryHandle;
use iceoryx2::port::writer::EntryHandleMut;
use iceoryx2::prelude::*;
use iceoryx2::service::port_factory::{blackboard, event, request_response};
use provost_figures::Latencies;
use provost_ring::{AdaptiveSpin, ContentionBackoff, YieldPace};
use provost_shm::{TimeSlice, TimeSliceChoice, now_ns, yield_now};

use crate::run::LoadRun;
use crate::{PeerLoad, PeerResult, RESPONSE};

/// The variant for one thread, the fastest.
type OneThread = ipc::Service;
type RequestBytes = [u8];
type ResponseBytes = [u8; RESPONSE.len()];
type OpenCall = PendingResponse<OneThread, RequestBytes, (), ResponseBytes, ()>;
type CallService = request_response::PortFactory<OneThread, RequestBytes, (), ResponseBytes, ()>;

/// Requests that a client may have in flight, and what the server has room for.
const CALLS_IN_FLIGHT_MAX: usize = 64;
/// The largest request of the bench, in bytes.
const REQUEST_BYTES_MAX: usize = 64;
/// After so long who sleeps looks whether the process is to end.
const SLEEP_TIME_MAX: Duration = Duration::from_millis(200);
/// The only entry of a blackboard.
const SLEEPS: u64 = 0;

/// Answers until it is asked to end.
pub(crate) fn serve(
    name: &str,
    spin: Duration,
    ready: impl FnOnce() -> std::io::Result<()>,
) -> PeerResult<()> {
    set_log_level(LogLevel::Error);
    let node = NodeBuilder::new().create::<OneThread>()?;
    let service = calls(&node, name)?;
    let server = service.server_builder().create()?;
    let own = SleepPlace::create(&node, name, "server")?;
    let clients = SleepPlace::create(&node, name, "client")?;
    let mut sleeper = own.sleeper(&node, spin)?;
    let mut waker = clients.waker()?;
    ready()?;
    while let Some(request) = sleeper.wait(|| Ok(server.receive()?))? {
        let payload = request.payload();
        black_box((payload.first(), payload.last()));
        request.loan_uninit()?.write_payload(*RESPONSE).send()?;
        waker.wake()?;
    }
    Ok(())
}

/// Makes load until it is told to stop.
pub(crate) fn call(name: &str, spin: Duration, load: PeerLoad, run: &LoadRun) -> PeerResult<Latencies> {
    set_log_level(LogLevel::Error);
    let node = NodeBuilder::new().create::<OneThread>()?;
    let service = calls(&node, name)?;
    let client = service
        .client_builder()
        .initial_max_slice_len(REQUEST_BYTES_MAX)
        .create()?;
    let (own, server) = (
        SleepPlace::open(&node, name, "client")?,
        SleepPlace::open(&node, name, "server")?,
    );
    let (mut sleeper, mut waker) = (own.sleeper(&node, spin)?, server.waker()?);
    let payload = vec![b'x'; load.request_bytes];
    let mut latencies = Latencies::default();
    // Answers come in the order of requests, so who waits for the first waits for all.
    let mut calls: VecDeque<(OpenCall, Instant)> = VecDeque::with_capacity(load.calls_in_flight);
    run.ready();
    loop {
        while calls.len() < load.calls_in_flight && !run.is_stopped() {
            let began = Instant::now();
            let request = client.loan_slice_uninit(payload.len())?;
            calls.push_back((request.write_from_slice(&payload).send()?, began));
            waker.wake()?;
        }
        let Some((first, began)) = calls.front() else {
            return Ok(latencies);
        };
        let Some(response) = sleeper.wait(|| Ok(first.receive()?))? else {
            return Err("ended before it was told to stop".into());
        };
        if *response.payload() != *RESPONSE {
            return Err("an answer is not what was sent".into());
        }
        drop(response);
        run.record(&mut latencies, *began);
        calls.pop_front();
    }
}

fn calls(node: &Node<OneThread>, name: &str) -> PeerResult<CallService> {
    let service = node
        .service_builder(&ServiceName::new(name)?)
        .request_response::<RequestBytes, ResponseBytes>()
        .max_servers(1)
        .max_clients(2)
        .max_active_requests_per_client(CALLS_IN_FLIGHT_MAX)
        .max_response_buffer_size(1)
        .open_or_create()?;
    Ok(service)
}

/// Where one side sleeps: how it is woken, and the number of its sleep, which is odd while it lasts.
struct SleepPlace {
    events: event::PortFactory<OneThread>,
    numbers: blackboard::PortFactory<OneThread, u64>,
}

impl SleepPlace {
    fn create(node: &Node<OneThread>, name: &str, side: &str) -> PeerResult<SleepPlace> {
        let name = ServiceName::new(&format!("{name}/{side}"))?;
        let numbers = node.service_builder(&name).blackboard_creator::<u64>();
        Ok(SleepPlace {
            events: node.service_builder(&name).event().create()?,
            numbers: numbers.add::<u64>(SLEEPS, 0).create()?,
        })
    }

    fn open(node: &Node<OneThread>, name: &str, side: &str) -> PeerResult<SleepPlace> {
        let name = ServiceName::new(&format!("{name}/{side}"))?;
        Ok(SleepPlace {
            events: node.service_builder(&name).event().open()?,
            numbers: node.service_builder(&name).blackboard_opener::<u64>().open()?,
        })
    }

    /// The side that sleeps here.
    fn sleeper<'a>(&self, node: &'a Node<OneThread>, spin: Duration) -> PeerResult<CallSleeper<'a>> {
        let before = *self.numbers.reader_builder().create()?.entry(&SLEEPS)?.get();
        // From the first question on, a signal that asks the process to end is kept until the next.
        node.wait(Duration::ZERO)?;
        Ok(CallSleeper {
            node,
            spin: AdaptiveSpin::new(spin.as_nanos() as u64),
            contention: ContentionBackoff::default(),
            pace: YieldPace::default(),
            slice: TimeSlice::new(TimeSliceChoice::Auto),
            listener: self.events.listener_builder().create()?,
            number: self.numbers.writer_builder().create()?.entry(&SLEEPS)?,
            sleeps: u64::next_multiple_of(before, 2),
        })
    }

    /// The side that wakes it.
    fn waker(&self) -> PeerResult<CallWaker> {
        Ok(CallWaker {
            notifier: self.events.notifier_builder().create()?,
            number: self.numbers.reader_builder().create()?.entry(&SLEEPS)?,
            woken: 0,
        })
    }
}

struct CallSleeper<'a> {
    node: &'a Node<OneThread>,
    spin: AdaptiveSpin,
    contention: ContentionBackoff,
    pace: YieldPace,
    slice: TimeSlice,
    listener: Listener<OneThread>,
    number: EntryHandleMut<OneThread, u64, u64>,
    sleeps: u64,
}

impl CallSleeper<'_> {
    /// Waits until there is something; there is nothing when the process is asked to end.
    fn wait<T>(&mut self, mut poll: impl FnMut() -> PeerResult<Option<T>>) -> PeerResult<Option<T>> {
        if let Some(found) = poll()? {
            return Ok(Some(found));
        }
        let idle_since_ns = now_ns();
        if let Some(found) = self.polled(idle_since_ns, &mut poll)? {
            return Ok(Some(found));
        }
        loop {
            self.turn();
            // Whoever has put something there before it looks at the number is seen now; whoever does it later sees the number.
            let found = poll()?;
            if found.is_none() {
                match self.listener.timed_wait(|_| {}, SLEEP_TIME_MAX) {
                    Ok(0) | Err(ListenerWaitError::InterruptSignal) => {
                        if self.node.wait(Duration::ZERO).is_err() {
                            return Ok(None);
                        }
                    }
                    woken => drop(woken?),
                }
            }
            self.turn();
            let found = match found {
                Some(found) => Some(found),
                None => poll()?,
            };
            if found.is_some() {
                self.spin.woken_after(now_ns() - idle_since_ns);
                return Ok(found);
            }
        }
    }

    /// What comes while it polls. It gives its core away as Provost's apps do: in short slices, and not while others want the core.
    fn polled<T>(
        &mut self,
        since_ns: u64,
        mut poll: impl FnMut() -> PeerResult<Option<T>>,
    ) -> PeerResult<Option<T>> {
        let mut now = since_ns;
        while now - since_ns < self.spin.spin_ns() && !self.contention.is_contended(now) {
            if self.pace.is_due(now) {
                self.slice.shorten();
                yield_now();
                let given_away_ns = std::mem::replace(&mut now, now_ns());
                self.pace = self.pace.after_yield(given_away_ns, now);
                if let Some(contention) = self.contention.after_yield(given_away_ns, now) {
                    self.contention = contention;
                    if contention.is_contended(now) {
                        self.slice.restore();
                    }
                }
            } else {
                now = now_ns();
            }
            if let Some(found) = poll()? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Begins a sleep, or ends it.
    fn turn(&mut self) {
        self.sleeps += 1;
        self.number.update_with_copy(self.sleeps);
        fence(SeqCst);
    }
}

struct CallWaker {
    notifier: Notifier<OneThread>,
    number: EntryHandle<OneThread, u64, u64>,
    /// The sleep that was ended last.
    woken: u64,
}

impl CallWaker {
    /// Notifies who sleeps, once for each sleep. To be called behind what it is to find.
    fn wake(&mut self) -> PeerResult<()> {
        fence(SeqCst);
        let sleep = *self.number.get();
        if sleep % 2 == 1 && sleep != self.woken {
            self.woken = sleep;
            self.notifier.notify()?;
        }
        Ok(())
    }
}
