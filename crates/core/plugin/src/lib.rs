//! Loads engines that were built apart, over the C ABI of `provost-engine`.
//!
//! A loaded kind of policy is one like any other: it is configured, prepared and started by the same traits. Libraries
//! are loaded once for each content and never unloaded. What runs in one is trusted as the service itself is; a panic
//! in it is a fault of one engine on one datapath.

mod error;

pub use error::LoadError;

use std::path::Path;
use std::sync::Arc;

use provost_engine::PolicyKind;

/// Loads a kind of policy from a shared library. Checks who may write the file and its folder, what ABI the library was
/// built for and that its description is whole, before any other code of it runs; a library that is refused has changed
/// nothing.
///
/// Loading the same path again gives the same kind, unless the file is another one by then: a new version is loaded
/// beside the old one.
pub fn load(path: &Path) -> Result<Arc<dyn PolicyKind>, LoadError> {
    Err(LoadError::Open {
        path: path.to_owned(),
        reason: "not supported yet".into(),
    })
}
