//! What a peer can make this end hold for messages that do not come: memory is taken as bytes arrive, all connections of a peer
//! have one share of their app's, and messages in part must go on coming and be whole within a time.

use provost_datapath::{Buffer, Context, HeapFull, Nanos, ReceiveHeap};
use provost_wire::Code;
use provost_wire::descriptor::Parts;

use super::{FrameParser, ParserState};
use crate::calls::{BodyTarget, PartialStep};
use crate::connection::Connection;

/// Bytes of messages in part that a connection gets room for when their headers come, beside as many as it has brought whole.
pub(crate) const UNPROVEN_BYTES_MAX: u64 = 256 << 10;
/// Bytes of messages brought whole that count at the most.
const PROVEN_BYTES_MAX: u64 = 32 << 20;
/// By how much a place grows past what has come: so a long message is copied by less than a third once more.
const GROWTH_FACTOR: u32 = 4;
/// How long a message in part may take, in any case.
pub(crate) const ARRIVAL_NS: Nanos = 60_000_000_000;
/// How fast messages in part must come together at least, past that time, in bytes per second.
const ARRIVAL_BYTES_PER_S: u64 = 32 << 10;
/// Of what its app's receive heap has for messages in part, the connections of one peer together may hold so many times as much
/// as they leave to the others. So there is always something left, and a largest message fits a heap of two.
const SHARE_OF_ROOM: u64 = 2;
/// The same for a message that its first frame brings: long ones that have come in part leave room for those.
const SHARE_OF_ROOM_IN_FRAME: u64 = 8;
/// What one peer may hold in any case of messages that their first frames bring, whatever others have left.
const IN_FRAME_BYTES_MIN: u64 = 1 << 20;
/// How often it is asked whether messages in part go on coming.
const PROGRESS_NS: Nanos = 30_000_000_000;
/// How much a connection that holds more than [`UNPROVEN_BYTES_MAX`] must bring in such a time: half as much as each of its
/// messages has to come at.
const PROGRESS_BYTES_MIN: u64 = (16 * 30) << 10;

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

/// What has come since a time, by which it is judged whether messages in part go on coming.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ArrivalProgress {
    /// On the clock of [`ListeningClock`].
    since: Nanos,
    bytes: u64,
}

/// Why a message gets no place: there is no memory, or its peer has its share.
pub(crate) const HEAP_FULL: &str =
    "the receiver has no memory for the message: its app holds on to too many received messages";
pub(crate) const SHARE_TAKEN: &str = "the receiver has no memory for the message: messages that have come in part hold all that they may of its app's memory";

/// Has a buffer count for so many bytes of its app's room for messages in part, until it is given back, dropped, or whole.
pub(crate) fn charge(buffer: &mut Buffer, bytes: u32, receive: &dyn ReceiveHeap) {
    buffer.charge = receive.private_share().map(|share| share.charge(bytes.into()));
}

/// How long messages may take of which so many bytes come beside each other.
fn arrival_ns(bytes: u64) -> Nanos {
    ARRIVAL_NS + bytes * 1_000_000_000 / ARRIVAL_BYTES_PER_S
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

    /// Bytes that it holds, of its place or, in private memory, of what its frames have brought.
    fn wanted_bytes(&self, bytes: u32) -> [u32; 2] {
        let needed = self.filled.saturating_add(bytes);
        match &self.into {
            BodyTarget::Nowhere => [0; 2],
            BodyTarget::Private(_) => [needed.max(self.held_bytes); 2],
            BodyTarget::Block(_) if self.has_room_for(bytes) => [self.held_bytes; 2],
            BodyTarget::Block(_) => {
                let wanted = self.filled.saturating_mul(GROWTH_FACTOR);
                [wanted.clamp(needed, self.total.max(needed)), needed]
            }
        }
    }

    /// Gives it a place of so many bytes, if it needs a longer one.
    fn grow(&mut self, held_bytes: u32, context: &mut Context<'_>) -> Result<(), HeapFull> {
        match &mut self.into {
            BodyTarget::Block(block) => context.receive.grow(block, self.filled, held_bytes)?,
            BodyTarget::Private(buffer) => charge(buffer, held_bytes, context.receive),
            BodyTarget::Nowhere => {}
        }
        self.held_bytes = held_bytes;
        Ok(())
    }
}

impl FrameParser {
    /// Whether the peer's share has room for so many bytes more of messages in part.
    pub(crate) fn share_has_room(&self, more: u32, receive: &dyn ReceiveHeap) -> bool {
        let more = u64::from(more);
        match receive.room_in_part().checked_sub(more) {
            Some(left) => self.held.share().held() + more <= left.saturating_mul(SHARE_OF_ROOM),
            None => false,
        }
    }

