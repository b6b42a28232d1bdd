//! Applications at random whose services share the cores of few nodes. Their true cost comes from a simulation that is written
//! down anew, step by step: is it within the predicted interval as often as the interval says?

use provost_insight::acg::{AnnotatedGraph, CallGraph};
use provost_insight::model::{MachineMatch, ProfileModel};
use provost_insight::predict::{MeshSetup, NodeCores, PredictOptions, Prediction, ProxyPlacement, predict};
use provost_insight::profile::{Component, Protocol};
use provost_insight::random::SeededRandom;
use provost_insight::synthetic::{SyntheticProxy, synthetic_profile};

const SERVICES: usize = 6;
const NODES: usize = 2;
/// Times that are closer than this are the same.
const SAME_US: f64 = 1e-6;
const BYTES: f64 = 100.0;

/// A call of an application: it computes, makes other calls, at once or one after the other, and computes again.
#[derive(Clone, Debug)]
struct KnownCall {
    service: usize,
    app_us: f64,
    children: Vec<KnownCall>,
    is_ordered: bool,
}

fn known_call(random: &mut SeededRandom, depth: usize) -> KnownCall {
    let count = if depth >= 2 { 0 } else { 1 + random.below(4) };
    KnownCall {
        service: random.below(SERVICES),
        app_us: 20.0 + 80.0 * random.uniform(),
        children: (0..count).map(|_| known_call(random, depth + 1)).collect(),
        is_ordered: random.uniform() < 0.3,
    }
}

/// What a passage of a message through one proxy truly takes: until it is woken, on a core, on the core after that.
#[derive(Clone, Copy, Debug)]
struct TrueHop {
    woken_us: f64,
    core_us: f64,
    tail_us: f64,
}

impl TrueHop {
    fn of(proxy: &SyntheticProxy) -> TrueHop {
        let whole = proxy.round_trip_us(Protocol::Http1, BYTES, BYTES, &[]) / 2.0;
        let cpu = proxy.round_trip_cpu_us(Protocol::Http1, BYTES, BYTES, &[]) / 2.0;
        let wakeup = proxy
            .components
            .iter()
            .find(|one| one.component == Component::Wakeup)
            .map_or(0.0, |one| one.constant_us[1]);
        let core_us = whole - wakeup / 2.0;
        TrueHop {
            woken_us: wakeup / 2.0,
            core_us,
            tail_us: cpu - core_us,
        }
    }
}

/// What an actor does next.
#[derive(Clone, Debug)]
enum ActorStep {
    Pause(f64),
    Work {
        node: usize,
        core_us: f64,
        tail_us: f64,
    },
    /// Others act, at once or one after the other, and are waited for.
    Others(Vec<Vec<ActorStep>>, bool),
}

/// The acts of a call: with a mesh, it passes the proxy of its caller and that of its service, there and back.
fn acts(call: &KnownCall, caller: Option<usize>, hop: Option<TrueHop>) -> Vec<ActorStep> {
    let ends: Vec<usize> = caller.into_iter().chain([call.service]).collect();
    let pass = |service: usize| {
        let hop = hop.into_iter();
        hop.flat_map(move |hop| {
            let work = ActorStep::Work {
                node: service % NODES,
                core_us: hop.core_us,
                tail_us: hop.tail_us,
            };
            [ActorStep::Pause(hop.woken_us), work]
        })
    };
    let parts = if call.children.is_empty() { 1.0 } else { 2.0 };
    let compute = ActorStep::Work {
        node: call.service % NODES,
        core_us: call.app_us / parts,
        tail_us: 0.0,
    };
    let mut acts: Vec<ActorStep> = ends.iter().flat_map(|end| pass(*end)).collect();
    acts.push(compute.clone());
    if !call.children.is_empty() {
        let of = |child| self::acts(child, Some(call.service), hop);
        acts.push(ActorStep::Others(
            call.children.iter().map(of).collect(),
            call.is_ordered,
        ));
        acts.push(compute);
    }
    acts.extend(ends.iter().rev().flat_map(|end| pass(*end)));
    acts
}

/// Somebody who acts, step by step.
struct CallActor {
    acts: std::vec::IntoIter<ActorStep>,
    parent: Option<usize>,
    /// Those who act for this one.
    waits_for: usize,
    /// Those who will, one after the other.
    later: std::vec::IntoIter<Vec<ActorStep>>,
    state: ActorState,
}

#[derive(Clone, Copy, PartialEq)]
enum ActorState {
    Next,
    Pausing(f64),
    Queued { node: usize, core_us: f64, tail_us: f64 },
    Working { left_us: f64 },
    Waiting,
    Done,
}

/// A core that is taken.
struct TakenCore {
    node: usize,
    left_us: f64,
}

