//! From a `FileDescriptorSet`, which may be hostile, to a checked [`Schema`].
//!
//! Two passes: the first declares every type under its full name, the second defines their insides, when every name
//! can be resolved. Layout comes last.

mod declare;
mod define;
mod place;

use prost::Message as _;
use prost_types::{FileDescriptorProto, FileDescriptorSet};

use crate::layout::{lay_out, lay_out_pairs};
use crate::{Schema, SchemaError, SchemaErrorKind, bounds};
pub use declare::files_for_options;
use declare::{Declarations, Files};
pub(crate) use place::is_identifier;

impl Schema {
    /// Checks a serialized `google.protobuf.FileDescriptorSet` and lays its messages out. The bytes may come from
    /// anybody: whatever they hold, this returns in time and memory proportional to their length. Files may stand
    /// in any order; every file that a type is used from must be there.
    ///
    /// Files that are not proto3, as `google/protobuf/descriptor.proto`, may be there for options ([`files_for_options`]):
    /// their types are not loaded.
    pub fn from_descriptor_set(bytes: &[u8]) -> Result<Schema, SchemaError> {
        bounds::check(bytes).map_err(of_the_whole)?;
        let set = FileDescriptorSet::decode(bytes).map_err(|_| of_the_whole(SchemaErrorKind::Encoding))?;
        Schema::from_files(&set.file)
    }

    /// As [`Schema::from_descriptor_set`], of files that the caller has compiled: comments and options are not bounded.
    pub fn from_files(files: &[FileDescriptorProto]) -> Result<Schema, SchemaError> {
        let files = Files::of(files);
        let mut schema = define::define(&Declarations::of(&files)?)?;
        schema.messages.iter_mut().for_each(lay_out);
        lay_out_pairs(&mut schema.messages);
        Ok(schema)
    }
}

fn of_the_whole(kind: SchemaErrorKind) -> SchemaError {
    SchemaError {
        file: String::new(),
        element: String::new(),
        path: Vec::new(),
        kind,
    }
}
