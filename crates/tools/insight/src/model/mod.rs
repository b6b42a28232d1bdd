//! What one passage through a profiled proxy costs, with how sure that is: the fitted functions, and as many drawn variants
//! of them as a bootstrap asks for.
//!
//! Draw 0 is the fit itself. The others are fits to repetitions drawn with replacement, the same repetitions for all
//! components, so that what made a whole repetition slow stays together. Where a profile has functions but no observations,
//! the functions are drawn from their covariance instead. Profiles that were taken apart have draws of their own, whatever the
//! seed: one says nothing of how far the other is off.

mod draws;

use std::collections::{BTreeMap, BTreeSet};

use crate::acg::Amount;
use crate::fit::{FitError, FunctionKey, fit, groups};
use crate::partial::{WHOLE_ROUNDS_MIN, whole_rounds};
use crate::profile::{
    Component, FitSection, MachineIdentity, Passage, PiecewiseFunction, Profile, ProfileOrigin, Protocol,
    ResidualScale,
};
use crate::random::SeededRandom;
use crate::regression::dot;

use draws::{Resampling, drawn_component, message_ratios};

/// At most so many draws are made.
pub const DRAWS_MAX: usize = 2_000;
/// Where a distribution of sizes is looked at: the middles of eight parts.
const SIZE_SHARES: [f64; 8] = [0.0625, 0.1875, 0.3125, 0.4375, 0.5625, 0.6875, 0.8125, 0.9375];
/// The 95th percentile of the normal distribution.
const NORMAL_95: f64 = 1.645;

/// How to take a profile for another machine than its own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MachineMatch {
    /// The application runs where the profile was taken.
    Same,
    /// It runs elsewhere: times are multiplied by a factor whose relative error is stated.
    Rescaled {
        /// The other machine's times over the profile's.
        factor: f64,
        /// Half the width of the factor's 90 % interval, as a share of it.
        error_share: f64,
    },
}

/// Why a profile cannot be used for a prediction.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ModelError {
    /// Nothing can be fitted.
    #[error(transparent)]
    Fit(#[from] FitError),
    /// It holds for another machine.
    #[error(
        "the profile was taken on another machine ({profile}), the application runs on {application}: take a profile there, \
         name its machine in the graph (`machine: {id}`) if the application does run there, or state how the two compare \
         (--rescale FACTOR --rescale-error PERCENT)"
    )]
    AnotherMachine {
        /// The profile's machine, in words.
        profile: String,
        application: String,
        id: String,
    },
    /// The profile does not know a protocol.
    #[error(
        "the profile of {proxy} has nothing for {protocol} (it has {known}): profile it, or choose another mode"
    )]
    NoProtocol {
        proxy: String,
        /// What was asked for.
        protocol: Protocol,
        known: String,
    },
    /// The profile knows filters of a protocol, and not what they run in.
    #[error(
        "the profile of {proxy} has nothing for {protocol} but what filters add; without the proxy's own components the cost would be \
         too low by all of them: take it where the kernel grants tracing (`provost insight doctor` says what is missing)"
    )]
    FiltersAlone {
        proxy: String,
        /// What was asked for.
        protocol: Protocol,
    },
    /// The profile does not know a filter.
    #[error(
        "the profile of {proxy} has nothing for the filter \"{filter}\" with {protocol} (it has {known}): profile it"
    )]
    NoFilter {
        proxy: String,
        /// What was asked for.
        filter: String,
        protocol: Protocol,
        known: String,
    },
    /// The profile does not know a variant.
    #[error(
        "the profile of {proxy} has no component that was measured with {variant}: profile it so, or state by what factor a component changes"
    )]
    NoVariant {
        proxy: String,
        /// What was asked for.
        variant: String,
    },
    /// It ended before intervals could be told.
    #[error(
        "the profile is partial and has {has}, from which no interval can be told ({reason}): take it anew, with at least \
         {WHOLE_ROUNDS_MIN} rounds"
    )]
    TooFewRounds {
        /// The whole rounds, in words.
        has: String,
        reason: String,
    },
    #[error("{0} draws, at most {DRAWS_MAX} are made")]
    TooManyDraws(usize),
}

