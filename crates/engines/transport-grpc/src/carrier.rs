//! What carries the bytes of a link.

use std::io::{self, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use provost_datapath::FieldWriter;
use rustix::net::{AddressFamily, Protocol, SocketAddrUnix, SocketFlags, SocketType, ipproto};

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

    /// Sends what it keeps of what was written: within TLS, bytes of records.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when there is no room for all of it.
    fn flush_ready(&mut self) -> io::Result<()>;

    /// Whether what was not written waits for the peer to say something, and not for room in the socket: within TLS, while hands
    /// are shaken.
    fn waits_for_peer(&self) -> bool {
        false
    }

    /// Whether the last read, though it had room, stopped before the end or an error, which the next one tells. The socket may
    /// have nothing more to say then.
    fn has_more(&self) -> bool {
        false
    }

    /// What a poller watches.
    fn socket(&self) -> BorrowedFd<'_>;

    /// The socket, of which a successor gets a duplicate; none if no successor can go on with what the carrier does.
    fn carried_socket(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Appends what a successor needs beside the socket: [`PLAIN_CARRIER`] if that is nothing.
    fn save(&self, out: &mut FieldWriter) {
        out.u8(PLAIN_CARRIER);
    }
}

/// How the state of a link says that its bytes are in a socket as they are. Other numbers are those of other carriers, which append
/// what they need.
pub const PLAIN_CARRIER: u8 = 0;

impl<S: Read + Write + AsFd + Send> ByteCarrier for S {
    fn read_ready(&mut self, into: &mut [u8]) -> io::Result<usize> {
        Read::read(self, into)
    }

    fn write_ready(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.write_vectored(pieces)
    }

    fn flush_ready(&mut self) -> io::Result<()> {
        Write::flush(self)
    }

    fn socket(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }

    fn carried_socket(&self) -> Option<BorrowedFd<'_>> {
        Some(self.as_fd())
    }
}

/// Begins to connect, and does not wait: what comes of it shows when the stream is used. The socket is prepared before.
///
/// # Errors
/// The system refuses it at once, or the socket was not prepared.
pub fn dial(address: SocketAddr, prepare: impl FnOnce(&OwnedFd) -> io::Result<()>) -> io::Result<TcpStream> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let socket = new_socket(family, Some(ipproto::TCP))?;
    prepare(&socket)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
        Err(error) => return Err(error.into()),
    }
    let stream = TcpStream::from(socket);
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Connects to a Unix socket of this host. That needs no time.
///
/// # Errors
/// The system refuses it, or more wait there than its server has room for.
pub fn dial_unix(address: &SocketAddrUnix) -> io::Result<UnixStream> {
    let socket = new_socket(AddressFamily::UNIX, None)?;
    match rustix::net::connect(&socket, address) {
        Ok(()) => Ok(UnixStream::from(socket)),
        Err(rustix::io::Errno::AGAIN) => Err(io::Error::new(
            io::ErrorKind::ConnectionRefused,
            "too many wait at its socket to be accepted",
        )),
        Err(error) => Err(error.into()),
    }
}

fn new_socket(family: AddressFamily, protocol: Option<Protocol>) -> io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    Ok(rustix::net::socket_with(
        family,
        SocketType::STREAM,
        flags,
        protocol,
    )?)
}
