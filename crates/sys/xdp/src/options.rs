//! What a wire is asked for, and what it counts.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use provost_frames::{Checksum, Mac};

/// Where an interface's program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// In the driver where that can, else after the kernel has made a buffer of its own.
    Fastest,
    /// In the driver, or not at all.
    DriverOnly,
    /// After the kernel has made a buffer of its own, which every interface can.
    GenericOnly,
}

/// Whether packets are copied between the device's memory and ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copying {
    /// Where the driver cannot use our memory.
    WhereNeeded,
    /// Even where it could.
    Always,
    /// Never: a driver that cannot use our memory is refused.
    Never,
}

/// What a wire is asked for.
#[derive(Clone, Debug)]
pub struct XdpOptions {
    /// The address that the wire has: one of its interface. Port 0 has the kernel choose one. The port is taken from the
    /// kernel's sockets, so that no other program gets it.
    pub address: SocketAddrV4,
    /// The queue of the interface that the packets come by, and that only this wire has.
    pub queue: u32,
    /// Bytes of the largest packet, without the headers of Ethernet, IP and UDP; the interface's MTU may lessen it.
    pub packet_bytes_max: usize,
    /// Packets that can wait to be received, a power of two.
    pub receive_ring_packets: u32,
    /// Packets that can wait to be sent, or are being sent, a power of two.
    pub send_ring_packets: u32,
    /// Whether the wire notices damage, by UDP's checksum.
    pub checksum: Checksum,
    /// Whether packets are copied.
    pub copying: Copying,
    /// For how long a call that finds nothing looks at the device's queue itself, if at all.
    pub busy_poll: Option<Duration>,
    /// Ethernet addresses of hosts, or of the routers to them, that the kernel need not be asked for.
    pub neighbours: Vec<(Ipv4Addr, Mac)>,
}

impl XdpOptions {
    /// The usual, for this address.
    #[must_use]
    pub fn new(address: SocketAddrV4) -> XdpOptions {
        XdpOptions {
            address,
            queue: 0,
            packet_bytes_max: 1472,
            receive_ring_packets: 2048,
            send_ring_packets: 512,
            checksum: Checksum::Checked,
            copying: Copying::WhereNeeded,
            busy_poll: None,
            neighbours: Vec::new(),
        }
    }
}

/// What a wire has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XdpStatistics {
    /// Packets that went to the kernel or the device.
    pub packets_sent: u64,
    pub packets_received: u64,
    /// System calls that have the kernel send.
    pub send_calls: u64,
    /// System calls that have the kernel receive.
    pub receive_calls: u64,
    /// Packets that no frame can carry, or that there was no frame for.
    pub not_sent: u64,
    /// Packets to a host whose Ethernet address is not known, or not yet.
    pub unresolved: u64,
    /// Frames that are not what the wire's program lets pass, or were damaged.
    pub malformed: u64,
    /// Packets for another wire's port, that came by this wire's queue: the device is to be told which queue each port
    /// has (`ethtool -N`).
    pub misdirected: u64,
    /// Packets longer than this wire takes.
    pub too_long: u64,
}
