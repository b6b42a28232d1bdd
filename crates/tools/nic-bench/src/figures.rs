//! Figures, where they come from, and how they are shown.

use std::fmt::Write as _;
use std::path::Path;

use provost_figures::{Pairs, TargetOutcome, median};
use serde::Serialize;

/// Where a figure comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum FigureBasis {
    /// Simulated, at a point on which the model of the interface is calibrated: it says that the NIC does not get in its way.
    SimulatedCalibrated,
    /// Simulated, and no figure of the kind was used: a prediction.
    SimulatedPredicted,
    /// Cycles of the RTL, into which no model of a host interface enters.
    SimulatedCycles,
    /// Of this machine's clock.
    Measured,
    Published,
}

impl FigureBasis {
    fn text(self) -> &'static str {
        match self {
            FigureBasis::SimulatedCalibrated => "simulated, calibrated",
            FigureBasis::SimulatedPredicted => "simulated, predicted",
            FigureBasis::SimulatedCycles => "simulated, RTL alone",
            FigureBasis::Measured => "measured here",
            FigureBasis::Published => "published",
        }
    }
}

/// One figure of a setup.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct FigureCell {
    /// The name of what was measured.
    pub(crate) setup: String,
    /// Which figure of it.
    pub(crate) what: String,
    /// The median of the runs.
    pub(crate) median: f64,
    /// Of every run. A simulation has one, for it replays exactly.
    pub(crate) runs: Vec<f64>,
    pub(crate) unit: &'static str,
    pub(crate) basis: FigureBasis,
    /// Where a published figure stands, or what one should know of this one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) note: String,
}

/// All figures of a run.
#[derive(Debug, Default, Serialize)]
pub(crate) struct NicFigures {
    pub(crate) cells: Vec<FigureCell>,
    /// What could not be measured, and why.
    pub(crate) missing: Vec<String>,
    /// Targets, and how they were met.
    pub(crate) outcomes: Vec<TargetOutcome>,
}

impl NicFigures {
    pub(crate) fn add(
        &mut self,
        (setup, what): (&str, &str),
        value: f64,
        unit: &'static str,
        basis: FigureBasis,
        note: &str,
    ) {
        self.add_runs((setup, what), vec![value], unit, basis, note);
    }

    pub(crate) fn add_runs(
        &mut self,
        (setup, what): (&str, &str),
        runs: Vec<f64>,
        unit: &'static str,
        basis: FigureBasis,
        note: &str,
    ) {
        self.cells.push(FigureCell {
            setup: setup.to_owned(),
            what: what.to_owned(),
            median: median(runs.clone()).unwrap_or(f64::NAN),
            runs,
            unit,
            basis,
            note: note.to_owned(),
        });
    }

    /// The figure of a setup, and its runs.
    pub(crate) fn get(&self, setup: &str, what: &str) -> Option<(f64, Pairs)> {
        let cell = self
            .cells
            .iter()
            .find(|cell| cell.setup == setup && cell.what == what)?;
        Some((cell.median, Pairs::new(cell.runs.clone())))
    }

    /// The table that is printed.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        let _ = writeln!(
            text,
            "{:24} {:22} {:>12} {:12} basis",
            "setup", "what", "median", "unit"
        );
        for cell in &self.cells {
            let digits = if cell.median.abs() < 1000.0 { 2 } else { 0 };
            let note = if cell.note.is_empty() {
                String::new()
            } else {
                format!("; {}", cell.note)
            };
            let _ = writeln!(
                text,
                "{:24} {:22} {:>12.digits$} {:12} {}{note}",
                cell.setup,
                cell.what,
                cell.median,
                cell.unit,
                cell.basis.text()
            );
        }
        for missing in &self.missing {
            let _ = writeln!(text, "left out: {missing}");
        }
        let _ = writeln!(text);
        for outcome in &self.outcomes {
            let _ = writeln!(text, "{outcome}");
        }
        text
    }

    /// Writes them to a file.
    pub(crate) fn write(&self, path: &Path) -> Result<(), String> {
        let text = serde_json::to_string_pretty(self).map_err(|error| error.to_string())?;
        std::fs::write(path, text + "\n").map_err(|error| format!("write {}: {error}", path.display()))
    }
}
