//! What one slice of load came to.

use std::time::Duration;

use provost_insight::profile::LatencyQuantiles;

/// Calls of one slice of time.
#[derive(Clone, Debug, Default)]
pub struct LoadSlice {
    /// Latency of every call, the least first.
    latencies_ns: Vec<u32>,
    /// How long it took.
    pub time: Duration,
    /// Calls that left late although their connection was free.
    late: usize,
}

impl LoadSlice {
    pub(crate) fn of(mut latencies_ns: Vec<u32>, time: Duration, late: usize) -> LoadSlice {
        latencies_ns.sort_unstable();
        LoadSlice {
            latencies_ns,
            time,
            late,
        }
    }

    /// The share of the calls that left late although their connection was free: whoever sends them had no core.
    #[must_use]
    pub fn late_share(&self) -> f64 {
        self.late as f64 / self.count().max(1) as f64
    }

    /// Adds another slice of the same load.
    pub(crate) fn append(&mut self, mut more: LoadSlice) {
        self.latencies_ns.append(&mut more.latencies_ns);
        self.latencies_ns.sort_unstable();
        self.time += more.time;
        self.late += more.late;
    }

    #[must_use]
    pub fn count(&self) -> usize {
        self.latencies_ns.len()
    }

    /// Calls a second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.count() as f64 / self.time.as_secs_f64()
    }

    /// Mean of the middle half of the latencies, in microseconds: what disturbed calls met does not count.
    #[must_use]
    pub fn middle_mean_us(&self) -> f64 {
        let quarter = self.count() / 4;
        mean_us(&self.latencies_ns[quarter..self.count() - quarter])
    }

    /// The latency that this share of the calls does not exceed, in microseconds.
    #[must_use]
    pub fn quantile_us(&self, share: f64) -> f64 {
        let at = (share * self.count() as f64) as usize;
        let at = at.min(self.count().saturating_sub(1));
        self.latencies_ns
            .get(at)
            .map_or(f64::NAN, |latency| f64::from(*latency) / 1e3)
    }

    /// This one's quantiles less another one's.
    #[must_use]
    pub fn quantiles_over(&self, other: &LoadSlice) -> LatencyQuantiles {
        let difference = |share| self.quantile_us(share) - other.quantile_us(share);
        LatencyQuantiles {
            p10: difference(0.1),
            p50: difference(0.5),
            p90: difference(0.9),
            p99: difference(0.99),
        }
    }
}

fn mean_us(latencies_ns: &[u32]) -> f64 {
    let sum: u64 = latencies_ns.iter().map(|latency| u64::from(*latency)).sum();
    sum as f64 / latencies_ns.len() as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_half_knows_nothing_of_stragglers() {
        let latencies = vec![90_000_000, 10_000, 11_000, 12_000, 13_000, 1_000, 10_500, 12_500];
        let slice = LoadSlice::of(latencies, Duration::from_secs(2), 2);
        assert_eq!(slice.late_share(), 0.25);
        assert_eq!(slice.rate(), 4.0);
        assert_eq!(slice.middle_mean_us(), (10.5 + 11.0 + 12.0 + 12.5) / 4.0);
        assert_eq!(slice.quantile_us(0.5), 12.0);
        assert!(mean_us(&slice.latencies_ns) > 1000.0);
    }
}
