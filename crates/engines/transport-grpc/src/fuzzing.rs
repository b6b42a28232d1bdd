//! What must hold of any bytes whatever, for fuzzers: each function panics if it does not.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use provost_datapath::{
    BlockContent, Body, BufferPool, ConnectionSignals, Context, EncodedBody, Engine, FieldReader, FlowHints,
    ForeignBytes, HeapFull, NotSaved, Ports, PrivateBytes, Progress, Queue, ReceiveHeap, ReceivedBlock,
    RestoreError, Restorer, SavedState, Saver, SocketHint, Step,
};
use provost_grpc::{GrpcConfig, GrpcConnection, GrpcEvent, GrpcStatus, MessageForm, ResponseHead};
use provost_http2::DataChunk;
use provost_wire::descriptor::Parts;

use crate::chunk::MessageChunk;
use crate::engine::empty_places;
use crate::{
    ByteCarrier, GrpcLink, GrpcMethod, GrpcTransport, GrpcTransportConfig, GrpcTransportParts, PLAIN_CARRIER,
    RestoredTransportParts,
};

/// Bytes of an input that its server says as well.
const SAID_BYTES_MAX: usize = 2_000;
/// Polls before the connection is closed, and after.
const POLLS: u64 = 6;
/// Steps that the app takes in one poll.
const STEPS_MAX: usize = 64;
/// The methods: a unary one, and one of streams both ways.
const UNARY: u16 = 0;
const CHAT: u16 = 1;

/// A server that says this, and takes whatever it is told, until it is gone.
struct RecordedServer {
    says: Vec<u8>,
    is_gone: Arc<AtomicBool>,
    socket: OwnedFd,
}

impl Read for RecordedServer {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.says.len().min(into.len());
        if count == 0 && !self.is_gone.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        into[..count].copy_from_slice(&self.says[..count]);
        self.says.drain(..count);
        Ok(count)
    }
}

impl Write for RecordedServer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for RecordedServer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// What is beside a state: nothing.
struct NothingBeside;

impl Restorer for NothingBeside {
    fn block(&mut self, saved: ReceivedBlock) -> Result<ReceivedBlock, NotSaved> {
        Err(NotSaved::Block { at: saved.at })
    }

    fn foreign(&mut self, kept: u32) -> Result<ForeignBytes, NotSaved> {
        Err(NotSaved::Foreign { kept })
    }
}

impl ReceiveHeap for NothingBeside {
    fn allocate(&mut self, _bytes: u32) -> Result<ReceivedBlock, HeapFull> {
        Err(HeapFull)
    }

    fn bytes_mut(&mut self, _block: &mut ReceivedBlock) -> &mut [u8] {
        &mut []
    }

    fn free(&mut self, _block: ReceivedBlock) {}
}

/// Saves for a process that reads the newest form. What these engines have names nothing beside it.
struct ToNewest;

impl Saver for ToNewest {
    fn newest_form(&self, _kind: &str) -> u32 {
        u32::MAX
    }

    fn foreign(&mut self, _bytes: &ForeignBytes, _out: &mut Vec<u8>) {}

    fn block(&mut self, _block: &ReceivedBlock, _content: BlockContent) {}
}

fn methods() -> Arc<[GrpcMethod]> {
    let method = |name: &str, streams: bool| GrpcMethod {
        path: format!("/a.B/{name}"),
        client_streaming: streams,
        server_streaming: streams,
    };
    [method("Unary", false), method("Chat", true)].into()
}

/// What surrounds an engine: the app's end of its connection, and servers that say this at the other ends of its links.
#[derive(Default)]
struct FuzzedSurroundings<'a> {
    says: &'a [u8],
    servers_are_gone: Arc<AtomicBool>,
    signals: Arc<ConnectionSignals>,
}

/// The engine that is made of a state. Without sockets, nothing can be tried.
fn restored(state: &SavedState, around: &FuzzedSurroundings<'_>) -> Option<GrpcTransport> {
    let (first, second) = UnixStream::pair().ok()?;
    let (third, fourth) = UnixStream::pair().ok()?;
    let parts = RestoredTransportParts {
        sockets: [first, second, third, fourth].map(OwnedFd::from).into(),
        carrier: &mut |socket, fields| carrier(socket, fields, around),
        dialer: &mut |_| Box::new(|_| Err(io::ErrorKind::ConnectionRefused.into())),
        methods: methods(),
        config: GrpcTransportConfig::default(),
        share: PrivateBytes::of_node(),
        list: Arc::default(),
        signals: Arc::clone(&around.signals),
        restorer: &mut NothingBeside,
        now: 1,
    };
    GrpcTransport::restore(state, parts).ok()
}

