//! One attachment to the node's service, from the handshake to its end.
//!
//! Who touches what:
//!
//! | what | by whom |
//! |---|---|
//! | submission ring, [`Outbox`] | whoever submits, under the `outbox` lock |
//! | completion ring, wake word, [`Inbox`] | whoever holds the `draining` lock; only who is about to sleep, or was woken for it, waits for it |
//! | a call's state | whoever delivers or owns it, under the lock in its slot |
//! | control socket | the reactor thread, and who meets a segment that is not mapped yet |
//!
//! A link ends once, by [`Link::end`]: all calls end as unavailable, all outgoing messages come back. Its memory stays mapped
//! until the last received message is dropped.

mod calls;
mod control;
mod drain;
mod outgoing;
mod peers;
mod runtime_watch;
mod submit;
mod wait;

use std::cell::UnsafeCell;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use provost_ring::{Bell, Producer};
use provost_shm::{
    AppRings, AsFd, BorrowedFd, Doorbell, Mapping, Memfd, MemfdLimits, OwnedFd, PacketSocket, Ringer,
    SEALS_FIXED_SIZE,
};
use provost_wire::Code;
use provost_wire::control::{RegionMapped, RegionReplaced, SegmentAdded, reply, request};
use provost_wire::descriptor::{Completion, Parts, Submission, submission_kind};
use provost_wire::limits::RING_SLOTS_MAX;

pub(crate) use calls::{CANCELLED, CallId, Half, LocalEnd, WireCall};
pub(crate) use control::{CONNECT_TIMEOUT, request_with_schema, until_taken_back};
#[allow(
    unreachable_pub,
    reason = "it is in the signature of the sealed method of `Payload`"
)]
pub use outgoing::OutgoingMessage;
pub(crate) use peers::PeerSource;
pub(crate) use submit::{SubmitError, when_room};
pub(crate) use wait::{SPIN_DEFAULT, Waiter, Waits, block_on};

use crate::reactor::{Reactor, Timer};
use crate::shared::window::ReceiveRange;
use crate::status::Status;
use crate::waker_list::{WakerList, WakerPlace};
use calls::{CallTable, WireName};
use control::{Control, Notice};
use drain::{BindTable, Drained, Inbox};
use peers::PeerTable;
use submit::Outbox;
use wait::Waiting;

/// How often the ring is looked at, at most, when the service has hung up: turns of whole batches, and waits for who
/// drains already.
const DRAIN_REST_TURNS: u32 = RING_SLOTS_MAX;

/// How soon a request is sent again that the service had no room for: at first, and at the longest.
const REQUEST_PAUSE: Duration = Duration::from_millis(2);
const REQUEST_PAUSE_MAX: Duration = Duration::from_millis(64);

/// What ends calls when their attachment ends.
const SERVICE_GONE: LocalEnd = LocalEnd {
    code: Code::Unavailable,
    reason: "the node's service went away",
};

/// What an app has once the service has taken it.
pub(crate) struct Attachment {
    pub(crate) socket: PacketSocket,
    pub(crate) rings: AppRings,
    pub(crate) ringer: Ringer,
    pub(crate) doorbell: Doorbell,
    pub(crate) range: ReceiveRange,
    pub(crate) message_bytes_max: u32,
    pub(crate) waits: Waits,
}

/// See the module's documentation.
pub(crate) struct Link {
    pub(crate) number: u64,
    pub(crate) calls: CallTable,
    pub(crate) control: Control,
    pub(crate) message_bytes_max: u32,
    rings: UnsafeCell<AppRings>,
    /// The region that the service writes, which another one can take the place of while the rings are in use.
    completion_region: Arc<Mapping>,
    outbox: Mutex<Outbox>,
    draining: Mutex<()>,
    inbox: UnsafeCell<Inbox>,
    waiting: Waiting,
    ringer: Ringer,
    doorbell: Doorbell,
    range: ReceiveRange,
    segments: Mutex<Vec<Segment>>,
    /// Where a server waits for the calls of the peers that connect to it.
    binds: Mutex<BindTable>,
    /// Who is at the other end of the connections of servers.
    peers: Mutex<PeerTable>,
    /// What waits for room in the submission ring.
    room_waiters: WakerList,
    has_room_waiters: AtomicBool,
    is_dead: AtomicBool,
    /// Told about connections that closed and about the end of the link.
    observer: Box<dyn Observer>,
}

// SAFETY: the rings' fields `submissions` and `service` are touched only under the `outbox` lock, `completions` and
// `sleeper`, and the inbox, only by the holder of `draining` (see `Drain`); everything else is `Sync` by itself.
unsafe impl Sync for Link {}
// SAFETY: no part is bound to a thread.
unsafe impl Send for Link {}

