//! What a mesh costs an application: added latency on the critical path of each type of request, and processor time over
//! the whole graph, each with a 90 % interval from a bootstrap over profile and graph.
//!
//! Each draw of the bootstrap has its own cost of every passage (from the profile) and its own probabilities, repeats and
//! application times (from the number of traces behind the graph). In each draw requests are played through the graph many
//! times, with and without the mesh and with the same chance, so that concurrency, fan-out, repeats, calls that are not
//! made, and cores that calls share decide what is on the critical path. Processor time needs no play: it is a sum over all calls.

mod cores;
mod costs;
mod plan;
mod sampling;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::acg::CallGraph;
use crate::fit::quantile;
use crate::model::{ModelError, ProfileModel, ProxyChanges};
use crate::profile::Protocol;

use costs::CostTable;
use sampling::{RequestSamples, sample_request};

/// Plays of a request in each draw are at most so many.
pub const SAMPLES_MAX: usize = 1_000_000;
/// Plays of single calls, over all draws of a prediction, are at most so many.
pub const PLAYS_MAX: f64 = 2e9;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProxyPlacement {
    /// There is no mesh.
    Absent,
    /// Beside every service: a call passes the caller's and the callee's.
    Sidecars,
    /// One on every node: a call between nodes passes two, a call within a node one.
    PerNode,
    /// Before every service: a call passes the callee's.
    BeforeServices,
}

/// A mesh, as it is or might be.
#[derive(Clone, Debug, PartialEq)]
pub struct MeshSetup {
    /// What reports call it.
    pub name: String,
    pub placement: ProxyPlacement,
    /// What all proxies understand of the bytes; without it, what each call speaks.
    pub mode: Option<Protocol>,
    /// Filters that every proxy runs beside those of the graph.
    pub filters_added: Vec<String>,
    /// Filters of the graph that no proxy runs.
    pub filters_removed: Vec<String>,
    /// How the proxy differs from the one that was profiled.
    pub changes: ProxyChanges,
}

impl MeshSetup {
    /// A mesh with proxies as they were profiled.
    #[must_use]
    pub fn new(name: impl Into<String>, placement: ProxyPlacement) -> MeshSetup {
        MeshSetup {
            name: name.into(),
            placement,
            mode: None,
            filters_added: Vec::new(),
            filters_removed: Vec::new(),
            changes: ProxyChanges::default(),
        }
    }
}

/// How many cores each node has, which what runs there shares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodeCores {
    /// As many as the machine on which the profile was taken; it holds for machines that are alike alone.
    #[default]
    OfProfile,
    Each(u32),
    /// So many that nobody ever waits for one.
    Plenty,
}

impl NodeCores {
    /// As a limit, where the profile has so many; 0 is not known.
    fn limit(self, of_profile: u32) -> Option<usize> {
        match self {
            NodeCores::OfProfile if of_profile == 0 => None,
            NodeCores::OfProfile => Some(of_profile as usize),
            NodeCores::Each(cores) => Some((cores as usize).max(1)),
            NodeCores::Plenty => None,
        }
    }
}

/// How much a prediction computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PredictOptions {
    /// Requests of each type that are played in each draw.
    pub samples: usize,
    /// Where chance begins. The same seed plays the same requests, so that setups can be compared.
    pub seed: u64,
    pub cores: NodeCores,
}

impl Default for PredictOptions {
    fn default() -> PredictOptions {
        PredictOptions {
            samples: 2_000,
            seed: 1,
            cores: NodeCores::OfProfile,
        }
    }
}

/// Why there is no prediction.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PredictError {
    /// The profile does not know what the graph needs.
    #[error("{place}: {error}")]
    Model {
        place: String,
        /// What the profile does not know.
        error: ModelError,
    },
    /// Too much is asked for.
    #[error(
        "{samples} samples of {calls:.0} calls in {draws} draws: at most {PLAYS_MAX:e} calls are played; ask for fewer samples or draws"
    )]
    TooManyPlays {
        /// Samples of each request.
        samples: usize,
        /// Calls of all requests.
        calls: f64,
        draws: usize,
    },
    /// A number of samples that makes no sense.
    #[error("{0} samples: between 1 and {SAMPLES_MAX} can be taken")]
    Samples(usize),
}

/// A figure with its 90 % interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interval {
    pub value: f64,
    /// The interval's lower end.
    pub low: f64,
    pub high: f64,
}

