//! One app's rings and receive heap, as its runtime thread uses them.

use provost_datapath::{Body, Nanos, ReceiveHeap, Step, Untrusted, message_offset};
use provost_ring::{PeerFault, PushError, Slot};
use provost_shm::{Ringer, ServiceRings};
use provost_wire::Code;
use provost_wire::descriptor::{
    BATCH_MAX, Batch, Completion, Parts, Submission, completion_kind, submission_kind,
};
use provost_wire::limits::BLOCK_ALIGN_BYTES;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::AppReceiveHeap;

/// Tokens that wait for room in the completion ring, at most; past it no submission is read.
pub(crate) const SENT_WAITING_MAX: usize = 64 << 10;

/// Pauses between two polls of an app that does not look at its completion region yet.
const UNSEEN_POLL_NS_MIN: Nanos = 100_000;
/// See [`UNSEEN_POLL_NS_MIN`]: an app that is stopped costs little.
const UNSEEN_POLL_NS_MAX: Nanos = 100_000_000;

/// What only a broken or hostile library does: the app is detached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppFault {
    /// An index of a ring lies.
    #[error("{0}")]
    Ring(#[from] PeerFault),
    /// A block was given back that the app does not hold.
    #[error("the app gave back the block at {at}, which it does not hold")]
    Reclaim {
        /// Where it claims the block to be.
        at: u64,
    },
    /// A submission of a kind that does not exist.
    #[error("the app submitted a descriptor of the unknown kind {kind}")]
    Kind { kind: u8 },
    /// A batch longer than a descriptor.
    #[error("the app submitted a batch of {count}, where {BATCH_MAX} fit")]
    Batch {
        /// The count that it claims.
        count: u8,
    },
    /// The app has not read its completions for longer than it may.
    #[error("the app has not made room in its full completion ring for {stalled_ns} ns")]
    Stalled {
        /// How long the ring has been full.
        stalled_ns: Nanos,
    },
}

/// What the app asks for.
#[derive(Debug)]
pub enum AppRequest {
    /// A step of a call, with a body of [`Body::Untrusted`].
    Step {
        connection: u32,
        step: Step,
    },
    Close {
        connection: u32,
    },
}

/// What an app is told about a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A server's app got a new peer.
    Accepted {
        /// Number of the new connection.
        connection: u32,
        /// The request by which the app offered the service.
        bind: u64,
        /// Number of the peer's description at the control socket.
        peer: u64,
    },
    /// The peer, or this service, drains.
    GoingAway {
        connection: u32,
    },
    Closed {
        connection: u32,
        status: Code,
    },
}

/// Why a completion was not pushed.
#[derive(Debug)]
pub enum NotPushed<T> {
    /// The ring is full: try again.
    Full(T),
    /// The ring's indices lie.
    Fault(AppFault),
}

/// How much there is in the rings of a port, and in its receive heap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortLoad {
    /// Submissions that were in the ring at once since the last look, at most.
    pub submissions: u32,
    /// Slots of the submission ring.
    pub submission_slots: u32,
    /// Completions that are in the ring, or were when it was found full since the last look.
    pub completions: u32,
    /// Slots of the completion ring.
    pub completion_slots: u32,
    /// Bytes of all segments of the receive heap.
    pub receive_heap_bytes: u64,
}

/// One app's rings and receive heap. It belongs to one runtime thread.
pub struct AppPort {
    pub(crate) rings: ServiceRings,
    pub(crate) app_doorbell: Ringer,
    pub(crate) heap: AppReceiveHeap,
    pub(crate) sent: Vec<u64>,
    pub(crate) retired: Option<u64>,
    /// The last push found the ring full.
    pub(crate) blocked: bool,
    /// Since when [`AppPort::maintain`] finds it so.
    pub(crate) full_since: Option<Nanos>,
    /// What was pushed since the last flush.
    unflushed: UnflushedPush,
    load: PortLoad,
    /// Which completion region this is; each process of the service has its own.
    pub(crate) generation: u64,
    /// The app does not look at it yet.
    pub(crate) unseen: Option<Unseen>,
}

/// What the app has not been shown yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum UnflushedPush {
    Nothing,
    /// Tokens alone. An app that sleeps is not woken for them: it waits for what they are followed by, and takes them on the way.
    Tokens,
    News,
}

/// An app that looks at the completion region of an earlier process. It finds out neither that there is a completion nor
/// that it has to ring, so it is polled.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Unseen {
    /// Whether it was told of the new region.
    is_shown: bool,
    since: Option<Nanos>,
    poll_at: Nanos,
}

