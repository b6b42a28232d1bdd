//! Connections that the kernel has redirected: where they were going, and how a process keeps its own from being redirected too.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use socket2::{SockAddr, SockRef};

use crate::LISTEN_BACKLOG;

/// Where a connection was going before a rule with `redirect` or `dnat` changed that; none, if none has. An address of IPv4 at a socket
/// of IPv6 comes as one of IPv4.
///
/// # Errors
/// The system does not say.
pub fn redirected_from(stream: &TcpStream) -> io::Result<Option<SocketAddr>> {
    let socket = SockRef::from(stream);
    let local = canonical(stream.local_addr()?);
    let asked = if local.is_ipv4() {
        socket.original_dst_v4()
    } else {
        socket.original_dst_v6()
    };
    match asked.map(|address| SockAddr::as_socket(&address)) {
        Ok(original) => Ok(original.map(canonical).filter(|original| *original != local)),
        // The kernel follows no such connection, or follows none at all.
        Err(error) if is_unknown(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The same for a rule with `tproxy`, which leaves the address as it is: the connection has come to an address that its listener does
/// not have.
///
/// # Errors
/// The system does not say what the connection's address is.
pub fn taken_from(stream: &TcpStream, listener: SocketAddr) -> io::Result<Option<SocketAddr>> {
    let (local, listener) = (canonical(stream.local_addr()?), canonical(listener));
    let is_own_host = listener.ip().is_unspecified() || listener.ip() == local.ip();
    Ok((!(is_own_host && listener.port() == local.port())).then_some(local))
}

/// Listens for connections to addresses that are not this host's, which needs CAP_NET_ADMIN. The socket does not block.
///
/// # Errors
/// The address is taken, or the process may not do so.
pub fn listen_for_others(address: SocketAddr) -> io::Result<TcpListener> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    take_for_others(&socket, address)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, LISTEN_BACKLOG)?;
    Ok(TcpListener::from(socket))
}

/// Has a socket take connections to addresses that are not this host's.
///
/// # Errors
/// The process may not do so.
pub fn take_for_others(socket: &impl AsFd, address: SocketAddr) -> io::Result<()> {
    let socket = SockRef::from(socket);
    if address.is_ipv6() {
        socket.set_ip_transparent_v6(true)
    } else {
        socket.set_ip_transparent_v4(true)
    }
}

/// Marks what a socket sends, so that rules can tell it from what others send. This needs CAP_NET_ADMIN.
///
/// # Errors
/// The process may not do so.
pub fn set_mark(socket: &impl AsFd, mark: u32) -> io::Result<()> {
    SockRef::from(socket).set_mark(mark)
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// ENOENT: connection tracking does not know the connection. ENOPROTOOPT, EOPNOTSUPP: there is no connection tracking.
fn is_unknown(error: &io::Error) -> bool {
    let unknown = [
        rustix::io::Errno::NOENT,
        rustix::io::Errno::NOPROTOOPT,
        rustix::io::Errno::OPNOTSUPP,
    ];
    unknown
        .iter()
        .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_nobody_redirected_comes_from_nowhere_else() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let _client = TcpStream::connect(address).unwrap();
        let (stream, _) = listener.accept().unwrap();
        assert_eq!(redirected_from(&stream).unwrap(), None);
        assert_eq!(taken_from(&stream, address).unwrap(), None);
        let everywhere = SocketAddr::new([0, 0, 0, 0].into(), address.port());
        assert_eq!(taken_from(&stream, everywhere).unwrap(), None);
        let elsewhere = SocketAddr::new([0, 0, 0, 0].into(), 1);
        assert_eq!(taken_from(&stream, elsewhere).unwrap(), Some(address));
    }
}
