//! What a filter keeps of calls, by numbers that fit a word.

/// Values by number. Takes memory as it is first needed and keeps it.
pub(super) struct Slab<T> {
    slots: Vec<Slot<T>>,
    /// The first of the free slots.
    free: usize,
}

enum Slot<T> {
    Used(T),
    /// The next free one; past the end for none.
    Free(usize),
}

impl<T> Slab<T> {
    pub(super) fn new() -> Slab<T> {
        Slab {
            slots: Vec::new(),
            free: usize::MAX,
        }
    }

    /// Keeps a value, and says under which number: never 0.
    pub(super) fn insert(&mut self, value: T) -> u64 {
        let at = match self.slots.get_mut(self.free) {
            Some(slot) => {
                let at = self.free;
                if let Slot::Free(next) = std::mem::replace(slot, Slot::Used(value)) {
                    self.free = next;
                }
                at
            }
            None => {
                self.slots.push(Slot::Used(value));
                self.slots.len() - 1
            }
        };
        at as u64 + 1
    }

    pub(super) fn get(&self, number: u64) -> Option<&T> {
        match self.slots.get(place(number)?)? {
            Slot::Used(value) => Some(value),
            Slot::Free(_) => None,
        }
    }

    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        match self.slots.get_mut(place(number)?)? {
            Slot::Used(value) => Some(value),
            Slot::Free(_) => None,
        }
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<T> {
        let at = place(number)?;
        let slot = self.slots.get_mut(at)?;
        if matches!(slot, Slot::Free(_)) {
            return None;
        }
        let taken = std::mem::replace(slot, Slot::Free(self.free));
        self.free = at;
        match taken {
            Slot::Used(value) => Some(value),
            Slot::Free(_) => None,
        }
    }
}

fn place(number: u64) -> Option<usize> {
    usize::try_from(number.checked_sub(1)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_used_again_and_a_stale_one_finds_nothing() {
        let mut slab = Slab::new();
        let (a, b) = (slab.insert("a"), slab.insert("b"));
        assert!(a != 0 && b != 0 && a != b);
        assert_eq!(slab.get(a), Some(&"a"));
        assert_eq!(slab.remove(a), Some("a"));
        assert_eq!(slab.remove(a), None);
        assert_eq!((slab.get(a), slab.get(0)), (None, None));
        let c = slab.insert("c");
        assert_eq!((c, slab.get_mut(b)), (a, Some(&mut "b")));
        assert_eq!(slab.remove(u64::MAX), None);
    }
}
