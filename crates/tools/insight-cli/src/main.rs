//! `provost insight`: what a mesh costs an application. Only `live` needs a daemon.

mod acg;
mod doctor;
mod fit;
mod input;
mod live;
mod machine;
mod predict;
mod profile;
mod report;
mod validate;
mod whatif;

use clap::Subcommand;

use crate::failure::Failure;

/// `provost insight …`.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
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
}

/// Runs one.
pub(crate) fn run(command: Command) -> Result<(), Failure> {
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
    }
}
