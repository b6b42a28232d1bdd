//! Hosts made of network namespaces, and calls of the datagram transport between them.
#![forbid(unsafe_code)]

mod calls;
#[cfg(feature = "dpdk")]
mod devices;
mod hosts;

pub use calls::{Traffic, calls_go_over, echo_bytes, traffic_goes_over};
#[cfg(feature = "dpdk")]
pub use devices::dpdk_rings;
pub use hosts::{Cable, Routed};
