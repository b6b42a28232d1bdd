//! What is wrong with a descriptor set.

use std::fmt;

/// A descriptor set that is no schema: what, where, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemaError {
    /// The file it is in; empty when the set as a whole is at fault.
    pub file: String,
    /// Full name of the message, field, enum, service or method at fault; empty for a file as a whole.
    pub element: String,
    /// Where it is in the file, as a path of `SourceCodeInfo`.
    pub path: Vec<i32>,
    pub kind: SchemaErrorKind,
}

/// What is wrong with a descriptor set, without the place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SchemaErrorKind {
    /// Not a serialized `FileDescriptorSet`.
    #[error(
        "these bytes are no serialized FileDescriptorSet; make one with provost-build or `protoc --descriptor_set_out`"
    )]
    Encoding,
    /// A bound is passed.
    #[error("more than {max} {what}; split the schema")]
    TooMany {
        /// What there is too much of.
        what: &'static str,
        max: usize,
    },
    /// proto2, or an edition.
    #[error(
        "{syntax} cannot be compiled, only proto3; write `syntax = \"proto3\";` and declare fields as proto3 does"
    )]
    Syntax {
        /// `proto2` or `editions`.
        syntax: String,
    },
    /// A group, a required field, or another thing that proto3 has not.
    #[error("{0} cannot be used in proto3; {1}")]
    NotProto3(&'static str, &'static str),
    /// A name that is not an identifier, or too long.
    #[error("`{name}` is not a name: letters, digits and underscores, at most {max} bytes with its package")]
    Name {
        name: String,
        /// The most bytes that a full name may have.
        max: usize,
    },
    /// Two things with one name.
    #[error("the name `{0}` is taken; rename one of the two")]
    DuplicateName(String),
    /// A field number out of range or reserved for protobuf itself.
    #[error("{0} cannot be a field number; choose one from 1 to 18999 or 20000 to 536870911")]
    FieldNumber(i64),
    /// Two fields with one number.
    #[error("the field number {number} is taken by `{other}`; give one of them another number")]
    DuplicateNumber {
        number: u32,
        /// The field that has it already.
        other: String,
    },
    /// A type that is not there.
    #[error("the type `{0}` is not in the descriptor set; import the file that defines it")]
    UnknownType(String),
    /// A type of another kind than the field says.
    #[error("`{name}` is not {expected}; compile the schema anew")]
    WrongType {
        name: String,
        /// What it should be.
        expected: &'static str,
    },
    /// A map entry that no compiler makes.
    #[error("this map is malformed ({0}); compile the schema anew")]
    Map(&'static str),
    /// A oneof that no compiler makes.
    #[error("this oneof is malformed ({0}); compile the schema anew")]
    Oneof(&'static str),
    /// An enum without values, with one that is not first 0, or with a number twice.
    #[error("{0}")]
    Enum(&'static str),
    /// A native struct that is too large.
    #[error("its native layout is larger than {0} bytes; split the message")]
    Layout(u32),
}

impl fmt::Display for SchemaError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for place in [&self.file, &self.element] {
            if !place.is_empty() {
                write!(formatter, "{place}: ")?;
            }
        }
        write!(formatter, "{}", self.kind)
    }
}

impl std::error::Error for SchemaError {}
