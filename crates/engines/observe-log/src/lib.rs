//! The access log policy: one line of JSON for each call
#![forbid(unsafe_code)]

use std::sync::Arc;

use provost_engine::{ConfigError, Environment, Policy, PolicyKind, SharedState};

/// [`PolicyKind::name`] of this kind.
pub const KIND: &str = "access-log";

/// The kind.
#[derive(Debug, Default)]
pub struct AccessLogKind {}

impl PolicyKind for AccessLogKind {
    fn name(&self) -> &'static str {
        KIND
    }

    fn summary(&self) -> &'static str {
        "writes a line of JSON for each call"
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
