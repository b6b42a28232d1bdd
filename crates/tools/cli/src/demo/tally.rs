//! Latencies of one activity over all its slices.

use std::time::Duration;

use provost_figures::Latencies;

use super::wire::Figures;

/// Counts calls and keeps their latencies.
#[derive(Default)]
pub(crate) struct Tally {
    latencies: Latencies,
    elapsed: Duration,
}

impl Tally {
    pub(crate) fn record(&mut self, latency: Duration) {
        self.latencies.record(latency);
    }

    pub(crate) fn slice_took(&mut self, elapsed: Duration) {
        self.elapsed += elapsed;
    }

    pub(crate) fn figures(&self) -> Figures {
        let report = self.latencies.report(self.elapsed.as_secs_f64().max(1e-9), 0);
        Figures {
            calls: report.count,
            p50_us: report.p50_us,
            p99_us: report.p99_us,
            p999_us: report.p999_us,
            rps: report.rps,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_add_up() {
        let mut tally = Tally::default();
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
