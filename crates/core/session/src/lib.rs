//! The native stream protocol (`docs/protocol.md`), without I/O: bytes and a time go in, bytes and steps come out.
//!
//! A connection begins with a [`handshake`], by which the two ends agree on what they speak.
#![forbid(unsafe_code)]

pub mod handshake;

/// Which end of a connection this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The end that opened the connection, and that calls.
    Client,
    /// The end that serves.
    Server,
}
