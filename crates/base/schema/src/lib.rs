//! Typed schemas: messages, enums and services with the native layout computed, a content hash, and the rules by
//! which two schemas are compatible. A schema is made from a `FileDescriptorSet`, whoever brought it.
//!
//! The layout is specified in `docs/layout.md`; this crate is the one place that computes it.
#![forbid(unsafe_code)]

mod bounds;
mod compatibility;
mod error;
mod hash;
mod layout;
mod load;
mod model;
mod opaque;
mod prune;
mod store;

pub use bounds::file_parts;
pub use compatibility::{Compatibility, Incompatibility, compatibility};
pub use error::{SchemaError, SchemaErrorKind};
pub use hash::{HashError, SchemaHash};
pub use load::files_for_options;
pub use model::*;
pub use opaque::{OpaqueMethod, is_method_name, lacks_field, opaque_descriptor_set};
