//! Private buffers, reused so that the data path does not allocate.

use std::ops::{Deref, DerefMut};

use crate::{ForeignBytes, Nanos, PrivateCharge};

/// Buffers that a pool keeps, at most; those beyond are freed.
const POOLED_MAX: usize = 4096;
/// Capacity of all buffers that a pool keeps of each kind, in bytes: what a burst leaves behind at most.
const POOL_BYTES_MAX: usize = 8 << 20;
/// A buffer that grew past this is freed rather than kept, in bytes.
const POOLED_BYTES_MAX: usize = 128 << 10;
/// Capacity that a new buffer starts with, in bytes.
const FRESH_BYTES: usize = 512;
/// Capacity that a new buffer for frames starts with, in bytes.
const FRAMES_FRESH_BYTES: usize = 16 << 10;
/// Buffers for frames that a pool keeps.
const FRAMES_POOLED_MAX: usize = 64;
/// Bytes of messages that a runtime copies in one round before none but small ones are copied.
const ROUND_COPY_BYTES_MAX: u64 = 4 << 20;

/// A private buffer: bytes, and ranges of foreign memory that continue them. It is one word, as messages are moved from
/// queue to queue. A new one takes memory, even if it is empty.
#[derive(Debug, Default)]
pub struct Buffer(Box<BufferParts>);

/// What a [`Buffer`] has.
#[derive(Debug, Default)]
pub struct BufferParts {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Foreign ranges; empty but in outbound messages with large leaves.
    pub foreign: Vec<ForeignBytes>,
    /// Whose share of private memory it counts in; none for small ones, and for what the service itself made.
    pub charge: Option<PrivateCharge>,
}

impl Buffer {
    /// An empty buffer with room for so many bytes.
    #[must_use]
    pub fn with_capacity(bytes: usize) -> Buffer {
        Buffer::from(Vec::with_capacity(bytes))
    }

    /// What it has, for one that keeps a part of that.
    #[must_use]
    pub fn into_parts(self) -> BufferParts {
        *self.0
    }
}

impl From<Vec<u8>> for Buffer {
    fn from(bytes: Vec<u8>) -> Buffer {
        Buffer(Box::new(BufferParts {
            bytes,
            ..BufferParts::default()
        }))
    }
}

impl Deref for Buffer {
    type Target = BufferParts;

    fn deref(&self) -> &BufferParts {
        &self.0
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut BufferParts {
        &mut self.0
    }
}

/// The buffers of one runtime thread, and what it has copied in its round.
#[derive(Debug, Default)]
pub struct BufferPool {
    free: SpareMemory<Buffer>,
    frames: SpareMemory<Vec<u8>>,
    /// The time of the round in which [`BufferPool::note_copied`] was told last.
    copied_at: Nanos,
    copied_bytes: u64,
}

/// Memory that waits for its next use.
#[derive(Debug)]
struct SpareMemory<T> {
    kept: Vec<T>,
    bytes: usize,
}

impl<T> Default for SpareMemory<T> {
    fn default() -> SpareMemory<T> {
        SpareMemory {
            kept: Vec::new(),
            bytes: 0,
        }
    }
}

/// Memory that can be used again.
trait ReusableMemory {
    fn capacity_bytes(&self) -> usize;

    /// Forgets what is in it, and in whose share it counts.
    fn empty(&mut self);
}

impl ReusableMemory for Vec<u8> {
    fn capacity_bytes(&self) -> usize {
        self.capacity()
    }

    fn empty(&mut self) {
        self.clear();
    }
}

impl ReusableMemory for Buffer {
    fn capacity_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    fn empty(&mut self) {
        self.bytes.clear();
        self.foreign.clear();
        self.charge = None;
    }
}

impl BufferPool {
    #[must_use]
    pub fn new() -> BufferPool {
        BufferPool::default()
    }

    /// An empty buffer, a used one where there is one.
    #[must_use]
    pub fn take(&mut self) -> Buffer {
        self.free
            .take()
            .unwrap_or_else(|| Buffer::with_capacity(FRESH_BYTES))
    }

    /// Empty memory for the frames of many messages. There are few of these and they grow large, so they are kept apart.
    #[must_use]
    pub fn take_for_frames(&mut self) -> Vec<u8> {
        self.frames
            .take()
            .unwrap_or_else(|| Vec::with_capacity(FRAMES_FRESH_BYTES))
    }

    /// Gives the memory of [`BufferPool::take_for_frames`] back.
    pub fn give_for_frames(&mut self, frames: Vec<u8>) {
        self.frames.give(frames, FRAMES_POOLED_MAX);
    }

    /// Gives a buffer back. (One that is only dropped is freed; that is correct, but allocates again later.)
    pub fn give(&mut self, buffer: Buffer) {
        self.free.give(buffer, POOLED_MAX);
    }

    /// Counts bytes of messages that were copied in the round of this time, whether or not anything came of it.
    pub fn note_copied(&mut self, bytes: u64, round_at: Nanos) {
        if self.copied_at != round_at {
            self.copied_at = round_at;
            self.copied_bytes = 0;
        }
        self.copied_bytes += bytes;
    }

    /// Whether so much was copied in the round of this time that all but small messages are to wait for the next one.
    #[must_use]
    pub fn has_copied_enough(&self, round_at: Nanos) -> bool {
        self.copied_at == round_at && self.copied_bytes >= ROUND_COPY_BYTES_MAX
    }
}

impl<T: ReusableMemory> SpareMemory<T> {
    fn take(&mut self) -> Option<T> {
        let spare = self.kept.pop()?;
        self.bytes -= spare.capacity_bytes();
        Some(spare)
    }

    fn give(&mut self, mut spare: T, kept_max: usize) {
        let bytes = spare.capacity_bytes();
        let has_room = self.kept.len() < kept_max && self.bytes + bytes <= POOL_BYTES_MAX;
        if has_room && bytes <= POOLED_BYTES_MAX {
            spare.empty();
            self.bytes += bytes;
            self.kept.push(spare);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_used_again_and_what_is_kept_is_bounded() {
        let mut pool = BufferPool::new();
        let mut buffer = pool.take();
        buffer.bytes.extend_from_slice(b"left over");
        let place = buffer.bytes.as_ptr();
        pool.give(buffer);
        let again = pool.take();
        assert!(again.bytes.is_empty() && again.bytes.as_ptr() == place);
        for _ in 0..2 * POOL_BYTES_MAX / POOLED_BYTES_MAX {
            pool.give(Buffer::with_capacity(POOLED_BYTES_MAX));
        }
        assert!(pool.free.bytes <= POOL_BYTES_MAX);
        pool.give(Buffer::with_capacity(POOLED_BYTES_MAX + 1));
        assert!(
            pool.free
                .kept
                .iter()
                .all(|kept| kept.bytes.capacity() <= POOLED_BYTES_MAX)
        );
        while pool.free.take().is_some() {}
        assert_eq!(pool.free.bytes, 0);
    }
}
