//! Opening connections: a stream, and the native handshake on it. Blocking, off the data plane.

mod secure;

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

use provost_transport::{
    AcceptError, Agreed, ConnectError, ConnectParams, Decision, EstablishError, Greeting, HandshakeChannel,
    HandshakeStop, PeerIdentity, agree_as_client, agree_as_server,
};
use provost_udp::PacketBatches;
use provost_wire::Code;
use rustls::ServerConfig;

use crate::Established;
use crate::carrier::DatagramCarrier;
use crate::listener::Caller;
use crate::socket::{PacketOptions, Socket, packet_batches};
use crate::stream::{Next, Reading, ResumableStream, SEGMENT_BYTES_SENT, Terms};

/// How long a peer that was refused may take to hear it.
const PARTING: Duration = Duration::from_millis(300);
/// The longest sleep between two looks.
const PAUSE_MAX: Duration = Duration::from_millis(20);
/// Silence of a peer in the handshake after which it counts as gone; the deadline is mostly earlier.
const SILENCE_NS: u64 = 10_000_000_000;
/// What to look at when nobody answers.
const HINT: &str = "is there a listener with transport = \"datagram\"?";

/// Opens a connection. Blocks until both ends agree, or the deadline.
///
/// # Errors
/// Nobody answers there, or the peer does not agree.
pub fn connect(params: &ConnectParams, packets: PacketOptions) -> Result<Established, ConnectError> {
    let addresses = params.address.to_socket_addrs();
    let addresses = addresses.map_err(|error| failed(params, Code::Unavailable, &error))?;
    let addresses: Vec<SocketAddr> = addresses.collect();
    connect_to(&addresses, params, packets, &HandshakeStop::default())
}

fn failed(params: &ConnectParams, code: Code, reason: &dyn std::fmt::Display) -> ConnectError {
    ConnectError {
        code,
        message: format!("cannot connect to {}: {reason}", params.address),
    }
}

/// As [`connect`], to these addresses of the peer, one after the other, and until it is stopped. To answer at all, each has its part of
/// the time that is left.
///
/// # Errors
/// Nobody answers there, or the peer does not agree.
pub fn connect_to(
    addresses: &[SocketAddr],
    params: &ConnectParams,
    packets: PacketOptions,
    stop: &HandshakeStop,
) -> Result<Established, ConnectError> {
    let fail = |code, reason: String| failed(params, code, &reason);
    let mut failure = fail(Code::Unavailable, "the name has no address".to_owned());
    for (at, address) in addresses.iter().enumerate() {
        let now = Instant::now();
        let left = params.deadline.saturating_duration_since(now);
        let answered_by = now + left / (addresses.len() - at) as u32;
        match connect_to_one(*address, params, packets, (answered_by, stop)) {
            Ok(established) => return Ok(established),
            Err(error) => {
                let code = error.code();
                failure = fail(code, explain(&error));
                if code != Code::Unavailable || stop.is_told() {
                    break;
                }
            }
        }
    }
    Err(failure)
}

fn connect_to_one(
    address: SocketAddr,
    params: &ConnectParams,
    packets: PacketOptions,
    (answered_by, stop): (Instant, &HandshakeStop),
) -> Result<Established, EstablishError> {
    let stream = ResumableStream::open(Socket::connect(address)?, terms(packets))?;
    let until = HandshakeLimit {
        deadline: answered_by,
        stop: stop.clone(),
    };
    establish(stream, until, |channel| {
        channel.await_answer()?;
        channel.until.deadline = params.deadline;
        greet(channel, params)
    })
}

fn explain(error: &EstablishError) -> String {
    match error {
        EstablishError::Deadline | EstablishError::Lost(_) => format!("{error}: {HINT}"),
        _ => error.to_string(),
    }
}

fn terms(packets: PacketOptions) -> Terms {
    Terms {
        packet_bytes: packets.packet_bytes,
        silence_ns: SILENCE_NS,
        key: None,
    }
}

