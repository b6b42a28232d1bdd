//! From observations to functions: per component, latency and processor time as piecewise-linear functions of size and
//! rate (MeshInsight, section 4.1, equations 1 and 2, with slopes that may change).
//!
//! Rows are weighted by the inverse square of their cell's mean, so that a function is as right, in per cent, for small
//! messages as for large ones. A knot is taken only where the Bayesian information criterion asks for it.

use std::collections::{BTreeMap, BTreeSet};

use crate::profile::{
    Component, ComponentFunction, FitSection, LatencyQuantiles, Observation, ObservedRange, Passage,
    PiecewiseFunction, Profile, Protocol, ResidualQuantile, ResidualScale,
};
use crate::regression::{LinearSystem, dot};

/// Slopes over size change at most so often, and slopes over rate once.
const SIZE_KNOTS_MAX: usize = 2;
const RATE_KNOTS_MAX: usize = 1;
/// A term is taken if it lowers the criterion by so much.
const CRITERION_GAIN_MIN: f64 = 6.0;
/// Rates that differ by less than this factor are one rate.
const RATE_FACTOR_MIN: f64 = 1.5;
/// With more than one call in flight, a rate above this share of the highest that was reached is taken for saturation: there
/// a latency is that of the queue in front of the proxy, which a prediction for moderate load must not learn from.
const SATURATED_SHARE: f64 = 0.8;
/// Cells whose mean is below this share of the component's mean are weighted as if theirs were this share.
const WEIGHT_FLOOR_SHARE: f64 = 0.2;
/// Where a function is less than this share of its reference, residuals are as if it were this share.
const RESIDUAL_FLOOR_SHARE: f64 = 0.05;
/// Shares of the residuals that are kept.
const RESIDUAL_SHARES: [f64; 5] = [0.05, 0.25, 0.5, 0.75, 0.95];

/// Why nothing could be fitted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FitError {
    /// There is nothing to fit.
    #[error("the profile has no observations: take one with `provost insight profile`")]
    Empty,
    /// There are sums of all components alone.
    #[error(
        "the profile has sums of all components and none by itself: take it where the kernel grants tracing (`provost insight doctor` \
         says what is missing), or of Envoy by its access log"
    )]
    SumsAlone,
    /// There is, but of no round is everything there.
    #[error("the profile is partial, and no round is whole ({0}): take it anew")]
    NoWholeRound(String),
}

/// What functions are kept by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FunctionKey {
    pub(crate) protocol: Protocol,
    pub(crate) variant: String,
    pub(crate) component: Component,
    pub(crate) passage: Passage,
}

impl FunctionKey {
    fn of(observation: &Observation) -> FunctionKey {
        FunctionKey {
            protocol: observation.load.protocol,
            variant: observation.load.variant.clone(),
            component: observation.component.clone(),
            passage: observation.passage,
        }
    }

    pub(crate) fn of_function(function: &ComponentFunction) -> FunctionKey {
        FunctionKey {
            protocol: function.protocol,
            variant: function.variant.clone(),
            component: function.component.clone(),
            passage: function.passage,
        }
    }

    fn name(&self) -> String {
        let variant = match self.variant.as_str() {
            "" => String::new(),
            variant => format!(" ({variant})"),
        };
        format!("{}{variant} {}", self.protocol, self.component)
    }
}

/// Fits functions to a profile's observations.
///
/// # Errors
/// If it has none.
pub fn fit(profile: &Profile) -> Result<FitSection, FitError> {
    let groups = groups(profile);
    if groups.is_empty() {
        return Err(match &profile.partial {
            Some(reason) if !profile.observations.is_empty() => FitError::NoWholeRound(reason.clone()),
            _ if profile.observations.is_empty() && !profile.totals.is_empty() => FitError::SumsAlone,
            _ => FitError::Empty,
        });
    }
    let repetitions: BTreeSet<u32> = profile.observations_to_use().map(|one| one.repetition).collect();
    let mut remarks: Vec<String> = profile.partial_remark().into_iter().collect();
    remarks.extend(profile.lost_remark());
    if repetitions.len() < 3 {
        remarks.push(format!(
            "{} repetition(s): what differs between repetitions is hardly known; take at least 5",
            repetitions.len()
        ));
    }
    let functions = groups
        .iter()
        .map(|(key, rows)| fit_component(key, rows, &mut remarks))
        .collect();
    Ok(FitSection {
        repetitions: u32::try_from(repetitions.len()).unwrap_or(u32::MAX),
        functions,
        residuals: ResidualScale::Proportional,
        remarks,
    })
}

