//! A fingerprint of all that happened, in order (FNV-1a).

/// The fingerprint so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trace(u64);

impl Trace {
    pub(crate) fn new() -> Trace {
        Trace(0xcbf2_9ce4_8422_2325)
    }

    /// Adds an event.
    pub(crate) fn note(&mut self, words: &[u64]) {
        for byte in words.iter().flat_map(|word| word.to_le_bytes()) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    pub(crate) fn value(self) -> u64 {
        self.0
    }
}
