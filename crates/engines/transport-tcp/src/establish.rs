//! Opening connections: TCP, TLS where it is configured, and the native handshake. Blocking, off the data plane.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use provost_session::handshake::{
    Agreement, ClientEvent, ClientHandshake, Decision, HandshakeError, Hello, Limits, ServerEvent,
    ServerHandshake,
};
use provost_wire::Code;

use crate::tls;

/// Bytes read at once during the handshake.
const HANDSHAKE_READ_BYTES: usize = 16 << 10;
/// How long a peer that was refused may take to read the refusal.
const PARTING: Duration = Duration::from_millis(300);
/// How much it may have on its way meanwhile, in bytes.
const PARTING_BYTES_MAX: usize = 1 << 20;

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
    let fail = |code, reason: String| ConnectError {
        code,
        message: format!("{} at {}: {reason}", params.hello.service, params.address),
    };
    let unavailable = |error: io::Error| fail(Code::Unavailable, io_reason(&error));
    let stream = open(&params.address, params.deadline).map_err(unavailable)?;
    let peer_address = stream.peer_addr().map_err(unavailable)?;
    let tls = match &params.tls {
        None => None,
        Some(config) => Some(
            client_session(config, &params.address).map_err(|reason| fail(Code::InvalidArgument, reason))?,
        ),
    };
    let mut channel = Channel::new(stream, tls, params.deadline);
    match shake_hands(&mut channel, params) {
        Ok((agreement, leftover)) => {
            let (limits, service) = (params.hello.limits, params.hello.service.clone());
            channel
                .establish(agreement, limits, service, leftover, peer_address)
                .map_err(unavailable)
        }
        Err(error) => {
            channel.part();
            Err(fail(error.code(), error.to_string()))
        }
    }
}

fn open(address: &str, deadline: Instant) -> io::Result<TcpStream> {
    let addresses: Vec<SocketAddr> = address.to_socket_addrs()?.collect();
    provost_net::connect(&addresses, deadline)
}

fn client_session(config: &Arc<rustls::ClientConfig>, address: &str) -> Result<rustls::Connection, String> {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let name =
        rustls::pki_types::ServerName::try_from(host).map_err(|error| format!("{address}: {error}"))?;
    let session = rustls::ClientConnection::new(config.clone(), name).map_err(|error| error.to_string())?;
    Ok(session.into())
}

fn shake_hands(channel: &mut Channel, params: &ConnectParams) -> Result<(Agreement, Vec<u8>), ChannelError> {
    channel.finish_tls_handshake()?;
    let mut handshake = ClientHandshake::new(&params.hello, params.descriptor_set.to_vec());
    loop {
        channel.write(&handshake.output())?;
        let bytes = channel.read()?;
        if let ClientEvent::Done { agreement, leftover } = handshake.input(&bytes)? {
            return Ok((agreement, leftover));
        }
    }
}

/// What a peer has said, and who it has proved to be.
#[derive(Clone, Copy, Debug)]
pub struct Greeting<'a> {
    /// Its hello.
    pub hello: &'a Hello,
    /// Its serialized descriptor set, once it was asked for.
    pub schema: Option<&'a [u8]>,
    /// Who it is.
    pub peer: &'a PeerIdentity,
}

