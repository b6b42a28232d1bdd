//! What the order of small and large messages costs: calls through it beside calls past none, in one run.
//!
//!     cargo run --release -p provost-policy-qos --example qos_cost
#![forbid(unsafe_code)]

use provost_engine::cost::{Candidate, print_calls};
use provost_engine::rig::{Service, policy};
use provost_policy_qos::QosKind;

fn main() -> Result<(), provost_engine::ConfigError> {
    let service = Service::from_source(
        "syntax = 'proto3'; package test; service S { rpc M(Q) returns (Q); } message Q { string user = 1; }",
    );
    let small = policy(&QosKind, "", None)?;
    let candidates = [Candidate {
        name: "small calls",
        policy: &*small,
    }];
    println!("qos, ns for each call");
    print_calls(&service, &|step| step, &candidates);
    Ok(())
}
