//! Waking a runtime from other threads: for a command, or because a local peer gave one of its datapaths something.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};

use crossbeam_queue::ArrayQueue;
use provost_shm::Ringer;
use provost_transport_local::PeerWake;

use super::command::Command;

/// Datapaths that were woken and not polled yet, at most; past it, all are polled.
const WOKEN_MAX: usize = 1024;
/// Commands that wait for a runtime, at most.
const COMMANDS_MAX: usize = 256;
/// [`PathWaker::path`] of a datapath that no runtime polls yet.
const NOWHERE: u32 = u32::MAX;

/// What other threads share with a runtime.
pub(super) struct Inbox {
    commands: ArrayQueue<Command>,
    woken: ArrayQueue<u32>,
    /// More were woken than `woken` holds.
    all_woken: AtomicBool,
    /// There may be something in one of the above.
    pending: AtomicBool,
    /// The runtime sleeps, or is about to.
    sleeping: AtomicBool,
    ringer: Ringer,
}

impl Inbox {
    pub(super) fn new(ringer: Ringer) -> Inbox {
        Inbox {
            commands: ArrayQueue::new(COMMANDS_MAX),
            woken: ArrayQueue::new(WOKEN_MAX),
            all_woken: AtomicBool::new(false),
            pending: AtomicBool::new(false),
            sleeping: AtomicBool::new(false),
            ringer,
        }
    }

    /// Gives the runtime a command; it comes back when too many wait.
    pub(super) fn push(&self, command: Command) -> Result<(), Command> {
        self.commands.push(command)?;
        self.notify();
        Ok(())
    }

    fn wake_path(&self, path: u32) {
        if self.woken.push(path).is_err() {
            self.all_woken.store(true, Ordering::Release);
        }
        self.notify();
    }

    fn notify(&self) {
        self.pending.store(true, Ordering::Release);
        // Pairs with the fence in `prepare_sleep`: either the runtime sees what is pending, or we see that it sleeps.
        fence(Ordering::SeqCst);
        if self.sleeping.load(Ordering::Relaxed) && self.sleeping.swap(false, Ordering::Relaxed) {
            // Fails only when the runtime is gone.
            let _ = self.ringer.ring();
        }
    }

    /// Whether there may be something to take; says so once for each time something came.
    pub(super) fn take_pending(&self) -> bool {
        self.pending.load(Ordering::Relaxed) && self.pending.swap(false, Ordering::Acquire)
    }

    pub(super) fn pop_command(&self) -> Option<Command> {
        self.commands.pop()
    }

    pub(super) fn pop_woken(&self) -> Option<u32> {
        self.woken.pop()
    }

    pub(super) fn take_all_woken(&self) -> bool {
        self.all_woken.swap(false, Ordering::Acquire)
    }

    /// Says that the runtime is about to sleep, and whether it may: nothing is pending.
    pub(super) fn prepare_sleep(&self) -> bool {
        self.sleeping.store(true, Ordering::Relaxed);
        // Pairs with the fence in `notify`.
        fence(Ordering::SeqCst);
        let may_sleep = !self.pending.load(Ordering::Relaxed);
        if !may_sleep {
            self.awake();
        }
        may_sleep
    }

    pub(super) fn awake(&self) {
        self.sleeping.store(false, Ordering::Relaxed);
    }
}

/// Makes one datapath be polled soon.
pub struct PathWaker {
    inbox: Arc<Inbox>,
    path: AtomicU32,
    /// It is in the inbox already.
    woken: AtomicBool,
}

impl PathWaker {
    pub(super) fn new(inbox: Arc<Inbox>) -> PathWaker {
        PathWaker {
            inbox,
            path: AtomicU32::new(NOWHERE),
            woken: AtomicBool::new(false),
        }
    }

    /// The runtime polls the datapath under this number from now on, the first time after this.
    pub(super) fn settle(&self, path: u32) {
        self.path.store(path, Ordering::Release);
        // Whoever woke it before it was anywhere has not reached the inbox: that must not keep others from it.
        self.woken.swap(false, Ordering::AcqRel);
    }

    /// The runtime is about to poll it: what comes from now on needs another wake-up.
    pub(super) fn take(&self) {
        // Acquire pairs with the swap in `wake`: what was put in a lane before it is seen by the poll.
        self.woken.swap(false, Ordering::AcqRel);
    }
}

impl PeerWake for PathWaker {
    fn wake(&self) {
        if self.woken.swap(true, Ordering::AcqRel) {
            return;
        }
        match self.path.load(Ordering::Acquire) {
            // It will be polled when it has settled.
            NOWHERE => {}
            path => self.inbox.wake_path(path),
        }
    }
}
