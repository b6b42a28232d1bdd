//! What can go wrong with shared memory.

use rustix::io::Errno;

use crate::Seals;

/// Why memory cannot be shared.
#[derive(Debug, thiserror::Error)]
pub enum ShmError {
    /// The kernel refused an operation.
    #[error("{operation}: {source}")]
    Kernel {
        /// What was asked of it.
        operation: &'static str,
        source: Errno,
    },
    /// The descriptor is not one of a memfd.
    #[error(
        "the descriptor is not a memfd of ordinary pages: make it with memfd_create and MFD_ALLOW_SEALING"
    )]
    NotMemfd,
    /// The memfd lacks seals, so that its owner could change it under us.
    #[error("the memfd lacks the seals {missing:?}: add them with fcntl(F_ADD_SEALS) before it is passed")]
    SealsMissing {
        /// Those that it lacks.
        missing: Seals,
    },
    /// The memfd's size is out of bounds.
    #[error("the memfd has {bytes} bytes: it must have {least} to {most}")]
    Size {
        bytes: u64,
        /// The least it may be.
        least: u64,
        /// The most it may be.
        most: u64,
    },
    /// A place in a window that is not wholly inside of it, or not on a page boundary.
    #[error("{bytes} bytes at {at} do not fit a window of {window_bytes} bytes on page boundaries")]
    Place {
        /// Where it begins in the window, in bytes.
        at: u64,
        bytes: u64,
        window_bytes: u64,
    },
    /// A ring's number of slots that is not a power of two, or out of bounds.
    #[error("a ring of {slots} slots: use a power of two between {least} and {most}")]
    RingSlots {
        /// How many were asked for.
        slots: u32,
        least: u32,
        most: u32,
    },
}

impl ShmError {
    /// For `map_err`: names the operation that the kernel refused.
    pub(crate) fn kernel(operation: &'static str) -> impl Fn(Errno) -> ShmError {
        move |source| ShmError::Kernel { operation, source }
    }
}

impl From<ShmError> for std::io::Error {
    fn from(error: ShmError) -> std::io::Error {
        match error {
            ShmError::Kernel { source, .. } => source.into(),
            other => std::io::Error::new(std::io::ErrorKind::InvalidData, other),
        }
    }
}