/// Lets a peer in that a listener has accepted. `decide` is asked when the client has said hello, and again (with the
/// client's serialized descriptor set) after it answered [`Decision::NeedSchema`]. Blocks until both ends agree, or
/// the deadline.
pub fn accept(
    stream: TcpStream,
    tls: Option<Arc<rustls::ServerConfig>>,
    deadline: Instant,
    mut decide: impl FnMut(Greeting<'_>) -> Decision,
) -> Result<Established, AcceptError> {
    let unknown = SocketAddr::from(([0, 0, 0, 0], 0));
    let io_error = |peer, error| AcceptError::Io { peer, error };
    let peer = stream.peer_addr().map_err(|error| io_error(unknown, error))?;
    stream
        .set_nonblocking(false)
        .map_err(|error| io_error(peer, error))?;
    let tls = match tls {
        None => None,
        Some(config) => match rustls::ServerConnection::new(config) {
            Ok(session) => Some(session.into()),
            Err(error) => {
                return Err(AcceptError::Tls {
                    peer,
                    reason: error.to_string(),
                });
            }
        },
    };
    let mut channel = Channel::new(stream, tls, deadline);
    match receive_hands(&mut channel, &mut decide) {
        Ok(Accepted {
            agreement,
            limits,
            service,
            leftover,
        }) => channel
            .establish(agreement, limits, service, leftover, peer)
            .map_err(|error| io_error(peer, error)),
        Err(error) => {
            channel.part();
            Err(match error {
                ChannelError::Deadline => AcceptError::Deadline { peer },
                ChannelError::Handshake(error) => AcceptError::Handshake { peer, error },
                ChannelError::Tls(reason) => AcceptError::Tls {
                    peer,
                    reason: reason.to_string(),
                },
                ChannelError::Io(error) => AcceptError::Io { peer, error },
            })
        }
    }
}

struct Accepted {
    agreement: Agreement,
    limits: Limits,
    service: String,
    leftover: Vec<u8>,
}

fn receive_hands(
    channel: &mut Channel,
    decide: &mut impl FnMut(Greeting<'_>) -> Decision,
) -> Result<Accepted, ChannelError> {
    channel.finish_tls_handshake()?;
    let peer = channel.peer_identity();
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
                peer: &peer,
            });
            if let Decision::Welcome { limits: own, .. } = &decision {
                limits = *own;
            }
            event = handshake.decide(decision);
        }
        // A refusal is sent too.
        channel.write(&handshake.output())?;
        if let ServerEvent::Done { agreement, leftover } = event? {
            let service = handshake
                .hello()
                .map(|hello| hello.service.clone())
                .unwrap_or_default();
            return Ok(Accepted {
                agreement,
                limits,
                service,
                leftover,
            });
        }
    }
}

/// A blocking channel with a deadline, plain or TLS.
struct Channel {
    stream: TcpStream,
    tls: Option<Box<rustls::Connection>>,
    deadline: Instant,
}

#[derive(Debug, thiserror::Error)]
enum ChannelError {
    #[error("the handshake did not end in time")]
    Deadline,
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    #[error("TLS: {}", tls_reason(.0))]
    Tls(rustls::Error),
    #[error("{}", io_reason(.0))]
    Io(io::Error),
}

impl ChannelError {
    fn code(&self) -> Code {
        match self {
            ChannelError::Handshake(error) => error.code(),
            ChannelError::Tls(rustls::Error::InvalidCertificate(_)) => Code::Unauthenticated,
            ChannelError::Tls(rustls::Error::AlertReceived(_)) => Code::Unauthenticated,
            ChannelError::Deadline | ChannelError::Tls(_) | ChannelError::Io(_) => Code::Unavailable,
        }
    }
}

impl From<io::Error> for ChannelError {
    fn from(error: io::Error) -> ChannelError {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => ChannelError::Deadline,
            _ => ChannelError::Io(error),
        }
    }
}

fn tls_reason(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InvalidMessage(_) => {
            format!("{error}; the peer does not speak TLS: one end has TLS configured, the other has not")
        }
        rustls::Error::AlertReceived(_) => {
            format!("{error}; the peer did not accept this node's certificate")
        }
        _ => error.to_string(),
    }
}

fn io_reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "the peer closed the connection during the handshake".to_owned(),
        _ => error.to_string(),
    }
}

impl Channel {
    fn new(stream: TcpStream, tls: Option<rustls::Connection>, deadline: Instant) -> Channel {
        Channel {
            stream,
            tls: tls.map(Box::new),
            deadline,
        }
    }

