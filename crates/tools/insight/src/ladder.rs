//! The methods of measuring, from the best to the last resort, as they were found on the machine of a profile.

use serde::{Deserialize, Serialize};

/// One method, and what it was used for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LadderRung {
    /// `tp_btf`, `stack_samples`, `uprobe`, `preload`, `access_log` or `differential`.
    pub method: String,
    /// Whether it works here.
    pub granted: bool,
    /// What it is used for, or why it is not.
    pub purpose: String,
    /// What one hit of it takes from whoever is measured, in nanoseconds, as it was measured here; `None` where it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hit_cost_ns: Option<f64>,
}
