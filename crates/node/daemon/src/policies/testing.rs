//! A kind of policy for tests: it counts, and fails as it is told.

use std::sync::Arc;

use provost_engine::{
    AttachError, ConfigError, DatapathContext, Environment, Policy, PolicyKind, SharedState, Start,
};

/// The kind, in a version of the test's choice.
pub(crate) struct Probe {
    version: u32,
}

impl Probe {
    pub(crate) fn of_version(version: u32) -> Probe {
        Probe { version }
    }
}

impl PolicyKind for Probe {
    fn name(&self) -> &'static str {
        "probe"
    }

    fn version(&self) -> u32 {
        self.version
    }

    fn summary(&self) -> &'static str {
        "for tests"
    }

    fn example(&self) -> &'static str {
        ""
    }

    fn configure(
        &self,
        config: &toml::Table,
        _environment: &Environment,
        shared: Option<&SharedState>,
    ) -> Result<Arc<dyn Policy>, ConfigError> {
        if config.contains_key("refuse") {
            return Err(ConfigError::new("refuse", "as asked"));
        }
        let inherited = shared.map_or(0, |shared| shared.version);
        Ok(Arc::new(Probed {
            generation: inherited + 1,
        }))
    }
}

struct Probed {
    generation: u32,
}

impl Policy for Probed {
    fn prepare(&self, _site: &DatapathContext) -> Result<Start, AttachError> {
        Err(AttachError::new("for tests of the table alone"))
    }

    fn save(&self) -> SharedState {
        SharedState {
            version: self.generation,
            bytes: Vec::new(),
        }
    }
}
