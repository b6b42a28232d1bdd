//! What the control plane counts of itself.

use std::cell::Cell;

/// A count of the control plane, on its thread.
#[derive(Debug, Default)]
pub(crate) struct Count(Cell<u64>);

impl Count {
    pub(crate) fn add_one(&self) {
        self.0.set(self.0.get() + 1);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.get()
    }

    pub(crate) fn set(&self, count: u64) {
        self.0.set(count);
    }
}

/// Changes of engines and of the whole service, by what came of them.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Processes that have taken over from another one: handed from each to the next.
    pub(crate) takeovers: Count,
    /// Attempts after which this process went on.
    pub(crate) takeovers_undone: Count,
    /// Upgrades of engines that were committed.
    pub(crate) upgrades: Count,
    /// Those that left everything as it was.
    pub(crate) upgrades_undone: Count,
    /// Rollbacks that an operator asked for.
    pub(crate) rollbacks: Count,
    /// Changes that were taken back because an engine failed on trial.
    pub(crate) taken_back: Count,
    /// Exports of metrics that the collector took.
    pub(crate) exports: Count,
    /// Those that it did not.
    pub(crate) exports_failed: Count,
}