impl Unseen {
    /// The pauses between two polls grow from the first to the last, to an eighth of what has passed.
    fn note_poll(&mut self, now: Nanos) {
        let passed_ns = now.saturating_sub(*self.since.get_or_insert(now));
        self.poll_at = now + (passed_ns / 8).clamp(UNSEEN_POLL_NS_MIN, UNSEEN_POLL_NS_MAX);
    }
}

impl AppPort {
    /// A port over the service's ends of the rings. `app_doorbell` wakes the app.
    #[must_use]
    pub fn new(rings: ServiceRings, app_doorbell: Ringer, heap: AppReceiveHeap) -> AppPort {
        AppPort {
            rings,
            app_doorbell,
            heap,
            sent: Vec::with_capacity(64),
            retired: None,
            blocked: false,
            full_since: None,
            unflushed: UnflushedPush::Nothing,
            load: PortLoad::default(),
            generation: 0,
            unseen: None,
        }
    }

    /// The app has mapped a completion region. If it is this port's, it is woken: what it was rung for before, it could
    /// not see.
    pub fn region_mapped(&mut self, generation: u64) {
        if generation == self.generation && self.unseen.take().is_some() {
            let _ = self.app_doorbell.ring();
        }
    }

    /// The next request, if there is one. Reclaimed blocks are taken back on the way.
    pub fn next_request(&mut self) -> Result<Option<AppRequest>, AppFault> {
        while self.sent.len() < SENT_WAITING_MAX {
            let Some(slot) = self.rings.submissions.pop()? else {
                return Ok(None);
            };
            let submission: Submission = of_slot(&slot);
            match submission.kind {
                submission_kind::STEP => return Ok(Some(untrusted_step(&submission))),
                submission_kind::RECLAIM => self.reclaim(&of_slot(&slot))?,
                submission_kind::CLOSE => {
                    let connection = submission.connection;
                    return Ok(Some(AppRequest::Close { connection }));
                }
                kind => return Err(AppFault::Kind { kind }),
            }
        }
        Ok(None)
    }

    /// Gives the places of the submissions that were read back to the app.
    pub fn release(&mut self) {
        self.load.submissions = self.load.submissions.max(self.rings.submissions.taken());
        self.rings.submissions.release();
    }

    /// Whether nothing waits in the submission ring.
    pub fn is_idle(&mut self) -> Result<bool, AppFault> {
        Ok(self.rings.submissions.is_empty()?)
    }

    /// Hands a step to the app; a received block becomes the app's.
    pub fn push_step(&mut self, connection: u32, step: Step) -> Result<(), NotPushed<Step>> {
        let completion = describe(connection, &step);
        match self.push(&to_slot(&completion)) {
            Ok(()) => {
                if let Body::Received(body) = &step.body {
                    self.heap.publish(&body.block);
                }
                Ok(())
            }
            Err(PushError::Full) => Err(NotPushed::Full(step)),
            Err(PushError::Fault(fault)) => Err(NotPushed::Fault(fault.into())),
        }
    }

    /// Tells the app something about a connection.
    pub fn push_notice(&mut self, notice: Notice) -> Result<(), NotPushed<Notice>> {
        let at_rest = Completion::default();
        let completion = match notice {
            Notice::Accepted {
                connection,
                bind,
                peer,
            } => Completion {
                kind: completion_kind::ACCEPTED,
                connection,
                call: bind,
                reserved: [peer, 0],
                ..at_rest
            },
            Notice::GoingAway { connection } => Completion {
                kind: completion_kind::GOING_AWAY,
                connection,
                ..at_rest
            },
            Notice::Closed { connection, status } => Completion {
                kind: completion_kind::CLOSED,
                connection,
                status_or_window: status.number(),
                ..at_rest
            },
        };
        self.push(&to_slot(&completion)).map_err(|error| match error {
            PushError::Full => NotPushed::Full(notice),
            PushError::Fault(fault) => NotPushed::Fault(fault.into()),
        })
    }

    /// Shows the app what was pushed, with the tokens that are to go back, and wakes it if it sleeps and that is news to it.
    pub fn flush(&mut self) -> Result<(), AppFault> {
        self.push_sent()?;
        let unflushed = std::mem::replace(&mut self.unflushed, UnflushedPush::Nothing);
        self.rings.completions.publish();
        // An app that sleeps over a full ring has to make room before there can be news.
        if (unflushed == UnflushedPush::News || self.blocked) && self.rings.app.needed() {
            // An app whose doorbell is gone is detached by the end of its control socket.
            let _ = self.app_doorbell.ring();
        }
        Ok(())
    }

