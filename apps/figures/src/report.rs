//! What one run came to.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What one run of a client came to.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// Length of the measuring window.
    pub seconds: f64,
    /// Calls that ended well in the window.
    pub count: u64,
    /// Calls that failed in it.
    pub errors: u64,
    /// Calls a second.
    pub rps: f64,
    /// Gigabits of request payload a second.
    pub gbps: f64,
    /// Latencies, in microseconds.
    pub mean_us: f64,
    pub min_us: f64,
    pub p50_us: f64,
    pub p90_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    /// CPU seconds in the window, by process.
    pub cpu_seconds: BTreeMap<String, f64>,
    /// Cores' worth of the bench's cores that something else used.
    pub foreign_cores: f64,
    /// What the client's endpoint counted from its beginning on, where it has one.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub counters: BTreeMap<String, u64>,
}
