//! Changing what runs while calls go on: policies, versions of engines, shapes of datapaths, transports.
//!
//! Every change, whatever it changes, is one [`LiveChange`]:
//!
//! ```text
//!          every datapath            the runtimes are         all datapaths           nothing of it has failed
//!          is ready for it           told, one by one         have it                 when it is settled
//! request ───────────► Prepared ───────────► Applying ──────────► OnProbation ─────────► Committed
//!    │                    │                     │                      │                     ▲
//!    │ it is refused,     │ a runtime takes     │ an engine does       │ an engine of it
//!    ▼ or a dry run       ▼ no command          ▼ not start            ▼ fails
//! (nothing)            RolledBack           RolledBack             RolledBack
//! ```
//!
//! A change that brings nothing new (policies move or go, a transport is migrated to) goes from Applying to Committed.
//!
//! What happens on failure:
//!
//! - **Prepared**: a policy that does not fit a datapath refuses the change before anything has changed.
//! - **Applying**: the datapaths that have the change get back the engines that they had, each from what its successor saves
//!   now or, where it cannot read that, from its checkpoint: what it had saved itself when it was retired. A datapath keeps
//!   one checkpoint for each of its engines, until the change is on probation ([`shape::EngineCheckpoints`]). Each of them is tried: one
//!   that cannot go back is drained, so that its app connects anew, and the error names it.
//! - **OnProbation**: the runtime puts the fallback of the failed engine back at once, with the state of the moment of the
//!   change, so that no call ends by it ([`crate::runtime::EngineProbation`]); then the change is taken back everywhere
//!   ([`LiveChanges::take_back`]). A transport that is migrated to has no probation: the old one stays beside it until its
//!   calls have ended.
//! - **Committed**: what fails later is what the attachment's `on_fault` says.
//!
//! Changes of the table come one after the other; a migration of one connection waits for its turn among them.

mod journal;
mod shape;
mod transition;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use provost_engine::DatapathContext;
use tokio::sync::{SemaphorePermit, oneshot};
use tracing::Instrument;

use crate::connections::ConnectionRegistry;
use crate::counts::Counts;
use crate::policies::{Change, ChangeError, Instance, Mode, Policies, Report, Table, listing};
use crate::runtime::{
    self, ConnectionId, EngineFailed, EngineTag, FaultRemedy, NotReconfigured, ReconfigureOrder,
    ReconfigureReport, RuntimeCommand,
};
use crate::runtimes::Runtimes;
use crate::transport::{EstablishedPeer, TransportOptions};
use journal::ChangeJournal;
pub(crate) use journal::JournalEntry;
use shape::{ChangePurpose, DatapathChange, DatapathShape, DatapathSnapshot, PreparedDatapath};
use transition::{TableTransition, TransitionKind, prepare_here};

/// Datapaths that one visit to another thread prepares.
const PREPARED_AT_ONCE: usize = 256;
/// Changes on probation, at most: the oldest is committed when there is another.
const ON_PROBATION_MAX: usize = 64;
/// A change that has been on probation for so long is committed.
const SETTLED_AFTER: Duration = Duration::from_secs(600);
/// Failures that are heard of before the change that was made before them, at most.
const EARLY_FAILURES_MAX: usize = 1024;

/// See the module's documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChangeState {
    Prepared,
    Applying,
    OnProbation,
    Committed,
    RolledBack,
}

impl ChangeState {
    /// As the admin API names it.
    const fn name(self) -> &'static str {
        match self {
            ChangeState::Prepared => "prepared",
            ChangeState::Applying => "applying",
            ChangeState::OnProbation => "on probation",
            ChangeState::Committed => "committed",
            ChangeState::RolledBack => "rolled back",
        }
    }

    fn may_become(self, next: ChangeState) -> bool {
        use ChangeState::{Applying, Committed, OnProbation, Prepared, RolledBack};
        matches!(
            (self, next),
            (Prepared, Applying | RolledBack)
                | (Applying, OnProbation | Committed | RolledBack)
                | (OnProbation, Committed | RolledBack)
        )
    }
}

/// One change on its way.
struct LiveChange {
    /// Unlike that of all other changes of this process, those that failed among them.
    id: u64,
    state: ChangeState,
    since: Instant,
    /// The instances that it brought.
    brought: Vec<EngineTag>,
    journal: Rc<ChangeJournal>,
}

