//! Memory for one message, in two words.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use crate::{BLOCK_BYTES_MIN, Block, Origin, class_of};

/// Set in the address of a block whose memory goes back to the ordinary heap.
const HEAP_BIT: usize = 1;
const _: () = assert!(HEAP_BIT < BLOCK_BYTES_MIN, "blocks begin on cache lines");

/// Bytes for one message: how many there is room for, and how many it has. It belongs to whoever has it.
///
/// It takes two words, so that calls hand it on in a register: where the memory goes back to follows from its capacity and from the
/// lowest bit of its address.
pub struct MessageBlock {
    /// Of the first byte, with [`HEAP_BIT`].
    address: NonNull<u8>,
    length: u32,
    capacity: u32,
}

// SAFETY: a message block owns its bytes alone, and they are valid from any thread.
unsafe impl Send for MessageBlock {}
// SAFETY: as above; a shared one is only read.
unsafe impl Sync for MessageBlock {}

impl MessageBlock {
    /// An empty message with room for so many bytes, [`MESSAGE_BLOCK_BYTES_MAX`](crate::MESSAGE_BLOCK_BYTES_MAX) at most.
    #[must_use]
    pub fn new(bytes: usize) -> MessageBlock {
        let block = Block::new(bytes.min(crate::MESSAGE_BLOCK_BYTES_MAX));
        let tag = match block.origin {
            Origin::Heap => HEAP_BIT,
            Origin::Nowhere | Origin::Region { .. } | Origin::Shelf { .. } => 0,
        };
        let message = MessageBlock {
            address: block.address.map_addr(|address| address | tag),
            length: 0,
            capacity: block.bytes as u32,
        };
        // Its memory is the message's now.
        std::mem::forget(block);
        message
    }

    /// How many bytes there is room for.
    #[must_use]
    #[inline(always)]
    pub fn capacity(&self) -> usize {
        self.capacity as usize
    }

    /// It, with an empty one in its place.
    #[must_use]
    #[inline(always)]
    pub fn take(&mut self) -> MessageBlock {
        let MessageBlock {
            address,
            length,
            capacity,
        } = *self;
        // Its memory is the taken one's now.
        std::mem::forget(std::mem::take(self));
        MessageBlock {
            address,
            length,
            capacity,
        }
    }

    /// Makes it so many bytes long, but no longer than there is room for; bytes that it grows by are what was there before.
    #[inline(always)]
    pub fn set_length(&mut self, bytes: usize) {
        self.length = bytes.min(self.capacity()) as u32;
    }

    #[inline(always)]
    fn first(&self) -> *mut u8 {
        self.address.as_ptr().map_addr(|address| address & !HEAP_BIT)
    }

    #[inline(never)]
    fn give_back(&mut self) {
        let bytes = self.capacity();
        let origin = if self.address.addr().get() & HEAP_BIT == 0 {
            Origin::Region {
                class: class_of(bytes) as u8,
            }
        } else {
            Origin::Heap
        };
        let Some(address) = NonNull::new(self.first()) else {
            return;
        };
        drop(Block {
            address,
            bytes,
            origin,
        });
    }
}

impl Drop for MessageBlock {
    #[inline(always)]
    fn drop(&mut self) {
        // Most that a program drops on its way have been emptied.
        if self.capacity > 0 {
            self.give_back();
        }
    }
}

impl Default for MessageBlock {
    /// No bytes, and no room for any.
    #[inline(always)]
    fn default() -> MessageBlock {
        MessageBlock {
            address: NonNull::<crate::Line>::dangling().cast(),
            length: 0,
            capacity: 0,
        }
    }
}

impl Deref for MessageBlock {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        // SAFETY: the message owns `capacity` bytes from there on, all of which were initialized when its block was taken, and
        // is no longer than that.
        unsafe { std::slice::from_raw_parts(self.first(), self.length as usize) }
    }
}

impl DerefMut for MessageBlock {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.first(), self.length as usize) }
    }
}

impl fmt::Debug for MessageBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MessageBlock").field(&self.deref()).finish()
    }
}

impl PartialEq for MessageBlock {
    fn eq(&self, other: &MessageBlock) -> bool {
        **self == **other
    }
}

impl Eq for MessageBlock {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_holds_what_is_written_to_it_and_no_more_than_there_is_room_for() {
        let mut message = MessageBlock::new(100);
        assert_eq!((message.len(), message.capacity()), (0, 100));
        message.set_length(200);
        assert_eq!(message.len(), 100);
        message.fill(7);
        message.set_length(3);
        assert_eq!(*message, [7; 3]);
        assert_eq!(size_of::<MessageBlock>(), 16);
        let empty = message.take();
        assert_eq!((message.capacity(), empty.capacity()), (0, 100));
    }

    #[test]
    fn the_memory_goes_back_to_where_it_came_from() {
        // No other test takes blocks of this class.
        const BYTES: usize = 3_000_000;
        let first = MessageBlock::new(BYTES);
        let address = first.first();
        drop(first);
        assert_eq!(MessageBlock::new(BYTES).first(), address);
        let block = Block::of_heap(65);
        let on_heap = MessageBlock {
            address: block.address.map_addr(|address| address | HEAP_BIT),
            length: 65,
            capacity: 65,
        };
        std::mem::forget(block);
        assert_eq!(on_heap.len(), 65);
        assert_eq!(on_heap.as_ptr() as usize % BLOCK_BYTES_MIN, 0);
    }
}
