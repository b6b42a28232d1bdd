//! How an app waits: first it spins, giving its core away to whoever wants it, then it sleeps.
//!
//! Of all that wait for something of a link, one at a time has the *role* to look at the completion ring:
//!
//! ```text
//!            a call waits                        50 to 200 µs without a completion
//!   nobody ───────────────► spinner (a call) ──────────────────────────────► asleep (the reactor watches the doorbell, or the
//!     ▲                        │    ▲                                        │  program's runtime, or a blocking caller does itself)
//!     └── its call is over ────┘    └──────────── another call waits ────────┘
//! ```
//!
//! A spinner's future wakes itself each time it is polled, so that its executor can run others in between. When its
//! call is over while others wait, it hands the role to the one that came last, or else leaves it to the reactor.
//! A spinner that is not polled for long loses the role: the reactor looks every [`TICK_NS`] while one spins.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use provost_ring::{
    AdaptiveSpin, ContentionBackoff, DoorbellWatcher, RingDelivery, RingDrain, RoleHolder, RoleTaken,
    TURN_NS, WaiterRole, YieldPace,
};
use provost_shm::{Doorbell, Interest, Ringer, TimeSlice, TimeSliceChoice, Wait, now_ns, yield_now};
use rustix::event::{PollFd, PollFlags};

use super::Link;
use super::calls::{CallId, CallState, Half, LocalEnd};
use super::drain::{Drain, Drained};
use super::runtime_watch::RuntimeWatch;
use crate::reactor::Reactor;

/// How long a link's calls spin before they sleep when nothing else is configured.
pub(crate) const SPIN_DEFAULT: Duration = Duration::from_micros(50);
/// How long a future spins within one poll before it lets its executor run others, in nanoseconds.
const BURST_NS: u64 = 5_000;
/// A spinner that was not polled for so long loses the role, in nanoseconds.
const STALE_NS: u64 = 1_000_000;
/// How often the reactor looks after a link with a spinner, in nanoseconds.
pub(crate) const TICK_NS: u64 = 4_000_000;
/// Nothing happened for so long: the reactor looks after the link no more until something does, in nanoseconds.
const QUIET_NS: u64 = 4 * TICK_NS;

/// In place of the time when the spinner was polled: it sleeps at the doorbell.
const AT_DOORBELL: u64 = u64::MAX;

/// How a link's calls wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waits {
    /// Since the last completion, in nanoseconds, before they sleep; `u64::MAX` for never.
    pub(crate) spin_ns: u64,
    /// What slice of its core a thread has while it spins.
    pub(crate) time_slice: TimeSliceChoice,
}

/// The words by which those who wait agree.
pub(super) struct Waiting {
    waits: Waits,
    /// Which call spins, if any does, and who watches the doorbell. Loom explores it where it is made.
    role: WaiterRole,
    /// When a completion came last, or the spinner began.
    progress_ns: AtomicU64,
    /// How long to spin after that now (see [`AdaptiveSpin`]).
    spin_ns: AtomicU64,
    /// Whether to sleep at once instead, as others want the core (see [`ContentionBackoff`]). Changed by the spinner only.
    crowded_until_ns: AtomicU64,
    crowded_for_ns: AtomicU64,
    late_ns: AtomicU64,
    /// When to give the core away next (see [`YieldPace`]). Changed by who gives it away.
    yield_due_ns: AtomicU64,
    yields_apart_ns: AtomicU64,
    /// When who drains the ring gave its core away last, or slept.
    turn_began_ns: AtomicU64,
    /// When the spinner was polled last.
    polled_ns: AtomicU64,
    /// Whether the spinner is a server that now runs its handlers. It comes back at once unless a handler blocks, which
    /// then gets the role if it waits for this very link.
    is_beside: AtomicBool,
    is_ticking: AtomicBool,
    ticked_ns: AtomicU64,
    pub(super) runtime: RuntimeWatch,
}

