//! [`MetadataMap`]: the key-value pairs that travel beside a call's messages.

use std::fmt;

use provost_wire::metadata as block;

/// Why a pair was not taken into a [`MetadataMap`]. Says which key it was, and never the value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetadataError {
    key: String,
    problem: block::MetadataError,
}

impl fmt::Display for MetadataError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "metadata \"{}\": ", self.key.escape_debug())?;
        match self.problem {
            block::MetadataError::Key { .. } => {
                f.write_str("a key has lower-case letters, digits, '_', '-' and '.', and nothing else")
            }
            block::MetadataError::Value { .. } => f.write_str(
                "its value is not printable ASCII: give the key the suffix -bin to send any bytes",
            ),
            problem => problem.fmt(f),
        }
    }
}

impl std::error::Error for MetadataError {}

/// Key-value pairs that travel beside messages: with a request, before a response, or after it.
///
/// Keys are lower-case letters, digits, `_`, `-` and `.`. A value is printable ASCII, or any bytes under a key that
/// ends in `-bin`. A key may occur more than once.
///
/// ```
/// use provost::MetadataMap;
///
/// let mut metadata = MetadataMap::new();
/// metadata.insert("user", "ann")?;
/// metadata.insert_bin("trace-bin", &[1, 2, 3])?;
/// assert_eq!(metadata.get("user"), Some("ann"));
/// assert_eq!(metadata.get_bin("trace-bin"), Some(&[1, 2, 3][..]));
/// # Ok::<_, provost::MetadataError>(())
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct MetadataMap {
    /// The pairs as they travel, so that an empty map takes no memory and a full one a single run of it.
    block: Vec<u8>,
}

impl MetadataMap {
    /// No pairs. Takes no memory.
    #[must_use]
    pub const fn new() -> MetadataMap {
        MetadataMap { block: Vec::new() }
    }

    /// Sets the value of a key, in place of all that it had.
    pub fn insert(&mut self, key: &str, value: &str) -> Result<(), MetadataError> {
        self.insert_bin(key, value.as_bytes())
    }

    /// Sets a value of any bytes; the key must end in `-bin`, unless they are printable ASCII.
    pub fn insert_bin(&mut self, key: &str, value: &[u8]) -> Result<(), MetadataError> {
        let mut with = self.without(key);
        with.append_bin(key, value)?;
        *self = with;
        Ok(())
    }

    /// Adds a value beside those that the key has.
    pub fn append(&mut self, key: &str, value: &str) -> Result<(), MetadataError> {
        self.append_bin(key, value.as_bytes())
    }

    /// Adds a value of any bytes beside those that the key has.
    pub fn append_bin(&mut self, key: &str, value: &[u8]) -> Result<(), MetadataError> {
        let refused = |problem| MetadataError {
            key: key.to_owned(),
            problem,
        };
        if key.starts_with(':') {
            return Err(refused(block::MetadataError::Key { at: self.block.len() }));
        }
        if self.len() >= provost_wire::limits::METADATA_ENTRIES_MAX {
            return Err(refused(block::MetadataError::TooMany));
        }
        block::append(&mut self.block, key, value).map_err(refused)
    }

    /// Removes all values of a key, and says whether there was one.
    pub fn remove(&mut self, key: &str) -> bool {
        let without = self.without(key);
        let removed = without.block.len() != self.block.len();
        *self = without;
        removed
    }

    /// The first value of a key, if it has one and it is text.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        std::str::from_utf8(self.get_bin(key)?).ok()
    }

    /// The first value of a key.
    #[must_use]
    pub fn get_bin(&self, key: &str) -> Option<&[u8]> {
        self.iter()
            .find(|(other, _)| *other == key)
            .map(|(_, value)| value)
    }

    /// All values of a key, in order.
    pub fn get_all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a [u8]> {
        self.iter()
            .filter(move |(other, _)| *other == key)
            .map(|(_, value)| value)
    }

    /// All pairs in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        block::entries(&self.block)
    }

    /// Adds the pairs of another map whose keys this one does not have, as far as there is room.
    pub(crate) fn add_missing(&mut self, others: &MetadataMap) {
        let before = self.block.len();
        for (key, value) in others.iter() {
            let has_own = block::entries(&self.block[..before]).any(|(own, _)| own == key);
            if !has_own {
                let _ = self.append_bin(key, value);
            }
        }
    }

    /// Number of pairs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.iter().count()
    }

    /// Whether there is no pair.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.block.is_empty()
    }

    /// The pairs as they travel.
    pub(crate) fn as_block(&self) -> &[u8] {
        &self.block
    }

    /// The pairs of a block, but for those that carry a status.
    pub(crate) fn from_block(received: &[u8]) -> MetadataMap {
        let mut metadata = MetadataMap::new();
        for (key, value) in block::entries(received).filter(|(key, _)| !key.starts_with(':')) {
            // The service has checked the block, so no entry is refused.
            let _ = block::append(&mut metadata.block, key, value);
        }
        metadata
    }

    fn without(&self, key: &str) -> MetadataMap {
        let mut rest = MetadataMap::new();
        for (other, value) in self.iter().filter(|(other, _)| *other != key) {
            // It was in this map, so it fits a smaller one.
            let _ = block::append(&mut rest.block, other, value);
        }
        rest
    }
}

impl fmt::Debug for MetadataMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |value: &[u8]| value.escape_ascii().to_string();
        f.debug_map()
            .entries(self.iter().map(|(key, value)| (key, text(value))))
            .finish()
    }
}
