//! A wire over a UDP socket: one system call for each packet, from where its pieces are, and into one buffer.
#![forbid(unsafe_code)]

use std::io::{self, IoSlice};
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use provost_packets::{Arrival, Integrity, Wire};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg_addr, sockopt};

/// What IPv4 and UDP leave of an Ethernet frame of 1500 bytes.
pub const PACKET_BYTES_ETHERNET: usize = 1472;
/// What a datagram can carry at most.
const PACKET_BYTES_MAX: usize = 65_507;
/// What the socket is asked to hold for us.
const RECEIVE_BUFFER_BYTES: usize = 8 << 20;
/// What the kernel counts for one packet against that, for packets of Ethernet size.
const BYTES_PER_PACKET: usize = 2_304;
/// Packets that one turn sends at most.
const TRANSMIT_PACKETS_MAX: usize = 64;

/// A UDP socket as a wire.
#[derive(Debug)]
pub struct UdpWire {
    socket: UdpSocket,
    address: SocketAddr,
    buffer: Box<[u8]>,
    packet_bytes_max: usize,
    ring_packets: usize,
    statistics: UdpStatistics,
}

/// What a wire has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UdpStatistics {
    /// Packets that the socket had no room for, or that no packet can carry.
    pub not_sent: u64,
    /// Packets longer than this wire takes.
    pub too_long: u64,
}

impl UdpWire {
    /// A socket on this address, for packets of at most so many bytes.
    ///
    /// # Errors
    /// If the address cannot be taken.
    pub fn bind(address: SocketAddr, packet_bytes_max: usize) -> io::Result<Self> {
        let socket = UdpSocket::bind(address)?;
        socket.set_nonblocking(true)?;
        // The kernel grants what its limit allows; what it granted decides how many sessions there can be.
        sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER_BYTES)?;
        let granted = sockopt::socket_recv_buffer_size(&socket)?;
        let packet_bytes_max = packet_bytes_max.min(PACKET_BYTES_MAX);
        Ok(Self {
            address: socket.local_addr()?,
            socket,
            // One byte more shows that a packet is too long.
            buffer: vec![0; packet_bytes_max + 1].into_boxed_slice(),
            packet_bytes_max,
            ring_packets: granted / BYTES_PER_PACKET.max(packet_bytes_max),
            statistics: UdpStatistics::default(),
        })
    }

    /// What was counted.
    #[must_use]
    pub fn statistics(&self) -> UdpStatistics {
        self.statistics
    }
}

/// Errors of a datagram socket that speak of one packet, or of one peer, and not of the socket.
fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind::{
        ConnectionRefused, ConnectionReset, HostUnreachable, Interrupted, NetworkUnreachable,
    };
    matches!(
        error.kind(),
        ConnectionRefused | ConnectionReset | HostUnreachable | Interrupted | NetworkUnreachable
    )
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

    fn receive(
        &mut self,
        packets_max: usize,
        mut take: impl FnMut(Arrival<'_, SocketAddr>),
    ) -> io::Result<usize> {
        let mut packets = 0;
        while packets < packets_max {
            match self.socket.recv_from(&mut self.buffer) {
                Ok((bytes, _)) if bytes > self.packet_bytes_max => self.statistics.too_long += 1,
                Ok((bytes, from)) => {
                    take(Arrival {
                        from,
                        bytes: &self.buffer[..bytes],
                        congested: false,
                    });
                    packets += 1;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if is_passing(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(packets)
    }

    fn transmit_room(&self) -> usize {
        TRANSMIT_PACKETS_MAX
    }

    fn transmit(&mut self, to: SocketAddr, head: &[u8], payload: &[u8]) {
        if head.len() + payload.len() > self.packet_bytes_max {
            self.statistics.not_sent += 1;
            return;
        }
        let pieces = [IoSlice::new(head), IoSlice::new(payload)];
        let nothing = &mut SendAncillaryBuffer::default();
        // A packet that the socket does not take is lost, as it might be further on.
        if sendmsg_addr(&self.socket, &to, &pieces, nothing, SendFlags::DONTWAIT).is_err() {
            self.statistics.not_sent += 1;
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn wait(&mut self, at_most: Option<Duration>) -> io::Result<()> {
        let timeout = at_most.map(|at_most| Timespec {
            tv_sec: at_most.as_secs().min(i32::MAX as u64) as i64,
            tv_nsec: at_most.subsec_nanos().into(),
        });
        match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
