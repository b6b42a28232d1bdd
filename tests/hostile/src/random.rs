//! Numbers that a seed determines.

/// A generator (splitmix64).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator for a part of a campaign, so that parts do not disturb each other's numbers.
    #[must_use]
    pub fn new(seed: u64, part: u64) -> Random {
        Random(seed ^ part.wrapping_mul(0xD6E8_FEB8_6659_FD93))
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.number() % bound
    }

    /// Yes, once in so many times.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// One of them.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len() as u64) as usize]
    }

    /// So many bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.number() as u8).collect()
    }

    /// A number that is more often than not near a bound that somebody checks.
    pub fn awkward(&mut self) -> u32 {
        let near = self.below(5) as u32;
        match self.below(8) {
            0 => near,
            1 => u32::MAX - near,
            2 => (1 << 31) - 2 + near,
            3 => (1u32 << self.below(32)).wrapping_sub(2).wrapping_add(near),
            4 => provost_wire::limits::SEND_WINDOW - 2 + near,
            _ => self.number() as u32,
        }
    }
}
