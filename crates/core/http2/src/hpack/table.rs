//! The dynamic table (RFC 7541, sections 2.3.2 and 4): fields, newest first, within a number of bytes.

use std::collections::VecDeque;

use super::{ENTRY_OVERHEAD_BYTES, STATIC_ENTRIES, static_field};
use crate::fields::{FieldIndexing, FieldList, FieldRef};

/// Fields in one run of bytes, oldest first. The run is moved to its front when half of it is no longer in use, so an
/// entry is always one slice.
#[derive(Clone, Debug)]
pub(super) struct DynamicTable {
    bytes: Vec<u8>,
    /// The entries, oldest first.
    entries: VecDeque<TableEntry>,
    /// As RFC 7541, section 4.1, counts it.
    size: usize,
    size_max: usize,
    /// Entries that were ever inserted.
    inserted: u64,
}

#[derive(Clone, Copy, Debug)]
struct TableEntry {
    at: usize,
    name_bytes: usize,
    value_bytes: usize,
}

impl TableEntry {
    fn size(self) -> usize {
        self.name_bytes + self.value_bytes + ENTRY_OVERHEAD_BYTES
    }
}

impl DynamicTable {
    pub(super) fn new(size_max: usize) -> DynamicTable {
        DynamicTable {
            bytes: Vec::new(),
            entries: VecDeque::new(),
            size: 0,
            size_max,
            inserted: 0,
        }
    }

    pub(super) fn size_max(&self) -> usize {
        self.size_max
    }

    /// Entries that were ever inserted: the number of the next one.
    pub(super) fn inserted(&self) -> u64 {
        self.inserted
    }

    /// RFC 7541, section 4.3: entries go until the rest fits.
    pub(super) fn set_size_max(&mut self, size_max: usize) {
        self.size_max = size_max;
        self.evict_to(size_max);
    }

    /// RFC 7541, section 4.4: the oldest entries go until this one fits; one that is larger than the table empties it.
    pub(super) fn insert(&mut self, name: &[u8], value: &[u8]) -> InsertedEntry {
        let entry = TableEntry {
            at: 0,
            name_bytes: name.len(),
            value_bytes: value.len(),
        };
        if entry.size() > self.size_max {
            self.evict_to(0);
            return InsertedEntry::Emptied;
        }
        self.evict_to(self.size_max - entry.size());
        self.make_compact();
        let at = self.bytes.len();
        self.bytes.extend_from_slice(name);
        self.bytes.extend_from_slice(value);
        self.entries.push_back(TableEntry { at, ..entry });
        self.size += entry.size();
        self.inserted += 1;
        InsertedEntry::Number(self.inserted - 1)
    }

    /// The field of an index of the whole address space: static entries first, then the newest (RFC 7541, section 2.3.3).
    pub(super) fn field(&self, index: usize) -> Option<(&[u8], &[u8])> {
        match index.checked_sub(STATIC_ENTRIES + 1) {
            None => static_field(index),
            Some(age) => self.by_age(age),
        }
    }

    /// The field that was inserted as this number, if it is still there, and its index.
    pub(super) fn by_number(&self, number: u64) -> Option<(u32, &[u8], &[u8])> {
        let age = self.inserted.checked_sub(number + 1)?;
        let age = usize::try_from(age).ok()?;
        let (name, value) = self.by_age(age)?;
        Some(((STATIC_ENTRIES + 1 + age) as u32, name, value))
    }

    /// All fields, oldest first.
    pub(super) fn oldest_first(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.entries.iter().map(|entry| self.text(*entry))
    }

    fn by_age(&self, age: usize) -> Option<(&[u8], &[u8])> {
        let place = self.entries.len().checked_sub(age + 1)?;
        self.entries.get(place).map(|entry| self.text(*entry))
    }

    fn text(&self, entry: TableEntry) -> (&[u8], &[u8]) {
        let end = entry.at + entry.name_bytes + entry.value_bytes;
        self.bytes[entry.at..end].split_at(entry.name_bytes)
    }

    fn evict_to(&mut self, size: usize) {
        while self.size > size {
            let Some(oldest) = self.entries.pop_front() else {
                break;
            };
            self.size -= oldest.size();
        }
        if self.entries.is_empty() {
            self.bytes.clear();
        }
    }

    /// Moves the entries to the front, once as many bytes are unused as the table may hold.
    fn make_compact(&mut self) {
        let unused = self.entries.front().map_or(0, |oldest| oldest.at);
        if unused < self.size_max.max(1) {
            return;
        }
        self.bytes.drain(..unused);
        self.entries.iter_mut().for_each(|entry| entry.at -= unused);
    }
}

/// What came of an insertion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InsertedEntry {
    /// It is in the table, under this number.
    Number(u64),
    /// It is larger than the table, which is empty now. That is not an error.
    Emptied,
}

/// A table with these fields, oldest first. None: they do not fit.
pub(super) fn restored(fields: &FieldList, size_max: usize) -> Option<DynamicTable> {
    let mut table = DynamicTable::new(size_max);
    let is_plain = |field: FieldRef<'_>| field.indexing == FieldIndexing::Automatic;
    if fields.list_bytes() > size_max || u32::try_from(size_max).is_err() || !fields.iter().all(is_plain) {
        return None;
    }
    for field in fields.iter() {
        table.insert(field.name, field.value);
    }
    Some(table)
}
