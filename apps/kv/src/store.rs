//! The store itself: entries in the order of their keys, in memory.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// What is kept under a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredValue {
    pub value: Arc<[u8]>,
    /// What the writer says about it, in the order of the names.
    pub labels: Vec<(String, String)>,
    /// How many times the entry was written.
    pub version: u64,
    /// When it was last written, in nanoseconds since 1970.
    pub updated_unix_ns: i64,
}

/// Entries in the order of their keys. Shared by all handlers of a server.
#[derive(Debug, Default)]
pub struct Store {
    records: Mutex<BTreeMap<String, StoredValue>>,
}

/// A write found another version than its caller expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionMismatch {
    /// The version that the entry has; 0: there is none.
    pub actual: u64,
}

impl Store {
    /// The entry with this key.
    pub fn get(&self, key: &str) -> Option<StoredValue> {
        self.lock().get(key).cloned()
    }

    /// Stores an entry and returns its version. With `if_version`, only if the entry has that version now.
    pub fn put(
        &self,
        key: &str,
        value: &[u8],
        labels: Vec<(String, String)>,
        if_version: Option<u64>,
    ) -> Result<u64, VersionMismatch> {
        let mut records = self.lock();
        let actual = records.get(key).map_or(0, |record| record.version);
        if if_version.is_some_and(|expected| expected != actual) {
            return Err(VersionMismatch { actual });
        }
        let record = StoredValue {
            value: value.into(),
            labels,
            version: actual + 1,
            updated_unix_ns: now_unix_ns(),
        };
        match records.get_mut(key) {
            Some(slot) => *slot = record,
            None => {
                records.insert(key.to_owned(), record);
            }
        }
        Ok(actual + 1)
    }

    /// Removes an entry and says whether it was there.
    pub fn delete(&self, key: &str) -> bool {
        self.lock().remove(key).is_some()
    }

    /// Up to `count` entries from `from` on, as long as their keys are in `keys`.
    pub fn batch(&self, keys: &Keys, from: Bound<&str>, count: usize) -> Vec<(String, StoredValue)> {
        let records = self.lock();
        records
            .range::<str, _>((from, Bound::Unbounded))
            .take_while(|(key, _)| keys.contains(key))
            .take(count)
            .map(|(key, record)| (key.clone(), record.clone()))
            .collect()
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, StoredValue>> {
        // Every change is a single insertion or removal, so a panic elsewhere leaves the map whole.
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A run of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Keys {
    All,
    /// Those that start with this.
    Prefix(String),
    /// Those from `first` on, up to `end` and without it; an empty `end` is the end.
    Range {
        first: String,
        /// The key to stop at.
        end: String,
    },
}

impl Keys {
    /// Where the run begins.
    #[must_use]
    pub fn first(&self) -> Bound<&str> {
        match self {
            Keys::All => Bound::Unbounded,
            Keys::Prefix(prefix) => Bound::Included(prefix),
            Keys::Range { first, .. } => Bound::Included(first),
        }
    }

    /// Whether a key that is not before [`Keys::first`] is in the run.
    fn contains(&self, key: &str) -> bool {
        match self {
            Keys::All => true,
            Keys::Prefix(prefix) => key.starts_with(prefix.as_str()),
            Keys::Range { end, .. } => end.is_empty() || key < end.as_str(),
        }
    }
}

fn now_unix_ns() -> i64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since_1970.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(keys: &[&str]) -> Store {
        let store = Store::default();
        for key in keys {
            store.put(key, key.as_bytes(), Vec::new(), None).unwrap();
        }
        store
    }

    fn keys_in(store: &Store, keys: &Keys, count: usize) -> Vec<String> {
        let batch = store.batch(keys, keys.first(), count);
        batch.into_iter().map(|(key, _)| key).collect()
    }

    #[test]
    fn versions_count_writes_and_guard_them() {
        let store = store(&["a"]);
        assert_eq!(store.put("a", b"2", Vec::new(), Some(1)), Ok(2));
        let stale = store.put("a", b"3", Vec::new(), Some(1));
        assert_eq!(stale, Err(VersionMismatch { actual: 2 }));
        assert_eq!(&*store.get("a").unwrap().value, b"2");
        assert_eq!(store.put("b", b"", Vec::new(), Some(0)), Ok(1));
        assert!(store.delete("a") && !store.delete("a"));
        assert_eq!(store.len(), 1);
    }

    #[test]
    fn runs_of_keys_begin_and_end_where_they_say() {
        let store = store(&["a", "ab", "abc", "b", "c"]);
        assert_eq!(keys_in(&store, &Keys::All, 9), ["a", "ab", "abc", "b", "c"]);
        assert_eq!(keys_in(&store, &Keys::Prefix("ab".to_owned()), 9), ["ab", "abc"]);
        assert_eq!(keys_in(&store, &Keys::All, 2), ["a", "ab"]);
        let range = |first: &str, end: &str| Keys::Range {
            first: first.to_owned(),
            end: end.to_owned(),
        };
        assert_eq!(keys_in(&store, &range("ab", "c"), 9), ["ab", "abc", "b"]);
        assert_eq!(keys_in(&store, &range("b", ""), 9), ["b", "c"]);
        assert_eq!(keys_in(&store, &range("c", "a"), 9), [""; 0]);
    }
}
