//! A call graph that has been checked, with names resolved to indices.

use std::collections::HashMap;

use super::{
    AcgError, Amount, AnnotatedGraph, CALLS_MAX, CALLS_PER_REQUEST_MAX, CallEntry, DEPTH_MAX, NAME_BYTES_MAX,
    REPEATS_MAX, RepeatMode, RequestEntry, SERVICES_MAX, ServiceEntry,
};
use crate::profile::Protocol;

/// No amount in a graph is larger.
const AMOUNT_MAX: f64 = 1e12;

#[derive(Clone, Debug, PartialEq)]
pub struct CallGraph {
    /// As it was written.
    pub source: AnnotatedGraph,
    pub services: Vec<ServiceNode>,
    /// The types of requests.
    pub requests: Vec<RequestGraph>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ServiceNode {
    pub name: String,
    pub instances: f64,
    /// The number of its node; services on one node have the same.
    pub node: usize,
    /// Whether a proxy stands beside it.
    pub meshed: bool,
    /// Filters of its proxy.
    pub filters: Vec<String>,
}

/// A type of request.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestGraph {
    pub name: String,
    /// How often it comes.
    pub rate_per_s: f64,
    /// Traces behind the figures, or 0.
    pub traces: u64,
    /// The calls, the call from outside first and each after the one within which it is made.
    pub calls: Vec<CallNode>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct CallNode {
    pub id: String,
    /// The call around it.
    pub parent: Option<usize>,
    /// The calling service; `None` for outside.
    pub caller: Option<usize>,
    pub service: usize,
    pub operation: String,
    /// What the call speaks.
    pub protocol: Protocol,
    /// How likely it is, given its parent.
    pub probability: f64,
    /// How often on average.
    pub repeats: f64,
    /// How repeats follow each other.
    pub repeat_mode: RepeatMode,
    /// Whether the caller goes on without the answer.
    pub detached: bool,
    /// Size of the request.
    pub request_bytes: Amount,
    /// Size of the response.
    pub response_bytes: Amount,
    /// The callee's own time.
    pub app_us: Amount,
    /// The share of that time in which it needs a core.
    pub app_cpu_share: f64,
    /// Time on the way.
    pub network_us: Amount,
    /// Filters at both ends.
    pub filters: Vec<String>,
    /// The calls made within it; each after those that it waits for.
    pub children: Vec<usize>,
    /// The siblings that it waits for.
    pub after: Vec<usize>,
    /// How often it is made per request, on average.
    pub expected: f64,
}

impl CallGraph {
    /// Checks a graph.
    ///
    /// # Errors
    /// The first thing that is wrong: an unknown name, a cycle, a number that cannot be.
    pub fn new(source: AnnotatedGraph) -> Result<CallGraph, AcgError> {
        check_counts(&source)?;
        let mut nodes = HashMap::new();
        let mut names = HashMap::new();
        let mut services = Vec::new();
        for (at, entry) in source.services.iter().enumerate() {
            let place = format!("services[{at}]");
            services.push(service(entry, &place, &mut nodes)?);
            if names.insert(entry.name.clone(), at).is_some() {
                return Err(AcgError::invalid(
                    place,
                    format!("\"{}\" is there twice", entry.name),
                ));
            }
        }
        let mut requests = Vec::new();
        for (at, entry) in source.requests.iter().enumerate() {
            requests.push(request(entry, &format!("requests[{at}]"), &names)?);
        }
        Ok(CallGraph {
            source,
            services,
            requests,
        })
    }
}

fn check_counts(source: &AnnotatedGraph) -> Result<(), AcgError> {
    let calls = source.requests.iter().map(|request| request.calls.len()).sum();
    let counts = [
        ("services", source.services.len(), SERVICES_MAX),
        ("requests", source.requests.len(), SERVICES_MAX),
        ("calls of all requests", calls, CALLS_MAX),
    ];
    for (place, count, max) in counts {
        if count == 0 {
            return Err(AcgError::invalid(place, "there is none"));
        }
        if count > max {
            return Err(AcgError::invalid(
                place,
                format!("there are {count}, at most {max} are taken"),
            ));
        }
    }
    Ok(())
}

fn check_name(name: &str, place: &str) -> Result<(), AcgError> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        let problem = format!(
            "a name has 1 to {NAME_BYTES_MAX} bytes, this one has {}",
            name.len()
        );
        return Err(AcgError::invalid(place, problem));
    }
    if name.chars().any(char::is_control) {
        Err(AcgError::invalid(place, "a name has no control characters"))
    } else {
        Ok(())
    }
}

