//! A table whose entries keep their numbers.

/// It grows by this part of what it has: by itself it would double, and half of the memory for thousands of connections be unused.
const GROWTH_PART: usize = 8;
/// And by so many at least.
const GROWTH_MIN: usize = 8;

/// Entries by number; numbers of removed entries are used again.
pub(crate) struct NumberedSlots<T> {
    entries: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> NumberedSlots<T> {
    pub(crate) fn new() -> NumberedSlots<T> {
        NumberedSlots {
            entries: Vec::new(),
            free: Vec::new(),
        }
    }

    pub(crate) fn insert(&mut self, entry: T) -> u32 {
        match self.free.pop() {
            Some(at) => {
                self.entries[at as usize] = Some(entry);
                at
            }
            None => {
                let count = self.entries.len();
                if count == self.entries.capacity() {
                    self.entries.reserve_exact((count / GROWTH_PART).max(GROWTH_MIN));
                }
                self.entries.push(Some(entry));
                (self.entries.len() - 1) as u32
            }
        }
    }

    pub(crate) fn get_mut(&mut self, at: u32) -> Option<&mut T> {
        self.entries.get_mut(at as usize)?.as_mut()
    }

    /// All entries with their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let numbered = (0..).zip(&self.entries);
        numbered.filter_map(|(at, entry)| Some((at, entry.as_ref()?)))
    }

    pub(crate) fn remove(&mut self, at: u32) -> Option<T> {
        let entry = self.entries.get_mut(at as usize)?.take()?;
        self.free.push(at);
        Some(entry)
    }

    /// Numbers that entries may have are below this.
    pub(crate) fn bound(&self) -> u32 {
        self.entries.len() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_used_again_and_little_memory_is_unused() {
        let mut slots = NumberedSlots::new();
        for number in 0..5_000 {
            assert_eq!(slots.insert(number), number);
            let (used, room) = (slots.entries.len(), slots.entries.capacity());
            assert!(
                room <= used + (used / GROWTH_PART).max(GROWTH_MIN),
                "{used} of {room}"
            );
        }
        assert_eq!(slots.remove(7), Some(7));
        assert_eq!((slots.remove(7), slots.insert(70)), (None, 7));
        assert_eq!(slots.iter().count(), 5_000);
    }
}
