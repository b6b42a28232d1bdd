//! One end of a connection with all that it is lent, fed by hand.
#![allow(dead_code)]

use provost_conformance::{Content, TestHeap, methods, piece_bytes, succeed};
use provost_datapath::{
    Body, BufferPool, Context, FieldReader, FieldWriter, FlowHints, MissingMethods, Nanos, ReceiveHeap,
    RestoreError, Restorer, Saver, SocketHint, Step, Successor, message_offset,
};
use provost_session::handshake::{Agreement, Encoding, Limits};
use provost_session::{Config, Connection, ProtocolError, Role};
use provost_wire::Code;
use provost_wire::descriptor::Parts;
use provost_wire::frame::{FrameHeader, frame_kind};
use zerocopy::IntoBytes;

pub(crate) struct Peer {
    pub(crate) connection: Connection,
    pub(crate) heap: TestHeap,
    pub(crate) buffers: BufferPool,
    pub(crate) sent: Vec<u64>,
    pub(crate) now: Nanos,
}

/// What came out of an end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Got {
    pub(crate) call: u64,
    pub(crate) parts: Parts,
    pub(crate) method: u16,
    pub(crate) status: Code,
    pub(crate) window_bytes: u32,
    pub(crate) metadata: Vec<u8>,
    pub(crate) message: Vec<u8>,
}

/// How an end is set up.
#[derive(Clone, Copy)]
pub(crate) struct Setup {
    pub(crate) encoding: Encoding,
    pub(crate) limits: Limits,
    pub(crate) keepalive_ns: u64,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            encoding: Encoding::Native,
            limits: Limits::default(),
            keepalive_ns: 0,
        }
    }
}

macro_rules! context {
    ($peer:expr) => {
        Context {
            socket: SocketHint::Try,
            flow: FlowHints::default(),
            now: $peer.now,
            buffers: &mut $peer.buffers,
            receive: &mut $peer.heap,
            sent: &mut $peer.sent,
        }
    };
}

impl Peer {
    pub(crate) fn new(role: Role, setup: Setup) -> Peer {
        let methods = methods()
            .iter()
            .enumerate()
            .map(|(at, method)| Some((at as u16, method.kind)))
            .collect();
        let config = Config {
            role,
            agreement: Agreement {
                encoding: setup.encoding,
                peer_limits: setup.limits,
                methods,
                missing: MissingMethods::default(),
            },
            limits: setup.limits,
            keepalive_interval_ns: setup.keepalive_ns,
            keepalive_timeout_ns: setup.keepalive_ns,
        };
        Peer {
            connection: Connection::new(config, 0),
            heap: TestHeap::default(),
            buffers: BufferPool::new(),
            sent: Vec::new(),
            now: 1,
        }
    }

    /// A server that lacks one of the client's methods.
    pub(crate) fn server_that_lacks((service, lacking): (&str, &str), setup: Setup) -> Peer {
        let methods = methods();
        let is_lacking = |at: usize| methods[at].name == lacking;
        let names = methods.iter().map(|method| method.name.as_str());
        let mut server = Peer::new(Role::Server, setup);
        server.connection = Connection::new(
            Config {
                role: Role::Server,
                agreement: Agreement {
                    encoding: setup.encoding,
                    peer_limits: setup.limits,
                    methods: (methods.iter().enumerate())
                        .map(|(at, method)| (!is_lacking(at)).then_some((at as u16, method.kind)))
                        .collect(),
                    missing: MissingMethods::of(service, names, is_lacking),
                },
                limits: setup.limits,
                keepalive_interval_ns: setup.keepalive_ns,
                keepalive_timeout_ns: setup.keepalive_ns,
            },
            0,
        );
        server
    }

    pub(crate) fn send(&mut self, step: Step, content: &Content, token: u64) {
        let body = content.gathered(token, &mut self.buffers);
        self.connection.send(Step { body, ..step }, &mut context!(self));
    }

    pub(crate) fn send_raw(&mut self, step: Step) {
        self.connection.send(step, &mut context!(self));
    }

    /// All that it would write now, given an endless socket.
    pub(crate) fn output(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        loop {
            self.connection.fill(&mut context!(self));
            let from = bytes.len();
            for piece in self.connection.pieces() {
                bytes.extend_from_slice(&piece_bytes(piece));
            }
            if bytes.len() == from {
                return bytes;
            }
            self.connection.advance(bytes.len() - from, &mut context!(self));
        }
    }

