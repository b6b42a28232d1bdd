//! How many calls a server handles, and what it does with more.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a server does with calls that are over its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overload {
    /// They wait for their turn.
    Wait,
    /// They end at once.
    Refuse,
}

/// How many calls a server handles, and has handled; given to it by [`ServerBuilder::counts`](crate::ServerBuilder::counts).
/// Clones show the same counts. Several servers may share one.
///
/// ```
/// let counts = provost::ServerCounts::new();
/// let server = provost::Server::builder().concurrency_limit(256).shed_load().counts(&counts);
/// println!("{} running, {} refused", counts.running(), counts.shed());
/// # drop(server);
/// ```
#[derive(Clone, Debug, Default)]
pub struct ServerCounts {
    words: Arc<CountWords>,
}

#[derive(Debug, Default)]
struct CountWords {
    running: AtomicU64,
    ended: AtomicU64,
    shed: AtomicU64,
}

impl ServerCounts {
    /// Counts that begin at 0.
    #[must_use]
    pub fn new() -> ServerCounts {
        ServerCounts::default()
    }

    /// Calls whose handlers are under way now.
    #[must_use]
    pub fn running(&self) -> u64 {
        self.words.running.load(Ordering::Relaxed)
    }

    /// Calls whose handlers have ended, whatever they came to.
    #[must_use]
    pub fn ended(&self) -> u64 {
        self.words.ended.load(Ordering::Relaxed)
    }

    /// Calls that were refused because the server handled as many as it may.
    #[must_use]
    pub fn shed(&self) -> u64 {
        self.words.shed.load(Ordering::Relaxed)
    }

    pub(super) fn begin(&self) -> RunningCall {
        self.words.running.fetch_add(1, Ordering::Relaxed);
        RunningCall(self.words.clone())
    }

    pub(super) fn note_shed(&self) {
        self.words.shed.fetch_add(1, Ordering::Relaxed);
    }
}

/// Counts as a call that is under way until it is dropped.
pub(super) struct RunningCall(Arc<CountWords>);

impl Drop for RunningCall {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::Relaxed);
        self.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}
