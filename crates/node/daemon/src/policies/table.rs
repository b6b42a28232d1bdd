//! The ordered table of attachments, what a datapath gets of it, and how a change makes another table of it.
//!
//! A table is a value: a change makes a whole new one, every live datapath is prepared for it, and only then it takes
//! the place of the old one. An [`Instance`] is what one attachment is at one time (its version, its configuration,
//! the policy that its engines share); a change of any of these makes another instance.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use provost_engine::{
    AttachError, DatapathContext, Environment, EventSink, NoEvents, Policy, PolicyKind, SameNodeCalls,
    SharedState, Side, Start, VerdictLedger,
};

use super::attachment::{Attachment, OnFault, matches};
use super::change::{Change, ChangeError, Position, Reach, Upgrade};
use super::registry::Registry;
use super::transport_versions::TransportVersions;
use crate::runtime::EngineTag;
use crate::suggestion::what_is_known;
use crate::transport::TransportKind;

/// Attachments of a node, at most.
pub const ATTACHMENTS_MAX: usize = 64;
/// Apps and connections for which one attachment has another version than for the rest, at most.
const EXCEPTIONS_MAX: usize = 256;

/// What is attached, in the order in which a call meets it on its way out.
#[derive(Clone, Default)]
pub(crate) struct Table {
    pub(crate) entries: Vec<Entry>,
    pub(crate) transports: TransportVersions,
}

#[derive(Clone)]
pub(crate) struct Entry {
    /// As the operator has it.
    pub(crate) attachment: Attachment,
    /// What most datapaths have of it.
    pub(crate) live: Arc<Instance>,
    /// What some have instead.
    pub(crate) exceptions: Vec<(Reach, Arc<Instance>)>,
    /// The version before the last upgrade.
    pub(crate) before: Option<u32>,
}

/// What one attachment is at one time.
pub(crate) struct Instance {
    /// Unlike that of all other instances since the node began.
    pub(crate) tag: EngineTag,
    /// With the version that it has.
    pub(crate) attachment: Attachment,
    pub(crate) name: Arc<str>,
    pub(crate) kind: Arc<dyn PolicyKind>,
    /// What its engines share.
    pub(crate) policy: Arc<dyn Policy>,
    /// What it has said of calls, together with what was in its place before.
    pub(crate) verdicts: Arc<VerdictLedger>,
}

impl Instance {
    /// Gets an engine of it ready for a datapath. May be slow.
    pub(crate) fn prepare(&self, datapath_context: &DatapathContext) -> Result<Start, AttachError> {
        self.policy.prepare(&self.datapath_context(datapath_context))
    }

    /// The datapath, with what the attachment is for in it.
    pub(crate) fn datapath_context(&self, datapath_context: &DatapathContext) -> DatapathContext {
        let is_judged_here = !self.judges_at_other_end(datapath_context);
        let in_scope = |method: &provost_engine::MethodContext| {
            is_judged_here && self.attachment.applies_to_method(&method.name, &method.path)
        };
        DatapathContext {
            scope: datapath_context.methods.iter().map(in_scope).collect(),
            verdicts: self.verdicts.of_runtime(datapath_context.runtime),
            ..datapath_context.clone()
        }
    }

    /// Whether it judges the calls of a server's datapath at the client's end alone, which is on this node too.
    pub(crate) fn judges_at_other_end(&self, datapath_context: &DatapathContext) -> bool {
        if self.kind.same_node_calls() != SameNodeCalls::Once || datapath_context.side != Side::Server {
            return false;
        }
        let client = datapath_context.peer.app.as_ref();
        client.is_some_and(|client| {
            self.attachment
                .applies_to(Side::Client, &client.name, &datapath_context.service)
        })
    }

    /// Whether it applies to a datapath, to any of its methods.
    fn applies_to(&self, datapath_context: &DatapathContext) -> bool {
        matches(&self.attachment.app, &datapath_context.app.name) && self.may_apply_to(datapath_context)
    }

    /// Whether it applies to such a datapath, of whichever app.
    pub(crate) fn may_apply_to(&self, datapath_context: &DatapathContext) -> bool {
        let attachment = &self.attachment;
        let is_meant =
            |method: &provost_engine::MethodContext| attachment.applies_to_method(&method.name, &method.path);
        attachment.applies_to_any_app(datapath_context.side, &datapath_context.service)
            && datapath_context.methods.iter().any(is_meant)
    }

