//! The heap itself: which of the two ways a block is made.

use std::ops::Range;

use crate::classes::{Class, SPAN_BYTES};
use crate::pages::{PageOwner, Pages};
use crate::spans::{Freed, RetiredSpan, Spans};
use crate::{PAGE_BYTES, REGION_BYTES_MAX, UNIT_BYTES};

const SPAN_PAGES: u32 = SPAN_BYTES / PAGE_BYTES as u32;
const PAGE_UNITS: u32 = (PAGE_BYTES / UNIT_BYTES) as u32;
/// The largest block: what a `u32` of bytes can say, in whole pages.
const BLOCK_BYTES_MAX: u32 = u32::MAX / PAGE_BYTES as u32 * PAGE_BYTES as u32;

/// An offset at which no live block begins: it was freed before, or never allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAllocated {
    /// The offset, in units of 8 bytes.
    pub offset: u32,
}

impl std::fmt::Display for NotAllocated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "no live block begins at offset {} (in units of {UNIT_BYTES} bytes)",
            self.offset
        )
    }
}

impl std::error::Error for NotAllocated {}

/// When free memory goes back to the system: from the moment that more than `start_bytes` of it lie idle until no
/// more than `keep_bytes` do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hysteresis {
    /// Idle memory at which giving back begins, in bytes.
    pub start_bytes: u64,
    /// Idle memory at which it ends, in bytes.
    pub keep_bytes: u64,
}

/// Hands out blocks of a region by their offsets in units of 8 bytes.
///
/// ```
/// let mut heap = provost_heap::Heap::new(1 << 20);
/// let block = heap.allocate(100).expect("there is room");
/// assert_eq!(heap.usable_bytes(block), Some(112));
/// assert!(heap.free(block).is_ok());
/// assert!(heap.free(block).is_err(), "it is free already");
/// assert!(heap.is_empty());
/// ```
#[derive(Debug)]
pub struct Heap {
    region_bytes: u64,
    used_bytes: u64,
    pages: Pages,
    spans: Spans,
    releasing: bool,
}

impl Heap {
    /// An empty heap over a region of so many bytes: what is past its last whole page, or past
    /// [`REGION_BYTES_MAX`], is not used.
    #[must_use]
    pub fn new(bytes: u64) -> Heap {
        let pages = (bytes.min(REGION_BYTES_MAX) / PAGE_BYTES) as u32;
        Heap {
            region_bytes: u64::from(pages) * PAGE_BYTES,
            used_bytes: 0,
            pages: Pages::new(pages),
            spans: Spans::new((pages / SPAN_PAGES) as usize),
            releasing: false,
        }
    }

    /// A block of at least so many bytes, if there is room. Its offset, in units of 8 bytes, is not 0.
    #[inline]
    pub fn allocate(&mut self, bytes: u32) -> Option<u32> {
        match Class::of(bytes) {
            Some(class) => self.allocate_small(class),
            None => self.allocate_large(bytes),
        }
    }

    /// Takes a block back.
    #[inline]
    pub fn free(&mut self, offset: u32) -> Result<(), NotAllocated> {
        match self.locate(offset).ok_or(NotAllocated { offset })? {
            BlockPlace::Large { first_page } => {
                self.used_bytes -= u64::from(self.pages.free_large(first_page)) * PAGE_BYTES;
            }
            BlockPlace::Small { span, block } => {
                self.used_bytes -= u64::from(self.spans.get(span).class.block_bytes());
                if let Freed::Retired(span) = self.spans.free(span, block) {
                    self.free_span_pages(&span);
                }
            }
        }
        Ok(())
    }

    /// How many bytes the live block at an offset has, if one begins there.
    #[must_use]
    pub fn usable_bytes(&self, offset: u32) -> Option<u32> {
        Some(match self.locate(offset)? {
            BlockPlace::Large { first_page } => self.pages.run_pages(first_page) * PAGE_BYTES as u32,
            BlockPlace::Small { span, .. } => self.spans.get(span).class.block_bytes(),
        })
    }

