//! Sleeping until one of many descriptors is ready.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};

use rustix::event::{PollFd, PollFlags, Timespec, epoll};
use rustix::io::Errno;

use crate::now_ns;

/// Events that one [`Poller::wait`] reports; the others come with the next.
pub const POLL_EVENTS_MAX: usize = 256;

/// What to watch a descriptor for. Hang-ups and errors are always reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Bytes to read, or a peer to accept.
    Readable,
    Writable,
    Both,
}

/// How long to sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    Now,
    /// At most so many nanoseconds.
    AtMost(u64),
    /// Until something is ready.
    Forever,
}

/// A descriptor that is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// What it was added with.
    pub token: u64,
    /// Reading will not block (it may report the end, or an error).
    pub readable: bool,
    /// Writing will not block (it may report an error).
    pub writable: bool,
    /// The peer is gone, or an error is pending.
    pub hung_up: bool,
}

/// Watches descriptors (level-triggered epoll).
pub struct Poller {
    epoll: OwnedFd,
    ready: Vec<epoll::Event>,
}

// SAFETY: the events' user data are numbers, of which the system's union makes pointers that nobody follows.
unsafe impl Send for Poller {}
// SAFETY: as above; `wait` alone touches them, and takes the poller by `&mut`.
unsafe impl Sync for Poller {}

impl Poller {
    pub fn create() -> io::Result<Poller> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Poller {
            epoll,
            ready: Vec::with_capacity(POLL_EVENTS_MAX),
        })
    }

    /// Watches a descriptor too. It must be removed before it is closed, if any copy of it stays open anywhere.
    pub fn add(&self, descriptor: impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token);
        Ok(epoll::add(&self.epoll, descriptor, data, interest.flags())?)
    }

    /// Watches a descriptor that was added for something else, under another token.
    pub fn modify(&self, descriptor: impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token);
        Ok(epoll::modify(&self.epoll, descriptor, data, interest.flags())?)
    }

    /// Watches a descriptor no more.
    pub fn remove(&self, descriptor: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, descriptor)?)
    }

    /// As [`Poller::add`], for a descriptor that somebody else owns and names by its number. A number that is closed is
    /// an error; one that was opened anew in between is watched instead, which makes the token's owner look in vain.
    pub fn add_number(&self, descriptor: RawFd, token: u64, interest: Interest) -> io::Result<()> {
        self.add(borrow(descriptor)?, token, interest)
    }

    /// As [`Poller::modify`], by number.
    pub fn modify_number(&self, descriptor: RawFd, token: u64, interest: Interest) -> io::Result<()> {
        self.modify(borrow(descriptor)?, token, interest)
    }

    /// As [`Poller::remove`], by number.
    pub fn remove_number(&self, descriptor: RawFd) -> io::Result<()> {
        self.remove(borrow(descriptor)?)
    }

    /// Sleeps, and says what is ready. A signal ends the sleep with nothing.
    pub fn wait(&mut self, wait: Wait) -> io::Result<impl Iterator<Item = Event> + '_> {
        self.ready.clear();
        let timeout = wait.timeout();
        match epoll::wait(
            &self.epoll,
            rustix::buffer::spare_capacity(&mut self.ready),
            timeout.as_ref(),
        ) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(self.ready.iter().map(|event| {
            let flags = event.flags;
            let hung_up = flags.intersects(epoll::EventFlags::HUP | epoll::EventFlags::ERR);
            Event {
                token: event.data.u64(),
                readable: hung_up || flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::RDHUP),
                writable: hung_up || flags.contains(epoll::EventFlags::OUT),
                hung_up,
            }
        }))
    }
}

fn borrow<'a>(descriptor: RawFd) -> io::Result<BorrowedFd<'a>> {
    if descriptor < 0 {
        return Err(Errno::BADF.into());
    }
    // SAFETY: not -1 (checked). It is only handed to epoll_ctl, which touches no memory of this process and reports a
    // closed descriptor as an error.
    Ok(unsafe { BorrowedFd::borrow_raw(descriptor) })
}

impl std::fmt::Debug for Poller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Poller").field(&self.epoll).finish()
    }
}

/// A poller can be watched by another.
impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// Sleeps until one descriptor is ready, and says whether it is. A signal does not shorten it.
pub fn wait_for(descriptor: impl AsFd, interest: Interest, wait: Wait) -> io::Result<bool> {
    let flags = match interest {
        Interest::Readable => PollFlags::IN,
        Interest::Writable => PollFlags::OUT,
        Interest::Both => PollFlags::IN | PollFlags::OUT,
    };
    let mut watched = [PollFd::new(&descriptor, flags)];
    let began = now_ns();
    let mut left = wait;
    loop {
        match rustix::event::poll(&mut watched, left.timeout().as_ref()) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => left = wait.less(now_ns().saturating_sub(began)),
            Err(error) => return Err(error.into()),
        }
    }
}

impl Interest {
    fn flags(self) -> epoll::EventFlags {
        let (read, write) = (
            epoll::EventFlags::IN | epoll::EventFlags::RDHUP,
            epoll::EventFlags::OUT,
        );
        match self {
            Interest::Readable => read,
            Interest::Writable => write,
            Interest::Both => read | write,
        }
    }
}

impl Wait {
    /// What is left of it after so many nanoseconds.
    fn less(self, nanoseconds: u64) -> Wait {
        match self {
            Wait::AtMost(whole) => Wait::AtMost(whole.saturating_sub(nanoseconds)),
            Wait::Now | Wait::Forever => self,
        }
    }

    fn timeout(self) -> Option<Timespec> {
        let nanoseconds = match self {
            Wait::Now => 0,
            Wait::AtMost(nanoseconds) => nanoseconds,
            Wait::Forever => return None,
        };
        Some(Timespec {
            tv_sec: (nanoseconds / 1_000_000_000) as i64,
            tv_nsec: (nanoseconds % 1_000_000_000) as i64,
        })
    }
}
