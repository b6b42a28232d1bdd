//! Rate limits: token buckets that all datapaths of a node share, without a lock.
//!
//! A call is charged when it begins. One over the limit is rejected, or waits for its turn; see `docs/policies/rate-limit.md`
//! for what an operator configures. The bucket is one word ([`bucket`](self)), the buckets of all keys are a table of
//! words, and a call that waits has its turn from the moment in which it came: nothing is asked twice, and nothing is
//! handed from one runtime to another.
#![forbid(unsafe_code)]

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

use std::sync::Arc;

use provost_engine::{ConfigError, Environment, Policy, PolicyKind, SharedState, parse_config};

pub use config::{
    BUCKETS_MAX, BURST_MAX, FILL_SECONDS_MAX, PER_MAX, QUEUE_CALLS_MAX, REQUESTS_PER_SECOND_MAX,
    REQUESTS_PER_SECOND_MIN,
};

/// Name of the kind.
pub const KIND: &str = "rate-limit";

/// The kind `rate-limit`, in its versions. They read the same configuration and keep the same state, so a limit can go
/// from any to any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateLimitKind {
    /// A key's buckets lie next to each other in the table.
    V1,
    /// A key has two independent places in the table: it can be filled almost to its end before keys disturb each other.
    V2,
}

impl PolicyKind for RateLimitKind {
    fn name(&self) -> &'static str {
        KIND
    }

    fn version(&self) -> u32 {
        match self {
            RateLimitKind::V1 => 1,
            RateLimitKind::V2 => 2,
        }
    }

    fn summary(&self) -> &'static str {
        "lets so many calls a second begin, for each app, method, peer or value of a field"
    }

    fn example(&self) -> &'static str {
        config::EXAMPLE
    }

    fn configure(
        &self,
        config: &toml::Table,
        environment: &Environment,
        shared: Option<&SharedState>,
    ) -> Result<Arc<dyn Policy>, ConfigError> {
        let rules = parse_config::<config::RateLimitConfig>(config)?.check()?;
        Ok(Arc::new(policy::RateLimit::new(
            *self,
            rules,
            environment.policy.clone(),
            shared,
        )))
    }
}
