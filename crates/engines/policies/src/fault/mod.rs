//! Fault injection: calls delayed and aborted by percentage and match, from a seed.
//!
//! Calls that match are numbered in the order in which they begin on the node. What happens to a call is drawn from the
//! seed and its number, so the same sequence of calls meets the same faults. See `docs/policies/fault.md` for what an
//! operator configures.

mod config;
mod draw;
mod filter;
mod policy;

pub use config::{ACTIVE_FAULTS_MAX, DELAY_MS_MAX, MATCH_MAX, MESSAGE_BYTES_MAX};
pub(crate) use policy::Fault;
