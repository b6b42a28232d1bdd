//! Messages as packets, and the calls whose requests have several.

use provost_nic::{MESSAGE_PACKETS_MAX, MessagePart};

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
    /// When each packet was given last.
    pub(crate) given_ns: [Option<u64>; MESSAGE_PACKETS_MAX],
}

impl LongRequest {
    /// The packets to give when the server lacks this one, and has those behind it that the bits say. What was given within the pause may be on
    /// its way: packets that come out of order have the server say the same several times.
    pub(crate) fn wanted(
        &mut self,
        first: u16,
        beyond: u16,
        packet_payload: usize,
        now_ns: u64,
        pause_ns: u64,
    ) -> Vec<u16> {
        let packets = self
            .payload
            .len()
            .div_ceil(packet_payload)
            .min(MESSAGE_PACKETS_MAX) as u16;
        let is_there = |packet: u16| packet > first && beyond >> (packet - first - 1) & 1 == 1;
        let mut wanted: Vec<u16> = (first..packets).filter(|packet| !is_there(*packet)).collect();
        wanted.retain(|packet| {
            let given_ns = &mut self.given_ns[usize::from(*packet)];
            let is_due = given_ns.is_none_or(|at_ns| now_ns >= at_ns + pause_ns);
            if is_due {
                *given_ns = Some(now_ns);
            }
            is_due
        });
        wanted
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_packets_that_are_missing_and_not_on_their_way_are_given() {
        let mut request = LongRequest {
            method: 1,
            payload: vec![0; 6_950],
            given_ns: [None; MESSAGE_PACKETS_MAX],
        };
        let mut wanted = |first, beyond, now_ns| request.wanted(first, beyond, 1_000, now_ns, 100);
        assert_eq!(wanted(1, 0, 50), [1, 2, 3, 4, 5, 6]);
        // Packets 2 and 4 are there; the others were given just now.
        assert_eq!(wanted(1, 0b101, 149), []);
        assert_eq!(wanted(1, 0b101, 150), [1, 3, 5, 6]);
        assert_eq!(wanted(3, 0b1, 250), [3, 5, 6]);
        assert_eq!(wanted(6, 0, 1_000), [6]);
        // Whatever a server says.
        assert_eq!(wanted(7, u16::MAX, 2_000), []);
        assert_eq!(wanted(u16::MAX, u16::MAX, 2_000), []);
        assert_eq!(wanted(0, u16::MAX, 2_000), [0]);
    }
}