/// Whether a profile holds for a machine.
///
/// # Errors
/// If it does not.
pub fn check_machine(
    profile: &Profile,
    application: &ApplicationMachine,
) -> Result<MachineMatch, ModelError> {
    let taken = &profile.machine;
    let is_same = match application {
        ApplicationMachine::Named(id) => *id == taken.id,
        ApplicationMachine::Known(machine) => is_same_machine(taken, machine),
    };
    if is_same {
        return Ok(MachineMatch::Same);
    }
    Err(ModelError::AnotherMachine {
        profile: describe_machine(taken),
        application: match application {
            ApplicationMachine::Named(id) => format!("\"{id}\""),
            ApplicationMachine::Known(machine) => describe_machine(machine),
        },
        id: taken.id.clone(),
    })
}

/// Where the application runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApplicationMachine {
    /// As the graph names it.
    Named(String),
    Known(MachineIdentity),
}

/// The same machine, or one that is alike in all that a profile depends on.
fn is_same_machine(left: &MachineIdentity, right: &MachineIdentity) -> bool {
    let alike = left.processor == right.processor
        && left.processors == right.processors
        && left.architecture == right.architecture
        && left.hypervisor == right.hypervisor;
    alike && left.kernel == right.kernel
}

fn describe_machine(machine: &MachineIdentity) -> String {
    format!(
        "{}: {} × {}, Linux {}",
        machine.id, machine.processors, machine.processor, machine.kernel
    )
}

/// What one component adds in one draw.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ComponentCost {
    /// Latency on the critical path of the message.
    pub latency_us: f64,
    /// Processor time, on and off that path.
    pub cpu_us: f64,
}

/// What passes through a proxy: a request and its response.
#[derive(Clone, Debug, PartialEq)]
pub struct PassageLoad {
    /// What the proxy understands of it.
    pub protocol: Protocol,
    /// The filters that run.
    pub filters: Vec<String>,
    /// Size of the request.
    pub request_bytes: Amount,
    /// Size of the response.
    pub response_bytes: Amount,
    /// Calls per second at this proxy.
    pub rate_per_s: f64,
}

/// A change of a component: its times are multiplied.
#[derive(Clone, Debug, PartialEq)]
pub struct ComponentFactor {
    pub component: Component,
    /// What its latency and processor time are multiplied by.
    pub factor: f64,
}

/// How a proxy is changed from the way in which it was profiled.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProxyChanges {
    /// Variants that are used where a component was measured with one.
    pub variants: Vec<String>,
    /// Components that become faster or slower.
    pub factors: Vec<ComponentFactor>,
}

#[derive(Clone, Debug)]
struct DrawnFunction {
    shape: PiecewiseFunction,
    /// The coefficients of each draw.
    coefficients: Vec<Vec<f64>>,
    /// What each draw adds, as the function does not fit perfectly: everywhere, or where the function is as large as its reference.
    misfit_us: Vec<f64>,
    residuals: ResidualScale,
}

impl DrawnFunction {
    /// The mean over sizes, in each draw.
    fn values<'a>(&'a self, terms: &'a [f64]) -> impl Iterator<Item = f64> + 'a {
        let factor = match self.residuals {
            ResidualScale::Everywhere => 1.0,
            ResidualScale::Proportional => self.shape.residual_factor(dot(terms, &self.shape.coefficients)),
        };
        let draws = self.coefficients.iter().zip(&self.misfit_us);
        draws.map(move |(coefficients, misfit_us)| dot(terms, coefficients) + factor * misfit_us)
    }

    /// The mean of the terms over the sizes that there are. A rate below all that were observed is taken for the lowest: a
    /// line over rates is not followed down to where nothing was seen.
    fn mean_terms(&self, size: Amount, rate_per_s: f64) -> Vec<f64> {
        let rate_per_s = rate_per_s.max(self.shape.observed.rate_per_s_min);
        let Amount::Spread(_) = size else {
            return self.shape.terms_at(size.mean(), rate_per_s);
        };
        let mut mean = vec![0.0; self.shape.coefficients.len()];
        for share in SIZE_SHARES {
            let terms = self.shape.terms_at(size.at(share), rate_per_s);
            for (sum, term) in mean.iter_mut().zip(terms) {
                *sum += term / SIZE_SHARES.len() as f64;
            }
        }
        mean
    }
}

