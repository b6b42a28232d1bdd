//! Worlds of simulated NICs and software hosts, with a wire between them that loses, doubles, delays and damages packets; and an
//! application that knows every byte of every call beforehand.
//!
//! A seed replays exactly. A cycle of a NIC is 5 ns.
#![forbid(unsafe_code)]

mod coverage;
mod random;
pub mod rig;
mod traffic;
mod world;

pub use coverage::{CountedSituations, ModuleCoverage};
pub use random::SeededRandom;
pub use traffic::{CallPattern, ClientRecord, ServerRecord};
pub use world::{HostKind, WireFaults, World, WorldConfig, nic_config, nic_config_with_areas};

use provost_nic_model::{ModelUnavailable, RtlModel};

/// Whether there is a model of a module; if not, says why the test is skipped.
#[must_use]
pub fn model_or_skip(module: &str) -> Option<RtlModel> {
    match RtlModel::new(module) {
        Ok(model) => Some(model),
        Err(reason) => {
            say_skipped(reason);
            None
        }
    }
}

/// Prints why a test does nothing.
pub fn say_skipped(reason: ModelUnavailable) {
    provost_skip::missing("a model of the NIC", &reason.to_string());
}
