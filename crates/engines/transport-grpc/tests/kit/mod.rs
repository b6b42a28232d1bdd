//! An engine, the app's end of its datapath that the test plays, and a server of `provost_grpc` behind a socket pair.
#![allow(dead_code, reason = "each test file uses a part of it")]

pub(crate) mod sealed;

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use provost_conformance::TestHeap;
use provost_conformance::fixtures::FromFixture;
use provost_datapath::{
    BlockContent, Body, BufferPool, ConnectionSignals, Context, EncodedBody, Engine, FieldReader,
    FieldWriter, FlowHints, ForeignBytes, Ports, PrivateBytes, Progress, Queue, ReceivedBlock, RestoreError,
    SavedState, Saver, SocketHint, Step, TransportEngine, duplicate_descriptors, message_offset,
};
use provost_grpc::{
    GrpcConfig, GrpcConnection, GrpcEvent, GrpcStatus, MessageForm, RequestHead, ResponseHead,
};
use provost_http2::{Http2Config, SendError};
use provost_transport_grpc::{
    ByteCarrier, GrpcLink, GrpcMethod, GrpcTransport, GrpcTransportConfig, GrpcTransportParts, LinkDialer,
    PLAIN_CARRIER, RestoredTransportParts,
};
use provost_wire::Code;
use provost_wire::descriptor::Parts;
use provost_wire::limits::STREAM_MESSAGE_COST_BYTES;
use provost_wire::metadata;

pub(crate) const UNARY: u16 = 0;
pub(crate) const UPLOAD: u16 = 1;
pub(crate) const DOWNLOAD: u16 = 2;
pub(crate) const CHAT: u16 = 3;
pub(crate) const SECOND_NS: u64 = 1_000_000_000;
/// Rounds without anything moving, after which everything rests.
const IDLE_ROUNDS: usize = 4;

pub(crate) type ServerEnd = GrpcConnection<Arc<[u8]>>;

/// The server's end of a link.
pub(crate) struct TestServer {
    pub(crate) grpc: ServerEnd,
    socket: UnixStream,
    /// What has come and was not taken.
    pub(crate) input: Vec<u8>,
    pub(crate) events: VecDeque<GrpcEvent>,
    /// Whether it takes what comes.
    pub(crate) reads: bool,
    pub(crate) has_ended: bool,
}

impl TestServer {
    pub(crate) fn new(socket: UnixStream, config: GrpcConfig, now: u64) -> TestServer {
        socket.set_nonblocking(true).unwrap();
        TestServer {
            grpc: ServerEnd::server(config, now),
            socket,
            input: Vec::new(),
            events: VecDeque::new(),
            reads: true,
            has_ended: false,
        }
    }

    /// Moves bytes both ways; whether there were some.
    pub(crate) fn work(&mut self, now: u64) -> bool {
        let mut moved = self.write(now);
        let mut bytes = [0; 32 << 10];
        while self.reads && !self.has_ended {
            match self.socket.read(&mut bytes) {
                Ok(0) => self.has_ended = true,
                Ok(count) => {
                    moved = true;
                    self.input.extend_from_slice(&bytes[..count]);
                }
                Err(_) => break,
            }
        }
        self.take_input(now);
        moved | self.write(now)
    }

    fn take_input(&mut self, now: u64) {
        loop {
            let received = self
                .grpc
                .receive(&self.input, now)
                .expect("the client keeps the rules");
            self.input.drain(..received.consumed);
            match received.event {
                Some(event) => self.events.push_back(event),
                None => return,
            }
        }
    }

    fn write(&mut self, now: u64) -> bool {
        let mut moved = false;
        loop {
            self.grpc.fill(now);
            let output = self.grpc.copied_output();
            match self.socket.write(&output) {
                Ok(0) | Err(_) => return moved,
                Ok(count) => {
                    moved = true;
                    self.grpc.advance(count, now);
                }
            }
        }
    }

