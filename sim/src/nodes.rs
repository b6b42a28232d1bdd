//! The world of nodes: apps, the workers that poll them, the carriers between nodes, time, and what goes wrong.
//!
//! Whoever is due next has its turn: an app, a worker, a hot restart, a fault. Each turn takes simulated time, so that the
//! same seed gives the same order of events.

mod changes;
mod connect;
mod ending;
mod faults;
mod migration;

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use provost_conformance::Random;
use provost_conformance::simulated::{PipeHandle, Setup};
use provost_datapath::Nanos;
use provost_frontend::{AppPort, AppReceiveHeap, AppRole, CallQuota, ReceiveLimits};
use provost_runtime::{AppId, NewApp, RuntimeCommand, RuntimeEvent, WaitMode};
use provost_shm::{AppRings, Doorbell, ServiceRings};
use provost_wire::limits::WINDOW_BYTES;

use crate::Violation;
use crate::app::{AppParts, AppTurn, ControlMailbox, SimApp, SimSegments};
use crate::client::ClientTotals;
use crate::compose::LEDGER;
use crate::memory::SimSendHeap;
use crate::node::{NodeApp, SimNode};
use crate::note::Service;
use crate::outcome::{CallFate, Memory};
use crate::platform::{SimClock, SimNetwork};
use crate::policy::CallLedger;
use crate::restart::{Restart, RestartOutcome};
use crate::sabotage::{Sabotage, TamperedRing};
use crate::trace::TraceDigest;
use changes::ChangeSource;
use connect::ASK_AGAIN_NS;
use faults::FaultSource;

/// Calls that a server takes over all its connections.
pub(crate) const SERVER_CALLS_MAX: u32 = 10_000;
/// When a world begins, in simulated nanoseconds.
const BEGINS_AT: Nanos = 1_000_000_000;
/// Bytes of every send heap.
const SEND_HEAP_BYTES: u64 = 64 << 20;
/// Where receive heaps lie in every app's window, in units of 8 bytes.
const RECEIVE_WINDOW: u32 = 1 << 28;
/// How long the world may take to come to rest when nothing new begins, in simulated nanoseconds.
const SETTLING_NS_MAX: u64 = 20_000_000_000;
/// Turns of one world, at most: it works for ever past it.
const TURNS_MAX: u64 = 20_000_000;
/// How long an app waits before it connects again.
const RECONNECT_NS: u64 = 3_000_000;
/// How long the end of an app's process takes to be noticed, at most.
const DEATH_NOTICED_NS_MAX: u64 = 500_000;
/// How long an app may take to wake once it is rung for, at most.
const APP_WAKE_NS_MAX: u64 = 30_000;
/// How long an app or a worker may sleep though something waits for it: none at all would be exact, but who is to ring may
/// have to have its turn first.
const OVERSLEPT_NS_MAX: u64 = 5_000_000;
/// By how much a call may outlive its deadline as its app sees it, beside the time that its node rests, in simulated
/// nanoseconds.
pub const DEADLINE_SLACK_NS: u64 = 2_000_000;
/// The turn in which [`Sabotage::Panic`] strikes.
const PANIC_AT_TURN: u64 = 5_000;

/// The size of a simulation and the faults in it.
#[derive(Clone, Copy, Debug)]
pub struct NodesOptions {
    /// All of it follows from this.
    pub seed: u64,
    /// Calls that are begun, over all clients.
    pub calls: u64,
    /// In which way the world does wrong, to see that it is found.
    pub sabotage: Option<Sabotage>,
}

impl NodesOptions {
    /// Calls of a simulation, unless other counts are asked for.
    pub const CALLS: u64 = 100;

    /// A simulation of the usual size.
    #[must_use]
    pub fn of_seed(seed: u64) -> NodesOptions {
        NodesOptions {
            seed,
            calls: NodesOptions::CALLS,
            sabotage: None,
        }
    }
}