impl LiveChange {
    fn advance(&mut self, to: ChangeState) {
        assert!(
            self.state.may_become(to),
            "a change is {:?} and cannot become {to:?}",
            self.state
        );
        tracing::info!(change = self.id, from = ?self.state, to = ?to, "live change");
        self.state = to;
        self.since = Instant::now();
        self.journal.advance(self.id, to);
    }
}

/// Carries out the live changes of a node.
pub(crate) struct LiveChanges {
    policies: Rc<Policies>,
    connections: Rc<ConnectionRegistry>,
    runtimes: Rc<Runtimes>,
    counts: Rc<Counts>,
    /// What operators can look up of changes.
    pub(crate) journal: Rc<ChangeJournal>,
    next_id: Cell<u64>,
    on_probation: RefCell<VecDeque<LiveChange>>,
    /// Engines that have failed after a change of which nothing was heard yet.
    early: RefCell<VecDeque<EngineFailed>>,
    /// Failures on probation whose change has not been taken back yet.
    to_take_back: Cell<usize>,
}

/// What came of a migration to another transport.
pub(crate) enum MigrationOutcome {
    /// New calls begin on the new transport.
    Over {
        /// How long the datapath stood still.
        pause_ns: u64,
    },
    /// The connection has ended meanwhile.
    Ended,
}

impl LiveChanges {
    pub(crate) fn new(
        policies: Rc<Policies>,
        connections: Rc<ConnectionRegistry>,
        runtimes: Rc<Runtimes>,
        counts: Rc<Counts>,
    ) -> LiveChanges {
        LiveChanges {
            policies,
            connections,
            runtimes,
            counts,
            journal: Rc::default(),
            next_id: Cell::new(1),
            on_probation: RefCell::default(),
            early: RefCell::default(),
            to_take_back: Cell::new(0),
        }
    }

    /// Whether a change is to be taken back, as an engine of it has failed on probation: this process alone knows of that.
    pub(crate) fn is_to_take_back(&self) -> bool {
        self.to_take_back.get() > 0
    }

    /// Carries out a change of the table, and says what came of it.
    pub(crate) async fn carry_out(
        self: &Rc<Self>,
        change: Change,
        mode: Mode,
    ) -> Result<Report, ChangeError> {
        let turn = self.policies.hold().await?;
        self.carry_out_held(&turn, change, mode).await
    }

    /// Likewise, for one who holds the turn of changes already.
    pub(crate) async fn carry_out_held(
        self: &Rc<Self>,
        _turn: &SemaphorePermit<'_>,
        change: Change,
        mode: Mode,
    ) -> Result<Report, ChangeError> {
        self.settle();
        let id = self.next_id.replace(self.next_id.get() + 1);
        let span = tracing::info_span!("change", change = id);
        self.carry_out_in_turn(id, change, mode).instrument(span).await
    }

    async fn carry_out_in_turn(
        self: &Rc<Self>,
        id: u64,
        change: Change,
        mode: Mode,
    ) -> Result<Report, ChangeError> {
        let began = Instant::now();
        let old = self.policies.table();
        let what = listing::attempt(&change);
        let made = self.make(&old, &change, mode).await.inspect_err(|error| {
            tracing::info!(change = id, %error, "refused a change");
            if mode == Mode::Apply {
                self.journal.refused(id, &what, &error.to_string());
            }
        })?;
        let (before, after) = listing::differences(&old, &made.next);
        let moves = listing::version_moves(&old, &made.next);
        let mut report = Report {
            before,
            after,
            ..Report::default()
        };
        let mut transition = TableTransition::new(self, TransitionKind::Forward);
        match mode {
            Mode::DryRun => report.datapaths = transition.prepare(&made.next).await?.len(),
            Mode::Apply => {
                self.journal.begin(id, &what);
                let outcome = self.apply(id, &old, made, &mut transition).await;
                self.count(&change, outcome.is_ok());
                outcome.inspect_err(|error| self.journal.failed(id, &error.to_string()))?;
                transition.fill(&mut report);
                report.number = self.policies.history.new_number();
            }
        }
        report.took = began.elapsed();
        report.summary = listing::summary(&change, mode, report.datapaths, &moves);
        self.journal.report(id, &report);
        tracing::info!(
            change = id,
            number = report.number,
            datapaths = report.datapaths,
            pause_us_max = report.pause_ns_max / 1000,
            took_ms = report.took.as_millis() as u64,
            "{}",
            report.summary
        );
        Ok(report)
    }

