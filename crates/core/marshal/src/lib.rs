//! Messages in the native layout: gathering them from memory that an app can write, checking them, and turning them
//! into protobuf and back.
//!
//! Everything is driven by [`Tables`], which are compiled from a schema once and shared by all its connections. They
//! are flat data, walked by small loops: no code is generated, and nothing that a peer or an app sends can reach past
//! the bytes that it sent. The layout itself is specified in `docs/layout.md`.
#![deny(unsafe_code)]

mod decode;
mod elements;
mod encode;
mod error;
mod foreign;
pub mod fuzzing;
mod gather;
mod native;
mod path;
mod path_protobuf;
mod protobuf;
mod records;
mod tables;
mod validate;

pub use decode::Scratch;
pub use elements::Elements;
pub use error::{DecodeError, EncodeError, GatherError, MessageError, PathError, ReadError, TableError};
pub use foreign::{ForeignRegion, copy_foreign, copy_foreign_to, linearize};
pub use gather::{GatherOutcome, Leaf};
pub use path::{FieldPath, StructPlace, Value, View};
pub use tables::Tables;
