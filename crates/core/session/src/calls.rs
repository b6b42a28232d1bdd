//! The calls in flight on one connection.

mod saved;

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

use provost_compression::MessageEncoding;
use provost_datapath::{Buffer, Nanos, ReceivedBlock};
use provost_wire::Code;
use provost_wire::descriptor::Parts;
use provost_wire::limits::CALLS_IN_FLIGHT_MAX;

use crate::handshake::MethodKind;
use crate::legal::CallFlow;

pub(crate) const NONE: u32 = u32::MAX;
/// Bits of a client's call numbers that name its slot.
const SLOT_BITS: u32 = CALLS_IN_FLIGHT_MAX.trailing_zeros();
const _: () = assert!(CALLS_IN_FLIGHT_MAX.is_power_of_two());

/// A call in flight.
#[derive(Debug)]
pub(crate) struct OpenCall {
    /// Its number on the datapath: the app's own on the client's side, the peer's on the server's.
    pub(crate) id: u64,
    /// Its number in frames.
    pub(crate) wire: u64,
    /// Which of its messages are streams.
    pub(crate) kind: MethodKind,
    /// Whether the app on this side knows of it, so that it must be told of its end.
    pub(crate) announced: bool,
    /// What this end has sent, as far as its app is concerned.
    pub(crate) sent: CallFlow,
    /// What the peer has sent.
    pub(crate) received: CallFlow,
    /// What waits to be sent.
    pub(crate) pending: CallBacklog,
    /// What the peer may still send of its stream before it must wait, in bytes.
    pub(crate) receive_window: i64,
    /// What the app has given back and the peer was not yet told.
    pub(crate) window_due: u32,
    /// Whether a `WINDOW` frame waits among the control frames.
    pub(crate) window_queued: bool,
    /// What this end may still send of its stream.
    pub(crate) send_window: SendWindow,
    /// A step of which more chunks are to come.
    pub(crate) partial: Option<PartialStep>,
}

/// The steps of one call that wait to be sent, a list in the sender's slab.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallBacklog {
    pub(crate) head: u32,
    pub(crate) tail: u32,
    pub(crate) steps: u32,
    pub(crate) private_bytes: usize,
    /// Bytes of their bodies, wherever these are.
    pub(crate) body_bytes: usize,
    /// What the streamed messages among them will cost of the window.
    pub(crate) cost_bytes: u64,
    pub(crate) turn: SendTurn,
    /// Whether the peer has seen (part of) the first step.
    pub(crate) begun: bool,
}

/// Whether a call waits for its turn to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendTurn {
    /// It has nothing to send.
    Idle,
    /// It is in one of the sender's ready queues.
    Queued,
    /// Its next message must wait for the stream's window.
    Held,
}

/// What a stream's sender may still send. The wire counts messages as they travel, the app as it wrote them; what
/// comes back is converted, so that neither count drifts from what it should be.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SendWindow {
    pub(crate) available: i64,
    pub(crate) outstanding_wire: u64,
    pub(crate) outstanding_app: u64,
}

impl SendWindow {
    pub(crate) fn take(&mut self, wire_bytes: u32, app_bytes: u32) {
        self.available -= i64::from(wire_bytes);
        self.outstanding_wire += u64::from(wire_bytes);
        self.outstanding_app += u64::from(app_bytes);
    }

    /// Counts what the peer gives back; says how much that is in the app's count, or nothing if it is too much.
    pub(crate) fn give_back(&mut self, wire_bytes: u32) -> Option<u32> {
        let wire = u64::from(wire_bytes);
        let left = self.outstanding_wire.checked_sub(wire)?;
        let app =
            u128::from(self.outstanding_app) * u128::from(wire) / u128::from(self.outstanding_wire.max(1));
        let app = u64::try_from(app).ok()?.min(u64::from(u32::MAX));
        self.available += i64::from(wire_bytes);
        self.outstanding_wire = left;
        self.outstanding_app -= app;
        Some(app as u32)
    }
}

/// A step that is coming in.
#[derive(Debug)]
pub(crate) struct PartialStep {
    pub(crate) parts: Parts,
    pub(crate) method: u16,
    pub(crate) status: Code,
    pub(crate) deadline: Nanos,
    pub(crate) window_cost: u32,
    pub(crate) metadata_bytes: u32,
    pub(crate) message_bytes: u32,
    /// How the message is compressed.
    pub(crate) encoding: MessageEncoding,
    /// Bytes of the body that have come.
    pub(crate) filled: u32,
    /// Bytes of the whole body over all frames.
    pub(crate) total: u32,
    /// Where it goes; a block may have room for less than the whole, as long as less has come.
    pub(crate) into: BodyTarget,
    /// What it holds of its app's share of memory; nothing, where its first frame is all of it and has not come in part.
    pub(crate) held_bytes: u32,
    /// When it began to come, on the clock of `expires_at`.
    pub(crate) begun_at: Nanos,
    /// When all of it must have come, on the connection's clock of [`crate::receive::ListeningClock`]; 0 where no time was set.
    pub(crate) expires_at: Nanos,
}

/// Where an incoming body goes.
#[derive(Debug)]
pub(crate) enum BodyTarget {
    Nowhere,
    /// A block of the app's receive heap.
    Block(ReceivedBlock),
    Private(Buffer),
}

/// All calls in flight of one connection.
#[derive(Debug)]
pub(crate) struct OpenCalls {
    slots: Vec<Option<OpenCall>>,
    free: Vec<u32>,
    /// From the datapath's number to the slot.
    index: HashMap<u64, u32, IdHasher>,
    begun: u64,
}

