//! Integers with a prefix (RFC 7541, section 5.1).

use super::HpackError;

/// Bytes after the prefix. Five carry 35 bits, which is more than any number here needs; longer ones are attacks.
const CONTINUATION_BYTES_MAX: usize = 5;

/// Appends `value` behind a prefix of `prefix_bits`, whose other bits are those of `first`.
pub(super) fn encode(value: u32, prefix_bits: u32, first: u8, out: &mut Vec<u8>) {
    let prefix_max = (1_u32 << prefix_bits) - 1;
    if value < prefix_max {
        out.push(first | value as u8);
        return;
    }
    out.push(first | prefix_max as u8);
    let mut rest = value - prefix_max;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// The number that begins in the first byte, and how many bytes it has. None: more bytes have to come.
pub(super) fn decode(input: &[u8], prefix_bits: u32) -> Result<Option<(u32, usize)>, HpackError> {
    let prefix_max = (1_u32 << prefix_bits) - 1;
    let Some((first, rest)) = input.split_first() else {
        return Ok(None);
    };
    let prefix = u32::from(*first) & prefix_max;
    if prefix < prefix_max {
        return Ok(Some((prefix, 1)));
    }
    let mut value = u64::from(prefix);
    for (at, byte) in rest.iter().take(CONTINUATION_BYTES_MAX).enumerate() {
        value += u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            let value = u32::try_from(value).map_err(|_| HpackError::Integer)?;
            return Ok(Some((value, at + 2)));
        }
    }
    if rest.len() >= CONTINUATION_BYTES_MAX {
        return Err(HpackError::Integer);
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(value: u32, prefix_bits: u32) -> Vec<u8> {
        let mut out = Vec::new();
        encode(value, prefix_bits, 0, &mut out);
        out
    }

    /// RFC 7541, appendix C.1: the three examples.
    #[test]
    fn rfc7541_c1_examples_of_integers() {
        assert_eq!(encoded(10, 5), [0b01010]);
        assert_eq!(encoded(1337, 5), [0b11111, 0b1001_1010, 0b0000_1010]);
        assert_eq!(encoded(42, 8), [42]);
        assert_eq!(decode(&[0b1110_1010], 5).unwrap(), Some((10, 1)));
        assert_eq!(decode(&[0xff, 0x9a, 0x0a], 5).unwrap(), Some((1337, 3)));
    }

    /// RFC 7541, section 5.1: encodings that exceed limits, in value or in length, are errors.
    #[test]
    fn rfc7541_5_1_integers_that_are_too_large_are_refused() {
        let largest = encoded(u32::MAX, 7);
        assert_eq!(decode(&largest, 7).unwrap(), Some((u32::MAX, largest.len())));
        let over = [0x7f, 0x81, 0xff, 0xff, 0xff, 0x0f];
        assert_eq!(decode(&over, 7), Err(HpackError::Integer));
        assert_eq!(
            decode(&[0x7f, 0x80, 0x80, 0x80, 0x80, 0x80, 0x00], 7),
            Err(HpackError::Integer)
        );
        assert_eq!(decode(&[0x7f, 0x80, 0x80, 0x80, 0x80], 7), Ok(None));
    }

    #[test]
    fn every_prefix_reads_what_it_wrote() {
        for prefix_bits in 4..=7 {
            for value in [
                0,
                1,
                14,
                15,
                16,
                30,
                31,
                62,
                63,
                126,
                127,
                128,
                254,
                255,
                16_383,
                1 << 21,
                u32::MAX,
            ] {
                let bytes = encoded(value, prefix_bits);
                assert_eq!(decode(&bytes, prefix_bits).unwrap(), Some((value, bytes.len())));
                for cut in 0..bytes.len() {
                    assert_eq!(decode(&bytes[..cut], prefix_bits), Ok(None));
                }
            }
        }
    }
}
