//! Copies past the caches. Of many bytes that another core reads next, that core fetches line after line from this one's cache, which
//! can take ten times as long as from memory; a few are there sooner by way of the caches. (Figures: `docs/benchmarks.md`.)

/// Copies so many bytes, past the caches where the processor can. Whoever sees what is stored afterwards sees them.
///
/// # Safety
/// As of [`std::ptr::copy_nonoverlapping`].
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn copy_past_caches(from: *const u8, to: *mut u8, bytes: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    const LINE_BYTES: usize = 64;
    const PIECE_BYTES: usize = size_of::<__m128i>();
    // Only whole lines go past the caches: of a line in part the rest would have to be read first.
    let before = to.align_offset(LINE_BYTES).min(bytes);
    let end = before + (bytes - before) / LINE_BYTES * LINE_BYTES;
    // SAFETY: all offsets are below `bytes`, so that the caller vouches for both ranges; `to` is aligned to a line from `before` on.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, before);
        for at in (before..end).step_by(PIECE_BYTES) {
            let piece = _mm_loadu_si128(from.add(at).cast());
            _mm_stream_si128(to.add(at).cast(), piece);
        }
        std::ptr::copy_nonoverlapping(from.add(end), to.add(end), bytes - end);
        // Such stores wait for no others, and others not for them.
        _mm_sfence();
    }
}

/// Copies so many bytes.
///
/// # Safety
/// As of [`std::ptr::copy_nonoverlapping`].
#[cfg(not(target_arch = "x86_64"))]
pub(crate) unsafe fn copy_past_caches(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_copied_and_no_other() {
        const ROOM: usize = 3 * 64;
        let from: Vec<u8> = (0..ROOM as u8).map(|byte| byte | 1).collect();
        for bytes in 0..=ROOM - 64 {
            for (first, at) in [(0, 0), (1, 8), (3, 17), (64, 32), (0, 63)] {
                if first + bytes > ROOM || at + bytes > ROOM {
                    continue;
                }
                let mut to = [0; ROOM];
                // SAFETY: both ranges are within the two (checked above), which do not overlap.
                unsafe { copy_past_caches(from[first..].as_ptr(), to[at..].as_mut_ptr(), bytes) };
                assert_eq!(to[at..at + bytes], from[first..first + bytes]);
                let others = to[..at].iter().chain(&to[at + bytes..]);
                assert!(others.copied().all(|byte| byte == 0), "{bytes} bytes at {at}");
            }
        }
    }
}
