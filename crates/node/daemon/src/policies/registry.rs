//! The kinds of policies that this node has: those that are linked in, and those of loaded libraries.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use provost_engine::PolicyKind;
use provost_plugin::LoadError;

use crate::suggestion::nearest;

/// Kinds of one name, at most, each another version.
const VERSIONS_MAX: usize = 64;

/// Kinds by name and version. Loaded ones are only ever added: their code stays in the process.
pub struct Registry {
    kinds: RwLock<BTreeMap<(String, u32), Known>>,
}

#[derive(Clone)]
struct Known {
    kind: Arc<dyn PolicyKind>,
    origin: Origin,
}

/// Where a kind comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// It is linked in.
    BuiltIn,
    /// A library that was loaded, by its path.
    Library(String),
}

/// A kind, as an operator is shown it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KindDescription {
    pub name: String,
    pub version: u32,
    pub summary: String,
    /// Every key with its default, in TOML.
    pub example: String,
    /// Where it comes from.
    pub origin: Origin,
}

/// What to say of a kind that may be meant.
fn meant(near: Option<&str>) -> String {
    near.map_or_else(String::new, |near| format!("; did you mean {near}?"))
}

/// There is no such kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoSuchKind {
    /// The name is unknown.
    #[error("there is no kind of policy \"{name}\"; this node has {known}{}", meant(.near.as_deref()))]
    Name {
        /// What was asked for.
        name: String,
        /// The names that are known.
        known: String,
        /// The one of them that may be meant.
        near: Option<String>,
    },
    #[error("\"{name}\" has no version {version} here; this node has {known}")]
    Version {
        name: String,
        /// What was asked for.
        version: u32,
        /// The versions that are known.
        known: String,
    },
}

/// A kind was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAdded {
    /// Its name and version are taken.
    #[error("version {version} of \"{name}\" is known already: give the new one another version")]
    Known { name: String, version: u32 },
    /// There are too many of its name.
    #[error(
        "\"{name}\" has {VERSIONS_MAX} versions, which is the most: restart the service to forget old ones"
    )]
    TooMany { name: String },
}