fn check_number(value: f64, min: f64, max: f64, place: String) -> Result<(), AcgError> {
    if value.is_finite() && (min..=max).contains(&value) {
        Ok(())
    } else {
        Err(AcgError::invalid(
            place,
            format!("{value} is not between {min} and {max}"),
        ))
    }
}

fn service(
    entry: &ServiceEntry,
    place: &str,
    nodes: &mut HashMap<String, usize>,
) -> Result<ServiceNode, AcgError> {
    check_name(&entry.name, &format!("{place}.name"))?;
    for filter in &entry.filters {
        check_name(filter, &format!("{place}.filters"))?;
    }
    check_number(f64::from(entry.instances), 1.0, 1e6, format!("{place}.instances"))?;
    // A service without a node is on one of its own, whose name no file can have.
    let node = match entry.node.as_str() {
        "" => format!("\n{}", entry.name),
        node => node.to_owned(),
    };
    let next = nodes.len();
    Ok(ServiceNode {
        name: entry.name.clone(),
        instances: f64::from(entry.instances),
        node: *nodes.entry(node).or_insert(next),
        meshed: entry.meshed,
        filters: entry.filters.clone(),
    })
}

fn request(
    entry: &RequestEntry,
    place: &str,
    services: &HashMap<String, usize>,
) -> Result<RequestGraph, AcgError> {
    check_name(&entry.name, &format!("{place}.name"))?;
    check_number(entry.rate_per_s, 0.0, 1e9, format!("{place}.rate_per_s"))?;
    let mut ids: HashMap<&str, usize> = HashMap::new();
    for (at, call) in entry.calls.iter().enumerate() {
        let place = format!("{place}.calls[{at}]");
        check_call(call, &place)?;
        if ids.insert(&call.id, at).is_some() {
            return Err(AcgError::invalid(
                place,
                format!("the id \"{}\" is there twice", call.id),
            ));
        }
    }
    let parents = parents(entry, place, &ids)?;
    let order = parents_first(entry, place, &parents)?;
    let mut renumbered = vec![0; order.len()];
    for (new, old) in order.iter().enumerate() {
        renumbered[*old] = new;
    }
    let mut calls: Vec<CallNode> = Vec::with_capacity(order.len());
    for old in order {
        let call = &entry.calls[old];
        let place = format!("{place}.calls[{old}]");
        let parent = parents[old].map(|parent| renumbered[parent]);
        let service = *services.get(&call.to).ok_or_else(|| {
            AcgError::invalid(
                format!("{place}.to"),
                format!("no service \"{}\" is described", call.to),
            )
        })?;
        let after = siblings(call, &place, &ids, &parents, old)?;
        let expected = parent.map_or(1.0, |parent| calls[parent].expected) * call.probability * call.repeats;
        calls.push(CallNode {
            id: call.id.clone(),
            parent,
            caller: parent.map(|parent| calls[parent].service),
            service,
            operation: call.operation.clone(),
            protocol: call.protocol,
            probability: call.probability,
            repeats: call.repeats,
            repeat_mode: call.repeat_mode,
            detached: call.detached,
            request_bytes: call.request_bytes,
            response_bytes: call.response_bytes,
            app_us: call.app_us,
            app_cpu_share: call.app_cpu_share,
            network_us: call.network_us,
            filters: call.filters.clone(),
            children: Vec::new(),
            after: after.into_iter().map(|sibling| renumbered[sibling]).collect(),
            expected,
        });
    }
    let total: f64 = calls.iter().map(|call| call.expected).sum();
    if total > CALLS_PER_REQUEST_MAX {
        let problem = format!(
            "a request makes {total:.0} calls on average, at most {CALLS_PER_REQUEST_MAX} are modelled"
        );
        return Err(AcgError::invalid(place, problem));
    }
    link_children(&mut calls, place)?;
    Ok(RequestGraph {
        name: entry.name.clone(),
        rate_per_s: entry.rate_per_s,
        traces: entry.traces,
        calls,
    })
}