impl Waiting {
    pub(super) fn new(waits: Waits) -> Waiting {
        Waiting {
            waits,
            role: WaiterRole::default(),
            progress_ns: AtomicU64::new(0),
            spin_ns: AtomicU64::new(waits.spin_ns),
            crowded_until_ns: AtomicU64::new(0),
            crowded_for_ns: AtomicU64::new(0),
            late_ns: AtomicU64::new(0),
            yield_due_ns: AtomicU64::new(0),
            yields_apart_ns: AtomicU64::new(0),
            turn_began_ns: AtomicU64::new(0),
            polled_ns: AtomicU64::new(0),
            is_beside: AtomicBool::new(false),
            is_ticking: AtomicBool::new(false),
            ticked_ns: AtomicU64::new(0),
            runtime: RuntimeWatch::default(),
        }
    }

    fn contention_backoff(&self) -> ContentionBackoff {
        ContentionBackoff {
            until_ns: self.crowded_until_ns.load(Ordering::Relaxed),
            for_ns: self.crowded_for_ns.load(Ordering::Relaxed),
            late_ns: self.late_ns.load(Ordering::Relaxed),
        }
    }

    fn yield_pace(&self) -> YieldPace {
        YieldPace {
            due_ns: self.yield_due_ns.load(Ordering::Relaxed),
            apart_ns: self.yields_apart_ns.load(Ordering::Relaxed),
        }
    }

    fn set_yield_pace(&self, yield_pace: YieldPace) {
        let YieldPace { due_ns, apart_ns } = yield_pace;
        self.yield_due_ns.store(due_ns, Ordering::Relaxed);
        self.yields_apart_ns.store(apart_ns, Ordering::Relaxed);
    }

    fn set_contention_backoff(&self, contention_backoff: ContentionBackoff) {
        let ContentionBackoff {
            until_ns,
            for_ns,
            late_ns,
        } = contention_backoff;
        self.crowded_until_ns.store(until_ns, Ordering::Relaxed);
        self.crowded_for_ns.store(for_ns, Ordering::Relaxed);
        self.late_ns.store(late_ns, Ordering::Relaxed);
    }
}

/// One half of a call's owner, while it waits.
pub(crate) struct Waiter {
    link: Arc<Link>,
    id: CallId,
    is_counted: bool,
}

enum Next {
    /// Something may have come: look again.
    Look,
    /// Return to the executor.
    Return,
}

impl Waiter {
    pub(crate) fn new(link: Arc<Link>, id: CallId) -> Waiter {
        Waiter {
            link,
            id,
            is_counted: false,
        }
    }

    pub(crate) fn link(&self) -> &Arc<Link> {
        &self.link
    }

    pub(crate) fn id(&self) -> CallId {
        self.id
    }

    /// Waits until `look` finds what it wants in the call's state, or the call has ended.
    pub(crate) fn poll_until<R>(
        &mut self,
        half: Half,
        context: &mut Context<'_>,
        look: impl FnMut(&mut CallState) -> Option<R>,
    ) -> Poll<Result<R, LocalEnd>> {
        let found = self.poll_keeping(half, context, look);
        if found.is_ready() {
            self.leave();
        }
        found
    }

    /// As [`Waiter::poll_until`], for one that will wait again as soon as it has handled what it found.
    pub(crate) fn poll_keeping<R>(
        &mut self,
        half: Half,
        context: &mut Context<'_>,
        mut look: impl FnMut(&mut CallState) -> Option<R>,
    ) -> Poll<Result<R, LocalEnd>> {
        let mut is_due = true;
        loop {
            // Before looking, so that what comes meanwhile is news again.
            let has_news = self.link.calls.take_news(self.id);
            if (std::mem::take(&mut is_due) || has_news)
                && let Some(found) = self.look(half, context, &mut look)
            {
                return Poll::Ready(found);
            }
            if self.link.drain() == Drained::Some {
                self.link.end_turn();
                is_due = true;
                continue;
            }
            match self.wait(context) {
                Next::Look => is_due = true,
                Next::Return => return Poll::Pending,
            }
        }
    }