    /// Says something that its protocol would not.
    pub(crate) fn say(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).unwrap();
    }

    /// GOAWAY: streams above this one were not begun.
    pub(crate) fn go_away(&mut self, last_stream: u32) {
        let mut frame = vec![0, 0, 8, 7, 0, 0, 0, 0, 0];
        frame.extend_from_slice(&last_stream.to_be_bytes());
        frame.extend_from_slice(&0_u32.to_be_bytes());
        self.say(&frame);
    }

    /// DATA with messages without bytes, which is so long.
    pub(crate) fn say_empty_messages(&mut self, stream: u32, bytes: usize) {
        let mut frame = (bytes as u32).to_be_bytes()[1..].to_vec();
        frame.extend_from_slice(&[0, 0]);
        frame.extend_from_slice(&stream.to_be_bytes());
        frame.resize(frame.len() + bytes, 0);
        self.say(&frame);
    }

    /// RST_STREAM with this code of HTTP/2.
    pub(crate) fn reset(&mut self, stream: u32, code: u32) {
        let mut frame = vec![0, 0, 4, 3, 0];
        frame.extend_from_slice(&stream.to_be_bytes());
        frame.extend_from_slice(&code.to_be_bytes());
        self.say(&frame);
    }

    /// The next request, which must have come.
    pub(crate) fn request(&mut self) -> (u32, RequestHead) {
        let at = self
            .events
            .iter()
            .position(|event| matches!(event, GrpcEvent::Request { .. }));
        match self.events.remove(at.expect("a request has come")) {
            Some(GrpcEvent::Request { call, head }) => (call, head),
            other => panic!("{other:?}"),
        }
    }

    /// The messages that have come of a call.
    pub(crate) fn messages(&mut self, of: u32) -> Vec<Vec<u8>> {
        let mut messages = Vec::new();
        self.events.retain_mut(|event| match event {
            GrpcEvent::Message { call, message } if *call == of => {
                messages.push(std::mem::take(&mut message.bytes));
                false
            }
            _ => true,
        });
        messages
    }

    /// As [`TestServer::messages`], and their sender may send as much again.
    pub(crate) fn read_messages(&mut self, of: u32) -> Vec<Vec<u8>> {
        let messages = self.messages(of);
        messages
            .iter()
            .for_each(|message| self.grpc.consume(of, message.len()));
        messages
    }

    pub(crate) fn is_half_closed(&self, of: u32) -> bool {
        self.events.contains(&GrpcEvent::HalfClosed { call: of })
    }

    /// How a call ended for the server, if it did.
    pub(crate) fn end_of(&self, of: u32) -> Option<Code> {
        self.events.iter().find_map(|event| match event {
            GrpcEvent::Ended { call, status, .. } if *call == of => Some(status.code),
            _ => None,
        })
    }

    pub(crate) fn respond(&mut self, call: u32, metadata: Vec<u8>, now: u64) {
        let head = ResponseHead {
            metadata,
            ..ResponseHead::default()
        };
        self.grpc.respond(call, &head, now).unwrap();
    }

    /// Sends a message; whether there was room for it.
    pub(crate) fn send(&mut self, call: u32, message: &[u8], now: u64) -> bool {
        match self
            .grpc
            .send_message(call, MessageForm::Plain, message.into(), now)
        {
            Ok(()) => true,
            Err((provost_grpc::CallFault::Http2(SendError::QueueFull), _)) => false,
            Err((fault, _)) => panic!("{fault}"),
        }
    }

    /// Answers a call as a whole.
    pub(crate) fn answer(&mut self, call: u32, message: &[u8], now: u64) {
        self.respond(call, Vec::new(), now);
        assert!(self.send(call, message, now));
        self.grpc.finish(call, &GrpcStatus::ok(), &[], now).unwrap();
    }
}

/// A step as the app gets it, its body copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ToldStep {
    pub(crate) call: u64,
    pub(crate) parts: Parts,
    pub(crate) status: Code,
    pub(crate) window_bytes: u32,
    pub(crate) metadata: Vec<(String, Vec<u8>)>,
    pub(crate) message: Vec<u8>,
}

impl ToldStep {
    pub(crate) fn reason(&self) -> String {
        let reason = self
            .metadata
            .iter()
            .find(|(key, _)| key == metadata::STATUS_MESSAGE);
        reason
            .map(|(_, value)| String::from_utf8(value.clone()).unwrap())
            .unwrap_or_default()
    }
}

/// Servers that have been dialled, or none that can be.
pub(crate) type DialledLinks = Arc<Mutex<Vec<UnixStream>>>;

