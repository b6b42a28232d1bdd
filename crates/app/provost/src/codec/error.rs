//! What can be wrong with a message that is encoded or decoded.

use provost_wire::limits::NESTING_MAX;

use crate::shared::HeapFull;
use crate::status::Status;

/// A message cannot be encoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// Messages nest too deep.
    #[error("messages nest deeper than {NESTING_MAX} levels")]
    Nesting,
    /// A value has no form in JSON.
    #[error("{field}: {message}")]
    Json {
        /// The path of the field, such as `entry.expires`.
        field: String,
        /// What is wrong, and what would be right.
        message: String,
    },
}

/// Bytes are no message of a type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("byte {at}: {kind}")]
pub struct DecodeError {
    pub(super) kind: DecodeErrorKind,
    pub(super) at: usize,
}

impl DecodeError {
    /// What is wrong.
    #[must_use]
    pub fn kind(&self) -> DecodeErrorKind {
        self.kind
    }

    /// At which byte.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.at
    }
}

/// What is wrong with bytes that are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeErrorKind {
    /// The bytes end within a value.
    #[error("the bytes end within a value")]
    Truncated,
    /// A number has more than 64 bits.
    #[error("a number has more than 64 bits")]
    Varint,
    /// A tag has no field number, or a wire type that does not exist.
    #[error("there is no such field number or wire type")]
    Tag,
    /// A group ends that did not begin.
    #[error("a group ends that did not begin")]
    Group,
    /// A string is not UTF-8.
    #[error("a string is not UTF-8")]
    Utf8,
    /// Messages nest too deep.
    #[error("messages nest deeper than {NESTING_MAX} levels")]
    Nesting,
    /// The send heap has no room for the message.
    #[error("{0}")]
    HeapFull(HeapFull),
}

impl From<HeapFull> for DecodeErrorKind {
    fn from(full: HeapFull) -> DecodeErrorKind {
        DecodeErrorKind::HeapFull(full)
    }
}

/// A text is no message of a type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {message}")]
pub struct JsonError {
    pub(super) place: JsonPlace,
    pub(super) message: String,
}

/// Where in a JSON text something is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum JsonPlace {
    /// At this line and column, both from 1: the text is no JSON.
    Text {
        /// The line.
        line: usize,
        /// The column, in characters.
        column: usize,
    },
    /// At the value of this path, such as `entry.labels["a"]`; empty for the whole message.
    Field(String),
}

impl std::fmt::Display for JsonPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            JsonPlace::Text { line, column } => write!(f, "line {line}, column {column}"),
            JsonPlace::Field(path) if path.is_empty() => f.write_str("the message"),
            JsonPlace::Field(path) => f.write_str(path),
        }
    }
}

impl JsonError {
    /// Where something is wrong.
    #[must_use]
    pub fn place(&self) -> &JsonPlace {
        &self.place
    }

    /// What is wrong.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl From<EncodeError> for Status {
    fn from(error: EncodeError) -> Status {
        Status::internal(format!("a message cannot be encoded: {error}"))
    }
}

impl From<DecodeError> for Status {
    fn from(error: DecodeError) -> Status {
        match error.kind {
            DecodeErrorKind::HeapFull(full) => full.into(),
            _ => Status::invalid_argument(format!("the bytes are no such message: {error}")),
        }
    }
}

impl From<JsonError> for Status {
    fn from(error: JsonError) -> Status {
        Status::invalid_argument(format!("the JSON is no such message: {error}"))
    }
}
