//! Waking a process that sleeps: a pipe whose two ends two processes hold.
//!
//! Not an eventfd: that is one file description for both, so that a hostile holder could take its `O_NONBLOCK` away,
//! fill its counter, and have the other side block in a write. The ends of a pipe are two descriptions.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::pipe::PipeFlags;

/// Rings that one [`Doorbell::drain`] takes; more stay, and wake the listener once again.
const DRAIN_BYTES: usize = 64;

/// The end that wakes the other.
#[derive(Debug)]
pub struct Ringer(OwnedFd);

/// The end that is woken: readable once it has been rung, until it is drained.
#[derive(Debug)]
pub struct Doorbell(OwnedFd);

impl Doorbell {
    /// Both ends, neither of which ever blocks.
    pub fn create() -> io::Result<(Ringer, Doorbell)> {
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Ok((Ringer(write), Doorbell(read)))
    }

    /// Takes the rings that have come, and says whether there were any. An error, or [`io::ErrorKind::BrokenPipe`],
    /// says that nobody can ring any more.
    pub fn drain(&self) -> io::Result<bool> {
        let mut rings = [0; DRAIN_BYTES];
        match rustix::io::read(&self.0, &mut rings) {
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
        self.0.as_fd()
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
        Doorbell(descriptor)
    }
}
