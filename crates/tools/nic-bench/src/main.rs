//! `cargo xtask bench nic`: the NIC's RTL between two simulated hosts, in virtual time, with a model of what host interfaces cost.
#![forbid(unsafe_code)]

mod chain;
mod core;
mod experiments;
mod figures;
mod handlers;
mod interface;
mod pair;
mod parts;
mod published;
mod store;
mod targets;
mod wires;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;

use experiments::BenchScope;
use figures::NicFigures;

const EXAMPLES: &str = "Examples:
  cargo xtask bench nic --quick                     the ends of every scale, under 2 minutes
  cargo xtask bench nic --json nic.json             everything, kept
  cargo xtask bench nic --only interfaces,flows     only these groups
  cargo xtask bench datagram --only 'provost shm' --json datagram.json
  cargo xtask bench nic --datagram datagram.json    beside the datagram transport, measured before

Groups: interfaces, load, flows, sizes, cache, policies, isolation, threads, chain, store, rtl, simulation, published.
Needs Verilator 5.006 or later (Debian: apt-get install verilator); without it, only published figures are shown.";

/// The NIC's RTL between two simulated hosts (Dagger, ASPLOS '21): interfaces, load, flows, sizes, the connection cache, policies
///
/// All is simulated, cycle by cycle at 200 MHz. What a host interface costs is a model, calibrated on four published rates; what is
/// not one of these is a prediction.
#[derive(Parser)]
#[command(name = "cargo xtask bench nic", after_help = EXAMPLES)]
struct NicBenchArguments {
    /// The ends of every scale, and shorter runs: under 2 minutes
    #[arg(long)]
    quick: bool,
    /// Write the figures to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Only these groups (several, separated by commas)
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Show the datagram transport's figures from this file, which `bench datagram --json` has written
    #[arg(long, value_name = "FILE")]
    datagram: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&NicBenchArguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("provost-nic-bench: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &NicBenchArguments) -> Result<(), String> {
    let began = Instant::now();
    let scope = if arguments.quick {
        BenchScope::Quick
    } else {
        BenchScope::Full
    };
    let mut figures = NicFigures::default();
    experiments::run(&mut figures, scope, &arguments.only)?;
    if experiments::is_chosen(&arguments.only, published::GROUP) {
        published::add(&mut figures);
        if let Some(path) = &arguments.datagram {
            published::add_datagram(&mut figures, path)?;
        }
    }
    figures.outcomes = targets::outcomes(&figures);
    println!(
        "the NIC's RTL, simulated at 200 MHz: no figure of hardware; {} s\n",
        began.elapsed().as_secs()
    );
    print!("{}", figures.text());
    match &arguments.json {
        Some(path) => figures.write(path),
        None => Ok(()),
    }
}
