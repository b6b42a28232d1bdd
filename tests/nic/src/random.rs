//! A generator of numbers from a seed (xorshift64*).

/// Numbers that a seed determines.
#[derive(Clone, Debug)]
pub struct SeededRandom(u64);

impl SeededRandom {
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut random = Self(seed ^ 0x9e37_79b9_7f4a_7c15);
        random.0 |= 1;
        for _ in 0..8 {
            random.draw();
        }
        random
    }

    pub fn draw(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below this one.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.draw()) * u128::from(bound.max(1))) >> 64) as u64
    }

    /// True with this probability, in parts per thousand.
    pub fn chance(&mut self, per_mille: u32) -> bool {
        self.below(1000) < per_mille.into()
    }
}
