//! Opening connections: TCP, TLS where it is configured, and the native handshake. Blocking, off the data plane.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use provost_datapath::BufferPool;
use provost_session::Piece;
use provost_tls::{self as tls, Purpose, TlsFault, TlsHandshake, TlsRead, TlsSession};
use provost_transport::{
    AcceptError, Agreed, ConnectError, ConnectParams, Decision, EstablishError, Greeting, HandshakeChannel,
    PeerIdentity, Role, agree_as_client, agree_as_server,
};
use provost_wire::Code;

use crate::Established;
use crate::carrier::{TcpCarrier, TcpPeer};
use crate::socket::CarrierSocket;

/// Bytes read at once during the handshake.
const HANDSHAKE_READ_BYTES: usize = 16 << 10;
/// How long a peer that was refused may take to read the refusal.
const PARTING: Duration = Duration::from_millis(300);
/// How much it may have on its way meanwhile, in bytes.
const PARTING_BYTES_MAX: usize = 1 << 20;

/// Connects to a service. Blocks until both ends agree, or the deadline.
///
/// # Errors
/// Nobody answers there, or the peer does not agree.
pub fn connect(params: &ConnectParams) -> Result<Established, ConnectError> {
    let stream = open(&params.address, params.deadline).map_err(|error| unavailable(params, &error))?;
    greet(stream, params)
}

fn unavailable(params: &ConnectParams, error: &io::Error) -> ConnectError {
    ConnectError {
        code: Code::Unavailable,
        message: format!("{} at {}: {error}", params.hello.service, params.address),
    }
}

/// Agrees with a service over a socket that is connected to it, and blocks. Shutting the socket down ends it.
///
/// # Errors
/// The peer does not agree, or not in time.
pub fn greet(stream: TcpStream, params: &ConnectParams) -> Result<Established, ConnectError> {
    let fail = |code, reason: String| ConnectError {
        code,
        message: format!("{} at {}: {reason}", params.hello.service, params.address),
    };
    let unavailable = |error: io::Error| unavailable(params, &error);
    let peer_address = stream.peer_addr().map_err(unavailable)?;
    let tls = match &params.tls {
        None => None,
        Some(config) => Some(
            TlsHandshake::client(config, &params.address, Purpose::Records)
                .map_err(|error| fail(Code::InvalidArgument, error.to_string()))?,
        ),
    };
    let channel = BlockingChannel::new(stream, tls, params.deadline);
    let agree = |channel: &mut BlockingChannel| agree_as_client(channel, params);
    establish(channel, Role::Client, peer_address, agree)
        .map_err(|error| fail(error.code(), error.to_string()))
}

fn open(address: &str, deadline: Instant) -> io::Result<TcpStream> {
    let addresses: Vec<SocketAddr> = address.to_socket_addrs()?.collect();
    provost_net::connect(&addresses, deadline)
}

/// Lets a peer in that a listener has accepted. `decide` is asked when the client has said hello, and again (with the
/// client's serialized descriptor set) after it answered [`Decision::NeedSchema`]. Blocks until both ends agree, or
/// the deadline.
///
/// # Errors
/// The client does not agree, or is gone.
pub fn accept(
    stream: TcpStream,
    tls: Option<Arc<rustls::ServerConfig>>,
    deadline: Instant,
    decide: impl FnMut(Greeting<'_>) -> Decision,
) -> Result<Established, AcceptError> {
    let unknown = SocketAddr::from(([0, 0, 0, 0], 0));
    let fail = |peer, error| AcceptError { peer, error };
    let peer = stream
        .peer_addr()
        .map_err(|error| fail(unknown, EstablishError::Io(error)))?;
    stream
        .set_nonblocking(false)
        .map_err(|error| fail(peer, EstablishError::Io(error)))?;
    let tls = tls.map(|config| TlsHandshake::server(&config, Purpose::Records));
    let tls = tls.transpose().map_err(|error| fail(peer, error.into()))?;
    let channel = BlockingChannel::new(stream, tls, deadline);
    let agree = |channel: &mut BlockingChannel| {
        let identity = channel.peer.clone();
        agree_as_server(channel, &identity, decide)
    };
    establish(channel, Role::Server, peer, agree).map_err(|error| fail(peer, error))
}

/// Secures the channel, agrees with the peer, and makes a carrier of the socket.
fn establish(
    mut channel: BlockingChannel,
    role: Role,
    peer_address: SocketAddr,
    agree: impl FnOnce(&mut BlockingChannel) -> Result<Agreed, EstablishError>,
) -> Result<Established, EstablishError> {
    let agreed = channel.finish_tls_handshake().and_then(|()| agree(&mut channel));
    let mut agreed = match agreed {
        Ok(agreed) => agreed,
        Err(error) => {
            channel.part();
            return Err(error);
        }
    };
    let leftover = std::mem::take(&mut agreed.leftover);
    let (carrier, peer) = channel
        .into_carrier(leftover, peer_address)
        .map_err(EstablishError::Io)?;
    Ok(agreed.over(carrier, role, peer, peer_address))
}

/// A blocking channel with a deadline, plain or TLS.
struct BlockingChannel {
    stream: TcpStream,
    security: Security,
    /// Who the peer has proved to be; nobody before the TLS handshake has ended.
    peer: PeerIdentity,
    /// What [`TlsHandshake::takes_callers`] said.
    takes_callers: bool,
    buffers: BufferPool,
    deadline: Instant,
}

enum Security {
    Plain,
    Handshake(Box<TlsHandshake>),
    Tls(Box<TlsSession>),
}

/// Makes a system call, bounded by what is left until the deadline. With such a bound, a signal ends the call even where
/// its handler asks for it to go on (signal(7)): then it is made again.
fn attempt<T>(
    stream: &TcpStream,
    deadline: Instant,
    mut call: impl FnMut(&TcpStream) -> io::Result<T>,
) -> Result<T, EstablishError> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(EstablishError::Deadline);
        }
        stream.set_read_timeout(Some(left))?;
        stream.set_write_timeout(Some(left))?;
        match call(stream) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            outcome => return Ok(outcome?),
        }
    }
}

