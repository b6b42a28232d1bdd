//! Two hosts on this machine, joined by a link that is slower than their cores: as between machines, where what is sent
//! waits for the wire and not for a core.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use provost_namespaces::Namespace;
use serde::{Deserialize, Serialize};

use crate::failure::{Doing, Failure};

/// Bits a second, in each direction.
pub(crate) const LINK_BITS: u64 = 1_000_000_000;
/// What the kernel hands to the link at once: less than usual, as the time it takes should be that of a large frame of a
/// fast network, not of this slow one.
const PACKET_BYTES_MAX: u32 = 9000;
/// What the link sends at once after a pause, and what waits in front of it at most before packets are dropped.
const BURST_BYTES: u32 = 32 << 10;
const QUEUE_BYTES_MAX: u32 = 4 << 20;

const CLIENTS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const SERVERS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
/// Where the server's node listens: in a namespace of its own every port is free.
const PORT: u16 = 7077;

/// Which host a process is on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Host {
    Here,
    Namespace(PathBuf),
}

impl Host {
    /// Moves this thread there.
    pub(crate) fn enter(&self) -> Result<(), Failure> {
        match self {
            Host::Here => Ok(()),
            Host::Namespace(path) => Namespace::enter(path).doing(|| format!("enter {}", path.display())),
        }
    }
}

/// The link and its two hosts; they are gone when this is dropped.
pub(crate) struct NetworkLink {
    clients: Namespace,
    servers: Namespace,
}

impl NetworkLink {
    /// Makes them. That needs root, and a kernel with token buckets.
    pub(crate) fn start() -> Result<NetworkLink, Failure> {
        let link = NetworkLink::make();
        link.map_err(|error| Failure::Unavailable(format!("a link between two namespaces: {error}")))
    }

    fn make() -> std::io::Result<NetworkLink> {
        let (clients, servers) = (Namespace::new()?, Namespace::new()?);
        clients.join("eth0", &servers, "eth0")?;
        for (namespace, address) in [(&clients, CLIENTS), (&servers, SERVERS)] {
            namespace.command(&format!("ip addr add {address}/24 dev eth0"))?;
            namespace.command(&format!("ip link set dev eth0 gso_max_size {PACKET_BYTES_MAX}"))?;
            namespace.command(&format!(
                "tc qdisc add dev eth0 root tbf rate {LINK_BITS}bit burst {BURST_BYTES} limit {QUEUE_BYTES_MAX}"
            ))?;
        }
        Ok(NetworkLink { clients, servers })
    }

    /// Where the servers' node listens.
    pub(crate) fn address(&self) -> SocketAddr {
        (SERVERS, PORT).into()
    }

    pub(crate) fn clients(&self) -> Host {
        Host::Namespace(self.clients.path())
    }

    pub(crate) fn servers(&self) -> Host {
        Host::Namespace(self.servers.path())
    }
}
