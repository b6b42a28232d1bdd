//! What the datapaths of one runtime tell each other.
//!
//! A board belongs to one runtime thread, which polls its datapaths one after the other, so nothing here is contended
//! and nothing synchronizes: the words are atomics only because the policy, which other threads see, owns them, and every
//! access is a plain load or store.
//!
//! Datapaths that have large messages announce themselves in every round of the runtime (a round has one time). What was
//! announced in a round counts in the next one. So a datapath that goes away is forgotten a round later, whatever became
//! of it.

use std::sync::atomic::{AtomicU64, Ordering};

use provost_engine::Nanos;

/// The board of one runtime.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct RuntimeBoard {
    /// When a small message of an app without large ones went by last.
    small_at: ThreadWord,
    /// The round whose announcements are being collected.
    round: ThreadWord,
    /// Of that round, and of the one before.
    weights: [ThreadWord; 2],
    earliest: [ThreadWord; 2],
}

const COLLECTED: usize = 0;
const VALID: usize = 1;

impl RuntimeBoard {
    pub(crate) fn new() -> RuntimeBoard {
        RuntimeBoard {
            small_at: ThreadWord::new(0),
            round: ThreadWord::new(0),
            weights: [ThreadWord::new(0), ThreadWord::new(0)],
            earliest: [ThreadWord::new(Nanos::MAX), ThreadWord::new(Nanos::MAX)],
        }
    }

    /// A small message of an app without large ones goes by.
    pub(crate) fn note_small(&self, now: Nanos) {
        self.small_at.set(now);
    }

    /// Whether one did within this time.
    pub(crate) fn has_small(&self, now: Nanos, linger: Nanos) -> bool {
        let at = self.small_at.get();
        at != 0 && now.saturating_sub(at) <= linger
    }

    /// A datapath with large messages takes part in this round with its weight.
    pub(crate) fn announce(&self, now: Nanos, weight: u32) {
        self.enter(now);
        let weights = &self.weights[COLLECTED];
        weights.set(weights.get() + u64::from(weight));
    }

    /// One of its messages that could go waits, with this deadline.
    pub(crate) fn announce_waiting(&self, now: Nanos, deadline: Nanos) {
        self.enter(now);
        let earliest = &self.earliest[COLLECTED];
        earliest.set(earliest.get().min(deadline));
    }

    /// The weights of all datapaths with large messages, of the last whole round.
    pub(crate) fn weights(&self) -> u64 {
        self.weights[VALID].get()
    }

    /// The earliest deadline of a large message that waited in the last whole round.
    pub(crate) fn earliest(&self) -> Nanos {
        self.earliest[VALID].get()
    }

    fn enter(&self, now: Nanos) {
        if self.round.get() != now {
            self.round.set(now);
            self.weights[VALID].set(self.weights[COLLECTED].get());
            self.weights[COLLECTED].set(0);
            self.earliest[VALID].set(self.earliest[COLLECTED].get());
            self.earliest[COLLECTED].set(Nanos::MAX);
        }
    }
}

/// A word of one thread that others may look at.
#[derive(Debug)]
struct ThreadWord(AtomicU64);

impl ThreadWord {
    fn new(value: u64) -> ThreadWord {
        ThreadWord(AtomicU64::new(value))
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_announced_counts_in_the_next_round() {
        let board = RuntimeBoard::new();
        for (now, weights, earliest) in [(1, 0, Nanos::MAX), (2, 5, 70), (3, 5, 70)] {
            board.announce(now, 1);
            board.announce(now, 4);
            board.announce_waiting(now, 90);
            board.announce_waiting(now, 70);
            assert_eq!((board.weights(), board.earliest()), (weights, earliest));
        }
        // One of the two is gone, and nothing waits.
        board.announce(4, 1);
        board.announce(5, 1);
        assert_eq!((board.weights(), board.earliest()), (1, Nanos::MAX));
    }

    #[test]
    fn small_messages_are_remembered_for_a_while() {
        let board = RuntimeBoard::new();
        assert!(!board.has_small(5, 100));
        board.note_small(10);
        assert!(board.has_small(110, 100) && !board.has_small(111, 100));
    }
}
