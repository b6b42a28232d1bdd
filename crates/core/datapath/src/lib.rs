//! The engine traits, the items that move between engines, the queues that they move through, and saved state.
//!
//! A *datapath* is the ordered list of engines between one app and one peer. Items move in one direction through
//! each of its two directions: `tx` from the app towards the wire, `rx` from the wire towards the app. An engine knows
//! its own queues and nothing else. Datapaths of one app live on one runtime thread; nothing here locks.
#![forbid(unsafe_code)]

mod buffer;
mod call_map;
mod call_table;
mod connection_signals;
mod datapath;
mod egress_event;
mod encoded_body;
mod fields;
mod item;
mod missing_methods;
mod packets;
mod private_bytes;
mod queue;
mod state;
mod step_state;

pub use buffer::{Buffer, BufferParts, BufferPool};
pub use call_map::{CallHash, CallHasher, CallMap};
pub use call_table::CallTable;
pub use connection_signals::{ConnectionEnd, ConnectionSignals};
pub use datapath::{
    CopyForeign, Datapath, EngineDescription, EngineStart, Predecessor, QUEUE_STEPS_MAX, ReconfigureError,
    Reconfigured, Retired, SavedDatapath, SavedEngine, Stage,
};
pub use egress_event::{EgressEvent, EgressEvents};
pub use encoded_body::{EncodedBody, MessageCompression, PlainCopy};
pub use fields::{FieldReader, FieldWriter, SavedField};
pub use item::{
    Body, BodyForm, CompressedMessages, ForeignBytes, Gathered, Keepalive, Offsets, ReceivedBlock,
    ReceivedBody, Step, Untrusted, message_offset,
};
pub use missing_methods::{MissingMethods, no_such_method};
pub use packets::{PacketCounts, Packets};
pub use private_bytes::{
    ATTACHMENT_PRIVATE_BYTES_MAX, CONNECTION_PRIVATE_BYTES_FLOOR, NODE_PRIVATE_BYTES_MAX, PrivateBytes,
    PrivateCharge, UNCOUNTED_BYTES_MAX,
};
pub use queue::{Full, Queue};
pub use state::{
    BlockContent, InPlace, KeptMemory, NotSaved, RestoreError, Restorer, SavedState, Saver, Successor,
};

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Nanoseconds of a monotonic clock; in the simulator, of its own.
pub type Nanos = u64;

/// One stage of a datapath: a frontend, a policy, an encoding or a transport.
pub trait Engine: Send {
    /// What kind of engine this is, such as `null`. The same for all its instances and versions.
    fn kind(&self) -> &'static str;

    /// Moves what it can from its input to its output queues, a batch at most, and says whether it did anything.
    /// It never blocks, allocates, locks or logs.
    fn do_work(&mut self, ports: Ports<'_>, context: &mut Context<'_>) -> Progress;

    /// Whether there is nothing to do for the engine until a step waits in one of its input queues. Its datapath asks
    /// after each poll of it, and does not poll an engine that rests, nor asks anything else of it, while both are empty.
    /// An engine that has failed does not rest.
    fn rests(&self) -> bool {
        false
    }

    /// The earliest time at which the engine wants to be polled though nothing arrives, if any.
    fn wake_at(&self) -> Option<Nanos> {
        None
    }

    /// Which version of the engine's code this is: what an operator upgrades from and to. (The version of what it saves
    /// is another number, [`SavedState::version`].)
    fn version(&self) -> u32 {
        1
    }

    /// Puts the steps that the engine holds back into its input queues, in front and in their order, because another
    /// engine takes its place or none does. (An input queue may be longer than its bound for that moment.) An engine
    /// that cannot undo what it did with a step keeps it, and saves it.
    fn release(&mut self, _ports: &mut Ports<'_>) {}

    /// How many steps the engine holds.
    fn held(&self) -> usize {
        0
    }

    /// Steps that have left the service, of all calls of the datapath: how long each was on its way through all engines. Told
    /// before the datapath is polled again, whether or not the engine rests.
    fn on_egress(&mut self, _events: &EgressEvents<'_>) {}

    /// Its saved state: what another version of it continues from, in this process or in another. The engine is left
    /// as it is, so that an upgrade that fails costs nothing; if it succeeds, the engine is dropped without another
    /// poll, and must not give back then what its successor owns now.
    fn save(&self, saver: &mut dyn Saver) -> SavedState;

    /// Why the engine cannot go on, if so: a policy that failed. It keeps what it has not dealt with, and does nothing
    /// more; the runtime puts another engine in its place.
    fn fault(&self) -> Option<&str> {
        None
    }

    /// The engine as a transport, if it owns sockets.
    fn as_transport(&self) -> Option<&dyn TransportEngine> {
        None
    }
}

/// What the last engine of a datapath does beyond the rest, if it carries the steps over sockets of its own.
pub trait TransportEngine: Engine {
    /// The socket that the runtime shall watch while it sleeps, if there is something to wait for.
    fn interest(&self) -> Option<Interest>;

    /// The descriptors that a successor needs beside the saved state, in the order in which its `restore` expects them.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>>;
}

/// Duplicates of the descriptors that a successor of this engine needs.
///
/// # Errors
/// The process may not have more descriptors.
pub fn duplicate_descriptors(engine: &dyn Engine) -> io::Result<Vec<OwnedFd>> {
    let descriptors = engine
        .as_transport()
        .map_or_else(Vec::new, TransportEngine::descriptors);
    let duplicates = descriptors.into_iter();
    duplicates
        .map(|descriptor| descriptor.try_clone_to_owned())
        .collect()
}

/// Whether a poll of an engine did anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    Idle,
    /// Something moved; poll again.
    Busy,
    /// The datapath has ended: its transport or its app is gone and all pending steps have been delivered.
    Ended,
}

/// The queues around one engine. The first engine's `tx_in` and `rx_out` belong to the app's port, the last one's
/// `tx_out` and `rx_in` are unused.
pub struct Ports<'a> {
    /// From the app's side.
    pub tx_in: &'a mut Queue<Step>,
    /// To the wire's side.
    pub tx_out: &'a mut Queue<Step>,
    /// From the wire's side.
    pub rx_in: &'a mut Queue<Step>,
    /// To the app's side.
    pub rx_out: &'a mut Queue<Step>,
}

