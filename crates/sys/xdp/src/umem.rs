//! The memory that frames are in, shared with the kernel and the device: hugepages, where there are some.

use std::io;
use std::ptr::NonNull;

const HUGEPAGE_BYTES: usize = 2 << 20;

/// Frames of one size, one after the other.
#[derive(Debug)]
pub(crate) struct Umem {
    base: NonNull<u8>,
    bytes: usize,
    frame_bytes: usize,
    on_hugepages: bool,
}

// SAFETY: it owns its memory.
unsafe impl Send for Umem {}

impl Umem {
    pub(crate) fn new(frames: usize, frame_bytes: usize) -> io::Result<Umem> {
        let bytes = (frames * frame_bytes).next_multiple_of(HUGEPAGE_BYTES);
        let (base, on_hugepages) = match map(bytes, libc::MAP_HUGETLB) {
            Ok(base) => (base, true),
            Err(_) => (map(bytes, 0)?, false),
        };
        if !on_hugepages {
            // SAFETY: the range is ours. That the kernel cannot follow the advice is no failure.
            unsafe { libc::madvise(base.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE) };
        }
        Ok(Umem {
            base,
            bytes,
            frame_bytes,
            on_hugepages,
        })
    }

    pub(crate) fn on_hugepages(&self) -> bool {
        self.on_hugepages
    }

    pub(crate) fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn frame_bytes(&self) -> usize {
        self.frame_bytes
    }

    /// Where the frame begins that this place is in; `None` for a place outside.
    #[inline]
    pub(crate) fn frame_of(&self, at: u64) -> Option<u64> {
        let at = usize::try_from(at).ok().filter(|at| *at < self.bytes)?;
        Some((at - at % self.frame_bytes) as u64)
    }

    /// The bytes that the kernel says that it has put there; `None` if they are not all within one frame.
    ///
    /// # Safety
    /// The frame must be ours, not the kernel's.
    #[inline]
    pub(crate) unsafe fn read(&self, at: u64, bytes: u32) -> Option<&[u8]> {
        let frame = self.frame_of(at)?;
        let within = (at - frame) as usize + bytes as usize <= self.frame_bytes;
        // SAFETY: it is within the memory, which the caller says that nobody writes now.
        within.then(|| unsafe {
            std::slice::from_raw_parts(self.base.as_ptr().add(at as usize), bytes as usize)
        })
    }

    /// A whole frame, to be written; `None` for one that is not there.
    ///
    /// # Safety
    /// The frame must be ours, not the kernel's.
    #[inline]
    pub(crate) unsafe fn write(&mut self, frame: u64) -> Option<&mut [u8]> {
        let frame = self.frame_of(frame)? as usize;
        // SAFETY: it is within the memory, which the caller says that nobody else uses now.
        Some(unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().add(frame), self.frame_bytes) })
    }
}

fn map(bytes: usize, flags: i32) -> io::Result<NonNull<u8>> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE | flags;
    // SAFETY: the kernel chooses a range that nothing else uses.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(at.cast()).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))
}

impl Drop for Umem {
    fn drop(&mut self) {
        // SAFETY: the range is ours, and this is the last use of it. The kernel holds its pages itself as long as it
        // needs them.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
