//! An app's receive heap: segments that the service writes and the app maps read-only, made and retired as needed.

use std::ops::Range;
use std::sync::Arc;

use provost_datapath::{HeapFull, Nanos, PrivateBytes, ReceiveHeap, ReceivedBlock, bytes_for_parts};
use provost_heap::Heap;
use provost_shm::{Access, Mapping, Memfd};
use provost_wire::limits::{BLOCK_ALIGN_BYTES, MESSAGE_BYTES_MAX, METADATA_BYTES_MAX, REGION_BYTES_MAX};

use crate::SavedBlocks;
use crate::inherited::Inherited;

/// Size of the first segment, and the unit of the others, in bytes.
pub(crate) const SEGMENT_BYTES_MIN: u64 = 1 << 20;
/// A segment grows no larger than this by doubling, in bytes; a message that needs more gets it.
const SEGMENT_BYTES_DOUBLED_MAX: u64 = 128 << 20;
/// Segments of one app at once.
pub(crate) const SEGMENTS_MAX: usize = 64;
/// Room beside a large block, for the heap's own rounding, in bytes.
const SEGMENT_SLACK_BYTES: u64 = 64 << 10;
/// How long a segment stays empty before it goes back to the system.
const RETIRE_AFTER_NS: Nanos = 5_000_000_000;
/// How often empty segments are looked for.
const RETIRE_CHECK_NS: Nanos = 1_000_000_000;

pub(crate) const UNIT: u64 = BLOCK_ALIGN_BYTES as u64;

/// Makes segments and tells the app of them.
pub trait SegmentSource: Send {
    /// Makes a segment and tells the app, so that it knows of it before any completion that uses it. `None`: not now.
    fn make(&mut self, segment: NewSegment) -> Option<SegmentMemory>;

    /// Tells the app that another process of the service goes on, which publishes completions in this region; and, before
    /// that, of the segments that were made while the app was not to know. Says whether all of it was said; if not, it is
    /// to be asked again.
    fn show_region(&mut self, _generation: u64, _region: &Memfd) -> bool {
        true
    }
}

#[derive(Debug)]
pub struct SegmentMemory {
    /// What another process of the service would need.
    pub memfd: Memfd,
    /// All of it, mapped for writing.
    pub mapping: Mapping,
}

/// A segment that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewSegment {
    pub id: u64,
    /// Where it goes in the app's window, in units of 8 bytes.
    pub at: u32,
    /// Its length in bytes, whole pages.
    pub bytes: u64,
}

/// Where segments may lie, and how much they may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveLimits {
    /// Where the app's window has room for segments, in units of 8 bytes.
    pub window_at: u32,
    /// How much room, in bytes.
    pub window_bytes: u64,
    /// How many bytes all segments may have.
    pub bytes_max: u64,
}

/// Why a block could not be reclaimed: the app gave back what it does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotPublished;

/// The receive heap of one app.
pub struct AppReceiveHeap {
    pub(crate) source: Box<dyn SegmentSource>,
    pub(crate) limits: ReceiveLimits,
    /// By ascending place in the window.
    pub(crate) segments: Vec<HeapSegment>,
    /// What earlier processes of the service wrote.
    pub(crate) inherited: Inherited,
    /// Blocks there that states name which were not restored yet.
    pub(crate) claims: SavedBlocks,
    pub(crate) segments_made: u64,
    pub(crate) total_bytes: u64,
    /// Bytes of all segments that were ever given back. Whether the app has unmapped them cannot be seen from here, and as
    /// long as it has not, they are not the system's.
    retired_bytes: u64,
    /// Bytes of messages that come in part into private memory.
    private_bytes: Arc<PrivateBytes>,
    /// Where the next segment is looked for, so that a place is used again as late as possible.
    pub(crate) next_place: u64,
    next_check: Nanos,
}

pub(crate) struct HeapSegment {
    pub(crate) id: u64,
    /// Place in the window, in bytes.
    pub(crate) place: Range<u64>,
    pub(crate) heap: Heap,
    pub(crate) memory: SegmentMemory,
    /// One bit for each unit: whether a block begins here that the app holds.
    pub(crate) published: Vec<u64>,
    empty_since: Option<Nanos>,
}

impl AppReceiveHeap {
    /// A heap without memory: the first block brings the first segment.
    #[must_use]
    pub fn new(source: Box<dyn SegmentSource>, limits: ReceiveLimits) -> AppReceiveHeap {
        let bytes_max = limits.bytes_max.min(REGION_BYTES_MAX);
        AppReceiveHeap {
            source,
            limits: ReceiveLimits { bytes_max, ..limits },
            segments: Vec::with_capacity(SEGMENTS_MAX),
            inherited: Inherited::default(),
            claims: SavedBlocks::default(),
            segments_made: 0,
            total_bytes: 0,
            retired_bytes: 0,
            private_bytes: PrivateBytes::of_messages_in_part(),
            next_place: u64::from(limits.window_at) * UNIT,
            next_check: 0,
        }
    }

