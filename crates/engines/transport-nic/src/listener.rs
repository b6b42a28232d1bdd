//! Where clients come: one socket, which gives each client that has shown its address a socket and a NIC of its own.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use provost_datagram::{Checking, Config, Endpoint, Mark};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use crate::wired::{PACKET_BYTES, draw_u64};

/// For how long a repeated request for a session is one of a client that has its socket already.
const REPEATED: Duration = Duration::from_secs(2);
/// Clients that are remembered for that.
const REPEATED_MAX: usize = 1024;
/// Packets that are looked at before others get their turn.
const PACKETS_MAX: usize = 64;

/// A socket at which clients open connections.
#[derive(Debug)]
pub struct NicListener {
    socket: UdpSocket,
    address: SocketAddr,
    /// It answers who asks for a session, and keeps nothing of anybody.
    endpoint: Endpoint<SocketAddr>,
    began: Instant,
    passed_on: VecDeque<(SocketAddr, Instant)>,
    left_some: bool,
    buffer: Box<[u8]>,
}

/// A client that has come, with a socket of its own. [`crate::accept`] lets it in.
#[derive(Debug)]
pub struct NicCaller {
    pub(crate) socket: UdpSocket,
    pub(crate) address: SocketAddr,
    /// The packet by which it asks for a session.
    pub(crate) opening: Vec<u8>,
}

impl NicCaller {
    /// The address that the client has shown to be its own.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl NicListener {
    /// Listens on this address.
    ///
    /// # Errors
    /// If the address cannot be taken.
    pub fn bind(address: SocketAddr) -> io::Result<NicListener> {
        NicListener::listening(bind_shared(address)?)
    }

    /// Listens at a socket that was bound before.
    ///
    /// # Errors
    /// If it is of no use.
    pub fn listening(socket: UdpSocket) -> io::Result<NicListener> {
        socket.set_nonblocking(true)?;
        let secret = [draw_u64()?, draw_u64()?];
        let config = Config {
            packet_bytes_max: usize::from(PACKET_BYTES),
            checking: Checking::Packets,
            secret,
            ..Config::default()
        };
        Ok(NicListener {
            address: socket.local_addr()?,
            socket,
            endpoint: Endpoint::new(config).map_err(io::Error::other)?,
            began: Instant::now(),
            passed_on: VecDeque::new(),
            left_some: false,
            buffer: vec![0; usize::from(u16::MAX)].into_boxed_slice(),
        })
    }

    /// The address at which it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The listening socket alone.
    #[must_use]
    pub fn into_socket(self) -> UdpSocket {
        self.socket
    }

    /// Whether the last look left packets in the socket.
    #[must_use]
    pub fn left_some(&self) -> bool {
        self.left_some
    }

    /// The next client, if one is there now. Who asks for the first time has to show that it is where it says.
    ///
    /// # Errors
    /// If the socket is of no use any more, or a client cannot be given one.
    pub fn next_caller(&mut self) -> io::Result<Option<NicCaller>> {
        self.left_some = false;
        for _ in 0..PACKETS_MAX {
            let (bytes, from) = match self.socket.recv_from(&mut self.buffer) {
                Ok(received) => received,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                // Errors that speak of a packet sent before.
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => continue,
                Err(error) => return Err(error),
            };
            let opening = self.buffer[..bytes].to_vec();
            let now_ns = self.began.elapsed().as_nanos() as u64;
            if !self.endpoint.recognizes(now_ns, from, &opening) {
                self.answer(now_ns, from, &opening);
            } else if self.is_new(from) {
                let socket = bind_shared(self.address)?;
                socket.connect(from)?;
                return Ok(Some(NicCaller {
                    socket,
                    address: from,
                    opening,
                }));
            }
        }
        self.left_some = true;
        Ok(None)
    }

    fn answer(&mut self, now_ns: u64, from: SocketAddr, packet: &[u8]) {
        self.endpoint.receive(now_ns, from, Mark::None, packet);
        while let Some(transmit) = self.endpoint.poll_transmit(now_ns) {
            let packet = [transmit.head.bytes(), transmit.payload].concat();
            // A client that gets no answer asks again.
            let _ = self.socket.send_to(&packet, transmit.to);
        }
    }

    /// Whether this is not a repetition of somebody who came a moment ago.
    fn is_new(&mut self, from: SocketAddr) -> bool {
        let now = Instant::now();
        self.passed_on
            .retain(|(_, at)| now.duration_since(*at) <= REPEATED);
        if self.passed_on.iter().any(|(known, _)| *known == from) {
            return false;
        }
        if self.passed_on.len() == REPEATED_MAX {
            self.passed_on.pop_front();
        }
        self.passed_on.push_back((from, now));
        true
    }
}

/// A socket on this address, which others may share that speak to one peer each.
fn bind_shared(address: SocketAddr) -> io::Result<UdpSocket> {
    let family = if address.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::DGRAM, flags, None)?;
    sockopt::set_socket_reuseport(&socket, true)?;
    rustix::net::bind(&socket, &address)?;
    Ok(UdpSocket::from(socket))
}

#[cfg(test)]
mod tests {
    use provost_datagram::handshake::{MarkUse, Open, PacketFallback, VERSION};
    use provost_datagram::packet::{Head, Header, Kind, NO_SESSION};

    use super::*;

    /// An Open with this cookie.
    fn open(cookie: u64) -> Vec<u8> {
        let open = Open {
            versions: (VERSION, VERSION),
            selective: true,
            slots: 8,
            session: 1,
            token: 2,
            credits: 8,
            packet_bytes: PACKET_BYTES,
            nonce: 3,
            cookie,
            cipher: 0,
            marks: MarkUse::Unread,
            fallback: PacketFallback::Off,
        };
        let payload = open.encode();
        let head = Head::bare(&Header::of_session(Kind::Open, NO_SESSION, 0));
        let head = head.seal(&payload, Checking::Packets);
        [head.bytes(), &payload].concat()
    }

    #[test]
    fn who_has_shown_its_address_gets_one_socket_and_others_none() {
        let mut listener = NicListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.connect(listener.address()).unwrap();
        for packet in [&b"no packet"[..], &open(4)] {
            client.send(packet).unwrap();
            assert!(listener.next_caller().unwrap().is_none());
        }
        let mut challenge = [0; 64];
        let bytes = client.recv(&mut challenge).unwrap();
        assert_eq!((challenge[0] & 15, bytes >= 32), (Kind::Challenge as u8, true));
        let cookie = u64::from_le_bytes(challenge[24..32].try_into().unwrap());
        client.send(&open(cookie)).unwrap();
        let caller = listener.next_caller().unwrap().expect("it has shown its address");
        assert_eq!(caller.address(), client.local_addr().unwrap());
        assert_eq!(caller.opening, open(cookie));
        // A repetition is for the client's own socket from now on; one that was on its way to the listener's is nobody else.
        drop(caller);
        client.send(&open(cookie)).unwrap();
        assert!(listener.next_caller().unwrap().is_none());
    }
}
