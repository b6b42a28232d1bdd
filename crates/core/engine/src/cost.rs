//! What a policy costs: calls through its engine beside calls past none, in one run. (Feature `rig`.)

use std::hint::black_box;
use std::time::Instant;

use crate::rig::{Rig, Service};
use crate::{Departure, Departures, Policy, Side, Step};

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

/// Prints what each of the policies costs for each call of a service's first method: a request on its way out, and a
/// response on its way in. `request` may add to the request, such as metadata.
pub fn print_calls(service: &Service, request: &dyn Fn(Step) -> Step, candidates: &[Candidate<'_>]) {
    let site = service.site(Side::Client);
    if let Ok(only) = std::env::var(ONLY) {
        for candidate in candidates.iter().filter(|candidate| candidate.name == only) {
            let mut rig = Rig::new(site.clone(), candidate.policy);
            call_ns(&mut rig, service, request, CALLS[CALLS.len() - 1]);
            println!("{} calls past {only}", POLLS * CALLS[CALLS.len() - 1] as u64);
        }
        return;
    }
    for calls in CALLS {
        let mut without = f64::MAX;
        let mut with = vec![f64::MAX; candidates.len()];
        for _ in 0..ROUNDS {
            without = without.min(call_ns(&mut Rig::empty(site.clone()), service, request, calls));
            for (best, candidate) in with.iter_mut().zip(candidates) {
                let mut rig = Rig::new(site.clone(), candidate.policy);
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
        to_wire.extend(rig.queues.tx_out.iter().map(Departure::of));
        requests.extend(std::iter::from_fn(|| rig.queues.tx_out.pop()));
        for (at, mut step) in responses.drain(..).enumerate() {
            step.call = first + 1 + at as u64;
            step.taken_at = rig.now;
            let _ = rig.queues.rx_in.push(step);
        }
        rig.now += 1000;
        black_box(rig.poll());
        to_app.extend(rig.queues.rx_out.iter().map(Departure::of));
        responses.extend(std::iter::from_fn(|| rig.queues.rx_out.pop()));
        rig.note_departures(&Departures {
            to_wire: &to_wire,
            to_app: &to_app,
            now: rig.now,
        });
        to_wire.clear();
        to_app.clear();
    }
    began.elapsed().as_nanos() as f64 / POLLS as f64 / calls as f64
}
