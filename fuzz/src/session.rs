//! Targets of `provost-session`: what a peer sends, during the handshake and after it.

use provost_datapath::{
    BufferPool, Context, FlowHints, HeapFull, MissingMethods, ReceiveHeap, ReceivedBlock, SocketHint,
};
use provost_session::handshake::{
    Agreement, ClientHandshake, Decision, Encoding, Hello, Limits, Method, MethodKind, ServerEvent,
    ServerHandshake,
};
use provost_session::{Config, Connection, Piece, Role};
use provost_wire::descriptor::Parts;
use provost_wire::frame::{FrameHeader, frame_kind};
use zerocopy::IntoBytes;

/// Bytes that a read of the target brings at most; it varies with the input.
const READ_BYTES_MAX: usize = 97;
/// What the app of the target may hold, in bytes.
const HEAP_BYTES: usize = 32 << 10;

fn methods() -> Vec<Method> {
    let method = |name: &str, client_streaming, server_streaming| Method {
        name: name.into(),
        kind: MethodKind {
            client_streaming,
            server_streaming,
        },
    };
    vec![
        method("Get", false, false),
        method("Load", true, false),
        method("Scan", false, true),
    ]
}

fn hello() -> Hello {
    Hello {
        service: "kv.Kv".into(),
        schema_hash: [7; 32],
        methods: methods(),
        limits: Limits::default(),
        caller: None,
    }
}

/// Both ends of a handshake take any bytes. An end that fails says no to its peer, and never more than once.
pub(crate) fn handshake(input: &[u8]) {
    let mut client = ClientHandshake::new(&hello(), vec![1, 2, 3]);
    for part in reads(input) {
        if client.input(part).is_err() {
            break;
        }
    }
    let mut server = ServerHandshake::new();
    for part in reads(input) {
        let Ok(event) = server.input(part) else { break };
        let decision = match event {
            ServerEvent::Hello if input.len().is_multiple_of(2) => Decision::NeedSchema,
            ServerEvent::Hello | ServerEvent::Schema(_) => Decision::Welcome {
                encoding: Encoding::Native,
                methods: methods(),
                limits: Limits::default(),
            },
            ServerEvent::Pending => continue,
            ServerEvent::Done { .. } => break,
        };
        if !matches!(server.decide(decision), Ok(ServerEvent::Pending)) {
            break;
        }
    }
}

pub(crate) fn handshake_seeds() -> Vec<Vec<u8>> {
    let mut client = ClientHandshake::new(&hello(), vec![1, 2, 3]);
    let from_client = client.output();
    let mut server = ServerHandshake::new();
    let mut seeds = vec![from_client.clone()];
    if server.input(&from_client).is_ok() {
        let _ = server.decide(Decision::NeedSchema);
        let from_server = server.output();
        let _ = client.input(&from_server);
        seeds.push([from_client, client.output()].concat());
        seeds.push(from_server);
    }
    seeds
}

/// A connection takes any bytes in reads of any length. Whatever came, it gives every block back and ends every call
/// when it is over.
pub(crate) fn connection(input: &[u8]) {
    for (role, encoding) in [
        (Role::Server, Encoding::Native),
        (Role::Client, Encoding::Native),
        (Role::Server, Encoding::Protobuf),
    ] {
        let mut surroundings = Surroundings::default();
        let mut connection = Connection::new(config(role, encoding), 0);
        for part in reads(input) {
            if connection.input(part, &mut surroundings.context()).is_err() {
                break;
            }
            drain(&mut connection, &mut surroundings);
        }
        connection.end(
            provost_wire::Code::Unavailable,
            "the end",
            &mut surroundings.context(),
        );
        drain(&mut connection, &mut surroundings);
        assert_eq!(connection.calls_in_flight(), 0, "a call outlived its connection");
        assert_eq!(surroundings.heap.held, 0, "a block outlived its connection");
    }
}

