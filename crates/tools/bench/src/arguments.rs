//! How each benchmark is run, as the command line says it.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::regime::RunOptions;

/// Which setups or experiments are measured.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct SetupChoice {
    /// Only what contains this in its name (several, separated by commas)
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
}

impl SetupChoice {
    pub(crate) fn has(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| name.contains(part))
    }
}

/// How calls are measured.
#[derive(Args, Clone, Debug)]
pub(crate) struct Call {
    #[command(flatten)]
    pub(crate) run: RunOptions,
    /// Draw plots into this folder
    #[arg(long, value_name = "FOLDER")]
    pub(crate) plots: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) setups: SetupChoice,
    /// Rounds [default: 3, with --quick 5]
    #[arg(long)]
    pub(crate) rounds: Option<usize>,
    /// Length of a run in seconds [default: 1.5, with --quick 0.8]
    #[arg(long)]
    pub(crate) seconds: Option<f64>,
    /// Before each run, wait up to this many seconds for the cores to be otherwise idle
    #[arg(long, default_value_t = 0.0)]
    pub(crate) quiet: f64,
}

/// How changes are measured.
#[derive(Args, Clone, Debug)]
pub(crate) struct Upgrade {
    #[command(flatten)]
    pub(crate) run: RunOptions,
    /// Draw plots into this folder
    #[arg(long, value_name = "FOLDER")]
    pub(crate) plots: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) setups: SetupChoice,
    /// Changes of each experiment [default: 1000 of an engine, 30 of a daemon; with --quick 100 and 6]
    #[arg(long)]
    pub(crate) changes: Option<usize>,
    /// Time between two changes of an engine, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 50)]
    pub(crate) every: u64,
}

/// How system calls are counted.
#[derive(Args, Clone, Debug)]
pub(crate) struct Syscalls {
    #[command(flatten)]
    pub(crate) run: RunOptions,
    #[command(flatten)]
    pub(crate) setups: SetupChoice,
}

/// How the datagram transport is measured.
#[derive(Args, Clone, Debug)]
pub(crate) struct Datagram {
    #[command(flatten)]
    pub(crate) run: RunOptions,
    /// Draw plots into this folder
    #[arg(long, value_name = "FOLDER")]
    pub(crate) plots: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) setups: SetupChoice,
    /// Rounds [default: 3]
    #[arg(long)]
    pub(crate) rounds: Option<usize>,
    /// Length of a run in seconds [default: 1, with --quick 0.35]
    #[arg(long)]
    pub(crate) seconds: Option<f64>,
}

impl Datagram {
    pub(crate) fn smoke() -> Datagram {
        Datagram {
            run: RunOptions::smoke(),
            plots: None,
            setups: SetupChoice::default(),
            rounds: None,
            seconds: None,
        }
    }
}

impl Call {
    pub(crate) fn smoke() -> Call {
        Call {
            run: RunOptions::smoke(),
            plots: None,
            setups: SetupChoice::default(),
            rounds: Some(1),
            seconds: Some(0.3),
            quiet: 0.0,
        }
    }

    pub(crate) fn quiet_limit(&self) -> Duration {
        Duration::try_from_secs_f64(self.quiet).unwrap_or_default()
    }
}