    /// Looks after the receive heap and the completion ring: to be called now and then. An app that leaves its ring
    /// full for longer than `stall_ns_max` is at fault.
    pub fn maintain(&mut self, now: Nanos, stall_ns_max: Nanos) -> Result<(), AppFault> {
        if let Some(unseen) = &mut self.unseen {
            unseen.note_poll(now);
            if !unseen.is_shown {
                let [_, region] = self.rings.memory();
                unseen.is_shown = self.heap.source.show_region(self.generation, region);
            }
        }
        let room = self.rings.completions.room()?;
        let taken = self.rings.completions.capacity() - room;
        self.load.completions = self.load.completions.max(taken);
        if room > 0 {
            self.blocked = false;
            self.full_since = None;
        } else {
            let stalled_ns = now.saturating_sub(*self.full_since.get_or_insert(now));
            if stalled_ns > stall_ns_max {
                return Err(AppFault::Stalled { stalled_ns });
            }
        }
        if self.retired.is_none() {
            self.retired = self.heap.retire(now);
        }
        if let Some(segment) = self.retired {
            let completion = Completion {
                kind: completion_kind::SEGMENT_RETIRED,
                call: segment,
                ..Completion::default()
            };
            match self.push(&to_slot(&completion)) {
                Ok(()) => self.retired = None,
                Err(PushError::Full) => {}
                Err(PushError::Fault(fault)) => return Err(fault.into()),
            }
        }
        Ok(())
    }

    /// What there was since the last look: to be asked after [`AppPort::maintain`].
    pub fn take_load(&mut self) -> PortLoad {
        let seen = std::mem::take(&mut self.load);
        PortLoad {
            submission_slots: self.rings.submissions.capacity(),
            completion_slots: self.rings.completions.capacity(),
            receive_heap_bytes: self.heap.total_bytes(),
            ..seen
        }
    }

    /// Bytes of all segments of the receive heap.
    #[must_use]
    pub fn receive_heap_bytes(&self) -> u64 {
        self.heap.total_bytes()
    }

    /// Whether a block of the receive heap is live, with the app or on its way to it.
    #[must_use]
    pub fn has_blocks(&self) -> bool {
        !self.heap.is_empty()
    }

    /// When [`AppPort::maintain`] wants to be called though nothing happens.
    #[must_use]
    pub fn wake_at(&self) -> Option<Nanos> {
        let unseen = self.unseen.map(|unseen| unseen.poll_at);
        [unseen, self.heap.wake_at()].into_iter().flatten().min()
    }

    /// Whether the app's completion ring had no room at the last push.
    #[must_use]
    pub fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Tells the app to ring from now on, and says whether there is nothing to do before that.
    pub fn arm(&mut self) -> Result<bool, AppFault> {
        self.rings.sleeper.arm();
        self.is_idle()
    }

    /// Tells the app that it need not ring.
    pub fn disarm(&mut self) {
        self.rings.sleeper.disarm();
    }

    /// What engines of this app's datapaths are lent: the receive heap, and where tokens go.
    pub fn lend(&mut self) -> (&mut dyn ReceiveHeap, &mut Vec<u64>) {
        (&mut self.heap, &mut self.sent)
    }

    fn reclaim(&mut self, batch: &Batch) -> Result<(), AppFault> {
        let count = batch.count;
        let items = batch
            .items
            .get(..usize::from(count))
            .ok_or(AppFault::Batch { count })?;
        for at in items {
            let fault = AppFault::Reclaim { at: *at };
            let block = u32::try_from(*at).map_err(|_| fault.clone())?;
            self.heap.reclaim(block).map_err(|_| fault)?;
        }
        Ok(())
    }

    fn push_sent(&mut self) -> Result<(), AppFault> {
        while !self.sent.is_empty() {
            let count = self.sent.len().min(BATCH_MAX);
            let mut batch = Batch {
                kind: completion_kind::SENT,
                count: count as u8,
                ..Batch::default()
            };
            let start = self.sent.len() - count;
            batch.items[..count].copy_from_slice(&self.sent[start..]);
            match self.push_as(&to_slot(&batch), UnflushedPush::Tokens) {
                Ok(()) => self.sent.truncate(start),
                Err(PushError::Full) => return Ok(()),
                Err(PushError::Fault(fault)) => return Err(fault.into()),
            }
        }
        Ok(())
    }

