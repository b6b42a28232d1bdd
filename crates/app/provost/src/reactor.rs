//! The one thread of this library, started with the first attachment: it sleeps at the doorbells and control sockets
//! of all links and until their next deadline, and wakes the tasks that wait.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use provost_shm::{AsFd, Doorbell, Interest, Poller, Ringer, Wait, now_ns};

use crate::link::Link;
use crate::waker_list::wake;

/// What the thread's poller watches.
const WOKEN: u64 = 0;
const DOORBELLS: u64 = 1;
const SOCKETS: u64 = 2;

/// How long after an attempt to start the thread has failed those who wait for a time make no further one.
const START_PAUSE_NS: u64 = 10_000_000;

/// See the module's documentation. Others reach it by its shared parts.
pub(crate) struct Reactor {
    woken: Ringer,
    /// Watches the doorbells of links that sleep.
    doorbells: Poller,
    /// Watches the control sockets of all links.
    sockets: Poller,
    links: Mutex<Vec<Weak<Link>>>,
    timers: Mutex<BTreeMap<(u64, u64), Waker>>,
    /// Until when the thread sleeps, in nanoseconds of CLOCK_MONOTONIC; 0 while it works.
    sleeps_until_ns: AtomicU64,
    numbers: AtomicU64,
}

static REACTOR: OnceLock<Arc<Reactor>> = OnceLock::new();

/// When the thread could not be started the last time, in nanoseconds of CLOCK_MONOTONIC; 0 for never.
static FAILED_NS: AtomicU64 = AtomicU64::new(0);

impl Reactor {
    /// The reactor; its thread is started when it is first asked for.
    pub(crate) fn get() -> io::Result<&'static Reactor> {
        static STARTING: Mutex<()> = Mutex::new(());
        if let Some(reactor) = REACTOR.get() {
            return Ok(&**reactor);
        }
        let _one_at_a_time = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(reactor) = REACTOR.get() {
            return Ok(&**reactor);
        }
        Reactor::start().inspect_err(|_| FAILED_NS.store(now_ns(), Ordering::Relaxed))
    }

    /// The reactor, unless the attempt to start it has failed just now.
    fn get_now_and_then() -> Option<&'static Reactor> {
        let failed_ns = FAILED_NS.load(Ordering::Relaxed);
        if failed_ns != 0 && now_ns().saturating_sub(failed_ns) < START_PAUSE_NS {
            return REACTOR.get().map(|reactor| &**reactor);
        }
        Reactor::get().ok()
    }

    fn start() -> io::Result<&'static Reactor> {
        let (ringer, doorbell) = Doorbell::create()?;
        let (doorbells, sockets, poller) = (Poller::create()?, Poller::create()?, Poller::create()?);
        poller.add(doorbell.as_fd(), WOKEN, Interest::Readable)?;
        poller.add(doorbells.as_fd(), DOORBELLS, Interest::Readable)?;
        poller.add(sockets.as_fd(), SOCKETS, Interest::Readable)?;
        let reactor = Arc::new(Reactor {
            woken: ringer,
            doorbells,
            sockets,
            links: Mutex::default(),
            timers: Mutex::default(),
            sleeps_until_ns: AtomicU64::new(0),
            numbers: AtomicU64::new(1),
        });
        let running = reactor.clone();
        let name = std::thread::Builder::new().name("provost-reactor".to_owned());
        name.spawn(move || running.run(poller, &doorbell))?;
        // Only now: without its thread it is none, and whoever asks next tries again.
        Ok(&**REACTOR.get_or_init(|| reactor))
    }

    pub(crate) fn new_link_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Looks after a link until it ends.
    pub(crate) fn watch(&self, link: &Arc<Link>) -> io::Result<()> {
        self.sockets.add(link.socket(), link.number, Interest::Readable)?;
        lock(&self.links).push(Arc::downgrade(link));
        Ok(())
    }

    /// Looks after a link no more.
    pub(crate) fn unwatch(link: &Link) {
        if let Some(reactor) = REACTOR.get() {
            let _ = reactor.sockets.remove(link.socket());
            lock(&reactor.links).retain(|other| {
                // Upgrading could make this the last owner, whose drop would come back here; comparing does not.
                other.as_ptr() != std::ptr::from_ref(link)
            });
        }
    }

    /// Begins or ends to watch a link's doorbell.
    pub(crate) fn watch_doorbell(link: &Link, on: bool) {
        if let Some(reactor) = REACTOR.get() {
            // Failing to watch would need a broken epoll; the ticks still find what comes.
            let _ = if on {
                reactor
                    .doorbells
                    .add(link.doorbell().as_fd(), link.number, Interest::Readable)
            } else {
                reactor.doorbells.remove(link.doorbell().as_fd())
            };
        }
    }

    /// Has the thread look around at this time at the latest.
    pub(crate) fn wake_before(time_ns: u64) {
        if let Some(reactor) = REACTOR.get()
            && reactor.sleeps_until_ns.load(Ordering::SeqCst) > time_ns
        {
            let _ = reactor.woken.ring();
        }
    }

    fn run(&self, mut poller: Poller, woken: &Doorbell) {
        let mut links: Vec<Arc<Link>> = Vec::new();
        loop {
            links.extend(lock(&self.links).iter().filter_map(Weak::upgrade));
            let now = now_ns();
            links.iter().for_each(|link| link.tick(now));
            self.fire_timers(now);
            let until_ns = self.next_due_ns(&links);
            self.sleeps_until_ns.store(until_ns, Ordering::SeqCst);
            // Whoever asked for an earlier time before the store above did not ring.
            let until_ns = until_ns.min(self.next_due_ns(&links));
            links.clear();
            let (mut was_woken, mut doorbells, mut sockets) = (false, false, false);
            if let Ok(events) = poller.wait(wait_until(until_ns)) {
                for event in events {
                    was_woken |= event.token == WOKEN;
                    doorbells |= event.token == DOORBELLS;
                    sockets |= event.token == SOCKETS;
                }
            }
            self.sleeps_until_ns.store(0, Ordering::SeqCst);
            if was_woken {
                let _ = woken.drain();
            }
            if doorbells || sockets {
                links.extend(lock(&self.links).iter().filter_map(Weak::upgrade));
            }
            if sockets {
                links.iter().for_each(|link| link.receive_control());
            }
            if doorbells {
                links.iter().for_each(|link| link.on_doorbell());
            }
            links.clear();
        }
    }

    fn next_due_ns(&self, links: &[Arc<Link>]) -> u64 {
        let timer_ns = lock(&self.timers)
            .keys()
            .next()
            .map_or(u64::MAX, |(due_ns, _)| *due_ns);
        links
            .iter()
            .map(|link| link.next_tick_ns())
            .fold(timer_ns, u64::min)
    }

    fn fire_timers(&self, now: u64) {
        let mut timers = lock(&self.timers);
        let later = timers.split_off(&(now + 1, 0));
        let due = std::mem::replace(&mut *timers, later);
        drop(timers);
        due.into_values().for_each(wake);
    }
}

