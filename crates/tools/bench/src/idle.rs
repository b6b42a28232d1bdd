//! What a setup costs when nobody calls: CPU time and memory of each process, before a client has come and with one that
//! has called and is idle.

use std::time::Duration;

use provost_figures::{Cell, Median};

use crate::failure::Failure;
use crate::machine;
use crate::plan::Setup;
use crate::report::Watched;
use crate::stack::Stack;

/// How long what was started may still work before it counts as idle.
const SETTLING: Duration = Duration::from_millis(1500);
/// How long CPU time is counted.
const WINDOW: Duration = Duration::from_secs(3);

/// The cells `rest` and, where the setup has an idle client, `idle`.
pub(crate) fn measure(setup: Setup, stack: &Stack) -> Result<Vec<Cell>, Failure> {
    let mut cells = vec![cell(setup, "rest", observe(&stack.watched()))];
    if let Some(client) = stack.idle_client()? {
        let watched = [stack.watched(), vec![client.watched()]].concat();
        cells.push(cell(setup, "idle", observe(&watched)));
    }
    Ok(cells)
}

fn observe(watched: &[Watched]) -> Median {
    std::thread::sleep(SETTLING);
    let spent = || -> Vec<f64> {
        watched
            .iter()
            .map(|process| machine::cpu_seconds(process.pid))
            .collect()
    };
    let before = spent();
    std::thread::sleep(WINDOW);
    let mut median = Median::default();
    for ((process, before), after) in watched.iter().zip(before).zip(spent()) {
        median.cores.insert(
            process.name.clone(),
            (after - before).max(0.0) / WINDOW.as_secs_f64(),
        );
        if let Some((rss, pss)) = machine::memory_mib(process.pid) {
            median.rss_mib.insert(process.name.clone(), rss);
            median.pss_mib.insert(process.name.clone(), pss);
        }
    }
    median
}

fn cell(setup: Setup, what: &str, median: Median) -> Cell {
    Cell {
        setup: setup.name().into(),
        what: what.into(),
        size: 0,
        conns: 0,
        inflight: 0,
        median,
        runs: Vec::new(),
    }
}
