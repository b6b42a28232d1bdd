//! The check of a packet, for wires that have none: the Internet checksum (RFC 1071) over the whole packet, with the
//! check itself taken as zero.

use crate::packet::Malformed;

/// Who notices that a packet was damaged on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checking {
    /// The wire does; the check field of every packet is zero.
    Wire,
    /// Nobody else: every packet carries a check.
    Packets,
}

/// The check of a packet whose check field is still zero. It is never zero itself.
pub(crate) fn check_of(head: &[u8], payload: &[u8]) -> u16 {
    debug_assert!(
        head.len().is_multiple_of(4),
        "words must not straddle head and payload"
    );
    match !fold(sum(head) + sum(payload)) {
        0 => u16::MAX,
        check => check,
    }
}

/// Whether a packet is as it was sent.
#[inline]
pub(crate) fn verify(packet: &[u8], check: [u8; 2], checking: Checking) -> Result<(), Malformed> {
    let intact = match checking {
        Checking::Wire => check == [0; 2],
        Checking::Packets => check != [0; 2] && fold(sum(packet)) == u16::MAX,
    };
    if intact { Ok(()) } else { Err(Malformed::Check) }
}

/// The sum of all words; wide enough that 4 GiB of them do not overflow it.
fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<4>();
    let whole: u64 = words
        .iter()
        .map(|word| u64::from(u32::from_le_bytes(*word)))
        .sum();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    whole + u64::from(u32::from_le_bytes(last))
}

fn fold(sum: u64) -> u16 {
    let mut sum = sum;
    while sum > u64::from(u16::MAX) {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_rfc_sums_to_its_value() {
        // RFC 1071 section 3, in the byte order of these words.
        assert_eq!(
            fold(sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7])),
            0xf2dd
        );
    }

    #[test]
    fn a_packet_without_a_check_is_refused_where_one_is_due_and_the_other_way_round() {
        let zeros = [0; 16];
        assert!(verify(&zeros, [0; 2], Checking::Wire).is_ok());
        assert_eq!(verify(&zeros, [0; 2], Checking::Packets), Err(Malformed::Check));
        assert_eq!(verify(&zeros, [1, 0], Checking::Wire), Err(Malformed::Check));
    }
}
