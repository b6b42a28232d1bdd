//! Loads engines that were built apart, over the C ABI of `provost-engine`.
//!
//! A loaded kind of policy is one like any other: it is configured, prepared and started by the same traits. Libraries
//! are loaded once for each content and never unloaded. What runs in one is trusted as the service itself is; a panic
//! in it is a fault of one engine on one datapath.

mod error;
mod file;
mod filter;
mod host;
mod kind;
mod lent;
mod library;
#[cfg(test)]
mod tests;

pub use error::LoadError;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use provost_engine::PolicyKind;

use file::{Digest, LibraryContent};
use kind::LoadedKind;

/// What became of each library that was linked, by its content: none is ever loaded twice or unloaded.
static LIBRARIES: LazyLock<Mutex<HashMap<Digest, Result<&'static LoadedKind, LoadError>>>> =
    LazyLock::new(Mutex::default);

/// Libraries that a service tries in its life, at most: each stays.
const LIBRARIES_MAX: usize = 256;

/// Loads a kind of policy from a shared library. Checks who may write the file and its folder, what ABI the library was
/// built for and that its description is whole, before any function of it is called; a library that is refused has
/// changed nothing.
///
/// The content counts, not the name: loading the same content again gives the same kind; a new version under the same
/// name is loaded beside the old one. The file is copied, so what happens to it later does not matter.
pub fn load(path: &Path) -> Result<Arc<dyn PolicyKind>, LoadError> {
    let content = LibraryContent::read(path)?;
    let digest = content.digest();
    let mut libraries = LIBRARIES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = libraries.get(&digest) {
        return known.clone().map(arc);
    }
    if libraries.len() >= LIBRARIES_MAX {
        return Err(LoadError::Link {
            path: path.to_owned(),
            reason: format!(
                "{LIBRARIES_MAX} libraries have been loaded, none can be unloaded: restart the service"
            ),
        });
    }
    let loaded = library::open(path, &content).and_then(|raw| LoadedKind::of(path, raw));
    // A library stays, and so does its kind.
    let loaded = loaded.map(|kind| &*Box::leak(Box::new(kind)));
    // Of one that was not linked nothing is there: what it needs may be installed until it is tried again.
    if !matches!(loaded, Err(LoadError::Link { .. })) {
        libraries.insert(digest, loaded.clone());
    }
    loaded.map(arc)
}

fn arc(kind: &'static LoadedKind) -> Arc<dyn PolicyKind> {
    Arc::new(kind)
}
