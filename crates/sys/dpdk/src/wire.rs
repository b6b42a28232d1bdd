//! The wire: frames of our own in DPDK's buffers.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use provost_frames::{Checksum, Ends, HEADER_BYTES, IP_HEADERS_BYTES, Mac, Writer, read};
use provost_packets::{Arrival, Integrity, Wire};

use crate::eal::{BufferPool, DpdkError, Eal, check, refused};
use crate::shim::{self, BURST_MAX, Frame};

/// Packets that are taken from the device at once.
const RECEIVE_PACKETS_MAX: usize = 32;
/// Packets that one turn sends at most.
const SEND_PACKETS_MAX: usize = BURST_MAX;
/// Buffers beyond those in the rings of the device, for what is on its way through a driver.
const BUFFERS_MORE: u32 = 1024;
/// Frames that are looked at for each packet that is asked for.
const FRAMES_PER_PACKET_MAX: usize = 4;
/// Destinations that are remembered; with one more, all are forgotten.
const PEERS_MAX: usize = 65_536;
/// Between two looks at the device while the wire waits. DPDK's virtual devices have nothing to wait for.
const WAIT_PAUSE: Duration = Duration::from_micros(20);
/// Between two looks at the link while it comes up.
const LINK_PAUSE: Duration = Duration::from_millis(1);

/// What a wire is asked for.
#[derive(Clone, Debug)]
pub struct DpdkOptions {
    /// The device: its PCI address, or its name in a `--vdev`.
    pub device: String,
    /// The address that the wire has. No kernel knows it.
    pub address: SocketAddrV4,
    /// Bytes of the largest packet, without the headers of Ethernet, IP and UDP; the device's MTU may lessen it.
    pub packet_bytes_max: usize,
    /// Packets that can wait to be received, as far as the driver can.
    pub receive_ring_packets: u16,
    /// Packets that can wait to be sent, as far as the driver can.
    pub send_ring_packets: u16,
    /// Whether the wire notices damage, by UDP's checksum.
    pub checksum: Checksum,
    /// Ethernet addresses of hosts, or of the routers to them: there is no kernel to ask.
    pub neighbours: Vec<(Ipv4Addr, Mac)>,
}

impl DpdkOptions {
    /// The usual, for this device and address.
    #[must_use]
    pub fn new(device: &str, address: SocketAddrV4) -> DpdkOptions {
        DpdkOptions {
            device: device.to_owned(),
            address,
            packet_bytes_max: 1472,
            receive_ring_packets: 1024,
            send_ring_packets: 1024,
            checksum: Checksum::Checked,
            neighbours: Vec::new(),
        }
    }
}

/// What a wire has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DpdkStatistics {
    /// Packets that the device took.
    pub packets_sent: u64,
    pub packets_received: u64,
    /// Packets that no frame can carry, or that there was no buffer for.
    pub not_sent: u64,
    /// Packets to a host whose Ethernet address is not known.
    pub unresolved: u64,
    /// Frames that are not whole UDP packets over plain IPv4, or were damaged.
    pub malformed: u64,
    /// Packets for another address.
    pub misdirected: u64,
    /// Packets longer than this wire takes.
    pub too_long: u64,
}

/// A device of DPDK as a wire. It is closed when the wire is dropped, and serves no second one.
pub struct DpdkWire {
    eal: &'static Eal,
    port: u16,
    /// There until the wire is dropped.
    pool: Option<BufferPool>,
    mac: Mac,
    address: SocketAddrV4,
    packet_bytes_max: usize,
    receive_ring_packets: usize,
    checksum: Checksum,
    neighbours: HashMap<Ipv4Addr, Mac>,
    writers: HashMap<SocketAddrV4, Writer>,
    arrived: Box<[Frame; RECEIVE_PACKETS_MAX]>,
    /// Those of `arrived` that have not been handed on: from the first number to the second.
    waiting: (usize, usize),
    leaving: Vec<Frame>,
    bell: Arc<Bell>,
    statistics: DpdkStatistics,
}

// SAFETY: buffers and pools are the same for every thread; one thread at a time has the wire.
unsafe impl Send for DpdkWire {}

/// A flag that a waiting wire looks at.
#[derive(Debug, Default)]
struct Bell(AtomicBool);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

