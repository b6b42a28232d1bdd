//! Annotated call graphs (MeshInsight, section 4.2): the services of an application, and for each type of request its calls
//! with probability, repeats, order or concurrency, sizes, rates, application time and filters.
//!
//! [`AnnotatedGraph`] is the file `acg.yaml`; [`CallGraph`] is the same, checked, with names resolved.

mod graph;
mod show;

use serde::{Deserialize, Serialize};

use crate::profile::Protocol;

pub use graph::{CallGraph, CallNode, RequestGraph, ServiceNode};
pub use show::{GraphSummary, draw_text};

/// What the field `format` of a call graph says.
pub const ACG_FORMAT: &str = "provost-insight-acg";
/// The version of the format that this crate writes, and the only one that it reads.
pub const ACG_VERSION: u32 = 1;
/// A call graph's text has at most so many bytes.
pub const ACG_BYTES_MAX: usize = 16 << 20;
/// A graph has at most so many services, and so many types of requests.
pub const SERVICES_MAX: usize = 10_000;
/// A graph has at most so many calls, over all types of requests.
pub const CALLS_MAX: usize = 10_000;
/// Calls are nested at most so deep.
pub const DEPTH_MAX: usize = 64;
/// A call is repeated at most so often on average.
pub const REPEATS_MAX: f64 = 10_000.0;
/// One request makes at most so many calls on average, with all repeats.
pub const CALLS_PER_REQUEST_MAX: f64 = 100_000.0;
/// A name has at most so many bytes.
pub const NAME_BYTES_MAX: usize = 512;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnnotatedGraph {
    /// [`ACG_FORMAT`].
    pub format: String,
    /// [`ACG_VERSION`].
    pub version: u32,
    /// In words, where the graph comes from.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub origin: String,
    /// The identity of the machines that the application runs on, as profiles name it; without one, this machine.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub machine: String,
    /// What was assumed rather than observed, in words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub assumptions: Vec<String>,
    pub services: Vec<ServiceEntry>,
    /// The types of requests.
    pub requests: Vec<RequestEntry>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceEntry {
    pub name: String,
    /// Instances that share its calls evenly.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub instances: u32,
    /// The node that it runs on; services that name none are each on a node of their own.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node: String,
    /// Whether a proxy stands beside it. A database outside the mesh has none.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub meshed: bool,
    /// Filters that its proxy runs on every call, in or out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub filters: Vec<String>,
}

/// A type of request that comes from outside.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequestEntry {
    pub name: String,
    /// How often it comes.
    pub rate_per_s: f64,
    /// Over how many traces the figures below are; 0 where they are stated, not observed. The fewer, the wider a
    /// prediction's interval.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub traces: u64,
    /// The call from outside first, then what it leads to.
    pub calls: Vec<CallEntry>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallEntry {
    /// Its name within the request.
    pub id: String,
    /// The call within which this one is made; none for the call from outside.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub from: String,
    pub to: String,
    /// The operation or method.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub operation: String,
    /// What the call speaks.
    #[serde(default = "grpc")]
    pub protocol: Protocol,
    /// How likely it is made, given that the call around it is.
    #[serde(default = "certain", skip_serializing_if = "is_certain")]
    pub probability: f64,
    /// How often on average, if it is made.
    #[serde(default = "certain", skip_serializing_if = "is_certain")]
    pub repeats: f64,
    /// How repeats follow each other.
    #[serde(default, skip_serializing_if = "RepeatMode::is_sequential")]
    pub repeat_mode: RepeatMode,
    /// Calls of the same parent that end before this one begins. Calls that do not wait for each other run concurrently.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<String>,
    /// Whether the caller goes on without the answer.
    #[serde(default, skip_serializing_if = "is_no")]
    pub detached: bool,
    /// Size of the request.
    #[serde(default)]
    pub request_bytes: Amount,
    /// Size of the response.
    #[serde(default)]
    pub response_bytes: Amount,
    /// Time that the callee itself needs, without the calls that it makes.
    #[serde(default)]
    pub app_us: Amount,
    /// The share of that time, from 0 to 1, in which it needs a core; for the rest of it, it waits for something else.
    #[serde(default = "certain", skip_serializing_if = "is_certain")]
    pub app_cpu_share: f64,
    /// Time on the way, without a mesh.
    #[serde(default)]
    pub network_us: Amount,
    /// Filters that the proxies at both ends run on this call.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub filters: Vec<String>,
}

/// How the repeats of a call follow each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RepeatMode {
    /// One after the other.
    #[default]
    Sequential,
    Concurrent,
}

impl RepeatMode {
    fn is_sequential(&self) -> bool {
        *self == RepeatMode::Sequential
    }
}

/// A quantity that is the same every time, or one with a distribution.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a number, or quantiles such as {p10: 1, p50: 2, p90: 5, p99: 9}"
)]
pub enum Amount {
    /// The same every time.
    Fixed(f64),
    /// Quantiles of a distribution.
    Spread(SpreadQuantiles),
}