impl BlockingChannel {
    fn new(stream: TcpStream, tls: Option<TlsHandshake>, deadline: Instant) -> BlockingChannel {
        let security = match tls {
            None => Security::Plain,
            Some(handshake) => Security::Handshake(Box::new(handshake)),
        };
        BlockingChannel {
            stream,
            security,
            peer: PeerIdentity::Anonymous,
            takes_callers: false,
            buffers: BufferPool::new(),
            deadline,
        }
    }

    fn attempt<T>(&self, call: impl FnMut(&TcpStream) -> io::Result<T>) -> Result<T, EstablishError> {
        attempt(&self.stream, self.deadline, call)
    }

    /// Makes the TLS handshake, if the channel has TLS, and goes over to its records.
    fn finish_tls_handshake(&mut self) -> Result<(), EstablishError> {
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
                return Err(EstablishError::Tls(error));
            }
        }
        self.peer = tls::identity(handshake.connection());
        self.takes_callers = handshake.takes_callers();
        let session = handshake.into_session().map_err(EstablishError::Tls)?;
        self.security = Security::Tls(Box::new(session));
        Ok(())
    }

    /// Reads one record of the handshake, and not a byte more.
    fn read_record(&mut self) -> Result<Vec<u8>, EstablishError> {
        let mut header = [0; 5];
        self.read_all(&mut header)?;
        let mut record = header.to_vec();
        record.resize(header.len() + TlsHandshake::bytes_behind(header), 0);
        self.read_all(&mut record[header.len()..])?;
        Ok(record)
    }

    fn read_all(&mut self, mut into: &mut [u8]) -> Result<(), EstablishError> {
        while !into.is_empty() {
            let read = self.attempt(|mut stream| stream.read(into))?;
            if read == 0 {
                return Err(EstablishError::Closed);
            }
            into = into.get_mut(read..).unwrap_or_default();
        }
        Ok(())
    }

    fn write_all(&mut self, bytes: &[u8]) -> Result<(), EstablishError> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let written = self.attempt(|mut stream| stream.write(rest))?;
            rest = rest.get(written..).unwrap_or_default();
        }
        Ok(())
    }

    fn into_carrier(
        self,
        leftover: Vec<u8>,
        peer_address: SocketAddr,
    ) -> io::Result<(TcpCarrier, PeerIdentity)> {
        self.stream.set_read_timeout(None)?;
        self.stream.set_write_timeout(None)?;
        provost_net::make_ready(&self.stream)?;
        let tls = match self.security {
            Security::Tls(session) => Some(session),
            Security::Plain | Security::Handshake(_) => None,
        };
        let peer = TcpPeer {
            identity: self.peer.clone(),
            address: peer_address,
        };
        let socket = CarrierSocket::new(self.stream, tls, leftover);
        Ok((TcpCarrier::new(socket, peer), self.peer))
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

impl HandshakeChannel for BlockingChannel {
    fn write(&mut self, bytes: &[u8]) -> Result<(), EstablishError> {
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

    fn read(&mut self) -> Result<Vec<u8>, EstablishError> {
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
            return Err(EstablishError::Closed);
        }
        bytes.truncate(read);
        Ok(bytes)
    }

    fn takes_callers(&self) -> bool {
        self.takes_callers
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
