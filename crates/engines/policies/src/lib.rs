//! The policies that are built in, a module each. What an operator configures has a page in `docs/policies`, under the
//! name of the kind.
#![forbid(unsafe_code)]

pub mod access;
pub mod fault;
pub mod null;
pub mod qos;
pub mod rate_limit;

use std::sync::Arc;

use provost_engine::{PolicyKind, kind_of};

pub use null::NullPolicy;

/// The kind of each of them.
#[must_use]
pub fn kinds() -> Vec<Arc<dyn PolicyKind>> {
    vec![
        kind_of::<null::Null>(),
        kind_of::<rate_limit::RateLimit>(),
        kind_of::<access::AccessPolicy>(),
        kind_of::<qos::Qos>(),
        kind_of::<fault::Fault>(),
    ]
}

/// The kind with this name.
#[must_use]
pub fn kind(name: &str) -> Option<Arc<dyn PolicyKind>> {
    kinds().into_iter().find(|kind| kind.name() == name)
}
