//! Completions over time: how long none came, and how long calls took, in windows around what was done meanwhile.

use std::io::Write;
use std::path::Path;

use serde::{Deserialize, Serialize};

use provost_figures::Median;

use crate::failure::{Doing, Failure};

/// Unit in which a completion's time and latency are kept, so that each takes 4 bytes.
const TICK_NS: u64 = 100;
/// Completions that a timeline keeps, at most.
pub(crate) const COMPLETIONS_MAX: usize = 32 << 20;
/// How long after a change its effect is looked for.
const AFTER_NS: u64 = 5_000_000;

/// A call that has ended well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Completion {
    /// When, on the machine's monotonic clock.
    pub(crate) at_ns: u64,
    /// How long it took.
    pub(crate) latency_ns: u64,
}

/// What a client says of a timeline; the completions are in a file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Outline {
    pub(crate) began_ns: u64,
    pub(crate) errors: u64,
    /// Calls that a policy has refused: by a limit, or as those of a blocked user.
    pub(crate) denied: u64,
    pub(crate) count: u64,
}

/// The completions of a client, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timeline {
    pub(crate) outline: Outline,
    completions: Vec<Completion>,
}

/// A stretch of time, on the machine's monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) from_ns: u64,
    pub(crate) to_ns: u64,
}

impl Window {
    /// The window in which a change that took so long shows.
    pub(crate) fn around(self) -> Window {
        Window {
            to_ns: self.to_ns + AFTER_NS,
            ..self
        }
    }

    fn overlaps(self, from_ns: u64, to_ns: u64) -> bool {
        from_ns <= self.to_ns && to_ns >= self.from_ns
    }
}

/// Writes completions for the bench to read, each as two little-endian `u32` of [`TICK_NS`]: since `began_ns`, and how long.
pub(crate) fn write(path: &Path, began_ns: u64, completions: &[Completion]) -> Result<(), Failure> {
    let ticks = |ns: u64| u32::try_from(ns / TICK_NS).unwrap_or(u32::MAX).to_le_bytes();
    let doing = || format!("write {}", path.display());
    let file = std::fs::File::create(path).doing(doing)?;
    let mut file = std::io::BufWriter::new(file);
    for completion in completions {
        let at = ticks(completion.at_ns.saturating_sub(began_ns));
        file.write_all(&at).doing(doing)?;
        file.write_all(&ticks(completion.latency_ns)).doing(doing)?;
    }
    file.flush().doing(doing)
}

impl Timeline {
    /// Reads what [`write`] has written.
    pub(crate) fn read(outline: Outline, path: &Path) -> Result<Timeline, Failure> {
        let bytes = std::fs::read(path).doing(|| format!("read {}", path.display()))?;
        let ns =
            |bytes: &[u8]| u64::from(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])) * TICK_NS;
        let completion = |bytes: &[u8]| Completion {
            at_ns: outline.began_ns + ns(&bytes[..4]),
            latency_ns: ns(&bytes[4..]),
        };
        let completions = bytes.chunks_exact(8).map(completion).collect();
        Ok(Timeline { outline, completions })
    }

    /// The longest time without a completion in each window, in microseconds.
    pub(crate) fn gaps_us(&self, windows: &[Window]) -> Vec<f64> {
        windows
            .iter()
            .map(|window| self.gap_ns(*window) as f64 / 1e3)
            .collect()
    }

    fn gap_ns(&self, window: Window) -> u64 {
        let first = self
            .completions
            .partition_point(|completion| completion.at_ns < window.from_ns)
            .saturating_sub(1);
        let pairs = self.completions[first..].windows(2);
        let near = pairs.take_while(|pair| pair[0].at_ns <= window.to_ns);
        let gaps = near.filter(|pair| window.overlaps(pair[0].at_ns, pair[1].at_ns));
        gaps.map(|pair| pair[1].at_ns - pair[0].at_ns).max().unwrap_or(0)
    }

    /// Latencies of the calls that ended in any of these windows, in microseconds.
    pub(crate) fn latencies_us(&self, windows: &[Window]) -> Vec<f64> {
        let in_window = |window: &Window| {
            let from = self
                .completions
                .partition_point(|call| call.at_ns < window.from_ns);
            let to = self
                .completions
                .partition_point(|call| call.at_ns <= window.to_ns);
            self.completions[from..to.max(from)].iter()
        };
        let calls = windows.iter().flat_map(in_window);
        calls.map(|call| call.latency_ns as f64 / 1e3).collect()
    }

    /// Calls a second, slice after slice, each with the seconds since the beginning.
    pub(crate) fn rates(&self, slice_ns: u64) -> Vec<(f64, f64)> {
        let Some(last) = self.completions.last() else {
            return Vec::new();
        };
        let slice = |at_ns: u64| ((at_ns - self.outline.began_ns) / slice_ns) as usize;
        let mut counts = vec![0_u64; slice(last.at_ns) + 1];
        for completion in &self.completions {
            counts[slice(completion.at_ns)] += 1;
        }
        // The last slice is not whole.
        counts.pop();
        let seconds = slice_ns as f64 / 1e9;
        let point = |(at, count): (usize, u64)| (at as f64 * seconds, count as f64 / seconds);
        counts.into_iter().enumerate().map(point).collect()
    }

    /// Calls a second in a window.
    pub(crate) fn rate(&self, window: Window) -> f64 {
        let seconds = (window.to_ns - window.from_ns) as f64 / 1e9;
        self.latencies_us(&[window]).len() as f64 / seconds
    }
}

