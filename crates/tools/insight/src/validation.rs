//! Predictions beside measurements, as `provost insight validate --json` prints them and reports show them.

use serde::{Deserialize, Serialize};

use crate::predict::Interval;

/// A validation has at most so many applications.
pub const APPLICATIONS_MAX: usize = 100_000;
/// No figure is larger.
const FIGURE_MAX: f64 = 1e15;

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ValidationResult {
    pub points: Vec<ValidationPoint>,
}

/// One figure, predicted and measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ValidationPoint {
    /// The application, with what it speaks.
    pub application: String,
    /// What the figure is, with its unit.
    pub figure: String,
    pub predicted: Interval,
    pub measured: f64,
}

/// What is read of the text; it has more.
#[derive(Deserialize)]
struct ValidationDocument {
    applications: Vec<ValidatedApplication>,
}

#[derive(Deserialize)]
struct ValidatedApplication {
    name: String,
    measured_added_us: f64,
    predicted_added_us: Interval,
    measured_cpu_us: f64,
    predicted_cpu_us: Interval,
}

impl ValidationPoint {
    /// The prediction's error, as a share of the measured value.
    #[must_use]
    pub fn error_share(&self) -> f64 {
        if self.measured.abs() > f64::EPSILON {
            self.predicted.value / self.measured - 1.0
        } else {
            0.0
        }
    }

    fn is_sane(&self) -> bool {
        let figures = [
            self.measured,
            self.predicted.value,
            self.predicted.low,
            self.predicted.high,
        ];
        figures
            .into_iter()
            .all(|figure| figure.is_finite() && figure.abs() < FIGURE_MAX)
    }
}

impl ValidationResult {
    /// Reads a validation.
    ///
    /// # Errors
    /// If the text is none, in words.
    pub fn parse(text: &str) -> Result<ValidationResult, String> {
        let document: ValidationDocument = serde_json::from_str(text)
            .map_err(|error| format!("{error}: not what `provost insight validate --json` prints"))?;
        if document.applications.len() > APPLICATIONS_MAX {
            let count = document.applications.len();
            return Err(format!(
                "{count} applications, at most {APPLICATIONS_MAX} are read"
            ));
        }
        let point = |application: &str, figure: &str, predicted, measured| ValidationPoint {
            application: application.to_owned(),
            figure: figure.to_owned(),
            predicted,
            measured,
        };
        let points: Vec<ValidationPoint> = document
            .applications
            .iter()
            .flat_map(|one| {
                [
                    point(
                        &one.name,
                        "added latency, µs",
                        one.predicted_added_us,
                        one.measured_added_us,
                    ),
                    point(
                        &one.name,
                        "processor time of a request, µs",
                        one.predicted_cpu_us,
                        one.measured_cpu_us,
                    ),
                ]
            })
            .collect();
        match points.iter().find(|point| !point.is_sane()) {
            None => Ok(ValidationResult { points }),
            Some(point) => Err(format!(
                "{}: {}: a figure cannot be so large",
                point.application, point.figure
            )),
        }
    }

    /// The share of measured values within the predicted intervals.
    #[must_use]
    pub fn coverage(&self) -> f64 {
        let covered = self
            .points
            .iter()
            .filter(|point| point.predicted.contains(point.measured))
            .count();
        covered as f64 / self.points.len().max(1) as f64
    }

    /// The median of the errors without their signs.
    #[must_use]
    pub fn median_error_share(&self) -> f64 {
        let mut errors: Vec<f64> = self
            .points
            .iter()
            .map(|point| point.error_share().abs())
            .collect();
        errors.sort_by(f64::total_cmp);
        crate::fit::quantile(&errors, 0.5)
    }
}
