//! Sockets that speak to one peer each, over batches that all sockets of a thread take turns to use: a batch is large, and
//! there may be thousands of sockets.

use std::cell::Cell;
use std::io;
use std::net::{SocketAddr, UdpSocket};

use provost_packets::Arrival;

use crate::options::{self, Ecn, UdpStatistics, Use};
use crate::receive::ReceiveBatch;
use crate::send::SendBatch;
use crate::{PACKET_BYTES_MAX, UdpOffer};

/// Messages that a [`PeerSocket`] takes at most by one system call: with as many packets in each as the kernel puts together
/// (64), 512 packets.
const PEER_MESSAGES_MAX: usize = 8;

/// Packets that are leaving, and packets that have come, of the socket whose turn it is.
#[derive(Debug)]
pub struct PacketBatches {
    leaving: SendBatch,
    arriving: ReceiveBatch,
}

impl PacketBatches {
    /// Batches for packets of at most so many bytes. Their memory is taken as it is used.
    #[must_use]
    pub fn new(packet_bytes_max: usize) -> PacketBatches {
        let packet_bytes_max = packet_bytes_max.clamp(1, PACKET_BYTES_MAX);
        PacketBatches {
            leaving: SendBatch::new(packet_bytes_max, Use::Never),
            arriving: ReceiveBatch::new(packet_bytes_max, Use::IfOffered),
        }
    }

    /// The next packet of those that [`PeerSocket::receive`] has taken.
    #[inline]
    pub fn next(&mut self, socket: &mut PeerSocket) -> Option<Arrival<'_, SocketAddr>> {
        // What came before the socket was connected may be from others.
        let arrival = self.arriving.next_from(socket.peer, &mut socket.statistics)?;
        socket.statistics.packets_received += 1;
        Some(arrival)
    }

    /// Packets that can be pushed before they are to be flushed.
    #[inline]
    #[must_use]
    pub fn room(&self) -> usize {
        self.leaving.room()
    }
}

/// Whether the kernel puts packets together for a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CoalescingState {
    /// It is to be asked when packets are read next.
    Unasked,
    Asked,
}

/// A socket that is connected to one peer.
#[derive(Debug)]
pub struct PeerSocket {
    socket: UdpSocket,
    peer: SocketAddr,
    segmentation: Use,
    coalescing: Cell<CoalescingState>,
    wanted: Use,
    ecn: Cell<Ecn>,
    statistics: UdpStatistics,
}

impl PeerSocket {
    /// A socket that is connected to this peer, and uses what it may of what the kernel offers. Nothing of the socket is changed
    /// before packets are read from it.
    #[must_use]
    pub fn new(socket: UdpSocket, peer: SocketAddr, wanted: Use) -> PeerSocket {
        PeerSocket {
            segmentation: match UdpOffer::of(&socket) {
                UdpOffer {
                    segmentation: true, ..
                } => wanted,
                UdpOffer {
                    segmentation: false, ..
                } => Use::Never,
            },
            socket,
            peer,
            coalescing: Cell::new(CoalescingState::Unasked),
            wanted,
            ecn: Cell::new(Ecn::Off),
            statistics: UdpStatistics::default(),
        }
    }

    /// The socket, which stays connected to the peer.
    #[must_use]
    pub fn socket(&self) -> &UdpSocket {
        &self.socket
    }

    /// The address to which it is connected.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// What was counted of this socket.
    #[must_use]
    pub fn statistics(&self) -> &UdpStatistics {
        &self.statistics
    }

    /// Leaves the socket as somebody expects it who reads a packet at a time. It is asked for batches again when this one, or
    /// another over the same descriptor, is read next.
    ///
    /// # Errors
    /// If the kernel refuses that.
    pub fn leave_plain(&self) -> io::Result<()> {
        if self.coalescing.replace(CoalescingState::Unasked) == CoalescingState::Unasked {
            return Ok(());
        }
        if self.ecn.replace(Ecn::Off) == Ecn::Capable {
            options::set_ecn(&self.socket, Ecn::Off)?;
        }
        options::set_coalescing(&self.socket, 0)
    }

    /// Whether packets say from now on that the network may mark them: only if the peer heeds marks, or tells who does.
    ///
    /// # Errors
    /// If the kernel refuses that.
    #[inline]
    pub fn use_ecn(&self, ecn: Ecn) -> io::Result<()> {
        if self.ecn.get() == ecn {
            return Ok(());
        }
        options::set_ecn(&self.socket, ecn)?;
        self.ecn.set(ecn);
        Ok(())
    }

    /// Takes a packet, put together from two pieces, that goes with the next [`PeerSocket::flush`]. Without room it is lost.
    #[inline]
    pub fn push(&mut self, batches: &mut PacketBatches, head: &[u8], payload: &[u8]) {
        batches.leaving.use_segmentation(self.segmentation);
        if !batches.leaving.push(self.peer, head, payload) {
            self.statistics.not_sent += 1;
        }
    }

    /// Sends what was pushed. What the socket has no room for now is lost, as it may be further on.
    ///
    /// # Errors
    /// If the socket is of no use any more.
    #[inline]
    pub fn flush(&mut self, batches: &mut PacketBatches) -> io::Result<()> {
        let sent = batches.leaving.send(&self.socket, &mut self.statistics);
        if self.statistics.segmentation_refused > 0 {
            self.segmentation = Use::Never;
        }
        self.statistics.not_sent += batches.leaving.abandon() as u64;
        sent
    }

    /// Takes packets from the socket by one system call, in the place of those that were taken before; says whether there may
    /// be more.
    ///
    /// # Errors
    /// If the socket is of no use any more.
    pub fn receive(&mut self, batches: &mut PacketBatches) -> io::Result<bool> {
        if self.coalescing.replace(CoalescingState::Asked) == CoalescingState::Unasked {
            // Marks are told from now on.
            options::set_ecn(&self.socket, self.ecn.get())?;
            if self.wanted == Use::IfOffered {
                // A kernel that does not offer it gives packets one by one.
                let _ = options::set_coalescing(&self.socket, 1);
            }
        }
        let arriving = &mut batches.arriving;
        arriving.abandon();
        arriving.fill(&self.socket, PEER_MESSAGES_MAX, &mut self.statistics)
    }
}