    /// Bounds the next system call by what is left until the deadline.
    fn arm(&self) -> Result<(), ChannelError> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ChannelError::Deadline);
        }
        self.stream.set_read_timeout(Some(left))?;
        self.stream.set_write_timeout(Some(left))?;
        Ok(())
    }

    fn finish_tls_handshake(&mut self) -> Result<(), ChannelError> {
        while self.tls.as_ref().is_some_and(|tls| tls.is_handshaking()) {
            self.write_records()?;
            if self.tls.as_ref().is_some_and(|tls| tls.is_handshaking()) {
                self.read_records()?;
            }
        }
        self.write_records()
    }

    /// Who the peer has proved to be; nobody before the TLS handshake has ended.
    fn peer_identity(&self) -> PeerIdentity {
        self.tls.as_deref().map_or(PeerIdentity::Anonymous, tls::identity)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), ChannelError> {
        let Some(tls) = &mut self.tls else {
            let mut rest = bytes;
            while !rest.is_empty() {
                self.arm()?;
                let written = self.stream.write(rest)?;
                rest = rest.get(written..).unwrap_or_default();
            }
            return Ok(());
        };
        let mut rest = bytes;
        while !rest.is_empty() {
            let taken = tls.writer().write(rest)?;
            rest = rest.get(taken..).unwrap_or_default();
            while tls.wants_write() {
                tls.write_tls(&mut self.stream)?;
            }
        }
        self.write_records()
    }

    fn read(&mut self) -> Result<Vec<u8>, ChannelError> {
        let mut bytes = vec![0; HANDSHAKE_READ_BYTES];
        loop {
            let read = match &mut self.tls {
                None => {
                    self.arm()?;
                    self.stream.read(&mut bytes)?
                }
                Some(tls) => match tls.reader().read(&mut bytes) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        self.read_records()?;
                        continue;
                    }
                    other => other?,
                },
            };
            if read == 0 {
                return Err(ChannelError::Io(io::ErrorKind::UnexpectedEof.into()));
            }
            bytes.truncate(read);
            return Ok(bytes);
        }
    }

    fn read_records(&mut self) -> Result<(), ChannelError> {
        self.arm()?;
        let Some(tls) = &mut self.tls else {
            return Ok(());
        };
        if tls.read_tls(&mut self.stream)? == 0 && tls.is_handshaking() {
            return Err(ChannelError::Io(io::ErrorKind::UnexpectedEof.into()));
        }
        if let Err(error) = tls.process_new_packets() {
            // The alert tells the peer why; that it may not arrive changes nothing.
            let _ = self.write_records();
            return Err(ChannelError::Tls(error));
        }
        Ok(())
    }

    fn write_records(&mut self) -> Result<(), ChannelError> {
        while self.tls.as_ref().is_some_and(|tls| tls.wants_write()) {
            self.arm()?;
            if let Some(tls) = &mut self.tls {
                tls.write_tls(&mut self.stream)?;
            }
        }
        Ok(())
    }

    fn establish(
        self,
        agreement: Agreement,
        limits: Limits,
        service: String,
        leftover: Vec<u8>,
        peer_address: SocketAddr,
    ) -> io::Result<Established> {
        self.stream.set_read_timeout(None)?;
        self.stream.set_write_timeout(None)?;
        provost_net::make_ready(&self.stream)?;
        let peer = self.peer_identity();
        Ok(Established {
            socket: self.stream,
            tls: self.tls,
            leftover,
            agreement,
            limits,
            service,
            peer,
            peer_address,
        })
    }

    /// Closes so that what was said last arrives: a socket closed with unread bytes resets the connection, and the
    /// peer could lose the refusal.
    fn part(mut self) {
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
        }
        // The connection is given up; what fails now is of no interest to anyone.
        let _ = self.write_records();
        let _ = self.stream.shutdown(Shutdown::Write);
        let until = Instant::now() + PARTING;
        let mut scrap = [0; 4096];
        let mut left = PARTING_BYTES_MAX;
        while left > 0 && Instant::now() < until {
            let _ = self.stream.set_read_timeout(Some(PARTING));
            match self.stream.read(&mut scrap) {
                Ok(0) | Err(_) => return,
                Ok(bytes) => left = left.saturating_sub(bytes),
            }
        }
    }
}