    fn look<R>(
        &self,
        half: Half,
        context: &Context<'_>,
        look: &mut impl FnMut(&mut CallState) -> Option<R>,
    ) -> Option<Result<R, LocalEnd>> {
        let Some(mut state) = self.link.calls.state(self.id) else {
            return Some(Err(CLOSED));
        };
        if let Some(found) = look(&mut state) {
            return Some(Ok(found));
        }
        if let Some(end) = state.ended {
            return Some(Err(end));
        }
        let replaced = state.register(half, context.waker());
        drop(state);
        drop(replaced);
        None
    }

    fn wait(&mut self, context: &Context<'_>) -> Next {
        let waiting = &self.link.waiting;
        if !self.is_counted {
            self.is_counted = true;
            if waiting.role.enter() {
                // Others wait, perhaps on this executor. A task whose calls end while it spins would else begin one
                // after the other within one poll, and they would never run. Another one that spins delivers what this one
                // waits for, or wakes it when it is done.
                let another_spins = matches!(waiting.role.holder(), RoleHolder::Waiter(_));
                if !another_spins || self.take_role() {
                    context.waker().wake_by_ref();
                }
                return Next::Return;
            }
        }
        if !self.take_role() {
            return Next::Return;
        }
        self.spin(context)
    }

    /// Whether the call has the role now.
    fn take_role(&self) -> bool {
        let waiting = &self.link.waiting;
        let before = match waiting.role.take(self.id.0, || self.link.is_spinner_stale()) {
            RoleTaken::Kept => return true,
            RoleTaken::No => return false,
            RoleTaken::From(before) => before,
        };
        let now = now_ns();
        waiting.progress_ns.store(now, Ordering::Relaxed);
        self.link.note_poll(now);
        if before == RoleHolder::Asleep
            && let Some(drain) = self.link.try_drain()
        {
            drain.sleeper.disarm();
        }
        self.link.keep_ticking();
        true
    }

    fn spin(&self, context: &Context<'_>) -> Next {
        let began_ns = now_ns();
        let mut looked_ns = began_ns;
        loop {
            // Before it sleeps there is no need: then whoever it waits for gets the core in any case.
            let is_due = self.link.waiting.yield_pace().is_due(looked_ns)
                && !self.link.has_spun(looked_ns)
                && !self.link.is_crowded(looked_ns);
            let now_ns = if is_due {
                self.link.give_core_away(looked_ns)
            } else {
                now_ns()
            };
            looked_ns = now_ns;
            if self.link.drain() == Drained::Some || self.link.calls.has_news(self.id) {
                return Next::Look;
            }
            self.link.note_poll(now_ns);
            if self.link.has_spun(now_ns) {
                return match self.fall_asleep() {
                    Asleep::Yes => Next::Return,
                    Asleep::No => Next::Look,
                };
            }
            if now_ns.saturating_sub(began_ns) > BURST_NS {
                context.waker().wake_by_ref();
                return Next::Return;
            }
        }
    }

    fn fall_asleep(&self) -> Asleep {
        if !is_blocking() {
            let is_watched_here = self.link.waiting.runtime.watches(&self.link);
            let watch = if is_watched_here {
                DoorbellWatcher::Runtime
            } else {
                DoorbellWatcher::Reactor
            };
            return self.link.fall_asleep(self.id, watch);
        }
        let asleep = self.link.fall_asleep(self.id, DoorbellWatcher::Caller);
        if asleep == Asleep::Yes {
            sleep_before_next_poll(&self.link, self.id);
        }
        asleep
    }

