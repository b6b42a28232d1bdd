//! An allocator of blocks in a region of memory, that never touches the region: it hands out offsets, and keeps all
//! it knows in private memory. So it can manage memory that is shared with somebody hostile, or not mapped at all.
//!
//! Blocks of up to [`SMALL_BYTES_MAX`] come from *spans* of 64 KiB, each cut into blocks of one size class; larger
//! ones are runs of 4 KiB pages. Both are found in constant time. Everything that the heap keeps is reserved when it
//! is made, so neither allocating nor freeing takes memory from the system, ever.
//!
//! # What is lost
//!
//! A block is at most a third longer than was asked for, and typically an eighth (below 48 bytes: up to 15 bytes;
//! above [`SMALL_BYTES_MAX`]: less than a page). The first page of a region is never handed out, so that offset 0
//! is free to mean nothing.
//!
//! At worst a span stays taken for one live block. So a workload never takes more than 64 KiB for each live small
//! block, nor more than the sum of each class's peak, in whole spans. Page runs coalesce with both neighbours at
//! once and are found by good fit in bins (eight to each power of two). Blocks are not moved, so the free memory can
//! still be in pieces: as for every such allocator Robson's bound holds, peak live bytes times the logarithm of the
//! ratio of the largest to the smallest run. Once every block is freed, the whole region is one run again.
#![forbid(unsafe_code)]

mod classes;
mod heap;
mod pages;
mod spans;

#[cfg(test)]
mod tests;

pub use classes::SMALL_BYTES_MAX;
pub use heap::{Heap, Hysteresis, NotAllocated};

/// Unit of the page runs, in bytes.
pub const PAGE_BYTES: u64 = 4096;
/// Unit of offsets, and alignment of every block, in bytes.
pub const UNIT_BYTES: u64 = 8;
/// Largest region that offsets of 32 bits reach, in bytes.
pub const REGION_BYTES_MAX: u64 = (u32::MAX as u64 + 1) * UNIT_BYTES;
