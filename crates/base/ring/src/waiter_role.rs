//! Which of those that wait for one ring looks at it.
//!
//! One at a time has the *role*: a waiter that looks again and again, or the sleep of all, which a doorbell ends. Whoever
//! gives the role up while others wait sees to it that one of them, or the sleep, has it ([`WaiterRole::settle`]).
//! Whoever empties the ring meanwhile settles too, after it has given the ring up: so either the one sees that the role is
//! free, or the other that the ring is.
//!
//! While all sleep, one [`DoorbellWatcher`] delivers what the doorbell is rung for ([`WaiterRole::deliver`]). Another that takes the
//! doorbell over ([`WaiterRole::take_watch_over`]) may find it silent though the ring is not empty: the first has heard the ring
//! and is half way through. So it looks at the ring as well, and the first leaves the rest to it.

use crate::atomic::{AtomicU32, AtomicU64, Ordering};

/// Nobody has the role.
const NOBODY: u64 = 0;
/// All sleep, and the doorbell is watched. Ids of waiters are above.
const ASLEEP: u64 = 1;

/// The words by which waiters agree. Ids of waiters are 2 and above.
#[derive(Debug)]
pub struct WaiterRole {
    role: AtomicU64,
    waiters: AtomicU32,
    /// The last waiter that found another one looking; it gets the role next. 0 for none.
    candidate: AtomicU64,
    /// A [`DoorbellWatcher`]. Changed only by who empties the ring.
    watcher: AtomicU32,
}

/// Who watches the doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum DoorbellWatcher {
    /// Nobody while no caller sleeps at it.
    Caller,
    /// The library's own thread.
    Reactor,
    /// A task of the program's runtime, while calls follow each other.
    Runtime,
}

/// Who has the role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoleHolder {
    /// No waiter looks at the ring.
    Nobody,
    /// The doorbell is watched.
    Asleep,
    /// This waiter looks at the ring.
    Waiter(u64),
}

impl RoleHolder {
    fn word(self) -> u64 {
        match self {
            RoleHolder::Nobody => NOBODY,
            RoleHolder::Asleep => ASLEEP,
            RoleHolder::Waiter(id) => id,
        }
    }

    fn of_word(word: u64) -> RoleHolder {
        match word {
            NOBODY => RoleHolder::Nobody,
            ASLEEP => RoleHolder::Asleep,
            id => RoleHolder::Waiter(id),
        }
    }
}

/// What a waiter that asked for the role has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoleTaken {
    /// It had it already.
    Kept,
    /// It has it now, from this holder.
    From(RoleHolder),
    /// Another waiter has it, and will wake it when it gives it up.
    No,
}

/// A ring that is being emptied, by one at a time.
pub trait RingDrain {
    /// Has the doorbell rung for what comes next, and watched by this one. False, and nobody else watches, if there is something
    /// already.
    fn arm(&mut self, watcher: DoorbellWatcher) -> bool;

    /// Takes the ringing of [`RingDrain::arm`] back.
    fn disarm(&mut self);

    /// Has the doorbell watched by this one: [`WaiterRole::set_watcher`], and what goes with it.
    fn set_watcher(&mut self, watcher: DoorbellWatcher);

    /// Hears what the doorbell was rung for. False if nobody can ring it any more.
    fn take_rings(&mut self) -> bool;

    /// Delivers what is in the ring. Says whether there was something.
    fn run(&mut self) -> bool;
}

/// What one that hears a doorbell has done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingDelivery {
    /// Nothing: another watches the doorbell.
    OfAnother,
    /// Nothing: nobody can ring it any more. Nobody watches it.
    Silent,
    /// It has looked at the ring, and found something or not. It settles next.
    Done {
        /// There was something.
        found: bool,
    },
}

impl Default for WaiterRole {
    fn default() -> WaiterRole {
        WaiterRole {
            role: AtomicU64::new(NOBODY),
            waiters: AtomicU32::new(0),
            candidate: AtomicU64::new(0),
            watcher: AtomicU32::new(DoorbellWatcher::Caller as u32),
        }
    }
}

impl WaiterRole {
    /// Who has the role now.
    #[inline]
    pub fn holder(&self) -> RoleHolder {
        RoleHolder::of_word(self.role.load(Ordering::SeqCst))
    }

    /// One more waits. Returns whether others did already.
    pub fn enter(&self) -> bool {
        self.waiters.fetch_add(1, Ordering::SeqCst) > 0
    }

