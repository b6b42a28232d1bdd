//! Whether predictions are right: applications of known shape, measured with and without proxies in turn, in the same
//! rounds in which the proxy is profiled.

mod passages;
#[cfg(test)]
mod tests;

use std::time::Duration;

use provost_insight::acg::Amount;
use provost_insight::model::{ComponentCost, MachineMatch, PassageLoad, ProfileModel};
use provost_insight::predict::{Interval, MeshSetup, PredictOptions, Prediction, ProxyPlacement, predict};
use provost_insight::profile::{Component, Profile, Protocol};
use serde::Serialize;

use crate::application::{ApplicationProxies, ApplicationShape, RunningApplication};
use crate::failure::ProbeFailure;
use crate::load::{LoadClient, LoadPace, LoadShape, LoadSlice};
use crate::machine;
use crate::profile::{ProfileOrder, median, take};

pub use passages::PassagePart;
use passages::{PassageTracer, TracedPassages};

#[derive(Clone, Debug)]
pub struct ValidationOrder {
    /// How the proxy is profiled; its repetitions are the rounds, its protocols and filters the applications'.
    pub profile: ProfileOrder,
    pub shapes: Vec<ApplicationShape>,
    /// Sizes of their messages, in bytes.
    pub sizes_bytes: Vec<usize>,
    /// Draws of the bootstrap behind each interval.
    pub draws: usize,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct ValidationReport {
    /// One for each application, protocol and size.
    pub applications: Vec<ValidatedApplication>,
    /// The median over them of how far the predicted added latency is off, as a share of the measured one.
    pub latency_error_median: Option<f64>,
    /// The share of the measured added latencies that lie within their intervals.
    pub latency_covered_share: f64,
    /// The median of how far processor time is off.
    pub cpu_error_median: Option<f64>,
    /// Cores' worth of other processes' work meanwhile, the median over the rounds.
    pub foreign_cores: f64,
    /// Whether it is whole; why not, where it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partial: Option<String>,
    /// What was measured of applications that the profile predicts nothing of, as it is partial.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unpredicted: Vec<MeasuredApplication>,
}

/// An application that was measured, and not predicted.
#[derive(Clone, Debug, Serialize)]
pub struct MeasuredApplication {
    /// Its shape, protocol, size, and the filters of its proxies.
    pub name: String,
    /// How often it was measured.
    pub rounds: usize,
    /// Latency without proxies, in microseconds; medians over the rounds, as the others are.
    pub base_us: f64,
    /// What the proxies add to a request's latency.
    pub added_us: f64,
    /// The proxies' processor time for a request.
    pub cpu_us: f64,
}

#[derive(Clone, Debug, Serialize)]
pub struct ValidatedApplication {
    /// Its shape, protocol, size, and the filters of its proxies.
    pub name: String,
    #[serde(skip)]
    pub shape: ApplicationShape,
    /// Proxies that a request passes, over all branches.
    pub proxies: usize,
    /// Latency without proxies, in microseconds.
    pub base_us: f64,
    /// What the proxies add to a request's latency; the median over the rounds.
    pub measured_added_us: f64,
    pub predicted_added_us: Interval,
    /// Predicted less measured, as a share of the measured one.
    pub latency_error: f64,
    /// Whether the measured one is within the interval.
    pub is_covered: bool,
    /// The proxies' processor time for a request.
    pub measured_cpu_us: f64,
    pub predicted_cpu_us: Interval,
    /// Predicted less measured, as a share of the measured one.
    pub cpu_error: f64,
    /// What is predicted of the added latency, by component.
    pub components_us: Vec<(String, f64)>,
    /// One passage, predicted and traced, by component; empty where the kernel grants no tracing.
    pub passage: Vec<PassagePart>,
}

/// Profiles and measures in turn, then predicts and compares. A proxy that ends on the way, or an operator who stops it, leaves
/// a report that says it is partial.
///
/// # Errors
/// If a proxy cannot be started, or nothing was measured.
pub fn validate(
    order: &ValidationOrder,
    tell: &mut dyn FnMut(&str),
) -> Result<(ValidationReport, Profile), ProbeFailure> {
    let (mut pairs, profile, partial) = measure(order, tell)?;
    pairs.retain(|pair| !pair.rounds.is_empty());
    let mut report = match (compare(&pairs, &profile, order.draws), &partial) {
        (Err(failure), Some(why)) => ValidationReport {
            partial: Some(format!("{why}; nothing is predicted: {failure}")),
            unpredicted: pairs.iter().map(ApplicationPair::measured).collect(),
            ..ValidationReport::default()
        },
        (compared, _) => compared?,
    };
    report.partial = report.partial.or(partial);
    Ok((report, profile))
}

/// Profiles and measures in turn; says why not everything was measured, where it was not.
fn measure(
    order: &ValidationOrder,
    tell: &mut dyn FnMut(&str),
) -> Result<(Vec<ApplicationPair>, Profile, Option<String>), ProbeFailure> {
    order.profile.check()?;
    let mut pairs = Vec::new();
    for protocol in &order.profile.protocols {
        for shape in &order.shapes {
            for size_bytes in &order.sizes_bytes {
                pairs.push(ApplicationPair::start(order, *shape, *protocol, *size_bytes)?);
            }
        }
    }
    let mut tracer = PassageTracer::granted(order.profile.methods)?;
    let mut failed = None;
    let profile = take(&order.profile, &mut |line| {
        for pair in &mut pairs {
            if let Err(failure) = pair.round(order.profile.slice, tracer.as_mut()) {
                failed.get_or_insert(failure);
            }
        }
        tell(line);
    })?;
    let partial = profile.partial.clone();
    let partial = partial.or_else(|| failed.map(|failure| failure.to_string()));
    Ok((pairs, profile, partial))
}

/// An application without proxies, and the same with them.
struct ApplicationPair {
    shape: ApplicationShape,
    load: LoadShape,
    filters: Vec<String>,
    // Clients end before what they are connected to.
    direct: LoadClient,
    proxied: LoadClient,
    _bare: RunningApplication,
    meshed: RunningApplication,
    rounds: Vec<ApplicationRound>,
}

struct ApplicationRound {
    direct: LoadSlice,
    proxied: LoadSlice,
    cpu_us: f64,
    foreign_cores: f64,
    traced: Option<TracedPassages>,
}

impl ApplicationRound {
    fn added_us(&self) -> f64 {
        self.proxied.middle_mean_us() - self.direct.middle_mean_us()
    }
}

impl ApplicationPair {
    fn start(
        order: &ValidationOrder,
        shape: ApplicationShape,
        protocol: Protocol,
        size_bytes: usize,
    ) -> Result<ApplicationPair, ProbeFailure> {
        let ProfileOrder {
            proxy, filters, stop, ..
        } = &order.profile;
        // Bytes that a proxy does not understand pass no filter.
        let filters = if protocol == Protocol::Tcp {
            &[]
        } else {
            &filters[..]
        };
        let bare = RunningApplication::start(shape, protocol, None)?;
        let mesh = ApplicationProxies { proxy, filters, stop };
        let meshed = RunningApplication::start(shape, protocol, Some(mesh))?;
        let load = LoadShape {
            protocol,
            size_bytes,
            in_flight: 1,
            pace: LoadPace::Saturating,
        };
        let mut pair = ApplicationPair {
            shape,
            load,
            filters: filters.to_vec(),
            direct: LoadClient::connect(bare.front(), load)?.stopped_by(stop),
            proxied: LoadClient::connect(meshed.front(), load)?.stopped_by(stop),
            _bare: bare,
            meshed,
            rounds: Vec::new(),
        };
        pair.direct.run(WARMUP)?;
        pair.proxied.run(WARMUP)?;
        Ok(pair)
    }

