//! Memory in a file of its own, that can be sealed and handed to another process.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, fstatfs};
use rustix::io::Errno;

use crate::ShmError;

/// What nobody can do any more to a memfd.
pub type Seals = SealFlags;

/// The size stays as it is: a reader of a mapping never gets SIGBUS. What an app's memory must have.
pub const SEALS_FIXED_SIZE: Seals = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);
/// As [`SEALS_FIXED_SIZE`]; besides, nobody can map it for writing or write to it but through mappings that exist.
/// Holes cannot be punched into it either, so its memory comes back only as a whole.
pub const SEALS_READ_ONLY_FOR_OTHERS: Seals = SEALS_FIXED_SIZE.union(SealFlags::FUTURE_WRITE);

/// The file system that every memfd of ordinary pages is on (`TMPFS_MAGIC`). One of huge pages is on another, and
/// could raise SIGBUS when the system runs out of them.
const TMPFS_MAGIC: i128 = 0x0102_1994;

/// A memfd of known size.
#[derive(Debug)]
pub struct Memfd {
    descriptor: OwnedFd,
    bytes: u64,
}

/// What a memfd from another process must fulfil.
#[derive(Clone, Copy, Debug)]
pub struct MemfdLimits {
    pub bytes_min: u64,
    pub bytes_max: u64,
    /// The seals that it must have.
    pub seals: Seals,
}

impl Memfd {
    /// New memory of at least so many bytes (rounded up to whole pages), all zero, not sealed yet. The name is for
    /// `/proc`.
    pub fn create(name: &str, bytes: u64) -> Result<Memfd, ShmError> {
        let page_bytes = rustix::param::page_size() as u64;
        let bytes = bytes.max(1).next_multiple_of(page_bytes);
        let descriptor = create_sealable(name).map_err(ShmError::kernel("memfd_create"))?;
        rustix::fs::ftruncate(&descriptor, bytes).map_err(ShmError::kernel("ftruncate of a memfd"))?;
        Ok(Memfd { descriptor, bytes })
    }

    /// New memory that holds exactly these bytes, sealed at that size: for documents rather than for regions.
    pub fn of_bytes(name: &str, bytes: &[u8]) -> Result<Memfd, ShmError> {
        let descriptor = create_sealable(name).map_err(ShmError::kernel("memfd_create"))?;
        let memfd = Memfd {
            descriptor,
            bytes: bytes.len() as u64,
        };
        memfd.write_at(0, bytes)?;
        memfd.seal(SEALS_FIXED_SIZE)?;
        Ok(memfd)
    }

    /// Takes a memfd from another process, after checking all that its owner could use against us.
    pub fn verify_foreign(descriptor: OwnedFd, limits: MemfdLimits) -> Result<Memfd, ShmError> {
        let file_system = fstatfs(&descriptor).map_err(ShmError::kernel("fstatfs"))?;
        if i128::from(file_system.f_type) != TMPFS_MAGIC {
            return Err(ShmError::NotMemfd);
        }
        let seals = rustix::fs::fcntl_get_seals(&descriptor).map_err(|_| ShmError::NotMemfd)?;
        let missing = limits.seals.difference(seals);
        if !missing.is_empty() {
            return Err(ShmError::SealsMissing { missing });
        }
        // The size is read after the seals: now it is final.
        let status = rustix::fs::fstat(&descriptor).map_err(ShmError::kernel("fstat of a memfd"))?;
        let bytes = u64::try_from(status.st_size).unwrap_or(0);
        let (least, most) = (limits.bytes_min, limits.bytes_max);
        if bytes < least.max(1) || bytes > most {
            return Err(ShmError::Size { bytes, least, most });
        }
        Ok(Memfd { descriptor, bytes })
    }

    /// Adds seals, which never come off again.
    pub fn seal(&self, seals: Seals) -> Result<(), ShmError> {
        rustix::fs::fcntl_add_seals(&self.descriptor, seals).map_err(ShmError::kernel("fcntl(F_ADD_SEALS)"))
    }

    /// Copies bytes from `at` on, and says how many there were.
    pub fn read_at(&self, at: u64, buffer: &mut [u8]) -> Result<usize, ShmError> {
        rustix::io::pread(&self.descriptor, buffer, at).map_err(ShmError::kernel("pread of a memfd"))
    }

    /// Writes bytes at `at`; all of them, since the size is fixed.
    pub fn write_at(&self, mut at: u64, mut bytes: &[u8]) -> Result<(), ShmError> {
        while !bytes.is_empty() {
            let written = rustix::io::pwrite(&self.descriptor, bytes, at)
                .map_err(ShmError::kernel("pwrite of a memfd"))?;
            at += written as u64;
            bytes = &bytes[written..];
        }
        Ok(())
    }

    /// Its size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Another handle to the same memory.
    pub fn try_clone(&self) -> Result<Memfd, ShmError> {
        let descriptor = rustix::io::fcntl_dupfd_cloexec(&self.descriptor, 0)
            .map_err(ShmError::kernel("dup of a memfd"))?;
        Ok(Memfd {
            descriptor,
            bytes: self.bytes,
        })
    }

    /// Gives the descriptor away.
    #[must_use]
    pub fn into_descriptor(self) -> OwnedFd {
        self.descriptor
    }
}

impl AsFd for Memfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Gives the memory behind a range of whole pages back to the system; it reads as zero from then on. Needs a memfd
/// without [`SEALS_READ_ONLY_FOR_OTHERS`].
pub fn punch_hole(memfd: &Memfd, range: Range<u64>) -> Result<(), ShmError> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let bytes = range.end.saturating_sub(range.start);
    rustix::fs::fallocate(memfd, flags, range.start, bytes).map_err(ShmError::kernel("fallocate(PUNCH_HOLE)"))
}

fn create_sealable(name: &str) -> Result<OwnedFd, Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        // Before Linux 6.3 nobody knew this flag.
        Err(Errno::INVAL) => rustix::fs::memfd_create(name, flags),
        result => result,
    }
}