/// A received segment that is mapped.
struct Segment {
    number: u64,
    offsets: Range<u32>,
}

/// Who wants to know what becomes of a link's connections.
pub(crate) trait Observer: Send + Sync {
    /// A client's connection is over, or takes no new calls.
    fn connection_lost(&self, link: u64, connection: u32, status: Status);
    /// The link is over.
    fn link_lost(&self, link: u64);
}

/// A connection as the service numbers it.
#[derive(Clone)]
pub(crate) struct Connection {
    pub(crate) link: Arc<Link>,
    pub(crate) number: u32,
}

impl Connection {
    /// Whether both are the same one.
    pub(crate) fn is(&self, other: &Connection) -> bool {
        self.number == other.number && Arc::ptr_eq(&self.link, &other.link)
    }
}

/// A new call of a client.
pub(crate) struct NewCall {
    pub(crate) connection: u32,
    pub(crate) method: u16,
    pub(crate) parts: Parts,
    /// 0 for none.
    pub(crate) deadline_ns: u64,
}

impl Link {
    /// Puts an attachment to work.
    pub(crate) fn start(attachment: Attachment, observer: Box<dyn Observer>) -> io::Result<Arc<Link>> {
        let link = Arc::new(Link {
            number: Reactor::get()?.new_link_number(),
            calls: CallTable::new(),
            control: Control::new(attachment.socket),
            message_bytes_max: attachment.message_bytes_max,
            completion_region: Arc::clone(attachment.rings.completion_region()),
            rings: UnsafeCell::new(attachment.rings),
            outbox: Mutex::default(),
            draining: Mutex::new(()),
            inbox: UnsafeCell::default(),
            waiting: Waiting::new(attachment.waits),
            ringer: attachment.ringer,
            doorbell: attachment.doorbell,
            range: attachment.range,
            segments: Mutex::default(),
            binds: Mutex::default(),
            peers: Mutex::default(),
            room_waiters: WakerList::default(),
            has_room_waiters: AtomicBool::new(false),
            is_dead: AtomicBool::new(false),
            observer,
        });
        Reactor::get()?.watch(&link)?;
        // So that it is watched at rest, should nothing be called for now.
        link.keep_ticking();
        Ok(link)
    }

    /// Whether a connection of a client is over.
    pub(crate) fn has_closed(&self, connection: u32) -> bool {
        self.outbox().closed.contains(connection)
    }

    /// Opens a call and submits its first step.
    pub(crate) fn begin(
        &self,
        call: &NewCall,
        outgoing: &mut OutgoingMessage,
    ) -> Result<CallId, SubmitError> {
        let id = self.submitting(|outbox, ring| {
            // Under the lock that its end is noted under: a call is either refused here or ended there.
            if outbox.closed.contains(call.connection) {
                return Err(SubmitError::Closed);
            }
            let fresh = || self.calls.fresh_slot().ok_or(SubmitError::TooManyCalls);
            let slot = outbox.free_calls.pop().map_or_else(fresh, Ok)?;
            outbox.sequence += 1;
            let name = WireName::Own {
                connection: call.connection,
            };
            let id = self.calls.open(outbox.sequence, slot, name, call.deadline_ns);
            let step = Submission {
                kind: submission_kind::STEP,
                parts: call.parts,
                method: call.method,
                connection: call.connection,
                call: id.0,
                deadline_ns: call.deadline_ns,
                ..Submission::default()
            };
            outbox.step(ring, step, outgoing).inspect_err(|_| {
                self.calls.close(id, |_| ());
                outbox.free_calls.push(slot);
            })?;
            Ok(id)
        })?;
        self.note_deadline(call.deadline_ns);
        Ok(id)
    }

    /// Opens a call that the service has begun, or a place that is waited at like one.
    pub(crate) fn open(&self, wire: WireCall, deadline_ns: u64) -> Result<CallId, SubmitError> {
        let id = {
            let mut outbox = self.outbox();
            if outbox.is_dead {
                return Err(SubmitError::Dead);
            }
            let fresh = || self.calls.fresh_slot().ok_or(SubmitError::TooManyCalls);
            let slot = outbox.free_calls.pop().map_or_else(fresh, Ok)?;
            outbox.sequence += 1;
            self.calls
                .open(outbox.sequence, slot, WireName::Given(wire), deadline_ns)
        };
        self.note_deadline(deadline_ns);
        Ok(id)
    }

    /// Closes a call, whatever came for it and was not taken.
    pub(crate) fn close(&self, id: CallId) {
        let steps = self.close_with_steps(id);
        steps.into_iter().for_each(|step| self.reclaim(step.block));
    }

