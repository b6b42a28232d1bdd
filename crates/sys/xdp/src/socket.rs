//! An AF_XDP socket (`Documentation/networking/af_xdp.rst` of the kernel): its memory and its four rings.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::error::XdpError;
use crate::options::Copying;
use crate::ring::{Consumer, Producer};
use crate::umem::Umem;

/// Bytes that the kernel keeps free before each packet that it writes.
pub(crate) const HEADROOM_BYTES: usize = 256;
/// Packets that one look at the device takes while it is polled.
const BUSY_POLL_PACKETS: c_int = 64;
/// Options of sockets that are newer than the bindings.
const SO_PREFER_BUSY_POLL: c_int = 69;
const SO_BUSY_POLL_BUDGET: c_int = 70;

/// How long a queue may take to be free after its socket was closed, and between two attempts.
const RELEASE_TIME_MAX: Duration = Duration::from_secs(2);
const RELEASE_PAUSE: Duration = Duration::from_millis(2);

const MEMORY: &str =
    "raise the limit of locked memory (`ulimit -l`, LimitMEMLOCK=) or give the process CAP_IPC_LOCK";

/// How large everything is, in frames. The numbers are powers of two.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) receive: u32,
    pub(crate) send: u32,
    pub(crate) frame_bytes: usize,
}

/// Where a socket is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) interface: u32,
    pub(crate) queue: u32,
    pub(crate) copying: Copying,
}

/// A bound socket. Its first frames, as many as its receive ring has entries, are for packets that come.
///
/// The rings stand before the memory, so that they go first.
#[derive(Debug)]
pub(crate) struct Socket {
    /// Empty frames, for the kernel.
    pub(crate) fill: Producer<u64>,
    /// Packets that have come.
    pub(crate) arrived: Consumer<libc::xdp_desc>,
    /// Packets to be sent.
    pub(crate) leaving: Producer<libc::xdp_desc>,
    /// Frames of packets that have been sent.
    pub(crate) sent: Consumer<u64>,
    pub(crate) umem: Umem,
    descriptor: OwnedFd,
}

impl Socket {
    pub(crate) fn bind(sizes: Sizes, place: Place) -> Result<Socket, XdpError> {
        let descriptor = open().map_err(XdpError::kernel(
            "opening an AF_XDP socket",
            "give the process CAP_NET_RAW, on a kernel with CONFIG_XDP_SOCKETS",
        ))?;
        let umem = Umem::new((sizes.receive + sizes.send) as usize, sizes.frame_bytes)
            .map_err(XdpError::kernel("taking memory for frames", "use smaller rings"))?;
        register(&descriptor, &umem).map_err(XdpError::kernel("registering memory for frames", MEMORY))?;
        let mut socket = Socket::with_rings(descriptor, umem, sizes)
            .map_err(XdpError::kernel("making the rings of an AF_XDP socket", MEMORY))?;
        // Where packets are copied, what the kernel holds of them counts. A limit that stays lower only slows sending.
        let held = c_int::try_from(sizes.send as usize * sizes.frame_bytes).unwrap_or(c_int::MAX);
        let _ = set(&socket.descriptor, libc::SOL_SOCKET, libc::SO_SNDBUF, &held);
        for frame in 0..u64::from(sizes.receive) {
            socket.fill.put(frame * sizes.frame_bytes as u64);
        }
        socket.fill.publish();
        socket.bind_patiently(place).map_err(XdpError::kernel(
            "binding an AF_XDP socket to a queue",
            "the queue may not exist (`ethtool -l`), be taken by another socket, or its driver be unable to share memory \
             without a copy",
        ))?;
        Ok(socket)
    }

    fn with_rings(descriptor: OwnedFd, umem: Umem, sizes: Sizes) -> io::Result<Socket> {
        let rings = [
            (libc::XDP_UMEM_FILL_RING, sizes.receive),
            (libc::XDP_UMEM_COMPLETION_RING, sizes.send),
            (libc::XDP_RX_RING, sizes.receive),
            (libc::XDP_TX_RING, sizes.send),
        ];
        for (ring, entries) in rings {
            set(&descriptor, libc::SOL_XDP, ring, &entries)?;
        }
        let offsets: libc::xdp_mmap_offsets = get(&descriptor, libc::XDP_MMAP_OFFSETS)?;
        Ok(Socket {
            fill: Producer::map(
                &descriptor,
                libc::XDP_UMEM_PGOFF_FILL_RING,
                &offsets.fr,
                sizes.receive,
            )?,
            sent: Consumer::map(
                &descriptor,
                libc::XDP_UMEM_PGOFF_COMPLETION_RING,
                &offsets.cr,
                sizes.send,
            )?,
            arrived: Consumer::map(
                &descriptor,
                libc::XDP_PGOFF_RX_RING as u64,
                &offsets.rx,
                sizes.receive,
            )?,
            leaving: Producer::map(
                &descriptor,
                libc::XDP_PGOFF_TX_RING as u64,
                &offsets.tx,
                sizes.send,
            )?,
            umem,
            descriptor,
        })
    }

