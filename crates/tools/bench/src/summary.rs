//! Runs put together: medians over rounds, in the form in which they are written to a file.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::report::Report;
use crate::slices::Pairs;
use crate::targets::Outcome;

/// Cores' worth of others' work above which a run counts only when its cell has no better one.
pub(crate) const QUIET_CORES_MAX: f64 = 0.3;

/// All cells of a run of the bench.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Cells {
    /// In the order in which they are shown.
    pub(crate) cells: Vec<Cell>,
    /// What was compared in alternating slices.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) pairs: Vec<Compared>,
}

/// Two setups compared in alternating slices.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Compared {
    #[serde(flatten)]
    pub(crate) outcome: Outcome,
    /// Of each pair, the least first.
    pub(crate) values: Pairs,
}

impl Cells {
    /// Cells alone.
    pub(crate) fn of(cells: Vec<Cell>) -> Cells {
        Cells {
            cells,
            pairs: Vec::new(),
        }
    }
}

/// One load on one setup.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Cell {
    /// Name of the setup.
    pub(crate) setup: &'static str,
    /// Name of the load.
    pub(crate) what: String,
    /// Payload of a request, in bytes.
    pub(crate) size: usize,
    /// Connections.
    pub(crate) conns: usize,
    /// Calls in flight on each.
    pub(crate) inflight: usize,
    /// Medians over the runs that count.
    pub(crate) median: Median,
    /// Every run, in order.
    pub(crate) runs: Vec<Report>,
}

/// Medians over runs. What a cell does not measure is absent.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Median {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p50_us: Option<f64>,
    /// The least of the runs' medians, for differences that are smaller than what separates runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) best_p50_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p90_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p99_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p999_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mean_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rps: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gbps: Option<f64>,
    /// CPU time of all processes for each call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cpu_us_per_rpc: Option<f64>,
    /// Calls for each CPU second of all processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rps_per_core: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gbps_per_core: Option<f64>,
    /// Context switches for each change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) switches: Option<f64>,
    /// Cores that each process used.
    pub(crate) cores: BTreeMap<String, f64>,
    /// Resident memory, in MiB, by process.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) rss_mib: BTreeMap<String, f64>,
    /// Proportional share of resident memory, in MiB, by process.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) pss_mib: BTreeMap<String, f64>,
    /// Cores that something else used.
    pub(crate) foreign_cores: f64,
    /// Highest less lowest rate, in percent of the median.
    pub(crate) spread_pct: f64,
    /// Calls that failed, over all runs.
    pub(crate) errors: u64,
    /// Runs during which nothing else ran.
    pub(crate) quiet_runs: usize,
}

impl Median {
    /// Over the quiet runs, or over all of them when none is quiet.
    pub(crate) fn of(runs: &[Report], size_bytes: usize) -> Median {
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
pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
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
    use super::*;

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
            setup: "raw tcp",
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
}
