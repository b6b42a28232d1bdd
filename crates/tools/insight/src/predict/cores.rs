//! How long a request takes on machines whose cores its calls share.
//!
//! Whatever runs needs a core of its node, and in a proxy one of the proxy's threads; who finds none free waits, and is served
//! in the order of coming. A hop through a proxy first waits to be woken, needs no core meanwhile, then holds one until the
//! message is passed on, and a little longer: what a thread does after that delays nobody who waits for the message, only
//! those who wait for the core.
//!
//! ```text
//!   the message is there    a core is free    passed on         core free
//!   ├── woken ──────────────┼── on the path ──┼── off the path ─┤
//! ```

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::costs::CallCosts;
use super::plan::{CallExecution, RequestPlan};
use crate::acg::{RepeatMode, RequestGraph};

/// How many there are of what is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SharedLimits {
    /// Cores of a node; `None` if nobody ever waits for one.
    pub(super) cores: Option<usize>,
    /// Threads of a proxy that carry messages, likewise.
    pub(super) threads: Option<usize>,
}

/// Whether the proxies are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MeshPresence {
    Absent,
    Present,
}

/// Where a service is.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServicePlace {
    pub(super) node: usize,
    /// Nodes like this one, each with an instance of the service: a service that names no node has one for each.
    pub(super) copies: usize,
}

/// What is played, and where.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlayedRequest<'a> {
    pub(super) request: &'a RequestGraph,
    pub(super) calls: &'a [CallCosts],
    pub(super) draw: usize,
    /// Where each service is.
    pub(super) places: &'a [ServicePlace],
    /// By call, the positions among its siblings of those that wait for it.
    pub(super) waiters: &'a [Vec<usize>],
    pub(super) limits: SharedLimits,
}

/// What an execution does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExecutionStep {
    /// Its request passes a proxy, the caller's first.
    Request(usize),
    /// The service works, before it calls others.
    Before,
    /// The service works, after that.
    After,
    /// Its response passes a proxy, the callee's first.
    Response(usize),
    End,
}

/// An execution wants a core then.
#[derive(Clone, Copy, Debug)]
struct WantedCore {
    time_us: f64,
    turn: CoreTurn,
    execution: usize,
    step: ExecutionStep,
}

/// Whose turn it is among those of one time: first those who wait already, in the order in which they came for the core; then those who
/// come now, in the order in which they set out. (Who sets out first may be woken last, and comes last then.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum CoreTurn {
    Waits(u64),
    Comes(u64),
}

impl PartialEq for WantedCore {
    fn eq(&self, other: &WantedCore) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for WantedCore {}

impl PartialOrd for WantedCore {
    fn partial_cmp(&self, other: &WantedCore) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for WantedCore {
    fn cmp(&self, other: &WantedCore) -> std::cmp::Ordering {
        let by_time = self.time_us.total_cmp(&other.time_us);
        by_time.then(self.turn.cmp(&other.turn))
    }
}

/// What a step takes.
#[derive(Clone, Copy, Debug, Default)]
struct StepTime {
    /// On a core, until the next step can begin.
    core_us: f64,
    /// On the same core, after that.
    tail_us: f64,
    /// Without a core, after the first of the two.
    pause_us: f64,
}

/// How far a group of calls is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GroupProgress {
    /// Siblings that have not ended yet, of those that it waits for.
    unmet: usize,
    /// Executions that have not ended yet.
    running: usize,
    /// The group of the sibling that it waited for last.
    pub(super) waited_for: Option<usize>,
    /// The execution that ended last.
    pub(super) last: Option<usize>,
}

/// How far an execution is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ExecutionProgress {
    /// Groups of calls that it waits for.
    waiting: usize,
    /// The one that it waited for last.
    pub(super) waited_for: Option<usize>,
}

/// A play. What it needs is kept from one to the next.
#[derive(Clone, Debug, Default)]
pub(super) struct CorePlay {
    wanted: BinaryHeap<Reverse<WantedCore>>,
    numbers: u64,
    /// By node, and by proxy: until when what is taken is taken.
    cores: Vec<Vec<f64>>,
    threads: Vec<Vec<f64>>,
    pub(super) groups: Vec<GroupProgress>,
    pub(super) executions: Vec<ExecutionProgress>,
}

impl CorePlay {
    /// When the request has its answer.
    pub(super) fn play(&mut self, played: PlayedRequest<'_>, plan: &RequestPlan, mesh: MeshPresence) -> f64 {
        let mut run = CoreRun {
            state: self,
            played,
            plan,
            mesh,
        };
        run.reset();
        run.begin(0, 0.0);
        run.until_end()
    }
}

struct CoreRun<'a> {
    state: &'a mut CorePlay,
    played: PlayedRequest<'a>,
    plan: &'a RequestPlan,
    mesh: MeshPresence,
}

