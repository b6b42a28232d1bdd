//! `provost-hostile`: runs a campaign. It is also the programs that a campaign starts: `provostd CONFIG`, `server` and
//! `victim`, each of which ends when its standard input does.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Parser, Subcommand};
use provost_e2e::node::{self, Beginning};
use provost_hostile::campaign::{self, Plan};
use provost_hostile::victim;
use rustix::process::{Signal, set_parent_process_death_signal};

/// Attacks two nodes with hostile apps while a good pair of apps works beside them.
#[derive(Debug, Parser)]
struct Arguments {
    /// Replays what the attackers did (not how threads were scheduled).
    #[arg(long)]
    seed: Option<u64>,
    /// How long to attack.
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// Runs only these attacks.
    #[arg(long)]
    only: Vec<String>,
    #[command(subcommand)]
    role: Option<Role>,
}

/// What a campaign starts.
#[derive(Debug, Subcommand)]
enum Role {
    /// A node's service.
    #[command(hide = true)]
    Provostd {
        config: PathBuf,
        /// Takes over from the process that has started it.
        #[arg(long = "take-over")]
        takes_over: bool,
    },
    /// The good server.
    #[command(hide = true)]
    Server,
    /// The good client.
    #[command(hide = true)]
    Victim,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = match &arguments.role {
        None => campaign(&arguments),
        Some(role) => play(role),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

fn play(role: &Role) -> Result<(), String> {
    // The parent of a process that takes over is the one that it replaces, which ends.
    if !matches!(role, Role::Provostd { takes_over: true, .. }) {
        // Not worth failing for: it only makes sure that nothing is left behind.
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
    }
    match role {
        Role::Provostd { config, takes_over } => {
            let beginning = if *takes_over {
                Beginning::HotRestart
            } else {
                Beginning::Fresh
            };
            node::run(config, beginning)
        }
        Role::Server => provost_e2e::server::run().map_err(|status| status.to_string()),
        Role::Victim => victim::run(),
    }
}

fn campaign(arguments: &Arguments) -> Result<(), String> {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let plan = Plan {
        seed: arguments.seed.unwrap_or(since_1970.as_nanos() as u64),
        attack_for: Duration::from_secs(arguments.seconds),
        only: arguments.only.clone(),
    };
    let role = std::env::current_exe().map_err(|error| error.to_string())?;
    let report = campaign::run(&role, &plan).map_err(|failure| failure.to_string())?;
    println!("{report}");
    match report.findings().0.len() {
        0 => Ok(()),
        _ => Err(format!("there are findings; replay with --seed {}", plan.seed)),
    }
}
