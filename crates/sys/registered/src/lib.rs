//! Memory for messages: few large regions, in huge pages when the system has some, cut into blocks.
//!
//! A message of megabytes, or the buffers of thousands of sessions, span more ordinary pages than a core can remember
//! the addresses of. So blocks come from regions of [`REGION_BYTES`], for which the system is asked for reserved huge pages
//! (`MAP_HUGETLB`), else for transparent ones (`madvise`), else it gives what it gives. Regions stay where they are and are
//! never given back, so that a device can be told of them once.
//!
//! All blocks of a process together are bounded by [`BYTES_MAX`]; past that, and where the system gives no region, a block is
//! of the ordinary heap. Taking a block and giving it back takes a lock: it is for beginnings, not for every call.

mod message;
mod region;
mod values;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

pub use message::MessageBlock;
pub use region::Pages;
use region::Region;
pub use values::{Array, One};

/// Bytes of all regions of a process.
pub const BYTES_MAX: usize = 16 << 30;
/// Bytes of a region, unless it holds a single larger block.
pub const REGION_BYTES: usize = 8 << 20;
/// Bytes of the largest [`MessageBlock`].
pub const MESSAGE_BLOCK_BYTES_MAX: usize = 1 << 31;
/// Bytes of the smallest block: a cache line.
const BLOCK_BYTES_MIN: usize = 64;
/// Bytes of the largest piece (see [`Array`]).
const PIECE_BYTES_MAX: usize = 16 << 10;
/// Bytes of the blocks that pieces are cut of.
const SHELF_BYTES: usize = 256 << 10;
/// Blocks have sizes from [`BLOCK_BYTES_MIN`] to [`BYTES_MAX`], each twice the one before.
const CLASSES: usize = (BYTES_MAX / BLOCK_BYTES_MIN).trailing_zeros() as usize + 1;

/// Bytes that belong to whoever has the block. They begin on a cache line, and as zeros or as what an earlier block left.
pub struct Block {
    address: NonNull<u8>,
    bytes: usize,
    origin: Origin,
}

/// Where a block's memory goes back to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    Nowhere,
    Heap,
    Region { class: u8 },
    Shelf { lines: u16 },
}

/// A cache line, as blocks of the heap are made of.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[expect(dead_code, reason = "it is memory alone")] [u8; BLOCK_BYTES_MIN]);

const _: () = assert!(align_of::<Line>() == BLOCK_BYTES_MIN);

// SAFETY: a block owns its bytes alone, and they are valid from any thread.
unsafe impl Send for Block {}
// SAFETY: as above; a shared block is only read.
unsafe impl Sync for Block {}

/// What a process has taken of the system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of regions in reserved huge pages.
    pub reserved_huge_bytes: usize,
    /// Bytes of regions for which the system was asked for huge pages.
    pub transparent_huge_bytes: usize,
    /// Bytes of other regions.
    pub ordinary_bytes: usize,
    /// Bytes of all these regions that blocks have now, with what each takes beyond what was asked for.
    pub lent_bytes: usize,
}

impl Block {
    /// A block of so many bytes.
    #[must_use]
    pub fn new(bytes: usize) -> Block {
        if bytes == 0 {
            return Block::default();
        }
        let class = class_of(bytes);
        let taken = (class < CLASSES).then(|| regions().lend(class)).flatten();
        match taken {
            Some(address) => Block {
                address,
                bytes,
                origin: Origin::Region { class: class as u8 },
            },
            None => Block::of_heap(bytes),
        }
    }

    /// A block of so many bytes that is one of many of its size, which lie at an odd number of cache lines from each other:
    /// at a power of two, the same parts of all of them would have to share few of a cache's sets.
    fn piece(bytes: usize) -> Block {
        let lines = bytes.div_ceil(BLOCK_BYTES_MIN) | 1;
        if bytes == 0 || lines * BLOCK_BYTES_MIN > PIECE_BYTES_MAX {
            return Block::new(bytes);
        }
        match regions().lend_piece(lines) {
            Some(address) => Block {
                address,
                bytes,
                origin: Origin::Shelf { lines: lines as u16 },
            },
            None => Block::of_heap(bytes),
        }
    }

    fn of_heap(bytes: usize) -> Block {
        let lines = vec![Line([0; BLOCK_BYTES_MIN]); bytes.div_ceil(BLOCK_BYTES_MIN)];
        let address = NonNull::from(Box::leak(lines.into_boxed_slice())).cast();
        Block {
            address,
            bytes,
            origin: Origin::Heap,
        }
    }
}

/// What regions there are, and in which pages.
#[must_use]
pub fn usage() -> Usage {
    regions().usage
}

/// Has this core fetch a cache line for writing, and goes on at once; the line need not be there. (Intel's and AMD's manuals, PREFETCHW;
/// older processors that do not know it pass over it.)
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub fn fetch_for_writing(line: *const u8) {
    // SAFETY: it is a hint, which changes no memory and no register, and faults at no address.
    unsafe { std::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags, readonly)) };
}

