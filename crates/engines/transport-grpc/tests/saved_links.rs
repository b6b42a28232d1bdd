//! States that were changed at random: what is accepted is saved as what is accepted again, ends no call twice, and ends.

use proptest::prelude::*;
use provost_conformance::mutations::{beginnings, mutated};
use provost_transport_grpc::fuzzing;

#[test]
fn seeds_and_their_beginnings() {
    beginnings(&fuzzing::saved_seeds()).for_each(fuzzing::saved);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mutated_seeds(input in mutated(fuzzing::saved_seeds())) {
        fuzzing::saved(&input);
    }
}
