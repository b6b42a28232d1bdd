//! The observers: policies that let every call pass and tell people of it, a module each. What an operator configures
//! has a page in `docs/policies`, under the name of the kind.
#![forbid(unsafe_code)]

pub mod access_log;
pub mod metrics;
pub mod tap;
pub mod tracing;

use std::sync::Arc;

use provost_engine::{Code, ConfigError, PolicyKind, kind_of};

/// The kind of each of them.
#[must_use]
pub fn kinds() -> Vec<Arc<dyn PolicyKind>> {
    vec![
        kind_of::<tap::TapPolicy>(),
        kind_of::<access_log::AccessLogPolicy>(),
        kind_of::<metrics::MetricsPolicy>(),
        kind_of::<tracing::TracingPolicy>(),
    ]
}

/// The kind with this name.
#[must_use]
pub fn kind(name: &str) -> Option<Arc<dyn PolicyKind>> {
    kinds().into_iter().find(|kind| kind.name() == name)
}

/// For each status whether it is in a list of their names. An empty list has all.
fn statuses(names: &[String]) -> Result<[bool; Code::ALL.len()], ConfigError> {
    let mut listed = [names.is_empty(); Code::ALL.len()];
    for name in names {
        let Some(at) = Code::ALL.iter().position(|code| code.name() == name) else {
            let problem = format!("\"{name}\" is no status; they are written like \"UNAVAILABLE\"");
            return Err(ConfigError::new("status", problem));
        };
        listed[at] = true;
    }
    Ok(listed)
}
