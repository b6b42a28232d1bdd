//! Runs put together: medians over rounds, in the form in which they are written to a file.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;

use crate::outcome::TargetOutcome;
use crate::pairs::Pairs;
use crate::report::Report;

/// Cores' worth of others' work above which a run counts only when its cell has no better one.
pub const QUIET_CORES_MAX: f64 = 0.3;

/// All cells of a run of the bench.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Cells {
    /// In the order in which they are shown.
    pub cells: Vec<Cell>,
    /// What was compared in alternating slices.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pairs: Vec<Compared>,
}

/// Two setups compared in alternating slices.
#[derive(Clone, Debug, Serialize)]
pub struct Compared {
    #[serde(flatten)]
    pub outcome: TargetOutcome,
    /// Of each pair, the least first.
    pub values: Pairs,
}

impl Cells {
    /// Cells alone, nothing that was compared in slices.
    #[must_use]
    pub fn of(cells: Vec<Cell>) -> Cells {
        Cells {
            cells,
            pairs: Vec::new(),
        }
    }

    /// Adds a run, to the cell of its setup and load if there is one.
    pub fn add(&mut self, load: &Load, run: Report) {
        let is_of = |cell: &Cell| cell.setup == load.setup && cell.what == load.what;
        let at = self.cells.iter().position(is_of).unwrap_or_else(|| {
            self.cells.push(Cell {
                setup: load.setup.clone().into(),
                what: load.what.clone(),
                size: load.size,
                conns: load.conns,
                inflight: load.inflight,
                median: Median::default(),
                runs: Vec::new(),
            });
            self.cells.len() - 1
        });
        let cell = &mut self.cells[at];
        cell.runs.push(run);
        cell.median = Median::of(&cell.runs, cell.size);
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

/// What a run belongs to.
#[derive(Clone, Debug)]
pub struct Load {
    /// Name of the setup.
    pub setup: String,
    /// Name of the load.
    pub what: String,
    /// Payload of a request, in bytes.
    pub size: usize,
    /// Clients, each with a connection.
    pub conns: usize,
    /// Calls in flight on each.
    pub inflight: usize,
}

/// One load on one setup.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// Name of the setup.
    pub setup: Cow<'static, str>,
    /// Name of the load.
    pub what: String,
    /// Payload of a request, in bytes.
    pub size: usize,
    pub conns: usize,
    /// Calls in flight on each.
    pub inflight: usize,
    /// Medians over the runs that count.
    pub median: Median,
    /// Every run, in order.
    pub runs: Vec<Report>,
}

/// Medians over runs. What a cell does not measure is absent.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Median {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_us: Option<f64>,
    /// The least of the runs' medians, for differences that are smaller than what separates runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best_p50_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p90_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p999_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rps: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gbps: Option<f64>,
    /// CPU time of all processes for each call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_us_per_rpc: Option<f64>,
    /// Calls for each CPU second of all processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rps_per_core: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gbps_per_core: Option<f64>,
    /// Context switches for each change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub switches: Option<f64>,
    /// Cores that each process used.
    pub cores: BTreeMap<String, f64>,
    /// Resident memory, in MiB, by process.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub rss_mib: BTreeMap<String, f64>,
    /// Proportional share of resident memory, in MiB, by process.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub pss_mib: BTreeMap<String, f64>,
    /// Cores that something else used.
    pub foreign_cores: f64,
    /// Highest less lowest rate, in percent of the median.
    pub spread_pct: f64,
    /// Calls that failed, over all runs.
    pub errors: u64,
    /// Runs during which nothing else ran.
    pub quiet_runs: usize,
}

