//! Targets: figures, their bounds, and how the one stands to the other. All within one run: figures of different runs,
//! machines or ways of waiting are not comparable.

use std::fmt;

use serde::Serialize;

use crate::pairs::Pairs;
use crate::summary::{Cell, Cells, Median};

/// A figure of a cell.
pub type Figure = fn(&Median) -> Option<f64>;
/// A setup, what was measured there, and which figure of it.
pub type FigurePlace = (&'static str, &'static str, Figure);

/// What a figure may be.
#[derive(Clone, Copy, Debug, Serialize)]
pub enum Bound {
    RatioAtMost(f64),
    RatioAtLeast(f64),
    DifferenceAtMost(f64),
    ValueAtMost(f64),
    ValueAtLeast(f64),
}

use Bound::{DifferenceAtMost, RatioAtLeast, RatioAtMost, ValueAtLeast, ValueAtMost};

/// How a figure stands to its bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TargetVerdict {
    Met,
    Missed,
    /// The bound lies within the middle half of what single rounds or pairs came to: another run may say otherwise.
    Undecided,
}

impl fmt::Display for TargetVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TargetVerdict::Met => "met",
            TargetVerdict::Missed => "MISSED",
            TargetVerdict::Undecided => "undecided",
        })
    }
}

/// A target and how it was met; it prints itself.
#[derive(Clone, Debug, Serialize)]
pub struct TargetOutcome {
    what: String,
    value: f64,
    bound: Bound,
    verdict: TargetVerdict,
}

/// A figure of a cell: over all its runs, and of each.
fn figures(cells: &Cells, (setup, what, figure): FigurePlace) -> Option<(f64, Vec<Option<f64>>)> {
    let is_meant = |cell: &&Cell| cell.setup == setup && cell.what == what;
    let cell = cells.cells.iter().find(is_meant)?;
    let of_run = |run| figure(&Median::of(std::slice::from_ref(run), cell.size));
    Some((figure(&cell.median)?, cell.runs.iter().map(of_run).collect()))
}

impl Bound {
    /// What is bounded of two figures.
    pub fn of(self, over: f64, under: f64) -> f64 {
        match self {
            DifferenceAtMost(_) => over - under,
            ValueAtMost(_) | ValueAtLeast(_) => over,
            RatioAtMost(_) | RatioAtLeast(_) => over / under,
        }
    }

    /// How a value stands to it, of which single rounds or pairs came to `values`.
    pub fn verdict(self, value: f64, values: &Pairs) -> TargetVerdict {
        let (bound, is_met) = match self {
            RatioAtMost(most) | DifferenceAtMost(most) | ValueAtMost(most) => (most, value <= most),
            RatioAtLeast(least) | ValueAtLeast(least) => (least, value >= least),
        };
        match values.middle_half() {
            Some([low, high]) if low < bound && bound < high => TargetVerdict::Undecided,
            _ if is_met => TargetVerdict::Met,
            _ => TargetVerdict::Missed,
        }
    }
}

impl TargetOutcome {
    /// Of two figures of this run, if it has both; rounds are held against each other one by one.
    pub fn of_places(
        what: String,
        cells: &Cells,
        over: FigurePlace,
        under: FigurePlace,
        bound: Bound,
    ) -> Option<TargetOutcome> {
        let ((over, overs), (under, unders)) = (figures(cells, over)?, figures(cells, under)?);
        let rounds = overs.into_iter().zip(unders);
        let values = rounds.filter_map(|(over, under)| Some(bound.of(over?, under?)));
        TargetOutcome::new(what, bound.of(over, under), &Pairs::new(values.collect()), bound)
    }

    /// Of one figure of this run, if it has it.
    pub fn of_place(what: String, cells: &Cells, place: FigurePlace, bound: Bound) -> Option<TargetOutcome> {
        let (value, values) = figures(cells, place)?;
        TargetOutcome::new(
            what,
            value,
            &Pairs::new(values.into_iter().flatten().collect()),
            bound,
        )
    }

    /// Of pairs of slices, by the one in the middle.
    pub fn of_pairs(what: String, pairs: &Pairs, bound: Bound) -> Option<TargetOutcome> {
        TargetOutcome::new(what, pairs.median()?, pairs, bound)
    }

    /// Of a value that is known once.
    pub fn of_value(what: String, value: f64, bound: Bound) -> Option<TargetOutcome> {
        TargetOutcome::new(what, value, &Pairs::new(Vec::new()), bound)
    }

    fn new(what: String, value: f64, values: &Pairs, bound: Bound) -> Option<TargetOutcome> {
        value.is_finite().then(|| TargetOutcome {
            what,
            value,
            bound,
            verdict: bound.verdict(value, values),
        })
    }

    /// How the figure stands to its bound.
    #[must_use]
    pub fn verdict(&self) -> TargetVerdict {
        self.verdict
    }
}

impl fmt::Display for TargetOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (relation, bound) = match self.bound {
            RatioAtMost(bound) | DifferenceAtMost(bound) | ValueAtMost(bound) => ("at most", bound),
            RatioAtLeast(bound) | ValueAtLeast(bound) => ("at least", bound),
        };
        write!(
            f,
            "{:42} {:>8.3}  {relation:8} {bound:<6.3} {}",
            self.what, self.value, self.verdict
        )
    }
}