    pub(crate) fn on_fault(&self) -> OnFault {
        self.attachment.on_fault
    }
}

impl std::fmt::Debug for Instance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} ({:?}, version {})",
            self.name,
            self.tag,
            self.kind.version()
        )
    }
}

impl Entry {
    /// What a datapath has of it, if it applies there.
    pub(super) fn for_context(&self, datapath_context: &DatapathContext) -> Option<&Arc<Instance>> {
        let excepted = self.exceptions.iter().rev().find(|(reach, _)| match reach {
            Reach::All => true,
            Reach::App(app) => *app == *datapath_context.app.name,
            Reach::Connection(connection) => *connection == datapath_context.connection,
        });
        let instance = excepted.map_or(&self.live, |(_, instance)| instance);
        instance.applies_to(datapath_context).then_some(instance)
    }

    pub(crate) fn instances(&self) -> impl Iterator<Item = &Arc<Instance>> {
        std::iter::once(&self.live).chain(self.exceptions.iter().map(|(_, instance)| instance))
    }
}

impl Table {
    /// The policies of a datapath, the app's first.
    pub(crate) fn chain(&self, datapath_context: &DatapathContext) -> Vec<Arc<Instance>> {
        let of_datapath = self
            .entries
            .iter()
            .filter_map(|entry| entry.for_context(datapath_context));
        of_datapath.cloned().collect()
    }

    /// All instances of all attachments.
    pub(crate) fn instances(&self) -> impl Iterator<Item = &Arc<Instance>> {
        self.entries.iter().flat_map(Entry::instances)
    }

    pub(crate) fn find(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.attachment.name == name)
    }

    /// The place of the attachment that has this instance.
    pub(crate) fn position_of_instance(&self, tag: EngineTag) -> Option<usize> {
        let has_it = |entry: &Entry| entry.instances().any(|instance| instance.tag == tag);
        self.entries.iter().position(has_it)
    }

    fn position(&self, name: &str) -> Result<usize, ChangeError> {
        let found = self
            .entries
            .iter()
            .position(|entry| entry.attachment.name == name);
        found.ok_or_else(|| ChangeError::NoSuchPolicy {
            name: name.to_owned(),
            known: self
                .entries
                .iter()
                .map(|entry| entry.attachment.name.clone())
                .collect(),
        })
    }

    /// Forgets exceptions for connections that have ended.
    pub(crate) fn forget_connections(&mut self, is_open: impl Fn(u64) -> bool) {
        let stays = |reach: &Reach| !matches!(reach, Reach::Connection(number) if !is_open(*number));
        self.transports.retain_exceptions(stays);
        for entry in &mut self.entries {
            entry.exceptions.retain(|(reach, _)| stays(reach));
        }
    }
}

/// Makes tables and instances. What it does may be slow, and so happens off the control plane's thread.
#[derive(Clone)]
pub(crate) struct Maker {
    pub(crate) registry: Arc<Registry>,
    pub(crate) node: Arc<str>,
    pub(crate) events: Arc<dyn EventSink>,
    next_tag: Arc<AtomicU64>,
    configuration: Arc<Mutex<PlacedPolicies>>,
}

/// The policies that the configuration has, and where it stands.
#[derive(Debug, Default)]
struct PlacedPolicies {
    place: Arc<str>,
    attachments: Vec<Attachment>,
}

impl Maker {
    pub(crate) fn new(registry: Arc<Registry>, node: Arc<str>, events: Arc<dyn EventSink>) -> Maker {
        Maker {
            registry,
            node,
            events,
            next_tag: Arc::new(AtomicU64::new(EngineTag::FIRST_POLICY.0)),
            configuration: Arc::default(),
        }
    }

    /// Says where the configuration stands: a file.
    pub(crate) fn set_place(&self, place: &str) {
        self.configuration().place = place.into();
    }

    /// Says what stands there, before it is made.
    pub(crate) fn set_configured(&self, attachments: &[Attachment]) {
        self.configuration().attachments = attachments.to_vec();
    }

