//! Metadata blocks: the key-value pairs of a call, in one run of bytes.
//!
//! An entry is `key_bytes: u16`, `value_bytes: u32`, the key, the value; entries follow each other without padding.
//! Keys are lower-case letters, digits, `_`, `-` and `.`; a key that ends in `-bin` has any bytes as its value,
//! another has printable ASCII (0x20 to 0x7e), as gRPC over HTTP/2 has it. Two reserved keys, which a user cannot
//! set, carry the rest of a status in a trailing block: [`STATUS_MESSAGE`] (UTF-8) and [`STATUS_DETAILS`] (bytes).

use crate::limits::{METADATA_BYTES_MAX, METADATA_ENTRIES_MAX};

/// Reserved key of a status's message.
pub const STATUS_MESSAGE: &str = ":message";
/// Reserved key of a status's details.
pub const STATUS_DETAILS: &str = ":details";

const ENTRY_HEADER_BYTES: usize = 6;

/// Why a metadata block was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MetadataError {
    /// An entry's lengths go past the end of the block.
    #[error("metadata entry at byte {at} goes past the end of the block")]
    Truncated {
        /// Where the entry begins.
        at: usize,
    },
    /// A key has a character that metadata keys cannot have, or is empty.
    #[error("metadata key at byte {at}: use lower-case letters, digits, '_', '-' and '.'")]
    Key {
        /// Where the entry begins.
        at: usize,
    },
    /// A value has a byte that it cannot have.
    #[error(
        "metadata value at byte {at}: not printable ASCII; give the key the suffix -bin to send any bytes"
    )]
    Value {
        /// Where the entry begins.
        at: usize,
    },
    /// The block is longer than [`METADATA_BYTES_MAX`].
    #[error("metadata of {bytes} bytes is over the limit of {METADATA_BYTES_MAX}")]
    TooLong { bytes: usize },
    /// More than [`METADATA_ENTRIES_MAX`] entries.
    #[error("metadata has more than {METADATA_ENTRIES_MAX} entries")]
    TooMany,
}

/// Appends an entry to a block. The key and value are checked as [`check`] does.
pub fn append(block: &mut Vec<u8>, key: &str, value: &[u8]) -> Result<(), MetadataError> {
    let at = block.len();
    check_entry(at, key.as_bytes(), value)?;
    if at + ENTRY_HEADER_BYTES + key.len() + value.len() > METADATA_BYTES_MAX as usize {
        return Err(MetadataError::TooLong {
            bytes: at + ENTRY_HEADER_BYTES + key.len() + value.len(),
        });
    }
    block.extend_from_slice(&(key.len() as u16).to_le_bytes());
    block.extend_from_slice(&(value.len() as u32).to_le_bytes());
    block.extend_from_slice(key.as_bytes());
    block.extend_from_slice(value);
    Ok(())
}

/// The length of an entry in a block, if the key and value are such as [`check`] accepts.
pub fn entry_bytes(key: &str, value: &[u8]) -> Result<usize, MetadataError> {
    check_entry(0, key.as_bytes(), value)?;
    Ok(ENTRY_HEADER_BYTES + key.len() + value.len())
}

/// Writes an entry of which [`entry_bytes`] has told the length into a place of just that length.
///
/// # Panics
/// If the place has another length: that is a bug of this program.
pub fn write_entry(place: &mut [u8], key: &str, value: &[u8]) {
    let (header, rest) = place.split_at_mut(ENTRY_HEADER_BYTES);
    header[..2].copy_from_slice(&(key.len() as u16).to_le_bytes());
    header[2..].copy_from_slice(&(value.len() as u32).to_le_bytes());
    let (key_place, value_place) = rest.split_at_mut(key.len());
    key_place.copy_from_slice(key.as_bytes());
    value_place.copy_from_slice(value);
}

/// Where in a block the value of a key's first entry is.
#[must_use]
pub fn find(block: &[u8], key: &str) -> Option<std::ops::Range<usize>> {
    let mut entries = BlockEntries { block, at: 0 };
    while let Some(entry) = entries.try_next().ok().flatten() {
        if entry.key == key.as_bytes() {
            let value = entry.at + ENTRY_HEADER_BYTES + entry.key.len();
            return Some(value..value + entry.value.len());
        }
    }
    None
}

/// Checks a block that somebody else made, without keeping anything.
pub fn check(block: &[u8]) -> Result<(), MetadataError> {
    if block.len() > METADATA_BYTES_MAX as usize {
        return Err(MetadataError::TooLong { bytes: block.len() });
    }
    let mut entries = BlockEntries { block, at: 0 };
    let mut count = 0;
    while let Some(entry) = entries.try_next()? {
        count += 1;
        if count > METADATA_ENTRIES_MAX {
            return Err(MetadataError::TooMany);
        }
        check_entry(entry.at, entry.key, entry.value)?;
    }
    Ok(())
}

