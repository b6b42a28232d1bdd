//! The table of calls in flight of one attachment: for each, the steps that came and were not read yet.
//!
//! A call is *open* from [`CallTable::open`] until its owner, a client's future or a server's handler, closes it. In
//! between, whoever drains the completion ring delivers steps, and the owner takes them. A slot is used again for
//! another call, under a new id; ids are never used twice, so what comes late for an old call finds nobody.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;

use provost_ring::RoleHolder;
use provost_wire::Code;
use provost_wire::descriptor::{Completion, Parts};
use provost_wire::limits::STREAM_WINDOW_BYTES;

use crate::waker_list::wake;

/// Calls that one attachment can have open at a time.
pub(crate) const CALLS_MAX: u32 = 1 << SLOT_BITS;
const SLOT_BITS: u32 = 16;
const CHUNK_SLOTS: usize = 256;

/// A call's id in its table: `sequence << 16 | slot`. Also what a client's call is named in descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CallId(pub(crate) u64);

impl CallId {
    /// No call has it: their sequence begins at 1.
    pub(super) const OF_NONE: CallId = CallId(1);

    /// The call as one that has its link's role.
    pub(super) fn holder(self) -> RoleHolder {
        RoleHolder::Waiter(self.0)
    }

    fn slot(self) -> usize {
        (self.0 & u64::from(CALLS_MAX - 1)) as usize
    }
}

/// Where a call's steps go: its connection, and its name there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) struct WireCall {
    pub(crate) connection: u32,
    pub(crate) call: u64,
}

/// Why a call ended though its peer did not say so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LocalEnd {
    pub(crate) code: Code,
    pub(crate) reason: &'static str,
}

#[derive(Default)]
struct Slot {
    /// The id of the open call; 0 when there is none.
    id: AtomicU64,
    /// When the call must end, in nanoseconds of CLOCK_MONOTONIC; `u64::MAX` for never.
    deadline_ns: AtomicU64,
    /// Whether something came since the owner last looked.
    news: AtomicBool,
    state: Mutex<CallState>,
}

/// What is known of an open call.
#[derive(Default)]
pub(crate) struct CallState {
    id: u64,
    pub(crate) wire: WireCall,
    /// Whether a handler of this process answers it.
    is_served: bool,
    /// Steps that came and were not taken, oldest first. Bounded by the stream's window.
    pub(crate) steps: VecDeque<Completion>,
    /// What the owner may still send of a stream, in its own count.
    pub(crate) send_window: i64,
    pub(crate) ended: Option<LocalEnd>,
    reader: Option<Waker>,
    writer: Option<Waker>,
    /// Of a server's call: who is told when it ends.
    owner: Option<Waker>,
}

/// See the module's documentation.
pub(crate) struct CallTable {
    chunks: [OnceLock<Box<[Slot; CHUNK_SLOTS]>>; CALLS_MAX as usize / CHUNK_SLOTS],
    /// Slots that were ever used: no call is at or behind this.
    used: AtomicU32,
    /// The least deadline of any open call, or less.
    next_deadline_ns: AtomicU64,
}

/// Which part of a call's owner waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Half {
    /// For steps.
    Reader,
    /// For the window to open.
    Writer,
    /// For the call to end before its time.
    Owner,
}

impl CallTable {
    pub(crate) fn new() -> CallTable {
        CallTable {
            chunks: [const { OnceLock::new() }; CALLS_MAX as usize / CHUNK_SLOTS],
            used: AtomicU32::new(0),
            next_deadline_ns: AtomicU64::new(u64::MAX),
        }
    }

