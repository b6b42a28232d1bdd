//! What tapping costs for each call on the data path.
//!
//!     cargo run --release -p provost-observe-tap --example tap_cost
#![forbid(unsafe_code)]

use provost_engine::cost::{Candidate, print_calls};
use provost_engine::rig::{Service, policy};
use provost_observe_tap::TapKind;

const ECHO: &str = r#"
syntax = "proto3";
package test;
message Text { string text = 1; }
service Echo { rpc Say(Text) returns (Text); }
"#;

fn main() {
    let of = |text: &str| policy(&TapKind::default(), text, None).expect("the configuration is valid");
    let (all, few, none) = (of(""), of("percentage = 1.0"), of("methods = [\"/none\"]"));
    let candidates = [
        Candidate {
            name: "tap of all calls",
            policy: &*all,
        },
        Candidate {
            name: "tap of one per cent",
            policy: &*few,
        },
        Candidate {
            name: "tap of another method",
            policy: &*none,
        },
    ];
    print_calls(&Service::from_source(ECHO), &|step| step, &candidates);
}
