//! Reading memory that an app can write at any time. The only unsafe code of this crate.
//!
//! No reference to such memory is ever formed: it is read by relaxed atomic loads, one aligned word at a time, into
//! private memory. What the loads return may be torn between words; whoever reads the copy checks the copy.
#![allow(unsafe_code)]

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use provost_datapath::{Buffer, ForeignBytes};
use provost_wire::limits::BLOCK_ALIGN_BYTES;

use crate::GatherError;

/// Bytes that are read at once.
const WORD: usize = size_of::<u64>();
/// Words that one turn of the copying loop moves.
const WORDS_PER_TURN: usize = 8;

/// A region of memory that others may write while it is read: an app's send heap. Bytes are only ever copied out.
#[derive(Clone, Copy, Debug)]
pub struct ForeignRegion {
    address: NonZeroUsize,
    bytes: u64,
    window_at: u32,
}

impl ForeignRegion {
    /// Names a region by the address of its first byte here, its length, and the offset of its first byte in the
    /// app's window in units of 8 bytes.
    ///
    /// # Safety
    /// `address` is a multiple of 8, and the `bytes` bytes from it stay mapped and readable for as long as this value
    /// or a copy of it is used.
    #[must_use]
    pub const unsafe fn new(address: NonZeroUsize, bytes: u64, window_at: u32) -> ForeignRegion {
        ForeignRegion {
            address,
            bytes,
            window_at,
        }
    }

    /// A region that nobody writes and that may be used as long as the words are borrowed: for fuzzing and tests.
    pub(crate) fn of_words(words: &[u64], window_at: u32) -> ForeignRegion {
        // A reference is never null; an empty slice's address is not read from.
        let address = NonZeroUsize::new(words.as_ptr().expose_provenance()).unwrap_or(NonZeroUsize::MIN);
        ForeignRegion {
            address,
            bytes: size_of_val(words) as u64,
            window_at,
        }
    }

    /// Appends `bytes` bytes at window offset `off8` (in units of 8 bytes) to `out`.
    pub fn copy(&self, off8: u32, bytes: u32, out: &mut Vec<u8>) -> Result<(), GatherError> {
        let from = self.locate(off8, u64::from(bytes))?;
        // SAFETY: `locate` found the bytes inside the region, which is readable.
        unsafe { append(from, bytes as usize, out) };
        Ok(())
    }

    /// Appends a block as `copy` does, and zeros up to the next multiple of 8 bytes.
    pub(crate) fn copy_padded(&self, off8: u32, bytes: u32, out: &mut Vec<u8>) -> Result<(), GatherError> {
        let from = self.locate(off8, u64::from(bytes))?;
        let words = (bytes as usize).div_ceil(WORD);
        // SAFETY: `locate` found the block, with its padding, inside the region, which is readable; its address is a
        // multiple of 8 because the region's is.
        unsafe { append_words(from.get(), words, out) };
        let padding_bits = (words * WORD - bytes as usize) as u32 * u8::BITS;
        if padding_bits > 0
            && let Some(last) = out.last_chunk_mut::<WORD>()
        {
            *last = (u64::from_le_bytes(*last) & (u64::MAX >> padding_bits)).to_le_bytes();
        }
        Ok(())
    }

    /// Copies a block to `out`, which is as long as the block with its padding to 8 bytes, and zeros behind it.
    pub(crate) fn copy_padded_to(&self, off8: u32, bytes: u32, out: &mut [u8]) -> Result<(), GatherError> {
        let from = self.locate(off8, u64::from(bytes))?;
        let words = (bytes as usize).div_ceil(WORD);
        assert_eq!(
            out.len(),
            words * WORD,
            "a block is copied to a place of its size"
        );
        // SAFETY: `locate` found the block, with its padding, inside the region, which is readable and whose address is
        // a multiple of 8; `out` has room for as many words.
        unsafe { read_words(from.get(), words, out.as_mut_ptr()) };
        out[bytes as usize..].fill(0);
        Ok(())
    }

    /// Address of a block, if the block with its padding to 8 bytes is inside the region.
    pub(crate) fn locate(&self, off8: u32, bytes: u64) -> Result<NonZeroUsize, GatherError> {
        let outside = GatherError::Outside { offset: off8, bytes };
        let start = u64::from(off8.checked_sub(self.window_at).ok_or(outside)?) * WORD as u64;
        let room = (self.bytes & !(WORD as u64 - 1))
            .checked_sub(start)
            .ok_or(outside)?;
        if bytes > room {
            return Err(outside);
        }
        self.address.checked_add(start as usize).ok_or(outside)
    }
}

/// Appends a range of foreign memory to `out`.
pub fn copy_foreign(range: &ForeignBytes, out: &mut Vec<u8>) {
    // SAFETY: whoever made the range vouched that it lies in memory that its `keepalive` keeps mapped, and `range`
    // holds that for the duration of the call.
    unsafe { append(range.address(), range.len() as usize, out) };
}

/// Copies the large leaves of a gathered message behind its head, so that the buffer holds the whole linear message and
/// what is read of it is what is sent.
pub fn linearize(buffer: &mut Buffer) {
    let parts = &mut **buffer;
    for leaf in &parts.foreign {
        let aligned = parts.bytes.len().next_multiple_of(BLOCK_ALIGN_BYTES);
        parts.bytes.resize(aligned, 0);
        copy_foreign(leaf, &mut parts.bytes);
    }
    parts.foreign.clear();
}

