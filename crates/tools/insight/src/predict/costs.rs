//! What each passage of each call costs, in each draw.

use std::collections::BTreeMap;

use super::cores::SharedLimits;
use super::{
    ExtrapolatedCall, Interval, MeshSetup, NamedInterval, NodeCores, PredictError, PredictOptions,
    ProcessorPrediction, ProxyPlacement,
};
use crate::acg::{Amount, CallGraph, CallNode, RequestGraph};
use crate::model::{ComponentCost, PassageLoad, ProfileModel};
use crate::predict::DrawnStatistic;
use crate::predict::sampling::CriticalPart;
use crate::profile::{Component, Protocol};
use crate::random::SeededRandom;

/// What predictions call the time that is spent waiting for a core or a proxy's thread.
const CORE_WAIT: &str = "core_wait";
/// Beyond what HTTP filters can work on.
const OPAQUE: Protocol = Protocol::Tcp;

/// A call's passage through one proxy.
#[derive(Clone, Debug)]
pub(super) struct ProxyPassage {
    /// The service beside which the proxy stands.
    pub(super) owner: usize,
    /// By component, in each draw.
    components: Vec<(Component, Vec<ComponentCost>)>,
    /// The number of the proxy itself: services of one node may share it.
    pub(super) proxy: usize,
    /// Mean added latency in each draw.
    pub(super) latency_us: Vec<f64>,
    /// The part of it that needs no core.
    woken_us: Vec<f64>,
    /// Mean processor time in each draw.
    cpu_us: Vec<f64>,
    /// How single messages spread around the mean.
    pub(super) curve: Option<[(f64, f64); 6]>,
}

impl ProxyPassage {
    /// Until the proxy's thread could run.
    pub(super) fn woken_us(&self, draw: usize) -> f64 {
        self.woken_us[draw]
    }

    /// On a core, until the message is passed on.
    pub(super) fn core_us(&self, draw: usize) -> f64 {
        self.latency_us[draw] - self.woken_us[draw]
    }

    /// On a core, after that.
    pub(super) fn tail_us(&self, draw: usize) -> f64 {
        (self.cpu_us[draw] - self.core_us(draw).max(0.0)).max(0.0)
    }
}

/// A call in one draw of the graph.
#[derive(Clone, Copy, Debug)]
pub(super) struct DrawnCall {
    pub(super) probability: f64,
    pub(super) repeats: f64,
    /// What the application's time is multiplied by.
    pub(super) app_factor: f64,
}

/// A call with its passages, and its draws.
#[derive(Clone, Debug)]
pub(super) struct CallCosts {
    pub(super) passages: Vec<ProxyPassage>,
    pub(super) draws: Vec<DrawnCall>,
}

/// The costs of all calls.
#[derive(Clone, Debug)]
pub(super) struct CostTable {
    /// By type of request, then by call.
    pub(super) requests: Vec<Vec<CallCosts>>,
    pub(super) draw_count: usize,
    pub(super) limits: SharedLimits,
    pub(super) extrapolated: Vec<ExtrapolatedCall>,
    pub(super) warnings: Vec<String>,
}

impl CostTable {
    pub(super) fn new(
        graph: &CallGraph,
        model: &ProfileModel,
        setup: &MeshSetup,
        PredictOptions { seed, cores, .. }: &PredictOptions,
    ) -> Result<CostTable, PredictError> {
        let mut builder = TableBuilder {
            graph,
            model,
            setup,
            rates: Vec::new(),
            random: SeededRandom::new(*seed).fork(77),
        };
        builder.rates = builder.proxy_rates();
        let mut table = CostTable {
            requests: Vec::new(),
            draw_count: model.draw_count(),
            limits: SharedLimits {
                cores: cores.limit(model.cores),
                threads: NodeCores::OfProfile.limit(model.workers),
            },
            extrapolated: Vec::new(),
            warnings: Vec::new(),
        };
        for (at, request) in graph.requests.iter().enumerate() {
            let mut calls = Vec::new();
            for index in 0..request.calls.len() {
                let random = builder.random.fork((at as u64) << 32 | index as u64);
                calls.push(builder.call(request, index, random, &mut table)?);
            }
            table.requests.push(calls);
        }
        Ok(table)
    }

