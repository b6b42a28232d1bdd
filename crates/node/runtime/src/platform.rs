//! What a runtime asks of the machine: the time, its core, and which descriptors are ready.
//!
//! A runtime is generic over it, so that the thread of a node calls the kernel directly, and the simulator gives it a clock
//! and sockets of its own. Doorbells are pipes on both: they are passed between processes of the service as descriptors.

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicUsize, Ordering};

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

/// A runtime to which nothing has happened for so long is at rest.
const REST_NS: u64 = 500_000_000;

/// Runtimes of this process that are not at rest.
static AWAKE: AtomicUsize = AtomicUsize::new(0);

/// Whether a runtime is at rest. Each gives back the end of its arena then, and the last one all that is free.
struct RestState {
    is_at_rest: bool,
}

impl RestState {
    fn new() -> RestState {
        AWAKE.fetch_add(1, Ordering::Relaxed);
        RestState { is_at_rest: false }
    }

    /// Whether nothing in so long a sleep brings the runtime to rest.
    fn is_coming(&self, wait: Wait) -> bool {
        let is_long = match wait {
            Wait::Now => false,
            Wait::AtMost(nanos) => nanos >= REST_NS,
            Wait::Forever => true,
        };
        is_long && !self.is_at_rest
    }

    fn wake(&mut self) {
        if std::mem::replace(&mut self.is_at_rest, false) {
            AWAKE.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn rest(&mut self) {
        self.is_at_rest = true;
        if AWAKE.fetch_sub(1, Ordering::Relaxed) == 1 {
            provost_shm::release_freed_memory();
        } else {
            provost_shm::release_freed_memory_of_thread();
        }
    }
}

impl Drop for RestState {
    fn drop(&mut self) {
        if !self.is_at_rest {
            AWAKE.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// The kernel's clock, scheduler and epoll.
pub struct KernelPlatform {
    poller: Poller,
    time_slice: TimeSlice,
    rest: RestState,
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
            rest: RestState::new(),
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
        let is_coming_to_rest = self.rest.is_coming(wait);
        let wait = if is_coming_to_rest {
            Wait::AtMost(REST_NS)
        } else {
            wait
        };
        // An error of epoll_wait can only be a bug of ours; the next round tries again.
        let Ok(events) = self.poller.wait(wait) else {
            return;
        };
        let (woken_at, mut is_any) = (provost_shm::now_ns(), false);
        events.for_each(|event| {
            is_any = true;
            on_ready(event.token, woken_at);
        });
        if is_any {
            self.rest.wake();
        } else if is_coming_to_rest {
            self.rest.rest();
        }
    }
}
