//! `cargo xtask bench insight`: how right profiles and predictions are, measured beside what they are about.
#![forbid(unsafe_code)]

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use provost_insight_probes::StopSignal;
use provost_insight_probes::bench::{BenchScope, InsightBench};

/// Profiles of Envoy, nginx and HAProxy, filters, and predictions, each beside what was measured otherwise.
#[derive(Parser)]
#[command(name = "cargo xtask bench insight")]
struct Arguments {
    /// Fewer sizes and repetitions
    #[arg(long)]
    quick: bool,
    /// Write all cells there
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Only setups whose name contains this
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let scope = if arguments.quick {
        BenchScope::Quick
    } else {
        BenchScope::Full
    };
    // There is no standard error any more when the terminal has gone away.
    let tell = |line: &str| drop(writeln!(std::io::stderr(), "{line}"));
    let stop = match StopSignal::of_operator(tell) {
        Ok(stop) => stop,
        Err(failure) => return failed(&failure.to_string()),
    };
    let mut bench = InsightBench::new(scope, &arguments.only, stop);
    bench.run(&mut |line| tell(line));
    print!("{}", bench.text());
    if let Some(path) = &arguments.json {
        let text = match bench.json() {
            Ok(text) => text,
            Err(error) => return failed(&error.to_string()),
        };
        if let Err(error) = std::fs::write(path, text) {
            return failed(&format!("{}: {error}", path.display()));
        }
    }
    if bench.has_failed() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

fn failed(why: &str) -> ExitCode {
    eprintln!("provost-insight-bench: {why}");
    ExitCode::FAILURE
}
