//! Chores of the repository, each one command: `cargo xtask <chore>`.
//!
//! The rules (`tidy`, `layering`, `licences`) are functions that return what breaks them, so that `cargo test -p xtask`
//! runs the same rules as the commands do.
#![forbid(unsafe_code)]

mod chores;
mod ci;
mod layering;
mod licences;
mod source;
mod tidy;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use workspace::Workspace;

/// Chores of the Provost repository.
#[derive(Parser)]
#[command(name = "cargo xtask", version)]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Checks file sizes, names, words, unsafe code and licence notes
    Tidy,
    /// Checks that crates depend downwards only
    Layering,
    /// Checks the licence of every dependency against `deny.toml`
    Licences,
    /// Checks that golden files (generated code, layout vectors) are what the code makes now
    Codegen {
        /// Write the golden files anew
        #[arg(long)]
        bless: bool,
    },
    /// Runs fuzz targets (all, or one) with the built-in driver
    Fuzz {
        /// Name of one target; `list` prints them
        target: Option<String>,
        /// How long each target runs
        #[arg(long, default_value_t = 5)]
        seconds: u64,
        /// Use libFuzzer (needs a nightly toolchain and cargo-fuzz)
        #[arg(long)]
        deep: bool,
    },
    /// Builds and runs a benchmark: `bench call [--quick] [--json FILE]`, `bench bind`; `bench help` tells more
    Bench {
        /// Passed on to provost-bench
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Runs a test for long: `soak upgrade` changes policies and engines under calls and streams, `soak takeover` replaces
    /// whole services
    Soak {
        /// Which
        what: chores::Soak,
        /// How long
        #[arg(long, default_value_t = 60)]
        minutes: u64,
    },
    /// Lints and tests the wire over DPDK, where pkg-config finds libdpdk
    Dpdk,
    /// Everything that continuous integration checks
    Ci,
}

fn main() -> ExitCode {
    let chore = Arguments::parse().chore;
    let outcome = Workspace::load()
        .map_err(|error| vec![error.to_string()])
        .and_then(|workspace| run(chore, &workspace));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(complaints) => {
            complaints.iter().for_each(|complaint| eprintln!("{complaint}"));
            eprintln!("xtask: {} complaint(s)", complaints.len());
            ExitCode::FAILURE
        }
    }
}

/// What a chore found wrong, one line each.
type Complaints = Vec<String>;

fn run(chore: Chore, workspace: &Workspace) -> Result<(), Complaints> {
    match chore {
        Chore::Tidy => none(tidy::complaints(workspace)),
        Chore::Layering => none(layering::complaints(workspace)),
        Chore::Licences => none(licences::complaints(workspace)),
        Chore::Codegen { bless: true } => chores::codegen(workspace, chores::Golden::Bless),
        Chore::Codegen { bless: false } => chores::codegen(workspace, chores::Golden::Check),
        Chore::Fuzz {
            target,
            seconds,
            deep: false,
        } => chores::fuzz(workspace, target.as_deref(), seconds),
        Chore::Fuzz {
            target,
            seconds,
            deep: true,
        } => chores::fuzz_deep(workspace, target.as_deref(), seconds),
        Chore::Bench { arguments } => chores::bench(workspace, &arguments),
        Chore::Soak { what, minutes } => chores::soak(workspace, what, minutes),
        Chore::Dpdk => chores::dpdk(workspace),
        Chore::Ci => ci::check_all(workspace),
    }
}

fn none(complaints: Complaints) -> Result<(), Complaints> {
    if complaints.is_empty() {
        Ok(())
    } else {
        Err(complaints)
    }
}
