//! The simulated transport passes the suite, in fair weather and in rough.

use provost_conformance::simulated::{Setup, Weather, pair};
use provost_conformance::{CASES, run, run_case, run_with_hot_restarts};

#[test]
fn in_fair_weather() {
    run(|| pair(1, Weather::fair(), Setup::default()).0);
}

#[test]
fn in_rough_weather() {
    run(|| pair(2, Weather::rough(), Setup::default()).0);
}

#[test]
fn with_hot_restarts_in_rough_weather() {
    run_with_hot_restarts(4, || pair(5, Weather::rough(), Setup::default()).0);
}

#[test]
fn in_small_pieces() {
    let weather = Weather {
        piece_bytes_max: 97,
        capacity_bytes: 500,
        ..Weather::fair()
    };
    let small = |name: &str| !(name.contains("8 MB") || name.contains("large") || name.contains("limit"));
    for case in CASES.iter().filter(|case| small(case.name)).take(4) {
        run_case(case, &|| pair(3, weather, Setup::default()).0);
    }
}
