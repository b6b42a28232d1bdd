//! One app and what its node keeps for it: heaps, and a datapath for each connection.

use std::sync::Arc;

use provost_conformance::Random;
use provost_conformance::simulated::{self, PipeHandle, Setup};
use provost_datapath::{
    Body, BufferPool, ConnectionSignals, Context, Datapath, Engine, FlowHints, Nanos, Progress, SocketHint,
    Step, Untrusted, message_offset,
};
use provost_frontend::{AppRole, CallQuota, Frontend};
use provost_marshalling::{Encoding, Marshalling};
use provost_policies::NullPolicy;
use provost_session::Role;
use provost_session::handshake::{self, Agreement};
use provost_transport_local::{LocalTransport, PeerWake};
use provost_wire::descriptor::Parts;

use super::hot_restart::{Lineage, TransportHandle};
use super::{Connection, Fate, Outgoing, Received, Report, Route};
use crate::client::{Client, PolicyOfCalls};
use crate::memory::{SimReceiveHeap, SimSendHeap};
use crate::note::{self, NOTE_BYTES, Service};
use crate::server::Server;
use crate::trace::Trace;

/// Bytes of every send heap.
const SEND_HEAP_BYTES: u64 = 64 << 20;
/// Calls that a server takes over all its connections.
const SERVER_CALLS_MAX: u32 = 10_000;
/// Steps that an app takes in or hands out in one poll of a connection.
const BATCH_STEPS: usize = 32;

/// An app.
pub(super) struct App {
    random: Random,
    receive: SimReceiveHeap,
    receive_bytes: usize,
    send: SimSendHeap,
    buffers: BufferPool,
    sent: Vec<u64>,
    paths: Vec<Path>,
    quota: Arc<CallQuota>,
    /// When this client may connect again, by server.
    retry_at: Vec<Nanos>,
    /// How calls of connections that are gone ended.
    ends: [u64; 18],
}

/// One connection of an app.
struct Path {
    number: usize,
    /// Which server it goes to (client's side).
    server: Option<usize>,
    datapath: Datapath,
    lineage: Lineage,
    link: Arc<ConnectionSignals>,
    mind: Mind,
    closing: bool,
}

enum Mind {
    Client(Box<Client>),
    Server(Box<Server>),
}

/// What all apps share while they work.
pub(super) struct Work<'a> {
    pub(super) now: Nanos,
    pub(super) fates: &'a [Fate],
    pub(super) trace: &'a mut Trace,
    pub(super) begun: &'a mut u64,
    pub(super) hot_restarts: &'a mut u64,
    pub(super) calls: u64,
}

/// The two transports of a new connection.
pub(super) struct Ends {
    pub(super) client: End,
    pub(super) server: End,
}

/// One of them.
pub(super) struct End {
    number: usize,
    transport: Box<dyn Engine>,
    handle: TransportHandle,
    link: Arc<ConnectionSignals>,
    encoding: Encoding,
}

/// Makes the ends of a connection.
pub(super) fn ends(service: &Service, route: &Route, now: Nanos, number: usize) -> Ends {
    match route {
        Route::WithinNode => local_ends(number),
        Route::Network(pipe, setup) => Ends {
            client: network_end(service, pipe, *setup, Role::Client, now, number),
            server: network_end(service, pipe, *setup, Role::Server, now, number),
        },
    }
}

fn network_end(
    service: &Service,
    pipe: &PipeHandle,
    setup: Setup,
    role: Role,
    now: Nanos,
    number: usize,
) -> End {
    let methods = service
        .kinds
        .iter()
        .enumerate()
        .map(|(at, kind)| Some((at as u16, *kind)))
        .collect();
    let agreement = Agreement {
        encoding: setup.encoding,
        peer_limits: setup.limits,
        methods,
    };
    let link = Arc::new(ConnectionSignals::new());
    let transport = simulated::transport(role, pipe.clone(), setup, agreement, link.clone(), now);
    let encoding = match setup.encoding {
        handshake::Encoding::Native => Encoding::Native,
        handshake::Encoding::Protobuf => Encoding::Protobuf,
    };
    End {
        number,
        handle: TransportHandle::Pipe(transport.carrier().handle()),
        transport: Box::new(transport),
        link,
        encoding,
    }
}

/// The simulator polls every datapath in each round.
struct Polled;

impl PeerWake for Polled {
    fn wake(&self) {}
}

fn local_ends(number: usize) -> Ends {
    let end = || provost_transport_local::End {
        link: Arc::new(ConnectionSignals::new()),
        wake: Arc::new(Polled),
    };
    let (client, server) = (end(), end());
    let links = (client.link.clone(), server.link.clone());
    let (client, server) = provost_transport_local::connect(client, server, None);
    let end = |transport: LocalTransport, link| End {
        number,
        handle: TransportHandle::Local(transport.handle()),
        transport: Box::new(transport),
        link,
        encoding: Encoding::Native,
    };
    Ends {
        client: end(client, links.0),
        server: end(server, links.1),
    }
}

