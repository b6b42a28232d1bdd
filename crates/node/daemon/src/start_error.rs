//! Why a service does not start, and what to do about it.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use crate::audit_log::AuditLogError;
use crate::grpc::NotListening;
use crate::grpc_certificates::GrpcTlsError;
use crate::hot_restart::PredecessorError;
use crate::observe::ObserveError;
use crate::policies::{ChangeError, PoliciesNotKept};
use crate::runtime::Overloaded;
use crate::schemas::StoreError;
use crate::sockets::SocketError;
use crate::stream_listener::{listening_hint, port_hint, socket_hint};

/// Why the service did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The control socket could not be made.
    #[error("control.socket {}: {source}{}", path.display(), socket_hint(source))]
    Socket {
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The admin socket could not be made.
    #[error("admin.socket {}: {source}{}", path.display(), socket_hint(source))]
    AdminSocket {
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A listener could not be opened.
    #[error("listener {address}: {source}{}", port_hint(source))]
    Listener {
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// A listener for gRPC clients could not be opened.
    #[error(transparent)]
    Grpc(#[from] NotListening),
    /// A schema that is to be loaded at the start is not usable.
    #[error("schemas.prefetch: {0}")]
    Schema(#[from] StoreError),
    /// What the node tells about itself cannot be had.
    #[error(transparent)]
    Observe(#[from] ObserveError),
    /// The page cannot be had.
    #[error("page.listen {address}: {source}{}", listening_hint(address, source))]
    Page {
        /// Its address, as configured.
        address: String,
        /// What the system said.
        source: io::Error,
    },
    /// A library of the configuration's list cannot be loaded.
    #[error("engines: {0}")]
    Engine(String),
    /// A policy of the configuration cannot be attached.
    #[error(transparent)]
    Policy(#[from] ChangeError),
    /// What operators had made of the policies cannot be gone on with.
    #[error(transparent)]
    NotKept(#[from] PoliciesNotKept),
    /// The TLS files are not usable.
    #[error(transparent)]
    Tls(#[from] GrpcTlsError),
    /// Where the SPIFFE Workload API is, is not known; or it has not answered a process that is to take over.
    #[error("{0}")]
    Workload(String),
    /// A thread or a descriptor was refused by the system.
    #[error("{what}: {source}")]
    System {
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The audit log cannot be written.
    #[error(transparent)]
    Audit(#[from] AuditLogError),
    /// A runtime took no command at the start: it has no app that was taken over.
    #[error("cannot go on with the apps of the process before: {0}")]
    Adopt(Overloaded),
    /// Another process keeps the service.
    #[error("cannot take over: {0}")]
    HotRestart(#[from] PredecessorError),
    /// The control plane ended before it began.
    #[error("the control plane's thread ended unexpectedly")]
    Died,
}

impl From<SocketError> for StartError {
    fn from(error: SocketError) -> StartError {
        match error {
            SocketError::Control { path, source } => StartError::Socket { path, source },
            SocketError::Admin { path, source } => StartError::AdminSocket { path, source },
            SocketError::Peers { address, source } => StartError::Listener { address, source },
            SocketError::Grpc(error) => StartError::Grpc(error),
            SocketError::Http(error) => StartError::Observe(error),
            SocketError::Page { address, source } => StartError::Page { address, source },
            SocketError::System(source) => StartError::System {
                what: "a socket at which the node is found",
                source,
            },
        }
    }
}
