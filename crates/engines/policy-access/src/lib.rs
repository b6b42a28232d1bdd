//! Access control: rules in CEL over typed message fields, metadata, method and peer.
#![forbid(unsafe_code)]

use std::sync::Arc;

use provost_engine::{ConfigError, Environment, Policy, PolicyKind, SharedState};

/// Access control.
#[derive(Clone, Copy, Debug, Default)]
pub struct AccessKind;

impl PolicyKind for AccessKind {
    fn name(&self) -> &'static str {
        "access"
    }

    fn summary(&self) -> &'static str {
        "allows or denies calls by rules over message fields, metadata, method and peer"
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
        Err(ConfigError::new("", "not available yet"))
    }
}