/// A hint that only x86-64 gets.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub fn fetch_for_writing(_line: *const u8) {}

fn class_of(bytes: usize) -> usize {
    let lines = bytes.div_ceil(BLOCK_BYTES_MIN);
    lines.next_power_of_two().trailing_zeros() as usize
}

/// All regions of the process.
struct Regions {
    /// Free blocks, by class.
    free: [Vec<NonNull<u8>>; CLASSES],
    /// Free pieces, by the number of their cache lines.
    shelves: BTreeMap<usize, Vec<NonNull<u8>>>,
    usage: Usage,
    bytes_max: usize,
}

// SAFETY: the addresses are of memory that nobody has while they are in here, valid from any thread.
unsafe impl Send for Regions {}

static REGIONS: Mutex<Regions> = Mutex::new(Regions::new(BYTES_MAX));

/// Nothing panics while it holds the lock in the middle of a change.
fn regions() -> MutexGuard<'static, Regions> {
    REGIONS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Regions {
    const fn new(bytes_max: usize) -> Regions {
        Regions {
            free: [const { Vec::new() }; CLASSES],
            shelves: BTreeMap::new(),
            usage: Usage {
                reserved_huge_bytes: 0,
                transparent_huge_bytes: 0,
                ordinary_bytes: 0,
                lent_bytes: 0,
            },
            bytes_max,
        }
    }

    fn lend(&mut self, class: usize) -> Option<NonNull<u8>> {
        let block = self.take(class)?;
        self.usage.lent_bytes += BLOCK_BYTES_MIN << class;
        Some(block)
    }

    fn lend_piece(&mut self, lines: usize) -> Option<NonNull<u8>> {
        let piece = self.take_piece(lines)?;
        self.usage.lent_bytes += BLOCK_BYTES_MIN * lines;
        Some(piece)
    }

    fn take_back(&mut self, class: usize, block: NonNull<u8>) {
        self.usage.lent_bytes -= BLOCK_BYTES_MIN << class;
        self.free[class].push(block);
    }

    fn take_back_piece(&mut self, lines: usize, piece: NonNull<u8>) {
        self.usage.lent_bytes -= BLOCK_BYTES_MIN * lines;
        self.shelves.entry(lines).or_default().push(piece);
    }

    fn take(&mut self, class: usize) -> Option<NonNull<u8>> {
        let found = (class..CLASSES).find(|class| !self.free[*class].is_empty());
        let (mut have, block) = match found {
            Some(larger) => (larger, self.free[larger].pop()?),
            None => self.add_region(class)?,
        };
        // The upper half of each block that is too large stays.
        while have > class {
            have -= 1;
            // SAFETY: the block is twice as long as those of this class.
            let half = unsafe { block.add(BLOCK_BYTES_MIN << have) };
            self.free[have].push(half);
        }
        Some(block)
    }

    fn take_piece(&mut self, lines: usize) -> Option<NonNull<u8>> {
        if let Some(piece) = self.shelves.entry(lines).or_default().pop() {
            return Some(piece);
        }
        let block = self.take(class_of(SHELF_BYTES))?;
        let bytes = lines * BLOCK_BYTES_MIN;
        // SAFETY: so many pieces fit the block.
        let pieces = (0..SHELF_BYTES / bytes).map(|piece| unsafe { block.add(piece * bytes) });
        let shelf = self.shelves.entry(lines).or_default();
        // Those of low addresses are taken first.
        shelf.extend(pieces.rev());
        shelf.pop()
    }

    /// A new region, as one block of the class returned with it.
    fn add_region(&mut self, class: usize) -> Option<(usize, NonNull<u8>)> {
        let bytes = (BLOCK_BYTES_MIN << class).max(REGION_BYTES);
        let Usage {
            reserved_huge_bytes: reserved,
            transparent_huge_bytes: transparent,
            ordinary_bytes: ordinary,
            ..
        } = self.usage;
        if reserved + transparent + ordinary + bytes > self.bytes_max {
            return None;
        }
        let region = Region::take(bytes)?;
        *match region.pages {
            Pages::ReservedHuge => &mut self.usage.reserved_huge_bytes,
            Pages::TransparentHuge => &mut self.usage.transparent_huge_bytes,
            Pages::Ordinary => &mut self.usage.ordinary_bytes,
        } += bytes;
        Some((class_of(bytes), region.address))
    }
}

impl Drop for Block {
    #[inline]
    fn drop(&mut self) {
        // Most blocks that a program drops on its way are empty.
        if self.origin != Origin::Nowhere {
            self.give_back();
        }
    }
}

