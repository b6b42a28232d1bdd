//! Fault injection: calls delayed and aborted by percentage and match, from a seed.
#![forbid(unsafe_code)]

use std::sync::Arc;

use provost_engine::{ConfigError, Environment, Policy, PolicyKind, SharedState};

/// Name of the kind.
pub const KIND: &str = "fault";

/// The kind `fault`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultKind;

impl PolicyKind for FaultKind {
    fn name(&self) -> &'static str {
        KIND
    }

    fn summary(&self) -> &'static str {
        "delays and aborts calls by percentage and match, from a seed"
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
        Err(ConfigError::new("", "this build does not have it"))
    }
}
