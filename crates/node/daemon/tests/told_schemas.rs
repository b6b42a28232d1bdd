//! What gRPC servers tell by reflection, changed at random: it becomes the schema of the service that was asked for, or is refused.

use proptest::prelude::*;
use provost_conformance::mutations::{beginnings, mutated};
use provostd::fuzzing;

#[test]
fn seeds_and_their_beginnings() {
    beginnings(&fuzzing::told_schema_seeds()).for_each(fuzzing::told_schema);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mutated_seeds(input in mutated(fuzzing::told_schema_seeds())) {
        fuzzing::told_schema(&input);
    }
}