    /// Bytes of all segments.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Whether no block is live, with the app or on its way to it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.segments.iter().all(|segment| segment.heap.is_empty()) && self.inherited.is_empty()
    }

    /// Blocks become the app's by this, until [`AppReceiveHeap::reclaim`].
    pub(crate) fn publish(&mut self, block: &ReceivedBlock) {
        match self.locate(block.at) {
            Some((segment, unit)) => segment.published[unit as usize / 64] |= 1 << (unit % 64),
            None => self.inherited.publish(block),
        }
    }

    /// Takes a block back that the app claims to hold.
    pub(crate) fn reclaim(&mut self, at: u32) -> Result<(), NotPublished> {
        let Some((segment, unit)) = self.locate(at) else {
            return self.inherited.reclaim(at);
        };
        let word = &mut segment.published[unit as usize / 64];
        if *word >> (unit % 64) & 1 == 0 {
            return Err(NotPublished);
        }
        *word &= !(1 << (unit % 64));
        segment.heap.free(unit).map_err(|_| NotPublished)
    }

    /// Gives a segment back that has been empty for long, and says which: the app is to unmap it. The first one stays; and
    /// so do all, to be used again, once as much was given back as an app may have: what it did not unmap counts.
    pub(crate) fn retire(&mut self, now: Nanos) -> Option<u64> {
        if let Some(retired) = self.inherited.retire() {
            return Some(retired);
        }
        if now < self.next_check {
            return None;
        }
        for at in 1..self.segments.len() {
            let segment = &mut self.segments[at];
            let bytes = segment.place.end - segment.place.start;
            if self.retired_bytes + bytes > self.limits.bytes_max {
                continue;
            }
            let since = *if segment.heap.is_empty() {
                segment.empty_since.get_or_insert(now)
            } else {
                segment.empty_since = None;
                continue;
            };
            if now.saturating_sub(since) >= RETIRE_AFTER_NS {
                let retired = self.segments.remove(at);
                self.total_bytes -= bytes;
                self.retired_bytes += bytes;
                return Some(retired.id);
            }
        }
        self.next_check = now + RETIRE_CHECK_NS;
        None
    }

    /// When [`AppReceiveHeap::retire`] wants to be asked again, if there is anything that it could retire.
    pub(crate) fn wake_at(&self) -> Option<Nanos> {
        (self.segments.len() > 1 || self.inherited.has_segments()).then_some(self.next_check)
    }

    /// The segment of a place in the window, and the unit within it.
    fn locate(&mut self, at: u32) -> Option<(&mut HeapSegment, u32)> {
        let byte = u64::from(at) * UNIT;
        let segment = self
            .segments
            .iter_mut()
            .find(|segment| segment.place.contains(&byte))?;
        let unit = ((byte - segment.place.start) / UNIT) as u32;
        Some((segment, unit))
    }

    fn take(&mut self, bytes: u32) -> Option<ReceivedBlock> {
        self.segments.iter_mut().find_map(|segment| {
            let unit = segment.heap.allocate(bytes)?;
            let at = (segment.place.start / UNIT) as u32 + unit;
            Some(ReceivedBlock { at, bytes })
        })
    }

    /// Adds a segment that has room for a block of so many bytes.
    fn grow(&mut self, block_bytes: u32) -> Option<()> {
        let needed = (u64::from(block_bytes) + SEGMENT_SLACK_BYTES).next_multiple_of(SEGMENT_BYTES_MIN);
        let doubled = self
            .total_bytes
            .clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_DOUBLED_MAX);
        let left = self.inherited.allowed_bytes(self.limits.bytes_max);
        let left = left.saturating_sub(self.total_bytes);
        let bytes = needed.max(doubled.min(left));
        if bytes > left || self.segments.len() == SEGMENTS_MAX {
            return None;
        }
        let place = self.find_place(bytes)?;
        let new = NewSegment {
            id: self.segments_made + 1,
            at: (place.start / UNIT) as u32,
            bytes,
        };
        let memory = self.source.make(new)?;
        if (memory.mapping.bytes() as u64) < bytes || memory.mapping.access() != Access::ReadWrite {
            return None;
        }
        self.segments_made = new.id;
        self.total_bytes += bytes;
        self.next_place = place.end;
        let segment = HeapSegment {
            id: new.id,
            heap: Heap::new(bytes),
            memory,
            published: vec![0; (bytes / UNIT).div_ceil(64) as usize],
            empty_since: None,
            place,
        };
        let at = self
            .segments
            .partition_point(|other| other.place.start < segment.place.start);
        self.segments.insert(at, segment);
        Some(())
    }

    fn taken_places(&self) -> Vec<Range<u64>> {
        let own = self.segments.iter().map(|segment| segment.place.clone());
        own.chain(self.inherited.places()).collect()
    }

    /// A free range of the window: the first one behind the last that was given, else the first of all.
    fn find_place(&self, bytes: u64) -> Option<Range<u64>> {
        let window_start = u64::from(self.limits.window_at) * UNIT;
        let window_end = window_start
            .saturating_add(self.limits.window_bytes)
            .min((u64::from(u32::MAX) + 1) * UNIT);
        let first_fit = |from: u64| {
            let mut start = from;
            let mut taken = self.taken_places();
            taken.sort_unstable_by_key(|place| place.start);
            for place in taken {
                if place.end <= start {
                    continue;
                }
                if place.start >= start.saturating_add(bytes) {
                    break;
                }
                start = place.end;
            }
            let end = start.checked_add(bytes)?;
            (end <= window_end).then_some(start..end)
        };
        first_fit(self.next_place).or_else(|| first_fit(window_start))
    }
}

