//! What gRPC servers tell by reflection, changed at random: it becomes the schema of the service that was asked for, or is refused.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use provostd::fuzzing;

#[test]
fn seeds_and_their_beginnings() {
    for seed in fuzzing::told_schema_seeds() {
        (0..=seed.len()).for_each(|cut| fuzzing::told_schema(&seed[..cut]));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mutated_seeds(
        seed in any::<Index>(),
        mutations in vec((any::<Index>(), vec(any::<u8>(), 0..4), 0_usize..4), 0..6),
    ) {
        let mut input = seed.get(&fuzzing::told_schema_seeds()).clone();
        for (place, bytes, gone) in mutations {
            let start = place.index(input.len() + 1);
            let end = (start + gone).min(input.len());
            input.splice(start..end, bytes);
        }
        fuzzing::told_schema(&input);
    }
}