    /// Says that what was found is handled now, and then waited for again.
    pub(crate) fn step_aside(&self) {
        let waiting = &self.link.waiting;
        if waiting.role.holder() == self.id.holder() {
            waiting.is_beside.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn leave(&mut self) {
        if !std::mem::take(&mut self.is_counted) {
            return;
        }
        self.link.waiting.role.leave(self.id.0);
        self.link.settle();
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.leave();
    }
}

/// The call was closed by its owner while a part of it was still waited for.
const CLOSED: LocalEnd = LocalEnd {
    code: provost_wire::Code::Cancelled,
    reason: "the call is over",
};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Asleep {
    /// The service will ring.
    Yes,
    /// There was something in the ring.
    No,
}

impl Link {
    /// Whether nothing has come for as long as calls spin.
    fn has_spun(&self, now_ns: u64) -> bool {
        let progress_ns = self.waiting.progress_ns.load(Ordering::Relaxed);
        self.is_contended(now_ns)
            || now_ns.saturating_sub(progress_ns) > self.waiting.spin_ns.load(Ordering::Relaxed)
    }

    /// Whether to sleep rather than to poll for now, as others want the core.
    fn is_contended(&self, now_ns: u64) -> bool {
        self.waiting.spin_ns.load(Ordering::Relaxed) != u64::MAX && self.is_crowded(now_ns)
    }

    /// Whether strangers would keep the core for a time slice.
    fn is_crowded(&self, now_ns: u64) -> bool {
        self.waiting.contention_backoff().is_contended(now_ns)
    }

    /// Lets others run, and says what time it is after that.
    fn give_core_away(&self, from_ns: u64) -> u64 {
        let waiting = &self.waiting;
        begin_polling(waiting.waits.time_slice);
        yield_now();
        let back_ns = now_ns();
        waiting.turn_began_ns.store(back_ns, Ordering::Relaxed);
        waiting.set_yield_pace(waiting.yield_pace().after_yield(from_ns, back_ns));
        if let Some(contention_backoff) = waiting.contention_backoff().after_yield(from_ns, back_ns) {
            waiting.set_contention_backoff(contention_backoff);
            if contention_backoff.is_contended(back_ns) {
                end_polling();
            }
        }
        back_ns
    }

    /// Lets others run after a turn of work that brought one batch of completions after the other, unless strangers want the core.
    fn end_turn(&self) {
        let waiting = &self.waiting;
        let now_ns = waiting.progress_ns.load(Ordering::Relaxed);
        let turn_ns = now_ns.saturating_sub(waiting.turn_began_ns.load(Ordering::Relaxed));
        if turn_ns > TURN_NS && !self.is_crowded(now_ns) {
            self.give_core_away(now_ns);
        }
    }

    /// Gives the core away to whoever holds something that is waited for here, unless strangers want it.
    pub(crate) fn yield_unless_contended(&self) {
        let now_ns = now_ns();
        if !self.is_crowded(now_ns) {
            self.give_core_away(now_ns);
        }
    }

    fn is_spinner_stale(&self) -> bool {
        let polled_ns = self.waiting.polled_ns.load(Ordering::Relaxed);
        let is_blocked = self.waiting.is_beside.load(Ordering::Relaxed) && is_blocking();
        is_blocked || now_ns().saturating_sub(polled_ns) > STALE_NS
    }

    /// The spinner was polled.
    fn note_poll(&self, now_ns: u64) {
        self.waiting.polled_ns.store(now_ns, Ordering::Relaxed);
        self.waiting.is_beside.store(false, Ordering::Relaxed);
    }

    pub(super) fn note_progress(&self) {
        self.waiting.progress_ns.store(now_ns(), Ordering::Relaxed);
    }

    /// Notes progress that was slept for.
    fn note_awakening(&self) {
        let waiting = &self.waiting;
        let gap_ns = now_ns().saturating_sub(waiting.progress_ns.load(Ordering::Relaxed));
        let mut adaptive_spin = AdaptiveSpin::new(waiting.waits.spin_ns);
        adaptive_spin.woken_after(gap_ns);
        waiting.spin_ns.store(adaptive_spin.spin_ns(), Ordering::Relaxed);
        self.note_progress();
        let now_ns = waiting.progress_ns.load(Ordering::Relaxed);
        waiting.turn_began_ns.store(now_ns, Ordering::Relaxed);
    }

    /// Has the service ring from its next completion on, unless there is one already or the call has lost the role.
    fn fall_asleep(&self, id: CallId, watch: DoorbellWatcher) -> Asleep {
        self.flush();
        let mut drain = self.wait_drain();
        let role = &self.waiting.role;
        let has_role = role.holder() == id.holder();
        if !has_role || !self.arm(&mut drain, watch) {
            return Asleep::No;
        }
        let becomes = match watch {
            DoorbellWatcher::Reactor | DoorbellWatcher::Runtime => RoleHolder::Asleep,
            DoorbellWatcher::Caller => id.holder(),
        };
        // Before the drain flag is given up, so that the reactor finds it when the doorbell rings.
        if role.pass(id.holder(), becomes) {
            return Asleep::Yes;
        }
        // It was taken away meanwhile. Whoever did that may have left the rest to this drainer.
        drop(drain);
        self.settle();
        Asleep::No
    }

    fn arm(&self, drain: &mut Drain<'_>, watch: DoorbellWatcher) -> bool {
        // A new epoch each time: the service rings once for each.
        drain.sleeper.disarm();
        drain.sleeper.arm();
        if !matches!(drain.completions.is_empty(), Ok(true)) {
            drain.sleeper.disarm();
            return false;
        }
        self.set_watch(watch);
        true
    }

    /// Has the doorbell watched by whom it concerns. Only the drainer calls this.
    fn set_watch(&self, watch: DoorbellWatcher) {
        let role = &self.waiting.role;
        let was_watched = role.is_watched_by(DoorbellWatcher::Reactor);
        role.set_watcher(watch);
        let is_watched = watch == DoorbellWatcher::Reactor;
        if is_watched != was_watched {
            Reactor::watch_doorbell(self, is_watched);
        }
    }

    /// Before a blocking caller sleeps at the doorbell. Says whether it has the role still.
    fn before_sleep(&self, id: CallId) -> bool {
        let has_role = self.waiting.role.holder() == id.holder();
        if has_role {
            self.note_poll(AT_DOORBELL);
        }
        has_role
    }

    /// After it has. Who has lost the role meanwhile leaves the doorbell to who has it now.
    fn after_sleep(&self, id: CallId) {
        let drain = self.wait_drain();
        if self.waiting.role.holder() != id.holder() {
            return;
        }
        self.note_poll(now_ns());
        self.note_progress();
        if self.waiting.role.is_watched_by(DoorbellWatcher::Caller) {
            // An error says that nobody can ring it any more; the control socket tells why.
            let _ = self.doorbell.drain();
            drain.sleeper.disarm();
        }
    }

    /// Delivers what has come, for one that waits for something else of the link.
    pub(crate) fn look_in(&self) {
        self.drain();
        self.settle();
    }

    /// Has the reactor watch the doorbell though nobody waits, or waits for long, so that it hears of connections that end while
    /// the program's runtime does something else.
    fn rest(&self) {
        match self.waiting.role.holder() {
            RoleHolder::Nobody => {}
            RoleHolder::Asleep => return self.take_over_from_runtime(),
            RoleHolder::Waiter(_) => return,
        }
        let Some(mut drain) = self.try_drain() else { return };
        let is_armed = self.arm(&mut drain, DoorbellWatcher::Reactor);
        if is_armed && !self.waiting.role.pass(RoleHolder::Nobody, RoleHolder::Asleep) {
            drain.sleeper.disarm();
        }
    }

    /// Sees to it that somebody looks at the ring if anybody waits.
    ///
    /// Whoever gives the role up, and whoever has drained without taking it, calls this. If the ring is being drained
    /// at that moment, its drainer will: it gives the flag up before it looks at the role, and here it is the other way round.
    fn settle(&self) {
        let wake = |candidate| self.calls.wake(CallId(candidate));
        let drain = || {
            let drain = self.try_drain()?;
            Some(LinkDrain { link: self, drain })
        };
        self.waiting.role.settle(wake, drain);
    }

    /// For the reactor: the doorbell may have rung.
    pub(crate) fn on_doorbell(&self) {
        self.on_ring(DoorbellWatcher::Reactor);
    }

    /// The doorbell may have rung: delivers what has come, if this one watches it still.
    pub(super) fn on_ring(&self, watch: DoorbellWatcher) {
        let delivery = self.waiting.role.deliver(watch, || self.wait_link_drain());
        self.note_delivery(delivery);
    }

    /// The reactor watches the doorbell from now on, if the program's runtime did.
    pub(super) fn take_over_from_runtime(&self) {
        let delivery = self.waiting.role.take_watch_over(|| self.wait_link_drain());
        self.note_delivery(delivery);
    }

    fn note_delivery(&self, delivery: RingDelivery) {
        let RingDelivery::Done { found } = delivery else {
            return;
        };
        if found {
            self.note_awakening();
            self.wake_room_waiters();
        }
        self.settle();
    }

    fn wait_link_drain(&self) -> LinkDrain<'_> {
        LinkDrain {
            link: self,
            drain: self.wait_drain(),
        }
    }

    /// Has the reactor look after the link, every now and then, as long as something goes on.
    pub(super) fn keep_ticking(&self) {
        let ticking = &self.waiting.is_ticking;
        if !ticking.load(Ordering::SeqCst) && !ticking.swap(true, Ordering::SeqCst) {
            Reactor::wake_before(0);
        }
    }

    /// For the reactor: ends calls that are late, and looks after the rest if it is time.
    pub(crate) fn tick(&self, now_ns: u64) {
        self.calls.expire(now_ns);
        let waiting = &self.waiting;
        let is_due = now_ns.saturating_sub(waiting.ticked_ns.load(Ordering::Relaxed)) >= TICK_NS;
        if !waiting.is_ticking.load(Ordering::SeqCst) || !is_due {
            return;
        }
        waiting.ticked_ns.store(now_ns, Ordering::Relaxed);
        self.flush();
        self.wake_room_waiters();
        let spinner = waiting.role.holder();
        if matches!(spinner, RoleHolder::Waiter(_)) && self.is_spinner_stale() {
            waiting.role.pass(spinner, RoleHolder::Nobody);
        }
        match waiting.role.holder() {
            RoleHolder::Nobody => {
                while self.drain() == Drained::Some {}
                self.settle();
            }
            RoleHolder::Asleep => {
                if self.is_unheard(now_ns) {
                    waiting.runtime.note_unheard();
                    self.take_over_from_runtime();
                }
                // What was sent, for which nobody rings.
                self.look_in();
            }
            RoleHolder::Waiter(_) => {}
        }
        if !self.needs_ticks(now_ns) {
            waiting.is_ticking.store(false, Ordering::SeqCst);
            if self.needs_ticks(now_ns) {
                waiting.is_ticking.store(true, Ordering::SeqCst);
            } else {
                self.rest();
            }
        }
    }

    /// Whether the program's runtime is to hear the doorbell, which has rung, and does something else. One that has heard
    /// something since the last tick only waits for its core.
    fn is_unheard(&self, now_ns: u64) -> bool {
        let progress_ns = self.waiting.progress_ns.load(Ordering::Relaxed);
        let rung = || provost_shm::wait_for(&self.doorbell, Interest::Readable, Wait::Now);
        self.waiting.role.is_watched_by(DoorbellWatcher::Runtime)
            && now_ns.saturating_sub(progress_ns) >= TICK_NS
            && rung().unwrap_or(true)
    }

    fn needs_ticks(&self, now_ns: u64) -> bool {
        let waiting = &self.waiting;
        let spins = matches!(waiting.role.holder(), RoleHolder::Waiter(_));
        let is_asleep_at_doorbell = waiting.polled_ns.load(Ordering::Relaxed) == AT_DOORBELL;
        let progress_ns = waiting.progress_ns.load(Ordering::Relaxed);
        !self.is_dead()
            && (spins && !is_asleep_at_doorbell
                || now_ns.saturating_sub(progress_ns) < QUIET_NS
                || self.has_room_waiters.load(Ordering::SeqCst)
                || self.outbox().has_leftovers())
    }

    /// When [`Link::tick`] has something to do, in nanoseconds of CLOCK_MONOTONIC; `u64::MAX` for never.
    pub(crate) fn next_tick_ns(&self) -> u64 {
        let ticking = self.waiting.is_ticking.load(Ordering::SeqCst);
        let tick_ns = if ticking {
            self.waiting.ticked_ns.load(Ordering::Relaxed) + TICK_NS
        } else {
            u64::MAX
        };
        tick_ns.min(self.calls.next_deadline_ns())
    }

    /// For the end of the link: the doorbell is watched no more.
    pub(super) fn stop_watching(&self) {
        self.waiting.runtime.stop();
        self.set_watch(DoorbellWatcher::Caller);
    }
}

/// A link's completion ring, while one empties it.
struct LinkDrain<'a> {
    link: &'a Link,
    drain: Drain<'a>,
}