    /// How often a call is made per request, in one draw.
    fn expected(&self, request: &RequestGraph, at: usize, draw: usize) -> Vec<f64> {
        let mut expected = vec![1.0; request.calls.len()];
        for (index, call) in request.calls.iter().enumerate() {
            let drawn = &self.requests[at][index].draws[draw];
            let above = call.parent.map_or(1.0, |parent| expected[parent]);
            expected[index] = above * drawn.probability * drawn.repeats;
        }
        expected
    }

    /// Processor time over the whole graph: all calls, on the critical path or not.
    pub(super) fn processor_prediction(&self, graph: &CallGraph) -> ProcessorPrediction {
        const US_PER_S: f64 = 1e6;
        let mut whole = vec![0.0; self.draw_count];
        let mut services: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
        let mut components: BTreeMap<&Component, Vec<f64>> = BTreeMap::new();
        for (at, request) in graph.requests.iter().enumerate() {
            for draw in 0..self.draw_count {
                let expected = self.expected(request, at, draw);
                for (call, expected) in self.requests[at].iter().zip(expected) {
                    let per_s = request.rate_per_s * expected / US_PER_S;
                    for passage in &call.passages {
                        let spent = per_s * passage.cpu_us[draw];
                        whole[draw] += spent;
                        services
                            .entry(passage.owner)
                            .or_insert_with(|| vec![0.0; self.draw_count])[draw] += spent;
                        for (component, costs) in &passage.components {
                            let sums = components
                                .entry(component)
                                .or_insert_with(|| vec![0.0; self.draw_count]);
                            sums[draw] += per_s * costs[draw].cpu_us;
                        }
                    }
                }
            }
        }
        let named = |name: String, draws: Vec<f64>| NamedInterval {
            name,
            figure: DrawnStatistic(draws).interval(),
        };
        let mut by_service: Vec<_> = services
            .into_iter()
            .map(|(service, draws)| named(graph.services[service].name.clone(), draws))
            .collect();
        by_service.sort_by(|left, right| right.figure.value.total_cmp(&left.figure.value));
        let draws = DrawnStatistic(whole);
        ProcessorPrediction {
            cores: draws.interval(),
            by_service,
            by_component: components
                .into_iter()
                .map(|(component, draws)| named(component.to_string(), draws))
                .collect(),
            draws,
        }
    }

    /// Mean added latency on the critical path of a type of request, by component. Each draw has its own costs of what the
    /// fit finds on the critical path; what they leave of the whole is spent waiting for a core.
    pub(super) fn critical_components(
        &self,
        at: usize,
        critical: &[CriticalPart],
        added: &DrawnStatistic,
    ) -> Vec<NamedInterval> {
        let mut sums: BTreeMap<&Component, Vec<f64>> = BTreeMap::new();
        for (call, part) in self.requests[at].iter().zip(critical) {
            for (passage, spent) in call.passages.iter().zip(&part.proxies_us) {
                // A passage's time on the path over its mean says how often it is on the path.
                let mean = passage.latency_us[0];
                let weight = if mean.abs() > 1e-12 { spent / mean } else { 0.0 };
                for (component, costs) in &passage.components {
                    let sum = sums
                        .entry(component)
                        .or_insert_with(|| vec![0.0; self.draw_count]);
                    for (sum, cost) in sum.iter_mut().zip(costs) {
                        *sum += weight * cost.latency_us;
                    }
                }
            }
        }
        let mut left = added.0.clone();
        for draws in sums.values() {
            for (left, spent) in left.iter_mut().zip(draws) {
                *left -= spent;
            }
        }
        let named = |name: String, draws: &[f64]| NamedInterval {
            name,
            figure: Interval::of_draws(draws[0], &draws[1..]),
        };
        let mut components: Vec<NamedInterval> = sums
            .into_iter()
            .map(|(component, draws)| named(component.to_string(), &draws))
            .collect();
        // Less is rounding.
        const SHARE_MIN: f64 = 1e-6;
        if !left.is_empty() && left[0] > SHARE_MIN * added.value().abs() {
            components.push(named(CORE_WAIT.to_owned(), &left));
        }
        components
    }
}

struct TableBuilder<'a> {
    graph: &'a CallGraph,
    model: &'a ProfileModel,
    setup: &'a MeshSetup,
    rates: Vec<f64>,
    random: SeededRandom,
}