/// The observations by what one function is fitted to.
pub(crate) fn groups(profile: &Profile) -> BTreeMap<FunctionKey, Vec<&Observation>> {
    let mut groups: BTreeMap<FunctionKey, Vec<&Observation>> = BTreeMap::new();
    for observation in profile.observations_to_use() {
        groups
            .entry(FunctionKey::of(observation))
            .or_default()
            .push(observation);
    }
    groups
}

fn fit_component(key: &FunctionKey, rows: &[&Observation], remarks: &mut Vec<String>) -> ComponentFunction {
    let moderate = moderate(rows);
    if moderate.len() < rows.len() {
        remarks.push(format!(
            "{}: {} of {} observations are at saturation and do not count for latency",
            key.name(),
            rows.len() - moderate.len(),
            rows.len()
        ));
    }
    let latency_us = fit_rows(&sample_rows(&moderate, |one| one.latency_us));
    let cpu_us = fit_rows(&sample_rows(rows, |one| one.cpu_us));
    if latency_us.observed.size_bytes_min == latency_us.observed.size_bytes_max {
        remarks.push(format!(
            "{}: one size only: other sizes are taken to cost the same",
            key.name()
        ));
    }
    ComponentFunction {
        component: key.component.clone(),
        protocol: key.protocol,
        variant: key.variant.clone(),
        passage: key.passage,
        latency_us,
        cpu_us,
        message_ratio: message_ratio(rows),
    }
}

/// The observations that are not at saturation.
pub(crate) fn moderate<'a>(rows: &[&'a Observation]) -> Vec<&'a Observation> {
    let mut highest: BTreeMap<u64, f64> = BTreeMap::new();
    for row in rows {
        let rate = highest.entry(row.load.size_bytes.to_bits()).or_default();
        *rate = rate.max(row.load.rate_per_s);
    }
    let is_moderate = |row: &&Observation| {
        let highest = highest
            .get(&row.load.size_bytes.to_bits())
            .copied()
            .unwrap_or(0.0);
        row.load.in_flight <= 1 || row.load.rate_per_s <= SATURATED_SHARE * highest
    };
    let kept: Vec<_> = rows.iter().copied().filter(is_moderate).collect();
    // A profile with nothing else is fitted to what it has.
    if kept.is_empty() { rows.to_vec() } else { kept }
}

/// A row of a fit: where it was observed, in which repetition, and what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SampleRow {
    pub(crate) size_bytes: f64,
    pub(crate) rate_per_s: f64,
    pub(crate) repetition: u32,
    pub(crate) value: f64,
    pub(crate) weight: f64,
}

/// Rows with their weights.
pub(crate) fn sample_rows(rows: &[&Observation], value: impl Fn(&Observation) -> f64) -> Vec<SampleRow> {
    let mut samples: Vec<SampleRow> = rows
        .iter()
        .map(|row| SampleRow {
            size_bytes: row.load.size_bytes,
            rate_per_s: row.load.rate_per_s,
            repetition: row.repetition,
            value: value(row),
            weight: 1.0,
        })
        .collect();
    let magnitude = samples.iter().map(|row| row.value.abs()).sum::<f64>() / samples.len().max(1) as f64;
    let means = cell_means(&samples, |row| row.value);
    let floor = WEIGHT_FLOOR_SHARE * magnitude;
    for row in &mut samples {
        let mean = means.get(&cell(row)).map_or(0.0, |(mean, _)| *mean);
        let scale = mean.abs().max(floor);
        row.weight = if scale > 0.0 { scale.powi(-2) } else { 1.0 };
    }
    samples
}

/// Rates of one load vary a little from repetition to repetition, so cells are told apart by rounded rates.
fn cell(row: &SampleRow) -> (u64, i64) {
    let step = RATE_FACTOR_MIN.sqrt().ln();
    (
        row.size_bytes.to_bits(),
        (row.rate_per_s.max(1e-3).ln() / step).round() as i64,
    )
}

