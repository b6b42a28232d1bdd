//! From a `FileDescriptorSet`, which may be hostile, to a checked [`Schema`].

use crate::{Schema, SchemaError};

impl Schema {
    /// Checks a serialized `google.protobuf.FileDescriptorSet` and lays its messages out. The bytes may come from
    /// anybody: whatever they hold, this returns in time and memory proportional to their length. Files may stand
    /// in any order; every file that a type is used from must be there.
    pub fn from_descriptor_set(bytes: &[u8]) -> Result<Schema, SchemaError> {
        let _ = bytes;
        todo!()
    }
}
