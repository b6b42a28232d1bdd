//! The native stream protocol (`docs/protocol.md`), without I/O: bytes and a time go in, bytes and steps come out.
//!
//! A connection begins with a [`handshake`], by which the two ends agree on what they speak. Then a [`Connection`]
//! carries the steps of many calls at once over one ordered stream of bytes:
//!
//! ```text
//!  app's side                                                     peer's side
//!    send(step) ──► queues of each call ──► fill() ─► pieces() ──► writev ─► advance(n)
//!    poll_step() ◄── inbox ◄── parser ◄── input(bytes) / direct() ◄── readv
//! ```
#![forbid(unsafe_code)]

mod calls;
mod carriage;
mod connection;
mod error;
pub mod handshake;
mod legal;
mod receive;
mod send;

pub use carriage::Stage;
pub use connection::{Config, Connection, PeerSilent};
pub use error::ProtocolError;
pub use send::{Piece, SocketBacklog};

/// Which end of a connection this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The end that opened the connection, and that calls.
    Client,
    /// The end that serves.
    Server,
}

impl Role {
    #[must_use]
    pub const fn peer(self) -> Role {
        match self {
            Role::Client => Role::Server,
            Role::Server => Role::Client,
        }
    }
}
