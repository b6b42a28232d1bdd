//! A table of calls by their number, for what an engine looks up for each step: a few instructions for each access.
//!
//! ```text
//! places, by hash:  [ 7→1 | free | 3→0 | 9→2 | free | … ]   a call whose place is taken is in the next one that is free
//! values:           [ of 3 | of 7 | of 9 | free | … ]       the one that was used last is used again first
//! ```

use crate::CallHash;

/// Places for each call: at most every second is taken, so that a search ends soon.
const PLACES_PER_CALL: usize = 2;
/// Least number of places.
const PLACES_MIN: usize = 8;
/// Stands for no value.
const NOWHERE: u32 = u32::MAX;

/// A table by call number. It grows when more calls are in it than ever before, and keeps its memory.
#[derive(Debug)]
pub struct CallTable<T> {
    hash: CallHash,
    /// A power of two of them.
    places: Vec<TablePlace>,
    values: Vec<Value<T>>,
    /// The first value that is free.
    free: u32,
    calls: usize,
}

#[derive(Clone, Copy, Debug)]
struct TablePlace {
    call: u64,
    /// Index of its value, or [`NOWHERE`] for a place that is free.
    value: u32,
}

#[derive(Debug)]
enum Value<T> {
    /// With the next one that is free.
    Free(u32),
    Of(T),
}

const FREE: TablePlace = TablePlace {
    call: 0,
    value: NOWHERE,
};

impl<T> CallTable<T> {
    /// An empty table with room for so many calls.
    #[must_use]
    pub fn with_capacity(calls: usize) -> CallTable<T> {
        let places = (calls * PLACES_PER_CALL).next_power_of_two().max(PLACES_MIN);
        CallTable {
            hash: CallHash::default(),
            places: vec![FREE; places],
            values: Vec::with_capacity(calls),
            free: NOWHERE,
            calls: 0,
        }
    }

    /// How many calls are in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.calls
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.calls == 0
    }

    /// What belongs to a call, to be looked at.
    #[must_use]
    pub fn get(&self, call: u64) -> Option<&T> {
        let TableSearch::At(at) = self.look_for(call) else {
            return None;
        };
        match &self.values[self.places[at].value as usize] {
            Value::Of(value) => Some(value),
            Value::Free(_) => None,
        }
    }

    /// What belongs to a call.
    #[inline]
    #[must_use]
    pub fn get_mut(&mut self, call: u64) -> Option<&mut T> {
        let TableSearch::At(at) = self.look_for(call) else {
            return None;
        };
        self.value_at(at)
    }

    /// What belongs to a call; if nothing does yet, this.
    #[inline]
    pub fn get_or_insert_with(&mut self, call: u64, value: impl FnOnce() -> T) -> Option<&mut T> {
        let at = match self.look_for(call) {
            TableSearch::At(at) => at,
            TableSearch::Free(at) => self.insert_at(at, call, value()),
        };
        self.value_at(at)
    }

    /// Lets a value belong to a call, and gives back what belonged to it before.
    pub fn insert(&mut self, call: u64, value: T) -> Option<T> {
        let before = self.remove(call);
        self.get_or_insert_with(call, || value);
        before
    }

    /// Takes what belongs to a call.
    #[inline]
    pub fn remove(&mut self, call: u64) -> Option<T> {
        let TableSearch::At(at) = self.look_for(call) else {
            return None;
        };
        let index = self.places[at].value;
        self.close_gap(at);
        self.calls -= 1;
        let value = std::mem::replace(&mut self.values[index as usize], Value::Free(self.free));
        self.free = index;
        match value {
            Value::Of(value) => Some(value),
            Value::Free(_) => None,
        }
    }

    /// Takes what belongs to all calls, in no order.
    pub fn take_all(&mut self) -> impl Iterator<Item = T> {
        self.places.fill(FREE);
        (self.free, self.calls) = (NOWHERE, 0);
        let values = std::mem::take(&mut self.values).into_iter();
        values.filter_map(|value| match value {
            Value::Of(value) => Some(value),
            Value::Free(_) => None,
        })
    }

    /// All calls with what belongs to them, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        let taken = self.places.iter().filter(|place| place.value != NOWHERE);
        taken.filter_map(|place| match &self.values[place.value as usize] {
            Value::Of(value) => Some((place.call, value)),
            Value::Free(_) => None,
        })
    }
}

impl<T> Default for CallTable<T> {
    fn default() -> CallTable<T> {
        CallTable::with_capacity(0)
    }
}

/// Where a call is, or would be.
enum TableSearch {
    At(usize),
    Free(usize),
}

impl<T> CallTable<T> {
    #[inline]
    fn home(&self, call: u64) -> usize {
        self.hash.of(call) as usize & (self.places.len() - 1)
    }

