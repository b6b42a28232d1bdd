//! The NIC as its driver sees it (`docs/nic.md`): registers, rings of entries in host memory, lines of connections.
//!
//! ```text
//!   RingDriver::send ──► transmit ring ──► NIC ──► wire
//!   RingDriver::receive ◄── receive ring ◄─┘
//! ```
//!
//! Nothing here knows what carries lines and registers: that is a [`Board`], a simulated one or one on a bus.
#![forbid(unsafe_code)]

mod areas;
mod connection;
mod entry;
#[rustfmt::skip]
pub mod registers;
mod rings;

pub use areas::{MESSAGE_PACKETS_MAX, MessageAreas, MessagePart, StoredMessage};
pub use connection::{Balance, ConnectionLine, ConnectionRole, SLOTS_MAX};
pub use entry::{EntryError, EntryHead, EntryKind, PAYLOAD_FIRST_BYTES, entry_lines, raw_lines};
pub use rings::{FetchMode, FlowShape, Received, RingDriver, RingError};

/// Bytes of a line: what host memory and the NIC move at once. The NIC must be built for as many, which [`line_bytes`] says.
pub const LINE_BYTES: usize = if cfg!(feature = "line-128") { 128 } else { 64 };

/// A line of host memory.
pub type Line = [u8; LINE_BYTES];

/// What a port to a board supplies: memory that host and NIC share, and the NIC's registers.
///
/// Lines are named by line addresses: byte address divided by [`LINE_BYTES`]. Writes of the host become visible to the NIC in the order
/// in which they are made, and the other way round.
pub trait Board {
    /// Reads a line of shared memory.
    fn read_line(&mut self, address: u32) -> Line;
    /// Writes a line of shared memory.
    fn write_line(&mut self, address: u32, line: &Line);
    fn read_register(&mut self, address: u16) -> u32;
    fn write_register(&mut self, address: u16, value: u32);
    /// Hands the NIC a line of a flow directly; `false` if it has no room now.
    #[must_use]
    fn push_line(&mut self, flow: u8, line: &Line) -> bool;
}

/// Bytes of a line of a NIC whose [`registers::PARAMETERS`] read as this.
#[must_use]
pub fn line_bytes(parameters: u32) -> usize {
    64 << (parameters >> 20 & 15)
}

/// What [`registers::IDENTITY`] reads as.
pub const IDENTITY: u32 = 0x5056_4e31;
/// Bit of [`registers::CONTROL`]: take entries and packets.
pub const CONTROL_ENABLE: u32 = 1;
/// Bit of [`registers::CONTROL`]: packets carry a check.
pub const CONTROL_CHECKING: u32 = 2;
/// Command of [`registers::CONNECTION`]: read the connection's line anew.
pub const COMMAND_LOAD: u32 = 1 << 16;
/// Command of [`registers::CONNECTION`]: the connection is over.
pub const COMMAND_CLOSE: u32 = 2 << 16;