impl TableBuilder<'_> {
    /// The number of the proxy that stands beside a service, or on its node.
    fn proxy_of(&self, service: usize) -> usize {
        match self.setup.placement {
            ProxyPlacement::PerNode => self.graph.services[service].node,
            _ => service,
        }
    }

    /// Calls per second that pass each proxy.
    fn proxy_rates(&self) -> Vec<f64> {
        // Nodes are as many as services at most.
        let mut rates = vec![0.0; self.graph.services.len()];
        for request in &self.graph.requests {
            for call in &request.calls {
                for end in self.proxies(call) {
                    rates[self.proxy_of(end)] += request.rate_per_s * call.expected / self.sharing(end);
                }
            }
        }
        rates
    }

    /// How many proxies share the calls of a service: one for each instance, but those on one node have its proxy.
    fn sharing(&self, service: usize) -> f64 {
        let is_named = !self.graph.source.services[service].node.is_empty();
        if self.setup.placement == ProxyPlacement::PerNode && is_named {
            1.0
        } else {
            self.graph.services[service].instances
        }
    }

    fn call(
        &self,
        request: &RequestGraph,
        index: usize,
        mut random: SeededRandom,
        table: &mut CostTable,
    ) -> Result<CallCosts, PredictError> {
        let call = &request.calls[index];
        let above = call.parent.map_or(1.0, |parent| request.calls[parent].expected);
        let seen = (request.traces as f64 * above).round() as u64;
        let draws = (0..self.model.draw_count())
            .map(|draw| drawn_call(call, if draw == 0 { 0 } else { seen }, &mut random))
            .collect();
        // What is not known of a call's sizes is the same at both of its proxies.
        let errors = size_errors(call, seen, self.model.draw_count(), &mut random);
        let mut passages = Vec::new();
        for owner in self.proxies(call) {
            let load = self.load(call, owner, table);
            let passage = self
                .passage(owner, &load, &errors)
                .map_err(|error| PredictError::Model {
                    place: format!("request \"{}\", call \"{}\"", request.name, call.id),
                    error,
                })?;
            let beyond = self.model.beyond_observed(&load, &self.setup.changes);
            if !beyond.is_empty() {
                table.extrapolated.push(ExtrapolatedCall {
                    request: request.name.clone(),
                    call: call.id.clone(),
                    proxy_of: self.graph.services[owner].name.clone(),
                    beyond,
                });
            }
            passages.push(passage);
        }
        Ok(CallCosts { passages, draws })
    }

    /// The services whose proxies a call passes.
    fn proxies(&self, call: &CallNode) -> Vec<usize> {
        let services = &self.graph.services;
        let shares_node = call
            .caller
            .is_some_and(|caller| services[caller].node == services[call.service].node);
        let ends = match self.setup.placement {
            ProxyPlacement::Absent => return Vec::new(),
            ProxyPlacement::PerNode if shares_node => vec![call.service],
            ProxyPlacement::BeforeServices => vec![call.service],
            ProxyPlacement::PerNode | ProxyPlacement::Sidecars => {
                call.caller.into_iter().chain([call.service]).collect()
            }
        };
        ends.into_iter().filter(|end| services[*end].meshed).collect()
    }

    fn load(&self, call: &CallNode, owner: usize, table: &mut CostTable) -> PassageLoad {
        let protocol = self.setup.mode.unwrap_or(call.protocol);
        let mut filters = self.graph.services[owner].filters.clone();
        filters.extend(call.filters.iter().cloned());
        filters.retain(|filter| !self.setup.filters_removed.contains(filter));
        filters.extend(self.setup.filters_added.iter().cloned());
        filters.sort();
        filters.dedup();
        if protocol == OPAQUE && !filters.is_empty() {
            let warning = format!("with tcp, filters do not run: {} left out", filters.join(", "));
            if !table.warnings.contains(&warning) {
                table.warnings.push(warning);
            }
            filters.clear();
        }
        PassageLoad {
            protocol,
            filters,
            request_bytes: call.request_bytes,
            response_bytes: call.response_bytes,
            rate_per_s: self.rates[self.proxy_of(owner)],
        }
    }

    fn passage(
        &self,
        owner: usize,
        load: &PassageLoad,
        size_errors: &[f64],
    ) -> Result<ProxyPassage, crate::model::ModelError> {
        let mut components = self.model.passage_costs(load, &self.setup.changes)?;
        if !size_errors.is_empty() {
            self.move_sizes(&mut components, load, size_errors)?;
        }
        let sum = |draw: usize, part: fn(&ComponentCost) -> f64| {
            components.iter().map(|(_, costs)| part(&costs[draw])).sum()
        };
        let draws = self.model.draw_count();
        let latency_us: Vec<f64> = (0..draws).map(|draw| sum(draw, |cost| cost.latency_us)).collect();
        Ok(ProxyPassage {
            owner,
            proxy: self.proxy_of(owner),
            woken_us: woken(&components, &latency_us),
            latency_us,
            cpu_us: (0..draws).map(|draw| sum(draw, |cost| cost.cpu_us)).collect(),
            components,
            curve: self.model.message_curve(load.protocol).copied(),
        })
    }

    /// Sizes that were seen in few traces may be off: each draw moves them, along the slope at the sizes that were seen.
    fn move_sizes(
        &self,
        components: &mut [(Component, Vec<ComponentCost>)],
        load: &PassageLoad,
        errors: &[f64],
    ) -> Result<(), crate::model::ModelError> {
        const STEP: f64 = 0.1;
        let larger = PassageLoad {
            request_bytes: scaled(load.request_bytes, 1.0 + STEP),
            response_bytes: scaled(load.response_bytes, 1.0 + STEP),
            ..load.clone()
        };
        let moved = self.model.passage_costs(&larger, &self.setup.changes)?;
        for ((_, costs), (_, moved)) in components.iter_mut().zip(moved) {
            for ((cost, moved), error) in costs.iter_mut().zip(moved).zip(errors) {
                cost.latency_us += (moved.latency_us - cost.latency_us) * error / STEP;
                cost.cpu_us += (moved.cpu_us - cost.cpu_us) * error / STEP;
            }
        }
        Ok(())
    }
}

