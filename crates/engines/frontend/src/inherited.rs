//! Segments of a receive heap that an earlier process of the service wrote. Nobody can map a sealed segment for writing
//! any more, so its blocks are only read, published and taken back; when none is left, the segment is retired.

use std::collections::HashMap;
use std::ops::Range;

use provost_datapath::ReceivedBlock;
use provost_shm::{Mapping, Memfd};

use crate::receive::{NotPublished, SEGMENT_BYTES_MIN, UNIT};

/// Segments of earlier processes that one app can hold on to.
pub(crate) const INHERITED_SEGMENTS_MAX: usize = 1024;

/// All inherited segments of an app.
#[derive(Default)]
pub(crate) struct Inherited {
    pub(crate) segments: Vec<InheritedSegment>,
    /// Bytes of all their live blocks.
    live_bytes: u64,
}

pub(crate) struct InheritedSegment {
    pub(crate) id: u64,
    /// Place in the window, in bytes.
    pub(crate) place: Range<u64>,
    pub(crate) memfd: Memfd,
    /// For reading; no larger than the place.
    pub(crate) memory: Mapping,
    /// Live blocks by their place in the window, in units of 8 bytes.
    pub(crate) blocks: HashMap<u32, InheritedBlock>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InheritedBlock {
    pub(crate) bytes: u32,
    /// Whether the app holds it.
    pub(crate) is_published: bool,
}

impl Inherited {
    pub(crate) fn add(&mut self, segment: InheritedSegment) {
        let live = segment.blocks.values().map(|block| u64::from(block.bytes));
        self.live_bytes += live.sum::<u64>();
        self.segments.push(segment);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.live_bytes == 0 && self.segments.iter().all(|segment| segment.blocks.is_empty())
    }

    pub(crate) fn has_segments(&self) -> bool {
        !self.segments.is_empty()
    }

    pub(crate) fn places(&self) -> impl Iterator<Item = Range<u64>> {
        self.segments.iter().map(|segment| segment.place.clone())
    }

    /// What fresh segments may have where all may have `bytes_max`: less what the app holds on to here, and somewhat more
    /// than that, since fresh segments begin empty and have whole sizes.
    pub(crate) fn allowed_bytes(&self, bytes_max: u64) -> u64 {
        if self.has_segments() {
            (bytes_max + 2 * SEGMENT_BYTES_MIN).saturating_sub(self.live_bytes)
        } else {
            bytes_max
        }
    }

    pub(crate) fn publish(&mut self, block: &ReceivedBlock) {
        if let Some(block) = self.block_mut(block.at) {
            block.is_published = true;
        }
    }

    pub(crate) fn reclaim(&mut self, at: u32) -> Result<(), NotPublished> {
        match self.block_mut(at) {
            Some(block) if block.is_published => {
                self.remove(at);
                Ok(())
            }
            _ => Err(NotPublished),
        }
    }

    pub(crate) fn free(&mut self, block: &ReceivedBlock) {
        self.remove(block.at);
    }

    /// The bytes of a live block that is not published.
    pub(crate) fn bytes(&self, block: &ReceivedBlock) -> &[u8] {
        let segment = self.segments.iter().find(|segment| segment.has(block.at));
        let Some(segment) = segment else { return &[] };
        let known = segment.blocks.get(&block.at);
        if known.is_none_or(|known| known.bytes < block.bytes) {
            return &[];
        }
        let start = (u64::from(block.at) * UNIT - segment.place.start) as usize;
        let bytes = block.bytes as usize;
        if start + bytes > segment.memory.bytes() {
            return &[];
        }
        // SAFETY: the range is inside of the mapping (checked above), which is readable and lives as long as the segment.
        // Nobody writes to it: the app's mapping is read-only, and the process that could write it has stopped, and does
        // not go on while this one uses the block.
        unsafe { std::slice::from_raw_parts(segment.memory.address().add(start), bytes) }
    }

    /// Takes a segment out in which no block is live, and says which.
    pub(crate) fn retire(&mut self) -> Option<u64> {
        let at = self
            .segments
            .iter()
            .position(|segment| segment.blocks.is_empty())?;
        Some(self.segments.swap_remove(at).id)
    }

    fn block_mut(&mut self, at: u32) -> Option<&mut InheritedBlock> {
        let segment = self.segments.iter_mut().find(|segment| segment.has(at))?;
        segment.blocks.get_mut(&at)
    }

    fn remove(&mut self, at: u32) {
        let segment = self.segments.iter_mut().find(|segment| segment.has(at));
        if let Some(block) = segment.and_then(|segment| segment.blocks.remove(&at)) {
            self.live_bytes -= u64::from(block.bytes);
        }
    }
}

impl InheritedSegment {
    fn has(&self, at: u32) -> bool {
        self.place.contains(&(u64::from(at) * UNIT))
    }
}