    /// Takes a change of the table from prepared to on probation, committed or rolled back.
    async fn apply(
        &self,
        id: u64,
        old: &Table,
        made: PreparedTable,
        transition: &mut TableTransition<'_>,
    ) -> Result<(), ChangeError> {
        let is_new = |tag: &EngineTag| !old.instances().any(|known| known.tag == *tag);
        let mut change = LiveChange {
            id,
            state: ChangeState::Prepared,
            since: Instant::now(),
            brought: made
                .next
                .instances()
                .map(|instance| instance.tag)
                .filter(is_new)
                .collect(),
            journal: Rc::clone(&self.journal),
        };
        self.policies.history.remember(old, &made.next);
        change.advance(ChangeState::Applying);
        if let Err(error) = transition.run(made.next, made.ready).await {
            self.policies.history.forget(old);
            change.advance(ChangeState::RolledBack);
            tracing::warn!(change = id, %error, "a change was undone");
            return Err(error);
        }
        if change.brought.is_empty() {
            change.advance(ChangeState::Committed);
        } else {
            change.advance(ChangeState::OnProbation);
            self.on_probation.borrow_mut().push_back(change);
            self.settle();
        }
        Ok(())
    }

    /// Commits the changes that have been on probation for long enough.
    fn settle(&self) {
        let mut on_probation = self.on_probation.borrow_mut();
        while let Some(oldest) = on_probation.front()
            && (oldest.since.elapsed() >= SETTLED_AFTER || on_probation.len() > ON_PROBATION_MAX)
        {
            if let Some(mut settled) = on_probation.pop_front() {
                settled.advance(ChangeState::Committed);
            }
        }
    }

    fn count(&self, change: &Change, is_made: bool) {
        match change {
            Change::Upgrade(_) if is_made => self.counts.upgrades.add_one(),
            Change::Upgrade(_) => self.counts.upgrades_undone.add_one(),
            Change::Rollback { .. } if is_made => self.counts.rollbacks.add_one(),
            _ => {}
        }
    }

    /// Makes the next table and, unless they are many, gets all datapaths ready for it. What policies do for it may be slow
    /// and happens on another thread, all in one visit: to go there and back is much of what a small change takes.
    async fn make(&self, old: &Table, change: &Change, mode: Mode) -> Result<PreparedTable, ChangeError> {
        let (maker, mut table) = (self.policies.maker.clone(), old.clone());
        table.forget_connections(|number| self.connections.find(number).is_some());
        let snapshots = match mode {
            Mode::Apply => self.few_snapshots(),
            Mode::DryRun => Vec::new(),
        };
        let changes = |snapshots: Vec<DatapathSnapshot>, next: &Table| -> Vec<DatapathChange> {
            let change = |snapshot: DatapathSnapshot| snapshot.change_to(next, || ChangePurpose::Forward);
            snapshots.into_iter().filter_map(change).collect()
        };
        if !change.configures_policies() {
            let next = maker.changed(&table, change)?;
            let changes = changes(snapshots, &next);
            let ready = if changes.iter().any(DatapathChange::prepares_policies) {
                Vec::new()
            } else {
                prepare_here(changes)?
            };
            return Ok(PreparedTable { next, ready });
        }
        let change = change.clone();
        let make = move || {
            let next = maker.changed(&table, &change)?;
            let ready = prepare_here(changes(snapshots, &next))?;
            Ok(PreparedTable { next, ready })
        };
        let made = tokio::task::spawn_blocking(make).await;
        made.map_err(|_| ChangeError::Ending)?
    }

    /// The open datapaths, if one visit can prepare them all: none is changed before each of them is ready.
    fn few_snapshots(&self) -> Vec<DatapathSnapshot> {
        let connections = self.connections.all();
        if connections.len() <= PREPARED_AT_ONCE {
            connections.values().map(DatapathSnapshot::of).collect()
        } else {
            Vec::new()
        }
    }

