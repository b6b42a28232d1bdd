//! Opening connections: TCP, TLS where it is configured, and the native handshake. Blocking, off the data plane.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use provost_datapath::BufferPool;
use provost_session::Piece;
use provost_session::handshake::{
    Agreement, ClientEvent, ClientHandshake, Decision, HandshakeError, Hello, Limits, ServerEvent,
    ServerHandshake,
};
use provost_tls::{self as tls, PeerIdentity, Purpose, TlsFault, TlsHandshake, TlsRead, TlsSession};
use provost_wire::Code;

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
    pub tls: Option<Box<TlsSession>>,
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
            TlsHandshake::client(config, &params.address, Purpose::Records)
                .map_err(|error| fail(Code::InvalidArgument, error.to_string()))?,
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
        Some(config) => match TlsHandshake::server(&config, Purpose::Records) {
            Ok(handshake) => Some(handshake),
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
    let peer = channel.peer.clone();
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
    security: Security,
    /// Who the peer has proved to be; nobody before the TLS handshake has ended.
    peer: PeerIdentity,
    buffers: BufferPool,
    deadline: Instant,
}

enum Security {
    Plain,
    Handshake(Box<TlsHandshake>),
    Tls(Box<TlsSession>),
}

#[derive(Debug, thiserror::Error)]
enum ChannelError {
    #[error("the handshake did not end in time")]
    Deadline,
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    #[error("TLS: {}", tls::explain(.0))]
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

impl From<TlsFault> for ChannelError {
    fn from(fault: TlsFault) -> ChannelError {
        ChannelError::Tls(match fault {
            TlsFault::Alert(alert) => rustls::Error::AlertReceived(alert),
            TlsFault::Broken { reason, .. } => rustls::Error::General(reason.into()),
        })
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

fn io_reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "the peer closed the connection during the handshake".to_owned(),
        _ => error.to_string(),
    }
}

/// Makes a system call, bounded by what is left until the deadline. With such a bound, a signal ends the call even where
/// its handler asks for it to go on (signal(7)): then it is made again.
fn attempt<T>(
    stream: &TcpStream,
    deadline: Instant,
    mut call: impl FnMut(&TcpStream) -> io::Result<T>,
) -> Result<T, ChannelError> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ChannelError::Deadline);
        }
        stream.set_read_timeout(Some(left))?;
        stream.set_write_timeout(Some(left))?;
        match call(stream) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            outcome => return Ok(outcome?),
        }
    }
}

impl Channel {
    fn new(stream: TcpStream, tls: Option<TlsHandshake>, deadline: Instant) -> Channel {
        let security = match tls {
            None => Security::Plain,
            Some(handshake) => Security::Handshake(Box::new(handshake)),
        };
        Channel {
            stream,
            security,
            peer: PeerIdentity::Anonymous,
            buffers: BufferPool::new(),
            deadline,
        }
    }

    fn attempt<T>(&self, call: impl FnMut(&TcpStream) -> io::Result<T>) -> Result<T, ChannelError> {
        attempt(&self.stream, self.deadline, call)
    }

    /// Makes the TLS handshake, if the channel has TLS, and goes over to its records.
    fn finish_tls_handshake(&mut self) -> Result<(), ChannelError> {
        let mut handshake = match std::mem::replace(&mut self.security, Security::Plain) {
            Security::Handshake(handshake) => handshake,
            other => {
                self.security = other;
                return Ok(());
            }
        };
        loop {
            self.write_all(&handshake.output()?)?;
            if handshake.is_done() {
                break;
            }
            let record = self.read_record()?;
            if let Err(error) = handshake.input(&record) {
                // The alert tells the peer why; that it may not arrive changes nothing.
                let alert = handshake.output().unwrap_or_default();
                let _ = self.write_all(&alert);
                return Err(ChannelError::Tls(error));
            }
        }
        self.peer = tls::identity(handshake.connection());
        let session = handshake.into_session().map_err(ChannelError::Tls)?;
        self.security = Security::Tls(Box::new(session));
        Ok(())
    }

    /// Reads one record of the handshake, and not a byte more.
    fn read_record(&mut self) -> Result<Vec<u8>, ChannelError> {
        let mut header = [0; 5];
        self.read_all(&mut header)?;
        let mut record = header.to_vec();
        record.resize(header.len() + TlsHandshake::bytes_behind(header), 0);
        self.read_all(&mut record[header.len()..])?;
        Ok(record)
    }

    fn read_all(&mut self, mut into: &mut [u8]) -> Result<(), ChannelError> {
        while !into.is_empty() {
            let read = self.attempt(|mut stream| stream.read(into))?;
            if read == 0 {
                return Err(ChannelError::Io(io::ErrorKind::UnexpectedEof.into()));
            }
            into = into.get_mut(read..).unwrap_or_default();
        }
        Ok(())
    }

    fn write_all(&mut self, bytes: &[u8]) -> Result<(), ChannelError> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let written = self.attempt(|mut stream| stream.write(rest))?;
            rest = rest.get(written..).unwrap_or_default();
        }
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), ChannelError> {
        let Security::Tls(session) = &mut self.security else {
            return self.write_all(bytes);
        };
        let mut rest = bytes;
        let mut records = Vec::new();
        take_output(session, &mut records, &mut self.buffers)?;
        while !rest.is_empty() {
            let sealed = session.seal(std::iter::once(Piece::Private(rest)), &mut self.buffers)?;
            rest = rest.get(sealed..).unwrap_or_default();
            take_output(session, &mut records, &mut self.buffers)?;
        }
        self.write_all(&records)
    }

    fn read(&mut self) -> Result<Vec<u8>, ChannelError> {
        let mut bytes = vec![0; HANDSHAKE_READ_BYTES];
        let read = loop {
            let Security::Tls(session) = &mut self.security else {
                break self.attempt(|mut stream| stream.read(&mut bytes))?;
            };
            match session.read(&mut bytes) {
                Ok(TlsRead::Bytes(read)) => break read,
                Ok(TlsRead::Closed) => break 0,
                Ok(TlsRead::NeedsMore) => match attempt(&self.stream, self.deadline, |mut stream| {
                    stream.read(session.space())
                })? {
                    0 => break 0,
                    read => session.came(read),
                },
                Err(fault) => {
                    session.complain(fault, &mut self.buffers);
                    let _ = self.write(&[]);
                    return Err(fault.into());
                }
            }
        };
        if read == 0 {
            return Err(ChannelError::Io(io::ErrorKind::UnexpectedEof.into()));
        }
        bytes.truncate(read);
        Ok(bytes)
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
        Ok(Established {
            socket: self.stream,
            tls: match self.security {
                Security::Tls(session) => Some(session),
                Security::Plain | Security::Handshake(_) => None,
            },
            leftover,
            agreement,
            limits,
            service,
            peer: self.peer,
            peer_address,
        })
    }

    /// Closes so that what was said last arrives: a socket closed with unread bytes resets the connection, and the
    /// peer could lose the refusal.
    fn part(mut self) {
        if let Security::Tls(session) = &mut self.security {
            session.close(&mut self.buffers);
        }
        // The connection is given up; what fails now is of no interest to anyone.
        let _ = self.write(&[]);
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

/// Moves the records that wait to `out`.
fn take_output(
    session: &mut TlsSession,
    out: &mut Vec<u8>,
    buffers: &mut BufferPool,
) -> Result<(), TlsFault> {
    let records = session.output(buffers)?;
    out.extend_from_slice(records);
    let bytes = records.len();
    session.sent(bytes, buffers);
    Ok(())
}