    /// Where an attachment stands; empty for one that is not as configured.
    pub(crate) fn place_of(&self, attachment: &Attachment) -> Arc<str> {
        let configuration = self.configuration();
        // An upgrade changes its version, and nothing of what it says.
        let is_it = |other: &Attachment| other.name == attachment.name && other.config == attachment.config;
        if configuration.attachments.iter().any(is_it) {
            Arc::clone(&configuration.place)
        } else {
            Arc::default()
        }
    }

    fn configuration(&self) -> MutexGuard<'_, PlacedPolicies> {
        self.configuration.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One whose instances are only tried: nobody hears what they say.
    pub(crate) fn for_dry_runs(&self) -> Maker {
        Maker::new(
            Arc::clone(&self.registry),
            Arc::clone(&self.node),
            Arc::new(NoEvents),
        )
    }

    /// The table that a change makes of this one. Every configuration in it has been checked.
    pub(crate) fn changed(&self, table: &Table, change: &Change) -> Result<Table, ChangeError> {
        let mut next = table.clone();
        match change {
            Change::Attach { attachment, at } => self.attach(&mut next, attachment, *at)?,
            Change::Detach { name } => {
                let at = next.position(name)?;
                next.entries.remove(at);
            }
            Change::Set { name, config } => {
                let at = next.position(name)?;
                let attachment = Attachment {
                    config: config.clone(),
                    ..next.entries[at].attachment.clone()
                };
                self.configure_again(&mut next.entries[at], attachment)?;
            }
            Change::Order { names } => order(&mut next, names)?,
            Change::Upgrade(upgrade) => self.upgrade(&mut next, upgrade)?,
            Change::Rollback { engine } => self.roll_back(&mut next, engine)?,
            Change::Apply { attachments } => self.apply(&mut next, attachments)?,
        }
        Ok(next)
    }

    fn attach(
        &self,
        table: &mut Table,
        attachment: &Attachment,
        position: Position,
    ) -> Result<(), ChangeError> {
        if table.find(&attachment.name).is_some() {
            return Err(ChangeError::NameTaken {
                name: attachment.name.clone(),
            });
        }
        check_count(table.entries.len() + 1)?;
        let at = match position {
            Position::Last => table.entries.len(),
            Position::At(at) => at.min(table.entries.len()),
        };
        table.entries.insert(at, self.entry(attachment)?);
        Ok(())
    }

    /// An attachment with nothing before it.
    fn entry(&self, attachment: &Attachment) -> Result<Entry, ChangeError> {
        Ok(Entry {
            attachment: attachment.clone(),
            live: self.instance(attachment, None)?,
            exceptions: Vec::new(),
            before: None,
        })
    }

    /// Gives an attachment another configuration. Exceptions keep their versions.
    fn configure_again(&self, entry: &mut Entry, attachment: Attachment) -> Result<(), ChangeError> {
        let again = |old: &Arc<Instance>| {
            let mut wanted = attachment.clone();
            // An upgrade that was made at run time stays, unless the attachment itself asks for another version.
            if attachment.version == entry.attachment.version && attachment.kind == old.attachment.kind {
                wanted.version = old.attachment.version;
            }
            self.instance(&wanted, Some(old))
        };
        let live = again(&entry.live)?;
        let mut exceptions = Vec::with_capacity(entry.exceptions.len());
        for (reach, old) in &entry.exceptions {
            exceptions.push((reach.clone(), again(old)?));
        }
        (entry.live, entry.exceptions) = (live, exceptions);
        entry.attachment = attachment;
        Ok(())
    }

    fn apply(&self, table: &mut Table, attachments: &[Attachment]) -> Result<(), ChangeError> {
        check_count(attachments.len())?;
        let mut entries: Vec<Entry> = Vec::with_capacity(attachments.len());
        for attachment in attachments {
            if entries
                .iter()
                .any(|entry| entry.attachment.name == attachment.name)
            {
                return Err(ChangeError::NameTaken {
                    name: attachment.name.clone(),
                });
            }
            let entry = match table.find(&attachment.name) {
                Some(old) if old.attachment == *attachment => old.clone(),
                Some(old) if old.attachment.kind == attachment.kind => {
                    let mut entry = old.clone();
                    self.configure_again(&mut entry, attachment.clone())?;
                    entry
                }
                _ => self.entry(attachment)?,
            };
            entries.push(entry);
        }
        table.entries = entries;
        Ok(())
    }

