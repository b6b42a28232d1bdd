//! Whole nodes under faults, from a few seeds; more of them: `cargo run -p provost-sim -- --seeds 1000`.

use provost_sim::{NodesOptions, NodesReport, run_nodes, run_twice};
use provost_wire::Code;

#[test]
fn the_same_seed_gives_the_same_run_to_the_last_event() {
    let traces = [2, 3].map(|seed| match run_twice(NodesOptions::of_seed(seed)) {
        Ok(report) => report.trace,
        Err(violation) => panic!("seed {seed}: {violation}"),
    });
    assert_ne!(traces[0], traces[1]);
}

#[test]
fn what_must_hold_holds_and_everything_that_can_happen_happens() {
    let mut sum = NodesReport::default();
    for seed in 1..=40 {
        match run_nodes(NodesOptions::of_seed(seed)) {
            Ok(report) => sum.add(&report),
            Err(violation) => panic!("seed {seed}: {violation}"),
        }
    }
    let ended = |code: Code| sum.ends[code.number() as usize];
    assert!(ended(Code::Ok) * 3 > sum.calls, "most calls go well: {sum:?}");
    for code in [
        Code::DeadlineExceeded,
        Code::Unavailable,
        Code::ResourceExhausted,
        Code::Aborted,
        Code::PermissionDenied,
    ] {
        assert!(ended(code) > 0, "no call ended with {code}: {sum:?}");
    }
    let happened = [
        sum.ends[17],
        sum.orphaned,
        sum.faults,
        sum.hot_restarts,
        sum.hot_restarts_undone,
        sum.changes,
        sum.migrations,
        sum.changes_refused,
        sum.engines_failed,
    ];
    assert!(happened.iter().all(|count| *count > 0), "{sum:?}");
}
