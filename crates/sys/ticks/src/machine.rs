//! The processor's counter and the kernel's clock.
#![allow(unsafe_code)]

use std::time::Instant;

use crate::{Counting, Source};

/// Where the kernel lists the counters that it finds good enough to tell the time by.
#[cfg(target_arch = "x86_64")]
const LISTED: &str = "/sys/devices/system/clocksource/clocksource0/available_clocksource";

#[derive(Clone, Debug)]
pub struct Machine {
    start: Instant,
    counting: Counting,
}

impl Default for Machine {
    fn default() -> Self {
        Self {
            start: Instant::now(),
            counting: counting(),
        }
    }
}

#[cfg(test)]
impl Machine {
    /// When its time was zero.
    pub(crate) fn start(&self) -> Instant {
        self.start
    }
}

impl Source for Machine {
    fn counting(&self) -> Counting {
        self.counting
    }

    #[inline]
    fn ticks(&mut self) -> u64 {
        ticks()
    }

    fn kernel_ns(&mut self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }
}

/// Whether the counter goes at one rate whatever the core does ("invariant", AMD64 APM volume 3, CPUID Fn8000_0007), and
/// the kernel has found it to be the same on all cores.
#[cfg(target_arch = "x86_64")]
fn counting() -> Counting {
    use std::arch::x86_64::__cpuid;
    const POWER: u32 = 0x8000_0007;
    let is_invariant = __cpuid(0x8000_0000).eax >= POWER && __cpuid(POWER).edx >> 8 & 1 == 1;
    let listed = std::fs::read_to_string(LISTED).unwrap_or_default();
    if is_invariant && listed.split_whitespace().any(|name| name == "tsc") {
        Counting::Steady
    } else {
        Counting::Unknown
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn ticks() -> u64 {
    // SAFETY: every processor of this architecture has the instruction, which reads a register. A kernel that forbids it
    // to programs ends them; Linux does so only to those that asked for it (PR_SET_TSC).
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn counting() -> Counting {
    Counting::Unknown
}

#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> u64 {
    0
}
