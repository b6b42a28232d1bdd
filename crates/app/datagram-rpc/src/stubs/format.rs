//! What generated calls look like in requests and responses (`docs/datagram-library.md`). All numbers are little-endian;
//! each part begins at a multiple of 8.

use provost::Status;

/// Asks for the number of a service: the hash of its schema, then its name. The response is the number, 2 bytes.
pub(super) const BIND: u16 = 0xff00;
/// A unary call: [`CallHead`], metadata, the message.
pub(super) const CALL: u16 = 0xff01;
/// Asks for a response that was larger than its buffer: the call's number, 8 bytes.
pub(super) const FETCH: u16 = 0xff02;
/// Nobody waits for a call any more: the call's number, 8 bytes.
pub(super) const CANCEL: u16 = 0xff03;

/// Frames of calls with streams, from the client; the response is empty.
pub(super) const SEND: u16 = 0xff04;
/// Asks for frames from the server: how many bytes there is room for, 4 bytes. It is answered when there are some.
pub(super) const LISTEN: u16 = 0xff05;
/// What FETCH and CANCEL call a LISTEN. Calls have numbers from 1.
pub(super) const LISTEN_CALL: u64 = 0;

/// The status of a response that is to be fetched; its payload is how many bytes it has, 4 bytes. All other statuses
/// are codes.
pub(super) const LARGE: u16 = 0x100;

/// Bytes of a schema's hash.
pub(super) const HASH_BYTES: usize = 32;

/// What is told of a message that is larger than what carries the calls takes.
pub(super) fn too_large(what: &str, bytes: usize, bytes_max: usize) -> Status {
    Status::resource_exhausted(format!(
        "the {what} has up to {bytes} bytes, and what carries the calls takes {bytes_max}: divide it, or use another transport"
    ))
}

/// What a call begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CallHead {
    /// The number of the service, and the method's index.
    pub(super) service: u16,
    pub(super) method: u16,
    pub(super) metadata_bytes: u32,
    /// What the client calls the call, once in each session.
    pub(super) call: u64,
    /// How much time is left, in nanoseconds; 0 for any.
    pub(super) timeout_ns: u64,
    /// The longest response that the client has room for.
    pub(super) response_bytes_max: u32,
}

impl CallHead {
    pub(super) const BYTES: usize = 32;

    pub(super) fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..2].copy_from_slice(&self.service.to_le_bytes());
        bytes[2..4].copy_from_slice(&self.method.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.metadata_bytes.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.call.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.timeout_ns.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.response_bytes_max.to_le_bytes());
        bytes
    }

    /// Head, metadata and message.
    pub(super) fn split(bytes: &[u8]) -> Option<(CallHead, &[u8], &[u8])> {
        let (head, rest) = bytes.split_first_chunk::<{ Self::BYTES }>()?;
        let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let head = CallHead {
            service: word(0) as u16,
            method: (word(0) >> 16) as u16,
            metadata_bytes: word(4),
            call: long(8),
            timeout_ns: long(16),
            response_bytes_max: word(24),
        };
        let (metadata, message) = part(rest, head.metadata_bytes)?;
        Some((head, metadata, message))
    }
}

/// What a response begins with: the lengths of the metadata before and after its message.
pub(super) const ANSWER_HEAD_BYTES: usize = 8;

pub(super) fn answer_head(metadata: &[u8], trailers: &[u8]) -> [u8; ANSWER_HEAD_BYTES] {
    let lengths = metadata.len() as u64 | (trailers.len() as u64) << 32;
    lengths.to_le_bytes()
}

/// Metadata, trailers and message of a response.
pub(super) fn split_answer(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<ANSWER_HEAD_BYTES>()?;
    let lengths = u64::from_le_bytes(*head);
    let (metadata, rest) = part(rest, lengths as u32)?;
    let (trailers, message) = part(rest, (lengths >> 32) as u32)?;
    Some((metadata, trailers, message))
}

/// The first so many bytes, and what follows their padding.
pub(super) fn part(bytes: &[u8], length: u32) -> Option<(&[u8], &[u8])> {
    let padded = (length as usize).checked_next_multiple_of(8)?;
    let rest = bytes.get(padded..)?;
    Some((&bytes[..length as usize], rest))
}

/// Writes parts one after the other, each padded with zeros; says how long they are. The room was measured before.
pub(super) fn write_parts(out: &mut [u8], parts: &[&[u8]]) -> Result<usize, Status> {
    let mut at = 0;
    for part in parts {
        let end = at + part.len().next_multiple_of(8);
        let room = out
            .get_mut(at..end)
            .ok_or_else(|| Status::internal("a message was measured too short"))?;
        room[..part.len()].copy_from_slice(part);
        room[part.len()..].fill(0);
        at = end;
    }
    Ok(at)
}

pub(super) fn padded(bytes: &[u8]) -> usize {
    bytes.len().next_multiple_of(8)
}

pub(super) fn long(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_split_where_it_was_joined() {
        let head = CallHead {
            service: 3,
            method: 4,
            metadata_bytes: 5,
            call: 0x0102_0304_0506_0708,
            timeout_ns: 9,
            response_bytes_max: 10,
        };
        let mut out = vec![0xee; 48];
        let length = write_parts(&mut out, &[&head.encode(), b"metas"]).unwrap();
        out.truncate(length);
        out.extend_from_slice(b"message");
        assert_eq!(
            CallHead::split(&out),
            Some((head, &b"metas"[..], &b"message"[..]))
        );
        for cut in 0..length {
            assert_eq!(CallHead::split(&out[..cut]), None, "{cut} bytes");
        }
    }

    #[test]
    fn lengths_that_do_not_add_up_are_no_answer() {
        let mut bytes = answer_head(b"123456789", b"12").to_vec();
        bytes.extend_from_slice(&[7; 24]);
        let (metadata, trailers, message) = split_answer(&bytes).unwrap();
        assert_eq!((metadata.len(), trailers.len(), message.len()), (9, 2, 0));
        assert_eq!(split_answer(&bytes[..31]), None);
        assert_eq!(split_answer(&[0xff; 64]), None);
    }
}
