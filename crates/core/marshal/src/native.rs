//! Reading private copies of native messages: little-endian values at places that may be anything.

use std::cmp::Ordering;

use provost_schema::Type;

/// Units of native offsets, in bytes.
pub(crate) const UNIT: u32 = 8;

/// The bytes at a place, if they are there.
pub(crate) fn slice(bytes: &[u8], at: u32, len: u32) -> Option<&[u8]> {
    bytes.get(at as usize..)?.get(..len as usize)
}

pub(crate) fn byte(bytes: &[u8], at: u32) -> Option<u8> {
    bytes.get(at as usize).copied()
}

pub(crate) fn word(bytes: &[u8], at: u32) -> Option<u32> {
    let word = bytes.get(at as usize..)?.first_chunk::<4>()?;
    Some(u32::from_le_bytes(*word))
}

pub(crate) fn long(bytes: &[u8], at: u32) -> Option<u64> {
    let long = bytes.get(at as usize..)?.first_chunk::<8>()?;
    Some(u64::from_le_bytes(*long))
}

/// A reference: an offset in units of 8 bytes, and a length.
pub(crate) fn reference(bytes: &[u8], at: u32) -> Option<(u32, u32)> {
    let long = long(bytes, at)?;
    Some((long as u32, (long >> 32) as u32))
}

/// The place that an offset names in a message that begins at `window_at` (0 for a linear one).
pub(crate) fn place(off8: u32, window_at: u32) -> Option<u32> {
    off8.checked_sub(window_at)?.checked_mul(UNIT)
}

/// The bytes that the reference at `at` names; none if its length is 0.
pub(crate) fn referent(bytes: &[u8], at: u32, window_at: u32) -> Option<&[u8]> {
    let (off8, len) = reference(bytes, at)?;
    if len == 0 {
        return Some(&[]);
    }
    slice(bytes, place(off8, window_at)?, len)
}

/// Compares the keys at two places; strings bytewise, numbers numerically.
pub(crate) fn compare_keys(bytes: &[u8], window_at: u32, ty: Type, a: u32, b: u32) -> Option<Ordering> {
    Some(match ty {
        Type::String => referent(bytes, a, window_at)?.cmp(referent(bytes, b, window_at)?),
        _ => numeric_key(bytes, ty, a)?.cmp(&numeric_key(bytes, ty, b)?),
    })
}

/// A key that is not a string, as a number that orders as it does.
fn numeric_key(bytes: &[u8], ty: Type, at: u32) -> Option<u64> {
    let bits = match ty {
        Type::Bool => u64::from(byte(bytes, at)?),
        Type::Int64 | Type::Sint64 | Type::Sfixed64 | Type::Uint64 | Type::Fixed64 => long(bytes, at)?,
        Type::Int32 | Type::Sint32 | Type::Sfixed32 => word(bytes, at)? as i32 as u64,
        _ => u64::from(word(bytes, at)?),
    };
    Some(ordered_key(ty, bits))
}

/// Maps a key's 64-bit value (sign-extended if signed) to a number that orders as the key does.
pub(crate) fn ordered_key(ty: Type, bits: u64) -> u64 {
    match ty {
        Type::Int32 | Type::Sint32 | Type::Sfixed32 | Type::Int64 | Type::Sint64 | Type::Sfixed64 => {
            bits ^ (1 << 63)
        }
        _ => bits,
    }
}
