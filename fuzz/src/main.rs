//! Runs fuzz targets with the built-in driver: `provost-fuzz [TARGET] [--seconds N]`.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Parser;
use provost_allocations::CountingAllocator;
use provost_fuzz::driver::{Summary, attempt, drive, keep};
use provost_fuzz::{TARGETS, Target, target};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Runs fuzz targets with the built-in driver.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// One target instead of all; `list` prints their names
    target: Option<String>,
    /// How long each target runs
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// Seed of the mutations; a run prints the one it used
    #[arg(long)]
    seed: Option<u64>,
    /// Runs the target once, on this file
    #[arg(long, requires = "target")]
    replay: Option<PathBuf>,
    /// Where failing inputs are kept
    #[arg(long, default_value = "target/fuzz")]
    artifacts: PathBuf,
    /// Writes the seeds to this folder, a file each in a folder for each target, and runs nothing
    #[arg(long, value_name = "FOLDER")]
    write_seeds: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.target.as_deref() == Some("list") {
        TARGETS.iter().for_each(|target| println!("{}", target.name));
        return ExitCode::SUCCESS;
    }
    let chosen: Vec<&Target> = match &arguments.target {
        None => TARGETS.iter().collect(),
        Some(name) => target(name).into_iter().collect(),
    };
    if chosen.is_empty() {
        eprintln!("no such target; `list` prints their names");
        return ExitCode::FAILURE;
    }
    if let Some(folder) = &arguments.write_seeds {
        let written = chosen.iter().try_for_each(|target| write_seeds(target, folder));
        return match written {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{}: {error}", folder.display());
                ExitCode::FAILURE
            }
        };
    }
    let seed = arguments.seed.unwrap_or_else(clock_seed);
    let failed = chosen
        .into_iter()
        .filter(|target| !passes(target, &arguments, seed))
        .count();
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn passes(target: &Target, arguments: &Arguments, seed: u64) -> bool {
    let outcome = match &arguments.replay {
        None => drive(target, Duration::from_secs(arguments.seconds), seed),
        Some(path) => match std::fs::read(path) {
            Err(error) => {
                eprintln!("{}: {error}", path.display());
                return false;
            }
            Ok(input) => {
                let mut summary = Summary::default();
                attempt(target, &input, &mut summary).map(|()| summary)
            }
        },
    };
    match outcome {
        Ok(Summary {
            inputs,
            slowest,
            peak_bytes,
        }) => {
            let peak = peak_bytes >> 10;
            println!(
                "{:18} {inputs:>9} inputs, slowest {slowest:?}, {peak} KiB at most, seed {seed}",
                target.name
            );
            true
        }
        Err(failure) => {
            let kept = keep(&arguments.artifacts, target, &failure.input);
            let place = kept.map_or_else(
                |error| format!("not kept: {error}"),
                |path| path.display().to_string(),
            );
            println!(
                "{:18} FAILED, seed {seed}: {}; input: {place}",
                target.name, failure.why
            );
            false
        }
    }
}

fn write_seeds(target: &Target, folder: &Path) -> std::io::Result<()> {
    let folder = folder.join(target.name);
    std::fs::create_dir_all(&folder)?;
    for (number, seed) in (target.seeds)().into_iter().enumerate() {
        std::fs::write(folder.join(format!("seed-{number}")), seed)?;
    }
    Ok(())
}

fn clock_seed() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(1, |since| since.as_nanos() as u64)
}
