//! What a host with a NIC is told, and what it says when that cannot be.

use provost_datagram::Checking;
use provost_datagram::packet::DATA_HEADER_BYTES;
use provost_nic::{Balance, FetchMode, FlowShape, LINE_BYTES, MESSAGE_PACKETS_MAX, MessageAreas, RingError};

/// What a host is told when it starts.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// The flows. The first makes calls and carries session management; requests go to the `serving` ones.
    pub flows: Vec<FlowShape>,
    /// First flow that requests are written to, and how many, a power of two that divides the first.
    pub serving: (u8, u8),
    /// How they are spread.
    pub balance: Balance,
    /// Line address of the connection table, which takes a line for each session.
    pub table_base: u32,
    /// Where messages of several packets are received, behind everything else: [`MessageAreas::lines`] for `sessions_max` connections. Without
    /// it, messages are of one packet.
    pub areas: Option<MessageAreas>,
    pub sessions_max: u16,
    /// Bytes of the largest packet.
    pub packet_bytes_max: u16,
    /// Whether packets carry a check. The NIC knows that of 16 bits alone.
    pub checking: Checking,
    /// Ticks of 64 ns until the NIC sends a request again: 1 to [`TIMEOUT_TICKS_MAX`].
    pub timeout_ticks: u32,
    /// How often it does so: [`TRIES_LIMIT`] times at most.
    pub tries_max: u32,
    /// Nanoseconds until an Open or a Close is sent again.
    pub handshake_timeout_ns: u64,
    /// Nanoseconds without a request after which a client's session may be ended if another client needs its place.
    pub idle_ns_min: u64,
    /// What tokens and cookies are made of.
    pub secret: [u64; 2],
}

/// Slots of a ring and lines of a slot, as logarithms: a slot holds a packet of Ethernet size, and its head.
const SLOTS_LOG2: u8 = 5;
const SLOT_LINES_LOG2: u8 = 5;
/// Where rings begin, or behind the connection table if that is longer.
const RINGS_BASE_MIN: u32 = 64;
/// Lines of an area for a message that is received, as a logarithm: seven such packets as they are.
const AREA_LINES_LOG2: u8 = 8;
/// Bytes of the largest packet: what Ethernet carries in UDP.
const PACKET_BYTES: u16 = 1472;
/// Nanoseconds until a request is sent again, and how often: some ten seconds at longer and longer intervals. A simulated call takes hundreds
/// of microseconds.
const TIMEOUT_NS: u64 = 20_000_000;
const TRIES_MAX: u32 = 12;
/// The NIC counts tries to 15.
pub const TRIES_LIMIT: u32 = 15;
/// A time-out doubles up to 64 times itself, and the NIC takes what is 2^31 ticks ahead for past: some two seconds.
pub const TIMEOUT_TICKS_MAX: u32 = (1 << 25) - 1;
/// Nanoseconds that a client's session is left in place: as long as one in software is silent before its client asks whether the server is there.
pub const IDLE_NS_MIN: u64 = 10_000_000_000;
/// Nanoseconds of a tick of the NIC.
const TICK_NS: u64 = 64;

impl HostConfig {
    /// Of a simulated NIC with one flow, whose wire is UDP over Ethernet: so many sessions and calls, and a secret that nobody else knows. All of its
    /// memory is [`HostConfig::memory_lines`].
    #[must_use]
    pub fn of_one_flow(sessions_max: u16, calls_max: u8, secret: [u64; 2]) -> HostConfig {
        let shape = FlowShape {
            flow: 0,
            base: RINGS_BASE_MIN.max(sessions_max.into()),
            slots_log2: SLOTS_LOG2,
            slot_lines_log2: SLOT_LINES_LOG2,
            fetch: FetchMode::Polled,
            calls_max,
        };
        let areas = MessageAreas {
            base: shape.base + shape.lines(),
            lines_log2: AREA_LINES_LOG2,
        };
        HostConfig {
            flows: vec![shape],
            serving: (0, 1),
            balance: Balance::Static,
            table_base: 0,
            areas: Some(areas),
            sessions_max,
            packet_bytes_max: PACKET_BYTES,
            checking: Checking::Packets,
            timeout_ticks: (TIMEOUT_NS / TICK_NS) as u32,
            tries_max: TRIES_MAX,
            handshake_timeout_ns: TIMEOUT_NS,
            idle_ns_min: IDLE_NS_MIN,
            secret,
        }
    }

    /// Lines of host memory that the NIC is given: up to the end of rings and areas.
    #[must_use]
    pub fn memory_lines(&self) -> usize {
        let rings = self.flows.iter().map(|shape| shape.base + shape.lines()).max();
        let areas = self
            .areas
            .map(|areas| areas.base + areas.lines(self.sessions_max));
        areas.max(rings).unwrap_or(0) as usize
    }

    /// Bytes of a packet's payload, and of a message, at most.
    #[must_use]
    pub fn payload_bytes_max(&self) -> (usize, usize) {
        let packet = usize::from(self.packet_bytes_max) - DATA_HEADER_BYTES;
        (packet, self.message_bytes_max(self.packet_bytes_max))
    }

    /// Credits of a session that a call can take.
    pub(crate) fn call_credits(&self) -> u16 {
        self.areas.map_or(1, |_| MESSAGE_PACKETS_MAX as u16)
    }

    /// Bytes of a message whose packets have so many bytes.
    pub(crate) fn message_bytes_max(&self, packet_bytes: u16) -> usize {
        let payload = usize::from(packet_bytes) - DATA_HEADER_BYTES;
        let stored = self.areas.map_or(0, |areas| areas.message_bytes_max(payload));
        payload.max(stored)
    }
}

/// Why something was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// The board has no NIC that this driver knows.
    #[error("no NIC answers at these registers: the identity reads as {0:#x}")]
    Identity(u32),
    /// The NIC is built for another width of line.
    #[error("the NIC moves lines of {0} bytes, and this driver is built for {LINE_BYTES}")]
    LineBytes(usize),
    /// The NIC cannot check packets so.
    #[error("the NIC does not know {0:?}: choose Checking::Wire or Checking::Packets, at all ends alike")]
    Checking(Checking),
    /// Areas of this shape are too large or too small.
    #[error("areas of {0:?} cannot be: a message's packets take 2 to 256 lines")]
    Areas(MessageAreas),
    /// The NIC cannot send requests again so.
    #[error(
        "a NIC sends requests again after 1 to {TIMEOUT_TICKS_MAX} ticks, {TRIES_LIMIT} times at most: not after {timeout_ticks}, {tries_max} times"
    )]
    Retries { timeout_ticks: u32, tries_max: u32 },
    /// The NIC does not do what it is told.
    #[error("the NIC has not done a command in time")]
    NicSilent,
    #[error(transparent)]
    Ring(#[from] RingError),
    /// No such session, or not open.
    #[error("no such session, or it is not open")]
    NoSession,
    /// As many sessions as there can be.
    #[error("too many sessions")]
    TooManySessions,
    /// All slots of the session have calls, or the flow has as many as it may.
    #[error("every slot of the session has a call, or the flow as many as it may; wait until one has ended")]
    Busy,
    /// The message has more bytes than the session takes.
    #[error(
        "the message has {bytes} bytes, and the session takes {bytes_max} at most: divide it, or use a transport that does"
    )]
    TooLarge { bytes: usize, bytes_max: usize },
}
