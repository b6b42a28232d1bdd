//! What else the cores do while calls are measured.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::failure::{Doing, Failure};
use crate::machine::{self, LoadedCores};

/// What the cores do beside the setup that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CoreRegime {
    /// Nothing: they halt when nobody runs.
    Idle,
    /// A loop of the idle class on each, as a background job would run.
    Background,
    /// An ordinary loop on each, as an app that computes would run.
    Busy,
    /// Nothing, and everything runs on the first of the cores.
    OneCore,
}

/// How much is measured, in which regimes, and where the figures go beside the table that is printed.
#[derive(Args, Clone, Debug)]
pub(crate) struct RunOptions {
    /// Fewer loads or rounds, and shorter runs
    #[arg(long)]
    pub(crate) quick: bool,
    /// Write the figures to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// What else the cores do (several in turn, separated by commas)
    #[arg(long, value_enum, value_delimiter = ',', default_value = "idle")]
    regime: Vec<CoreRegime>,
    /// The cores that everything runs on; of two processes, the first and the last of these
    #[arg(long, value_delimiter = ',', default_value = "0,1")]
    pub(crate) cores: Vec<usize>,
}

impl RunOptions {
    /// So little that it only shows that everything works.
    pub(crate) fn smoke() -> RunOptions {
        RunOptions {
            quick: true,
            json: None,
            regime: vec![CoreRegime::Idle],
            cores: vec![0, 1],
        }
    }
}

impl CoreRegime {
    /// As the command line says it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            CoreRegime::Idle => "idle",
            CoreRegime::Background => "background",
            CoreRegime::Busy => "busy",
            CoreRegime::OneCore => "one-core",
        }
    }

    /// What it does to the cores, for the head of a table.
    pub(crate) fn description(self) -> &'static str {
        match self {
            CoreRegime::Idle => "idle otherwise",
            CoreRegime::Background => "each beside a loop of the idle class",
            CoreRegime::Busy => "each beside an ordinary loop",
            CoreRegime::OneCore => "one for everything, idle otherwise",
        }
    }

    /// Those of the cores that the setups have.
    fn cores(self, cores: &[usize]) -> Vec<usize> {
        match self {
            CoreRegime::OneCore => cores.iter().take(1).copied().collect(),
            CoreRegime::Idle | CoreRegime::Background | CoreRegime::Busy => cores.to_vec(),
        }
    }

    fn load(self, cores: &[usize]) -> Result<LoadedCores, Failure> {
        match self {
            CoreRegime::Idle | CoreRegime::OneCore => Ok(LoadedCores::default()),
            CoreRegime::Background => LoadedCores::background(cores),
            CoreRegime::Busy => LoadedCores::busy(cores),
        }
    }
}

/// Measures in one regime after the other, on the cores that it has, and writes the file that was asked for: the figures of a
/// single regime, those of several by its name.
///
/// # Errors
/// The first that a measurement comes to, a loop cannot be started (`nice`, `chrt` and `taskset`), or the file cannot be
/// written.
pub(crate) fn measure_each<T: Serialize>(
    run: &RunOptions,
    mut measure: impl FnMut(CoreRegime, &[usize]) -> Result<T, Failure>,
) -> Result<(), Failure> {
    let mut measured = BTreeMap::new();
    for regime in &run.regime {
        let cores = regime.cores(&run.cores);
        machine::pin(&cores)?;
        let _loops = regime.load(&cores)?;
        measured.insert(regime.name(), measure(*regime, &cores)?);
    }
    let Some(path) = &run.json else { return Ok(()) };
    let text = match measured.values().next() {
        Some(only) if measured.len() == 1 => serde_json::to_string_pretty(only),
        _ => serde_json::to_string_pretty(&measured),
    };
    let text = text.map_err(std::io::Error::other);
    let text = text.doing(|| "put the figures into JSON".into())?;
    std::fs::write(path, text + "\n").doing(|| format!("write {}", path.display()))
}
