//! SSE 4.2 has the CRC of a piece of 8, 4, 2 or 1 bytes as an instruction.
#![allow(unsafe_code)]

use std::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u16, _mm_crc32_u32, _mm_crc32_u64};

/// The CRC of two pieces, one after the other; `None` on a processor without the instruction.
#[inline]
pub(crate) fn crc32c(first: &[u8], second: &[u8]) -> Option<u32> {
    if !std::arch::is_x86_feature_detected!("sse4.2") {
        return None;
    }
    // SAFETY: the processor has what the function needs.
    Some(unsafe { by_instruction(first, second) })
}

#[target_feature(enable = "sse4.2")]
fn by_instruction(first: &[u8], second: &[u8]) -> u32 {
    !append(append(u32::MAX, first), second)
}

#[inline]
#[target_feature(enable = "sse4.2")]
fn append(crc: u32, bytes: &[u8]) -> u32 {
    let (words, mut rest) = bytes.as_chunks::<8>();
    let crc = words.iter().fold(u64::from(crc), |crc, word| {
        _mm_crc32_u64(crc, u64::from_le_bytes(*word))
    });
    let mut crc = crc as u32;
    if let Some((word, after)) = rest.split_first_chunk() {
        (crc, rest) = (_mm_crc32_u32(crc, u32::from_le_bytes(*word)), after);
    }
    if let Some((word, after)) = rest.split_first_chunk() {
        (crc, rest) = (_mm_crc32_u16(crc, u16::from_le_bytes(*word)), after);
    }
    rest.iter().fold(crc, |crc, byte| _mm_crc32_u8(crc, *byte))
}
