//! The fuzz targets on seeds that were changed at random: a short run of what `cargo xtask fuzz` does for long.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use provost_grpc::fuzzing;

type FuzzTarget = (fn(&[u8]), fn() -> Vec<Vec<u8>>);

const TARGETS: [FuzzTarget; 4] = [
    (fuzzing::saved, fuzzing::saved_seeds),
    (fuzzing::messages, fuzzing::messages_seeds),
    (fuzzing::heads, fuzzing::heads_seeds),
    (fuzzing::server, fuzzing::server_seeds),
];

#[test]
fn seeds_and_their_beginnings() {
    for (run, seeds) in TARGETS {
        for seed in seeds() {
            (0..=seed.len())
                .step_by(seed.len() / 300 + 1)
                .for_each(|cut| run(&seed[..cut]));
            run(&seed);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mutated_seeds(
        target in 0..TARGETS.len(),
        seed in any::<Index>(),
        mutations in vec((any::<Index>(), vec(any::<u8>(), 0..4), 0_usize..4), 0..6),
    ) {
        let (run, seeds) = TARGETS[target];
        let mut input = seed.get(&seeds()).clone();
        for (place, bytes, gone) in mutations {
            let start = place.index(input.len() + 1);
            let end = (start + gone).min(input.len());
            input.splice(start..end, bytes);
        }
        run(&input);
    }
}
