//! Waking a runtime from other threads: for a command, or because a local peer gave one of its datapaths something. The
//! words are `base/ring`'s, where loom explores them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_queue::ArrayQueue;
use provost_ring::{WakeLatch, WakeOnce};
use provost_shm::Ringer;

use crate::command::RuntimeCommand;
use crate::mutation::Mutation;

/// Datapaths that were woken and not polled yet, at most; past it, all are polled.
const WOKEN_MAX: usize = 1024;
/// Commands that wait for a runtime, at most.
const COMMANDS_MAX: usize = 256;

/// What other threads share with a runtime.
pub(crate) struct CommandInbox {
    commands: ArrayQueue<RuntimeCommand>,
    woken: ArrayQueue<u32>,
    /// More were woken than `woken` holds.
    all_woken: AtomicBool,
    /// Whether there may be something in one of the above, and whether the runtime sleeps.
    pub(crate) gate: WakeLatch,
    ringer: Ringer,
}

impl CommandInbox {
    pub(crate) fn new(ringer: Ringer) -> CommandInbox {
        CommandInbox {
            commands: ArrayQueue::new(COMMANDS_MAX),
            woken: ArrayQueue::new(WOKEN_MAX),
            all_woken: AtomicBool::new(false),
            gate: WakeLatch::default(),
            ringer,
        }
    }

    /// Gives the runtime a command; it comes back when too many wait.
    pub(crate) fn push(&self, command: RuntimeCommand) -> Result<(), RuntimeCommand> {
        self.commands.push(command)?;
        self.announce();
        Ok(())
    }

    fn wake_path(&self, path: u32) {
        if self.woken.push(path).is_err() {
            self.all_woken.store(true, Ordering::Release);
        }
        self.announce();
    }

    fn announce(&self) {
        if self.gate.announce() {
            // Fails only when the runtime is gone.
            let _ = self.ringer.ring();
        }
    }

    pub(crate) fn pop_command(&self) -> Option<RuntimeCommand> {
        self.commands.pop()
    }

    pub(crate) fn pop_woken(&self) -> Option<u32> {
        self.woken.pop()
    }

    pub(crate) fn take_all_woken(&self) -> bool {
        self.all_woken.swap(false, Ordering::Acquire)
    }
}

/// Makes one datapath be polled soon.
pub struct DatapathWaker {
    inbox: Arc<CommandInbox>,
    once: WakeOnce,
}

impl DatapathWaker {
    pub(crate) fn new(inbox: Arc<CommandInbox>) -> DatapathWaker {
        DatapathWaker {
            inbox,
            once: WakeOnce::default(),
        }
    }

    /// The runtime polls the datapath under this number from now on, the first time after this.
    pub(crate) fn settle(&self, path: u32) {
        self.once.settle(path);
    }

    /// The runtime is about to poll it: what comes from now on needs another wake-up.
    pub(crate) fn take(&self) {
        if !Mutation::LostWakeup.is_active() {
            self.once.take();
        }
    }

    /// Makes the datapath be polled soon. Cheap when it is about to be polled anyway.
    pub fn wake(&self) {
        if let Some(path) = self.once.wake() {
            self.inbox.wake_path(path);
        }
    }
}
