//! What a peer can make this end hold for messages that do not come: memory is taken as bytes arrive, and a message must
//! be whole within a time.

use provost_datapath::{Context, HeapFull, Nanos};
use provost_wire::Code;

use crate::calls::{BodyTarget, PartialStep};
use crate::connection::Connection;

/// Bytes of messages in part that a connection gets room for when their headers come.
pub(crate) const UNPROVEN_BYTES_MAX: u64 = 256 << 10;
/// By how much a place grows past what has come: so a long message is copied by less than a third once more.
const GROWTH_FACTOR: u32 = 4;
/// How long a message in part may take, in any case.
pub(crate) const ARRIVAL_NS: Nanos = 60_000_000_000;
/// How fast messages in part must come together at least, past that time, in bytes per second.
const ARRIVAL_BYTES_PER_S: u64 = 32 << 10;
/// How soon arrivals are looked at again while this end does not listen.
const PAUSED_RETRY_NS: Nanos = 1_000_000_000;

/// How long this end has not listened, because its app is behind: that is no fault of a peer whose message is under way.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ListeningClock {
    since: Option<Nanos>,
    paused_ns: Nanos,
}

impl ListeningClock {
    /// This end does not read now.
    pub(crate) fn pause(&mut self, now: Nanos) {
        self.since.get_or_insert(now);
    }

    /// This end reads again.
    pub(crate) fn resume(&mut self, now: Nanos) {
        if let Some(since) = self.since.take() {
            self.paused_ns += now.saturating_sub(since);
        }
    }

    /// A clock that stands still while this end does not listen.
    fn clock(&self, now: Nanos) -> Nanos {
        self.since.unwrap_or(now).saturating_sub(self.paused_ns)
    }
}

/// The first place of a body of which `left` bytes are in its first frame and `total` in all, while so many bytes of others
/// are announced.
pub(crate) fn first_bytes(left: u32, total: u32, receiving_bytes: u64) -> u32 {
    if receiving_bytes + u64::from(total) <= UNPROVEN_BYTES_MAX {
        total
    } else {
        // Never 0: no heap has a block of no bytes.
        left.clamp(1, total)
    }
}

impl PartialStep {
    /// Whether so many bytes more fit where it is.
    pub(crate) fn has_room_for(&self, bytes: u32) -> bool {
        let room = match &self.into {
            BodyTarget::Block(block) => block.bytes,
            BodyTarget::Nowhere | BodyTarget::Private(_) => self.total,
        };
        bytes <= room.saturating_sub(self.filled)
    }

    /// Gives it a place with room for so many bytes more, and for some that are yet to be announced.
    fn make_room(&mut self, bytes: u32, context: &mut Context<'_>) -> Result<(), HeapFull> {
        let (filled, total) = (self.filled, self.total);
        let BodyTarget::Block(block) = &mut self.into else {
            return Ok(());
        };
        let needed = filled.saturating_add(bytes);
        let wanted = filled
            .saturating_mul(GROWTH_FACTOR)
            .clamp(needed, total.max(needed));
        let grown = context.receive.grow(block, filled, wanted);
        grown.or_else(|HeapFull| context.receive.grow(block, filled, needed))
    }
}

impl Connection {
    /// Gives a message in part room for so many bytes more.
    pub(crate) fn make_room(
        &mut self,
        slot: u32,
        bytes: u32,
        context: &mut Context<'_>,
    ) -> Result<(), HeapFull> {
        match self.calls.get_mut(slot).and_then(|call| call.partial.as_mut()) {
            Some(partial) if !partial.has_room_for(bytes) => partial.make_room(bytes, context),
            _ => Ok(()),
        }
    }

    /// When a message that begins to come must be whole. One that its first frame brings has no time of its own: the peer's
    /// silence in the midst of a frame is the connection's.
    pub(crate) fn expiry_of(&mut self, left: u32, total: u32, now: Nanos) -> Nanos {
        if left == total {
            return Nanos::MAX;
        }
        let expires_at = self.listening.clock(now) + self.arrival_ns(u64::from(total));
        self.parser.next_expiry = self.parser.next_expiry.min(expires_at);
        expires_at
    }

    /// How long messages may take of which so many bytes come beside the others'.
    fn arrival_ns(&self, bytes: u64) -> Nanos {
        let bytes = self.parser.receiving_bytes + bytes;
        ARRIVAL_NS + bytes * 1_000_000_000 / ARRIVAL_BYTES_PER_S
    }

    /// Notes that this end does not read, because its app is behind.
    pub fn pause(&mut self, now: Nanos) {
        self.peer_seen(now);
        self.listening.pause(now);
    }

    /// Ends the calls whose messages did not come in time.
    pub fn expire_arrivals(&mut self, context: &mut Context<'_>) {
        let clock = self.listening.clock(context.now);
        if clock < self.parser.next_expiry {
            return;
        }
        self.parser.next_expiry = Nanos::MAX;
        let arrival_ns = self.arrival_ns(0);
        for slot in 0..self.calls.slots() {
            let Some(partial) = self.calls.get_mut(slot).and_then(|call| call.partial.as_mut()) else {
                continue;
            };
            if partial.expires_at == 0 {
                partial.expires_at = clock + arrival_ns;
            }
            if partial.expires_at <= clock {
                let reason = "the message stopped in its midst and did not come in time";
                self.break_call(slot, Code::Unavailable, reason, context);
            } else {
                self.parser.next_expiry = self.parser.next_expiry.min(partial.expires_at);
            }
        }
    }

    /// When [`Connection::expire_arrivals`] has something to do, if ever.
    pub(crate) fn arrivals_wake_at(&self) -> Option<Nanos> {
        // A successor sets its times when it is polled first.
        let is_set = !matches!(self.parser.next_expiry, 0 | Nanos::MAX);
        is_set.then(|| self.listening.real(self.parser.next_expiry))
    }
}

impl ListeningClock {
    /// The time at which the clock shows this, or a later one while it stands still.
    fn real(&self, clock: Nanos) -> Nanos {
        let at = clock.saturating_add(self.paused_ns);
        match self.since {
            Some(since) => at.max(since.saturating_add(PAUSED_RETRY_NS)),
            None => at,
        }
    }
}