fn carrier(
    socket: OwnedFd,
    fields: &mut FieldReader<'_>,
    around: &FuzzedSurroundings<'_>,
) -> Result<Box<dyn ByteCarrier>, RestoreError> {
    match fields.u8()? {
        PLAIN_CARRIER => Ok(Box::new(RecordedServer {
            says: around.says.to_vec(),
            is_gone: Arc::clone(&around.servers_are_gone),
            socket,
        })),
        _ => Err(fields.damaged("another carrier")),
    }
}

/// An engine, and the app at the other end of its datapath.
struct FuzzedApp {
    engine: GrpcTransport,
    signals: Arc<ConnectionSignals>,
    tx: Queue<Step>,
    rx: Queue<Step>,
    buffers: BufferPool,
    now: u64,
    /// How often each call has ended.
    ends: BTreeMap<u64, u32>,
}

impl FuzzedApp {
    fn beside(engine: GrpcTransport, signals: Arc<ConnectionSignals>) -> FuzzedApp {
        FuzzedApp {
            engine,
            signals,
            tx: Queue::with_bound(2 * STEPS_MAX),
            rx: Queue::with_bound(STEPS_MAX),
            buffers: BufferPool::new(),
            now: 1,
            ends: BTreeMap::new(),
        }
    }

    fn poll(&mut self) -> Progress {
        self.now += 1_000_000;
        let mut context = Context {
            socket: SocketHint::Try,
            flow: FlowHints::default(),
            now: self.now,
            buffers: &mut self.buffers,
            receive: &mut NothingBeside,
            sent: &mut Vec::new(),
        };
        let ports = Ports {
            tx_in: &mut self.tx,
            tx_out: &mut Queue::with_bound(0),
            rx_in: &mut Queue::with_bound(0),
            rx_out: &mut self.rx,
        };
        self.engine.do_work(ports, &mut context)
    }

    /// Takes what the app is told, and gives back the window that it had.
    fn take_steps(&mut self) {
        while let Some(step) = self.rx.pop() {
            if step.parts.intersects(Parts::STATUS | Parts::CANCEL) {
                *self.ends.entry(step.call).or_default() += 1;
            } else if step.parts.contains(Parts::MESSAGE) {
                // A queue that is full is that of an app which is slow.
                let _ = self.tx.push(Step {
                    window_bytes: step.window_bytes,
                    ..Step::new(step.call, Parts::WINDOW)
                });
            }
        }
    }

    /// Takes what the app is told when no server is there any more: it may be one step in a poll. Whether the connection has ended.
    fn outlive_servers(&mut self, steps: usize) -> bool {
        self.signals.close();
        (0..steps as u64 + POLLS).any(|_| {
            let progress = self.poll();
            self.take_steps();
            progress == Progress::Ended
        })
    }
}

/// Takes a form and any bytes as what was saved of an engine. One that is accepted is saved as what is accepted again; it goes on with
/// what its server says next. When no server is there any more, it has ended each of its calls once, and ends.
///
/// # Panics
/// If it does not.
pub fn saved(input: &[u8]) {
    let Some((form, bytes)) = input.split_first() else {
        return;
    };
    let state = SavedState {
        kind: crate::KIND.to_owned(),
        version: u32::from(*form),
        bytes: bytes.to_vec(),
    };
    let around = FuzzedSurroundings {
        says: &bytes[bytes.len().saturating_sub(SAID_BYTES_MAX)..],
        ..FuzzedSurroundings::default()
    };
    let Some(engine) = restored(&state, &around) else {
        return;
    };
    let again = engine.save(&mut ToNewest);
    let twice = restored(&again, &FuzzedSurroundings::default()).map(|twice| twice.save(&mut ToNewest));
    assert_eq!(
        twice.as_ref(),
        Some(&again),
        "what was restored is saved otherwise"
    );
    let refused: Vec<u64> = engine.refusals.iter().map(|step| step.call).collect();
    let under_way: Vec<u64> = engine.calls.keys().copied().collect();
    let mut app = FuzzedApp::beside(engine, around.signals);
    for _ in 0..POLLS {
        app.poll();
        app.take_steps();
    }
    around.servers_are_gone.store(true, Ordering::Relaxed);
    // Bytes that a message has at least in a state bound the steps that may wait.
    let has_ended = app.outlive_servers(bytes.len());
    assert!(has_ended, "the connection does not end: {:?}", app.ends);
    for call in refused.iter().chain(&under_way) {
        let refusals = refused.iter().filter(|refused| *refused == call).count();
        let calls = under_way.iter().filter(|known| *known == call).count();
        let ends = app.ends.get(call).copied().unwrap_or_default() as usize;
        assert_eq!(ends, calls + refusals, "so often call {call} has ended");
    }
}