impl RingDrain for LinkDrain<'_> {
    fn arm(&mut self, watcher: DoorbellWatcher) -> bool {
        self.link.arm(&mut self.drain, watcher)
    }

    fn disarm(&mut self) {
        self.drain.sleeper.disarm();
    }

    fn set_watcher(&mut self, watcher: DoorbellWatcher) {
        self.link.set_watch(watcher);
    }

    fn take_rings(&mut self) -> bool {
        // An error says that nobody can ring it any more; the control socket tells why.
        self.link.doorbell.drain().is_ok()
    }

    fn run(&mut self) -> bool {
        self.drain.run() == Drained::Some
    }
}

/// A call that has the role and sleeps at its link's doorbell.
struct Sleeper {
    link: Arc<Link>,
    id: CallId,
}

/// How a thread sleeps that runs one future only, and how it is woken: through its own doorbell if it sleeps at those
/// of links, else by unparking it.
pub(crate) struct Parker {
    thread: Thread,
    is_notified: AtomicBool,
    is_at_doorbell: AtomicBool,
    kick: Option<(Ringer, Doorbell)>,
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.is_notified.swap(true, Ordering::SeqCst) {
            return;
        }
        match &self.kick {
            Some((ringer, _)) if self.is_at_doorbell.load(Ordering::SeqCst) => drop(ringer.ring()),
            _ => self.thread.unpark(),
        }
    }
}

