//! The tracing policy: spans of calls over OTLP, and W3C trace context
#![forbid(unsafe_code)]

use std::sync::Arc;

use provost_engine::{ConfigError, Environment, Policy, PolicyKind, SharedState};

/// [`PolicyKind::name`] of this kind.
pub const KIND: &str = "tracing";

/// The kind.
#[derive(Debug, Default)]
pub struct TraceKind {}

impl PolicyKind for TraceKind {
    fn name(&self) -> &'static str {
        KIND
    }

    fn summary(&self) -> &'static str {
        "exports spans of calls over OTLP and carries W3C trace context"
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
