//! The policies of a node: which kinds there are ([`Registry`]), which are attached to what ([`Attachment`]), and how
//! that changes while calls go on ([`Change`]).
//!
//! ```text
//! Change ──Maker──► the next Table ──prepare──► a plan for each live datapath ──runtimes──► commit
//!                      (nothing has changed yet)                                   └ failure: changed back
//! ```
//!
//! Everything is prepared, for every live datapath, before any of them is changed. Then each runtime swaps the engines
//! of one datapath after the other between two polls (`provost_datapath::Datapath::reconfigure`). If an engine does not take
//! over, those that did are changed back the same way, with the state that they have by then. Changes come one after
//! the other. A datapath that opens meanwhile is composed of the table of that moment, and changed before the commit if
//! that was the old one.
//!
//! # When an engine fails
//!
//! An engine that fails ([`provost_engine::Engine::fault`]) keeps the step that it could not judge. Its runtime puts
//! another in its place at once, so that no call ends by that:
//!
//! - On probation (until so many calls have begun and so much time has passed since the change): the engine before, with
//!   the state of the moment of the change; of a policy that was attached just then, none. The control plane then takes
//!   the change back everywhere. Engines of datapaths that open just after the change are on probation too. (Trials are
//!   not handed over to a process that takes over: an engine that fails there has failed later. One that fails while that gets ready keeps
//!   it from taking over until the change has been taken back.)
//! - Later: what the attachment's `on_fault` says. `deny` ends the calls that it would judge with UNAVAILABLE, `pass`
//!   lets them pass. Setting or upgrading the policy makes it judge again.
//!
//! A policy that denies calls, with whatever status, has not failed: it may be what the operator wants, and who wants to
//! check that does so in a plan, after the change.

pub mod attachment;
mod built_in;
pub(crate) mod chain;
pub mod change;
pub(crate) mod closed;
pub(crate) mod disclosure;
pub(crate) mod file_lock;
pub(crate) mod fit;
mod history;
mod keeping;
mod kept;
pub(crate) mod listing;
pub mod registry;
pub(crate) mod schema_context;
pub(crate) mod state_transfer;
pub(crate) mod table;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
pub(crate) mod transport_versions;
pub(crate) mod warnings;

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use provost_engine::{EventSink, Policy};

use crate::transport::TransportKind;
pub use attachment::{AppliesTo, Attachment, OnFault};
pub(crate) use attachment::{matches, matches_method};
pub use change::{Change, ChangeError, Mode, Position, Reach, Report, Upgrade};
pub(crate) use history::ChangeHistory;
pub use keeping::PoliciesNotKept;
use keeping::PolicyKeeping;
pub(crate) use keeping::{PolicyFile, keep_after_predecessor};
pub(crate) use listing::to_toml;
pub use registry::{KindDescription, NoSuchKind, NotAdded, NotLoaded, Origin, Registry};
pub use table::ATTACHMENTS_MAX;
pub(crate) use table::{Instance, Maker, Table};

/// The policies of a node, on its control plane.
pub(crate) struct Policies {
    pub(crate) maker: Maker,
    table: RefCell<Rc<Table>>,
    configured: RefCell<Rc<Vec<Attachment>>>,
    /// How often the table was changed.
    generation: Cell<u64>,
    keeping: RefCell<PolicyKeeping>,
    /// Held by the change that is under way; closed once another process has taken over.
    turn: tokio::sync::Semaphore,
    /// What changes have brought lately.
    pub(crate) history: ChangeHistory,
}

/// A policy that is attached, for those who read what it has counted.
#[derive(Clone)]
pub(crate) struct LivePolicy {
    pub(crate) name: Arc<str>,
    /// What its engines share.
    pub(crate) policy: Arc<dyn Policy>,
}

impl Policies {
    pub(crate) fn new(registry: Arc<Registry>, node: &str, events: Arc<dyn EventSink>) -> Policies {
        Policies {
            maker: Maker::new(registry, node.into(), events),
            table: RefCell::default(),
            configured: RefCell::default(),
            generation: Cell::new(0),
            keeping: RefCell::default(),
            turn: tokio::sync::Semaphore::new(1),
            history: ChangeHistory::new(),
        }
    }

    /// Attaches what the configuration says, before there is any datapath.
    pub(crate) fn begin(&self, attachments: Vec<Attachment>) -> Result<(), ChangeError> {
        self.set_configured(attachments.clone());
        let change = Change::Apply { attachments };
        self.commit(self.maker.changed(&self.table(), &change)?);
        Ok(())
    }

    /// What the configuration says, whatever has been changed since.
    pub(crate) fn configured(&self) -> Rc<Vec<Attachment>> {
        Rc::clone(&self.configured.borrow())
    }

    pub(crate) fn set_configured(&self, attachments: Vec<Attachment>) {
        self.maker.set_configured(&attachments);
        self.configured.replace(Rc::new(attachments));
        self.keep();
    }

    /// The attachments as they are now, as a configuration would have them: where an upgrade has changed a version, with
    /// that version.
    pub(crate) fn effective(&self) -> Vec<Attachment> {
        let table = self.table();
        let effective = |entry: &table::Entry| {
            let mut attachment = entry.attachment.clone();
            if entry.before.is_some() {
                attachment.version = Some(entry.live.kind.version());
            }
            attachment
        };
        table.entries.iter().map(effective).collect()
    }

    /// The kinds; loaded libraries are added here.
    pub(crate) fn registry(&self) -> &Registry {
        &self.maker.registry
    }

    /// What is attached now.
    pub(crate) fn table(&self) -> Rc<Table> {
        Rc::clone(&self.table.borrow())
    }

    /// Every policy that has engines, or would have; one whose version is another for some apps is there twice.
    pub(crate) fn live(&self) -> Vec<LivePolicy> {
        let describe = |instance: &Arc<Instance>| LivePolicy {
            name: Arc::clone(&instance.name),
            policy: Arc::clone(&instance.policy),
        };
        let table = self.table();
        table.instances().map(describe).collect()
    }

    /// How often the table was changed.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.get()
    }

    /// The version of a transport's code that a connection of an app is to have.
    pub(crate) fn transport_version(&self, kind: TransportKind, app: &str, connection: u64) -> u32 {
        let version = self.table().transports.version(kind, app, connection);
        version.unwrap_or_else(|| kind.first_version())
    }

    pub(crate) fn commit(&self, table: Table) {
        self.table.replace(Rc::new(table));
        self.generation.set(self.generation.get() + 1);
        self.forget_loss();
        self.keep();
    }
}

/// Loads libraries with engines; one that is loaded already stays as it is. The first that is refused ends it.
pub(crate) fn load_engines(registry: &Registry, paths: &[PathBuf]) -> Result<(), String> {
    for path in paths {
        registry.load(path).map_err(|error| error.to_string())?;
    }
    Ok(())
}
