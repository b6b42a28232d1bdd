//! The send heap and the window around it.
//!
//! Blocks have *size classes*, four to each doubling. A side table, outside of the shared memory, holds the class of
//! the block at each offset, so that a reference needs no room for its capacity. Each thread keeps a *magazine* of
//! free blocks for each small class; only a magazine that is empty or full goes to the heap that all threads share.
//! A second table counts the owners of blocks of [`SHARED_BYTES_MIN`] and more, which may have several.

use std::cell::RefCell;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use provost_heap::{Heap, Hysteresis};
use provost_shm::is_forked_child;
use provost_wire::limits::{BLOCK_ALIGN_BYTES, REGION_BYTES_MAX, SEND_WINDOW};

use super::window::Window;
use crate::fork;

/// What the send heap may come to hold when `PROVOST_SEND_HEAP_BYTES` does not say otherwise.
const HEAP_BYTES_DEFAULT: u64 = if cfg!(miri) { 4 << 20 } else { 1 << 30 };
/// The least that is of any use.
const HEAP_BYTES_MIN: u64 = 1 << 20;
/// Free memory goes back to the system when there is more than the first, until there is the second.
const HYSTERESIS: Hysteresis = Hysteresis {
    start_bytes: 64 << 20,
    keep_bytes: 16 << 20,
};
/// Smallest block in bytes; of class [`CLASS_MIN`].
const BLOCK_BYTES_MIN: usize = 16;
const CLASS_MIN: u8 = class_of(BLOCK_BYTES_MIN);
/// Largest block that threads keep for themselves; of class [`CLASS_CACHED_MAX`].
const BLOCK_BYTES_CACHED_MAX: usize = 64 << 10;
const CLASS_CACHED_MAX: u8 = class_of(BLOCK_BYTES_CACHED_MAX);
const CLASSES_CACHED: usize = (CLASS_CACHED_MAX - CLASS_MIN + 1) as usize;
/// What one magazine holds at most, in bytes and in blocks.
const MAGAZINE_BYTES_MAX: usize = 256 << 10;
const MAGAZINE_BLOCKS_MAX: usize = 64;

/// Blocks of this many bytes and more may have several owners. No two of them begin within the same so many bytes of the
/// heap, which is why one counter for each such range is enough.
pub(super) const SHARED_BYTES_MIN: usize = 4096;
const CLASS_SHARED_MIN: u8 = class_of(SHARED_BYTES_MIN);
/// A block has at most this many owners beside the first: far less than a counter holds, so that threads that add an owner
/// at the same time do not make it overflow.
const OTHER_OWNERS_MAX: u32 = u32::MAX / 2;

/// The send heap has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the send heap has no room for {bytes} more bytes: {}", what_to_do())]
pub struct HeapFull {
    /// How many bytes were asked for.
    pub bytes: usize,
}

fn what_to_do() -> &'static str {
    if is_forked_child() {
        fork::REFUSAL
    } else {
        "raise PROVOST_SEND_HEAP_BYTES, or keep fewer messages at a time"
    }
}

impl HeapFull {
    /// What infallible methods do about it, as the standard library's do when a length overflows.
    #[cold]
    pub(crate) fn panic(self) -> ! {
        panic!("{self}")
    }
}

impl From<HeapFull> for crate::status::Status {
    fn from(full: HeapFull) -> crate::status::Status {
        crate::status::Status::resource_exhausted(full.to_string())
    }
}

/// How many bytes the send heap may come to hold: `PROVOST_SEND_HEAP_BYTES` in the environment, or 1 GiB.
#[must_use]
pub fn heap_bytes_max() -> u64 {
    SendHeap::get().bytes
}

/// How many bytes of the send heap are in use, those among them that other threads keep for their next messages.
#[must_use]
pub fn heap_bytes_used() -> u64 {
    let _ = MAGAZINES.try_with(|magazines| magazines.borrow_mut().flush());
    SendHeap::get().lock().used_bytes()
}

/// Base of the window: what every offset is relative to. Set before the first offset exists.
static BASE: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());

/// The address of an offset in the window that is not 0.
#[inline]
pub(crate) fn address(at: u32) -> *mut u8 {
    debug_assert_ne!(at, 0);
    // Relaxed: whoever has an offset got it, by whatever way, from a thread that had loaded or stored the base.
    let base = BASE.load(Ordering::Relaxed);
    base.wrapping_add(at as usize * BLOCK_ALIGN_BYTES)
}

