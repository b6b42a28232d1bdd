//! Connections to other nodes, whatever carries them: the transports between which a route or a listener chooses.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use provost_datapath::{Engine, Link};
use provost_shm::now_ns;
use provost_transport_datagram as datagram;
use provost_transport_tcp as tcp;
use provost_transport_tcp::{Agreement, Hello, Role};
use provost_wire::Code;

use crate::config::Config;
use crate::connect::Over;
use crate::policies::transports;

/// A call to another node: it blocks.
pub(crate) struct Call {
    pub(crate) over: Over,
    pub(crate) address: String,
    pub(crate) hello: Hello,
    pub(crate) descriptor_set: Arc<[u8]>,
    pub(crate) tls: Option<Arc<rustls::ClientConfig>>,
    pub(crate) packets: datagram::PacketOptions,
    pub(crate) deadline: Instant,
}

/// A peer with which a connection has been agreed on.
pub(crate) struct Reached {
    by: By,
    role: Role,
    /// Who the peer has proved to be; empty for nobody.
    pub(crate) identity: String,
    pub(crate) peer_address: SocketAddr,
}

enum By {
    Tcp(Box<tcp::Established>),
    Datagram(Box<datagram::Established>),
}

impl Call {
    /// Shakes hands.
    pub(crate) fn make(self) -> Result<Reached, (Code, String)> {
        match self.over {
            Over::Tcp => {
                let params = tcp::ConnectParams {
                    address: self.address,
                    hello: self.hello,
                    descriptor_set: self.descriptor_set,
                    tls: self.tls,
                    deadline: self.deadline,
                };
                let established = tcp::connect(&params).map_err(|error| (error.code, error.message))?;
                Ok(Reached::tcp(established, Role::Client))
            }
            Over::Datagram => {
                let params = datagram::ConnectParams {
                    address: self.address,
                    hello: self.hello,
                    descriptor_set: self.descriptor_set,
                    packets: self.packets,
                    tls: self.tls,
                    deadline: self.deadline,
                };
                let established = datagram::connect(&params).map_err(|error| (error.code, error.message))?;
                Ok(Reached::datagram(established, Role::Client))
            }
        }
    }
}

impl Reached {
    pub(crate) fn tcp(established: tcp::Established, role: Role) -> Reached {
        Reached {
            role,
            identity: established.peer.name().to_owned(),
            peer_address: established.peer_address,
            by: By::Tcp(Box::new(established)),
        }
    }

    pub(crate) fn datagram(established: datagram::Established, role: Role) -> Reached {
        Reached {
            role,
            identity: established.peer.name().to_owned(),
            peer_address: established.peer_address,
            by: By::Datagram(Box::new(established)),
        }
    }

    pub(crate) fn agreement(&self) -> &Agreement {
        match &self.by {
            By::Tcp(established) => &established.agreement,
            By::Datagram(established) => &established.agreement,
        }
    }

    /// What people call the transport.
    pub(crate) fn transport(&self) -> &'static str {
        match &self.by {
            By::Tcp(_) => "tcp",
            By::Datagram(_) => "datagram",
        }
    }

    /// Which kind of engine carries it.
    pub(crate) fn kind(&self) -> &'static str {
        match &self.by {
            By::Tcp(_) => transports::TCP,
            By::Datagram(_) => datagram::KIND,
        }
    }

    /// The engine, of this version of its code.
    pub(crate) fn into_engine(self, config: &Config, version: u32, link: Arc<Link>) -> Box<dyn Engine> {
        let keepalive_interval_ns = config.timeouts.keepalive_interval_ms * 1_000_000;
        let keepalive_timeout_ns = config.timeouts.keepalive_timeout_ms * 1_000_000;
        match self.by {
            By::Tcp(established) => {
                let config = tcp::TransportConfig {
                    version: tcp::TcpVersion::from_number(version).unwrap_or_default(),
                    keepalive_interval_ns,
                    keepalive_timeout_ns,
                    ..tcp::TransportConfig::default()
                };
                Box::new(tcp::TcpTransport::new(
                    *established,
                    self.role,
                    config,
                    link,
                    now_ns(),
                ))
            }
            By::Datagram(established) => {
                let config = datagram::TransportConfig {
                    keepalive_interval_ns,
                    keepalive_timeout_ns,
                    ..datagram::TransportConfig::default()
                };
                Box::new(datagram::DatagramTransport::new(
                    *established,
                    config,
                    link,
                    now_ns(),
                ))
            }
        }
    }
}

/// How packets are made.
pub(crate) fn packets(config: &Config) -> datagram::PacketOptions {
    datagram::PacketOptions {
        packet_bytes: config.datagram.packet_bytes,
    }
}
