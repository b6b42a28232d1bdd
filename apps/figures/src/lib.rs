//! What all benchmarks have in common: latencies, runs, cells with the medians of their runs, how far runs and pairs lie
//! apart, targets and how they were met, the table that is printed and the file that is written.
#![forbid(unsafe_code)]

mod latencies;
mod outcome;
mod pairs;
mod report;
mod summary;
pub mod table;

pub use latencies::Latencies;
pub use outcome::{Bound, Figure, FigurePlace, TargetOutcome, TargetVerdict};
pub use pairs::Pairs;
pub use report::Report;
pub use summary::{Cell, Cells, Compared, Load, Median, QUIET_CORES_MAX, median};
