//! The way in: completions are taken off their ring by whoever polls, and delivered to the calls that they are for.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::io::ErrorKind;
use std::ops::Range;
use std::sync::atomic::{Ordering, fence};
use std::sync::{MutexGuard, PoisonError, TryLockError};
use std::task::Waker;

use provost_ring::{Consumer, Sleeper, Slot};
use provost_wire::Code;
use provost_wire::descriptor::{
    BATCH_MAX, Batch, Completion, Parts, Submission, completion_kind, submission_kind,
};
use zerocopy::{FromBytes, IntoBytes};

use super::calls::{CallId, LocalEnd, WireCall};
use super::{Link, lock};
use crate::status::Status;
use crate::waker_list::wake;

/// Completions that are taken before their places in the ring are given back, and before others get a turn.
const DRAIN_MAX: usize = 64;

/// What draining came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Drained {
    /// There was something, and there may be more.
    Some,
    /// The ring was empty.
    Nothing,
    /// Somebody else is at it.
    Busy,
}

/// Where the calls of a bound service go.
#[derive(Clone, Copy, Debug)]
pub(super) struct Listener {
    /// The place where its server waits.
    place: CallId,
    /// Which of the server's services it is.
    service: usize,
}

impl Listener {
    /// Nobody: calls that go there are refused.
    const GONE: Listener = Listener {
        place: CallId::OF_NONE,
        service: 0,
    };
}

/// Where the calls of peers go that connect to a service, by the id of its `Bind` request.
#[derive(Default)]
pub(super) struct BindTable(HashMap<u64, Listener>);

impl BindTable {
    /// Those whose server is gone make room before the table grows: a program may serve again and again.
    fn insert(&mut self, bind: u64, listener: Listener, is_served: impl Fn(CallId) -> bool) {
        if self.0.len() == self.0.capacity() {
            self.0.retain(|_, listener| is_served(listener.place));
        }
        self.0.insert(bind, listener);
    }

    /// A peer may have come as the server went.
    fn find(&self, bind: u64) -> Listener {
        self.0.get(&bind).copied().unwrap_or(Listener::GONE)
    }
}

/// What the drainer knows.
#[derive(Default)]
pub(super) struct Inbox {
    /// Where a server's calls go. Entries of calls that ended go with their connection, or when it is long.
    calls: HashMap<WireCall, CallId>,
    /// The place where a server waits for new calls, by connection.
    servers: HashMap<u32, Listener>,
    /// The segment that the last block was in.
    segment: Range<u32>,
    /// When `calls` is swept of those that ended.
    sweep_at: usize,
}

/// The right to drain: the drainer's ends of the ring, and its knowledge.
pub(super) struct Drain<'a> {
    link: &'a Link,
    pub(super) completions: &'a mut Consumer,
    pub(super) sleeper: &'a mut Sleeper,
    inbox: &'a mut Inbox,
    /// Whom to wake when the ring is given up: a call's owner that ran before that could take the core from who has the ring, and
    /// then wait for it. Three for each of [`DRAIN_MAX`] completions, at most.
    woken: Vec<Waker>,
    /// Gone only while this is dropped.
    draining: Option<MutexGuard<'a, ()>>,
}

thread_local! {
    /// The memory of the last [`Drain::woken`].
    static WOKEN: Cell<Vec<Waker>> = const { Cell::new(Vec::new()) };
}

impl Drop for Drain<'_> {
    fn drop(&mut self) {
        self.draining = None;
        // Before this one looks at the role: who finds the ring taken leaves the rest to whoever had it. The other half of this is in
        // `Link::try_drain`.
        fence(Ordering::SeqCst);
        if self.woken.capacity() > 0 {
            self.woken.drain(..).for_each(wake);
            // A thread that is ending keeps nothing.
            let _ = WOKEN.try_with(|kept| kept.set(std::mem::take(&mut self.woken)));
        }
    }
}

impl Link {
    /// The right to drain, if nobody has it.
    pub(super) fn try_drain(&self) -> Option<Drain<'_>> {
        let attempt = || match self.draining.try_lock() {
            Ok(draining) => Some(draining),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        let draining = attempt().or_else(|| {
            // After this one said in the role what it wants: either it gets the ring now, or whoever has it sees that.
            fence(Ordering::SeqCst);
            attempt()
        })?;
        Some(self.draining(draining))
    }

