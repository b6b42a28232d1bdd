//! The admin API of `provostd`: what an operator's tools ask of a node, over gRPC on a Unix socket.
//!
//! The schema is `proto/provost/admin/v1/admin.proto`; `docs/admin-api.md` explains it. Here are its messages, its
//! client ([`v1::admin_client`]) and the trait of its server ([`v1::admin_server`]). In JSON (serde) messages have the
//! schema's names of fields; what is absent has its default.
#![forbid(unsafe_code)]

/// Version 1, package `provost.admin.v1`.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::pedantic,
    reason = "generated; the schema has the documentation"
)]
pub mod v1 {
    include!("v1.rs");
}

/// In JSON a state is its name in lower case, such as `serving`.
mod state_name {
    use serde::{Deserialize, Deserializer, Serializer};

    use crate::v1::status::State;

    const PREFIX: &str = "STATE_";

    pub(crate) fn serialize<S: Serializer>(state: &i32, serializer: S) -> Result<S::Ok, S::Error> {
        let name = State::try_from(*state).unwrap_or_default().as_str_name();
        let name = name.strip_prefix(PREFIX).unwrap_or(name);
        serializer.serialize_str(&name.to_lowercase())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i32, D::Error> {
        let name = String::deserialize(deserializer)?;
        let state = State::from_str_name(&format!("{PREFIX}{}", name.to_uppercase()));
        Ok(state.unwrap_or_default().into())
    }
}
