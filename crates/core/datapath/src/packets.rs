//! What a transport that makes packets itself counts of them.

use std::sync::atomic::{AtomicU64, Ordering};

/// Packets of a connection, or of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Packets {
    /// Handed to the network.
    pub sent: u64,
    /// Taken from the network.
    pub received: u64,
    /// Sent again, among those that were sent: they seemed lost.
    pub resent: u64,
    /// Sent to ask whether a response got lost, among those that were sent.
    pub probes: u64,
    /// Taken from the network though they were here before.
    pub duplicates: u64,
    /// Taken from the network and dropped, as their senders did not show what only the peer knows.
    pub unproven: u64,
    /// How often packets became small, because full-size ones vanished on the way.
    pub path_fallbacks: u64,
}

/// Packets of one connection, counted by its transport and read by whoever likes. Transports that leave packets to the
/// kernel count none.
#[derive(Debug, Default)]
pub struct PacketCounts {
    sent: AtomicU64,
    received: AtomicU64,
    resent: AtomicU64,
    probes: AtomicU64,
    duplicates: AtomicU64,
    unproven: AtomicU64,
    path_fallbacks: AtomicU64,
    round_trip_ns: AtomicU64,
}

impl PacketCounts {
    pub fn add(&self, packets: Packets) {
        let counts = [
            (&self.sent, packets.sent),
            (&self.received, packets.received),
            (&self.resent, packets.resent),
            (&self.probes, packets.probes),
            (&self.duplicates, packets.duplicates),
            (&self.unproven, packets.unproven),
            (&self.path_fallbacks, packets.path_fallbacks),
        ];
        for (count, number) in counts.into_iter().filter(|(_, number)| *number > 0) {
            count.fetch_add(number, Ordering::Relaxed);
        }
    }

    /// All that were counted so far.
    #[must_use]
    pub fn read(&self) -> Packets {
        Packets {
            sent: self.sent.load(Ordering::Relaxed),
            received: self.received.load(Ordering::Relaxed),
            resent: self.resent.load(Ordering::Relaxed),
            probes: self.probes.load(Ordering::Relaxed),
            duplicates: self.duplicates.load(Ordering::Relaxed),
            unproven: self.unproven.load(Ordering::Relaxed),
            path_fallbacks: self.path_fallbacks.load(Ordering::Relaxed),
        }
    }

    /// Notes how long a packet and its answer take, smoothed, in nanoseconds; 0 for not known.
    pub fn set_round_trip_ns(&self, round_trip_ns: u64) {
        self.round_trip_ns.store(round_trip_ns, Ordering::Relaxed);
    }

    /// How long a packet and its answer take, in nanoseconds, where this end measures it.
    #[must_use]
    pub fn round_trip_ns(&self) -> Option<u64> {
        Some(self.round_trip_ns.load(Ordering::Relaxed)).filter(|ns| *ns > 0)
    }
}

impl std::ops::AddAssign for Packets {
    fn add_assign(&mut self, other: Packets) {
        self.sent += other.sent;
        self.received += other.received;
        self.resent += other.resent;
        self.probes += other.probes;
        self.duplicates += other.duplicates;
        self.unproven += other.unproven;
        self.path_fallbacks += other.path_fallbacks;
    }
}

impl std::ops::Sub for Packets {
    type Output = Packets;

    /// What came since `earlier`.
    fn sub(self, earlier: Packets) -> Packets {
        Packets {
            sent: self.sent.saturating_sub(earlier.sent),
            received: self.received.saturating_sub(earlier.received),
            resent: self.resent.saturating_sub(earlier.resent),
            probes: self.probes.saturating_sub(earlier.probes),
            duplicates: self.duplicates.saturating_sub(earlier.duplicates),
            unproven: self.unproven.saturating_sub(earlier.unproven),
            path_fallbacks: self.path_fallbacks.saturating_sub(earlier.path_fallbacks),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_is_read_and_a_round_trip_is_known_once_it_was_noted() {
        let counts = PacketCounts::default();
        let packets = Packets {
            sent: 5,
            received: 3,
            resent: 1,
            probes: 4,
            duplicates: 6,
            unproven: 2,
            path_fallbacks: 7,
        };
        assert_eq!(
            (counts.read(), counts.round_trip_ns()),
            (Packets::default(), None)
        );
        counts.add(packets);
        counts.add(packets - Packets { sent: 1, ..packets });
        counts.set_round_trip_ns(40);
        let expected = Packets { sent: 9, ..packets };
        assert_eq!((counts.read(), counts.round_trip_ns()), (expected, Some(40)));
    }
}
