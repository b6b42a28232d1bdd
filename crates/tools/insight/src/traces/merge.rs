//! From trees of calls to an annotated call graph: trees with the same request become one type of request, calls at the same
//! place in them one call with its probability, repeats, order and distributions.

use std::collections::{BTreeMap, HashMap};

use super::{CallTree, NameIndex, TraceForest, TreeCall};
use crate::acg::{Amount, AnnotatedGraph, CALLS_MAX, CallEntry, RepeatMode, RequestEntry, ServiceEntry};
use crate::profile::Protocol;
use crate::random::SeededRandom;

/// Values of a distribution that are kept; more are sampled.
const VALUES_MAX: usize = 4_096;
/// Siblings whose order is looked at; others are taken to be concurrent.
const ORDERED_MAX: usize = 64;
/// A call comes after another if it does in so large a share of the traces that have both.
const ORDER_SHARE: f64 = 0.9;
/// Times that differ by less are taken to be the same.
const SAME_US: f64 = 1.0;

/// What traces do not say.
#[derive(Clone, Debug, PartialEq)]
pub struct MergeOptions {
    /// Where the traces come from, in words.
    pub origin: String,
    /// The most frequent types of requests that are kept.
    pub requests_max: usize,
    /// Requests per second of all types together; without it, what the traces show.
    pub rate_per_s: Option<f64>,
    /// The share of requests that was traced.
    pub sampled_share: f64,
    /// Size of requests of which the traces do not say it.
    pub request_bytes: f64,
    /// Size of responses of which the traces do not say it.
    pub response_bytes: f64,
    /// What calls speak of which the traces do not say it.
    pub protocol: Protocol,
}

impl Default for MergeOptions {
    fn default() -> MergeOptions {
        MergeOptions {
            origin: String::new(),
            requests_max: 50,
            rate_per_s: None,
            sampled_share: 1.0,
            request_bytes: 100.0,
            response_bytes: 100.0,
            protocol: Protocol::Grpc,
        }
    }
}

/// Why there is no graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MergeError {
    /// There is no request.
    #[error("there is no whole request in the traces")]
    Empty,
}

/// Merges trees into a graph. What is left out is counted in the forest's report.
///
/// # Errors
/// If there is no tree.
pub fn merge(forest: &mut TraceForest, options: &MergeOptions) -> Result<AnnotatedGraph, MergeError> {
    if forest.trees.is_empty() {
        return Err(MergeError::Empty);
    }
    let mut types = request_types(forest);
    let all: usize = types.iter().map(|(_, trees)| trees.len()).sum();
    types.sort_by_key(|(key, trees)| (usize::MAX - trees.len(), *key));
    let left: usize = types
        .iter()
        .skip(options.requests_max)
        .map(|(_, trees)| trees.len())
        .sum();
    types.truncate(options.requests_max);
    let rate_per_trace = rate_per_trace(forest, options, all);
    let mut graph = AnnotatedGraph::new(options.origin.clone());
    graph.assumptions = assumptions(forest, options, rate_per_trace.1);
    let mut merged_calls = 0;
    let mut dropped = 0;
    for ((service, operation), trees) in types {
        let mut merged = MergedRequest::new(service, operation);
        for tree in &trees {
            dropped += merged.add(&forest.trees[*tree], CALLS_MAX.saturating_sub(merged_calls));
        }
        merged_calls += merged.nodes.len();
        let rate_per_s = rounded(rate_per_trace.0 * trees.len() as f64);
        graph.requests.push(merged.entry(forest, options, rate_per_s));
    }
    forest
        .report
        .unused_many("traces of the rarer types of requests", left as u64);
    forest.report.unused_many(
        "calls beyond the number of different calls that a graph has",
        dropped,
    );
    name_requests(&mut graph);
    add_services(&mut graph);
    Ok(graph)
}

type RequestKey = (NameIndex, NameIndex);

fn request_types(forest: &TraceForest) -> Vec<(RequestKey, Vec<usize>)> {
    let mut types: BTreeMap<RequestKey, Vec<usize>> = BTreeMap::new();
    for (at, tree) in forest.trees.iter().enumerate() {
        if let Some(root) = tree.calls.first() {
            types.entry((root.service, root.operation)).or_default().push(at);
        }
    }
    types.into_iter().collect()
}

