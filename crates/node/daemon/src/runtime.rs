//! The daemon's side of the data plane's threads: the names of [`provost_runtime`] that the daemon uses, joined to tokio's
//! channels.

use std::io;
use std::ops::{ControlFlow, Deref};
use std::time::Duration;

use provost_runtime::{EventRefused, EventSink, RuntimeHandle};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::oneshot;

pub use provost_runtime::{
    AdoptedApp, AdoptedConnection, AdoptedPort, AppId, ConnectionId, ConnectionPhase, DatapathDescription,
    DatapathWaker, DescribeOrder, EngineFailed, EngineProbation, EngineTag, FallbackEngine, FaultPlan,
    FaultRemedy, FittedEngine, FrozenRuntime, NewApp, NewConnection, NotReconfigured, PROBATION_NS,
    PROBATIONS_KEPT_MAX, PlannedEngine, QUEUEING_SECONDS, ReconfigureOrder, ReconfigureReport, Reply,
    RuntimeCommand, RuntimeEvent, RuntimeOptions, RuntimeTraffic, SavedApp, SavedApps, SavedAround,
    SavedConnection, SavedEngineTag, StandIn, TimeSpent, WaitMode,
};

/// Between two attempts to give a command to a runtime whose inbox is full.
const RETRY_COMMAND: Duration = Duration::from_millis(1);
/// Attempts to give it one command, at most.
const ATTEMPTS_MAX: usize = 5000;

/// A runtime took no command for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a runtime thread takes no commands: the node is overloaded")]
pub struct Overloaded;

/// A runtime thread of this node.
pub struct Runtime(RuntimeHandle);

impl Runtime {
    /// Starts a thread. Its events go to `events`.
    pub fn start(
        name: &str,
        options: RuntimeOptions,
        events: mpsc::Sender<RuntimeEvent>,
    ) -> io::Result<Runtime> {
        RuntimeHandle::start(name, options, ControlEvents(events)).map(Runtime)
    }

    /// Gives it a command, waiting a while if its inbox is full.
    pub async fn send(&self, mut command: RuntimeCommand) -> Result<(), Overloaded> {
        for _ in 0..ATTEMPTS_MAX {
            match self.0.try_send(command) {
                Ok(()) => return Ok(()),
                Err(back) => command = back,
            }
            tokio::time::sleep(RETRY_COMMAND).await;
        }
        Err(Overloaded)
    }
}

impl Deref for Runtime {
    type Target = RuntimeHandle;

    fn deref(&self) -> &RuntimeHandle {
        &self.0
    }
}

/// A runtime's events go into the queue of the control plane's thread.
struct ControlEvents(mpsc::Sender<RuntimeEvent>);

impl EventSink for ControlEvents {
    fn try_send(&mut self, event: RuntimeEvent) -> Result<(), EventRefused> {
        self.0.try_send(event).map_err(|refused| match refused {
            TrySendError::Full(event) => EventRefused::Full(event),
            TrySendError::Closed(_) => EventRefused::Closed,
        })
    }
}

/// A channel for the answer to one command.
pub(crate) fn reply<T: Send + 'static>() -> (Reply<T>, oneshot::Receiver<T>) {
    let (answer, answered) = oneshot::channel();
    // Whoever asked may be gone: the answer is dropped then.
    (Reply::new(move |value| drop(answer.send(value))), answered)
}

/// Batches that a runtime has saved and nobody has taken: it waits then.
const SAVED_BATCHES_MAX: usize = 4;

/// The apps of a frozen runtime, as it saves them. A runtime saves no more when this is dropped.
pub(crate) struct AppsBeingSaved {
    batches: mpsc::Receiver<SavedApps>,
    when_saved: oneshot::Receiver<io::Result<()>>,
}

/// Has all apps of a frozen runtime saved.
pub(crate) fn save_apps(frozen: &FrozenRuntime, around: SavedAround) -> AppsBeingSaved {
    let (batch, batches) = mpsc::channel(SAVED_BATCHES_MAX);
    let (saved, when_saved) = reply();
    let take = move |apps| match batch.blocking_send(apps) {
        Ok(()) => ControlFlow::Continue(()),
        Err(_) => ControlFlow::Break(()),
    };
    frozen.save(around, Box::new(take), saved);
    AppsBeingSaved { batches, when_saved }
}

impl AppsBeingSaved {
    /// The next of them; none when all were taken.
    pub(crate) async fn next(&mut self) -> io::Result<Option<SavedApps>> {
        if let Some(batch) = self.batches.recv().await {
            return Ok(Some(batch));
        }
        let saved = (&mut self.when_saved).await;
        saved.map_err(|_| io::Error::other("a runtime's thread has ended"))??;
        Ok(None)
    }
}
