//! Between which addresses a connection of gRPC is, for those who ask.

use std::net::SocketAddr;
use std::os::fd::AsFd;

use rustix::net::{SocketAddrAny, SocketAddrUnix, getpeername, getsockname};

/// One end of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum EndAddress {
    #[default]
    Unknown,
    Internet(SocketAddr),
    /// The path of a Unix socket; empty where it has none.
    Unix(String),
}

/// Both ends of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ConnectionEnds {
    pub(crate) local: EndAddress,
    pub(crate) remote: EndAddress,
}

impl ConnectionEnds {
    pub(crate) fn of(socket: &impl AsFd) -> ConnectionEnds {
        ConnectionEnds {
            local: getsockname(socket).map_or(EndAddress::Unknown, EndAddress::of),
            remote: match getpeername(socket) {
                Ok(Some(address)) => EndAddress::of(address),
                Ok(None) | Err(_) => EndAddress::Unknown,
            },
        }
    }
}

impl EndAddress {
    fn of(address: SocketAddrAny) -> EndAddress {
        if let Ok(address) = SocketAddr::try_from(address.clone()) {
            return EndAddress::Internet(address);
        }
        match SocketAddrUnix::try_from(address) {
            Ok(unix) => {
                let path = unix.path_bytes().unwrap_or_default();
                EndAddress::Unix(String::from_utf8_lossy(path).into_owned())
            }
            Err(_) => EndAddress::Unknown,
        }
    }
}
