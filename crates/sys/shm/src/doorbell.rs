//! Waking a process that sleeps: a pipe whose two ends two processes hold.
//!
//! Not an eventfd: that is one file description for both, so that a hostile holder could take its `O_NONBLOCK` away,
//! fill its counter, and have the other side block in a write. The ends of a pipe are two descriptions.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::pipe::PipeFlags;

/// Rings that one [`Doorbell::drain`] takes; more stay, and wake the listener once again.
const DRAIN_BYTES: usize = 1024;

/// The end that wakes the other.
#[derive(Debug)]
pub struct Ringer(OwnedFd);

/// The end that is woken: readable once it has been rung, until it is drained.
///
/// Whoever made it holds the other end too, so that a peer that closes its own does not make this one readable for
/// good (as the end of a pipe is), which would keep a poller awake.
#[derive(Debug)]
pub struct Doorbell {
    read: OwnedFd,
    kept_write: Option<OwnedFd>,
}

impl Doorbell {
    /// Both ends, neither of which ever blocks.
    pub fn create() -> io::Result<(Ringer, Doorbell)> {
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let kept = rustix::io::fcntl_dupfd_cloexec(&write, 0)?;
        let doorbell = Doorbell {
            read,
            kept_write: Some(kept),
        };
        Ok((Ringer(write), doorbell))
    }

    /// Both descriptors of a doorbell that this process or its predecessor made: the end that is read, and the copy of
    /// the other end that keeps it open.
    #[must_use]
    pub fn ends(&self) -> Option<[BorrowedFd<'_>; 2]> {
        Some([self.read.as_fd(), self.kept_write.as_ref()?.as_fd()])
    }

    /// The doorbell whose [`Doorbell::ends`] another process of the same service passed on.
    #[must_use]
    pub fn from_ends([read, write]: [OwnedFd; 2]) -> Doorbell {
        let kept_write = Some(write);
        Doorbell { read, kept_write }
    }

    /// The end that is read once more, to be watched by somebody else.
    pub fn try_clone_read(&self) -> io::Result<OwnedFd> {
        self.read.try_clone()
    }

    /// Takes the rings that have come, and says whether there were any. [`io::ErrorKind::BrokenPipe`] says that
    /// nobody can ring any more (which whoever made the doorbell is never told).
    pub fn drain(&self) -> io::Result<bool> {
        let mut rings = [0; DRAIN_BYTES];
        match rustix::io::read(&self.read, &mut rings) {
            Ok(0) => Err(Errno::PIPE.into()),
            Ok(_) => Ok(true),
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

impl Ringer {
    /// Wakes the other end. Fails if that is closed; that it was rung before and has not drained yet is no failure.
    pub fn ring(&self) -> io::Result<()> {
        match rustix::io::write(&self.0, &[1]) {
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for Ringer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.read.as_fd()
    }
}

/// A ringer that another process made.
impl From<OwnedFd> for Ringer {
    fn from(descriptor: OwnedFd) -> Ringer {
        Ringer(descriptor)
    }
}

/// A doorbell that another process made.
impl From<OwnedFd> for Doorbell {
    fn from(descriptor: OwnedFd) -> Doorbell {
        Doorbell {
            read: descriptor,
            kept_write: None,
        }
    }
}
