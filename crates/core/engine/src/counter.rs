//! Counters and histograms that the data path adds to, and scrapes read.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{DatapathContext, MetricDescription, MetricSink, Nanos};

/// Runtimes that count apart; those beyond share.
const SHARDS: usize = 16;
const NANOS_PER_SECOND: f64 = 1e9;

/// A number that one thread alone adds to, and any may read: no instruction that would lock the memory bus.
#[derive(Debug, Default)]
pub struct Tally(AtomicU64);

impl Tally {
    /// Adds to it, from the one thread that does.
    #[inline]
    pub fn add(&self, more: u64) {
        self.set(self.get().wrapping_add(more));
    }

    /// Its value.
    #[inline]
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Gives it a value, from the one thread that does.
    #[inline]
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}

/// A counter to which each runtime adds on a cache line of its own.
#[derive(Debug, Default)]
pub struct Counter {
    own: [CounterShard<Tally>; SHARDS],
    shared: CounterShard<AtomicU64>,
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct CounterShard<T>(T);

impl Counter {
    /// A counter at zero.
    #[must_use]
    pub fn new() -> Counter {
        Counter::default()
    }

    /// Adds to it, from the runtime that polls this datapath: no other thread may.
    #[inline]
    pub fn add(&self, datapath_context: &DatapathContext, count: u64) {
        match self.own.get(datapath_context.runtime) {
            Some(own) => own.0.add(count),
            None => _ = self.shared.0.fetch_add(count, Ordering::Relaxed),
        }
    }

    /// How much was added by all.
    #[must_use]
    pub fn value(&self) -> u64 {
        let own = self.own.iter().map(|own| own.0.get());
        own.fold(self.shared.0.load(Ordering::Relaxed), u64::wrapping_add)
    }

    /// Reports it.
    pub fn report(
        &self,
        metric: &'static MetricDescription,
        labels: &[(&str, &str)],
        sink: &mut dyn MetricSink,
    ) {
        sink.number(metric, labels, self.value() as f64);
    }
}

/// A histogram of times, for what does not happen in every call: all runtimes add to the same words.
#[derive(Debug)]
pub struct TimeHistogram {
    bounds_ns: &'static [Nanos],
    /// One more than there are bounds.
    counts: Box<[AtomicU64]>,
    sum_ns: AtomicU64,
}

impl TimeHistogram {
    /// An empty histogram with these upper bounds, ascending; a last, infinite one is added.
    #[must_use]
    pub fn new(bounds_ns: &'static [Nanos]) -> TimeHistogram {
        TimeHistogram {
            bounds_ns,
            counts: (0..=bounds_ns.len()).map(|_| AtomicU64::new(0)).collect(),
            sum_ns: AtomicU64::new(0),
        }
    }

    /// Counts a time.
    pub fn observe(&self, time: Nanos) {
        let at = self.bounds_ns.partition_point(|bound| *bound < time);
        self.counts[at].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(time, Ordering::Relaxed);
    }

    /// How many times were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts
            .iter()
            .map(|count| count.load(Ordering::Relaxed))
            .sum()
    }

    /// Reports it, in seconds.
    pub fn report(
        &self,
        metric: &'static MetricDescription,
        labels: &[(&str, &str)],
        sink: &mut dyn MetricSink,
    ) {
        let mut total = 0;
        let bounds = self
            .bounds_ns
            .iter()
            .map(|bound| *bound as f64 / NANOS_PER_SECOND);
        let cumulative: Vec<(f64, u64)> = bounds
            .chain([f64::INFINITY])
            .zip(&self.counts)
            .map(|(bound, count)| {
                total += count.load(Ordering::Relaxed);
                (bound, total)
            })
            .collect();
        let sum = self.sum_ns.load(Ordering::Relaxed) as f64 / NANOS_PER_SECOND;
        sink.histogram(metric, labels, &cumulative, sum, total);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MetricType;

    const METRIC: MetricDescription = MetricDescription {
        name: "provost_test_seconds",
        help: "A test.",
        kind: MetricType::Histogram,
        unit: "s",
    };

    #[derive(Default)]
    struct Seen {
        cumulative: Vec<(f64, u64)>,
        sum: f64,
        count: u64,
    }

    impl MetricSink for Seen {
        fn number(&mut self, _: &'static MetricDescription, _: &[(&str, &str)], _: f64) {}

        fn histogram(
            &mut self,
            _: &'static MetricDescription,
            _: &[(&str, &str)],
            cumulative: &[(f64, u64)],
            sum: f64,
            count: u64,
        ) {
            self.cumulative = cumulative.to_vec();
            self.sum = sum;
            self.count = count;
        }
    }

    #[test]
    fn times_are_counted_at_or_below_their_bound() {
        let histogram = TimeHistogram::new(&[1_000, 1_000_000]);
        for time in [1, 1_000, 1_001, 2_000_000] {
            histogram.observe(time);
        }
        let mut seen = Seen::default();
        histogram.report(&METRIC, &[], &mut seen);
        assert_eq!(seen.cumulative, [(1e-6, 2), (1e-3, 3), (f64::INFINITY, 4)]);
        assert_eq!((seen.count, seen.sum), (4, 0.002_002_002));
    }
}