    /// Whether a live block begins at an offset.
    #[must_use]
    pub fn contains_live(&self, offset: u32) -> bool {
        self.locate(offset).is_some()
    }

    /// Bytes of all live blocks.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// Whether no block is live.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.used_bytes == 0
    }

    /// Length of the part of the region that is used, in bytes.
    #[must_use]
    pub fn region_bytes(&self) -> u64 {
        self.region_bytes
    }

    /// Free memory in whole pages that has been in use since it was last given back, in bytes.
    #[must_use]
    pub fn idle_bytes(&self) -> u64 {
        self.pages.idle_pages() * PAGE_BYTES
    }

    /// The next range of the region, in bytes and whole pages, that the owner shall give back to the system now,
    /// before it allocates again (`provost_shm::punch_hole`). None while there is no need. Ask again until then.
    pub fn release_next(&mut self, hysteresis: Hysteresis) -> Option<Range<u64>> {
        self.releasing |= self.idle_bytes() > hysteresis.start_bytes;
        if self.releasing {
            self.retire_spares();
            self.releasing = self.idle_bytes() > hysteresis.keep_bytes;
        }
        if !self.releasing {
            return None;
        }
        let pages = self.pages.release_next()?;
        Some(u64::from(pages.start) * PAGE_BYTES..u64::from(pages.end) * PAGE_BYTES)
    }

    fn allocate_small(&mut self, class: Class) -> Option<u32> {
        if let Some(offset) = self.allocate_from_span(class) {
            return Some(offset);
        }
        // Giving spares up frees numbers, so each attempt asks for its own.
        let first_page = self.take_pages(|pages, spans| pages.take_span(SPAN_PAGES, spans.next_number()))?;
        self.spans.insert(class, first_page);
        self.allocate_from_span(class)
    }

    #[inline]
    fn allocate_from_span(&mut self, class: Class) -> Option<u32> {
        let (span, block) = self.spans.allocate(class)?;
        self.used_bytes += u64::from(class.block_bytes());
        Some(span.first_page * PAGE_UNITS + block * (class.block_bytes() / UNIT_BYTES as u32))
    }

    fn allocate_large(&mut self, bytes: u32) -> Option<u32> {
        if bytes > BLOCK_BYTES_MAX {
            return None;
        }
        let count = bytes.div_ceil(PAGE_BYTES as u32);
        let first_page = self.take_pages(|pages, _| pages.take_large(count))?;
        self.used_bytes += u64::from(count) * PAGE_BYTES;
        Some(first_page * PAGE_UNITS)
    }

    /// Takes pages, if need be after giving the spare spans up.
    fn take_pages(&mut self, take: impl Fn(&mut Pages, &Spans) -> Option<u32>) -> Option<u32> {
        if let Some(first_page) = take(&mut self.pages, &self.spans) {
            return Some(first_page);
        }
        self.retire_spares();
        take(&mut self.pages, &self.spans)
    }

    fn retire_spares(&mut self) {
        while let Some(span) = self.spans.retire_spare() {
            self.free_span_pages(&span);
        }
    }

    fn free_span_pages(&mut self, span: &RetiredSpan) {
        self.pages.free_span(span.first_page, SPAN_PAGES);
    }

    #[inline]
    fn locate(&self, offset: u32) -> Option<BlockPlace> {
        let page = offset / PAGE_UNITS;
        match self.pages.owner(page) {
            PageOwner::Span(number) => {
                let span = self.spans.get(number);
                let bytes_in = (offset - span.first_page * PAGE_UNITS) * UNIT_BYTES as u32;
                let block = span.class.block_at(bytes_in)?;
                span.is_live(block)
                    .then_some(BlockPlace::Small { span: number, block })
            }
            PageOwner::Large if offset.is_multiple_of(PAGE_UNITS) => {
                Some(BlockPlace::Large { first_page: page })
            }
            PageOwner::Large | PageOwner::Free | PageOwner::Taken => None,
        }
    }
}

/// Where a live block is.
enum BlockPlace {
    Large { first_page: u32 },
    Small { span: u32, block: u32 },
}