impl HeapSegment {
    /// Blocks that the app holds: place in the window, in units of 8 bytes, and length in bytes.
    pub(crate) fn published_blocks(&self) -> impl Iterator<Item = (u32, u32)> {
        let first = (self.place.start / UNIT) as u32;
        let words = self.published.iter().zip(0_u32..).filter(|(word, _)| **word != 0);
        let units = words.flat_map(|(word, at)| {
            let bits = (0..u64::BITS).filter(move |bit| word >> bit & 1 == 1);
            bits.map(move |bit| at * u64::BITS + bit)
        });
        units.filter_map(move |unit| Some((first + unit, self.heap.usable_bytes(unit)?)))
    }
}

impl ReceiveHeap for AppReceiveHeap {
    fn allocate(&mut self, bytes: u32) -> Result<ReceivedBlock, HeapFull> {
        const BLOCK_BYTES_MAX: u32 = MESSAGE_BYTES_MAX + METADATA_BYTES_MAX + BLOCK_ALIGN_BYTES as u32;
        if bytes > BLOCK_BYTES_MAX {
            return Err(HeapFull);
        }
        if let Some(block) = self.take(bytes) {
            return Ok(block);
        }
        self.grow(bytes).ok_or(HeapFull)?;
        self.take(bytes).ok_or(HeapFull)
    }

    fn bytes_mut(&mut self, block: &mut ReceivedBlock) -> &mut [u8] {
        let Some((segment, unit)) = self.locate(block.at) else {
            // Of an earlier process: whoever may write a block got a copy of it in its place (see `claim`).
            return &mut [];
        };
        let start = unit as usize * BLOCK_ALIGN_BYTES;
        let bytes = block.bytes as usize;
        if start + bytes > segment.memory.mapping.bytes() {
            debug_assert!(false, "a block past the end of its segment");
            return &mut [];
        }
        // SAFETY: the range is inside of the mapping (checked above), which is writable (checked in `grow`) and lives
        // as long as the segment. The block is live in the heap and not published, so nothing else in this program
        // refers to it: `ReceivedBlock` is not `Clone`, and the borrow of `self` keeps other blocks' slices away. The
        // app's mapping is read-only, so nobody else writes to it.
        unsafe { std::slice::from_raw_parts_mut(segment.memory.mapping.address().add(start), bytes) }
    }

    fn bytes(&mut self, block: &ReceivedBlock) -> &[u8] {
        if self.locate(block.at).is_none() {
            return self.inherited.bytes(block);
        }
        let (at, bytes) = (block.at, block.bytes);
        self.bytes_mut(&mut ReceivedBlock { at, bytes })
    }

    fn room_in_part(&self) -> u64 {
        let allowed = self.inherited.allowed_bytes(self.limits.bytes_max);
        let used: u64 = self
            .segments
            .iter()
            .map(|segment| segment.heap.used_bytes())
            .sum();
        bytes_for_parts(allowed).saturating_sub(used + self.private_bytes.held())
    }

    fn private_share(&self) -> Option<&Arc<PrivateBytes>> {
        Some(&self.private_bytes)
    }

