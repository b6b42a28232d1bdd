//! What a runtime's thread spends its time with.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use provost_datapath::Nanos;

/// What a runtime's thread has spent its time with since it began. None of it ever goes backwards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimeSpent {
    /// Rounds in which something moved.
    pub busy_ns: Nanos,
    /// Rounds in which nothing did.
    pub polling_ns: Nanos,
    pub asleep_ns: Nanos,
    /// How often it went to sleep.
    pub sleeps: u64,
}

/// Written by the thread alone, with plain stores.
#[derive(Debug)]
pub(crate) struct SpentCells {
    began: Nanos,
    busy_ns: AtomicU64,
    polling_ns: AtomicU64,
    sleeps: AtomicU64,
    /// What was told last: a round that is not over yet counts as sleep until it is.
    asleep_told_ns: AtomicU64,
}

/// How a round went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RoundOutcome {
    Busy,
    Polling,
}

impl SpentCells {
    pub(crate) fn new(now: Nanos) -> SpentCells {
        SpentCells {
            began: now,
            busy_ns: AtomicU64::new(0),
            polling_ns: AtomicU64::new(0),
            sleeps: AtomicU64::new(0),
            asleep_told_ns: AtomicU64::new(0),
        }
    }

    /// A round is over that took so long, sleep not counted.
    pub(crate) fn add(&self, round: RoundOutcome, awake_ns: Nanos) {
        let to = match round {
            RoundOutcome::Busy => &self.busy_ns,
            RoundOutcome::Polling => &self.polling_ns,
        };
        to.store(to.load(Relaxed) + awake_ns, Relaxed);
    }

    pub(crate) fn add_sleep(&self) {
        self.sleeps.store(self.sleeps.load(Relaxed) + 1, Relaxed);
    }

    pub(crate) fn read(&self, now: Nanos) -> TimeSpent {
        let (busy_ns, polling_ns) = (self.busy_ns.load(Relaxed), self.polling_ns.load(Relaxed));
        let asleep_ns = now.saturating_sub(self.began + busy_ns + polling_ns);
        TimeSpent {
            busy_ns,
            polling_ns,
            asleep_ns: asleep_ns.max(self.asleep_told_ns.fetch_max(asleep_ns, Relaxed)),
            sleeps: self.sleeps.load(Relaxed),
        }
    }
}