    /// At most so many bytes of what it would write now, as a socket takes them.
    pub(crate) fn output_part(&mut self, bytes_max: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        while bytes.len() < bytes_max {
            self.connection.fill(&mut context!(self));
            let from = bytes.len();
            for piece in self.connection.pieces() {
                bytes.extend_from_slice(&piece_bytes(piece));
            }
            bytes.truncate(bytes_max);
            if bytes.len() == from {
                break;
            }
            self.connection.advance(bytes.len() - from, &mut context!(self));
        }
        bytes
    }

    /// Saves the connection and goes on with its successor.
    pub(crate) fn succeed(&mut self, successor: Successor) {
        let save = |connection: &Connection, saver: &mut dyn Saver| {
            let mut out = FieldWriter::new();
            connection.save(saver, &mut out);
            out.bytes
        };
        let saved = |saver: &mut dyn Saver| save(&self.connection, saver);
        let restore = |bytes: Vec<u8>, restorer: &mut dyn Restorer| {
            let mut fields = FieldReader::new("connection", &bytes);
            let connection = Connection::restore(&mut fields, restorer)?;
            fields.end()?;
            Ok::<_, RestoreError>(connection)
        };
        let restored = succeed(successor, &mut self.heap, saved, restore);
        self.connection = restored.expect("what was saved is restored");
    }

    pub(crate) fn input(&mut self, bytes: &[u8]) -> Result<(), ProtocolError> {
        self.connection.input(bytes, &mut context!(self))
    }

    /// Gives bytes straight to where they belong, if the connection has such a place; says how many.
    pub(crate) fn input_direct(&mut self, bytes: &[u8]) -> Result<usize, ProtocolError> {
        let Some(place) = self.connection.direct(&mut self.heap) else {
            return Ok(0);
        };
        let count = place.len().min(bytes.len());
        place[..count].copy_from_slice(&bytes[..count]);
        self.connection.direct_came(count, &mut context!(self))?;
        Ok(count)
    }

    /// Ends the calls whose messages did not come in time.
    pub(crate) fn expire_arrivals(&mut self) {
        self.connection.expire_arrivals(&mut context!(self));
    }

    pub(crate) fn end(&mut self, code: Code, reason: &str) {
        self.connection.end(code, reason, &mut context!(self));
    }

    /// All steps for the app.
    pub(crate) fn steps(&mut self) -> Vec<Got> {
        let mut steps = Vec::new();
        while let Some(step) = self.connection.poll_step(&mut context!(self)) {
            steps.push(self.take_in(step));
        }
        steps
    }

    /// The next step for the app, as it is.
    pub(crate) fn next_step(&mut self) -> Option<Step> {
        self.connection.poll_step(&mut context!(self))
    }

    fn take_in(&mut self, step: Step) -> Got {
        let (metadata, message) = match step.body {
            Body::Empty => (Vec::new(), Vec::new()),
            Body::Received(mut body) => {
                let bytes = self.heap.bytes_mut(&mut body.block).to_vec();
                self.heap.free(body.block);
                split(&bytes, body.metadata_bytes, body.message_bytes)
            }
            Body::Encoded(body) => {
                let parts = split(&body.buffer.bytes, body.metadata_bytes, body.message_bytes);
                self.buffers.give(body.buffer);
                parts
            }
            other => panic!("delivered {other:?}"),
        };
        Got {
            call: step.call,
            parts: step.parts,
            method: step.method,
            status: step.status,
            window_bytes: step.window_bytes,
            metadata,
            message,
        }
    }
}

fn split(bytes: &[u8], metadata_bytes: u32, message_bytes: u32) -> (Vec<u8>, Vec<u8>) {
    let offset = message_offset(metadata_bytes);
    let message = bytes
        .get(offset..offset + message_bytes as usize)
        .unwrap_or_default();
    (bytes[..metadata_bytes as usize].to_vec(), message.to_vec())
}

/// A step frame with these fields, all others at rest.
pub(crate) fn step(call: u64, parts: Parts, message: &[u8]) -> (FrameHeader, Vec<u8>) {
    let header = FrameHeader {
        body_bytes: (message.len() as u32).into(),
        kind: frame_kind::STEP,
        parts,
        call: call.into(),
        message_bytes: (message.len() as u32).into(),
        ..FrameHeader::default()
    };
    (header, message.to_vec())
}

/// A frame's bytes.
pub(crate) fn frame((header, body): &(FrameHeader, Vec<u8>)) -> Vec<u8> {
    [header.as_bytes(), body].concat()
}
