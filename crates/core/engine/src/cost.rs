//! What a policy costs: calls through its engine beside calls past none, in one run. (Feature `rig`.)

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use crate::rig::{Rig, Service, policy, with_metadata};
use crate::{ConfigError, EgressEvent, EgressEvents, Policy, PolicyKind, Side, Step};

/// Polls of each rig in a round; the best of the rounds counts, as what disturbs only ever adds.
const POLLS: u64 = 5_000;
const ROUNDS: usize = 30;
/// Calls under way at once.
const CALLS: [usize; 3] = [1, 8, 32];

/// A variable of the environment that names one candidate, to be run alone and once: for `valgrind --tool=callgrind`.
///
/// A policy whose own thread reads the clock (access log, tracing) has to be built with
/// `RUSTFLAGS="--cfg rustix_use_libc"` for that. Otherwise rustix asks the kernel where the vDSO is, and valgrind has
/// mapped nothing there.
const ONLY: &str = "PROVOST_COST_ONLY";

/// Whether one candidate is run alone, and nothing else is to be measured.
#[must_use]
pub fn is_one_alone() -> bool {
    std::env::var_os(ONLY).is_some()
}

/// A policy that is measured, with a name for people.
pub struct Candidate<'a> {
    /// The name.
    pub name: &'a str,
    /// The policy.
    pub policy: &'a dyn Policy,
}

/// A kind of policy, and configurations of it that are measured, each with a name for people.
pub struct KindCosts<'a> {
    /// The name of the kind.
    pub kind: &'a str,
    /// Metadata of the requests.
    pub metadata: &'a [(&'a str, &'a str)],
    /// Names and configurations.
    pub configurations: &'a [(&'a str, &'a str)],
}

/// Prints what the policies of several kinds cost for each call of a small service; all, or those of the kinds that the
/// arguments of the process name.
///
/// # Errors
/// If a configuration is refused.
pub fn print_kinds(
    find: impl Fn(&str) -> Option<Arc<dyn PolicyKind>>,
    costs: &[KindCosts<'_>],
) -> Result<(), ConfigError> {
    let service = Service::from_source(
        "syntax = 'proto3'; package test; service S { rpc M(Q) returns (Q); } message Q { string user = 1; }",
    );
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let is_wanted = |kind: &str| wanted.is_empty() || wanted.iter().any(|name| name == kind);
    for costs in costs.iter().filter(|costs| is_wanted(costs.kind)) {
        let kind = find(costs.kind).ok_or_else(|| ConfigError::new(costs.kind, "there is no such kind"))?;
        let policies: Result<Vec<_>, ConfigError> = costs
            .configurations
            .iter()
            .map(|(name, text)| Ok((*name, policy(&*kind, text, None)?)))
            .collect();
        let policies = policies?;
        let candidates: Vec<Candidate<'_>> = policies
            .iter()
            .map(|(name, policy)| Candidate {
                name,
                policy: &**policy,
            })
            .collect();
        println!("{}, ns for each call", costs.kind);
        print_calls(&service, &|step| with_metadata(step, costs.metadata), &candidates);
    }
    Ok(())
}

/// Prints what each of the policies costs for each call of a service's first method: a request on its way out, and a
/// response on its way in. `request` may add to the request, such as metadata.
pub fn print_calls(service: &Service, request: &dyn Fn(Step) -> Step, candidates: &[Candidate<'_>]) {
    let datapath_context = service.datapath_context(Side::Client);
    if let Ok(only) = std::env::var(ONLY) {
        for candidate in candidates.iter().filter(|candidate| candidate.name == only) {
            let mut rig = Rig::new(datapath_context.clone(), candidate.policy);
            call_ns(&mut rig, service, request, CALLS[CALLS.len() - 1]);
            println!("{} calls past {only}", POLLS * CALLS[CALLS.len() - 1] as u64);
        }
        return;
    }
    for calls in CALLS {
        let mut without = f64::MAX;
        let mut with = vec![f64::MAX; candidates.len()];
        for _ in 0..ROUNDS {
            without = without.min(call_ns(
                &mut Rig::empty(datapath_context.clone()),
                service,
                request,
                calls,
            ));
            for (best, candidate) in with.iter_mut().zip(candidates) {
                let mut rig = Rig::new(datapath_context.clone(), candidate.policy);
                *best = best.min(call_ns(&mut rig, service, request, calls));
            }
        }
        println!("{calls:2} calls at once: without {without:6.1} ns a call");
        for (best, candidate) in with.iter().zip(candidates) {
            println!("    {:40} {:6.1}", candidate.name, best - without);
        }
    }
}

/// The time of one call. The steps go round and round: none is made anew, as none is on a live datapath at rest.
fn call_ns(rig: &mut Rig, service: &Service, request: &dyn Fn(Step) -> Step, calls: usize) -> f64 {
    let mut requests: Vec<Step> = (0..calls).map(|_| request(service.request(0, 0, &[]))).collect();
    let mut responses: Vec<Step> = (0..calls).map(|_| service.response(0, 0, &[])).collect();
    let began = Instant::now();
    let mut call = 0;
    let (mut to_wire, mut to_app) = (Vec::new(), Vec::new());
    for _ in 0..POLLS {
        let first = call;
        for mut step in requests.drain(..) {
            call += 1;
            step.call = call;
            step.taken_at = rig.now;
            let _ = rig.queues.tx_in.push(step);
        }
        rig.now += 1000;
        black_box(rig.poll());
        to_wire.extend(rig.queues.tx_out.iter().map(EgressEvent::of));
        requests.extend(std::iter::from_fn(|| rig.queues.tx_out.pop()));
        for (at, mut step) in responses.drain(..).enumerate() {
            step.call = first + 1 + at as u64;
            step.taken_at = rig.now;
            let _ = rig.queues.rx_in.push(step);
        }
        rig.now += 1000;
        black_box(rig.poll());
        to_app.extend(rig.queues.rx_out.iter().map(EgressEvent::of));
        responses.extend(std::iter::from_fn(|| rig.queues.rx_out.pop()));
        rig.on_egress(&EgressEvents {
            to_wire: &to_wire,
            to_app: &to_app,
            now: rig.now,
        });
        to_wire.clear();
        to_app.clear();
    }
    began.elapsed().as_nanos() as f64 / POLLS as f64 / calls as f64
}
