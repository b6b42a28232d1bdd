//! The world of nodes: apps, the workers that poll them, the carriers between nodes, time, and what goes wrong.
//!
//! Whoever is due next has its turn: an app, a worker, a hot restart, a fault. Each turn takes simulated time, so that the
//! same seed gives the same order of events.

mod changes;
mod faults;

use std::collections::BTreeMap;

use provost_conformance::Random;
use provost_conformance::simulated::PipeHandle;
use provost_datapath::{ConnectionSignals, Nanos};
use provost_engine::Code;
use provost_frontend::{AppPort, AppReceiveHeap, AppRole, CallQuota, ReceiveLimits};
use provost_marshalling::Encoding;
use provost_runtime::{AppId, ConnectionId, NewApp, Reply, RuntimeCommand, RuntimeEvent, WaitMode};
use provost_session::Role;
use provost_shm::{AppRings, Doorbell, ServiceRings};
use provost_wire::limits::WINDOW_BYTES;
use std::sync::Arc;

use crate::Violation;
use crate::app::{AppMail, AppParts, Mailbox, SimApp, SimSegments, Turn};
use crate::compose::{self, EndSpec, LEDGER, LocalPeer, TransportHandle};
use crate::memory::SimSendHeap;
use crate::node::{NodeApp, NodeEnd, SimNode};
use crate::note::Service;
use crate::outcome::{Course, Fate, Memory};
use crate::platform::{SimClock, SimNetwork};
use crate::policy::CallLedger;
use crate::restart::{Restart, RestartOutcome};
use crate::trace::Trace;
use changes::Changes;
use faults::{Faults, NodeRoute};

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
/// Turns after which apps are told again to close their connections, and how often they are.
const TURNS_BETWEEN_CLOSES: u32 = 200;
/// See [`TURNS_BETWEEN_CLOSES`].
const CLOSES_MAX: u32 = 10_000;
/// How long an app waits before it connects again.
const RECONNECT_NS: u64 = 3_000_000;
/// How long the end of an app's process takes to be noticed, at most.
const DEATH_NOTICED_NS_MAX: u64 = 500_000;
/// How long an app may take to wake once it is rung for, at most.
const APP_WAKE_NS_MAX: u64 = 30_000;
/// How long an app or a worker may sleep though something waits for it: none at all would be exact, but who is to ring may
/// have to have its turn first.
const OVERSLEPT_NS_MAX: u64 = 5_000_000;
/// By how much a call may outlive its deadline as its app sees it, with a hot restart in between.
const DEADLINE_SLACK_NS: u64 = 12_000_000;

/// The size of a simulation and the faults in it.
#[derive(Clone, Copy, Debug)]
pub struct NodesOptions {
    /// All of it follows from this.
    pub seed: u64,
    /// Calls that are begun, over all clients.
    pub calls: u64,
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
    /// Engines that failed and were recovered from.
    pub engines_failed: u64,
    /// Turns of apps, workers and the control plane.
    pub turns: u64,
    /// Simulated time in nanoseconds.
    pub elapsed_ns: u64,
}

/// One connection between a client app and a server app.
struct PairState {
    server: usize,
    pipe: Option<PipeHandle>,
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
    fates: Vec<Fate>,
    faults: Faults,
    changes: Changes,
    memory: Memory,
    trace: Trace,
    begun: u64,
    /// Completion regions that apps of resting nodes have mapped: their node, their number, the region's.
    mapped_meanwhile: Vec<(usize, AppId, u64)>,
    report: NodesReport,
}

/// Runs one simulation of nodes to its end.
///
/// # Errors
/// Something happened that must not.
pub fn run_nodes(options: NodesOptions) -> Result<NodesReport, Violation> {
    let failed = |what: String| Violation {
        what,
        at: 0,
        trace: Vec::new(),
    };
    let mut world = NodesWorld::new(options).map_err(failed)?;
    match world.live() {
        Ok(()) => Ok(world.finished()),
        Err(what) => Err(Violation {
            what,
            at: world.clock.now() - BEGINS_AT,
            trace: world.trace.last_events(),
        }),
    }
}

