//! Requests played through the graph, with and without the mesh.

use super::cores::{CorePlay, MeshPresence, PlayedRequest, ServicePlace};
use super::costs::{CallCosts, CostTable};
use super::plan::{PlanSource, RequestPlan};
use super::{LatencyDraws, PredictOptions};
use crate::acg::{CallGraph, RepeatMode, RequestGraph, ServiceEntry, ServiceNode};
use crate::fit::mean;
use crate::random::SeededRandom;

/// A call's part in the critical paths of the requests that were played.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct CriticalPart {
    /// In which share of requests it is on the path.
    pub(super) share: f64,
    pub(super) app_us: f64,
    pub(super) network_us: f64,
    /// For each of its proxies.
    pub(super) proxies_us: Vec<f64>,
}

/// A type of request, played.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RequestSamples {
    pub(super) added: LatencyDraws,
    pub(super) shift: LatencyDraws,
    pub(super) base: LatencyDraws,
    pub(super) critical: Vec<CriticalPart>,
}

/// Plays a type of request in every draw, each time with the same chance.
pub(super) fn sample_request(
    graph: &CallGraph,
    table: &CostTable,
    at: usize,
    options: &PredictOptions,
) -> RequestSamples {
    let request = &graph.requests[at];
    let calls = &table.requests[at];
    let random = SeededRandom::new(options.seed).fork(at as u64);
    let places = places(graph);
    let waiters = waiters(request);
    let mut samples = RequestSamples {
        critical: calls.iter().map(empty_part).collect(),
        ..RequestSamples::default()
    };
    let (mut plan, mut play) = (RequestPlan::default(), CorePlay::default());
    for draw in 0..table.draw_count {
        let source = PlanSource { request, calls, draw };
        let played = PlayedRequest {
            request,
            calls,
            draw,
            places: &places,
            waiters: &waiters,
            limits: table.limits,
        };
        let (mut base, mut with): (Vec<f64>, Vec<f64>) = (Vec::new(), Vec::new());
        for sample in 0..options.samples {
            plan.redraw(source, &random.fork(sample as u64));
            base.push(play.play(played, &plan, MeshPresence::Absent));
            with.push(play.play(played, &plan, MeshPresence::Present));
            if draw == 0 {
                count_path(&play, &plan, calls, &mut samples.critical, options.samples);
            }
        }
        note_draw(&mut samples, base, with);
    }
    for part in &mut samples.critical {
        part.share /= options.samples as f64;
    }
    samples
}

/// Where each service is; one that names no node has a node for each of its instances.
fn places(graph: &CallGraph) -> Vec<ServicePlace> {
    let place = |(service, entry): (&ServiceNode, &ServiceEntry)| ServicePlace {
        node: service.node,
        copies: if entry.node.is_empty() {
            (service.instances as usize).max(1)
        } else {
            1
        },
    };
    graph
        .services
        .iter()
        .zip(&graph.source.services)
        .map(place)
        .collect()
}

/// By call, the positions among its siblings of those that wait for it.
fn waiters(request: &RequestGraph) -> Vec<Vec<usize>> {
    let mut waiters = vec![Vec::new(); request.calls.len()];
    for call in &request.calls {
        for (position, child) in call.children.iter().enumerate() {
            for before in &request.calls[*child].after {
                waiters[*before].push(position);
            }
        }
    }
    waiters
}

fn empty_part(call: &CallCosts) -> CriticalPart {
    CriticalPart {
        proxies_us: vec![0.0; call.passages.len()],
        ..CriticalPart::default()
    }
}

fn note_draw(samples: &mut RequestSamples, mut base: Vec<f64>, mut with: Vec<f64>) {
    let mut added: Vec<f64> = with.iter().zip(&base).map(|(with, base)| with - base).collect();
    for values in [&mut added, &mut base, &mut with] {
        values.sort_by(f64::total_cmp);
    }
    let (base_mean, with_mean) = (mean(&base), mean(&with));
    samples.added.push(mean(&added), &added);
    samples.base.push(base_mean, &base);
    let mut with_draws = LatencyDraws::default();
    with_draws.push(with_mean, &with);
    let last = |draws: &LatencyDraws| {
        [&draws.mean, &draws.p50, &draws.p90, &draws.p99].map(|one| one.0.last().copied().unwrap_or(0.0))
    };
    let (with, base) = (last(&with_draws), last(&samples.base));
    let shift = &mut samples.shift;
    for (at, one) in [&mut shift.mean, &mut shift.p50, &mut shift.p90, &mut shift.p99]
        .into_iter()
        .enumerate()
    {
        one.0.push(with[at] - base[at]);
    }
}

/// Adds the critical path of the request that was played last to the means.
fn count_path(
    play: &CorePlay,
    plan: &RequestPlan,
    calls: &[CallCosts],
    critical: &mut [CriticalPart],
    samples: usize,
) {
    let weight = 1.0 / samples as f64;
    let mut is_counted = vec![false; critical.len()];
    let mut left = vec![0];
    while let Some(execution) = left.pop() {
        let one = &plan.executions[execution];
        let part = &mut critical[one.call];
        if !std::mem::replace(&mut is_counted[one.call], true) {
            part.share += 1.0;
        }
        part.app_us += weight * one.app_us;
        part.network_us += weight * one.network_us;
        let passages = calls[one.call].passages.iter().zip(one.ratios);
        for (sum, (passage, ratio)) in part.proxies_us.iter_mut().zip(passages) {
            // Paths are those of the fit.
            *sum += weight * passage.latency_us[0] * ratio;
        }
        let mut group = play.executions[execution].waited_for;
        while let Some(at) = group {
            left.extend(on_path(play, plan, at));
            group = play.groups[at].waited_for;
        }
    }
}

/// The executions of a group that its caller waited for: all that follow each other, of those at once the last.
fn on_path(play: &CorePlay, plan: &RequestPlan, group: usize) -> Vec<usize> {
    let of = &plan.groups[group];
    match of.mode {
        _ if of.is_detached => Vec::new(),
        RepeatMode::Concurrent => play.groups[group].last.into_iter().collect(),
        RepeatMode::Sequential => std::iter::successors(of.first, |one| plan.executions[*one].next).collect(),
    }
}