/// Quantiles of a quantity.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpreadQuantiles {
    /// The 10th percentile.
    pub p10: f64,
    pub p50: f64,
    /// The 90th percentile.
    pub p90: f64,
    /// The 99th percentile.
    pub p99: f64,
}

impl Default for Amount {
    fn default() -> Amount {
        Amount::Fixed(0.0)
    }
}

impl Amount {
    /// From observed values; the quantiles only where they differ.
    #[must_use]
    pub fn of_values(values: &mut [f64]) -> Amount {
        values.sort_by(f64::total_cmp);
        let at = |share| (crate::fit::quantile(values, share) * 10.0).round() / 10.0;
        let (p10, p50, p90, p99) = (at(0.1), at(0.5), at(0.9), at(0.99));
        if p10 == p99 {
            Amount::Fixed(p50)
        } else {
            Amount::Spread(SpreadQuantiles { p10, p50, p90, p99 })
        }
    }

    /// The value that this share of all stays below: between quantiles along straight lines.
    #[must_use]
    pub fn at(self, share: f64) -> f64 {
        match self {
            Amount::Fixed(value) => value,
            Amount::Spread(spread) => between_quantiles(&spread.curve(), share),
        }
    }

    #[must_use]
    pub fn mean(self) -> f64 {
        match self {
            Amount::Fixed(value) => value,
            Amount::Spread(spread) => curve_mean(&spread.curve()),
        }
    }

    /// Something like the standard deviation; it says how much a mean over few traces may be off.
    pub(crate) fn deviation(self) -> f64 {
        match self {
            Amount::Fixed(_) => 0.0,
            // The distance of these two percentiles in deviations of a normal distribution.
            Amount::Spread(spread) => (spread.p90 - spread.p10) / 2.563,
        }
    }

    fn values(self) -> [f64; 4] {
        match self {
            Amount::Fixed(value) => [value; 4],
            Amount::Spread(spread) => [spread.p10, spread.p50, spread.p90, spread.p99],
        }
    }
}

impl SpreadQuantiles {
    fn curve(&self) -> [(f64, f64); 6] {
        quantile_curve([self.p10, self.p50, self.p90, self.p99])
    }
}

/// From p10, p50, p90 and p99 to points of the whole distribution. Below p10 and above p99 nothing is known: the line goes on
/// for half of its last step.
pub(crate) fn quantile_curve([p10, p50, p90, p99]: [f64; 4]) -> [(f64, f64); 6] {
    let least = p10 - (p50 - p10) / 4.0;
    let least = if p10 >= 0.0 { least.max(0.0) } else { least };
    [
        (0.0, least),
        (0.1, p10),
        (0.5, p50),
        (0.9, p90),
        (0.99, p99),
        (1.0, p99 + (p99 - p90) / 2.0),
    ]
}

/// A value on the lines between the points.
pub(crate) fn between_quantiles(curve: &[(f64, f64); 6], share: f64) -> f64 {
    for pair in curve.windows(2) {
        let ((from, low), (to, high)) = (pair[0], pair[1]);
        if share <= to {
            return low + (high - low) * ((share - from) / (to - from)).clamp(0.0, 1.0);
        }
    }
    curve[5].1
}

/// The mean of the values on the lines between the points.
pub(crate) fn curve_mean(curve: &[(f64, f64); 6]) -> f64 {
    curve
        .windows(2)
        .map(|pair| (pair[1].0 - pair[0].0) * (pair[0].1 + pair[1].1) / 2.0)
        .sum()
}

const fn one() -> u32 {
    1
}

const fn yes() -> bool {
    true
}

const fn certain() -> f64 {
    1.0
}

const fn grpc() -> Protocol {
    Protocol::Grpc
}

const fn is_one(count: &u32) -> bool {
    *count == 1
}

const fn is_yes(yes: &bool) -> bool {
    *yes
}

const fn is_no(yes: &bool) -> bool {
    !*yes
}

const fn is_zero(count: &u64) -> bool {
    *count == 0
}

fn is_certain(value: &f64) -> bool {
    *value == 1.0
}

/// Why a text is not a call graph, or a graph not one that can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AcgError {
    /// The text is too long.
    #[error("the graph has {0} bytes, at most {ACG_BYTES_MAX} are read: describe fewer types of requests")]
    TooLong(usize),
    /// It is not YAML, or not of this shape.
    #[error("line {line}, column {column}: {problem}")]
    Malformed {
        /// From 1; 0 where not known.
        line: u64,
        /// From 1; 0 where not known.
        column: u64,
        /// What is wrong there.
        problem: String,
    },
    /// It is of another format or version.
    #[error(
        "this is {found}, not version {ACG_VERSION} of {ACG_FORMAT}: derive it anew with `provost insight acg derive`"
    )]
    AnotherFormat {
        /// What it says that it is.
        found: String,
    },
    /// A field has a value that it cannot have.
    #[error("{place}: {problem}")]
    Invalid {
        /// The field, as a path.
        place: String,
        /// What is wrong with it, and what to do.
        problem: String,
    },
}

