//! Buffers of two sizes, used again so that the data path does not allocate.

use provost_datagram::MsgBuf;

use super::form::{HEAD_BYTES, SEGMENT_BYTES_MAX};

/// Bytes of a small buffer: a segment of one packet of Ethernet size.
const SMALL_BYTES: usize = 1536;
const LARGE_BYTES: usize = HEAD_BYTES + SEGMENT_BYTES_MAX;
/// Buffers that are kept of each size.
const SMALL_MAX: usize = 64;
const LARGE_MAX: usize = 16;

#[derive(Debug, Default)]
pub(super) struct Pool {
    small: Vec<MsgBuf>,
    large: Vec<MsgBuf>,
}

impl Pool {
    /// A buffer for so many bytes.
    pub(super) fn take(&mut self, bytes: usize) -> MsgBuf {
        let (free, capacity) = match bytes {
            0..=SMALL_BYTES => (&mut self.small, SMALL_BYTES),
            _ => (&mut self.large, LARGE_BYTES.max(bytes)),
        };
        free.pop().unwrap_or_else(|| MsgBuf::with_capacity(capacity))
    }

    /// Takes a buffer back; those of other sizes, and those beyond what is kept, are freed.
    pub(super) fn give(&mut self, buffer: MsgBuf) {
        match buffer.capacity() {
            SMALL_BYTES if self.small.len() < SMALL_MAX => self.small.push(buffer),
            LARGE_BYTES if self.large.len() < LARGE_MAX => self.large.push(buffer),
            _ => {}
        }
    }
}
