//! What a host with a NIC is told, and what it says when that cannot be.

use provost_datagram::Checking;
use provost_datagram::packet::DATA_HEADER_BYTES;
use provost_nic::{Balance, FlowShape, MESSAGE_PACKETS_MAX, MessageAreas, RingError};

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
    /// Ticks of 64 ns until the NIC sends a request again.
    pub timeout_ticks: u32,
    /// How often it does so.
    pub tries_max: u32,
    /// Nanoseconds until an Open or a Close is sent again.
    pub handshake_timeout_ns: u64,
    /// What tokens and cookies are made of.
    pub secret: [u64; 2],
}

impl HostConfig {
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
    /// The NIC cannot check packets so.
    #[error("the NIC does not know {0:?}: choose Checking::Wire or Checking::Packets, at all ends alike")]
    Checking(Checking),
    /// Areas of this shape are too large or too small.
    #[error("areas of {0:?} cannot be: a message's packets take 2 to 256 lines")]
    Areas(MessageAreas),
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