    /// A slot that was never used; `None` when all were.
    pub(crate) fn fresh_slot(&self) -> Option<u32> {
        self.used
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |used| {
                (used < CALLS_MAX).then_some(used + 1)
            })
            .ok()
    }

    /// Opens the call number `sequence` in a free slot. `wire` of `None`: the call is named by its own id.
    pub(crate) fn open(&self, sequence: u64, slot: u32, wire: WireName, deadline_ns: u64) -> CallId {
        let id = CallId(sequence << SLOT_BITS | u64::from(slot));
        let place = self.slot_or_insert(slot as usize);
        let mut state = lock(&place.state);
        state.id = id.0;
        state.is_served = matches!(wire, WireName::Given(_));
        state.wire = match wire {
            WireName::Own { connection } => WireCall {
                connection,
                call: id.0,
            },
            WireName::Given(wire) => wire,
        };
        state.send_window = i64::from(STREAM_WINDOW_BYTES);
        drop(state);
        place.news.store(false, Ordering::Relaxed);
        let deadline_ns = if deadline_ns == 0 { u64::MAX } else { deadline_ns };
        place.deadline_ns.store(deadline_ns, Ordering::Relaxed);
        place.id.store(id.0, Ordering::Release);
        id
    }

    /// The state of an open call.
    pub(crate) fn state(&self, id: CallId) -> Option<MutexGuard<'_, CallState>> {
        let state = lock(&self.slot(id)?.state);
        (state.id == id.0).then_some(state)
    }

    /// Whether something came for the call since this was last asked.
    pub(crate) fn take_news(&self, id: CallId) -> bool {
        self.slot(id)
            .is_none_or(|slot| slot.news.load(Ordering::Relaxed) && slot.news.swap(false, Ordering::Acquire))
    }

    /// Whether something came for the call that its owner has not looked at.
    pub(crate) fn has_news(&self, id: CallId) -> bool {
        self.slot(id).is_none_or(|slot| slot.news.load(Ordering::Acquire))
    }

    /// Puts a step where the call's owner takes it, and adds to `woken` who is to be woken for that. Says whether the call is open.
    pub(crate) fn deliver(&self, id: CallId, step: &Completion, woken: &mut Vec<Waker>) -> bool {
        let Some(mut state) = self.state(id) else {
            return false;
        };
        // A client reads it like any other step; a handler may not read at all, or not have begun.
        if step.parts.contains(Parts::CANCEL) && state.is_served {
            state.ended.get_or_insert(CANCELLED);
            woken.extend(state.take_wakers().into_iter().flatten());
        }
        if step.parts.contains(Parts::WINDOW) {
            state.send_window = state.send_window.saturating_add(i64::from(step.status_or_window));
            woken.extend(state.writer.take());
        }
        if step.parts != Parts::WINDOW {
            state.steps.push_back(*step);
            woken.extend(state.reader.take());
        }
        self.note_news(id, state);
        true
    }

    /// Wakes a call's reader, if the call is open and its reader waits.
    pub(crate) fn wake(&self, id: CallId) -> bool {
        let waker = self.state(id).and_then(|mut state| state.reader.take());
        waker.is_some_and(|waker| {
            wake(waker);
            true
        })
    }

    /// Ends a call at this side's own account; what came before can still be read.
    pub(crate) fn end(&self, id: CallId, end: LocalEnd) -> bool {
        let Some(mut state) = self.state(id) else {
            return false;
        };
        state.ended.get_or_insert(end);
        let wakers = state.take_wakers();
        self.announce(id, state, wakers);
        true
    }

    /// How an open call ended before its time, if it has. A call that is not open is over.
    pub(crate) fn ended(&self, id: CallId) -> Option<LocalEnd> {
        self.state(id).map_or(Some(CANCELLED), |state| state.ended)
    }

    fn announce(&self, id: CallId, state: MutexGuard<'_, CallState>, wakers: [Option<Waker>; 3]) {
        self.note_news(id, state);
        wakers.into_iter().flatten().for_each(wake);
    }

    fn note_news(&self, id: CallId, state: MutexGuard<'_, CallState>) {
        if let Some(slot) = self.slot(id) {
            slot.news.store(true, Ordering::Release);
        }
        drop(state);
    }

    /// Closes a call: its slot is free for another once the caller has put it among the free ones. Steps that were not
    /// taken are given to `discard`.
    pub(crate) fn close(&self, id: CallId, mut discard: impl FnMut(Completion)) -> Option<u32> {
        let slot = self.slot(id)?;
        let mut state = self.state(id)?;
        slot.id.store(0, Ordering::Release);
        slot.deadline_ns.store(u64::MAX, Ordering::Relaxed);
        state.id = 0;
        state.ended = None;
        let wakers = state.take_wakers();
        state.steps.drain(..).for_each(&mut discard);
        drop(state);
        drop(wakers);
        Some(id.slot() as u32)
    }

    /// The ids of all open calls.
    pub(crate) fn open_calls(&self) -> impl Iterator<Item = CallId> {
        self.used_slots()
            .map(|slot| CallId(slot.id.load(Ordering::Acquire)))
            .filter(|id| id.0 != 0)
    }

    /// Has the owners of all calls that handlers of this process answer look at them.
    pub(crate) fn wake_served(&self) {
        for id in self.open_calls() {
            let served = self.state(id).filter(|state| state.is_served);
            // It stays: only some of them are of the server that asks, and the others register once.
            let owner = served.and_then(|state| state.owner.clone());
            owner.into_iter().for_each(wake);
        }
    }

    /// Notes that some open call has this deadline, and says whether it is the earliest.
    pub(crate) fn note_deadline(&self, deadline_ns: u64) -> bool {
        self.next_deadline_ns.fetch_min(deadline_ns, Ordering::AcqRel) > deadline_ns
    }

    /// When [`CallTable::expire`] has something to do at the earliest; `u64::MAX` for never.
    pub(crate) fn next_deadline_ns(&self) -> u64 {
        self.next_deadline_ns.load(Ordering::Acquire)
    }

    /// Ends all calls whose deadline has passed.
    pub(crate) fn expire(&self, now_ns: u64) {
        if self.next_deadline_ns() > now_ns {
            return;
        }
        // From here on, a call that is opened sets the word again; those that are open are looked at below.
        self.next_deadline_ns.swap(u64::MAX, Ordering::AcqRel);
        for slot in self.used_slots() {
            let id = CallId(slot.id.load(Ordering::Acquire));
            let deadline_ns = slot.deadline_ns.load(Ordering::Relaxed);
            if id.0 == 0 || deadline_ns == u64::MAX {
                continue;
            }
            if deadline_ns <= now_ns {
                self.end(id, DEADLINE_PASSED);
            } else {
                self.note_deadline(deadline_ns);
            }
        }
    }

    fn used_slots(&self) -> impl Iterator<Item = &Slot> {
        let used = self.used.load(Ordering::Acquire) as usize;
        self.chunks
            .iter()
            .take(used.div_ceil(CHUNK_SLOTS))
            .filter_map(OnceLock::get)
            .flat_map(|chunk| chunk.iter())
    }

    fn slot(&self, id: CallId) -> Option<&Slot> {
        let slot = id.slot();
        Some(&self.chunks[slot / CHUNK_SLOTS].get()?[slot % CHUNK_SLOTS])
    }

    fn slot_or_insert(&self, slot: usize) -> &Slot {
        let chunk = self.chunks[slot / CHUNK_SLOTS]
            .get_or_init(|| Box::new(std::array::from_fn(|_| Slot::default())));
        &chunk[slot % CHUNK_SLOTS]
    }
}

