//! Ethernet frames that carry UDP over IPv4, for wires that have no kernel to make them: [`read`] takes one apart, a
//! [`Writer`] puts them together.
//!
//! ```text
//!  0             14                     34         42
//!  ├─ Ethernet ──┼─ IPv4, no options ───┼─ UDP ────┼─ payload … (padding to 60 bytes is not ours)
//! ```
//!
//! Only what a datagram transport sends is read: no VLAN tags, no options of IP, no fragments.
#![forbid(unsafe_code)]

mod checksum;
mod read;
mod write;

pub use read::{Datagram, Malformed, read};
pub use write::{Ends, Writer};

use std::fmt;

/// Bytes of all headers before the payload.
pub const HEADER_BYTES: usize = 42;
/// What IPv4 and UDP take of an interface's MTU, in bytes.
pub const IP_HEADERS_BYTES: usize = 28;

const ETHERNET_BYTES: usize = 14;
const ETHERNET_IPV4: [u8; 2] = [0x08, 0x00];
/// Version 4, and a header of five words.
const VERSION_AND_WORDS: u8 = 0x45;
const PROTOCOL_UDP: u8 = 17;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Mac(pub [u8; 6]);

impl fmt::Display for Mac {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, f] = self.0;
        write!(formatter, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// Whether UDP's checksum is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// Every packet carries one, and one that is wrong or missing is not taken.
    Checked,
    /// Packets carry none (RFC 768), and none is looked at: something above checks.
    Unchecked,
}