    fn round(&mut self, slice: Duration, tracer: Option<&mut PassageTracer>) -> Result<(), ProbeFailure> {
        let busy = machine::BusyTime::now()?;
        let processes = self.meshed.proxy_processes();
        let direct = self.direct.run_enough(slice, CALLS_MIN)?;
        let before = machine::run_time_ns(&processes)?;
        let proxied = self.proxied.run_enough(slice, CALLS_MIN);
        let proxied = proxied.or_else(|failure| match failure {
            ProbeFailure::Stopped(_) => Err(failure),
            _ => self.meshed.check_alive().and(Err(failure)),
        })?;
        let after = machine::run_time_ns(&processes)?;
        let own: Vec<u32> = processes.iter().copied().chain([std::process::id()]).collect();
        let foreign_cores = busy.foreign_cores(&own)?;
        let traced = match tracer {
            Some(tracer) => {
                let proxied = &mut self.proxied;
                tracer.trace(&self.meshed, || proxied.run_enough(slice, CALLS_MIN))?
            }
            None => None,
        };
        self.rounds.push(ApplicationRound {
            traced,
            cpu_us: after.saturating_sub(before) as f64 / 1e3 / proxied.count() as f64,
            foreign_cores,
            direct,
            proxied,
        });
        Ok(())
    }

    /// One passage, predicted and traced.
    fn passage(&self, predicted: &[(Component, Vec<ComponentCost>)]) -> Vec<PassagePart> {
        let proxies = self.meshed.proxy_count() as f64;
        let rounds: Vec<(TracedPassages, f64)> = self
            .rounds
            .iter()
            .filter_map(|round| Some((round.traced?, round.cpu_us / proxies)))
            .collect();
        let of_fit: Vec<(Component, ComponentCost)> = predicted
            .iter()
            .map(|(component, draws)| (component.clone(), draws[0]))
            .collect();
        passages::parts(&rounds, &of_fit)
    }

