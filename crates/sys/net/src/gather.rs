//! Sending from, and copying out of, memory that is known by its address alone. The only unsafe code of this crate.

use std::ffi::{c_int, c_void};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags};

use crate::Moved;

/// Pieces that one call of [`write_gather`] sends at most; more are left for the next.
pub const GATHER_PIECES_MAX: usize = 128;

/// A range of memory to be sent.
#[derive(Clone, Copy, Debug)]
pub enum Gather<'a> {
    /// Private memory.
    Private(&'a [u8]),
    /// Memory that an app can write, by its address: the kernel reads it, no reference to it exists.
    Foreign {
        /// Its first byte.
        address: NonZeroUsize,
        /// Its length.
        bytes: usize,
    },
}

/// The kernel's `struct iovec`, with which `IoSlice` is ABI-compatible on Unix.
#[derive(Clone, Copy)]
#[repr(C)]
struct Iovec {
    base: *const c_void,
    length: usize,
}

const _: () = assert!(size_of::<Iovec>() == size_of::<IoSlice<'_>>());
const _: () = assert!(align_of::<Iovec>() == align_of::<IoSlice<'_>>());

/// Sends pieces in order, as many bytes as the socket takes.
pub fn write_gather<'a>(socket: &TcpStream, pieces: impl Iterator<Item = Gather<'a>>) -> io::Result<Moved> {
    let mut vectors = [MaybeUninit::<Iovec>::uninit(); GATHER_PIECES_MAX];
    let mut count = 0;
    for (vector, piece) in vectors.iter_mut().zip(pieces) {
        count += 1;
        vector.write(match piece {
            Gather::Private(bytes) => Iovec {
                base: bytes.as_ptr().cast(),
                length: bytes.len(),
            },
            Gather::Foreign { address, bytes } => Iovec {
                base: std::ptr::with_exposed_provenance(address.get()),
                length: bytes,
            },
        });
    }
    if count == 0 {
        return Ok(Moved::Bytes(0));
    }
    // SAFETY: the first `count` vectors were written; `IoSlice` is guaranteed to be ABI-compatible with the kernel's
    // `iovec`, which `Iovec` is. No reference to foreign memory is made: the slices are only handed to the kernel,
    // which checks each range itself and answers EFAULT for one that is not mapped.
    let slices = unsafe { std::slice::from_raw_parts(vectors.as_ptr().cast::<IoSlice<'_>>(), count) };
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    loop {
        match rustix::net::sendmsg(socket, slices, &mut SendAncillaryBuffer::default(), flags) {
            Ok(bytes) => return Ok(Moved::Bytes(bytes)),
            Err(Errno::AGAIN) => return Ok(Moved::NotNow),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Reads what has come, into `first` and then into `second`.
pub fn read_into(socket: &TcpStream, first: &mut [u8], second: &mut [u8]) -> io::Result<Moved> {
    let mut slices = [IoSliceMut::new(first), IoSliceMut::new(second)];
    loop {
        match rustix::io::readv(socket.as_fd(), &mut slices) {
            Ok(0) => return Ok(Moved::End),
            Ok(bytes) => return Ok(Moved::Bytes(bytes)),
            Err(Errno::AGAIN) => return Ok(Moved::NotNow),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

unsafe extern "C" {
    fn setsockopt(socket: c_int, level: c_int, name: c_int, value: *const c_void, length: u32) -> c_int;
}

/// See <https://man7.org/linux/man-pages/man7/tcp.7.html>.
const IPPROTO_TCP: c_int = 6;
const TCP_NOTSENT_LOWAT: c_int = 25;

/// Bounds how much the kernel holds that is not on the wire yet.
pub(crate) fn set_unsent_bytes_max(socket: &TcpStream, bytes: u32) -> io::Result<()> {
    let (value, length) = (&raw const bytes, size_of::<u32>() as u32);
    // SAFETY: `value` points to `length` readable bytes for the duration of the call.
    match unsafe {
        setsockopt(
            socket.as_raw_fd(),
            IPPROTO_TCP,
            TCP_NOTSENT_LOWAT,
            value.cast(),
            length,
        )
    } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