impl OpenCalls {
    pub(crate) fn new() -> OpenCalls {
        OpenCalls {
            slots: Vec::new(),
            free: Vec::new(),
            index: HashMap::with_hasher(IdHasher::new()),
            begun: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.index.len()
    }

    /// Slots that have ever been in use; what [`OpenCalls::get`] and `remove` may be asked for.
    pub(crate) fn slots(&self) -> u32 {
        self.slots.len() as u32
    }

    pub(crate) fn find(&self, id: u64) -> Option<u32> {
        self.index.get(&id).copied()
    }

    /// Finds a call by the number that [`OpenCalls::insert_own`] gave it, without hashing.
    pub(crate) fn find_own(&self, wire: u64) -> Option<u32> {
        let slot = (wire & ((1 << SLOT_BITS) - 1)) as u32;
        self.get(slot).filter(|call| call.wire == wire).map(|_| slot)
    }

    /// Whether [`OpenCalls::insert_own`] has ever given this number.
    pub(crate) fn was_own(&self, wire: u64) -> bool {
        (1..=self.begun).contains(&(wire >> SLOT_BITS))
    }

    pub(crate) fn get(&self, slot: u32) -> Option<&OpenCall> {
        self.slots.get(slot as usize)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, slot: u32) -> Option<&mut OpenCall> {
        self.slots.get_mut(slot as usize)?.as_mut()
    }

    /// The call in this slot, if it is still the one with this number.
    pub(crate) fn same_mut(&mut self, slot: u32, wire: u64) -> Option<&mut OpenCall> {
        self.get_mut(slot).filter(|call| call.wire == wire)
    }

    /// Adds a call of the own app; its number in frames increases and names its slot.
    pub(crate) fn insert_own(&mut self, id: u64, kind: MethodKind, send: i64, receive: i64) -> u32 {
        let slot = self.take_slot();
        self.begun += 1;
        let wire = self.begun << SLOT_BITS | u64::from(slot);
        self.insert_at(
            slot,
            OpenCall {
                announced: true,
                ..fresh(id, wire, kind, send, receive)
            },
        )
    }

    /// Adds a call that the peer has begun.
    pub(crate) fn insert_peers(&mut self, wire: u64, kind: MethodKind, send: i64, receive: i64) -> u32 {
        let slot = self.take_slot();
        self.insert_at(slot, fresh(wire, wire, kind, send, receive))
    }

    fn take_slot(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        })
    }

    fn insert_at(&mut self, slot: u32, call: OpenCall) -> u32 {
        self.index.insert(call.id, slot);
        self.slots[slot as usize] = Some(call);
        slot
    }

    pub(crate) fn remove(&mut self, slot: u32) {
        if let Some(place) = self.slots.get_mut(slot as usize)
            && let Some(call) = place
        {
            self.index.remove(&call.id);
            self.free.push(slot);
            *place = None;
        }
    }
}

fn fresh(id: u64, wire: u64, kind: MethodKind, send: i64, receive: i64) -> OpenCall {
    OpenCall {
        id,
        wire,
        kind,
        announced: false,
        sent: CallFlow::default(),
        received: CallFlow::default(),
        pending: CallBacklog {
            head: NONE,
            tail: NONE,
            steps: 0,
            private_bytes: 0,
            body_bytes: 0,
            cost_bytes: 0,
            turn: SendTurn::Idle,
            begun: false,
        },
        receive_window: receive,
        window_due: 0,
        window_queued: false,
        send_window: SendWindow {
            available: send,
            ..SendWindow::default()
        },
        partial: None,
    }
}

/// Hashes call numbers by a keyed multiplication, so that a peer cannot choose numbers that collide.
#[derive(Clone, Copy, Debug)]
struct IdHasher {
    key: u64,
    hash: u64,
}

impl IdHasher {
    fn new() -> IdHasher {
        IdHasher {
            key: RandomState::new().hash_one(0u64),
            hash: 0,
        }
    }
}

impl BuildHasher for IdHasher {
    type Hasher = IdHasher;
    fn build_hasher(&self) -> IdHasher {
        *self
    }
}

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        // The odd constant is 2^64 divided by the golden ratio; folding the high half in spreads every input bit.
        let product = u128::from(value ^ self.hash ^ self.key) * u128::from(self.key | 0x9e37_79b9_7f4a_7c15);
        self.hash = product as u64 ^ (product >> 64) as u64;
    }

    fn finish(&self) -> u64 {
        self.hash
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_numbers_increase_and_find_their_slot_until_the_call_ends() {
        let mut calls = OpenCalls::new();
        let kind = MethodKind::default();
        let first = calls.insert_own(70, kind, 1, 1);
        let wire = calls.get(first).unwrap().wire;
        assert_eq!((calls.find(70), calls.find_own(wire)), (Some(first), Some(first)));
        calls.remove(first);
        assert_eq!(
            (calls.find(70), calls.find_own(wire), calls.len()),
            (None, None, 0)
        );
        let second = calls.insert_own(3, kind, 1, 1);
        let next = calls.get(second).unwrap().wire;
        assert!(
            next > wire
                && calls.was_own(wire)
                && calls.was_own(next)
                && !calls.was_own(next + (1 << SLOT_BITS))
        );
    }

    #[test]
    fn what_comes_back_is_converted_without_drift() {
        let mut window = SendWindow {
            available: 1000,
            ..SendWindow::default()
        };
        for (wire, app) in [(100, 300), (7, 5), (900, 1000)] {
            window.take(wire, app);
        }
        let back: u32 = [3, 500, 1, 503]
            .into_iter()
            .map(|bytes| window.give_back(bytes).unwrap())
            .sum();
        assert_eq!((back, window.available, window.outstanding_app), (1305, 1000, 0));
        assert_eq!(window.give_back(1), None);
    }
}
