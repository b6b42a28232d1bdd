//! The sockets at which a node is found: opened, or taken over from the process before.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use provost_shm::PacketListener;

use crate::admin::{self, AdminSocket};
use crate::config::{Config, ListenAddress, ListenerConfig};
use crate::fresh_sockets::FreshSockets;
use crate::grpc::{self, GrpcSockets, InheritedSocket, NotListening};
use crate::observe::{self, ObserveError};
use crate::page;
use crate::stream_listener::{self, StreamListener};
use crate::transport::{ListeningTransport, PeerListener, TransportKind};
use crate::upgrade::OwnSockets;

/// Why a node cannot be found.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SocketError {
    #[error("{source}")]
    Control { path: PathBuf, source: io::Error },
    #[error("{source}")]
    Admin { path: PathBuf, source: io::Error },
    #[error("{source}")]
    Peers { address: SocketAddr, source: io::Error },
    #[error(transparent)]
    Grpc(#[from] NotListening),
    #[error(transparent)]
    Http(#[from] ObserveError),
    #[error("{source}")]
    Page { address: String, source: io::Error },
    #[error("{0}")]
    System(io::Error),
}

/// Where apps, other nodes and operators come.
pub(crate) struct Listeners {
    pub(crate) control: PacketListener,
    pub(crate) admin: Option<AdminSocket>,
    /// One for each listener of the configuration.
    pub(crate) peers: Vec<Box<dyn PeerListener>>,
    pub(crate) http: Option<StreamListener>,
    pub(crate) page: Option<StreamListener>,
    pub(crate) grpc: GrpcSockets,
    /// Files of those that were not taken over.
    pub(crate) fresh: FreshSockets,
}

/// Opens the socket of one listener, and says where it is.
pub(crate) fn open_socket(listener: &ListenerConfig) -> io::Result<(OwnedFd, SocketAddr)> {
    (listening(listener.transport)?.bind)(listener.address)
}

fn listen(transport: TransportKind, socket: OwnedFd) -> io::Result<Box<dyn PeerListener>> {
    (listening(transport)?.listen)(socket)
}

fn listening(transport: TransportKind) -> io::Result<&'static ListeningTransport> {
    let network = transport.description().network.as_ref();
    let listening = network.and_then(|network| network.listening.as_ref());
    listening.ok_or_else(|| io::Error::other(format!("{} does not listen", transport.name())))
}

/// Listeners for other nodes, and where each is.
pub(crate) type OpenedPeers = (Vec<Box<dyn PeerListener>>, Vec<SocketAddr>);