    /// The same of a message that its first frame brings, whose place has been taken.
    fn share_has_room_in_frame(&self, bytes: u32, receive: &dyn ReceiveHeap) -> bool {
        let held = self.held.share().held() + u64::from(bytes);
        let left = receive.room_in_part();
        held <= left
            .saturating_mul(SHARE_OF_ROOM_IN_FRAME)
            .max(IN_FRAME_BYTES_MIN)
    }

    /// The first place of a body of which `left` bytes are in its first frame and `total` in all. All of it, where the peer has
    /// room for it and has brought as much already: a place that grows is copied.
    pub(crate) fn first_bytes(&self, left: u32, total: u32, receive: &dyn ReceiveHeap) -> u32 {
        let trusted_bytes = UNPROVEN_BYTES_MAX + self.proven_bytes;
        let is_trusted = || self.receiving_bytes + u64::from(total) <= trusted_bytes;
        if left == total || (is_trusted() && self.share_has_room(total, receive)) {
            total
        } else {
            // Never 0: no heap has a block of no bytes.
            left.max(1)
        }
    }

    /// Counts so many bytes more that messages in part hold.
    pub(crate) fn hold_more(&mut self, bytes: u32) {
        if bytes > 0 {
            self.held.set_bytes(self.held.bytes() + u64::from(bytes));
        }
    }

    /// Counts a message that has come whole.
    pub(crate) fn end_whole(&mut self, partial: &mut PartialStep) {
        let proven_bytes = self.proven_bytes + u64::from(partial.total);
        self.proven_bytes = proven_bytes.min(PROVEN_BYTES_MAX);
        self.end_partial(partial);
    }

    /// Counts a message no more that has come whole, or is given up.
    pub(crate) fn end_partial(&mut self, partial: &mut PartialStep) {
        self.receiving_bytes -= u64::from(partial.total);
        if partial.held_bytes > 0 {
            self.held
                .set_bytes(self.held.bytes() - u64::from(partial.held_bytes));
        }
        if let BodyTarget::Private(buffer) = &mut partial.into {
            buffer.charge = None;
        }
    }

    /// Counts bytes that have come of any message.
    pub(crate) fn count_arrival(&mut self, bytes: u32) {
        self.progress.bytes += u64::from(bytes);
    }
}

