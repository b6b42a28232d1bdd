//! Segments: what a call carries. A head of 9 bytes, then bytes of the connection. And a client's request for a segment of its server's:
//! the bytes that the response may have, 4; without them, it is to fit one packet.

/// Bytes of a segment's head: its number, and flags.
pub(crate) const HEAD_BYTES: usize = 9;
/// Flag of a segment after which its sender says nothing more.
const FINISHED: u8 = 1;

/// A segment that has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IncomingSegment {
    /// The first of a stream is 1.
    pub(crate) number: u64,
    /// Nothing more follows from its sender.
    pub(crate) finished: bool,
    pub(crate) bytes: Vec<u8>,
}

/// Whether a segment is its sender's last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SegmentEnd {
    GoesOn,
    Finished,
}

/// A segment as a call carries it.
pub(crate) fn encode(number: u64, end: SegmentEnd, bytes: &[u8]) -> Vec<u8> {
    let flags = if end == SegmentEnd::Finished { FINISHED } else { 0 };
    [&number.to_le_bytes()[..], &[flags], bytes].concat()
}

/// Reads a segment; `None` if it is shorter than its head, or has a flag that is not known.
pub(crate) fn decode(payload: &[u8]) -> Option<IncomingSegment> {
    let (number, rest) = payload.split_first_chunk()?;
    let (flags, bytes) = rest.split_first()?;
    (*flags <= FINISHED).then(|| IncomingSegment {
        number: u64::from_le_bytes(*number),
        finished: *flags == FINISHED,
        bytes: bytes.to_vec(),
    })
}

/// A request for a segment, of whose response so many bytes are read.
pub(crate) fn encode_poll(response_bytes_max: usize) -> [u8; 4] {
    u32::try_from(response_bytes_max)
        .unwrap_or(u32::MAX)
        .to_le_bytes()
}

/// Bytes that the response to a request for a segment may have; `None` if it does not say so in 4 bytes.
pub(crate) fn decode_poll(payload: &[u8], packet_bytes: usize) -> Option<usize> {
    match payload {
        [] => Some(packet_bytes),
        _ => Some(u32::from_le_bytes(payload.try_into().ok()?) as usize),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_segment_reads_back_as_it_was_written(number: u64, finished: bool, bytes: Vec<u8>) {
            let end = if finished { SegmentEnd::Finished } else { SegmentEnd::GoesOn };
            let read = decode(&encode(number, end, &bytes));
            prop_assert_eq!(read, Some(IncomingSegment { number, finished, bytes }));
        }

        #[test]
        fn a_request_for_a_segment_says_how_long_it_may_be(bytes: u32, payload: Vec<u8>, packet_bytes: u16) {
            let packet_bytes = usize::from(packet_bytes);
            prop_assert_eq!(decode_poll(&encode_poll(bytes as usize), packet_bytes), Some(bytes as usize));
            prop_assert_eq!(decode_poll(&payload, packet_bytes).is_some(), [0, 4].contains(&payload.len()));
            prop_assert_eq!(decode_poll(&[], packet_bytes), Some(packet_bytes));
        }

        #[test]
        fn any_bytes_are_read_or_refused(payload: Vec<u8>) {
            match decode(&payload) {
                Some(segment) => prop_assert_eq!(segment.bytes.len() + HEAD_BYTES, payload.len()),
                None => prop_assert!(payload.len() < HEAD_BYTES || payload[HEAD_BYTES - 1] > FINISHED),
            }
        }
    }
}
