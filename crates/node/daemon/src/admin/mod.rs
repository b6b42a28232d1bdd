//! The admin API: what operators' tools ask of this node, over gRPC on a Unix socket.
//!
//! ```text
//! socket ─► server (any thread: role of the caller, shape of the request) ─► desk (the control plane's thread) ─► operations
//!                                                                              └► audit log: who, what, before, after
//! ```
//!
//! The schema is `provost-admin`'s; `docs/admin-api.md` explains it.

mod audit;
mod changes;
mod configuration;
mod desk;
mod dry_run;
mod listings;
mod roles;
mod schemas;
mod server;
mod socket;
mod status;
mod watching;

use std::io;
use std::rc::Rc;

use provost_admin::v1::admin_server::AdminServer;
use tokio::task::JoinHandle;
use tonic::transport::Server as Transport;

use crate::access;
use crate::config::Config;
use crate::control_plane::ControlPlane;

pub use roles::{Denied, Role};
pub(crate) use server::{Caller, Server};
pub(crate) use socket::AdminSocket;

/// Largest request, in bytes: a schema, and what is around it.
const REQUEST_BYTES_MAX: usize = provost_wire::limits::SCHEMA_BYTES_MAX + (1 << 16);
/// Requests of one connection under way at once.
const REQUESTS_PER_CONNECTION_MAX: usize = 16;
/// What a connection may have under way unread, in bytes.
const WINDOW_BYTES: u32 = 1 << 20;

/// Opens the socket, if the configuration wants one.
pub(crate) fn open(config: &Config) -> io::Result<Option<AdminSocket>> {
    if !config.admin.enabled {
        return Ok(None);
    }
    let path = config.admin.socket_beside(&config.control.socket);
    AdminSocket::bind(&path, config.admin_mode()).map(Some)
}

/// The service itself, for those within this process who ask for somebody: they say for whom, by a [`Caller`] among the
/// extensions of a request.
pub(crate) fn service(plane: ControlPlane) -> Server {
    let roles = server::Roles {
        config: plane.config.started.admin.clone(),
        place: plane.config.sources().place(),
        own_uid: access::own_user(),
        node: plane.config.started.node.name.clone(),
        log: std::sync::Arc::clone(&plane.audit),
    };
    let counter = desk::Counter::open(Rc::new(desk::Desk::new(plane)));
    Server::new(counter, roles)
}

/// Serves the admin API until the task is ended, on the thread of the control plane.
pub(crate) fn serve(plane: ControlPlane, socket: AdminSocket) -> JoinHandle<()> {
    let closing = plane.quiesce_barrier.closing();
    let service = AdminServer::new(service(plane)).max_decoding_message_size(REQUEST_BYTES_MAX);
    let serving = Transport::builder()
        .concurrency_limit_per_connection(REQUESTS_PER_CONNECTION_MAX)
        .max_concurrent_streams(REQUESTS_PER_CONNECTION_MAX as u32)
        .initial_connection_window_size(WINDOW_BYTES)
        .initial_stream_window_size(WINDOW_BYTES)
        .add_service(service)
        .serve_with_incoming(socket.incoming(closing));
    tokio::task::spawn_local(async move {
        if let Err(error) = serving.await {
            tracing::error!(%error, "the admin API has ended");
        }
    })
}
