//! A small seeded random source (SplitMix64, Steele et al., OOPSLA '14): the same numbers from the same seed.

/// A seeded random source.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A source that gives the same numbers for the same seed.
    #[must_use]
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound` (0 if that is 0).
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.number()) * u128::from(bound)) >> 64) as u64
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True once in `of` times on average; never for 0.
    pub fn one_in(&mut self, of: u64) -> bool {
        of != 0 && self.below(of) == 0
    }
}
