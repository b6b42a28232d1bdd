//! A UDP socket that speaks to one peer.

use std::io::{self, IoSlice};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SendAncillaryBuffer, SendFlags, SocketFlags, SocketType, sendmsg, sockopt};

/// What IPv4 and UDP leave of an Ethernet frame of 1500 bytes.
pub const PACKET_BYTES_ETHERNET: u32 = 1472;
/// The least that a packet can be allowed.
pub const PACKET_BYTES_MIN: u32 = 512;
/// What a UDP datagram can carry at most, in multiples of 8.
pub const PACKET_BYTES_MAX: u32 = 65_504;
/// What the kernel is asked to hold for a connection in each direction; it grants what its limits allow.
const BUFFER_BYTES: usize = 4 << 20;
/// What the kernel counts for one packet against the buffer, beside its bytes, which it rounds up to a power of two.
const PACKET_OVERHEAD_BYTES: usize = 320;

/// How packets are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketOptions {
    /// Bytes of the largest packet, without the headers of IP and UDP. The lesser of both ends' counts.
    pub packet_bytes: u32,
}

impl Default for PacketOptions {
    fn default() -> PacketOptions {
        PacketOptions {
            packet_bytes: PACKET_BYTES_ETHERNET,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Socket {
    socket: UdpSocket,
    peer: SocketAddr,
    /// Since the last look, the peer's host said that nobody listens at its port.
    refused: bool,
}

/// What a socket gave.
pub(crate) enum Received {
    Packet(usize),
    Nothing,
}

impl Socket {
    /// A socket of any free port that speaks to this peer.
    pub(crate) fn connect(peer: SocketAddr) -> io::Result<Socket> {
        let any: SocketAddr = match peer {
            SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
            SocketAddr::V6(_) => ([0; 16], 0).into(),
        };
        let socket = UdpSocket::bind(any)?;
        socket.connect(peer)?;
        Socket::connected(socket, peer)
    }

    /// A socket that is connected to this peer.
    pub(crate) fn connected(socket: UdpSocket, peer: SocketAddr) -> io::Result<Socket> {
        socket.set_nonblocking(true)?;
        sockopt::set_socket_recv_buffer_size(&socket, BUFFER_BYTES)?;
        sockopt::set_socket_send_buffer_size(&socket, BUFFER_BYTES)?;
        Ok(Socket::resumed(socket, peer))
    }

    /// A socket that was a predecessor's.
    pub(crate) fn resumed(socket: UdpSocket, peer: SocketAddr) -> Socket {
        Socket {
            socket,
            peer,
            refused: false,
        }
    }

    /// The same socket once more.
    pub(crate) fn duplicate(&self) -> io::Result<Socket> {
        Ok(Socket::resumed(self.socket.try_clone()?, self.peer))
    }

    pub(crate) fn peer(&self) -> SocketAddr {
        self.peer
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// How many packets of so many bytes the socket holds.
    pub(crate) fn ring_packets(&self, packet_bytes: usize) -> u32 {
        let granted = sockopt::socket_recv_buffer_size(&self.socket).unwrap_or(0);
        (granted / (packet_bytes + PACKET_OVERHEAD_BYTES).next_power_of_two()) as u32
    }

    /// Takes the next packet of the peer.
    pub(crate) fn receive(&mut self, into: &mut [u8]) -> io::Result<Received> {
        loop {
            match self.socket.recv_from(into) {
                // Before it was connected, it may have got what was for others.
                Ok((_, from)) if from != self.peer => {}
                Ok((bytes, _)) => return Ok(Received::Packet(bytes)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Received::Nothing),
                Err(error) => self.note(error)?,
            }
        }
    }

    /// Sends a packet, put together from two pieces. One that the socket has no room for is lost, as it may be further on.
    pub(crate) fn send(&mut self, head: &[u8], payload: &[u8]) -> io::Result<()> {
        let pieces = [IoSlice::new(head), IoSlice::new(payload)];
        let nothing = &mut SendAncillaryBuffer::default();
        match sendmsg(&self.socket, &pieces, nothing, SendFlags::DONTWAIT) {
            Ok(_) => Ok(()),
            Err(error) => self.note(error.into()),
        }
    }

    /// Errors that speak of one packet, or of the peer at this moment, and not of the socket, are noted.
    fn note(&mut self, error: io::Error) -> io::Result<()> {
        use io::ErrorKind::{
            ConnectionRefused, ConnectionReset, HostUnreachable, Interrupted, NetworkUnreachable,
            PermissionDenied, WouldBlock,
        };
        match error.kind() {
            ConnectionRefused => self.refused = true,
            // A packet filter that drops what is sent says so (EPERM).
            ConnectionReset | HostUnreachable | Interrupted | NetworkUnreachable | PermissionDenied
            | WouldBlock => {}
            // No buffer is free at this moment (ENOBUFS).
            _ if error.raw_os_error() == Some(rustix::io::Errno::NOBUFS.raw_os_error()) => {}
            _ => return Err(error),
        }
        Ok(())
    }

    /// Whether the peer's host has said that nobody listens there since this was asked last.
    pub(crate) fn take_refused(&mut self) -> bool {
        std::mem::take(&mut self.refused)
    }

    /// Sleeps until a packet may have come, or so long.
    pub(crate) fn wait(&self, at_most: Duration) -> io::Result<()> {
        wait_readable(self.socket.as_fd(), at_most)
    }
}

/// Sleeps until there is something to read, or so long.
pub(crate) fn wait_readable(socket: BorrowedFd<'_>, at_most: Duration) -> io::Result<()> {
    let timeout = Timespec {
        tv_sec: at_most.as_secs().min(i32::MAX as u64) as i64,
        tv_nsec: at_most.subsec_nanos().into(),
    };
    match poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// A socket on this address, which others may share that speak to one peer each.
pub(crate) fn bind_shared(address: SocketAddr) -> io::Result<UdpSocket> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket: OwnedFd = rustix::net::socket_with(family, SocketType::DGRAM, flags, None)?;
    sockopt::set_socket_reuseport(&socket, true)?;
    rustix::net::bind(&socket, &address)?;
    Ok(UdpSocket::from(socket))
}
