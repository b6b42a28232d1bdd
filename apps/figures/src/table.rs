//! What is printed: a row for each cell, then each target with its figure.

use crate::outcome::TargetOutcome;
use crate::summary::{Cell, Cells, Compared};

/// Prints a row for each cell, then each target with its figure.
pub fn print(cells: &Cells, head: &str, outcomes: &[TargetOutcome]) {
    println!("{head}\n");
    println!(
        "{:23} {:13} {:>9} {:>9} {:>9} {:>9} {:>7} {:>8} {:>9} {:>5} {:>5} {:>2}  cores by process",
        "setup",
        "what",
        "p50 us",
        "p99 us",
        "p99.9 us",
        "calls/s",
        "Gb/s",
        "cpu us",
        "calls/cpu",
        "sprd%",
        "other",
        "q"
    );
    cells.cells.iter().for_each(|cell| println!("{}", row(cell)));
    println!(
        "\ncpu us: CPU time of all processes for a call; calls/cpu: calls for a CPU second of all processes; sprd%: highest\n\
         less lowest rate; other: cores that something else used; q: runs in which that was little (where it is 0, the\n\
         row is over all runs, and not to be trusted)."
    );
    if !outcomes.is_empty() || !cells.pairs.is_empty() {
        println!();
    }
    for outcome in outcomes {
        println!("{outcome}");
    }
    for Compared { outcome, values } in &cells.pairs {
        println!("{outcome}  {values}");
    }
}

fn row(cell: &Cell) -> String {
    let median = &cell.median;
    let figure =
        |value: Option<f64>, digits: usize| value.map_or(String::new(), |value| format!("{value:.digits$}"));
    let goodput = if cell.what.starts_with("gp") {
        median.gbps
    } else {
        None
    };
    // What is idle uses so little that two digits would hide it.
    let cores_digits = if cell.runs.is_empty() { 4 } else { 2 };
    let cores: Vec<String> = median
        .cores
        .iter()
        .map(|(name, cores)| format!("{name} {cores:.cores_digits$}"))
        .collect();
    let memory: Vec<String> = median
        .rss_mib
        .iter()
        .map(|(name, rss)| format!("{name} {rss:.1} MiB resident"))
        .collect();
    let errors = if median.errors == 0 {
        String::new()
    } else {
        format!("  ERRORS {}", median.errors)
    };
    format!(
        "{:23} {:13} {:>9} {:>9} {:>9} {:>9} {:>7} {:>8} {:>9} {:>5.0} {:>5.2} {:>2}  {}{errors}",
        cell.setup,
        cell.what,
        figure(median.p50_us, 2),
        figure(median.p99_us, 1),
        figure(median.p999_us, 1),
        figure(median.rps, 0),
        figure(goodput, 2),
        figure(median.cpu_us_per_rpc, 2),
        figure(median.rps_per_core, 0),
        median.spread_pct,
        median.foreign_cores,
        median.quiet_runs,
        [cores, memory].concat().join(", "),
    )
}
