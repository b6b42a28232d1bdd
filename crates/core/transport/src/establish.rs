//! How two ends agree on what they speak. Blocking, off the data plane.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use provost_session::Role;
use provost_session::handshake::{
    Agreement, ClientEvent, ClientHandshake, Decision, HandshakeError, Hello, Limits, ServerEvent,
    ServerHandshake,
};
use provost_tls::{PeerIdentity, TlsFault};
use provost_wire::Code;

/// A connection on which both ends agree what they speak.
#[derive(Debug)]
pub struct Established<C> {
    /// What carries its bytes. It does not block any more.
    pub carrier: C,
    /// Which end this is.
    pub role: Role,
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

/// Where to connect, and what to say there.
#[derive(Clone, Debug)]
pub struct ConnectParams {
    /// `host:port`.
    pub address: String,
    /// What to say. Its caller is said only to a server that takes callers.
    pub hello: Hello,
    /// The serialized `FileDescriptorSet`, for a server that asks for it.
    pub descriptor_set: Arc<[u8]>,
    /// Present to have both ends prove who they are, and to encrypt what they say.
    pub tls: Option<Arc<rustls::ClientConfig>>,
    /// When to give up.
    pub deadline: Instant,
}

/// What a peer has said, and who it has proved to be.
#[derive(Clone, Copy, Debug)]
pub struct Greeting<'a> {
    pub hello: &'a Hello,
    /// Its serialized descriptor set, once it was asked for.
    pub schema: Option<&'a [u8]>,
    pub peer: &'a PeerIdentity,
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
#[error("{peer}: {error}")]
pub struct AcceptError {
    /// Where the peer is.
    pub peer: SocketAddr,
    pub error: EstablishError,
}

/// What went wrong before two ends agreed.
#[derive(Debug, thiserror::Error)]
pub enum EstablishError {
    /// It took too long.
    #[error("the handshake did not end in time")]
    Deadline,
    /// The peer does not speak the protocol as it should, or one end refused the other.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    #[error("TLS: {}", provost_tls::explain(.0))]
    Tls(#[from] rustls::Error),
    /// The peer is there no more.
    #[error("the peer closed the connection during the handshake")]
    Closed,
    /// The datagrams' stream cannot go on.
    #[error("{0}")]
    Lost(String),
    /// The system refused something.
    #[error("{0}")]
    Io(io::Error),
}

impl EstablishError {
    /// The status of calls that wait for the connection.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            EstablishError::Handshake(error) => error.code(),
            EstablishError::Tls(rustls::Error::InvalidCertificate(_) | rustls::Error::AlertReceived(_)) => {
                Code::Unauthenticated
            }
            EstablishError::Deadline
            | EstablishError::Tls(_)
            | EstablishError::Closed
            | EstablishError::Lost(_)
            | EstablishError::Io(_) => Code::Unavailable,
        }
    }
}

impl From<TlsFault> for EstablishError {
    fn from(fault: TlsFault) -> EstablishError {
        EstablishError::Tls(match fault {
            TlsFault::Alert(alert) => rustls::Error::AlertReceived(alert),
            TlsFault::Broken { reason, .. } => rustls::Error::General(reason.into()),
        })
    }
}

impl From<io::Error> for EstablishError {
    fn from(error: io::Error) -> EstablishError {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => EstablishError::Deadline,
            io::ErrorKind::UnexpectedEof => EstablishError::Closed,
            _ => EstablishError::Io(error),
        }
    }
}

/// Tells a handshake to give up. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct HandshakeStop(Arc<AtomicBool>);

impl HandshakeStop {
    /// Has the handshake give up soon.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it was told so.
    #[must_use]
    pub fn is_told(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A way to the peer on which reading blocks, until a deadline.
pub trait HandshakeChannel {
    /// What has come next, however long it is.
    ///
    /// # Errors
    /// Nothing comes any more, or not in time.
    fn read(&mut self) -> Result<Vec<u8>, EstablishError>;

    /// Sends all of it.
    ///
    /// # Errors
    /// It cannot be sent, or not in time.
    fn write(&mut self, bytes: &[u8]) -> Result<(), EstablishError>;

    /// Whether the server takes word of which app calls: one to which nothing is proved does not.
    fn takes_callers(&self) -> bool;
}

/// What two ends have agreed on.
#[derive(Debug)]
pub struct Agreed {
    agreement: Agreement,
    limits: Limits,
    service: String,
    /// Bytes of the protocol that were read past the handshake.
    pub leftover: Vec<u8>,
}

impl Agreed {
    /// The connection, over a carrier that has [`Agreed::leftover`].
    pub fn over<C>(
        self,
        carrier: C,
        role: Role,
        peer: PeerIdentity,
        peer_address: SocketAddr,
    ) -> Established<C> {
        Established {
            carrier,
            role,
            agreement: self.agreement,
            limits: self.limits,
            service: self.service,
            peer,
            peer_address,
        }
    }
}

/// Says hello, and gives the server the schema if it asks for it.
///
/// # Errors
/// The ends do not agree, or the channel fails.
pub fn agree_as_client(
    channel: &mut impl HandshakeChannel,
    params: &ConnectParams,
) -> Result<Agreed, EstablishError> {
    let hello = Hello {
        caller: params.hello.caller.clone().filter(|_| channel.takes_callers()),
        ..params.hello.clone()
    };
    let mut handshake = ClientHandshake::new(&hello, params.descriptor_set.to_vec());
    loop {
        channel.write(&handshake.output())?;
        let bytes = channel.read()?;
        if let ClientEvent::Done { agreement, leftover } = handshake.input(&bytes)? {
            return Ok(Agreed {
                agreement,
                limits: params.hello.limits,
                service: params.hello.service.clone(),
                leftover,
            });
        }
    }
}

/// Lets a client in. `decide` is asked when the client has said hello, and again (with the client's serialized descriptor
/// set) after it answered [`Decision::NeedSchema`].
///
/// # Errors
/// The ends do not agree, or the channel fails.
pub fn agree_as_server(
    channel: &mut impl HandshakeChannel,
    peer: &PeerIdentity,
    mut decide: impl FnMut(Greeting<'_>) -> Decision,
) -> Result<Agreed, EstablishError> {
    let mut handshake = ServerHandshake::new();
    let mut limits = Limits::default();
    loop {
        let bytes = channel.read()?;
        let mut event = handshake.input(&bytes);
        let schema = match &mut event {
            Ok(ServerEvent::Schema(schema)) => Some(std::mem::take(schema)),
            _ => None,
        };
        if let Ok(ServerEvent::Hello | ServerEvent::Schema(_)) = event
            && let Some(hello) = handshake.hello()
        {
            let decision = decide(Greeting {
                hello,
                schema: schema.as_deref(),
                peer,
            });
            if let Decision::Welcome { limits: own, .. } = &decision {
                limits = *own;
            }
            event = handshake.decide(decision);
        }
        // A refusal is sent too.
        channel.write(&handshake.output())?;
        if let ServerEvent::Done { agreement, leftover } = event? {
            let service = handshake.hello().map(|hello| hello.service.clone());
            return Ok(Agreed {
                agreement,
                limits,
                service: service.unwrap_or_default(),
                leftover,
            });
        }
    }
}
