//! Carrying out changes: all live datapaths, or none.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use provost_engine::{Engine, Site};
use tokio::sync::oneshot;

use super::change::{Change, ChangeError, Mode, Report};
use super::plan::{Checkpoints, Order, Purpose, Ready, Shape, Standing};
use super::table::{Entry, Instance, Table};
use crate::node::Shared;
use crate::runtime::{Command, ConnectionId, Done, NotReshaped, Reshape, TRIAL_NS, TRIALS_KEPT_MAX, Tag};

/// Datapaths whose change is under way at once. Each runtime changes few of them in a round.
const WINDOW: usize = 64;
/// Datapaths that one visit to another thread prepares.
const PREPARED_AT_ONCE: usize = 256;
/// Engines that have saved no more than this in all are dropped where they are, in bytes.
const DROPPED_HERE_BYTES_MAX: usize = 64 << 10;
/// Between two looks at what a change still waits for.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// Looks without any progress after which a change is given up.
const LOOKS_MAX: u32 = 5_000;
/// A change is taken back everywhere when one of its engines fails on trial within this time.
const TAKEN_BACK_WITHIN: Duration = Duration::from_secs(600);
/// An instance is on trial on datapaths that open so soon after the change that brought it.
const UNPROVED_FOR: Duration = Duration::from_nanos(TRIAL_NS);
/// Instances of which it is remembered what was before them, at most.
const RECENT_MAX: usize = 256;

/// An instance that a change brought, and what was before it.
pub(crate) struct Recent {
    /// The attachment as it was; none if it was not.
    pub(crate) previous: Option<Entry>,
    at: Instant,
    /// It has failed on trial somewhere.
    has_failed: Option<String>,
}

/// Carries out a change, and says what came of it. Changes come one after the other.
pub(crate) async fn carry_out(
    shared: &Rc<Shared>,
    change: Change,
    mode: Mode,
) -> Result<Report, ChangeError> {
    let began = Instant::now();
    let _turn = shared.policies.turn.lock().await;
    let old = shared.policies.table();
    let Made { next, ready } = make(shared, &old, &change, mode).await?;
    let (before, after) = super::listing::differences(&old, &next);
    let mut report = Report {
        before,
        after,
        ..Report::default()
    };
    let mut switch = Switch::new(shared, Kind::Forward);
    match mode {
        Mode::DryRun => {
            report.datapaths = switch.prepare(&next).await?.len();
        }
        Mode::Apply => {
            shared.policies.remember(&old, &next);
            if let Err(error) = switch.to(next, ready).await {
                shared.policies.forget_recent(&old);
                tracing::warn!(%error, "a change of policies was undone");
                if matches!(change, Change::Upgrade(_)) {
                    shared.counts.upgrades_undone.add_one();
                }
                return Err(error);
            }
            match change {
                Change::Upgrade(_) => shared.counts.upgrades.add_one(),
                Change::Rollback { .. } => shared.counts.rollbacks.add_one(),
                _ => {}
            }
            switch.fill(&mut report);
            report.number = shared.policies.new_number();
        }
    }
    report.took = began.elapsed();
    report.summary = super::listing::summary(&change, mode, report.datapaths);
    tracing::info!(
        number = report.number,
        datapaths = report.datapaths,
        pause_us_max = report.pause_ns_max / 1000,
        took_ms = report.took.as_millis() as u64,
        "{}",
        report.summary
    );
    Ok(report)
}

/// What a change comes to.
struct Made {
    next: Table,
    /// The datapaths that it concerns: all of them, or none yet.
    ready: Vec<Ready>,
}

