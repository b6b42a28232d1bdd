//! What changes have brought lately, and what was there before: for changes that are taken back, and for engines of
//! datapaths that open just after a change.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use provost_engine::DatapathContext;

use super::table::{Entry, Instance, Table};
use crate::runtime::{EngineTag, PROBATION_NS, PROBATIONS_KEPT_MAX};

/// A change is taken back everywhere when one of its engines fails on probation within this time.
const TAKEN_BACK_WITHIN: Duration = Duration::from_secs(600);
/// An instance is on probation on datapaths that open so soon after the change that brought it.
const UNPROVED_FOR: Duration = Duration::from_nanos(PROBATION_NS);
/// Instances of which it is remembered what was before them, at most.
const RECENT_MAX: usize = 256;

/// See the module's documentation.
pub(crate) struct ChangeHistory {
    recent: RefCell<HashMap<EngineTag, RecentInstance>>,
    next_number: Cell<u64>,
}

/// An instance that a change brought, and what was before it.
struct RecentInstance {
    /// The attachment as it was; none if it was not.
    previous: Option<Entry>,
    at: Instant,
    /// It has failed on probation somewhere.
    has_failed: Option<String>,
}

impl ChangeHistory {
    /// Of a node that has changed nothing yet.
    pub(crate) fn new() -> ChangeHistory {
        ChangeHistory {
            recent: RefCell::default(),
            next_number: Cell::new(1),
        }
    }

    /// Remembers what was before each instance that the next table has and this one has not.
    pub(crate) fn remember(&self, old: &Table, next: &Table) {
        let mut recent = self.recent.borrow_mut();
        let now = Instant::now();
        recent.retain(|_, recent| now.saturating_duration_since(recent.at) < TAKEN_BACK_WITHIN);
        let known: Vec<EngineTag> = old.instances().map(|instance| instance.tag).collect();
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
                let previous = RecentInstance {
                    previous: old.find(&entry.attachment.name).cloned(),
                    at: now,
                    has_failed: None,
                };
                recent.insert(instance.tag, previous);
            }
        }
    }

    /// Forgets what did not come to be.
    pub(crate) fn forget(&self, table: &Table) {
        let mut recent = self.recent.borrow_mut();
        recent.retain(|tag, _| table.instances().any(|instance| instance.tag == *tag));
    }

    /// What was before an instance that came not long ago, and has not failed itself: an attachment, or none.
    pub(crate) fn fallback_of(&self, mut tag: EngineTag) -> Option<Option<Entry>> {
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
    pub(crate) fn unproved_lineage(
        &self,
        mut tag: EngineTag,
        context: &DatapathContext,
    ) -> Vec<Option<Arc<Instance>>> {
        let all = self.recent.borrow();
        let mut lineage = Vec::new();
        while lineage.len() < PROBATIONS_KEPT_MAX
            && let Some(recent) = all.get(&tag)
            && recent.at.elapsed() < UNPROVED_FOR
        {
            let previous = recent
                .previous
                .as_ref()
                .and_then(|entry| entry.for_context(context));
            let Some(previous) = previous else {
                lineage.push(None);
                break;
            };
            tag = previous.tag;
            let has_failed = |recent: &RecentInstance| recent.has_failed.is_some();
            if !all.get(&tag).is_some_and(has_failed) {
                lineage.push(Some(Arc::clone(previous)));
            }
        }
        lineage
    }

    /// Instances that have failed on probation not long ago.
    pub(crate) fn failed(&self) -> Arc<[EngineTag]> {
        let recent = self.recent.borrow();
        let failed = recent.iter().filter(|(_, recent)| recent.has_failed.is_some());
        failed.map(|(tag, _)| *tag).collect()
    }

    pub(crate) fn note_failure(&self, tag: EngineTag, reason: &str) {
        if let Some(recent) = self.recent.borrow_mut().get_mut(&tag) {
            recent.has_failed.get_or_insert_with(|| reason.to_owned());
        }
    }

    pub(crate) fn has_failed(&self, tag: EngineTag) -> Option<String> {
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
