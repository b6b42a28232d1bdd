//! What carries the bytes of a connection.

use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use provost_datapath::FieldWriter;

/// A socket that does not block, or what stands for one in a test.
pub trait ByteCarrier: Send {
    /// Reads what there is.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when there is nothing yet.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize>;

    /// Writes as much as there is room for.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when there is no room.
    fn write(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Sends what it keeps of what was written: within TLS, bytes of records.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when there is no room for all of it.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Whether the last read, though it had room, stopped before the end or an error, which the next one tells. The socket may
    /// have nothing more to say then.
    fn has_more(&self) -> bool {
        false
    }

    /// What a poller watches; the carrier owns it.
    fn descriptor(&self) -> RawFd;

    /// The socket, of which a successor gets a duplicate; none if no successor can go on with what the carrier does.
    fn carried_socket(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Appends what a successor needs beside the socket: [`PLAIN_CARRIER`] if that is nothing.
    fn save(&self, out: &mut FieldWriter) {
        out.u8(PLAIN_CARRIER);
    }
}

/// How the state of a port says that its bytes are in a socket as they are. Other numbers are those of other carriers, which
/// append what they need.
pub const PLAIN_CARRIER: u8 = 0;

impl<S: Read + Write + AsFd + Send> ByteCarrier for S {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        Read::read(self, into)
    }

    fn write(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.write_vectored(pieces)
    }

    fn flush(&mut self) -> io::Result<()> {
        Write::flush(self)
    }

    fn descriptor(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }

    fn carried_socket(&self) -> Option<BorrowedFd<'_>> {
        Some(self.as_fd())
    }
}