impl DpdkWire {
    /// A wire on a device.
    ///
    /// # Errors
    /// If there is no such device, a wire has it or has had it, or its driver refuses.
    pub fn open(eal: &'static Eal, options: &DpdkOptions) -> Result<DpdkWire, DpdkError> {
        let mut control = eal.control();
        let port = control.free_port(&options.device)?;
        let (mut receive, mut send) = (options.receive_ring_packets, options.send_ring_packets);
        let wanted = options.packet_bytes_max.min(usize::from(u16::MAX) - 4096);
        let frame_bytes = (wanted + HEADER_BYTES).next_multiple_of(1024).max(2048) as u16;
        let buffers = u32::from(receive) + u32::from(send) + BUFFERS_MORE;
        let pool = control.pool(buffers, frame_bytes).map_err(refused(
            "taking memory for packets",
            "give DPDK more (-m MEGABYTES, or more hugepages), or use smaller rings",
        ))?;
        let mtu = (wanted + IP_HEADERS_BYTES) as u16;
        // SAFETY: the port is ours alone, and the pool is there until the port is stopped.
        let started =
            unsafe { shim::provost_dpdk_start(port, pool.pool, &raw mut receive, &raw mut send, mtu) };
        let advice = "the driver may not take rings or packets of these sizes";
        let started = check(started).map_err(refused("starting the device", advice));
        let (mut mac, mut mtu) = ([0; 6], 0);
        // SAFETY: both are written to what is there.
        let told = unsafe { shim::provost_dpdk_facts(port, &raw mut mac, &raw mut mtu) };
        let told = check(told).map_err(refused("asking the device for its address", "try another driver"));
        if let Err(error) = started.and(told) {
            // SAFETY: it is ours alone.
            unsafe { shim::provost_dpdk_close(port) };
            control.give_back(port, pool);
            return Err(error);
        }
        control.take(port);
        Ok(DpdkWire {
            eal,
            port,
            pool: Some(pool),
            mac: Mac(mac),
            address: options.address,
            packet_bytes_max: wanted.min(usize::from(mtu).saturating_sub(IP_HEADERS_BYTES)),
            receive_ring_packets: receive.into(),
            checksum: options.checksum,
            neighbours: options.neighbours.iter().copied().collect(),
            writers: HashMap::new(),
            arrived: Box::new([Frame::NONE; RECEIVE_PACKETS_MAX]),
            waiting: (0, 0),
            leaving: Vec::with_capacity(SEND_PACKETS_MAX),
            bell: Arc::default(),
            statistics: DpdkStatistics::default(),
        })
    }

    /// The device's Ethernet address.
    #[must_use]
    pub fn mac(&self) -> Mac {
        self.mac
    }

    /// From now on, packets to this host go to this Ethernet address.
    pub fn set_neighbour(&mut self, ip: Ipv4Addr, mac: Mac) {
        self.neighbours.insert(ip, mac);
        self.writers.retain(|to, _| *to.ip() != ip);
    }

    /// Waits until the device says that its link is up; says whether it is.
    #[must_use]
    pub fn wait_for_link(&self, at_most: Duration) -> bool {
        let begin = Instant::now();
        // SAFETY: the port is ours, and started.
        while unsafe { shim::provost_dpdk_link_is_up(self.port) } != 1 {
            if begin.elapsed() > at_most {
                return false;
            }
            std::thread::sleep(LINK_PAUSE);
        }
        true
    }

    #[must_use]
    pub fn statistics(&self) -> DpdkStatistics {
        self.statistics
    }

    /// Takes frames from the device, when all that were taken before have been handed on; says whether there are any.
    #[inline]
    fn fill(&mut self) -> bool {
        if self.waiting.0 < self.waiting.1 {
            return true;
        }
        // SAFETY: there is room for so many frames, and the port is ours.
        let frames = unsafe {
            shim::provost_dpdk_receive(self.port, self.arrived.as_mut_ptr(), RECEIVE_PACKETS_MAX as u16)
        };
        self.waiting = (0, usize::from(frames).min(RECEIVE_PACKETS_MAX));
        frames > 0
    }

    /// Hands on the packet of one frame, if it is one for us.
    #[inline]
    fn take_frame(&mut self, frame: Frame, take: &mut impl FnMut(Arrival<'_, SocketAddr>)) -> bool {
        // SAFETY: the driver has given the buffer to us, and says that it has so many bytes.
        let bytes = unsafe { std::slice::from_raw_parts(frame.data, frame.bytes as usize) };
        let taken = match read(bytes, self.checksum) {
            Ok(datagram) if datagram.to != self.address => {
                self.statistics.misdirected += 1;
                false
            }
            Ok(datagram) if datagram.payload.len() > self.packet_bytes_max => {
                self.statistics.too_long += 1;
                false
            }
            Ok(datagram) => {
                take(Arrival {
                    from: SocketAddr::V4(datagram.from),
                    bytes: datagram.payload,
                    congested: datagram.congested,
                });
                true
            }
            Err(_) => {
                self.statistics.malformed += 1;
                false
            }
        };
        give_back(frame);
        taken
    }

    /// An empty buffer, if the pool has one.
    #[inline]
    fn empty_frame(&self) -> Option<Frame> {
        let mut frame = Frame::NONE;
        // SAFETY: the pool is there, and the frame is written to what is there.
        let outcome = unsafe { shim::provost_dpdk_take(self.pool.as_ref()?.pool, &raw mut frame) };
        (outcome == 0).then_some(frame)
    }

    #[inline]
    fn writer(&mut self, to: SocketAddrV4) -> Option<&Writer> {
        if !self.writers.contains_key(&to) {
            let to_mac = *self.neighbours.get(to.ip())?;
            if self.writers.len() == PEERS_MAX {
                self.writers.clear();
            }
            let ends = Ends {
                from_mac: self.mac,
                from: self.address,
                to_mac,
                to,
            };
            self.writers.insert(to, Writer::new(ends, self.checksum));
        }
        self.writers.get(&to)
    }
}

/// The buffer is the pool's again.
#[inline]
fn give_back(frame: Frame) {
    // SAFETY: it was ours, and is not used after.
    unsafe { shim::provost_dpdk_give_back(frame.buffer) };
}

impl Wire for DpdkWire {
    type Address = SocketAddr;