/// Mean and number of each cell's values.
fn cell_means(rows: &[SampleRow], value: impl Fn(&SampleRow) -> f64) -> BTreeMap<(u64, i64), (f64, usize)> {
    let mut cells: BTreeMap<(u64, i64), (f64, usize)> = BTreeMap::new();
    for row in rows {
        let entry = cells.entry(cell(row)).or_default();
        entry.0 += value(row);
        entry.1 += 1;
    }
    for (sum, count) in cells.values_mut() {
        *sum /= *count as f64;
    }
    cells
}

/// The shape of a function: its terms without their coefficients.
#[derive(Clone, Debug, Default, PartialEq)]
struct FunctionShape {
    size_knots_bytes: Vec<f64>,
    rate_knots_per_s: Vec<f64>,
    has_size_term: bool,
    has_rate_term: bool,
}

impl FunctionShape {
    /// The terms of a row. A size term that was not observed is left out of the fit, and is 0 in the function.
    fn terms(&self, size_bytes: f64, rate_per_s: f64) -> Vec<f64> {
        let mut terms = vec![1.0];
        if self.has_size_term {
            terms.push(size_bytes);
        }
        terms.extend(
            self.size_knots_bytes
                .iter()
                .map(|knot| (size_bytes - knot).max(0.0)),
        );
        if self.has_rate_term {
            terms.push(rate_per_s);
            terms.extend(
                self.rate_knots_per_s
                    .iter()
                    .map(|knot| (rate_per_s - knot).max(0.0)),
            );
        }
        terms
    }

    fn count(&self) -> usize {
        self.terms(0.0, 0.0).len()
    }

    fn system(&self, rows: &[SampleRow]) -> LinearSystem {
        let mut system = LinearSystem::new(self.count());
        for row in rows {
            system.push(self.terms(row.size_bytes, row.rate_per_s), row.value, row.weight);
        }
        system
    }

    /// The Bayesian information criterion of a fit in this shape; less is better. The number of cells, not of rows, says how
    /// much is known: repetitions of a cell are not independent evidence for a knot.
    fn criterion(&self, rows: &[SampleRow], cells: usize) -> f64 {
        const SQUARE_MIN: f64 = 1e-12;
        if self.count() >= cells.max(1) && self.count() > 1 + usize::from(self.has_size_term) {
            return f64::INFINITY;
        }
        let Some(solution) = self.system(rows).solve() else {
            return f64::INFINITY;
        };
        let rows = rows.len() as f64;
        rows * (solution.residual_square / rows).max(SQUARE_MIN).ln() + self.count() as f64 * rows.ln()
    }
}

fn choose_shape(rows: &[SampleRow]) -> FunctionShape {
    let sizes = distinct(rows.iter().map(|row| row.size_bytes), 1.0 + 1e-9);
    let rates = told_rates(rows);
    let cells = cell_means(rows, |row| row.value).len();
    let mut best = FunctionShape {
        has_size_term: sizes.len() > 1,
        ..FunctionShape::default()
    };
    let mut criterion = best.criterion(rows, cells);
    loop {
        let found = larger_shapes(&best, &sizes, &rates)
            .into_iter()
            .map(|shape| (shape.criterion(rows, cells), shape))
            .min_by(|left, right| left.0.total_cmp(&right.0));
        match found {
            Some((lower, shape)) if lower < criterion - CRITERION_GAIN_MIN => {
                (criterion, best) = (lower, shape)
            }
            _ => return best,
        }
    }
}

/// The rates that were observed, if at one size there were several. Else a rate is what a load of one call after the other
/// reached at that size, and says nothing that the size does not.
fn told_rates(rows: &[SampleRow]) -> Vec<f64> {
    let mut by_size: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for row in rows {
        by_size
            .entry(row.size_bytes.to_bits())
            .or_default()
            .push(row.rate_per_s);
    }
    let varies = |rates: Vec<f64>| distinct(rates.into_iter(), RATE_FACTOR_MIN).len() > 1;
    if by_size.into_values().any(varies) {
        distinct(rows.iter().map(|row| row.rate_per_s), RATE_FACTOR_MIN)
    } else {
        Vec::new()
    }
}

