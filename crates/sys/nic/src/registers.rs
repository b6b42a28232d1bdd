//! Addresses of the NIC's registers, in bytes. Written from `hw/registers.toml` by `cargo xtask hw regs --bless`.

/// 0x50564e31, so that a driver knows what it has found.
pub const IDENTITY: u16 = 0x000;

/// What the NIC was built with: flows in bits 7..0, message buffers in 19..8, bytes of a line in 23..20 as a logarithm less 6, lines of a message in 31..24.
pub const PARAMETERS: u16 = 0x004;

/// Bit 0: take entries and packets. Bit 1: packets carry a check, because the wire has none.
pub const CONTROL: u16 = 0x008;

/// The flow whose receive ring gets packets of session management.
pub const CONTROL_FLOW: u16 = 0x00c;

/// Line address of the connection table in host memory; connection n is n lines further.
pub const TABLE_BASE: u16 = 0x010;

/// Ticks of 64 ns until a request is sent again; it doubles up to 64 times this.
pub const TIMEOUT: u16 = 0x014;

/// Times that a request is sent again before its call fails with TIMEOUT.
pub const TRIES_MAX: u16 = 0x018;

/// Bits 15..0: a connection. Bits 17..16: 1 reads its line anew from the table, 2 ends it. Ignored while CONNECTION_BUSY is 1.
pub const CONNECTION: u16 = 0x01c;

/// 1 while a command of CONNECTION is not done.
pub const CONNECTION_BUSY: u16 = 0x020;

/// Offset, in the first 32 bytes of a request, of the 8 bytes that balancing by object key hashes.
pub const KEY_OFFSET: u16 = 0x024;

/// Line address of the areas for messages of several packets, eight for each connection: those of connection n are 8 n areas further.
pub const AREA_BASE: u16 = 0x028;

/// Lines of such an area, as a logarithm, 8 at most; 0: there are none, and messages are of one packet.
pub const AREA_SHAPE: u16 = 0x02c;

/// Line address of a flow's transmit ring.
#[must_use]
pub const fn flow_tx_base(index: u16) -> u16 {
    0x200 + index * 0x20
}

/// How many of [`flow_tx_base`] there are.
pub const FLOW_TX_BASE_COUNT: u16 = 8;

/// Line address of a flow's receive ring.
#[must_use]
pub const fn flow_rx_base(index: u16) -> u16 {
    0x204 + index * 0x20
}

/// How many of [`flow_rx_base`] there are.
pub const FLOW_RX_BASE_COUNT: u16 = 8;

/// Line address of a flow's status line, in which the NIC says how many entries it has taken.
#[must_use]
pub const fn flow_status(index: u16) -> u16 {
    0x208 + index * 0x20
}

/// How many of [`flow_status`] there are.
pub const FLOW_STATUS_COUNT: u16 = 8;

/// Bits 3..0: log2 of a ring's slots. 7..4: log2 of a slot's lines. 8: 0 polled, 1 doorbell. 16: enable. 31..24: calls that the flow may have on their way, fewer than the slots less one. A write with bit 16 set starts both rings at their first slot.
#[must_use]
pub const fn flow_shape(index: u16) -> u16 {
    0x20c + index * 0x20
}

/// How many of [`flow_shape`] there are.
pub const FLOW_SHAPE_COUNT: u16 = 8;

/// Entries that the host has written since the flow was enabled, modulo 2^16; the NIC fetches no more in doorbell mode.
#[must_use]
pub const fn flow_doorbell(index: u16) -> u16 {
    0x210 + index * 0x20
}

/// How many of [`flow_doorbell`] there are.
pub const FLOW_DOORBELL_COUNT: u16 = 8;

/// Slots of the receive ring that the host has freed since the flow was enabled, modulo 2^16. One that frees what it did not get is counted and ignored.
#[must_use]
pub const fn flow_freed(index: u16) -> u16 {
    0x214 + index * 0x20
}

/// How many of [`flow_freed`] there are.
pub const FLOW_FREED_COUNT: u16 = 8;

/// A rule of the access list. Bit 0: enabled. 1: match the hash of the key, not a range of a field. 2: any method. 7..3: offset of the field of 4 bytes in the request, 0 to 28. 31..16: method.
#[must_use]
pub const fn rule_control(index: u16) -> u16 {
    0x400 + index * 0x10
}

/// How many of [`rule_control`] there are.
pub const RULE_CONTROL_COUNT: u16 = 8;

