//! What is asked of a hot restart, and what comes of it; and what this process keeps ready for one.

use std::cell::{Cell, Ref, RefCell};
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use crate::config::ListenerConfig;

/// Upgrades that wait for their turn: one is under way, the others are told so.
pub(crate) const UPGRADES_WAITING_MAX: usize = 4;

/// The longest that a new process may be given to get ready: no change, reload or migration is made meanwhile.
pub(crate) const READY_WITHIN_MAX: Duration = Duration::from_secs(600);

/// What is to take over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpgradeRequest {
    /// The program; by default the one that this process was started from, as it is on disk now.
    pub binary: Option<PathBuf>,
    /// Its arguments; by default those of this process.
    pub arguments: Option<Vec<OsString>>,
    /// How long it may take to get ready, ten minutes at most; a minute without.
    pub ready_within: Option<Duration>,
}

/// What came of an upgrade.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpgradeReport {
    /// The process that goes on.
    pub process: u32,
    pub version: String,
    /// How long it took to get ready, while this one went on.
    pub prepared: Duration,
    /// For how long nobody served: from the freeze to the commit.
    pub frozen: Duration,
    /// Length of the state in bytes.
    pub state_bytes: u64,
    /// Descriptors that were passed.
    pub descriptors: usize,
    pub apps: usize,
    pub connections: usize,
}

/// Why this process goes on instead.
#[derive(Debug, thiserror::Error)]
pub enum UpgradeError {
    /// It is about to end.
    #[error("the service is shutting down")]
    ShuttingDown,
    /// Another upgrade is under way.
    #[error("another upgrade is under way")]
    UnderWay,
    /// It is the first process of its PID namespace, such as a container's.
    #[error(
        "this is the first process of its container, which would end with it: run it under an init (docker run --init, \
         tini, or a pod with shareProcessNamespace)"
    )]
    FirstProcess,
    /// The new process was to be given too long to get ready.
    #[error("a new process gets {0:?} at most to get ready, as nothing is changed meanwhile: ask for less")]
    ReadyWithin(Duration),
    /// The program could not be started.
    #[error("{}: {source}: name a program that this user may run", binary.display())]
    Start {
        binary: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The new process ended, or said that it cannot go on, or nothing for too long.
    #[error("the new process {phase}: {reason}")]
    Successor {
        /// What it was about to do.
        phase: &'static str,
        /// What it said, or what became of it.
        reason: String,
    },
    /// An engine has failed on probation meanwhile.
    #[error("an engine has failed on trial: first the change that brought it is taken back; try again")]
    TakesBack,
    /// Requests of apps did not come to an end.
    #[error("requests of apps have not come to an end in {0:?}: try again")]
    Requests(Duration),
    /// Something could not be saved.
    #[error("the state could not be saved: {0}")]
    Save(#[from] io::Error),
    /// The new process took over and ended at once: its state is lost with it.
    #[error("the new process took over and ended at once ({status}): the service ends")]
    Lost { status: String },
}

/// What this process keeps ready for one that takes over.
pub(crate) struct RestartDesk {
    /// The program that this process runs, where it was when it was started.
    program: PathBuf,
    next_id: Cell<u64>,
    upgrades: UpgradeSender,
    sockets: RefCell<OwnSockets>,
}

/// Duplicates of the sockets at which the node is found.
#[derive(Default)]
pub(crate) struct OwnSockets {
    pub(crate) control: Option<OwnedFd>,
    /// The admin API's, and where it is.
    pub(crate) admin: Option<(OwnedFd, PathBuf)>,
    /// That of metrics and health, and what the configuration calls its address.
    pub(crate) http: Option<(OwnedFd, String)>,
    /// That of the page, and what the configuration calls its address.
    pub(crate) page: Option<(OwnedFd, String)>,
    /// With what the configuration says of them.
    pub(crate) listeners: Vec<(ListenerConfig, OwnedFd)>,
}

impl RestartDesk {
    /// Requests go to `upgrades`.
    pub(crate) fn new(upgrades: UpgradeSender) -> RestartDesk {
        RestartDesk {
            program: own_program(),
            next_id: Cell::new(1),
            upgrades,
            sockets: RefCell::default(),
        }
    }

    /// A number for an attempt to replace this process, by which the log can be followed.
    pub(crate) fn new_id(&self) -> u64 {
        self.next_id.replace(self.next_id.get() + 1)
    }

    /// The program that this process runs.
    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// Asks for a hot restart.
    pub(crate) fn order(&self, request: UpgradeOrder) {
        order(&self.upgrades, request);
    }

    /// Keeps these sockets; `OwnSockets::default()` closes them.
    pub(crate) fn keep(&self, sockets: OwnSockets) {
        self.sockets.replace(sockets);
    }

    pub(crate) fn sockets(&self) -> Ref<'_, OwnSockets> {
        self.sockets.borrow()
    }
}

/// A request, and who hears what came of it.
pub(crate) struct UpgradeOrder {
    pub(crate) request: UpgradeRequest,
    pub(crate) done: oneshot::Sender<Result<UpgradeReport, UpgradeError>>,
}

/// Where orders come from.
pub(crate) type UpgradeQueue = mpsc::Receiver<UpgradeOrder>;

/// Where orders are given.
pub(crate) type UpgradeSender = mpsc::Sender<UpgradeOrder>;

/// A queue for requests.
pub(crate) fn queue() -> (UpgradeSender, UpgradeQueue) {
    mpsc::channel(UPGRADES_WAITING_MAX)
}

/// Gives an order, which is refused while too many wait.
pub(crate) fn order(upgrades: &UpgradeSender, order: UpgradeOrder) {
    use mpsc::error::TrySendError;
    match upgrades.try_send(order) {
        Ok(()) => {}
        Err(TrySendError::Full(order)) => refuse(order, UpgradeError::UnderWay),
        Err(TrySendError::Closed(order)) => refuse(order, UpgradeError::ShuttingDown),
    }
}

fn refuse(order: UpgradeOrder, error: UpgradeError) {
    tracing::warn!(%error, "the service is not replaced");
    // Whoever asked may have gone.
    let _ = order.done.send(Err(error));
}

/// Refuses the orders that wait, and all that come: the service is ending.
pub(crate) fn refuse_orders(upgrades: &mut UpgradeQueue) {
    upgrades.close();
    while let Ok(order) = upgrades.try_recv() {
        refuse(order, UpgradeError::ShuttingDown);
    }
}

/// The program that this process was started from, by the path that it was called by: where that is a link, it may lead
/// somewhere else by the time of an upgrade.
fn own_program() -> PathBuf {
    let called = std::env::args_os().next().map(PathBuf::from);
    let called = called.filter(|path| path.components().count() > 1);
    let called = called.and_then(|path| std::path::absolute(path).ok());
    called
        .or_else(|| std::env::current_exe().ok())
        .unwrap_or_default()
}
