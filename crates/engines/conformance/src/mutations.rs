//! Inputs of fuzz targets that were changed at random: a short run of what `cargo xtask fuzz` does for long.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

/// Mutations of an input at most.
const MUTATIONS_MAX: usize = 5;
/// Bytes that one puts in, and that one takes out, at most.
const BYTES_MAX: usize = 3;

/// All seeds, cut at every byte.
pub fn beginnings(seeds: &[Vec<u8>]) -> impl Iterator<Item = &[u8]> {
    seeds
        .iter()
        .flat_map(|seed| (0..=seed.len()).map(|cut| &seed[..cut]))
}

/// One of the seeds, in which some bytes are others, are gone, or are new.
pub fn mutated(seeds: Vec<Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    let mutation = (any::<Index>(), vec(any::<u8>(), 0..=BYTES_MAX), 0..=BYTES_MAX);
    let mutations = vec(mutation, 0..=MUTATIONS_MAX);
    (any::<Index>(), mutations).prop_map(move |(seed, mutations)| {
        let mut input = seed.get(&seeds).clone();
        for (place, bytes, gone) in mutations {
            let start = place.index(input.len() + 1);
            let end = (start + gone).min(input.len());
            input.splice(start..end, bytes);
        }
        input
    })
}