impl CoreRun<'_> {
    fn reset(&mut self) {
        let state = &mut *self.state;
        state.wanted.clear();
        state.numbers = 0;
        for taken in [&mut state.cores, &mut state.threads] {
            taken.iter_mut().for_each(Vec::clear);
            // Nodes are numbered below the number of services.
            taken.resize(self.played.places.len(), Vec::new());
        }
        state.executions.clear();
        state
            .executions
            .resize(self.plan.executions.len(), ExecutionProgress::default());
        state.groups.clear();
        state
            .groups
            .resize(self.plan.groups.len(), GroupProgress::default());
    }

    fn until_end(&mut self) -> f64 {
        while let Some(Reverse(wanted)) = self.state.wanted.pop() {
            if wanted.step == ExecutionStep::End {
                if wanted.execution == 0 {
                    return wanted.time_us;
                }
                self.ended(wanted.execution, wanted.time_us);
            } else if let Some(later) = self.wait(&wanted) {
                let turn = match wanted.turn {
                    CoreTurn::Comes(_) => CoreTurn::Waits(self.next_number()),
                    waits => waits,
                };
                self.state.wanted.push(Reverse(WantedCore {
                    time_us: later,
                    turn,
                    ..wanted
                }));
            } else {
                self.run(&wanted);
            }
        }
        // A plan has no cycles, so that the execution from outside ends.
        0.0
    }

    fn begin(&mut self, execution: usize, time_us: f64) {
        let pause = self.plan.executions[execution].network_us / 2.0;
        self.want(execution, ExecutionStep::Request(0), time_us + pause);
    }

    /// Has an execution want a core for a step that there is: those that there are not are passed over.
    fn want(&mut self, execution: usize, step: ExecutionStep, time_us: f64) {
        let passages = self.passages(execution);
        let step = match step {
            ExecutionStep::Request(at) if at >= passages => ExecutionStep::Before,
            ExecutionStep::Response(at) if at >= passages => ExecutionStep::End,
            other => other,
        };
        let one = &self.plan.executions[execution];
        let pause = match step {
            ExecutionStep::Request(at) | ExecutionStep::Response(at) => {
                self.hop(one, self.passage_of(step, at)).0
            }
            ExecutionStep::End => one.network_us / 2.0,
            _ => 0.0,
        };
        let turn = CoreTurn::Comes(self.next_number());
        self.state.wanted.push(Reverse(WantedCore {
            time_us: time_us + pause,
            turn,
            execution,
            step,
        }));
    }

    fn next_number(&mut self) -> u64 {
        self.state.numbers += 1;
        self.state.numbers
    }

    fn passages(&self, execution: usize) -> usize {
        match self.mesh {
            MeshPresence::Absent => 0,
            MeshPresence::Present => self.costs(execution).passages.len(),
        }
    }

    fn costs(&self, execution: usize) -> &CallCosts {
        &self.played.calls[self.plan.executions[execution].call]
    }

    /// A request passes the caller's proxy first, its response the callee's.
    fn passage_of(&self, step: ExecutionStep, at: usize) -> usize {
        match step {
            ExecutionStep::Response(_) => 1 - at,
            _ => at,
        }
    }

    /// One of the two hops of a passage: until its thread could run, and on a core.
    fn hop(&self, one: &CallExecution, at: usize) -> (f64, StepTime) {
        let passages = &self.played.calls[one.call].passages;
        // A call that passes one proxy alone passes it there and back.
        let passage = &passages[at.min(passages.len() - 1)];
        let scale = one.ratios[at.min(passages.len() - 1)] / 2.0;
        let draw = self.played.draw;
        let time = StepTime {
            core_us: passage.core_us(draw) * scale,
            tail_us: passage.tail_us(draw) * scale,
            pause_us: 0.0,
        };
        (passage.woken_us(draw) * scale, time)
    }

    fn step_time(&self, wanted: &WantedCore) -> StepTime {
        let one = &self.plan.executions[wanted.execution];
        let call = &self.played.request.calls[one.call];
        match wanted.step {
            ExecutionStep::Request(at) | ExecutionStep::Response(at) => {
                self.hop(one, self.passage_of(wanted.step, at)).1
            }
            ExecutionStep::Before | ExecutionStep::After => {
                let parts = if call.children.is_empty() { 1.0 } else { 2.0 };
                StepTime {
                    core_us: one.app_us * call.app_cpu_share / parts,
                    tail_us: 0.0,
                    pause_us: one.app_us * (1.0 - call.app_cpu_share) / parts,
                }
            }
            ExecutionStep::End => StepTime::default(),
        }
    }

    /// The place where a step is, and its proxy if it is in one.
    fn places(&self, wanted: &WantedCore) -> (ServicePlace, Option<usize>) {
        let one = &self.plan.executions[wanted.execution];
        match wanted.step {
            ExecutionStep::Request(at) | ExecutionStep::Response(at) => {
                let passages = &self.played.calls[one.call].passages;
                let at = self.passage_of(wanted.step, at).min(passages.len() - 1);
                (self.played.places[passages[at].owner], Some(passages[at].proxy))
            }
            _ => {
                let service = self.played.request.calls[one.call].service;
                (self.played.places[service], None)
            }
        }
    }

    /// Until when an execution waits for a core and a thread, if it has to.
    fn wait(&mut self, wanted: &WantedCore) -> Option<f64> {
        if self.step_time(wanted).core_us <= 0.0 {
            return None;
        }
        let (ServicePlace { node, copies }, proxy) = self.places(wanted);
        let SharedLimits { cores, threads } = self.played.limits;
        let of_all = |limit: usize| limit.saturating_mul(copies);
        let for_core = free_at(&mut self.state.cores[node], cores.map(of_all), wanted.time_us);
        let for_thread = proxy.and_then(|proxy| {
            free_at(
                &mut self.state.threads[proxy],
                threads.map(of_all),
                wanted.time_us,
            )
        });
        match (for_core, for_thread) {
            (Some(core), Some(thread)) => Some(core.max(thread)),
            (core, thread) => core.or(thread),
        }
    }

    /// Runs a step, for which there is a core.
    fn run(&mut self, wanted: &WantedCore) {
        let StepTime {
            core_us,
            tail_us,
            pause_us,
        } = self.step_time(wanted);
        let until = wanted.time_us + core_us + tail_us;
        if core_us > 0.0 {
            let (ServicePlace { node, .. }, proxy) = self.places(wanted);
            let SharedLimits { cores, threads } = self.played.limits;
            if cores.is_some() {
                self.state.cores[node].push(until);
            }
            if let (Some(proxy), true) = (proxy, threads.is_some()) {
                self.state.threads[proxy].push(until);
            }
        }
        let done = wanted.time_us + core_us + pause_us;
        let WantedCore { execution, step, .. } = *wanted;
        match step {
            ExecutionStep::Request(at) => self.want(execution, ExecutionStep::Request(at + 1), done),
            ExecutionStep::Before => self.call_others(execution, done),
            ExecutionStep::After => self.want(execution, ExecutionStep::Response(0), done),
            ExecutionStep::Response(at) => self.want(execution, ExecutionStep::Response(at + 1), done),
            ExecutionStep::End => {}
        }
    }

    /// The calls of an execution: those begin that wait for no other.
    fn call_others(&mut self, execution: usize, time_us: f64) {
        let one = &self.plan.executions[execution];
        let children = &self.played.request.calls[one.call].children;
        if children.is_empty() {
            return self.want(execution, ExecutionStep::Response(0), time_us);
        }
        self.state.executions[execution].waiting = children.len();
        for (position, child) in children.iter().enumerate() {
            let unmet = self.played.request.calls[*child].after.len();
            self.state.groups[one.first_group + position].unmet = unmet;
        }
        for (position, child) in children.iter().enumerate() {
            // Others may have begun, and even ended, meanwhile.
            if self.played.request.calls[*child].after.is_empty() {
                self.begin_group(one.first_group + position, time_us);
            }
        }
    }

    fn begin_group(&mut self, group: usize, time_us: f64) {
        if self.is_over_at_once(group, time_us) {
            self.group_ended(group, time_us);
        }
    }

    /// Begins a group, and says whether nobody has to wait for it.
    fn is_over_at_once(&mut self, group: usize, time_us: f64) -> bool {
        let of = &self.plan.groups[group];
        let mut next = of.first;
        while let Some(execution) = next {
            self.begin(execution, time_us);
            self.state.groups[group].running += 1;
            next = match of.mode {
                RepeatMode::Concurrent => self.plan.executions[execution].next,
                RepeatMode::Sequential => None,
            };
        }
        of.first.is_none() || of.is_detached
    }

    fn ended(&mut self, execution: usize, time_us: f64) {
        let one = &self.plan.executions[execution];
        let Some(group) = one.group else {
            return;
        };
        let of = &self.plan.groups[group];
        self.state.groups[group].last = Some(execution);
        if let (RepeatMode::Sequential, Some(next)) = (of.mode, one.next) {
            return self.begin(next, time_us);
        }
        let progress = &mut self.state.groups[group];
        progress.running -= 1;
        if progress.running == 0 && !of.is_detached {
            self.group_ended(group, time_us);
        }
    }

    fn group_ended(&mut self, group: usize, time_us: f64) {
        let caller = self.plan.groups[group].caller;
        let first = self.plan.executions[caller].first_group;
        let mut over = vec![group];
        while let Some(group) = over.pop() {
            for position in &self.played.waiters[self.plan.groups[group].call] {
                let waiter = first + position;
                let progress = &mut self.state.groups[waiter];
                progress.unmet -= 1;
                progress.waited_for = Some(group);
                if progress.unmet == 0 && self.is_over_at_once(waiter, time_us) {
                    over.push(waiter);
                }
            }
            let progress = &mut self.state.executions[caller];
            progress.waiting -= 1;
            progress.waited_for = Some(group);
        }
        if self.state.executions[caller].waiting == 0 {
            self.want(caller, ExecutionStep::After, time_us);
        }
    }
}

/// When one of those that are taken is free again, if none is at a time.
fn free_at(taken: &mut Vec<f64>, limit: Option<usize>, time_us: f64) -> Option<f64> {
    let limit = limit?;
    taken.retain(|until| *until > time_us);
    (taken.len() >= limit).then(|| taken.iter().copied().fold(f64::INFINITY, f64::min))
}
