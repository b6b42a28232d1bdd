//! What measures a proxy for `provost insight`: a load of its own, BPF programs at tracepoints, sampled stacks, and `/proc`.
//!
//! The library `provost-insight` decides what figures mean; this one takes them. It drives a proxy with a built-in load
//! ([`load`]), in turn with and without the proxy and with and without tracing, and says for each message where its time
//! and its processor time went ([`profile`]).
#![forbid(unsafe_code)]

mod access_log;
pub mod application;
pub mod bench;
pub mod doctor;
mod failure;
pub mod filters;
pub mod ladder;
pub mod load;
pub mod machine;
mod measure;
mod pacing;
pub mod profile;
pub mod proxies;
mod proxy_configuration;
pub mod stacks;
mod stop;
mod trace;
pub mod validate;
#[cfg(test)]
mod waiting;

pub use failure::ProbeFailure;
pub use stop::{StopSignal, StopSwitch};
