//! The admin API of `provostd`: what an operator's tools ask of a node, over gRPC on a Unix socket.
//!
//! The schema is `proto/provost/admin/v1/admin.proto`; `docs/admin-api.md` explains it. Here are its messages, its
//! client ([`v1::admin_client`]) and the trait of its server ([`v1::admin_server`]).
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
    tonic::include_proto!("provost.admin.v1");
}
