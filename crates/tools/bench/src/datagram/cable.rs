//! Two hosts of the bench's own, with a virtual cable between them: network namespaces that vanish with this process.

use std::io;
use std::net::SocketAddrV4;
use std::path::PathBuf;
use std::time::Duration;

use provost_namespaces::Namespace;
use provost_xdp::{Mode, XdpInterface, XdpOptions, XdpWire};
use serde::{Deserialize, Serialize};

use super::plan::WireShape;

/// The cable's interface, at either end.
const INTERFACE: &str = "wire";
const ADDRESSES: [[u8; 4]; 2] = [[10, 8, 0, 1], [10, 8, 0, 2]];
/// How long the other end is looked for.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// The two hosts. They are there as long as this is.
pub(crate) struct Cable([Namespace; 2]);

/// One of them, for a process that is to be on it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Host {
    namespace: PathBuf,
    address: [u8; 4],
}

impl Cable {
    /// Lays one. It takes root.
    pub(crate) fn lay() -> io::Result<Cable> {
        let hosts = [Namespace::new()?, Namespace::new()?];
        hosts[0].join(INTERFACE, &hosts[1], INTERFACE)?;
        for (host, [a, b, c, d]) in hosts.iter().zip(ADDRESSES) {
            host.command(&format!("ip addr add {a}.{b}.{c}.{d}/24 dev {INTERFACE}"))?;
        }
        let cable = Cable(hosts);
        // Whether the kernel has such sockets shows when one is opened.
        cable.0[0].run(|| Ok(XdpInterface::attach(INTERFACE, Mode::Fastest)?))?;
        Ok(cable)
    }

    /// The hosts of the server and of the client.
    pub(crate) fn hosts(&self) -> [Host; 2] {
        [0, 1].map(|end| Host {
            namespace: self.0[end].path(),
            address: ADDRESSES[end],
        })
    }
}

impl Host {
    /// Moves this thread to this host, and opens a wire there.
    pub(crate) fn wire(&self, shape: WireShape) -> io::Result<XdpWire> {
        Namespace::enter(&self.namespace)?;
        let options = XdpOptions {
            packet_bytes_max: shape.packet_bytes,
            ..XdpOptions::new(SocketAddrV4::new(self.address.into(), 0))
        };
        let interface = XdpInterface::attach(INTERFACE, Mode::Fastest)?;
        let mut wire = XdpWire::open(&interface, &options)?;
        // Else the first packets are lost while the kernel asks who has that address.
        let other = ADDRESSES.into_iter().find(|address| *address != self.address);
        let known = other.is_some_and(|other| wire.resolve((other, options.address.port()).into(), WAIT_MAX));
        known
            .then_some(wire)
            .ok_or_else(|| io::Error::other("the other end of the cable does not answer"))
    }
}