struct StepSimulation {
    actors: Vec<CallActor>,
    taken: Vec<TakenCore>,
    /// Who wants a core, in the order of coming.
    queue: Vec<usize>,
    cores: usize,
}

impl StepSimulation {
    fn add(&mut self, acts: Vec<ActorStep>, parent: Option<usize>) {
        self.actors.push(CallActor {
            acts: acts.into_iter(),
            parent,
            waits_for: 0,
            later: Vec::new().into_iter(),
            state: ActorState::Next,
        });
    }

    /// Everything that takes no time.
    fn settle(&mut self) {
        loop {
            let next = (0..self.actors.len()).find(|at| self.actors[*at].state == ActorState::Next);
            let Some(at) = next else { break };
            self.act(at);
        }
        let waiting = std::mem::take(&mut self.queue);
        for at in waiting {
            let ActorState::Queued {
                node,
                core_us,
                tail_us,
            } = self.actors[at].state
            else {
                continue;
            };
            if self.taken.iter().filter(|core| core.node == node).count() < self.cores {
                self.taken.push(TakenCore {
                    node,
                    left_us: core_us + tail_us,
                });
                self.actors[at].state = ActorState::Working { left_us: core_us };
            } else {
                self.queue.push(at);
            }
        }
    }

    fn act(&mut self, at: usize) {
        let actor = &mut self.actors[at];
        match actor.acts.next() {
            Some(ActorStep::Pause(us)) => actor.state = ActorState::Pausing(us),
            Some(ActorStep::Work {
                node,
                core_us,
                tail_us,
            }) => {
                actor.state = ActorState::Queued {
                    node,
                    core_us,
                    tail_us,
                };
                self.queue.push(at);
            }
            Some(ActorStep::Others(others, is_ordered)) => {
                actor.state = ActorState::Waiting;
                actor.waits_for = others.len();
                let mut others = others.into_iter();
                let now = if is_ordered { 1 } else { others.len() };
                let first: Vec<_> = others.by_ref().take(now).collect();
                actor.later = others;
                first.into_iter().for_each(|acts| self.add(acts, Some(at)));
            }
            None => {
                actor.state = ActorState::Done;
                if let Some(parent) = actor.parent {
                    let parent_actor = &mut self.actors[parent];
                    parent_actor.waits_for -= 1;
                    if parent_actor.waits_for == 0 {
                        parent_actor.state = ActorState::Next;
                    }
                    if let Some(acts) = parent_actor.later.next() {
                        self.add(acts, Some(parent));
                    }
                }
            }
        }
    }

    /// Until something is over, and how long that takes.
    fn step(&mut self) -> f64 {
        let acting = self.actors.iter().filter_map(|actor| match actor.state {
            ActorState::Pausing(left_us) | ActorState::Working { left_us } => Some(left_us),
            _ => None,
        });
        let taken = self.taken.iter().map(|core| core.left_us);
        let step_us = acting.chain(taken).fold(f64::INFINITY, f64::min);
        for actor in &mut self.actors {
            match &mut actor.state {
                ActorState::Pausing(left_us) | ActorState::Working { left_us } => {
                    *left_us -= step_us;
                    if *left_us <= SAME_US {
                        actor.state = ActorState::Next;
                    }
                }
                _ => {}
            }
        }
        for core in &mut self.taken {
            core.left_us -= step_us;
        }
        self.taken.retain(|core| core.left_us > SAME_US);
        step_us
    }
}

fn true_latency_us(call: &KnownCall, hop: Option<TrueHop>, cores: usize) -> f64 {
    let mut simulation = StepSimulation {
        actors: Vec::new(),
        taken: Vec::new(),
        queue: Vec::new(),
        cores,
    };
    simulation.add(acts(call, None, hop), None);
    let mut now_us = 0.0;
    loop {
        simulation.settle();
        if simulation.actors[0].state == ActorState::Done {
            return now_us;
        }
        now_us += simulation.step();
    }
}

fn true_added_us(call: &KnownCall, hop: TrueHop, cores: usize) -> f64 {
    true_latency_us(call, Some(hop), cores) - true_latency_us(call, None, cores)
}

/// The calls as a graph has them.
fn written(call: &KnownCall, from: &str, after: &str, number: &mut usize, calls: &mut String) -> String {
    *number += 1;
    let id = format!("c{number}");
    let (service, app_us) = (call.service, call.app_us);
    *calls += &format!(
        "{{id: {id}, from: \"{from}\", to: s{service}, protocol: http1, app_us: {app_us}, request_bytes: {BYTES}, \
         response_bytes: {BYTES}, after: [{after}]}},\n"
    );
    let mut before = String::new();
    for child in &call.children {
        let child = written(child, &id, &before, number, calls);
        if call.is_ordered {
            before = child;
        }
    }
    id
}

