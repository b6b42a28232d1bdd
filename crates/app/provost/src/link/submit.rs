//! The way out of this process: the submission ring, and what waits for it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Poll;

use provost_ring::{Producer, PushError, Slot};
use provost_shm::now_ns;
use provost_wire::descriptor::{BATCH_MAX, Batch, Submission, submission_kind};
use provost_wire::limits::CONNECTION_PLACE_BITS;
use zerocopy::{Immutable, IntoBytes};

use super::Link;
use super::outgoing::{OutgoingMessage, Outstanding};

/// How often a call looks for room before it sleeps until the next tick.
const ROOM_SPINS: u32 = 100;

/// Why a step was not submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SubmitError {
    /// The ring has no room: wait for some.
    Full,
    /// All calls that can be open are.
    TooManyCalls,
    /// The connection is over, though the attachment is not.
    Closed,
    /// The attachment is over.
    Dead,
}

/// What is behind the submission lock, beside the ring itself.
#[derive(Default)]
pub(crate) struct Outbox {
    pub(crate) outstanding: Outstanding,
    /// Slots of the call table that no call is in, of those that were used before.
    pub(crate) free_calls: Vec<u32>,
    /// The number of the last call.
    pub(crate) sequence: u64,
    pub(crate) is_dead: bool,
    pub(crate) closed: Closed,
    /// Steps without a body that found the ring full. They go before everything else.
    backlog: VecDeque<Slot>,
    /// Received blocks that nobody reads any more, not told to the service yet.
    reclaimed: Vec<u32>,
}

/// The client's connections that are over, by their places: the last one of each, as those before it are over too.
#[derive(Default)]
pub(crate) struct Closed(Vec<u32>);

impl Closed {
    /// Notes that a connection is over.
    pub(crate) fn note(&mut self, connection: u32) {
        let place = place_of(connection);
        if self.0.len() <= place {
            self.0.resize(place + 1, 0);
        }
        self.0[place] = connection;
    }

    /// Whether a connection is over.
    pub(crate) fn contains(&self, connection: u32) -> bool {
        let last = self.0.get(place_of(connection)).copied().unwrap_or(0);
        // Uses of a place are counted round and round: what is less than half a round back is over.
        let uses_since = last.wrapping_sub(connection) >> CONNECTION_PLACE_BITS;
        last != 0 && uses_since < USES_HALF
    }
}

const USES_HALF: u32 = 1 << (31 - CONNECTION_PLACE_BITS);

fn place_of(connection: u32) -> usize {
    (connection & ((1 << CONNECTION_PLACE_BITS) - 1)) as usize
}

impl Outbox {
    /// Submits a step with its outgoing; gives the outgoing back when there is no room.
    pub(crate) fn step(
        &mut self,
        ring: &mut Producer,
        mut step: Submission,
        outgoing: &mut OutgoingMessage,
    ) -> Result<(), SubmitError> {
        if self.is_dead {
            return Err(SubmitError::Dead);
        }
        self.flush_backlog(ring)?;
        if outgoing.is_empty() {
            return push(ring, as_slot(&step));
        }
        step.root = outgoing.root();
        (step.metadata, step.metadata_bytes) = outgoing.metadata();
        step.token = self.outstanding.keep(std::mem::take(outgoing));
        push(ring, as_slot(&step)).inspect_err(|_| {
            *outgoing = self.outstanding.take(step.token).unwrap_or_default();
        })
    }

    /// Submits a step that has no body, now or as soon as there is room.
    pub(crate) fn step_eventually(&mut self, ring: &mut Producer, step: &Submission) {
        let is_next = !self.is_dead && self.flush_backlog(ring).is_ok();
        let submitted = is_next && push(ring, as_slot(step)).is_ok();
        if !submitted && !self.is_dead {
            self.backlog.push_back(as_slot(step));
        }
    }

    /// Takes note of a received block that nobody reads any more. Tells the service when there is a batch of them.
    pub(crate) fn reclaim(&mut self, ring: &mut Producer, block: u32) {
        if self.is_dead {
            return;
        }
        self.reclaimed.push(block);
        if self.reclaimed.len() >= BATCH_MAX {
            self.flush_reclaimed(ring);
        }
    }