/// The shapes with one term more.
fn larger_shapes(shape: &FunctionShape, sizes: &[f64], rates: &[f64]) -> Vec<FunctionShape> {
    let mut larger = Vec::new();
    if shape.size_knots_bytes.len() < SIZE_KNOTS_MAX {
        larger.extend(inner(sizes, &shape.size_knots_bytes).map(|knot| {
            let mut with = shape.clone();
            with.size_knots_bytes.push(knot);
            with.size_knots_bytes.sort_by(f64::total_cmp);
            with
        }));
    }
    if !shape.has_rate_term && rates.len() > 1 {
        larger.push(FunctionShape {
            has_rate_term: true,
            ..shape.clone()
        });
    } else if shape.has_rate_term && shape.rate_knots_per_s.len() < RATE_KNOTS_MAX {
        larger.extend(inner(rates, &shape.rate_knots_per_s).map(|knot| FunctionShape {
            rate_knots_per_s: vec![knot],
            ..shape.clone()
        }));
    }
    larger
}

/// The values between the first and the last, without those that are taken.
fn inner<'a>(values: &'a [f64], taken: &'a [f64]) -> impl Iterator<Item = f64> + 'a {
    let end = values.len().saturating_sub(1);
    let inner = values.get(1..end).unwrap_or_default();
    inner.iter().copied().filter(|value| !taken.contains(value))
}

/// The values that differ by more than a factor, in order.
fn distinct(values: impl Iterator<Item = f64>, factor: f64) -> Vec<f64> {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    let mut kept: Vec<f64> = Vec::new();
    for value in sorted {
        if kept.last().is_none_or(|last| value > last * factor) {
            kept.push(value);
        }
    }
    kept
}

fn fit_rows(rows: &[SampleRow]) -> PiecewiseFunction {
    let shape = choose_shape(rows);
    let solution = shape.system(rows).solve();
    let coefficients = solution.as_ref().map_or_else(
        || vec![0.0; shape.count()],
        |solution| solution.coefficients.clone(),
    );
    let inverse = solution.as_ref().map_or_else(
        || vec![vec![0.0; shape.count()]; shape.count()],
        |solution| solution.inverse.clone(),
    );
    let spare = rows.len().saturating_sub(shape.count()).max(1);
    let variance = solution.map_or(0.0, |solution| solution.residual_square) / spare as f64;
    let mut covariance: Vec<Vec<f64>> = inverse
        .into_iter()
        .map(|row| row.into_iter().map(|entry| entry * variance).collect())
        .collect();
    let residuals: Vec<SampleRow> = rows
        .iter()
        .map(|row| SampleRow {
            value: row.value - dot(&shape.terms(row.size_bytes, row.rate_per_s), &coefficients),
            ..*row
        })
        .collect();
    let (repetitions, between) = repetition_variance(&residuals);
    covariance[0][0] += between;
    let mut function = PiecewiseFunction {
        size_knots_bytes: shape.size_knots_bytes.clone(),
        has_rate_term: shape.has_rate_term,
        rate_knots_per_s: shape.rate_knots_per_s.clone(),
        coefficients,
        covariance,
        degrees_of_freedom: u32::try_from(spare.min(repetitions.saturating_sub(1).max(1)))
            .unwrap_or(u32::MAX),
        residual_quantiles: Vec::new(),
        observed: observed_range(rows),
    };
    if !shape.has_size_term {
        function = with_empty_size_term(function);
    }
    let at_reference: Vec<SampleRow> = residuals
        .iter()
        .map(|row| SampleRow {
            value: row.value / function.residual_factor(function.value_at(row.size_bytes, row.rate_per_s)),
            ..*row
        })
        .collect();
    function.residual_quantiles = residual_quantiles(&at_reference, shape.count());
    function
}

/// A function that does not depend on the size still has the term, which is 0.
fn with_empty_size_term(mut function: PiecewiseFunction) -> PiecewiseFunction {
    function.coefficients.insert(1, 0.0);
    for row in &mut function.covariance {
        row.insert(1, 0.0);
    }
    function
        .covariance
        .insert(1, vec![0.0; function.coefficients.len()]);
    function
}

