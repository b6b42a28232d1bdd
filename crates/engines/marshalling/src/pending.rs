//! Cancellations that wait for room in their queue.

use provost_datapath::{Queue, Step};

/// Cancellations that wait in one direction, at most. Each is of another malformed message.
pub(crate) const PENDING_STEPS_MAX: usize = 64;

/// Which way a step goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepDirection {
    /// From the app to the peer.
    Tx,
    /// From the peer to the app.
    Rx,
}

/// What is pending to both sides.
#[derive(Debug)]
pub(crate) struct PendingSteps {
    tx: Queue<Step>,
    rx: Queue<Step>,
}

impl PendingSteps {
    pub(crate) fn new() -> PendingSteps {
        PendingSteps {
            tx: Queue::with_bound(PENDING_STEPS_MAX),
            rx: Queue::with_bound(PENDING_STEPS_MAX),
        }
    }

    /// Whether one more can be added in each direction.
    pub(crate) fn has_room(&self) -> bool {
        !self.tx.is_full() && !self.rx.is_full()
    }

    /// Adds a step; there must be room.
    pub(crate) fn add(&mut self, direction: StepDirection, step: Step) {
        let refused = self.direction(direction).push(step).is_err();
        debug_assert!(!refused, "room was looked for before");
    }

    /// Moves what there is room for, and says how many steps that were.
    pub(crate) fn deliver(&mut self, direction: StepDirection, to: &mut Queue<Step>) -> usize {
        let waiting = self.direction(direction);
        let count = waiting.len().min(to.room());
        for _ in 0..count {
            // Cannot be refused: the count was bounded by the room.
            let _ = waiting.pop().map(|step| to.push(step));
        }
        count
    }

    /// What waits in one direction, the oldest first.
    pub(crate) fn steps(&self, direction: StepDirection) -> impl ExactSizeIterator<Item = &Step> {
        match direction {
            StepDirection::Tx => self.tx.iter(),
            StepDirection::Rx => self.rx.iter(),
        }
    }

    fn direction(&mut self, direction: StepDirection) -> &mut Queue<Step> {
        match direction {
            StepDirection::Tx => &mut self.tx,
            StepDirection::Rx => &mut self.rx,
        }
    }
}
