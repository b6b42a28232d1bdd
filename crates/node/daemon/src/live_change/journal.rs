//! The last changes of what runs, for operators: what each of them is, how far it has come, and why it came no further.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::time::SystemTime;

use super::ChangeState;
use crate::policies::Report;

/// Changes that are kept, at most: the oldest is forgotten when there is another.
const ENTRIES_MAX: usize = 64;
/// A change that was refused before it was prepared.
const REFUSED: &str = "refused";

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct ChangeJournal {
    /// The oldest change comes first.
    entries: RefCell<VecDeque<JournalEntry>>,
}

/// One change, as operators see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JournalEntry {
    pub(crate) id: u64,
    /// What it did, or what it is about to do.
    pub(crate) summary: String,
    /// As the admin API names it.
    pub(crate) state: &'static str,
    pub(crate) began: SystemTime,
    /// When its state changed last.
    pub(crate) changed: SystemTime,
    /// 0 until it is made.
    pub(crate) number: u64,
    pub(crate) datapaths: usize,
    pub(crate) pause_ns_max: u64,
    /// Why it was refused or rolled back; empty otherwise.
    pub(crate) problem: String,
}

impl ChangeJournal {
    /// A change has been prepared.
    pub(super) fn begin(&self, id: u64, what: &str) {
        self.add(id, what, ChangeState::Prepared.name());
    }

    /// A change was refused.
    pub(super) fn refused(&self, id: u64, what: &str, problem: &str) {
        self.add(id, what, REFUSED);
        self.failed(id, problem);
    }

    fn add(&self, id: u64, what: &str, state: &'static str) {
        let now = SystemTime::now();
        let mut entries = self.entries.borrow_mut();
        if entries.len() == ENTRIES_MAX {
            entries.pop_front();
        }
        entries.push_back(JournalEntry {
            id,
            summary: what.to_owned(),
            state,
            began: now,
            changed: now,
            number: 0,
            datapaths: 0,
            pause_ns_max: 0,
            problem: String::new(),
        });
    }

    /// It has come further.
    pub(super) fn advance(&self, id: u64, to: ChangeState) {
        self.edit(id, |entry| {
            entry.state = to.name();
            entry.changed = SystemTime::now();
        });
    }

    /// The change is made.
    pub(super) fn report(&self, id: u64, report: &Report) {
        self.edit(id, |entry| {
            entry.summary.clone_from(&report.summary);
            entry.number = report.number;
            entry.datapaths = report.datapaths;
            entry.pause_ns_max = report.pause_ns_max;
        });
    }

    /// Why it is not made, or made no longer.
    pub(super) fn failed(&self, id: u64, problem: &str) {
        self.edit(id, |entry| problem.clone_into(&mut entry.problem));
    }

    fn edit(&self, id: u64, edit: impl FnOnce(&mut JournalEntry)) {
        let mut entries = self.entries.borrow_mut();
        // The newest first: that is the one that is under way.
        if let Some(entry) = entries.iter_mut().rev().find(|entry| entry.id == id) {
            edit(entry);
        }
    }

    /// All that are kept, the newest first.
    pub(crate) fn newest_first(&self) -> Vec<JournalEntry> {
        self.entries.borrow().iter().rev().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_changes_are_kept_with_how_far_they_came() {
        let journal = ChangeJournal::default();
        for id in 1..=ENTRIES_MAX as u64 + 5 {
            journal.begin(id, "attach limit");
        }
        journal.advance(69, ChangeState::RolledBack);
        journal.failed(69, "it did not start");
        // This one is forgotten already.
        journal.failed(1, "too late");
        let report = Report {
            summary: "attached limit on 3 datapaths".into(),
            number: 9,
            datapaths: 3,
            pause_ns_max: 1500,
            ..Report::default()
        };
        journal.report(68, &report);
        let kept = journal.newest_first();
        assert_eq!(kept.len(), ENTRIES_MAX);
        let of = |id: u64| kept.iter().find(|entry| entry.id == id).unwrap();
        assert_eq!(kept[0].id, ENTRIES_MAX as u64 + 5);
        assert_eq!(
            (of(69).state, of(69).problem.as_str()),
            ("rolled back", "it did not start")
        );
        assert_eq!(
            (of(68).summary.as_str(), of(68).number),
            ("attached limit on 3 datapaths", 9)
        );
        assert_eq!(of(67).state, "prepared");
    }

    #[test]
    fn a_refused_change_says_why() {
        let journal = ChangeJournal::default();
        journal.refused(1, "attach limit", "the name is taken");
        let [entry] = journal.newest_first().try_into().unwrap();
        assert_eq!(
            (entry.state, entry.problem.as_str()),
            ("refused", "the name is taken")
        );
    }
}
