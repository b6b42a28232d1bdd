//! What else the cores do while calls are measured.

use std::collections::BTreeMap;
use std::path::Path;

use clap::ValueEnum;
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

/// Measures in one regime after the other, on the cores that it has.
///
/// # Errors
/// The first that a measurement comes to, or a loop cannot be started (`nice`, `chrt` and `taskset`).
pub(crate) fn measure_each<T>(
    regimes: &[CoreRegime],
    cores: &[usize],
    mut measure: impl FnMut(CoreRegime, &[usize]) -> Result<T, Failure>,
) -> Result<BTreeMap<&'static str, T>, Failure> {
    let mut measured = BTreeMap::new();
    for regime in regimes {
        let cores = regime.cores(cores);
        machine::pin(&cores)?;
        let _loops = regime.load(&cores)?;
        measured.insert(regime.name(), measure(*regime, &cores)?);
    }
    Ok(measured)
}

/// Writes what was measured: the figures of a single regime, those of several by its name.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn write<T: Serialize>(path: &Path, measured: &BTreeMap<&'static str, T>) -> Result<(), Failure> {
    let text = match measured.values().next() {
        Some(only) if measured.len() == 1 => serde_json::to_string_pretty(only),
        _ => serde_json::to_string_pretty(measured),
    };
    let text = text.map_err(std::io::Error::other);
    let text = text.doing(|| "put the figures into JSON".into())?;
    std::fs::write(path, text + "\n").doing(|| format!("write {}", path.display()))
}
