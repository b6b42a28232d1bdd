//! Opening connections: a lane, and the native handshake on it. Blocking, off the data plane.

mod secure;

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use provost_session::handshake::{
    Agreement, ClientEvent, ClientHandshake, Decision, HandshakeError, Hello, Limits, ServerEvent,
    ServerHandshake,
};
use provost_tls::PeerIdentity;
use provost_wire::Code;
use rustls::{ClientConfig, ServerConfig};

use crate::lane::{Lane, Lost, Next, PARCEL_BYTES_MAX, Reading, Terms};
use crate::listener::Caller;
use crate::socket::{PACKET_BYTES_MAX, PacketOptions, Socket};

/// How long a peer that was refused may take to hear it.
const PARTING: Duration = Duration::from_millis(300);
/// The longest sleep between two looks.
const PAUSE_MAX: Duration = Duration::from_millis(20);
/// Silence of a peer in the handshake after which it counts as gone; the deadline is mostly earlier.
const SILENCE_NS: u64 = 10_000_000_000;

/// A connection on which both ends agree what they speak.
#[derive(Debug)]
pub struct Established {
    pub(crate) lane: Lane,
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
    /// How packets are made.
    pub packets: PacketOptions,
    /// Present to have both ends prove who they are, and to seal what they say.
    pub tls: Option<Arc<ClientConfig>>,
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
#[error("{peer}: {reason}")]
pub struct AcceptError {
    /// Who.
    pub peer: SocketAddr,
    /// What is wrong.
    pub reason: String,
}

/// Opens a connection. Blocks until both ends agree, or the deadline.
///
/// # Errors
/// Nobody answers there, or the peer does not agree.
pub fn connect(params: &ConnectParams) -> Result<Established, ConnectError> {
    let fail = |code, reason: String| ConnectError {
        code,
        message: format!("cannot connect to {}: {reason}", params.address),
    };
    let unavailable = |error: io::Error| fail(Code::Unavailable, error.to_string());
    let addresses: Vec<SocketAddr> = params.address.to_socket_addrs().map_err(unavailable)?.collect();
    let mut failure = fail(Code::Unavailable, "the name has no address".to_owned());
    for address in addresses {
        let socket = Socket::connect(address).map_err(unavailable)?;
        let mut channel = Channel {
            lane: Lane::open(socket, terms(params.packets)).map_err(unavailable)?,
            began: Instant::now(),
            deadline: params.deadline,
            scratch: vec![0; PACKET_BYTES_MAX as usize],
        };
        match shake_hands(&mut channel, params) {
            Ok((agreement, peer, leftover)) => {
                let accepted = Accepted {
                    agreement,
                    limits: params.hello.limits,
                    service: params.hello.service.clone(),
                    leftover,
                };
                return Ok(channel.establish(accepted, peer));
            }
            Err(error) => {
                let code = error.code();
                failure = fail(code, error.to_string());
                channel.part();
                if code != Code::Unavailable {
                    break;
                }
            }
        }
    }
    Err(failure)
}

fn terms(packets: PacketOptions) -> Terms {
    Terms {
        packet_bytes: packets.packet_bytes,
        silence_ns: SILENCE_NS,
        key: None,
    }
}

fn shake_hands(
    channel: &mut Channel,
    params: &ConnectParams,
) -> Result<(Agreement, PeerIdentity, Vec<u8>), ChannelError> {
    let peer = match &params.tls {
        Some(config) => channel.secure_as_client(config, &params.address)?,
        None => PeerIdentity::Anonymous,
    };
    let mut handshake = ClientHandshake::new(&params.hello, params.descriptor_set.to_vec());
    loop {
        channel.write(&handshake.output())?;
        let bytes = channel.read()?;
        if let ClientEvent::Done { agreement, leftover } = handshake.input(&bytes)? {
            return Ok((agreement, peer, leftover));
        }
    }
}

/// Lets a client in that a listener has got. With `tls`, it has to prove who it is first, and what is said then is sealed.
/// `decide` is asked when the client has said hello, and again (with the client's serialized descriptor set) after it answered
/// [`Decision::NeedSchema`]. Blocks until both ends agree, or the deadline.
///
/// # Errors
/// The client does not agree, or is gone.
pub fn accept(
    caller: Caller,
    packets: PacketOptions,
    tls: Option<&ServerConfig>,
    deadline: Instant,
    mut decide: impl FnMut(&Hello, Option<&[u8]>, &PeerIdentity) -> Decision,
) -> Result<Established, AcceptError> {
    let peer = caller.address();
    let fail = |reason: String| AcceptError { peer, reason };
    let lane = Lane::serve(caller.socket, terms(packets), &caller.opening, 0);
    let mut channel = Channel {
        lane: lane.map_err(|error| fail(error.to_string()))?,
        began: Instant::now(),
        deadline,
        scratch: vec![0; PACKET_BYTES_MAX as usize],
    };
    match receive_hands(&mut channel, tls, &mut decide) {
        Ok((accepted, peer)) => Ok(channel.establish(accepted, peer)),
        Err(error) => {
            channel.part();
            Err(fail(error.to_string()))
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
    tls: Option<&ServerConfig>,
    decide: &mut impl FnMut(&Hello, Option<&[u8]>, &PeerIdentity) -> Decision,
) -> Result<(Accepted, PeerIdentity), ChannelError> {
    let peer = match tls {
        Some(config) => channel.secure_as_server(config)?,
        None => PeerIdentity::Anonymous,
    };
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
            let decision = decide(hello, schema.as_deref(), &peer);
            if let Decision::Welcome { limits: own, .. } = &decision {
                limits = *own;
            }
            event = handshake.decide(decision);
        }
        // A refusal is sent too.
        channel.write(&handshake.output())?;
        if let ServerEvent::Done { agreement, leftover } = event? {
            let service = handshake.hello().map(|hello| hello.service.clone());
            let accepted = Accepted {
                agreement,
                limits,
                service: service.unwrap_or_default(),
                leftover,
            };
            return Ok((accepted, peer));
        }
    }
}

/// A lane with a deadline, to be used by one who waits.
struct Channel {
    lane: Lane,
    began: Instant,
    deadline: Instant,
    scratch: Vec<u8>,
}

#[derive(Debug, thiserror::Error)]
enum ChannelError {
    #[error("the handshake did not end in time: is there a listener with transport = \"datagram\"?")]
    Deadline,
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    #[error("{0}: is there a listener with transport = \"datagram\"?")]
    Lost(#[from] Lost),
    #[error("the peer closed the connection during the handshake")]
    Closed,
    #[error("TLS: {}", provost_tls::explain(.0))]
    Tls(#[from] rustls::Error),
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl ChannelError {
    fn code(&self) -> Code {
        match self {
            ChannelError::Handshake(error) => error.code(),
            ChannelError::Tls(rustls::Error::InvalidCertificate(_) | rustls::Error::AlertReceived(_)) => {
                Code::Unauthenticated
            }
            ChannelError::Deadline
            | ChannelError::Lost(_)
            | ChannelError::Closed
            | ChannelError::Tls(_)
            | ChannelError::Io(_) => Code::Unavailable,
        }
    }
}

impl Channel {
    fn write(&mut self, bytes: &[u8]) -> Result<(), ChannelError> {
        for bytes in bytes.chunks(PARCEL_BYTES_MAX) {
            let mut parcel = self.lane.parcel(bytes.len());
            Lane::content(&mut parcel).copy_from_slice(bytes);
            self.lane.send(parcel);
        }
        self.poll()
    }

    /// What comes next, however long it is.
    fn read(&mut self) -> Result<Vec<u8>, ChannelError> {
        loop {
            let came = match self.lane.next() {
                Next::Bytes(bytes) => Some(bytes.to_vec()),
                Next::Nothing => None,
                Next::Finished => return Err(ChannelError::Closed),
            };
            if let Some(bytes) = came {
                self.lane.taken();
                return Ok(bytes);
            }
            self.wait()?;
        }
    }

    fn wait(&mut self) -> Result<(), ChannelError> {
        self.poll()?;
        match self.lane.has_next() {
            true => Ok(()),
            false => self.pause(),
        }
    }

    /// Sleeps until there may be something to do.
    fn pause(&mut self) -> Result<(), ChannelError> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ChannelError::Deadline);
        }
        let now_ns = self.now_ns();
        let due = self.lane.wake_at().map_or(PAUSE_MAX, |at_ns| {
            Duration::from_nanos(at_ns.saturating_sub(now_ns))
        });
        let waited = self.lane.socket().wait(due.min(left).min(PAUSE_MAX));
        waited.map_err(|error| ChannelError::Lost(error.into()))
    }

