//! Choices drawn from a run of bytes, so that a failure shrinks with the bytes. At their end every draw is 0.

pub(crate) struct Entropy<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Entropy<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Entropy<'a> {
        Entropy { bytes, at: 0 }
    }

    pub(crate) fn is_spent(&self) -> bool {
        self.at >= self.bytes.len()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        let byte = self.bytes.get(self.at).copied().unwrap_or(0);
        self.at += 1;
        byte
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        usize::from(self.byte()) % bound.max(1)
    }

    pub(crate) fn chance(&mut self, one_in: usize) -> bool {
        self.below(one_in) == one_in - 1
    }

    pub(crate) fn long(&mut self) -> u64 {
        (0..8).fold(0, |value, _| value << 8 | u64::from(self.byte()))
    }

    /// A number that is as likely small, large or at an edge.
    pub(crate) fn number(&mut self) -> u64 {
        match self.below(6) {
            0 => 0,
            1 => u64::from(self.byte()),
            2 => u64::from(self.byte()).wrapping_neg(),
            3 => self.long(),
            4 => self.long() >> self.below(64),
            _ => [
                i64::MIN as u64,
                i64::MAX as u64,
                u64::MAX,
                1 << 31,
                (1 << 31) - 1,
                u64::from(u32::MAX),
            ][self.below(6)],
        }
    }
}