/// Opens the sockets for other nodes, and says where they are.
pub(crate) fn open_peers(config: &Config) -> Result<OpenedPeers, SocketError> {
    let mut listeners = Vec::new();
    let mut addresses = Vec::new();
    for listener in &config.listeners {
        let open = || -> io::Result<_> {
            let (socket, address) = open_socket(listener)?;
            Ok((listen(listener.transport, socket)?, address))
        };
        let (opened, address) = open().map_err(|source| SocketError::Peers {
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
    pub(crate) fn open(config: &Config, peers: Vec<Box<dyn PeerListener>>) -> Result<Listeners, SocketError> {
        let path = &config.control.socket;
        let fresh = FreshSockets::default();
        let control =
            PacketListener::bind(path, config.socket_mode()).map_err(|source| SocketError::Control {
                path: path.clone(),
                source: stream_listener::in_the_way(path, source),
            })?;
        fresh.add(path);
        Ok(Listeners {
            control,
            admin: open_admin(config, &fresh)?,
            peers,
            http: open_http(config, &fresh)?,
            page: open_page(config, &fresh)?,
            grpc: grpc::open_all(config, Vec::new(), &fresh)?,
            fresh,
        })
    }

    /// Those of the process before, and those that it did not have.
    pub(crate) fn hot_restart(config: &Config, taken: Sockets) -> Result<Listeners, SocketError> {
        let listen = |(transport, socket)| listen(transport, socket);
        let fresh = FreshSockets::default();
        let peers = taken.peers.into_iter().map(listen).collect::<io::Result<_>>();
        let wanted = config.admin.socket_beside(&config.control.socket);
        let admin = match taken.admin {
            Some((socket, path)) if config.admin.enabled && path == wanted => {
                Some(AdminSocket::listening(socket, &path).map_err(system)?)
            }
            _ => open_admin(config, &fresh)?,
        };
        let http = match taken.http {
            Some((socket, address)) if address == config.observe.listen => {
                go_on_with(socket, config.observe.address())?
            }
            _ => open_http(config, &fresh)?,
        };
        let page = match taken.page {
            Some((socket, address)) if address == config.page.listen => {
                go_on_with(socket, config.page.address())?
            }
            _ => open_page(config, &fresh)?,
        };
        Ok(Listeners {
            control: taken.control,
            admin,
            peers: peers.map_err(system)?,
            http,
            page,
            grpc: grpc::open_all(config, taken.grpc, &fresh)?,
            fresh,
        })
    }

    /// Duplicates of all of them.
    pub(crate) fn duplicate(&self, config: &Config) -> Result<OwnSockets, SocketError> {
        let duplicate = || -> io::Result<OwnSockets> {
            let configured = config.listeners.iter().zip(&self.peers);
            let listeners = configured.map(|(listener, peers)| Ok((listener.clone(), peers.duplicate()?)));
            let admin = self.admin.as_ref().map(|admin| {
                let socket = admin.descriptor().try_clone_to_owned()?;
                Ok((socket, admin.path().to_path_buf()))
            });
            let duplicated = |listener: &Option<StreamListener>, address: &str| -> io::Result<_> {
                let Some(listener) = listener else { return Ok(None) };
                let socket = listener.descriptor().try_clone_to_owned()?;
                Ok(Some((socket, address.to_owned())))
            };
            Ok(OwnSockets {
                control: Some(self.control.as_fd().try_clone_to_owned()?),
                admin: admin.transpose().map_err(|error: io::Error| error)?,
                http: duplicated(&self.http, &config.observe.listen)?,
                page: duplicated(&self.page, &config.page.listen)?,
                listeners: listeners.collect::<io::Result<_>>()?,
            })
        };
        duplicate().map_err(system)
    }

    /// Files of the sockets for operators, to be removed when the service ends for good.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        let mut paths = Vec::new();
        paths.extend(self.admin.as_ref().map(|admin| admin.path().to_path_buf()));
        for listener in [&self.http, &self.page].into_iter().flatten() {
            if let ListenAddress::Unix(path) = listener.address() {
                paths.push(path);
            }
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
    /// That of the page, and what its configuration called the address.
    pub(crate) page: Option<(OwnedFd, String)>,
    /// Those of gRPC clients.
    pub(crate) grpc: Vec<InheritedSocket>,
    /// One for each listener of this process's configuration.
    pub(crate) peers: Vec<(TransportKind, OwnedFd)>,
}

fn open_admin(config: &Config, fresh: &FreshSockets) -> Result<Option<AdminSocket>, SocketError> {
    let opened = admin::open(config).map_err(|source| SocketError::Admin {
        path: config.admin.socket_beside(&config.control.socket),
        source,
    })?;
    if let Some(admin) = &opened {
        fresh.add(admin.path());
    }
    Ok(opened)
}

fn open_http(config: &Config, fresh: &FreshSockets) -> Result<Option<StreamListener>, SocketError> {
    // The configuration was checked: what is there is an address.
    let address = config.observe.address().unwrap_or_default();
    let opened = address.as_ref().map(observe::open).transpose()?;
    opened.iter().for_each(|listener| fresh.add_listener(listener));
    Ok(opened)
}

fn open_page(config: &Config, fresh: &FreshSockets) -> Result<Option<StreamListener>, SocketError> {
    let address = config.page.address().unwrap_or_default();
    let open = |address: &ListenAddress| {
        page::open(address, config.admin_mode()).map_err(|source| SocketError::Page {
            address: address.to_string(),
            source,
        })
    };
    let opened = address.as_ref().map(open).transpose()?;
    opened.iter().for_each(|listener| fresh.add_listener(listener));
    Ok(opened)
}

/// Goes on with a socket of the process before, at the address that the configuration has.
fn go_on_with(
    socket: OwnedFd,
    configured: Result<Option<ListenAddress>, String>,
) -> Result<Option<StreamListener>, SocketError> {
    // The configuration was checked: what is there is an address.
    let address = configured.unwrap_or_default();
    let listening = address.map(|address| StreamListener::listening(socket, address));
    listening.transpose().map_err(system)
}

fn system(source: io::Error) -> SocketError {
    SocketError::System(source)
}
