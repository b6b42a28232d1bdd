//! Drawn variants of fitted functions, and how single messages spread around their mean.

use std::collections::{BTreeMap, BTreeSet};

use super::{DrawnComponent, DrawnFunction, NORMAL_95};
use crate::acg::{curve_mean, quantile_curve};
use crate::fit::{SampleRow, middle_quantiles, moderate, sample_rows, student_95};
use crate::profile::{
    ComponentFunction, LatencyQuantiles, Observation, PiecewiseFunction, Profile, Protocol, RateBound,
    ResidualScale,
};
use crate::random::SeededRandom;
use crate::regression::{cholesky, dot};

/// Which repetitions each draw is fitted to.
pub(super) struct Resampling {
    /// For each draw, how often each repetition counts; empty with fewer than two repetitions.
    pub(super) picks: Vec<BTreeMap<u32, f64>>,
    /// What a draw's distance from the fit is multiplied by: a bootstrap of few repetitions is too narrow.
    widening: f64,
}

impl Resampling {
    pub(super) fn new(profile: &Profile, draws: usize, random: &mut SeededRandom) -> Resampling {
        let repetitions: BTreeSet<u32> = profile.observations_to_use().map(|one| one.repetition).collect();
        let repetitions: Vec<u32> = repetitions.into_iter().collect();
        let count = repetitions.len();
        if count < 2 {
            return Resampling {
                picks: Vec::new(),
                widening: 1.0,
            };
        }
        let pick = |_| {
            let mut counts: BTreeMap<u32, f64> = BTreeMap::new();
            for _ in 0..count {
                *counts.entry(repetitions[random.below(count)]).or_default() += 1.0;
            }
            counts
        };
        let degrees = u32::try_from(count - 1).unwrap_or(u32::MAX);
        Resampling {
            picks: (0..draws).map(pick).collect(),
            widening: (count as f64 / (count as f64 - 1.0)).sqrt() * student_95(degrees) / NORMAL_95,
        }
    }
}

pub(super) fn drawn_component(
    function: &ComponentFunction,
    residuals: ResidualScale,
    rows: &[&Observation],
    resampling: &Resampling,
    draws: usize,
    random: &mut SeededRandom,
) -> DrawnComponent {
    let latency_rows = sample_rows(&moderate(rows), |one| one.latency_us);
    let cpu_rows = sample_rows(rows, |one| one.cpu_us);
    let mut drawn = |function, rows: &[SampleRow]| DrawnFunction {
        residuals,
        ..drawn_function(function, rows, resampling, draws, random)
    };
    DrawnComponent {
        latency: drawn(&function.latency_us, &latency_rows),
        cpu: drawn(&function.cpu_us, &cpu_rows),
    }
}

fn drawn_function(
    function: &PiecewiseFunction,
    rows: &[SampleRow],
    resampling: &Resampling,
    draws: usize,
    random: &mut SeededRandom,
) -> DrawnFunction {
    let mut coefficients = vec![function.coefficients.clone()];
    let mut misfit_us = vec![0.0];
    let lower = cholesky(&function.covariance);
    for draw in 0..draws {
        let refitted = resampling
            .picks
            .get(draw)
            .and_then(|picks| refit(function, rows, picks));
        coefficients.push(match refitted {
            Some(refitted) => widened(&function.coefficients, &refitted, resampling.widening),
            None => from_covariance(function, &lower, random),
        });
        misfit_us.push(misfit(function, random.uniform()));
    }
    DrawnFunction {
        shape: function.clone(),
        coefficients,
        misfit_us,
        residuals: ResidualScale::Proportional,
    }
}

fn refit(function: &PiecewiseFunction, rows: &[SampleRow], picks: &BTreeMap<u32, f64>) -> Option<Vec<f64>> {
    let picked: Vec<SampleRow> = rows
        .iter()
        .filter_map(|row| {
            let weight = row.weight * picks.get(&row.repetition)?;
            Some(SampleRow { weight, ..*row })
        })
        .collect();
    function.refit(&picked)
}

fn widened(fitted: &[f64], drawn: &[f64], widening: f64) -> Vec<f64> {
    fitted
        .iter()
        .zip(drawn)
        .map(|(fitted, drawn)| fitted + widening * (drawn - fitted))
        .collect()
}

fn from_covariance(function: &PiecewiseFunction, lower: &[Vec<f64>], random: &mut SeededRandom) -> Vec<f64> {
    let widening = student_95(function.degrees_of_freedom) / NORMAL_95;
    let normal: Vec<f64> = lower.iter().map(|_| random.normal()).collect();
    function
        .coefficients
        .iter()
        .zip(lower)
        .map(|(coefficient, row)| coefficient + widening * dot(row, &normal))
        .collect()
}

