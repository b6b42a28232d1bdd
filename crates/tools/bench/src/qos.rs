//! `bench qos`: an app with small calls beside one with large ones on the same runtimes, with and without the policy
//! that lets small ones go first (mRPC, table 4).

use crate::arguments::Call;
use crate::bench;
use crate::failure::{Doing, Failure};
use crate::machine;
use crate::plan::{Chain, Setup};
use crate::report::{Load, Report, Traffic};
use crate::stack::{HasBulk, Stack};
use crate::summary::{Cell, Cells, Median};
use crate::table;

const ROUNDS: usize = 7;
const ROUNDS_QUICK: usize = 3;
const RUN_SECONDS: f64 = 3.0;
const RUN_SECONDS_QUICK: f64 = 1.5;
/// Load before the window that is measured.
const WARMUP_SECONDS: f64 = 0.5;
/// How much longer the large calls go on, so that the small ones are never alone.
const LONGER_SECONDS: f64 = 0.3;

const SMALL_BYTES: usize = 32;
const LARGE_BYTES: usize = 64 << 10;
const LARGE_IN_FLIGHT: usize = 32;
/// From one small call to the next: without it, calls that are answered sooner would be more calls, and take more of the
/// cores.
const SMALL_INTERVAL_US: u64 = 1000;

const WAYS: [(Way, &str); 3] = [
    (Way::Alone, "small alone"),
    (Way::Beside(Setup::ProvostNull), "no qos"),
    (Way::Beside(Setup::ProvostWith(Chain::Qos)), "qos"),
];

#[derive(Clone, Copy)]
enum Way {
    /// Small calls and nothing else.
    Alone,
    /// Both.
    Beside(Setup),
}

/// Runs the bench, prints a table, and writes the file that was asked for.
pub(crate) fn run(call: &Call) -> Result<(), Failure> {
    machine::pin(&call.cores)?;
    let rounds = call
        .rounds
        .unwrap_or(if call.quick { ROUNDS_QUICK } else { ROUNDS });
    let mut runs = vec![(Vec::new(), Vec::new()); WAYS.len()];
    for round in 1..=rounds {
        for ((way, _), (small, large)) in WAYS.iter().zip(&mut runs) {
            machine::wait_quiet(&call.cores, call.quiet_limit());
            let (small_run, large_run) = measure(call, *way)?;
            small.push(small_run);
            large.extend(large_run);
        }
        eprintln!("round {round} done");
    }
    let cells = WAYS
        .iter()
        .zip(runs)
        .flat_map(|((_, name), (small, large))| {
            [
                cell(name, "small", SMALL_BYTES, 1, small),
                cell(name, "gp 64K", LARGE_BYTES, LARGE_IN_FLIGHT, large),
            ]
        })
        .filter(|cell| !cell.runs.is_empty());
    let cells = Cells {
        cells: cells.collect(),
    };
    table::print(&cells, &machine::describe());
    match &call.json {
        Some(path) => bench::write(path, &cells),
        None => Ok(()),
    }
}

fn measure(call: &Call, way: Way) -> Result<(Report, Option<Report>), Failure> {
    let folder = tempfile::tempdir().doing(|| "make a temporary folder".into())?;
    let seconds = call.seconds.unwrap_or(if call.quick {
        RUN_SECONDS_QUICK
    } else {
        RUN_SECONDS
    });
    let load = |traffic, size_bytes, calls_in_flight, interval_us, seconds| Load {
        size_bytes,
        calls_in_flight,
        interval_us,
        connections: 1,
        warmup_seconds: WARMUP_SECONDS,
        seconds,
        watched: Vec::new(),
        cores: call.cores.clone(),
        traffic,
    };
    let setup = match way {
        Way::Alone => Setup::ProvostNull,
        Way::Beside(setup) => setup,
    };
    let stack = Stack::start_with(setup, HasBulk::Yes, folder.path())?;
    let large = match way {
        Way::Alone => None,
        Way::Beside(_) => {
            let seconds = seconds + LONGER_SECONDS;
            Some(stack.start_client(load(Traffic::Bulk, LARGE_BYTES, LARGE_IN_FLIGHT, 0, seconds))?)
        }
    };
    let small = stack.measure(load(Traffic::Plain, SMALL_BYTES, 1, SMALL_INTERVAL_US, seconds))?;
    let large = large.map(Stack::report).transpose()?;
    Ok((small, large))
}

fn cell(setup: &'static str, what: &str, size: usize, inflight: usize, runs: Vec<Report>) -> Cell {
    // Each client counts the other's work as somebody else's, so quiet runs are not to be told from others.
    let own = |run: &Report| Report {
        foreign_cores: 0.0,
        ..run.clone()
    };
    let quiet: Vec<Report> = runs.iter().map(own).collect();
    Cell {
        setup,
        what: what.into(),
        size,
        conns: 1,
        inflight,
        median: Median::of(&quiet, size),
        runs,
    }
}
