//! Generated clients and servers whose calls a NIC carries (`docs/nic.md`): the third place for them beside the node's service and the
//! datagram transport in software. The stubs are the same.
//!
//! ```text
//!   stubs ──► RpcThread ──► NicCarrier ──► rings ──► NIC ──► wire
//!                 (provost-datagram-rpc)        (simulated: its wire is a UDP socket)
//! ```
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use provost_datagram_rpc::RpcThread;
//! use provost_nic_rpc::SimulatedNicDriver;
//!
//! let nic = SimulatedNicDriver::bind("127.0.0.1:0".parse()?)?;
//! let thread = RpcThread::builder().start_over(nic)?; // and `add_service`, and `channel`, as over any wire
//! # drop(thread);
//! # Ok(())
//! # }
//! ```
//!
//! On the wire it is the datagram protocol, so the other end may as well be an `RpcThread` over UDP whose packets carry checks
//! (`Checking::Packets`).
//!
//! Its bounds are the NIC's: a request or a response with what is beside it has seven packets at most (10,129 bytes in packets of
//! Ethernet size; what is larger fails with `RESOURCE_EXHAUSTED`), and a session has eight calls at a time; more wait.
#![forbid(unsafe_code)]

mod carrier;
mod driver;

pub use carrier::NicCarrier;
pub use driver::{NicStartError, SimulatedNicDriver};