/// How a call is named in descriptors.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WireName {
    /// By its own id: a client's call.
    Own { connection: u32 },
    /// As it was delivered: a server's call.
    Given(WireCall),
}

/// The deadline of a call passed before it ended.
pub(crate) const DEADLINE_PASSED: LocalEnd = LocalEnd {
    code: Code::DeadlineExceeded,
    reason: "the deadline passed",
};

/// The peer gave the call up.
pub(crate) const CANCELLED: LocalEnd = LocalEnd {
    code: Code::Cancelled,
    reason: "the call was cancelled",
};

impl CallState {
    /// Has `waker` woken when something comes for this half. The one in whose place it is must be dropped without the lock: it may be the
    /// last owner of a task that has another half of the call.
    #[must_use]
    pub(crate) fn register(&mut self, half: Half, waker: &Waker) -> Option<Waker> {
        let place = match half {
            Half::Reader => &mut self.reader,
            Half::Writer => &mut self.writer,
            Half::Owner => &mut self.owner,
        };
        let is_registered = place
            .as_ref()
            .is_some_and(|registered| registered.will_wake(waker));
        if is_registered {
            None
        } else {
            place.replace(waker.clone())
        }
    }

    fn take_wakers(&mut self) -> [Option<Waker>; 3] {
        [self.reader.take(), self.writer.take(), self.owner.take()]
    }
}

fn lock(state: &Mutex<CallState>) -> MutexGuard<'_, CallState> {
    // Nothing that holds the lock panics half-way through a change.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
