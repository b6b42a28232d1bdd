//! What goes through a runtime: calls under way, and how long what apps send waits on its way to its transport.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use provost_datapath::Nanos;

use crate::polled_datapath::PolledDatapath;

/// Upper bounds of the times that steps wait, in seconds. What is longer has the bound infinity.
pub const QUEUEING_SECONDS: [f64; 15] = [
    0.000_005, 0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.05,
    0.25, 1.0, 10.0,
];
const QUEUEING_NS: [Nanos; QUEUEING_SECONDS.len()] = {
    let mut out = [0; QUEUEING_SECONDS.len()];
    let mut at = 0;
    while at < out.len() {
        // Half a unit more: no bound falls to the number below it.
        out[at] = (QUEUEING_SECONDS[at] * 1e9 + 0.5) as Nanos;
        at += 1;
    }
    out
};
/// Steps of one round whose time is taken, at most; those beyond are not in the histogram.
const DEPARTED_MAX: usize = 1024;

/// What goes through a runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeTraffic {
    /// Calls that have begun and not ended.
    pub calls_under_way: u64,
    /// Steps by the time from when they were taken from their app until the end of the round in which their transport
    /// took them: for each of [`QUEUEING_SECONDS`] those above the bound before it, and last those above all.
    pub queued: [u64; QUEUEING_SECONDS.len() + 1],
    /// The sum of these times.
    pub queued_ns: u64,
}

/// Written by the runtime's thread alone, with plain stores.
#[derive(Debug, Default)]
pub(crate) struct TrafficCells {
    calls_under_way: AtomicU64,
    queued: [AtomicU64; QUEUEING_NS.len() + 1],
    queued_ns: AtomicU64,
}

impl TrafficCells {
    fn queued(&self, time: Nanos) {
        add(
            &self.queued[QUEUEING_NS.partition_point(|bound| *bound < time)],
            1,
        );
        add(&self.queued_ns, time);
    }

    pub(crate) fn read(&self) -> RuntimeTraffic {
        RuntimeTraffic {
            calls_under_way: self.calls_under_way.load(Relaxed),
            queued: std::array::from_fn(|at| self.queued[at].load(Relaxed)),
            queued_ns: self.queued_ns.load(Relaxed),
        }
    }
}

fn add(cell: &AtomicU64, more: u64) {
    cell.store(cell.load(Relaxed).wrapping_add(more), Relaxed);
}

/// The thread's side of it.
pub(crate) struct TrafficCounter {
    cells: Arc<TrafficCells>,
    /// When the steps were taken that departed in this round. The next one reads the clock in any case.
    departed: Vec<Nanos>,
}

impl TrafficCounter {
    pub(crate) fn new(cells: Arc<TrafficCells>) -> TrafficCounter {
        TrafficCounter {
            cells,
            departed: Vec::with_capacity(DEPARTED_MAX),
        }
    }

    /// A datapath was polled.
    pub(crate) fn note_poll(&mut self, path: &mut PolledDatapath) {
        let calls = path.datapath.calls();
        if calls != path.calls_counted {
            self.recount(path.calls_counted, calls);
            path.calls_counted = calls;
        }
        let taken_at = path.datapath.departed().iter().map(|step| step.taken_at);
        for taken_at in taken_at.filter(|at| *at != 0) {
            if self.departed.len() < DEPARTED_MAX {
                self.departed.push(taken_at);
            }
        }
    }

    /// A datapath is gone.
    pub(crate) fn forget(&mut self, path: &PolledDatapath) {
        self.recount(path.calls_counted, 0);
    }

    fn recount(&self, before: usize, after: usize) {
        let all = self.cells.calls_under_way.load(Relaxed);
        let all = all.wrapping_add(after as u64).wrapping_sub(before as u64);
        self.cells.calls_under_way.store(all, Relaxed);
    }

    /// All datapaths have had their turn.
    pub(crate) fn end_round(&mut self, now: Nanos) {
        for taken_at in self.departed.drain(..) {
            self.cells.queued(now.saturating_sub(taken_at));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_counted_up_to_their_bounds() {
        let mut counter = TrafficCounter::new(Arc::default());
        counter.departed.extend([1000, 5000, 9_999]);
        counter.end_round(10_000);
        counter.departed.push(1);
        counter.end_round(20_000_000_000);
        let traffic = counter.cells.read();
        assert_eq!(traffic.queued[..2], [2, 1]);
        assert_eq!(traffic.queued[QUEUEING_NS.len()], 1);
        assert_eq!(traffic.queued.iter().sum::<u64>(), 4);
        assert_eq!(traffic.queued_ns, 9000 + 5000 + 1 + 19_999_999_999);
        counter.end_round(30_000_000_000);
        assert_eq!(counter.cells.read(), traffic);
    }

    #[test]
    fn calls_of_all_datapaths_are_summed() {
        let counter = TrafficCounter::new(Arc::default());
        counter.recount(0, 7);
        counter.recount(0, 5);
        counter.recount(7, 3);
        counter.recount(5, 0);
        assert_eq!(counter.cells.read().calls_under_way, 3);
    }
}