fn wait_until(until_ns: u64) -> Wait {
    match until_ns {
        u64::MAX => Wait::Forever,
        until_ns => Wait::AtMost(until_ns.saturating_sub(now_ns())),
    }
}

/// Ready when its time has come.
pub(crate) struct Timer {
    due_ns: u64,
    key: Option<(u64, u64)>,
}

impl Timer {
    pub(crate) fn new(after: Duration) -> Timer {
        let after_ns = u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
        Timer::at(now_ns().saturating_add(after_ns))
    }

    /// At a time of CLOCK_MONOTONIC, in nanoseconds.
    pub(crate) fn at(due_ns: u64) -> Timer {
        Timer { due_ns, key: None }
    }

    pub(crate) fn poll(&mut self, context: &Context<'_>) -> Poll<()> {
        if now_ns() >= self.due_ns {
            return Poll::Ready(());
        }
        // Nothing may be attached yet. Without a thread to wait for it, the time is polled for.
        let Some(reactor) = Reactor::get_now_and_then() else {
            std::thread::yield_now();
            context.waker().wake_by_ref();
            return Poll::Pending;
        };
        let key = *self
            .key
            .get_or_insert_with(|| (self.due_ns, reactor.new_link_number()));
        // Dropped without the lock: it may be the last owner of a task that has a timer.
        let replaced = lock(&reactor.timers).insert(key, context.waker().clone());
        drop(replaced);
        Reactor::wake_before(self.due_ns);
        Poll::Pending
    }

    pub(crate) async fn wait(mut self) {
        std::future::poll_fn(|context| self.poll(context)).await;
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        if let (Some(key), Some(reactor)) = (self.key, REACTOR.get()) {
            let waker = lock(&reactor.timers).remove(&key);
            drop(waker);
        }
    }
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
