//! The threads of the data plane, and which app is on which.

use std::io;
use std::ops::Index;
use std::time::Instant;

use tokio::sync::mpsc;

use crate::config::Config;
use crate::runtime::{
    self, FrozenRuntime, Overloaded, Runtime, RuntimeCommand, RuntimeEvent, RuntimeOptions, WaitMode,
};

/// Events of runtimes that wait for the control plane, at most.
const EVENTS_MAX: usize = 1024;

/// All runtimes of the node.
pub(crate) struct Runtimes {
    all: Vec<Runtime>,
    /// The apps that have one of the first runtimes for themselves, in this order.
    dedicated: Vec<String>,
    /// Where runtimes' events go, to know when all have been heard.
    events: mpsc::Sender<RuntimeEvent>,
}

/// Why runtimes do not rest.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotFrozen {
    #[error(transparent)]
    Overloaded(#[from] Overloaded),
    #[error("a runtime {0}")]
    Late(&'static str),
}

impl Runtimes {
    /// Starts the threads. Beside them comes what they have to tell.
    pub(crate) fn start(config: &Config) -> io::Result<(Runtimes, mpsc::Receiver<RuntimeEvent>)> {
        let (events, events_of_runtimes) = mpsc::channel(EVENTS_MAX);
        let options = RuntimeOptions {
            spin_ns: config.runtime.spin_us * 1000,
            waiting: if config.runtime.busy_poll {
                WaitMode::BusyPolls
            } else {
                WaitMode::Sleeps
            },
            time_slice: config.runtime.time_slice.choice(),
            completion_stall_ns: config.timeouts.completion_stall_ms * 1_000_000,
        };
        let start = |at: usize| Runtime::start(&format!("runtime-{at}"), options, events.clone());
        let runtimes = Runtimes {
            all: (0..config.runtime.threads)
                .map(start)
                .collect::<io::Result<_>>()?,
            dedicated: config.runtime.dedicated.clone(),
            events,
        };
        Ok((runtimes, events_of_runtimes))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Runtime> {
        self.all.iter()
    }

    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    /// The runtime that an app gets: its own, if the configuration gives it one, else the one with the fewest apps.
    pub(crate) fn place(&self, app: &str) -> usize {
        if let Some(at) = self.dedicated.iter().position(|dedicated| dedicated == app) {
            return at;
        }
        let shared = self.dedicated.len()..self.all.len();
        shared.min_by_key(|at| self.all[*at].apps()).unwrap_or(0)
    }

    /// Has all of them rest, and waits until the control plane has heard their last events. On failure those that rest go
    /// on.
    pub(crate) async fn freeze(&self, until: Instant) -> Result<Vec<FrozenRuntime>, NotFrozen> {
        let mut waiting = Vec::with_capacity(self.all.len());
        for runtime in &self.all {
            let (frozen, when_frozen) = runtime::reply();
            runtime.send(RuntimeCommand::Freeze(frozen)).await?;
            waiting.push(when_frozen);
        }
        let mut all = Vec::with_capacity(waiting.len());
        for frozen in waiting {
            // Those that are frozen go on when they are dropped.
            let frozen = tokio::time::timeout_at(until.into(), frozen).await;
            let frozen = frozen.map_err(|_| NotFrozen::Late("does not come to rest"))?;
            all.push(frozen.map_err(|_| NotFrozen::Late("has ended"))?);
        }
        let heard = async {
            while self.events.capacity() < self.events.max_capacity() {
                tokio::task::yield_now().await;
            }
        };
        let heard = tokio::time::timeout_at(until.into(), heard).await;
        heard.map_err(|_| NotFrozen::Late("has events that nobody hears"))?;
        Ok(all)
    }
}

impl Index<usize> for Runtimes {
    type Output = Runtime;

    fn index(&self, at: usize) -> &Runtime {
        &self.all[at]
    }
}
