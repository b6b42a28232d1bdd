//! The fuzz targets on seeds that were changed at random: a short run of what `cargo xtask fuzz` does for long.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use provost_http2::fuzzing;

/// What is done to a seed: a place, bytes that are put there, and how many go.
type SeedMutation = (Index, Vec<u8>, usize);

fn mutations() -> impl Strategy<Value = Vec<SeedMutation>> {
    let bytes = vec(prop_oneof![any::<u8>(), 0_u8..16, Just(255)], 0..4);
    vec((any::<Index>(), bytes, 0_usize..4), 0..6)
}

fn mutated(seeds: &[Vec<u8>], seed: &Index, mutations: &[SeedMutation]) -> Vec<u8> {
    let mut input = seed.get(seeds).clone();
    for (place, bytes, gone) in mutations {
        let start = place.index(input.len() + 1);
        let end = (start + gone).min(input.len());
        input.splice(start..end, bytes.iter().copied());
    }
    input
}

#[test]
fn seeds_and_their_beginnings() {
    type FuzzTarget = (fn(&[u8]), fn() -> Vec<Vec<u8>>);
    let targets: [FuzzTarget; 4] = [
        (fuzzing::server, fuzzing::server_seeds),
        (fuzzing::client, fuzzing::client_seeds),
        (fuzzing::hpack, fuzzing::hpack_seeds),
        (fuzzing::saved, fuzzing::saved_seeds),
    ];
    for (run, seeds) in targets {
        for seed in seeds() {
            let cuts = (0..seed.len()).step_by(seed.len() / 200 + 1);
            cuts.chain([seed.len()]).for_each(|cut| run(&seed[..cut]));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn servers(seed in any::<Index>(), mutations in mutations()) {
        fuzzing::server(&mutated(&fuzzing::server_seeds(), &seed, &mutations));
    }

    #[test]
    fn clients(seed in any::<Index>(), mutations in mutations()) {
        fuzzing::client(&mutated(&fuzzing::client_seeds(), &seed, &mutations));
    }

    #[test]
    fn blocks(seed in any::<Index>(), mutations in mutations()) {
        fuzzing::hpack(&mutated(&fuzzing::hpack_seeds(), &seed, &mutations));
    }

    #[test]
    fn states(seed in any::<Index>(), mutations in mutations()) {
        fuzzing::saved(&mutated(&fuzzing::saved_seeds(), &seed, &mutations));
    }
}