impl App {
    pub(super) fn new(seed: u64, receive_bytes: usize) -> App {
        App {
            random: Random::new(seed),
            receive: SimReceiveHeap::new(receive_bytes),
            receive_bytes,
            send: SimSendHeap::new(SEND_HEAP_BYTES),
            buffers: BufferPool::new(),
            sent: Vec::new(),
            paths: Vec::new(),
            quota: Arc::new(CallQuota::new(SERVER_CALLS_MAX)),
            retry_at: Vec::new(),
            ends: [0; 18],
        }
    }

    pub(super) fn open_calls(&self) -> usize {
        self.paths.iter().map(|path| path.mind.open_calls()).sum()
    }

    pub(super) fn has_connections(&self) -> bool {
        !self.paths.is_empty()
    }

    /// Whether this client shall connect to a server now.
    pub(super) fn wants(&mut self, server: usize, now: Nanos) -> bool {
        if self.retry_at.len() <= server {
            self.retry_at.resize(server + 1, 0);
        }
        !self.paths.iter().any(|path| path.server == Some(server)) && self.retry_at[server] <= now
    }

    pub(super) fn attach_client(&mut self, end: End, server: usize, service: &Service, now: Nanos) {
        let mind = Client::new(
            self.random.number(),
            service.kinds.clone(),
            PolicyOfCalls::None,
            now,
        );
        self.attach(
            end,
            AppRole::Client,
            Some(server),
            Mind::Client(Box::new(mind)),
            service,
        );
    }

    pub(super) fn attach_server(&mut self, end: End, service: &Service) {
        let mind = Server::new(service.kinds.clone());
        self.attach(end, AppRole::Server, None, Mind::Server(Box::new(mind)), service);
    }

    fn attach(&mut self, end: End, role: AppRole, server: Option<usize>, mind: Mind, service: &Service) {
        let lineage = Lineage {
            role,
            service: service.clone(),
            encoding: end.encoding,
            send_heap: self.send.for_service(),
            quota: self.quota.clone(),
            transport: end.handle,
            random: Random::new(self.random.number()),
        };
        let frontend = Frontend::new(lineage.frontend(end.link.clone()));
        let marshalling = Marshalling::new(lineage.marshalling());
        let engines: Vec<Box<dyn Engine>> = vec![
            Box::new(frontend),
            Box::new(NullPolicy),
            Box::new(marshalling),
            end.transport,
        ];
        self.paths.push(Path {
            number: end.number,
            server,
            datapath: Datapath::new(engines, end.link.clone()),
            lineage,
            link: end.link,
            mind,
            closing: false,
        });
    }

    /// Lets the app act and its datapaths work, once; says whether anything moved.
    pub(super) fn work(&mut self, work: &mut Work<'_>) -> Result<bool, String> {
        let mut busy = false;
        let mut at = 0;
        while at < self.paths.len() {
            let fate = work.fates[self.paths[at].number];
            busy |= self.act(at, fate, work);
            busy |= self.succeed(at, work)?;
            let progress = self.poll(at, work.now);
            busy |= progress == Progress::Busy;
            busy |= self.take_in(at, fate, work)?;
            self.take_tokens()?;
            if progress == Progress::Ended && self.paths[at].datapath.to_app().is_empty() {
                self.detach(at, work)?;
                busy = true;
            } else {
                at += 1;
            }
        }
        Ok(busy)
    }

    /// Perhaps replaces engines by successors.
    fn succeed(&mut self, at: usize, work: &mut Work<'_>) -> Result<bool, String> {
        let path = &mut self.paths[at];
        let succeeded = path
            .lineage
            .perhaps_succeed(&mut path.datapath, &mut self.receive, work.now)?;
        if succeeded {
            work.trace.note(&[4, work.now, path.number as u64]);
            *work.hot_restarts += 1;
        }
        Ok(succeeded)
    }

    /// Hands out what the app wants to send, as far as there is room.
    fn act(&mut self, at: usize, fate: Fate, work: &mut Work<'_>) -> bool {
        let mut busy = false;
        let path = &mut self.paths[at];
        if let Mind::Client(client) = &mut path.mind
            && *work.begun < work.calls
            && !path.closing
            && client.begin(*work.begun, fate, work.now)
        {
            *work.begun += 1;
            busy = true;
        }
        for _ in 0..BATCH_STEPS {
            let path = &mut self.paths[at];
            if path.datapath.from_app().is_full() {
                break;
            }
            let next = match &mut path.mind {
                Mind::Client(client) => client.next_step(work.now),
                Mind::Server(server) => server.next_step(work.now),
            };
            let Some(out) = next else {
                break;
            };
            let step = self.write(out);
            work.trace.note(&[
                1,
                work.now,
                self.paths[at].number as u64,
                step.call,
                u64::from(step.parts.0),
            ]);
            let _ = self.paths[at].datapath.from_app().push(step);
            busy = true;
        }
        busy
    }

