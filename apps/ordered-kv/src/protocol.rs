//! Requests and responses of the store, little-endian.
//!
//! | type | request | status, response |
//! |---|---|---|
//! | [`GET`] | key (8) | [`DONE`], value (8); or [`ABSENT`] |
//! | [`PUT`] | key (8), value (8) | [`DONE`]; or [`FULL`] |
//! | [`DELETE`] | key (8) | [`DONE`] or [`ABSENT`] |
//! | [`SCAN`] | first key (8), keys (4) | [`DONE`], sum of the values (8), keys (4) |
//! | [`RANGE`] | first key (8), keys (4) | [`DONE`], for each: key (8), value (8) |
//!
//! What is none of this is answered as [`INVALID`].

use crate::tree::Scanned;

pub const GET: u16 = 1;
pub const PUT: u16 = 2;
/// Takes a key away.
pub const DELETE: u16 = 3;
/// Sums up the values of some keys.
pub const SCAN: u16 = 4;
pub const RANGE: u16 = 5;

pub const DONE: u16 = 0;
/// There is no such key.
pub const ABSENT: u16 = 1;
/// This is no request, or asks for too many keys.
pub const INVALID: u16 = 2;
/// There is no room for another key.
pub const FULL: u16 = 3;

/// Keys of one scan at most.
pub const SCAN_KEYS_MAX: u32 = 1 << 24;
/// Keys of one range at most.
pub const RANGE_KEYS_MAX: u32 = 1 << 16;
/// Bytes of a key with its value.
pub const PAIR_BYTES: usize = 16;

#[must_use]
pub fn key_of(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

/// A key with its value.
#[must_use]
pub fn pair_of(bytes: &[u8]) -> Option<(u64, u64)> {
    let (key, value) = bytes.split_at_checked(8)?;
    Some((key_of(key)?, key_of(value)?))
}

/// A pair's bytes.
#[must_use]
pub fn pair(key: u64, value: u64) -> [u8; PAIR_BYTES] {
    (u128::from(value) << 64 | u128::from(key)).to_le_bytes()
}

/// The first key of a span, and how many keys it is asked for; `None` if those are more than `keys_max`.
#[must_use]
pub fn span_of(bytes: &[u8], keys_max: u32) -> Option<(u64, usize)> {
    let (first, keys) = bytes.split_at_checked(8)?;
    let keys = u32::from_le_bytes(keys.try_into().ok()?);
    (keys <= keys_max).then_some((key_of(first)?, keys as usize))
}

/// A span's bytes; also those of what a scan came to.
#[must_use]
pub fn span(first: u64, keys: u32) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&first.to_le_bytes());
    bytes[8..].copy_from_slice(&keys.to_le_bytes());
    bytes
}

/// What a scan came to.
#[must_use]
pub fn scanned_of(bytes: &[u8]) -> Option<Scanned> {
    let (sum, keys) = span_of(bytes, u32::MAX)?;
    Some(Scanned {
        sum,
        keys: keys as u32,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_longer_or_shorter_is() {
        assert_eq!(pair_of(&pair(3, 4)), Some((3, 4)));
        assert_eq!(key_of(&3u64.to_le_bytes()), Some(3));
        assert_eq!(span_of(&span(9, 5), 5), Some((9, 5)));
        assert_eq!(span_of(&span(9, 6), 5), None);
        for bytes in [0, 7, 9, 11, 13, 15, 17] {
            let bytes = vec![0; bytes];
            assert_eq!(
                (key_of(&bytes), pair_of(&bytes), span_of(&bytes, 5)),
                (None, None, None)
            );
        }
    }
}
