//! What the applications' benchmarks measure, as a table and as JSON: one cell for each setup and load, with the medians
//! over its runs, under the names that `cargo xtask bench` uses.
#![forbid(unsafe_code)]

use std::path::Path;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

/// The longest latency that is told apart, in nanoseconds: a minute.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// Latencies of one run.
#[derive(Clone, Debug)]
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Self {
        let histogram = Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3);
        Self(histogram.expect("the bounds are in order"))
    }
}

impl Latencies {
    /// Adds one.
    pub fn record(&mut self, latency: Duration) {
        self.0.saturating_record(latency.as_nanos().max(1) as u64);
    }

    /// Adds those of another thread.
    pub fn add(&mut self, other: &Latencies) {
        self.0 += &other.0;
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// What the run came to.
    #[must_use]
    pub fn run(&self, seconds: f64, errors: u64) -> Run {
        let us = |quantile| self.0.value_at_quantile(quantile) as f64 / 1e3;
        Run {
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
        }
    }
}

/// What one run came to.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// How long it was measured.
    pub seconds: f64,
    /// Calls that ended well in that time.
    pub count: u64,
    /// Calls that did not.
    pub errors: u64,
    /// Calls a second.
    pub rps: f64,
    /// Latencies, in microseconds.
    pub mean_us: f64,
    /// The least.
    pub min_us: f64,
    /// Half are below.
    pub p50_us: f64,
    /// 90 of 100 are below.
    pub p90_us: f64,
    /// 99 of 100 are below.
    pub p99_us: f64,
    /// 999 of 1000 are below.
    pub p999_us: f64,
}

/// One load on one setup.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// Name of the setup.
    pub setup: String,
    /// Name of the load.
    pub what: String,
    /// Payload of a request, in bytes.
    pub size: usize,
    /// Clients.
    pub conns: usize,
    /// Calls in flight at each.
    pub inflight: usize,
    /// Medians over the runs.
    pub median: Median,
    /// Every run, in order.
    pub runs: Vec<Run>,
}

/// Medians over runs.
#[derive(Clone, Debug, Serialize)]
pub struct Median {
    /// As in [`Run`].
    pub p50_us: f64,
    /// The least of the runs' medians.
    pub best_p50_us: f64,
    /// As in [`Run`].
    pub p90_us: f64,
    /// As in [`Run`].
    pub p99_us: f64,
    /// As in [`Run`].
    pub p999_us: f64,
    /// As in [`Run`].
    pub mean_us: f64,
    /// As in [`Run`].
    pub rps: f64,
    /// Of all runs.
    pub errors: u64,
}

impl Median {
    fn of(runs: &[Run]) -> Median {
        let median = |figure: fn(&Run) -> f64| {
            let mut all: Vec<f64> = runs.iter().map(figure).collect();
            all.sort_by(f64::total_cmp);
            all.get(all.len() / 2).copied().unwrap_or_default()
        };
        let p50s = runs.iter().map(|run| run.p50_us);
        Median {
            p50_us: median(|run| run.p50_us),
            best_p50_us: p50s.min_by(f64::total_cmp).unwrap_or_default(),
            p90_us: median(|run| run.p90_us),
            p99_us: median(|run| run.p99_us),
            p999_us: median(|run| run.p999_us),
            mean_us: median(|run| run.mean_us),
            rps: median(|run| run.rps),
            errors: runs.iter().map(|run| run.errors).sum(),
        }
    }
}

/// All cells of a benchmark, in the order in which they are shown.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Cells {
    /// One for each setup and load.
    pub cells: Vec<Cell>,
}

/// What a run belongs to.
#[derive(Clone, Debug)]
pub struct Load {
    /// Name of the setup.
    pub setup: String,
    /// Name of the load.
    pub what: String,
    /// Payload of a request, in bytes.
    pub size: usize,
    /// Clients.
    pub conns: usize,
    /// Calls in flight at each.
    pub inflight: usize,
}

impl Cells {
    /// Adds a run, to the cell of its setup and load if there is one.
    pub fn add(&mut self, load: &Load, run: Run) {
        let is_of = |cell: &&mut Cell| cell.setup == load.setup && cell.what == load.what;
        if let Some(cell) = self.cells.iter_mut().find(is_of) {
            cell.runs.push(run);
            cell.median = Median::of(&cell.runs);
            return;
        }
        let runs = vec![run];
        self.cells.push(Cell {
            setup: load.setup.clone(),
            what: load.what.clone(),
            size: load.size,
            conns: load.conns,
            inflight: load.inflight,
            median: Median::of(&runs),
            runs,
        });
    }

    /// The medians of a setup and load.
    #[must_use]
    pub fn median(&self, setup: &str, what: &str) -> Option<&Median> {
        let mut cells = self.cells.iter();
        Some(
            &cells
                .find(|cell| cell.setup == setup && cell.what == what)?
                .median,
        )
    }

    /// A row for each cell.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = format!(
            "{:24} {:14} {:>9} {:>9} {:>9} {:>10} {:>7}\n",
            "setup", "what", "p50 us", "p99 us", "p99.9 us", "calls/s", "errors"
        );
        for cell in &self.cells {
            let median = &cell.median;
            text += &format!(
                "{:24} {:14} {:9.1} {:9.1} {:9.1} {:10.0} {:7}\n",
                cell.setup,
                cell.what,
                median.p50_us,
                median.p99_us,
                median.p999_us,
                median.rps,
                median.errors
            );
        }
        text
    }

    /// Writes the cells to a file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, path: &Path) -> std::io::Result<()> {
        let text = serde_json::to_string_pretty(self).map_err(std::io::Error::other)?;
        std::fs::write(path, text + "\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_has_the_medians_of_its_runs() {
        let mut cells = Cells::default();
        let load = Load {
            setup: "bare udp".into(),
            what: "latency".into(),
            size: 64,
            conns: 1,
            inflight: 1,
        };
        for us in [30, 10, 20] {
            let mut latencies = Latencies::default();
            (0..100).for_each(|_| latencies.record(Duration::from_micros(us)));
            cells.add(&load, latencies.run(1.0, 1));
        }
        let median = cells.median("bare udp", "latency").unwrap();
        assert!((median.p50_us - 20.0).abs() < 0.1 && (median.best_p50_us - 10.0).abs() < 0.1);
        assert_eq!(median.errors, 3);
        assert_eq!(cells.cells.len(), 1);
        let json = serde_json::to_value(&cells).unwrap();
        assert_eq!(json["cells"][0]["runs"][1]["count"], 100);
        assert!(cells.table().contains("bare udp"));
    }
}
