//! Rate limits: token buckets that all datapaths of a node share, without a lock.
#![forbid(unsafe_code)]

use std::sync::Arc;

use provost_engine::{ConfigError, Environment, Policy, PolicyKind, SharedState};

/// Name of the kind.
pub const KIND: &str = "rate-limit";

/// The kind `rate-limit`, in its versions. They keep the same state, so a limit can go from any to any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateLimitKind {
    /// The first version.
    V1,
    /// The second version.
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
        ""
    }

    fn configure(
        &self,
        _config: &toml::Table,
        _environment: &Environment,
        _shared: Option<&SharedState>,
    ) -> Result<Arc<dyn Policy>, ConfigError> {
        Err(ConfigError::new("", "this build has no rate limits"))
    }
}
