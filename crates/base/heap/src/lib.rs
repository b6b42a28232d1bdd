//! An offset allocator that never touches the memory it manages.
#![forbid(unsafe_code)]

use std::ops::Range;

/// Offset that is no live block's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAllocated {
    /// The offset, in units of 8 bytes.
    pub offset: u32,
}

/// When free memory goes back to the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hysteresis {
    /// Free memory that is still backed, in bytes, at which giving back begins.
    pub start_bytes: u64,
    /// At which it ends.
    pub keep_bytes: u64,
}

/// Hands out blocks of a region by their offsets in units of 8 bytes.
#[derive(Debug)]
pub struct Heap {}

impl Heap {
    /// An empty heap over a region of so many bytes.
    #[must_use]
    pub fn new(bytes: u64) -> Heap {
        let _ = bytes;
        todo!()
    }
    /// A block of at least so many bytes. Its offset in units of 8 bytes is never 0.
    pub fn allocate(&mut self, bytes: u32) -> Option<u32> {
        let _ = bytes;
        todo!()
    }
    /// Takes a block back.
    pub fn free(&mut self, offset: u32) -> Result<(), NotAllocated> {
        let _ = offset;
        todo!()
    }
    /// How many bytes a live block has.
    #[must_use]
    pub fn usable_bytes(&self, offset: u32) -> Option<u32> {
        let _ = offset;
        todo!()
    }
    /// Whether a live block begins here.
    #[must_use]
    pub fn contains_live(&self, offset: u32) -> bool {
        self.usable_bytes(offset).is_some()
    }
    /// Bytes in live blocks.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        todo!()
    }
    /// Whether no block is live.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        todo!()
    }
    /// Length of the region.
    #[must_use]
    pub fn region_bytes(&self) -> u64 {
        todo!()
    }
    /// The next range of the region, in bytes, that the owner shall give back to the system now.
    pub fn release_next(&mut self, hysteresis: Hysteresis) -> Option<Range<u64>> {
        let _ = hysteresis;
        todo!()
    }
}