    fn upgrade(&self, table: &mut Table, upgrade: &Upgrade) -> Result<(), ChangeError> {
        if upgrade.policy.is_none()
            && let Some(kind) = TransportKind::upgradable(&upgrade.kind)
        {
            return table.transports.upgrade(kind, upgrade.version, &upgrade.reach);
        }
        if upgrade.policy.is_none() && self.is_name_only(table, &upgrade.kind) {
            let named = Upgrade {
                kind: String::new(),
                policy: Some(upgrade.kind.clone()),
                ..upgrade.clone()
            };
            return self.upgrade(table, &named);
        }
        let kind = match &upgrade.policy {
            None => upgrade.kind.clone(),
            Some(name) => table.entries[table.position(name)?].attachment.kind.clone(),
        };
        if !upgrade.kind.is_empty() && upgrade.kind != kind {
            let problem = format!("the policy is of the kind \"{kind}\", not \"{}\"", upgrade.kind);
            return Err(ChangeError::NothingToUpgrade { problem });
        }
        let mut count = 0;
        for entry in &mut table.entries {
            let is_meant = match &upgrade.policy {
                Some(name) => entry.attachment.name == *name,
                None => entry.attachment.kind == kind,
            };
            if is_meant {
                self.upgrade_entry(entry, upgrade)?;
                count += 1;
            }
        }
        match count {
            0 => Err(ChangeError::NothingToUpgrade {
                problem: self.not_upgradable(table, &kind),
            }),
            _ => Ok(()),
        }
    }

    /// Whether this is what a policy is called, and no kind.
    fn is_name_only(&self, table: &Table, name: &str) -> bool {
        self.registry.find(name, None).is_err() && table.find(name).is_some()
    }

    /// Why nothing of this kind can be upgraded.
    fn not_upgradable(&self, table: &Table, kind: &str) -> String {
        if self.registry.find(kind, None).is_ok() {
            return format!("no policy of the kind \"{kind}\" is attached: there is nothing to upgrade");
        }
        let mut transports = TransportKind::ALL.iter().map(|transport| transport.description());
        if let Some(transport) = transports.find(|transport| transport.engine == kind) {
            return format!(
                "\"{kind}\" has only version {:?}: there is none to upgrade to",
                transport.versions.first().copied().unwrap_or(1)
            );
        }
        let kinds = self.registry.list().into_iter().map(|kind| kind.name);
        let names = table.entries.iter().map(|entry| entry.attachment.name.clone());
        let transports = table
            .transports
            .all_current()
            .map(|(engine, _)| engine.to_owned());
        let mut known: Vec<String> = kinds.chain(names).chain(transports).collect();
        known.sort();
        known.dedup();
        let hint = what_is_known(kind, "engine", &known);
        format!("there is no engine and no policy \"{kind}\"; {hint}")
    }

    fn upgrade_entry(&self, entry: &mut Entry, upgrade: &Upgrade) -> Result<(), ChangeError> {
        let newest = || self.registry.find(&entry.attachment.kind, None);
        let version = match upgrade.version {
            Some(version) => version,
            None => newest()
                .map_err(|error| unknown(&entry.attachment, error))?
                .version(),
        };
        let attachment = Attachment {
            version: Some(version),
            ..entry.attachment.clone()
        };
        if upgrade.reach != Reach::All {
            if entry.exceptions.len() >= EXCEPTIONS_MAX {
                let problem = format!(
                    "policy \"{}\" has {EXCEPTIONS_MAX} exceptions: upgrade all",
                    attachment.name
                );
                return Err(ChangeError::NothingToUpgrade { problem });
            }
            let instance = self.instance(&attachment, Some(&entry.live))?;
            entry.exceptions.retain(|(reach, _)| *reach != upgrade.reach);
            entry.exceptions.push((upgrade.reach.clone(), instance));
            return Ok(());
        }
        let old = entry.live.kind.version();
        // Who names the version that runs wants its engines started anew, with their state.
        if old != version || upgrade.version.is_some() {
            entry.live = self.instance(&attachment, Some(&entry.live))?;
        }
        if old != version {
            entry.before = Some(old);
        }
        entry.exceptions.clear();
        Ok(())
    }

