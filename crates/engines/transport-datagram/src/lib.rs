//! The native protocol over the datagram transport (`docs/transports.md`).
//!
//! ```text
//!   steps ──► Connection ──► parcels of frames ──► Lane ──► requests and responses ──► Endpoint ──► packets ──► socket
//! ```
//!
//! A [`lane`] is to this transport what a TCP connection is to the other one: it carries the protocol's bytes in order and
//! exactly once, in parcels. It lives longer than the sessions of the datagram protocol below it: when an end is replaced,
//! a new session takes the lane up where it stands.
//!
//! A node that uses TLS proves itself, and has its peer prove itself, on a lane that is not sealed; the connection is made
//! on another one, sealed with a key that follows from that (`establish/secure.rs`).
//!
//! A connection is opened by blocking code ([`connect`], [`accept`]), off the data plane, and then carried by an engine,
//! [`DatagramTransport`], on it.
#![forbid(unsafe_code)]

mod engine;
mod establish;
mod lane;
mod listener;
mod saved;
mod socket;

pub use engine::{DatagramTransport, Handover, TransportConfig};
pub use establish::{AcceptError, ConnectError, ConnectParams, Established, accept, connect};
pub use listener::{Caller, Listener};
pub use provost_session::Role;
pub use provost_session::handshake::{Agreement, Decision, Encoding, Hello, Limits, Method, MethodKind};
pub use provost_tls::PeerIdentity;
pub use saved::KIND;
pub use socket::{PACKET_BYTES_ETHERNET, PACKET_BYTES_MAX, PACKET_BYTES_MIN, PacketOptions};
