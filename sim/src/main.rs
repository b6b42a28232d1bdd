//! `provost-sim --seed N --seconds S`: simulates seeds from N on for S seconds, or one seed if S is 0.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use provost_sim::{Options, run};
use provost_wire::Code;

/// Simulates whole nodes under faults, from a seed.
#[derive(Parser)]
#[command(name = "provost-sim", version)]
struct Arguments {
    /// The first seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// For how long to go on with the seeds after it; 0 for the first alone
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Calls of each run
    #[arg(long, default_value_t = 2000)]
    calls: u64,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let until = Instant::now() + Duration::from_secs(arguments.seconds);
    let mut seed = arguments.seed;
    let (mut runs, mut calls, mut ends) = (0, 0, [0; 18]);
    loop {
        let replay = Replay {
            seed,
            calls: arguments.calls,
        };
        match run(Options {
            seed,
            calls: arguments.calls,
        }) {
            Ok(report) => {
                runs += 1;
                calls += report.calls;
                ends.iter_mut()
                    .zip(report.ends)
                    .for_each(|(sum, more)| *sum += more);
                if arguments.seconds == 0 {
                    println!("{report:?}");
                }
            }
            Err(violation) => {
                eprintln!("seed {seed}: {violation}");
                return ExitCode::FAILURE;
            }
        }
        std::mem::forget(replay);
        seed += 1;
        if Instant::now() >= until {
            break;
        }
    }
    println!("{runs} runs, {calls} calls: {}", describe(&ends));
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
            "replay: cargo run -p provost-sim -- --seed {} --seconds 0 --calls {}",
            self.seed, self.calls
        );
    }
}

fn describe(ends: &[u64; 18]) -> String {
    let named = Code::ALL.iter().zip(ends).filter(|(_, count)| **count > 0);
    let named = named.map(|(code, count)| format!("{count} {code}"));
    named
        .chain([format!("{} given up", ends[17])])
        .collect::<Vec<_>>()
        .join(", ")
}