    /// Closes a call; the steps that came for it and were not taken.
    pub(crate) fn close_with_steps(&self, id: CallId) -> Vec<Completion> {
        let mut steps = Vec::new();
        if let Some(slot) = self.calls.close(id, |step| steps.push(step)) {
            self.outbox().free_calls.push(slot);
        }
        steps
    }

    /// Submits a later step of a call. The outgoing stays with the caller when it is not submitted.
    pub(crate) fn submit(&self, step: Submission, outgoing: &mut OutgoingMessage) -> Result<(), SubmitError> {
        self.submitting(|outbox, ring| outbox.step(ring, step, outgoing))
    }

    /// Submits a step without a body, now or as soon as there is room.
    pub(crate) fn submit_eventually(&self, step: &Submission) {
        let _ = self.submitting(|outbox, ring| {
            outbox.step_eventually(ring, step);
            Ok(())
        });
    }

    /// Gives a received block back; 0 is none.
    pub(crate) fn reclaim(&self, block: u32) {
        if block != 0 {
            let _ = self.submitting(|outbox, ring| {
                outbox.reclaim(ring, block);
                Ok(())
            });
        }
    }

    /// Submits what was held back, as far as there is room.
    pub(crate) fn flush(&self) {
        if self.outbox().has_leftovers() {
            let _ = self.submitting(|outbox, ring| {
                outbox.flush(ring);
                Ok(())
            });
        }
    }

    /// Runs `work` with the submission ring, then shows the service what was pushed and wakes it if it sleeps.
    fn submitting<R>(
        &self,
        work: impl FnOnce(&mut Outbox, &mut Producer) -> Result<R, SubmitError>,
    ) -> Result<R, SubmitError> {
        if provost_shm::is_forked_child() {
            return Err(SubmitError::Dead);
        }
        let mut outbox = self.outbox();
        // SAFETY: the `outbox` lock is held, which is what these two fields need (see `Sync`).
        let (ring, service): (&mut Producer, &mut Bell) = unsafe {
            let rings = self.rings.get();
            (&mut (*rings).submissions, &mut (*rings).service)
        };
        let result = work(&mut outbox, ring);
        let rings_bell = ring.publish() && service.needed();
        drop(outbox);
        if rings_bell {
            // A service that hung up is noticed at the control socket.
            let _ = self.ringer.ring();
        }
        result
    }

    /// Has `waker` woken when there may be room in the submission ring; `place` is that of who waits.
    pub(crate) fn wait_for_room(&self, place: &mut Option<WakerPlace>, waker: &Waker) {
        place
            .get_or_insert_with(|| self.room_waiters.place())
            .register(waker);
        self.has_room_waiters.store(true, Ordering::Release);
        self.keep_ticking();
    }

    fn wake_room_waiters(&self) {
        if self.has_room_waiters.load(Ordering::Acquire) {
            self.has_room_waiters.store(false, Ordering::Release);
            self.room_waiters.wake_all();
        }
    }

    fn note_deadline(&self, deadline_ns: u64) {
        if deadline_ns != 0 && self.calls.note_deadline(deadline_ns) {
            Reactor::wake_before(deadline_ns);
        }
    }

