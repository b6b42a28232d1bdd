//! When dormant things want to be looked at. Times are never taken back: one that has become pointless costs one look.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use provost_datapath::Nanos;

/// How often a full completion ring, or a stuck queue behind it, is tried again.
pub(crate) const BLOCKED_RETRY_NS: Nanos = 1_000_000;

/// Pending looks, by time. Whoever adds one keeps its time, and adds another only for an earlier one, so that there
/// are few for each thing.
pub(crate) struct TimerQueue {
    heap: BinaryHeap<Reverse<(Nanos, u64)>>,
}

impl TimerQueue {
    pub(crate) fn new() -> TimerQueue {
        TimerQueue {
            heap: BinaryHeap::with_capacity(64),
        }
    }

    pub(crate) fn add(&mut self, at: Nanos, token: u64) {
        self.heap.push(Reverse((at, token)));
    }

    pub(crate) fn next(&self) -> Option<Nanos> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }

    pub(crate) fn pop_due(&mut self, now: Nanos) -> Option<(Nanos, u64)> {
        let Reverse((at, _)) = self.heap.peek()?;
        if *at > now {
            return None;
        }
        self.heap.pop().map(|Reverse(entry)| entry)
    }
}

/// Adds a timer unless an earlier one is set.
pub(crate) fn add_timer(timers: &mut TimerQueue, set: &mut Option<Nanos>, at: Nanos, token: u64) {
    if set.is_none_or(|set| at < set) {
        *set = Some(at);
        timers.add(at, token);
    }
}
