//! Builds that are broken on purpose are found out, each by one of few seeds: about four times as many as it took when
//! this was written. `cargo test -p provost-sim --test mutations -- --nocapture` says which.

use provost_runtime::Mutation;
use provost_sim::{NodesOptions, run_nodes};

/// Checks that a mutation is found within so many seeds.
fn find(mutation: Mutation, seeds_max: u64) {
    mutation.activate();
    let found = (1..=seeds_max).find_map(|seed| {
        let violation = run_nodes(NodesOptions::of_seed(seed)).err()?;
        Some((seed, violation.what))
    });
    let (seed, what) = found.unwrap_or_else(|| panic!("{mutation:?} is not found by {seeds_max} seeds"));
    println!("{mutation:?} is found by seed {seed}: {what:.300}");
}

#[test]
fn a_lost_wake_up_is_found() {
    find(Mutation::LostWakeup, 12);
}

#[test]
fn a_double_delivery_is_found() {
    find(Mutation::DoubleDelivery, 40);
}

#[test]
fn a_forgotten_descriptor_is_found() {
    find(Mutation::ForgottenDescriptor, 600);
}

#[test]
fn a_policy_that_is_bypassed_on_restore_is_found() {
    find(Mutation::PolicyBypassedOnRestore, 16);
}

#[test]
fn polling_without_end_is_found() {
    find(Mutation::EndlessPolling, 32);
}