    fn push(&mut self, slot: &Slot) -> Result<(), PushError> {
        self.push_as(slot, UnflushedPush::News)
    }

    fn push_as(&mut self, slot: &Slot, what: UnflushedPush) -> Result<(), PushError> {
        let pushed = self.rings.completions.push(slot);
        match pushed {
            Ok(()) => self.unflushed = self.unflushed.max(what),
            Err(PushError::Full) => {
                self.blocked = true;
                self.load.completions = self.rings.completions.capacity();
            }
            Err(PushError::Fault(_)) => {}
        }
        pushed
    }
}

/// A slot as the descriptor that it claims to be. (They have the same size, as `wire` asserts.)
fn of_slot<T: FromBytes + Default>(slot: &Slot) -> T {
    T::read_from_bytes(slot.as_bytes()).unwrap_or_default()
}

fn to_slot<T: IntoBytes + Immutable>(descriptor: &T) -> Slot {
    Slot::read_from_bytes(descriptor.as_bytes()).unwrap_or_default()
}

/// A submission as a step, nothing of it checked.
fn untrusted_step(submission: &Submission) -> AppRequest {
    let parts = submission.parts;
    let mut step = Step::new(submission.call, parts);
    step.method = submission.method;
    step.deadline = submission.deadline_ns;
    if parts.intersects(Parts::STATUS | Parts::CANCEL) {
        step.status = Code::from_number(submission.status_or_window);
    } else {
        step.window_bytes = submission.status_or_window;
    }
    step.body = Body::Untrusted(Untrusted {
        root: submission.root,
        metadata: submission.metadata,
        metadata_bytes: submission.metadata_bytes,
        token: submission.token,
    });
    AppRequest::Step {
        connection: submission.connection,
        step,
    }
}

/// A step as a completion.
fn describe(connection: u32, step: &Step) -> Completion {
    let mut completion = Completion {
        kind: completion_kind::STEP,
        parts: step.parts,
        method: if step.parts.contains(Parts::BEGIN) {
            step.method
        } else {
            0
        },
        connection,
        call: step.call,
        deadline_ns: step.deadline,
        ..Completion::default()
    };
    completion.status_or_window = if step.parts.contains(Parts::WINDOW) {
        step.window_bytes
    } else {
        step.status.number()
    };
    if let Body::Received(body) = &step.body {
        completion.block = body.block.at;
        if body.metadata_bytes > 0 {
            completion.metadata = body.block.at;
            completion.metadata_bytes = body.metadata_bytes;
        }
        if step.parts.contains(Parts::MESSAGE) {
            let offset = message_offset(body.metadata_bytes) / BLOCK_ALIGN_BYTES;
            completion.root = body.block.at + offset as u32;
            completion.window_cost = step.window_bytes;
        }
    }
    completion
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{RING_SLOTS, port_and_app};

    fn send_back(port: &mut AppPort, tokens: std::ops::RangeInclusive<u64>) {
        port.lend().1.extend(tokens);
        port.flush().unwrap();
    }

    #[test]
    fn tokens_alone_wake_no_app_and_go_with_what_does() {
        let (mut port, mut app, doorbell) = port_and_app();
        app.sleeper.arm();
        send_back(&mut port, 1..=2);
        assert!(!doorbell.drain().unwrap(), "the app was woken for tokens");
        port.push_notice(Notice::GoingAway { connection: 7 }).unwrap();
        port.flush().unwrap();
        assert!(doorbell.drain().unwrap());
        let kinds = std::iter::from_fn(|| app.completions.pop().unwrap());
        let kinds: Vec<u8> = kinds.map(|slot| of_slot::<Completion>(&slot).kind).collect();
        assert_eq!(kinds, [completion_kind::SENT, completion_kind::GOING_AWAY]);
    }

    #[test]
    fn an_app_that_sleeps_over_a_ring_full_of_tokens_is_woken_to_make_room() {
        let (mut port, mut app, doorbell) = port_and_app();
        app.sleeper.arm();
        for token in 1..=u64::from(RING_SLOTS) {
            send_back(&mut port, token..=token);
        }
        assert!(!doorbell.drain().unwrap());
        let notice = Notice::GoingAway { connection: 7 };
        assert!(matches!(port.push_notice(notice), Err(NotPushed::Full(_))));
        port.flush().unwrap();
        assert!(doorbell.drain().unwrap());
    }
}