pub(crate) fn connection_seeds() -> Vec<Vec<u8>> {
    let request = Parts::BEGIN | Parts::MESSAGE | Parts::END;
    let unary = frame(frame_kind::STEP, request, 1, 0, &[9; 24], 24);
    let streamed = [
        frame(frame_kind::STEP, Parts::BEGIN, 2, 1, &[], 0),
        frame(frame_kind::STEP, Parts::MESSAGE, 2, 0, &[1; 16], 40),
        frame(frame_kind::CHUNK, Parts::NONE, 2, 0, &[2; 24], 0),
        frame(frame_kind::STEP, Parts::END, 2, 0, &[], 0),
    ]
    .concat();
    let others = [
        frame(frame_kind::PING, Parts::NONE, 0, 0, &[], 0),
        frame(frame_kind::GO_AWAY, Parts::NONE, 0, 0, &[], 0),
        frame(frame_kind::STEP, Parts::CANCEL, 1, 0, &[], 0),
        frame(frame_kind::STEP, Parts::WINDOW, 2, 0, &[], 0),
    ]
    .concat();
    let response = frame(frame_kind::STEP, Parts::MESSAGE | Parts::STATUS, 1, 0, &[3; 8], 8);
    vec![
        [unary.clone(), streamed.clone()].concat(),
        [unary, others.clone()].concat(),
        response,
        streamed,
        others,
    ]
}

fn frame(kind: u8, parts: Parts, call: u64, method: u16, body: &[u8], message_bytes: u32) -> Vec<u8> {
    let header = FrameHeader {
        body_bytes: (body.len() as u32).into(),
        kind,
        parts,
        method: method.into(),
        call: call.into(),
        message_bytes: message_bytes.into(),
        ..FrameHeader::default()
    };
    [header.as_bytes(), body].concat()
}

pub(crate) fn config(role: Role, encoding: Encoding) -> Config {
    let methods = methods()
        .into_iter()
        .enumerate()
        .map(|(at, method)| Some((at as u16, method.kind)))
        .collect();
    let limits = Limits {
        message_bytes_max: 4096,
        stream_window_bytes: 4096,
        calls_in_flight_max: 8,
    };
    Config {
        role,
        agreement: Agreement {
            encoding,
            peer_limits: limits,
            methods,
            missing: MissingMethods::default(),
        },
        limits,
        keepalive_interval_ns: 0,
        keepalive_timeout_ns: 0,
    }
}

/// The input cut into reads, of lengths that depend on it.
fn reads(input: &[u8]) -> impl Iterator<Item = &[u8]> {
    let bytes = input
        .first()
        .map_or(1, |first| 1 + usize::from(*first) % READ_BYTES_MAX);
    input.chunks(bytes)
}

/// Takes what the connection has for its app and for its peer.
pub(crate) fn drain(connection: &mut Connection, surroundings: &mut Surroundings) {
    while let Some(step) = connection.poll_step(&mut surroundings.context()) {
        if let provost_datapath::Body::Received(body) = step.body {
            surroundings.heap.free(body.block);
        }
    }
    connection.fill(&mut surroundings.context());
    let bytes = |piece: Piece<'_>| match piece {
        Piece::Private(bytes) => bytes.len(),
        Piece::Foreign { length, .. } => length as usize,
    };
    let waiting = connection.pieces().map(bytes).sum();
    connection.advance(waiting, &mut surroundings.context());
}

/// What a runtime lends a connection.
#[derive(Default)]
pub(crate) struct Surroundings {
    buffers: BufferPool,
    pub(crate) heap: CountingHeap,
    sent: Vec<u64>,
}

impl Surroundings {
    pub(crate) fn context(&mut self) -> Context<'_> {
        Context {
            socket: SocketHint::Try,
            flow: FlowHints::default(),
            now: 1,
            buffers: &mut self.buffers,
            receive: &mut self.heap,
            sent: &mut self.sent,
        }
    }
}

/// A heap that counts its blocks. Their memory is shared, as nothing here reads it.
pub(crate) struct CountingHeap {
    memory: Vec<u8>,
    pub(crate) held: usize,
    next: u32,
}

impl Default for CountingHeap {
    fn default() -> CountingHeap {
        CountingHeap {
            memory: vec![0; HEAP_BYTES],
            held: 0,
            next: 1,
        }
    }
}

impl ReceiveHeap for CountingHeap {
    fn allocate(&mut self, bytes: u32) -> Result<ReceivedBlock, HeapFull> {
        if bytes as usize > self.memory.len() || self.held >= 64 {
            return Err(HeapFull);
        }
        self.held += 1;
        self.next += 1;
        Ok(ReceivedBlock { at: self.next, bytes })
    }

    fn bytes_mut(&mut self, block: &mut ReceivedBlock) -> &mut [u8] {
        &mut self.memory[..block.bytes as usize]
    }

    fn free(&mut self, _block: ReceivedBlock) {
        assert!(self.held > 0, "a block was given back twice");
        self.held -= 1;
    }
}
