//! A load in a file, in the place of the built-in ones: what a proxy is driven with while it is profiled.
//!
//! ```yaml
//! format: provost-insight-workload
//! version: 1
//! loads:
//!   - {protocol: http1, size_bytes: 700, in_flight: 1}
//!   - {protocol: http1, size_bytes: 700, in_flight: 8, rate_per_s: 2000}
//! ```

use std::ops::RangeInclusive;

use serde::Deserialize;

use crate::profile::Protocol;

/// What the field `format` of a workload says.
pub const WORKLOAD_FORMAT: &str = "provost-insight-workload";
/// The only version that is read.
pub const WORKLOAD_VERSION: u32 = 1;
/// A workload's text has at most so many bytes.
pub const WORKLOAD_BYTES_MAX: usize = 1 << 20;
/// A workload has at most so many loads: each is measured in every repetition.
pub const LOADS_MAX: usize = 200;
/// Bytes of a message, and calls in flight, are at most so many.
pub const SIZE_BYTES_MAX: usize = 16 << 20;
pub const IN_FLIGHT_MAX: usize = 1024;
/// Between these lie calls per second.
pub const RATES_PER_S: RangeInclusive<f64> = 0.5..=1e7;

/// What a proxy is driven with.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkloadFile {
    format: String,
    version: u32,
    /// In the order in which they are measured.
    pub loads: Vec<WorkloadCell>,
}

/// Calls of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkloadCell {
    pub protocol: Protocol,
    /// Bytes of a request, and of its response.
    pub size_bytes: usize,
    /// Calls at a time.
    #[serde(default = "one")]
    pub in_flight: usize,
    /// Calls per second; without it, the next one comes as soon as one has ended.
    #[serde(default)]
    pub rate_per_s: Option<f64>,
}

const fn one() -> usize {
    1
}

/// Why a text is no workload: where, and what to do.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum WorkloadError {
    #[error("the workload has {0} bytes, at most {WORKLOAD_BYTES_MAX} are read: describe fewer loads")]
    TooLong(usize),
    #[error("line {line}, column {column}: {problem}")]
    Malformed { line: u64, column: u64, problem: String },
    #[error(
        "this is {found}, only version {WORKLOAD_VERSION} of \"{WORKLOAD_FORMAT}\" is read: see docs/insight.md for what a workload has"
    )]
    AnotherFormat { found: String },
    #[error("{place}: {problem}")]
    Invalid { place: String, problem: String },
}

impl WorkloadFile {
    /// Reads a workload, and checks it.
    ///
    /// # Errors
    /// If the text is none, with the place where it is wrong.
    pub fn parse(text: &str) -> Result<WorkloadFile, WorkloadError> {
        if text.len() > WORKLOAD_BYTES_MAX {
            return Err(WorkloadError::TooLong(text.len()));
        }
        let workload: WorkloadFile = serde_saphyr::from_str(text).map_err(|error| malformed(&error))?;
        if workload.format != WORKLOAD_FORMAT || workload.version != WORKLOAD_VERSION {
            let format: String = workload.format.chars().take(80).collect();
            let found = format!("version {} of \"{format}\"", workload.version);
            return Err(WorkloadError::AnotherFormat { found });
        }
        workload.check()?;
        Ok(workload)
    }

    fn check(&self) -> Result<(), WorkloadError> {
        let count = self.loads.len();
        if count == 0 || count > LOADS_MAX {
            let problem = format!("there are {count}: 1 to {LOADS_MAX} are measured");
            return Err(invalid("loads".to_owned(), problem));
        }
        for (at, load) in self.loads.iter().enumerate() {
            load.check(at)?;
        }
        Ok(())
    }

    /// What the loads speak, each protocol once.
    #[must_use]
    pub fn protocols(&self) -> Vec<Protocol> {
        let mut protocols: Vec<Protocol> = Vec::new();
        for load in &self.loads {
            if !protocols.contains(&load.protocol) {
                protocols.push(load.protocol);
            }
        }
        protocols
    }
}

