//! The world: apps, their nodes' datapaths, the connections between them, time, and what goes wrong.

mod app;
mod faults;
mod hot_restart;

use provost_conformance::Random;
use provost_conformance::simulated::{PipeHandle, Setup};
use provost_datapath::Nanos;

use crate::Violation;
use crate::note::Service;
pub(crate) use crate::outcome::{Course, Fate, Memory, Outgoing, Received};
use crate::trace::Trace;
use app::{App, Work};
use faults::Faults;

/// Rounds of polls at one moment before the world is said to work for ever.
const ROUNDS_MAX: u32 = 200_000;
/// How long the world may take to come to rest when nothing new begins, in simulated nanoseconds.
const SETTLING_NS_MAX: u64 = 60_000_000_000;
/// How long a client waits before it connects again.
const RECONNECT_NS: u64 = 3_000_000;

/// The size of a simulation and the faults in it.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// All of it follows from this.
    pub seed: u64,
    /// Calls that are begun, over all clients.
    pub calls: u64,
}

/// What a run came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// A fingerprint of every event in order.
    pub trace: u64,
    /// Calls that were begun.
    pub calls: u64,
    /// How they ended: by status code, and (last) given up by the client.
    pub ends: [u64; 18],
    /// Calls whose client crashed.
    pub orphaned: u64,
    /// Connections that were made.
    pub connections: u64,
    /// What went wrong on purpose.
    pub faults: u64,
    /// How often engines were replaced by successors.
    pub hot_restarts: u64,
    /// Simulated time in nanoseconds.
    pub elapsed_ns: u64,
}

/// How a client's node reaches a server's.
#[derive(Clone)]
enum Route {
    /// They are one.
    WithinNode,
    /// Over a network that behaves as it pleases.
    Network(PipeHandle, Setup),
}

/// One connection between a client app and a server app.
struct Connection {
    route: Route,
    fate: Fate,
}

impl Connection {
    fn pipe(&self) -> Option<&PipeHandle> {
        match &self.route {
            Route::WithinNode => None,
            Route::Network(pipe, _) => Some(pipe),
        }
    }

    /// Lets something happen to it, if it has a network for it to happen to.
    fn suffer(&mut self, blow: impl FnOnce(&PipeHandle)) {
        if let Some(pipe) = self.pipe() {
            blow(pipe);
            self.fate.worsen();
        }
    }
}

struct World {
    options: Options,
    now: Nanos,
    random: Random,
    service: Service,
    clients: Vec<App>,
    servers: Vec<App>,
    connections: Vec<Connection>,
    faults: Faults,
    trace: Trace,
    begun: u64,
    report: Report,
}

/// Runs one simulation to its end.
pub fn run(options: Options) -> Result<Report, Violation> {
    let mut world = World::new(options);
    match world.live() {
        Ok(()) => Ok(world.report()),
        Err(what) => Err(Violation {
            what,
            at: world.now,
            trace: world.trace.last_events(),
        }),
    }
}

impl World {
    fn new(options: Options) -> World {
        let mut random = Random::new(options.seed);
        let service = Service::load();
        let (clients, servers) = (random.between(1, 4), random.between(1, 3));
        // Some worlds are short of memory.
        let (memory, receive_bytes) = match random.below(4) {
            0 => (Memory::Tight, 1 << 20),
            _ => (Memory::Ample, 64 << 20),
        };
        let app = |random: &mut Random| App::new(random.number(), receive_bytes);
        World {
            options,
            now: 1_000_000_000,
            clients: (0..clients).map(|_| app(&mut random)).collect(),
            servers: (0..servers).map(|_| app(&mut random)).collect(),
            faults: Faults::new(random.number(), random.below(4), memory),
            random,
            service,
            connections: Vec::new(),
            trace: Trace::new(),
            begun: 0,
            report: Report {
                trace: 0,
                calls: 0,
                ends: [0; 18],
                orphaned: 0,
                connections: 0,
                faults: 0,
                hot_restarts: 0,
                elapsed_ns: 0,
            },
        }
    }

    fn live(&mut self) -> Result<(), String> {
        while self.begun < self.options.calls {
            self.strike();
            self.connect();
            self.moment()?;
            self.pass_time(Phase::Busy)?;
        }
        let settled_by = self.now + SETTLING_NS_MAX;
        while self.has_open_calls() {
            self.moment()?;
            if self.now > settled_by {
                return Err(format!(
                    "calls are open long after the last began: {}",
                    self.describe()
                ));
            }
            self.pass_time(Phase::Settling)?;
        }
        self.close_all()
    }

    fn has_open_calls(&self) -> bool {
        self.clients
            .iter()
            .chain(&self.servers)
            .any(|app| app.open_calls() > 0)
    }

    /// Polls everything until nothing moves at this moment.
    fn moment(&mut self) -> Result<(), String> {
        for _ in 0..ROUNDS_MAX {
            if !self.round()? {
                return self
                    .clients
                    .iter()
                    .try_for_each(|client| client.check_deadlines(self.now));
            }
        }
        Err(format!("the datapaths work for ever: {}", self.describe()))
    }

