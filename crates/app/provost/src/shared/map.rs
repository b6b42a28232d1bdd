//! [`Map`]: pairs sorted by key.

use std::borrow::Borrow;
use std::fmt;
use std::ops::Index;

use super::heap::HeapFull;
use super::list::{self, List};

/// A map in shared memory: `map<K, V>` in a schema. It is an array of pairs sorted by key, so a look-up is a binary
/// search, iteration is in order of the keys, and inserting a key that is not the largest moves what follows it.
///
/// To build a large map, collect it from an iterator: it is sorted once.
///
/// ```
/// use provost::shared::{Map, String};
///
/// let mut ages: Map<String, i32> = Map::new();
/// ages.insert("ann".into(), 30);
/// ages.insert("bob".into(), 40);
/// assert_eq!(ages["ann"], 30);
/// assert_eq!(ages.get("eve"), None);
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Map<K, V>(List<Pair<K, V>>);

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(C)]
struct Pair<K, V> {
    key: K,
    value: V,
}

impl<K: Ord, V> Map<K, V> {
    /// An empty map. Takes no memory.
    #[must_use]
    pub const fn new() -> Map<K, V> {
        Map(List::new())
    }

    /// An empty map with room for `capacity` pairs.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Map<K, V> {
        Map(List::with_capacity(capacity))
    }

    /// Sets the value of a key and returns the one it had.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        self.try_insert(key, value).unwrap_or_else(|full| full.panic())
    }

    /// As [`Map::insert`], but says when the heap is full.
    pub fn try_insert(&mut self, key: K, value: V) -> Result<Option<V>, HeapFull> {
        match self.position(&key) {
            Ok(at) => Ok(Some(std::mem::replace(&mut self.0[at].value, value))),
            Err(at) => {
                self.0.try_reserve(1)?;
                self.0.insert(at, Pair { key, value });
                Ok(None)
            }
        }
    }

    /// The value of a key.
    #[must_use]
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.position(key).ok().map(|at| &self.0[at].value)
    }

    /// The value of a key, to be changed.
    #[must_use]
    pub fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        let at = self.position(key).ok()?;
        Some(&mut self.0[at].value)
    }

    /// Whether the map has a key.
    #[must_use]
    pub fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.position(key).is_ok()
    }

    /// Removes a key and returns its value.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let at = self.position(key).ok()?;
        Some(self.0.remove(at).value)
    }

    /// Appends a pair; [`Map::sort`] must follow before the map is used.
    pub(crate) fn push_unsorted(&mut self, key: K, value: V) -> Result<(&mut K, &mut V), HeapFull> {
        let at = self.0.len();
        self.0.try_push(Pair { key, value })?;
        let pair = &mut self.0[at];
        Ok((&mut pair.key, &mut pair.value))
    }

    /// Sorts pairs that were appended; of equal keys the last one stays.
    pub(crate) fn sort(&mut self) {
        if self.0.is_sorted_by(|one, other| one.key < other.key) {
            return;
        }
        // Stable, so of equal keys the last one given is the last here, and wins.
        self.0.sort_by(|one, other| one.key.cmp(&other.key));
        self.0.keep_last_of_equals(|one, other| one.key == other.key);
    }

    fn position<Q: Ord + ?Sized>(&self, key: &Q) -> Result<usize, usize>
    where
        K: Borrow<Q>,
    {
        self.0.binary_search_by(|pair| pair.key.borrow().cmp(key))
    }
}

impl<K, V> Map<K, V> {
    /// Number of pairs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no pair.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The pairs in order of their keys.
    pub fn iter(&self) -> Iter<'_, K, V> {
        Iter(self.0.iter())
    }

    /// The pairs in order of their keys, with the values to be changed.
    pub fn iter_mut(&mut self) -> impl ExactSizeIterator<Item = (&K, &mut V)> {
        self.0.iter_mut().map(|pair| (&pair.key, &mut pair.value))
    }

    /// The keys in order.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &K> {
        self.0.iter().map(|pair| &pair.key)
    }

    /// The values in order of their keys.
    pub fn values(&self) -> impl ExactSizeIterator<Item = &V> {
        self.0.iter().map(|pair| &pair.value)
    }

    /// The pair of this index, in order of the keys.
    pub(crate) fn at(&self, index: usize) -> (&K, &V) {
        let pair = &self.0[index];
        (&pair.key, &pair.value)
    }

    /// The value of the pair of this index, to be changed.
    pub(crate) fn value_at_mut(&mut self, index: usize) -> &mut V {
        &mut self.0[index].value
    }

    /// Drops all pairs and keeps the memory.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

impl<K, V> Default for Map<K, V> {
    fn default() -> Map<K, V> {
        Map(List::new())
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for Map<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<K: Ord + Borrow<Q>, Q: Ord + ?Sized, V> Index<&Q> for Map<K, V> {
    type Output = V;
    fn index(&self, key: &Q) -> &V {
        self.get(key)
            .expect("the map has the key that it is indexed with")
    }
}

impl<K: Ord, V> Extend<(K, V)> for Map<K, V> {
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, pairs: I) {
        let sorted_before = self.0.len();
        self.0
            .extend(pairs.into_iter().map(|(key, value)| Pair { key, value }));
        if sorted_before != self.0.len() {
            self.sort();
        }
    }
}

impl<K: Ord, V> FromIterator<(K, V)> for Map<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Map<K, V> {
        let mut map = Map::new();
        map.extend(pairs);
        map
    }
}

impl<K: Ord, V, const N: usize> From<[(K, V); N]> for Map<K, V> {
    fn from(pairs: [(K, V); N]) -> Map<K, V> {
        pairs.into_iter().collect()
    }
}

impl<K, V> IntoIterator for Map<K, V> {
    type Item = (K, V);
    type IntoIter = IntoIter<K, V>;
    fn into_iter(self) -> IntoIter<K, V> {
        IntoIter(self.0.into_iter())
    }
}

impl<'a, K, V> IntoIterator for &'a Map<K, V> {
    type Item = (&'a K, &'a V);
    type IntoIter = Iter<'a, K, V>;
    fn into_iter(self) -> Iter<'a, K, V> {
        self.iter()
    }
}

/// Owning iterator of a [`Map`].
pub struct IntoIter<K, V>(list::IntoIter<Pair<K, V>>);

impl<K, V> Iterator for IntoIter<K, V> {
    type Item = (K, V);
    fn next(&mut self) -> Option<(K, V)> {
        self.0.next().map(|pair| (pair.key, pair.value))
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl<K, V> ExactSizeIterator for IntoIter<K, V> {}

/// Iterator of a [`Map`] in order of the keys.
pub struct Iter<'a, K, V>(std::slice::Iter<'a, Pair<K, V>>);

impl<'a, K, V> Iterator for Iter<'a, K, V> {
    type Item = (&'a K, &'a V);
    fn next(&mut self) -> Option<(&'a K, &'a V)> {
        self.0.next().map(|pair| (&pair.key, &pair.value))
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl<K, V> ExactSizeIterator for Iter<'_, K, V> {}
