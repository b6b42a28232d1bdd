//! Bringing all datapaths from one table of policies to another, or back.

use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use provost_engine::{DatapathContext, Engine};

use super::shape::{
    ChangePurpose, DatapathChange, DatapathShape, DatapathSnapshot, EngineCheckpoints, PreparedDatapath,
};
use super::{AskedDatapath, LiveChanges, PREPARED_AT_ONCE};
use crate::policies::{ChangeError, Report, Table};
use crate::runtime::{ConnectionId, EngineTag, NotReconfigured, ReconfigureReport};

/// Datapaths whose change is under way at once. Each runtime changes few of them in a round.
const WINDOW: usize = 64;
/// Engines that have saved no more than this in all are dropped where they are, in bytes.
const DROPPED_HERE_BYTES_MAX: usize = 64 << 10;
/// Between two looks at what a change still waits for.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// Looks without any progress after which a change is given up.
const LOOKS_MAX: u32 = 5_000;
/// Datapaths on which a change could not be undone that its error names, at most.
const FAILURES_NAMED_MAX: usize = 8;

/// Whether what comes is new.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum TransitionKind {
    Forward,
    /// It was there before.
    TakeBack,
}

/// Bringing all datapaths from one table to another.
pub(super) struct TableTransition<'a> {
    changes: &'a Rc<LiveChanges>,
    kind: TransitionKind,
    changed: HashMap<ConnectionId, ChangedDatapath>,
    pub(super) pauses: Vec<u64>,
    steps_released: usize,
    retired: Vec<Box<dyn Engine>>,
    /// What they had saved, in bytes.
    retired_bytes: usize,
}

/// A datapath that could not be changed.
struct FailedDatapath {
    connection: ConnectionId,
    error: ChangeError,
}

/// What is said of a change that failed, and that could not be undone on these datapaths.
fn not_undone(cause: ChangeError, failures: &[FailedDatapath]) -> ChangeError {
    let named = failures.iter().take(FAILURES_NAMED_MAX);
    let named = named.map(|failed| {
        format!(
            "connection {}: {}",
            failed.connection,
            failed.error.reason_there()
        )
    });
    let mut connections: Vec<String> = named.collect();
    let more = failures.len() - connections.len();
    if more > 0 {
        connections.push(format!("{more} more"));
    }
    ChangeError::NotUndone {
        cause: cause.reason(),
        connections,
    }
}

/// A datapath that was changed.
struct ChangedDatapath {
    from: DatapathShape,
    checkpoints: EngineCheckpoints,
}