    /// The right to drain, as soon as whoever has it is done. Not for what wakers may come to: they may be woken in between.
    pub(super) fn wait_drain(&self) -> Drain<'_> {
        let draining = self.draining.lock().unwrap_or_else(PoisonError::into_inner);
        self.draining(draining)
    }

    fn draining<'a>(&'a self, draining: MutexGuard<'a, ()>) -> Drain<'a> {
        // SAFETY: the lock is held, which is what these fields need (see `Sync` of `Link`).
        unsafe {
            let rings = self.rings.get();
            Drain {
                link: self,
                completions: &mut (*rings).completions,
                sleeper: &mut (*rings).sleeper,
                inbox: &mut *self.inbox.get(),
                woken: Vec::new(),
                draining: Some(draining),
            }
        }
    }

    /// Delivers what has come, unless somebody else is at it.
    pub(crate) fn drain(&self) -> Drained {
        let Some(mut drain) = self.try_drain() else {
            return Drained::Busy;
        };
        let drained = drain.run();
        drop(drain);
        if drained == Drained::Some {
            self.note_progress();
            self.wake_room_waiters();
        }
        drained
    }
}

impl Drain<'_> {
    /// Takes at most [`DRAIN_MAX`] completions.
    pub(super) fn run(&mut self) -> Drained {
        let mut taken = 0;
        while taken < DRAIN_MAX {
            match self.completions.pop() {
                Ok(Some(slot)) => {
                    if self.woken.capacity() == 0 {
                        self.woken = WOKEN.try_with(Cell::take).unwrap_or_default();
                    }
                    self.deliver(&slot);
                }
                Ok(None) => break,
                Err(_) => {
                    self.link.end();
                    break;
                }
            }
            taken += 1;
        }
        if taken == 0 {
            return Drained::Nothing;
        }
        self.completions.release();
        Drained::Some
    }

    fn deliver(&mut self, slot: &Slot) {
        let Ok(completion) = Completion::ref_from_bytes(slot.as_bytes()) else {
            return;
        };
        match completion.kind {
            completion_kind::STEP => self.step(completion),
            completion_kind::SENT => self.sent(slot),
            completion_kind::CLOSED => self.closed(completion),
            completion_kind::SEGMENT_RETIRED => self.retired(completion.call),
            completion_kind::ACCEPTED => self.accepted(completion),
            completion_kind::GOING_AWAY => self.going_away(completion),
            // A newer service may tell more than this library knows.
            _ => {}
        }
    }

    fn step(&mut self, step: &Completion) {
        if !self.is_mapped(step) {
            return self.link.end();
        }
        let block = step.block;
        let delivered = match self.inbox.servers.get(&step.connection) {
            None => self.link.calls.deliver(CallId(step.call), step, &mut self.woken),
            Some(server) if step.parts.contains(Parts::BEGIN) => self.begin(*server, step),
            Some(_) => {
                let wire = WireCall {
                    connection: step.connection,
                    call: step.call,
                };
                let call = self.inbox.calls.get(&wire);
                call.is_some_and(|call| self.link.calls.deliver(*call, step, &mut self.woken))
            }
        };
        if !delivered {
            self.link.reclaim(block);
        }
    }

    /// Opens a server's call and puts it where the server waits.
    fn begin(&mut self, listener: Listener, step: &Completion) -> bool {
        let wire = WireCall {
            connection: step.connection,
            call: step.call,
        };
        let Ok(call) = self.link.open(wire, step.deadline_ns) else {
            self.link.refuse(wire, Code::ResourceExhausted);
            return false;
        };
        self.sweep();
        self.inbox.calls.insert(wire, call);
        let mut begun = *step;
        begun.call = call.0;
        begun.reserved[0] = listener.service as u64;
        let delivered = self.link.calls.deliver(listener.place, &begun, &mut self.woken);
        if !delivered {
            self.link.close(call);
            self.link.refuse(wire, Code::Unavailable);
        }
        delivered
    }

    /// Forgets calls that ended, each time their number has doubled.
    fn sweep(&mut self) {
        if self.inbox.calls.len() < self.inbox.sweep_at.max(1024) {
            return;
        }
        let calls = &self.link.calls;
        self.inbox.calls.retain(|_, call| calls.state(*call).is_some());
        self.inbox.sweep_at = self.inbox.calls.len() * 2;
    }

    /// Whether the step's block, if it has one, lies in a segment that is mapped.
    fn is_mapped(&mut self, step: &Completion) -> bool {
        if step.block == 0 {
            return step.root == 0 && step.metadata_bytes == 0;
        }
        if !self.inbox.segment.contains(&step.block) {
            let find = || self.link.segment_of(step.block);
            // The service announced the segment before this completion, so what is missing is at the socket.
            let found = find().or_else(|| {
                // If the service has hung up since, the reactor finds that too; what it published before still counts.
                let taken = self.link.take_control();
                if taken.is_err_and(|error| error.kind() != ErrorKind::UnexpectedEof) {
                    return None;
                }
                find()
            });
            let Some(segment) = found else { return false };
            self.inbox.segment = segment;
        }
        let inside = |offset: u32| offset == 0 || self.inbox.segment.contains(&offset);
        let metadata_end = u64::from(step.metadata) * 8 + u64::from(step.metadata_bytes);
        let metadata_fits = step.metadata_bytes == 0
            || step.metadata != 0 && metadata_end <= u64::from(self.inbox.segment.end) * 8;
        inside(step.root) && inside(step.metadata) && metadata_fits
    }

    fn sent(&mut self, slot: &Slot) {
        let Ok(batch) = Batch::read_from_bytes(slot.as_bytes()) else {
            return;
        };
        let mut outbox = self.link.outbox();
        let tokens = batch.items.iter().take(usize::from(batch.count));
        let outgoing_messages = tokens.map(|token| outbox.outstanding.take(*token));
        let outgoing_messages: [_; BATCH_MAX] = collect(outgoing_messages);
        // Dropped without the lock: it may take a while.
        drop(outbox);
        drop(outgoing_messages);
    }

    fn accepted(&mut self, accepted: &Completion) {
        let server = lock(&self.link.binds).find(accepted.call);
        self.inbox.servers.insert(accepted.connection, server);
        self.link.peer_accepted(accepted.connection, accepted.reserved[0]);
    }

    fn closed(&mut self, closed: &Completion) {
        let connection = closed.connection;
        let end = LocalEnd {
            code: Code::Cancelled,
            reason: "the client's connection closed",
        };
        if self.inbox.servers.remove(&connection).is_some() {
            let link = self.link;
            link.forget_peer(connection);
            self.inbox.calls.retain(|wire, call| {
                let is_over = wire.connection == connection;
                if is_over {
                    link.calls.end(*call, end);
                }
                !is_over
            });
            return;
        }
        let code = match Code::from_number(closed.status_or_window) {
            Code::Ok => Code::Unavailable,
            code => code,
        };
        self.link.end_connection(connection);
        self.link.observer.connection_lost(
            self.link.number,
            connection,
            Status::new(code, "the connection closed"),
        );
    }

    fn going_away(&mut self, going: &Completion) {
        if !self.inbox.servers.contains_key(&going.connection) {
            let status = Status::unavailable("the service is going away");
            self.link
                .observer
                .connection_lost(self.link.number, going.connection, status);
        }
    }

    fn retired(&mut self, segment: u64) {
        self.inbox.segment = 0..0;
        self.link.retire_segment(segment);
    }
}

