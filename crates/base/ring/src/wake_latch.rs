//! How threads of one process wake one that sleeps, and how the thing that they wake it for is named once.
//!
//! ```text
//! anyone                                    the sleeper
//!   put something in a queue                  take_pending(), empty the queues, work
//!   announce()  pending = true; fence         prepare_sleep()  sleeping = true; fence
//!     sleeping? ring its doorbell                pending? then not: sleeping = false
//!                                             sleep on the doorbell; awake()  sleeping = false
//! ```
//!
//! The two fences are totally ordered: either who announces sees that the other sleeps, and rings, or the other sees
//! that something is pending, and does not sleep.

use crate::atomic::{AtomicBool, AtomicU32, Ordering, fence};

/// The words between one thread that sleeps and those that wake it. Queues are beside it.
#[derive(Debug)]
pub struct WakeLatch {
    /// There may be something in a queue.
    pending: AtomicBool,
    /// The thread sleeps, or is about to.
    sleeping: AtomicBool,
}

impl Default for WakeLatch {
    fn default() -> WakeLatch {
        WakeLatch {
            pending: AtomicBool::new(false),
            sleeping: AtomicBool::new(false),
        }
    }
}

impl WakeLatch {
    /// Says that something was put in a queue. Returns whether the doorbell must be rung.
    #[must_use = "the thread sleeps on unless its doorbell is rung"]
    pub fn announce(&self) -> bool {
        self.set_pending();
        // Pairs with the fence in `prepare_sleep`.
        fence(Ordering::SeqCst);
        self.sleeping.load(Ordering::Relaxed) && self.sleeping.swap(false, Ordering::Relaxed)
    }

    /// A swap, not a store: whoever takes it then has what all who announced put in their queues, for swaps continue a release
    /// sequence that another's store would break.
    fn set_pending(&self) {
        self.pending.swap(true, Ordering::Release);
    }

    /// For the thread: whether there may be something to take. Says so once for each time something came.
    #[inline]
    pub fn take_pending(&self) -> bool {
        self.pending.load(Ordering::Relaxed) && self.pending.swap(false, Ordering::Acquire)
    }

    /// For the thread: has it look at its queues though nothing may have come, because it left something there.
    pub fn look_again(&self) {
        self.set_pending();
    }

    /// For the thread: says that it is about to sleep, and whether it may.
    #[must_use = "a thread that must not sleep has something to take"]
    pub fn prepare_sleep(&self) -> bool {
        self.sleeping.store(true, Ordering::Relaxed);
        // Pairs with the fence in `announce`.
        fence(Ordering::SeqCst);
        let may_sleep = !self.pending.load(Ordering::Relaxed);
        if !may_sleep {
            self.awake();
        }
        may_sleep
    }

    /// For the thread: says that it is awake, whether or not it has slept.
    pub fn awake(&self) {
        self.sleeping.store(false, Ordering::Relaxed);
    }
}

/// A waker's place among what a thread polls, before the thread polls it.
const NOWHERE: u32 = u32::MAX;

/// Names one thing to its thread once, however often it is woken before the thread has looked at it.
#[derive(Debug)]
pub struct WakeOnce {
    place: AtomicU32,
    woken: AtomicBool,
}

impl Default for WakeOnce {
    fn default() -> WakeOnce {
        WakeOnce {
            place: AtomicU32::new(NOWHERE),
            woken: AtomicBool::new(false),
        }
    }
}

impl WakeOnce {
    /// For the thread: it polls the thing under this number from now on, the first time after this.
    pub fn settle(&self, place: u32) {
        self.place.store(place, Ordering::Release);
        // Whoever woke it before it was anywhere has named it to nobody: that must not keep others from it.
        self.woken.swap(false, Ordering::AcqRel);
    }

    /// The number to name to the thread, unless that was done and the thread has not looked yet. What is to be seen must be
    /// there already.
    #[must_use = "the thread does not look unless it is told the number"]
    pub fn wake(&self) -> Option<u32> {
        if self.woken.swap(true, Ordering::AcqRel) {
            return None;
        }
        // One that is nowhere is looked at when it has settled.
        Some(self.place.load(Ordering::Acquire)).filter(|place| *place != NOWHERE)
    }

    /// For the thread: it is about to look. What comes from now on is named again.
    pub fn take(&self) {
        // Acquire pairs with the swap in `wake`: what was put somewhere before it is seen by the look.
        self.woken.swap(false, Ordering::AcqRel);
    }
}
