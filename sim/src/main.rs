//! `provost-sim --seeds N`: simulates nodes from N seeds; `--seed S --seeds 1` replays one, and prints what came of it.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use provost_sim::{NodesOptions, NodesReport, run_nodes};
use provost_wire::Code;

/// Simulates whole nodes under faults, changes and hot restarts, from seeds.
#[derive(Parser)]
#[command(name = "provost-sim", version)]
struct Arguments {
    /// The first seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many seeds, from the first on
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// Goes on with further seeds for so long instead
    #[arg(long)]
    seconds: Option<u64>,
    /// Calls of each run
    #[arg(long, default_value_t = 100)]
    calls: u64,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let began = Instant::now();
    let until = arguments
        .seconds
        .map(|seconds| began + Duration::from_secs(seconds));
    let mut sum = Sum::default();
    let mut seed = arguments.seed;
    let goes_on = |seed: u64| match until {
        Some(until) => Instant::now() < until,
        None => seed < arguments.seed.saturating_add(arguments.seeds),
    };
    while goes_on(seed) {
        let replay = Replay {
            seed,
            calls: arguments.calls,
        };
        match run_nodes(NodesOptions {
            seed,
            calls: arguments.calls,
        }) {
            Ok(report) => {
                if arguments.seeds == 1 {
                    println!("{report:?}");
                }
                sum.add(&report);
            }
            Err(violation) => {
                violation.trace.iter().for_each(|event| eprintln!("{event}"));
                eprintln!("seed {seed}: {violation}");
                return ExitCode::FAILURE;
            }
        }
        std::mem::forget(replay);
        seed += 1;
    }
    println!("{sum} in {:.1} s", began.elapsed().as_secs_f64());
    ExitCode::SUCCESS
}

/// Says how to repeat a run, if it is dropped: by a panic, or a violation.
struct Replay {
    seed: u64,
    calls: u64,
}

impl Drop for Replay {
    fn drop(&mut self) {
        eprintln!(
            "replay: cargo run -p provost-sim -- --seed {} --seeds 1 --calls {}",
            self.seed, self.calls
        );
    }
}

/// What all runs came to.
#[derive(Default)]
struct Sum {
    runs: u64,
    report: NodesReport,
}

impl Sum {
    fn add(&mut self, more: &NodesReport) {
        self.runs += 1;
        let sum = &mut self.report;
        sum.calls += more.calls;
        sum.orphaned += more.orphaned;
        sum.connections += more.connections;
        sum.faults += more.faults;
        sum.hot_restarts += more.hot_restarts;
        sum.hot_restarts_undone += more.hot_restarts_undone;
        sum.changes += more.changes;
        sum.changes_refused += more.changes_refused;
        sum.engines_failed += more.engines_failed;
        sum.turns += more.turns;
        sum.elapsed_ns += more.elapsed_ns;
        sum.ends
            .iter_mut()
            .zip(more.ends)
            .for_each(|(sum, more)| *sum += more);
    }
}

impl std::fmt::Display for Sum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sum = &self.report;
        let named = Code::ALL.iter().zip(sum.ends).filter(|(_, count)| *count > 0);
        let named: Vec<String> = named.map(|(code, count)| format!("{count} {code}")).collect();
        write!(
            f,
            "{} seeds, {} calls ({}, {} given up, {} of clients that died), {} connections, {} faults, {} hot \
             restarts and {} undone, {} changes and {} refused, {} failed engines, {} turns, {:.1} simulated seconds",
            self.runs,
            sum.calls,
            named.join(", "),
            sum.ends[17],
            sum.orphaned,
            sum.connections,
            sum.faults,
            sum.hot_restarts,
            sum.hot_restarts_undone,
            sum.changes,
            sum.changes_refused,
            sum.engines_failed,
            sum.turns,
            sum.elapsed_ns as f64 / 1e9
        )
    }
}
