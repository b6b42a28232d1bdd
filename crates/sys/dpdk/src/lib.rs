//! A wire over DPDK's drivers: packets go between a device and this process without the kernel. Only with the feature
//! `dpdk`, which needs libdpdk 22.11 or later; without it the crate is empty. `docs/datagram-wires.md` says how to set a
//! host up.
//!
//! ```text
//! let eal = Eal::start(&["--no-pci", "--vdev=net_memif0,role=client"])?;
//! let wire = DpdkWire::open(eal, &DpdkOptions::new("net_memif0", "10.0.0.1:4000".parse()?))?;
//! ```
//!
//! A packet that comes is lent from the buffer that the driver has put it in. One that is sent is put together in a buffer
//! that the driver takes.

#[cfg(feature = "dpdk")]
mod eal;
#[cfg(feature = "dpdk")]
mod shim;
#[cfg(feature = "dpdk")]
mod wire;

#[cfg(feature = "dpdk")]
pub use eal::{DpdkError, Eal};
#[cfg(feature = "dpdk")]
pub use provost_frames::{Checksum, Mac};
#[cfg(feature = "dpdk")]
pub use wire::{DpdkOptions, DpdkStatistics, DpdkWire};