#[derive(Clone, Debug)]
struct DrawnComponent {
    latency: DrawnFunction,
    cpu: DrawnFunction,
}

/// A profile, ready to predict.
#[derive(Clone, Debug)]
pub struct ProfileModel {
    pub proxy: String,
    /// What a reader of a prediction should know.
    pub warnings: Vec<String>,
    /// Cores of the machine on which the profile was taken; 0 if it does not say.
    pub cores: u32,
    /// Threads of the proxy that carry messages; 0 if the profile does not say.
    pub workers: u32,
    draws: usize,
    functions: BTreeMap<FunctionKey, DrawnComponent>,
    /// Messages' latencies as multiples of their mean.
    ratios: BTreeMap<Protocol, [(f64, f64); 6]>,
}

impl ProfileModel {
    /// A model with so many draws beside the fit itself.
    ///
    /// # Errors
    /// If the profile has neither functions nor observations, or too many draws are asked for.
    pub fn new(
        profile: &Profile,
        machine: MachineMatch,
        draws: usize,
        seed: u64,
    ) -> Result<ProfileModel, ModelError> {
        if draws > DRAWS_MAX {
            return Err(ModelError::TooManyDraws(draws));
        }
        let section = match &profile.fit {
            // What is kept beside observations may be of another version's making.
            Some(section) if profile.observations.is_empty() => section.clone(),
            _ => fit(profile)?,
        };
        if let (Some(reason), Some(rounds)) = (&profile.partial, profile.rounds_to_use())
            && rounds < WHOLE_ROUNDS_MIN
        {
            return Err(ModelError::TooFewRounds {
                has: whole_rounds(rounds),
                reason: reason.clone(),
            });
        }
        let shared = SeededRandom::new(seed);
        let random = own_chance(&shared, profile, &section);
        let groups = groups(profile);
        let resampling = Resampling::new(profile, draws, &mut random.fork(1));
        let mut functions = BTreeMap::new();
        for (at, function) in section.functions.iter().enumerate() {
            let key = FunctionKey::of_function(function);
            let rows = groups.get(&key).map(Vec::as_slice).unwrap_or_default();
            let mut random = random.fork(100 + at as u64);
            functions.insert(
                key,
                drawn_component(function, section.residuals, rows, &resampling, draws, &mut random),
            );
        }
        let mut model = ProfileModel {
            proxy: profile.proxy.name.clone(),
            warnings: warnings(profile, &resampling),
            cores: profile.machine.processors,
            workers: profile.proxy.workers,
            draws,
            functions,
            ratios: message_ratios(profile, &section.functions),
        };
        if model.ratios.is_empty() {
            model.warnings.push(
                "the profile has no quantiles of single messages: p90 and p99 are those of the application alone".to_owned(),
            );
        }
        // How two machines compare is the same for all profiles of one of them.
        model.rescale(machine, &mut shared.fork(2));
        Ok(model)
    }

    /// Draws, with the fit itself.
    #[must_use]
    pub fn draw_count(&self) -> usize {
        self.draws + 1
    }

    /// The latencies of messages as multiples of their mean; `None` where the profile does not say.
    #[must_use]
    pub fn message_curve(&self, protocol: Protocol) -> Option<&[(f64, f64); 6]> {
        self.ratios.get(&protocol)
    }

    /// The components that the profile has for a protocol.
    #[must_use]
    pub fn components(&self, protocol: Protocol) -> BTreeSet<Component> {
        self.functions
            .keys()
            .filter(|key| key.protocol == protocol)
            .map(|key| key.component.clone())
            .collect()
    }

    /// Whether the profile has anything for a protocol.
    #[must_use]
    pub fn knows(&self, protocol: Protocol) -> bool {
        self.functions.keys().any(|key| key.protocol == protocol)
    }

    /// What each component adds to a round trip through the proxy, in each draw.
    ///
    /// # Errors
    /// If the profile does not know the protocol, a filter, or a variant.
    pub fn passage_costs(
        &self,
        load: &PassageLoad,
        changes: &ProxyChanges,
    ) -> Result<Vec<(Component, Vec<ComponentCost>)>, ModelError> {
        self.check_known(load, changes)?;
        let mut costs = Vec::new();
        for component in self.components(load.protocol) {
            let is_run = match &component {
                Component::Filter(name) => load.filters.contains(name),
                _ => true,
            };
            if is_run {
                let factor = factor_of(&component, changes);
                let costs_of = self.component_costs(&component, load, changes, factor);
                costs.push((component, costs_of));
            }
        }
        Ok(costs)
    }

