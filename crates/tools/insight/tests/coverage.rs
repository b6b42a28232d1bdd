//! Applications and proxies at random, whose true cost is known: is it within the predicted interval as often as the interval
//! says?

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use provost_insight::acg::{AnnotatedGraph, CallEntry, CallGraph};
use provost_insight::model::{MachineMatch, ProfileModel};
use provost_insight::predict::{MeshSetup, NodeCores, PredictOptions, Prediction, ProxyPlacement, predict};
use provost_insight::profile::Protocol;
use provost_insight::random::SeededRandom;
use provost_insight::synthetic::{SyntheticProxy, synthetic_profile};

const PROTOCOLS: [Protocol; 3] = [Protocol::Tcp, Protocol::Http1, Protocol::Grpc];
const RATE_PER_S: f64 = 50.0;

/// An application with what it truly costs.
struct KnownApplication {
    graph: CallGraph,
    added_us: f64,
    cores: f64,
}

/// A call as the truth reckons with it.
struct KnownCall {
    entry: CallEntry,
    children: Vec<KnownCall>,
}

/// A tree of calls at random. Siblings either follow each other or run at once; of those that run at once one takes far
/// longer than the others, so that the mesh does not change which one is waited for.
fn known_call(random: &mut SeededRandom, depth: usize, number: &mut usize) -> KnownCall {
    *number += 1;
    let id = format!("c{number}");
    let text = format!("{{id: {id}, to: s{}}}", random.below(6));
    let mut entry: CallEntry = entry_of(&text);
    entry.protocol = PROTOCOLS[random.below(PROTOCOLS.len())];
    entry.request_bytes = provost_insight::acg::Amount::Fixed(64.0 + random.uniform() * 2_000.0);
    entry.response_bytes = provost_insight::acg::Amount::Fixed(64.0 * 400f64.powf(random.uniform()));
    entry.app_us = provost_insight::acg::Amount::Fixed(50.0 + random.uniform() * 200.0);
    let count = if depth >= 3 { 0 } else { random.below(4) };
    let mut children: Vec<KnownCall> = (0..count)
        .map(|_| known_call(random, depth + 1, number))
        .collect();
    let is_ordered = random.uniform() < 0.5;
    let longest = random.below(count.max(1));
    for at in 0..count {
        children[at].entry.from = id.clone();
        if is_ordered && at > 0 {
            children[at].entry.after = vec![children[at - 1].entry.id.clone()];
        } else if !is_ordered && at == longest {
            // Longer than all that may be within a sibling, where calls are ten times shorter.
            let longest_us = 1e6 * 10f64.powi(2 - depth as i32);
            children[at].entry.app_us = provost_insight::acg::Amount::Fixed(longest_us);
        }
    }
    KnownCall { entry, children }
}

fn entry_of(call: &str) -> CallEntry {
    let text = format!(
        "{{format: provost-insight-acg, version: 1, services: [{{name: s0}}], requests: [{{name: r, rate_per_s: 1, calls: [{call}]}}]}}"
    );
    AnnotatedGraph::parse(&text)
        .unwrap()
        .requests
        .remove(0)
        .calls
        .remove(0)
}

/// Passages through proxies: one for the request, two for each call within.
fn passage(
    proxy: &SyntheticProxy,
    call: &KnownCall,
    of: fn(&SyntheticProxy, Protocol, f64, f64, &[String]) -> f64,
) -> f64 {
    let passages = if call.entry.from.is_empty() { 1.0 } else { 2.0 };
    let (request, response) = (call.entry.request_bytes.mean(), call.entry.response_bytes.mean());
    passages * of(proxy, call.entry.protocol, request, response, &[])
}

/// What a call truly gains, written down anew: in order, the sum; at once, what the longest gains.
fn true_added_us(proxy: &SyntheticProxy, call: &KnownCall) -> f64 {
    let own = passage(proxy, call, SyntheticProxy::round_trip_us);
    let is_ordered = call.children.iter().any(|child| !child.entry.after.is_empty());
    let gained = call
        .children
        .iter()
        .map(|child| (base_us(child), true_added_us(proxy, child)));
    let inner = if is_ordered {
        gained.map(|(_, added)| added).sum()
    } else {
        gained
            .max_by(|left, right| left.0.total_cmp(&right.0))
            .map_or(0.0, |(_, added)| added)
    };
    own + inner
}

