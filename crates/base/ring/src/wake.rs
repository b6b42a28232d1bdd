//! Wake words: how one side sleeps without missing what the other publishes, and is woken by one system call a sleep.
//!
//! ```text
//! owner (Sleeper)                          peer (Bell)
//!   ring is empty                            publish()          Release store of the tail
//!   arm()      word = odd; SeqCst fence      needed()           SeqCst fence; load of the word
//!   ring still empty? sleep on the doorbell  odd, and this epoch not rung yet? write the doorbell
//!   disarm()   word = even
//! ```
//!
//! The two fences are totally ordered. If the owner's comes first, the peer sees the odd word and rings. If the peer's
//! comes first, the owner's re-check sees the published tail and does not sleep.

use std::sync::atomic::compiler_fence;

use crate::atomic::{AtomicU32, Ordering, fence};

/// The owner's side of a wake word.
#[derive(Debug)]
pub struct Sleeper {
    word: *const AtomicU32,
    /// What the word says: odd while armed.
    epoch: u32,
}

// SAFETY: the pointer is to shared memory that is valid from any thread, by the contract of `new`; all access to it
// is atomic.
unsafe impl Send for Sleeper {}

impl Sleeper {
    /// Takes a wake word over, disarmed.
    ///
    /// # Safety
    /// Until the sleeper is dropped, the word must be mapped for reading and writing, and all access to it by this
    /// program must be atomic, from any thread.
    #[must_use]
    pub unsafe fn new(word: *const AtomicU32) -> Sleeper {
        // SAFETY: the caller's promise.
        let epoch = unsafe { &*word }.load(Ordering::Relaxed);
        let mut sleeper = Sleeper { word, epoch };
        sleeper.disarm();
        sleeper
    }

    /// Says that this side is about to sleep. The caller must now look at its rings once more, and sleep only if they
    /// are still empty.
    pub fn arm(&mut self) {
        if self.is_armed() {
            return;
        }
        self.store_next_epoch();
        // Pairs with the fence in `Bell::needed`.
        fence(Ordering::SeqCst);
    }

    /// Says that this side is awake, whether it has slept or not.
    pub fn disarm(&mut self) {
        if self.is_armed() {
            self.store_next_epoch();
        }
    }

    /// Whether the peer has been told to ring.
    #[must_use]
    pub fn is_armed(&self) -> bool {
        self.epoch % 2 == 1
    }

    fn store_next_epoch(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
        // SAFETY: the word is mapped for writing (contract of `new`).
        let word = unsafe { &*self.word };
        // The order with the rings' words comes from the fence in `arm`; waking up needs none.
        word.store(self.epoch, Ordering::Relaxed);
    }
}

/// The peer's side of a wake word: says when the owner's doorbell has to be written.
#[derive(Debug)]
pub struct Bell {
    word: *const AtomicU32,
    /// The epoch for which the doorbell was last written. Even at first, which no sleep's epoch is.
    rung: u32,
}

// SAFETY: as for `Sleeper`.
unsafe impl Send for Bell {}

impl Bell {
    /// Watches a wake word.
    ///
    /// # Safety
    /// Until the bell is dropped, the word must be mapped for reading, and all access to it by this program must be
    /// atomic, from any thread.
    #[must_use]
    pub unsafe fn new(word: *const AtomicU32) -> Bell {
        Bell { word, rung: 0 }
    }

    /// Whether the owner sleeps, or is about to, and this sleep has not been rung for. Call it after
    /// [`crate::Producer::publish`]; when it says so, the doorbell must be written.
    ///
    /// A word that lies costs the liar its wake-up, or the caller one write to a doorbell for each batch that it
    /// publishes.
    #[must_use = "the owner sleeps on unless its doorbell is written"]
    #[inline]
    pub fn needed(&mut self) -> bool {
        // Pairs with the fence in `Sleeper::arm`.
        fence(Ordering::SeqCst);
        self.is_unrung()
    }

    /// As [`Bell::needed`], without the fence that waits for all stores before it: for an owner that, between
    /// [`Sleeper::arm`] and its last look, has the kernel put a fence into every thread of this program (`membarrier`
    /// of Linux). What is published by busy sides then costs a load each time, and nothing more.
    #[must_use = "the owner sleeps on unless its doorbell is written"]
    #[inline]
    pub fn needed_unfenced(&mut self) -> bool {
        // Keeps the compiler from moving the load ahead of what was published; the processor is the owner's concern.
        compiler_fence(Ordering::SeqCst);
        self.is_unrung()
    }

    #[inline]
    fn is_unrung(&mut self) -> bool {
        // SAFETY: the word is mapped for reading (contract of `new`).
        let epoch = unsafe { &*self.word }.load(Ordering::Relaxed);
        if epoch % 2 == 0 || epoch == self.rung {
            return false;
        }
        self.rung = epoch;
        true
    }
}
