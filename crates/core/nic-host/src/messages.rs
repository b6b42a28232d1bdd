//! Messages as packets, and the calls whose requests have several.

use provost_nic::MessagePart;

/// Bytes of messages that a session carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageBounds {
    /// Of a message that has one packet.
    pub packet_bytes: usize,
    /// Of a request, as the server takes it.
    pub request_bytes_max: usize,
    /// Of a response that this host can read. What the peer can read it has to say itself.
    pub response_bytes_max: usize,
}

/// A call that the host has made.
#[derive(Clone, Debug)]
pub(crate) struct HostCall {
    pub(crate) number: u16,
    /// Of its session, as others have the number later.
    pub(crate) token: u32,
    /// What the caller calls it.
    pub(crate) tag: u64,
    /// The area of the response.
    pub(crate) area: u8,
    /// A request of several packets, of which the NIC has the first.
    pub(crate) request: Option<LongRequest>,
}

/// What the NIC asks for of a request of several packets.
#[derive(Clone, Debug)]
pub(crate) struct LongRequest {
    pub(crate) method: u16,
    pub(crate) payload: Vec<u8>,
    /// From which packet on the rest was given last, and when.
    pub(crate) given: Option<(u16, u64)>,
}

/// One packet of a message whose packets carry so many bytes each.
pub(crate) fn message_part(message: &[u8], packet: u16, packet_payload: usize) -> (MessagePart, &[u8]) {
    let begin = (usize::from(packet) * packet_payload).min(message.len());
    let end = (begin + packet_payload).min(message.len());
    let part = MessagePart {
        message_bytes: message.len() as u32,
        packet,
        area: 0,
    };
    (part, &message[begin..end])
}
