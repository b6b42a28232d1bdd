//! Numbers that a seed determines.

pub use provost_random::SeededRandom as Random;

/// A generator for a part of a campaign, so that parts do not disturb each other's numbers.
#[must_use]
pub fn random_of(seed: u64, part: u64) -> Random {
    Random::new(seed ^ part.wrapping_mul(0xD6E8_FEB8_6659_FD93))
}

/// Numbers that are more often than not near a bound that somebody checks.
pub trait AwkwardNumbers {
    /// The next of them.
    fn awkward(&mut self) -> u32;
}

impl AwkwardNumbers for Random {
    fn awkward(&mut self) -> u32 {
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
