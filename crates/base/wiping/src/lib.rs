//! What a process that keeps secrets does with memory that it does not need any more: it overwrites it.
//!
//! Keys pass through the buffers of libraries that do not overwrite them: readers of PEM, protobuf and HTTP/2, the types of keys of `ring`.
//! An allocator sees all of those when they are freed. What a function had on its stack it does not see: whoever has called one that
//! handles secrets calls [`wipe_stack`] after it.
//!
//! A program has what it frees overwritten with
//!
//! ```
//! #[global_allocator]
//! static ALLOCATOR: provost_wiping::WipingAllocator = provost_wiping::WipingAllocator(std::alloc::System);
//! ```

mod copies;

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;

pub use copies::{SoughtSecret, copies_in};

/// Blocks of more bytes than this are freed as they are, for overwriting them would cost the time and the pages of memory that nobody may
/// have touched. The largest blocks with secrets that others own are the answers of SPIFFE agents, with the authorities of many domains.
pub const WIPED_BYTES_MAX: usize = 1 << 20;

/// Bytes of the stack that [`wipe_stack`] overwrites. Handshakes of TLS in a build without optimization do not reach so deep.
pub const STACK_BYTES: usize = 128 << 10;

/// An allocator, the system's as a rule, which gets blocks back only after they were overwritten.
#[derive(Clone, Copy, Debug)]
pub struct WipingAllocator<Below = System>(pub Below);

// SAFETY: blocks come from the allocator below and go back to it with the layout that they were asked for with. What is written
// before is within a block that its owner has given up.
unsafe impl<Below: GlobalAlloc> GlobalAlloc for WipingAllocator<Below> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        unsafe { self.0.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        unsafe { self.0.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        if layout.size() <= WIPED_BYTES_MAX {
            // SAFETY: the block has that many bytes, and its owner reads it no more.
            unsafe { memory.write_bytes(0, layout.size()) };
            // The compiler must not take writes to what is freed next for useless ones.
            black_box(memory);
        }
        // SAFETY: the caller's promise.
        unsafe { self.0.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if layout.size() > WIPED_BYTES_MAX {
            // SAFETY: the caller's promise.
            return unsafe { self.0.realloc(memory, layout, size) };
        }
        // The system's allocator could leave a copy behind where it moves a block. So a block is moved here.
        // SAFETY: the caller promises that this size, rounded up to the alignment, does not overflow.
        let grown = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        // SAFETY: the size is not zero, as the caller promises.
        let moved = unsafe { self.alloc(grown) };
        if !moved.is_null() {
            // SAFETY: both blocks have that many bytes, and the new one is nobody else's. The old one is given up as the caller wants.
            unsafe {
                moved.copy_from_nonoverlapping(memory, layout.size().min(size));
                self.dealloc(memory, layout);
            }
        }
        moved
    }
}

/// Overwrites what functions that have returned left on this thread's stack, down to [`STACK_BYTES`] below the caller.
#[inline(never)]
pub fn wipe_stack() {
    let mut room = [0_u8; STACK_BYTES];
    black_box(&mut room);
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    const SECRET: u8 = 0xA5;

    /// Notes what is in the blocks that it gets back, before they are anybody else's.
    struct NotingAllocator<'a>(&'a Mutex<Vec<Vec<u8>>>);

    // SAFETY: every call is passed on to the system's allocator; what is given back is read while it is still there.
    unsafe impl GlobalAlloc for NotingAllocator<'_> {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            // SAFETY: the caller's promise.
            unsafe { System.alloc(layout) }
        }

        unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
            // SAFETY: the test has written all of the block.
            let found = unsafe { std::slice::from_raw_parts(memory, layout.size()) };
            self.0.lock().unwrap().push(found.to_vec());
            // SAFETY: the caller's promise.
            unsafe { System.dealloc(memory, layout) }
        }
    }

    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes, 8).unwrap()
    }

    /// What the allocator below has found in blocks while a block of so many bytes, full of secrets, was taken, given other sizes and
    /// given back; and what the block held before it was given back.
    fn found_below(bytes: usize, sizes: &[usize]) -> (Vec<Vec<u8>>, Vec<u8>) {
        let found = Mutex::new(Vec::new());
        let allocator = WipingAllocator(NotingAllocator(&found));
        let mut bytes = bytes;
        // SAFETY: each block is used within its size, and given back once, with the layout that it has.
        let kept = unsafe {
            let mut memory = allocator.alloc(layout(bytes));
            memory.write_bytes(SECRET, bytes);
            let mut kept = bytes;
            for size in sizes {
                memory = allocator.realloc(memory, layout(bytes), *size);
                kept = kept.min(*size);
                bytes = *size;
            }
            let copy = std::slice::from_raw_parts(memory, kept).to_vec();
            memory.write_bytes(SECRET, bytes);
            allocator.dealloc(memory, layout(bytes));
            copy
        };
        (found.into_inner().unwrap(), kept)
    }

    #[test]
    fn blocks_are_given_back_overwritten_and_moved_with_what_they_hold() {
        for bytes in [1, 32, 4096, WIPED_BYTES_MAX] {
            let (found, kept) = found_below(bytes, &[bytes * 2, bytes, bytes.div_ceil(2)]);
            assert!(!found.is_empty());
            for block in found.iter().filter(|block| block.len() <= WIPED_BYTES_MAX) {
                assert!(
                    block.iter().all(|byte| *byte == 0),
                    "{bytes} bytes: {:?}",
                    &block[..block.len().min(16)]
                );
            }
            assert_eq!(kept, vec![SECRET; bytes.div_ceil(2)]);
        }
    }

    #[test]
    fn blocks_over_the_bound_are_given_back_as_they_are() {
        let (found, _) = found_below(WIPED_BYTES_MAX + 1, &[]);
        assert_eq!(found, [vec![SECRET; WIPED_BYTES_MAX + 1]]);
    }
}