impl Interval {
    /// From an estimate and draws of it.
    #[must_use]
    pub fn of_draws(value: f64, draws: &[f64]) -> Interval {
        let mut sorted = draws.to_vec();
        sorted.sort_by(f64::total_cmp);
        if sorted.is_empty() {
            Interval {
                value,
                low: value,
                high: value,
            }
        } else {
            Interval {
                value,
                low: quantile(&sorted, 0.05).min(value),
                high: quantile(&sorted, 0.95).max(value),
            }
        }
    }

    /// Whether a value lies within.
    #[must_use]
    pub fn contains(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }
}

/// A statistic: the fit's value first, then each draw's.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DrawnStatistic(pub Vec<f64>);

impl DrawnStatistic {
    #[must_use]
    pub fn value(&self) -> f64 {
        self.0.first().copied().unwrap_or(0.0)
    }

    #[must_use]
    pub fn interval(&self) -> Interval {
        Interval::of_draws(self.value(), self.0.get(1..).unwrap_or_default())
    }

    /// The difference, draw by draw: where both came from the same seed and profile, what they share cancels.
    #[must_use]
    pub fn minus(&self, other: &DrawnStatistic) -> DrawnStatistic {
        DrawnStatistic(
            self.0
                .iter()
                .zip(&other.0)
                .map(|(left, right)| left - right)
                .collect(),
        )
    }

    fn plus_weighted(&mut self, other: &DrawnStatistic, weight: f64) {
        self.0.resize(self.0.len().max(other.0.len()), 0.0);
        for (sum, value) in self.0.iter_mut().zip(&other.0) {
            *sum += weight * value;
        }
    }
}

/// Added latency of a type of request.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LatencyDistribution {
    pub mean: Interval,
    pub p50: Interval,
    /// The 90th percentile.
    pub p90: Interval,
    /// The 99th percentile.
    pub p99: Interval,
}

/// The same, draw by draw.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LatencyDraws {
    pub mean: DrawnStatistic,
    pub p50: DrawnStatistic,
    /// The 90th percentile.
    pub p90: DrawnStatistic,
    /// The 99th percentile.
    pub p99: DrawnStatistic,
}

impl LatencyDraws {
    fn intervals(&self) -> LatencyDistribution {
        LatencyDistribution {
            mean: self.mean.interval(),
            p50: self.p50.interval(),
            p90: self.p90.interval(),
            p99: self.p99.interval(),
        }
    }

    fn push(&mut self, mean: f64, sorted: &[f64]) {
        self.mean.0.push(mean);
        self.p50.0.push(quantile(sorted, 0.5));
        self.p90.0.push(quantile(sorted, 0.9));
        self.p99.0.push(quantile(sorted, 0.99));
    }

    fn plus_weighted(&mut self, other: &LatencyDraws, weight: f64) {
        self.mean.plus_weighted(&other.mean, weight);
        self.p50.plus_weighted(&other.p50, weight);
        self.p90.plus_weighted(&other.p90, weight);
        self.p99.plus_weighted(&other.p99, weight);
    }
}

/// A share of something, by name.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NamedInterval {
    /// The service or component.
    pub name: String,
    pub figure: Interval,
}

/// A call's part in the critical path.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PathStep {
    pub call: String,
    pub service: String,
    /// How deep it is nested; the call from outside has 0.
    pub depth: usize,
    /// In which share of requests it is on the critical path.
    pub critical_share: f64,
    /// Mean time of the application on the critical path, for a request.
    pub app_us: f64,
    /// Mean time of the network on the critical path, for a request.
    pub network_us: f64,
    /// Mean time that proxies add on the critical path, for a request.
    pub added_us: f64,
}

/// A type of request.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RequestPrediction {
    pub name: String,
    /// How often it comes.
    pub rate_per_s: f64,
    /// Latency of a request with the mesh less its latency without.
    pub added_us: LatencyDistribution,
    /// How far each quantile of latency moves: what two measurements, with and without, differ by.
    pub shift_us: LatencyDistribution,
    /// Latency without the mesh.
    pub base_us: LatencyDistribution,
    /// Mean added latency on the critical path by component, at the fit.
    pub components_us: Vec<NamedInterval>,
    /// The calls, as they stand in the graph.
    pub path: Vec<PathStep>,
    /// The added latency, draw by draw.
    #[serde(skip)]
    pub draws: LatencyDraws,
}

