//! When dormant things want to be looked at. Times are never taken back: one that has become pointless costs one look.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use provost_datapath::Nanos;

/// Pending looks, by time. Whoever adds one keeps its time, and adds another only for an earlier one, so that there
/// are few for each thing.
pub(super) struct Timers {
    heap: BinaryHeap<Reverse<(Nanos, u64)>>,
}

impl Timers {
    pub(super) fn new() -> Timers {
        Timers {
            heap: BinaryHeap::with_capacity(64),
        }
    }

    pub(super) fn add(&mut self, at: Nanos, token: u64) {
        self.heap.push(Reverse((at, token)));
    }

    pub(super) fn next(&self) -> Option<Nanos> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }

    pub(super) fn pop_due(&mut self, now: Nanos) -> Option<(Nanos, u64)> {
        let Reverse((at, _)) = self.heap.peek()?;
        if *at > now {
            return None;
        }
        self.heap.pop().map(|Reverse(entry)| entry)
    }
}

/// Adds a timer unless an earlier one is set.
pub(super) fn add_timer(timers: &mut Timers, set: &mut Option<Nanos>, at: Nanos, token: u64) {
    if set.is_none_or(|set| at < set) {
        *set = Some(at);
        timers.add(at, token);
    }
}