/// Requests per second for each trace, and whether that is a guess.
fn rate_per_trace(forest: &TraceForest, options: &MergeOptions, traces: usize) -> (f64, bool) {
    const WINDOW_US_MIN: f64 = 1e6;
    if let Some(rate) = options.rate_per_s {
        return (rate / traces as f64, false);
    }
    let window_us = forest.window_us();
    if window_us >= WINDOW_US_MIN && traces > 1 {
        (1e6 / window_us / options.sampled_share, false)
    } else {
        (1.0 / traces as f64, true)
    }
}

fn assumptions(forest: &TraceForest, options: &MergeOptions, is_rate_guessed: bool) -> Vec<String> {
    let calls = || forest.trees.iter().flat_map(|tree| &tree.calls);
    let total = calls().count();
    let mut found = Vec::new();
    let without = calls()
        .filter(|call| call.request_bytes.is_none() || call.response_bytes.is_none())
        .count();
    if without > 0 {
        found.push(format!(
            "{without} of {total} calls do not say their sizes: requests of {} B and responses of {} B are assumed",
            options.request_bytes, options.response_bytes
        ));
    }
    let without = calls().filter(|call| call.protocol.is_none()).count();
    if without > 0 {
        found.push(format!(
            "{without} of {total} calls do not say what they speak: {} is assumed",
            options.protocol
        ));
    }
    if is_rate_guessed {
        found.push(
            "the traces do not span a second: one request per second of all types is assumed".to_owned(),
        );
    } else if options.rate_per_s.is_none() && options.sampled_share >= 1.0 {
        found.push("rates are those of the traces: every request is assumed to have been traced".to_owned());
    }
    found
}

/// Values of which a sample is kept.
#[derive(Clone, Debug, Default)]
struct ValueSample {
    values: Vec<f64>,
    seen: usize,
}

impl ValueSample {
    fn add(&mut self, value: f64, random: &mut SeededRandom) {
        self.seen += 1;
        if self.values.len() < VALUES_MAX {
            return self.values.push(value);
        }
        let place = random.below(self.seen);
        if let Some(kept) = self.values.get_mut(place) {
            *kept = value;
        }
    }

    fn amount(mut self) -> Amount {
        Amount::of_values(&mut self.values)
    }
}

/// A call at one place of a type of request.
#[derive(Clone, Debug, Default)]
struct MergedCall {
    parent: Option<usize>,
    service: NameIndex,
    operation: NameIndex,
    /// Executions of the call around it in which it is made, and how often it is made in all.
    present: u64,
    count: u64,
    overlapping: u64,
    detached: u64,
    protocols: BTreeMap<Protocol, u64>,
    request_bytes: ValueSample,
    response_bytes: ValueSample,
    app_us: ValueSample,
    network_us: ValueSample,
    /// When it begins, since the call around it began; summed over executions.
    offset_us: f64,
}

struct MergedRequest {
    nodes: Vec<MergedCall>,
    places: HashMap<(usize, NameIndex, NameIndex), usize>,
    /// For two siblings: executions with both, and those in which the first ends before the second begins.
    orders: HashMap<(usize, usize), (u64, u64)>,
    traces: u64,
    random: SeededRandom,
}

impl MergedRequest {
    fn new(service: NameIndex, operation: NameIndex) -> MergedRequest {
        let root = MergedCall {
            service,
            operation,
            ..MergedCall::default()
        };
        MergedRequest {
            nodes: vec![root],
            places: HashMap::new(),
            orders: HashMap::new(),
            traces: 0,
            random: SeededRandom::new(1),
        }
    }

    /// Adds a tree; the number of calls for which there was no room.
    fn add(&mut self, tree: &CallTree, nodes_max: usize) -> u64 {
        self.traces += 1;
        let mut node_of: Vec<Option<usize>> = vec![None; tree.calls.len()];
        let mut children: Vec<Vec<usize>> = vec![Vec::new(); tree.calls.len()];
        let mut dropped = 0;
        for (at, call) in tree.calls.iter().enumerate() {
            node_of[at] = match call.parent {
                None => Some(0),
                Some(parent) => {
                    children[parent as usize].push(at);
                    node_of[parent as usize].and_then(|parent| self.place(parent, call, nodes_max))
                }
            };
            dropped += u64::from(node_of[at].is_none());
        }
        for at in 0..tree.calls.len() {
            if let Some(node) = node_of[at] {
                self.note_call(node, &tree.calls[at], tree, &children[at]);
                self.note_children(&tree.calls[at], tree, &children[at], &node_of);
            }
        }
        dropped
    }