impl Median {
    /// Over the quiet runs, or over all of them when none is quiet.
    pub fn of(runs: &[Report], size_bytes: usize) -> Median {
        let quiet: Vec<&Report> = runs
            .iter()
            .filter(|run| run.foreign_cores <= QUIET_CORES_MAX)
            .collect();
        let quiet_runs = quiet.len();
        let counted = if quiet.is_empty() {
            runs.iter().collect()
        } else {
            quiet
        };
        let over = |figure: fn(&Report) -> f64| median(counted.iter().map(|run| figure(run)).collect());
        let rps_per_core = over(Report::rps_per_core);
        Median {
            p50_us: over(|run| run.p50_us),
            best_p50_us: counted.iter().map(|run| run.p50_us).reduce(f64::min),
            p90_us: over(|run| run.p90_us),
            p99_us: over(|run| run.p99_us),
            p999_us: over(|run| run.p999_us),
            mean_us: over(|run| run.mean_us),
            rps: over(|run| run.rps),
            gbps: over(|run| run.gbps),
            cpu_us_per_rpc: rps_per_core.map(|rps| 1e6 / rps),
            rps_per_core,
            gbps_per_core: rps_per_core.map(|rps| rps * size_bytes as f64 * 8.0 / 1e9),
            cores: cores(&counted),
            foreign_cores: over(|run| run.foreign_cores).unwrap_or(0.0),
            spread_pct: spread_pct(&counted),
            errors: runs.iter().map(|run| run.errors).sum(),
            quiet_runs,
            ..Median::default()
        }
    }
}

impl Report {
    fn rps_per_core(&self) -> f64 {
        self.count as f64 / self.cpu_seconds.values().sum::<f64>()
    }
}

fn cores(runs: &[&Report]) -> BTreeMap<String, f64> {
    let names = runs.first().into_iter().flat_map(|run| run.cpu_seconds.keys());
    let over = |name: &String| {
        median(
            runs.iter()
                .filter_map(|run| Some(run.cpu_seconds.get(name)? / run.seconds))
                .collect(),
        )
        .unwrap_or(0.0)
    };
    names.map(|name| (name.clone(), over(name))).collect()
}

fn spread_pct(runs: &[&Report]) -> f64 {
    let rates = || runs.iter().map(|run| run.rps);
    let (least, most) = (rates().fold(f64::INFINITY, f64::min), rates().fold(0.0, f64::max));
    median(rates().collect()).map_or(0.0, |middle| (most - least) / middle * 100.0)
}

/// The middle value, or the mean of the two in the middle; numbers that are not finite do not count.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.retain(|value| value.is_finite());
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Latencies;

    fn run(rps: f64, foreign_cores: f64) -> Report {
        let cpu_seconds = [("client".to_string(), 0.5), ("server".to_string(), 0.5)].into();
        Report {
            seconds: 1.0,
            count: rps as u64,
            rps,
            foreign_cores,
            cpu_seconds,
            ..Report::default()
        }
    }

    #[test]
    fn noisy_runs_count_only_when_there_is_no_quiet_one() {
        let some = Median::of(&[run(100.0, 0.0), run(50.0, 1.0), run(102.0, 0.1)], 64);
        assert_eq!((some.rps, some.quiet_runs), (Some(101.0), 2));
        let none = Median::of(&[run(100.0, 1.0), run(50.0, 1.0)], 64);
        assert_eq!((none.rps, none.quiet_runs), (Some(75.0), 0));
    }

    #[test]
    fn cpu_time_is_that_of_all_processes() {
        let all = Median::of(&[run(100.0, 0.0)], 1000);
        assert_eq!((all.cpu_us_per_rpc, all.cores["server"]), (Some(10_000.0), 0.5));
    }

    #[test]
    fn medians() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0, f64::NAN, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn the_file_has_the_names_that_readers_look_for() {
        let cell = Cell {
            setup: "raw tcp".into(),
            what: "lat".into(),
            size: 64,
            conns: 1,
            inflight: 1,
            median: Median::of(&[run(100.0, 0.0)], 64),
            runs: Vec::new(),
        };
        let file = serde_json::to_value(Cells::of(vec![cell])).unwrap();
        let median = &file["cells"][0]["median"];
        for name in [
            "p50_us",
            "p99_us",
            "p999_us",
            "rps",
            "gbps",
            "cpu_us_per_rpc",
            "cores",
        ] {
            assert!(!median[name].is_null(), "{name} is missing");
        }
    }

    #[test]
    fn runs_of_one_setup_and_load_are_one_cell() {
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
            cells.add(&load, latencies.report(1.0, 1));
        }
        let median = &cells.cells[0].median;
        let near = |found: Option<f64>, us: f64| (found.unwrap() - us).abs() < 0.1;
        assert!(near(median.p50_us, 20.0) && near(median.best_p50_us, 10.0));
        assert_eq!((median.errors, cells.cells.len()), (3, 1));
    }
}