/// Makes the next table and, unless they are many, gets all datapaths ready for it. What policies do for it may be slow
/// and happens on another thread, all in one visit: to go there and back is much of what a small change takes.
async fn make(shared: &Rc<Shared>, old: &Table, change: &Change, mode: Mode) -> Result<Made, ChangeError> {
    let (maker, mut table) = (shared.policies.maker.clone(), old.clone());
    table.forget_connections(|number| shared.connections.borrow().contains_key(&number));
    let standing = match mode {
        Mode::Apply => few_standing(shared),
        Mode::DryRun => Vec::new(),
    };
    let orders = |standing: Vec<Standing>, next: &Table| -> Vec<Order> {
        let order = |standing: Standing| standing.order(next, || Purpose::Forward);
        standing.into_iter().filter_map(order).collect()
    };
    if !change.configures_policies() {
        let next = maker.changed(&table, change)?;
        let orders = orders(standing, &next);
        let ready = match orders.iter().any(Order::prepares_policies) {
            true => Vec::new(),
            false => prepare_here(orders)?,
        };
        return Ok(Made { next, ready });
    }
    let change = change.clone();
    let make = move || {
        let next = maker.changed(&table, &change)?;
        let ready = prepare_here(orders(standing, &next))?;
        Ok(Made { next, ready })
    };
    let made = tokio::task::spawn_blocking(make).await;
    made.map_err(|_| ChangeError::Ending)?
}

/// The open connections, if one visit can prepare them all: no datapath is changed before each of them is ready.
fn few_standing(shared: &Shared) -> Vec<Standing> {
    let connections = shared.connections.borrow();
    match connections.len() <= PREPARED_AT_ONCE {
        true => connections
            .iter()
            .map(|(id, connection)| Standing::of(*id, connection))
            .collect(),
        false => Vec::new(),
    }
}

/// Takes a change back everywhere whose engine has failed on trial.
pub(crate) async fn take_back(shared: Rc<Shared>, tag: Tag) {
    let _turn = shared.policies.turn.lock().await;
    let old = shared.policies.table();
    let mut next = (*old).clone();
    let has_it = |entry: &Entry| entry.instances().any(|instance| instance.tag == tag);
    // It may have been changed or taken back already.
    let Some(at) = next.entries.iter().position(has_it) else {
        return;
    };
    let name = next.entries[at].attachment.name.clone();
    match shared.policies.before(tag) {
        None => return,
        Some(Some(previous)) => next.entries[at] = previous,
        Some(None) => drop(next.entries.remove(at)),
    }
    let mut switch = Switch::new(&shared, Kind::Back);
    match switch.to(next, Vec::new()).await {
        Ok(()) => {
            shared.counts.taken_back.add_one();
            tracing::error!(
                policy = name,
                datapaths = switch.pauses.len(),
                "an engine failed on trial: the change that brought it was taken back everywhere"
            );
        }
        Err(error) => tracing::error!(policy = name, %error, "a change could not be taken back everywhere"),
    }
}

/// Whether what comes is new.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Forward,
    /// It was there before.
    Back,
}

/// Bringing all datapaths from one table to another.
struct Switch<'a> {
    shared: &'a Rc<Shared>,
    kind: Kind,
    changed: HashMap<ConnectionId, Changed>,
    pauses: Vec<u64>,
    steps_released: usize,
    retired: Vec<Box<dyn Engine>>,
    /// What they had saved, in bytes.
    retired_bytes: usize,
}

/// A datapath that was changed.
struct Changed {
    from: Shape,
    checkpoints: Checkpoints,
}

