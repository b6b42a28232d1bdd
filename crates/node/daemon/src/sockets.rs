//! The sockets at which a node is found: opened, or taken over from the process before.

use std::cell::RefCell;
use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use provost_shm::PacketListener;
use provost_transport_datagram::{Caller, Listener as DatagramListener};

use crate::admin::{self, AdminSocket};
use crate::config::{Config, ListenerConfig, ListenerTransport};
use crate::node::StartError;
use crate::observe::{HttpListener, ListenAddress};

/// Where apps, other nodes and operators come.
pub(crate) struct Listeners {
    pub(crate) control: PacketListener,
    pub(crate) admin: Option<AdminSocket>,
    /// One for each listener of the configuration.
    pub(crate) peers: Vec<PeerListener>,
    pub(crate) http: Option<HttpListener>,
}

/// Duplicates of them, for a process that takes over.
#[derive(Default)]
pub(crate) struct OwnSockets {
    pub(crate) control: Option<OwnedFd>,
    /// The admin API's, and where it is.
    pub(crate) admin: Option<(OwnedFd, PathBuf)>,
    /// That of metrics and health, and what the configuration calls its address.
    pub(crate) http: Option<(OwnedFd, String)>,
    /// With what the configuration says of them.
    pub(crate) listeners: Vec<(ListenerConfig, OwnedFd)>,
}

/// Where other nodes come, by one transport.
pub(crate) enum PeerListener {
    Tcp(tokio::net::TcpListener),
    Datagram(Box<DatagramPeers>),
}

/// Where other nodes come by the datagram transport.
pub(crate) struct DatagramPeers {
    listener: RefCell<DatagramListener>,
    /// The same socket, as the event loop knows it.
    ready: tokio::net::UdpSocket,
}