fn graph(call: &KnownCall) -> CallGraph {
    let services: String = (0..SERVICES)
        .map(|at| format!("{{name: s{at}, node: n{}}},", at % NODES))
        .collect();
    let mut calls = String::new();
    written(call, "", "", &mut 0, &mut calls);
    let text = format!(
        "{{format: provost-insight-acg, version: 1, services: [{services}], requests: [{{name: r, rate_per_s: 1, calls: [{calls}]}}]}}"
    );
    CallGraph::new(AnnotatedGraph::parse(&text).unwrap()).unwrap()
}

struct KnownCase {
    graph: CallGraph,
    model: ProfileModel,
    true_added_us: f64,
    cores: u32,
}

fn case(seed: u64) -> KnownCase {
    case_of(seed, &SyntheticProxy::example())
}

fn case_of(seed: u64, proxy: &SyntheticProxy) -> KnownCase {
    let mut random = SeededRandom::new(seed);
    let mut proxy = proxy.varied(&mut random);
    proxy.protocols = vec![Protocol::Http1];
    let call = known_call(&mut random, 0);
    let cores = 1 + random.below(3);
    let mut profile = synthetic_profile(&proxy, 6, random.bits());
    // Without the spread of single messages every play is the same, and one is enough.
    profile.totals.clear();
    KnownCase {
        graph: graph(&call),
        model: ProfileModel::new(&profile, MachineMatch::Same, 60, random.bits()).unwrap(),
        true_added_us: true_added_us(&call, TrueHop::of(&proxy), cores),
        cores: cores as u32,
    }
}

fn predicted(case: &KnownCase, cores: NodeCores) -> Prediction {
    let options = PredictOptions {
        samples: 1,
        seed: 1,
        cores,
    };
    let setup = MeshSetup::new("mesh", ProxyPlacement::Sidecars);
    predict(&case.graph, &case.model, &setup, &options).unwrap()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[test]
fn the_true_cost_on_shared_cores_is_within_the_interval_about_as_often_as_it_says() {
    const APPLICATIONS: u64 = 60;
    let mut covered = 0;
    let (mut errors, mut errors_of_plenty) = (Vec::new(), Vec::new());
    for seed in 0..APPLICATIONS {
        let case = case(seed);
        let error =
            |prediction: &Prediction| (prediction.added_us.mean.value / case.true_added_us - 1.0).abs();
        let shared = predicted(&case, NodeCores::Each(case.cores));
        covered += u64::from(shared.added_us.mean.contains(case.true_added_us));
        errors.push(error(&shared));
        errors_of_plenty.push(error(&predicted(&case, NodeCores::Plenty)));
    }
    let share = covered as f64 / APPLICATIONS as f64;
    let (error, of_plenty) = (median(errors), median(errors_of_plenty));
    println!(
        "within 90 % intervals: {share:.3}; median error {error:.4}, as if cores were plenty {of_plenty:.4}"
    );
    assert!((0.85..=0.97).contains(&share), "{share}");
    assert!(error < 0.05, "the median error is {error}");
    // These applications are such that shared cores matter.
    assert!(of_plenty > 10.0 * error, "{of_plenty}");
}

#[test]
fn what_waiting_for_cores_costs_is_a_part_of_its_own() {
    let mut with_wait = 0;
    for seed in 0..20 {
        let case = case(seed);
        let prediction = predicted(&case, NodeCores::Each(case.cores));
        let parts = &prediction.requests[0].components_us;
        let sum: f64 = parts.iter().map(|part| part.figure.value).sum();
        let whole = prediction.added_us.mean.value;
        // Cores that are waited for without the mesh as well may make the wait negative: then there is no such part.
        let has_wait = parts.iter().any(|part| part.name == "core_wait");
        assert!(
            (sum / whole - 1.0).abs() < 1e-6 || !has_wait && sum > whole,
            "seed {seed}: {sum} of {whole}"
        );
        with_wait += usize::from(has_wait);
        let plenty = predicted(&case, NodeCores::Plenty);
        let parts = &plenty.requests[0].components_us;
        assert!(parts.iter().all(|part| part.name != "core_wait"));
    }
    assert!(with_wait > 10, "{with_wait}");
}

/// A profile without noise leaves nothing to be wrong about but who gets a core when, and that is decided alike.
#[test]
fn without_noise_the_prediction_is_the_truth() {
    let exact = SyntheticProxy {
        noise: 0.0,
        repetition_noise: 0.0,
        ..SyntheticProxy::example()
    };
    for seed in 0..60 {
        let case = case_of(seed, &exact);
        let added_us = predicted(&case, NodeCores::Each(case.cores)).added_us.mean.value;
        // Profiles have three digits behind the microsecond.
        let error = (added_us / case.true_added_us - 1.0).abs();
        assert!(error < 1e-3, "seed {seed}: {added_us} of {}", case.true_added_us);
    }
}
