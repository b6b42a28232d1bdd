//! Memory that a program has freed: kept for what it allocates next, and given back when it rests.
//!
//! The C library's allocator gives free memory at the end of an arena back to the kernel from 128 KiB on, and maps larger blocks one by
//! one (`M_TRIM_THRESHOLD` and `M_MMAP_THRESHOLD`, mallopt(3)). A service that passes large messages on frees as much with each of
//! them, and its next one has every page mapped and cleared anew: 13 page faults for 64 KiB, 280 for 1 MiB.

/// Free memory at the end of an arena that is kept. Each thread that allocates much has an arena of its own.
#[cfg(target_env = "gnu")]
const KEPT_BYTES_MAX: libc::c_int = 64 << 20;
/// The largest block that comes from an arena: no more is possible.
#[cfg(target_env = "gnu")]
const ARENA_BLOCK_BYTES_MAX: libc::c_int = 32 << 20;
/// A block that is large enough for the allocator to look, when it is freed, whether the end of its arena is to be given back.
#[cfg(target_env = "gnu")]
const LOOKED_AT_BYTES: usize = 128 << 10;

/// Has the allocator keep freed memory of this process, until [`release_freed_memory`]. Does nothing with another C library than glibc.
pub fn keep_freed_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: both set a number of the allocator, which it looks at under its own locks.
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT_BYTES_MAX);
        libc::mallopt(libc::M_MMAP_THRESHOLD, ARENA_BLOCK_BYTES_MAX);
    }
}

/// Gives the kernel the free memory at the end of the arena that this thread allocates from.
pub fn release_freed_memory_of_thread() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: as above. Other threads that free a large block meanwhile give back the ends of theirs.
        unsafe { libc::mallopt(libc::M_TRIM_THRESHOLD, 0) };
        drop(std::hint::black_box(Vec::<u8>::with_capacity(LOOKED_AT_BYTES)));
        keep_freed_memory();
    }
}

/// Gives the kernel what is free in all threads' arenas, but for the ends of other threads'. It takes milliseconds where that is much.
pub fn release_freed_memory() {
    release_freed_memory_of_thread();
    #[cfg(target_env = "gnu")]
    // SAFETY: it touches only free memory of the allocator, under its own locks.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use super::*;

    /// Page faults of this thread so far, and what the process has of anonymous memory, in bytes.
    fn faults_and_resident() -> (u64, u64) {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let after_name = stat.rsplit(')').next().unwrap();
        let faults = after_name.split_whitespace().nth(7).unwrap().parse().unwrap();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let kib = status
            .lines()
            .find_map(|line| line.strip_prefix("RssAnon:"))
            .unwrap();
        let kib: u64 = kib.trim().trim_end_matches(" kB").parse().unwrap();
        (faults, kib * 1024)
    }

    #[test]
    fn what_was_freed_is_used_again_and_given_back_at_last() {
        const BYTES: usize = 4 << 20;
        let touch = || drop(std::hint::black_box(vec![1_u8; BYTES]));
        keep_freed_memory();
        touch();
        let (before, _) = faults_and_resident();
        (0..10).for_each(|_| touch());
        let (after, kept) = faults_and_resident();
        let pages = (BYTES / 4096) as u64;
        assert!(after - before < pages / 4, "{} faults", after - before);
        release_freed_memory();
        let (_, left) = faults_and_resident();
        assert!(left + BYTES as u64 / 2 < kept, "{kept} bytes kept, {left} left");
    }
}