/// What is common to all rows of a repetition (a machine that was busier that minute) does not average out over rows: the
/// number of repetitions, and the variance that it leaves in the mean.
fn repetition_variance(residuals: &[SampleRow]) -> (usize, f64) {
    let mut by_repetition: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    for row in residuals {
        by_repetition.entry(row.repetition).or_default().push(row.value);
    }
    let count = by_repetition.len();
    if count < 2 {
        return (count, 0.0);
    }
    let means: Vec<f64> = by_repetition.values().map(|values| mean(values)).collect();
    let all: Vec<f64> = residuals.iter().map(|row| row.value).collect();
    let expected = variance(&all) * count as f64 / residuals.len() as f64;
    (count, (variance(&means) - expected).max(0.0) / count as f64)
}

/// How far the means of cells are from the function, less what the noise of their repetitions explains. A function comes nearer to
/// the cells that it was fitted to than to others, the more so the more terms it has.
fn residual_quantiles(residuals: &[SampleRow], terms: usize) -> Vec<ResidualQuantile> {
    let means = cell_means(residuals, |row| row.value);
    let nearer = means.len() as f64 / means.len().saturating_sub(terms).max(1) as f64;
    let noise = noise_of_means(residuals, &means);
    let mut values: Vec<f64> = means.values().map(|(mean, _)| *mean).collect();
    let square = values.iter().map(|value| value * value).sum::<f64>() / values.len().max(1) as f64;
    let explained = if square > 0.0 {
        (nearer - noise / square).max(0.0).sqrt()
    } else {
        0.0
    };
    values.iter_mut().for_each(|value| *value *= explained);
    values.sort_by(f64::total_cmp);
    RESIDUAL_SHARES
        .into_iter()
        .map(|share| ResidualQuantile {
            share,
            us: quantile(&values, share),
        })
        .collect()
}

/// The variance that the scatter of repetitions leaves in the mean of a cell, in the mean over cells. What is common to all cells of
/// a repetition moves the whole function, and is no part of it; with it goes as much of the scatter as its mean over the cells has.
fn noise_of_means(residuals: &[SampleRow], means: &BTreeMap<(u64, i64), (f64, usize)>) -> f64 {
    let mut common: BTreeMap<u32, (f64, usize)> = BTreeMap::new();
    let beside_mean =
        |row: &SampleRow| Some((row.value - means.get(&cell(row))?.0, means.get(&cell(row))?.1));
    for row in residuals {
        if let Some((beside, _)) = beside_mean(row) {
            let entry = common.entry(row.repetition).or_default();
            entry.0 += beside;
            entry.1 += 1;
        }
    }
    let squares = residuals.iter().filter_map(|row| {
        let (beside, count) = beside_mean(row)?;
        let (sum, rows) = common.get(&row.repetition)?;
        let own = beside - sum / *rows as f64;
        let taken = if *rows > 1 {
            *rows as f64 / (*rows as f64 - 1.0)
        } else {
            1.0
        };
        (count > 1).then(|| taken * own.powi(2) / (count as f64 * (count as f64 - 1.0)))
    });
    squares.sum::<f64>() / means.len().max(1) as f64
}

fn observed_range(rows: &[SampleRow]) -> ObservedRange {
    let least = |value: fn(&SampleRow) -> f64| rows.iter().map(value).fold(f64::INFINITY, f64::min);
    let most = |value: fn(&SampleRow) -> f64| rows.iter().map(value).fold(0.0, f64::max);
    ObservedRange {
        size_bytes_min: least(|row| row.size_bytes),
        size_bytes_max: most(|row| row.size_bytes),
        rate_per_s_min: least(|row| row.rate_per_s),
        rate_per_s_max: most(|row| row.rate_per_s),
    }
}

/// The latencies of single messages as multiples of their mean: the median over the observations that have them.
fn message_ratio(rows: &[&Observation]) -> Option<LatencyQuantiles> {
    let ratios: Vec<[f64; 4]> = rows
        .iter()
        .filter(|row| row.latency_us > 0.0)
        .filter_map(|row| {
            Some(
                row.latency_quantiles_us?
                    .points()
                    .map(|(_, value)| value / row.latency_us),
            )
        })
        .collect();
    middle_quantiles(&ratios)
}

