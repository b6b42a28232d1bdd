//! Whether a client's and a server's schema of a service may be connected.

use crate::Schema;

/// How a client and a server whose schemas may be connected talk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compatibility {
    /// The schemas are the same: messages travel in native layout, method indices are the same.
    Equal,
    /// They differ in ways that protobuf permits: messages travel in protobuf encoding.
    Protobuf {
        /// For each method of the client, the server's index of the method of that name. `None`: the server lacks
        /// it, so its calls end with UNIMPLEMENTED.
        method_map: Vec<Option<u16>>,
    },
}

/// Why a client's and a server's schema must not be connected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Incompatibility {
    /// A side does not have the service at all.
    #[error(
        "the {side}'s schema has no service `{service}`; check the service's name and the {side}'s version"
    )]
    NoService {
        /// `client` or `server`.
        side: &'static str,
        /// The service asked for.
        service: String,
    },
}

/// Compares the schemas that a client and a server have of `service`.
pub fn compatibility(
    client: &Schema,
    server: &Schema,
    service: &str,
) -> Result<Compatibility, Incompatibility> {
    let _ = (client, server, service);
    todo!()
}