    /// Lets a connection migrate to another transport, to a peer with which that has been agreed on. Whoever calls holds the
    /// turn of changes.
    pub(crate) async fn migrate(
        self: &Rc<Self>,
        id: ConnectionId,
        peer: EstablishedPeer,
        options: TransportOptions,
    ) -> Result<MigrationOutcome, String> {
        let Some(from) = self.connections.find(id).map(|open| DatapathShape::of(&open)) else {
            return Ok(MigrationOutcome::Ended);
        };
        let transport = peer.kind.name();
        let version = self
            .policies
            .transport_version(peer.kind, &from.spec.app.identity.name, id);
        let preparing = move || shape::prepare_migration(from, peer, version, options);
        let prepared = tokio::task::spawn_blocking(preparing).await;
        let prepared = prepared.map_err(|error| error.to_string())?;
        let mut change = LiveChange {
            id: self.next_id.replace(self.next_id.get() + 1),
            state: ChangeState::Prepared,
            since: Instant::now(),
            brought: Vec::new(),
            journal: Rc::clone(&self.journal),
        };
        tracing::info!(change = change.id, connection = id, "a change is prepared");
        let what = format!("migrate connection {id} to {transport}");
        self.journal.begin(change.id, &what);
        change.advance(ChangeState::Applying);
        let asked = match prepared {
            Ok(prepared) => self.ask(prepared).await,
            Err(error) => Err(error),
        };
        let outcome = match asked {
            Ok(asked) => self.migration_outcome(asked).await,
            Err(error) => Err(error.to_string()),
        };
        change.advance(if matches!(outcome, Ok(MigrationOutcome::Over { .. })) {
            ChangeState::Committed
        } else {
            ChangeState::RolledBack
        });
        if let Err(problem) = &outcome {
            self.journal.failed(change.id, problem);
        }
        outcome
    }

    async fn migration_outcome(self: &Rc<Self>, asked: AskedDatapath) -> Result<MigrationOutcome, String> {
        match asked.done.await {
            Ok(Ok(done)) => {
                let pause_ns = done.pause_ns;
                self.note(asked.to, asked.context, done.revision);
                // An engine may take long to drop.
                tokio::task::spawn_blocking(move || drop(done.retired));
                Ok(MigrationOutcome::Over { pause_ns })
            }
            Ok(Err(NotReconfigured::Failed { problem, .. })) => Err(problem),
            Ok(Err(NotReconfigured::Stale { .. })) => {
                Err("its policies were changed at the same time".to_owned())
            }
            Ok(Err(NotReconfigured::Unknown)) | Err(_) => Ok(MigrationOutcome::Ended),
        }
    }

    /// Asks the runtime of a datapath to change it.
    async fn ask(&self, prepared: PreparedDatapath) -> Result<AskedDatapath, ChangeError> {
        let (done, hears) = runtime::reply();
        let reconfigure = ReconfigureOrder {
            connection: prepared.connection(),
            expected: prepared.from.engines(),
            planned: prepared.planned,
            done,
        };
        let runtime = &self.runtimes[prepared.context.runtime];
        let told = runtime
            .send(RuntimeCommand::Reconfigure(Box::new(reconfigure)))
            .await;
        told.map_err(|_| ChangeError::Overloaded)?;
        Ok(AskedDatapath {
            context: prepared.context,
            from: prepared.from,
            to: prepared.to,
            done: hears,
        })
    }

    /// Notes what a datapath has now.
    fn note(self: &Rc<Self>, to: DatapathShape, context: Arc<DatapathContext>, revision: u64) {
        let id = to.spec.id;
        if let Some(mut open) = self.connections.find_mut(id) {
            open.revision = revision;
            tracing::debug!(
                connection = id,
                revision,
                policies = to.chain.len(),
                transport = to.spec.transport.name(),
                transport_version = to.spec.transport_version,
                "connection changed"
            );
            open.chain = to.chain;
            if open.spec.transport != to.spec.transport {
                open.stays_because = None;
            }
            open.spec = to.spec;
            open.context = context;
        }
        self.heard_of_change(id);
    }

    /// Notes what a runtime has done about an engine that has failed. If it was on probation, the change that brought it is
    /// taken back everywhere.
    pub(crate) fn engine_failed(self: &Rc<Self>, failed: EngineFailed) {
        let is_early = match self.connections.find(failed.connection) {
            Some(connection) => failed.revision != connection.revision + 1,
            None => return,
        };
        if is_early {
            // A change was made before it, and has not been heard of yet.
            let mut early = self.early.borrow_mut();
            early.retain(|other| self.connections.find(other.connection).is_some());
            if early.len() >= EARLY_FAILURES_MAX {
                early.pop_front();
            }
            early.push_back(failed);
            return;
        }
        self.note_failure(&failed);
        if matches!(failed.remedy, FaultRemedy::WentBack | FaultRemedy::Withdrawn) {
            self.policies.history.note_failure(failed.tag, &failed.reason);
            let changes = Rc::clone(self);
            self.to_take_back.set(self.to_take_back.get() + 1);
            tokio::task::spawn_local(async move {
                changes.take_back(failed.tag).await;
                changes.to_take_back.set(changes.to_take_back.get() - 1);
            });
        }
    }

