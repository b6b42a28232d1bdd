//! Unix `SOCK_SEQPACKET` sockets: whole packets, with descriptors beside them. None of the calls blocks; what would
//! block fails with [`io::ErrorKind::WouldBlock`], as `tokio::io::unix::AsyncFd` wants it.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FileType, Mode};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

/// Descriptors beside one packet between an app and its service.
pub const DESCRIPTORS_MAX: usize = 8;
/// Descriptors beside one packet between two processes of a service: the most that the kernel passes (`SCM_MAX_FD`).
pub const DESCRIPTORS_BATCH_MAX: usize = 253;

const ANCILLARY_BYTES: usize = rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX));
const ANCILLARY_BATCH_BYTES: usize = rustix::cmsg_space!(ScmRights(DESCRIPTORS_BATCH_MAX));
const BACKLOG: i32 = 128;
/// Between two looks whether there is a place to wait in.
const CONNECT_PAUSE: Duration = Duration::from_millis(1);

/// Waits for peers at a path.
#[derive(Debug)]
pub struct PacketListener(OwnedFd);

/// One end of a connection.
#[derive(Debug)]
pub struct PacketSocket(OwnedFd);

#[derive(Debug)]
pub struct Packet {
    /// Its bytes.
    pub bytes: Vec<u8>,
    pub descriptors: Vec<OwnedFd>,
}

/// Who the peer was when it connected, as the kernel vouches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCredentials {
    /// Its number in this process's PID namespace; 0 for a process of another one, such as a sibling container.
    pub process: i32,
    pub user: u32,
    pub group: u32,
}

impl PacketListener {
    /// Listens at a path, which gets these permission bits. A socket that a dead process has left there is
    /// replaced; one that answers is not.
    pub fn bind(path: &Path, mode: u32) -> io::Result<PacketListener> {
        let address = SocketAddrUnix::new(path)?;
        let mode = Mode::from_raw_mode(mode);
        let socket = new_socket()?;
        // The path is born with the socket's mode less the umask, so it is never wider than asked.
        rustix::fs::fchmod(&socket, mode)?;
        match rustix::net::bind(&socket, &address) {
            Err(Errno::ADDRINUSE) if is_dead_socket(path, &address) => {
                std::fs::remove_file(path)?;
                rustix::net::bind(&socket, &address)?;
            }
            result => result?,
        }
        rustix::fs::chmod(path, mode)?;
        rustix::net::listen(&socket, BACKLOG)?;
        Ok(PacketListener(socket))
    }

    /// The next peer that has connected.
    pub fn accept(&self) -> io::Result<PacketSocket> {
        let socket = rustix::net::accept_with(&self.0, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        Ok(PacketSocket(socket))
    }
}

impl PacketSocket {
    /// Connects to a listener's path at once, or fails: with [`io::ErrorKind::WouldBlock`] while as many as the listener lets wait
    /// are waiting to be accepted.
    pub fn connect(path: &Path) -> io::Result<PacketSocket> {
        let address = SocketAddrUnix::new(path)?;
        let socket = new_socket()?;
        rustix::net::connect(&socket, &address)?;
        Ok(PacketSocket(socket))
    }

    /// As [`PacketSocket::connect`], but waits so long for a place among those who wait to be accepted.
    pub fn connect_within(path: &Path, limit: Duration) -> io::Result<PacketSocket> {
        let deadline = Instant::now() + limit;
        loop {
            match PacketSocket::connect(path) {
                // Nothing tells of a place that becomes free, other than a connect that blocks for ever.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < deadline => {
                    std::thread::sleep(CONNECT_PAUSE);
                }
                connected => return connected,
            }
        }
    }