/// A dialer that notes whom it has reached.
fn dialer(dialled: &DialledLinks) -> LinkDialer {
    let dialled = Arc::clone(dialled);
    Box::new(move |_| {
        let (client, server) = UnixStream::pair()?;
        client.set_nonblocking(true)?;
        dialled.lock().unwrap().push(server);
        Ok(Box::new(client) as Box<dyn ByteCarrier>)
    })
}

/// A dialer that reaches nobody.
pub(crate) fn nobody() -> LinkDialer {
    Box::new(|_| Err(io::ErrorKind::ConnectionRefused.into()))
}

/// Saves for a process that reads the newest form. These states name nothing beside them.
pub(crate) struct ToSuccessor;

impl Saver for ToSuccessor {
    fn newest_form(&self, _kind: &str) -> u32 {
        u32::MAX
    }

    fn foreign(&mut self, _bytes: &ForeignBytes, _out: &mut Vec<u8>) {
        unreachable!("messages are private");
    }

    fn block(&mut self, _block: &ReceivedBlock, _content: BlockContent) {
        unreachable!("messages are private");
    }
}

/// What a successor has beside a state.
pub(crate) struct SuccessorParts {
    pub(crate) sockets: Vec<OwnedFd>,
    pub(crate) config: GrpcTransportConfig,
    pub(crate) share: Arc<PrivateBytes>,
    pub(crate) signals: Arc<ConnectionSignals>,
    pub(crate) now: u64,
}

/// The engine that a successor makes of a state. `dialer` makes what connects once more.
pub(crate) fn restored(
    state: &SavedState,
    parts: SuccessorParts,
    dialer: impl FnOnce() -> LinkDialer,
) -> Result<GrpcTransport, RestoreError> {
    let mut dialer = Some(dialer);
    let parts = RestoredTransportParts {
        sockets: parts.sockets,
        carrier: &mut |socket, fields| match fields.u8()? {
            PLAIN_CARRIER => Ok(Box::new(UnixStream::from(socket)) as Box<dyn ByteCarrier>),
            sealed::SEALED_CARRIER => sealed::SealedCarrier::restored(UnixStream::from(socket), fields),
            _ => Err(fields.damaged("another carrier")),
        },
        dialer: &mut |server| {
            let known = dialer.take().filter(|_| server == SERVER);
            known.map_or_else(nobody, |dialer| dialer())
        },
        methods: methods(),
        config: parts.config,
        share: parts.share,
        list: Arc::default(),
        signals: parts.signals,
        restorer: &mut FromFixture::default(),
        now: parts.now,
    };
    GrpcTransport::restore(state, parts)
}

/// What the server is, for whoever dials.
const SERVER: &[u8] = b"the server";

pub(crate) struct TransportRig {
    pub(crate) engine: GrpcTransport,
    pub(crate) signals: Arc<ConnectionSignals>,
    pub(crate) tx: Queue<Step>,
    pub(crate) rx: Queue<Step>,
    pub(crate) buffers: BufferPool,
    pub(crate) heap: TestHeap,
    pub(crate) server: TestServer,
    /// Links that the engine has opened by itself.
    pub(crate) dialled: DialledLinks,
    pub(crate) server_config: GrpcConfig,
    pub(crate) config: GrpcTransportConfig,
    /// In which share messages count that a successor is given.
    pub(crate) share: Arc<PrivateBytes>,
    /// Calls that the app has under way before the engine.
    pub(crate) calls: usize,
    pub(crate) now: u64,
    pub(crate) progress: Progress,
}

impl TransportRig {
    pub(crate) fn new() -> TransportRig {
        TransportRig::with(GrpcTransportConfig::default(), GrpcConfig::default())
    }

    /// Against a server that allows so many calls at a time.
    pub(crate) fn allowing(streams_max: u32) -> TransportRig {
        let http2 = Http2Config {
            streams_max,
            ..Http2Config::default()
        };
        let server = GrpcConfig {
            http2,
            ..GrpcConfig::default()
        };
        TransportRig::with(GrpcTransportConfig::default(), server)
    }

    pub(crate) fn with(config: GrpcTransportConfig, server_config: GrpcConfig) -> TransportRig {
        TransportRig::over(|client| Box::new(client), config, server_config)
    }

