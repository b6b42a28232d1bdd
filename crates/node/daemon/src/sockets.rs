//! The sockets at which a node is found: opened, or taken over from the process before.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use provost_shm::PacketListener;

use crate::admin::{self, AdminSocket};
use crate::config::Config;
use crate::node::StartError;
use crate::observe::{HttpListener, ListenAddress};

/// Where apps, other nodes and operators come.
pub(crate) struct Listeners {
    pub(crate) control: PacketListener,
    pub(crate) admin: Option<AdminSocket>,
    pub(crate) tcp: Vec<tokio::net::TcpListener>,
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
    /// With the addresses that the configuration has for them.
    pub(crate) listeners: Vec<(SocketAddr, OwnedFd)>,
}

/// Opens the sockets for other nodes, and says where they are.
pub(crate) fn open_tcp(
    config: &Config,
) -> Result<(Vec<tokio::net::TcpListener>, Vec<SocketAddr>), StartError> {
    let mut listeners = Vec::new();
    let mut addresses = Vec::new();
    for listener in &config.listeners {
        let open = || -> io::Result<_> {
            let opened = std::net::TcpListener::bind(listener.address)?;
            opened.set_nonblocking(true)?;
            let address = opened.local_addr()?;
            Ok((tokio::net::TcpListener::from_std(opened)?, address))
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
    pub(crate) fn open(config: &Config, tcp: Vec<tokio::net::TcpListener>) -> Result<Listeners, StartError> {
        let path = &config.control.socket;
        let control =
            PacketListener::bind(path, config.socket_mode()).map_err(|source| StartError::Socket {
                path: path.clone(),
                source,
            })?;
        Ok(Listeners {
            control,
            admin: open_admin(config)?,
            tcp,
            http: open_http(config)?,
        })
    }

    /// Those of the process before, and those that it did not have.
    pub(crate) fn take_over(config: &Config, taken: Sockets) -> Result<Listeners, StartError> {
        let listen = |listener: std::net::TcpListener| {
            listener.set_nonblocking(true)?;
            tokio::net::TcpListener::from_std(listener)
        };
        let tcp = taken.tcp.into_iter().map(listen).collect::<io::Result<_>>();
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
            tcp: tcp.map_err(system)?,
            http,
        })
    }

    /// Duplicates of all of them.
    pub(crate) fn duplicate(&self, config: &Config) -> Result<OwnSockets, StartError> {
        let duplicate = || -> io::Result<OwnSockets> {
            let configured = config.listeners.iter().map(|listener| listener.address);
            let listeners = configured.zip(&self.tcp).map(|(address, listener)| {
                let socket = listener.as_fd().try_clone_to_owned()?;
                Ok((address, socket))
            });
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
    pub(crate) tcp: Vec<std::net::TcpListener>,
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
