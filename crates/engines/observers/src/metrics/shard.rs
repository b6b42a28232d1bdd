//! Where the calls of one app and service are counted, by the one thread that carries them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use provost_engine::{Code, DatapathContext, Direction, Nanos, Side, Tally};

use crate::metrics::buckets::{LATENCIES, SIZE_CLASSES, TallyHistogram, latency_bucket, size_bucket};

/// What stands for apps, services, methods and statuses that are beyond a bound.
pub(crate) const OTHER: &str = "other";
/// Pairs of a method and a status that one shard has room for, at most.
const SERIES_MAX: usize = 256;
/// Statuses beside `OK` that there is room for from the start, for each method; and how many more in all.
const STATUSES_PER_METHOD: usize = 2;
const STATUSES_SPARE: usize = Code::ALL.len();
/// The series for which there was no room.
const OVERFLOW: usize = 0;

/// Whose calls a shard counts.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ShardOwner {
    pub(crate) app: Arc<str>,
    pub(crate) service: Arc<str>,
    pub(crate) side: Side,
}

impl ShardOwner {
    pub(crate) fn of(datapath_context: &DatapathContext) -> ShardOwner {
        ShardOwner {
            app: Arc::clone(&datapath_context.app.name),
            service: Arc::clone(&datapath_context.service),
            side: datapath_context.side,
        }
    }

    pub(crate) fn other(side: Side) -> ShardOwner {
        ShardOwner {
            app: OTHER.into(),
            service: OTHER.into(),
            side,
        }
    }

    /// Whether it stands for those that are beyond a bound.
    pub(crate) fn is_other(&self) -> bool {
        (&*self.app, &*self.service) == (OTHER, OTHER)
    }
}

/// Counters of one owner on one runtime. Only that runtime's thread writes them.
#[derive(Debug)]
pub(crate) struct OwnerShard {
    pub(crate) owner: ShardOwner,
    pub(crate) runtime: usize,
    /// Names of methods, by index.
    pub(crate) methods: Arc<[Arc<str>]>,
    started: Box<[Tally]>,
    queued: Box<[QueueTimes]>,
    /// For each method and status the place of its series; 0 until there is one, and when there is no room for one.
    places: Box<[AtomicU16]>,
    series: Box<[CallSeries]>,
    /// Series in use, the overflow among them.
    used: Tally,
}

/// How long steps of one method were in the service, by their [`Direction`].
pub(crate) type QueueTimes = [TallyHistogram<LATENCIES>; 2];

/// What is counted of the calls of one method that ended with one status.
#[derive(Debug, Default)]
pub(crate) struct CallSeries {
    pub(crate) latency: TallyHistogram<LATENCIES>,
    pub(crate) sent: TallyHistogram<SIZE_CLASSES>,
    pub(crate) received: TallyHistogram<SIZE_CLASSES>,
}

/// A call that has ended, as it is counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndedCall {
    pub(crate) method: u16,
    pub(crate) code: Code,
    pub(crate) duration_ns: Nanos,
    pub(crate) sent_bytes: u64,
    pub(crate) received_bytes: u64,
}

impl OwnerShard {
    /// The methods are those of a datapath context, or none for what is beyond a bound.
    pub(crate) fn new(owner: ShardOwner, runtime: usize, methods: Arc<[Arc<str>]>) -> OwnerShard {
        let count = methods.len().max(1);
        let room = (1 + count * (1 + STATUSES_PER_METHOD) + STATUSES_SPARE).min(SERIES_MAX);
        OwnerShard {
            owner,
            runtime,
            started: (0..count).map(|_| Tally::default()).collect(),
            queued: (0..count).map(|_| QueueTimes::default()).collect(),
            places: (0..count * Code::ALL.len()).map(|_| AtomicU16::new(0)).collect(),
            series: (0..room).map(|_| CallSeries::default()).collect(),
            used: {
                let used = Tally::default();
                used.set(1);
                used
            },
            methods,
        }
    }

    pub(crate) fn call_began(&self, method: u16) {
        let method = usize::from(method).min(self.started.len() - 1);
        self.started[method].add(1);
    }

    /// A step has left the service, in which it was so long.
    pub(crate) fn queued(&self, method: u16, direction: Direction, time_ns: Nanos) {
        let method = usize::from(method).min(self.queued.len() - 1);
        self.queued[method][direction as usize].count(latency_bucket(time_ns), time_ns);
    }