/// Fills `to`, which must be as long as the range, from a range of foreign memory that begins at a multiple of 8, as
/// every large leaf does.
///
/// # Panics
/// If the lengths differ or the range is not aligned: that is a bug of this program, not the app's doing.
pub fn copy_foreign_to(range: &ForeignBytes, to: &mut [u8]) {
    let (from, bytes) = (range.address().get(), range.len() as usize);
    assert!(
        to.len() == bytes && from.is_multiple_of(WORD),
        "a leaf is copied to a place of its size"
    );
    let words = bytes / WORD;
    // SAFETY: whoever made the range vouched for it (as in `copy_foreign`), and `to` is as long.
    unsafe { read_words(from, words, to.as_mut_ptr()) };
    for (at, byte) in to.iter_mut().enumerate().skip(words * WORD) {
        let from = std::ptr::with_exposed_provenance::<AtomicU8>(from + at);
        // SAFETY: `at` is below the range's length.
        *byte = unsafe { (*from).load(Ordering::Relaxed) };
    }
}

/// # Safety
/// The `bytes` bytes from `from` are mapped and readable.
unsafe fn append(from: NonZeroUsize, bytes: usize, out: &mut Vec<u8>) {
    let from = from.get();
    let unaligned = (from.wrapping_neg() % WORD).min(bytes);
    let words = (bytes - unaligned) / WORD;
    // SAFETY: the three pieces together are the range; the middle one begins at a multiple of 8.
    unsafe {
        append_bytes(from, unaligned, out);
        append_words(from + unaligned, words, out);
        append_bytes(
            from + unaligned + words * WORD,
            bytes - unaligned - words * WORD,
            out,
        );
    }
}

/// # Safety
/// The `bytes` bytes from `from` are mapped and readable.
unsafe fn append_bytes(from: usize, bytes: usize, out: &mut Vec<u8>) {
    for at in 0..bytes {
        let byte = std::ptr::with_exposed_provenance::<AtomicU8>(from + at);
        // SAFETY: the byte is readable, and atomic loads are the only access from here to memory that others write.
        out.push(unsafe { (*byte).load(Ordering::Relaxed) });
    }
}

/// # Safety
/// The `words` words from `from`, a multiple of 8, are mapped and readable.
unsafe fn append_words(from: usize, words: usize, out: &mut Vec<u8>) {
    let bytes = words * WORD;
    out.reserve(bytes);
    // SAFETY: `reserve` made room for `bytes` bytes behind the length, and the caller vouches for the source.
    unsafe {
        read_words(from, words, out.as_mut_ptr().add(out.len()));
        out.set_len(out.len() + bytes);
    }
}

/// # Safety
/// The `words` words from `from`, a multiple of 8, are mapped and readable; `to` has room for them.
unsafe fn read_words(from: usize, words: usize, to: *mut u8) {
    let from = std::ptr::with_exposed_provenance::<AtomicU64>(from);
    let to = to.cast::<u64>();
    let load = |at: usize| {
        // SAFETY: `at` is below `words`; atomic loads are the only access from here to memory that others write.
        let word = unsafe { (*from.add(at)).load(Ordering::Relaxed) };
        // SAFETY: `at` is below `words`, for which there is room; the destination need not be aligned.
        unsafe { to.add(at).write_unaligned(word) };
    };
    let mut at = 0;
    while at + WORDS_PER_TURN <= words {
        for step in 0..WORDS_PER_TURN {
            load(at + step);
        }
        at += WORDS_PER_TURN;
    }
    while at < words {
        load(at);
        at += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_every_length_and_place_are_exact() {
        let words: Vec<u64> = (0..64u64).map(|n| n * 0x0101_0203_0507_0b0d + 7).collect();
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let region = ForeignRegion::of_words(&words, 100);
        for start in 0..64usize {
            for len in 0..=bytes.len() - start * 8 {
                let mut out = vec![1, 2, 3];
                region.copy(100 + start as u32, len as u32, &mut out).unwrap();
                assert_eq!(out[3..], bytes[start * 8..][..len]);
                out.clear();
                region
                    .copy_padded(100 + start as u32, len as u32, &mut out)
                    .unwrap();
                assert_eq!(out.len(), len.next_multiple_of(8));
                assert_eq!(out[..len], bytes[start * 8..][..len]);
                assert!(out[len..].iter().all(|byte| *byte == 0));
            }
        }
    }

    #[test]
    fn nothing_outside_the_region_is_located() {
        let words = [0u64; 4];
        let region = ForeignRegion::of_words(&words, 10);
        let refused = [
            (9, 1),
            (14, 1),
            (13, 9),
            (10, 33),
            (10, u64::MAX),
            (u32::MAX, 1),
            (0, 0),
        ];
        for (off8, bytes) in refused {
            let outside = GatherError::Outside { offset: off8, bytes };
            assert_eq!(region.locate(off8, bytes), Err(outside));
        }
        assert!(
            region.locate(10, 32).is_ok() && region.locate(13, 8).is_ok() && region.locate(14, 0).is_ok()
        );
    }
}
