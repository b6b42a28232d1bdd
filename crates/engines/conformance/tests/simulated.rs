//! The simulated transport passes the suite, in fair weather and in rough.

use provost_conformance::simulated::{Setup, Weather, pair};
use provost_conformance::{Bench, CASES, run, run_case, run_with_hot_restarts};
use provost_wire::Code;

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

/// After how long without a byte a peer is asked, and how long it may take to answer.
const KEEPALIVE_NS: u64 = 1_000_000_000;

#[test]
fn an_end_that_stood_still_reads_what_has_come_before_it_judges_its_peer() {
    let setup = Setup {
        keepalive_interval_ns: KEEPALIVE_NS,
        keepalive_timeout_ns: KEEPALIVE_NS,
        ..Setup::default()
    };
    let (mut bench, pipe) = {
        let (pair, pipe) = pair(6, Weather::fair(), setup);
        (Bench::new(pair), pipe)
    };
    let now = bench.now + KEEPALIVE_NS;
    // It asks, and is answered; what else it would say is due later.
    for _ in 0..2 {
        bench.client.poll(now);
    }
    bench.server.poll(now + 1);
    bench.server.poll(now + 1);
    assert!(pipe.moves_at().is_some(), "the answer is on its way");
    let late = now + 100 * KEEPALIVE_NS;
    bench.client.poll(late);
    assert_eq!(bench.client.link.ended(), None);
    // A peer that says nothing is given up all the same.
    let silent = late + KEEPALIVE_NS;
    for _ in 0..2 {
        bench.client.poll(silent);
    }
    bench.client.poll(silent + KEEPALIVE_NS - 1);
    assert_eq!(bench.client.link.ended(), None);
    bench.client.poll(silent + KEEPALIVE_NS);
    let ended = bench.client.link.ended().expect("the peer is silent");
    assert_eq!(ended.code, Code::Unavailable);
    assert!(ended.reason.contains("silent"), "{}", ended.reason);
}
