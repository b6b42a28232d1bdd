//! What carries the bytes of a link.

use std::io::{self, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto};

/// A socket that does not block, or what stands for one.
pub trait ByteCarrier: Send {
    /// Reads what there is.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when there is nothing yet.
    fn read_ready(&mut self, into: &mut [u8]) -> io::Result<usize>;

    /// Writes as much as there is room for.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when there is no room.
    fn write_ready(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize>;

    /// What a poller watches.
    fn socket(&self) -> BorrowedFd<'_>;
}

impl<S: Read + Write + AsFd + Send> ByteCarrier for S {
    fn read_ready(&mut self, into: &mut [u8]) -> io::Result<usize> {
        Read::read(self, into)
    }

    fn write_ready(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.write_vectored(pieces)
    }

    fn socket(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }
}

/// Begins to connect, and does not wait: what comes of it shows when the carrier is used.
///
/// # Errors
/// The system refuses it at once.
pub fn dial(address: SocketAddr) -> io::Result<Box<dyn ByteCarrier>> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
        Err(error) => return Err(error.into()),
    }
    let stream = TcpStream::from(socket);
    stream.set_nodelay(true)?;
    Ok(Box::new(stream))
}