    /// Two ends that are connected to each other.
    pub fn pair() -> io::Result<(PacketSocket, PacketSocket)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (one, other) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((PacketSocket(one), PacketSocket(other)))
    }

    /// Sends one packet, whole, with at most [`DESCRIPTORS_MAX`] descriptors.
    pub fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); ANCILLARY_BYTES];
        self.send_with(bytes, descriptors, DESCRIPTORS_MAX, &mut space)
    }

    /// As [`PacketSocket::send`], with up to [`DESCRIPTORS_BATCH_MAX`] descriptors.
    pub fn send_batch(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); ANCILLARY_BATCH_BYTES];
        self.send_with(bytes, descriptors, DESCRIPTORS_BATCH_MAX, &mut space)
    }

    fn send_with(
        &self,
        bytes: &[u8],
        descriptors: &[BorrowedFd<'_>],
        descriptors_max: usize,
        space: &mut [MaybeUninit<u8>],
    ) -> io::Result<()> {
        let mut ancillary = SendAncillaryBuffer::new(space);
        let pushed = descriptors.is_empty() || ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
        if !pushed || descriptors.len() > descriptors_max {
            let message = format!(
                "{} descriptors: a packet takes {descriptors_max}",
                descriptors.len()
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        rustix::net::sendmsg(&self.0, &[IoSlice::new(bytes)], &mut ancillary, flags)?;
        Ok(())
    }

    /// The next packet of at most so many bytes; `None` once the peer has closed its end (or sent an empty packet,
    /// which no honest peer does). A longer packet, or one with more than [`DESCRIPTORS_MAX`] descriptors, is an
    /// error of kind [`io::ErrorKind::InvalidData`]; its descriptors are closed.
    pub fn receive(&self, bytes_max: usize) -> io::Result<Option<Packet>> {
        let mut space = [MaybeUninit::uninit(); ANCILLARY_BYTES];
        self.receive_with(bytes_max, DESCRIPTORS_MAX, &mut space)
    }

    /// As [`PacketSocket::receive`], with up to [`DESCRIPTORS_BATCH_MAX`] descriptors.
    pub fn receive_batch(&self, bytes_max: usize) -> io::Result<Option<Packet>> {
        let mut space = [MaybeUninit::uninit(); ANCILLARY_BATCH_BYTES];
        self.receive_with(bytes_max, DESCRIPTORS_BATCH_MAX, &mut space)
    }

    fn receive_with(
        &self,
        bytes_max: usize,
        descriptors_max: usize,
        space: &mut [MaybeUninit<u8>],
    ) -> io::Result<Option<Packet>> {
        let mut bytes = vec![0; bytes_max];
        let mut ancillary = RecvAncillaryBuffer::new(space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let mut into = [IoSliceMut::new(&mut bytes)];
        let received = rustix::net::recvmsg(&self.0, &mut into, &mut ancillary, flags)?;
        let mut descriptors = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(passed) = message {
                descriptors.extend(passed);
            }
        }
        // The space, padded for alignment, takes one more than was asked for.
        let too_many = descriptors.len() > descriptors_max;
        if too_many
            || received
                .flags
                .intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC)
        {
            let limits = format!("a packet of more than {bytes_max} bytes or {descriptors_max} descriptors");
            return Err(io::Error::new(io::ErrorKind::InvalidData, limits));
        }
        if received.bytes == 0 {
            return Ok(None);
        }
        bytes.truncate(received.bytes);
        Ok(Some(Packet { bytes, descriptors }))
    }

    /// Who is at the other end.
    pub fn peer_credentials(&self) -> io::Result<PeerCredentials> {
        // Not rustix's: its type of a process's number cannot be 0, which the kernel's can.
        let mut credentials = libc::ucred {
            pid: 0,
            uid: 0,
            gid: 0,
        };
        let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `bytes` bytes, which is the size of `credentials`; any bits are a `ucred`.
        let read = unsafe {
            libc::getsockopt(
                self.0.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut credentials).cast(),
                &raw mut bytes,
            )
        };
        if read != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(PeerCredentials {
            process: credentials.pid,
            user: credentials.uid,
            group: credentials.gid,
        })
    }
}

impl AsFd for PacketListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for PacketListener {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.0.as_raw_fd()
    }
}

impl AsRawFd for PacketSocket {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.0.as_raw_fd()
    }
}

/// A listening socket that was made elsewhere; it must not block.
impl From<OwnedFd> for PacketListener {
    fn from(descriptor: OwnedFd) -> PacketListener {
        PacketListener(descriptor)
    }
}

/// A connected socket that was made elsewhere.
impl From<OwnedFd> for PacketSocket {
    fn from(descriptor: OwnedFd) -> PacketSocket {
        PacketSocket(descriptor)
    }
}

fn new_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

fn is_dead_socket(path: &Path, address: &SocketAddrUnix) -> bool {
    let is_socket = rustix::fs::lstat(path)
        .is_ok_and(|status| FileType::from_raw_mode(status.st_mode) == FileType::Socket);
    let refused =
        || new_socket().is_ok_and(|socket| rustix::net::connect(socket, address) == Err(Errno::CONNREFUSED));
    is_socket && refused()
}
