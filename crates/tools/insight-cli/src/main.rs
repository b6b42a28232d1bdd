//! `provost insight`: what a mesh costs an application. Only `live` needs a daemon.
#![forbid(unsafe_code)]

mod acg;
mod doctor;
mod fit;
mod input;
mod live;
mod predict;
mod profile;
mod report;
mod validate;
mod whatif;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

use provost_terminal::failure::{Failure, conclude};
use provost_terminal::pages;

/// The program, as its pages are named.
const PROGRAM: &str = "provost-insight";

/// Say what a service mesh costs an application, and what would change that
#[derive(Parser, Debug)]
#[command(name = PROGRAM, bin_name = "provost insight", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

/// `provost insight …`.
#[derive(Subcommand, Debug)]
enum Command {
    /// Find out what this machine allows to be measured, and how
    #[command(after_help = doctor::EXAMPLES)]
    Doctor(doctor::Options),
    /// Drive a proxy, and measure where its time and processor go
    #[command(after_help = profile::EXAMPLES)]
    Profile(Box<profile::Options>),
    /// Predict small applications and measure them, with and without proxies
    #[command(after_help = validate::EXAMPLES)]
    Validate(validate::Options),
    /// Show where the time of a running node's calls goes
    #[command(after_help = live::EXAMPLES)]
    Live(live::Options),
    /// Fit each component's cost as a function of size and rate
    #[command(after_help = fit::EXAMPLES)]
    Fit(fit::Options),
    /// Make, check and draw annotated call graphs
    #[command(subcommand)]
    Acg(acg::Command),
    /// Predict what a mesh costs an application
    #[command(after_help = predict::EXAMPLES)]
    Predict(Box<predict::Options>),
    /// Predict what a mesh would have cost each of many traces
    #[command(after_help = predict::EACH_EXAMPLES)]
    PredictTraces(Box<predict::EachOptions>),
    /// Say what changes of the mesh would save
    #[command(after_help = whatif::EXAMPLES)]
    Whatif(Box<whatif::Options>),
    /// Compare no mesh, proxies and Provost for an application
    #[command(after_help = whatif::COMPARE_EXAMPLES)]
    Compare(Box<whatif::CompareOptions>),
    /// Write everything about an application into one HTML file
    #[command(after_help = report::EXAMPLES)]
    Report(Box<report::Options>),
    /// Print a shell's completions
    #[command(hide = true)]
    Completions {
        /// The shell whose completions are wanted
        shell: Shell,
    },
    /// Print the manual page, or write those of all commands into a directory
    #[command(hide = true)]
    Man {
        /// The folder into which pages are written
        directory: Option<PathBuf>,
    },
}

fn main() -> ExitCode {
    conclude(run(Arguments::parse().command))
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Doctor(options) => doctor::run(&options),
        Command::Profile(options) => profile::run(&options),
        Command::Validate(options) => validate::run(&options),
        Command::Live(options) => live::run_blocking(&options),
        Command::Fit(options) => fit::run(&options),
        Command::Acg(command) => acg::run(command),
        Command::Predict(options) => predict::run(&options),
        Command::PredictTraces(options) => predict::run_each(&options),
        Command::Whatif(options) => whatif::run(&options),
        Command::Compare(options) => whatif::run_compare(&options),
        Command::Report(options) => report::run(&options),
        Command::Completions { shell } => pages::completions(shell, PROGRAM, Arguments::command()),
        Command::Man { directory } => pages::man(directory.as_deref(), PROGRAM, Arguments::command()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent_and_every_command_has_examples() {
        Arguments::command().debug_assert();
        assert_eq!(pages::without_examples(Arguments::command()), [""; 0]);
    }
}