impl DatagramPeers {
    /// The next client. Whoever gives up waiting loses none.
    pub(crate) async fn accept(&self) -> io::Result<Caller> {
        loop {
            self.ready.readable().await?;
            let next = self.ready.try_io(tokio::io::Interest::READABLE, || self.look());
            match next {
                Ok(Some(caller)) => return Ok(caller),
                Ok(None) => tokio::task::yield_now().await,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The next client; none, where there may be one and others are to have their turn before.
    fn look(&self) -> io::Result<Option<Caller>> {
        let mut listener = self.listener.borrow_mut();
        match listener.next_caller()? {
            None if !listener.left_some() => Err(io::ErrorKind::WouldBlock.into()),
            next => Ok(next),
        }
    }
}

impl PeerListener {
    /// A listener for other nodes at this socket.
    fn listening(transport: ListenerTransport, socket: OwnedFd) -> io::Result<PeerListener> {
        Ok(match transport {
            ListenerTransport::Tcp => {
                let listener = TcpListener::from(socket);
                listener.set_nonblocking(true)?;
                PeerListener::Tcp(tokio::net::TcpListener::from_std(listener)?)
            }
            ListenerTransport::Datagram => PeerListener::Datagram(Box::new(DatagramPeers {
                ready: tokio::net::UdpSocket::from_std(UdpSocket::from(socket.try_clone()?))?,
                listener: RefCell::new(DatagramListener::listening(UdpSocket::from(socket))?),
            })),
        })
    }

    fn duplicate(&self) -> io::Result<OwnedFd> {
        match self {
            PeerListener::Tcp(listener) => listener.as_fd().try_clone_to_owned(),
            PeerListener::Datagram(peers) => {
                let descriptor: BorrowedFd<'_> = peers.ready.as_fd();
                descriptor.try_clone_to_owned()
            }
        }
    }
}

/// Opens the socket of one listener, and says where it is.
pub(crate) fn open_socket(listener: &ListenerConfig) -> io::Result<(OwnedFd, SocketAddr)> {
    Ok(match listener.transport {
        ListenerTransport::Tcp => {
            let opened = TcpListener::bind(listener.address)?;
            let address = opened.local_addr()?;
            (opened.into(), address)
        }
        ListenerTransport::Datagram => {
            let opened = DatagramListener::bind(listener.address)?;
            let address = opened.address();
            (opened.into_socket().into(), address)
        }
    })
}

/// Opens the sockets for other nodes, and says where they are.
pub(crate) fn open_peers(config: &Config) -> Result<(Vec<PeerListener>, Vec<SocketAddr>), StartError> {
    let mut listeners = Vec::new();
    let mut addresses = Vec::new();
    for listener in &config.listeners {
        let open = || -> io::Result<_> {
            let (socket, address) = open_socket(listener)?;
            Ok((PeerListener::listening(listener.transport, socket)?, address))
        };
        let (opened, address) = open().map_err(|source| StartError::Listener {
            address: listener.address,
            source,
        })?;
        listeners.push(opened);
        addresses.push(address);
    }
    Ok((listeners, addresses))
}

impl Listeners {
    /// Opens the others too.
    pub(crate) fn open(config: &Config, peers: Vec<PeerListener>) -> Result<Listeners, StartError> {
        let path = &config.control.socket;
        let control =
            PacketListener::bind(path, config.socket_mode()).map_err(|source| StartError::Socket {
                path: path.clone(),
                source,
            })?;
        Ok(Listeners {
            control,
            admin: open_admin(config)?,
            peers,
            http: open_http(config)?,
        })
    }

    /// Those of the process before, and those that it did not have.
    pub(crate) fn take_over(config: &Config, taken: Sockets) -> Result<Listeners, StartError> {
        let listen = |(transport, socket)| PeerListener::listening(transport, socket);
        let peers = taken.peers.into_iter().map(listen).collect::<io::Result<_>>();
        let wanted = config.admin.socket_beside(&config.control.socket);
        let admin = match taken.admin {
            Some((socket, path)) if config.admin.enabled && path == wanted => {
                Some(AdminSocket::listening(socket, &path).map_err(system)?)
            }
            _ => open_admin(config)?,
        };
        let http = match taken.http {
            Some((socket, address)) if address == config.observe.listen => {
                let configured = config.observe.address().unwrap_or_default();
                let listening = configured.map(|address| HttpListener::listening(socket, address));
                listening.transpose().map_err(system)?
            }
            _ => open_http(config)?,
        };
        Ok(Listeners {
            control: taken.control,
            admin,
            peers: peers.map_err(system)?,
            http,
        })
    }

    /// Duplicates of all of them.
    pub(crate) fn duplicate(&self, config: &Config) -> Result<OwnSockets, StartError> {
        let duplicate = || -> io::Result<OwnSockets> {
            let configured = config.listeners.iter().zip(&self.peers);
            let listeners = configured.map(|(listener, peers)| Ok((listener.clone(), peers.duplicate()?)));
            let admin = self.admin.as_ref().map(|admin| {
                let socket = admin.descriptor().try_clone_to_owned()?;
                Ok((socket, admin.path().to_path_buf()))
            });
            let http = self.http.as_ref().map(|http| {
                let socket = http.descriptor().try_clone_to_owned()?;
                Ok((socket, config.observe.listen.clone()))
            });
            Ok(OwnSockets {
                control: Some(self.control.as_fd().try_clone_to_owned()?),
                admin: admin.transpose().map_err(|error: io::Error| error)?,
                http: http.transpose().map_err(|error: io::Error| error)?,
                listeners: listeners.collect::<io::Result<_>>()?,
            })
        };
        duplicate().map_err(system)
    }

    /// Files that belong to the sockets, to be removed when the service ends for good.
    pub(crate) fn paths(&self, config: &Config) -> Vec<PathBuf> {
        let mut paths = vec![config.control.socket.clone()];
        paths.extend(self.admin.as_ref().map(|admin| admin.path().to_path_buf()));
        if let Some(ListenAddress::Unix(path)) = self.http.as_ref().map(HttpListener::address) {
            paths.push(path);
        }
        paths
    }
}

/// Sockets of the process before.
pub(crate) struct Sockets {
    pub(crate) control: PacketListener,
    /// The admin API's, and where it is.
    pub(crate) admin: Option<(OwnedFd, PathBuf)>,
    /// That of metrics and health, and what its configuration called the address.
    pub(crate) http: Option<(OwnedFd, String)>,
    /// One for each listener of this process's configuration.
    pub(crate) peers: Vec<(ListenerTransport, OwnedFd)>,
}

fn open_admin(config: &Config) -> Result<Option<AdminSocket>, StartError> {
    admin::open(config).map_err(|source| StartError::AdminSocket {
        path: config.admin.socket_beside(&config.control.socket),
        source,
    })
}

fn open_http(config: &Config) -> Result<Option<HttpListener>, StartError> {
    // The configuration was checked: what is there is an address.
    let address = config.observe.address().unwrap_or_default();
    Ok(address.as_ref().map(HttpListener::open).transpose()?)
}

fn system(source: io::Error) -> StartError {
    StartError::System {
        what: "a socket at which the node is found",
        source,
    }
}