    /// Over something that has the socket of the first link.
    pub(crate) fn over(
        carrier: impl FnOnce(UnixStream) -> Box<dyn ByteCarrier>,
        config: GrpcTransportConfig,
        server_config: GrpcConfig,
    ) -> TransportRig {
        let now = SECOND_NS;
        let (client, server) = UnixStream::pair().unwrap();
        client.set_nonblocking(true).unwrap();
        let signals = Arc::new(ConnectionSignals::new());
        let dialled = DialledLinks::default();
        let engine = GrpcTransport::new(
            GrpcTransportParts {
                link: GrpcLink::new(carrier(client), &config, now),
                dialer: dialer(&dialled),
                server: SERVER.to_vec(),
                authority: "greeter.test:50051".to_owned(),
                methods: methods(),
                config,
                list: Arc::default(),
                signals: Arc::clone(&signals),
            },
            now,
        );
        let mut rig = TransportRig {
            engine,
            signals,
            tx: Queue::with_bound(8_192),
            rx: Queue::with_bound(1_024),
            buffers: BufferPool::new(),
            heap: TestHeap::default(),
            server: TestServer::new(server, server_config, now),
            dialled,
            server_config,
            config,
            share: PrivateBytes::of_node(),
            calls: 0,
            now,
            progress: Progress::Idle,
        };
        rig.run();
        rig
    }

    /// Another process goes on with the engine, which had come so far.
    pub(crate) fn restart(&mut self) {
        let state = self.engine.save(&mut ToSuccessor);
        let mut link = FieldWriter::new();
        self.signals.save(&mut link);
        let signals = ConnectionSignals::restore(&mut FieldReader::new("link", &link.bytes)).unwrap();
        self.signals = Arc::new(signals);
        let parts = SuccessorParts {
            sockets: duplicate_descriptors(&self.engine).unwrap(),
            config: self.config,
            share: Arc::clone(&self.share),
            signals: Arc::clone(&self.signals),
            now: self.now,
        };
        let dialled = Arc::clone(&self.dialled);
        self.engine = restored(&state, parts, || dialer(&dialled)).unwrap();
    }

    /// Polls the engine once.
    pub(crate) fn poll(&mut self) -> Progress {
        let (mut tx_out, mut rx_in) = (Queue::with_bound(0), Queue::with_bound(0));
        let ports = Ports {
            tx_in: &mut self.tx,
            tx_out: &mut tx_out,
            rx_in: &mut rx_in,
            rx_out: &mut self.rx,
        };
        let mut sent = Vec::new();
        let mut context = Context {
            socket: SocketHint::Try,
            flow: FlowHints {
                calls: self.calls,
                ..FlowHints::default()
            },
            now: self.now,
            buffers: &mut self.buffers,
            receive: &mut self.heap,
            sent: &mut sent,
        };
        self.progress = self.engine.do_work(ports, &mut context);
        self.progress
    }

    /// Lets everything move until it rests.
    pub(crate) fn run(&mut self) {
        let mut idle = 0;
        while idle < IDLE_ROUNDS {
            let moved = self.poll() == Progress::Busy;
            let served = self.server.work(self.now);
            idle = if moved || served { 0 } else { idle + 1 };
        }
    }

    /// Goes on to a later time, by the timers of the engine.
    pub(crate) fn advance(&mut self, by_ns: u64) {
        let until = self.now + by_ns;
        while let Some(due) = self.engine.wake_at().filter(|due| *due <= until) {
            self.now = self.now.max(due);
            self.run();
            self.now += 1_000_000;
        }
        self.now = self.now.max(until);
        self.run();
    }

    /// The link that the engine has opened by itself becomes the server's; the first one goes on as it is.
    pub(crate) fn next_server(&mut self) -> TestServer {
        let socket = self.dialled.lock().unwrap().pop().expect("a link was opened");
        let next = TestServer::new(socket, self.server_config, self.now);
        std::mem::replace(&mut self.server, next)
    }

    /// The server is gone.
    pub(crate) fn next_server_is_none(&mut self) {
        let (_, server) = UnixStream::pair().unwrap();
        let mut next = TestServer::new(server, self.server_config, self.now);
        next.has_ended = true;
        self.server = next;
    }

