//! A receive heap in private memory: what a reply lies in between its transport and its encoding for the client.

use std::collections::BTreeSet;
use std::sync::Arc;

use provost_datapath::{HeapFull, NotSaved, PrivateBytes, ReceiveHeap, ReceivedBlock, bytes_for_parts};

/// What a block costs of the heap beside its bytes: bounds the number of blocks.
const BLOCK_COST_BYTES: u64 = 64;

/// Blocks of the service's own memory. A block's place in the window is its number: nobody maps it.
#[derive(Debug)]
pub struct PrivateHeap {
    /// By number, from 1 on; free ones are empty.
    blocks: Vec<Option<Vec<u8>>>,
    free: Vec<u32>,
    held_bytes: u64,
    /// Bytes of messages that come in part beside the heap.
    private_bytes: Arc<PrivateBytes>,
    bytes_max: u64,
    /// Blocks of another process that no engine has claimed yet.
    unclaimed: BTreeSet<u32>,
}

/// A block of another process's heap: its place, its length, and what was written to its beginning.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SavedBlock<'a> {
    pub(crate) at: u32,
    pub(crate) bytes: u32,
    pub(crate) filled: &'a [u8],
}

impl PrivateHeap {
    /// An empty heap that grows to so many bytes.
    #[must_use]
    pub fn new(bytes_max: u64) -> PrivateHeap {
        PrivateHeap {
            blocks: Vec::new(),
            free: Vec::new(),
            held_bytes: 0,
            private_bytes: PrivateBytes::of_messages_in_part(),
            bytes_max,
            unclaimed: BTreeSet::new(),
        }
    }

    /// A heap with blocks of another process at the places that they had there: references in them may depend on those. None if
    /// two have one place, or they have no room.
    pub(crate) fn of_saved(blocks: &[SavedBlock<'_>], bytes_max: u64) -> Option<PrivateHeap> {
        let mut heap = PrivateHeap::new(bytes_max);
        let costs = blocks
            .iter()
            .map(|block| u64::from(block.bytes) + BLOCK_COST_BYTES);
        heap.held_bytes = costs.sum();
        let places = blocks.iter().map(|block| block.at).max().unwrap_or(0);
        let has_room = heap.held_bytes <= bytes_max && u64::from(places) * BLOCK_COST_BYTES <= bytes_max;
        if !has_room {
            return None;
        }
        heap.blocks.resize(places as usize, None);
        for block in blocks {
            let place = heap.blocks.get_mut((block.at as usize).checked_sub(1)?)?;
            let mut bytes = vec![0; block.bytes as usize];
            bytes.get_mut(..block.filled.len())?.copy_from_slice(block.filled);
            if place.replace(bytes).is_some() {
                return None;
            }
            heap.unclaimed.insert(block.at);
        }
        let free = (0..).zip(&heap.blocks).filter(|(_, block)| block.is_none());
        heap.free = free.map(|(slot, _)| slot).collect();
        Some(heap)
    }

    /// The block that a state names.
    ///
    /// # Errors
    /// It was not saved, or is named twice.
    pub fn claim(&mut self, saved: &ReceivedBlock) -> Result<ReceivedBlock, NotSaved> {
        let (at, bytes) = (saved.at, saved.bytes);
        if self.live(at).is_some_and(|block| block.len() == bytes as usize) && self.unclaimed.remove(&at) {
            return Ok(ReceivedBlock { at, bytes });
        }
        Err(NotSaved::Block { at })
    }

    /// Frees the blocks that nothing has claimed.
    pub fn end_claims(&mut self) {
        for at in std::mem::take(&mut self.unclaimed) {
            let bytes = self.live(at).map_or(0, |block| block.len() as u32);
            self.take(&ReceivedBlock { at, bytes });
        }
    }

    /// The bytes of the block at a place, if there is one.
    pub(crate) fn live(&self, at: u32) -> Option<&[u8]> {
        let slot = at.wrapping_sub(1) as usize;
        self.blocks.get(slot).and_then(Option::as_deref)
    }

    /// Bytes of all blocks, with what they cost beside.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// Takes a block's bytes out of the heap; none, if it is not live.
    pub fn take(&mut self, block: &ReceivedBlock) -> Option<Vec<u8>> {
        let slot = block.at.wrapping_sub(1);
        let bytes = self.blocks.get_mut(slot as usize).and_then(Option::take)?;
        self.held_bytes -= bytes.len() as u64 + BLOCK_COST_BYTES;
        self.free.push(slot);
        if self.is_empty() {
            // What a burst needed is not kept.
            self.blocks = Vec::new();
            self.free = Vec::new();
        }
        Some(bytes)
    }

    /// Whether no block is live.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.free.len() == self.blocks.len()
    }
}

impl ReceiveHeap for PrivateHeap {
    fn allocate(&mut self, bytes: u32) -> Result<ReceivedBlock, HeapFull> {
        let cost = u64::from(bytes) + BLOCK_COST_BYTES;
        if self.held_bytes + cost > self.bytes_max {
            return Err(HeapFull);
        }
        self.held_bytes += cost;
        let block = Some(vec![0; bytes as usize]);
        let slot = match self.free.pop() {
            Some(slot) => {
                self.blocks[slot as usize] = block;
                slot
            }
            None => {
                self.blocks.push(block);
                (self.blocks.len() - 1) as u32
            }
        };
        Ok(ReceivedBlock { at: slot + 1, bytes })
    }

    fn bytes_mut(&mut self, block: &mut ReceivedBlock) -> &mut [u8] {
        let slot = block.at.wrapping_sub(1) as usize;
        let found = self.blocks.get_mut(slot).and_then(Option::as_mut);
        found.map_or(&mut [], Vec::as_mut_slice)
    }

    fn room_in_part(&self) -> u64 {
        bytes_for_parts(self.bytes_max).saturating_sub(self.held_bytes + self.private_bytes.held())
    }

    fn private_share(&self) -> Option<&Arc<PrivateBytes>> {
        Some(&self.private_bytes)
    }

    fn free(&mut self, block: ReceivedBlock) {
        let freed = self.take(&block);
        debug_assert!(freed.is_some(), "a block was freed twice");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heap_is_bounded_and_forgets_bursts() {
        let mut heap = PrivateHeap::new(10_000);
        let first = heap.allocate(9_000).unwrap();
        assert_eq!(heap.allocate(1_000), Err(HeapFull));
        let mut second = heap.allocate(16).unwrap();
        heap.bytes_mut(&mut second).copy_from_slice(b"0123456789abcdef");
        heap.free(first);
        let third = heap.allocate(9_000).unwrap();
        assert_eq!(heap.bytes(&second), b"0123456789abcdef");
        assert!(heap.bytes(&third).iter().all(|byte| *byte == 0));
        heap.free(second);
        heap.free(third);
        assert!(heap.is_empty());
        assert_eq!((heap.held_bytes(), heap.blocks.capacity()), (0, 0));
    }

    #[test]
    fn blocks_without_bytes_are_bounded_too() {
        let mut heap = PrivateHeap::new(10 * BLOCK_COST_BYTES);
        let blocks = std::iter::from_fn(|| heap.allocate(0).ok()).count();
        assert_eq!(blocks, 10);
    }
}
