//! The send heap.

/// The send heap has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the send heap has no room for {bytes} more bytes: set PROVOST_SEND_HEAP_BYTES, or send and drop messages sooner")]
pub struct HeapFull {
    /// How many bytes were asked for.
    pub bytes: usize,
}

impl HeapFull {
    /// What infallible methods do about it.
    #[cold]
    pub(crate) fn panic(self) -> ! {
        panic!("{self}")
    }
}

/// How many bytes the send heap may come to hold.
#[must_use]
pub fn heap_bytes_max() -> u64 {
    todo!()
}

/// How many bytes of the send heap are in use.
#[must_use]
pub fn heap_bytes_used() -> u64 {
    todo!()
}

pub(crate) fn allocate(bytes: usize) -> Result<u32, HeapFull> {
    Err(HeapFull { bytes })
}
pub(crate) unsafe fn free(_: u32) {}
pub(crate) fn usable_bytes(_: u32) -> usize {
    0
}
pub(crate) fn address(_: u32) -> *mut u8 {
    todo!()
}
