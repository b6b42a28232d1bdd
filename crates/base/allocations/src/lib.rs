//! For tests and fuzzing: an allocator that counts what passes through it, in the process and in each thread.
//!
//! A program of tests has it count with
//!
//! ```
//! #[global_allocator]
//! static ALLOCATOR: provost_allocations::CountingAllocator = provost_allocations::CountingAllocator;
//!
//! let before = provost_allocations::made_by_thread();
//! drop(vec![0_u8; 100]);
//! assert_eq!(provost_allocations::made_by_thread() - before, 1);
//! ```

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

static MADE: AtomicU64 = AtomicU64::new(0);
static LIVE_BYTES: AtomicI64 = AtomicI64::new(0);
static PEAK_BYTES: AtomicI64 = AtomicI64::new(0);

thread_local! {
    static THREAD_MADE: Cell<u64> = const { Cell::new(0) };
    static THREAD_LIVE_BYTES: Cell<i64> = const { Cell::new(0) };
    static THREAD_PEAK_BYTES: Cell<i64> = const { Cell::new(0) };
}

/// Allocations of all threads so far; growing one counts as another.
#[must_use]
pub fn made_by_process() -> u64 {
    MADE.load(Relaxed)
}

/// Bytes that were allocated and not freed, of all threads.
#[must_use]
pub fn live_bytes_of_process() -> i64 {
    LIVE_BYTES.load(Relaxed)
}

/// Allocations of this thread so far.
#[must_use]
pub fn made_by_thread() -> u64 {
    THREAD_MADE.get()
}

/// The most bytes that this thread had allocated and not freed at once while it did something, beyond what it had before.
pub fn peak_bytes_during(body: impl FnOnce()) -> u64 {
    let before = THREAD_LIVE_BYTES.get();
    THREAD_PEAK_BYTES.set(before);
    body();
    (THREAD_PEAK_BYTES.get() - before).unsigned_abs()
}

/// The same of all threads of the process, for what starts some: whatever else the process does meanwhile counts as well.
pub fn peak_bytes_of_process_during(body: impl FnOnce()) -> u64 {
    let before = LIVE_BYTES.load(Relaxed);
    PEAK_BYTES.store(before, Relaxed);
    body();
    (PEAK_BYTES.load(Relaxed) - before).unsigned_abs()
}

/// The system's allocator, with counters.
#[derive(Clone, Copy, Debug)]
pub struct CountingAllocator;

impl CountingAllocator {
    fn count_made() {
        MADE.fetch_add(1, Relaxed);
        // A thread that ends has no counters any more.
        let _ = THREAD_MADE.try_with(|made| made.set(made.get() + 1));
    }

    fn count_bytes(change: i64) {
        let of_process = LIVE_BYTES.fetch_add(change, Relaxed) + change;
        PEAK_BYTES.fetch_max(of_process, Relaxed);
        let live = THREAD_LIVE_BYTES.try_with(|live| {
            live.set(live.get() + change);
            live.get()
        });
        let _ = THREAD_PEAK_BYTES.try_with(|peak| peak.set(peak.get().max(live.unwrap_or_default())));
    }
}

// SAFETY: every call is passed on to the system's allocator as it is; counting touches no memory that it hands out.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CountingAllocator::count_made();
        CountingAllocator::count_bytes(layout.size() as i64);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        CountingAllocator::count_bytes(-(layout.size() as i64));
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        CountingAllocator::count_made();
        CountingAllocator::count_bytes(size as i64 - layout.size() as i64);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use super::*;

    #[global_allocator]
    static ALLOCATOR: CountingAllocator = CountingAllocator;

    /// What one test has counts for the whole process, and so for the other.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

    #[test]
    fn what_is_made_and_kept_is_counted() {
        let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let (made, process) = (made_by_thread(), made_by_process());
        let mut kept = Vec::new();
        let peak = peak_bytes_during(|| {
            drop(vec![0_u8; 5_000]);
            kept = vec![0_u8; 1_000];
        });
        assert_eq!(peak, 5_000);
        assert_eq!(made_by_thread() - made, 2);
        assert!(made_by_process() - process >= 2);
        assert_eq!(peak_bytes_during(|| kept.reserve_exact(3_000)), 3_000);
        assert!(live_bytes_of_process() >= 4_000);
    }

    #[test]
    fn what_other_threads_have_at_once_counts_for_the_process() {
        let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let peak = peak_bytes_of_process_during(|| {
            let other = std::thread::spawn(|| drop(vec![0_u8; 3_000_000]));
            other.join().unwrap();
        });
        // The harness may give some back meanwhile.
        assert!(peak >= 2_900_000, "{peak}");
    }
}
