//! What has become of the calls of a connection, for those who ask its owner (gRPC's channelz).

use std::sync::atomic::{AtomicU64, Ordering};

/// Counted by the thread that has the connection, and read by others, who may see one count before another.
#[derive(Debug, Default)]
pub struct CallCounts {
    started: AtomicU64,
    succeeded: AtomicU64,
    failed: AtomicU64,
    messages_sent: AtomicU64,
    messages_received: AtomicU64,
    last_started_ns: AtomicU64,
}

/// What was counted until now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CountedCalls {
    /// Calls that have begun.
    pub started: u64,
    /// Calls that ended with the status OK.
    pub succeeded: u64,
    /// Calls that ended otherwise.
    pub failed: u64,
    /// Messages that were taken to be sent.
    pub messages_sent: u64,
    /// Messages that have come whole.
    pub messages_received: u64,
    /// When the last call began, by the connection's clock; 0 before the first one.
    pub last_started_ns: u64,
}

impl CountedCalls {
    /// What was counted here and there.
    #[must_use]
    pub fn plus(self, other: CountedCalls) -> CountedCalls {
        CountedCalls {
            started: self.started + other.started,
            succeeded: self.succeeded + other.succeeded,
            failed: self.failed + other.failed,
            messages_sent: self.messages_sent + other.messages_sent,
            messages_received: self.messages_received + other.messages_received,
            last_started_ns: self.last_started_ns.max(other.last_started_ns),
        }
    }
}

/// How a call ended, as far as it is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallOutcome {
    Succeeded,
    Failed,
}

impl CallCounts {
    /// What was counted until now.
    #[must_use]
    pub fn now(&self) -> CountedCalls {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        CountedCalls {
            started: read(&self.started),
            succeeded: read(&self.succeeded),
            failed: read(&self.failed),
            messages_sent: read(&self.messages_sent),
            messages_received: read(&self.messages_received),
            last_started_ns: read(&self.last_started_ns),
        }
    }

    pub(crate) fn note_start(&self, now_ns: u64) {
        add(&self.started, 1);
        self.last_started_ns.store(now_ns, Ordering::Relaxed);
    }

    pub(crate) fn note_end(&self, outcome: CallOutcome) {
        match outcome {
            CallOutcome::Succeeded => add(&self.succeeded, 1),
            CallOutcome::Failed => add(&self.failed, 1),
        }
    }

    pub(crate) fn note_sent(&self) {
        add(&self.messages_sent, 1);
    }

    pub(crate) fn note_received(&self, messages: usize) {
        add(&self.messages_received, messages as u64);
    }
}

/// One thread writes, so nothing is lost between the two.
fn add(count: &AtomicU64, more: u64) {
    count.store(count.load(Ordering::Relaxed) + more, Ordering::Relaxed);
}