impl Parker {
    fn is_notified(&self) -> bool {
        self.is_notified.load(Ordering::SeqCst)
    }

    /// Sleeps until a doorbell rings, or the thread is woken.
    fn sleep_at(&self, sleepers: &[Sleeper]) {
        if sleepers
            .iter()
            .all(|sleeper| sleeper.link.before_sleep(sleeper.id))
        {
            self.is_at_doorbell.store(true, Ordering::SeqCst);
            if !self.is_notified() {
                self.sleep_at_doorbells(sleepers);
            }
            self.is_at_doorbell.store(false, Ordering::SeqCst);
        }
        sleepers
            .iter()
            .for_each(|sleeper| sleeper.link.after_sleep(sleeper.id));
    }

    fn sleep_at_doorbells(&self, sleepers: &[Sleeper]) {
        let Some((_, kicked)) = &self.kick else {
            // Without a doorbell of its own, the thread looks again and again.
            return std::thread::sleep(Duration::from_micros(100));
        };
        let watch = |doorbell| PollFd::new(doorbell, PollFlags::IN);
        // An error, such as a signal, is a wake-up too.
        let _ = match sleepers {
            [one] => rustix::event::poll(&mut [watch(&one.link.doorbell), watch(kicked)], None),
            many => {
                let doorbells = many.iter().map(|sleeper| &sleeper.link.doorbell);
                let mut watched: Vec<_> = doorbells.chain([kicked]).map(watch).collect();
                rustix::event::poll(&mut watched, None)
            }
        };
        let _ = kicked.drain();
    }
}