    /// One waits no more, and gives the role up if it has it. It must settle after this.
    pub fn leave(&self, id: u64) {
        self.waiters.fetch_sub(1, Ordering::SeqCst);
        self.pass(RoleHolder::Waiter(id), RoleHolder::Nobody);
    }

    /// The role goes from one holder to another, if that one has it still.
    pub fn pass(&self, from: RoleHolder, to: RoleHolder) -> bool {
        let passed = self
            .role
            .compare_exchange(from.word(), to.word(), Ordering::SeqCst, Ordering::SeqCst);
        passed.is_ok()
    }

    /// Takes the role for a waiter, unless another has it who is not stale. The waiter must have entered.
    pub fn take(&self, id: u64, is_stale: impl Fn() -> bool) -> RoleTaken {
        let mut role = self.role.load(Ordering::SeqCst);
        loop {
            if role == id {
                return RoleTaken::Kept;
            }
            if role > ASLEEP && !is_stale() {
                self.candidate.store(id, Ordering::SeqCst);
                role = self.role.load(Ordering::SeqCst);
                if role > ASLEEP {
                    return RoleTaken::No;
                }
                continue;
            }
            match self
                .role
                .compare_exchange(role, id, Ordering::SeqCst, Ordering::SeqCst)
            {
                Ok(_) => return RoleTaken::From(RoleHolder::of_word(role)),
                Err(now) => role = now,
            }
        }
    }

    /// Whether somebody looks, or nobody waits.
    fn is_settled(&self) -> bool {
        self.role.load(Ordering::SeqCst) != NOBODY || self.waiters.load(Ordering::SeqCst) == 0
    }

    /// Sees to it that somebody looks at the ring if anybody waits. Whoever gives the role up, and whoever has emptied
    /// the ring without having it, calls this. `wake` wakes a waiter, and says whether it was there; `drain` begins to empty
    /// the ring, unless somebody does: who does settles when done.
    pub fn settle<D: RingDrain>(
        &self,
        mut wake: impl FnMut(u64) -> bool,
        mut drain: impl FnMut() -> Option<D>,
    ) {
        loop {
            if self.is_settled() {
                return;
            }
            let candidate = self.candidate.swap(0, Ordering::SeqCst);
            if candidate != 0 && wake(candidate) {
                return;
            }
            let Some(mut drain) = drain() else { return };
            if drain.arm(DoorbellWatcher::Reactor) {
                if !self.pass(RoleHolder::Nobody, RoleHolder::Asleep) {
                    drain.disarm();
                }
                return;
            }
            drain.run();
        }
    }

    /// Whether this one watches the doorbell.
    #[inline]
    pub fn is_watched_by(&self, watcher: DoorbellWatcher) -> bool {
        self.watcher.load(Ordering::Relaxed) == watcher as u32
    }

    /// This one watches the doorbell from now on. Only who empties the ring calls this.
    #[inline]
    pub fn set_watcher(&self, watcher: DoorbellWatcher) {
        self.watcher.store(watcher as u32, Ordering::Relaxed);
    }

    /// For one that hears the doorbell: delivers what it was rung for, if this one watches it still. `drain` begins to empty the ring
    /// as soon as whoever does is done.
    pub fn deliver<D: RingDrain>(
        &self,
        watcher: DoorbellWatcher,
        mut drain: impl FnMut() -> D,
    ) -> RingDelivery {
        loop {
            let mut drain = drain();
            if !self.is_watched_by(watcher) {
                return RingDelivery::OfAnother;
            }
            if !drain.take_rings() {
                drain.set_watcher(DoorbellWatcher::Caller);
                return RingDelivery::Silent;
            }
            let found = drain.run();
            if self.holder() != RoleHolder::Asleep || drain.arm(watcher) {
                return RingDelivery::Done { found };
            }
        }
    }

    /// The reactor watches the doorbell from now on, if the program's runtime did, and delivers what that may have left.
    pub fn take_watch_over<D: RingDrain>(&self, mut drain: impl FnMut() -> D) -> RingDelivery {
        {
            let mut drain = drain();
            if !self.is_watched_by(DoorbellWatcher::Runtime) {
                return RingDelivery::OfAnother;
            }
            drain.set_watcher(DoorbellWatcher::Reactor);
        }
        self.deliver(DoorbellWatcher::Reactor, drain)
    }
}
