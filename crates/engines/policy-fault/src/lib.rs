//! Fault injection: calls delayed and aborted by percentage and match, from a seed.
//!
//! Calls that match are numbered in the order in which they begin on the node. What happens to a call is drawn from the
//! seed and its number, so the same sequence of calls meets the same faults. See `docs/policies/fault.md` for what an
//! operator configures.
#![forbid(unsafe_code)]

mod config;
mod draw;
mod filter;
mod policy;

use std::sync::Arc;

use provost_engine::{ConfigError, Environment, Policy, PolicyKind, SharedState, parse_config};

pub use config::{ACTIVE_FAULTS_MAX, DELAY_MS_MAX, MATCH_MAX, MESSAGE_BYTES_MAX};

/// Name of the kind.
pub const KIND: &str = "fault";

/// Version of the code.
const VERSION: u32 = 1;

/// The kind `fault`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultKind;

impl PolicyKind for FaultKind {
    fn name(&self) -> &'static str {
        KIND
    }

    fn version(&self) -> u32 {
        VERSION
    }

    fn summary(&self) -> &'static str {
        "delays and aborts calls by percentage and match, from a seed"
    }

    fn example(&self) -> &'static str {
        config::EXAMPLE
    }

    fn configure(
        &self,
        config: &toml::Table,
        _environment: &Environment,
        shared: Option<&SharedState>,
    ) -> Result<Arc<dyn Policy>, ConfigError> {
        let rules = parse_config::<config::FaultConfig>(config)?.check()?;
        Ok(Arc::new(policy::Fault::new(rules, shared)))
    }
}