    fn round(&mut self) -> Result<bool, String> {
        let fates = fates(&self.connections);
        let mut work = Work {
            now: self.now,
            fates: &fates,
            trace: &mut self.trace,
            begun: &mut self.begun,
            hot_restarts: &mut self.report.hot_restarts,
            calls: self.options.calls,
        };
        let mut busy = false;
        for (at, app) in self.clients.iter_mut().chain(&mut self.servers).enumerate() {
            busy |= app.work(&mut work).map_err(|what| format!("app {at}: {what}"))?;
        }
        Ok(busy)
    }

    /// Goes on to the next moment at which something can happen.
    fn pass_time(&mut self, phase: Phase) -> Result<(), String> {
        let begins = phase == Phase::Busy;
        let apps = self.clients.iter().chain(&self.servers);
        let app_wakes = apps.filter_map(|app| app.wake_at(begins, self.now));
        let pipes = self
            .connections
            .iter()
            .filter_map(|connection| connection.pipe()?.moves_at());
        let faults = begins.then(|| self.faults.next_at()).into_iter();
        // What was due is done; what is still not done waits for something else.
        let wake_at = app_wakes
            .chain(pipes)
            .chain(faults)
            .filter(|at| *at > self.now)
            .min();
        match wake_at {
            Some(at) => self.now = at,
            None if phase != Phase::Busy && !self.has_open_calls() => self.now += 1_000_000,
            None => return Err(format!("the world stands still: {}", self.describe())),
        }
        Ok(())
    }

    /// Connects every client to every server to which it has no connection, after a pause.
    fn connect(&mut self) {
        for client in 0..self.clients.len() {
            for server in 0..self.servers.len() {
                if !self.clients[client].wants(server, self.now) {
                    continue;
                }
                let number = self.connections.len();
                let (route, fate) = self.faults.new_route(self.random.number());
                let ends = app::ends(&self.service, &route, self.now, number);
                self.connections.push(Connection { route, fate });
                self.clients[client].attach_client(ends.client, server, &self.service, self.now);
                self.servers[server].attach_server(ends.server, &self.service);
                self.report.connections += 1;
            }
        }
    }

    /// Lets go wrong what is due.
    fn strike(&mut self) {
        while self.faults.next_at() <= self.now {
            self.report.faults += 1;
            let blow = self.faults.draw(self.now);
            self.trace.note(&[9, self.now, self.report.faults]);
            self.suffer(blow);
        }
    }

    fn suffer(&mut self, blow: faults::Blow) {
        match blow {
            faults::Blow::Cut(random) => {
                if let Some(connection) = self.pick(random) {
                    connection.suffer(PipeHandle::break_now);
                }
            }
            faults::Blow::Stall(random, until) => {
                if let Some(connection) = self.pick(random) {
                    connection.suffer(|pipe| pipe.stall_until(until));
                }
            }
            faults::Blow::Drain(random) => {
                let server = random as usize % self.servers.len();
                self.servers[server].drain(&mut self.connections);
            }
            faults::Blow::Close(random) => {
                let client = random as usize % self.clients.len();
                self.clients[client].close(&mut self.connections);
            }
            faults::Blow::CrashClient(random) => {
                let client = random as usize % self.clients.len();
                self.report.orphaned += self.clients[client].open_calls() as u64;
                let seed = self.random.number();
                self.clients[client].crash(
                    seed,
                    &mut self.connections,
                    &mut self.report,
                    self.now + RECONNECT_NS,
                );
            }
            faults::Blow::CrashServer(random) => {
                let server = random as usize % self.servers.len();
                let seed = self.random.number();
                self.servers[server].crash(seed, &mut self.connections, &mut self.report, 0);
            }
        }
    }

    fn pick(&mut self, random: u64) -> Option<&mut Connection> {
        // The younger half: the others are mostly gone.
        let count = self.connections.len();
        let from = count / 2;
        self.connections
            .get_mut(from + random as usize % (count - from).max(1))
    }

    /// Closes every connection and checks that nothing is left.
    fn close_all(&mut self) -> Result<(), String> {
        for app in &mut self.clients {
            app.close(&mut self.connections);
        }
        let by = self.now + SETTLING_NS_MAX;
        while self.clients.iter().chain(&self.servers).any(App::has_connections) {
            self.moment()?;
            if self.now > by {
                return Err("connections that were closed do not end".to_owned());
            }
            self.pass_time(Phase::Closing)?;
        }
        self.moment()?;
        for (at, app) in self.clients.iter().chain(&self.servers).enumerate() {
            app.check_empty().map_err(|what| format!("app {at}: {what}"))?;
        }
        Ok(())
    }

    fn report(&self) -> Report {
        let mut report = self.report;
        for client in &self.clients {
            client.add_ends(&mut report.ends);
        }
        Report {
            trace: self.trace.value(),
            calls: self.begun,
            elapsed_ns: self.now - 1_000_000_000,
            ..report
        }
    }

    fn describe(&self) -> String {
        let apps = self.clients.iter().chain(&self.servers).enumerate();
        let connected = apps.filter(|(_, app)| app.has_connections());
        connected
            .map(|(at, app)| format!("app {at}: {}", app.describe()))
            .collect::<Vec<_>>()
            .join(" | ")
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Busy,
    Settling,
    Closing,
}

fn fates(connections: &[Connection]) -> Vec<Fate> {
    connections.iter().map(|connection| connection.fate).collect()
}
