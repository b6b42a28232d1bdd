//! A table whose entries keep their numbers.

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