/// The least value that the rule denies; for hashes, the value under the mask.
#[must_use]
pub const fn rule_low(index: u16) -> u16 {
    0x404 + index * 0x10
}

/// How many of [`rule_low`] there are.
pub const RULE_LOW_COUNT: u16 = 8;

/// The greatest value that the rule denies; for hashes, the mask.
#[must_use]
pub const fn rule_high(index: u16) -> u16 {
    0x408 + index * 0x10
}

/// How many of [`rule_high`] there are.
pub const RULE_HIGH_COUNT: u16 = 8;

/// Ticks of 64 ns between two tokens of a bucket; 0 takes the limit away.
#[must_use]
pub const fn bucket_period(index: u16) -> u16 {
    0x480 + index * 0x10
}

/// How many of [`bucket_period`] there are.
pub const BUCKET_PERIOD_COUNT: u16 = 8;

/// Tokens that a bucket holds at most, up to 65,535.
#[must_use]
pub const fn bucket_burst(index: u16) -> u16 {
    0x484 + index * 0x10
}

/// How many of [`bucket_burst`] there are.
pub const BUCKET_BURST_COUNT: u16 = 8;

/// What the NIC has counted; see the table of counters.
#[must_use]
pub const fn counter(index: u16) -> u16 {
    0x600 + index * 0x4
}

/// How many of [`counter`] there are.
pub const COUNTER_COUNT: u16 = 32;

/// Calls that ended well, by the logarithm of the cycles that they took: register n counts 2^n to 2^(n+1) - 1.
#[must_use]
pub const fn histogram(index: u16) -> u16 {
    0x700 + index * 0x4
}

/// How many of [`histogram`] there are.
pub const HISTOGRAM_COUNT: u16 = 24;

/// What the NIC counts, by the index of [`counter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum CounterName {
    /// Packets that came whole and intact.
    PacketsReceived = 0,
    /// Packets handed to the wire.
    PacketsSent = 1,
    /// Packets of a length that their kind cannot have, or too long for this NIC.
    DroppedLength = 2,
    /// Packets whose check is wrong.
    DroppedCheck = 3,
    /// Packets of an unknown kind.
    DroppedKind = 4,
    /// Packets for which the receive buffer had no room.
    DroppedBuffer = 5,
    /// Packets of no session here: number, token, address and direction do not fit together.
    DroppedToken = 6,
    /// Packets of calls that are over.
    DroppedStale = 7,
    /// Packets that the protocol does not allow, or that this NIC cannot take.
    DroppedProtocol = 8,
    /// Packets for which a receive ring had no credit.
    DroppedRoom = 9,
    /// Entries taken from transmit rings.
    EntriesTaken = 10,
    /// Entries that were answered with an error.
    EntriesRefused = 11,
    /// Calls begun as a client.
    RequestsSent = 12,
    /// Requests written to a receive ring.
    RequestsDelivered = 13,
    /// Requests that the access list denied.
    RequestsDenied = 14,
    /// Requests for which a bucket had no token.
    RequestsLimited = 15,
    /// Requests that came again after their response: the host was asked for it once more.
    RequestsRepeated = 16,
    /// Calls that ended with a response.
    CallsCompleted = 17,
    /// Calls that ended without one.
    CallsFailed = 18,
    /// Requests sent again.
    Retransmissions = 19,
    /// Connections found in the cache.
    ConnectionHits = 20,
    /// Connections fetched from host memory.
    ConnectionMisses = 21,
    /// Writes of FLOW_FREED that freed more than was received.
    CreditsForged = 22,
}

impl CounterName {
    /// All of them, in order.
    pub const ALL: [CounterName; 23] = [
        CounterName::PacketsReceived,
        CounterName::PacketsSent,
        CounterName::DroppedLength,
        CounterName::DroppedCheck,
        CounterName::DroppedKind,
        CounterName::DroppedBuffer,
        CounterName::DroppedToken,
        CounterName::DroppedStale,
        CounterName::DroppedProtocol,
        CounterName::DroppedRoom,
        CounterName::EntriesTaken,
        CounterName::EntriesRefused,
        CounterName::RequestsSent,
        CounterName::RequestsDelivered,
        CounterName::RequestsDenied,
        CounterName::RequestsLimited,
        CounterName::RequestsRepeated,
        CounterName::CallsCompleted,
        CounterName::CallsFailed,
        CounterName::Retransmissions,
        CounterName::ConnectionHits,
        CounterName::ConnectionMisses,
        CounterName::CreditsForged,
    ];
}
