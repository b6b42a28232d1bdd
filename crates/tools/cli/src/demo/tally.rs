//! Latencies of one activity over all its slices.

use std::time::Duration;

use hdrhistogram::Histogram;

use super::wire::Figures;

/// The longest latency that is told apart from a longer one: a minute, in nanoseconds.
const LATENCY_NS_MAX: u64 = 60_000_000_000;
/// Significant digits of a latency.
const DIGITS: u8 = 3;

/// Counts calls and keeps their latencies.
pub(crate) struct Tally {
    latencies_ns: Histogram<u64>,
    elapsed: Duration,
}

impl Tally {
    pub(crate) fn new() -> Tally {
        let latencies_ns = Histogram::new_with_bounds(1, LATENCY_NS_MAX, DIGITS)
            .expect("the bounds are constants that the histogram takes");
        Tally {
            latencies_ns,
            elapsed: Duration::ZERO,
        }
    }

    pub(crate) fn record(&mut self, latency: Duration) {
        let latency_ns = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.latencies_ns.saturating_record(latency_ns);
    }

    pub(crate) fn slice_took(&mut self, elapsed: Duration) {
        self.elapsed += elapsed;
    }

    pub(crate) fn figures(&self) -> Figures {
        let us_at = |quantile| self.latencies_ns.value_at_quantile(quantile) as f64 / 1e3;
        Figures {
            calls: self.latencies_ns.len(),
            p50_us: us_at(0.5),
            p99_us: us_at(0.99),
            p999_us: us_at(0.999),
            rps: self.latencies_ns.len() as f64 / self.elapsed.as_secs_f64().max(1e-9),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_add_up() {
        let mut tally = Tally::new();
        for us in 1..=1000 {
            tally.record(Duration::from_micros(us));
        }
        tally.slice_took(Duration::from_secs(1));
        tally.slice_took(Duration::from_secs(1));
        let figures = tally.figures();
        assert_eq!(figures.calls, 1000);
        assert!((figures.p50_us - 500.0).abs() < 5.0, "{figures:?}");
        assert!((figures.p99_us - 990.0).abs() < 10.0, "{figures:?}");
        assert!((figures.rps - 500.0).abs() < 1.0, "{figures:?}");
    }
}