    /// Submits all that waits, as far as there is room.
    pub(crate) fn flush(&mut self, ring: &mut Producer) {
        if !self.is_dead && self.flush_backlog(ring).is_ok() {
            self.flush_reclaimed(ring);
        }
    }

    /// Whether [`Outbox::flush`] has something to do.
    pub(crate) fn has_leftovers(&self) -> bool {
        !self.backlog.is_empty() || !self.reclaimed.is_empty()
    }

    /// Ends the way out: nothing is submitted any more. All outgoing messages that are out come back.
    pub(crate) fn close(&mut self) -> Vec<OutgoingMessage> {
        self.is_dead = true;
        self.backlog = VecDeque::new();
        self.reclaimed = Vec::new();
        self.outstanding.take_all()
    }

    fn flush_backlog(&mut self, ring: &mut Producer) -> Result<(), SubmitError> {
        while let Some(slot) = self.backlog.front() {
            push(ring, *slot)?;
            self.backlog.pop_front();
        }
        Ok(())
    }

    fn flush_reclaimed(&mut self, ring: &mut Producer) {
        while !self.reclaimed.is_empty() {
            let count = self.reclaimed.len().min(BATCH_MAX);
            let mut batch = Batch {
                kind: submission_kind::RECLAIM,
                count: count as u8,
                ..Batch::default()
            };
            let first = self.reclaimed.len() - count;
            for (item, block) in batch.items.iter_mut().zip(&self.reclaimed[first..]) {
                *item = u64::from(*block);
            }
            if push(ring, as_slot(&batch)).is_err() {
                return;
            }
            self.reclaimed.truncate(first);
        }
    }
}

fn push(ring: &mut Producer, slot: Slot) -> Result<(), SubmitError> {
    ring.push(&slot).map_err(|error| match error {
        PushError::Full => SubmitError::Full,
        PushError::Fault(_) => SubmitError::Dead,
    })
}

fn as_slot<T: IntoBytes + Immutable>(descriptor: &T) -> Slot {
    let mut slot = Slot::default();
    slot.as_mut_bytes().copy_from_slice(descriptor.as_bytes());
    slot
}

/// Tries until the submission ring has room; [`SubmitError::Full`] means that the deadline came first.
pub(crate) async fn when_room<R>(
    link: &Arc<Link>,
    deadline_ns: u64,
    mut attempt: impl FnMut() -> Result<R, SubmitError>,
) -> Result<R, SubmitError> {
    let (mut spins, mut place) = (0, None);
    std::future::poll_fn(|context| {
        let no_room = match attempt() {
            Err(no_room @ (SubmitError::Full | SubmitError::TooManyCalls)) => no_room,
            result => return Poll::Ready(result),
        };
        if deadline_ns != 0 && now_ns() >= deadline_ns {
            return Poll::Ready(Err(no_room));
        }
        link.wait_for_room(&mut place, context.waker());
        // The service may be held up by completions that nobody takes.
        link.look_in();
        link.yield_unless_contended();
        spins += 1;
        if spins < ROOM_SPINS {
            context.waker().wake_by_ref();
        }
        Poll::Pending
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::{CONNECTION_PLACE_BITS, Closed};

    fn connection(uses: u32, place: u32) -> u32 {
        uses << CONNECTION_PLACE_BITS | place
    }

    #[test]
    fn a_closed_connection_and_those_before_it_at_its_place_are_over() {
        let mut closed = Closed::default();
        assert!(!closed.contains(connection(1, 3)));
        closed.note(connection(2, 3));
        assert!(closed.contains(connection(1, 3)));
        assert!(closed.contains(connection(2, 3)));
        assert!(!closed.contains(connection(3, 3)));
        assert!(!closed.contains(connection(2, 2)));
        assert!(!closed.contains(connection(2, 4)));
    }

    #[test]
    fn uses_of_a_place_are_counted_round_and_round() {
        let mut closed = Closed::default();
        closed.note(connection(0xfff, 0));
        assert!(closed.contains(connection(0xffe, 0)));
        assert!(!closed.contains(connection(1, 0)));
        closed.note(connection(1, 0));
        assert!(closed.contains(connection(0xfff, 0)));
        assert!(!closed.contains(connection(2, 0)));
    }
}
