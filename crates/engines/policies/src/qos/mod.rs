//! Small calls and near deadlines first, among the apps of one runtime.
//!
//! A runtime polls its datapaths one after the other, and a datapath may move half a megabyte in one poll: that is what
//! a small call of another app waits for, twice on each node. While small messages come and go, this policy has the
//! datapaths with large ones move less in a poll, and be polled behind the others; what they cannot move yet waits here,
//! the earliest deadline first. See `docs/policies/qos.md` for what an operator configures.

mod board;
mod config;
mod engine;
mod policy;
mod waiting;

pub use config::{BULK_BYTES_MAX, BULK_BYTES_MIN, SMALL_BYTES_MAX, TIME_US_MAX, WEIGHT_MAX, WEIGHTS_MAX};
pub(crate) use policy::Qos;

/// Name of the kind.
pub const KIND: &str = "qos";
/// Version of the code.
const VERSION: u32 = 1;