/// A library was not taken; nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotLoaded {
    #[error(transparent)]
    Refused(#[from] LoadError),
    #[error(transparent)]
    NotAdded(#[from] NotAdded),
}

impl Registry {
    /// The kinds that are linked in.
    #[must_use]
    pub fn with_built_ins() -> Registry {
        let registry = Registry {
            kinds: RwLock::default(),
        };
        for kind in super::built_in::kinds() {
            let added = registry.add(kind, Origin::BuiltIn);
            debug_assert_eq!(added, Ok(()), "two built-in kinds share name and version");
        }
        registry
    }

    pub fn add(&self, kind: Arc<dyn PolicyKind>, origin: Origin) -> Result<(), NotAdded> {
        let mut kinds = self.kinds.write().unwrap_or_else(PoisonError::into_inner);
        let (name, version) = (kind.name().to_owned(), kind.version());
        if kinds.keys().filter(|(other, _)| *other == name).count() >= VERSIONS_MAX {
            return Err(NotAdded::TooMany { name });
        }
        match kinds.entry((name.clone(), version)) {
            std::collections::btree_map::Entry::Occupied(_) => Err(NotAdded::Known { name, version }),
            std::collections::btree_map::Entry::Vacant(place) => {
                place.insert(Known { kind, origin });
                Ok(())
            }
        }
    }

    /// Loads a library and takes its kind. (It reads a file and runs what the library runs when it is loaded, so it
    /// takes a while. To load the same library again is no mistake, and does nothing.)
    pub fn load(&self, path: &Path) -> Result<KindDescription, NotLoaded> {
        let kind = provost_plugin::load(path)?;
        let origin = Origin::Library(path.display().to_string());
        let description = describe(kind.name(), kind.version(), &*kind, &origin);
        match self.add(Arc::clone(&kind), origin) {
            Err(NotAdded::Known { .. }) if self.has(&*kind) => Ok(description),
            added => Ok(added.map(|()| description)?),
        }
    }

    /// Whether this very kind is known. (What a library says of itself is at one place as long as it is loaded.)
    fn has(&self, kind: &dyn PolicyKind) -> bool {
        let known = self.find(kind.name(), Some(kind.version()));
        known.is_ok_and(|known| std::ptr::eq(known.summary(), kind.summary()))
    }

    /// The kind of this name: in this version, or the newest.
    pub fn find(&self, name: &str, version: Option<u32>) -> Result<Arc<dyn PolicyKind>, NoSuchKind> {
        let kinds = self.kinds.read().unwrap_or_else(PoisonError::into_inner);
        let of_name = || kinds.iter().filter(|((other, _), _)| other == name);
        let found = match version {
            Some(version) => kinds.get(&(name.to_owned(), version)),
            None => of_name().next_back().map(|(_, known)| known),
        };
        if let Some(known) = found {
            return Ok(Arc::clone(&known.kind));
        }
        let versions: Vec<_> = of_name().map(|((_, version), _)| version.to_string()).collect();
        Err(match version {
            Some(version) if !versions.is_empty() => NoSuchKind::Version {
                name: name.to_owned(),
                version,
                known: versions.join(", "),
            },
            _ => {
                let mut known: Vec<_> = kinds.keys().map(|(name, _)| format!("\"{name}\"")).collect();
                known.dedup();
                let near = nearest(name, kinds.keys().map(|(name, _)| name.as_str()));
                NoSuchKind::Name {
                    name: name.to_owned(),
                    known: known.join(", "),
                    near: near.map(str::to_owned),
                }
            }
        })
    }

    /// The version in which a kind goes on that a predecessor had in this one: this one, or the oldest after it where this one
    /// is no longer there. (Every version reads what earlier ones have saved.)
    pub(crate) fn version_after(&self, name: &str, version: u32) -> u32 {
        let kinds = self.kinds.read().unwrap_or_else(PoisonError::into_inner);
        let of_name = kinds.keys().filter(|(other, _)| other == name);
        let later = of_name.map(|(_, known)| *known).filter(|known| *known >= version);
        later.min().unwrap_or(version)
    }

    /// Paths of the libraries that kinds come from.
    pub(crate) fn libraries(&self) -> Vec<String> {
        let kinds = self.list().into_iter();
        let paths = kinds.filter_map(|kind| match kind.origin {
            Origin::Library(path) => Some(path),
            Origin::BuiltIn => None,
        });
        let mut paths: Vec<String> = paths.collect();
        paths.sort();
        paths.dedup();
        paths
    }

    /// All kinds, by name and version.
    #[must_use]
    pub fn list(&self) -> Vec<KindDescription> {
        let kinds = self.kinds.read().unwrap_or_else(PoisonError::into_inner);
        let describe = |((name, version), known): (&(String, u32), &Known)| {
            describe(name, *version, &*known.kind, &known.origin)
        };
        kinds.iter().map(describe).collect()
    }
}

fn describe(name: &str, version: u32, kind: &dyn PolicyKind, origin: &Origin) -> KindDescription {
    KindDescription {
        name: name.to_owned(),
        version,
        summary: kind.summary().to_owned(),
        example: kind.example().to_owned(),
        origin: origin.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::testing::Probe;

    #[test]
    fn the_newest_version_is_the_default_and_what_is_unknown_is_named() {
        let registry = Registry::with_built_ins();
        for version in [9, 10] {
            registry
                .add(Arc::new(Probe::of_version(version)), Origin::BuiltIn)
                .unwrap();
        }
        assert_eq!(registry.find("probe", None).unwrap().version(), 10);
        assert_eq!(registry.find("probe", Some(9)).unwrap().version(), 9);
        let unknown = registry.find("probe", Some(3)).err().unwrap().to_string();
        assert!(unknown.contains("9, 10"), "{unknown}");
        let unknown = registry.find("prob", None).err().unwrap().to_string();
        assert!(
            unknown.contains("\"null\"") && unknown.contains("\"probe\""),
            "{unknown}"
        );
        let twice = registry.add(Arc::new(Probe::of_version(9)), Origin::BuiltIn);
        assert!(matches!(twice, Err(NotAdded::Known { version: 9, .. })));
    }
}