fn check_call(call: &CallEntry, place: &str) -> Result<(), AcgError> {
    check_name(&call.id, &format!("{place}.id"))?;
    for filter in &call.filters {
        check_name(filter, &format!("{place}.filters"))?;
    }
    check_number(call.probability, 0.0, 1.0, format!("{place}.probability"))?;
    check_number(call.app_cpu_share, 0.0, 1.0, format!("{place}.app_cpu_share"))?;
    check_number(call.repeats, 1.0, REPEATS_MAX, format!("{place}.repeats"))?;
    let amounts = [
        ("request_bytes", call.request_bytes),
        ("response_bytes", call.response_bytes),
        ("app_us", call.app_us),
        ("network_us", call.network_us),
    ];
    for (field, amount) in amounts {
        let values = amount.values();
        for value in values {
            check_number(value, 0.0, AMOUNT_MAX, format!("{place}.{field}"))?;
        }
        if !values.is_sorted() {
            return Err(AcgError::invalid(
                format!("{place}.{field}"),
                "its quantiles do not ascend",
            ));
        }
    }
    Ok(())
}

/// The parent of each call; exactly one call has none.
fn parents(
    entry: &RequestEntry,
    place: &str,
    ids: &HashMap<&str, usize>,
) -> Result<Vec<Option<usize>>, AcgError> {
    let mut parents = Vec::new();
    let mut roots = 0;
    for (at, call) in entry.calls.iter().enumerate() {
        parents.push(match call.from.as_str() {
            "" => None,
            from => Some(*ids.get(from).ok_or_else(|| {
                let problem = format!("no call has the id \"{from}\": describe it, or leave `from` out");
                AcgError::invalid(format!("{place}.calls[{at}].from"), problem)
            })?),
        });
        roots += usize::from(call.from.is_empty());
    }
    match roots {
        1 => Ok(parents),
        0 => Err(AcgError::invalid(
            place,
            "no call comes from outside: one must have no `from`",
        )),
        _ => Err(AcgError::invalid(
            place,
            format!("{roots} calls come from outside: describe each as a request of its own"),
        )),
    }
}

/// The calls, each after its parent; an error names a cycle, or what is nested too deep.
fn parents_first(
    entry: &RequestEntry,
    place: &str,
    parents: &[Option<usize>],
) -> Result<Vec<usize>, AcgError> {
    let mut by_depth: Vec<(usize, usize)> = Vec::new();
    for at in 0..parents.len() {
        let (mut depth, mut above) = (0, at);
        while let Some(parent) = parents[above] {
            (depth, above) = (depth + 1, parent);
            if depth > parents.len() {
                let problem = format!(
                    "the calls around \"{}\" lead back to it: break the cycle",
                    entry.calls[at].id
                );
                return Err(AcgError::invalid(format!("{place}.calls[{at}].from"), problem));
            }
        }
        if depth >= DEPTH_MAX {
            let problem = format!(
                "\"{}\" is nested {depth} deep, at most {DEPTH_MAX}",
                entry.calls[at].id
            );
            return Err(AcgError::invalid(format!("{place}.calls[{at}]"), problem));
        }
        by_depth.push((depth, at));
    }
    by_depth.sort_unstable();
    Ok(by_depth.into_iter().map(|(_, at)| at).collect())
}

/// The calls that a call waits for, which have the same parent.
fn siblings(
    call: &CallEntry,
    place: &str,
    ids: &HashMap<&str, usize>,
    parents: &[Option<usize>],
    at: usize,
) -> Result<Vec<usize>, AcgError> {
    let mut found = Vec::new();
    for name in &call.after {
        let place = format!("{place}.after");
        match ids.get(name.as_str()) {
            Some(sibling) if parents[*sibling] == parents[at] => found.push(*sibling),
            Some(_) => {
                let problem =
                    format!("\"{name}\" is made within another call: name calls with the same `from`");
                return Err(AcgError::invalid(place, problem));
            }
            None => return Err(AcgError::invalid(place, format!("no call has the id \"{name}\""))),
        }
    }
    Ok(found)
}

