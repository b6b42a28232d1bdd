//! The Huffman code of string literals (RFC 7541, section 5.2 and appendix B).
//!
//! The code is canonical: codes of one length are consecutive, in the order of their symbols. So the lengths determine it, and
//! all tables here are computed from them when this is compiled.

/// The symbol that ends a string, and never stands in one.
const EOS: usize = 256;
const SYMBOLS: usize = EOS + 1;
/// The longest code, in bits.
const CODE_BITS_MAX: usize = 30;
/// Codes up to so many bits are found by one look into a table.
const QUICK_BITS: usize = 10;

/// The length of each symbol's code in bits, by RFC 7541, appendix B.
#[rustfmt::skip]
const CODE_BITS: [u8; SYMBOLS] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28,
    28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5,
    6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23,
    21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25,
    19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
    30,
];

/// Why a Huffman-coded string is no string. All are decoding errors by RFC 7541, section 5.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HuffmanError {
    /// The symbol EOS stands in it.
    #[error("a Huffman-coded string contains EOS")]
    Eos,
    /// Its padding is longer than 7 bits, or not the first bits of EOS.
    #[error("a Huffman-coded string has wrong padding")]
    Padding,
}

struct CanonicalCode {
    codes: [u32; SYMBOLS],
    /// Symbols in the order of their codes.
    symbols: [u16; SYMBOLS],
    /// By length: the first code, how many there are, and the place of the first in `symbols`.
    first: [u32; CODE_BITS_MAX + 1],
    count: [u32; CODE_BITS_MAX + 1],
    place: [u32; CODE_BITS_MAX + 1],
    /// By the next bits: symbol × 16 + length of its code; 0 if that is longer.
    quick: [u16; 1 << QUICK_BITS],
}

static CODE: CanonicalCode = canonical_code();

const fn canonical_code() -> CanonicalCode {
    let mut made = CanonicalCode {
        codes: [0; SYMBOLS],
        symbols: [0; SYMBOLS],
        first: [0; CODE_BITS_MAX + 1],
        count: [0; CODE_BITS_MAX + 1],
        place: [0; CODE_BITS_MAX + 1],
        quick: [0; 1 << QUICK_BITS],
    };
    let (mut code, mut placed, mut bits) = (0_u32, 0, 1);
    while bits <= CODE_BITS_MAX {
        code <<= 1;
        made.first[bits] = code;
        made.place[bits] = placed as u32;
        let mut symbol = 0;
        while symbol < SYMBOLS {
            if CODE_BITS[symbol] as usize == bits {
                made.codes[symbol] = code;
                made.symbols[placed] = symbol as u16;
                if bits <= QUICK_BITS {
                    let low = (code as usize) << (QUICK_BITS - bits);
                    let mut at = low;
                    while at < low + (1 << (QUICK_BITS - bits)) {
                        made.quick[at] = (symbol as u16) << 4 | bits as u16;
                        at += 1;
                    }
                }
                placed += 1;
                code += 1;
                made.count[bits] += 1;
            }
            symbol += 1;
        }
        bits += 1;
    }
    assert!(
        placed == SYMBOLS && code == 1 << CODE_BITS_MAX,
        "the lengths make a whole code"
    );
    made
}

/// How many bytes `text` has when it is coded.
#[must_use]
pub fn huffman_bytes(text: &[u8]) -> usize {
    let bits: usize = text
        .iter()
        .map(|byte| usize::from(CODE_BITS[usize::from(*byte)]))
        .sum();
    bits.div_ceil(8)
}

/// Appends `text`, coded, and padded with the first bits of EOS.
pub fn huffman_encode(text: &[u8], out: &mut Vec<u8>) {
    let (mut held, mut held_bits) = (0_u64, 0_u32);
    for byte in text {
        let symbol = usize::from(*byte);
        let bits = u32::from(CODE_BITS[symbol]);
        held = held << bits | u64::from(CODE.codes[symbol]);
        held_bits += bits;
        while held_bits >= 8 {
            held_bits -= 8;
            out.push((held >> held_bits) as u8);
        }
    }
    if held_bits > 0 {
        let padding = 8 - held_bits;
        out.push((held << padding) as u8 | ((1_u16 << padding) - 1) as u8);
    }
}

