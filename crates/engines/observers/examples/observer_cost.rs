//! What the observers cost for each call: calls through them beside calls past none, in one run.
//!
//!     cargo run --profile dist -p provost-observers --example observer_cost [-- KIND…]
#![forbid(unsafe_code)]

use provost_engine::cost::{KindCosts, print_kinds};

const SAMPLED: &[(&str, &str)] = &[(
    "traceparent",
    "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
)];
const NOT_SAMPLED: &[(&str, &str)] = &[(
    "traceparent",
    "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00",
)];
/// Nobody listens there: most records find the queue full, which costs as much as one that has room.
const NO_COLLECTOR: &str = "endpoint = \"http://127.0.0.1:1\"";

const COSTS: [KindCosts<'_>; 5] = [
    KindCosts {
        kind: "metrics",
        metadata: &[],
        configurations: &[("metrics", "")],
    },
    KindCosts {
        kind: "tap",
        metadata: &[],
        configurations: &[
            ("tap of all calls", ""),
            ("tap of one per cent", "percentage = 1.0"),
            ("tap of another method", "methods = [\"/none\"]"),
        ],
    },
    KindCosts {
        kind: "access-log",
        metadata: SAMPLED,
        configurations: &[
            ("access log", "path = \"/dev/null\""),
            (
                "access log of failed calls, none fails",
                "path = \"/dev/null\"\nstatus = [\"INTERNAL\"]",
            ),
        ],
    },
    KindCosts {
        kind: "tracing",
        metadata: SAMPLED,
        configurations: &[("tracing, sampled", NO_COLLECTOR)],
    },
    KindCosts {
        kind: "tracing",
        metadata: NOT_SAMPLED,
        configurations: &[("tracing, not sampled", NO_COLLECTOR)],
    },
];

fn main() -> Result<(), provost_engine::ConfigError> {
    print_kinds(provost_observers::kind, &COSTS)
}