/// Who has the next turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Actor {
    App(usize),
    Runtime(usize, usize),
    Restart(usize),
    Fault,
    Change,
    Notice(usize),
    Connect,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
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
            ledger: CallLedger::default(),
            apps: Vec::new(),
            pairs: Vec::new(),
            fates: Vec::new(),
            faults: Faults::new(random.number(), severity, memory, BEGINS_AT),
            changes: Changes::new(random.number(), BEGINS_AT),
            memory,
            trace: Trace::new(),
            begun: 0,
            mapped_meanwhile: Vec::new(),
            report: NodesReport::default(),
            random,
            clock,
            network,
        };
        let (clients, servers) = (world.random.between(1, 3), world.random.between(1, 2));
        for _ in 0..servers {
            world.attach(AppRole::Server, Honesty::Honest)?;
        }
        for _ in 0..clients {
            world.attach(AppRole::Client, Honesty::Honest)?;
        }
        if world.random.one_in(4) {
            world.attach(AppRole::Client, Honesty::Hostile)?;
        }
        Ok(world)
    }

    /// A new process attaches to some node.
    fn attach(&mut self, role: AppRole, honesty: Honesty) -> Result<(), String> {
        let node = self.random.below(self.nodes.len() as u64) as usize;
        self.attach_to(node, role, honesty)
    }

    fn attach_to(&mut self, node: usize, role: AppRole, honesty: Honesty) -> Result<(), String> {
        let now = self.clock.now();
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let slots = [16, 64, 256][self.random.below(3) as usize];
        let (rings, memory) = ServiceRings::create(slots, slots).map_err(|error| text(&error))?;
        let [submission, completion] = memory;
        let app_rings = AppRings::map(submission, slots, completion, slots).map_err(|error| text(&error))?;
        let (to_service, service_doorbell) = Doorbell::create().map_err(|error| text(&error))?;
        let (to_app, app_doorbell) = Doorbell::create().map_err(|error| text(&error))?;
        let mailbox = Mailbox::default();
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
        };
        self.apps.push(PlacedApp {
            node,
            process: Some(SimApp::new(parts, self.random.number(), now)),
            role,
            is_hostile: honesty == Honesty::Hostile,
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
            self.turn(Phase::Busy)?;
        }
        let settled_by = self.clock.now() + SETTLING_NS_MAX;
        while self.has_open_calls() || self.restarts.iter().any(Option::is_some) {
            self.turn(Phase::Settling)?;
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
    fn turn(&mut self, phase: Phase) -> Result<(), String> {
        self.report.turns += 1;
        if self.report.turns > TURNS_MAX {
            return Err(format!("the world works for ever: {}", self.describe()));
        }
        let Some((due, actor)) = self.next_actor(phase) else {
            return Err(format!("the world stands still: {}", self.describe()));
        };
        self.clock.advance_to(due);
        match actor {
            Actor::App(app) => self.app_turn(app),
            Actor::Runtime(node, runtime) => self.runtime_turn(node, runtime),
            Actor::Restart(node) => self.restart_turn(node),
            Actor::Fault => self.strike(),
            Actor::Change => self.change(),
            Actor::Notice(app) => self.notice_death(app),
            Actor::Connect => self.connect(),
        }
        .map_err(|what| format!("{actor:?}: {what}"))
    }

    fn next_actor(&self, phase: Phase) -> Option<(Nanos, Actor)> {
        let now = self.clock.now();
        let mut next: Option<(Nanos, Actor)> = None;
        let mut offer = |due: Nanos, actor: Actor| {
            if due != Nanos::MAX && next.is_none_or(|(best, _)| due < best) {
                next = Some((due, actor));
            }
        };
        for (at, app) in self.apps.iter().enumerate() {
            if let Some(process) = &app.process {
                offer(process.due, Actor::App(at));
            }
            offer(app.noticed_at.unwrap_or(Nanos::MAX), Actor::Notice(at));
            if phase == Phase::Busy && app.process.is_some() && app.role == AppRole::Client {
                for server in self
                    .servers()
                    .filter(|server| !app.connected.contains_key(server))
                {
                    let retry_at = app.retry_at.get(&server).copied().unwrap_or(now);
                    offer(retry_at.max(now), Actor::Connect);
                }
            }
        }
        for (at, node) in self.nodes.iter().enumerate() {
            for (number, runtime) in node.runtimes.iter().enumerate() {
                offer(runtime.due(now), Actor::Runtime(at, number));
            }
            let restart = self.restarts[at].as_ref().map_or(Nanos::MAX, Restart::due);
            offer(restart, Actor::Restart(at));
        }
        if phase == Phase::Busy {
            offer(self.faults.next_at(), Actor::Fault);
            offer(self.changes.next_at(), Actor::Change);
        }
        next
    }

    fn app_turn(&mut self, at: usize) -> Result<(), String> {
        let now = self.clock.now();
        let placed = &mut self.apps[at];
        let Some(process) = &mut placed.process else {
            return Ok(());
        };
        let mut turn = Turn {
            now,
            service: &self.service,
            fates: &self.fates,
            ledger: &self.ledger,
            trace: &mut self.trace,
            begun: &mut self.begun,
            calls_max: self.options.calls,
        };
        if placed.is_hostile && self.random.one_in(40) {
            process.submit_garbage();
        }
        let report = process.take_turn(&mut turn);
        let report = match report {
            Err(_) if placed.is_hostile => return self.kill(at),
            other => other?,
        };
        if !placed.is_hostile {
            process.check_deadlines(now, DEADLINE_SLACK_NS)?;
        }
        let (node, id) = (placed.node, process.parts.id);
        for pair in &report.closed {
            let server = self.pairs[*pair].server;
            if placed.connected.get(&server) == Some(pair) {
                placed.connected.remove(&server);
                placed.retry_at.insert(server, now + RECONNECT_NS);
            }
        }
        if let Some(generation) = report.mapped {
            self.mapped_meanwhile.push((node, id, generation));
            self.tell_of_regions(now)?;
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
    fn tell_of_regions(&mut self, now: Nanos) -> Result<(), String> {
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
        self.nodes[node].runtimes[runtime].poll(now);
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
            self.hear(node, event)?;
        }
        Ok(())
    }

    fn hear(&mut self, node: usize, event: RuntimeEvent) -> Result<(), String> {
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
            RuntimeEvent::EngineFailed(failed) => {
                self.report.engines_failed += 1;
                self.trace.note(&[6, now, failed.connection, failed.tag.0]);
                if failed.tag == LEDGER
                    && let Some(end) = self.nodes[node].ends.get(&failed.connection)
                {
                    self.fates[end.pair].worsen();
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
            match outcome {
                RestartOutcome::Replaced => self.report.hot_restarts += 1,
                RestartOutcome::WentOn => self.report.hot_restarts_undone += 1,
            }
            self.tell_of_regions(now)?;
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
        for connection in process.connections.values() {
            self.fates[connection.pair].worsen();
        }
        // Those that are still being opened as well.
        for pair in app.connected.values() {
            self.fates[*pair].worsen();
        }
        if !app.is_hostile {
            self.report.orphaned += process.open_calls() as u64;
            process.add_ends(&mut self.report.ends);
        }
        app.noticed_at = Some(now + self.random.below(DEATH_NOTICED_NS_MAX));
        app.connected.clear();
        Ok(())
    }

    fn notice_death(&mut self, at: usize) -> Result<(), String> {
        let now = self.clock.now();
        let (node, role, id) = (self.apps[at].node, self.apps[at].role, at as AppId + 1);
        if self.restarts[node].is_some() {
            // The control plane does one thing at a time.
            self.apps[at].noticed_at = Some(now + 100_000);
            return Ok(());
        }
        self.apps[at].noticed_at = None;
        self.nodes[node].send_to_app(id, RuntimeCommand::Detach(id), now)?;
        if self.apps[at].is_hostile {
            return Ok(());
        }
        // Another process takes its place.
        self.attach_to(node, role, Honesty::Honest)?;
        self.apps
            .iter_mut()
            .filter(|app| app.role == AppRole::Client)
            .for_each(|app| {
                app.retry_at.remove(&at);
            });
        Ok(())
    }

    /// Connects every client to every server to which it has no connection, after a pause.
    fn connect(&mut self) -> Result<(), String> {
        let now = self.clock.now();
        for client in 0..self.apps.len() {
            for server in 0..self.apps.len() {
                if self.wants(client, server, now) {
                    self.connect_pair(client, server)?;
                }
            }
        }
        Ok(())
    }

    fn wants(&mut self, client: usize, server: usize, now: Nanos) -> bool {
        let is = |app: &PlacedApp, role| app.role == role && app.process.is_some();
        if !is(&self.apps[client], AppRole::Client) || !is(&self.apps[server], AppRole::Server) {
            return false;
        }
        let rests = |at: usize| self.restarts[self.apps[at].node].is_some();
        let (rests_at, is_connected) = (
            rests(client) || rests(server),
            self.apps[client].connected.contains_key(&server),
        );
        let retry_at = self.apps[client].retry_at.entry(server).or_insert(now);
        if *retry_at > now || is_connected {
            return false;
        }
        if rests_at {
            *retry_at = now + 100_000;
            return false;
        }
        true
    }

    fn connect_pair(&mut self, client: usize, server: usize) -> Result<(), String> {
        let now = self.clock.now();
        let pair = self.pairs.len();
        let nodes = [self.apps[client].node, self.apps[server].node];
        let (route, mut fate) = self.faults.new_route(nodes[0] == nodes[1]);
        if self.apps[client].is_hostile {
            // What it says of its calls is its own affair.
            fate.course = Course::Damaged;
        }
        self.fates.push(fate);
        self.report.connections += 1;
        self.trace.note(&[7, now, pair as u64]);
        let ids = [2 * pair as ConnectionId, 2 * pair as ConnectionId + 1];
        let apps = [client as AppId + 1, server as AppId + 1];
        let links = [(); 2].map(|()| Arc::new(ConnectionSignals::new()));
        let wakers = [
            self.nodes[nodes[0]]
                .new_waker(apps[0])
                .ok_or("the client's app is not attached")?,
            self.nodes[nodes[1]]
                .new_waker(apps[1])
                .ok_or("the server's app is not attached")?,
        ];
        let mut pipe_of_pair = None;
        let mut made: Vec<(Box<dyn provost_datapath::Engine>, TransportHandle)> = Vec::new();
        let mut encoding = Encoding::Native;
        match route {
            NodeRoute::WithinNode => {
                let end = |at: usize| provost_transport_local::End {
                    link: Arc::clone(&links[at]),
                    wake: Arc::new(LocalPeer(Arc::clone(&wakers[at]))),
                };
                let (at_client, at_server) = provost_transport_local::connect(end(0), end(1), None);
                for transport in [at_client, at_server] {
                    let handle = TransportHandle::Local(transport.handle());
                    made.push((Box::new(transport), handle));
                }
            }
            NodeRoute::Network(pipe, setup) => {
                encoding = compose::encoding(&setup);
                for (at, role) in [Role::Client, Role::Server].into_iter().enumerate() {
                    let socket = self.network.open(&pipe, role);
                    let transport = compose::socket_end(&self.service, socket, setup, &links[at], now);
                    let handle = TransportHandle::Socket(transport.handle());
                    made.push((Box::new(transport), handle));
                }
                pipe_of_pair = Some(pipe);
            }
        }
        self.pairs.push(PairState {
            server,
            pipe: pipe_of_pair,
        });
        self.apps[client].connected.insert(server, pair);
        let roles = [AppRole::Client, AppRole::Server];
        for (at, (transport, handle)) in made.into_iter().enumerate() {
            let known = self.nodes[nodes[at]]
                .apps
                .get(&apps[at])
                .ok_or("an app is not attached")?;
            let mailbox = known.mailbox.clone();
            let spec = EndSpec {
                role: roles[at],
                service: self.service.clone(),
                encoding,
                send_heap: known.send_heap.clone(),
                quota: Arc::clone(&known.quota),
                ledger: self.ledger.clone(),
            };
            let datapath = spec.datapath(transport, &links[at]);
            let tags = datapath.1.iter().map(|fitted| fitted.tag).collect();
            let end = NodeEnd {
                pair,
                app: apps[at],
                spec,
                link: Arc::clone(&links[at]),
                waker: Arc::clone(&wakers[at]),
                transport: handle,
                tags,
            };
            let (accepted_for, opened) = match roles[at] {
                AppRole::Server => (Some(pair as u64), Reply::ignored()),
                AppRole::Client => (
                    None,
                    Reply::new(move |number| mailbox.post(AppMail::Opened(number, pair))),
                ),
            };
            self.nodes[nodes[at]].open(ids[at], end, datapath, accepted_for, opened, now)?;
        }
        Ok(())
    }

    /// Closes every connection and checks that nothing is left.
    fn close_all(&mut self) -> Result<(), String> {
        let now = self.clock.now();
        for app in &mut self.apps {
            if app.is_hostile && app.process.is_some() {
                app.noticed_at = Some(now);
                for connection in app.process.take().iter().flat_map(|app| app.connections.values()) {
                    self.fates[connection.pair].worsen();
                }
            }
        }
        for fate in &mut self.fates {
            fate.worsen();
        }
        let by = now + SETTLING_NS_MAX;
        let mut visits = 0;
        loop {
            visits += 1;
            for app in self.apps.iter_mut().filter_map(|app| app.process.as_mut()) {
                app.close_all(self.clock.now());
            }
            if self.nodes.iter().all(|node| node.ends.is_empty())
                && self.processes().all(|(_, app)| app.connections.is_empty())
            {
                break;
            }
            for _ in 0..TURNS_BETWEEN_CLOSES {
                if self.next_actor(Phase::Closing).is_none() {
                    break;
                }
                self.turn(Phase::Closing)?;
            }
            if self.clock.now() > by || visits > CLOSES_MAX {
                return Err(format!(
                    "connections that were closed do not end: {}",
                    self.describe()
                ));
            }
        }
        self.check_empty()
    }

    fn check_empty(&mut self) -> Result<(), String> {
        // What was given back last is on its way.
        let by = self.clock.now() + 50_000_000;
        while self.clock.now() < by {
            let now = self.clock.now();
            if self.next_actor(Phase::Closing).is_none_or(|(due, _)| due > by) {
                self.clock.advance_to(by);
                break;
            }
            self.turn(Phase::Closing)?;
            self.clock.advance_to(now + 1);
        }
        // Answers to changes hold the engines that went, and these count their calls until they are dropped.
        self.hear_of_changes(self.clock.now())?;
        for (at, app) in self.processes() {
            app.check_empty()
                .map_err(|what| format!("app {}: {what}", at + 1))?;
        }
        for (at, node) in self.nodes.iter().enumerate() {
            match node.open.get() {
                0 => {}
                open => {
                    return Err(format!(
                        "node {at}: {open} connections are counted that have ended"
                    ));
                }
            }
            for (id, app) in &node.apps {
                match app.quota.in_flight() {
                    0 => {}
                    calls => return Err(format!("app {id}: {calls} calls are counted that have ended")),
                }
            }
        }
        self.ledger.check().map(drop)
    }

    fn finished(&self) -> NodesReport {
        let mut report = self.report;
        for (_, process) in self.processes() {
            process.add_ends(&mut report.ends);
        }
        NodesReport {
            trace: self.trace.value(),
            calls: self.begun,
            elapsed_ns: self.clock.now() - BEGINS_AT,
            ..report
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
enum Honesty {
    Honest,
    Hostile,
}

/// How a call must not end: for who reads a report.
#[must_use]
pub fn ended(report: &NodesReport, code: Code) -> u64 {
    report.ends[code.number() as usize]
}
