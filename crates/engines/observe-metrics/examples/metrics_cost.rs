//! What the metrics policy costs for each call.
//!
//!     cargo run --release -p provost-observe-metrics --example metrics_cost
#![forbid(unsafe_code)]

use provost_engine::cost::{Candidate, print_calls};
use provost_engine::rig::{Service, policy};
use provost_observe_metrics::MetricsKind;

const ECHO: &str = r#"
syntax = "proto3";
package test;
message Text { string text = 1; }
service Echo { rpc Say(Text) returns (Text); }
"#;

fn main() {
    let metrics = policy(&MetricsKind::default(), "", None).expect("the default configuration is valid");
    let candidates = [Candidate {
        name: "metrics",
        policy: &*metrics,
    }];
    print_calls(&Service::from_source(ECHO), &|step| step, &candidates);
}
