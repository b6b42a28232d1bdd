//! The native protocol over NICs that carry calls (`docs/nic.md`). There is no board: the NIC is the RTL's model, and its wire is a UDP
//! socket.
//!
//! ```text
//!   steps ──► Connection ──► segments of frames ──► NicStream ──► calls of up to 7 packets ──► NicHost ──► rings ──► NIC ──► socket
//! ```
//!
//! A client's segments are requests, a server's are responses to requests that the client leaves with it. The NIC sends again
//! what gets lost and delivers once; numbers put segments in order. A connection is opened by blocking code ([`connect`],
//! [`accept`]), off the data plane, and then carried by an engine, [`NicTransport`], on it.
#![forbid(unsafe_code)]

mod board;
mod carrier;
mod establish;
mod listener;
mod segment;
mod stream;
mod wired;

pub use carrier::NicCarrier;
pub use establish::{accept, connect_to};
pub use listener::{NicCaller, NicListener};
pub use provost_transport::{
    AcceptError, Agreement, ConnectError, ConnectParams, Decision, Encoding, EstablishError, Greeting,
    HandshakeStop, Hello, Limits, Method, MethodKind, Role, StateTransfer, TransportConfig,
};

/// What kind of engine it is.
pub const KIND: &str = <NicCarrier as provost_transport::Carrier>::KIND;

/// A connection on which both ends agree what they speak.
pub type NicEstablished = provost_transport::Established<NicCarrier>;

/// The last engine of a datapath whose peer is reached through a NIC.
pub type NicTransport = provost_transport::SessionTransport<NicCarrier>;