impl<'a> Switch<'a> {
    fn new(shared: &'a Rc<Shared>, kind: Kind) -> Switch<'a> {
        Switch {
            shared,
            kind,
            changed: HashMap::new(),
            pauses: Vec::new(),
            steps_released: 0,
            retired: Vec::new(),
            retired_bytes: 0,
        }
    }

    /// Makes this table the node's, with what is ready for it. On failure every datapath has the engines again that it
    /// had.
    async fn to(&mut self, next: Table, ready: Vec<Ready>) -> Result<(), ChangeError> {
        let outcome = self.reach(&next, ready).await;
        match &outcome {
            Ok(()) => {
                self.shared.policies.commit(next);
                self.forget_failed();
            }
            Err(_) => self.undo().await,
        }
        let retired = std::mem::take(&mut self.retired);
        match self.retired_bytes <= DROPPED_HERE_BYTES_MAX {
            true => drop(retired),
            // To drop engines with much state takes its time.
            false => drop(tokio::task::spawn_blocking(move || drop(retired))),
        }
        outcome
    }

    /// Forgets which instances have failed on which datapaths, of those that are no more. (Not before the commit: until then
    /// a datapath may come back to what it had, but not to what has failed there.)
    fn forget_failed(&self) {
        let table = self.shared.policies.table();
        let is_live = |tag: &Tag| table.instances().any(|instance| instance.tag == *tag);
        for connection in self.shared.connections.borrow_mut().values_mut() {
            connection.without.retain(is_live);
        }
    }

    /// Brings every datapath to what the table gives it, also those that open meanwhile. When this returns, nothing
    /// has come in between.
    async fn reach(&mut self, next: &Table, mut ready: Vec<Ready>) -> Result<(), ChangeError> {
        let mut looks = 0;
        loop {
            if ready.is_empty() {
                ready = self.prepare(next).await?;
            }
            // A failure that was told meanwhile has changed what is wanted of its datapath.
            self.check_trials(next)?;
            if ready.is_empty() {
                match self.due(next).is_empty() {
                    true => return Ok(()),
                    false => continue,
                }
            }
            let before = self.changed.len();
            self.apply(std::mem::take(&mut ready)).await?;
            looks = match self.changed.len() > before {
                true => 0,
                false => looks + 1,
            };
            if looks >= LOOKS_MAX {
                return Err(ChangeError::Overloaded);
            }
            if looks > 0 {
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        }
    }

    /// The datapaths that have something else than what the table gives them.
    fn due(&self, next: &Table) -> Vec<Order> {
        let connections = self.shared.connections.borrow();
        let purpose = || match self.kind {
            Kind::Forward => Purpose::Forward,
            Kind::Back => Purpose::Restore(self.shared.policies.failed()),
        };
        let order = |(id, connection): (&ConnectionId, &crate::node::OpenConnection)| {
            Standing::of(*id, connection).order(next, purpose)
        };
        connections.iter().filter_map(order).collect()
    }

    async fn prepare(&self, next: &Table) -> Result<Vec<Ready>, ChangeError> {
        prepare(self.due(next)).await
    }

    /// An engine of this change that has failed on trial ends the change.
    fn check_trials(&self, next: &Table) -> Result<(), ChangeError> {
        let old = self.shared.policies.table();
        for instance in next.instances() {
            if old.instances().any(|known| known.tag == instance.tag) {
                continue;
            }
            if let Some(problem) = self.shared.policies.has_failed(instance.tag) {
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

    /// Changes the datapaths, and stops at the first that does not take over.
    async fn apply(&mut self, ready: Vec<Ready>) -> Result<(), ChangeError> {
        let mut ready = ready.into_iter();
        loop {
            let window: Vec<_> = ready.by_ref().take(WINDOW).collect();
            if window.is_empty() {
                return Ok(());
            }
            let mut failure = None;
            let mut asked = Vec::with_capacity(window.len());
            for one in window {
                match ask(self.shared, one).await {
                    Ok(one) => asked.push(one),
                    Err(error) => {
                        failure = Some(error);
                        break;
                    }
                }
            }
            for one in asked {
                if let Err(error) = self.hear(one).await {
                    failure.get_or_insert(error);
                }
            }
            if let Some(error) = failure {
                return Err(error);
            }
        }
    }

    async fn hear(&mut self, asked: Asked) -> Result<(), ChangeError> {
        match asked.done.await {
            Ok(Ok(done)) => {
                self.note(asked.connection, asked.from, asked.to, done);
                Ok(())
            }
            Ok(Err(NotReshaped::Failed { tag, problem })) => Err(ChangeError::Undone {
                engine: match asked.to.chain.iter().find(|instance| instance.tag == tag) {
                    Some(instance) => instance.name.to_string(),
                    None => super::transports::TCP.to_owned(),
                },
                connection: asked.connection,
                app: asked.site.app.name.to_string(),
                service: asked.site.service.to_string(),
                problem,
            }),
            // It has ended, or comes still, or has changed by itself: looked at again.
            Ok(Err(NotReshaped::Unknown | NotReshaped::Stale { .. })) | Err(_) => Ok(()),
        }
    }

    fn note(&mut self, connection: ConnectionId, from: Shape, to: Shape, done: Done) {
        if let Some(open) = self.shared.connections.borrow_mut().get_mut(&connection) {
            open.revision = done.revision;
            open.chain = to.chain;
            open.transport_version = to.transport_version;
        }
        super::heal::heard_of_change(self.shared, connection);
        let mut checkpoints = Checkpoints::new();
        for retired in done.retired {
            self.retired_bytes += retired.saved.bytes.len();
            checkpoints.insert(retired.tag, retired.saved);
            self.retired.push(retired.engine);
        }
        self.pauses.push(done.pause_ns);
        self.steps_released += done.steps_released;
        let changed = self.changed.entry(connection).or_insert(Changed {
            from,
            checkpoints: Checkpoints::new(),
        });
        for (tag, saved) in checkpoints {
            changed.checkpoints.entry(tag).or_insert(saved);
        }
    }

    /// Gives every datapath that was changed the engines again that it had.
    async fn undo(&mut self) {
        let mut left = std::mem::take(&mut self.changed);
        for _ in 0..LOOKS_MAX {
            let orders = undo_orders(self.shared, &mut left);
            if orders.is_empty() {
                return;
            }
            let undone = match prepare(orders).await {
                Ok(ready) => self.apply(ready).await,
                Err(error) => Err(error),
            };
            if let Err(error) = undone {
                tracing::error!(%error, "a change could not be undone everywhere");
                return;
            }
            // Whatever is left has ended, comes still, or has changed by itself.
            for (connection, changed) in std::mem::take(&mut self.changed) {
                drop((connection, changed));
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        tracing::error!(datapaths = left.len(), "a change could not be undone everywhere");
    }

    fn fill(&mut self, report: &mut Report) {
        self.pauses.sort_unstable();
        report.datapaths = self.changed.len();
        report.steps_released = self.steps_released;
        report.pause_ns_p50 = self.pauses.get(self.pauses.len() / 2).copied().unwrap_or(0);
        report.pause_ns_max = self.pauses.last().copied().unwrap_or(0);
    }
}

/// Those of the changed datapaths that do not have again what they had.
fn undo_orders(shared: &Shared, left: &mut HashMap<ConnectionId, Changed>) -> Vec<Order> {
    let connections = shared.connections.borrow();
    let mut orders = Vec::new();
    left.retain(|id, changed| {
        let standing = connections
            .get(id)
            .map(|connection| Standing::of(*id, connection));
        let order = standing.and_then(|standing| standing.order_back(&changed.from, &changed.checkpoints));
        let is_due = order.is_some();
        orders.extend(order);
        is_due
    });
    orders
}

/// A datapath whose runtime was asked to change it.
struct Asked {
    connection: ConnectionId,
    site: Arc<Site>,
    from: Shape,
    to: Shape,
    done: oneshot::Receiver<Result<Done, NotReshaped>>,
}

async fn ask(shared: &Shared, ready: Ready) -> Result<Asked, ChangeError> {
    let (done, hears) = oneshot::channel();
    let reshape = Reshape {
        connection: ready.connection,
        expected: ready.from.engines(),
        planned: ready.planned,
        done,
    };
    let runtime = &shared.runtimes[ready.site.runtime];
    let told = runtime.tell(Command::Reshape(Box::new(reshape))).await;
    told.map_err(|_| ChangeError::Overloaded)?;
    Ok(Asked {
        connection: ready.connection,
        site: ready.site,
        from: ready.from,
        to: ready.to,
        done: hears,
    })
}

/// Gets all of them ready, off this thread.
async fn prepare(orders: Vec<Order>) -> Result<Vec<Ready>, ChangeError> {
    let mut ready = Vec::with_capacity(orders.len());
    let mut orders = orders.into_iter();
    loop {
        let some: Vec<_> = orders.by_ref().take(PREPARED_AT_ONCE).collect();
        if some.is_empty() {
            return Ok(ready);
        }
        let prepared = tokio::task::spawn_blocking(move || prepare_here(some)).await;
        ready.extend(prepared.map_err(|_| ChangeError::Ending)??);
    }
}

fn prepare_here(orders: Vec<Order>) -> Result<Vec<Ready>, ChangeError> {
    orders.into_iter().map(Order::prepare).collect()
}

/// What was before what is.
impl super::Policies {
    /// Remembers what was before each instance that the next table has and this one has not.
    fn remember(&self, old: &Table, next: &Table) {
        let mut recent = self.recent.borrow_mut();
        let now = Instant::now();
        recent.retain(|_, recent| now.saturating_duration_since(recent.at) < TAKEN_BACK_WITHIN);
        let known: Vec<Tag> = old.instances().map(|instance| instance.tag).collect();
        for entry in &next.entries {
            for instance in entry
                .instances()
                .filter(|instance| !known.contains(&instance.tag))
            {
                let oldest = recent.iter().min_by_key(|(_, recent)| recent.at);
                if recent.len() >= RECENT_MAX
                    && let Some(oldest) = oldest.map(|(tag, _)| *tag)
                {
                    recent.remove(&oldest);
                }
                let previous = Recent {
                    previous: old.find(&entry.attachment.name).cloned(),
                    at: now,
                    has_failed: None,
                };
                recent.insert(instance.tag, previous);
            }
        }
    }

    /// Forgets what did not come to be.
    fn forget_recent(&self, table: &Table) {
        let mut recent = self.recent.borrow_mut();
        recent.retain(|tag, _| table.instances().any(|instance| instance.tag == *tag));
    }

    /// What was before an instance that came not long ago, and has not failed itself: an attachment, or none.
    fn before(&self, mut tag: Tag) -> Option<Option<Entry>> {
        let all = self.recent.borrow();
        loop {
            let recent = all.get(&tag)?;
            if recent.at.elapsed() >= TAKEN_BACK_WITHIN {
                return None;
            }
            let has_failed = |instance: &&Arc<Instance>| {
                let recent = all.get(&instance.tag);
                recent.is_some_and(|recent| recent.has_failed.is_some())
            };
            let previous = recent.previous.as_ref();
            match previous.and_then(|entry| entry.instances().find(has_failed)) {
                // What was before it came earlier, so this comes to an end.
                Some(failed) => tag = failed.tag,
                None => return Some(recent.previous.clone()),
            }
        }
    }

    /// What a datapath would have had in the place of an instance that has not proved itself yet, and in the place of that
    /// one, as far as they came just now too; nothing for one that is older, or came with the node.
    pub(super) fn unproved_lineage(&self, mut tag: Tag, site: &Site) -> Vec<Option<Arc<Instance>>> {
        let all = self.recent.borrow();
        let mut lineage = Vec::new();
        while lineage.len() < TRIALS_KEPT_MAX
            && let Some(recent) = all.get(&tag)
            && recent.at.elapsed() < UNPROVED_FOR
        {
            let previous = recent.previous.as_ref().and_then(|entry| entry.for_site(site));
            let Some(previous) = previous else {
                lineage.push(None);
                break;
            };
            tag = previous.tag;
            let has_failed = |recent: &Recent| recent.has_failed.is_some();
            if !all.get(&tag).is_some_and(has_failed) {
                lineage.push(Some(Arc::clone(previous)));
            }
        }
        lineage
    }

    /// Instances that have failed on trial not long ago.
    fn failed(&self) -> Arc<[Tag]> {
        let recent = self.recent.borrow();
        let failed = recent.iter().filter(|(_, recent)| recent.has_failed.is_some());
        failed.map(|(tag, _)| *tag).collect()
    }

    pub(crate) fn note_failure(&self, tag: Tag, reason: &str) {
        if let Some(recent) = self.recent.borrow_mut().get_mut(&tag) {
            recent.has_failed.get_or_insert_with(|| reason.to_owned());
        }
    }

    fn has_failed(&self, tag: Tag) -> Option<String> {
        self.recent.borrow().get(&tag)?.has_failed.clone()
    }

    /// The number of the change that was made last; 0 before the first.
    pub(crate) fn last_number(&self) -> u64 {
        self.next_number.get() - 1
    }

    /// Goes on numbering behind what another process has numbered.
    pub(crate) fn number_from(&self, last: u64) {
        self.next_number.set(last + 1);
    }

    /// The number of a change that was made.
    pub(crate) fn new_number(&self) -> u64 {
        self.next_number.replace(self.next_number.get() + 1)
    }
}