    fn poll(&mut self) -> Result<(), ChannelError> {
        let now_ns = self.now_ns();
        let polled = self.lane.poll(now_ns, Reading::Try, &mut self.scratch);
        polled.map(drop).map_err(ChannelError::Lost)
    }

    fn now_ns(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    fn establish(mut self, accepted: Accepted, peer: PeerIdentity) -> Established {
        let Accepted {
            agreement,
            limits,
            service,
            leftover,
        } = accepted;
        let now_ns = self.now_ns();
        self.lane.put_back(&leftover);
        self.lane.change_clock(now_ns);
        Established {
            peer_address: self.lane.socket().peer(),
            lane: self.lane,
            agreement,
            limits,
            service,
            peer,
        }
    }

    /// Ends the lane so that what was said last arrives.
    fn part(mut self) {
        self.lane.finish();
        self.deadline = Instant::now() + PARTING;
        while !(self.lane.is_acknowledged() && self.lane.peer_finished()) {
            if let Next::Bytes(_) | Next::Finished = self.lane.next() {
                self.lane.taken();
                continue;
            }
            // It is given up anyway.
            if self.wait().is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_finds_nobody_is_told_what_to_look_for() {
        // An address of its own, so that no other test's socket is there when this one is gone.
        let address = std::net::UdpSocket::bind("127.41.7.3:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let params = ConnectParams {
            address: address.to_string(),
            hello: Hello {
                service: "test.Test".into(),
                schema_hash: [1; 32],
                methods: Vec::new(),
                limits: Limits::default(),
            },
            descriptor_set: Arc::from([]),
            packets: PacketOptions::default(),
            tls: None,
            deadline: Instant::now() + Duration::from_secs(40),
        };
        let error = connect(&params).unwrap_err();
        assert_eq!(error.code, Code::Unavailable);
        let hint = "nobody listens at the peer's address any more: is there a listener with transport = \"datagram\"?";
        assert!(error.message.ends_with(hint), "{error}");
    }
}
