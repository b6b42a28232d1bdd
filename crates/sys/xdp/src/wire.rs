//! The wire: frames of our own on an AF_XDP socket.

use std::fmt;
use std::io;
use std::net::{SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::AsFd;
use std::task::Waker;
use std::time::{Duration, Instant};

use provost_frames::{Checksum, HEADER_BYTES, IP_HEADERS_BYTES, read};
use provost_net::Bell;
use provost_packets::{Arrival, Integrity, Wire};

use crate::error::XdpError;
use crate::interface::XdpInterface;
use crate::options::{XdpOptions, XdpStatistics};
use crate::peers::Peers;
use crate::program::QUEUES_MAX;
use crate::socket::{HEADROOM_BYTES, Place, Sizes, Socket};

/// Entries of a ring.
const RING_PACKETS_MIN: u32 = 64;
const RING_PACKETS_MAX: u32 = 1 << 16;
/// Sizes of frames. The kernel takes these two.
const FRAME_BYTES: [usize; 2] = [2048, 4096];
/// Packets of the largest size that one call has the kernel send, where it copies (`TX_BATCH_SIZE` of the kernel).
const KICK_PACKETS: u32 = 32;
/// Flushes between two looks at what the kernel tells of neighbours.
const FLUSHES_PER_LOOK: u32 = 1024;
/// Between two looks while an address is being asked for.
const RESOLVE_PAUSE: Duration = Duration::from_millis(1);

/// A queue of an interface as a wire.
pub struct XdpWire {
    socket: Socket,
    address: SocketAddrV4,
    packet_bytes_max: usize,
    receive_ring_packets: u32,
    checksum: Checksum,
    /// Frames to send in.
    spare: Vec<u64>,
    /// The first frame that is to send in: those before are to receive in.
    spare_from: u64,
    peers: Peers,
    flushes_until_look: u32,
    polls_busily: bool,
    unpublished: u32,
    bell: Bell,
    statistics: XdpStatistics,
    queue: u32,
    interface: XdpInterface,
    /// Keeps the port from others, and the kernel from saying that nobody is there.
    _reserved: UdpSocket,
}

/// What the kernel has counted of packets that the wire has not seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelStatistics {
    /// Packets that it dropped for other reasons than those below.
    pub dropped: u64,
    /// Packets that it dropped because the wire had not taken those before.
    pub receive_ring_full: u64,
    /// Packets that it dropped because there was no empty frame.
    pub no_empty_frame: u64,
}

impl XdpWire {
    /// A wire on a queue of this interface.
    ///
    /// # Errors
    /// If an option cannot be, the address is not of this host, or the kernel refuses.
    pub fn open(interface: &XdpInterface, options: &XdpOptions) -> Result<XdpWire, XdpError> {
        let (sizes, packet_bytes_max) = sizes(interface, options)?;
        let reserved = UdpSocket::bind(options.address).map_err(XdpError::kernel(
            "taking the port",
            "the address must be one of the interface, its port free",
        ))?;
        let address = SocketAddrV4::new(*options.address.ip(), port_of(&reserved)?);
        let place = Place {
            interface: interface.0.number,
            queue: options.queue,
            copying: options.copying,
        };
        let socket = Socket::bind(sizes, place)?;
        if let Some(time) = options.busy_poll {
            let advice = "it needs CAP_NET_ADMIN, and Linux 5.11";
            socket
                .poll_busily(time)
                .map_err(XdpError::kernel("polling busily", advice))?;
        }
        let attached = &interface.0;
        let asking = XdpError::kernel("asking for neighbours by netlink", "it needs no capability");
        let peers = Peers::new(
            address,
            attached.mac,
            options.checksum,
            attached.number,
            &options.neighbours,
        )
        .map_err(asking)?;
        attached
            .program
            .direct(address, options.queue, descriptor_number(&socket))?;
        let first_spare = u64::from(sizes.receive);
        let frame = |number: u64| number * sizes.frame_bytes as u64;
        Ok(XdpWire {
            address,
            packet_bytes_max,
            receive_ring_packets: sizes.receive,
            checksum: options.checksum,
            spare: (first_spare..first_spare + u64::from(sizes.send))
                .map(frame)
                .collect(),
            spare_from: frame(first_spare),
            peers,
            flushes_until_look: FLUSHES_PER_LOOK,
            polls_busily: options.busy_poll.is_some(),
            unpublished: 0,
            bell: Bell::new().map_err(XdpError::kernel("making an eventfd", "raise `ulimit -n`"))?,
            statistics: XdpStatistics::default(),
            queue: options.queue,
            interface: interface.clone(),
            socket,
            _reserved: reserved,
        })
    }

