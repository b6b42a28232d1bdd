//! What fault injection costs the calls that it leaves alone: beside calls past none, in one run.
//!
//!     cargo run --release -p provost-policy-fault --example fault_cost
#![forbid(unsafe_code)]

use provost_engine::cost::{Candidate, print_calls};
use provost_engine::rig::{Service, policy, with_metadata};
use provost_policy_fault::FaultKind;

fn main() -> Result<(), provost_engine::ConfigError> {
    let service = Service::from_source(
        "syntax = 'proto3'; package test; service S { rpc M(Q) returns (Q); } message Q { string user = 1; }",
    );
    let fault = |text: &str| policy(&FaultKind, text, None);
    let rare = "percentage = 1e-9";
    let policies = [
        ("nothing configured", fault("")?),
        ("abort", fault(&format!("[abort]\n{rare}"))?),
        (
            "abort, no match",
            fault(&format!("[match]\nx-trial = '*'\n[abort]\n{rare}"))?,
        ),
        ("delay", fault(&format!("[delay]\nfixed_delay_ms = 1\n{rare}"))?),
        ("response abort", fault(&format!("[response_abort]\n{rare}"))?),
    ];
    let candidates: Vec<Candidate<'_>> = policies
        .iter()
        .map(|(name, policy)| Candidate {
            name,
            policy: &**policy,
        })
        .collect();
    println!("fault injection, ns for each call");
    print_calls(
        &service,
        &|step| with_metadata(step, &[("x-user", "ada")]),
        &candidates,
    );
    Ok(())
}
