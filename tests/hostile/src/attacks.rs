//! The attacks. Each runs on a thread of its own, until the campaign is over.

pub mod control;
pub mod copies;
pub mod greed;
pub mod guided;
pub mod linger;
pub mod race;
pub mod random;
pub mod rings;
pub mod shapes;
pub mod time_of_check;
pub mod vandal;

use crate::random::Random;
use crate::scene::Scene;

pub type Attack = fn(&Scene, &mut Random);

/// Those of a campaign that has no name given, with their names.
pub const ALL: [(&str, Attack); 8] = [
    ("control", control::run),
    ("guided", guided::run),
    ("race", race::run),
    ("random", random::run),
    ("rings", rings::run),
    ("shapes", shapes::run),
    ("time-of-check", time_of_check::run),
    ("vandal", vandal::run),
];

/// Those that are run by their names alone: beside them, others would only wait for their turn.
pub const ALONE: [(&str, Attack); 1] = [("copies", copies::run)];
