//! What a rate limit costs: calls through it beside calls past none, in one run.
//!
//!     cargo run --release -p provost-policy-rate-limit --example limit_cost
#![forbid(unsafe_code)]

use provost_engine::cost::{Candidate, print_calls};
use provost_engine::rig::{Service, policy, with_metadata};
use provost_policy_rate_limit::RateLimitKind;

/// A rate that is never reached.
const FAST: &str = "requests_per_second = 1e9\nburst = 1000000000\n";

fn main() -> Result<(), provost_engine::ConfigError> {
    let service = Service::from_source(
        "syntax = 'proto3'; package test; service S { rpc M(Q) returns (Q); } message Q { string user = 1; }",
    );
    let v1 = |text: &str| policy(&RateLimitKind::V1, &format!("{FAST}{text}"), None);
    let v2 = |text: &str| policy(&RateLimitKind::V2, &format!("{FAST}{text}"), None);
    let unlimited = policy(&RateLimitKind::V1, "", None)?;
    let policies = [
        ("unlimited", unlimited),
        ("one bucket", v1("")?),
        ("per app, V1", v1("per = [\"app\", \"method\"]")?),
        ("per app, V2", v2("per = [\"app\", \"method\"]")?),
        ("per metadata value, V2", v2("per = [\"metadata:x-user\"]")?),
        ("per field value, V2", v2("per = [\"message:user\"]")?),
        ("one bucket, queue", v1("on_limit = \"queue\"")?),
    ];
    let candidates: Vec<Candidate<'_>> = policies
        .iter()
        .map(|(name, policy)| Candidate {
            name,
            policy: &**policy,
        })
        .collect();
    println!("a rate limit, ns for each call");
    print_calls(
        &service,
        &|step| with_metadata(step, &[("x-user", "ada")]),
        &candidates,
    );
    Ok(())
}