impl AcgError {
    pub(crate) fn invalid(place: impl Into<String>, problem: impl Into<String>) -> AcgError {
        AcgError::Invalid {
            place: place.into(),
            problem: problem.into(),
        }
    }
}

impl AnnotatedGraph {
    #[must_use]
    pub fn new(origin: impl Into<String>) -> AnnotatedGraph {
        AnnotatedGraph {
            format: ACG_FORMAT.to_owned(),
            version: ACG_VERSION,
            origin: origin.into(),
            machine: String::new(),
            assumptions: Vec::new(),
            services: Vec::new(),
            requests: Vec::new(),
        }
    }

    /// Reads a graph. It is not checked yet: [`CallGraph::new`] does.
    ///
    /// # Errors
    /// If the text is no such graph, with the place where it is wrong.
    pub fn parse(text: &str) -> Result<AnnotatedGraph, AcgError> {
        if text.len() > ACG_BYTES_MAX {
            return Err(AcgError::TooLong(text.len()));
        }
        let graph: AnnotatedGraph = serde_saphyr::from_str(text).map_err(|error| malformed(&error))?;
        if graph.format != ACG_FORMAT || graph.version != ACG_VERSION {
            let format: String = graph.format.chars().take(80).collect();
            let found = format!("version {} of \"{format}\"", graph.version);
            return Err(AcgError::AnotherFormat { found });
        }
        Ok(graph)
    }

    /// As YAML.
    ///
    /// # Errors
    /// If a figure is one that YAML cannot hold.
    pub fn to_yaml(&self) -> Result<String, AcgError> {
        serde_saphyr::to_string(self).map_err(|error| AcgError::invalid("graph", error.to_string()))
    }
}

fn malformed(error: &serde_saphyr::Error) -> AcgError {
    let (line, column, problem) = place_and_problem(error);
    AcgError::Malformed {
        line,
        column,
        problem,
    }
}

/// Line and column of what YAML is wrong, and what is wrong there, in one line.
pub(crate) fn place_and_problem(error: &serde_saphyr::Error) -> (u64, u64, String) {
    let (line, column) = error
        .location()
        .map_or((0, 0), |location| (location.line(), location.column()));
    let whole = error.without_snippet().to_string();
    let problem = whole.lines().next().unwrap_or_default();
    // Some say their place themselves.
    let place = format!(" at line {line}, column {column}");
    let problem = problem.strip_suffix(&place).unwrap_or(problem);
    (line, column, problem.chars().take(400).collect())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A front end that asks two services at once, one of which asks a store.
    pub(crate) const SMALL: &str = "\
format: provost-insight-acg
version: 1
machine: synthetic
services:
  - name: front
  - name: left
    filters: [lua]
  - name: right
  - name: store
    meshed: false
requests:
  - name: page
    rate_per_s: 100
    calls:
      - {id: root, to: front, protocol: http1, request_bytes: 200, response_bytes: 4000, app_us: 300}
      - {id: left, from: root, to: left, protocol: http1, request_bytes: 100, response_bytes: 1000, app_us: 500}
      - {id: right, from: root, to: right, protocol: http1, request_bytes: 100, response_bytes: 1000, app_us: 100}
      - {id: store, from: right, to: store, protocol: http1, probability: 0.5, repeats: 2, request_bytes: 50, response_bytes: 500, app_us: 100}
";

    pub(crate) fn small() -> CallGraph {
        CallGraph::new(AnnotatedGraph::parse(SMALL).unwrap()).unwrap()
    }

    #[test]
    fn a_graph_reads_back_as_it_was_written() {
        let graph = AnnotatedGraph::parse(SMALL).unwrap();
        let text = graph.to_yaml().unwrap();
        assert_eq!(AnnotatedGraph::parse(&text).unwrap(), graph, "{text}");
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        let error = |text: &str| AnnotatedGraph::parse(text).unwrap_err().to_string();
        let wrong = SMALL.replace("meshed: false", "mesh: false");
        assert!(error(&wrong).starts_with("line 10, column"), "{}", error(&wrong));
        assert!(error(&wrong).contains("mesh"), "{}", error(&wrong));
        let wrong = SMALL.replace("version: 1", "version: 0");
        assert!(error(&wrong).contains("version 0"), "{}", error(&wrong));
        let wrong = SMALL.replace("app_us: 300", "app_us: soon");
        assert!(error(&wrong).contains("expected a number"), "{}", error(&wrong));
    }

    #[test]
    fn amounts_have_the_quantiles_that_they_were_made_of() {
        let mut values: Vec<f64> = (0..=1000).map(f64::from).collect();
        let amount = Amount::of_values(&mut values);
        assert_eq!(
            [amount.at(0.1), amount.at(0.5), amount.at(0.99)],
            [100.0, 500.0, 990.0]
        );
        assert!((amount.mean() - 500.0).abs() < 5.0);
        assert_eq!(Amount::of_values(&mut [3.0, 3.0]), Amount::Fixed(3.0));
    }
}