/// What to watch a socket for. Reading is always watched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest {
    /// The socket's descriptor; the engine owns it and outlives the watch.
    pub socket: i32,
    /// Whether the engine also waits for room to write.
    pub write: bool,
}

/// Whether a transport should spend a system call on its socket in this poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketHint {
    /// It was readable or writable, or it is worth a try: read (and write what is waiting).
    Try,
    /// Nothing is known to have come in: do not read. Sending new output is always allowed.
    Skip,
}

/// What the engines of a datapath tell each other about its load, beside the steps. The datapath clears what holds for
/// one poll, and keeps the rest between polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowHints {
    /// How many bytes the transport moves in each direction in this poll, at most; `u32::MAX` for as many as it likes.
    pub turn_bytes: u32,
    /// How many bytes of messages the transport was given and had not sent after its last poll with a bound. What is with
    /// the transport can be put into another order no more.
    pub unsent_bytes: u32,
    /// Calls under way, as the first engine counts them.
    pub calls: usize,
}

impl Default for FlowHints {
    fn default() -> FlowHints {
        FlowHints {
            turn_bytes: u32::MAX,
            unsent_bytes: 0,
            calls: 0,
        }
    }
}

impl FlowHints {
    /// Lets the transport move no more than this in this poll, because other datapaths of the runtime are to have their turn.
    pub fn limit_turn(&mut self, bytes_max: u32) {
        self.turn_bytes = self.turn_bytes.min(bytes_max);
    }

    /// Whether an engine has limited what the transport moves.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        self.turn_bytes != u32::MAX
    }
}

/// What a runtime lends an engine for one poll.
pub struct Context<'a> {
    /// Whether to try the socket.
    pub socket: SocketHint,
    /// What the engines tell each other about the datapath's load.
    pub flow: FlowHints,
    /// The time, read once per round.
    pub now: Nanos,
    /// Private buffers of this runtime.
    pub buffers: &'a mut BufferPool,
    /// The receive heap of the app whose datapath this is.
    pub receive: &'a mut dyn ReceiveHeap,
    /// Tokens of messages that have been read to their end, to be told to the app (see [`Body::Gathered`]).
    pub sent: &'a mut Vec<u64>,
}

/// The receive heap of one app: memory that the service writes and the app can only read.
pub trait ReceiveHeap {
    /// Takes a block of `bytes` bytes (8-aligned), or says why there is none.
    fn allocate(&mut self, bytes: u32) -> Result<ReceivedBlock, HeapFull>;

    /// The bytes of a block, to be written. The app does not know of it yet. One that an earlier process of this service
    /// wrote, and whose contents are [`BlockContent::Fixed`], can only be read: it is lent as empty.
    fn bytes_mut(&mut self, block: &mut ReceivedBlock) -> &mut [u8];

    /// The bytes of a block, to be read. It stays where it is.
    fn bytes(&mut self, block: &ReceivedBlock) -> &[u8] {
        let (at, bytes) = (block.at, block.bytes);
        self.bytes_mut(&mut ReceivedBlock { at, bytes })
    }

    /// Gives a block back that was never published to the app.
    fn free(&mut self, block: ReceivedBlock);

    /// How many bytes messages that have come in part may still take. The last eighth of a heap is for those that come in one
    /// piece, whatever stops in its midst.
    fn room_in_part(&self) -> u64 {
        u64::MAX
    }

    /// Where the buffers of messages in part are charged that are private memory: they take of the same room.
    fn private_share(&self) -> Option<&Arc<PrivateBytes>> {
        None
    }

    /// A block of `bytes` bytes in the place of a shorter one, with its first `filled` bytes.
    ///
    /// # Errors
    /// There is none. The shorter one stays.
    fn grow(&mut self, block: &mut ReceivedBlock, filled: u32, bytes: u32) -> Result<(), HeapFull> {
        let mut longer = self.allocate(bytes)?;
        let mut piece = [0; GROW_PIECE_BYTES];
        let filled = filled.min(block.bytes).min(bytes) as usize;
        for from in (0..filled).step_by(GROW_PIECE_BYTES) {
            let end = filled.min(from + GROW_PIECE_BYTES);
            let piece = &mut piece[..end - from];
            if let Some(bytes) = self.bytes(block).get(from..end) {
                piece.copy_from_slice(bytes);
            }
            if let Some(place) = self.bytes_mut(&mut longer).get_mut(from..end) {
                place.copy_from_slice(piece);
            }
        }
        let shorter = std::mem::replace(block, longer);
        self.free(shorter);
        Ok(())
    }
}

/// The part of a receive heap of so many bytes that messages in part may take.
#[must_use]
pub fn bytes_for_parts(heap_bytes_max: u64) -> u64 {
    heap_bytes_max - heap_bytes_max / WHOLE_MESSAGES_PART
}

/// What is kept of a receive heap for messages that come in one piece.
const WHOLE_MESSAGES_PART: u64 = 8;

/// What [`ReceiveHeap::grow`] copies at a time, in bytes: it stays in the nearest cache.
const GROW_PIECE_BYTES: usize = 8 << 10;

/// The app's receive heap is at its limit: it holds on to too many received messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the app's receive heap is full: it holds on to too many received messages")]
pub struct HeapFull;
