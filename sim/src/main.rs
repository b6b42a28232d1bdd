//! `provost-sim --seeds N`: simulates nodes from N seeds, as many at once as there are cores. The first seed that fails ends it,
//! with its last events, what was wrong, and the command that replays it.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use provost_sim::{NodesOptions, NodesReport, Sabotage, Violation, run_nodes, run_twice};
use provost_wire::Code;

/// Of so many seeds, one is run twice, to see that it replays.
const TWICE_ONE_IN: u64 = 16;

/// Simulates whole nodes under faults, changes and hot restarts, from seeds.
#[derive(Parser)]
#[command(name = "provost-sim", version)]
struct SimulatorArguments {
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
    #[arg(long, default_value_t = NodesOptions::CALLS)]
    calls: u64,
    /// How many seeds are run at once [default: as many as there are cores]
    #[arg(long)]
    threads: Option<usize>,
    /// Has each world do wrong in one way, to see that it is found
    #[arg(long)]
    sabotage: Option<Sabotage>,
}

impl SimulatorArguments {
    fn options(&self, seed: u64) -> NodesOptions {
        NodesOptions {
            seed,
            calls: self.calls,
            sabotage: self.sabotage,
        }
    }
}

fn main() -> ExitCode {
    let arguments = SimulatorArguments::parse();
    let began = Instant::now();
    let mut search = SeedSearch {
        until: arguments
            .seconds
            .map(|seconds| began + Duration::from_secs(seconds)),
        next_seed: AtomicU64::new(arguments.seed),
        outcome: Mutex::default(),
        arguments,
    };
    let cores = || thread::available_parallelism().map_or(1, usize::from);
    let threads = search.arguments.threads.unwrap_or_else(cores);
    thread::scope(|scope| (0..threads.max(1)).for_each(|_| drop(scope.spawn(|| search.run_seeds()))));
    let outcome = search.outcome.get_mut().unwrap_or_else(PoisonError::into_inner);
    println!(
        "from seed {}: {} in {:.1} s",
        search.arguments.seed,
        outcome.sum,
        began.elapsed().as_secs_f64()
    );
    match &outcome.failure {
        None => ExitCode::SUCCESS,
        Some((options, violation)) => {
            violation.trace.iter().for_each(|event| eprintln!("{event}"));
            eprintln!("seed {}: {violation}", options.seed);
            eprintln!("replay: {}", replay(options));
            ExitCode::FAILURE
        }
    }
}

/// The command that repeats a run.
fn replay(options: &NodesOptions) -> String {
    let sabotage = options.sabotage.map(|sabotage| format!(" --sabotage {sabotage}"));
    format!(
        "cargo run -p provost-sim -- --seed {} --seeds 1 --calls {}{}",
        options.seed,
        options.calls,
        sabotage.unwrap_or_default()
    )
}

/// Seeds that several threads run.
struct SeedSearch {
    arguments: SimulatorArguments,
    until: Option<Instant>,
    next_seed: AtomicU64,
    outcome: Mutex<SearchOutcome>,
}

/// What came of the seeds so far.
#[derive(Default)]
struct SearchOutcome {
    sum: RunsSum,
    failure: Option<(NodesOptions, Violation)>,
}

impl SeedSearch {
    /// Takes one seed after the other, until there are no more or one has failed.
    fn run_seeds(&self) {
        while let Some(seed) = self.take_seed() {
            let options = self.arguments.options(seed);
            let done = if seed % TWICE_ONE_IN == self.arguments.seed % TWICE_ONE_IN {
                run_twice(options)
            } else {
                run_nodes(options)
            };
            let mut outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
            match done {
                Ok(report) => {
                    if self.arguments.seeds == 1 {
                        println!("{report:?}");
                    }
                    outcome.sum.add(&report);
                }
                Err(violation) => drop(outcome.failure.get_or_insert((options, violation))),
            }
        }
    }

    fn take_seed(&self) -> Option<u64> {
        let outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        if outcome.failure.is_some() {
            return None;
        }
        let seed = self.next_seed.fetch_add(1, Ordering::Relaxed);
        let goes_on = match self.until {
            Some(until) => Instant::now() < until,
            None => seed < self.arguments.seed.saturating_add(self.arguments.seeds),
        };
        goes_on.then_some(seed)
    }
}

/// What all runs came to.
#[derive(Default)]
struct RunsSum {
    runs: u64,
    report: NodesReport,
}

impl RunsSum {
    fn add(&mut self, more: &NodesReport) {
        self.runs += 1;
        self.report.add(more);
    }
}

impl std::fmt::Display for RunsSum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sum = &self.report;
        let named = Code::ALL.iter().zip(sum.ends).filter(|(_, count)| *count > 0);
        let named: Vec<String> = named.map(|(code, count)| format!("{count} {code}")).collect();
        write!(
            f,
            "{} seeds, {} calls ({}, {} given up, {} of clients that died), {} connections, {} faults, {} hot \
             restarts and {} undone, {} changes, {} of them migrations, and {} refused, {} failed engines, {} turns, {:.1} simulated seconds, \
             the slowest small call {:.1} ms",
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
            sum.migrations,
            sum.changes_refused,
            sum.engines_failed,
            sum.turns,
            sum.elapsed_ns as f64 / 1e9,
            sum.slowest_small_call_ns as f64 / 1e6
        )
    }
}
