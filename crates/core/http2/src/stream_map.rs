//! What is kept of open streams, by their numbers.

use std::collections::VecDeque;

/// Places for values that are kept when there is none: enough for a client that has as many calls at a time again and again.
const SLOTS_KEPT: usize = 64;

/// Values by the number of a stream. New streams have the highest numbers and old ones end first, so both ends of the order are
/// cheap to change, and places are used again: unlike a tree, it allocates nothing once it is as large as it becomes.
///
/// ```
/// use provost_http2::StreamMap;
///
/// let mut calls = StreamMap::new();
/// calls.insert(1, "first");
/// calls.insert(3, "second");
/// assert_eq!(calls.remove(1), Some("first"));
/// assert_eq!(calls.iter().collect::<Vec<_>>(), [(3, &"second")]);
/// ```
#[derive(Clone, Debug)]
pub struct StreamMap<V> {
    /// Number and slot, by number.
    places: VecDeque<(u32, u32)>,
    slots: Vec<Option<V>>,
    free: Vec<u32>,
}

impl<V> Default for StreamMap<V> {
    fn default() -> StreamMap<V> {
        StreamMap::new()
    }
}

impl<V> StreamMap<V> {
    /// A map of no streams.
    #[must_use]
    pub const fn new() -> StreamMap<V> {
        StreamMap {
            places: VecDeque::new(),
            slots: Vec::new(),
            free: Vec::new(),
        }
    }

    /// How many streams there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Whether there is a stream of this number.
    #[must_use]
    pub fn contains_key(&self, id: u32) -> bool {
        self.place(id).is_ok()
    }

    /// Sets the value of a stream; what it was before, if there was one. Quick for a number that is higher than all others.
    pub fn insert(&mut self, id: u32, value: V) -> Option<V> {
        let is_highest = self.places.back().is_none_or(|(last, _)| *last < id);
        let place = if is_highest {
            Err(self.places.len())
        } else {
            self.place(id)
        };
        match place {
            Ok(place) => self.slot_mut(place).replace(value),
            Err(place) => {
                let slot = self.free.pop().unwrap_or_else(|| {
                    if self.slots.capacity() == 0 {
                        // Many connections have one call at a time, and by itself it would begin with room for four.
                        self.slots.reserve_exact(1);
                    }
                    self.slots.push(None);
                    self.slots.len() as u32 - 1
                });
                self.slots[slot as usize] = Some(value);
                self.places.insert(place, (id, slot));
                None
            }
        }
    }

    /// The value of a stream.
    #[must_use]
    pub fn get(&self, id: u32) -> Option<&V> {
        let place = self.place(id).ok()?;
        self.slots[self.places[place].1 as usize].as_ref()
    }

    /// The value of a stream, to be changed.
    #[must_use]
    pub fn get_mut(&mut self, id: u32) -> Option<&mut V> {
        let place = self.place(id).ok()?;
        self.slot_mut(place).as_mut()
    }

    /// Takes a stream out.
    pub fn remove(&mut self, id: u32) -> Option<V> {
        let place = self.place(id).ok()?;
        let (_, slot) = self.places.remove(place)?;
        self.free.push(slot);
        let value = self.slots[slot as usize].take();
        if self.places.is_empty() {
            // A burst of streams leaves no memory behind.
            self.slots.clear();
            self.free.clear();
            self.slots.shrink_to(SLOTS_KEPT);
            self.free.shrink_to(SLOTS_KEPT);
            self.places.shrink_to(SLOTS_KEPT);
        }
        value
    }

    /// All streams, by number.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &V)> {
        let found = |(id, slot): &(u32, u32)| Some((*id, self.slots[*slot as usize].as_ref()?));
        self.places.iter().filter_map(found)
    }

    /// The numbers of all streams, in their order.
    pub fn keys(&self) -> impl Iterator<Item = u32> {
        self.places.iter().map(|(id, _)| *id)
    }

    /// The values of all streams, in the order of their numbers.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }

    /// The values of all streams, in any order.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.slots.iter_mut().flatten()
    }

    fn slot_mut(&mut self, place: usize) -> &mut Option<V> {
        &mut self.slots[self.places[place].1 as usize]
    }

    fn place(&self, id: u32) -> Result<usize, usize> {
        match self.likely_place(id) {
            Some(place) => Ok(place),
            None => self.places.binary_search_by_key(&id, |(id, _)| *id),
        }
    }

    /// Where a stream stands if all between it and one end of the order are there: a client's numbers are each two higher than
    /// the one before (RFC 9113, section 5.1.1).
    fn likely_place(&self, id: u32) -> Option<usize> {
        let ((first, _), (last, _)) = (self.places.front()?, self.places.back()?);
        let from_first = id.checked_sub(*first)? as usize / 2;
        let from_last = (self.places.len() - 1).checked_sub(last.checked_sub(id)? as usize / 2);
        let is_there = |place: &usize| self.places.get(*place).is_some_and(|(there, _)| *there == id);
        Some(from_first).filter(is_there).or(from_last.filter(is_there))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever is put in and taken out, in whatever order, it is what a tree of the standard library is.
        #[test]
        fn a_map_is_what_a_tree_is(steps in vec((0_u32..40, any::<Option<u8>>()), 0..200)) {
            let (mut map, mut tree) = (StreamMap::new(), BTreeMap::new());
            for (id, value) in steps {
                match value {
                    Some(value) => prop_assert_eq!(map.insert(id, value), tree.insert(id, value)),
                    None => prop_assert_eq!(map.remove(id), tree.remove(&id)),
                }
                prop_assert_eq!(map.get(id), tree.get(&id));
                prop_assert_eq!(map.contains_key(id), tree.contains_key(&id));
                prop_assert_eq!(map.len(), tree.len());
                prop_assert_eq!(map.is_empty(), tree.is_empty());
            }
            for value in map.values_mut() {
                *value = value.wrapping_add(1);
            }
            tree.values_mut().for_each(|value| *value = value.wrapping_add(1));
            let all: Vec<(u32, u8)> = map.iter().map(|(id, value)| (id, *value)).collect();
            prop_assert_eq!(all, tree.into_iter().collect::<Vec<_>>());
        }
    }
}
