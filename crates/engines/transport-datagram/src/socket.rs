//! A UDP socket that speaks to one peer.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use provost_datagram::{Mark, MarkUse};
use provost_udp::{Ecn, PacketBatches, PeerSocket, Use};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

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
    peer: PeerSocket,
    /// How often the peer's host had said that nobody listens at its port, at the last look.
    refusals_seen: u64,
}

/// Batches for the packets of a socket, one after the other.
pub(crate) fn packet_batches() -> PacketBatches {
    PacketBatches::new(PACKET_BYTES_MAX as usize)
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
            peer: PeerSocket::new(socket, peer, Use::IfOffered),
            refusals_seen: 0,
        }
    }

    /// The same socket once more.
    pub(crate) fn duplicate(&self) -> io::Result<Socket> {
        Ok(Socket::resumed(self.peer.socket().try_clone()?, self.peer()))
    }

    pub(crate) fn peer(&self) -> SocketAddr {
        self.peer.peer()
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.peer.socket().as_fd()
    }

    /// Leaves the socket to a successor of whatever version: those of before batches take one packet at a time.
    pub(crate) fn leave_plain(&self) {
        // Where it fails the socket is of no use, which whoever reads it is told.
        let _ = self.peer.leave_plain();
    }

    /// How many packets of so many bytes the socket holds.
    pub(crate) fn ring_packets(&self, packet_bytes: usize) -> u32 {
        let granted = sockopt::socket_recv_buffer_size(self.peer.socket()).unwrap_or(0);
        (granted / (packet_bytes + PACKET_OVERHEAD_BYTES).next_power_of_two()) as u32
    }

    /// Takes packets of the socket into the batches; says whether there may be more.
    pub(crate) fn receive(&mut self, batches: &mut PacketBatches) -> io::Result<bool> {
        self.peer.receive(batches)
    }

    /// The next packet of the peer that was taken.
    pub(crate) fn next<'b>(&mut self, batches: &'b mut PacketBatches) -> Option<(Mark, &'b [u8])> {
        let arrival = batches.next(&mut self.peer)?;
        let mark = if arrival.congested {
            Mark::Congested
        } else {
            Mark::None
        };
        Some((mark, arrival.bytes))
    }

    /// Whether packets say that the network may mark them, as this peer reads marks or not.
    pub(crate) fn apply_marks(&self, marks: MarkUse) -> io::Result<()> {
        let ecn = match marks {
            MarkUse::Read => Ecn::Capable,
            MarkUse::Unread => Ecn::Off,
        };
        self.peer.use_ecn(ecn)
    }

    /// Takes a packet, put together from two pieces, that goes with the next flush.
    pub(crate) fn push(&mut self, batches: &mut PacketBatches, head: &[u8], payload: &[u8]) {
        self.peer.push(batches, head, payload);
    }

    /// Sends what was pushed. What the socket has no room for is lost, as it may be further on.
    pub(crate) fn flush(&mut self, batches: &mut PacketBatches) -> io::Result<()> {
        self.peer.flush(batches)
    }

    /// Whether the peer's host has said that nobody listens there since this was asked last.
    pub(crate) fn take_refused(&mut self) -> bool {
        let refusals = self.peer.statistics().refused;
        std::mem::replace(&mut self.refusals_seen, refusals) < refusals
    }

    /// What was counted of this socket.
    #[cfg(test)]
    pub(crate) fn statistics(&self) -> &provost_udp::UdpStatistics {
        self.peer.statistics()
    }

    /// Sleeps until a packet may have come, or so long.
    pub(crate) fn wait(&self, at_most: Duration) -> io::Result<()> {
        wait_readable(self.descriptor(), at_most)
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