/// A residual at random: on the lines between the quantiles that are kept, and beyond the outermost ones as these are.
fn misfit(function: &PiecewiseFunction, share: f64) -> f64 {
    let quantiles = &function.residual_quantiles;
    let at = quantiles.partition_point(|one| one.share < share);
    match (at.checked_sub(1).map(|below| quantiles[below]), quantiles.get(at)) {
        (Some(below), Some(above)) => {
            let part = (share - below.share) / (above.share - below.share);
            below.us + (above.us - below.us) * part
        }
        (Some(outermost), None) => outermost.us,
        (None, outermost) => outermost.map_or(0.0, |one| one.us),
    }
}

/// How messages' latencies spread around their mean, by protocol: what the client saw of the whole proxy where the profile
/// has it, else what the components' quantiles say together.
pub(super) fn message_ratios(
    profile: &Profile,
    functions: &[ComponentFunction],
) -> BTreeMap<Protocol, [(f64, f64); 6]> {
    let mut curves = BTreeMap::new();
    for protocol in Protocol::ALL {
        let totals: Vec<[f64; 4]> = profile
            .totals
            .iter()
            .filter(|total| total.load.protocol == protocol && total.load.variant.is_empty())
            .filter(|total| total.added_latency_us > 0.0)
            // Several calls at a time, while others held the cores: the spread is that of a queue for cores.
            .filter(|total| total.load.in_flight <= 1 || total.bound() != Some(RateBound::OthersWork))
            .filter_map(|total| {
                let quantiles = total.added_quantiles_us?;
                Some(
                    quantiles
                        .points()
                        .map(|(_, value)| value / total.added_latency_us),
                )
            })
            .collect();
        let quantiles = middle_quantiles(&totals).or_else(|| ratio_of_components(protocol, functions));
        if let Some(quantiles) = quantiles {
            curves.insert(protocol, normalised(quantiles.points().map(|(_, value)| value)));
        }
    }
    curves
}

/// Components weighted by their mean latency, as if a message that is slow in one were slow in all: the wider assumption.
fn ratio_of_components(protocol: Protocol, functions: &[ComponentFunction]) -> Option<LatencyQuantiles> {
    let mut sums = [0.0; 4];
    let mut whole = 0.0;
    let mut is_known = false;
    for function in functions
        .iter()
        .filter(|one| one.protocol == protocol && one.variant.is_empty())
    {
        let observed = &function.latency_us.observed;
        let mean = function
            .latency_us
            .value_at(observed.size_bytes_min, observed.rate_per_s_min)
            .max(0.0);
        let ratios = function
            .message_ratio
            .map_or([1.0; 4], |ratio| ratio.points().map(|(_, value)| value));
        is_known |= function.message_ratio.is_some();
        whole += mean;
        for (sum, ratio) in sums.iter_mut().zip(ratios) {
            *sum += mean * ratio;
        }
    }
    (is_known && whole > 0.0).then(|| LatencyQuantiles {
        p10: sums[0] / whole,
        p50: sums[1] / whole,
        p90: sums[2] / whole,
        p99: sums[3] / whole,
    })
}

/// Quantiles in ascending order, as a curve whose mean is 1.
fn normalised(mut quantiles: [f64; 4]) -> [(f64, f64); 6] {
    quantiles.sort_by(f64::total_cmp);
    let mut curve = quantile_curve(quantiles);
    let mean = curve_mean(&curve);
    if mean > 0.0 {
        curve.iter_mut().for_each(|(_, value)| *value /= mean);
        return curve;
    }
    quantile_curve([1.0; 4])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{ObservedRange, ResidualQuantile};

    #[test]
    fn residuals_are_drawn_as_often_as_their_shares_say() {
        let function = |quantiles: &[(f64, f64)]| PiecewiseFunction {
            size_knots_bytes: vec![],
            has_rate_term: false,
            rate_knots_per_s: vec![],
            coefficients: vec![0.0; 2],
            covariance: vec![vec![0.0; 2]; 2],
            degrees_of_freedom: 4,
            residual_quantiles: quantiles
                .iter()
                .map(|(share, us)| ResidualQuantile {
                    share: *share,
                    us: *us,
                })
                .collect(),
            observed: ObservedRange {
                size_bytes_min: 64.0,
                size_bytes_max: 64.0,
                rate_per_s_min: 1.0,
                rate_per_s_max: 1.0,
            },
        };
        let lopsided = function(&[(0.05, -2.0), (0.9, 0.0), (0.95, 10.0)]);
        for (share, expected) in [
            (0.0, -2.0),
            (0.05, -2.0),
            (0.475, -1.0),
            (0.9, 0.0),
            (0.925, 5.0),
            (1.0, 10.0),
        ] {
            let drawn = misfit(&lopsided, share);
            assert!((drawn - expected).abs() < 1e-9, "{share}: {drawn}");
        }
        assert_eq!(misfit(&function(&[]), 0.5), 0.0);
    }
}
