//! The threads of the data plane.
//!
//! A runtime polls the rings of its apps and their datapaths, in order, in bounded batches. What had no work for a
//! while becomes dormant: the app's wake word is armed, the socket is left to the poller. When everything is dormant
//! the thread sleeps, until a doorbell, a socket, another thread or a timer wakes it; an idle service uses no CPU.

#![forbid(unsafe_code)]

mod blocked_steps;
mod call_port;
mod caller_port;
mod callers;
mod command;
mod engines;
mod events;
mod freeze;
mod frozen;
mod ids;
mod inbox;
mod load;
mod mutation;
mod numbered_slots;
mod orders;
mod platform;
mod poll_token;
mod polled_app;
mod polled_datapath;
mod reconfigure;
mod relay;
mod reply;
mod time_spent;
mod timers;
mod traffic;
mod worker;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use provost_datapath::Nanos;
use provost_shm::{Doorbell, TimeSliceChoice, now_ns};

pub use call_port::{CallPort, NamedBlocks, SavedPort};
pub use command::{
    CallerAnswer, CallerEnding, NewApp, NewCaller, NewConnection, RuntimeCommand, ServiceAnswer,
};
pub use engines::{
    EngineProbation, EngineTag, FallbackEngine, FaultPlan, FittedEngine, PROBATION_NS, PROBATIONS_KEPT_MAX,
    StandIn, StartStandIn,
};
pub use events::{EventRefused, EventSink, RuntimeEvent};
pub use frozen::{
    AdoptedApp, AdoptedConnection, AdoptedPort, ConnectionPhase, FrozenRuntime, SavedApp, SavedApps,
    SavedAround, SavedBatches, SavedConnection, SavedEngineTag, SavedRange,
};
pub use ids::{AppId, ConnectionId, WaitMode};
pub use inbox::DatapathWaker;
pub use load::RuntimeLoad;
pub use mutation::Mutation;
pub use orders::{
    DatapathDescription, DatapathListing, DescribeOrder, EngineFailed, FaultRemedy, NotReconfigured,
    PlannedEngine, ReconfigureOrder, ReconfigureReport, RetiredEngine,
};
pub use platform::{KernelPlatform, RuntimePlatform, WatchedSource};
pub use relay::{RELAY_STATE_VERSION, RelayPort, RelayPortParts};
pub use reply::Reply;
pub use time_spent::TimeSpent;
pub use traffic::{QUEUEING_SECONDS, RuntimeTraffic};
pub use worker::{NextStep, RuntimeWorker};

use inbox::CommandInbox;
use load::LoadCells;
use time_spent::SpentCells;
use traffic::{TrafficCells, TrafficCounter};

/// Stack of a runtime thread, in bytes.
const STACK_BYTES: usize = 512 << 10;
/// Between two attempts to end a runtime whose inbox is full.
const RETRY_STOP: Duration = Duration::from_millis(1);

/// How a runtime waits and judges.
#[derive(Clone, Copy, Debug)]
pub struct RuntimeOptions {
    /// How long it polls after the last work before it sleeps.
    pub spin_ns: Nanos,
    /// Whether it ever sleeps.
    pub waiting: WaitMode,
    /// What slice of its core its thread has while it polls.
    pub time_slice: TimeSliceChoice,
    /// How long an app may leave its completion ring full.
    pub completion_stall_ns: Nanos,
}

/// Where a runtime's thread tells about itself.
struct RuntimeCounters {
    spent: Arc<SpentCells>,
    load: Arc<LoadCells>,
    traffic: TrafficCounter,
}

/// A handle to a runtime thread.
pub struct RuntimeHandle {
    inbox: Arc<CommandInbox>,
    apps: AtomicUsize,
    spent: Arc<SpentCells>,
    load: Arc<LoadCells>,
    traffic: Arc<TrafficCells>,
    thread: Option<JoinHandle<()>>,
}

impl RuntimeHandle {
    /// Starts a thread. What it has to tell goes to `events`.
    ///
    /// # Errors
    /// The process may have no more threads, or open no more descriptors.
    pub fn start(
        name: &str,
        options: RuntimeOptions,
        events: impl EventSink + 'static,
    ) -> io::Result<RuntimeHandle> {
        let (mut handle, worker) =
            RuntimeHandle::with_worker(KernelPlatform::create(options.time_slice)?, options, events)?;
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || worker.run())?;
        handle.thread = Some(thread);
        Ok(handle)
    }

    /// A runtime without a thread: whoever has the worker drives it.
    ///
    /// # Errors
    /// The process may open no more descriptors.
    pub fn with_worker<P: RuntimePlatform>(
        platform: P,
        options: RuntimeOptions,
        events: impl EventSink + 'static,
    ) -> io::Result<(RuntimeHandle, RuntimeWorker<P>)> {
        let (ringer, doorbell) = Doorbell::create()?;
        let inbox = Arc::new(CommandInbox::new(ringer));
        let spent = Arc::new(SpentCells::new(platform.now_ns()));
        let load = Arc::new(LoadCells::default());
        let traffic = Arc::new(TrafficCells::default());
        let counters = RuntimeCounters {
            spent: Arc::clone(&spent),
            load: Arc::clone(&load),
            traffic: TrafficCounter::new(Arc::clone(&traffic)),
        };
        let events = Box::new(events);
        let worker = RuntimeWorker::new(Arc::clone(&inbox), doorbell, platform, options, events, counters)?;
        let handle = RuntimeHandle {
            inbox,
            apps: AtomicUsize::new(0),
            spent,
            load,
            traffic,
            thread: None,
        };
        Ok((handle, worker))
    }

    /// Gives it a command.
    ///
    /// # Errors
    /// The command comes back when its inbox is full: it can be given again a little later.
    pub fn try_send(&self, command: RuntimeCommand) -> Result<(), RuntimeCommand> {
        self.inbox.push(command)
    }

    /// A waker for a datapath that will be opened on this runtime.
    #[must_use]
    pub fn new_waker(&self) -> Arc<DatapathWaker> {
        Arc::new(DatapathWaker::new(Arc::clone(&self.inbox)))
    }

    /// What its thread has spent its time with.
    #[must_use]
    pub fn spent(&self) -> TimeSpent {
        self.spent.read(now_ns())
    }

    /// How full the rings of its apps are, and what their receive heaps take.
    #[must_use]
    pub fn load(&self) -> RuntimeLoad {
        self.load.read(now_ns())
    }

    /// What goes through it.
    #[must_use]
    pub fn traffic(&self) -> RuntimeTraffic {
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

impl Drop for RuntimeHandle {
    fn drop(&mut self) {
        let mut stop = RuntimeCommand::Stop;
        while let Err(back) = self.inbox.push(stop) {
            stop = back;
            std::thread::sleep(RETRY_STOP);
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
