//! The Raft library's view of a member's log: in memory, behind a journal.

use std::cell::Cell;
use std::collections::VecDeque;

use raft::prelude::{ConfState, Entry, HardState, Snapshot};
use raft::{GetEntriesContext, RaftState, Storage, StorageError};

use crate::journal::{JournalError, JournalMedium, JournalRecord, put_record, records};

/// Entries since the last snapshot, the snapshot, and what the member voted.
#[derive(Debug)]
pub(crate) struct RaftLog<M> {
    medium: M,
    state: HardState,
    snapshot: Snapshot,
    /// The first is the one after the snapshot.
    entries: VecDeque<Entry>,
    /// Bytes of what those carry.
    entries_bytes: usize,
    /// What goes to the journal with the next sync.
    unwritten: Vec<u8>,
    /// A later snapshot than there is was asked for.
    later_snapshot_wanted: Cell<bool>,
}

impl<M: JournalMedium> RaftLog<M> {
    /// The log that the medium has kept, or an empty one of these voters.
    pub(crate) fn open(mut medium: M, voters: &[u64]) -> Result<RaftLog<M>, JournalError> {
        let bytes = medium.load()?;
        let (records, whole_bytes) = records(&bytes)?;
        let mut log = RaftLog {
            medium,
            state: HardState::default(),
            snapshot: Snapshot::default(),
            entries: VecDeque::new(),
            entries_bytes: 0,
            unwritten: Vec::new(),
            later_snapshot_wanted: Cell::new(false),
        };
        log.snapshot.mut_metadata().set_conf_state(ConfState {
            voters: voters.to_vec(),
            ..ConfState::default()
        });
        for record in records {
            match record {
                JournalRecord::State(state) => log.state = state,
                JournalRecord::Entry(entry) => log.put_entry(entry),
                JournalRecord::Snapshot(snapshot) => log.begin_with(snapshot),
            }
        }
        // The commit may have been written before the entries that it is about, which then were not.
        log.state.commit = log.state.commit.clamp(log.snapshot_index(), log.last());
        if whole_bytes < bytes.len() {
            // What is appended must not stand behind half a record.
            log.rewrite()?;
        } else {
            // A process that has died may have written what it did not have survive. From here on the member speaks of all of it.
            log.medium.sync()?;
        }
        Ok(log)
    }

    pub(crate) fn snapshot_index(&self) -> u64 {
        self.snapshot.get_metadata().index
    }

    pub(crate) fn current_snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// Bytes of what the entries since the snapshot carry.
    pub(crate) fn entries_bytes(&self) -> usize {
        self.entries_bytes
    }

    fn last(&self) -> u64 {
        self.snapshot_index() + self.entries.len() as u64
    }

    fn put_entry(&mut self, entry: Entry) {
        // Entries that are in the snapshot already come again only from before it in the journal.
        if entry.index > self.snapshot_index() {
            let place = entry.index - self.snapshot_index() - 1;
            let place = self.entries.len().min(place as usize);
            let after = self.entries.drain(place..);
            self.entries_bytes -= after.map(|entry| entry.data.len()).sum::<usize>();
            self.entries_bytes += entry.data.len();
            self.entries.push_back(entry);
        }
    }

    fn begin_with(&mut self, snapshot: Snapshot) {
        let index = snapshot.get_metadata().index;
        let known = self
            .term(index)
            .is_ok_and(|term| term == snapshot.get_metadata().term);
        let covered = index.saturating_sub(self.snapshot_index()) as usize;
        let gone = if known && covered <= self.entries.len() {
            self.entries.drain(..covered)
        } else {
            self.entries.drain(..)
        };
        self.entries_bytes -= gone.map(|entry| entry.data.len()).sum::<usize>();
        self.snapshot = snapshot;
    }

    /// Takes entries, to be kept by the next [`RaftLog::sync`].
    pub(crate) fn append(&mut self, entries: Vec<Entry>) {
        for entry in entries {
            let record = JournalRecord::Entry(entry);
            put_record(&mut self.unwritten, &record);
            if let JournalRecord::Entry(entry) = record {
                self.put_entry(entry);
            }
        }
    }

    /// Takes term, vote and commit, to be kept by the next [`RaftLog::sync`].
    pub(crate) fn set_state(&mut self, state: HardState) {
        put_record(&mut self.unwritten, &JournalRecord::State(state.clone()));
        self.state = state;
    }

