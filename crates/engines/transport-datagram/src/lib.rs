//! The native protocol over the datagram transport (`docs/transports.md`).
//!
//! ```text
//!   steps ──► Connection ──► segments of frames ──► ResumableStream ──► requests and responses ──► Endpoint ──► packets ──► socket
//! ```
//!
//! A resumable stream is to this transport what a TCP connection is to the other one: it carries the protocol's bytes in order and
//! exactly once, in segments. It lives longer than the sessions of the datagram protocol below it: when an end is replaced,
//! a new session takes the stream up where it stands.
//!
//! A node that uses TLS proves itself, and has its peer prove itself, on a stream that is not sealed; the connection is made
//! on another one, sealed with a key that follows from that (`establish/secure.rs`).
//!
//! A connection is opened by blocking code ([`connect`], [`accept`]), off the data plane, and then carried by an engine,
//! [`DatagramTransport`], on it.
#![forbid(unsafe_code)]

mod carrier;
mod establish;
mod listener;
mod socket;
mod stream;

pub use carrier::DatagramCarrier;
pub use establish::{accept, connect, connect_to};
pub use listener::{Caller, Listener};
pub use provost_transport::{
    AcceptError, Agreement, CallerAttestation, ConnectError, ConnectParams, Decision, Encoding,
    EstablishError, Greeting, HandshakeStop, Hello, Limits, Method, MethodKind, PeerIdentity, Role,
    StateTransfer, TransportConfig,
};
pub use provost_udp::UdpOffer;
pub use socket::{PACKET_BYTES_ETHERNET, PACKET_BYTES_MAX, PACKET_BYTES_MIN, PacketOptions};

/// What kind of engine it is.
pub const KIND: &str = <DatagramCarrier as provost_transport::Carrier>::KIND;

/// A connection on which both ends agree what they speak.
pub type Established = provost_transport::Established<DatagramCarrier>;

/// The last engine of a datapath whose peer is reached over the datagram transport.
pub type DatagramTransport = provost_transport::SessionTransport<DatagramCarrier>;
