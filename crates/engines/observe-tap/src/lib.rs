//! The tap policy: sampled calls with their messages, redacted by field, in bounded memory
#![forbid(unsafe_code)]

use std::sync::Arc;

use provost_engine::{ConfigError, Environment, Policy, PolicyKind, SharedState};

/// [`PolicyKind::name`] of this kind.
pub const KIND: &str = "tap";

/// The kind.
#[derive(Debug, Default)]
pub struct TapKind {}

impl PolicyKind for TapKind {
    fn name(&self) -> &'static str {
        KIND
    }

    fn summary(&self) -> &'static str {
        "shows sampled calls, redacted by field"
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