/// The process's window; made when it is first asked for.
pub(crate) fn window() -> &'static Window {
    &SendHeap::get().window
}

/// A block of at least `bytes` bytes, aligned to 8: its offset in the window.
pub(crate) fn allocate(bytes: usize) -> Result<u32, HeapFull> {
    // The blocks that a child of `fork` takes for free may be its parent's.
    if bytes as u64 > REGION_BYTES_MAX || is_forked_child() {
        return Err(HeapFull { bytes });
    }
    let class = class_of(bytes);
    let cached = (class <= CLASS_CACHED_MAX)
        .then(|| {
            MAGAZINES
                .try_with(|magazines| magazines.borrow_mut().take(class))
                .ok()
        })
        .flatten();
    // A thread that is ending has no magazines any more.
    let at = cached.unwrap_or_else(|| SendHeap::get().allocate(class));
    at.or_else(|| allocate_from_all(class)).ok_or(HeapFull { bytes })
}

/// Tries again with what this thread keeps for its next messages.
#[cold]
fn allocate_from_all(class: u8) -> Option<u32> {
    let _ = MAGAZINES.try_with(|magazines| magazines.borrow_mut().flush());
    SendHeap::get().allocate(class)
}

/// Adds an owner to a block, who frees it too; says whether that could be. It cannot for small blocks, and for what is no
/// block of the send heap, such as a part of a received message. Offset 0 is none.
pub(super) fn add_owner(at: u32) -> bool {
    if at == 0 || is_forked_child() {
        return false;
    }
    let heap = SendHeap::get();
    let Some(others) = heap.other_owners(at) else {
        return false;
    };
    // Relaxed: whoever adds an owner is one, and the new one learns of the block from it.
    let added = others.fetch_add(1, Ordering::Relaxed) < OTHER_OWNERS_MAX;
    if !added {
        others.fetch_sub(1, Ordering::Relaxed);
    }
    added
}

/// Whether a block has other owners than the caller.
pub(super) fn has_other_owners(at: u32) -> bool {
    if at == 0 || is_forked_child() {
        return false;
    }
    let others = SendHeap::get().other_owners(at);
    // Acquire: what the other owners read before they gave the block up came before what its only owner now writes.
    others.is_some_and(|others| others.load(Ordering::Acquire) > 0)
}

/// Takes a block back, once all its owners have done so; offset 0 is none.
///
/// # Safety
///
/// `at` must have come from [`allocate`] and not been freed since, or only by other owners ([`add_owner`]), and the caller may
/// not use the block after this.
pub(crate) unsafe fn free(at: u32) {
    if at == 0 || is_forked_child() {
        return;
    }
    let heap = SendHeap::get();
    let class = heap.class_at(at);
    if class >= CLASS_SHARED_MIN && !heap.give_up(at) {
        return;
    }
    let cached = class <= CLASS_CACHED_MAX
        && MAGAZINES
            .try_with(|magazines| magazines.borrow_mut().put(class, at))
            .is_ok();
    if !cached {
        heap.free(&[at]);
    }
}

/// How many bytes the block at `at` has; 0 for a place where no block of the send heap begins.
pub(super) fn usable_bytes(at: u32) -> usize {
    if at == 0 {
        return 0;
    }
    match SendHeap::get().class_at(at) {
        0 => 0,
        class => class_bytes(class),
    }
}

struct SendHeap {
    window: Window,
    bytes: u64,
    blocks: Mutex<Heap>,
    /// The class of the block that begins at each unit of 8 bytes; 0 for none. Most of it is never touched, and so
    /// takes no memory.
    classes: Box<[AtomicU8]>,
    /// How many owners beside one the block has that begins in each range of [`SHARED_BYTES_MIN`] bytes.
    other_owners: Box<[AtomicU32]>,
}