    #[inline]
    fn next(&self, at: usize) -> usize {
        (at + 1) & (self.places.len() - 1)
    }

    /// Ends, as half of the places are free at least.
    #[inline]
    fn look_for(&self, call: u64) -> TableSearch {
        let mut at = self.home(call);
        loop {
            let place = &self.places[at];
            if place.value == NOWHERE {
                return TableSearch::Free(at);
            }
            if place.call == call {
                return TableSearch::At(at);
            }
            at = self.next(at);
        }
    }

    #[inline]
    fn value_at(&mut self, at: usize) -> Option<&mut T> {
        match &mut self.values[self.places[at].value as usize] {
            Value::Of(value) => Some(value),
            Value::Free(_) => None,
        }
    }

    /// Puts a call into the free place at which the search for it has ended, and says where it is.
    #[inline]
    fn insert_at(&mut self, at: usize, call: u64, value: T) -> usize {
        let index = match self.values.get_mut(self.free as usize) {
            Some(place) => {
                let index = self.free;
                if let Value::Free(next) = std::mem::replace(place, Value::Of(value)) {
                    self.free = next;
                }
                index
            }
            None => {
                self.values.push(Value::Of(value));
                (self.values.len() - 1) as u32
            }
        };
        self.calls += 1;
        self.places[at] = TablePlace { call, value: index };
        if self.calls * PLACES_PER_CALL > self.places.len() {
            self.grow(call)
        } else {
            at
        }
    }

    /// Twice as many places. Says where a call is then that is in the table.
    #[cold]
    fn grow(&mut self, call: u64) -> usize {
        let places = vec![FREE; self.places.len() * 2];
        let old = std::mem::replace(&mut self.places, places);
        for place in old.into_iter().filter(|place| place.value != NOWHERE) {
            if let TableSearch::Free(at) = self.look_for(place.call) {
                self.places[at] = place;
            }
        }
        match self.look_for(call) {
            TableSearch::At(at) | TableSearch::Free(at) => at,
        }
    }

    /// Frees a place. Who is behind it because it was taken moves up, so that every search still finds whom it looks for.
    #[inline]
    fn close_gap(&mut self, mut gap: usize) {
        let mask = self.places.len() - 1;
        let mut at = gap;
        loop {
            at = self.next(at);
            let place = self.places[at];
            if place.value == NOWHERE {
                break;
            }
            let from_home = at.wrapping_sub(self.home(place.call)) & mask;
            if from_home >= at.wrapping_sub(gap) & mask {
                self.places[gap] = place;
                gap = at;
            }
        }
        self.places[gap] = FREE;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// Pseudo-random numbers below a bound (xorshift64*).
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, bound: u64) -> u64 {
            self.0 ^= self.0 >> 12;
            self.0 ^= self.0 << 25;
            self.0 ^= self.0 >> 27;
            (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) % bound
        }
    }

    #[test]
    fn it_holds_what_a_map_holds() {
        for seed in 1..=20 {
            let mut numbers = Numbers(seed);
            let mut table = CallTable::with_capacity(2);
            let mut map = HashMap::new();
            for value in 0..4000 {
                // More calls come and stay, the more of them there may be.
                let call = numbers.below(1 + value / 20);
                match numbers.below(4) {
                    0 => assert_eq!(table.insert(call, value), map.insert(call, value)),
                    1 => assert_eq!(table.remove(call), map.remove(&call)),
                    2 => {
                        assert_eq!(table.get(call), map.get(&call));
                        assert_eq!(table.get_mut(call), map.get_mut(&call));
                    }
                    _ => {
                        let kept = *map.entry(call).or_insert(value);
                        assert_eq!(table.get_or_insert_with(call, || value), Some(&mut { kept }));
                    }
                }
                assert_eq!((table.len(), table.is_empty()), (map.len(), map.is_empty()));
            }
            let held: HashMap<u64, u64> = table.iter().map(|(call, value)| (call, *value)).collect();
            assert_eq!(held, map);
            let mut taken: Vec<u64> = table.take_all().collect();
            let mut values: Vec<u64> = map.into_values().collect();
            taken.sort_unstable();
            values.sort_unstable();
            assert!(taken == values && table.is_empty() && table.iter().next().is_none());
            assert_eq!((table.insert(7, 1), table.remove(7)), (None, Some(1)));
        }
    }

    #[test]
    fn memory_is_used_again() {
        let mut table = CallTable::with_capacity(4);
        for call in 0..10_000 {
            table.insert(call, call);
            assert_eq!(
                call.checked_sub(3).and_then(|old| table.remove(old)),
                call.checked_sub(3)
            );
        }
        assert_eq!((table.len(), table.places.len(), table.values.len()), (3, 8, 4));
    }
}
