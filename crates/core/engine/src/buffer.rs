//! Private buffers, reused so that the data path does not allocate.

use crate::ForeignBytes;

/// Buffers that a pool keeps of each kind, at most; those beyond are freed.
const POOLED_MAX: usize = 4096;
/// A buffer that grew past this is freed rather than kept, in bytes.
const POOLED_BYTES_MAX: usize = 128 << 10;
/// Capacity that a new buffer starts with, in bytes.
const FRESH_BYTES: usize = 512;
/// Capacity that a new buffer for frames starts with, in bytes.
const FRAMES_FRESH_BYTES: usize = 16 << 10;
/// Buffers for frames that a pool keeps.
const FRAMES_POOLED_MAX: usize = 64;

/// A private buffer: bytes, and ranges of foreign memory that continue them.
#[derive(Debug, Default)]
pub struct Buffer {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Foreign ranges; empty but in outbound messages with large leaves.
    pub foreign: Vec<ForeignBytes>,
}

/// The buffers of one runtime thread.
#[derive(Debug, Default)]
pub struct BufferPool {
    free: Vec<Buffer>,
    frames: Vec<Buffer>,
}

impl BufferPool {
    /// An empty pool.
    #[must_use]
    pub fn new() -> BufferPool {
        BufferPool::default()
    }

    /// An empty buffer, a used one where there is one.
    #[must_use]
    pub fn take(&mut self) -> Buffer {
        self.free.pop().unwrap_or_else(|| Buffer {
            bytes: Vec::with_capacity(FRESH_BYTES),
            foreign: Vec::new(),
        })
    }

    /// An empty buffer for the frames of many messages. These are few and grow large, so they are kept apart.
    #[must_use]
    pub fn take_for_frames(&mut self) -> Buffer {
        self.frames.pop().unwrap_or_else(|| Buffer {
            bytes: Vec::with_capacity(FRAMES_FRESH_BYTES),
            foreign: Vec::new(),
        })
    }

    /// Gives a buffer of [`BufferPool::take_for_frames`] back.
    pub fn give_for_frames(&mut self, buffer: Buffer) {
        keep(&mut self.frames, FRAMES_POOLED_MAX, buffer);
    }

    /// Gives a buffer back. (One that is only dropped is freed; that is correct, but allocates again later.)
    pub fn give(&mut self, buffer: Buffer) {
        keep(&mut self.free, POOLED_MAX, buffer);
    }
}

fn keep(kept: &mut Vec<Buffer>, kept_max: usize, mut buffer: Buffer) {
    if kept.len() < kept_max && buffer.bytes.capacity() <= POOLED_BYTES_MAX {
        buffer.bytes.clear();
        buffer.foreign.clear();
        kept.push(buffer);
    }
}
