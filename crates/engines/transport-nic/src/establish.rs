//! Opening connections: a stream, and the native handshake on it. Blocking, off the data plane.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use provost_tls::PeerIdentity;
use provost_transport::{
    AcceptError, Agreed, ConnectError, ConnectParams, Decision, EstablishError, Greeting, HandshakeChannel,
    HandshakeStop, Role, agree_as_client, agree_as_server,
};
use provost_wire::Code;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::NicEstablished;
use crate::carrier::NicCarrier;
use crate::listener::NicCaller;
use crate::stream::{NextSegment, NicStream};
use crate::wired::{NicStartError, SocketReading, WireLost};

/// The longest sleep between two looks.
const PAUSE_MAX: Duration = Duration::from_millis(5);
/// How long a peer that was refused may take to hear it.
const PARTING: Duration = Duration::from_millis(300);
/// What to look at when nobody answers.
const HINT: &str = "is there a listener with transport = \"nic\"?";
/// Why a connection with TLS does not come about.
const SEALED: &str =
    "the NIC does not seal what it sends: take TLS out of the configuration, or another transport";

/// Opens a connection to one of these addresses of the peer. Blocks until both ends agree, the deadline, or it is stopped.
///
/// # Errors
/// There is no NIC, nobody answers there, or the peer does not agree.
pub fn connect_to(
    addresses: &[SocketAddr],
    params: &ConnectParams,
    stop: &HandshakeStop,
) -> Result<NicEstablished, ConnectError> {
    let fail = |code, reason: String| ConnectError {
        code,
        message: format!("cannot connect to {}: {reason}", params.address),
    };
    if params.tls.is_some() {
        return Err(fail(Code::FailedPrecondition, SEALED.into()));
    }
    let mut failure = fail(Code::Unavailable, "the name has no address".into());
    for address in addresses {
        let connected = connect_socket(*address)
            .map_err(NicStartError::from)
            .and_then(NicStream::open);
        let stream = match connected {
            Ok(stream) => stream,
            Err(error) => return Err(fail(Code::Unavailable, error.to_string())),
        };
        let mut channel = StreamChannel::new(stream, params.deadline, stop);
        match agree_as_client(&mut channel, params) {
            Ok(agreed) => return Ok(channel.into_established(agreed, *address)),
            Err(error) => {
                channel.part();
                failure = fail(error.code(), explain(&error));
                if error.code() != Code::Unavailable || stop.is_told() {
                    break;
                }
            }
        }
    }
    Err(failure)
}

fn explain(error: &EstablishError) -> String {
    match error {
        EstablishError::Deadline | EstablishError::Lost(_) => format!("{error}: {HINT}"),
        _ => error.to_string(),
    }
}

fn connect_socket(address: SocketAddr) -> io::Result<UdpSocket> {
    let any: SocketAddr = if address.is_ipv4() {
        ([0, 0, 0, 0], 0).into()
    } else {
        ([0_u16; 8], 0).into()
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(address)?;
    Ok(socket)
}

/// Lets a client in that a listener has got. Blocks until both ends agree, or the deadline.
///
/// # Errors
/// There is no NIC, the client does not agree, or is gone.
pub fn accept(
    caller: NicCaller,
    deadline: Instant,
    decide: impl FnMut(Greeting<'_>) -> Decision,
) -> Result<NicEstablished, AcceptError> {
    let peer = caller.address;
    let fail = |error| AcceptError { peer, error };
    let stream = NicStream::serve(caller.socket, &caller.opening);
    let stream = stream.map_err(|error| fail(EstablishError::Lost(error.to_string())))?;
    let mut channel = StreamChannel::new(stream, deadline, &HandshakeStop::default());
    match agree_as_server(&mut channel, &PeerIdentity::Anonymous, decide) {
        Ok(agreed) => Ok(channel.into_established(agreed, peer)),
        Err(error) => {
            channel.part();
            Err(fail(error))
        }
    }
}

impl From<WireLost> for EstablishError {
    fn from(WireLost(reason): WireLost) -> EstablishError {
        EstablishError::Lost(reason)
    }
}

/// A stream with a deadline, to be used by one who waits.
struct StreamChannel {
    stream: NicStream,
    began: Instant,
    deadline: Instant,
    stop: HandshakeStop,
}

impl HandshakeChannel for StreamChannel {
    fn write(&mut self, bytes: &[u8]) -> Result<(), EstablishError> {
        let mut left = bytes;
        while !left.is_empty() {
            let (segment, rest) = left.split_at(left.len().min(self.stream.room()));
            if segment.is_empty() {
                self.wait()?;
            } else {
                self.stream.send(segment)?;
            }
            left = rest;
        }
        self.poll().map(drop)
    }

    fn read(&mut self) -> Result<Vec<u8>, EstablishError> {
        loop {
            let came = match self.stream.next() {
                NextSegment::Bytes(bytes) => Some(bytes.to_vec()),
                NextSegment::Nothing => None,
                NextSegment::Finished => return Err(EstablishError::Closed),
            };
            if let Some(bytes) = came {
                self.stream.taken();
                return Ok(bytes);
            }
            self.wait()?;
        }
    }

    /// Nothing is proved to a peer over a NIC.
    fn takes_callers(&self) -> bool {
        false
    }
}

impl StreamChannel {
    fn new(stream: NicStream, deadline: Instant, stop: &HandshakeStop) -> StreamChannel {
        StreamChannel {
            stream,
            began: Instant::now(),
            deadline,
            stop: stop.clone(),
        }
    }

    fn poll(&mut self) -> Result<bool, EstablishError> {
        let now_ns = self.began.elapsed().as_nanos() as u64;
        Ok(self.stream.poll(now_ns, SocketReading::Try)?)
    }

    /// Has the NIC do what it can, or sleeps until a packet may have come.
    fn wait(&mut self) -> Result<(), EstablishError> {
        if self.poll()? {
            return Ok(());
        }
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(EstablishError::Deadline);
        }
        if self.stop.is_told() {
            return Err(EstablishError::Closed);
        }
        sleep_until_readable(self.stream.socket(), left.min(PAUSE_MAX)).map_err(EstablishError::Io)
    }

    fn into_established(mut self, agreed: Agreed, address: SocketAddr) -> NicEstablished {
        let role: Role = self.stream.role();
        self.stream.put_back(&agreed.leftover);
        self.stream.change_clock();
        agreed.over(
            NicCarrier::new(self.stream),
            role,
            PeerIdentity::Anonymous,
            address,
        )
    }

    /// Ends the stream so that what was said last arrives.
    fn part(mut self) {
        self.stream.finish();
        self.deadline = Instant::now() + PARTING;
        while !(self.stream.is_acknowledged() && self.stream.peer_finished()) {
            if self.stream.has_next() {
                self.stream.taken();
            } else if self.wait().is_err() {
                // It is given up anyway.
                return;
            }
        }
    }
}

fn sleep_until_readable(socket: &UdpSocket, at_most: Duration) -> io::Result<()> {
    let socket = socket.as_fd();
    let timeout = Timespec {
        tv_sec: at_most.as_secs() as i64,
        tv_nsec: at_most.subsec_nanos().into(),
    };
    match poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
