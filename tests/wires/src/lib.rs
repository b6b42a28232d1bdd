//! Hosts made of network namespaces, and calls of the datagram transport between them.
#![forbid(unsafe_code)]

mod calls;
mod hosts;

pub use calls::{calls_go_over, echo_bytes};
pub use hosts::{Cable, Routed};
