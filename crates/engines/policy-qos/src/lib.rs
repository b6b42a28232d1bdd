//! Small calls and near deadlines first, among the apps of one runtime.
#![forbid(unsafe_code)]

use std::sync::Arc;

use provost_engine::{ConfigError, Environment, Policy, PolicyKind, SharedState};

/// Name of the kind.
pub const KIND: &str = "qos";

/// The kind `qos`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QosKind;

impl PolicyKind for QosKind {
    fn name(&self) -> &'static str {
        KIND
    }

    fn summary(&self) -> &'static str {
        "lets small calls and near deadlines go first among the apps of one runtime"
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
