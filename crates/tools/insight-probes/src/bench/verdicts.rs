//! What a run says about the targets: met, missed, or not decided by so few figures.

use std::fmt;

use serde::Serialize;

/// Whether a target was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TargetOutcome {
    Met,
    Missed,
    /// The figures' own spread reaches over the bound.
    Undecided,
}

/// A target with what was measured of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TargetVerdict {
    pub target: String,
    pub outcome: TargetOutcome,
    /// The figure, and where it lies with a confidence of 90 %.
    pub value: f64,
    pub low: f64,
    pub high: f64,
    pub unit: &'static str,
    /// What the figure leaves open, in words; empty where there is nothing to say.
    pub remark: String,
}

impl TargetVerdict {
    /// Of the median over runs, whose distance from zero shall not exceed a bound; `None` without a run.
    pub(super) fn of_distance(
        target: impl Into<String>,
        runs: &[f64],
        bound: f64,
        unit: &'static str,
    ) -> Option<TargetVerdict> {
        TargetVerdict::of_median(target, runs, bound, unit, |low, high| {
            if low <= 0.0 && high >= 0.0 {
                (0.0, low.abs().max(high))
            } else {
                (low.abs().min(high.abs()), low.abs().max(high.abs()))
            }
        })
    }

    /// Of the median over runs, which shall not exceed a bound.
    pub(super) fn of_bound(
        target: impl Into<String>,
        runs: &[f64],
        bound: f64,
        unit: &'static str,
    ) -> Option<TargetVerdict> {
        TargetVerdict::of_median(target, runs, bound, unit, |low, high| (low, high))
    }

    /// `judged` says of the median's interval what is held against the bound: the least and the most that it may be.
    fn of_median(
        target: impl Into<String>,
        runs: &[f64],
        bound: f64,
        unit: &'static str,
        judged: impl Fn(f64, f64) -> (f64, f64),
    ) -> Option<TargetVerdict> {
        let (value, low, high) = median_interval(runs)?;
        let (least, most) = judged(low, high);
        let outcome = if most <= bound {
            TargetOutcome::Met
        } else if least > bound {
            TargetOutcome::Missed
        } else {
            TargetOutcome::Undecided
        };
        Some(TargetVerdict {
            target: target.into(),
            outcome,
            value,
            low,
            high,
            unit,
            remark: String::new(),
        })
    }

    /// Of a share of cases, in per cent, which shall lie between two bounds. One that lies outside is missed only where
    /// so many cases could not have come out so by chance.
    pub(super) fn of_share(
        target: impl Into<String>,
        hits: usize,
        cases: usize,
        bounds: (f64, f64),
    ) -> Option<TargetVerdict> {
        if cases == 0 {
            return None;
        }
        let value = hits as f64 / cases as f64 * 100.0;
        let (low, high) = share_interval(hits as f64, cases as f64);
        let outcome = if (bounds.0..=bounds.1).contains(&value) {
            TargetOutcome::Met
        } else if high < bounds.0 || low > bounds.1 {
            TargetOutcome::Missed
        } else {
            TargetOutcome::Undecided
        };
        Some(TargetVerdict {
            target: target.into(),
            outcome,
            value,
            low,
            high,
            unit: "%",
            remark: format!("{hits} of {cases}"),
        })
    }
}

impl fmt::Display for TargetVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outcome = match self.outcome {
            TargetOutcome::Met => "met",
            TargetOutcome::Missed => "MISSED",
            TargetOutcome::Undecided => "undecided",
        };
        let (value, low, high, unit) = (self.value, self.low, self.high, self.unit);
        write!(
            f,
            "{outcome:<10} {}: {value:.1} {unit} ({low:.1} to {high:.1})",
            self.target
        )?;
        if self.remark.is_empty() {
            Ok(())
        } else {
            write!(f, "; {}", self.remark)
        }
    }
}

/// The 95th percentile of the normal distribution: 90 % lie within so many deviations on both sides.
const NORMAL_95: f64 = 1.645;

/// The median, and between which of the values it lies with a confidence of 90 % (order statistics; of few values, all).
fn median_interval(values: &[f64]) -> Option<(f64, f64, f64)> {
    let mut sorted: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    let count = sorted.len();
    let value = crate::profile::median(sorted.clone())?;
    let reach = NORMAL_95 * (count as f64).sqrt() / 2.0;
    let lowest = (count as f64 / 2.0 - reach).floor().max(0.0) as usize;
    Some((value, sorted[lowest], sorted[count - 1 - lowest]))
}

/// Where a share lies of which so many cases are known, in per cent (Wilson's interval).
fn share_interval(hits: f64, cases: f64) -> (f64, f64) {
    let square = NORMAL_95 * NORMAL_95;
    let share = hits / cases;
    let middle = (share + square / (2.0 * cases)) / (1.0 + square / cases);
    let reach = NORMAL_95 / (1.0 + square / cases)
        * (share * (1.0 - share) / cases + square / (4.0 * cases * cases)).sqrt();
    ((middle - reach) * 100.0, (middle + reach) * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spread_of_the_runs_decides_whether_a_target_is_decided() {
        let outcome = |runs: &[f64]| TargetVerdict::of_distance("", runs, 5.0, "%").map(|one| one.outcome);
        assert_eq!(outcome(&[-1.0, 2.0, 4.0]), Some(TargetOutcome::Met));
        assert_eq!(outcome(&[-9.0, -7.0, -6.0]), Some(TargetOutcome::Missed));
        assert_eq!(outcome(&[-9.0, -7.0, 6.0]), Some(TargetOutcome::Undecided));
        assert_eq!(outcome(&[4.0, 4.5, 6.0]), Some(TargetOutcome::Undecided));
        assert_eq!(outcome(&[f64::NAN]), None);
        // Of many runs, single ones that are far off do not count.
        let mut many = vec![1.0; 50];
        many.extend([90.0, -90.0]);
        assert_eq!(outcome(&many), Some(TargetOutcome::Met));
    }

    #[test]
    fn a_bound_holds_on_one_side_only() {
        let outcome = |runs: &[f64]| TargetVerdict::of_bound("", runs, 10.0, "%").map(|one| one.outcome);
        assert_eq!(outcome(&[-50.0, -40.0]), Some(TargetOutcome::Met));
        assert_eq!(outcome(&[11.0, 12.0]), Some(TargetOutcome::Missed));
        assert_eq!(outcome(&[4.0, 9.0, 12.0]), Some(TargetOutcome::Undecided));
    }

    #[test]
    fn a_share_of_few_cases_is_not_missed_by_one_of_them() {
        let outcome = |hits, cases| {
            let verdict = TargetVerdict::of_share("", hits, cases, (85.0, 97.0));
            verdict.map(|one| one.outcome)
        };
        assert_eq!(outcome(8, 9), Some(TargetOutcome::Met));
        assert_eq!(outcome(9, 9), Some(TargetOutcome::Undecided));
        assert_eq!(outcome(2, 9), Some(TargetOutcome::Missed));
        assert_eq!(outcome(0, 0), None);
    }
}