    /// Finds out the Ethernet address of a host before packets are sent there; says whether it is known. Without, the
    /// first packets to a host are lost while the kernel asks for it.
    pub fn resolve(&mut self, to: SocketAddr, at_most: Duration) -> bool {
        let SocketAddr::V4(to) = to else {
            return false;
        };
        let begin = Instant::now();
        while self.peers.writer(to).is_none() {
            if begin.elapsed() > at_most {
                return false;
            }
            std::thread::sleep(RESOLVE_PAUSE);
        }
        true
    }

    #[must_use]
    pub fn statistics(&self) -> XdpStatistics {
        self.statistics
    }

    /// What the kernel has counted.
    ///
    /// # Errors
    /// If the wire is of no use any more.
    pub fn kernel_statistics(&self) -> io::Result<KernelStatistics> {
        let told = self.socket.kernel_statistics()?;
        Ok(KernelStatistics {
            dropped: told.rx_dropped,
            receive_ring_full: told.rx_ring_full,
            no_empty_frame: told.rx_fill_ring_empty_descs,
        })
    }

    /// Whether device and wire share memory, so that no packet is copied between them.
    #[must_use]
    pub fn is_zero_copy(&self) -> bool {
        self.socket.copies_nothing()
    }

    /// Whether the frames are on hugepages.
    #[must_use]
    pub fn is_on_hugepages(&self) -> bool {
        self.socket.umem.on_hugepages()
    }

    /// Frames of packets that have been sent are to be used again.
    #[inline]
    fn reclaim(&mut self) {
        let mut any = false;
        while let Some(frame) = self.socket.sent.next() {
            any = true;
            // Only frames that were spare are ever sent.
            if let Some(frame) = self
                .socket
                .umem
                .frame_of(frame)
                .filter(|frame| *frame >= self.spare_from)
            {
                self.spare.push(frame);
            }
        }
        if any {
            self.socket.sent.release();
        }
    }

    /// Hands on the packet of one frame, if it is one for us.
    #[inline]
    fn take_frame(
        &mut self,
        descriptor: libc::xdp_desc,
        take: &mut impl FnMut(Arrival<'_, SocketAddr>),
    ) -> bool {
        let Some(frame) = self.socket.umem.frame_of(descriptor.addr) else {
            self.statistics.malformed += 1;
            return false;
        };
        // SAFETY: the kernel has given the frame to us with this entry of its ring.
        let bytes = unsafe { self.socket.umem.read(descriptor.addr, descriptor.len) };
        let taken = match bytes.map(|bytes| read(bytes, self.checksum)) {
            Some(Ok(datagram)) if datagram.to != self.address => {
                self.statistics.misdirected += 1;
                false
            }
            Some(Ok(datagram)) if datagram.payload.len() > self.packet_bytes_max => {
                self.statistics.too_long += 1;
                false
            }
            Some(Ok(datagram)) => {
                take(Arrival {
                    from: SocketAddr::V4(datagram.from),
                    bytes: datagram.payload,
                    congested: datagram.congested,
                });
                true
            }
            Some(Err(_)) | None => {
                self.statistics.malformed += 1;
                false
            }
        };
        // It was ours until here. The ring has room for every frame to receive in.
        self.socket.fill.put(frame);
        taken
    }

    fn wake_receiving(&mut self) -> io::Result<()> {
        self.statistics.receive_calls += 1;
        passing(self.socket.kick_receiving())
    }
}

impl fmt::Debug for XdpWire {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("XdpWire")
            .field("address", &self.address)
            .field("queue", &self.queue)
            .field("statistics", &self.statistics)
            .finish_non_exhaustive()
    }
}

impl Drop for XdpWire {
    fn drop(&mut self) {
        self.interface.0.program.release(self.address, self.queue);
    }
}

/// Errors that say that the kernel cannot just now.
fn passing(outcome: io::Result<()>) -> io::Result<()> {
    match outcome {
        Err(error)
            if !matches!(
                error.raw_os_error(),
                Some(libc::ENXIO | libc::EBADF | libc::EOPNOTSUPP)
            ) =>
        {
            Ok(())
        }
        other => other,
    }
}

impl Wire for XdpWire {
    type Address = SocketAddr;

    fn address(&self) -> SocketAddr {
        SocketAddr::V4(self.address)
    }

    fn packet_bytes_max(&self) -> usize {
        self.packet_bytes_max
    }

    fn receive_ring_packets(&self) -> usize {
        self.receive_ring_packets as usize
    }

    fn integrity(&self) -> Integrity {
        match self.checksum {
            Checksum::Checked => Integrity::Checked,
            Checksum::Unchecked => Integrity::Unchecked,
        }
    }