/// Appends what `coded` stands for.
///
/// # Errors
/// It contains EOS, or its padding is wrong.
pub fn huffman_decode(coded: &[u8], out: &mut Vec<u8>) -> Result<(), HuffmanError> {
    // The next bits stand at the top of `held`; zeros follow them.
    let (mut held, mut held_bits, mut coded) = (0_u64, 0_usize, coded.iter());
    loop {
        while held_bits <= 56 {
            let Some(byte) = coded.next() else { break };
            held |= u64::from(*byte) << (56 - held_bits);
            held_bits += 8;
        }
        let Some((symbol, bits)) = next_symbol(held).filter(|(_, bits)| *bits <= held_bits) else {
            return check_padding(held, held_bits);
        };
        if symbol == EOS {
            return Err(HuffmanError::Eos);
        }
        // A short run of ones at the end is padding: no code of 7 bits or fewer is all ones.
        out.push(symbol as u8);
        held <<= bits;
        held_bits -= bits;
    }
}

/// The symbol whose code stands at the top, and its length.
fn next_symbol(held: u64) -> Option<(usize, usize)> {
    let quick = usize::from(CODE.quick[(held >> (64 - QUICK_BITS)) as usize]);
    if quick != 0 {
        return Some((quick >> 4, quick & 15));
    }
    (QUICK_BITS + 1..=CODE_BITS_MAX).find_map(|bits| {
        let code = (held >> (64 - bits)) as u32;
        let offset = code.checked_sub(CODE.first[bits])?;
        let is_code = offset < CODE.count[bits];
        is_code.then(|| {
            (
                usize::from(CODE.symbols[(CODE.place[bits] + offset) as usize]),
                bits,
            )
        })
    })
}

/// What is left when no whole code is: up to 7 bits, all of them ones.
fn check_padding(held: u64, held_bits: usize) -> Result<(), HuffmanError> {
    let ones = held.leading_ones() as usize;
    if held_bits < 8 && ones >= held_bits {
        return Ok(());
    }
    // Ones to the end, as many as EOS has: that was meant.
    if ones >= CODE_BITS_MAX {
        return Err(HuffmanError::Eos);
    }
    Err(HuffmanError::Padding)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn coded(text: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        huffman_encode(text, &mut out);
        assert_eq!(out.len(), huffman_bytes(text));
        out
    }

    fn decoded(bytes: &[u8]) -> Result<Vec<u8>, HuffmanError> {
        let mut out = Vec::new();
        huffman_decode(bytes, &mut out).map(|()| out)
    }

    /// RFC 7541, appendix B: each symbol's code, by a few that its table prints, and all of them both ways.
    #[test]
    fn rfc7541_b_every_symbol_is_read_as_it_was_written() {
        for (symbol, code) in [
            (b'0', 0x0),
            (b'a', 0x3),
            (b'z', 0x7b),
            (0, 0x1ff8),
            (10, 0x3fff_fffc),
            (255, 0x3ff_ffee),
        ] {
            assert_eq!(CODE.codes[usize::from(symbol)], code, "{symbol}");
        }
        assert_eq!(CODE.codes[EOS], 0x3fff_ffff);
        for first in 0..=255 {
            for second in [0, b' ', b'a', b'~', 255] {
                let text = [first, second, first];
                assert_eq!(decoded(&coded(&text)).unwrap(), text);
            }
        }
    }

    /// RFC 7541, appendix C.4.1.
    #[test]
    fn rfc7541_c4_example() {
        let bytes = [
            0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff,
        ];
        assert_eq!(coded(b"www.example.com"), bytes);
        assert_eq!(decoded(&bytes).unwrap(), b"www.example.com");
    }

    /// RFC 7541, section 5.2: padding longer than 7 bits is a decoding error.
    #[test]
    fn rfc7541_5_2_padding_of_a_byte_is_refused() {
        let mut bytes = coded(b"0123");
        bytes.push(0xff);
        assert_eq!(decoded(&bytes), Err(HuffmanError::Padding));
        assert_eq!(decoded(&[0xff]), Err(HuffmanError::Padding));
    }

    /// RFC 7541, section 5.2: padding that is not the first bits of EOS is a decoding error.
    #[test]
    fn rfc7541_5_2_padding_of_zeros_is_refused() {
        // '0' is 00000; three bits of padding.
        assert_eq!(decoded(&[0b0000_0111]).unwrap(), b"0");
        assert_eq!(decoded(&[0b0000_0110]), Err(HuffmanError::Padding));
    }

    /// RFC 7541, section 5.2: a string that contains EOS is a decoding error.
    #[test]
    fn rfc7541_5_2_eos_is_refused() {
        assert_eq!(decoded(&[0xff, 0xff, 0xff, 0xff]), Err(HuffmanError::Eos));
        assert_eq!(decoded(&[0xff, 0xff, 0xff, 0xfc]), Err(HuffmanError::Eos));
    }
}
