//! Runs seed after seed of a network where everything goes wrong, and stops at the first that fails.
//!
//! ```text
//! provost-datagram-sim --seconds N [--seed S]     seeds from S on, or from one of the clock's, for so long
//! provost-datagram-sim --seed S                   that seed alone, twice: a failure, or anything else, replays exactly
//! ```
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use provost_datagram_sim::chaos;

const USAGE: &str = "usage: provost-datagram-sim [--seconds N] [--seed S]";

/// What was asked for.
struct ChaosWish {
    seconds: Option<u64>,
    seed: Option<u64>,
}

impl ChaosWish {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Option<ChaosWish> {
        let mut wish = ChaosWish {
            seconds: None,
            seed: None,
        };
        while let Some(name) = arguments.next() {
            let value = arguments.next()?.parse().ok()?;
            match name.as_str() {
                "--seconds" => wish.seconds = Some(value),
                "--seed" => wish.seed = Some(value),
                _ => return None,
            }
        }
        (wish.seconds.is_some() || wish.seed.is_some()).then_some(wish)
    }
}

fn main() -> ExitCode {
    let Some(wish) = ChaosWish::parse(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match (wish.seed, wish.seconds) {
        (Some(seed), None) => replay(seed),
        (seed, seconds) => search(
            seed.unwrap_or_else(fresh),
            Duration::from_secs(seconds.unwrap_or(0)),
        ),
    }
}

/// A seed that was probably never run before.
fn fresh() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64) >> 10
}

fn succeeds(seed: u64) -> Option<chaos::ChaosOutcome> {
    std::panic::catch_unwind(|| chaos::run(seed)).ok()
}

fn search(first: u64, time: Duration) -> ExitCode {
    let (began, mut answered) = (Instant::now(), 0);
    for seed in first.. {
        let Some(outcome) = succeeds(seed) else {
            eprintln!("seed {seed} fails; it replays by: provost-datagram-sim --seed {seed}");
            return ExitCode::FAILURE;
        };
        answered += outcome.answered;
        if began.elapsed() >= time {
            println!("seeds {first} to {seed} are fine; {answered} calls were answered");
            break;
        }
    }
    ExitCode::SUCCESS
}

fn replay(seed: u64) -> ExitCode {
    match (succeeds(seed), succeeds(seed)) {
        (Some(one), Some(other)) if one == other => {
            println!("seed {seed} is fine: {one:?}");
            ExitCode::SUCCESS
        }
        (Some(one), Some(other)) => {
            eprintln!("seed {seed} does not replay: {one:?}, then {other:?}");
            ExitCode::FAILURE
        }
        _ => {
            eprintln!("seed {seed} fails");
            ExitCode::FAILURE
        }
    }
}
