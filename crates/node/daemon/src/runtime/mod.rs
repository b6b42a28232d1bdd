//! The threads of the data plane.
//!
//! A runtime polls the rings of its apps and their datapaths, in order, in bounded batches. What had no work for a
//! while becomes dormant: the app's wake word is armed, the socket is left to the poller. When everything is dormant
//! the thread sleeps, until a doorbell, a socket, another thread or a timer wakes it; an idle service uses no CPU.

mod app;
mod command;
mod events;
mod freeze;
mod load;
mod path;
mod reshape;
mod slots;
mod spent;
mod timers;
mod traffic;
mod wake;
mod worker;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use provost_datapath::Nanos;
use provost_shm::{Doorbell, now_ns};
use tokio::sync::mpsc;

pub use command::{AppId, Command, ConnectionId, NewApp, NewConnection, RuntimeEvent, Waiting};
pub use freeze::{
    AdoptedApp, AdoptedConnection, ConnectionPhase, Frozen, SavedApp, SavedConnection, SavedEngineTag,
    SavedRange,
};
pub use load::Load;
pub use reshape::{
    Before, Describe, Described, Done, EngineFailed, Fitted, Guard, NotReshaped, PathDescription, Planned,
    Remedy, Reshape, RetiredEngine, StandIn, Tag, Trial,
};
pub(crate) use reshape::{TRIAL_NS, TRIALS_KEPT_MAX};
pub use spent::Spent;
pub use traffic::{QUEUEING_SECONDS, Traffic};
pub use wake::PathWaker;

use load::LoadCells;
use spent::SpentCells;
use traffic::{TrafficCells, TrafficCounter};
use wake::Inbox;
use worker::Worker;

/// Stack of a runtime thread, in bytes.
const STACK_BYTES: usize = 512 << 10;
/// Between two attempts to give a command to a runtime whose inbox is full.
const RETRY_COMMAND: Duration = Duration::from_millis(1);

/// How a runtime waits and judges.
#[derive(Clone, Copy, Debug)]
pub struct RuntimeOptions {
    /// How long it polls after the last work before it sleeps.
    pub spin_ns: Nanos,
    /// Whether it ever sleeps.
    pub waiting: Waiting,
    /// How long an app may leave its completion ring full.
    pub completion_stall_ns: Nanos,
}

/// Where a runtime's thread tells about itself.
struct Told {
    spent: Arc<SpentCells>,
    load: Arc<LoadCells>,
    traffic: TrafficCounter,
}

/// A handle to a runtime thread.
pub struct Runtime {
    inbox: Arc<Inbox>,
    apps: AtomicUsize,
    spent: Arc<SpentCells>,
    load: Arc<LoadCells>,
    traffic: Arc<TrafficCells>,
    thread: Option<JoinHandle<()>>,
}

/// A runtime took no command for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a runtime thread takes no commands: the node is overloaded")]
pub struct Overloaded;

impl Runtime {
    /// Starts a thread. What it has to tell goes to `events`.
    pub fn start(
        name: &str,
        options: RuntimeOptions,
        events: mpsc::Sender<RuntimeEvent>,
    ) -> io::Result<Runtime> {
        let (ringer, doorbell): (_, Doorbell) = Doorbell::create()?;
        let inbox = Arc::new(Inbox::new(ringer));
        let spent = Arc::new(SpentCells::new(now_ns()));
        let load = Arc::new(LoadCells::default());
        let traffic = Arc::new(TrafficCells::default());
        let told = Told {
            spent: Arc::clone(&spent),
            load: Arc::clone(&load),
            traffic: TrafficCounter::new(Arc::clone(&traffic)),
        };
        let worker = Worker::new(Arc::clone(&inbox), doorbell, options, events, told)?;
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || worker.run())?;
        Ok(Runtime {
            inbox,
            apps: AtomicUsize::new(0),
            spent,
            load,
            traffic,
            thread: Some(thread),
        })
    }

    /// Gives it a command, waiting a while if its inbox is full.
    pub async fn tell(&self, mut command: Command) -> Result<(), Overloaded> {
        const ATTEMPTS_MAX: usize = 5000;
        for _ in 0..ATTEMPTS_MAX {
            match self.inbox.push(command) {
                Ok(()) => return Ok(()),
                Err(back) => command = back,
            }
            tokio::time::sleep(RETRY_COMMAND).await;
        }
        Err(Overloaded)
    }

    /// A waker for a datapath that will be opened on this runtime.
    #[must_use]
    pub fn new_waker(&self) -> Arc<PathWaker> {
        Arc::new(PathWaker::new(Arc::clone(&self.inbox)))
    }

    /// What its thread has spent its time with.
    #[must_use]
    pub fn spent(&self) -> Spent {
        self.spent.read()
    }

    /// How full the rings of its apps are, and what their receive heaps take.
    #[must_use]
    pub fn load(&self) -> Load {
        self.load.read()
    }

    /// What goes through it.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        self.traffic.read()
    }

    /// Apps that were placed here and not taken away.
    #[must_use]
    pub fn apps(&self) -> usize {
        self.apps.load(Ordering::Relaxed)
    }

    /// Counts an app that is placed here.
    pub fn place_app(&self) {
        self.apps.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts an app that is no longer here.
    pub fn remove_app(&self) {
        self.apps.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        let mut stop = Command::Stop;
        while let Err(back) = self.inbox.push(stop) {
            stop = back;
            std::thread::sleep(RETRY_COMMAND);
            if self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
                break;
            }
        }
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported by its own hook.
            let _ = thread.join();
        }
    }
}