    fn place(&mut self, parent: usize, call: &TreeCall, nodes_max: usize) -> Option<usize> {
        let key = (parent, call.service, call.operation);
        if let Some(node) = self.places.get(&key) {
            return Some(*node);
        }
        if self.nodes.len() >= nodes_max {
            return None;
        }
        self.nodes.push(MergedCall {
            parent: Some(parent),
            service: call.service,
            operation: call.operation,
            ..MergedCall::default()
        });
        self.places.insert(key, self.nodes.len() - 1);
        Some(self.nodes.len() - 1)
    }

    fn note_call(&mut self, node: usize, call: &TreeCall, tree: &CallTree, children: &[usize]) {
        let own_us = (call.served_us - covered_us(call, tree, children)).max(0.0);
        let (node, random) = (&mut self.nodes[node], &mut self.random);
        node.count += 1;
        node.detached += u64::from(call.detached);
        node.app_us.add(own_us, random);
        node.network_us
            .add((call.duration_us - call.served_us).max(0.0), random);
        if let Some(protocol) = call.protocol {
            *node.protocols.entry(protocol).or_default() += 1;
        }
        if let Some(bytes) = call.request_bytes {
            node.request_bytes.add(bytes, random);
        }
        if let Some(bytes) = call.response_bytes {
            node.response_bytes.add(bytes, random);
        }
    }

    /// Which calls one execution makes, how often, and in which order.
    fn note_children(
        &mut self,
        call: &TreeCall,
        tree: &CallTree,
        children: &[usize],
        node_of: &[Option<usize>],
    ) {
        let mut groups: BTreeMap<usize, Vec<&TreeCall>> = BTreeMap::new();
        for child in children {
            if let Some(node) = node_of[*child] {
                groups.entry(node).or_default().push(&tree.calls[*child]);
            }
        }
        for (node, made) in &mut groups {
            made.sort_by(|left, right| left.start_us.total_cmp(&right.start_us));
            let node = &mut self.nodes[*node];
            node.present += 1;
            node.offset_us += made[0].start_us - call.start_us;
            let overlaps = made
                .windows(2)
                .any(|pair| pair[1].start_us < pair[0].end_us() - SAME_US);
            node.overlapping += u64::from(overlaps);
        }
        let spans: Vec<(usize, f64, f64)> = groups
            .iter()
            .take(ORDERED_MAX)
            .map(|(node, made)| {
                let end = made
                    .iter()
                    .map(|call| call.end_us())
                    .fold(f64::NEG_INFINITY, f64::max);
                (*node, made[0].start_us, end)
            })
            .collect();
        for (first, _, end) in &spans {
            for (second, start, _) in spans.iter().filter(|(second, ..)| second != first) {
                let votes = self.orders.entry((*first, *second)).or_default();
                votes.0 += 1;
                votes.1 += u64::from(*end <= *start + SAME_US);
            }
        }
    }

    /// Whether a call comes after a sibling. Only calls that begin later on average can, so that no circle is possible.
    fn is_after(&self, second: usize, first: usize) -> bool {
        let offset = |node: usize| self.nodes[node].offset_us / self.nodes[node].present.max(1) as f64;
        let votes = self.orders.get(&(first, second)).copied().unwrap_or_default();
        let is_waited_for = self.nodes[first].detached * 2 < self.nodes[first].count;
        let agreed = votes.0 > 0 && votes.1 as f64 >= ORDER_SHARE * votes.0 as f64;
        agreed && is_waited_for && (offset(first), first) < (offset(second), second)
    }

    fn entry(self, forest: &TraceForest, options: &MergeOptions, rate_per_s: f64) -> RequestEntry {
        let ids = self.ids(forest);
        let afters = self.afters();
        let traces = self.traces;
        let present: Vec<u64> = self.nodes.iter().map(|node| node.count).collect();
        let calls = self
            .nodes
            .into_iter()
            .enumerate()
            .map(|(at, node)| {
                let around = node.parent.map_or(traces, |parent| present[parent]);
                let made = if at == 0 { traces } else { node.present };
                let most = node.protocols.iter().max_by_key(|(_, count)| **count);
                CallEntry {
                    id: ids[at].clone(),
                    from: node.parent.map_or_else(String::new, |parent| ids[parent].clone()),
                    to: name_of(forest, node.service),
                    operation: forest.names.name(node.operation).to_owned(),
                    protocol: most.map_or(options.protocol, |(protocol, _)| *protocol),
                    probability: rounded(made as f64 / around.max(1) as f64).min(1.0),
                    repeats: if at == 0 {
                        1.0
                    } else {
                        rounded(node.count as f64 / made.max(1) as f64).max(1.0)
                    },
                    repeat_mode: if node.overlapping * 2 > made {
                        RepeatMode::Concurrent
                    } else {
                        RepeatMode::Sequential
                    },
                    after: afters[at].iter().map(|sibling| ids[*sibling].clone()).collect(),
                    detached: node.detached * 2 > node.count,
                    app_cpu_share: 1.0,
                    request_bytes: known_or(node.request_bytes, options.request_bytes),
                    response_bytes: known_or(node.response_bytes, options.response_bytes),
                    app_us: node.app_us.amount(),
                    network_us: node.network_us.amount(),
                    filters: Vec::new(),
                }
            })
            .collect();
        RequestEntry {
            name: String::new(),
            rate_per_s,
            traces,
            calls,
        }
    }

