//! States that were changed at random: what is accepted is saved as what is accepted again, ends no call twice, and ends.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use provost_transport_grpc::fuzzing;

#[test]
fn seeds_and_their_beginnings() {
    for seed in fuzzing::saved_seeds() {
        (0..=seed.len()).for_each(|cut| fuzzing::saved(&seed[..cut]));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mutated_seeds(
        seed in any::<Index>(),
        mutations in vec((any::<Index>(), vec(any::<u8>(), 0..4), 0_usize..4), 0..6),
    ) {
        let mut input = seed.get(&fuzzing::saved_seeds()).clone();
        for (place, bytes, gone) in mutations {
            let start = place.index(input.len() + 1);
            let end = (start + gone).min(input.len());
            input.splice(start..end, bytes);
        }
        fuzzing::saved(&input);
    }
}
