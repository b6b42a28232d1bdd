//! The check of a packet, for wires that have none or a weak one: the Internet checksum (RFC 1071) over the whole packet,
//! with the check itself taken as zero, or a CRC32C (RFC 3385) behind the header, by the processor's own instruction where
//! it has one.

use provost_crc::crc32c;

use crate::packet::{HEADER_BYTES, Malformed};

/// Bytes of a packet's CRC32C, which follows its header.
pub(crate) const CRC_BYTES: usize = 4;
/// The check of a packet that has a CRC: ends that expect none, or another check, drop it as damaged.
pub(crate) const CRC_FOLLOWS: u16 = 0xc32c;

/// Who notices that a packet was damaged on its way; what comes later notices more. Both ends of a wire must be told the
/// same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Checking {
    /// The wire does; the check field of every packet is zero.
    Wire,
    /// Every packet carries a check of 16 bits. It always notices that one word has changed, and never that words have changed
    /// places; of other damage it misses one in 65,535.
    Packets,
    /// Every packet carries a CRC of 32 bits. It always notices up to three changed bits, any odd number of them, and any
    /// damage within 32 bits; of other damage it misses one in 2^32.
    Crc32c,
}

impl Checking {
    /// Bytes that it adds to a packet.
    pub(crate) const fn bytes(self) -> usize {
        match self {
            Checking::Wire | Checking::Packets => 0,
            Checking::Crc32c => CRC_BYTES,
        }
    }
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

/// The CRC of a packet, whose check says that it has one.
#[inline]
pub(crate) fn crc_of(head: &[u8], rest: &[u8]) -> [u8; CRC_BYTES] {
    crc32c(head, rest).to_le_bytes()
}

/// What follows a packet's header and check, if all is as it was sent.
#[inline]
pub(crate) fn verify<'p>(
    head: &[u8; HEADER_BYTES],
    rest: &'p [u8],
    checking: Checking,
) -> Result<&'p [u8], Malformed> {
    if checking != Checking::Wire {
        return verify_check(head, rest, checking);
    }
    if [head[14], head[15]] == [0; 2] {
        Ok(rest)
    } else {
        Err(Malformed::Check)
    }
}

#[inline(never)]
fn verify_check<'p>(
    head: &[u8; HEADER_BYTES],
    rest: &'p [u8],
    checking: Checking,
) -> Result<&'p [u8], Malformed> {
    let check = u16::from_le_bytes([head[14], head[15]]);
    let (intact, rest) = match checking {
        Checking::Wire => (check == 0, rest),
        Checking::Packets => (check != 0 && fold(sum(head) + sum(rest)) == u16::MAX, rest),
        Checking::Crc32c => {
            let (crc, rest) = rest.split_first_chunk().ok_or(Malformed::Short)?;
            (check == CRC_FOLLOWS && *crc == crc_of(head, rest), rest)
        }
    };
    if intact { Ok(rest) } else { Err(Malformed::Check) }
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
        let (zeros, mut checked) = ([0; 16], [0; 16]);
        checked[14..].copy_from_slice(&CRC_FOLLOWS.to_le_bytes());
        assert!(verify(&zeros, &[], Checking::Wire).is_ok());
        assert_eq!(verify(&zeros, &[], Checking::Packets), Err(Malformed::Check));
        assert_eq!(verify(&checked, &[], Checking::Wire), Err(Malformed::Check));
        assert_eq!(verify(&checked, &[0; 3], Checking::Crc32c), Err(Malformed::Short));
        assert_eq!(verify(&checked, &[0; 4], Checking::Crc32c), Err(Malformed::Check));
        let crc = |head| crc_of(head, &[]);
        assert_eq!(
            verify(&zeros, &crc(&zeros), Checking::Crc32c),
            Err(Malformed::Check)
        );
        assert_eq!(verify(&checked, &crc(&checked), Checking::Crc32c), Ok(&[][..]));
    }
}
