//! Opening connections: TCP, TLS where it is configured, and the native handshake. Blocking, off the data plane.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Instant;

use provost_session::handshake::{Agreement, Decision, HandshakeError, Hello, Limits, Method};
use provost_wire::Code;

/// A connection on which both ends agree what they speak; its socket does not block.
#[derive(Debug)]
pub struct Established {
    /// The socket.
    pub socket: TcpStream,
    /// The TLS session, if the connection has one.
    pub tls: Option<Box<rustls::Connection>>,
    /// Bytes of the protocol (decrypted) that were read past the handshake.
    pub leftover: Vec<u8>,
    /// What the two ends agreed on.
    pub agreement: Agreement,
    /// What this end said it is ready to receive.
    pub limits: Limits,
    /// Full name of the service.
    pub service: String,
    /// Who the peer has proved to be.
    pub peer: PeerIdentity,
    /// Where the peer is.
    pub peer_address: SocketAddr,
}

/// Who a peer has proved to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerIdentity {
    /// The transport proves nothing.
    Anonymous,
    /// The SPIFFE id in the peer's certificate.
    Spiffe(String),
    /// The first DNS name in the peer's certificate.
    Dns(String),
}

impl PeerIdentity {
    /// The name; empty for a peer that has proved nothing.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            PeerIdentity::Anonymous => "",
            PeerIdentity::Spiffe(name) | PeerIdentity::Dns(name) => name,
        }
    }
}

/// Where to connect, and what to say there.
#[derive(Clone, Debug)]
pub struct ConnectParams {
    /// `host:port`.
    pub address: String,
    /// What to say.
    pub hello: Hello,
    /// The serialized `FileDescriptorSet`, for a server that asks for it.
    pub descriptor_set: Arc<[u8]>,
    /// Present to speak TLS.
    pub tls: Option<Arc<rustls::ClientConfig>>,
    /// When to give up.
    pub deadline: Instant,
}

/// Why no connection came about.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ConnectError {
    /// The status of calls that wait for the connection.
    pub code: Code,
    /// What is wrong, where, and what to do.
    pub message: String,
}

/// Why a peer was not let in.
#[derive(Debug, thiserror::Error)]
pub enum AcceptError {
    /// The handshake did not end in time.
    #[error("{peer}: the handshake did not end in time")]
    Deadline {
        /// Who.
        peer: SocketAddr,
    },
    /// The peer does not speak the protocol as it should, or was refused.
    #[error("{peer}: {error}")]
    Handshake {
        /// Who.
        peer: SocketAddr,
        /// What is wrong.
        error: HandshakeError,
    },
    /// TLS failed.
    #[error("{peer}: TLS: {reason}")]
    Tls {
        /// Who.
        peer: SocketAddr,
        /// What is wrong.
        reason: String,
    },
    /// The connection broke.
    #[error("{peer}: {error}")]
    Io {
        /// Who.
        peer: SocketAddr,
        /// What happened.
        error: std::io::Error,
    },
}

/// Connects to a service. Blocks until both ends agree, or the deadline.
pub fn connect(params: &ConnectParams) -> Result<Established, ConnectError> {
    let _ = (params, Method::clone);
    todo!()
}

/// Lets a peer in that a listener has accepted. `decide` is asked when the client has said hello, and again (with the
/// client's serialized descriptor set) after it answered [`Decision::NeedSchema`]. Blocks until both ends agree, or
/// the deadline.
pub fn accept(
    stream: TcpStream,
    tls: Option<Arc<rustls::ServerConfig>>,
    deadline: Instant,
    decide: impl FnMut(&Hello, Option<&[u8]>) -> Decision,
) -> Result<Established, AcceptError> {
    let _ = (stream, tls, deadline, decide);
    todo!()
}
