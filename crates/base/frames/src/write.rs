//! Putting frames together: everything that is the same in all frames to one destination is made once.

use std::net::SocketAddrV4;

use crate::checksum::{fold, pseudo, sum};
use crate::{
    Checksum, ETHERNET_BYTES, ETHERNET_IPV4, HEADER_BYTES, IP_HEADERS_BYTES, Mac, PROTOCOL_UDP,
    VERSION_AND_WORDS,
};

/// ECT(0) of RFC 3168: the sender understands marks of congestion.
const ECT_0: u8 = 0b10;
/// Packets are never cut on their way.
const DO_NOT_FRAGMENT: [u8; 2] = [0x40, 0];
const HOPS: u8 = 64;
const UDP_HEADER_BYTES: usize = 8;

/// Both ends of a link, and both ends of what goes over it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// This end's Ethernet address.
    pub from_mac: Mac,
    pub from: SocketAddrV4,
    /// The Ethernet address of the next hop.
    pub to_mac: Mac,
    pub to: SocketAddrV4,
}

/// Writes the frames to one destination.
#[derive(Clone, Debug)]
pub struct Writer {
    header: [u8; HEADER_BYTES],
    /// Sums of what does not change: of IPv4's header, and of what UDP's checksum covers.
    ip_sum: u64,
    udp_sum: u64,
    checksum: Checksum,
}

impl Writer {
    /// For frames between these.
    #[must_use]
    pub fn new(ends: Ends, checksum: Checksum) -> Writer {
        let mut header = [0; HEADER_BYTES];
        header[..6].copy_from_slice(&ends.to_mac.0);
        header[6..12].copy_from_slice(&ends.from_mac.0);
        header[12..14].copy_from_slice(&ETHERNET_IPV4);
        header[14] = VERSION_AND_WORDS;
        header[15] = ECT_0;
        header[20..22].copy_from_slice(&DO_NOT_FRAGMENT);
        header[22] = HOPS;
        header[23] = PROTOCOL_UDP;
        header[26..30].copy_from_slice(&ends.from.ip().octets());
        header[30..34].copy_from_slice(&ends.to.ip().octets());
        header[34..36].copy_from_slice(&ends.from.port().to_be_bytes());
        header[36..38].copy_from_slice(&ends.to.port().to_be_bytes());
        Writer {
            ip_sum: sum(&header[ETHERNET_BYTES..34]),
            // Addresses and ports; lengths and content come with each packet.
            udp_sum: sum(&header[26..38]),
            header,
            checksum,
        }
    }

    /// Writes a frame that carries both pieces, one after the other, and returns its length; `None` if `frame` has no
    /// room for it, or IPv4 none for so many bytes.
    #[inline]
    pub fn write(&self, frame: &mut [u8], head: &[u8], payload: &[u8]) -> Option<usize> {
        let bytes = head.len() + payload.len();
        let ip_bytes = u16::try_from(IP_HEADERS_BYTES + bytes).ok()?;
        let udp_bytes = (UDP_HEADER_BYTES + bytes) as u16;
        let frame = frame.get_mut(..HEADER_BYTES + bytes)?;
        let (header, content) = frame.split_first_chunk_mut::<HEADER_BYTES>()?;
        let (first, rest) = content.split_at_mut(head.len());
        first.copy_from_slice(head);
        rest.copy_from_slice(payload);
        *header = self.header;
        header[16..18].copy_from_slice(&ip_bytes.to_be_bytes());
        header[38..40].copy_from_slice(&udp_bytes.to_be_bytes());
        let ip_sum = self.ip_sum + u64::from(u16::from_ne_bytes(ip_bytes.to_be_bytes()));
        header[24..26].copy_from_slice(&(!fold(ip_sum)).to_ne_bytes());
        if self.checksum == Checksum::Checked {
            header[40..42].copy_from_slice(&self.udp_checksum(udp_bytes, content));
        }
        Some(HEADER_BYTES + bytes)
    }

    fn udp_checksum(&self, udp_bytes: u16, content: &[u8]) -> [u8; 2] {
        // The length is in the pseudo header and in UDP's own.
        let length = u64::from(u16::from_ne_bytes(udp_bytes.to_be_bytes()));
        let sum = self.udp_sum + pseudo(PROTOCOL_UDP, udp_bytes) + length + sum(content);
        // A result of zero is sent as its other form: zero says that there is none.
        match !fold(sum) {
            0 => [0xff; 2],
            checksum => checksum.to_ne_bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;
    use crate::{Malformed, read};

    fn ends() -> Ends {
        Ends {
            from_mac: Mac([2, 0, 0, 0, 0, 1]),
            from: SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), 4000),
            to_mac: Mac([2, 0, 0, 0, 0, 2]),
            to: SocketAddrV4::new(Ipv4Addr::new(192, 168, 255, 254), 5001),
        }
    }

