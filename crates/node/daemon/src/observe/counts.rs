//! What the control plane counts of itself.

use std::cell::Cell;

use provost_datapath::Packets;

use crate::node::{OpenConnection, Shared};
use crate::runtime::ConnectionId;

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
}

impl PacketsGone {
    pub(crate) fn add(&self, packets: Packets) {
        self.sent.add(packets.sent);
        self.received.add(packets.received);
        self.resent.add(packets.resent);
    }

    pub(crate) fn read(&self) -> Packets {
        Packets {
            sent: self.sent.get(),
            received: self.received.get(),
            resent: self.resent.get(),
        }
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
    /// Packets of connections that have ended.
    pub(crate) packets_gone: PacketsGone,
}

impl Shared {
    /// Packets of all connections so far, where transports make them themselves.
    pub(crate) fn packets(&self) -> Packets {
        let mut packets = self.counts.packets_gone.read();
        for connection in self.connections.borrow().values() {
            packets += connection.link.packets().read();
        }
        packets
    }

    /// Forgets connections, but for what they have counted.
    pub(crate) fn forget_connections(&self, is_over: impl Fn(&OpenConnection) -> bool) {
        self.connections.borrow_mut().retain(|_, connection| {
            let stays = !is_over(connection);
            if !stays {
                self.counts.packets_gone.add(connection.link.packets().read());
            }
            stays
        });
    }

    /// Forgets a connection, but for what it has counted.
    pub(crate) fn forget_connection(&self, id: ConnectionId) {
        if let Some(connection) = self.connections.borrow_mut().remove(&id) {
            self.counts.packets_gone.add(connection.link.packets().read());
        }
    }
}
