//! Keys in order, read and changed by many threads at once.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crossbeam_skiplist::SkipMap;

pub const KEYS_MAX: usize = 64 << 20;

/// Keys with their values, in order.
#[derive(Debug, Default)]
pub struct Tree {
    /// A value is changed where it is: the map itself would take the old entry away before it brings the new one, and
    /// who reads between would find none.
    map: SkipMap<u64, AtomicU64>,
    keys: AtomicUsize,
}

/// The tree has as many keys as it can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the store has as many keys as it can have, {KEYS_MAX}; delete some")]
pub struct TreeFull;

/// What a scan came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scanned {
    /// The sum of the values, as 64 bits hold it.
    pub sum: u64,
    /// How many there were.
    pub keys: u32,
}

impl Tree {
    /// What a key has.
    #[must_use]
    pub fn get(&self, key: u64) -> Option<u64> {
        Some(self.map.get(&key)?.value().load(Ordering::Acquire))
    }

    /// Sets a key.
    ///
    /// # Errors
    /// If it is new and there is no room.
    pub fn put(&self, key: u64, value: u64) -> Result<(), TreeFull> {
        loop {
            let entry = match self.map.get(&key) {
                Some(entry) => entry,
                None if self.keys.load(Ordering::Relaxed) >= KEYS_MAX => return Err(TreeFull),
                None => {
                    let mut is_new = false;
                    let entry = self.map.get_or_insert_with(key, || {
                        is_new = true;
                        AtomicU64::new(value)
                    });
                    // Made here, it may still have lost to another thread's, whose value this then replaces.
                    self.keys.fetch_add(usize::from(is_new), Ordering::Relaxed);
                    entry
                }
            };
            entry.value().store(value, Ordering::Release);
            // Deleted meanwhile, the value went with it; then this comes after.
            if !entry.is_removed() {
                return Ok(());
            }
        }
    }

    /// Takes a key away; says whether it was there.
    pub fn delete(&self, key: u64) -> bool {
        let removed = self.map.remove(&key).is_some();
        if removed {
            let fewer = |keys: usize| Some(keys.saturating_sub(1));
            let _ = self
                .keys
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer);
        }
        removed
    }

    /// Up to so many keys from this one on, in order. Others may change them meanwhile; each value was there at some time.
    pub fn range(&self, first: u64, keys: usize) -> impl Iterator<Item = (u64, u64)> {
        let entries = self.map.range(first..).take(keys);
        entries.map(|entry| (*entry.key(), entry.value().load(Ordering::Acquire)))
    }

    /// Sums up the values of up to so many keys from this one on.
    #[must_use]
    pub fn scan(&self, first: u64, keys: usize) -> Scanned {
        let add = |all: Scanned, (_, value): (u64, u64)| Scanned {
            sum: all.sum.wrapping_add(value),
            keys: all.keys + 1,
        };
        self.range(first, keys).fold(Scanned::default(), add)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn it_does_what_a_sorted_map_does() {
        let (tree, mut model) = (Tree::default(), BTreeMap::new());
        let mut state = 1u64;
        for step in 0..20_000u64 {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            let key = state >> 32 & 0xff;
            match state >> 60 {
                0..8 => {
                    tree.put(key, step).unwrap();
                    model.insert(key, step);
                }
                8..12 => assert_eq!(tree.delete(key), model.remove(&key).is_some()),
                _ => assert_eq!(tree.get(key), model.get(&key).copied()),
            }
        }
        let all: Vec<_> = model.iter().map(|(key, value)| (*key, *value)).collect();
        assert_eq!(tree.range(0, 1000).collect::<Vec<_>>(), all);
        let sum = model.range(100..).take(20).map(|(_, value)| value).sum();
        assert_eq!(tree.scan(100, 20), Scanned { sum, keys: 20 });
        assert_eq!(tree.keys.load(Ordering::Relaxed), model.len());
    }

    #[test]
    fn a_key_that_is_only_ever_set_is_never_missing() {
        let tree = Tree::default();
        tree.put(1, 0).unwrap();
        std::thread::scope(|threads| {
            let writer = threads.spawn(|| (1..20_000).for_each(|value| tree.put(1, value).unwrap()));
            let mut last = 0;
            while !writer.is_finished() {
                let value = tree.get(1).expect("it is never deleted");
                assert!(value >= last, "what was read once is never undone");
                last = value;
            }
        });
    }
}
