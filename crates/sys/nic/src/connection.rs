//! A connection's line: what the NIC knows of a session. The host writes it once, when the session begins; from then on it is the
//! NIC's, which keeps it in its cache or in the table in host memory.

use crate::{LINE_BYTES, Line};

/// Calls of one session that the NIC can have on their way.
pub const SLOTS_MAX: u8 = 8;

/// Which end of the session this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionRole {
    /// This end makes calls.
    Client,
    /// This end handles them.
    Server,
}

/// How a server's requests are spread over its flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Balance {
    /// All to the first.
    Static = 0,
    /// To each in turn.
    RoundRobin = 1,
    /// By the hash of the key in the request.
    ObjectKey = 2,
    /// To the one whose receive ring has most room.
    LeastLoaded = 3,
}

/// What the host says of a session that begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLine {
    /// Which end this is.
    pub role: ConnectionRole,
    /// Concurrent calls, no more than [`SLOTS_MAX`] and than the session's credits.
    pub slots: u8,
    /// How requests are spread.
    pub balance: Balance,
    /// The token bucket that requests draw from.
    pub bucket: u8,
    /// The first flow, and how many: a power of two that divides the first.
    pub flows: (u8, u8),
    /// The token that packets for this end carry.
    pub local_token: u32,
    /// The token and number that packets for the other end carry.
    pub remote_token: u32,
    pub remote_number: u16,
    /// Bytes of a message at most: of one packet.
    pub payload_bytes_max: u16,
    /// The other end's address, 48 bits.
    pub remote: u64,
}

impl ConnectionLine {
    /// The line of a connection that is not open.
    pub const CLOSED: Line = [0; LINE_BYTES];

    /// The line of a session of which no call was made yet.
    #[must_use]
    pub fn encode(&self) -> Line {
        let server = u32::from(self.role == ConnectionRole::Server);
        let word = 1
            | server << 1
            | u32::from(self.slots.min(SLOTS_MAX)) << 4
            | u32::from(self.balance as u8) << 8
            | u32::from(self.bucket & 7) << 12
            | u32::from(self.flows.0 & 15) << 16
            | u32::from((self.flows.1.max(1) - 1) & 15) << 20;
        let mut line = ConnectionLine::CLOSED;
        line[..4].copy_from_slice(&word.to_le_bytes());
        line[4..8].copy_from_slice(&self.local_token.to_le_bytes());
        line[8..12].copy_from_slice(&self.remote_token.to_le_bytes());
        line[12..14].copy_from_slice(&self.remote_number.to_le_bytes());
        line[14..16].copy_from_slice(&self.payload_bytes_max.to_le_bytes());
        line[16..22].copy_from_slice(&self.remote.to_le_bytes()[..6]);
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_where_the_rtl_looks_for_them() {
        let line = ConnectionLine {
            role: ConnectionRole::Server,
            slots: 8,
            balance: Balance::LeastLoaded,
            bucket: 5,
            flows: (4, 2),
            local_token: 0x0403_0201,
            remote_token: 0x0807_0605,
            remote_number: 0x0a09,
            payload_bytes_max: 0x0c0b,
            remote: 0x1211_100f_0e0d,
        }
        .encode();
        assert_eq!(line[..4], [0x83, 0x53, 0x14, 0]);
        let rest: Vec<u8> = (1..=18).collect();
        assert_eq!(line[4..22], rest);
        assert_eq!(line[22..], [0; LINE_BYTES - 22]);
    }
}
