//! Devices of DPDK that need nothing of the machine.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::atomic::{AtomicU32, Ordering};

use provost_dpdk::{DpdkOptions, DpdkWire, Eal};

/// Packets that wait in a ring.
const RING_PACKETS: u16 = 1024;

/// Wires on two devices of this process, with rings between them.
///
/// # Errors
/// If DPDK does not start, or has no more room.
pub fn dpdk_rings() -> io::Result<(DpdkWire, DpdkWire)> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let words = [
        "-l",
        "0",
        "--no-huge",
        "-m",
        "256",
        "--no-pci",
        "--no-shconf",
        "--no-telemetry",
    ];
    let eal = Eal::start(&words).map_err(io::Error::other)?;
    let names = [format!("there{number}"), format!("back{number}")];
    eal.add_pair([&names[0], &names[1]], RING_PACKETS.into())
        .map_err(io::Error::other)?;
    let open = |at: usize| {
        let address = SocketAddrV4::new(ip(at), 4000);
        let mut options = DpdkOptions::new(&format!("net_ring_{}", names[at]), address);
        options.receive_ring_packets = RING_PACKETS;
        DpdkWire::open(eal, &options).map_err(io::Error::other)
    };
    let (mut one, mut other) = (open(0)?, open(1)?);
    one.set_neighbour(ip(1), other.mac());
    other.set_neighbour(ip(0), one.mac());
    Ok((one, other))
}

fn ip(end: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, 1 + end as u8)
}
