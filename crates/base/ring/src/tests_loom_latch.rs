//! Every interleaving and ordering that loom knows, of the words by which threads wake a sleeper, and of the role among
//! those that wait for a ring. Run with `RUSTFLAGS="--cfg loom" cargo test -p provost-ring --release`.

use loom::sync::{Arc, Condvar, Mutex, MutexGuard};
use loom::thread;

use crate::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::{
    Bell, DoorbellWatcher, RingDelivery, RingDrain, RoleHolder, RoleTaken, Sleeper, WaiterRole, WakeLatch,
    WakeOnce,
};

/// A thread is preempted so often in one run, at most, unless `LOOM_MAX_PREEMPTIONS` says otherwise: more take minutes.
const PREEMPTIONS_MAX: usize = 2;

fn explore(model: impl Fn() + Sync + Send + 'static) {
    explore_with(PREEMPTIONS_MAX, model);
}

fn explore_with(preemptions_max: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(preemptions_max);
    builder.check(model);
}

/// A doorbell that stays rung until somebody has waited at it.
struct StickyDoorbell {
    is_rung: Mutex<bool>,
    ring: Condvar,
}

impl StickyDoorbell {
    fn new() -> StickyDoorbell {
        StickyDoorbell {
            is_rung: Mutex::new(false),
            ring: Condvar::new(),
        }
    }

    fn notify(&self) {
        *self.is_rung.lock().unwrap() = true;
        self.ring.notify_one();
    }

    fn wait(&self) {
        let mut is_rung = self.is_rung.lock().unwrap();
        while !*is_rung {
            is_rung = self.ring.wait(is_rung).unwrap();
        }
        *is_rung = false;
    }
}

/// A sleeper with a queue of numbers and one of things that were woken, each a word: a bit for what is in it.
struct Thread {
    gate: WakeLatch,
    commands: AtomicU64,
    woken: AtomicU64,
    doorbell: StickyDoorbell,
}

impl Thread {
    fn new() -> Arc<Thread> {
        Arc::new(Thread {
            gate: WakeLatch::default(),
            commands: AtomicU64::new(0),
            woken: AtomicU64::new(0),
            doorbell: StickyDoorbell::new(),
        })
    }

    fn announce(&self) {
        if self.gate.announce() {
            self.doorbell.notify();
        }
    }
}

#[test]
fn what_is_announced_is_taken_however_the_sleeper_falls_asleep() {
    explore(|| {
        let shared = Thread::new();
        let announcers = [1, 2].map(|bit| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                shared.commands.fetch_or(bit, Ordering::Relaxed);
                shared.announce();
            })
        });
        let mut taken = 0;
        // A wake-up that is lost is a deadlock, which loom reports.
        while taken != 3 {
            if shared.gate.take_pending() {
                taken |= shared.commands.swap(0, Ordering::Relaxed);
            } else if shared.gate.prepare_sleep() {
                shared.doorbell.wait();
                shared.gate.awake();
            }
        }
        announcers.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn what_is_woken_while_it_settles_is_looked_at() {
    explore(|| {
        let shared = Thread::new();
        let (once, given) = (Arc::new(WakeOnce::default()), Arc::new(AtomicU32::new(0)));
        let waker = {
            let (shared, once, given) = (Arc::clone(&shared), Arc::clone(&once), Arc::clone(&given));
            thread::spawn(move || {
                // Twice, as a peer gives twice: the second may be named by the first.
                for number in [1, 2] {
                    given.store(number, Ordering::Relaxed);
                    if let Some(place) = once.wake() {
                        shared.woken.fetch_or(1 << place, Ordering::Relaxed);
                        shared.announce();
                    }
                }
            })
        };
        once.settle(0);
        let mut seen = given.load(Ordering::Relaxed);
        while seen != 2 {
            if shared.gate.take_pending() {
                if shared.woken.swap(0, Ordering::Relaxed) != 0 {
                    once.take();
                    seen = given.load(Ordering::Relaxed);
                }
            } else if shared.gate.prepare_sleep() {
                shared.doorbell.wait();
                shared.gate.awake();
            }
        }
        waker.join().unwrap();
    });
}