impl<'a> TableTransition<'a> {
    pub(super) fn new(changes: &'a Rc<LiveChanges>, kind: TransitionKind) -> TableTransition<'a> {
        TableTransition {
            changes,
            kind,
            changed: HashMap::new(),
            pauses: Vec::new(),
            steps_released: 0,
            retired: Vec::new(),
            retired_bytes: 0,
        }
    }

    /// Makes this table the node's, with what is ready for it. On failure every datapath has the engines again that it
    /// had, but for those that the error names.
    pub(super) async fn run(&mut self, next: Table, ready: Vec<PreparedDatapath>) -> Result<(), ChangeError> {
        let outcome = match self.reach(&next, ready).await {
            Ok(()) => {
                self.changes.policies.commit(next);
                self.forget_failed();
                Ok(())
            }
            Err(error) => Err(match self.undo().await {
                failures if failures.is_empty() => error,
                failures => not_undone(error, &failures),
            }),
        };
        let retired = std::mem::take(&mut self.retired);
        if self.retired_bytes <= DROPPED_HERE_BYTES_MAX {
            drop(retired);
        } else {
            // To drop engines with much state takes its time.
            tokio::task::spawn_blocking(move || drop(retired));
        }
        outcome
    }

    /// Forgets which instances have failed on which datapaths, of those that are no more. (Not before the commit: until then
    /// a datapath may come back to what it had, but not to what has failed there.)
    fn forget_failed(&self) {
        let table = self.changes.policies.table();
        let is_live = |tag: &EngineTag| table.instances().any(|instance| instance.tag == *tag);
        for connection in self.changes.connections.all_mut().values_mut() {
            connection.without.retain(is_live);
        }
    }

    /// Brings every datapath to what the table gives it, also those that open meanwhile. When this returns, nothing
    /// has come in between.
    async fn reach(&mut self, next: &Table, mut ready: Vec<PreparedDatapath>) -> Result<(), ChangeError> {
        let mut looks = 0;
        loop {
            if ready.is_empty() {
                ready = self.prepare(next).await?;
            }
            // A failure that was told meanwhile has changed what is wanted of its datapath.
            self.check_probations(next)?;
            if ready.is_empty() {
                if self.due(next).is_empty() {
                    return Ok(());
                }
                continue;
            }
            let before = self.changed.len();
            self.apply(std::mem::take(&mut ready)).await?;
            looks = if self.changed.len() > before { 0 } else { looks + 1 };
            if looks >= LOOKS_MAX {
                return Err(ChangeError::Overloaded);
            }
            if looks > 0 {
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        }
    }

    /// The datapaths that have something else than what the table gives them.
    fn due(&self, next: &Table) -> Vec<DatapathChange> {
        let purpose = || match self.kind {
            TransitionKind::Forward => ChangePurpose::Forward,
            TransitionKind::TakeBack => ChangePurpose::TakeBack(self.changes.policies.history.failed()),
        };
        let connections = self.changes.connections.all();
        let snapshots = connections.values().map(DatapathSnapshot::of);
        snapshots
            .filter_map(|snapshot| snapshot.change_to(next, purpose))
            .collect()
    }

    pub(super) async fn prepare(&self, next: &Table) -> Result<Vec<PreparedDatapath>, ChangeError> {
        prepare(self.due(next)).await
    }

    /// An engine of this change that has failed on probation ends the change.
    fn check_probations(&self, next: &Table) -> Result<(), ChangeError> {
        let old = self.changes.policies.table();
        for instance in next.instances() {
            if old.instances().any(|known| known.tag == instance.tag) {
                continue;
            }
            if let Some(problem) = self.changes.policies.history.has_failed(instance.tag) {
                return Err(ChangeError::Undone {
                    engine: instance.name.to_string(),
                    connection: 0,
                    app: String::new(),
                    service: String::new(),
                    problem: format!("it failed on trial: {problem}"),
                });
            }
        }
        Ok(())
    }

    /// Changes the datapaths, and stops at the first of which an engine does not start.
    async fn apply(&mut self, ready: Vec<PreparedDatapath>) -> Result<(), ChangeError> {
        let mut ready = ready.into_iter();
        loop {
            let window: Vec<_> = ready.by_ref().take(WINDOW).collect();
            if window.is_empty() {
                return Ok(());
            }
            let failures = self.apply_window(window, &mut BTreeSet::new()).await;
            if let Some(failed) = failures.into_iter().next() {
                return Err(failed.error);
            }
        }
    }

    /// Changes these datapaths, each whatever becomes of the others, and says which could not be changed. Runtimes that take no commands
    /// are asked once.
    async fn apply_window(
        &mut self,
        window: Vec<PreparedDatapath>,
        overloaded: &mut BTreeSet<usize>,
    ) -> Vec<FailedDatapath> {
        let mut failures = Vec::new();
        let mut asked = Vec::with_capacity(window.len());
        for one in window {
            let (connection, runtime) = (one.connection(), one.context.runtime);
            let answer = if overloaded.contains(&runtime) {
                Err(ChangeError::Overloaded)
            } else {
                self.changes.ask(one).await
            };
            match answer {
                Ok(one) => asked.push(one),
                Err(error) => {
                    overloaded.insert(runtime);
                    failures.push(FailedDatapath { connection, error });
                }
            }
        }
        for one in asked {
            let connection = one.to.spec.id;
            if let Err(error) = self.on_answer(one).await {
                failures.push(FailedDatapath { connection, error });
            }
        }
        failures
    }

    async fn on_answer(&mut self, asked: AskedDatapath) -> Result<(), ChangeError> {
        match asked.done.await {
            Ok(Ok(done)) => {
                self.note(asked.from, asked.to, asked.context, done);
                Ok(())
            }
            Ok(Err(NotReconfigured::Failed { tag, problem })) => Err(ChangeError::Undone {
                engine: match asked.to.find(tag) {
                    Some(instance) => instance.name.to_string(),
                    None => asked.to.spec.transport.description().engine.to_owned(),
                },
                connection: asked.to.spec.id,
                app: asked.context.app.name.to_string(),
                service: asked.context.service.to_string(),
                problem,
            }),
            // It has ended, or comes still, or has changed by itself: looked at again.
            Ok(Err(NotReconfigured::Unknown | NotReconfigured::Stale { .. })) | Err(_) => Ok(()),
        }
    }

    fn note(
        &mut self,
        from: DatapathShape,
        to: DatapathShape,
        context: Arc<DatapathContext>,
        done: ReconfigureReport,
    ) {
        let changed = self.changed.entry(to.spec.id).or_insert_with(|| ChangedDatapath {
            from,
            checkpoints: EngineCheckpoints::default(),
        });
        self.changes.note(to, context, done.revision);
        for retired in done.retired {
            self.retired_bytes += retired.saved.bytes.len();
            changed.checkpoints.keep_first(retired.tag, retired.saved);
            self.retired.push(retired.engine);
        }
        self.pauses.push(done.pause_ns);
        self.steps_released += done.steps_released;
    }

    /// Gives every datapath that was changed the engines again that it had; those that could not get them are drained.
    async fn undo(&mut self) -> Vec<FailedDatapath> {
        let mut left = std::mem::take(&mut self.changed);
        let (mut failures, mut overloaded) = (Vec::new(), BTreeSet::new());
        for _ in 0..LOOKS_MAX {
            let back = self.changes_back(&mut left);
            if back.is_empty() {
                return failures;
            }
            let (ready, mut failed) = prepare_each(back).await;
            let mut ready = ready.into_iter().peekable();
            while ready.peek().is_some() {
                let window = ready.by_ref().take(WINDOW).collect();
                failed.extend(self.apply_window(window, &mut overloaded).await);
            }
            for failed in &failed {
                left.remove(&failed.connection);
                self.give_up(failed);
            }
            failures.extend(failed);
            // Whatever is left has ended, comes still, or has changed by itself.
            self.changed.clear();
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        let late = |connection| FailedDatapath {
            connection,
            error: ChangeError::Overloaded,
        };
        let late: Vec<_> = left.into_keys().map(late).collect();
        late.iter().for_each(|failed| self.give_up(failed));
        failures.extend(late);
        failures
    }

    /// Lets a connection end that has what the node's table does not give it: for as long as it is open, no change fits it.
    fn give_up(&self, FailedDatapath { connection, error }: &FailedDatapath) {
        let reason = error.reason_there();
        tracing::error!(
            connection,
            reason,
            "a change was not undone on a connection: it is drained"
        );
        if let Some(open) = self.changes.connections.find(*connection) {
            open.drain();
        }
    }

    /// What has to happen to those of the changed datapaths that do not have again what they had.
    fn changes_back(&self, left: &mut HashMap<ConnectionId, ChangedDatapath>) -> Vec<DatapathChange> {
        let connections = self.changes.connections.all();
        let mut changes = Vec::new();
        left.retain(|id, changed| {
            let snapshot = connections.get(id).map(DatapathSnapshot::of);
            let change =
                snapshot.and_then(|snapshot| snapshot.change_back(&changed.from, &changed.checkpoints));
            let is_due = change.is_some();
            changes.extend(change);
            is_due
        });
        changes
    }

    pub(super) fn fill(&mut self, report: &mut Report) {
        self.pauses.sort_unstable();
        report.datapaths = self.changed.len();
        report.steps_released = self.steps_released;
        report.pause_ns_p50 = self.pauses.get(self.pauses.len() / 2).copied().unwrap_or(0);
        report.pause_ns_max = self.pauses.last().copied().unwrap_or(0);
    }
}

/// Gets all of them ready, off this thread.
async fn prepare(changes: Vec<DatapathChange>) -> Result<Vec<PreparedDatapath>, ChangeError> {
    let mut ready = Vec::with_capacity(changes.len());
    let mut changes = changes.into_iter();
    loop {
        let some: Vec<_> = changes.by_ref().take(PREPARED_AT_ONCE).collect();
        if some.is_empty() {
            return Ok(ready);
        }
        let prepared = tokio::task::spawn_blocking(move || prepare_here(some)).await;
        ready.extend(prepared.map_err(|_| ChangeError::Ending)??);
    }
}

/// Gets each of them ready that can be, off this thread; beside those, the others.
async fn prepare_each(changes: Vec<DatapathChange>) -> (Vec<PreparedDatapath>, Vec<FailedDatapath>) {
    let (mut ready, mut failures) = (Vec::with_capacity(changes.len()), Vec::new());
    let mut changes = changes.into_iter().peekable();
    while changes.peek().is_some() {
        let some: Vec<_> = changes.by_ref().take(PREPARED_AT_ONCE).collect();
        let connections: Vec<_> = some.iter().map(DatapathChange::connection).collect();
        let prepare = move || some.into_iter().map(DatapathChange::prepare).collect::<Vec<_>>();
        let prepared = tokio::task::spawn_blocking(prepare).await;
        let prepared =
            prepared.unwrap_or_else(|_| connections.iter().map(|_| Err(ChangeError::Ending)).collect());
        for (connection, prepared) in connections.into_iter().zip(prepared) {
            match prepared {
                Ok(prepared) => ready.push(prepared),
                Err(error) => failures.push(FailedDatapath { connection, error }),
            }
        }
    }
    (ready, failures)
}

pub(super) fn prepare_here(changes: Vec<DatapathChange>) -> Result<Vec<PreparedDatapath>, ChangeError> {
    changes.into_iter().map(DatapathChange::prepare).collect()
}
