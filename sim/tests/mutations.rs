//! A build that is broken on purpose is found out. One mutation at a time:
//! `cargo test -p provost-sim --test mutations --features mutation-lost-wakeup`.
#![cfg(any(
    feature = "mutation-lost-wakeup",
    feature = "mutation-double-delivery",
    feature = "mutation-forgotten-descriptor",
    feature = "mutation-policy-bypassed-on-restore"
))]

use provost_sim::{NodesOptions, run_nodes};

/// Seeds that are tried before a mutation counts as not found.
const SEEDS_MAX: u64 = 200;

#[test]
fn the_mutation_is_found() {
    let found = (1..=SEEDS_MAX).find_map(|seed| {
        let violation = run_nodes(NodesOptions { seed, calls: 60 }).err()?;
        Some((seed, violation.what))
    });
    let (seed, what) = found.expect("the simulator finds the mutation");
    println!("found by seed {seed}: {what}");
}
