//! A wire over AF_XDP sockets: packets go between a queue of a network interface and this process past the kernel's
//! network stack, and, where the driver can, without a copy. `docs/datagram-wires.md` says how to set a host up.
//!
//! ```no_run
//! use provost_xdp::{Mode, XdpInterface, XdpOptions, XdpWire};
//!
//! let interface = XdpInterface::attach("eth1", Mode::Fastest)?;
//! let wire = XdpWire::open(&interface, &XdpOptions::new("10.0.0.1:4000".parse().unwrap()))?;
//! # Ok::<(), provost_xdp::XdpError>(())
//! ```
//!
//! A packet that comes is lent from where the kernel or the device has put it. One that is sent is put together in the
//! memory that the kernel or the device takes it from. Packets carry UDP over IPv4, so they pass switches and routers, and
//! can be exchanged with UDP sockets.

mod bpf;
mod error;
mod interface;
mod netlink;
mod options;
mod peers;
mod program;
mod ring;
mod socket;
mod umem;
mod wire;

pub use error::XdpError;
pub use interface::XdpInterface;
pub use options::{Copying, Mode, XdpOptions, XdpStatistics};
pub use provost_frames::{Checksum, Mac};
pub use wire::{KernelStatistics, XdpWire};