    #[inline]
    fn receive(
        &mut self,
        packets_max: usize,
        mut take: impl FnMut(Arrival<'_, SocketAddr>),
    ) -> io::Result<usize> {
        let (mut packets, mut frames) = (0, 0_u32);
        while packets < packets_max {
            let Some(descriptor) = self.socket.arrived.next() else {
                break;
            };
            frames += 1;
            packets += usize::from(self.take_frame(descriptor, &mut take));
        }
        if frames > 0 {
            self.statistics.packets_received += packets as u64;
            self.socket.arrived.release();
            self.socket.fill.publish();
        }
        if self.socket.fill.needs_wakeup() || (self.polls_busily && frames == 0) {
            self.wake_receiving()?;
        }
        Ok(packets)
    }

    #[inline]
    fn transmit_room(&self) -> usize {
        self.spare.len()
    }

    #[inline]
    fn transmit(&mut self, to: SocketAddr, head: &[u8], payload: &[u8]) {
        let (SocketAddr::V4(to), true) = (to, head.len() + payload.len() <= self.packet_bytes_max) else {
            self.statistics.not_sent += 1;
            return;
        };
        let Some(writer) = self.peers.writer(to) else {
            self.statistics.unresolved += 1;
            return;
        };
        let Some(frame) = self.spare.pop() else {
            self.statistics.not_sent += 1;
            return;
        };
        // SAFETY: spare frames are ours.
        let written =
            unsafe { self.socket.umem.write(frame) }.and_then(|bytes| writer.write(bytes, head, payload));
        let entry = written.map(|bytes| libc::xdp_desc {
            addr: frame,
            len: bytes as u32,
            options: 0,
        });
        if entry.is_some_and(|entry| self.socket.leaving.put(entry)) {
            self.unpublished += 1;
        } else {
            self.spare.push(frame);
            self.statistics.not_sent += 1;
        }
    }

    #[inline]
    fn flush(&mut self) -> io::Result<()> {
        if self.unpublished > 0 {
            self.socket.leaving.publish();
            self.statistics.packets_sent += u64::from(self.unpublished);
            self.unpublished = 0;
            self.flushes_until_look -= 1;
            if self.flushes_until_look == 0 {
                self.flushes_until_look = FLUSHES_PER_LOOK;
                self.peers.update();
            }
        }
        let mut waiting = self.socket.leaving.waiting();
        while waiting > 0 && self.socket.leaving.needs_wakeup() {
            self.statistics.send_calls += 1;
            passing(self.socket.kick_sending())?;
            let left = self.socket.leaving.waiting();
            // What is left is more than one call takes, or the device has no room for now.
            if left == 0 || waiting - left < KICK_PACKETS {
                break;
            }
            waiting = left;
        }
        self.reclaim();
        Ok(())
    }

    fn wait(&mut self, at_most: Option<Duration>) -> io::Result<()> {
        self.peers.update();
        self.bell.wait(self.socket.descriptor().as_fd(), at_most)
    }

    fn waker(&self) -> Option<Waker> {
        Some(self.bell.waker())
    }
}

/// How large everything is, and what that leaves for packets.
fn sizes(interface: &XdpInterface, options: &XdpOptions) -> Result<(Sizes, usize), XdpError> {
    let rings = [
        ("receive_ring_packets", options.receive_ring_packets),
        ("send_ring_packets", options.send_ring_packets),
    ];
    for (option, value) in rings {
        if !value.is_power_of_two() || !(RING_PACKETS_MIN..=RING_PACKETS_MAX).contains(&value) {
            let (value, allowed) = (value.into(), "a power of two from 64 to 65,536");
            return Err(XdpError::Option {
                option,
                value,
                allowed,
            });
        }
    }
    if options.queue >= QUEUES_MAX {
        let (option, value, allowed) = ("queue", options.queue.into(), "below 256");
        return Err(XdpError::Option {
            option,
            value,
            allowed,
        });
    }
    let by_mtu = interface.0.mtu_bytes.saturating_sub(IP_HEADERS_BYTES);
    let wanted = options.packet_bytes_max.min(by_mtu);
    let room = |frame_bytes: &usize| frame_bytes - HEADROOM_BYTES - HEADER_BYTES;
    let frame_bytes = *FRAME_BYTES
        .iter()
        .find(|size| room(size) >= wanted)
        .unwrap_or(&FRAME_BYTES[1]);
    let sizes = Sizes {
        receive: options.receive_ring_packets,
        send: options.send_ring_packets,
        frame_bytes,
    };
    Ok((sizes, wanted.min(room(&frame_bytes))))
}

fn port_of(socket: &UdpSocket) -> Result<u16, XdpError> {
    let address = socket.local_addr();
    address
        .map(|address| address.port())
        .map_err(XdpError::kernel("asking for the port", "try again"))
}

fn descriptor_number(socket: &Socket) -> i32 {
    use std::os::fd::AsRawFd;
    socket.descriptor().as_raw_fd()
}