/// The entries of a block that [`check`] has accepted. Stops at the first malformed entry of one that it has not.
pub fn entries(block: &[u8]) -> impl Iterator<Item = (&str, &[u8])> {
    let mut entries = BlockEntries { block, at: 0 };
    std::iter::from_fn(move || {
        let entry = entries.try_next().ok().flatten()?;
        Some((std::str::from_utf8(entry.key).ok()?, entry.value))
    })
}

/// The entries of a block that are not reserved: the block itself, if none is.
#[must_use]
pub fn without_reserved(block: Vec<u8>) -> Vec<u8> {
    let is_reserved = |key: &str| key.starts_with(':');
    if !entries(&block).any(|(key, _)| is_reserved(key)) {
        return block;
    }
    let mut rest = Vec::with_capacity(block.len());
    for (key, value) in entries(&block).filter(|(key, _)| !is_reserved(key)) {
        // It is shorter than a block that was checked.
        let _ = append(&mut rest, key, value);
    }
    rest
}

struct BlockEntries<'a> {
    block: &'a [u8],
    at: usize,
}

struct BlockEntry<'a> {
    at: usize,
    key: &'a [u8],
    value: &'a [u8],
}

impl<'a> BlockEntries<'a> {
    fn try_next(&mut self) -> Result<Option<BlockEntry<'a>>, MetadataError> {
        let at = self.at;
        let rest = self.block.get(at..).unwrap_or_default();
        if rest.is_empty() {
            return Ok(None);
        }
        let truncated = MetadataError::Truncated { at };
        let (key_bytes, rest) = rest.split_first_chunk::<2>().ok_or(truncated)?;
        let (value_bytes, rest) = rest.split_first_chunk::<4>().ok_or(truncated)?;
        let key_bytes = usize::from(u16::from_le_bytes(*key_bytes));
        let value_bytes = u32::from_le_bytes(*value_bytes) as usize;
        let (key, rest) = rest.split_at_checked(key_bytes).ok_or(truncated)?;
        let value = rest.get(..value_bytes).ok_or(truncated)?;
        self.at = at + ENTRY_HEADER_BYTES + key_bytes + value_bytes;
        Ok(Some(BlockEntry { at, key, value }))
    }
}

fn check_entry(at: usize, key: &[u8], value: &[u8]) -> Result<(), MetadataError> {
    let reserved = key == STATUS_MESSAGE.as_bytes() || key == STATUS_DETAILS.as_bytes();
    let allowed = |byte: &u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'.');
    if key.is_empty() || key.len() > usize::from(u16::MAX) || !(reserved || key.iter().all(allowed)) {
        return Err(MetadataError::Key { at });
    }
    if !reserved && !key.ends_with(b"-bin") && !is_printable(value) {
        return Err(MetadataError::Value { at });
    }
    Ok(())
}

/// Whether all of it is printable ASCII. Looked at to the end, as most metadata is good: a loop that cannot stop early goes
/// over whole registers.
fn is_printable(value: &[u8]) -> bool {
    let is_good = |byte: &u8| (0x20..=0x7e).contains(byte);
    value.iter().fold(true, |good, byte| good & is_good(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_back_in_order() {
        let mut block = Vec::new();
        append(&mut block, "x-user", b"ann").unwrap();
        append(&mut block, "trace-bin", &[0, 255]).unwrap();
        check(&block).unwrap();
        let got: Vec<_> = entries(&block).collect();
        assert_eq!(got, [("x-user", &b"ann"[..]), ("trace-bin", &[0, 255][..])]);
    }

    #[test]
    fn every_byte_of_a_value_is_looked_at() {
        for length in 0..40 {
            let good = vec![b'~'; length];
            assert_eq!(entry_bytes("a", &good), Ok(ENTRY_HEADER_BYTES + 1 + length));
            for at in 0..length {
                for bad in [0, 0x1f, 0x7f, 0xff] {
                    let mut value = good.clone();
                    value[at] = bad;
                    assert_eq!(entry_bytes("a", &value), Err(MetadataError::Value { at: 0 }));
                }
            }
        }
    }

    #[test]
    fn bad_keys_values_and_lengths_are_refused_with_their_place() {
        let mut block = Vec::new();
        assert_eq!(
            append(&mut block, "X-User", b""),
            Err(MetadataError::Key { at: 0 })
        );
        assert_eq!(
            append(&mut block, "a", b"\n"),
            Err(MetadataError::Value { at: 0 })
        );
        append(&mut block, "a", b"b").unwrap();
        let whole = block.len();
        block.extend_from_slice(&[9, 0, 9, 0, 0, 0]);
        assert_eq!(check(&block), Err(MetadataError::Truncated { at: whole }));
    }
}
