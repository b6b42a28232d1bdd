//! What libraries lend the service, copied with a bound.

use std::ffi::c_void;

use provost_engine::abi::{Bytes, Sink};

/// Texts for people, in bytes: what is longer is cut.
pub(crate) const TEXT_BYTES_MAX: usize = 4096;

/// Copies text. What is no UTF-8 is replaced, what is too long is cut.
///
/// # Safety
/// The bytes are readable.
pub(crate) unsafe fn text(bytes: Bytes) -> String {
    let length = bytes.length.min(TEXT_BYTES_MAX);
    // SAFETY: the caller's promise.
    String::from_utf8_lossy(unsafe { slice(Bytes { length, ..bytes }) }).into_owned()
}

/// Borrows bytes.
///
/// # Safety
/// The bytes are readable, and not written, as long as the borrow lasts.
pub(crate) unsafe fn slice<'a>(bytes: Bytes) -> &'a [u8] {
    // SAFETY: the caller's promise.
    unsafe { items(bytes.at, bytes.length) }
}

/// Borrows items.
///
/// # Safety
/// As for [`slice`].
pub(crate) unsafe fn items<'a, T>(at: *const T, count: usize) -> &'a [T] {
    if at.is_null() || count == 0 {
        &[]
    } else {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(at, count) }
    }
}

/// Bytes that a library writes, up to a bound.
pub(crate) struct BoundedBytes {
    bytes: Vec<u8>,
    bytes_max: usize,
    overflow: Overflow,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Overflow {
    No,
    Yes,
}

impl BoundedBytes {
    pub(crate) fn new(bytes_max: usize) -> BoundedBytes {
        BoundedBytes {
            bytes: Vec::new(),
            bytes_max,
            overflow: Overflow::No,
        }
    }

    /// Where the library writes. To be used as long as the gatherer stays where it is.
    pub(crate) fn sink(&mut self) -> Sink {
        Sink {
            to: std::ptr::from_mut(self).cast(),
            write: Some(write),
        }
    }

    /// All that was written; `None` if that was more than the bound.
    pub(crate) fn whole(self) -> Option<Vec<u8>> {
        (self.overflow == Overflow::No).then_some(self.bytes)
    }

    /// What was written, as text; something to say if it was nothing.
    pub(crate) fn text(self) -> String {
        if self.bytes.is_empty() {
            "it gives no reason".to_owned()
        } else {
            String::from_utf8_lossy(&self.bytes).into_owned()
        }
    }
}

unsafe extern "C" fn write(to: *mut c_void, at: *const u8, length: usize) {
    // SAFETY: `to` is the gatherer of a sink that is in use; the library lends the bytes.
    let (gatherer, bytes) = unsafe { (&mut *to.cast::<BoundedBytes>(), slice(Bytes { at, length })) };
    let room = gatherer.bytes_max - gatherer.bytes.len();
    if bytes.len() > room {
        gatherer.overflow = Overflow::Yes;
    }
    gatherer.bytes.extend_from_slice(&bytes[..bytes.len().min(room)]);
}
