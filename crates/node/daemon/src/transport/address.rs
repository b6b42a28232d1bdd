//! Where a peer is: an address of the internet, or a Unix socket of this host, written as gRPC writes them
//! (gRPC's `doc/naming.md`).

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use rustix::net::SocketAddrUnix;

const PATH: &str = "unix:";
const ABSTRACT: &str = "unix-abstract:";
/// What a Unix socket's address holds on Linux, in bytes, without the byte that ends or begins it.
const NAME_BYTES_MAX: usize = 107;

/// See the module's documentation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum PeerAddress {
    /// An address of the internet.
    Internet(SocketAddr),
    /// A Unix socket with a file.
    Path(PathBuf),
    /// One without a file: its name in the network namespace.
    Abstract(String),
}

impl PeerAddress {
    /// The Unix socket that an endpoint names, if it names one. The error says what is wrong with it.
    pub(crate) fn unix(endpoint: &str) -> Option<Result<PeerAddress, String>> {
        if let Some(name) = endpoint.strip_prefix(ABSTRACT) {
            let address = bounded(endpoint, name).map(|()| PeerAddress::Abstract(name.to_owned()));
            return Some(address);
        }
        let path = endpoint.strip_prefix(PATH)?;
        // With an authority, which is empty, or without.
        let path = path.strip_prefix("//").unwrap_or(path);
        if !path.starts_with('/') {
            return Some(Err(format!(
                "\"{endpoint}\": write the path of a Unix socket from the root on, \"unix:/PATH\""
            )));
        }
        Some(bounded(endpoint, path).map(|()| PeerAddress::Path(path.into())))
    }

    /// The address that another process has written down.
    pub(super) fn read(text: &str) -> Option<PeerAddress> {
        match PeerAddress::unix(text) {
            Some(unix) => unix.ok(),
            None => text.parse().ok().map(PeerAddress::Internet),
        }
    }

    /// Whether an endpoint names a Unix socket.
    pub(crate) fn is_unix(endpoint: &str) -> bool {
        endpoint.starts_with(PATH) || endpoint.starts_with(ABSTRACT)
    }

    /// Those of the internet.
    pub(super) fn of_internet(addresses: Vec<PeerAddress>) -> Vec<SocketAddr> {
        let internet = |address| match address {
            PeerAddress::Internet(address) => Some(address),
            PeerAddress::Path(_) | PeerAddress::Abstract(_) => None,
        };
        addresses.into_iter().filter_map(internet).collect()
    }

    /// As the kernel has that of a Unix socket.
    pub(super) fn socket_address(&self) -> io::Result<SocketAddrUnix> {
        Ok(match self {
            PeerAddress::Internet(_) => return Err(io::ErrorKind::InvalidInput.into()),
            PeerAddress::Path(path) => SocketAddrUnix::new(path)?,
            PeerAddress::Abstract(name) => SocketAddrUnix::new_abstract_name(name.as_bytes())?,
        })
    }
}

fn bounded(endpoint: &str, name: &str) -> Result<(), String> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.contains('\0') {
        let bytes = name.len();
        return Err(format!(
            "\"{endpoint}\": {bytes} bytes; a Unix socket takes 1 to {NAME_BYTES_MAX}, and no zeros"
        ));
    }
    Ok(())
}

impl From<SocketAddr> for PeerAddress {
    fn from(address: SocketAddr) -> PeerAddress {
        PeerAddress::Internet(address)
    }
}

impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PeerAddress::Internet(address) => write!(f, "{address}"),
            PeerAddress::Path(path) => write!(f, "{PATH}{}", path.display()),
            PeerAddress::Abstract(name) => write!(f, "{ABSTRACT}{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unix_sockets_are_written_as_grpc_writes_them() {
        let of = |endpoint: &str| {
            PeerAddress::unix(endpoint)
                .unwrap()
                .map(|address| address.to_string())
        };
        assert_eq!(of("unix:/run/x.sock").unwrap(), "unix:/run/x.sock");
        assert_eq!(of("unix:///run/x.sock").unwrap(), "unix:/run/x.sock");
        assert_eq!(of("unix-abstract:name").unwrap(), "unix-abstract:name");
        for bad in ["unix:", "unix:x.sock", "unix://host/x.sock", "unix-abstract:"] {
            assert!(of(bad).is_err() && PeerAddress::is_unix(bad), "{bad}");
        }
        assert!(of(&format!("unix:/{}", "a".repeat(NAME_BYTES_MAX))).is_err());
        assert!(PeerAddress::unix("127.0.0.1:7").is_none() && !PeerAddress::is_unix("localhost:7"));
    }

    #[test]
    fn tcp_and_datagrams_lead_to_addresses_of_the_internet() {
        let socket = PeerAddress::unix("unix:/run/x.sock").unwrap().unwrap();
        let address: SocketAddr = "127.0.0.1:7".parse().unwrap();
        assert_eq!(PeerAddress::of_internet(vec![socket, address.into()]), [address]);
    }
}