thread_local! {
    static PARKER: Arc<Parker> = Arc::new(Parker {
        thread: std::thread::current(),
        is_notified: AtomicBool::new(false),
        is_at_doorbell: AtomicBool::new(false),
        kick: Doorbell::create().ok(),
    });
    /// At which doorbells this thread will sleep when the future that it runs in [`block_on`] has been
    /// polled.
    static SLEEPS_AT: RefCell<Vec<Sleeper>> = const { RefCell::new(Vec::new()) };
    /// How many calls of [`block_on`] this thread is in.
    static BLOCKING: Cell<u32> = const { Cell::new(0) };
    /// The slice of this thread, as the first link wishes for which it polls.
    static TIME_SLICE: Cell<Option<TimeSlice>> = const { Cell::new(None) };
}

/// This thread polls from now on.
fn begin_polling(choice: TimeSliceChoice) {
    let mut slice = TIME_SLICE.get().unwrap_or(TimeSlice::new(choice));
    slice.shorten();
    TIME_SLICE.set(Some(slice));
}

/// This thread sleeps instead of polling from now on.
fn end_polling() {
    if let Some(mut slice) = TIME_SLICE.get() {
        slice.restore();
        TIME_SLICE.set(Some(slice));
    }
}

/// Whether this thread runs a future in [`block_on`].
fn is_blocking() -> bool {
    BLOCKING.get() > 0
}