/// The part of a passage that needs no core, in each draw: never more than all of it.
fn woken(components: &[(Component, Vec<ComponentCost>)], latency_us: &[f64]) -> Vec<f64> {
    let wakeup = components
        .iter()
        .find(|(component, _)| *component == Component::Wakeup);
    let of = |draw: usize| wakeup.map_or(0.0, |(_, costs)| costs[draw].latency_us);
    let whole = latency_us.iter().enumerate();
    whole
        .map(|(draw, whole)| of(draw).clamp(0.0, whole.max(0.0)))
        .collect()
}

fn is_spread(call: &CallNode) -> bool {
    call.request_bytes.deviation() > 0.0 || call.response_bytes.deviation() > 0.0
}

/// How often a call was made while the one around it was seen so often: what it was like is known from these. Once at least, or it would
/// not be in the graph.
fn times_made(call: &CallNode, seen: u64) -> f64 {
    match seen {
        0 => 0.0,
        _ => (seen as f64 * call.probability * call.repeats).max(1.0),
    }
}

/// By what share the mean sizes are off in each draw; not at all in the first. Empty where they are known.
fn size_errors(call: &CallNode, seen: u64, draws: usize, random: &mut SeededRandom) -> Vec<f64> {
    let made = times_made(call, seen);
    if made <= 0.0 || !is_spread(call) {
        return Vec::new();
    }
    let mean = call.request_bytes.mean() + call.response_bytes.mean();
    let deviation = call
        .request_bytes
        .deviation()
        .hypot(call.response_bytes.deviation());
    let share = if mean > 0.0 {
        deviation / mean / made.sqrt()
    } else {
        0.0
    };
    (0..draws)
        .map(|draw| if draw == 0 { 0.0 } else { share * random.normal() })
        .collect()
}

fn scaled(amount: Amount, factor: f64) -> Amount {
    match amount {
        Amount::Fixed(value) => Amount::Fixed(value * factor),
        Amount::Spread(mut spread) => {
            for value in [&mut spread.p10, &mut spread.p50, &mut spread.p90, &mut spread.p99] {
                *value *= factor;
            }
            Amount::Spread(spread)
        }
    }
}