    fn component_costs(
        &self,
        component: &Component,
        load: &PassageLoad,
        changes: &ProxyChanges,
        factor: f64,
    ) -> Vec<ComponentCost> {
        let mut costs = vec![ComponentCost::default(); self.draw_count()];
        for (function, size, share) in self.directions(component, load, changes) {
            let latency_terms = function.latency.mean_terms(size, load.rate_per_s);
            let cpu_terms = function.cpu.mean_terms(size, load.rate_per_s);
            let latencies = function.latency.values(&latency_terms);
            let both = latencies.zip(function.cpu.values(&cpu_terms));
            for (cost, (latency_us, cpu_us)) in costs.iter_mut().zip(both) {
                cost.latency_us += share * factor * latency_us;
                cost.cpu_us += share * factor * cpu_us;
            }
        }
        costs
    }

    /// The functions that a round trip takes of a component, each with the size and the share of it. What was measured by
    /// direction is taken by direction; else each direction is half a round trip of its own size.
    fn directions<'a>(
        &'a self,
        component: &Component,
        load: &PassageLoad,
        changes: &ProxyChanges,
    ) -> Vec<(&'a DrawnComponent, Amount, f64)> {
        let find = |passage| self.find(component, load.protocol, passage, changes);
        let (request, response) = (load.request_bytes, load.response_bytes);
        let by_direction: Vec<_> = [(Passage::Request, request), (Passage::Response, response)]
            .into_iter()
            .filter_map(|(passage, size)| Some((find(passage)?, size, 1.0)))
            .collect();
        match (by_direction.is_empty(), find(Passage::RoundTrip)) {
            (true, Some(function)) => vec![(function, request, 0.5), (function, response, 0.5)],
            _ => by_direction,
        }
    }

    fn find(
        &self,
        component: &Component,
        protocol: Protocol,
        passage: Passage,
        changes: &ProxyChanges,
    ) -> Option<&DrawnComponent> {
        let with = |variant: &str| {
            let key = FunctionKey {
                protocol,
                variant: variant.to_owned(),
                component: component.clone(),
                passage,
            };
            self.functions.get(&key)
        };
        changes
            .variants
            .iter()
            .find_map(|variant| with(variant))
            .or_else(|| with(""))
    }

    fn check_known(&self, load: &PassageLoad, changes: &ProxyChanges) -> Result<(), ModelError> {
        let components = self.components(load.protocol);
        if components.is_empty() {
            let known: BTreeSet<&str> = self.functions.keys().map(|key| key.protocol.name()).collect();
            return Err(ModelError::NoProtocol {
                proxy: self.proxy.clone(),
                protocol: load.protocol,
                known: if known.is_empty() {
                    "none".to_owned()
                } else {
                    known.into_iter().collect::<Vec<_>>().join(", ")
                },
            });
        }
        if components
            .iter()
            .all(|component| matches!(component, Component::Filter(_)))
        {
            return Err(ModelError::FiltersAlone {
                proxy: self.proxy.clone(),
                protocol: load.protocol,
            });
        }
        for filter in &load.filters {
            if !components.contains(&Component::Filter(filter.clone())) {
                return Err(self.no_filter(filter, load.protocol, &components));
            }
        }
        for variant in &changes.variants {
            let is_known = self
                .functions
                .keys()
                .any(|key| key.variant == *variant && key.protocol == load.protocol);
            if !is_known {
                return Err(ModelError::NoVariant {
                    proxy: self.proxy.clone(),
                    variant: variant.clone(),
                });
            }
        }
        Ok(())
    }

    fn no_filter(&self, filter: &str, protocol: Protocol, components: &BTreeSet<Component>) -> ModelError {
        let names: Vec<&str> = components
            .iter()
            .filter_map(|component| match component {
                Component::Filter(name) => Some(name.as_str()),
                _ => None,
            })
            .collect();
        ModelError::NoFilter {
            proxy: self.proxy.clone(),
            filter: filter.to_owned(),
            protocol,
            known: if names.is_empty() {
                "none".to_owned()
            } else {
                names.join(", ")
            },
        }
    }

    /// Where a load lies beyond what was profiled, in words; empty where it does not.
    #[must_use]
    pub fn beyond_observed(&self, load: &PassageLoad, changes: &ProxyChanges) -> Vec<String> {
        let mut found = BTreeSet::new();
        for component in self.components(load.protocol) {
            for (function, size, _) in self.directions(&component, load, changes) {
                found.extend(beyond(&function.latency.shape, size, load.rate_per_s));
            }
        }
        found.into_iter().collect()
    }

    /// For another machine: all times change alike, by a factor that is not known exactly.
    fn rescale(&mut self, machine: MachineMatch, random: &mut SeededRandom) {
        let MachineMatch::Rescaled { factor, error_share } = machine else {
            return;
        };
        let factors: Vec<f64> = (0..=self.draws)
            .map(|draw| match draw {
                0 => factor,
                _ => factor * (1.0 + error_share * random.normal() / NORMAL_95).max(0.0),
            })
            .collect();
        for component in self.functions.values_mut() {
            for function in [&mut component.latency, &mut component.cpu] {
                for (draw, factor) in factors.iter().enumerate() {
                    function.coefficients[draw]
                        .iter_mut()
                        .for_each(|coefficient| *coefficient *= factor);
                    function.misfit_us[draw] *= factor;
                }
            }
        }
        self.warnings.push(format!(
            "rescaled from another machine by {factor} ± {:.0} %: the interval holds that error as stated, nothing checks it",
            error_share * 100.0
        ));
    }
}

