//! Taking a frame apart. Nothing in it is believed.

use std::net::{Ipv4Addr, SocketAddrV4};

use crate::checksum::{fold, pseudo, sum};
use crate::{Checksum, ETHERNET_BYTES, ETHERNET_IPV4, HEADER_BYTES, Mac, PROTOCOL_UDP, VERSION_AND_WORDS};

/// ECN's "congestion experienced" (RFC 3168), both bits of it.
const CE: u8 = 0b11;
const UDP_HEADER_BYTES: usize = 8;
const IPV4_BYTES: usize = 20;

/// What a frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram<'f> {
    /// Who put the frame onto the link.
    pub from_mac: Mac,
    /// Who sent the packet.
    pub from: SocketAddrV4,
    /// Whom it is for.
    pub to: SocketAddrV4,
    /// Whether the network marked it as having met congestion.
    pub congested: bool,
    pub payload: &'f [u8],
}

/// Why a frame is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// It ends before its headers do.
    #[error("the frame is shorter than its headers")]
    Short,
    /// It is not UDP over IPv4, or with options, or a fragment.
    #[error("the frame carries something other than a whole UDP packet over plain IPv4")]
    Kind,
    /// The lengths that its headers tell do not fit each other, or the frame.
    #[error("the lengths in the frame's headers do not fit")]
    Length,
    /// A checksum is wrong, or missing.
    #[error("a checksum in the frame is wrong or missing")]
    Checksum,
}

/// Takes a frame apart.
///
/// # Errors
/// The first thing about it that is wrong.
#[inline]
pub fn read(frame: &[u8], checksum: Checksum) -> Result<Datagram<'_>, Malformed> {
    let (header, _) = frame
        .split_first_chunk::<HEADER_BYTES>()
        .ok_or(Malformed::Short)?;
    let fragment = u16::from_be_bytes([header[20], header[21]]) & 0x3fff;
    let is_ours = header[12..14] == ETHERNET_IPV4
        && header[ETHERNET_BYTES] == VERSION_AND_WORDS
        && header[23] == PROTOCOL_UDP
        && fragment == 0;
    if !is_ours {
        return Err(Malformed::Kind);
    }
    let ip_bytes = usize::from(u16::from_be_bytes([header[16], header[17]]));
    let udp_bytes = u16::from_be_bytes([header[38], header[39]]);
    // What follows the packet in the frame is padding.
    let packet = frame[ETHERNET_BYTES..].get(..ip_bytes).ok_or(Malformed::Length)?;
    if usize::from(udp_bytes) < UDP_HEADER_BYTES || ip_bytes != IPV4_BYTES + usize::from(udp_bytes) {
        return Err(Malformed::Length);
    }
    let sums_fit = fold(sum(&packet[..IPV4_BYTES])) == u16::MAX
        && (checksum == Checksum::Unchecked || udp_sum_fits(packet, udp_bytes));
    if !sums_fit {
        return Err(Malformed::Checksum);
    }
    Ok(Datagram {
        from_mac: Mac([header[6], header[7], header[8], header[9], header[10], header[11]]),
        from: end(&header[26..30], &header[34..36]),
        to: end(&header[30..34], &header[36..38]),
        congested: header[15] & CE == CE,
        payload: &packet[IPV4_BYTES + UDP_HEADER_BYTES..],
    })
}

/// Whether UDP's checksum is there and right.
fn udp_sum_fits(packet: &[u8], udp_bytes: u16) -> bool {
    // From the addresses on: they are part of the pseudo header, and directly before UDP's.
    let sum = sum(&packet[12..]) + pseudo(PROTOCOL_UDP, udp_bytes);
    packet[26..28] != [0, 0] && fold(sum) == u16::MAX
}

fn end(address: &[u8], port: &[u8]) -> SocketAddrV4 {
    let address: [u8; 4] = address.try_into().unwrap_or_default();
    let port = u16::from_be_bytes(port.try_into().unwrap_or_default());
    SocketAddrV4::new(Ipv4Addr::from(address), port)
}
