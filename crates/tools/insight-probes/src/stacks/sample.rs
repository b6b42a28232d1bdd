//! One sample, as the BPF program writes it down: three registers, and the stack's bytes from the stack pointer on.

/// Bytes of a stack that a sample has at most; `STACK_BYTES` in `bpf/probes.bpf.c`.
pub(crate) const STACK_BYTES_MAX: usize = 16384;
/// Before them: time, thread, length, three registers.
const HEAD_BYTES: usize = 40;

/// Where a thread's code was at one moment, and how it had come there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StackSample {
    /// The monotonic clock, in nanoseconds.
    pub(crate) time_ns: u64,
    pub(crate) thread: u32,
    pub(crate) instruction: u64,
    pub(crate) stack: u64,
    /// The frame pointer's register, whatever is in it.
    pub(crate) frame: u64,
    /// What is on the stack, from the stack pointer on.
    pub(crate) bytes: Vec<u8>,
}

impl StackSample {
    /// Reads what the program wrote; `None` for anything that no program writes.
    pub(crate) fn parse(bytes: &[u8]) -> Option<StackSample> {
        let (head, stack) = bytes.split_at_checked(HEAD_BYTES)?;
        let u64_at = |at: usize| Some(u64::from_ne_bytes(head.get(at..at + 8)?.try_into().ok()?));
        let u32_at = |at: usize| Some(u32::from_ne_bytes(head.get(at..at + 4)?.try_into().ok()?));
        let length = usize::try_from(u32_at(12)?).ok()?;
        Some(StackSample {
            time_ns: u64_at(0)?,
            thread: u32_at(8)?,
            instruction: u64_at(16)?,
            stack: u64_at(24)?,
            frame: u64_at(32)?,
            bytes: stack.get(..length.min(STACK_BYTES_MAX))?.to_vec(),
        })
    }

    /// The eight bytes at an address, if they are on the part of the stack that was kept.
    pub(crate) fn word(&self, address: u64) -> Option<u64> {
        let at = usize::try_from(address.checked_sub(self.stack)?).ok()?;
        let end = at.checked_add(8)?;
        Some(u64::from_ne_bytes(self.bytes.get(at..end)?.try_into().ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn whatever_is_read_stays_within_what_was_written(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            length in 0u32..200,
            address: u64,
        ) {
            let mut bytes = bytes;
            if let Some(place) = bytes.get_mut(12..16) {
                place.copy_from_slice(&length.to_ne_bytes());
            }
            if let Some(sample) = StackSample::parse(&bytes) {
                prop_assert!(sample.bytes.len() + HEAD_BYTES <= bytes.len());
                let near = sample.stack.wrapping_add(address % 256);
                for address in [address, near] {
                    let held = sample.word(address).is_some();
                    let offset = address.wrapping_sub(sample.stack);
                    prop_assert!(!held || offset + 8 <= sample.bytes.len() as u64);
                }
            }
        }
    }
}