/// What a run came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodesReport {
    /// A fingerprint of every event in order.
    pub trace: u64,
    /// Calls that were begun.
    pub calls: u64,
    /// How they ended: by status code, and (last) given up by the client.
    pub ends: [u64; 18],
    /// Calls whose client died.
    pub orphaned: u64,
    /// Connections that were made.
    pub connections: u64,
    /// What went wrong on purpose.
    pub faults: u64,
    /// Hot restarts after which other workers went on.
    pub hot_restarts: u64,
    /// Hot restarts that failed half way.
    pub hot_restarts_undone: u64,
    /// Changes of engines that were carried out.
    pub changes: u64,
    /// Changes that were refused, or whose engines did not start.
    pub changes_refused: u64,
    /// Connections that migrated to another carrier.
    pub migrations: u64,
    /// Engines that failed and were recovered from.
    pub engines_failed: u64,
    /// Turns of apps, workers and the control plane.
    pub turns: u64,
    /// The longest that a small call waited on a connection that nothing befell, in simulated nanoseconds.
    pub slowest_small_call_ns: u64,
    /// Simulated time in nanoseconds.
    pub elapsed_ns: u64,
}

impl NodesReport {
    /// Counts what another run came to as well.
    pub fn add(&mut self, more: &NodesReport) {
        self.trace = self.trace.wrapping_add(more.trace);
        self.calls += more.calls;
        self.ends
            .iter_mut()
            .zip(more.ends)
            .for_each(|(sum, more)| *sum += more);
        self.orphaned += more.orphaned;
        self.connections += more.connections;
        self.faults += more.faults;
        self.hot_restarts += more.hot_restarts;
        self.hot_restarts_undone += more.hot_restarts_undone;
        self.changes += more.changes;
        self.changes_refused += more.changes_refused;
        self.migrations += more.migrations;
        self.engines_failed += more.engines_failed;
        self.turns += more.turns;
        self.slowest_small_call_ns = self.slowest_small_call_ns.max(more.slowest_small_call_ns);
        self.elapsed_ns += more.elapsed_ns;
    }
}

/// One connection between a client app and a server app.
struct PairState {
    server: usize,
    /// The client's node and the server's.
    nodes: [usize; 2],
    /// What carries it between its nodes, and how its ends use that.
    carrier: Option<(PipeHandle, Setup)>,
    /// The connection that the client's app knows, if this one was made for it to migrate to.
    migrated_from: Option<usize>,
}

impl PairState {
    /// The number of the connection that the client's app knows; `own` is this one's.
    fn first(&self, own: usize) -> usize {
        self.migrated_from.unwrap_or(own)
    }
}

/// An app, and where it is.
struct PlacedApp {
    node: usize,
    /// None once its process has died.
    process: Option<SimApp>,
    role: AppRole,
    is_hostile: bool,
    /// For a client: when it may connect again, by server.
    retry_at: BTreeMap<usize, Nanos>,
    /// For a client: its connection, by server.
    connected: BTreeMap<usize, usize>,
    /// When its node notices that its process has died.
    noticed_at: Option<Nanos>,
}

pub(crate) struct NodesWorld {
    options: NodesOptions,
    clock: SimClock,
    network: SimNetwork,
    random: Random,
    service: Service,
    ledger: CallLedger,
    nodes: Vec<SimNode>,
    restarts: Vec<Option<Restart>>,
    /// By number of the app: numbers are never used again.
    apps: Vec<PlacedApp>,
    pairs: Vec<PairState>,
    fates: Vec<CallFate>,
    faults: FaultSource,
    changes: ChangeSource,
    memory: Memory,
    trace: TraceDigest,
    begun: u64,
    /// Of processes that are gone.
    totals: ClientTotals,
    /// Completion regions that apps of resting nodes have mapped: their node, their number, the region's.
    mapped_meanwhile: Vec<(usize, AppId, u64)>,
    report: NodesReport,
}

/// Runs one simulation of nodes to its end.
///
/// # Errors
/// Something happened that must not, a panic included.
pub fn run_nodes(options: NodesOptions) -> Result<NodesReport, Violation> {
    let failed = |what: String| Violation {
        what,
        at: 0,
        trace: Vec::new(),
    };
    let mut world = NodesWorld::new(options).map_err(failed)?;
    let lived = std::panic::catch_unwind(AssertUnwindSafe(|| world.live()));
    let violation = match lived {
        Ok(Ok(())) => return Ok(world.finished()),
        Ok(Err(what)) => world.violation(what),
        Err(panic) => world.violation(format!("a panic: {}", panic_message(&*panic))),
    };
    // What a panic left half done may panic again.
    std::mem::forget(world);
    Err(violation)
}

/// Runs one simulation twice, and checks that it is the same to the last event.
///
/// # Errors
/// Something happened that must not, or something else happened the second time.
pub fn run_twice(options: NodesOptions) -> Result<NodesReport, Violation> {
    let (first, second) = (run_nodes(options)?, run_nodes(options)?);
    if first == second {
        return Ok(first);
    }
    Err(Violation {
        what: format!("the same seed gave {first:?}, and then {second:?}"),
        at: 0,
        trace: Vec::new(),
    })
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("without a message")
}

