//! Calls over a network where everything goes wrong ([`chaos`]). A failure names the seed that replays it.

use provost_datagram_sim::chaos;

/// Seeds to run: `SEEDS=first..end` runs others.
fn seeds() -> std::ops::Range<u64> {
    let given = std::env::var("SEEDS").ok();
    let range = given.as_deref().and_then(|range| range.split_once(".."));
    let parsed = range.and_then(|(first, end)| Some(first.parse().ok()?..end.parse().ok()?));
    parsed.unwrap_or(0..16)
}

#[test]
fn every_call_ends_once_whatever_goes_wrong() {
    let (mut answered, mut fallbacks) = (0, 0);
    for seed in seeds() {
        let outcome = std::panic::catch_unwind(|| chaos::run(seed));
        match outcome {
            Ok(outcome) => {
                answered += outcome.answered;
                fallbacks += outcome.fallbacks;
            }
            Err(_) => panic!("seed {seed} fails: SEEDS={seed}..{} replays it", seed + 1),
        }
    }
    assert!(
        answered > 20 * seeds().count() as u64,
        "only {answered} calls were answered at all"
    );
    println!("{answered} calls answered, {fallbacks} sessions went over to small packets");
    assert!(
        fallbacks > 0 || seeds().count() < 16,
        "no path became too narrow for anybody"
    );
}

#[test]
fn a_seed_replays_exactly() {
    let (one, other) = (chaos::run(1001), chaos::run(1001));
    assert_eq!(one, other);
    assert_ne!(one.digest, chaos::run(1002).digest);
}
