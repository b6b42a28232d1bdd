//! A wire over a UDP socket: a system call carries a batch of packets, and, where the kernel offers it, a message of the
//! batch carries many packets to one destination (UDP_SEGMENT) or from one (UDP_GRO).
//!
//! A packet that is sent is copied twice, into the batch and by the kernel; one that is received is copied once, by the
//! kernel, and lent from there.

mod address;
mod options;
mod peer;
mod receive;
mod send;
mod stable;

pub use options::{Ecn, UdpOffer, UdpOptions, UdpStatistics, Use};
pub use peer::{PacketBatches, PeerSocket};

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::task::Waker;
use std::time::Duration;

use provost_net::Bell;
use provost_packets::{Arrival, Integrity, Wire};

use crate::receive::{RECEIVE_MESSAGES_MAX, ReceiveBatch};
use crate::send::SendBatch;

/// What IPv4 and UDP leave of an Ethernet frame of 1500 bytes.
pub const PACKET_BYTES_ETHERNET: usize = 1472;
/// What a datagram can carry at most.
pub const PACKET_BYTES_MAX: usize = 65_507;
/// What the kernel counts for one packet of Ethernet size against a socket's buffer.
const BYTES_PER_PACKET: usize = 2_304;

/// A UDP socket as a wire.
#[derive(Debug)]
pub struct UdpWire {
    socket: UdpSocket,
    address: SocketAddr,
    packet_bytes_max: usize,
    ring_packets: usize,
    arriving: ReceiveBatch,
    leaving: SendBatch,
    bell: Bell,
    statistics: UdpStatistics,
}

impl UdpWire {
    /// A socket on this address, for packets of at most so many bytes, with everything that the kernel offers.
    ///
    /// # Errors
    /// If the address cannot be taken.
    pub fn bind(address: SocketAddr, packet_bytes_max: usize) -> io::Result<Self> {
        let options = UdpOptions {
            packet_bytes_max,
            ..UdpOptions::default()
        };
        UdpWire::bind_with(address, &options)
    }

    /// A socket on this address.
    ///
    /// # Errors
    /// If the address cannot be taken, or the kernel refuses an option.
    pub fn bind_with(address: SocketAddr, options: &UdpOptions) -> io::Result<Self> {
        let socket = UdpSocket::bind(address)?;
        socket.set_nonblocking(true)?;
        let packet_bytes_max = options.packet_bytes_max.clamp(1, PACKET_BYTES_MAX);
        let granted = options::apply(&socket, options)?;
        Ok(Self {
            address: socket.local_addr()?,
            packet_bytes_max,
            ring_packets: granted.receive_buffer_bytes / bytes_per_packet(packet_bytes_max),
            arriving: ReceiveBatch::new(packet_bytes_max, granted.coalescing),
            leaving: SendBatch::new(packet_bytes_max, granted.segmentation),
            socket,
            bell: Bell::new()?,
            statistics: UdpStatistics::default(),
        })
    }

    #[must_use]
    pub fn statistics(&self) -> UdpStatistics {
        self.statistics
    }
}

/// What a packet takes of a socket's buffer: itself and the kernel's own, which packets of Ethernet size show.
fn bytes_per_packet(packet_bytes_max: usize) -> usize {
    BYTES_PER_PACKET + packet_bytes_max.saturating_sub(PACKET_BYTES_ETHERNET)
}

impl Wire for UdpWire {
    type Address = SocketAddr;

    fn address(&self) -> SocketAddr {
        self.address
    }

    fn packet_bytes_max(&self) -> usize {
        self.packet_bytes_max
    }

    fn receive_ring_packets(&self) -> usize {
        self.ring_packets
    }

    fn integrity(&self) -> Integrity {
        Integrity::Checked
    }

    #[inline]
    fn receive(
        &mut self,
        packets_max: usize,
        mut take: impl FnMut(Arrival<'_, SocketAddr>),
    ) -> io::Result<usize> {
        // Packets that are dropped must not keep the caller from its timers.
        let (mut packets, mut calls_left) = (0, 2 + packets_max / RECEIVE_MESSAGES_MAX);
        while packets < packets_max {
            let Some(arrival) = self.arriving.next(&mut self.statistics) else {
                if calls_left == 0 {
                    break;
                }
                // A call that brought less than it could has emptied the socket: another would bring nothing.
                let more = self
                    .arriving
                    .fill(&self.socket, RECEIVE_MESSAGES_MAX, &mut self.statistics)?;
                calls_left = if more { calls_left - 1 } else { 0 };
                continue;
            };
            take(arrival);
            packets += 1;
        }
        self.statistics.packets_received += packets as u64;
        Ok(packets)
    }

    #[inline]
    fn transmit_room(&self) -> usize {
        self.leaving.room()
    }

    #[inline]
    fn transmit(&mut self, to: SocketAddr, head: &[u8], payload: &[u8]) {
        if !self.leaving.push(to, head, payload) {
            self.statistics.not_sent += 1;
        }
    }

    #[inline]
    fn flush(&mut self) -> io::Result<()> {
        self.leaving.send(&self.socket, &mut self.statistics)
    }

    fn wait(&mut self, at_most: Option<Duration>) -> io::Result<()> {
        if self.arriving.holds_packets() {
            return Ok(());
        }
        self.bell.wait(self.socket.as_fd(), at_most)
    }

    fn waker(&self) -> Option<Waker> {
        Some(self.bell.waker())
    }
}

/// Errors of a datagram socket that say that the socket, and not one packet or one peer, is of no use.
fn is_lasting(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EBADF | libc::ENOTSOCK | libc::EFAULT | libc::ENOTCONN | libc::ENOSYS)
    )
}