impl Block {
    #[inline(never)]
    fn give_back(&mut self) {
        match self.origin {
            Origin::Nowhere => {}
            Origin::Heap => {
                let lines = self.bytes.div_ceil(BLOCK_BYTES_MIN);
                let memory = std::ptr::slice_from_raw_parts_mut(self.address.as_ptr().cast::<Line>(), lines);
                // SAFETY: it was leaked from a box of so many lines, and nobody else has it.
                drop(unsafe { Box::from_raw(memory) });
            }
            Origin::Region { class } => regions().take_back(class.into(), self.address),
            Origin::Shelf { lines } => regions().take_back_piece(lines.into(), self.address),
        }
    }
}

impl Default for Block {
    /// No bytes.
    #[inline]
    fn default() -> Block {
        Block {
            address: NonNull::<Line>::dangling().cast(),
            bytes: 0,
            origin: Origin::Nowhere,
        }
    }
}

impl Deref for Block {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the block's bytes, which it owns alone and which were initialized as the system, or the heap, gave them.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.bytes) }
    }
}

impl DerefMut for Block {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.address.as_ptr(), self.bytes) }
    }
}

impl From<&[u8]> for Block {
    fn from(bytes: &[u8]) -> Block {
        let mut block = Block::new(bytes.len());
        block.copy_from_slice(bytes);
        block
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Block").field(&self.deref()).finish()
    }
}

impl PartialEq for Block {
    fn eq(&self, other: &Block) -> bool {
        **self == **other
    }
}

impl Eq for Block {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_apart_and_hold_what_is_written_to_them() {
        let sizes = [1, 63, 64, 65, 1000, 4096, 70_000, 1 << 20, 3 << 20, 9 << 20];
        let mut blocks: Vec<Block> = sizes.map(Block::new).into();
        for (number, block) in blocks.iter_mut().enumerate() {
            assert_eq!(block.as_ptr() as usize % BLOCK_BYTES_MIN, 0);
            block.fill(number as u8 + 1);
        }
        for (number, (block, bytes)) in blocks.iter().zip(sizes).enumerate() {
            assert_eq!(block.len(), bytes);
            assert!(
                block.iter().all(|byte| *byte == number as u8 + 1),
                "of {bytes} bytes"
            );
        }
        let Usage {
            reserved_huge_bytes,
            transparent_huge_bytes,
            ordinary_bytes,
            ..
        } = usage();
        assert!(reserved_huge_bytes + transparent_huge_bytes + ordinary_bytes >= 9 << 20);
    }

    #[test]
    fn blocks_that_come_back_are_used_again_and_regions_are_bounded() {
        let mut regions = Regions::new(2 * REGION_BYTES);
        let class = class_of(REGION_BYTES / 2);
        let blocks: Vec<_> = std::iter::from_fn(|| regions.take(class)).collect();
        assert_eq!(blocks.len(), 4, "two halves of each of two regions");
        assert!(regions.take(0).is_none());
        regions.free[class].push(blocks[0]);
        assert_eq!(regions.take(0), Some(blocks[0]));
        assert!(regions.take(class).is_none(), "its rest is smaller");
        assert!(regions.take(class - 1).is_some());
    }

    #[test]
    fn pieces_are_apart_at_an_odd_number_of_lines_and_come_back() {
        let mut regions = Regions::new(REGION_BYTES);
        let lines = 17;
        let mut pieces: Vec<_> = (0..1_000).filter_map(|_| regions.take_piece(lines)).collect();
        assert_eq!(pieces.len(), 1_000);
        let (first, second) = (pieces[0].as_ptr() as usize, pieces[1].as_ptr() as usize);
        assert_eq!(second - first, lines * BLOCK_BYTES_MIN);
        pieces.sort();
        let apart = |pair: &[NonNull<u8>]| pair[1].as_ptr() as usize - pair[0].as_ptr() as usize;
        assert!(
            pieces
                .windows(2)
                .all(|pair| apart(pair) >= lines * BLOCK_BYTES_MIN)
        );
        let mut block = Block::piece(1_000);
        assert_eq!(block.origin, Origin::Shelf { lines: 17 });
        block.fill(7);
        assert_eq!(Block::piece(PIECE_BYTES_MAX).len(), PIECE_BYTES_MAX);
    }

    #[test]
    fn no_bytes_need_no_memory_and_equal_bytes_are_equal() {
        assert!(Block::new(0).is_empty() && Block::default().is_empty());
        let mut on_heap = Block::of_heap(4);
        on_heap.copy_from_slice(b"same");
        assert_eq!(Block::from(&b"same"[..]), on_heap);
        assert_ne!(Block::from(&b"same"[..]), Block::from(&b"other"[..]));
    }

    #[test]
    fn blocks_can_be_taken_and_given_back_by_many_threads() {
        std::thread::scope(|scope| {
            for thread in 0..4_u8 {
                scope.spawn(move || {
                    for round in 0..200 {
                        let mut block = Block::new(64 << (round % 8));
                        block.fill(thread);
                        std::thread::yield_now();
                        assert!(block.iter().all(|byte| *byte == thread));
                    }
                });
            }
        });
    }
}
