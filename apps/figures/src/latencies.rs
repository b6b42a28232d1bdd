//! Latencies of one thread, and what they come to.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::report::Report;

/// Latencies past this are counted as this: two minutes.
const LATENCY_NS_MAX: u64 = 120_000_000_000;

/// Latencies, in nanoseconds to three digits.
#[derive(Clone, Debug)]
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Self {
        let histogram = Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3);
        Self(histogram.expect("the bounds are in order"))
    }
}

impl Latencies {
    /// Adds the latency of one call.
    pub fn record(&mut self, latency: Duration) {
        self.record_ns(u64::try_from(latency.as_nanos()).unwrap_or(LATENCY_NS_MAX), 1);
    }

    /// Adds so many calls that took so long each.
    pub fn record_ns(&mut self, latency_ns: u64, calls: u64) {
        self.0.saturating_record_n(latency_ns.max(1), calls);
    }

    /// Adds those of another thread.
    pub fn add(&mut self, other: &Latencies) {
        self.0 += &other.0;
    }

    /// Calls that were recorded.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// What a run of so many seconds came to.
    #[must_use]
    pub fn report(&self, seconds: f64, errors: u64) -> Report {
        let us = |quantile| self.0.value_at_quantile(quantile) as f64 / 1e3;
        Report {
            seconds,
            count: self.0.len(),
            errors,
            rps: self.0.len() as f64 / seconds,
            mean_us: self.0.mean() / 1e3,
            min_us: self.0.min() as f64 / 1e3,
            p50_us: us(0.5),
            p90_us: us(0.9),
            p99_us: us(0.99),
            p999_us: us(0.999),
            ..Report::default()
        }
    }
}