/// A call as so many observations of it might have shown it; as it is where none is counted.
fn drawn_call(call: &CallNode, seen: u64, random: &mut SeededRandom) -> DrawnCall {
    if seen == 0 {
        return DrawnCall {
            probability: call.probability,
            repeats: call.repeats,
            app_factor: 1.0,
        };
    }
    let times = times_made(call, seen);
    let mean = call.app_us.mean();
    let app_error = if mean > 0.0 {
        call.app_us.deviation() / mean / times.sqrt()
    } else {
        0.0
    };
    DrawnCall {
        probability: random.binomial_share(seen, call.probability),
        // Repeats beyond the first are taken to scatter like a Poisson count, each time that the call is made.
        repeats: (call.repeats
            + ((call.repeats - 1.0).max(0.0) * call.repeats / times).sqrt() * random.normal())
        .max(1.0),
        app_factor: (1.0 + app_error * random.normal()).max(0.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acg::AnnotatedGraph;

    /// A call of 1,000 requests seen, made so often.
    fn call(more: &str) -> CallNode {
        let text = format!(
            "{{format: provost-insight-acg, version: 1, services: [{{name: a}}], requests: [{{name: r, rate_per_s: 1, calls: [\
             {{id: x, to: a}}, {{id: y, from: x, to: a, app_us: {{p10: 50, p50: 100, p90: 150, p99: 170}}, {more}}}]}}]}}"
        );
        let graph = CallGraph::new(AnnotatedGraph::parse(&text).unwrap()).unwrap();
        graph.requests[0].calls[1].clone()
    }

    fn deviation(values: &[f64]) -> f64 {
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let squares = values.iter().map(|value| (value - mean).powi(2));
        (squares.sum::<f64>() / values.len() as f64).sqrt()
    }

    #[test]
    fn a_call_is_known_from_the_times_that_it_was_made() {
        let mut random = SeededRandom::new(1);
        let mut spread = |more: &str| {
            let call = call(more);
            let draws: Vec<DrawnCall> = (0..4000).map(|_| drawn_call(&call, 1000, &mut random)).collect();
            let app: Vec<f64> = draws.iter().map(|one| one.app_factor).collect();
            let repeats: Vec<f64> = draws.iter().map(|one| one.repeats).collect();
            (deviation(&app), deviation(&repeats))
        };
        let near = |found: f64, expected: f64| (found / expected - 1.0).abs() < 0.1;
        let (always, _) = spread("probability: 1");
        let (seldom, _) = spread("probability: 0.01");
        let (often, repeats) = spread("probability: 1, repeats: 5");
        assert!(near(seldom / always, 10.0), "{seldom} {always}");
        assert!(near(always / often, 5f64.sqrt()), "{always} {often}");
        // Four more than the first, a thousand times.
        assert!(near(repeats, (4.0f64 / 1000.0).sqrt()), "{repeats}");
        let (_, seldom) = spread("probability: 0.01, repeats: 5");
        assert!(near(seldom, (4.0f64 / 10.0).sqrt()), "{seldom}");
    }

    #[test]
    fn what_is_not_known_of_sizes_is_the_same_at_both_proxies_of_a_call() {
        use crate::model::MachineMatch;
        use crate::predict::{NodeCores, predict};
        use crate::synthetic::{SyntheticProxy, synthetic_profile};
        let exact = SyntheticProxy {
            noise: 0.0,
            repetition_noise: 0.0,
            ..SyntheticProxy::example()
        };
        let mut profile = synthetic_profile(&exact, 4, 1);
        profile.totals.clear();
        let model = ProfileModel::new(&profile, MachineMatch::Same, 400, 1).unwrap();
        let text = "{format: provost-insight-acg, version: 1, services: [{name: a}, {name: b}], requests: [{name: r, rate_per_s: 1, \
                    traces: 4, calls: [{id: x, to: a}, {id: y, from: x, to: b, request_bytes: {p10: 100, p50: 4000, p90: 9000, p99: 16000}}]}]}";
        let graph = CallGraph::new(AnnotatedGraph::parse(text).unwrap()).unwrap();
        let spread = |placement| {
            let options = PredictOptions {
                samples: 1,
                seed: 1,
                cores: NodeCores::Plenty,
            };
            let predicted = predict(&graph, &model, &MeshSetup::new("mesh", placement), &options).unwrap();
            deviation(&predicted.draws.mean.0)
        };
        let ratio = spread(ProxyPlacement::Sidecars) / spread(ProxyPlacement::BeforeServices);
        assert!((ratio - 2.0).abs() < 0.05, "{ratio}");
    }
}
