//! What goes before a segment, and how a client takes a stream up. All numbers are little-endian.
//!
//! ```text
//!   Carry and its answer: number (8), received (8), flags (1), zeros (3), changes (4), bytes
//!   Attach:               id (16), received (8), flags (1), zeros (3), changes (4);   its answer: as Carry's, with number 0
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
    /// How often its sender has become busy, or ceased to be: what comes late may say what was true before. Older versions say 0.
    pub(super) changes: u32,
}

/// What follows a number of what was received.
const FLAGS_BYTES: usize = 8;

/// The flags, and the changes.
fn read_flags(bytes: &[u8; FLAGS_BYTES]) -> (u8, u32) {
    let [flags, _, _, _, changes @ ..] = *bytes;
    (flags, u32::from_le_bytes(changes))
}

fn flags_of(flags: u8, changes: u32) -> [u8; FLAGS_BYTES] {
    (u64::from(flags) | u64::from(changes) << 32).to_le_bytes()
}

impl Head {
    pub(super) fn read(bytes: &[u8]) -> Option<Head> {
        let (number, rest) = bytes.split_first_chunk()?;
        let (received, rest) = rest.split_first_chunk()?;
        let (flags, changes) = read_flags(rest.first_chunk()?);
        Some(Head {
            number: u64::from_le_bytes(*number),
            received: u64::from_le_bytes(*received),
            flags,
            changes,
        })
    }

    pub(super) fn write(self, to: &mut [u8]) {
        let mut bytes = [0; HEAD_BYTES];
        bytes[..8].copy_from_slice(&self.number.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.received.to_le_bytes());
        bytes[16..].copy_from_slice(&flags_of(self.flags, self.changes));
        if let Some(place) = to.first_chunk_mut() {
            *place = bytes;
        }
    }

    /// Brings what a segment says beside its own to the present, which is this.
    pub(super) fn renew(segment: &mut [u8], present: Head) {
        if let Some(head) = Head::read(segment) {
            (Head {
                number: head.number,
                flags: head.flags & FINISHED | present.flags,
                ..present
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
    pub(super) changes: u32,
}

impl Attach {
    pub(super) fn read(bytes: &[u8]) -> Option<Attach> {
        let (id, rest) = bytes.split_first_chunk()?;
        let (received, rest) = rest.split_first_chunk()?;
        let (flags, changes) = read_flags(rest.first_chunk()?);
        Some(Attach {
            id: *id,
            received: u64::from_le_bytes(*received),
            flags,
            changes,
        })
    }

    pub(super) fn write(self, to: &mut [u8]) {
        if let Some(place) = to.first_chunk_mut::<ATTACH_BYTES>() {
            place[..16].copy_from_slice(&self.id);
            place[16..24].copy_from_slice(&self.received.to_le_bytes());
            place[24..].copy_from_slice(&flags_of(self.flags, self.changes));
        }
    }
}
