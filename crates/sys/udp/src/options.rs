//! What a socket is asked for, what it grants, and what is counted.

use std::ffi::c_int;
use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::time::Duration;

use rustix::net::sockopt;

use crate::PACKET_BYTES_ETHERNET;

/// ECT(0) of RFC 3168: the sender understands marks.
const ECT_0: c_int = 0b10;

/// Whether something is used that a kernel may or may not offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Where the kernel offers it.
    IfOffered,
    Never,
}

/// Whether packets say that their sender understands the network's marks of congestion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ecn {
    /// ECT(0): a switch marks a packet instead of dropping it.
    Capable,
    /// No: a switch that is congested drops them.
    Off,
}

/// What a socket is asked for.
#[derive(Clone, Debug)]
pub struct UdpOptions {
    /// Bytes of the largest packet, without the headers of IP and UDP; [`crate::PACKET_BYTES_MAX`] at most.
    pub packet_bytes_max: usize,
    /// What the kernel is asked to hold for us, in bytes. It grants up to `net.core.rmem_max`, or, with CAP_NET_ADMIN,
    /// all of it; what it granted decides how many sessions there can be.
    pub receive_buffer_bytes: usize,
    /// One message for many packets to one destination (UDP_SEGMENT, Linux 4.18).
    pub segmentation: Use,
    /// One message for many packets from one source (UDP_GRO, Linux 5.0).
    pub coalescing: Use,
    pub ecn: Ecn,
    /// For how long a call that finds nothing looks at the device's queue itself (SO_BUSY_POLL), if at all. More than
    /// `net.core.busy_read` needs CAP_NET_ADMIN.
    pub busy_poll: Option<Duration>,
}

impl Default for UdpOptions {
    fn default() -> Self {
        Self {
            packet_bytes_max: PACKET_BYTES_ETHERNET,
            receive_buffer_bytes: 8 << 20,
            segmentation: Use::IfOffered,
            coalescing: Use::IfOffered,
            ecn: Ecn::Capable,
            busy_poll: None,
        }
    }
}

/// What a wire has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UdpStatistics {
    /// Packets that the socket took.
    pub packets_sent: u64,
    pub packets_received: u64,
    /// System calls that send.
    pub send_calls: u64,
    /// System calls that receive, those that found nothing among them.
    pub receive_calls: u64,
    /// Packets that the socket refused, that no packet can carry, or that there was no room for.
    pub not_sent: u64,
    /// Packets longer than this wire takes.
    pub too_long: u64,
    /// Messages whose source or length the kernel did not tell.
    pub malformed: u64,
    /// Messages of many packets that the kernel did not take as one. After the first, none is tried again.
    pub segmentation_refused: u64,
    /// How often the peer's host has said that nobody listens there. Only connected sockets are told.
    pub refused: u64,
}

/// What the kernel offers to sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpOffer {
    /// One message for many packets to one destination (UDP_SEGMENT, Linux 4.18).
    pub segmentation: bool,
    /// One message for many packets from one source (UDP_GRO, Linux 5.0).
    pub coalescing: bool,
}

impl UdpOffer {
    /// What it offers to this socket, which stays as it is.
    #[must_use]
    pub fn of(socket: &UdpSocket) -> UdpOffer {
        let knows = |option| get(socket, libc::SOL_UDP, option).is_ok();
        UdpOffer {
            segmentation: knows(libc::UDP_SEGMENT),
            coalescing: knows(libc::UDP_GRO),
        }
    }
}

/// Has the kernel put packets together for a socket, or not.
pub(crate) fn set_coalescing(socket: &UdpSocket, value: c_int) -> io::Result<()> {
    set(socket, libc::SOL_UDP, libc::UDP_GRO, value)
}

/// What the kernel granted.
pub(crate) struct Granted {
    pub(crate) receive_buffer_bytes: usize,
    pub(crate) segmentation: Use,
    pub(crate) coalescing: Use,
}

/// Sets everything up, as far as the kernel grants it.
pub(crate) fn apply(socket: &UdpSocket, options: &UdpOptions) -> io::Result<Granted> {
    let asked = c_int::try_from(options.receive_buffer_bytes).unwrap_or(c_int::MAX);
    if set(socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, asked).is_err() {
        set(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, asked)?;
    }
    if let Some(busy_poll) = options.busy_poll {
        set_busy_poll(socket, busy_poll)?;
    }
    set_ecn(socket, options.ecn)?;
    let segmentation = offered(options.segmentation, || {
        set(socket, libc::SOL_UDP, libc::UDP_SEGMENT, 0)
    });
    let coalescing = offered(options.coalescing, || {
        set(socket, libc::SOL_UDP, libc::UDP_GRO, 1)
    });
    Ok(Granted {
        receive_buffer_bytes: sockopt::socket_recv_buffer_size(socket)?,
        segmentation,
        coalescing,
    })
}

fn offered(wanted: Use, ask: impl FnOnce() -> io::Result<()>) -> Use {
    if wanted == Use::IfOffered && ask().is_ok() {
        Use::IfOffered
    } else {
        Use::Never
    }
}

fn set_busy_poll(socket: &UdpSocket, busy_poll: Duration) -> io::Result<()> {
    let micros = c_int::try_from(busy_poll.as_micros()).unwrap_or(c_int::MAX);
    set(socket, libc::SOL_SOCKET, libc::SO_BUSY_POLL, micros).map_err(|error| {
        let advice = "give the process CAP_NET_ADMIN, or raise the sysctl net.core.busy_read";
        io::Error::new(
            error.kind(),
            format!("busy polling for {micros} µs was refused ({error}): {advice}"),
        )
    })
}

/// A socket of IPv6 may carry IPv4 too, so it gets the options of both; its own must work.
pub(crate) fn set_ecn(socket: &UdpSocket, ecn: Ecn) -> io::Result<()> {
    let class = if ecn == Ecn::Capable { ECT_0 } else { 0 };
    let v4 = set(socket, libc::IPPROTO_IP, libc::IP_TOS, class)
        .and_then(|()| set(socket, libc::IPPROTO_IP, libc::IP_RECVTOS, 1));
    if socket.local_addr()?.is_ipv4() {
        return v4;
    }
    set(socket, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, class)?;
    set(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1)
}

fn set(socket: &UdpSocket, level: c_int, option: c_int, value: c_int) -> io::Result<()> {
    // SAFETY: the kernel reads one `int` from where `value` is.
    let outcome = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of::<c_int>() as libc::socklen_t,
        )
    };
    if outcome == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn get(socket: &UdpSocket, level: c_int, option: c_int) -> io::Result<c_int> {
    let (mut value, mut bytes) = (0, size_of::<c_int>() as libc::socklen_t);
    // SAFETY: the kernel writes one `int` at most to where `value` is, and its length to where `bytes` is.
    let outcome = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw mut value).cast(),
            &raw mut bytes,
        )
    };
    if outcome == 0 {
        Ok(value)
    } else {
        Err(io::Error::last_os_error())
    }
}