/// A ring in which nothing ever comes: only who looks at it matters.
struct EmptyRing {
    role: WaiterRole,
    is_drained: AtomicBool,
    /// Bits of the waiters that were woken.
    woken: AtomicU64,
}

struct EmptyDrain<'a>(&'a EmptyRing);

impl RingDrain for EmptyDrain<'_> {
    fn arm(&mut self, _watcher: DoorbellWatcher) -> bool {
        true
    }

    fn disarm(&mut self) {}

    fn set_watcher(&mut self, _watcher: DoorbellWatcher) {}

    fn take_rings(&mut self) -> bool {
        true
    }

    fn run(&mut self) -> bool {
        false
    }
}

impl Drop for EmptyDrain<'_> {
    fn drop(&mut self) {
        self.0.is_drained.store(false, Ordering::SeqCst);
    }
}

impl EmptyRing {
    fn new() -> Arc<EmptyRing> {
        Arc::new(EmptyRing {
            role: WaiterRole::default(),
            is_drained: AtomicBool::new(false),
            woken: AtomicU64::new(0),
        })
    }

    fn drain(&self) -> Option<EmptyDrain<'_>> {
        let was = self.is_drained.swap(true, Ordering::SeqCst);
        (!was).then_some(EmptyDrain(self))
    }

    fn settle(&self) {
        let wake = |id: u64| {
            self.woken.fetch_or(1 << id, Ordering::SeqCst);
            true
        };
        self.role.settle(wake, || self.drain());
    }

    /// A waiter that waits and, if it does not get the role, returns to its executor.
    fn wait(&self, id: u64) {
        self.role.enter();
        let _ = self.role.take(id, || false);
    }

    fn leave(&self, id: u64) {
        self.role.leave(id);
        self.settle();
    }

    /// Whether a waiter that is left is looked after.
    fn is_looked_after(&self, id: u64) -> bool {
        self.role.holder() != RoleHolder::Nobody || self.woken.load(Ordering::SeqCst) & 1 << id != 0
    }
}

#[test]
fn who_leaves_does_not_leave_another_waiting_for_nobody() {
    explore(|| {
        let ring = EmptyRing::new();
        ring.wait(2);
        let leaver = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || ring.leave(2))
        };
        ring.wait(3);
        leaver.join().unwrap();
        assert!(ring.is_looked_after(3), "{:?}", ring.role);
    });
}

#[test]
fn who_drains_without_the_role_does_not_leave_another_waiting_for_nobody() {
    explore(|| {
        let ring = EmptyRing::new();
        ring.wait(2);
        ring.wait(3);
        let threads = [
            {
                let ring = Arc::clone(&ring);
                thread::spawn(move || ring.leave(2))
            },
            {
                let ring = Arc::clone(&ring);
                // It looks in, for something else of the link.
                thread::spawn(move || {
                    drop(ring.drain());
                    ring.settle();
                })
            },
        ];
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(ring.is_looked_after(3), "{:?}", ring.role);
    });
}

#[test]
fn one_of_two_waiters_has_the_role() {
    explore(|| {
        let ring = EmptyRing::new();
        let other = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || {
                ring.role.enter();
                ring.role.take(2, || false)
            })
        };
        ring.role.enter();
        let taken = ring.role.take(3, || false);
        let others = other.join().unwrap();
        assert!(
            (taken == RoleTaken::No) != (others == RoleTaken::No),
            "{taken:?} {others:?}"
        );
    });
}

/// A ring of which all waiters sleep, and whose doorbell the program's runtime watches.
struct SleptRing {
    role: WaiterRole,
    /// Who has it empties the ring. `None` until the ring lies where it stays.
    sleeper: Mutex<Option<Sleeper>>,
    /// What is in the ring.
    entries: AtomicU32,
    wake: AtomicU32,
    /// The doorbell is rung, and nobody has heard it. A lock, as the kernel has one for a doorbell.
    is_rung: Mutex<bool>,
    delivered: AtomicU32,
}

