//! Where clients come: one socket, which gives each client that shows its address a socket of its own.
//!
//! The kernel then delivers what that client sends to that socket (both are bound to the same address, the client's is
//! connected, too), so that a connection has one descriptor, as one over TCP has, and its own thread reads it.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use provost_datagram::{Endpoint, Mark};

use crate::socket::{Socket, bind_shared};
use crate::stream;

/// Bytes of the largest packet that is of interest here: those that open sessions are shorter.
const PACKET_BYTES: usize = 2048;
/// For how long a repeated request for a session is one of a client that has its socket already.
const REPEATED: Duration = Duration::from_secs(2);
/// Clients that are remembered for that.
const REPEATED_MAX: usize = 4096;
/// Packets that are looked at before others get their turn.
const PACKETS_MAX: usize = 256;

/// A socket at which clients open connections.
#[derive(Debug)]
pub struct Listener {
    socket: UdpSocket,
    address: SocketAddr,
    endpoint: Endpoint<SocketAddr>,
    began: Instant,
    passed_on: VecDeque<(SocketAddr, Instant)>,
    left_some: bool,
    buffer: Box<[u8]>,
}

/// A client that has come, with a socket of its own. [`crate::accept`] lets it in.
#[derive(Debug)]
pub struct Caller {
    pub(crate) socket: Socket,
    /// The packet by which it asks for a session.
    pub(crate) opening: Vec<u8>,
}

impl Caller {
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.socket.peer()
    }
}

impl Listener {
    /// Listens on this address. Clients of an address that stands for all of a host's must reach it by the one that the
    /// host answers them from.
    ///
    /// # Errors
    /// If the address cannot be taken.
    pub fn bind(address: SocketAddr) -> io::Result<Listener> {
        Listener::listening(bind_shared(address)?)
    }

    /// Goes on with a socket that was listening before.
    ///
    /// # Errors
    /// If it is none.
    pub fn listening(socket: UdpSocket) -> io::Result<Listener> {
        socket.set_nonblocking(true)?;
        Ok(Listener {
            address: socket.local_addr()?,
            socket,
            endpoint: stream::endpoint(stream::Shape::of_listener())?,
            began: Instant::now(),
            passed_on: VecDeque::new(),
            left_some: false,
            buffer: vec![0; PACKET_BYTES].into_boxed_slice(),
        })
    }

    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The socket, to be watched, or to be handed on.
    #[must_use]
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    #[must_use]
    pub fn into_socket(self) -> UdpSocket {
        self.socket
    }

    /// Whether the last look left packets in the socket.
    #[must_use]
    pub fn left_some(&self) -> bool {
        self.left_some
    }

    /// The next client, if one is there now. What others want is answered meanwhile.
    ///
    /// # Errors
    /// If the socket is of no use any more, or a client cannot be given one.
    pub fn next_caller(&mut self) -> io::Result<Option<Caller>> {
        self.left_some = false;
        for _ in 0..PACKETS_MAX {
            let (bytes, from) = match self.socket.recv_from(&mut self.buffer) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                // Errors that speak of a packet sent before.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
                Err(error) => return Err(error),
            };
            let now_ns = self.began.elapsed().as_nanos() as u64;
            let packet = &self.buffer[..bytes];
            if self.endpoint.asks_otherwise(packet) {
                // Of a connection that goes on, and whose socket is gone: who answered would not be believed.
                continue;
            }
            if !self.endpoint.recognizes(now_ns, from, packet) {
                // It keeps nothing of whom it answers.
                self.endpoint.receive(now_ns, from, Mark::None, packet);
                self.answer(now_ns);
                continue;
            }
            let opening = packet.to_vec();
            if self.is_new(from) {
                let own = bind_shared(self.address)?;
                own.connect(from)?;
                let socket = Socket::connected(own, from)?;
                return Ok(Some(Caller { socket, opening }));
            }
        }
        self.left_some = true;
        Ok(None)
    }

    fn answer(&mut self, now_ns: u64) {
        while let Some(transmit) = self.endpoint.poll_transmit(now_ns) {
            let packet = [transmit.head.bytes(), transmit.payload].concat();
            // A client that gets no answer asks again.
            let _ = self.socket.send_to(&packet, transmit.to);
        }
    }

    /// Whether this is not a repetition of somebody who came a moment ago.
    fn is_new(&mut self, from: SocketAddr) -> bool {
        let now = Instant::now();
        let is_old = |(_, at): &(SocketAddr, Instant)| now.duration_since(*at) > REPEATED;
        while self.passed_on.front().is_some_and(is_old) || self.passed_on.len() >= REPEATED_MAX {
            self.passed_on.pop_front();
        }
        if self.passed_on.iter().any(|(known, _)| *known == from) {
            return false;
        }
        self.passed_on.push_back((from, now));
        true
    }
}
