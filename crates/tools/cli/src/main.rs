//! `provost`, the command line.
#![forbid(unsafe_code)]

mod check;
mod demo;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

const EXAMPLES: &str = "\
Examples:
  provost demo                              two nodes, real data, figures beside raw TCP
  provost demo --data words.csv --json      your own data; figures for a program
  provost demo --value-bytes 4096 --seconds 30
  provost check proto/kv.proto              is this schema one that provost takes?";

const DEMO_EXAMPLES: &str = "\
Starts two nodes' services, a key-value server and its client, each a process of its own, on this machine: no root and
no other server is needed. The client streams the data file to the server, gets and compares every entry, streams all
of them back, and is then measured in turn with a bare TCP ping-pong between two processes. Ctrl-C ends everything.

Data files: `key<TAB>value` lines (name ends in .tsv, or the first line has a tab); CSV records `key,value` (.csv);
otherwise every line is a value and its number is its key. Keys have up to 1024 bytes, values up to 16 MiB.

Examples:
  provost demo
  provost demo --data /usr/share/dict/words --in-flight 16
  provost demo --value-bytes 65536 --seconds 20 --json > figures.json";

#[derive(Parser)]
#[command(name = "provost", version, about = "Managed RPC: look at it, check schemas", after_help = EXAMPLES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show a call through two nodes' services, with real data and figures
    #[command(after_help = DEMO_EXAMPLES)]
    Demo(demo::Options),
    /// Check .proto files and say what is in them
    Check {
        /// The files
        #[arg(required = true, value_name = "FILE.proto")]
        files: Vec<PathBuf>,
        /// Directories in which imports are looked for [default: each file's own]
        #[arg(long = "include", short = 'I', value_name = "DIRECTORY")]
        includes: Vec<PathBuf>,
    },
    /// A program of the demonstration, started by it
    #[command(hide = true)]
    DemoPart(demo::Part),
}

fn main() -> ExitCode {
    let outcome: Result<(), String> = match Arguments::parse().command {
        Command::Demo(options) => run_demo(&options),
        Command::Check { files, includes } => {
            check::run(&files, &includes).map_err(|error| error.to_string())
        }
        Command::DemoPart(part) => demo::run_part(part).map_err(|error| error.to_string()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("provost: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run_demo(options: &demo::Options) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("cannot start: {error}"))?;
    runtime
        .block_on(demo::run(options))
        .map_err(|error| error.to_string())
}
