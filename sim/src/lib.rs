//! Seeded simulator of whole nodes.
//!
//! Apps on several nodes call each other through the daemon's engines, which the workers of `provost-runtime` poll: on a
//! simulated clock, over simulated carriers that delay, split, stall, break and, if asked to, damage what they carry. Apps
//! die or lie, policies and engines are changed under way, connections migrate from one carrier to another, nodes are
//! partitioned, and whole nodes are replaced by successors, or fail to be. Everything follows from one seed: the same seed gives the same run, to the last event
//! ([`NodesReport::trace`]).
//!
//! What must hold, whatever happens ([`Violation`]):
//!
//! - each call ends exactly once, with the status and the messages that its server gave it, or with a status that what
//!   befell it allows (its deadline, its connection, a full heap, a policy's verdict);
//! - each call is judged once and executed at most once, and one that ended well exactly once;
//! - messages of streams come whole, in order and as they were sent, on both sides;
//! - no call outlives its deadline by more than [`DEADLINE_SLACK_NS`], but for the time that its node rests;
//! - no small call on a connection that nothing befell waits longer than [`SMALL_CALL_NS_MAX`], whatever others do beside it;
//! - nobody sleeps though something waits for it, nothing works for ever, nothing stands still while calls are open;
//! - at the end, no block of a receive heap, no token of a send heap, no call, connection or watched socket is left.
//!
//! That each of these can be found wanting is tested: by worlds that do wrong ([`Sabotage`]), and by builds that are broken
//! on purpose (`tests/mutations.rs`).
#![forbid(unsafe_code)]

mod app;
mod carrier;
mod client;
mod compose;
mod memory;
mod node;
mod nodes;
mod note;
mod outcome;
mod plan;
mod platform;
mod policy;
mod restart;
mod sabotage;
mod server;
mod trace;

pub use client::SMALL_CALL_NS_MAX;
pub use nodes::{DEADLINE_SLACK_NS, NodesOptions, NodesReport, run_nodes, run_twice};
pub use sabotage::Sabotage;

/// Something happened that must not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
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
