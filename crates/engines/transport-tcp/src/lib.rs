//! The native protocol over TCP, plain or mutual TLS.
//!
//! A connection is opened by blocking code ([`connect`], [`accept`]), off the data plane, and then carried by an
//! engine, [`TcpTransport`], on it. Large leaves of messages go to the kernel straight from the app's heap, large
//! messages come from it straight into the app's receive heap.
#![forbid(unsafe_code)]

// As the tests in `tests/` name it, with which those in here share their pairs of connections.
#[cfg(test)]
extern crate self as provost_transport_tcp;

mod carrier;
mod establish;
mod flight;
mod saved;
mod socket;

pub use carrier::{TcpCarrier, TcpPeer, TcpVersion};
pub use establish::{accept, connect, greet};
pub use provost_tls::{CertificateValidity, LoadedTls, TlsConfig, TlsConfigError, TlsSession};
pub use provost_transport::{
    AcceptError, Agreement, CallerAttestation, ConnectError, ConnectParams, Decision, Encoding,
    EstablishError, Greeting, Hello, Limits, Method, MethodKind, PeerIdentity, Role, StateTransfer,
    TransportConfig,
};
pub use saved::restore;

/// What kind of engine it is.
pub const KIND: &str = <TcpCarrier as provost_transport::Carrier>::KIND;

/// A connection on which both ends agree what they speak; its socket does not block.
pub type Established = provost_transport::Established<TcpCarrier>;

/// The last engine of a datapath whose peer is reached over TCP.
pub type TcpTransport = provost_transport::SessionTransport<TcpCarrier>;
