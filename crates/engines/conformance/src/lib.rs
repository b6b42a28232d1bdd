//! One suite that every transport engine passes: [`run`] gets pairs of connected engines and puts them through
//! everything that a transport promises. A simulated transport ([`simulated`]) shows what the suite demands.
#![forbid(unsafe_code)]

pub mod fixtures;
mod harness;
mod hot_restart;
mod message;
pub mod mutations;
pub mod simulated;
mod suite;

pub use harness::{Bench, End, Event, Keeps, Node, Pair, Reads, TestHeap};
pub use hot_restart::{HotRestarts, LeftState, Sides, Successors, succeed};
pub use message::{Content, content, content_bytes, piece_bytes};
pub use provost_random::SeededRandom as Random;
pub use suite::{
    CASES, Case, Reach, run, run_case, run_with_hot_restarts, run_within_node,
    run_within_node_with_hot_restarts,
};

use provost_session::handshake::{Method, MethodKind};

/// Index of the method that streams in neither direction.
pub const UNARY: u16 = 0;
/// Index of the method whose client streams.
pub const CLIENT_STREAM: u16 = 1;
/// Index of the method whose server streams.
pub const SERVER_STREAM: u16 = 2;
/// Index of the method that streams in both directions.
pub const BIDI: u16 = 3;

/// The methods that both ends of a [`Pair`] must have agreed on, in this order.
#[must_use]
pub fn methods() -> Vec<Method> {
    let method = |name: &str, client_streaming, server_streaming| Method {
        name: name.to_owned(),
        kind: MethodKind {
            client_streaming,
            server_streaming,
        },
    };
    vec![
        method("Unary", false, false),
        method("ClientStream", true, false),
        method("ServerStream", false, true),
        method("Bidi", true, true),
    ]
}