/// The median of each of four quantiles.
pub(crate) fn middle_quantiles(ratios: &[[f64; 4]]) -> Option<LatencyQuantiles> {
    if ratios.is_empty() {
        return None;
    }
    let middle = |at: usize| {
        let mut column: Vec<f64> = ratios.iter().map(|ratio| ratio[at]).collect();
        column.sort_by(f64::total_cmp);
        quantile(&column, 0.5)
    };
    Some(LatencyQuantiles {
        p10: middle(0),
        p50: middle(1),
        p90: middle(2),
        p99: middle(3),
    })
}

/// The quantile of sorted values, between neighbours where it falls between them; 0 of none.
pub(crate) fn quantile(sorted: &[f64], share: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else {
        return 0.0;
    };
    let place = share.clamp(0.0, 1.0) * last as f64;
    let (below, above) = (place.floor() as usize, place.ceil() as usize);
    sorted[below] + (sorted[above] - sorted[below]) * (place - below as f64)
}

pub(crate) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// The variance of a sample.
fn variance(values: &[f64]) -> f64 {
    let mean = mean(values);
    let square: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    square / values.len().saturating_sub(1).max(1) as f64
}

/// The 95th percentile of Student's distribution, within 1 % of the tables from 2 degrees of freedom on.
pub(crate) fn student_95(degrees_of_freedom: u32) -> f64 {
    const NORMAL: f64 = 1.645;
    match degrees_of_freedom {
        0 | 1 => 6.314,
        2 => 2.920,
        3 => 2.353,
        degrees => NORMAL + 1.52 / f64::from(degrees) + 1.4 / f64::from(degrees).powi(2),
    }
}

impl PiecewiseFunction {
    /// The terms at a size and a rate, in the order of the coefficients.
    #[must_use]
    pub fn terms_at(&self, size_bytes: f64, rate_per_s: f64) -> Vec<f64> {
        let shape = FunctionShape {
            size_knots_bytes: self.size_knots_bytes.clone(),
            rate_knots_per_s: self.rate_knots_per_s.clone(),
            has_size_term: true,
            has_rate_term: self.has_rate_term,
        };
        shape.terms(size_bytes, rate_per_s)
    }

    #[must_use]
    pub fn value_at(&self, size_bytes: f64, rate_per_s: f64) -> f64 {
        dot(&self.terms_at(size_bytes, rate_per_s), &self.coefficients)
    }

    /// What residuals are kept for: the larger of the values at the smallest and the largest size, at the lowest rate.
    fn reference_us(&self) -> f64 {
        let at = |size_bytes| self.value_at(size_bytes, self.observed.rate_per_s_min).abs();
        at(self.observed.size_bytes_min).max(at(self.observed.size_bytes_max))
    }

    /// What a residual is multiplied by where the function has this value.
    pub(crate) fn residual_factor(&self, value_us: f64) -> f64 {
        let reference_us = self.reference_us();
        if reference_us > 0.0 {
            (value_us.abs() / reference_us).max(RESIDUAL_FLOOR_SHARE)
        } else {
            1.0
        }
    }

    /// Half the width of the function's 90 % interval at a size and a rate, from its covariance.
    #[must_use]
    pub fn half_width_90_at(&self, size_bytes: f64, rate_per_s: f64) -> f64 {
        let terms = self.terms_at(size_bytes, rate_per_s);
        let variance: f64 = self
            .covariance
            .iter()
            .zip(&terms)
            .map(|(row, term)| term * dot(row, &terms))
            .sum();
        student_95(self.degrees_of_freedom) * variance.max(0.0).sqrt()
    }

