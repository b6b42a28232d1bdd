//! A memfd's bytes in the address space.

use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags};

use crate::{Memfd, ShmError};

/// What a mapping allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    ReadOnly,
    ReadWrite,
}

impl Access {
    pub(crate) fn protection(self) -> ProtFlags {
        match self {
            Access::ReadOnly => ProtFlags::READ,
            Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        }
    }
}

/// A whole memfd, mapped wherever the kernel likes, until it is dropped.
///
/// Other processes may write to it at any time, so it lends no references, only its address.
#[derive(Debug)]
pub struct Mapping {
    address: NonNull<u8>,
    bytes: usize,
    access: Access,
}

// SAFETY: a mapping is an address and a length; the memory is the same for every thread.
unsafe impl Send for Mapping {}
// SAFETY: as above; no method changes the mapping.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps all of it.
    pub fn new(memfd: &Memfd, access: Access) -> Result<Mapping, ShmError> {
        let bytes = usize::try_from(memfd.bytes()).map_err(|_| out_of_address_space())?;
        // SAFETY: the kernel chooses a range that nothing else uses.
        let address = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes,
                access.protection(),
                MapFlags::SHARED,
                memfd,
                0,
            )
        }
        .map_err(ShmError::kernel("mmap of a memfd"))?;
        let address = NonNull::new(address.cast()).ok_or_else(out_of_address_space)?;
        Ok(Mapping {
            address,
            bytes,
            access,
        })
    }

    /// Puts other memory of the same length in the place of this one, at the same address and with the same access. Who
    /// reads meanwhile, by atomic or volatile loads, sees the one or the other, never nothing. If it fails, the mapping
    /// may read as zero from then on.
    pub fn replace(&self, memfd: &Memfd) -> Result<(), ShmError> {
        if memfd.bytes() != self.bytes as u64 {
            let (bytes, least) = (memfd.bytes(), self.bytes as u64);
            let most = least;
            return Err(ShmError::Size { bytes, least, most });
        }
        let address = self.address.as_ptr().cast();
        let protection = self.access.protection();
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: the range is this mapping's, and the kernel replaces it as one step; users of its address rely on no
        // more than that it can be accessed as before.
        let mapped = unsafe { rustix::mm::mmap(address, self.bytes, protection, flags, memfd, 0) };
        mapped.map(drop).map_err(|source| {
            let flags = MapFlags::PRIVATE | MapFlags::FIXED;
            // SAFETY: as above. The kernel may have unmapped the range before it failed: nothing must fault there.
            let _ = unsafe { rustix::mm::mmap_anonymous(address, self.bytes, protection, flags) };
            ShmError::Kernel {
                operation: "mmap over a mapping",
                source,
            }
        })
    }

    /// Where it begins; page-aligned.
    #[must_use]
    pub fn address(&self) -> *mut u8 {
        self.address.as_ptr()
    }

    /// How long it is.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is this mapping's; users of its address promised not to outlive it. Failing would leave
        // it mapped, which is safe.
        let _ = unsafe { rustix::mm::munmap(self.address.as_ptr().cast(), self.bytes) };
    }
}

pub(crate) fn out_of_address_space() -> ShmError {
    ShmError::Kernel {
        operation: "mmap",
        source: rustix::io::Errno::NOMEM,
    }
}