    /// Names of the calls: the service's, with a number where a service is called at several places.
    fn ids(&self, forest: &TraceForest) -> Vec<String> {
        let mut used: HashMap<String, u64> = HashMap::new();
        let mut taken: std::collections::HashSet<String> = std::collections::HashSet::new();
        let mut ids = Vec::new();
        for node in &self.nodes {
            let name = name_of(forest, node.service);
            let count = used.entry(name.clone()).or_default();
            let id = loop {
                *count += 1;
                let id = if *count == 1 {
                    name.clone()
                } else {
                    format!("{name}#{count}")
                };
                if taken.insert(id.clone()) {
                    break id;
                }
            };
            ids.push(id);
        }
        ids
    }

    /// For each call the siblings that it waits for, without those that others of them wait for.
    fn afters(&self) -> Vec<Vec<usize>> {
        let mut before: Vec<Vec<usize>> = vec![Vec::new(); self.nodes.len()];
        for (first, second) in self.orders.keys() {
            if self.is_after(*second, *first) {
                before[*second].push(*first);
            }
        }
        before.iter_mut().for_each(|one| one.sort_unstable());
        let is_direct =
            |at: usize, first: &usize| !before[at].iter().any(|other| before[*other].contains(first));
        (0..self.nodes.len())
            .map(|at| {
                before[at]
                    .iter()
                    .copied()
                    .filter(|first| is_direct(at, first))
                    .collect()
            })
            .collect()
    }
}

/// Time of a call during which calls that it waits for are under way.
fn covered_us(call: &TreeCall, tree: &CallTree, children: &[usize]) -> f64 {
    let mut spans: Vec<(f64, f64)> = children
        .iter()
        .map(|child| &tree.calls[*child])
        .filter(|child| !child.detached)
        .map(|child| {
            (
                child.start_us.max(call.start_us),
                child.end_us().min(call.end_us()),
            )
        })
        .filter(|(start, end)| end > start)
        .collect();
    spans.sort_by(|left, right| left.0.total_cmp(&right.0));
    let mut covered = 0.0;
    let mut reached = f64::NEG_INFINITY;
    for (start, end) in spans {
        covered += (end - start.max(reached)).max(0.0);
        reached = reached.max(end);
    }
    covered
}

fn known_or(sample: ValueSample, assumed: f64) -> Amount {
    match sample.seen {
        0 => Amount::Fixed(assumed),
        _ => sample.amount(),
    }
}

fn name_of(forest: &TraceForest, service: NameIndex) -> String {
    match forest.names.name(service).trim() {
        "" => "unnamed".to_owned(),
        name => name
            .chars()
            .map(|c| if c.is_control() { '?' } else { c })
            .collect(),
    }
}

fn rounded(value: f64) -> f64 {
    const PLACES: f64 = 1e6;
    (value * PLACES).round() / PLACES
}

/// A request is named after its operation, and its service where two have the same.
fn name_requests(graph: &mut AnnotatedGraph) {
    let mut used: HashMap<String, u64> = HashMap::new();
    for request in &mut graph.requests {
        let Some(root) = request.calls.first() else {
            continue;
        };
        let operation: String = root
            .operation
            .chars()
            .map(|c| if c.is_control() { '?' } else { c })
            .collect();
        let name = format!("{} {operation}", root.to).trim().to_owned();
        let count = used.entry(name.clone()).or_default();
        *count += 1;
        request.name = if *count == 1 {
            name
        } else {
            format!("{name} ({count})")
        };
    }
}

fn add_services(graph: &mut AnnotatedGraph) {
    let names: std::collections::BTreeSet<String> = graph
        .requests
        .iter()
        .flat_map(|request| request.calls.iter().map(|call| call.to.clone()))
        .collect();
    graph.services = names
        .into_iter()
        .map(|name| ServiceEntry {
            name,
            instances: 1,
            node: String::new(),
            meshed: true,
            filters: Vec::new(),
        })
        .collect();
}