impl WorkloadCell {
    fn check(&self, at: usize) -> Result<(), WorkloadError> {
        let wrong = |field: &str, problem: String| Err(invalid(format!("loads[{at}].{field}"), problem));
        if self.protocol == Protocol::Provost {
            return wrong(
                "protocol",
                "no load speaks provost: take tcp, http1, http2 or grpc".to_owned(),
            );
        }
        if self.size_bytes > SIZE_BYTES_MAX {
            let size = self.size_bytes;
            return wrong(
                "size_bytes",
                format!("{size} bytes, a message has at most {SIZE_BYTES_MAX}"),
            );
        }
        if !(1..=IN_FLIGHT_MAX).contains(&self.in_flight) {
            let count = self.in_flight;
            return wrong(
                "in_flight",
                format!("{count} calls, 1 to {IN_FLIGHT_MAX} can be in flight"),
            );
        }
        match self.rate_per_s {
            Some(rate) if !RATES_PER_S.contains(&rate) => wrong(
                "rate_per_s",
                format!(
                    "{rate} calls a second, a rate lies between {} and {}",
                    RATES_PER_S.start(),
                    RATES_PER_S.end()
                ),
            ),
            _ => Ok(()),
        }
    }
}

fn invalid(place: String, problem: String) -> WorkloadError {
    WorkloadError::Invalid { place, problem }
}

fn malformed(error: &serde_saphyr::Error) -> WorkloadError {
    let (line, column, problem) = crate::acg::place_and_problem(error);
    WorkloadError::Malformed {
        line,
        column,
        problem,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "format: provost-insight-workload\nversion: 1\nloads:\n";

    fn parsed(loads: &str) -> Result<WorkloadFile, String> {
        WorkloadFile::parse(&format!("{HEAD}{loads}")).map_err(|error| error.to_string())
    }

    #[test]
    fn loads_have_one_call_in_flight_and_no_rate_unless_they_say_so() {
        let workload = parsed(
            "  - {protocol: http1, size_bytes: 700}\n  - {protocol: tcp, size_bytes: 1, in_flight: 8, rate_per_s: 20}\n  - {protocol: http1, size_bytes: 9}\n",
        );
        let workload = workload.unwrap();
        assert_eq!(
            (workload.loads[0].in_flight, workload.loads[0].rate_per_s),
            (1, None)
        );
        assert_eq!(
            (workload.loads[1].in_flight, workload.loads[1].rate_per_s),
            (8, Some(20.0))
        );
        assert_eq!(workload.protocols(), [Protocol::Http1, Protocol::Tcp]);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        for (loads, words) in [
            ("  []\n", "loads: there are 0"),
            (
                "  - {protocol: provost, size_bytes: 1}\n",
                "loads[0].protocol: no load speaks provost",
            ),
            (
                "  - {protocol: tcp, size_bytes: 99999999999}\n",
                "loads[0].size_bytes",
            ),
            (
                "  - {protocol: tcp, size_bytes: 1, in_flight: 0}\n",
                "loads[0].in_flight",
            ),
            (
                "  - {protocol: tcp, size_bytes: 1, rate_per_s: .nan}\n",
                "loads[0].rate_per_s",
            ),
            (
                "  - {protocol: tcp, size_bytes: 1, rate_per_s: 1e-300}\n",
                "loads[0].rate_per_s",
            ),
            ("  - {protocol: tcp, size_bytes: 1, rate: 9}\n", "line 4"),
            ("  - {protocol: smtp, size_bytes: 1}\n", "line 4"),
        ] {
            let error = parsed(loads).unwrap_err();
            assert!(error.contains(words), "{loads} {error}");
        }
        let older = WorkloadFile::parse("format: provost-insight-workload\nversion: 0\nloads: []\n");
        let error = older.unwrap_err().to_string();
        assert!(
            error.contains("version 0") && error.contains("only version 1"),
            "{error}"
        );
        let many = "  - {protocol: tcp, size_bytes: 1}\n".repeat(LOADS_MAX + 1);
        assert!(parsed(&many).unwrap_err().contains("1 to 200"));
        let long = " ".repeat(WORKLOAD_BYTES_MAX + 1);
        assert_eq!(
            WorkloadFile::parse(&long),
            Err(WorkloadError::TooLong(WORKLOAD_BYTES_MAX + 1))
        );
    }
}
