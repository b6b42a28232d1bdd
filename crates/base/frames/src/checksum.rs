//! The Internet checksum (RFC 1071), in the byte order of the network.

/// The sum of all 16-bit words, not folded; wide enough that 4 GiB of them do not overflow it.
#[inline]
pub(crate) fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<4>();
    // Sums of words of either order are equal up to the order of their bytes (section 2 (B) of the RFC), so words are added
    // as the processor has them, and the result is turned at the end.
    let whole: u64 = words
        .iter()
        .map(|word| u64::from(u32::from_ne_bytes(*word)))
        .sum();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    whole + u64::from(u32::from_ne_bytes(last))
}

/// The folded sum, in the order of bytes of the packet.
#[inline]
pub(crate) fn fold(mut sum: u64) -> u16 {
    while sum > u64::from(u16::MAX) {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

/// The sum of UDP's pseudo header, without its addresses.
#[inline]
pub(crate) fn pseudo(protocol: u8, udp_bytes: u16) -> u64 {
    u64::from(u16::from_ne_bytes([0, protocol])) + u64::from(u16::from_ne_bytes(udp_bytes.to_be_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_rfc_sums_to_its_value() {
        // Section 3.
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(fold(sum(&bytes)).to_ne_bytes(), [0xdd, 0xf2]);
        assert_eq!(fold(sum(&bytes[..7])).to_ne_bytes(), [0xdc, 0xfb]);
    }
}