fn base_us(call: &KnownCall) -> f64 {
    let inner = call.children.iter().map(base_us);
    let is_ordered = call.children.iter().any(|child| !child.entry.after.is_empty());
    call.entry.app_us.mean()
        + if is_ordered {
            inner.sum::<f64>()
        } else {
            inner.fold(0.0, f64::max)
        }
}

fn true_cpu_us(proxy: &SyntheticProxy, call: &KnownCall) -> f64 {
    let own = passage(proxy, call, SyntheticProxy::round_trip_cpu_us);
    own + call
        .children
        .iter()
        .map(|child| true_cpu_us(proxy, child))
        .sum::<f64>()
}

fn flatten(call: KnownCall, entries: &mut Vec<CallEntry>) {
    entries.push(call.entry);
    call.children
        .into_iter()
        .for_each(|child| flatten(child, entries));
}

fn known_application(proxy: &SyntheticProxy, random: &mut SeededRandom) -> KnownApplication {
    let root = known_call(random, 0, &mut 0);
    let (added_us, cpu_us) = (true_added_us(proxy, &root), true_cpu_us(proxy, &root));
    let services: String = (0..6).map(|at| format!("{{name: s{at}}},")).collect();
    let text = format!(
        "{{format: provost-insight-acg, version: 1, services: [{services}], requests: [{{name: r, rate_per_s: {RATE_PER_S}, calls: []}}]}}"
    );
    let mut graph = AnnotatedGraph::parse(&text).unwrap();
    flatten(root, &mut graph.requests[0].calls);
    KnownApplication {
        graph: CallGraph::new(graph).unwrap(),
        added_us,
        cores: RATE_PER_S * cpu_us / 1e6,
    }
}

fn predicted(seed: u64) -> (KnownApplication, Prediction) {
    let mut random = SeededRandom::new(seed);
    let mut proxy = SyntheticProxy::example().varied(&mut random);
    proxy.protocols = PROTOCOLS.to_vec();
    let application = known_application(&proxy, &mut random);
    let mut profile = synthetic_profile(&proxy, 6, random.bits());
    // Without the spread of single messages every play is the same, and one is enough.
    profile.totals.clear();
    let model = ProfileModel::new(&profile, MachineMatch::Same, 60, random.bits()).unwrap();
    let setup = MeshSetup::new("mesh", ProxyPlacement::Sidecars);
    let options = PredictOptions {
        samples: 1,
        seed,
        cores: NodeCores::Plenty,
    };
    let prediction = predict(&application.graph, &model, &setup, &options).unwrap();
    (application, prediction)
}

#[test]
fn the_true_cost_is_within_the_interval_about_as_often_as_it_says() {
    const APPLICATIONS: u64 = 60;
    let (mut latency, mut processor) = (0, 0);
    let mut errors = Vec::new();
    for seed in 0..APPLICATIONS {
        let (application, prediction) = predicted(seed);
        let added = prediction.added_us.mean;
        latency += u64::from(added.contains(application.added_us));
        processor += u64::from(prediction.cpu.cores.contains(application.cores));
        errors.push((added.value / application.added_us - 1.0).abs());
    }
    errors.sort_by(f64::total_cmp);
    let share = |count: u64| count as f64 / APPLICATIONS as f64;
    let (latency, processor) = (share(latency), share(processor));
    println!(
        "within 90 % intervals: latency {latency:.3}, processor {processor:.3}; median error {:.4}",
        errors[30]
    );
    assert!((0.85..=0.97).contains(&latency), "{latency}");
    assert!((0.85..=0.97).contains(&processor), "{processor}");
    assert!(errors[30] < 0.05, "the median error is {}", errors[30]);
}

#[test]
fn no_prediction_is_far_off_whatever_the_application() {
    let config = Config {
        cases: 16,
        failure_persistence: None,
        ..Config::default()
    };
    let check = |seed: u64| {
        let (application, prediction) = predicted(seed);
        let off = prediction.added_us.mean.value / application.added_us - 1.0;
        prop_assert!(off.abs() < 0.1, "seed {seed}: off by {off}");
        let components: f64 = prediction.requests[0]
            .components_us
            .iter()
            .map(|one| one.figure.value)
            .sum();
        prop_assert!(
            (components / prediction.added_us.mean.value - 1.0).abs() < 0.02,
            "seed {seed}: {components}"
        );
        Ok(())
    };
    TestRunner::new(config).run(&any::<u64>(), check).unwrap();
}
