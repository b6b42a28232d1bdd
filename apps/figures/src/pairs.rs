//! Two setups held against each other, pair by pair.

use std::fmt;

use serde::Serialize;

use crate::outcome::Bound;
use crate::report::Report;
use crate::summary::{QUIET_CORES_MAX, median};

/// What one way is to another, turn by turn.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Pairs(Vec<f64>);

impl Pairs {
    /// What is bounded of the figures of two ways. Turns in which something else ran count only if there are no others.
    pub fn of(over: &[Report], under: &[Report], figure: fn(&Report) -> f64, bound: Bound) -> Pairs {
        let is_quiet = |run: &Report| run.foreign_cores <= QUIET_CORES_MAX;
        let pairs = || over.iter().zip(under);
        let quiet = pairs().filter(|(over, under)| is_quiet(over) && is_quiet(under));
        let value = |(over, under): (&Report, &Report)| bound.of(figure(over), figure(under));
        let values: Vec<f64> = quiet.map(value).collect();
        Pairs::new(if values.is_empty() {
            pairs().map(value).collect()
        } else {
            values
        })
    }

    /// Of what is known; what is not finite does not count.
    pub fn new(mut values: Vec<f64>) -> Pairs {
        values.retain(|value| value.is_finite());
        values.sort_by(f64::total_cmp);
        Pairs(values)
    }

    /// Between which the middle half lies; `None` of fewer than two.
    pub fn middle_half(&self) -> Option<[f64; 2]> {
        (self.0.len() > 1).then(|| [self.at(1), self.at(3)])
    }

    /// The value past so many quarters, outwards of the middle.
    fn at(&self, quarter: usize) -> f64 {
        let quarters = (self.0.len() - 1) * quarter;
        let place = if quarter < 2 {
            quarters / 4
        } else {
            quarters.div_ceil(4)
        };
        self.0[place]
    }

    /// The greatest of them.
    pub fn most(&self) -> Option<f64> {
        self.0.last().copied()
    }

    pub fn median(&self) -> Option<f64> {
        median(self.0.clone())
    }
}

/// How far they lie apart: the least and the most, and between which the middle half lies.
impl fmt::Display for Pairs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.len() {
            0 => write!(f, "of no pair"),
            count => write!(
                f,
                "of {count} pairs {:.3} to {:.3}, half of them {:.3} to {:.3}",
                self.at(0),
                self.at(4),
                self.at(1),
                self.at(3)
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(rates: &[(f64, f64)]) -> Vec<Report> {
        let run = |(rps, foreign_cores): &(f64, f64)| Report {
            rps: *rps,
            foreign_cores: *foreign_cores,
            ..Report::default()
        };
        rates.iter().map(run).collect()
    }

    #[test]
    fn a_disturbed_turn_counts_only_where_all_were() {
        let rate = |run: &Report| run.rps;
        let (over, under) = (
            runs(&[(95.0, 0.0), (20.0, 0.9), (97.0, 0.1)]),
            runs(&[(100.0, 0.0); 3]),
        );
        let pairs = Pairs::of(&over, &under, rate, Bound::RatioAtLeast(0.9));
        assert_eq!(pairs.median(), Some(0.96));
        assert_eq!(
            pairs.to_string(),
            "of 2 pairs 0.950 to 0.970, half of them 0.950 to 0.970"
        );
        let noisy = Pairs::of(&runs(&[(20.0, 0.9)]), &under, rate, Bound::DifferenceAtMost(0.0));
        assert_eq!(noisy.median(), Some(-80.0));
        assert_eq!(Pairs::new(vec![f64::NAN]).to_string(), "of no pair");
    }
}