    fn free(&mut self, block: ReceivedBlock) {
        if let Some((segment, unit)) = self.locate(block.at) {
            let freed = segment.heap.free(unit);
            debug_assert!(freed.is_ok(), "a block that was freed twice");
        } else {
            self.inherited.free(&block);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::testing::MemfdSource;

    const WINDOW_AT: u32 = 1 << 20;

    fn heap(bytes_max: u64) -> (AppReceiveHeap, Arc<Mutex<Vec<NewSegment>>>) {
        let source = MemfdSource::default();
        let made = Arc::clone(&source.made);
        let limits = ReceiveLimits {
            window_at: WINDOW_AT,
            window_bytes: 1 << 30,
            bytes_max,
        };
        (AppReceiveHeap::new(Box::new(source), limits), made)
    }

    #[test]
    fn blocks_are_writable_distinct_and_announced_before_use() {
        let (mut heap, made) = heap(64 << 20);
        let mut blocks: Vec<_> = (0..40).map(|_| heap.allocate(100_000).expect("room")).collect();
        for (value, block) in blocks.iter_mut().enumerate() {
            heap.bytes_mut(block).fill(value as u8);
            let made = made.lock().unwrap();
            let start = block.at;
            let end = block.at + block.bytes.div_ceil(8);
            assert!(
                made.iter()
                    .any(|segment| segment.at < start && end <= segment.at + (segment.bytes / UNIT) as u32)
            );
        }
        for (value, block) in blocks.iter_mut().enumerate() {
            assert!(heap.bytes_mut(block).iter().all(|byte| *byte == value as u8));
        }
    }

    #[test]
    fn only_published_blocks_can_be_reclaimed_and_only_once() {
        let (mut heap, _) = heap(64 << 20);
        let block = heap.allocate(100).expect("room");
        assert_eq!(heap.reclaim(block.at), Err(NotPublished));
        heap.publish(&block);
        assert_eq!(heap.reclaim(block.at + 1), Err(NotPublished));
        assert_eq!(heap.reclaim(0), Err(NotPublished));
        assert_eq!(heap.reclaim(u32::MAX), Err(NotPublished));
        assert_eq!(heap.reclaim(block.at), Ok(()));
        assert_eq!(heap.reclaim(block.at), Err(NotPublished));
    }

    #[test]
    fn a_full_heap_says_so_and_serves_again_when_blocks_come_back() {
        let (mut heap, _) = heap(4 << 20);
        let mut blocks = Vec::new();
        while let Ok(block) = heap.allocate(200_000) {
            blocks.push(block);
        }
        assert!(blocks.len() >= 15, "{} blocks", blocks.len());
        assert_eq!(heap.total_bytes(), 4 << 20);
        for block in blocks.drain(..) {
            heap.free(block);
        }
        assert!(heap.allocate(200_000).is_ok());
        assert_eq!(heap.total_bytes(), 4 << 20);
    }

    #[test]
    fn an_empty_segment_is_retired_after_a_while_and_its_place_is_not_used_again_at_once() {
        let (mut heap, made) = heap(1 << 30);
        let small = heap.allocate(64).expect("room");
        let large = heap.allocate(8 << 20).expect("room");
        let place = large.at;
        heap.free(large);
        assert_eq!(heap.retire(1), None);
        assert_eq!(heap.retire(RETIRE_AFTER_NS), None);
        assert_eq!(heap.retire(2 * RETIRE_AFTER_NS), Some(2));
        assert_eq!(heap.total_bytes(), 1 << 20);
        let again = heap.allocate(8 << 20).expect("room");
        assert_ne!(again.at, place);
        assert_eq!(made.lock().unwrap().len(), 3);
        heap.free(small);
    }

    #[test]
    fn an_app_that_unmaps_nothing_holds_no_more_than_twice_its_limit() {
        const BYTES_MAX: u64 = 32 << 20;
        let (mut heap, made) = heap(BYTES_MAX);
        let small = heap.allocate(64).expect("room");
        let mut now = 0;
        for _ in 0..20 {
            let large = heap.allocate(8 << 20).expect("room");
            heap.free(large);
            for _ in 0..3 {
                now += 2 * RETIRE_AFTER_NS;
                heap.retire(now);
            }
        }
        let made: u64 = made.lock().unwrap().iter().map(|segment| segment.bytes).sum();
        assert!(made > BYTES_MAX / 2, "nothing was ever given back");
        assert!(made <= 2 * BYTES_MAX, "{made} bytes may be mapped");
        heap.free(small);
    }

    #[test]
    fn a_block_larger_than_any_message_is_refused() {
        let (mut heap, made) = heap(8 << 30);
        assert_eq!(heap.allocate(u32::MAX), Err(HeapFull));
        assert!(made.lock().unwrap().is_empty());
    }
}
