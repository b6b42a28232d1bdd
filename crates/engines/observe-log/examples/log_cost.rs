//! What the access log costs for each call on the data path.
//!
//!     cargo run --release -p provost-observe-log --example log_cost
#![forbid(unsafe_code)]

use provost_engine::cost::{Candidate, print_calls};
use provost_engine::rig::{Service, policy, with_metadata};
use provost_observe_log::AccessLogKind;

const ECHO: &str = r#"
syntax = "proto3";
package test;
message Text { string text = 1; }
service Echo { rpc Say(Text) returns (Text); }
"#;
const TRACEPARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn main() {
    let of = |text: &str| policy(&AccessLogKind::default(), text, None).expect("the configuration is valid");
    let all = of("path = \"/dev/null\"");
    let some = of("path = \"/dev/null\"\nstatus = [\"INTERNAL\"]");
    let candidates = [
        Candidate {
            name: "access log",
            policy: &*all,
        },
        Candidate {
            name: "access log of failed calls, none fails",
            policy: &*some,
        },
    ];
    let request = |step| with_metadata(step, &[("traceparent", TRACEPARENT)]);
    print_calls(&Service::from_source(ECHO), &request, &candidates);
}
