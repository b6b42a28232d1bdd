//! What moves between engines: steps of calls.

use std::num::NonZeroUsize;
use std::sync::Arc;

use provost_wire::Code;
use provost_wire::descriptor::Parts;
use provost_wire::metadata;

use crate::{Buffer, BufferPool, Context, EncodedBody, Nanos};

/// One step of one call. See [`Parts`] for what a step can carry.
#[derive(Debug)]
pub struct Step {
    /// Which call of the datapath.
    pub call: u64,
    /// Which parts the step has.
    pub parts: Parts,
    /// Index of the method in the app's own schema: of `BEGIN`, and of what the first engine has passed of an app's other
    /// steps or is about to hand to the app. Nobody between may rely on the others.
    pub method: u16,
    /// The status of `STATUS` and `CANCEL`.
    pub status: Code,
    /// The bytes of `WINDOW`. Beside a streamed `MESSAGE`: what it costs of the stream's window, inbound as the
    /// transport counted it (what the app gives back), outbound as the sending app counted it, so that what comes back
    /// is in its own count (0: as the transport counts, message bytes and `STREAM_MESSAGE_COST_BYTES`).
    pub window_bytes: u32,
    /// When the call must end; 0 for never (`BEGIN` only).
    pub deadline: Nanos,
    /// When the service took it from the app or from its transport; 0 for one that it made itself, or that came to
    /// another process.
    pub taken_at: Nanos,
    pub body: Body,
}

// Steps are moved from queue to queue by each engine.
const _: () = assert!(size_of::<Step>() <= 64);

impl Step {
    /// A step with no body and all fields at rest.
    #[must_use]
    pub fn new(call: u64, parts: Parts) -> Step {
        Step {
            call,
            parts,
            method: 0,
            status: Code::Ok,
            window_bytes: 0,
            deadline: 0,
            taken_at: 0,
            body: Body::Empty,
        }
    }

    /// A step that ends a call at the service's own initiative and tells people why.
    #[must_use]
    pub fn cancel_because(call: u64, status: Code, reason: &str, buffers: &mut BufferPool) -> Step {
        let mut buffer = buffers.take();
        // A reason that does not fit is left out; the code says the most of it.
        let _ = metadata::append(&mut buffer.bytes, metadata::STATUS_MESSAGE, reason.as_bytes());
        let metadata_bytes = buffer.bytes.len() as u32;
        buffer.bytes.resize(message_offset(metadata_bytes), 0);
        let body = Body::Encoded(EncodedBody::plain(buffer, metadata_bytes, 0));
        Step {
            body,
            ..Step::cancel(call, status)
        }
    }

    /// A step that ends a call at the service's own initiative.
    #[must_use]
    pub fn cancel(call: u64, status: Code) -> Step {
        Step {
            status,
            ..Step::new(call, Parts::CANCEL)
        }
    }
}

/// In which form the messages of an app are on their way through the engines of its datapath. It keeps the form it came in until
/// somebody needs the other one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BodyForm {
    /// In the native layout: the app maps its messages.
    #[default]
    Native,
    /// As protobuf: the app speaks gRPC, or is another node's.
    Protobuf,
}

/// What becomes of messages that come compressed at one end of a connection and go on at the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CompressedMessages {
    /// They are decompressed where they come: an end takes others only, or there is an app that reads them.
    #[default]
    Decompressed,
    /// They pass as they came: both ends know how to read them.
    Passed,
}

/// Metadata and message of a step, wherever they are.
#[derive(Debug, Default)]
pub enum Body {
    #[default]
    Empty,
    /// Outbound, between the app's port and the frontend only: where the app claims its metadata and message to be.
    Untrusted(Untrusted),
    /// Outbound, typed: a private copy of the structure, and the large leaves still in the app's send heap.
    Gathered(Gathered),
    /// Inbound: a block of the app's receive heap, not yet published.
    Received(ReceivedBody),
    /// Metadata and message in one private buffer: a message as protobuf, as it came or is to go, or metadata that the service made.
    Encoded(EncodedBody),
}

impl Body {
    /// Gives back whatever memory the body holds: tokens to the app, buffers to their pool, blocks to the heap.
    pub fn discard(self, context: &mut Context<'_>) {
        let token = match &self {
            Body::Untrusted(untrusted) => untrusted.token,
            Body::Gathered(gathered) => gathered.token,
            _ => 0,
        };
        if token != 0 {
            context.sent.push(token);
        }
        match self {
            Body::Received(body) => {
                context.receive.free(body.block);
                body.added
                    .into_iter()
                    .for_each(|buffer| context.buffers.give(buffer));
            }
            Body::Gathered(Gathered { buffer, .. }) | Body::Encoded(EncodedBody { buffer, .. }) => {
                context.buffers.give(buffer);
            }
            Body::Empty | Body::Untrusted(_) => {}
        }
    }
}