    fn name(&self) -> String {
        let LoadShape {
            protocol, size_bytes, ..
        } = self.load;
        let mut name = format!("{} {protocol} {size_bytes} B", self.shape.name());
        for filter in &self.filters {
            name += &format!(" {filter}");
        }
        name
    }

    fn measured(&self) -> MeasuredApplication {
        MeasuredApplication {
            name: self.name(),
            rounds: self.rounds.len(),
            base_us: self.median_of(|round| round.direct.middle_mean_us()),
            added_us: self.median_of(ApplicationRound::added_us),
            cpu_us: self.median_of(|round| round.cpu_us),
        }
    }

    fn median_of(&self, figure: impl Fn(&ApplicationRound) -> f64) -> f64 {
        median(self.rounds.iter().map(figure).collect()).unwrap_or(f64::NAN)
    }
}

/// Calls that every slice has if the machine grants them at all.
const CALLS_MIN: usize = 80;
/// Before the first round.
const WARMUP: Duration = Duration::from_millis(100);
/// Where chance begins in predictions.
const SEED: u64 = 1;

fn compare(
    pairs: &[ApplicationPair],
    profile: &Profile,
    draws: usize,
) -> Result<ValidationReport, ProbeFailure> {
    let invalid = |error: &dyn std::fmt::Display| ProbeFailure::Invalid(error.to_string());
    let model =
        ProfileModel::new(profile, MachineMatch::Same, draws, SEED).map_err(|error| invalid(&error))?;
    let mut applications = Vec::new();
    for pair in pairs {
        let rate = pair.median_of(|round| round.proxied.rate());
        let base_us = pair.median_of(|round| round.direct.middle_mean_us());
        let services = pair.meshed.proxy_count();
        // Without proxies, each service takes about the same part of the whole.
        let app_us = base_us / services as f64;
        let LoadShape {
            protocol, size_bytes, ..
        } = pair.load;
        let graph = pair
            .shape
            .graph(protocol, size_bytes, rate, app_us)
            .map_err(|error| invalid(&error))?;
        let setup = MeshSetup {
            filters_added: pair.filters.clone(),
            ..MeshSetup::new("proxies", ProxyPlacement::BeforeServices)
        };
        let options = PredictOptions {
            seed: SEED,
            ..PredictOptions::default()
        };
        let predicted = predict(&graph, &model, &setup, &options).map_err(|error| invalid(&error))?;
        let size = Amount::Fixed(size_bytes as f64);
        let load = PassageLoad {
            protocol,
            filters: pair.filters.clone(),
            request_bytes: size,
            response_bytes: size,
            rate_per_s: rate,
        };
        let passage = model
            .passage_costs(&load, &setup.changes)
            .map_err(|error| invalid(&error))?;
        let mut compared = compared(pair, &predicted, rate, services);
        compared.passage = pair.passage(&passage);
        applications.push(compared);
    }
    let errors = |figure: fn(&ValidatedApplication) -> f64| {
        median(applications.iter().map(|one| figure(one).abs()).collect())
    };
    let covered = applications.iter().filter(|one| one.is_covered).count();
    let foreign = pairs
        .iter()
        .map(|pair| pair.median_of(|round| round.foreign_cores));
    Ok(ValidationReport {
        latency_error_median: errors(|one| one.latency_error),
        cpu_error_median: errors(|one| one.cpu_error),
        latency_covered_share: covered as f64 / applications.len().max(1) as f64,
        foreign_cores: median(foreign.collect()).unwrap_or_default(),
        applications,
        partial: None,
        unpredicted: Vec::new(),
    })
}

fn compared(
    pair: &ApplicationPair,
    predicted: &Prediction,
    rate: f64,
    proxies: usize,
) -> ValidatedApplication {
    let MeasuredApplication {
        name,
        base_us,
        added_us: measured,
        cpu_us: measured_cpu_us,
        ..
    } = pair.measured();
    // Of cores, as much as one request takes.
    let per_request = |cores: f64| cores * 1e6 / rate;
    let cores = predicted.cpu.cores;
    let cpu = Interval {
        value: per_request(cores.value),
        low: per_request(cores.low),
        high: per_request(cores.high),
    };
    let added = predicted.added_us.mean;
    let components = predicted.requests.first().map(|request| &request.components_us);
    ValidatedApplication {
        name,
        shape: pair.shape,
        proxies,
        base_us,
        measured_added_us: measured,
        predicted_added_us: added,
        latency_error: added.value / measured - 1.0,
        is_covered: added.contains(measured),
        measured_cpu_us,
        predicted_cpu_us: cpu,
        cpu_error: cpu.value / measured_cpu_us - 1.0,
        components_us: components
            .into_iter()
            .flatten()
            .map(|one| (one.name.clone(), one.figure.value))
            .collect(),
        passage: Vec::new(),
    }
}
