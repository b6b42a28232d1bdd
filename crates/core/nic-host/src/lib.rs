//! What a host does beside a NIC that carries its calls: it opens and closes sessions (`docs/datagram.md`), tells the NIC of them,
//! keeps the last response of each slot, and turns the NIC's rings into calls and events.
//!
//! ```text
//!   NicHost::connect ── Open ──► NIC ──► wire        handshakes are the host's, packet by packet
//!   NicHost::call ──► transmit ring ──► NIC          calls are the NIC's, retransmissions too
//!   NicHost::poll ◄── receive rings ◄── NIC
//! ```
//!
//! It does no I/O: a [`Board`] and a time are given to each call.
#![forbid(unsafe_code)]

mod config;
mod handshake;
mod messages;
mod sessions;

pub use config::{HostConfig, HostError, IDLE_NS_MIN, TIMEOUT_TICKS_MAX, TRIES_LIMIT};
pub use messages::MessageBounds;
pub use sessions::{HostEvent, NicHost, RequestTag};

use provost_nic::Board;

/// Waits until the NIC has done a command about a connection: a few reads of a register.
///
/// # Errors
/// If it takes longer than any command does.
pub(crate) fn await_command(board: &mut impl Board) -> Result<(), HostError> {
    /// A command waits for events before it, and each for a line of host memory at most.
    const READS_MAX: u32 = 10_000;
    for _ in 0..READS_MAX {
        if board.read_register(provost_nic::registers::CONNECTION_BUSY) == 0 {
            return Ok(());
        }
    }
    Err(HostError::NicSilent)
}
