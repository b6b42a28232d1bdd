//! What goes before a segment, and how a client takes a stream up. All numbers are little-endian.
//!
//! ```text
//!   Carry and its answer: number (8), received (8), flags (1), zeros (7), bytes
//!   Attach:               id (16), received (8), flags (1), zeros (7);   its answer: as Carry's, with number 0
//! ```

use super::ResumableStreamId;

/// Bytes before those of a segment.
pub(super) const HEAD_BYTES: usize = 24;
/// Bytes of a segment that is taken.
pub(super) const SEGMENT_BYTES_MAX: usize = 64 << 10;
/// Bytes of a segment that is sent: with its head, it fills a block of memory.
pub(crate) const SEGMENT_BYTES_SENT: usize = SEGMENT_BYTES_MAX - HEAD_BYTES;
/// Bytes of an Attach.
pub(super) const ATTACH_BYTES: usize = 32;

/// Its sender has more than it can take in: no segments now.
pub(super) const BUSY: u8 = 1;
/// A server has more to say, and no request to answer.
pub(super) const MORE: u8 = 2;
/// It is the last segment, and has no bytes.
pub(super) const FINISHED: u8 = 4;

/// What goes before a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Head {
    /// Which segment; 0 for none.
    pub(super) number: u64,
    /// Its sender has received all up to this one.
    pub(super) received: u64,
    pub(super) flags: u8,
}

impl Head {
    pub(super) fn read(bytes: &[u8]) -> Option<Head> {
        let (number, rest) = bytes.split_first_chunk()?;
        let (received, rest) = rest.split_first_chunk()?;
        let (flags, _) = rest.split_first_chunk::<8>()?;
        Some(Head {
            number: u64::from_le_bytes(*number),
            received: u64::from_le_bytes(*received),
            flags: flags[0],
        })
    }

    pub(super) fn write(self, to: &mut [u8]) {
        let mut bytes = [0; HEAD_BYTES];
        bytes[..8].copy_from_slice(&self.number.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.received.to_le_bytes());
        bytes[16] = self.flags;
        if let Some(place) = to.first_chunk_mut() {
            *place = bytes;
        }
    }

    /// Brings what a segment says beside its own to the present.
    pub(super) fn renew(segment: &mut [u8], received: u64, flags: u8) {
        if let Some(head) = Head::read(segment) {
            let own = head.flags & FINISHED;
            let flags = own | flags;
            (Head {
                received,
                flags,
                ..head
            })
            .write(segment);
        }
    }
}

/// How a client takes a stream up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Attach {
    pub(super) id: ResumableStreamId,
    pub(super) received: u64,
    pub(super) flags: u8,
}

impl Attach {
    pub(super) fn read(bytes: &[u8]) -> Option<Attach> {
        let (id, rest) = bytes.split_first_chunk()?;
        let (received, rest) = rest.split_first_chunk()?;
        let (flags, _) = rest.split_first_chunk::<8>()?;
        Some(Attach {
            id: *id,
            received: u64::from_le_bytes(*received),
            flags: flags[0],
        })
    }

    pub(super) fn write(self, to: &mut [u8]) {
        if let Some(place) = to.first_chunk_mut::<ATTACH_BYTES>() {
            place[..16].copy_from_slice(&self.id);
            place[16..24].copy_from_slice(&self.received.to_le_bytes());
            place[24..].copy_from_slice(&[self.flags, 0, 0, 0, 0, 0, 0, 0]);
        }
    }
}
