//! Chance, from a seed: what is drawn for a call depends on the seed, the call's number and the purpose alone.

use provost_engine::Nanos;
use provost_random::{fraction, mix};

/// How likely something is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Chance(f64);

/// What a draw is for: each has its own, so that one fault does not depend on the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DrawPurpose {
    Delay = 1,
    DelayTime = 2,
    Abort = 3,
    ResponseDelay = 4,
    ResponseDelayTime = 5,
    ResponseAbort = 6,
}

/// The draws of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallDraws {
    pub(crate) seed: u64,
    /// How many calls that match were before it.
    pub(crate) number: u64,
}

impl Chance {
    pub(crate) fn of_percentage(percentage: f64) -> Chance {
        Chance(percentage / 100.0)
    }
}

impl CallDraws {
    pub(crate) fn hits(self, chance: Chance, purpose: DrawPurpose) -> bool {
        fraction(self.bits(purpose)) < chance.0
    }

    /// A time from 0 to `spread`, both included.
    pub(crate) fn time(self, spread: Nanos, purpose: DrawPurpose) -> Nanos {
        let scaled = u128::from(self.bits(purpose)) * (u128::from(spread) + 1);
        (scaled >> 64) as Nanos
    }

    /// SplitMix64 of seed, number and purpose.
    fn bits(self, purpose: DrawPurpose) -> u64 {
        let place = self.number.wrapping_mul(8).wrapping_add(purpose as u64);
        mix(mix(self.seed).wrapping_add(place.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_are_hit_as_the_percentage_says() {
        for percentage in [0.1, 10.0, 50.0, 99.0] {
            let chance = Chance::of_percentage(percentage);
            let draws = (0..100_000).map(|number| CallDraws { seed: 7, number });
            let hits = draws.filter(|draw| draw.hits(chance, DrawPurpose::Abort)).count() as f64;
            let expected = 1000.0 * percentage;
            assert!(
                (hits - expected).abs() < 5.0 * expected.sqrt(),
                "{hits} of {expected}"
            );
        }
        let certain = Chance::of_percentage(100.0);
        assert!((0..1000).all(|number| CallDraws { seed: 0, number }.hits(certain, DrawPurpose::Delay)));
    }

    #[test]
    fn times_fill_their_range_evenly() {
        let draws = (0..10_000).map(|number| CallDraws { seed: 3, number }.time(9, DrawPurpose::DelayTime));
        let mut counts = [0; 10];
        draws.for_each(|time| counts[time as usize] += 1);
        assert!(
            counts.iter().all(|count| (850..1150).contains(count)),
            "{counts:?}"
        );
        assert_eq!(
            CallDraws { seed: 3, number: 1 }.time(0, DrawPurpose::DelayTime),
            0
        );
    }
}
