//! The deadline of the handler that this thread is running, which calls made in it inherit.

use std::cell::Cell;

thread_local! {
    static DEADLINE_NS: Cell<u64> = const { Cell::new(0) };
}

/// The running handler's deadline, in nanoseconds of CLOCK_MONOTONIC; `None` when there is none.
pub(crate) fn inherited_deadline_ns() -> Option<u64> {
    match DEADLINE_NS.get() {
        0 => None,
        deadline_ns => Some(deadline_ns),
    }
}

/// Runs a poll of a handler whose call has this deadline (0 for none).
pub(crate) fn with_deadline<R>(deadline_ns: u64, run: impl FnOnce() -> R) -> R {
    let _restore = Restore(DEADLINE_NS.replace(deadline_ns));
    run()
}

struct Restore(u64);

impl Drop for Restore {
    fn drop(&mut self) {
        DEADLINE_NS.set(self.0);
    }
}
