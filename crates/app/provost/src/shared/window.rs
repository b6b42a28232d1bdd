//! The process's window: one reserved range of addresses with the send heap near its start and, behind it, room for
//! what is received.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use provost_shm::{Access, Memfd, OwnedFd, SEALS_FIXED_SIZE, ShmError};
use provost_wire::limits::{BLOCK_ALIGN_BYTES, REGION_BYTES_MAX, SEND_WINDOW, WINDOW_BYTES};

const SEND_WINDOW_BYTES: u64 = SEND_WINDOW as u64 * BLOCK_ALIGN_BYTES as u64;
/// Room for received segments is given out in this many equal ranges, one for each attachment that is alive.
const RECEIVE_RANGES: u64 = 16;
/// Ranges begin on a huge page, so that a service may use them.
const RECEIVE_ALIGN_BYTES: u64 = 2 << 20;

/// See the module's documentation.
pub(crate) struct Window {
    memory: Memory,
    send_bytes: u64,
    /// Which receive ranges are given out.
    taken: Mutex<u64>,
}

#[cfg(not(miri))]
struct Memory {
    /// What this process writes there, its service reads. Dropped before the range is unmapped.
    _kept: provost_shm::WindowKeeping,
    range: provost_shm::Window,
    send: Memfd,
}

/// Miri knows neither memfds nor fixed mappings; ordinary memory does for what it checks.
#[cfg(miri)]
struct Memory {
    base: *mut u8,
}

#[cfg(miri)]
// SAFETY: it is an address; what is done with the memory is for others to synchronize.
unsafe impl Sync for Memory {}
#[cfg(miri)]
// SAFETY: as above.
unsafe impl Send for Memory {}

#[cfg(miri)]
impl Window {
    pub(crate) fn create(send_bytes: u64) -> Result<Window, ShmError> {
        let layout = std::alloc::Layout::from_size_align((SEND_WINDOW_BYTES + send_bytes) as usize, 4096);
        // SAFETY: the layout has a size.
        let base = unsafe { std::alloc::alloc_zeroed(layout.expect("a small layout")) };
        let (memory, taken) = (Memory { base }, Mutex::new(0));
        Ok(Window {
            memory,
            send_bytes,
            taken,
        })
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.memory.base
    }

    pub(crate) fn give_back(&self, _: Range<u64>) {}

    fn bytes(&self) -> u64 {
        SEND_WINDOW_BYTES + self.send_bytes
    }
}

#[cfg(not(miri))]
impl Window {
    /// Reserves addresses and makes a send heap of `send_bytes`, or of less if there are few addresses.
    pub(crate) fn create(send_bytes: u64) -> Result<Window, ShmError> {
        let range = provost_shm::Window::reserve(WINDOW_BYTES)?;
        let send_bytes = send_bytes.min(range.bytes() / 4);
        let send = Memfd::create("provost-send-heap", send_bytes)?;
        send.seal(SEALS_FIXED_SIZE)?;
        range.map(SEND_WINDOW_BYTES, &send, Access::ReadWrite)?;
        let _kept = range.keep_from_children(SEND_WINDOW_BYTES, send_bytes)?;
        let (memory, taken) = (Memory { range, send, _kept }, Mutex::new(0));
        Ok(Window {
            memory,
            send_bytes,
            taken,
        })
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.memory.range.base()
    }

    /// Gives the memory behind a range of the send heap back to the system.
    pub(crate) fn give_back(&self, range: Range<u64>) {
        // Failing costs memory, nothing else.
        let _ = provost_shm::punch_hole(&self.memory.send, range);
    }

    /// The send heap, to be shown to a service.
    pub(crate) fn send_heap(&self) -> &Memfd {
        &self.memory.send
    }

    /// Room for what one attachment receives; `None` when too many are alive.
    pub(crate) fn receive_range(&'static self) -> Option<ReceiveRange> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let index = taken.trailing_ones();
        if u64::from(index) >= RECEIVE_RANGES {
            return None;
        }
        *taken |= 1 << index;
        let start = (SEND_WINDOW_BYTES + self.send_bytes).next_multiple_of(RECEIVE_ALIGN_BYTES);
        // Less one unit, so that no range ends at the very end of the window, where offsets would not fit `u32`.
        let room = (self.bytes() - RECEIVE_ALIGN_BYTES - start) / RECEIVE_RANGES;
        let bytes = room.min(REGION_BYTES_MAX) / RECEIVE_ALIGN_BYTES * RECEIVE_ALIGN_BYTES;
        Some(ReceiveRange {
            window: self,
            index,
            start: start + u64::from(index) * bytes,
            bytes,
        })
    }

    fn bytes(&self) -> u64 {
        self.memory.range.bytes()
    }
}

impl Window {
    pub(crate) fn send_bytes(&self) -> u64 {
        self.send_bytes
    }
}

/// The part of the window that one attachment receives in. What was mapped there is unmapped when it is dropped.
pub(crate) struct ReceiveRange {
    window: &'static Window,
    index: u32,
    start: u64,
    bytes: u64,
}

#[cfg(not(miri))]
impl ReceiveRange {
    /// Where it begins, in units of 8 bytes.
    pub(crate) fn offset(&self) -> u32 {
        (self.start / BLOCK_ALIGN_BYTES as u64) as u32
    }

    /// How long it is.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Maps a segment that the service sent, read-only, and says which offsets are in it.
    pub(crate) fn map(&self, at: u32, bytes: u64, segment: OwnedFd) -> Result<Range<u32>, ShmError> {
        let limits = provost_shm::MemfdLimits {
            bytes_min: bytes,
            bytes_max: bytes,
            seals: SEALS_FIXED_SIZE,
        };
        let segment = Memfd::verify_foreign(segment, limits)?;
        let start = u64::from(at) * BLOCK_ALIGN_BYTES as u64;
        if start < self.start || start + bytes > self.start + self.bytes {
            return Err(ShmError::Place {
                at: start,
                bytes,
                window_bytes: self.bytes,
            });
        }
        self.window.memory.range.map(start, &segment, Access::ReadOnly)?;
        Ok(at..at + (bytes / BLOCK_ALIGN_BYTES as u64) as u32)
    }

    pub(crate) fn unmap(&self, segment: Range<u32>) {
        let unit = BLOCK_ALIGN_BYTES as u64;
        let bytes = u64::from(segment.end - segment.start) * unit;
        // Failing leaves it mapped, which costs memory and nothing else.
        let _ = self
            .window
            .memory
            .range
            .unmap(u64::from(segment.start) * unit, bytes);
    }
}

#[cfg(not(miri))]
impl Drop for ReceiveRange {
    fn drop(&mut self) {
        let _ = self.window.memory.range.unmap(self.start, self.bytes);
        let mut taken = self.window.taken.lock().unwrap_or_else(PoisonError::into_inner);
        *taken &= !(1 << self.index);
    }
}

/// The process's window; made when it is first asked for.
pub(crate) fn window() -> &'static Window {
    super::heap::window()
}