/// Gives each call its children, each after those that it waits for.
fn link_children(calls: &mut [CallNode], place: &str) -> Result<(), AcgError> {
    let mut children: Vec<Vec<usize>> = vec![Vec::new(); calls.len()];
    for (at, call) in calls.iter().enumerate() {
        if let Some(parent) = call.parent {
            children[parent].push(at);
        }
    }
    for (at, waiting) in children.into_iter().enumerate() {
        calls[at].children = ordered(calls, waiting).map_err(|stuck| {
            let problem = format!(
                "call \"{}\" waits for calls that wait for it: break the cycle of `after`",
                calls[stuck].id
            );
            AcgError::invalid(place, problem)
        })?;
    }
    Ok(())
}

fn ordered(calls: &[CallNode], mut waiting: Vec<usize>) -> Result<Vec<usize>, usize> {
    let mut done: Vec<usize> = Vec::new();
    let mut is_done = std::collections::HashSet::new();
    while !waiting.is_empty() {
        let (ready, left): (Vec<usize>, Vec<usize>) = waiting
            .iter()
            .partition(|at| calls[**at].after.iter().all(|sibling| is_done.contains(sibling)));
        if ready.is_empty() {
            return Err(left[0]);
        }
        is_done.extend(ready.iter().copied());
        done.extend(ready);
        waiting = left;
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{SMALL, small};
    use super::*;

    fn error(text: &str) -> String {
        CallGraph::new(AnnotatedGraph::parse(text).unwrap())
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn names_are_resolved_and_rates_add_up_over_both_ends() {
        let graph = small();
        let calls = &graph.requests[0].calls;
        assert_eq!(calls[0].children, [1, 2]);
        assert_eq!((calls[3].caller, calls[3].parent), (Some(2), Some(2)));
        assert_eq!(calls[3].expected, 1.0);
    }

    #[test]
    fn cycles_and_unknown_names_are_said_with_their_place() {
        let wrong = SMALL.replace("id: root, to: front", "id: root, from: store, to: front");
        assert!(
            error(&wrong).contains("no call comes from outside"),
            "{}",
            error(&wrong)
        );
        let cycle = SMALL.replace("from: root, to: right", "from: store, to: right");
        assert!(
            error(&cycle).contains("requests[0].calls[2].from") && error(&cycle).contains("cycle"),
            "{}",
            error(&cycle)
        );
        let unknown = SMALL.replace("from: right, to: store", "from: rihgt, to: store");
        assert!(
            error(&unknown).contains("no call has the id \"rihgt\""),
            "{}",
            error(&unknown)
        );
        let unknown = SMALL.replace("from: right, to: store", "from: right, to: stoer");
        assert!(
            error(&unknown).contains("no service \"stoer\""),
            "{}",
            error(&unknown)
        );
    }

    #[test]
    fn orders_that_go_in_circles_are_refused() {
        let wrong = SMALL
            .replace("id: left, from: root", "id: left, after: [right], from: root")
            .replace("id: right, from: root", "id: right, after: [left], from: root");
        assert!(
            error(&wrong).contains("waits for calls that wait for it"),
            "{}",
            error(&wrong)
        );
        let wrong = SMALL.replace("id: left, from: root", "id: left, after: [store], from: root");
        assert!(
            error(&wrong).contains("made within another call"),
            "{}",
            error(&wrong)
        );
    }

    #[test]
    fn numbers_that_cannot_be_are_refused() {
        for (good, bad) in [
            ("probability: 0.5", "probability: 1.5"),
            ("repeats: 2", "repeats: 0.5"),
            ("app_us: 300", "app_us: -1"),
            ("app_us: 300", "app_us: {p10: 3, p50: 2, p90: 4, p99: 5}"),
            ("rate_per_s: 100", "rate_per_s: .nan"),
        ] {
            let text = error(&SMALL.replace(good, bad));
            assert!(text.starts_with("requests[0]"), "{text}");
        }
    }
}
