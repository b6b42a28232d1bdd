//! Seeded simulator of whole nodes.
//!
//! Many apps on many nodes call each other through the very engines of the daemon (frontend, null policy, marshalling,
//! the native protocol), over a simulated network with its own clock that delays, splits, stalls, breaks and, if asked
//! to, damages what it carries, while apps crash and come back, connections drain and close. Everything follows from
//! one seed: the same seed gives the same run, to the last event ([`Report::trace`]).
//!
//! What must hold, whatever happens ([`Violation`]):
//!
//! - each call ends exactly once, with the status and the messages that its server gave it, or with a status that what
//!   befell it allows (its deadline, its connection, a full heap);
//! - messages come in order and as they were sent, on both sides;
//! - no call outlives its deadline by more than [`TICK_NS`];
//! - no datapath works for ever, none stands still while calls are open;
//! - at the end no block, no token, no call is left.
#![forbid(unsafe_code)]

mod app;
mod carrier;
mod client;
mod compose;
mod memory;
mod node;
pub mod nodes;
mod note;
mod outcome;
mod plan;
mod platform;
mod policy;
mod restart;
mod server;
mod trace;
mod world;

pub use nodes::{NodesOptions, NodesReport, run_nodes};
pub use world::{Options, Report, run};

/// By how much a call may outlive its deadline, in simulated nanoseconds.
pub const TICK_NS: u64 = 1_000_000;

/// Something happened that must not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// What.
    pub what: String,
    /// When, in simulated nanoseconds.
    pub at: u64,
    /// The last events before it.
    pub trace: Vec<String>,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "after {} µs: {}", self.at / 1_000, self.what)
    }
}

impl std::error::Error for Violation {}