    /// The kernel lets go of a queue a little after its socket was closed.
    fn bind_patiently(&self, place: Place) -> io::Result<()> {
        let begin = Instant::now();
        loop {
            match self.bind_to(place) {
                Err(error)
                    if error.raw_os_error() == Some(libc::EBUSY) && begin.elapsed() < RELEASE_TIME_MAX =>
                {
                    std::thread::sleep(RELEASE_PAUSE);
                }
                other => return other,
            }
        }
    }

    fn bind_to(&self, place: Place) -> io::Result<()> {
        let copying = match place.copying {
            Copying::WhereNeeded => 0,
            Copying::Always => libc::XDP_COPY,
            Copying::Never => libc::XDP_ZEROCOPY,
        };
        let address = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: libc::XDP_USE_NEED_WAKEUP | copying,
            sxdp_ifindex: place.interface,
            sxdp_queue_id: place.queue,
            sxdp_shared_umem_fd: 0,
        };
        let bytes = size_of_val(&address) as libc::socklen_t;
        // SAFETY: the kernel reads the address that is there.
        check(unsafe { libc::bind(self.descriptor.as_raw_fd(), (&raw const address).cast(), bytes) })
    }

    pub(crate) fn descriptor(&self) -> &OwnedFd {
        &self.descriptor
    }

    /// Whether the device and we use the same memory.
    pub(crate) fn copies_nothing(&self) -> bool {
        get::<libc::xdp_options>(&self.descriptor, libc::XDP_OPTIONS)
            .is_ok_and(|options| options.flags & libc::XDP_OPTIONS_ZEROCOPY != 0)
    }

    pub(crate) fn kernel_statistics(&self) -> io::Result<libc::xdp_statistics> {
        get(&self.descriptor, libc::XDP_STATISTICS)
    }

    /// Calls look at the device's queue themselves for so long, and its interrupts are put off meanwhile.
    pub(crate) fn poll_busily(&self, time: Duration) -> io::Result<()> {
        let micros = c_int::try_from(time.as_micros()).unwrap_or(c_int::MAX);
        set(&self.descriptor, libc::SOL_SOCKET, SO_PREFER_BUSY_POLL, &1)?;
        set(&self.descriptor, libc::SOL_SOCKET, libc::SO_BUSY_POLL, &micros)?;
        set(
            &self.descriptor,
            libc::SOL_SOCKET,
            SO_BUSY_POLL_BUDGET,
            &BUSY_POLL_PACKETS,
        )
    }

    /// Has the kernel look at the ring of packets to be sent.
    #[inline]
    pub(crate) fn kick_sending(&self) -> io::Result<()> {
        // SAFETY: nothing is handed over but the descriptor.
        let outcome = unsafe {
            libc::sendto(
                self.descriptor.as_raw_fd(),
                std::ptr::null(),
                0,
                libc::MSG_DONTWAIT,
                std::ptr::null(),
                0,
            )
        };
        check(if outcome < 0 { -1 } else { 0 })
    }

    /// Has the kernel look at the ring of empty frames, and at its device.
    #[inline]
    pub(crate) fn kick_receiving(&self) -> io::Result<()> {
        // SAFETY: as above.
        let outcome = unsafe {
            libc::recvfrom(
                self.descriptor.as_raw_fd(),
                std::ptr::null_mut(),
                0,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
            )
        };
        check(if outcome < 0 { -1 } else { 0 })
    }
}

fn open() -> io::Result<OwnedFd> {
    // SAFETY: a new descriptor, which is ours.
    unsafe {
        let descriptor = libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0);
        check(descriptor.min(0))?;
        Ok(OwnedFd::from_raw_fd(descriptor))
    }
}

fn register(socket: &OwnedFd, umem: &Umem) -> io::Result<()> {
    let registration = libc::xdp_umem_reg {
        addr: umem.address(),
        len: umem.bytes() as u64,
        chunk_size: umem.frame_bytes() as u32,
        headroom: 0,
        flags: 0,
        tx_metadata_len: 0,
    };
    set(socket, libc::SOL_XDP, libc::XDP_UMEM_REG, &registration)
}

fn set<T>(socket: &OwnedFd, level: c_int, option: c_int, value: &T) -> io::Result<()> {
    let bytes = size_of::<T>() as libc::socklen_t;
    let value: *const T = value;
    // SAFETY: the kernel reads no more than the value.
    check(unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, value.cast(), bytes) })
}

/// `T` must be a plain structure of the kernel's, of which any bytes are a value.
fn get<T>(socket: &OwnedFd, option: c_int) -> io::Result<T> {
    let mut bytes = size_of::<T>() as libc::socklen_t;
    // SAFETY: zeros are a value of it, and the kernel writes no more than it has bytes.
    unsafe {
        let mut value: T = std::mem::zeroed();
        let at = (&raw mut value).cast();
        check(libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_XDP,
            option,
            at,
            &raw mut bytes,
        ))?;
        Ok(value)
    }
}

fn check(outcome: c_int) -> io::Result<()> {
    if outcome == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