fn sleep_before_next_poll(link: &Arc<Link>, id: CallId) {
    let link = link.clone();
    SLEEPS_AT.with_borrow_mut(|sleepers| sleepers.push(Sleeper { link, id }));
}

/// Runs a future on this thread, which sleeps as it waits.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let parker = PARKER.with(Arc::clone);
    let _nested = Nested::enter(&parker);
    let waker = Waker::from(parker.clone());
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        parker.is_notified.store(false, Ordering::SeqCst);
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        let mut sleepers = SLEEPS_AT.take();
        if sleepers.is_empty() {
            while !parker.is_notified() {
                std::thread::park();
            }
        } else {
            parker.sleep_at(&sleepers);
            sleepers.clear();
        }
        // Its memory is used again.
        SLEEPS_AT.set(sleepers);
    }
}

/// One [`block_on`], perhaps within another.
struct Nested<'a> {
    parker: &'a Parker,
    outer: Vec<Sleeper>,
}

impl Nested<'_> {
    fn enter(parker: &Parker) -> Nested<'_> {
        BLOCKING.set(BLOCKING.get() + 1);
        let is_outermost = BLOCKING.get() == 1;
        let outer = if is_outermost {
            Vec::new()
        } else {
            SLEEPS_AT.take()
        };
        Nested { parker, outer }
    }
}

impl Drop for Nested<'_> {
    fn drop(&mut self) {
        BLOCKING.set(BLOCKING.get() - 1);
        SLEEPS_AT.with_borrow_mut(|sleepers| {
            sleepers.clear();
            sleepers.append(&mut self.outer);
        });
        if is_blocking() {
            // What woke the outer future meanwhile was taken for the inner one.
            self.parker.is_notified.store(true, Ordering::SeqCst);
        }
    }
}
