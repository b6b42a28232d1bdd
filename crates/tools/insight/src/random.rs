//! Chance, from a seed (SplitMix64): the same seed gives the same prediction.

/// A source of numbers that a seed determines.
#[derive(Clone, Debug)]
pub struct SeededRandom(u64);

impl SeededRandom {
    /// The numbers of this seed.
    #[must_use]
    pub const fn new(seed: u64) -> SeededRandom {
        SeededRandom(seed)
    }

    /// A source that is independent of this one and of those with other labels.
    #[must_use]
    pub fn fork(&self, label: u64) -> SeededRandom {
        let mut child = SeededRandom(self.0 ^ label.wrapping_mul(0xd134_2543_de82_ef95));
        SeededRandom(child.bits())
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from 0 to below 1.
    pub fn uniform(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// An index below `end`, or 0 if `end` is 0.
    pub fn below(&mut self, end: usize) -> usize {
        ((self.uniform() * end as f64) as usize).min(end.saturating_sub(1))
    }

    /// A number of the standard normal distribution (Box and Muller).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }

    /// How many of `trials` succeed, each with this probability, as a share. Many trials are drawn from the normal
    /// distribution.
    pub fn binomial_share(&mut self, trials: u64, probability: f64) -> f64 {
        const EXACT_MAX: u64 = 256;
        if trials == 0 {
            return probability;
        }
        if trials <= EXACT_MAX {
            let hits = (0..trials).filter(|_| self.uniform() < probability).count();
            return hits as f64 / trials as f64;
        }
        let deviation = (probability * (1.0 - probability) / trials as f64).sqrt();
        (probability + deviation * self.normal()).clamp(0.0, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_those_of_the_distributions() {
        let mut random = SeededRandom::new(1);
        let normal: Vec<f64> = (0..20_000).map(|_| random.normal()).collect();
        let mean = normal.iter().sum::<f64>() / 20_000.0;
        let square = normal.iter().map(|x| x * x).sum::<f64>() / 20_000.0;
        assert!(
            mean.abs() < 0.03 && (square - 1.0).abs() < 0.05,
            "{mean} {square}"
        );
        for trials in [50, 5_000] {
            let shares: Vec<f64> = (0..2_000).map(|_| random.binomial_share(trials, 0.3)).collect();
            let mean = shares.iter().sum::<f64>() / 2_000.0;
            assert!((mean - 0.3).abs() < 0.01, "{mean}");
        }
    }

    #[test]
    fn forks_differ_and_repeat() {
        let random = SeededRandom::new(7);
        assert_eq!(random.fork(1).bits(), random.fork(1).bits());
        assert_ne!(random.fork(1).bits(), random.fork(2).bits());
    }
}