/// Processor time of all proxies, as cores that are busy.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ProcessorPrediction {
    /// Over the whole graph.
    pub cores: Interval,
    /// By the service at whose proxy it is spent.
    pub by_service: Vec<NamedInterval>,
    pub by_component: Vec<NamedInterval>,
    /// The whole, draw by draw.
    #[serde(skip)]
    pub draws: DrawnStatistic,
}

/// A call whose load lies beyond what was profiled.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExtrapolatedCall {
    /// The type of request.
    pub request: String,
    pub call: String,
    /// The service at whose proxy.
    pub proxy_of: String,
    pub beyond: Vec<String>,
}

/// What a mesh costs an application.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prediction {
    pub setup: String,
    /// The proxy's name; empty without a mesh.
    pub proxy: String,
    /// Added latency of an average request: the types weighted by their rates.
    pub added_us: LatencyDistribution,
    /// By type of request.
    pub requests: Vec<RequestPrediction>,
    pub cpu: ProcessorPrediction,
    /// Calls for which the profile had to be extrapolated.
    pub extrapolated: Vec<ExtrapolatedCall>,
    /// What a reader should know.
    pub warnings: Vec<String>,
    /// The added latency of an average request, draw by draw.
    #[serde(skip)]
    pub draws: LatencyDraws,
}

/// Predicts what a mesh costs.
///
/// # Errors
/// If the profile does not know what the graph needs, or more is asked for than is played.
pub fn predict(
    graph: &CallGraph,
    model: &ProfileModel,
    setup: &MeshSetup,
    options: &PredictOptions,
) -> Result<Prediction, PredictError> {
    check_plays(graph, model, options)?;
    let table = CostTable::new(graph, model, setup, options)?;
    let mut requests = Vec::new();
    for at in 0..graph.requests.len() {
        let samples = sample_request(graph, &table, at, options);
        requests.push(request_prediction(graph, &table, at, samples));
    }
    let rate: f64 = requests.iter().map(|request| request.rate_per_s).sum();
    let mut draws = LatencyDraws::default();
    for request in &requests {
        // Without any rate, all types count alike.
        let weight = if rate > 0.0 {
            request.rate_per_s / rate
        } else {
            1.0 / requests.len() as f64
        };
        draws.plus_weighted(&request.draws, weight);
    }
    let mut warnings = match setup.placement {
        ProxyPlacement::Absent => Vec::new(),
        _ => model.warnings.clone(),
    };
    warnings.extend(table.warnings.iter().cloned());
    Ok(Prediction {
        setup: setup.name.clone(),
        proxy: match setup.placement {
            ProxyPlacement::Absent => String::new(),
            _ => model.proxy.clone(),
        },
        added_us: draws.intervals(),
        requests,
        cpu: table.processor_prediction(graph),
        extrapolated: table.extrapolated.clone(),
        warnings,
        draws,
    })
}

fn check_plays(
    graph: &CallGraph,
    model: &ProfileModel,
    options: &PredictOptions,
) -> Result<(), PredictError> {
    if options.samples == 0 || options.samples > SAMPLES_MAX {
        return Err(PredictError::Samples(options.samples));
    }
    let calls: f64 = graph
        .requests
        .iter()
        .flat_map(|request| request.calls.iter().map(|call| call.expected.max(1.0)))
        .sum();
    let draws = model.draw_count();
    if calls * options.samples as f64 * draws as f64 > PLAYS_MAX {
        Err(PredictError::TooManyPlays {
            samples: options.samples,
            calls,
            draws,
        })
    } else {
        Ok(())
    }
}

fn request_prediction(
    graph: &CallGraph,
    table: &CostTable,
    at: usize,
    samples: RequestSamples,
) -> RequestPrediction {
    let request = &graph.requests[at];
    let path = request
        .calls
        .iter()
        .zip(&samples.critical)
        .enumerate()
        .map(|(index, (call, critical))| PathStep {
            call: call.id.clone(),
            service: graph.services[call.service].name.clone(),
            depth: request.depth(index),
            critical_share: critical.share,
            app_us: critical.app_us,
            network_us: critical.network_us,
            added_us: critical.proxies_us.iter().sum(),
        })
        .collect();
    RequestPrediction {
        name: request.name.clone(),
        rate_per_s: request.rate_per_s,
        added_us: samples.added.intervals(),
        shift_us: samples.shift.intervals(),
        base_us: samples.base.intervals(),
        components_us: table.critical_components(at, &samples.critical, &samples.added.mean),
        path,
        draws: samples.added,
    }
}