    /// Fits other rows in the same shape, such as those of other repetitions; `None` if they do not determine it.
    pub(crate) fn refit(&self, rows: &[SampleRow]) -> Option<Vec<f64>> {
        let has_size_term = self.observed.size_bytes_max > self.observed.size_bytes_min;
        let shape = FunctionShape {
            size_knots_bytes: self.size_knots_bytes.clone(),
            rate_knots_per_s: self.rate_knots_per_s.clone(),
            has_size_term,
            has_rate_term: self.has_rate_term,
        };
        let mut coefficients = shape.system(rows).solve()?.coefficients;
        if !has_size_term {
            coefficients.insert(1, 0.0);
        }
        (coefficients.len() == self.coefficients.len()).then_some(coefficients)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{LoadCell, MachineIdentity, ProfileOrigin, ProxyIdentity};
    use crate::random::SeededRandom;

    /// Observations of `truth(size, rate)`, with noise in per cent, over six sizes, three rates and so many repetitions.
    fn profile(truth: impl Fn(f64, f64) -> f64, noise: f64, repetitions: u32) -> Profile {
        let mut random = SeededRandom::new(5);
        let mut profile = Profile::new(
            ProfileOrigin::Synthetic,
            MachineIdentity::default(),
            ProxyIdentity::default(),
        );
        for repetition in 0..repetitions {
            for size_bytes in [64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0] {
                for rate_per_s in [1000.0, 4000.0, 16000.0] {
                    let value = truth(size_bytes, rate_per_s) * (1.0 + noise * random.normal());
                    profile.observations.push(Observation {
                        component: Component::Read,
                        passage: Passage::Request,
                        load: LoadCell {
                            protocol: Protocol::Tcp,
                            variant: String::new(),
                            size_bytes,
                            rate_per_s: rate_per_s * (1.0 + 0.01 * random.uniform()),
                            in_flight: 1,
                        },
                        repetition,
                        messages: 1000,
                        latency_us: value,
                        cpu_us: value * 1.2,
                        cpu_off_path_us: 0.0,
                        latency_inclusive_us: None,
                        latency_quantiles_us: None,
                    });
                }
            }
        }
        profile
    }

    #[test]
    fn a_line_is_found_without_knots() {
        let fitted = fit(&profile(|size, _| 8.0 + 0.0005 * size, 0.02, 5)).unwrap();
        let function = &fitted.functions[0].latency_us;
        assert!(
            function.size_knots_bytes.is_empty() && !function.has_rate_term,
            "{function:?}"
        );
        for size in [100.0, 4096.0, 50_000.0] {
            let expected = 8.0 + 0.0005 * size;
            assert!((function.value_at(size, 2000.0) / expected - 1.0).abs() < 0.03);
        }
    }

    #[test]
    fn a_slope_that_changes_is_found_with_its_knot_and_so_is_the_rate() {
        let truth =
            |size: f64, rate: f64| 10.0 + 0.0002 * size + 0.002 * (size - 4096.0).max(0.0) - 0.0002 * rate;
        let fitted = fit(&profile(truth, 0.01, 5)).unwrap();
        let function = &fitted.functions[0].latency_us;
        assert_eq!(function.size_knots_bytes, [4096.0]);
        assert!(function.has_rate_term);
        for (size, rate) in [(100.0, 1000.0), (10_000.0, 8000.0), (60_000.0, 16_000.0)] {
            let (found, expected) = (function.value_at(size, rate), truth(size, rate));
            assert!((found / expected - 1.0).abs() < 0.03, "{found} {expected}");
        }
    }

    #[test]
    fn the_covariance_covers_the_truth() {
        let fitted = fit(&profile(|size, _| 8.0 + 0.001 * size, 0.05, 5)).unwrap();
        let function = &fitted.functions[0].latency_us;
        let deviation = function.covariance[0][0].sqrt();
        assert!(deviation > 0.0 && (function.coefficients[0] - 8.0).abs() < 4.0 * deviation);
        assert_eq!(function.degrees_of_freedom, 4);
    }

    #[test]
    fn a_rate_that_only_follows_from_the_size_has_no_term() {
        let mut profile = profile(
            |size, _| 8.0 + 0.001 * size + 5.0 * (size / 1000.0).sin(),
            0.01,
            4,
        );
        profile.observations.retain(|one| one.load.rate_per_s < 1100.0);
        for one in &mut profile.observations {
            one.load.rate_per_s = 1e6 / one.latency_us;
        }
        let fitted = fit(&profile).unwrap();
        assert!(
            !fitted.functions[0].latency_us.has_rate_term,
            "{:?}",
            fitted.functions[0]
        );
    }

    #[test]
    fn one_size_gives_a_constant_that_says_so() {
        let mut profile = profile(|_, _| 5.0, 0.01, 3);
        profile.observations.retain(|one| one.load.size_bytes == 64.0);
        let fitted = fit(&profile).unwrap();
        assert_eq!(fitted.functions[0].latency_us.coefficients[1], 0.0);
        assert!(
            fitted
                .remarks
                .iter()
                .any(|remark| remark.contains("one size only"))
        );
        profile.fit = Some(fitted);
        assert_eq!(profile.check(), Ok(()));
    }

    #[test]
    fn what_is_at_saturation_does_not_count_for_latency() {
        let mut profile = profile(|_, rate| if rate > 10_000.0 { 500.0 } else { 5.0 }, 0.01, 3);
        for one in &mut profile.observations {
            one.load.in_flight = 16;
        }
        let fitted = fit(&profile).unwrap();
        assert!(fitted.functions[0].latency_us.value_at(64.0, 1000.0) < 6.0);
        assert!(
            fitted.remarks.iter().any(|remark| remark.contains("saturation")),
            "{:?}",
            fitted.remarks
        );
    }

    #[test]
    fn residuals_make_up_for_what_the_fit_took_and_leave_out_noise() {
        let rows = |noise: f64, common: f64| -> Vec<SampleRow> {
            let residuals = [1.0, -1.0, 1.0, -1.0];
            // Which of the two repetitions has more is another one from cell to cell.
            let signs = [1.0, 1.0, -1.0, -1.0];
            let sizes = [64.0, 256.0, 1024.0, 4096.0];
            let row = |at: usize, repetition: u32| {
                let side = if repetition == 0 { 1.0 } else { -1.0 };
                SampleRow {
                    size_bytes: sizes[at],
                    rate_per_s: 1000.0,
                    repetition,
                    value: residuals[at] + side * (signs[at] * noise + common),
                    weight: 1.0,
                }
            };
            (0..4).flat_map(|at| [row(at, 0), row(at, 1)]).collect()
        };
        let largest =
            |noise: f64, common: f64, terms: usize| residual_quantiles(&rows(noise, common), terms)[4].us;
        let near = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-9, "{found} {expected}");
        near(largest(0.0, 0.0, 0), 1.0);
        // Of four cells a line with two terms has taken half of the square.
        near(largest(0.0, 0.0, 2), 2f64.sqrt());
        // Two that lie 1 to both sides of their mean leave a variance of 1 in it, and what is common to four cells has a quarter of
        // the whole.
        near(largest(1.0, 0.0, 2), (2.0 - 4.0 / 3.0f64).sqrt());
        near(largest(2.0, 0.0, 2), 0.0);
        near(largest(0.0, 0.0, 4), 2.0);
        // A repetition that was slow in all cells hides nothing.
        near(largest(0.0, 5.0, 2), 2f64.sqrt());
    }

