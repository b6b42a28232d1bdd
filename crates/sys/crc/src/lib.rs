//! CRC32C (Castagnoli's polynomial, RFC 3720 appendix B.4) by the processor's own instruction, where it has one.
//!
//! The crate `crc32c` does that too, and is used for long pieces, on other processors, and where there is no such instruction.
//! For pieces as short as most packets it takes twice as many instructions, as it aligns them and looks for runs of three blocks
//! (`docs/benchmarks.md`).
#![deny(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod sse42;

/// Bytes from which on the crate's three blocks at a time are faster than one after the other: each instruction waits for
/// the one before for three cycles.
#[cfg(target_arch = "x86_64")]
const PARALLEL_BYTES_MIN: usize = 1024;

/// The CRC of two pieces, one after the other.
#[must_use]
pub fn crc32c(first: &[u8], second: &[u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if second.len() < PARALLEL_BYTES_MIN
        && let Some(crc) = sse42::crc32c(first, second)
    {
        return crc;
    }
    crc32c::crc32c_append(crc32c::crc32c(first), second)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// By its definition, bit by bit (polynomial 0x1edc6f41, reflected).
    fn by_bits(bytes: &[u8]) -> u32 {
        let step = |crc: u32| (crc >> 1) ^ (0x82f6_3b78 * (crc & 1));
        !bytes.iter().fold(u32::MAX, |crc, byte| {
            (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc))
        })
    }

    #[test]
    fn the_examples_of_iscsi_have_their_crc() {
        // RFC 3720 appendix B.4.
        for (bytes, crc) in [
            ([0; 32], 0x8a91_36aa_u32),
            ([0xff; 32], 0x62a8_ab43),
            (std::array::from_fn(|at| at as u8), 0x46dd_794e),
            (std::array::from_fn(|at| 31 - at as u8), 0x113f_db5c),
        ] {
            assert_eq!(crc32c(&bytes[..16], &bytes[16..]), crc);
            assert_eq!(crc32c(&[], &bytes), crc);
        }
    }

    proptest! {
        #[test]
        fn every_piece_has_the_crc_of_the_definition_wherever_it_lies_and_is_cut(
            bytes in prop::collection::vec(any::<u8>(), 0..5000),
            cut in any::<prop::sample::Index>(),
            skip in 0_usize..8,
        ) {
            let piece = bytes.get(skip..).unwrap_or_default();
            let (first, second) = piece.split_at(cut.index(piece.len() + 1));
            prop_assert_eq!(crc32c(first, second), by_bits(piece));
            prop_assert_eq!(crc32c::crc32c(piece), by_bits(piece), "the crate's");
        }
    }
}