impl Connection {
    /// Gives a message in part room for so many bytes more, or says why there is none.
    pub(crate) fn make_room(
        &mut self,
        slot: u32,
        bytes: u32,
        context: &mut Context<'_>,
    ) -> Result<(), &'static str> {
        let Some(partial) = self.calls.get_mut(slot).and_then(|call| call.partial.as_mut()) else {
            return Ok(());
        };
        let mut refused = SHARE_TAKEN;
        for wanted in partial.wanted_bytes(bytes) {
            let more = wanted.saturating_sub(partial.held_bytes);
            if more == 0 {
                return Ok(());
            }
            if !self.parser.share_has_room(more, context.receive) {
                continue;
            }
            if partial.grow(wanted, context).is_ok() {
                self.parser.hold_more(more);
                return Ok(());
            }
            refused = HEAP_FULL;
        }
        Err(refused)
    }

    /// Counts the message that is coming in if its first frame brings it, and that frame has not come whole. Most do, and cost nothing.
    pub(crate) fn hold_in_frame(&mut self, context: &mut Context<'_>) {
        let ParserState::Body { slot, wire, left } = self.parser.state else {
            return;
        };
        let partial = self
            .calls
            .same_mut(slot, wire)
            .and_then(|call| call.partial.as_mut());
        // The end of a call must not fail for want of memory.
        let Some(partial) =
            partial.filter(|partial| partial.held_bytes == 0 && partial.parts != Parts::CANCEL)
        else {
            return;
        };
        let bytes = partial.total;
        if !self.parser.share_has_room_in_frame(bytes, context.receive) {
            return self.refuse_message(slot, left, SHARE_TAKEN, context);
        }
        partial.held_bytes = bytes;
        if let BodyTarget::Private(buffer) = &mut partial.into {
            charge(buffer, bytes, context.receive);
        }
        self.parser.hold_more(bytes);
        let others_bytes = self.parser.receiving_bytes - u64::from(bytes);
        let times = self.begin_times(others_bytes, bytes, context.now);
        if let Some(partial) = self.calls.get_mut(slot).and_then(|call| call.partial.as_mut()) {
            (partial.begun_at, partial.expires_at) = times;
        }
    }

    /// When a message began to come, and when it must be whole. One that its first frame brings has a time
    /// when that has come in part ([`Connection::hold_in_frame`]).
    pub(crate) fn times_of(&mut self, left: u32, total: u32, now: Nanos) -> (Nanos, Nanos) {
        if left == total {
            return (now, Nanos::MAX);
        }
        self.begin_times(self.parser.receiving_bytes, total, now)
    }

    /// The times of a message of so many bytes that begins to come beside others.
    fn begin_times(&mut self, others_bytes: u64, total: u32, now: Nanos) -> (Nanos, Nanos) {
        let clock = self.listening.clock(now);
        if others_bytes == 0 {
            self.parser.progress = ArrivalProgress::from(clock);
        }
        let expires_at = clock + arrival_ns(others_bytes + u64::from(total));
        let judged_at = self.parser.progress.judged_at();
        self.parser.next_expiry = self.parser.next_expiry.min(expires_at).min(judged_at);
        (clock, expires_at)
    }

    /// Notes that this end does not read, because its app is behind.
    pub fn pause(&mut self, now: Nanos) {
        self.peer_seen(now);
        self.listening.pause(now);
    }

    /// Notes that this end has read all that has come.
    pub fn resume(&mut self, now: Nanos) {
        self.listening.resume(now);
    }

    /// Ends the calls whose messages did not come in time, or do not go on coming.
    pub fn expire_arrivals(&mut self, context: &mut Context<'_>) {
        let clock = self.listening.clock(context.now);
        if clock < self.parser.next_expiry {
            return;
        }
        if self.parser.next_expiry == 0 {
            self.begin_times_anew(clock, context);
        }
        let stalled_since = self.judge_progress(clock);
        self.parser.next_expiry = Nanos::MAX;
        for slot in 0..self.calls.slots() {
            let Some(partial) = self.calls.get(slot).and_then(|call| call.partial.as_ref()) else {
                continue;
            };
            let reason = if partial.expires_at <= clock {
                "the message stopped in its midst and did not come in time"
            } else if stalled_since.is_some_and(|since| partial.begun_at <= since) {
                "the message stopped in its midst: its connection brought less than 480 KiB in 30 s"
            } else {
                self.parser.next_expiry = self.parser.next_expiry.min(partial.expires_at);
                continue;
            };
            self.parser.proven_bytes = 0;
            self.break_call(slot, Code::Unavailable, reason, context);
        }
        if self.parser.receiving_bytes > 0 {
            let judged_at = self.parser.progress.judged_at();
            self.parser.next_expiry = self.parser.next_expiry.min(judged_at);
        }
    }

    /// A successor does not know when messages began to come, nor what its heap was told of them.
    fn begin_times_anew(&mut self, clock: Nanos, context: &mut Context<'_>) {
        self.parser.progress = ArrivalProgress::from(clock);
        let expires_at = clock + arrival_ns(self.parser.receiving_bytes);
        for slot in 0..self.calls.slots() {
            let partial = self.calls.get_mut(slot).and_then(|call| call.partial.as_mut());
            if let Some(partial) = partial
                && partial.expires_at == 0
            {
                (partial.begun_at, partial.expires_at) = (clock, expires_at);
                if let BodyTarget::Private(buffer) = &mut partial.into {
                    charge(buffer, partial.held_bytes, context.receive);
                }
            }
        }
    }

    /// Once what came for a while is to be judged: since when too little came of messages that hold much, if it is so.
    fn judge_progress(&mut self, clock: Nanos) -> Option<Nanos> {
        let progress = self.parser.progress;
        if clock < progress.judged_at() {
            return None;
        }
        self.parser.progress = ArrivalProgress::from(clock);
        let is_stalled = self.parser.held.bytes() > UNPROVEN_BYTES_MAX && progress.bytes < PROGRESS_BYTES_MIN;
        is_stalled.then_some(progress.since)
    }

    /// When [`Connection::expire_arrivals`] has something to do, if ever.
    pub(crate) fn arrivals_wake_at(&self) -> Option<Nanos> {
        // A successor sets its times when it is polled first.
        let is_set = !matches!(self.parser.next_expiry, 0 | Nanos::MAX);
        self.listening.real(self.parser.next_expiry).filter(|_| is_set)
    }
}

impl ArrivalProgress {
    fn from(since: Nanos) -> ArrivalProgress {
        ArrivalProgress { since, bytes: 0 }
    }

    fn judged_at(self) -> Nanos {
        self.since.saturating_add(PROGRESS_NS)
    }
}

impl ListeningClock {
    /// The time at which the clock shows this; none while it stands still.
    fn real(&self, clock: Nanos) -> Option<Nanos> {
        let runs = self.since.is_none();
        runs.then(|| clock.saturating_add(self.paused_ns))
    }
}
