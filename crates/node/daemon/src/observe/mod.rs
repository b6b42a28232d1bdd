//! What a node tells about itself: metrics and health over HTTP, an audit log, numbers for `provost top`.
//!
//! ```text
//! policies ──audit──► bounded queue ──► writer thread ──► audit file, or the log
//! control plane, runtimes, policies ──scrape──► exposition ──► /metrics   (tasks of the control plane)
//! ```
//!
//! `docs/observability.md` lists everything that is reported; a test holds it against the code.

mod audit;
mod config;
mod exposition;
mod http;
mod node_metrics;
mod process;

use std::collections::BTreeMap;
use std::io;

use provost_engine::MethodCalls;

use crate::node::Shared;

pub use audit::AuditLog;
pub use config::{ListenAddress, ObserveConfig};
pub(crate) use http::{HttpListener, serve};
pub use node_metrics::NODE_METRICS;

/// Why what a node tells cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum ObserveError {
    /// The audit file cannot be written.
    #[error("observe.audit_file {path}: {source}")]
    Audit {
        /// Its path.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// The address cannot be listened at.
    #[error("observe.listen {address}: {source}")]
    Listen {
        /// Where.
        address: String,
        /// What the system said.
        source: io::Error,
    },
    /// No thread was to be had.
    #[error("the audit log's thread: {0}")]
    Thread(io::Error),
}

/// What has been counted of the calls of each app and method: by all policies that count, which is `metrics`. Two that
/// count the same calls are not added up; the one that has seen more counts.
pub(crate) fn calls(shared: &Shared) -> Vec<MethodCalls> {
    let live = shared.policies.live();
    let counted = live.iter().filter_map(|live| live.policy.calls()).flatten();
    let mut merged: BTreeMap<_, MethodCalls> = BTreeMap::new();
    for calls in counted {
        let key = (
            calls.app.clone(),
            calls.service.clone(),
            calls.method.clone(),
            calls.side,
        );
        match merged.get(&key) {
            Some(other) if other.started >= calls.started => {}
            _ => {
                merged.insert(key, calls);
            }
        }
    }
    merged.into_values().collect()
}
