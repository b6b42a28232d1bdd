//! Entries: what a slot of a ring begins with. The first 24 bytes are the entry's head, the place that header and prefix have in a
//! packet; the payload follows, and goes on in the slot's further lines.

use crate::{LINE_BYTES, Line, StoredMessage};

/// Bytes of an entry's head.
const HEAD_BYTES: usize = 24;
/// Bytes of payload in the first line.
pub const PAYLOAD_FIRST_BYTES: usize = LINE_BYTES - HEAD_BYTES;

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum EntryKind {
    /// A request: a call to make, or one to handle.
    Request = 1,
    /// A response: an answer to give, or one that has come.
    Response = 2,
    /// A packet as it is, of session management. It begins in the slot's second line.
    Raw = 3,
    /// Packets of a message are to be given: of a response, from a packet on so many; of a request, all from a packet on.
    Repeat = 4,
    /// A call or an entry has failed; the code says why.
    Error = 5,
    /// A further packet of a request whose first the NIC has sent.
    Fragment = 6,
}

impl EntryKind {
    const ALL: [EntryKind; 6] = [
        EntryKind::Request,
        EntryKind::Response,
        EntryKind::Raw,
        EntryKind::Repeat,
        EntryKind::Error,
        EntryKind::Fragment,
    ];
}

/// Why the NIC failed a call or refused an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum EntryError {
    /// The entry's length or kind cannot be.
    #[error("the entry's length or kind cannot be")]
    Descriptor,
    /// The connection is not open, or in the other direction.
    #[error("the connection is not open, or goes in the other direction")]
    Connection,
    /// The session has no free slot, or the flow or the NIC as many calls as it may.
    #[error("no slot is free, or as many calls are on their way as may be")]
    Busy,
    /// The request that the response answers waits no longer.
    #[error("the request waits no longer for its response")]
    Stale,
    /// The peer did not answer.
    #[error("the peer did not answer in time")]
    Timeout,
    /// The message is larger than the session, the slot or the NIC takes.
    #[error("the message is larger than the session or the ring takes")]
    TooLarge,
    /// A reason that this driver does not know.
    #[error("for reason {0}, which this driver does not know")]
    Other(u16),
}

impl From<u16> for EntryError {
    fn from(code: u16) -> Self {
        match code {
            1 => EntryError::Descriptor,
            2 => EntryError::Connection,
            3 => EntryError::Busy,
            4 => EntryError::Stale,
            5 => EntryError::Timeout,
            6 => EntryError::TooLarge,
            other => EntryError::Other(other),
        }
    }
}

/// The head of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryHead {
    pub kind: EntryKind,
    /// Bytes of the payload, of a raw entry bytes of the packet.
    pub bytes: u16,
    pub connection: u16,
    /// The method of a request, the status of a response, the reason of an error.
    pub code: u16,
    /// Of calls that this host makes, what it chose; of requests to handle, what the response must repeat.
    pub tag: u64,
    /// The peer's address, 48 bits: of raw entries, and of what came from the wire. Of what is sent else, the part of the message; of packets
    /// of a request that are wanted, its slot and call.
    pub remote: u64,
}

impl EntryHead {
    /// The first line of a slot, with this phase bit, and the beginning of the payload.
    #[must_use]
    pub fn encode(&self, phase: bool, payload: &[u8]) -> Line {
        let word = u64::from(phase)
            | u64::from(self.kind as u8) << 4
            | u64::from(self.bytes) << 16
            | u64::from(self.connection) << 32
            | u64::from(self.code) << 48;
        let mut line = [0; LINE_BYTES];
        line[..8].copy_from_slice(&word.to_le_bytes());
        line[8..16].copy_from_slice(&self.tag.to_le_bytes());
        line[16..22].copy_from_slice(&self.remote.to_le_bytes()[..6]);
        let first = payload.len().min(PAYLOAD_FIRST_BYTES);
        line[HEAD_BYTES..HEAD_BYTES + first].copy_from_slice(&payload[..first]);
        line
    }

    /// The phase bit of a slot's first line.
    #[must_use]
    pub fn phase(line: &Line) -> bool {
        line[0] & 1 == 1
    }

    /// Where the message lies of which a slot has only the head, because it came in several packets.
    #[must_use]
    pub fn stored(line: &Line) -> Option<StoredMessage> {
        let message = matches!(line[0] >> 4, 1 | 2);
        (message && line[22] & 7 != 0).then(|| StoredMessage {
            area: line[22] >> 3 & 7,
            bytes: u16::from_le_bytes([line[2], line[3]]),
        })
    }

    /// Reads the head; `None` if the kind is none that a NIC writes.
    #[must_use]
    pub fn decode(line: &Line) -> Option<EntryHead> {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| line[at + byte]));
        let (first, tag, last) = (word(0), word(8), word(16));
        let kind = EntryKind::ALL
            .into_iter()
            .find(|kind| u64::from(*kind as u8) == first >> 4 & 15)?;
        Some(EntryHead {
            kind,
            bytes: (first >> 16) as u16,
            connection: (first >> 32) as u16,
            code: (first >> 48) as u16,
            tag,
            remote: last & 0xffff_ffff_ffff,
        })
    }
}

/// Lines of an entry with so many bytes of payload.
#[must_use]
pub fn entry_lines(bytes: usize) -> usize {
    (bytes + HEAD_BYTES).div_ceil(LINE_BYTES)
}

/// Lines of a raw entry with a packet of so many bytes.
#[must_use]
pub fn raw_lines(bytes: usize) -> usize {
    1 + bytes.div_ceil(LINE_BYTES)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_head_reads_back_as_it_was_written(
            kind in 0usize..5, bytes: u16, connection: u16, code: u16, tag: u64, remote in 0u64..1 << 48, phase: bool,
        ) {
            let head = EntryHead { kind: EntryKind::ALL[kind], bytes, connection, code, tag, remote };
            let line = head.encode(phase, b"payload");
            prop_assert_eq!(EntryHead::decode(&line), Some(head));
            prop_assert_eq!(EntryHead::phase(&line), phase);
            prop_assert_eq!(&line[24..31], b"payload");
        }

        #[test]
        fn any_line_is_read_or_refused(words: [u64; 8]) {
            let mut line = [0; LINE_BYTES];
            for (bytes, word) in line.chunks_mut(8).zip(words) {
                bytes.copy_from_slice(&word.to_le_bytes());
            }
            if let Some(head) = EntryHead::decode(&line) {
                prop_assert_eq!(u64::from(head.kind as u8), words[0] >> 4 & 15);
            }
        }
    }

    #[test]
    fn a_line_holds_forty_bytes_of_payload() {
        assert_eq!([0, 40, 41, 104, 105].map(entry_lines), [1, 1, 2, 2, 3]);
        assert_eq!([16, 64, 65].map(raw_lines), [2, 2, 3]);
    }
}