    fn frame(checksum: Checksum, head: &[u8], payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0xee; HEADER_BYTES + head.len() + payload.len()];
        let bytes = Writer::new(ends(), checksum).write(&mut frame, head, payload);
        assert_eq!(bytes, Some(frame.len()));
        frame
    }

    #[test]
    fn a_frame_is_as_another_implementation_makes_it() {
        // Made by scapy 2.8: Ether(dst="02:00:00:00:00:02", src="02:00:00:00:00:01")/IP(src="10.0.0.1",
        // dst="192.168.255.254", tos=2, id=0, flags="DF")/UDP(sport=4000, dport=5001)/b"hello".
        let expected = "02000000000202000000000108004502002100004000401170220a000001c0a8fffe0fa01389000d\
                        ce3068656c6c6f";
        let hex: String = frame(Checksum::Checked, b"hel", b"lo")
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert_eq!(hex, expected);
    }

    #[test]
    fn what_does_not_fit_is_not_written() {
        let writer = Writer::new(ends(), Checksum::Checked);
        assert_eq!(writer.write(&mut [0; HEADER_BYTES], b"x", b""), None);
        assert_eq!(writer.write(&mut [0; HEADER_BYTES], b"", b""), Some(HEADER_BYTES));
        assert_eq!(writer.write(&mut vec![0; 70_000], &[0; 65_508], b""), None);
    }

    #[test]
    fn a_missing_checksum_is_taken_only_by_who_does_not_ask_for_it() {
        let bare = frame(Checksum::Unchecked, b"abc", b"");
        assert_eq!(read(&bare, Checksum::Checked), Err(Malformed::Checksum));
        assert!(read(&bare, Checksum::Unchecked).is_ok());
    }

    #[test]
    fn other_kinds_of_frames_are_told_apart() {
        let good = frame(Checksum::Checked, b"abc", b"");
        let changed = |at: usize, value: u8| {
            let mut frame = good.clone();
            frame[at] = value;
            read(&frame, Checksum::Checked).map(|_| ())
        };
        assert_eq!(changed(13, 0x06), Err(Malformed::Kind), "ARP");
        assert_eq!(changed(14, 0x46), Err(Malformed::Kind), "options");
        assert_eq!(changed(20, 0x20), Err(Malformed::Kind), "a fragment");
        assert_eq!(changed(23, 6), Err(Malformed::Kind), "TCP");
        assert_eq!(changed(17, 0xff), Err(Malformed::Length));
        assert_eq!(changed(39, 7), Err(Malformed::Length));
        assert_eq!(changed(22, 63), Err(Malformed::Checksum));
        assert_eq!(changed(44, b'x'), Err(Malformed::Checksum));
        assert_eq!(read(&good[..41], Checksum::Checked), Err(Malformed::Short));
    }

    proptest! {
        #[test]
        fn what_was_written_is_read(
            head in proptest::collection::vec(any::<u8>(), 0..40),
            payload in proptest::collection::vec(any::<u8>(), 0..1500),
            padding in 0..20_usize,
            checked in any::<bool>(),
        ) {
            let checksum = if checked { Checksum::Checked } else { Checksum::Unchecked };
            let mut frame = frame(checksum, &head, &payload);
            frame.resize(frame.len() + padding, 0xaa);
            let datagram = read(&frame, checksum).unwrap();
            prop_assert_eq!(datagram.payload, [head, payload].concat());
            prop_assert_eq!((datagram.from, datagram.to), (ends().from, ends().to));
            prop_assert_eq!(datagram.from_mac, ends().from_mac);
            prop_assert!(!datagram.congested);
        }

        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(&bytes, Checksum::Checked);
        }

        #[test]
        fn every_changed_bit_of_what_is_checked_is_noticed(
            payload in proptest::collection::vec(any::<u8>(), 1..100),
            at in any::<proptest::sample::Index>(),
            bit in 0..8,
        ) {
            let mut frame = frame(Checksum::Checked, b"", &payload);
            let at = ETHERNET_BYTES + at.index(frame.len() - ETHERNET_BYTES);
            frame[at] ^= 1_u8 << bit;
            prop_assert!(read(&frame, Checksum::Checked).is_err());
        }
    }
}
