//! The native protocol over TCP, plain or mutual TLS.
//!
//! A connection is opened by blocking code ([`connect`], [`accept`]), off the data plane, and then carried by an
//! engine, [`TcpTransport`], on it. Large leaves of messages go to the kernel straight from the app's heap, large
//! messages come from it straight into the app's receive heap.
#![forbid(unsafe_code)]

mod engine;
mod establish;
mod flight;
mod saved;
mod socket;

pub use engine::{Handover, TcpTransport, TcpVersion, TransportConfig};
pub use establish::{AcceptError, ConnectError, ConnectParams, Established, Greeting, accept, connect};
pub use provost_session::Role;
pub use provost_session::handshake::{Agreement, Decision, Encoding, Hello, Limits, Method, MethodKind};
pub use provost_tls::{PeerIdentity, TlsConfig, TlsConfigError, TlsSession};
