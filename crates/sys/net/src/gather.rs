//! Sending from, and copying out of, memory that is known by its address alone. The only unsafe code of this crate.

use std::ffi::{c_int, c_ulong, c_void};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags};

use crate::{Moved, OutputState, RoundTrips};

/// Pieces that one call of [`write_gather`] sends at most; more are left for the next.
pub const GATHER_PIECES_MAX: usize = 128;

/// A range of memory to be sent.
#[derive(Clone, Copy, Debug)]
pub enum Gather<'a> {
    Private(&'a [u8]),
    /// Memory that an app can write, by its address: the kernel reads it, no reference to it exists.
    Foreign {
        address: NonZeroUsize,
        bytes: usize,
    },
}

/// What comes behind what is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FollowUp {
    /// Nothing at once: all of it leaves.
    Later,
    /// More, at once: what fills no packet waits for it (MSG_MORE). Where it does not come after all, see [`push`].
    AtOnce,
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
pub fn write_gather<'a>(
    socket: &TcpStream,
    pieces: impl Iterator<Item = Gather<'a>>,
    following: FollowUp,
) -> io::Result<Moved> {
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
    let plain = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let flags = match following {
        FollowUp::Later => plain,
        FollowUp::AtOnce => plain | SendFlags::MORE,
    };
    loop {
        match rustix::net::sendmsg(socket, slices, &mut SendAncillaryBuffer::default(), flags) {
            Ok(bytes) => return Ok(Moved::Bytes(bytes)),
            Err(Errno::AGAIN) => return Ok(Moved::NotNow),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Sends what waits in the socket for more ([`FollowUp::AtOnce`]).
pub fn push(socket: &TcpStream) -> io::Result<()> {
    // To set it anew sends what waits: tcp(7).
    socket.set_nodelay(true)
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

unsafe extern "C" {
    fn getsockopt(socket: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut u32) -> c_int;
    fn ioctl(descriptor: c_int, request: c_ulong, ...) -> c_int;
}

/// See <https://man7.org/linux/man-pages/man7/tcp.7.html>.
const IPPROTO_TCP: c_int = 6;
const TCP_INFO: c_int = 11;
/// Asks for the bytes that a peer has not acknowledged.
const SIOCOUTQ: c_ulong = 0x5411;
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

/// The beginning of the kernel's `struct tcp_info`, as far as it is of interest here. Versions of it only grow.
#[derive(Default)]
#[repr(C)]
struct TcpInfo {
    states: [u8; 8],
    before_round_trip: [u32; 15],
    smoothed_us: u32,
    before_pacing: [u32; 8],
    pacing_and_counts: [u64; 4],
    segments: [u32; 2],
    unsent_bytes: u32,
    least_us: u32,
}

// What stands in front of the fields is fixed by the kernel's interface.
const _: () = assert!(std::mem::offset_of!(TcpInfo, smoothed_us) == 68);
const _: () = assert!(std::mem::offset_of!(TcpInfo, unsent_bytes) == 144);
const _: () = assert!(std::mem::offset_of!(TcpInfo, least_us) == 148);

/// How long the round trips of a connection take.
pub fn round_trips(socket: &TcpStream) -> io::Result<RoundTrips> {
    let info = tcp_info(socket)?;
    Ok(RoundTrips {
        smoothed_us: info.smoothed_us,
        least_us: info.least_us,
    })
}

/// What became of what was given to the kernel.
pub fn output_state(socket: &TcpStream) -> io::Result<OutputState> {
    let info = tcp_info(socket)?;
    Ok(OutputState {
        sent_segments: info.segments[0],
        unsent_bytes: info.unsent_bytes,
    })
}

fn tcp_info(socket: &TcpStream) -> io::Result<TcpInfo> {
    let mut info = TcpInfo::default();
    let mut length = size_of::<TcpInfo>() as u32;
    // SAFETY: the kernel writes `length` bytes at most, which is the size of `info`; any bytes are valid in it.
    match unsafe {
        getsockopt(
            socket.as_raw_fd(),
            IPPROTO_TCP,
            TCP_INFO,
            (&raw mut info).cast(),
            &raw mut length,
        )
    } {
        0 => Ok(info),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Bytes that were given to the kernel and that the peer's kernel has not acknowledged.
pub fn unacknowledged_bytes(socket: &TcpStream) -> io::Result<u32> {
    let mut bytes: c_int = 0;
    // SAFETY: with this request the kernel writes one `int`, to where `bytes` is.
    match unsafe { ioctl(socket.as_raw_fd(), SIOCOUTQ, &raw mut bytes) } {
        0 => Ok(bytes.max(0).cast_unsigned()),
        _ => Err(io::Error::last_os_error()),
    }
}
