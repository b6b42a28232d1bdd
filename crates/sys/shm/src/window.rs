//! One range of addresses that segments are mapped into, so that an offset from its base means the same for all.

use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::fork::KeptFromChildren;
use crate::mapping::out_of_address_space;
use crate::{Access, Memfd, ShmError};

/// A window smaller than this is of no use; reserving one fails instead.
pub const WINDOW_BYTES_MIN: u64 = 64 << 20;

/// A range of a window that is kept from children, until it is dropped.
#[derive(Debug)]
pub struct WindowKeeping(#[expect(dead_code, reason = "it is there to be dropped")] KeptFromChildren);

/// A reserved range of addresses. What is not mapped in it faults. Dropping it unmaps everything.
#[derive(Debug)]
pub struct Window {
    base: NonNull<u8>,
    bytes: u64,
}

// SAFETY: a window is an address and a length; the memory is the same for every thread.
unsafe impl Send for Window {}
// SAFETY: as above; mapping into it is the kernel's to serialize.
unsafe impl Sync for Window {}

impl Window {
    /// Reserves so many bytes of addresses (whole pages) and no memory. Where the address space is limited, half of
    /// that, and so on, down to [`WINDOW_BYTES_MIN`]: ask [`Window::bytes`].
    pub fn reserve(bytes: u64) -> Result<Window, ShmError> {
        let mut bytes = bytes.max(WINDOW_BYTES_MIN);
        loop {
            match reserve_anywhere(bytes) {
                Ok(base) => return Ok(Window { base, bytes }),
                Err(_) if bytes / 2 >= WINDOW_BYTES_MIN => {
                    bytes = (bytes / 2).next_multiple_of(rustix::param::page_size() as u64);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The address of offset 0; page-aligned.
    #[must_use]
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// How long it is.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Maps all of a memfd at so many bytes into the window, over whatever was there.
    pub fn map(&self, at: u64, memfd: &Memfd, access: Access) -> Result<(), ShmError> {
        let (address, bytes) = self.place(at, memfd.bytes())?;
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: `place` keeps the range inside of the window, which is ours; who uses addresses in it promised to
        // know what is mapped there.
        let mapped = unsafe { rustix::mm::mmap(address, bytes, access.protection(), flags, memfd, 0) };
        mapped.map(drop).map_err(|source| {
            // The kernel may have unmapped the range before it failed.
            let _ = self.unmap(at, memfd.bytes());
            ShmError::Kernel {
                operation: "mmap of a segment into the window",
                source,
            }
        })
    }

    /// Makes a range fault again. Its addresses stay reserved.
    pub fn unmap(&self, at: u64, bytes: u64) -> Result<(), ShmError> {
        let (address, bytes) = self.place(at, bytes)?;
        // SAFETY: as in `map`.
        unsafe {
            rustix::mm::mmap_anonymous(address, bytes, ProtFlags::empty(), reserved() | MapFlags::FIXED)
        }
        .map(drop)
        .map_err(ShmError::kernel("mmap of a window's free range"))
    }

    /// Keeps a range that is mapped from children of this process, as long as it is mapped: see [`crate::is_forked_child`]. A
    /// child that the C library does not make has nothing there.
    pub fn keep_from_children(&self, at: u64, bytes: u64) -> Result<WindowKeeping, ShmError> {
        let (address, bytes) = self.place(at, bytes)?;
        // SAFETY: the range is in the window, and this process goes on with it as before.
        unsafe { rustix::mm::madvise(address, bytes, Advice::LinuxDontFork) }
            .map_err(ShmError::kernel("madvise of a segment of the window"))?;
        KeptFromChildren::new(address.cast(), bytes).map(WindowKeeping)
    }

    fn place(&self, at: u64, bytes: u64) -> Result<(*mut std::ffi::c_void, usize), ShmError> {
        let page_bytes = rustix::param::page_size() as u64;
        let fits = at.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        if !fits || bytes == 0 || !at.is_multiple_of(page_bytes) || !bytes.is_multiple_of(page_bytes) {
            return Err(ShmError::Place {
                at,
                bytes,
                window_bytes: self.bytes,
            });
        }
        // Both fit a usize, since the window is in the address space.
        let address = self.base.as_ptr().wrapping_add(at as usize).cast();
        Ok((address, bytes as usize))
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: the range is this window's; users of its addresses promised not to outlive it.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes as usize) };
    }
}

fn reserve_anywhere(bytes: u64) -> Result<NonNull<u8>, ShmError> {
    let length = usize::try_from(bytes).map_err(|_| out_of_address_space())?;
    // SAFETY: the kernel chooses a range that nothing else uses.
    let address =
        unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), length, ProtFlags::empty(), reserved()) }
            .map_err(ShmError::kernel("mmap to reserve a window"))?;
    NonNull::new(address.cast()).ok_or_else(out_of_address_space)
}

fn reserved() -> MapFlags {
    MapFlags::PRIVATE | MapFlags::NORESERVE
}