/// Who has the next turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TurnActor {
    App(usize),
    Runtime(usize, usize),
    Restart(usize),
    Fault,
    Change,
    Notice(usize),
    Connect,
}

impl TurnActor {
    /// A number that tells it from all others of a world.
    fn code(self) -> u64 {
        let (kind, which, part) = match self {
            TurnActor::App(app) => (0, app, 0),
            TurnActor::Runtime(node, runtime) => (1, node, runtime),
            TurnActor::Restart(node) => (2, node, 0),
            TurnActor::Fault => (3, 0, 0),
            TurnActor::Change => (4, 0, 0),
            TurnActor::Notice(app) => (5, app, 0),
            TurnActor::Connect => (6, 0, 0),
        };
        kind << 60 | (which as u64) << 30 | part as u64
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WorldPhase {
    Busy,
    Settling,
    Closing,
}

impl NodesWorld {
    fn new(options: NodesOptions) -> Result<NodesWorld, String> {
        let mut random = Random::new(options.seed);
        let (clock, network) = (SimClock::starting_at(BEGINS_AT), SimNetwork::default());
        let memory = if random.one_in(5) {
            Memory::Tight
        } else {
            Memory::Ample
        };
        let nodes = random.between(1, 3);
        let nodes = (0..nodes).map(|_| SimNode::new(&mut random, &clock, &network));
        let nodes = nodes.collect::<Result<Vec<_>, _>>()?;
        let severity = random.below(4);
        let mut world = NodesWorld {
            options,
            restarts: nodes.iter().map(|_| None).collect(),
            nodes,
            service: Service::load(),
            ledger: CallLedger::new(options.sabotage),
            apps: Vec::new(),
            pairs: Vec::new(),
            fates: Vec::new(),
            faults: FaultSource::new(random.number(), severity, memory, BEGINS_AT),
            changes: ChangeSource::new(random.number(), BEGINS_AT),
            memory,
            trace: TraceDigest::new(),
            begun: 0,
            totals: ClientTotals::default(),
            mapped_meanwhile: Vec::new(),
            report: NodesReport::default(),
            random,
            clock,
            network,
        };
        let (clients, servers) = (world.random.between(1, 3), world.random.between(1, 2));
        for _ in 0..servers {
            world.attach(AppRole::Server, AppHonesty::Honest)?;
        }
        for _ in 0..clients {
            world.attach(AppRole::Client, AppHonesty::Honest)?;
        }
        if world.random.one_in(4) {
            world.attach(AppRole::Client, AppHonesty::Hostile)?;
        }
        Ok(world)
    }

    /// A new process attaches to some node.
    fn attach(&mut self, role: AppRole, honesty: AppHonesty) -> Result<(), String> {
        let node = self.random.below(self.nodes.len() as u64) as usize;
        self.attach_to(node, role, honesty)
    }

    fn attach_to(&mut self, node: usize, role: AppRole, honesty: AppHonesty) -> Result<(), String> {
        let now = self.clock.now();
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let slots = [16, 64, 256][self.random.below(3) as usize];
        let (rings, memory) = ServiceRings::create(slots, slots).map_err(|error| text(&error))?;
        let [submission, completion] = memory;
        let app_rings = AppRings::map(submission, slots, completion, slots).map_err(|error| text(&error))?;
        let (to_service, service_doorbell) = Doorbell::create().map_err(|error| text(&error))?;
        let (to_app, app_doorbell) = Doorbell::create().map_err(|error| text(&error))?;
        let mailbox = ControlMailbox::default();
        let receive_bytes_max = match self.memory {
            Memory::Tight => 1 << 20,
            Memory::Ample => 256 << 20,
        };
        let limits = ReceiveLimits {
            window_at: RECEIVE_WINDOW,
            window_bytes: WINDOW_BYTES / 2,
            bytes_max: receive_bytes_max,
        };
        let heap = AppReceiveHeap::new(Box::new(SimSegments::new(&mailbox)), limits);
        let port = AppPort::new(rings, to_app, heap);
        let send = SimSendHeap::new(SEND_HEAP_BYTES);
        let app = self.apps.len();
        let id = app as AppId + 1;
        let runtime = self.random.below(self.nodes[node].runtimes.len() as u64) as usize;
        let known = NodeApp {
            runtime,
            send_heap: send.for_service(),
            mailbox: mailbox.clone(),
            receive_bytes_max,
            quota: Arc::new(CallQuota::new(SERVER_CALLS_MAX)),
        };
        self.nodes[node].apps.insert(id, known);
        let parts = AppParts {
            id,
            rings: app_rings,
            service: to_service,
            doorbell: app_doorbell,
            send,
            mailbox,
            completions: TamperedRing::new(self.options.sabotage, self.random.number()),
        };
        self.apps.push(PlacedApp {
            node,
            process: Some(SimApp::new(parts, self.random.number(), now)),
            role,
            is_hostile: honesty == AppHonesty::Hostile,
            retry_at: BTreeMap::new(),
            connected: BTreeMap::new(),
            noticed_at: None,
        });
        let new = NewApp {
            app: id,
            port,
            doorbell: service_doorbell,
            waiting: WaitMode::Sleeps,
        };
        self.nodes[node].send_to_app(id, RuntimeCommand::Attach(Box::new(new)), now)
    }

    fn live(&mut self) -> Result<(), String> {
        while self.begun < self.options.calls {
            self.turn(WorldPhase::Busy)?;
        }
        let settled_by = self.clock.now() + SETTLING_NS_MAX;
        while self.has_open_calls() || self.restarts.iter().any(Option::is_some) {
            self.turn(WorldPhase::Settling)?;
            if self.clock.now() > settled_by {
                return Err(format!(
                    "calls are open long after the last began: {}",
                    self.describe()
                ));
            }
        }
        self.close_all()
    }

    fn processes(&self) -> impl Iterator<Item = (usize, &SimApp)> {
        let apps = self.apps.iter().enumerate();
        apps.filter_map(|(at, app)| Some((at, app.process.as_ref()?)))
    }

    fn servers(&self) -> impl Iterator<Item = usize> {
        let servers = self.processes().map(|(at, _)| at);
        servers.filter(|at| self.apps[*at].role == AppRole::Server)
    }

    fn has_open_calls(&self) -> bool {
        self.processes()
            .any(|(at, app)| !self.apps[at].is_hostile && app.open_calls() > 0)
    }

    /// Lets whoever is due next have its turn.
    fn turn(&mut self, phase: WorldPhase) -> Result<(), String> {
        self.report.turns += 1;
        if self.report.turns > TURNS_MAX {
            return Err(format!("the world works for ever: {}", self.describe()));
        }
        let Some((due, actor)) = self.next_actor(phase) else {
            return Err(format!("the world stands still: {}", self.describe()));
        };
        self.clock.advance_to(due);
        match self.options.sabotage {
            Some(Sabotage::TimeOfDay) => {
                let odd = Instant::now().elapsed().as_nanos() as u64 % 3;
                self.clock.advance_to(due + odd);
            }
            Some(Sabotage::Panic) => assert!(self.report.turns < PANIC_AT_TURN, "as it was made to"),
            _ => {}
        }
        self.trace.note_turn(actor.code(), self.clock.now());
        match actor {
            TurnActor::App(app) => self.app_turn(app),
            TurnActor::Runtime(node, runtime) => self.runtime_turn(node, runtime),
            TurnActor::Restart(node) => self.restart_turn(node),
            TurnActor::Fault => self.strike(),
            TurnActor::Change => self.change(),
            TurnActor::Notice(app) => self.notice_death(app),
            TurnActor::Connect => self.connect(),
        }
        .map_err(|what| format!("{actor:?}: {what}"))
    }

    fn next_actor(&self, phase: WorldPhase) -> Option<(Nanos, TurnActor)> {
        let now = self.clock.now();
        let mut next: Option<(Nanos, TurnActor)> = None;
        let mut offer = |due: Nanos, actor: TurnActor| {
            if due != Nanos::MAX && next.is_none_or(|(best, _)| due < best) {
                next = Some((due, actor));
            }
        };
        for (at, app) in self.apps.iter().enumerate() {
            if let Some(process) = &app.process {
                offer(process.due, TurnActor::App(at));
            }
            offer(app.noticed_at.unwrap_or(Nanos::MAX), TurnActor::Notice(at));
            if phase == WorldPhase::Busy && app.process.is_some() && app.role == AppRole::Client {
                for server in self
                    .servers()
                    .filter(|server| !app.connected.contains_key(server))
                {
                    let retry_at = app.retry_at.get(&server).copied().unwrap_or(now);
                    offer(retry_at.max(now), TurnActor::Connect);
                }
            }
        }
        for (at, node) in self.nodes.iter().enumerate() {
            for (number, runtime) in node.runtimes.iter().enumerate() {
                offer(runtime.due(now), TurnActor::Runtime(at, number));
            }
            let restart = self.restarts[at].as_ref().map_or(Nanos::MAX, Restart::due);
            offer(restart, TurnActor::Restart(at));
        }
        if phase == WorldPhase::Busy {
            offer(self.faults.next_at(), TurnActor::Fault);
            offer(self.changes.next_at(), TurnActor::Change);
        }
        next
    }

    fn app_turn(&mut self, at: usize) -> Result<(), String> {
        let now = self.clock.now();
        let placed = &mut self.apps[at];
        let Some(process) = &mut placed.process else {
            return Ok(());
        };
        let mut turn = AppTurn {
            now,
            service: &self.service,
            fates: &self.fates,
            ledger: &self.ledger,
            trace: &mut self.trace,
            begun: &mut self.begun,
            calls_max: self.options.calls,
            sabotage: self.options.sabotage,
        };
        if placed.is_hostile && self.random.one_in(40) {
            process.submit_garbage();
        }
        let report = process.take_turn(&mut turn);
        let report = match report {
            Err(_) if placed.is_hostile => return self.kill(at),
            other => other?,
        };
        let (node, id) = (placed.node, process.parts.id);
        if !placed.is_hostile && self.restarts[node].is_none() {
            process.check_deadlines(now, self.nodes[node].rested_until)?;
        }
        for pair in &report.closed {
            let server = self.pairs[*pair].server;
            if placed.connected.get(&server) == Some(pair) {
                placed.connected.remove(&server);
                placed.retry_at.insert(server, now + RECONNECT_NS);
            }
        }
        if let Some(generation) = report.mapped {
            self.mapped_meanwhile.push((node, id, generation));
            self.send_regions(now)?;
        }
        if report.rang || self.apps[at].is_hostile {
            let runtimes = &mut self.nodes[node].runtimes;
            runtimes
                .iter_mut()
                .for_each(|runtime| runtime.look_at_doorbells(now));
        }
        Ok(())
    }

    /// A resting node hears of regions when it goes on.
    fn send_regions(&mut self, now: Nanos) -> Result<(), String> {
        for (node, app, generation) in std::mem::take(&mut self.mapped_meanwhile) {
            if self.restarts[node].is_some() {
                self.mapped_meanwhile.push((node, app, generation));
                continue;
            }
            let command = RuntimeCommand::RegionMapped { app, generation };
            self.nodes[node].send_to_app(app, command, now)?;
        }
        Ok(())
    }

    fn runtime_turn(&mut self, node: usize, runtime: usize) -> Result<(), String> {
        let now = self.clock.now();
        self.nodes[node].runtimes[runtime].poll(now)?;
        self.after_polls(node)
    }

    /// Whoever was rung for wakes, and what workers told is heard.
    fn after_polls(&mut self, node: usize) -> Result<(), String> {
        let now = self.clock.now();
        let latency = self.random.below(APP_WAKE_NS_MAX);
        let rests = self.restarts[node].is_some();
        for app in self.apps.iter_mut().filter(|app| app.node == node) {
            if let Some(process) = &mut app.process {
                process.look_at_doorbell(now, latency);
                if !rests && process.overslept_ns(now) > OVERSLEPT_NS_MAX {
                    return Err(format!(
                        "app {} sleeps though completions wait for it: a wake-up was lost",
                        process.parts.id
                    ));
                }
            }
        }
        let runtimes = &mut self.nodes[node].runtimes;
        runtimes
            .iter_mut()
            .for_each(|runtime| runtime.look_at_doorbells(now));
        for event in self.nodes[node].events.take() {
            self.on_event(node, event)?;
        }
        Ok(())
    }

    fn on_event(&mut self, node: usize, event: RuntimeEvent) -> Result<(), String> {
        let now = self.clock.now();
        match event {
            RuntimeEvent::Faulted { app, fault } => {
                let at = (app - 1) as usize;
                if !self.apps[at].is_hostile {
                    return Err(format!("app {app} is said to be at fault: {fault}"));
                }
                self.kill(at)
            }
            RuntimeEvent::Detached { app } => {
                self.nodes[node].apps.remove(&app);
                Ok(())
            }
            RuntimeEvent::Closed { id, .. } => {
                self.trace.note(&[5, now, id]);
                self.nodes[node].ends.remove(&id);
                Ok(())
            }
            RuntimeEvent::ServiceWanted { app, .. }
            | RuntimeEvent::NodeCall { app, .. }
            | RuntimeEvent::CallerEnded { app, .. } => {
                Err(format!("{app} is said to be a gRPC client, and there is none"))
            }
            RuntimeEvent::EngineFailed(failed) => {
                self.report.engines_failed += 1;
                self.trace.note(&[6, now, failed.connection, failed.tag.0]);
                if failed.tag == LEDGER
                    && let Some(pair) = self.nodes[node].ends.get(&failed.connection).map(|end| end.pair)
                {
                    self.worsen(pair);
                }
                Ok(())
            }
        }
    }

    fn restart_turn(&mut self, node: usize) -> Result<(), String> {
        let Some(restart) = &mut self.restarts[node] else {
            return Ok(());
        };
        let outcome = restart.go_on(&mut self.nodes[node], &self.clock, &self.network)?;
        if let Some(outcome) = outcome {
            self.restarts[node] = None;
            let now = self.clock.now();
            self.trace.note(&[4, now, node as u64, outcome as u64]);
            self.nodes[node].rested_until = now;
            match outcome {
                RestartOutcome::Replaced => self.report.hot_restarts += 1,
                RestartOutcome::WentOn => self.report.hot_restarts_undone += 1,
            }
            self.send_regions(now)?;
        }
        self.after_polls(node)
    }

    /// An app's process dies: its memory with it. Its node notices a little later.
    fn kill(&mut self, at: usize) -> Result<(), String> {
        let now = self.clock.now();
        let app = &mut self.apps[at];
        let Some(process) = app.process.take() else {
            return Ok(());
        };
        let of_process = process.connections.values().map(|connection| connection.pair);
        let mut befallen: Vec<usize> = of_process.collect();
        // Those that are still being opened as well.
        befallen.extend(app.connected.values());
        if !app.is_hostile {
            self.report.orphaned += process.open_calls() as u64;
            self.totals.add(&process.totals());
        }
        app.noticed_at = Some(now + self.random.below(DEATH_NOTICED_NS_MAX));
        app.connected.clear();
        let served = self
            .pairs
            .iter()
            .enumerate()
            .filter(|(_, pair)| pair.server == at);
        befallen.extend(served.map(|(pair, _)| pair));
        befallen.into_iter().for_each(|pair| self.worsen(pair));
        Ok(())
    }

    fn notice_death(&mut self, at: usize) -> Result<(), String> {
        let now = self.clock.now();
        let (node, role, id) = (self.apps[at].node, self.apps[at].role, at as AppId + 1);
        if self.restarts[node].is_some() {
            // The control plane does one thing at a time.
            self.apps[at].noticed_at = Some(now + ASK_AGAIN_NS);
            return Ok(());
        }
        self.apps[at].noticed_at = None;
        self.nodes[node].send_to_app(id, RuntimeCommand::Detach(id), now)?;
        if self.apps[at].is_hostile {
            return Ok(());
        }
        // Another process takes its place.
        self.attach_to(node, role, AppHonesty::Honest)?;
        self.apps
            .iter_mut()
            .filter(|app| app.role == AppRole::Client)
            .for_each(|app| {
                app.retry_at.remove(&at);
            });
        Ok(())
    }

    fn finished(&self) -> NodesReport {
        let mut totals = self.totals;
        self.processes()
            .for_each(|(_, process)| totals.add(&process.totals()));
        NodesReport {
            trace: self.trace.value(),
            calls: self.begun,
            ends: totals.ends,
            slowest_small_call_ns: totals.slowest_ns,
            elapsed_ns: self.clock.now() - BEGINS_AT,
            ..self.report
        }
    }

    fn violation(&self, what: String) -> Violation {
        Violation {
            what,
            at: self.clock.now() - BEGINS_AT,
            trace: self.trace.last_events(),
        }
    }

    fn describe(&self) -> String {
        let apps = self.processes().map(|(_, app)| app.describe());
        let nodes = self.nodes.iter().enumerate();
        let nodes = nodes.map(|(at, node)| format!("node {at}: {}", node.describe()));
        apps.chain(nodes).collect::<Vec<_>>().join(" | ")
    }
}

/// Whether an app does what it must.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AppHonesty {
    Honest,
    Hostile,
}
