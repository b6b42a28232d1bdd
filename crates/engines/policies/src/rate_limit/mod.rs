//! Rate limits: token buckets that all datapaths of a node share, without a lock.
//!
//! A call is charged when it begins. One over the limit is rejected, or waits for its turn; see `docs/policies/rate-limit.md`
//! for what an operator configures. The bucket is one word ([`bucket`](self)), the buckets of all keys are a table of
//! words, and a call that waits has its turn from the moment in which it came: nothing is asked twice, and nothing is
//! handed from one runtime to another.

mod atomic;
mod bucket;
mod config;
mod filter;
mod key;
mod policy;
mod saved;
mod table;
#[cfg(all(test, loom))]
mod tests_loom;

pub use config::{
    BUCKETS_MAX, BURST_MAX, FILL_SECONDS_MAX, PER_MAX, QUEUE_CALLS_MAX, REQUESTS_PER_SECOND_MAX,
    REQUESTS_PER_SECOND_MIN,
};
pub(crate) use policy::RateLimit;

/// Name of the kind.
pub const KIND: &str = "rate-limit";
