//! Opens wires, in the two processes of a run.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use provost_packets::Wire;
use provost_shared_wire::{Listener, Options, SharedWire, Side};
use provost_udp::UdpWire;
use provost_xdp::XdpWire;

use super::cable::Host;
use super::plan::{Carrier, WireShape};
use crate::failure::{Doing, Failure};

/// How long a server waits for its client.
const CLIENT_TIME_MAX: Duration = Duration::from_secs(15);

/// A wire whose address can be told to the peer.
pub(crate) trait Named: Wire {
    /// The address of this end, as text.
    fn name(&self) -> String;

    /// The address that an end of this name has.
    fn parse(name: &str) -> Option<Self::Address>;
}

impl Named for SharedWire {
    fn name(&self) -> String {
        match self.address() {
            Side::Listening => "listening".into(),
            Side::Connecting => "connecting".into(),
        }
    }

    fn parse(name: &str) -> Option<Side> {
        match name {
            "listening" => Some(Side::Listening),
            "connecting" => Some(Side::Connecting),
            _ => None,
        }
    }
}

impl Named for UdpWire {
    fn name(&self) -> String {
        self.address().to_string()
    }

    fn parse(name: &str) -> Option<SocketAddr> {
        name.parse().ok()
    }
}

impl Named for XdpWire {
    fn name(&self) -> String {
        self.address().to_string()
    }

    fn parse(name: &str) -> Option<SocketAddr> {
        name.parse().ok()
    }
}

fn options(shape: WireShape) -> Options {
    Options {
        packet_bytes_max: shape.packet_bytes,
        ring_packets: shape.ring_packets,
    }
}

/// Listens for one client's shared memory; `ready` says that it does.
pub(crate) fn accept_shared(
    path: &Path,
    carrier: Carrier,
    shape: WireShape,
    ready: impl FnOnce(),
) -> Result<SharedWire, Failure> {
    let listener = Listener::bind(path, 0o600).map_err(wire_failed)?;
    ready();
    let wire = listener
        .accept(options(shape), CLIENT_TIME_MAX)
        .map_err(wire_failed)?;
    Ok(in_place(wire, carrier))
}

/// Connects to a server's shared memory.
pub(crate) fn connect_shared(path: &Path, carrier: Carrier, shape: WireShape) -> Result<SharedWire, Failure> {
    let wire = SharedWire::connect(path, options(shape)).map_err(wire_failed)?;
    Ok(in_place(wire, carrier))
}

fn in_place(wire: SharedWire, carrier: Carrier) -> SharedWire {
    match carrier {
        Carrier::Shm => super::trust::without_copies(wire),
        _ => wire,
    }
}

/// A UDP socket on the loopback interface.
pub(crate) fn udp(shape: WireShape) -> Result<UdpWire, Failure> {
    UdpWire::bind((Ipv4Addr::LOCALHOST, 0).into(), shape.packet_bytes).doing(|| "open a UDP socket".into())
}

/// An AF_XDP socket on a host of the bench's own.
pub(crate) fn xdp(host: Option<&Host>, shape: WireShape) -> Result<XdpWire, Failure> {
    let host = host.ok_or_else(|| Failure::Unavailable("AF_XDP without a host to be on".into()))?;
    host.wire(shape).doing(|| "open an AF_XDP socket".into())
}

fn wire_failed(error: provost_shared_wire::SetupError) -> Failure {
    Failure::role("wire", error.to_string())
}
