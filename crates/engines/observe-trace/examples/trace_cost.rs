//! What tracing costs for each call on the data path.
//!
//!     cargo run --release -p provost-observe-trace --example trace_cost
#![forbid(unsafe_code)]

use provost_engine::cost::{Candidate, print_calls};
use provost_engine::rig::{Service, policy, with_metadata};
use provost_observe_trace::TraceKind;

const ECHO: &str = r#"
syntax = "proto3";
package test;
message Text { string text = 1; }
service Echo { rpc Say(Text) returns (Text); }
"#;
const SAMPLED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const NOT_SAMPLED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";

fn main() {
    // Nobody listens there: most records find the queue full, which costs as much as one that has room.
    let text = "endpoint = \"http://127.0.0.1:1\"";
    let tracing = policy(&TraceKind::default(), text, None).expect("the configuration is valid");
    let service = Service::from_source(ECHO);
    for (name, header) in [
        ("tracing, sampled", SAMPLED),
        ("tracing, not sampled", NOT_SAMPLED),
    ] {
        let candidates = [Candidate {
            name,
            policy: &*tracing,
        }];
        let request = |step| with_metadata(step, &[("traceparent", header)]);
        print_calls(&service, &request, &candidates);
    }
}
