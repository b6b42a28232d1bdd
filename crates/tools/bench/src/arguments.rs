//! How each benchmark is run, as the command line says it.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::regime::CoreRegime;

/// Where a benchmark leaves its figures, beside the table that it prints.
#[derive(Args, Clone, Debug)]
pub(crate) struct FigureFiles {
    /// Write the figures to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Draw plots into this folder
    #[arg(long, value_name = "FOLDER")]
    pub(crate) plots: Option<PathBuf>,
}

/// How calls are measured.
#[derive(Args, Clone, Debug)]
pub(crate) struct Call {
    /// Fewer loads and shorter runs: under 6 minutes
    #[arg(long)]
    pub(crate) quick: bool,
    #[command(flatten)]
    pub(crate) files: FigureFiles,
    /// What else the cores do (several in turn, separated by commas)
    #[arg(long, value_enum, value_delimiter = ',', default_value = "idle")]
    pub(crate) regime: Vec<CoreRegime>,
    /// The cores that everything runs on
    #[arg(long, value_delimiter = ',', default_value = "0,1")]
    pub(crate) cores: Vec<usize>,
    /// Only setups whose name contains this (several, separated by commas)
    #[arg(long, value_delimiter = ',')]
    pub(crate) only: Vec<String>,
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
    /// Fewer changes: under a minute
    #[arg(long)]
    pub(crate) quick: bool,
    #[command(flatten)]
    pub(crate) files: FigureFiles,
    /// What else the cores do (several in turn, separated by commas)
    #[arg(long, value_enum, value_delimiter = ',', default_value = "idle")]
    pub(crate) regime: Vec<CoreRegime>,
    /// The cores that everything runs on
    #[arg(long, value_delimiter = ',', default_value = "0,1")]
    pub(crate) cores: Vec<usize>,
    /// Only experiments whose name contains this (several, separated by commas)
    #[arg(long, value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// Changes of each experiment [default: 1000 of an engine, 30 of a daemon; with --quick 100 and 6]
    #[arg(long)]
    pub(crate) changes: Option<usize>,
    /// Time between two changes of an engine, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 50)]
    pub(crate) every: u64,
}

/// How binding and connecting are measured.
#[derive(Args, Clone, Debug)]
pub(crate) struct BindOptions {
    /// Fewer rounds
    #[arg(long)]
    pub(crate) quick: bool,
    /// Write the figures to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// What else the cores do (several in turn, separated by commas)
    #[arg(long, value_enum, value_delimiter = ',', default_value = "idle")]
    pub(crate) regime: Vec<CoreRegime>,
    /// The cores that everything runs on
    #[arg(long, value_delimiter = ',', default_value = "0,1")]
    pub(crate) cores: Vec<usize>,
}

/// How system calls are counted.
#[derive(Args, Clone, Debug)]
pub(crate) struct Syscalls {
    /// Count for a shorter time
    #[arg(long)]
    pub(crate) quick: bool,
    /// Write the figures to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// What else the cores do (several in turn, separated by commas)
    #[arg(long, value_enum, value_delimiter = ',', default_value = "idle")]
    pub(crate) regime: Vec<CoreRegime>,
    /// The cores that everything runs on
    #[arg(long, value_delimiter = ',', default_value = "0,1")]
    pub(crate) cores: Vec<usize>,
    /// Only setups whose name contains this (several, separated by commas)
    #[arg(long, value_delimiter = ',')]
    pub(crate) only: Vec<String>,
}

/// How the datagram transport is measured.
#[derive(Args, Clone, Debug)]
pub(crate) struct Datagram {
    /// The ends of every scale, and shorter runs: under 2 minutes
    #[arg(long)]
    pub(crate) quick: bool,
    #[command(flatten)]
    pub(crate) files: FigureFiles,
    /// What else the cores do (several in turn, separated by commas)
    #[arg(long, value_enum, value_delimiter = ',', default_value = "idle")]
    pub(crate) regime: Vec<CoreRegime>,
    /// The cores of the two processes: the first and the last of these. With one core they take turns on it
    #[arg(long, value_delimiter = ',', default_value = "0,1")]
    pub(crate) cores: Vec<usize>,
    /// Only what contains this in its setup and name (several, separated by commas)
    #[arg(long, value_delimiter = ',')]
    pub(crate) only: Vec<String>,
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
            quick: true,
            files: FigureFiles {
                json: None,
                plots: None,
            },
            regime: vec![CoreRegime::Idle],
            cores: vec![0, 1],
            only: Vec::new(),
            rounds: None,
            seconds: None,
        }
    }
}

impl Call {
    pub(crate) fn smoke() -> Call {
        Call {
            quick: true,
            files: FigureFiles {
                json: None,
                plots: None,
            },
            regime: vec![CoreRegime::Idle],
            cores: vec![0, 1],
            only: Vec::new(),
            rounds: Some(1),
            seconds: Some(0.3),
            quiet: 0.0,
        }
    }

    pub(crate) fn quiet_limit(&self) -> Duration {
        Duration::try_from_secs_f64(self.quiet).unwrap_or_default()
    }
}