    fn address(&self) -> SocketAddr {
        SocketAddr::V4(self.address)
    }

    fn packet_bytes_max(&self) -> usize {
        self.packet_bytes_max
    }

    fn receive_ring_packets(&self) -> usize {
        self.receive_ring_packets
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
        let mut packets = 0;
        // Frames that are not for us must not keep the caller from its timers.
        for _ in 0..packets_max.saturating_mul(FRAMES_PER_PACKET_MAX) {
            if packets == packets_max || !self.fill() {
                break;
            }
            let frame = self.arrived[self.waiting.0];
            self.waiting.0 += 1;
            packets += usize::from(self.take_frame(frame, &mut take));
        }
        self.statistics.packets_received += packets as u64;
        Ok(packets)
    }

    #[inline]
    fn transmit_room(&self) -> usize {
        SEND_PACKETS_MAX - self.leaving.len()
    }

    #[inline]
    fn transmit(&mut self, to: SocketAddr, head: &[u8], payload: &[u8]) {
        let fits = head.len() + payload.len() <= self.packet_bytes_max && self.transmit_room() > 0;
        let (SocketAddr::V4(to), true) = (to, fits) else {
            self.statistics.not_sent += 1;
            return;
        };
        let Some(mut frame) = self.empty_frame() else {
            self.statistics.not_sent += 1;
            return;
        };
        // SAFETY: the buffer is ours, and has so much room.
        let room = unsafe { std::slice::from_raw_parts_mut(frame.data, frame.room as usize) };
        let Some(writer) = self.writer(to) else {
            give_back(frame);
            self.statistics.unresolved += 1;
            return;
        };
        if let Some(bytes) = writer.write(room, head, payload) {
            frame.bytes = bytes as u32;
            self.leaving.push(frame);
        } else {
            give_back(frame);
            self.statistics.not_sent += 1;
        }
    }

    #[inline]
    fn flush(&mut self) -> io::Result<()> {
        if self.leaving.is_empty() {
            return Ok(());
        }
        // SAFETY: the frames are ours until the driver takes them.
        let sent =
            unsafe { shim::provost_dpdk_send(self.port, self.leaving.as_ptr(), self.leaving.len() as u16) };
        let sent = usize::from(sent).min(self.leaving.len());
        self.leaving.drain(..sent);
        self.statistics.packets_sent += sent as u64;
        Ok(())
    }

    fn wait(&mut self, at_most: Option<Duration>) -> io::Result<()> {
        let begin = Instant::now();
        while !self.fill() && !self.bell.0.swap(false, Ordering::Acquire) {
            let left = at_most.map(|at_most| at_most.saturating_sub(begin.elapsed()));
            if left.is_some_and(|left| left.is_zero()) {
                break;
            }
            std::thread::sleep(left.map_or(WAIT_PAUSE, |left| left.min(WAIT_PAUSE)));
        }
        Ok(())
    }

    fn waker(&self) -> Option<Waker> {
        Some(Waker::from(Arc::clone(&self.bell)))
    }
}

impl Drop for DpdkWire {
    fn drop(&mut self) {
        let (next, end) = self.waiting;
        self.arrived[next..end].iter().for_each(|frame| give_back(*frame));
        self.leaving.drain(..).for_each(give_back);
        let mut control = self.eal.control();
        // SAFETY: the port is ours, and not used after.
        unsafe { shim::provost_dpdk_close(self.port) };
        if let Some(pool) = self.pool.take() {
            control.give_back(self.port, pool);
        }
    }
}

impl fmt::Debug for DpdkWire {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("DpdkWire")
            .field("address", &self.address)
            .field("port", &self.port)
            .field("statistics", &self.statistics)
            .finish_non_exhaustive()
    }
}