struct SleptDrain<'a> {
    ring: &'a SleptRing,
    guard: MutexGuard<'a, Option<Sleeper>>,
}

impl SleptDrain<'_> {
    fn sleeper(&mut self) -> &mut Sleeper {
        self.guard.as_mut().unwrap()
    }
}

impl RingDrain for SleptDrain<'_> {
    fn arm(&mut self, watcher: DoorbellWatcher) -> bool {
        self.sleeper().disarm();
        self.sleeper().arm();
        if self.ring.entries.load(Ordering::Acquire) != 0 {
            self.sleeper().disarm();
            return false;
        }
        self.set_watcher(watcher);
        true
    }

    fn disarm(&mut self) {
        self.sleeper().disarm();
    }

    fn set_watcher(&mut self, watcher: DoorbellWatcher) {
        self.ring.role.set_watcher(watcher);
    }

    fn take_rings(&mut self) -> bool {
        *self.ring.is_rung.lock().unwrap() = false;
        true
    }

    fn run(&mut self) -> bool {
        let found = self.ring.entries.swap(0, Ordering::AcqRel);
        self.ring.delivered.fetch_add(found, Ordering::Relaxed);
        found != 0
    }
}

impl SleptRing {
    fn new() -> Arc<SleptRing> {
        let ring = Arc::new(SleptRing {
            role: WaiterRole::default(),
            sleeper: Mutex::new(None),
            entries: AtomicU32::new(0),
            wake: AtomicU32::new(0),
            is_rung: Mutex::new(false),
            delivered: AtomicU32::new(0),
        });
        // SAFETY: the word lives as long as the ring, which has the sleeper.
        *ring.sleeper.lock().unwrap() = Some(unsafe { Sleeper::new(&ring.wake) });
        assert!(ring.role.pass(RoleHolder::Nobody, RoleHolder::Asleep));
        let is_armed = ring.drain().arm(DoorbellWatcher::Runtime);
        assert!(is_armed);
        ring
    }

    fn drain(&self) -> SleptDrain<'_> {
        let guard = self.sleeper.lock().unwrap();
        SleptDrain { ring: self, guard }
    }

    /// A service that has one thing for the ring.
    fn serve(&self, bell: &mut Bell) {
        self.entries.fetch_add(1, Ordering::Release);
        if bell.needed() {
            *self.is_rung.lock().unwrap() = true;
        }
    }

    /// One that watches the doorbell is woken if it is rung.
    fn on_wake(&self, watcher: DoorbellWatcher) {
        let is_rung = *self.is_rung.lock().unwrap();
        if is_rung {
            self.role.deliver(watcher, || self.drain());
        }
    }
}

#[test]
fn what_the_runtime_was_rung_for_is_delivered_when_the_reactor_takes_over_meanwhile() {
    // The runtime before the reactor, the service while the runtime is half way through, and the reactor before it goes on.
    explore_with(PREEMPTIONS_MAX + 1, || {
        let ring = SleptRing::new();
        // SAFETY: the word lives as long as the ring, which the service's thread holds.
        let mut bell = unsafe { Bell::new(&ring.wake) };
        ring.serve(&mut bell);
        let service = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || ring.serve(&mut bell))
        };
        let runtime = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || ring.on_wake(DoorbellWatcher::Runtime))
        };
        let taken = ring.role.take_watch_over(|| ring.drain());
        assert_ne!(taken, RingDelivery::OfAnother);
        service.join().unwrap();
        runtime.join().unwrap();
        // The reactor hears the doorbell from now on, and the runtime no more.
        ring.on_wake(DoorbellWatcher::Reactor);
        assert_eq!(ring.delivered.load(Ordering::Relaxed), 2);
        assert!(ring.role.is_watched_by(DoorbellWatcher::Reactor));
    });
}
