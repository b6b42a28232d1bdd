//! What the policies cost for each call: calls through them beside calls past none, in one run.
//!
//!     cargo run --profile dist -p provost-policies --example policy_cost [-- KIND…]
#![forbid(unsafe_code)]

use provost_engine::cost::{KindCosts, print_kinds};

const USER: &[(&str, &str)] = &[("x-user", "ada")];

/// The rates of limits are never reached, and faults hit a call in 10¹¹.
const COSTS: [KindCosts<'_>; 4] = [
    KindCosts {
        kind: "null",
        metadata: &[],
        configurations: &[("null", "")],
    },
    KindCosts {
        kind: "rate-limit",
        metadata: USER,
        configurations: &[
            ("unlimited", ""),
            ("one bucket", "requests_per_second = 1e9\nburst = 1000000000"),
            (
                "per app and method",
                "requests_per_second = 1e9\nburst = 1000000000\nper = [\"app\", \"method\"]",
            ),
            (
                "per metadata value",
                "requests_per_second = 1e9\nburst = 1000000000\nper = [\"metadata:x-user\"]",
            ),
            (
                "per field value",
                "requests_per_second = 1e9\nburst = 1000000000\nper = [\"message:user\"]",
            ),
            (
                "one bucket, queue",
                "requests_per_second = 1e9\nburst = 1000000000\non_limit = \"queue\"",
            ),
        ],
    },
    KindCosts {
        kind: "qos",
        metadata: &[],
        configurations: &[("small calls", "")],
    },
    KindCosts {
        kind: "fault",
        metadata: USER,
        configurations: &[
            ("nothing configured", ""),
            ("abort", "[abort]\npercentage = 1e-9"),
            (
                "abort, no match",
                "[match]\nx-chosen = '*'\n[abort]\npercentage = 1e-9",
            ),
            ("delay", "[delay]\nfixed_delay_ms = 1\npercentage = 1e-9"),
            ("response abort", "[response_abort]\npercentage = 1e-9"),
        ],
    },
];

fn main() -> Result<(), provost_engine::ConfigError> {
    print_kinds(provost_policies::kind, &COSTS)
}