impl Link {
    /// Ends what a closed connection left open, and lets nothing begin on it any more.
    fn end_connection(&self, connection: u32) {
        self.outbox().closed.note(connection);
        let end = LocalEnd {
            code: Code::Unavailable,
            reason: "the connection closed",
        };
        let open: Vec<CallId> = self.calls.open_calls().collect();
        for id in open {
            let is_of_it = self
                .calls
                .state(id)
                .is_some_and(|state| state.wire.connection == connection);
            if is_of_it {
                self.calls.end(id, end);
            }
        }
    }

    /// Says where the calls of peers go that connect to the service of this `Bind` request.
    pub(crate) fn register_bind(&self, bind: u64, place: CallId, service: usize) {
        let is_served = |place| self.calls.state(place).is_some();
        lock(&self.binds).insert(bind, Listener { place, service }, is_served);
    }

    /// Has the servers on this link look at what the service has said of them.
    pub(super) fn wake_servers(&self) {
        let places: HashSet<CallId> = lock(&self.binds)
            .0
            .values()
            .map(|listener| listener.place)
            .collect();
        for place in places {
            self.calls.wake(place);
        }
    }

    /// Gives a call of a peer up before anybody has seen it.
    fn refuse(&self, wire: WireCall, code: Code) {
        self.submit_eventually(&Submission {
            kind: submission_kind::STEP,
            parts: Parts::STATUS,
            connection: wire.connection,
            call: wire.call,
            status_or_window: code.number(),
            ..Submission::default()
        });
    }
}

fn collect<T: Default, const N: usize>(items: impl Iterator<Item = T>) -> [T; N] {
    let mut items = items;
    std::array::from_fn(|_| items.next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binds_of_servers_that_are_gone_make_room_and_nobody_has_their_peers() {
        let mut binds = BindTable::default();
        let of = |bind: u64| Listener {
            place: CallId(bind << 16),
            service: bind as usize,
        };
        let stays = 7;
        for bind in 1..=10_000 {
            // Three servers at a time, and one that stays.
            let is_served = |place: CallId| place == of(stays).place || place.0 > of(bind.max(3) - 3).place.0;
            binds.insert(bind, of(bind), is_served);
        }
        assert!(binds.0.len() <= 8, "{} are left", binds.0.len());
        for bind in [stays, 9_999, 10_000] {
            assert_eq!(binds.find(bind).place, of(bind).place);
        }
        assert_eq!(binds.find(8).place, CallId::OF_NONE);
        let calls = super::super::CallTable::new();
        assert!(calls.state(CallId::OF_NONE).is_none());
    }
}