fn greet(channel: &mut Channel, params: &ConnectParams) -> Result<(Agreed, PeerIdentity), EstablishError> {
    let peer = match &params.tls {
        Some(config) => channel.secure_as_client(config, &params.address)?,
        None => PeerIdentity::Anonymous,
    };
    Ok((agree_as_client(channel, params)?, peer))
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
    decide: impl FnMut(Greeting<'_>) -> Decision,
) -> Result<Established, AcceptError> {
    let peer = caller.address();
    let fail = |error| AcceptError { peer, error };
    let stream = ResumableStream::serve(caller.socket, terms(packets), &caller.opening, 0);
    let stream = stream.map_err(|error| fail(EstablishError::Io(error)))?;
    let welcome = |channel: &mut Channel| {
        let peer = match tls {
            Some(config) => channel.secure_as_server(config)?,
            None => PeerIdentity::Anonymous,
        };
        Ok((agree_as_server(channel, &peer, decide)?, peer))
    };
    let until = HandshakeLimit {
        deadline,
        stop: HandshakeStop::default(),
    };
    establish(stream, until, welcome).map_err(fail)
}

/// Until when a handshake goes on.
struct HandshakeLimit {
    deadline: Instant,
    stop: HandshakeStop,
}

/// Agrees with the peer at the other end of a stream.
fn establish(
    stream: ResumableStream,
    until: HandshakeLimit,
    agree: impl FnOnce(&mut Channel) -> Result<(Agreed, PeerIdentity), EstablishError>,
) -> Result<Established, EstablishError> {
    let mut channel = Channel {
        stream,
        began: Instant::now(),
        until,
        takes_callers: false,
        batches: packet_batches(),
    };
    match agree(&mut channel) {
        Ok((agreed, peer)) => {
            let (role, address) = (channel.stream.role(), channel.stream.socket().peer());
            let carrier = channel.into_carrier(&agreed.leftover);
            Ok(agreed.over(carrier, role, peer, address))
        }
        Err(error) => {
            channel.part();
            Err(error)
        }
    }
}

/// A stream with a deadline, to be used by one who waits.
struct Channel {
    stream: ResumableStream,
    began: Instant,
    until: HandshakeLimit,
    /// What the TLS handshake said, if there was one.
    takes_callers: bool,
    batches: PacketBatches,
}

impl HandshakeChannel for Channel {
    fn write(&mut self, bytes: &[u8]) -> Result<(), EstablishError> {
        for bytes in bytes.chunks(SEGMENT_BYTES_SENT) {
            let mut segment = self.stream.segment(bytes.len());
            ResumableStream::content(&mut segment).copy_from_slice(bytes);
            self.stream.send(segment);
        }
        self.poll()
    }

    /// What comes next, however long it is.
    fn read(&mut self) -> Result<Vec<u8>, EstablishError> {
        loop {
            let came = match self.stream.next() {
                Next::Bytes(bytes) => Some(bytes.to_vec()),
                Next::Nothing => None,
                Next::Finished => return Err(EstablishError::Closed),
            };
            if let Some(bytes) = came {
                self.stream.taken();
                return Ok(bytes);
            }
            self.wait()?;
        }
    }

    fn takes_callers(&self) -> bool {
        self.takes_callers
    }
}

impl Channel {
    /// Waits until the peer has taken the stream up.
    fn await_answer(&mut self) -> Result<(), EstablishError> {
        while !self.stream.is_attached() {
            self.wait()?;
        }
        Ok(())
    }

    fn wait(&mut self) -> Result<(), EstablishError> {
        self.poll()?;
        if self.stream.has_next() {
            Ok(())
        } else {
            self.pause()
        }
    }

    /// Sleeps until there may be something to do.
    fn pause(&mut self) -> Result<(), EstablishError> {
        let left = self.until.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(EstablishError::Deadline);
        }
        if self.until.stop.is_told() {
            return Err(EstablishError::Closed);
        }
        let now_ns = self.now_ns();
        let due = self.stream.wake_at().map_or(PAUSE_MAX, |at_ns| {
            Duration::from_nanos(at_ns.saturating_sub(now_ns))
        });
        let waited = self.stream.socket().wait(due.min(left).min(PAUSE_MAX));
        waited.map_err(|error| EstablishError::Lost(error.to_string()))
    }

    fn poll(&mut self) -> Result<(), EstablishError> {
        let now_ns = self.now_ns();
        let polled = self.stream.poll(now_ns, Reading::Try, &mut self.batches);
        polled.map(drop).map_err(EstablishError::from)
    }

    fn now_ns(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    fn into_carrier(mut self, leftover: &[u8]) -> DatagramCarrier {
        let now_ns = self.now_ns();
        self.stream.put_back(leftover);
        self.stream.change_clock(now_ns);
        DatagramCarrier::new(self.stream)
    }

    /// Ends the stream so that what was said last arrives.
    fn part(mut self) {
        self.stream.finish();
        self.until.deadline = Instant::now() + PARTING;
        while !(self.stream.is_acknowledged() && self.stream.peer_finished()) {
            if let Next::Bytes(_) | Next::Finished = self.stream.next() {
                self.stream.taken();
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
    use std::sync::Arc;

    use provost_transport::{Hello, Limits};

    use super::*;

    fn params(address: &str, within: Duration) -> ConnectParams {
        ConnectParams {
            address: address.to_owned(),
            hello: Hello {
                service: "test.Test".into(),
                schema_hash: [1; 32],
                methods: Vec::new(),
                limits: Limits::default(),
                caller: None,
            },
            descriptor_set: Arc::from([]),
            tls: None,
            deadline: Instant::now() + within,
        }
    }

    #[test]
    fn a_peer_is_found_at_the_address_where_it_answers() {
        let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut listener = crate::Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let addresses = [
            // No socket speaks to it that has not asked to.
            "255.255.255.255:9".parse().unwrap(),
            silent.local_addr().unwrap(),
            listener.address(),
        ];
        // Less than a peer that says nothing is given by itself.
        let params = params("several", Duration::from_secs(8));
        let deadline = params.deadline;
        let client = std::thread::spawn(move || {
            let stop = HandshakeStop::default();
            connect_to(&addresses, &params, PacketOptions::default(), &stop).map(drop)
        });
        let caller = loop {
            match listener.next_caller().unwrap() {
                Some(caller) => break Some(caller),
                None if client.is_finished() => break None,
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        let welcome = |_: Greeting<'_>| Decision::Welcome {
            encoding: provost_transport::Encoding::Native,
            methods: Vec::new(),
            limits: Limits::default(),
        };
        let server = caller.map(|caller| accept(caller, PacketOptions::default(), None, deadline, welcome));
        assert_eq!(client.join().unwrap(), Ok(()));
        assert!(server.unwrap().is_ok());
    }

    #[test]
    fn who_finds_nobody_is_told_what_to_look_for() {
        // An address of its own, so that no other test's socket is there when this one is gone.
        let address = std::net::UdpSocket::bind("127.41.7.3:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let params = params(&address.to_string(), Duration::from_secs(40));
        let error = connect(&params, PacketOptions::default()).unwrap_err();
        assert_eq!(error.code, Code::Unavailable);
        let hint = "nobody listens at the peer's address any more: is there a listener with transport = \"datagram\"?";
        assert!(error.message.ends_with(hint), "{error}");
    }
}
