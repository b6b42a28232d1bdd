//! What a runtime asks of the machine: the time, its core, and which descriptors are ready.
//!
//! A runtime is generic over it, so that the thread of a node calls the kernel directly, and the simulator gives it a clock
//! and sockets of its own. Doorbells are pipes on both: they are passed between processes of the service as descriptors.

use std::io;
use std::os::fd::RawFd;

use provost_datapath::Nanos;
use provost_shm::{Doorbell, Interest, Poller, TimeSlice, TimeSliceChoice, Wait};

/// The machine as one runtime sees it. Nothing in it may block but [`RuntimePlatform::wait`].
pub trait RuntimePlatform: Send + 'static {
    /// The time, in nanoseconds since some moment that is the same for all who compare times. It never goes backwards.
    fn now_ns(&self) -> Nanos;

    /// Lets other threads have the core, and comes back when it is this one's turn again.
    fn yield_core(&mut self);

    /// This thread polls, and gives its core away in between, from now on.
    fn begin_polling(&mut self) {}

    /// This thread sleeps instead of polling from now on, as others want its core.
    fn end_polling(&mut self) {}

    /// Reports this token from now on while the source is ready.
    ///
    /// # Errors
    /// The source is not open, or watched already, or the machine has no room for more.
    fn watch(&mut self, source: WatchedSource<'_>, token: u64, interest: Interest) -> io::Result<()>;

    /// As [`RuntimePlatform::watch`], for a source that is watched for something else.
    ///
    /// # Errors
    /// The source is not watched.
    fn watch_for(&mut self, source: WatchedSource<'_>, token: u64, interest: Interest) -> io::Result<()>;

    /// Reports a source no more. One that is not watched is left alone.
    fn unwatch(&mut self, source: WatchedSource<'_>);

    /// Sleeps until something is ready, for as long as `wait` says at most, and hands the tokens of what is ready to
    /// `on_ready`, with the time at which the sleep was over. It may report a part of them, and the others at the next call.
    fn wait(&mut self, wait: Wait, on_ready: impl FnMut(u64, Nanos));
}

/// What a runtime watches.
#[derive(Clone, Copy, Debug)]
pub enum WatchedSource<'a> {
    /// What an app, or another thread of this process, rings.
    Doorbell(&'a Doorbell),
    /// A transport's socket, by its number. Its engine owns it.
    Socket(RawFd),
}

/// The kernel's clock, scheduler and epoll.
pub struct KernelPlatform {
    poller: Poller,
    time_slice: TimeSlice,
}

impl KernelPlatform {
    /// Watches nothing yet.
    ///
    /// # Errors
    /// The process may open no more descriptors.
    pub fn create(time_slice: TimeSliceChoice) -> io::Result<KernelPlatform> {
        Ok(KernelPlatform {
            poller: Poller::create()?,
            time_slice: TimeSlice::new(time_slice),
        })
    }
}

impl RuntimePlatform for KernelPlatform {
    #[inline]
    fn now_ns(&self) -> Nanos {
        provost_shm::now_ns()
    }

    #[inline]
    fn yield_core(&mut self) {
        provost_shm::yield_now();
    }

    #[inline]
    fn begin_polling(&mut self) {
        self.time_slice.shorten();
    }

    fn end_polling(&mut self) {
        self.time_slice.restore();
    }

    fn watch(&mut self, source: WatchedSource<'_>, token: u64, interest: Interest) -> io::Result<()> {
        match source {
            WatchedSource::Doorbell(doorbell) => self.poller.add(doorbell, token, interest),
            WatchedSource::Socket(socket) => self.poller.add_number(socket, token, interest),
        }
    }

    fn watch_for(&mut self, source: WatchedSource<'_>, token: u64, interest: Interest) -> io::Result<()> {
        match source {
            WatchedSource::Doorbell(doorbell) => self.poller.modify(doorbell, token, interest),
            WatchedSource::Socket(socket) => self.poller.modify_number(socket, token, interest),
        }
    }

    fn unwatch(&mut self, source: WatchedSource<'_>) {
        // What was closed in between is watched no more in any case.
        let _ = match source {
            WatchedSource::Doorbell(doorbell) => self.poller.remove(doorbell),
            WatchedSource::Socket(socket) => self.poller.remove_number(socket),
        };
    }

    #[inline]
    fn wait(&mut self, wait: Wait, mut on_ready: impl FnMut(u64, Nanos)) {
        // An error of epoll_wait can only be a bug of ours; the next round tries again.
        if let Ok(events) = self.poller.wait(wait) {
            let woken_at = provost_shm::now_ns();
            events.for_each(|event| on_ready(event.token, woken_at));
        }
    }
}