/// Chance that follows from the figures of a profile as well: the same for the same one, and independent of another one's.
fn own_chance(shared: &SeededRandom, profile: &Profile, section: &FitSection) -> SeededRandom {
    let observed = profile.observations_to_use().map(|one| one.latency_us);
    let fitted = section
        .functions
        .iter()
        .flat_map(|function| function.latency_us.coefficients.iter().copied());
    // The fit follows from the observations, where there are some, and may be kept in the profile or not.
    let figures: Vec<f64> = if profile.observations.is_empty() {
        fitted.collect()
    } else {
        observed.collect()
    };
    figures
        .into_iter()
        .fold(shared.fork(3), |chance, figure| chance.fork(figure.to_bits()))
}

fn factor_of(component: &Component, changes: &ProxyChanges) -> f64 {
    changes
        .factors
        .iter()
        .filter(|change| change.component == *component)
        .map(|change| change.factor)
        .product()
}

/// A load may lie beyond the observed range by so much before it is called extrapolated.
const BEYOND_SHARE: f64 = 0.05;

fn beyond(function: &PiecewiseFunction, size: Amount, rate_per_s: f64) -> Vec<String> {
    let observed = &function.observed;
    let mut found = Vec::new();
    let [least, .., most] = SIZE_SHARES.map(|share| size.at(share));
    if most > observed.size_bytes_max * (1.0 + BEYOND_SHARE) {
        found.push(format!(
            "{most:.0} B, profiled to {:.0} B",
            observed.size_bytes_max
        ));
    }
    if least < observed.size_bytes_min * (1.0 - BEYOND_SHARE) {
        found.push(format!(
            "{least:.0} B, profiled from {:.0} B",
            observed.size_bytes_min
        ));
    }
    if rate_per_s > observed.rate_per_s_max * (1.0 + BEYOND_SHARE) {
        found.push(format!(
            "{rate_per_s:.0} calls/s, profiled to {:.0}",
            observed.rate_per_s_max
        ));
    }
    found
}

fn warnings(profile: &Profile, resampling: &Resampling) -> Vec<String> {
    let mut warnings = Vec::new();
    if profile.origin == ProfileOrigin::Synthetic {
        warnings.push(format!(
            "the profile of {} is synthetic: its figures are made up",
            profile.proxy.name
        ));
    }
    warnings.extend(profile.partial_remark());
    warnings.extend(profile.lost_remark());
    if !profile.observations.is_empty() && resampling.picks.is_empty() {
        warnings.push(
            "the profile has one repetition: intervals come from the scatter of its cells alone".to_owned(),
        );
    }
    warnings
}

#[cfg(test)]
mod tests;
