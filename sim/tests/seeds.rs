//! Whole nodes under faults, from a few seeds; longer runs: `cargo run -p provost-sim -- --seed 1 --seconds 60`.

use provost_sim::{Options, Report, run};
use provost_wire::Code;

fn simulate(seed: u64, calls: u64) -> Report {
    match run(Options { seed, calls }) {
        Ok(report) => report,
        Err(violation) => panic!(
            "{violation}\nreplay: cargo run -p provost-sim -- --seed {seed} --seconds 0 --calls {calls}"
        ),
    }
}

#[test]
fn the_same_seed_gives_the_same_run_to_the_last_event() {
    for seed in [2, 69] {
        let (first, second) = (simulate(seed, 300), simulate(seed, 300));
        assert_eq!(first, second, "seed {seed}");
    }
    assert_ne!(simulate(2, 300).trace, simulate(3, 300).trace);
}

#[test]
fn what_must_hold_holds_and_everything_that_can_happen_happens() {
    let mut sum = Report {
        trace: 0,
        calls: 0,
        ends: [0; 18],
        orphaned: 0,
        connections: 0,
        faults: 0,
        hot_restarts: 0,
        elapsed_ns: 0,
    };
    for seed in 1..=12 {
        let report = simulate(seed, 400);
        sum.calls += report.calls;
        sum.faults += report.faults;
        sum.hot_restarts += report.hot_restarts;
        sum.orphaned += report.orphaned;
        sum.ends
            .iter_mut()
            .zip(report.ends)
            .for_each(|(sum, more)| *sum += more);
    }
    let ended = |code: Code| sum.ends[code.number() as usize];
    assert!(ended(Code::Ok) * 3 > sum.calls, "most calls go well: {sum:?}");
    for code in [
        Code::DeadlineExceeded,
        Code::Unavailable,
        Code::ResourceExhausted,
        Code::Aborted,
    ] {
        assert!(ended(code) > 0, "no call ended with {code}: {sum:?}");
    }
    assert!(
        sum.hot_restarts > 1_000,
        "engines are succeeded all the time: {sum:?}"
    );
    assert!(sum.ends[17] > 0 && sum.faults > 0 && sum.orphaned > 0, "{sum:?}");
}
