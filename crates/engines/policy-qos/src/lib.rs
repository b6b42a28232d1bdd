//! Small calls and near deadlines first, among the apps of one runtime.
//!
//! A runtime polls its datapaths one after the other, and a datapath may move half a megabyte in one poll: that is what
//! a small call of another app waits for, twice on each node. While small messages come and go, this policy has the
//! datapaths with large ones move less in a poll, and be polled behind the others; what they cannot move yet waits here,
//! the earliest deadline first. See `docs/policies/qos.md` for what an operator configures.
#![forbid(unsafe_code)]

mod board;
mod config;
mod engine;
mod policy;
mod waiting;

use std::sync::Arc;

use provost_engine::{ConfigError, Environment, Policy, PolicyKind, SharedState, parse_config};

pub use config::{BULK_BYTES_MAX, BULK_BYTES_MIN, SMALL_BYTES_MAX, TIME_US_MAX, WEIGHT_MAX, WEIGHTS_MAX};

/// Name of the kind.
pub const KIND: &str = "qos";

/// Version of the code.
const VERSION: u32 = 1;

/// The kind `qos`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QosKind;

impl PolicyKind for QosKind {
    fn name(&self) -> &'static str {
        KIND
    }

    fn version(&self) -> u32 {
        VERSION
    }

    fn summary(&self) -> &'static str {
        "lets small calls and near deadlines go first among the apps of one runtime"
    }

    fn example(&self) -> &'static str {
        config::EXAMPLE
    }

    fn configure(
        &self,
        config: &toml::Table,
        _environment: &Environment,
        _shared: Option<&SharedState>,
    ) -> Result<Arc<dyn Policy>, ConfigError> {
        let rules = parse_config::<config::QosConfig>(config)?.check()?;
        Ok(Arc::new(policy::Qos::new(rules)))
    }
}