/// States to start from: calls of which something has come and is not read, and one that has ended; the same as the oldest form has
/// it; a connection without calls; several connections with calls.
///
/// # Panics
/// If the engine does not do what it does elsewhere.
#[must_use]
pub fn saved_seeds() -> Vec<Vec<u8>> {
    let (mut busy, mut socket) = engine_and_server();
    for call in 1..=4 {
        busy.begin(call, if call % 2 == 0 { UNARY } else { CHAT });
    }
    busy.poll();
    let said = answers(&mut socket);
    // The last bytes do not come.
    busy.engine.take_input(0, &said[..said.len() - 3]);
    // The app takes a part.
    busy.rx = Queue::with_bound(1);
    busy.poll();
    let (idle, _socket) = engine_and_server();
    let (several, _sockets) = engine_with_several();
    let states = [
        busy.engine.save(&mut ToNewest),
        busy.engine.saved_calls(),
        idle.engine.save(&mut ToNewest),
        several.engine.save(&mut ToNewest),
    ];
    assert_eq!(states.each_ref().map(|state| state.version), [2, 1, 2, 3]);
    let seed = |state: SavedState| [&[state.version as u8], &state.bytes[..]].concat();
    states.map(seed).to_vec()
}

fn engine_and_server() -> (FuzzedApp, UnixStream) {
    let (client, server) = UnixStream::pair().expect("a pair of sockets");
    for socket in [&client, &server] {
        socket.set_nonblocking(true).expect("a socket");
    }
    let config = GrpcTransportConfig::default();
    let signals = Arc::new(ConnectionSignals::new());
    let parts = GrpcTransportParts {
        link: GrpcLink::new(Box::new(client), &config, 1),
        dialer: Box::new(|_| Err(io::ErrorKind::ConnectionRefused.into())),
        server: b"server".to_vec(),
        authority: "a".to_owned(),
        methods: methods(),
        config,
        list: Arc::default(),
        signals: Arc::clone(&signals),
    };
    let engine = GrpcTransport::new(parts, 1);
    (FuzzedApp::beside(engine, signals), server)
}

/// One with three connections, on each of which calls are under way.
fn engine_with_several() -> (FuzzedApp, Vec<UnixStream>) {
    let config = GrpcTransportConfig {
        connections_max: 2,
        ..GrpcTransportConfig::default()
    };
    let (mut app, first) = engine_and_server();
    app.engine.config = config;
    app.engine.links = empty_places(&config);
    let mut servers = vec![first];
    for at in [0, 1, 3] {
        let (client, server) = UnixStream::pair().expect("a pair of sockets");
        client.set_nonblocking(true).expect("a socket");
        app.engine
            .put_link(at, GrpcLink::new(Box::new(client), &config, 1));
        servers.push(server);
    }
    for call in 1..=4 {
        app.begin(call, CHAT);
        app.poll();
    }
    let links: BTreeSet<usize> = app.engine.streams.keys().map(|place| place.link).collect();
    assert_eq!(links, BTreeSet::from([0, 1, 3]), "calls are on all of them");
    (app, servers)
}

/// What a server says that answers each call with a message, and ends the last one.
fn answers(socket: &mut UnixStream) -> Vec<u8> {
    let mut heard = [0; 16 << 10];
    let bytes = socket.read(&mut heard).expect("calls have come");
    let mut server = GrpcConnection::<MessageChunk>::server(GrpcConfig::default(), 1);
    let (mut taken, mut calls) = (0, Vec::new());
    loop {
        let received = server.receive(&heard[taken..bytes], 1);
        let received = received.expect("the engine keeps the rules");
        taken += received.consumed;
        match received.event {
            Some(GrpcEvent::Request { call, .. }) => calls.push(call),
            Some(_) => {}
            None => break,
        }
    }
    for call in &calls {
        let answered = server.respond(*call, &ResponseHead::default(), 1);
        answered.expect("a call has come");
        let message = MessageChunk::from_saved(vec![7; 300]);
        let sent = server.send_message(*call, MessageForm::Plain, message, 1);
        sent.map_err(|(fault, _)| fault).expect("room for a message");
    }
    if let Some(last) = calls.last() {
        let ended = server.finish(*last, &GrpcStatus::ok(), &[], 1);
        ended.expect("a call has come");
    }
    server.fill(1);
    server.copied_output()
}

impl FuzzedApp {
    fn begin(&mut self, call: u64, method: u16) {
        let mut step = Step::new(call, Parts::BEGIN | Parts::MESSAGE);
        if method == UNARY {
            step.parts = step.parts | Parts::END;
        }
        step.method = method;
        step.deadline = 1 << 40;
        step.body = Body::Encoded(EncodedBody::of(&[], &[5; 40], self.buffers.take()));
        self.tx.push(step).expect("room for a step");
    }
}