    /// Asks the service for something and waits for its answer, at most `timeout`.
    pub(crate) async fn request(
        &self,
        id: u64,
        body: request::Body,
        descriptors: &[BorrowedFd<'_>],
        timeout: Duration,
    ) -> Result<reply::Body, Status> {
        let until_ns = provost_shm::now_ns().saturating_add(timeout.as_nanos() as u64);
        let mut pause = REQUEST_PAUSE;
        let mut sent = self.control.send(id, body.clone(), descriptors);
        while sent
            .as_ref()
            .is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
            && provost_shm::now_ns() < until_ns
        {
            Timer::new(pause).wait().await;
            pause = (pause * 2).min(REQUEST_PAUSE_MAX);
            sent = self.control.send(id, body.clone(), descriptors);
        }
        sent.map_err(|error| {
            Status::unavailable(format!("the node's service does not take requests: {error}"))
        })?;
        let _forget = Forget { link: self, id };
        if self.is_dead() {
            return Err(Status::unavailable(SERVICE_GONE.reason));
        }
        let mut timer = Timer::at(until_ns);
        std::future::poll_fn(|context| {
            if let std::task::Poll::Ready(reply) = self.control.poll_reply(id, context) {
                return std::task::Poll::Ready(reply);
            }
            let late = || {
                Err(Status::deadline_exceeded(
                    "the node's service did not answer in time",
                ))
            };
            timer.poll(context).map(|()| late())
        })
        .await
    }

    /// Reads the control socket, for the reactor. When the service has hung up, delivers what it published before that,
    /// and ends the link.
    pub(crate) fn receive_control(&self) {
        if self.take_control().is_err() {
            self.drain_rest();
            self.end();
        }
    }

    /// Reads the control socket, and leaves its end to the reactor.
    fn take_control(&self) -> io::Result<()> {
        self.control.receive(|notice| match notice {
            Notice::Segment(added, memory) => self.take_segment(&added, memory),
            Notice::Unwanted(reply) => {
                self.undo(&reply);
                Ok(())
            }
            Notice::Region(replaced, memory) => self.take_region(&replaced, memory),
            Notice::Peer(description) => {
                self.note_peer(description);
                Ok(())
            }
            Notice::Unbound(unbound) => {
                self.control.note_unbound(unbound);
                self.wake_servers();
                Ok(())
            }
        })
    }

    /// Takes back what the service has done for a request that was given up meanwhile.
    fn undo(&self, reply: &reply::Body) {
        if let reply::Body::Connected(connected) = reply {
            self.close_connection(connected.connection);
        }
    }

    fn take_segment(&self, added: &SegmentAdded, memory: OwnedFd) -> io::Result<()> {
        let offsets = self
            .range
            .map(added.at, added.bytes, memory)
            .map_err(io::Error::from)?;
        lock(&self.segments).push(Segment {
            number: added.segment,
            offsets,
        });
        Ok(())
    }

    /// Another process of the service goes on, in memory of its own. The service rings once it knows that we look there.
    fn take_region(&self, replaced: &RegionReplaced, memory: OwnedFd) -> io::Result<()> {
        let bytes = self.completion_region.bytes() as u64;
        let limits = MemfdLimits {
            bytes_min: bytes,
            bytes_max: bytes,
            seals: SEALS_FIXED_SIZE,
        };
        let memory = Memfd::verify_foreign(memory, limits)?;
        self.completion_region.replace(&memory)?;
        let generation = replaced.generation;
        self.control
            .say(request::Body::RegionMapped(RegionMapped { generation }))
    }

    /// Delivers all that is in the ring of completions: nobody adds to it any more.
    fn drain_rest(&self) {
        for _ in 0..DRAIN_REST_TURNS {
            match self.drain() {
                Drained::Some => {}
                Drained::Nothing => return,
                Drained::Busy => drop(self.wait_drain()),
            }
        }
    }

    /// Which mapped segment an offset is in.
    fn segment_of(&self, offset: u32) -> Option<Range<u32>> {
        let segments = lock(&self.segments);
        segments
            .iter()
            .map(|segment| segment.offsets.clone())
            .find(|offsets| offsets.contains(&offset))
    }

    fn retire_segment(&self, number: u64) {
        let mut segments = lock(&self.segments);
        if let Some(at) = segments.iter().position(|segment| segment.number == number) {
            self.range.unmap(segments.swap_remove(at).offsets);
        }
    }

    /// Closes a client's connection.
    pub(crate) fn close_connection(&self, connection: u32) {
        self.submit_eventually(&Submission {
            kind: submission_kind::CLOSE,
            connection,
            ..Submission::default()
        });
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::Acquire)
    }

    /// Ends the link: every open call ends as unavailable. Only the first call does something.
    pub(crate) fn end(&self) {
        // A child of `fork` has the link of its parent, and locks that may be held for ever.
        if provost_shm::is_forked_child() {
            return;
        }
        let outgoing_messages = {
            let mut outbox = self.outbox();
            if outbox.is_dead {
                return;
            }
            outbox.close()
        };
        self.is_dead.store(true, Ordering::Release);
        drop(outgoing_messages);
        let open: Vec<CallId> = self.calls.open_calls().collect();
        for id in open {
            self.calls.end(id, SERVICE_GONE);
        }
        self.control.fail_all();
        self.wake_room_waiters();
        self.stop_watching();
        Reactor::unwatch(self);
        self.observer.link_lost(self.number);
    }

    pub(crate) fn doorbell(&self) -> &Doorbell {
        &self.doorbell
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }

    fn outbox(&self) -> MutexGuard<'_, Outbox> {
        lock(&self.outbox)
    }
}

struct Forget<'a> {
    link: &'a Link,
    id: u64,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        if let Some(Ok(reply)) = self.link.control.forget(self.id) {
            self.link.undo(&reply);
        }
    }
}

/// Nothing in this library panics while it holds a lock, except by a bug in a `Waker`; then going on is best.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