/// What an app claims about the body of a step, copied from its descriptor and not checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Untrusted {
    /// The root struct of the message in the app's window, in units of 8 bytes.
    pub root: u32,
    /// The metadata block in the app's window, in units of 8 bytes.
    pub metadata: u32,
    /// Length of the metadata block in bytes.
    pub metadata_bytes: u32,
    /// What the app gets back when its memory has been read to the end; 0 asks for no notice.
    pub token: u64,
}

/// An outbound message: metadata and the message's head in private memory, its large leaves still in the app's.
#[derive(Debug)]
pub struct Gathered {
    /// Bytes: metadata (`metadata_bytes`) padded to 8 bytes, then the head of the linear native message. Foreign
    /// ranges: the large leaves, in the order in which they continue the message, each padded to 8 bytes but the last.
    pub buffer: Buffer,
    /// Bytes of metadata at the start of the buffer.
    pub metadata_bytes: u32,
    /// Length of the whole linear message, head and leaves (0 without `MESSAGE`).
    pub message_bytes: u32,
    /// What the app gets back when its memory has been read to the end; 0 asks for no notice.
    pub token: u64,
}

/// An inbound message in the app's receive heap: metadata padded to 8 bytes, then the native message.
#[derive(Debug)]
pub struct ReceivedBody {
    pub block: ReceivedBlock,
    /// Bytes of metadata at the start of the block.
    pub metadata_bytes: u32,
    /// Length of the message (0 without `MESSAGE`).
    pub message_bytes: u32,
    /// What the message's offsets count from.
    pub offsets: Offsets,
    /// All metadata of a step that an engine has added some to: it stands in place of that in the block, which has no room.
    /// Saved state does not have it: what a hot restart finds on its way goes on with the metadata that came.
    pub added: Option<Buffer>,
}

/// What the offsets in a received message count from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Offsets {
    /// From the message's first byte, as it came. It can still be moved to another block, as what has no offsets can.
    #[default]
    Message,
    /// From the start of the app's window: the message was checked and relocated, and must stay where it is.
    Window,
}

/// Where the message begins in a body whose metadata has this length.
#[must_use]
pub const fn message_offset(metadata_bytes: u32) -> usize {
    (metadata_bytes as usize).next_multiple_of(8)
}

/// A block of the app's receive heap, owned by the service until it is published. Not `Clone`: it is freed or
/// published exactly once, by [`crate::ReceiveHeap::free`] or by the frontend.
#[derive(Debug, PartialEq, Eq)]
pub struct ReceivedBlock {
    /// Where the block is in the app's window, in units of 8 bytes. Never 0.
    pub at: u32,
    /// Its length in bytes as asked for.
    pub bytes: u32,
}

/// A range of memory that an app can write. It is never borrowed: the kernel reads it (gather I/O), or it is copied.
#[derive(Clone)]
pub struct ForeignBytes {
    address: NonZeroUsize,
    bytes: u32,
    keepalive: Arc<dyn Keepalive>,
}

/// Whatever keeps foreign memory mapped, such as the mapping of a send heap.
pub trait Keepalive: Send + Sync {}

impl ForeignBytes {
    /// Names a range. It must lie in memory that `keepalive` keeps mapped; reading it is up to those who may.
    #[must_use]
    pub fn new(address: NonZeroUsize, bytes: u32, keepalive: Arc<dyn Keepalive>) -> ForeignBytes {
        ForeignBytes {
            address,
            bytes,
            keepalive,
        }
    }

    /// Address of the first byte.
    #[must_use]
    pub fn address(&self) -> NonZeroUsize {
        self.address
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.bytes
    }

    /// Whether the range is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// At most `bytes` bytes of the range from byte `from` on.
    #[must_use]
    pub fn part(&self, from: u32, bytes: u32) -> ForeignBytes {
        let from = from.min(self.bytes);
        ForeignBytes {
            address: self.address.saturating_add(from as usize),
            bytes: bytes.min(self.bytes - from),
            keepalive: Arc::clone(&self.keepalive),
        }
    }

    /// What keeps the range mapped.
    #[must_use]
    pub fn keepalive(&self) -> &Arc<dyn Keepalive> {
        &self.keepalive
    }
}

impl std::fmt::Debug for ForeignBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ForeignBytes({} bytes)", self.bytes)
    }
}