    #[test]
    fn residuals_are_in_proportion_to_what_they_are_of() {
        // A tenth more and less in turn, which no line with two knots follows.
        let truth = |size: f64, _: f64| {
            let turn = if ((size.log2() / 2.0) as u32).is_multiple_of(2) {
                1.1
            } else {
                0.9
            };
            (10.0 + 0.001 * size) * turn
        };
        let fitted = fit(&profile(truth, 0.001, 5)).unwrap();
        let function = &fitted.functions[0].latency_us;
        let most = function.residual_quantiles[4].us;
        for size in [64.0, 65536.0] {
            let value = function.value_at(size, 1000.0);
            let share = most * function.residual_factor(value) / value;
            assert!((0.05..0.3).contains(&share), "{size}: {share}");
        }
    }

    #[test]
    fn students_percentile_is_that_of_the_tables() {
        for (degrees, expected) in [(4, 2.132), (5, 2.015), (9, 1.833), (30, 1.697), (1000, 1.646)] {
            assert!(
                (student_95(degrees) / expected - 1.0_f64).abs() < 0.01,
                "{degrees}"
            );
        }
    }

    #[test]
    fn nothing_to_fit_is_an_error() {
        let mut profile = profile(|_, _| 5.0, 0.01, 1);
        profile.observations.clear();
        assert_eq!(fit(&profile), Err(FitError::Empty));
        let sums = crate::synthetic::synthetic_profile(&crate::synthetic::SyntheticProxy::example(), 1, 1);
        profile.totals = sums.totals;
        assert_eq!(fit(&profile), Err(FitError::SumsAlone));
    }
}