    /// Writes metadata and message into the send heap, as an app library does.
    fn write(&mut self, out: Outgoing) -> Step {
        let message_bytes = out
            .message
            .as_ref()
            .map_or(0, |(_, payload)| NOTE_BYTES + payload.len());
        if message_bytes == 0 && out.metadata.is_empty() {
            return out.step;
        }
        let metadata_at = message_bytes.next_multiple_of(8);
        let block = self
            .send
            .prepare(metadata_at + out.metadata.len())
            .expect("the send heap is large enough");
        let mut untrusted = Untrusted {
            root: 0,
            metadata: 0,
            metadata_bytes: out.metadata.len() as u32,
            token: 0,
        };
        let mut bytes = Vec::new();
        if let Some((seed, payload)) = &out.message {
            bytes = note::encode(block.at, *seed, payload);
            untrusted.root = block.at;
        }
        bytes.resize(metadata_at, 0);
        bytes.extend_from_slice(&out.metadata);
        if !out.metadata.is_empty() {
            untrusted.metadata = block.at + (metadata_at / 8) as u32;
        }
        self.send.write(&block, &bytes);
        untrusted.token = self.send.lend(block);
        Step {
            body: Body::Untrusted(untrusted),
            ..out.step
        }
    }

    fn poll(&mut self, at: usize, now: Nanos) -> Progress {
        let mut context = Context {
            socket: SocketHint::Try,
            flow: FlowHints::default(),
            now,
            buffers: &mut self.buffers,
            receive: &mut self.receive,
            sent: &mut self.sent,
        };
        let path = &mut self.paths[at];
        let progress = path.datapath.poll(&mut context);
        if path.closing && path.datapath.is_flushed() && !path.link.close_requested() {
            path.link.close();
            return Progress::Busy;
        }
        progress
    }

    /// Reads what came, checks it, and gives its memory back.
    fn take_in(&mut self, at: usize, fate: Fate, work: &mut Work<'_>) -> Result<bool, String> {
        let mut busy = false;
        for _ in 0..BATCH_STEPS {
            let Some(step) = self.paths[at].datapath.to_app().pop() else {
                break;
            };
            busy = true;
            let got = self.read(step)?;
            let number = self.paths[at].number as u64;
            let length = got
                .message
                .as_ref()
                .map_or(0, |(_, payload)| payload.len() as u64);
            let status = u64::from(got.status.number());
            work.trace.note(&[
                2,
                work.now,
                number,
                got.call,
                u64::from(got.parts.0),
                status,
                length,
            ]);
            match &mut self.paths[at].mind {
                Mind::Client(client) => client.receive(&got, fate, work.now)?,
                Mind::Server(server) => server.receive(&got, fate, work.now)?,
            }
        }
        Ok(busy)
    }

    fn read(&mut self, step: Step) -> Result<Received, String> {
        let (metadata, message) = match step.body {
            Body::Empty => (Vec::new(), None),
            Body::Received(body) => {
                let metadata = self.receive.read(body.block.at, body.metadata_bytes as usize);
                let metadata = metadata.ok_or("metadata outside the receive heap")?.to_vec();
                let root = body.block.at + (message_offset(body.metadata_bytes) / 8) as u32;
                let message = if step.parts.contains(Parts::MESSAGE) {
                    Some(self.read_note(root)?)
                } else {
                    None
                };
                provost_datapath::ReceiveHeap::free(&mut self.receive, body.block);
                (metadata, message)
            }
            other => return Err(format!("an app was given {other:?}")),
        };
        Ok(Received {
            call: step.call,
            parts: step.parts,
            method: step.method,
            status: step.status,
            window_bytes: step.window_bytes,
            metadata,
            message,
        })
    }

    fn read_note(&self, root: u32) -> Result<(u64, Vec<u8>), String> {
        let bytes = self
            .receive
            .read(root, NOTE_BYTES)
            .ok_or("a message outside the receive heap")?;
        let (seed, at, length) = note::decode(bytes).ok_or("a message that is cut short")?;
        let payload = match length {
            0 => &[],
            _ => self
                .receive
                .read(at, length as usize)
                .ok_or("a payload outside the receive heap")?,
        };
        Ok((seed, payload.to_vec()))
    }

    fn take_tokens(&mut self) -> Result<(), String> {
        for token in self.sent.drain(..) {
            if !self.send.take_back(token) {
                return Err(format!("token {token} came back twice"));
            }
        }
        Ok(())
    }