    /// The server says what it has to say, and is gone.
    pub(crate) fn serve_and_leave(&mut self) {
        self.server.work(self.now);
        self.next_server_is_none();
    }

    /// What the app was told since.
    pub(crate) fn told(&mut self) -> Vec<ToldStep> {
        let mut told = Vec::new();
        while let Some(step) = self.rx.pop() {
            told.push(copied(step));
        }
        told
    }

    pub(crate) fn push(&mut self, step: Step) {
        self.tx.push(step).expect("the queue has room");
    }

    /// A call that has all that it says in its first step.
    pub(crate) fn call(&mut self, id: u64, method: u16, message: &[u8]) {
        self.push(begin(id, method, Parts::MESSAGE | Parts::END, &[], Some(message)));
    }

    /// A call that begins without a message.
    pub(crate) fn open(&mut self, id: u64, method: u16) {
        self.push(begin(id, method, Parts::NONE, &[], None));
    }

    pub(crate) fn send(&mut self, id: u64, message: &[u8]) {
        let mut step = Step::new(id, Parts::MESSAGE);
        step.window_bytes = message.len() as u32 + STREAM_MESSAGE_COST_BYTES;
        step.body = body(&[], message);
        self.push(step);
    }

    pub(crate) fn end(&mut self, id: u64) {
        self.push(Step::new(id, Parts::END));
    }

    pub(crate) fn cancel(&mut self, id: u64) {
        self.push(Step::cancel(id, Code::Cancelled));
    }

    pub(crate) fn give_back(&mut self, id: u64, window_bytes: u32) {
        self.push(Step {
            window_bytes,
            ..Step::new(id, Parts::WINDOW)
        });
    }

    /// The one thing that the app was told.
    pub(crate) fn told_once(&mut self) -> ToldStep {
        let mut told = self.told();
        assert_eq!(told.len(), 1, "{told:?}");
        told.remove(0)
    }

    pub(crate) fn watches(&self) -> bool {
        self.engine.interest().is_some()
    }
}

pub(crate) fn begin(id: u64, method: u16, parts: Parts, block: &[u8], message: Option<&[u8]>) -> Step {
    let mut step = Step::new(id, Parts::BEGIN | parts);
    step.method = method;
    if message.is_some() || !block.is_empty() {
        step.body = body(block, message.unwrap_or_default());
    }
    step
}

pub(crate) fn block(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut block = Vec::new();
    for (key, value) in entries {
        metadata::append(&mut block, key, value).unwrap();
    }
    block
}

pub(crate) fn body(block: &[u8], message: &[u8]) -> Body {
    let mut buffer = provost_datapath::Buffer::with_capacity(0);
    buffer.bytes.extend_from_slice(block);
    buffer.bytes.resize(message_offset(block.len() as u32), 0);
    buffer.bytes.extend_from_slice(message);
    Body::Encoded(EncodedBody::plain(
        buffer,
        block.len() as u32,
        message.len() as u32,
    ))
}

fn copied(step: Step) -> ToldStep {
    let (block, message) = match &step.body {
        Body::Empty => (Vec::new(), Vec::new()),
        Body::Encoded(body) => {
            let (metadata_bytes, bytes) = (body.metadata_bytes, &body.buffer.bytes);
            let from = message_offset(metadata_bytes);
            let message = bytes[from..from + body.message_bytes as usize].to_vec();
            (bytes[..metadata_bytes as usize].to_vec(), message)
        }
        other => panic!("{other:?}"),
    };
    metadata::check(&block).unwrap();
    let entries = metadata::entries(&block).map(|(key, value)| (key.to_owned(), value.to_vec()));
    ToldStep {
        call: step.call,
        parts: step.parts,
        status: step.status,
        window_bytes: step.window_bytes,
        metadata: entries.collect(),
        message,
    }
}

fn methods() -> Arc<[GrpcMethod]> {
    let method = |name: &str, client_streaming, server_streaming| GrpcMethod {
        path: format!("/greeter.Greeter/{name}"),
        client_streaming,
        server_streaming,
    };
    [
        method("Unary", false, false),
        method("Upload", true, false),
        method("Download", false, true),
        method("Chat", true, true),
    ]
    .into()
}
