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
        ConnectionEnds::told(getsockname(socket).ok(), getpeername(socket).ok().flatten())
    }

    /// Those that the system has told; none where it does not.
    pub(crate) fn told(local: Option<SocketAddrAny>, remote: Option<SocketAddrAny>) -> ConnectionEnds {
        let end = |address: Option<SocketAddrAny>| address.map_or(EndAddress::Unknown, EndAddress::of);
        ConnectionEnds {
            local: end(local),
            remote: end(remote),
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