    /// A connection has ended: its calls must have, too.
    fn detach(&mut self, at: usize, work: &mut Work<'_>) -> Result<(), String> {
        let mut path = self.paths.remove(at);
        work.trace.note(&[3, work.now, path.number as u64]);
        let mut context = Context {
            socket: SocketHint::Skip,
            flow: FlowHints::default(),
            now: work.now,
            buffers: &mut self.buffers,
            receive: &mut self.receive,
            sent: &mut self.sent,
        };
        path.datapath.discard_all(&mut context);
        self.take_tokens()?;
        // What the app had not handed over yet never began.
        if let Mind::Client(client) = &mut path.mind {
            client.forget_unbegun();
            add(&mut self.ends, &client.ends);
        }
        if let (Some(server), false) = (path.server, self.retry_at.is_empty()) {
            self.retry_at[server] = work.now + super::RECONNECT_NS;
        }
        match path.mind.open_calls() {
            0 => Ok(()),
            open => Err(format!(
                "{open} calls are open on a connection that has ended: {}",
                path.mind.describe()
            )),
        }
    }

    /// The node asks every peer of this app to begin nothing new.
    pub(super) fn drain(&mut self, connections: &mut [Connection]) {
        for path in &self.paths {
            path.link.drain();
            connections[path.number].fate.worsen();
        }
    }

    /// The app closes its connections, whatever is in flight.
    pub(super) fn close(&mut self, connections: &mut [Connection]) {
        for path in &mut self.paths {
            path.closing = true;
            connections[path.number].fate.worsen();
        }
    }

    /// The app dies: its memory and connections with it; another one takes its place.
    pub(super) fn crash(
        &mut self,
        seed: u64,
        connections: &mut [Connection],
        report: &mut Report,
        retry_at: Nanos,
    ) {
        for path in &self.paths {
            connections[path.number].fate.worsen();
        }
        self.add_ends(&mut report.ends);
        let servers = self.retry_at.len();
        *self = App::new(seed, self.receive_bytes);
        self.retry_at = vec![retry_at; servers];
    }

    pub(super) fn wake_at(&self, begins: bool, now: Nanos) -> Option<Nanos> {
        let minds = self.paths.iter().filter_map(|path| match &path.mind {
            Mind::Client(client) => client.wake_at(begins && !path.closing),
            Mind::Server(server) => server.wake_at(now),
        });
        let datapaths = self.paths.iter().filter_map(|path| path.datapath.wake_at());
        let retries = self.retry_at.iter().copied().filter(|at| begins && *at > now);
        minds.chain(datapaths).chain(retries).min()
    }

    pub(super) fn check_deadlines(&self, now: Nanos) -> Result<(), String> {
        self.paths.iter().try_for_each(|path| match &path.mind {
            Mind::Client(client) => client.check_deadlines(now, crate::TICK_NS),
            Mind::Server(_) => Ok(()),
        })
    }

    /// Whether all its memory has come back.
    pub(super) fn check_empty(&self) -> Result<(), String> {
        let (blocks, lent, calls) = (
            self.receive.live_blocks(),
            self.send.lent_blocks(),
            self.quota.in_flight(),
        );
        match (blocks, lent, calls) {
            (0, 0, 0) => Ok(()),
            _ => Err(format!(
                "{blocks} blocks, {lent} tokens and {calls} calls are left"
            )),
        }
    }

    pub(super) fn add_ends(&self, ends: &mut [u64; 18]) {
        add(ends, &self.ends);
        for path in &self.paths {
            if let Mind::Client(client) = &path.mind {
                add(ends, &client.ends);
            }
        }
    }

    pub(super) fn describe(&self) -> String {
        self.paths
            .iter()
            .map(Path::describe)
            .collect::<Vec<_>>()
            .join("; ")
    }
}

impl Path {
    fn describe(&self) -> String {
        let state = match (self.closing, self.link.ended()) {
            (_, Some(end)) => format!("ended ({})", end.reason),
            (true, None) => "closing".to_owned(),
            (false, None) => "open".to_owned(),
        };
        let queues = match (self.datapath.is_flushed(), self.datapath.is_blocked()) {
            (true, false) => "",
            (true, true) => ", with steps for its app",
            (false, _) => ", with steps of its app",
        };
        format!(
            "connection {} is {state}{queues}: {}",
            self.number,
            self.mind.describe()
        )
    }
}

fn add(sum: &mut [u64; 18], more: &[u64; 18]) {
    sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
}

impl Mind {
    fn open_calls(&self) -> usize {
        match self {
            Mind::Client(client) => client.open_calls(),
            Mind::Server(server) => server.open_calls(),
        }
    }

    fn describe(&self) -> String {
        match self {
            Mind::Client(client) => client.describe(),
            Mind::Server(server) => server.describe(),
        }
    }
}
