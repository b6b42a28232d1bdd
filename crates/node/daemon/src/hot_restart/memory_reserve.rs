//! Memory that the new process has ready before the old one rests.
//!
//! The allocator of a thread asks the kernel for a page at a time, and the kernel clears each when it is first written: two system calls'
//! worth of time for four kilobytes, while nobody serves. So the thread that restores takes what it will need in blocks, and gives the
//! blocks back before the state comes: the allocator keeps their pages for what it is asked for next.

/// Bytes of a block: below what an allocator maps, and unmaps, by itself.
const BLOCK_BYTES: usize = 64 << 10;
/// What is made of an app or a client, and of a connection, about, with what is read for it. A test of gRPC clients counts the faults of
/// what goes over this.
const PARTY_BYTES: usize = 16 << 10;
const CONNECTION_BYTES: usize = 14 << 10;
/// As much is taken, at most: more grows as it always does.
const RESERVED_BYTES_MAX: usize = 256 << 20;

/// What is expected of a state.
#[derive(Clone, Copy, Debug)]
pub(super) struct RestoredMemory {
    /// Apps and gRPC clients.
    pub(super) parties: usize,
    pub(super) connections: usize,
}

impl RestoredMemory {
    fn bytes(self) -> usize {
        let of_parties = self.parties.saturating_mul(PARTY_BYTES);
        let of_connections = self.connections.saturating_mul(CONNECTION_BYTES);
        of_parties.saturating_add(of_connections).min(RESERVED_BYTES_MAX)
    }
}

/// Holds the last block: what is free at the end of its memory an allocator gives back to the kernel.
pub(super) struct MemoryReserve {
    _last: Option<Vec<u8>>,
}

impl MemoryReserve {
    /// Has this thread's allocator keep memory for so much.
    pub(super) fn of(expected: RestoredMemory) -> MemoryReserve {
        let blocks = expected.bytes() / BLOCK_BYTES;
        // Not zeroed by the allocator, which would leave fresh pages alone.
        let mut taken: Vec<Vec<u8>> = (0..blocks).map(|_| vec![1; BLOCK_BYTES]).collect();
        let last = taken.pop();
        MemoryReserve { _last: last }
    }
}

/// Page faults of this thread so far that took no disk; 0 where the kernel does not tell (proc_pid_stat(5)).
pub(super) fn faults_of_thread() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap_or_default();
    let fields = stat.rsplit_once(')').map(|(_, behind_name)| behind_name);
    let faults = fields.and_then(|fields| fields.split_whitespace().nth(7));
    faults.and_then(|faults| faults.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Faults while a thread of its own makes what a restored client is of: many small blocks.
    fn faults_of_restoring(parties: usize) -> u64 {
        const BLOCKS: usize = 100_000;
        const BYTES: usize = 200;
        let restoring = move || {
            let _reserve = MemoryReserve::of(RestoredMemory {
                parties,
                connections: 0,
            });
            let mut made = Vec::with_capacity(BLOCKS);
            let before = faults_of_thread();
            made.extend((0..BLOCKS).map(|_| vec![7_u8; BYTES]));
            std::hint::black_box(&made);
            faults_of_thread() - before
        };
        std::thread::spawn(restoring).join().unwrap()
    }

    #[test]
    fn what_is_restored_lies_in_memory_that_is_there() {
        let (without, with) = (faults_of_restoring(0), faults_of_restoring(3_000));
        assert!(
            4 * with < without,
            "{with} faults with a reserve, {without} without"
        );
    }

    #[test]
    fn a_state_that_expects_too_much_gets_what_there_may_be() {
        let expected = RestoredMemory {
            parties: usize::MAX,
            connections: usize::MAX,
        };
        assert_eq!(expected.bytes(), RESERVED_BYTES_MAX);
    }
}
