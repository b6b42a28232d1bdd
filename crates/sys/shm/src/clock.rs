//! Time, and giving way.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of CLOCK_MONOTONIC.
#[must_use]
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    (now.tv_sec as u64) * 1_000_000_000 + now.tv_nsec as u64
}

/// Lets another thread of this core run, if one wants to.
pub fn yield_now() {
    rustix::thread::sched_yield();
}
