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
mod tls;

// Tests inside and outside of the crate share what makes certificates.
#[cfg(test)]
extern crate self as provost_transport_tcp;

pub use engine::{Handover, TcpTransport, TcpVersion, TransportConfig};
pub use establish::{
    AcceptError, ConnectError, ConnectParams, Established, Greeting, PeerIdentity, accept, connect,
};
pub use provost_session::Role;
pub use provost_session::handshake::{Agreement, Decision, Encoding, Hello, Limits, Method, MethodKind};
pub use tls::fuzzing;
pub use tls::{TlsConfig, TlsConfigError, TlsSession};
