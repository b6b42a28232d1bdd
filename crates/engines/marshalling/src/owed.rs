//! Cancellations that wait for room in their queue.

use provost_datapath::{Queue, Step};

/// Cancellations that wait in one direction, at most. Each is of another malformed message.
pub(crate) const OWED_STEPS_MAX: usize = 64;

/// Which way a step goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// From the app to the peer.
    Tx,
    /// From the peer to the app.
    Rx,
}

/// What is owed to both sides.
#[derive(Debug)]
pub(crate) struct Owed {
    tx: Queue<Step>,
    rx: Queue<Step>,
}

impl Owed {
    pub(crate) fn new() -> Owed {
        Owed {
            tx: Queue::with_bound(OWED_STEPS_MAX),
            rx: Queue::with_bound(OWED_STEPS_MAX),
        }
    }

    /// Whether one more can be added in each direction.
    pub(crate) fn has_room(&self) -> bool {
        !self.tx.is_full() && !self.rx.is_full()
    }

    /// Adds a step; there must be room.
    pub(crate) fn add(&mut self, lane: Lane, step: Step) {
        let refused = self.lane(lane).push(step).is_err();
        debug_assert!(!refused, "room was looked for before");
    }

    /// Moves what there is room for, and says how many steps that were.
    pub(crate) fn deliver(&mut self, lane: Lane, to: &mut Queue<Step>) -> usize {
        let waiting = self.lane(lane);
        let count = waiting.len().min(to.room());
        for _ in 0..count {
            // Cannot be refused: the count was bounded by the room.
            let _ = waiting.pop().map(|step| to.push(step));
        }
        count
    }

    /// What waits in one direction, the oldest first.
    pub(crate) fn steps(&self, lane: Lane) -> impl ExactSizeIterator<Item = &Step> {
        match lane {
            Lane::Tx => self.tx.iter(),
            Lane::Rx => self.rx.iter(),
        }
    }

    fn lane(&mut self, lane: Lane) -> &mut Queue<Step> {
        match lane {
            Lane::Tx => &mut self.tx,
            Lane::Rx => &mut self.rx,
        }
    }
}
