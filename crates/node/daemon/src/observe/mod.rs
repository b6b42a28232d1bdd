//! What a node tells about itself: metrics and health over HTTP, an audit log, numbers for `provost top`.
//!
//! ```text
//! policies ──audit──► bounded queue ──► writer thread ──► audit file, or the log
//! control plane, runtimes, policies ──► collected ──scrape──► exposition ──► /metrics   (tasks of the control plane)
//!                                          └──at each interval──► otlp ──► collector
//! ```
//!
//! `docs/observability.md` lists everything that is reported; a test holds it against the code.

mod collected;
mod exposition;
mod failures;
mod http;
mod node_metrics;
mod otlp;
mod process;
pub(crate) mod state_transfer;

use std::collections::BTreeMap;
use std::io;

use provost_engine::MethodCalls;

use crate::control_plane::ControlPlane;
use crate::stream_listener::listening_hint;

pub use crate::audit_log::{AuditLog, AuditLogError};
pub use crate::config::{ListenAddress, ObserveConfig};
pub(crate) use failures::{failures, follow};
pub(crate) use http::{open, serve};
pub use node_metrics::NODE_METRICS;
pub(crate) use otlp::export;

/// Why what a node tells cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum ObserveError {
    /// The address cannot be listened at.
    #[error("observe.listen {address}: {source}{}", listening_hint(address, source))]
    Listen {
        address: String,
        /// What the system said.
        source: io::Error,
    },
}

/// What has been counted of the calls of each app and method: by all policies that count, which is `metrics`. Two that
/// count the same calls are not added up; the one that has seen more counts.
pub(crate) fn calls(plane: &ControlPlane) -> Vec<MethodCalls> {
    let live = plane.policies.live();
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use provost_engine::{MetricDescription, MetricType};

    use super::*;

    fn row(metric: &MetricDescription) -> String {
        let kind = match metric.kind {
            MetricType::Counter => "counter",
            MetricType::Gauge => "gauge",
            MetricType::Histogram => "histogram",
        };
        format!("{} {kind} {} {}", metric.name, metric.unit, metric.help)
    }

    /// Name, type, unit and meaning of the rows of the document's tables of metrics.
    fn documented(document: &str) -> BTreeSet<String> {
        let rows = document.lines().filter(|line| line.starts_with("| `"));
        let cells = rows.map(|line| {
            line.trim_matches('|')
                .split(" | ")
                .map(str::trim)
                .collect::<Vec<_>>()
        });
        let metrics =
            cells.filter(|cells| cells.len() == 5 && ["counter", "gauge", "histogram"].contains(&cells[1]));
        metrics
            .map(|cells| {
                format!(
                    "{} {} {} {}",
                    cells[0].trim_matches('`'),
                    cells[1],
                    cells[2],
                    cells[4]
                )
            })
            .collect()
    }

    #[test]
    fn the_document_lists_the_metrics_that_there_are() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/observability.md");
        let document = std::fs::read_to_string(path).unwrap();
        let kinds = provost_observers::kinds();
        let metrics = NODE_METRICS
            .iter()
            .copied()
            .chain(provost_engine::VERDICT_METRICS)
            .chain(kinds.iter().flat_map(|kind| kind.metrics()).copied());
        let expected: BTreeSet<String> = metrics.map(row).collect();
        assert_eq!(documented(&document), expected);
    }
}