    fn note_failure(&self, failed: &EngineFailed) {
        let mut engine = (String::new(), 0);
        // What this node gave a fallback as its owner is the instance that it is of.
        let fallback = failed.fallback.as_ref().map(Arc::clone);
        let fallback = fallback.and_then(|owner| owner.downcast::<Instance>().ok());
        if let Some(mut connection) = self.connections.find_mut(failed.connection) {
            connection.revision = failed.revision;
            let mut chain = connection.chain.iter();
            if let Some(at) = chain.position(|instance| instance.tag == failed.tag) {
                let instance = Arc::clone(&connection.chain[at]);
                engine = (instance.name.to_string(), instance.kind.version());
                if failed.remedy != FaultRemedy::Denies {
                    connection.without.push(failed.tag);
                    match &fallback {
                        Some(fallback) => connection.chain[at] = Arc::clone(fallback),
                        None => drop(connection.chain.remove(at)),
                    }
                }
            }
        }
        tracing::error!(
            policy = engine.0,
            version = engine.1,
            connection = failed.connection,
            app = failed.app,
            reason = failed.reason,
            remedy = ?failed.remedy,
            "an engine has failed"
        );
    }

    /// Deals with the failures on a connection that were told before a change that was made before them.
    fn heard_of_change(self: &Rc<Self>, connection: ConnectionId) {
        let all = self.early.take();
        let (now, later): (VecDeque<_>, _) = all
            .into_iter()
            .partition(|failed| failed.connection == connection);
        self.early.replace(later);
        now.into_iter().for_each(|failed| self.engine_failed(failed));
    }

    /// Takes the change back everywhere that brought an instance, as an engine of it has failed on probation.
    async fn take_back(self: &Rc<Self>, tag: EngineTag) {
        let Ok(_turn) = self.policies.hold().await else {
            return;
        };
        let old = self.policies.table();
        let mut next = (*old).clone();
        // It may have been changed or taken back already.
        let Some(at) = next.position_of_instance(tag) else {
            return;
        };
        let name = next.entries[at].attachment.name.clone();
        match self.policies.history.fallback_of(tag) {
            None => return,
            Some(Some(previous)) => next.entries[at] = previous,
            Some(None) => drop(next.entries.remove(at)),
        }
        let mut transition = TableTransition::new(self, TransitionKind::TakeBack);
        let outcome = transition.run(next, Vec::new()).await;
        let id = self.roll_back_after_probation(tag);
        match outcome {
            Ok(()) => {
                self.counts.taken_back.add_one();
                tracing::error!(
                    change = id,
                    policy = name,
                    datapaths = transition.pauses.len(),
                    "an engine failed on trial: the change that brought it was taken back everywhere"
                );
            }
            Err(error) => {
                tracing::error!(change = id, policy = name, %error, "a change could not be taken back everywhere");
            }
        }
    }

    /// The change that brought an instance ends; its number, unless it was settled.
    fn roll_back_after_probation(&self, tag: EngineTag) -> Option<u64> {
        let mut on_probation = self.on_probation.borrow_mut();
        let at = on_probation
            .iter()
            .position(|change| change.brought.contains(&tag))?;
        let mut change = on_probation.remove(at)?;
        change.advance(ChangeState::RolledBack);
        let reason = self.policies.history.has_failed(tag).unwrap_or_default();
        self.journal.failed(change.id, &reason);
        Some(change.id)
    }
}

/// What a change makes of the table.
struct PreparedTable {
    next: Table,
    /// The datapaths that it concerns: all of them, or none yet.
    ready: Vec<PreparedDatapath>,
}

/// A datapath whose runtime was asked to change it.
struct AskedDatapath {
    context: Arc<DatapathContext>,
    from: DatapathShape,
    to: DatapathShape,
    done: oneshot::Receiver<Result<ReconfigureReport, NotReconfigured>>,
}

#[cfg(test)]
mod tests {
    use super::ChangeState::{Applying, Committed, OnProbation, Prepared, RolledBack};

    #[test]
    fn a_change_ends_committed_or_rolled_back_and_never_leaves_that() {
        let all = [Prepared, Applying, OnProbation, Committed, RolledBack];
        for state in all {
            assert!(!Committed.may_become(state) && !RolledBack.may_become(state));
            assert!(!state.may_become(Prepared), "{state:?}");
        }
        for state in [Prepared, Applying, OnProbation] {
            assert!(state.may_become(RolledBack), "{state:?}");
        }
        assert!(!Prepared.may_become(Committed) && !Prepared.may_become(OnProbation));
    }
}