    fn roll_back(&self, table: &mut Table, engine: &str) -> Result<(), ChangeError> {
        if let Some(kind) = TransportKind::upgradable(engine) {
            return table.transports.roll_back(kind);
        }
        let mut undone = false;
        for entry in &mut table.entries {
            if entry.attachment.kind != engine && entry.attachment.name != engine {
                continue;
            }
            if !entry.exceptions.is_empty() {
                entry.exceptions.clear();
                undone = true;
            } else if let Some(version) = entry.before
                && version != entry.live.kind.version()
            {
                let all = Upgrade {
                    kind: entry.attachment.kind.clone(),
                    version: Some(version),
                    policy: None,
                    reach: Reach::All,
                };
                self.upgrade_entry(entry, &all)?;
                // It has itself before it: there is nothing further back.
                entry.before = Some(version);
                undone = true;
            }
        }
        if undone {
            Ok(())
        } else {
            Err(ChangeError::NothingBefore {
                engine: engine.to_owned(),
            })
        }
    }

    /// An instance of an attachment, which continues from what another one shares.
    pub(crate) fn instance(
        &self,
        attachment: &Attachment,
        predecessor: Option<&Arc<Instance>>,
    ) -> Result<Arc<Instance>, ChangeError> {
        let predecessor = predecessor.filter(|old| old.attachment.kind == attachment.kind);
        let shared = predecessor.map(|old| old.policy.save());
        let verdicts = predecessor.map_or_else(Arc::default, |old| Arc::clone(&old.verdicts));
        self.make(attachment, shared.as_ref(), verdicts)
    }

    /// An instance of an attachment, which continues from what was shared.
    pub(crate) fn make(
        &self,
        attachment: &Attachment,
        shared: Option<&SharedState>,
        verdicts: Arc<VerdictLedger>,
    ) -> Result<Arc<Instance>, ChangeError> {
        if let Some(bad) = attachment.problems().into_iter().next() {
            return Err(ChangeError::Invalid {
                policy: attachment.name.clone(),
                key: bad.key,
                problem: bad.problem,
            });
        }
        let kind = self
            .registry
            .find(&attachment.kind, attachment.version)
            .map_err(|error| unknown(attachment, error))?;
        let name: Arc<str> = attachment.name.as_str().into();
        let environment = Environment {
            node: Arc::clone(&self.node),
            policy: Arc::clone(&name),
            place: self.place_of(attachment),
            events: Arc::clone(&self.events),
        };
        let policy = kind
            .configure(&attachment.config, &environment, shared)
            .map_err(|error| ChangeError::Config {
                policy: attachment.name.clone(),
                error,
            })?;
        Ok(Arc::new(Instance {
            tag: EngineTag(self.next_tag.fetch_add(1, Ordering::Relaxed)),
            attachment: Attachment {
                version: Some(kind.version()),
                ..attachment.clone()
            },
            name,
            kind,
            policy,
            verdicts,
        }))
    }
}

fn unknown(attachment: &Attachment, error: super::registry::NoSuchKind) -> ChangeError {
    ChangeError::Kind {
        policy: attachment.name.clone(),
        error,
    }
}

fn check_count(found: usize) -> Result<(), ChangeError> {
    if found <= ATTACHMENTS_MAX {
        Ok(())
    } else {
        Err(ChangeError::TooMany {
            found,
            most: ATTACHMENTS_MAX,
        })
    }
}

fn order(table: &mut Table, names: &[String]) -> Result<(), ChangeError> {
    let mut rest: Vec<Option<Entry>> = table.entries.drain(..).map(Some).collect();
    for name in names {
        let place = rest
            .iter_mut()
            .find(|entry| entry.as_ref().is_some_and(|entry| entry.attachment.name == *name));
        let entry = place.and_then(Option::take).ok_or_else(|| ChangeError::Order {
            problem: format!("\"{name}\" is not attached, or is named twice"),
        })?;
        table.entries.push(entry);
    }
    match rest.into_iter().flatten().next() {
        None => Ok(()),
        Some(missing) => Err(ChangeError::Order {
            problem: format!("\"{}\" is missing", missing.attachment.name),
        }),
    }
}