/// Quantiles of values in microseconds, as a cell shows them.
pub(crate) fn quantiles(mut values: Vec<f64>) -> Median {
    values.sort_by(f64::total_cmp);
    let at = |quantile: f64| {
        let place = (values.len() as f64 * quantile).ceil() as usize;
        values.get(place.max(1) - 1).copied()
    };
    Median {
        p50_us: at(0.5),
        p90_us: at(0.9),
        p99_us: at(0.99),
        p999_us: at(0.999),
        mean_us: (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64),
        ..Median::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeline(times_ns: &[u64]) -> Timeline {
        let completion = |at_ns: &u64| Completion {
            at_ns: *at_ns,
            latency_ns: 1000,
        };
        Timeline {
            outline: Outline::default(),
            completions: times_ns.iter().map(completion).collect(),
        }
    }

    fn window(from_ns: u64, to_ns: u64) -> Window {
        Window { from_ns, to_ns }
    }

    #[test]
    fn a_gap_belongs_to_every_window_that_it_touches() {
        let timeline = timeline(&[1000, 2000, 9000, 10_000]);
        assert_eq!(timeline.gaps_us(&[window(3000, 4000)]), [7.0]);
        assert_eq!(
            timeline.gaps_us(&[window(1500, 1600), window(9500, 9600)]),
            [1.0, 1.0]
        );
    }

    #[test]
    fn what_is_written_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("calls");
        let completions = [(5_000_000_100, 30_000), (5_000_040_000, 31_000)]
            .map(|(at_ns, latency_ns)| Completion { at_ns, latency_ns });
        write(&path, 5_000_000_000, &completions).unwrap();
        let outline = Outline {
            began_ns: 5_000_000_000,
            ..Outline::default()
        };
        let read = Timeline::read(outline, &path).unwrap();
        assert_eq!(read.completions, completions);
        assert_eq!(read.latencies_us(&[window(0, u64::MAX)]), [30.0, 31.0]);
    }

    #[test]
    fn rates_are_by_slice() {
        let timeline = timeline(&[0, 10, 1_000_000_010, 2_000_000_000]);
        assert_eq!(timeline.rates(1_000_000_000), [(0.0, 2.0), (1.0, 1.0)]);
    }

    #[test]
    fn quantiles_are_values_that_were_there() {
        let median = quantiles((1..=1000).map(f64::from).collect());
        assert_eq!(
            (median.p50_us, median.p99_us, median.p999_us),
            (Some(500.0), Some(990.0), Some(999.0))
        );
    }
}
