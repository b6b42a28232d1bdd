//! Numbers that a seed determines (SplitMix64, Steele et al., OOPSLA '14): for simulations and tests that can be had
//! again, and for choices that nobody gains from guessing. Not for secrets.
#![forbid(unsafe_code)]

/// A generator. The same seed gives the same numbers.
#[derive(Clone, Debug)]
pub struct SeededRandom(u64);

impl SeededRandom {
    /// The generator of a seed.
    #[must_use]
    pub const fn new(seed: u64) -> SeededRandom {
        SeededRandom(seed)
    }

    pub const fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `bound` (0 if that is 0).
    pub const fn below(&mut self, bound: u64) -> u64 {
        ((self.number() as u128 * bound as u128) >> 64) as u64
    }

    /// A number from `low` to `high`, both included.
    pub const fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True once in `of` times on average; never for 0.
    pub const fn one_in(&mut self, of: u64) -> bool {
        of != 0 && self.below(of) == 0
    }

    /// Whether something happens that does with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        probability > 0.0 && fraction(self.number()) <= probability
    }

    /// So many bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.number() as u8).collect()
    }

    /// A place in something so long (0 if that is 0).
    pub const fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// One of `items`.
    ///
    /// # Panics
    /// If there is none.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.index(items.len())]
    }
}

/// Spreads a number over 64 bits, so that numbers which differ little become ones that differ much.
#[must_use]
pub const fn mix(number: u64) -> u64 {
    let mixed = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// A number as a fraction, from 0 to less than 1.
#[must_use]
pub const fn fraction(number: u64) -> f64 {
    (number >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_published_generator() {
        let mut random = SeededRandom::new(1_234_567);
        assert_eq!(
            [(); 3].map(|()| random.number()),
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423
            ]
        );
    }

    #[test]
    fn bounds_hold_and_all_below_them_comes() {
        let mut random = SeededRandom::new(7);
        let mut seen = [false; 10];
        for _ in 0..1000 {
            seen[random.below(10) as usize] = true;
            assert!((3..=5).contains(&random.between(3, 5)));
            assert!(random.chance(1.0) && !random.chance(0.0));
        }
        assert!(seen.iter().all(|seen| *seen));
        assert_eq!((random.below(0), random.one_in(0)), (0, false));
        assert!([1, 2].contains(random.pick(&[1, 2])));
    }
}