    /// Takes the commit. It need not survive: the leader tells it again.
    pub(crate) fn set_commit(&mut self, commit: u64) {
        self.state.commit = commit;
    }

    /// Writes what was taken, and has it survive.
    pub(crate) fn sync(&mut self) -> Result<(), JournalError> {
        self.write()?;
        Ok(self.medium.sync()?)
    }

    /// Writes what was taken.
    pub(crate) fn write(&mut self) -> Result<(), JournalError> {
        if !self.unwritten.is_empty() {
            self.medium.append(&self.unwritten)?;
            self.unwritten.clear();
        }
        Ok(())
    }

    /// Begins anew with a snapshot that came from the leader.
    pub(crate) fn install(&mut self, snapshot: Snapshot) -> Result<(), JournalError> {
        self.state.commit = self.state.commit.max(snapshot.get_metadata().index);
        self.state.term = self.state.term.max(snapshot.get_metadata().term);
        self.entries.clear();
        self.entries_bytes = 0;
        self.snapshot = snapshot;
        self.rewrite()
    }

    /// Puts a snapshot of the store after this entry in the place of the entries up to it.
    pub(crate) fn compact(&mut self, index: u64, data: Vec<u8>) -> Result<(), JournalError> {
        let Ok(term) = self.term(index) else {
            return Ok(());
        };
        let mut snapshot = self.snapshot.clone();
        (snapshot.mut_metadata().index, snapshot.mut_metadata().term) = (index, term);
        snapshot.data = data.into();
        self.begin_with(snapshot);
        self.later_snapshot_wanted.set(false);
        self.rewrite()
    }

    pub(crate) fn is_later_snapshot_wanted(&self) -> bool {
        self.later_snapshot_wanted.get()
    }

    fn rewrite(&mut self) -> Result<(), JournalError> {
        let mut bytes = Vec::new();
        put_record(&mut bytes, &JournalRecord::Snapshot(self.snapshot.clone()));
        put_record(&mut bytes, &JournalRecord::State(self.state.clone()));
        for entry in &self.entries {
            put_record(&mut bytes, &JournalRecord::Entry(entry.clone()));
        }
        self.unwritten.clear();
        Ok(self.medium.replace(&bytes)?)
    }
}

