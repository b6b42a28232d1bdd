//! What goes on: sampled calls as they come, and what is counted by app, service and method.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use provost_admin::v1;
use provost_engine::{HeldTime, MethodCalls, Policy, Sample, Side};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tonic::Status;

use crate::inspect::{self, PolicyHeld};
use crate::observe;
use crate::policies::{LivePolicy, matches, matches_method};

use super::desk::Desk;

/// Between two looks for new samples.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// Samples that one look takes, at most.
const BATCH_MAX: usize = 64;
/// Between two snapshots, when nothing else was asked for, and the bounds of what can be asked for, in milliseconds.
const INTERVAL_MS: u32 = 1000;
const INTERVAL_MS_MIN: u32 = 50;
const INTERVAL_MS_MAX: u32 = 3_600_000;

type Answers<T> = mpsc::Sender<Result<T, Status>>;

/// Tells sampled calls until enough have come or the reader is gone.
pub(crate) async fn tap(
    desk: &Desk,
    asked: v1::TapRequest,
    answers: Answers<v1::TapSample>,
) -> Result<(), Status> {
    let mut reading = TapReading::begin(&taps(desk, &asked.policy)?);
    if asked.recent > 0 {
        return send_kept(desk, &asked, &answers).await;
    }
    let mut told = 0;
    loop {
        // Policies may come and go while somebody reads.
        for live in taps(desk, &asked.policy).unwrap_or_default() {
            for answer in reading.news(&live.policy, |sample| is_asked(sample, &asked)) {
                if answers.send(Ok(answer)).await.is_err() {
                    return Ok(());
                }
                told += 1;
                if told == asked.samples_max {
                    return Ok(());
                }
            }
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// How far somebody who reads sampled calls has come with each policy. One that is set again has another one in its place, under the
/// same name, which numbers its samples anew.
struct TapReading(Vec<TapPlace>);

struct TapPlace {
    policy: Weak<dyn Policy>,
    next: u64,
    /// Samples that were not read in time, and that the reader does not know of yet.
    lost: u64,
}

impl TapReading {
    /// Reads what these policies sample from now on, and all that others do.
    fn begin(live: &[LivePolicy]) -> TapReading {
        let place = |live: &LivePolicy| {
            let next = live.policy.samples()?.next();
            Some(TapPlace::at(&live.policy, next))
        };
        TapReading(live.iter().filter_map(place).collect())
    }

    /// Some of what a policy has sampled since the last look, as far as it is asked for.
    fn news(&mut self, policy: &Arc<dyn Policy>, is_asked: impl Fn(&Sample) -> bool) -> Vec<v1::TapSample> {
        let Some(source) = policy.samples() else {
            return Vec::new();
        };
        let place = self.place(policy);
        let batch = source.read(place.next, BATCH_MAX);
        place.next = batch.next;
        place.lost += batch.missed;
        let asked = batch.samples.iter().filter(|sample| is_asked(sample));
        asked
            .map(|sample| shown(sample, std::mem::take(&mut place.lost)))
            .collect()
    }

    fn place(&mut self, policy: &Arc<dyn Policy>) -> &mut TapPlace {
        let is_it = |place: &TapPlace| std::ptr::addr_eq(place.policy.as_ptr(), Arc::as_ptr(policy));
        let known = self.0.iter().position(is_it);
        let at = known.unwrap_or_else(|| {
            self.0.retain(|place| place.policy.strong_count() > 0);
            self.0.push(TapPlace::at(policy, 0));
            self.0.len() - 1
        });
        &mut self.0[at]
    }
}

impl TapPlace {
    fn at(policy: &Arc<dyn Policy>, next: u64) -> TapPlace {
        TapPlace {
            policy: Arc::downgrade(policy),
            next,
            lost: 0,
        }
    }
}

/// Tells the newest samples that each tap has kept, the oldest of them first.
async fn send_kept(
    desk: &Desk,
    asked: &v1::TapRequest,
    answers: &Answers<v1::TapSample>,
) -> Result<(), Status> {
    for live in taps(desk, &asked.policy)? {
        let Some(source) = live.policy.samples() else {
            continue;
        };
        let kept = source.read(0, usize::MAX).samples;
        let mut newest: Vec<_> = kept.iter().filter(|sample| is_asked(sample, asked)).collect();
        let older = newest.len().saturating_sub(asked.recent as usize);
        for sample in newest.drain(older..) {
            if answers.send(Ok(shown(sample, 0))).await.is_err() {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// The policies that sample calls: the one of this name, or all.
pub(crate) fn taps(desk: &Desk, name: &str) -> Result<Vec<LivePolicy>, Status> {
    let mut live = desk.plane.policies.live();
    live.retain(|live| (name.is_empty() || *live.name == *name) && live.policy.samples().is_some());
    match live.is_empty() {
        false => Ok(live),
        true if name.is_empty() => Err(Status::failed_precondition(
            "no policy samples calls: attach one of the kind tap first",
        )),
        true => Err(Status::not_found(format!(
            "no policy of the kind tap is attached under the name \"{name}\""
        ))),
    }
}

fn is_asked(sample: &Sample, asked: &v1::TapRequest) -> bool {
    let path = method(sample);
    let name = path.rsplit('/').next().unwrap_or(path);
    let is_method = asked.method.is_empty() || matches_method(&asked.method, name, path);
    is_method && (asked.app.is_empty() || matches(&asked.app, &sample.datapath_context.app.name))
}

fn method(sample: &Sample) -> &str {
    let method = sample.datapath_context.methods.get(usize::from(sample.method));
    method.map_or("", |method| &method.path)
}

fn shown(sample: &Sample, lost: u64) -> v1::TapSample {
    let peer = &sample.datapath_context.peer;
    v1::TapSample {
        policy: sample.policy.to_string(),
        at_unix_us: (sample.began_unix_ns / 1000) as i64,
        app: sample.datapath_context.app.name.to_string(),
        side: sample.datapath_context.side.name().to_owned(),
        method: method(sample).to_owned(),
        peer: match (&peer.app, peer.identity.is_empty()) {
            (Some(app), _) => app.name.to_string(),
            (None, false) => peer.identity.to_string(),
            (None, true) => peer.address.to_string(),
        },
        call: sample.call,
        status: sample.status.name().to_owned(),
        duration_us: sample.duration_ns as f64 / 1e3,
        json: sample.json.clone(),
        lost,
    }
}

/// Tells what was counted, at each interval what came in it.
pub(crate) async fn watch(
    desk: &Desk,
    asked: v1::WatchRequest,
    answers: Answers<v1::Snapshot>,
) -> Result<(), Status> {
    let interval_ms = match asked.interval_ms {
        0 => INTERVAL_MS,
        asked => asked.clamp(INTERVAL_MS_MIN, INTERVAL_MS_MAX),
    };
    let (mut before, mut held_before, mut at) =
        (counted(desk), inspect::held_times(&desk.plane), Instant::now());
    loop {
        tokio::time::sleep(Duration::from_millis(interval_ms.into())).await;
        let (now, held_now, read_at) = (counted(desk), inspect::held_times(&desk.plane), Instant::now());
        let interval_s = read_at.duration_since(at).as_secs_f64();
        let none = MethodCalls::default();
        let stats = now.iter().map(|(key, calls)| {
            let earlier = before.get(key).unwrap_or(&none);
            stats(calls, &calls.since(earlier), interval_s)
        });
        let mut methods: Vec<_> = stats.collect();
        methods.sort_by(|one, other| {
            let key = |stats: &v1::MethodStats| {
                (
                    stats.app.clone(),
                    stats.service.clone(),
                    stats.method.clone(),
                    stats.side.clone(),
                )
            };
            key(one).cmp(&key(other))
        });
        let snapshot = v1::Snapshot {
            at_unix_us: unix_us(),
            interval_s,
            methods,
            counted_by: counting(desk),
            calls_in_flight: calls_in_flight(desk),
            policies: waits(&held_now, &held_before, interval_s),
        };
        if answers.send(Ok(snapshot)).await.is_err() {
            return Ok(());
        }
        (before, held_before, at) = (now, held_now, read_at);
    }
}

fn unix_us() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros() as i64)
}

type Key = (String, String, String, Option<Side>);

fn counted(desk: &Desk) -> HashMap<Key, MethodCalls> {
    let key = |calls: &MethodCalls| {
        (
            calls.app.to_string(),
            calls.service.to_string(),
            calls.method.to_string(),
            calls.side,
        )
    };
    let counted = observe::calls(&desk.plane).into_iter();
    counted.map(|calls| (key(&calls), calls)).collect()
}

/// The policies that count, by name.
fn counting(desk: &Desk) -> Vec<String> {
    let live = desk.plane.policies.live().into_iter();
    let counting = live.filter(|live| live.policy.calls().is_some());
    counting.map(|live| live.name.to_string()).collect()
}

fn calls_in_flight(desk: &Desk) -> u64 {
    let runtimes = desk.plane.runtimes.iter();
    runtimes.map(|runtime| runtime.traffic().calls_under_way).sum()
}

/// What came in an interval since an earlier look.
fn waits(now: &[PolicyHeld], before: &[PolicyHeld], interval_s: f64) -> Vec<v1::PolicyWaits> {
    let per_second = |held: HeldTime| held.waits as f64 / interval_s.max(f64::EPSILON);
    let mean_us = |held: HeldTime| held.held_ns as f64 / 1e3 / held.waits.max(1) as f64;
    let of_policy = |held: &PolicyHeld| {
        let earlier = before
            .iter()
            .find(|earlier| (&earlier.name, earlier.kind) == (&held.name, held.kind));
        let since = held
            .all
            .since(earlier.map_or(HeldTime::default(), |earlier| earlier.all));
        let of_method = |(method, all): (&Arc<str>, &HeldTime)| {
            let earlier = earlier.and_then(|earlier| earlier.methods.get(method));
            let since = all.since(earlier.copied().unwrap_or_default());
            (since.waits > 0).then(|| v1::MethodWaits {
                method: method.to_string(),
                waits_per_s: per_second(since),
                wait_us_mean: mean_us(since),
            })
        };
        v1::PolicyWaits {
            policy: held.name.to_string(),
            kind: held.kind.to_owned(),
            waits_per_s: per_second(since),
            wait_us_mean: mean_us(since),
            methods: held.methods.iter().filter_map(of_method).collect(),
        }
    };
    now.iter().map(of_policy).collect()
}

fn stats(all: &MethodCalls, since: &MethodCalls, interval_s: f64) -> v1::MethodStats {
    let per_second = |count: u64| count as f64 / interval_s.max(f64::EPSILON);
    let us = |share: f64| since.latency_quantile(share).unwrap_or(0.0) * 1e6;
    v1::MethodStats {
        app: all.app.to_string(),
        side: all.side.map_or("", Side::name).to_owned(),
        service: all.service.to_string(),
        method: all.method.to_string(),
        calls: all.ended_total(),
        errors: all.failed_total(),
        in_flight: all.in_flight,
        rate: per_second(since.ended_total()),
        error_rate: per_second(since.failed_total()),
        latency_us_p50: us(0.5),
        latency_us_p99: us(0.99),
        bytes_per_s: per_second(since.sent_bytes + since.received_bytes),
        time_in_queue_us_p99: since.time_in_queue_quantile(0.99).unwrap_or(0.0) * 1e6,
        time_in_queue_us_per_call: since.time_in_queue_sum * 1e6 / since.ended_total().max(1) as f64,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use provost_engine::{AttachError, DatapathContext, SampleBatch, SampleSource, Start};

    use super::*;
    use crate::policies::testing::sample;

    /// A policy that keeps some of what it has sampled.
    struct SamplingPolicy {
        next: AtomicU64,
        kept: u64,
    }

    impl SamplingPolicy {
        fn new(sampled: u64, kept: u64) -> Arc<SamplingPolicy> {
            let next = sampled.into();
            Arc::new(SamplingPolicy { next, kept })
        }
    }

    impl SampleSource for SamplingPolicy {
        fn read(&self, from: u64, samples_max: usize) -> SampleBatch {
            let next = self.next();
            let first = next.saturating_sub(self.kept);
            let numbers = (from.max(first)..next).take(samples_max);
            let samples: Vec<_> = numbers.map(|number| Arc::new(sample(number))).collect();
            SampleBatch {
                next: samples.last().map_or(next.max(from), |last| last.number + 1),
                missed: first.saturating_sub(from),
                samples,
            }
        }

        fn next(&self) -> u64 {
            self.next.load(Ordering::Relaxed)
        }
    }

    impl Policy for SamplingPolicy {
        fn prepare(&self, _context: &DatapathContext) -> Result<Start, AttachError> {
            Err(AttachError::new("for tests of its samples alone"))
        }

        fn samples(&self) -> Option<&dyn SampleSource> {
            Some(self)
        }
    }

    fn live(policy: &Arc<SamplingPolicy>) -> LivePolicy {
        LivePolicy {
            name: "tap".into(),
            policy: Arc::clone(policy) as Arc<dyn Policy>,
        }
    }

    fn news(reading: &mut TapReading, policy: &Arc<SamplingPolicy>) -> Vec<u64> {
        let news = reading.news(&live(policy).policy, |_| true);
        news.iter().map(|sample| sample.call).collect()
    }

    #[test]
    fn a_tap_that_is_set_again_is_read_from_its_beginning_and_two_of_a_name_each_by_itself() {
        let first = SamplingPolicy::new(1000, 1000);
        let mut reading = TapReading::begin(&[live(&first)]);
        first.next.fetch_add(2, Ordering::Relaxed);
        assert_eq!(news(&mut reading, &first), [1000, 1001]);
        let second = SamplingPolicy::new(3, 1000);
        for _ in 0..2 {
            first.next.fetch_add(1, Ordering::Relaxed);
            let of_first = first.next() - 1;
            assert_eq!(news(&mut reading, &first), [of_first]);
            let of_second = second.next() - 3..second.next();
            assert_eq!(news(&mut reading, &second), of_second.collect::<Vec<_>>());
            second.next.fetch_add(3, Ordering::Relaxed);
        }
        drop(first);
        let third = SamplingPolicy::new(1, 1);
        assert_eq!(news(&mut reading, &third), [0]);
        assert_eq!(reading.0.len(), 2);
    }

    #[test]
    fn samples_that_were_lost_are_told_with_the_next_that_is_shown() {
        let policy = SamplingPolicy::new(0, 10);
        let mut reading = TapReading::begin(&[live(&policy)]);
        let mut lost = |is_asked: bool| -> u64 {
            policy.next.fetch_add(15, Ordering::Relaxed);
            let news = reading.news(&live(&policy).policy, |_| is_asked);
            news.iter().map(|sample| sample.lost).sum()
        };
        assert_eq!((lost(false), lost(true), lost(true)), (0, 10, 5));
    }
}
