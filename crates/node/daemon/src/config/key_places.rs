//! Where those keys stand that refusals name: which file, and which line of it.

use std::collections::HashMap;

use super::lines::enclosing;

/// Tables whose keys are named, and lists whose entries are.
const NAMED: [&str; 4] = ["limits.", "control.", "runtime.", "app["];

/// Where the keys of a configuration stand. It is not part of what the configuration says: two of them are always equal.
#[derive(Clone, Default)]
pub struct KeyPlaces(HashMap<String, String>);

/// Whether apps are refused something by a key, or by what stands in it.
pub(super) fn is_named_in_refusals(key: &str) -> bool {
    NAMED.iter().any(|table| key.starts_with(table))
}

impl PartialEq for KeyPlaces {
    fn eq(&self, _other: &KeyPlaces) -> bool {
        true
    }
}

impl std::fmt::Debug for KeyPlaces {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "KeyPlaces({})", self.0.len())
    }
}

impl KeyPlaces {
    pub(super) fn of(places: impl Iterator<Item = (String, String)>) -> KeyPlaces {
        KeyPlaces(places.collect())
    }

    /// The file and the line of a key, or of what it would stand in; nothing where no file has either.
    pub(crate) fn find(&self, key: &str) -> Option<&str> {
        enclosing(key).find_map(|key| self.0.get(key).map(String::as_str))
    }
}
