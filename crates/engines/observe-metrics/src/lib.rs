//! The metrics policy: counts and histograms of calls by app, service, method, side and status
#![forbid(unsafe_code)]

use std::sync::Arc;

use provost_engine::{ConfigError, Environment, Policy, PolicyKind, SharedState};

/// [`PolicyKind::name`] of this kind.
pub const KIND: &str = "metrics";

/// The kind.
#[derive(Debug, Default)]
pub struct MetricsKind {}

impl PolicyKind for MetricsKind {
    fn name(&self) -> &'static str {
        KIND
    }

    fn summary(&self) -> &'static str {
        "counts calls by app, service, method, side and status, with latency and size histograms"
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
        Err(ConfigError::new("", "this build has no such policy"))
    }
}
