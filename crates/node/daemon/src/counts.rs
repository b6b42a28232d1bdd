//! What the control plane counts of itself.

use std::cell::{Cell, RefCell};
use std::time::SystemTime;

use provost_datapath::Packets;

/// A count of the control plane, on its thread.
#[derive(Debug, Default)]
pub(crate) struct Count(Cell<u64>);

impl Count {
    pub(crate) fn add_one(&self) {
        self.0.set(self.0.get() + 1);
    }

    pub(crate) fn add(&self, more: u64) {
        self.0.set(self.0.get() + more);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.get()
    }

    pub(crate) fn set(&self, count: u64) {
        self.0.set(count);
    }
}

/// Packets of connections that are no more, also of those of earlier processes.
#[derive(Debug, Default)]
pub(crate) struct PacketsGone {
    pub(crate) sent: Count,
    pub(crate) received: Count,
    pub(crate) resent: Count,
    pub(crate) probes: Count,
    pub(crate) duplicates: Count,
    pub(crate) unproven: Count,
    pub(crate) path_fallbacks: Count,
}

impl PacketsGone {
    pub(crate) fn add(&self, packets: Packets) {
        self.sent.add(packets.sent);
        self.received.add(packets.received);
        self.resent.add(packets.resent);
        self.probes.add(packets.probes);
        self.duplicates.add(packets.duplicates);
        self.unproven.add(packets.unproven);
        self.path_fallbacks.add(packets.path_fallbacks);
    }

    pub(crate) fn read(&self) -> Packets {
        Packets {
            sent: self.sent.get(),
            received: self.received.get(),
            resent: self.resent.get(),
            probes: self.probes.get(),
            duplicates: self.duplicates.get(),
            unproven: self.unproven.get(),
            path_fallbacks: self.path_fallbacks.get(),
        }
    }
}

/// Changes of engines and of the whole service, by what came of them.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Processes that have taken over from another one: handed from each to the next.
    pub(crate) hot_restarts: Count,
    /// Attempts after which this process went on.
    pub(crate) hot_restarts_undone: Count,
    /// Upgrades of engines that were committed.
    pub(crate) upgrades: Count,
    /// Those that left everything as it was.
    pub(crate) upgrades_undone: Count,
    /// Rollbacks that an operator asked for.
    pub(crate) rollbacks: Count,
    /// Changes that were taken back because an engine failed on probation.
    pub(crate) taken_back: Count,
    /// Exports of metrics that the collector took.
    pub(crate) exports: Count,
    /// Those that it did not.
    pub(crate) exports_failed: Count,
    /// Why the last one failed, if it did.
    pub(crate) export_failure: RefCell<Option<String>>,
    /// When the service began, in whatever process, in milliseconds since 1970.
    pub(crate) began_unix_ms: Count,
}

/// Milliseconds since 1970.
pub(crate) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}