impl SendHeap {
    fn get() -> &'static SendHeap {
        static HEAP: OnceLock<SendHeap> = OnceLock::new();
        HEAP.get_or_init(SendHeap::create)
    }

    /// # Panics
    ///
    /// When the system has no address space or memfd for it: without them no message can exist.
    fn create() -> SendHeap {
        let asked = std::env::var("PROVOST_SEND_HEAP_BYTES").ok();
        let bytes = asked
            .and_then(|bytes| bytes.trim().parse().ok())
            .unwrap_or(HEAP_BYTES_DEFAULT);
        let bytes = bytes
            .clamp(HEAP_BYTES_MIN, REGION_BYTES_MAX)
            .next_multiple_of(1 << 16);
        let window = Window::create(bytes)
            .unwrap_or_else(|error| panic!("no shared memory for a send heap of {bytes} bytes: {error}"));
        let bytes = window.send_bytes();
        BASE.store(window.base(), Ordering::Relaxed);
        SendHeap {
            window,
            bytes,
            blocks: Mutex::new(Heap::new(bytes)),
            classes: zeroed_classes(bytes as usize / BLOCK_ALIGN_BYTES),
            other_owners: zeroed_counters(bytes as usize / SHARED_BYTES_MIN),
        }
    }

    /// The counter of the other owners of a block that may have some.
    fn other_owners(&self, at: u32) -> Option<&AtomicU32> {
        if self.class_at(at) < CLASS_SHARED_MIN {
            return None;
        }
        let offset_bytes = (at - SEND_WINDOW) as usize * BLOCK_ALIGN_BYTES;
        self.other_owners.get(offset_bytes / SHARED_BYTES_MIN)
    }

    /// Ends one owner's part in a block, and says whether it was the last one.
    fn give_up(&self, at: u32) -> bool {
        let Some(others) = self.other_owners(at) else {
            return true;
        };
        // Acquire here and below: what other owners read came before the block is used anew. A block without others gets
        // none meanwhile, since only an owner adds one.
        if others.load(Ordering::Acquire) == 0 {
            return true;
        }
        // Two owners that give it up at once both come here: the second one finds no other and is the last.
        let was_last = others.fetch_sub(1, Ordering::AcqRel) == 0;
        if was_last {
            others.store(0, Ordering::Relaxed);
        }
        was_last
    }

    fn class_at(&self, at: u32) -> u8 {
        let unit = at.wrapping_sub(SEND_WINDOW) as usize;
        // Relaxed: whoever has the offset synchronized with the thread that took the block from the heap.
        self.classes
            .get(unit)
            .map_or(0, |class| class.load(Ordering::Relaxed))
    }

    fn allocate(&self, class: u8) -> Option<u32> {
        self.allocate_from(&mut self.lock(), class)
    }

    fn allocate_from(&self, blocks: &mut Heap, class: u8) -> Option<u32> {
        let offset = blocks.allocate(u32::try_from(class_bytes(class)).ok()?)?;
        self.classes[offset as usize].store(class, Ordering::Relaxed);
        Some(SEND_WINDOW + offset)
    }

    fn free(&self, freed: &[u32]) {
        let mut blocks = self.lock();
        for at in freed {
            let offset = at - SEND_WINDOW;
            self.classes[offset as usize].store(0, Ordering::Relaxed);
            let result = blocks.free(offset);
            debug_assert!(result.is_ok(), "a block was freed twice: {result:?}");
        }
        while let Some(range) = blocks.release_next(HYSTERESIS) {
            self.window.give_back(range);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Heap> {
        // Nothing that holds the lock panics half-way through a change.
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn zeroed_classes(count: usize) -> Box<[AtomicU8]> {
    // A zeroed vector of bytes comes straight from the system, page by page as it is touched.
    let zeroed: Box<[u8]> = vec![0; count].into_boxed_slice();
    // SAFETY: `AtomicU8` has the same size, alignment and bit validity as `u8`, and the box is ours alone.
    unsafe { Box::from_raw(Box::into_raw(zeroed) as *mut [AtomicU8]) }
}

fn zeroed_counters(count: usize) -> Box<[AtomicU32]> {
    let zeroed: Box<[u32]> = vec![0; count].into_boxed_slice();
    // SAFETY: `AtomicU32` has the same size, alignment and bit validity as `u32`, and the box is ours alone.
    unsafe { Box::from_raw(Box::into_raw(zeroed) as *mut [AtomicU32]) }
}

thread_local! {
    static MAGAZINES: RefCell<Magazines> = const { RefCell::new(Magazines([const { Vec::new() }; CLASSES_CACHED])) };
}

/// A thread's free blocks, by class.
struct Magazines([Vec<u32>; CLASSES_CACHED]);

impl Magazines {
    fn take(&mut self, class: u8) -> Option<u32> {
        let magazine = &mut self.0[usize::from(class - CLASS_MIN)];
        if magazine.is_empty() {
            refill(magazine, class);
        }
        magazine.pop()
    }

    fn put(&mut self, class: u8, at: u32) {
        debug_assert_ne!(class, 0, "the block at {at} was not allocated");
        let magazine = &mut self.0[usize::from(class - CLASS_MIN)];
        let capacity = magazine_capacity(class);
        if magazine.len() >= capacity {
            let kept = capacity / 2;
            SendHeap::get().free(&magazine[kept..]);
            magazine.truncate(kept);
        }
        magazine.push(at);
    }

    fn flush(&mut self) {
        for magazine in &mut self.0 {
            if !magazine.is_empty() {
                SendHeap::get().free(magazine);
                magazine.clear();
            }
        }
    }
}

impl Drop for Magazines {
    fn drop(&mut self) {
        self.flush();
    }
}

#[cold]
fn refill(magazine: &mut Vec<u32>, class: u8) {
    let capacity = magazine_capacity(class);
    magazine.reserve_exact(capacity);
    let heap = SendHeap::get();
    let mut blocks = heap.lock();
    let batch = std::iter::from_fn(|| heap.allocate_from(&mut blocks, class)).take((capacity / 2).max(1));
    magazine.extend(batch);
}

const fn magazine_capacity(class: u8) -> usize {
    let fits = MAGAZINE_BYTES_MAX / class_bytes(class);
    if fits < MAGAZINE_BLOCKS_MAX {
        fits
    } else {
        MAGAZINE_BLOCKS_MAX
    }
}

/// The least class whose blocks have this many bytes. Class `4 e + q + 1` is of `2^e + (q + 1) 2^(e-2)` bytes.
const fn class_of(bytes: usize) -> u8 {
    let bytes = if bytes < BLOCK_BYTES_MIN {
        BLOCK_BYTES_MIN
    } else {
        bytes
    };
    let exponent = (bytes - 1).ilog2();
    let step = if exponent > 4 { exponent - 2 } else { 3 };
    let rounded = ((bytes - 1) >> step << step) + (1 << step);
    let quarter = ((rounded - 1) >> (exponent - 2)) & 3;
    (4 * exponent + quarter as u32 + 1) as u8
}

const fn class_bytes(class: u8) -> usize {
    let (exponent, quarter) = ((class - 1) / 4, (class as usize - 1) % 4);
    (1 << exponent) + ((quarter + 1) << (exponent - 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_tight_multiples_of_8_bytes() {
        let mut last = 0;
        for bytes in (1..5000).chain([65_535, 65_536, 65_537, 1 << 20, (1 << 33) - 1, 1 << 33]) {
            let class = class_of(bytes);
            let room = class_bytes(class);
            assert!(room >= bytes && room.is_multiple_of(8), "{bytes} bytes in {room}");
            assert!(room <= bytes.max(13) + bytes / 4 + 8, "{bytes} bytes in {room}");
            assert_eq!(class_of(room), class);
            assert!(class >= last);
            last = class;
        }
        assert_eq!(
            (class_bytes(CLASS_MIN), class_bytes(CLASS_CACHED_MAX)),
            (16, 64 << 10)
        );
    }

    #[test]
    fn blocks_do_not_overlap_and_come_back() {
        let sizes = [1, 8, 100, 4096, 70_000, 300_000];
        let blocks: Vec<u32> = sizes.iter().map(|bytes| allocate(*bytes).unwrap()).collect();
        for (at, bytes) in blocks.iter().zip(sizes) {
            assert!(usable_bytes(*at) >= bytes);
            // SAFETY: the block has that many bytes.
            unsafe { address(*at).write_bytes(*at as u8, usable_bytes(*at)) };
        }
        for at in blocks {
            let last = usable_bytes(at) - 1;
            // SAFETY: as above; and the block is used no more after it is freed.
            unsafe {
                assert_eq!((*address(at), *address(at).add(last)), (at as u8, at as u8));
                free(at);
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let bytes = heap_bytes_max() as usize + 1;
        assert_eq!(allocate(bytes), Err(HeapFull { bytes }));
        assert_eq!(allocate(usize::MAX), Err(HeapFull { bytes: usize::MAX }));
    }
}
