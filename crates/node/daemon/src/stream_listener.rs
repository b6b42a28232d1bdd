//! Sockets at which streams come: TCP ports and Unix sockets, opened, or taken over from the process before.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use crate::config::ListenAddress;

/// A socket that listens for streams.
#[derive(Debug)]
pub(crate) enum StreamListener {
    Tcp(TcpListener, SocketAddr),
    Unix(UnixListener, PathBuf),
}

/// A stream that has come, and from where.
pub(crate) enum AcceptedStream {
    Tcp(TcpStream, SocketAddr),
    Unix(UnixStream),
}

/// The permission bits of a Unix socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SocketMode {
    /// These, whatever the umask is.
    Exactly(u32),
    /// All that the umask leaves.
    ByUmask,
}

/// How a Unix socket is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnixSocketTerms {
    pub(crate) mode: SocketMode,
    /// Connections that wait to be accepted, at most.
    pub(crate) backlog: i32,
}

impl StreamListener {
    /// Opens it. A socket file that nobody listens at any more is replaced.
    pub(crate) fn open(address: &ListenAddress, terms: UnixSocketTerms) -> io::Result<StreamListener> {
        match address {
            ListenAddress::Tcp(address) => of_tcp(std::net::TcpListener::bind(address)?),
            ListenAddress::Unix(path) => {
                StreamListener::listening(bind_unix(path, terms)?, ListenAddress::Unix(path.clone()))
            }
        }
    }

    /// Goes on with a socket that listens already.
    pub(crate) fn listening(socket: OwnedFd, address: ListenAddress) -> io::Result<StreamListener> {
        Ok(match address {
            ListenAddress::Tcp(_) => of_tcp(std::net::TcpListener::from(socket))?,
            ListenAddress::Unix(path) => {
                let listener = std::os::unix::net::UnixListener::from(socket);
                listener.set_nonblocking(true)?;
                StreamListener::Unix(UnixListener::from_std(listener)?, path)
            }
        })
    }

    /// Where it is, with the port that it got.
    pub(crate) fn address(&self) -> ListenAddress {
        match self {
            StreamListener::Tcp(_, address) => ListenAddress::Tcp(*address),
            StreamListener::Unix(_, path) => ListenAddress::Unix(path.clone()),
        }
    }

    /// What a process that replaces this one takes over.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        match self {
            StreamListener::Tcp(listener, _) => listener.as_fd(),
            StreamListener::Unix(listener, _) => listener.as_fd(),
        }
    }

    pub(crate) async fn accept(&self) -> io::Result<AcceptedStream> {
        Ok(match self {
            StreamListener::Tcp(listener, _) => {
                let (stream, address) = listener.accept().await?;
                AcceptedStream::Tcp(stream, address)
            }
            StreamListener::Unix(listener, _) => AcceptedStream::Unix(listener.accept().await?.0),
        })
    }
}

fn of_tcp(listener: std::net::TcpListener) -> io::Result<StreamListener> {
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    Ok(StreamListener::Tcp(TcpListener::from_std(listener)?, address))
}

/// Listens at a path. A socket that a dead process has left there is replaced; one that answers, or a file that is no socket,
/// is not.
pub(crate) fn bind_unix(path: &Path, terms: UnixSocketTerms) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let socket = new_socket()?;
    if let SocketMode::Exactly(mode) = terms.mode {
        // The path is born with the socket's mode less the umask, so it is never wider than asked.
        rustix::fs::fchmod(&socket, Mode::from_raw_mode(mode))?;
    }
    match rustix::net::bind(&socket, &address) {
        Err(Errno::ADDRINUSE) if is_dead(path, &address) => {
            std::fs::remove_file(path)?;
            rustix::net::bind(&socket, &address)?;
        }
        result => result.map_err(|error| in_the_way(path, error.into()))?,
    }
    if let SocketMode::Exactly(mode) = terms.mode {
        rustix::fs::chmod(path, Mode::from_raw_mode(mode))?;
    }
    rustix::net::listen(&socket, terms.backlog)?;
    Ok(socket)
}

/// Why a socket cannot be made at a path, where something else than a socket is there.
pub(crate) fn in_the_way(path: &Path, source: io::Error) -> io::Error {
    use std::os::unix::fs::FileTypeExt;
    let there = std::fs::symlink_metadata(path).map(|there| there.file_type());
    let what = match there {
        Ok(there) if source.kind() == io::ErrorKind::AddrInUse && !there.is_socket() => {
            if there.is_dir() {
                "is a directory, not a socket"
            } else if there.is_symlink() {
                "is a link, not a socket"
            } else {
                "is a file, not a socket"
            }
        }
        _ => return source,
    };
    let problem = format!("{what}: name another path, or move away what is there");
    io::Error::new(io::ErrorKind::AlreadyExists, problem)
}

/// What to do where the socket of a path cannot be made.
pub(crate) fn socket_hint(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::AddrInUse => ": another service answers there; stop it, or name another path",
        io::ErrorKind::NotFound => ": make its directory, or name another path",
        io::ErrorKind::PermissionDenied => ": run as a user who may write there, or name another path",
        _ => "",
    }
}

/// What to do where a port cannot be listened at.
pub(crate) fn port_hint(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::AddrInUse => ": another program listens there; stop it, or name another address",
        io::ErrorKind::AddrNotAvailable => ": name an address that this machine has",
        io::ErrorKind::PermissionDenied => ": name a port from 1024, or run as a user who may have this one",
        _ => "",
    }
}

/// What to do where an address cannot be listened at, `IP:PORT` or `unix:PATH`.
pub(crate) fn listening_hint(address: &str, source: &io::Error) -> &'static str {
    match ListenAddress::parse(address) {
        Ok(ListenAddress::Unix(_)) => socket_hint(source),
        _ => port_hint(source),
    }
}

fn new_socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// Whether the path is a socket at which nobody answers.
fn is_dead(path: &Path, address: &SocketAddrUnix) -> bool {
    use std::os::unix::fs::FileTypeExt;
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    let refused = || {
        let probe = new_socket()?;
        rustix::net::connect(&probe, address)
    };
    is_socket && refused() == Err(Errno::CONNREFUSED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_that_is_no_socket_is_left_alone_and_a_dead_socket_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("metrics");
        let open = || {
            let terms = UnixSocketTerms {
                mode: SocketMode::ByUmask,
                backlog: 1,
            };
            StreamListener::open(&ListenAddress::Unix(path.clone()), terms)
        };
        std::fs::write(&path, "somebody's notes").unwrap();
        let said = open().unwrap_err().to_string();
        assert!(said.starts_with("is a file, not a socket: name"), "{said}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "somebody's notes");
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        let said = open().unwrap_err().to_string();
        assert!(said.starts_with("is a directory, not a socket"), "{said}");
        std::fs::remove_dir(&path).unwrap();
        drop(open().unwrap());
        let _answers = open().unwrap();
        assert_eq!(open().unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }
}