    pub(crate) fn call_ended(&self, call: &EndedCall) {
        let series = &self.series[self.place(call.method, call.code)];
        series
            .latency
            .count(latency_bucket(call.duration_ns), call.duration_ns);
        series.sent.count(size_bucket(call.sent_bytes), call.sent_bytes);
        series
            .received
            .count(size_bucket(call.received_bytes), call.received_bytes);
    }

    /// The place of the series of a method and status, which gets one if there is room.
    fn place(&self, method: u16, code: Code) -> usize {
        let method = usize::from(method).min(self.started.len() - 1);
        let place = &self.places[method * Code::ALL.len() + code as usize];
        let known = usize::from(place.load(Ordering::Relaxed));
        if known != OVERFLOW {
            return known;
        }
        let next = self.used.get() as usize;
        if next >= self.series.len() {
            return OVERFLOW;
        }
        self.used.set(next as u64 + 1);
        // A reader that sees the place finds a series of zeros or more behind it in any case.
        place.store(next as u16, Ordering::Relaxed);
        next
    }

    /// What began, by method.
    pub(crate) fn started(&self) -> impl Iterator<Item = (Arc<str>, u64)> + '_ {
        let counts = self.started.iter().map(Tally::get);
        counts
            .enumerate()
            .map(|(method, count)| (self.method_name(method), count))
    }

    /// How long steps were in the service, by method.
    pub(crate) fn queued_times(&self) -> impl Iterator<Item = (Arc<str>, &QueueTimes)> {
        let times = self.queued.iter().enumerate();
        times.map(|(method, times)| (self.method_name(method), times))
    }

    /// What ended, by method and status; `None` for both in the series for which there was no room.
    pub(crate) fn ended(&self) -> impl Iterator<Item = (Arc<str>, Option<Code>, &CallSeries)> {
        let places = self.places.iter().enumerate().filter_map(|(at, place)| {
            let place = usize::from(place.load(Ordering::Relaxed));
            let code = Code::ALL[at % Code::ALL.len()];
            (place != OVERFLOW).then(|| {
                let method = self.method_name(at / Code::ALL.len());
                (method, Some(code), &self.series[place])
            })
        });
        places.chain([(OTHER.into(), None, &self.series[OVERFLOW])])
    }

    /// The name under which a method is counted, by its index.
    pub(crate) fn method_name(&self, method: usize) -> Arc<str> {
        self.methods.get(method).map_or_else(|| OTHER.into(), Arc::clone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(method: u16, code: Code) -> EndedCall {
        EndedCall {
            method,
            code,
            duration_ns: 1000,
            sent_bytes: 1,
            received_bytes: 2,
        }
    }

    fn shard(methods: usize) -> OwnerShard {
        let methods: Vec<Arc<str>> = (0..methods).map(|at| format!("M{at}").into()).collect();
        OwnerShard::new(ShardOwner::other(Side::Client), 0, methods.into())
    }

    #[test]
    fn each_method_and_status_has_a_series_until_there_is_no_room() {
        let shard = shard(200);
        let mut calls = 0;
        for method in 0..200 {
            for code in [Code::Ok, Code::Unavailable] {
                shard.call_began(method);
                shard.call_ended(&ended(method, code));
                calls += 1;
            }
        }
        let counted: Vec<_> = shard
            .ended()
            .map(|(method, code, series)| (method, code, series.latency.read().count()))
            .collect();
        assert_eq!(counted.len(), SERIES_MAX);
        assert_eq!(counted.iter().map(|(_, _, count)| count).sum::<u64>(), calls);
        let (method, code, beyond) = counted.last().unwrap();
        assert_eq!(
            (&**method, *code, *beyond),
            (OTHER, None, calls - SERIES_MAX as u64 + 1)
        );
    }

    #[test]
    fn a_shard_without_methods_counts_all_as_one() {
        let shard = shard(0);
        shard.call_began(7);
        shard.call_ended(&ended(7, Code::Ok));
        assert_eq!(shard.started().collect::<Vec<_>>(), [(OTHER.into(), 1)]);
        let (method, code, series) = shard.ended().next().unwrap();
        assert_eq!(
            (&*method, code, series.sent.read().sum),
            (OTHER, Some(Code::Ok), 1)
        );
    }
}