impl<M: JournalMedium> Storage for RaftLog<M> {
    fn initial_state(&self) -> raft::Result<RaftState> {
        let voters = self.snapshot.get_metadata().get_conf_state().clone();
        Ok(RaftState::new(self.state.clone(), voters))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        if low <= self.snapshot_index() {
            return Err(StorageError::Compacted.into());
        }
        if high > self.last() + 1 {
            return Err(StorageError::Unavailable.into());
        }
        let first = (low - self.snapshot_index() - 1) as usize;
        let count = high.saturating_sub(low) as usize;
        let mut entries: Vec<Entry> = self.entries.iter().skip(first).take(count).cloned().collect();
        raft::util::limit_size(&mut entries, max_size.into());
        Ok(entries)
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        let metadata = self.snapshot.get_metadata();
        if index == metadata.index {
            return Ok(metadata.term);
        }
        let Some(place) = index.checked_sub(metadata.index + 1) else {
            return Err(StorageError::Compacted.into());
        };
        match self.entries.get(place as usize) {
            Some(entry) => Ok(entry.term),
            None => Err(StorageError::Unavailable.into()),
        }
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.snapshot_index() + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last())
    }

    fn snapshot(&self, request_index: u64, _: u64) -> raft::Result<Snapshot> {
        if self.snapshot_index() == 0 || self.snapshot_index() < request_index {
            self.later_snapshot_wanted.set(true);
            return Err(StorageError::SnapshotTemporarilyUnavailable.into());
        }
        Ok(self.snapshot.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::io;
    use std::rc::Rc;

    use super::*;
    use crate::journal::{JournalFolder, MemoryOnly};

    fn entries(term: u64, indices: std::ops::RangeInclusive<u64>) -> Vec<Entry> {
        let entry = |index| {
            let mut entry = Entry::default();
            (entry.term, entry.index) = (term, index);
            entry
        };
        indices.map(entry).collect()
    }

    #[test]
    fn a_log_comes_back_from_its_folder_with_what_overwrote_what() {
        let temporary = tempfile::tempdir().unwrap();
        let open = || RaftLog::open(JournalFolder::open(temporary.path()).unwrap(), &[1, 2, 3]).unwrap();
        let mut log = open();
        log.append(entries(1, 1..=5));
        log.append(entries(2, 4..=6));
        let mut state = HardState::default();
        (state.term, state.vote, state.commit) = (2, 3, 4);
        log.set_state(state.clone());
        log.sync().unwrap();
        log.append(entries(2, 7..=7));
        drop(log);

        let mut log = open();
        assert_eq!((log.first_index().unwrap(), log.last_index().unwrap()), (1, 6));
        assert_eq!((log.term(3).unwrap(), log.term(4).unwrap()), (1, 2));
        assert_eq!(log.initial_state().unwrap().hard_state, state);

        log.compact(4, b"four".to_vec()).unwrap();
        log.append(entries(2, 7..=7));
        log.sync().unwrap();
        drop(log);
        let log = open();
        assert_eq!((log.first_index().unwrap(), log.last_index().unwrap()), (5, 7));
        assert_eq!((log.term(4).unwrap(), log.term(7).unwrap()), (2, 2));
        assert_eq!(&log.current_snapshot().data[..], b"four");
        assert_eq!(log.initial_state().unwrap().conf_state.voters, [1, 2, 3]);
    }

    #[test]
    fn a_half_written_record_is_forgotten_and_what_follows_is_not() {
        let temporary = tempfile::tempdir().unwrap();
        let mut folder = JournalFolder::open(temporary.path()).unwrap();
        let mut bytes = Vec::new();
        for entry in entries(1, 1..=2) {
            put_record(&mut bytes, &JournalRecord::Entry(entry));
        }
        folder.append(&bytes[..bytes.len() - 1]).unwrap();
        let mut log = RaftLog::open(folder, &[1]).unwrap();
        assert_eq!(log.last_index().unwrap(), 1);
        log.append(entries(3, 2..=2));
        log.sync().unwrap();
        drop(log);
        let log = RaftLog::open(JournalFolder::open(temporary.path()).unwrap(), &[1]).unwrap();
        assert_eq!((log.last_index().unwrap(), log.term(2).unwrap()), (2, 3));
    }

    /// What is in a file, and how much of it survives when the machine stops.
    #[derive(Clone, Default)]
    struct UnsureMedium(Rc<RefCell<(Vec<u8>, usize)>>);

    impl JournalMedium for UnsureMedium {
        fn load(&mut self) -> io::Result<Vec<u8>> {
            Ok(self.0.borrow().0.clone())
        }

        fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
            self.0.borrow_mut().0.extend_from_slice(bytes);
            Ok(())
        }

        fn sync(&mut self) -> io::Result<()> {
            let (bytes, synced) = &mut *self.0.borrow_mut();
            *synced = bytes.len();
            Ok(())
        }

        fn replace(&mut self, bytes: &[u8]) -> io::Result<()> {
            *self.0.borrow_mut() = (bytes.to_vec(), bytes.len());
            Ok(())
        }
    }

    #[test]
    fn what_a_process_left_behind_survives_before_the_next_one_speaks_of_it() {
        let medium = UnsureMedium::default();
        let mut log = RaftLog::open(medium.clone(), &[1, 2, 3]).unwrap();
        log.append(entries(1, 1..=3));
        log.write().unwrap();
        assert!(medium.0.borrow().1 < medium.0.borrow().0.len());
        // The process is killed, and the machine goes on.
        drop(log);
        let log = RaftLog::open(medium.clone(), &[1, 2, 3]).unwrap();
        assert_eq!(log.last_index().unwrap(), 3);
        let (bytes, synced) = &*medium.0.borrow();
        assert_eq!(*synced, bytes.len());
    }

    #[test]
    fn a_later_snapshot_than_there_is_is_wanted_and_then_made() {
        let mut log = RaftLog::open(MemoryOnly, &[1]).unwrap();
        log.append(entries(1, 1..=3));
        assert!(log.snapshot(0, 2).is_err() && log.is_later_snapshot_wanted());
        log.compact(3, Vec::new()).unwrap();
        assert!(!log.is_later_snapshot_wanted());
        assert_eq!(log.snapshot(3, 2).unwrap().get_metadata().index, 3);
        assert!(log.entries(3, 4, None, GetEntriesContext::empty(false)).is_err());
    }
}
