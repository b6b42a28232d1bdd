//! Why a message, a schema or a path was refused. Positions are in bytes from where the message begins.

use provost_schema::MessageId;
use provost_wire::limits::{MESSAGE_BYTES_MAX, NESTING_MAX};

/// A schema from which no tables can be compiled: it contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// A field lies outside its struct.
    #[error("{message}.{field}: the field reaches past the {size} bytes of its struct")]
    Layout {
        /// Full name of the message.
        message: String,
        /// Name of the field.
        field: String,
        /// Size of the struct in bytes.
        size: u32,
    },
    /// A field's type is not one that it can have.
    #[error("{message}.{field}: {reason}")]
    Type {
        /// Full name of the message.
        message: String,
        /// Name of the field.
        field: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A message's size or alignment makes no sense.
    #[error("{message}: a struct of {size} bytes aligned to {align}")]
    Struct {
        /// Full name of the message.
        message: String,
        /// Its size in bytes.
        size: u32,
        /// Its alignment in bytes.
        align: u32,
    },
    /// More fields or types than the tables can index.
    #[error("the schema has too many types and fields")]
    TooLarge,
}

/// What is wrong with a message in the native layout. Whoever made the message is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// The tables have no such message.
    #[error("the schema has no message {}", .0.0)]
    Unknown(MessageId),
    /// The message is longer than it may be.
    #[error("the message is longer than {max} bytes")]
    TooLong {
        /// What it may be, in bytes.
        max: u32,
    },
    /// A block lies outside the message, or not where the layout puts it.
    #[error("the reference at byte {at} names {bytes} bytes that are not where the layout puts them")]
    Reference {
        /// Where the reference is.
        at: u32,
        /// How many bytes it names.
        bytes: u64,
    },
    /// Bytes follow the last block.
    #[error("the message ends at byte {end}, but {bytes} bytes were given")]
    Length {
        /// Where the last block ends.
        end: u32,
        bytes: u32,
    },
    /// The tail does not begin where the head ends.
    #[error("the head ends at byte {head_end}, but the tail begins at byte {at}")]
    Tail {
        /// Where the first leaf of the tail is.
        at: u32,
        /// Where the last block of the head ends.
        head_end: u32,
    },
    /// Messages nest deeper than they may.
    #[error("messages nest deeper than {NESTING_MAX} levels at byte {at}")]
    Nesting {
        /// Where the struct is, or the reference to it.
        at: u32,
    },
    /// A string is not UTF-8.
    #[error("the string whose reference is at byte {at} is not UTF-8")]
    Utf8 {
        /// Where its reference is.
        at: u32,
    },
    /// A bool is neither 0 nor 1.
    #[error("the bool at byte {at} is neither 0 nor 1")]
    Bool { at: u32 },
    /// A presence word is neither 0 nor 1.
    #[error("the presence word at byte {at} is neither 0 nor 1")]
    Presence { at: u32 },
    /// A tag names no member of its oneof.
    #[error("the tag {tag} at byte {at} names no member of its oneof")]
    Tag {
        /// Where the tag is.
        at: u32,
        tag: u32,
    },
    /// A map's keys do not strictly increase.
    #[error("the map key at byte {at} is not greater than the one before it")]
    KeyOrder {
        /// Where the pair is.
        at: u32,
    },
    /// The message does not fit the window at the place it was given.
    #[error("the message at offset {window_at} reaches past the end of the window")]
    Window {
        /// Where it was placed, in units of 8 bytes.
        window_at: u32,
    },
}

/// Why a message could not be gathered. The app that wrote it is at fault. Positions are in the linear message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GatherError {
    /// A block lies outside the memory that the app shares.
    #[error("{bytes} bytes at offset {offset} are outside the send heap")]
    Outside {
        /// Where the block is said to be, in the window, in units of 8 bytes.
        offset: u32,
        /// How long it is said to be.
        bytes: u64,
    },
    /// The message is not well formed.
    #[error(transparent)]
    Message(#[from] MessageError),
}

/// Why a native message was not turned into protobuf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The native message is not well formed: it was not validated.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// The protobuf form is longer than a message may be.
    #[error("the message is longer than {MESSAGE_BYTES_MAX} bytes as protobuf")]
    TooLong,
}

/// Why protobuf was not turned into a native message. Whoever encoded it is at fault. Positions are in the protobuf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The tables have no such message.
    #[error("the schema has no message {}", .0.0)]
    Unknown(MessageId),
    /// A field goes past the end of its message.
    #[error("protobuf: the field at byte {at} goes past the end of its message")]
    Truncated { at: u32 },
    /// A varint of more than ten bytes, a tag of more than five, or a field number or wire type that does not exist.
    #[error("protobuf: malformed tag or varint at byte {at}")]
    Malformed { at: u32 },
    /// A string is not UTF-8.
    #[error("protobuf: the string at byte {at} is not UTF-8")]
    Utf8 { at: u32 },
    /// Messages or groups nest deeper than they may.
    #[error("protobuf: messages nest deeper than {NESTING_MAX} levels at byte {at}")]
    Nesting {
        /// Where the innermost is.
        at: u32,
    },
    /// The message is longer than it may be, in either form.
    #[error("the message is longer than {max} bytes")]
    TooLong {
        /// What it may be, in bytes.
        max: u32,
    },
    /// The occurrences of repeated fields are interleaved more often than a decoder keeps track of.
    #[error(
        "protobuf: the fields of one message are interleaved too often; write each field's values together"
    )]
    TooFragmented,
}

/// Why a path names no field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// The tables have no such message.
    #[error("the schema has no message {}", .0.0)]
    Unknown(MessageId),
    /// A step of the path is not a field.
    #[error("{}", provost_schema::lacks_field(.message, &format!("{:?}", .field)))]
    NoField {
        /// Full name of the message.
        message: String,
        field: String,
    },
    /// A step that others follow is not a singular message.
    #[error("{message}.{field} is not a singular message: a path cannot go through it")]
    NotAMessage {
        /// Full name of the message.
        message: String,
        field: String,
    },
    /// The path has more steps than messages nest.
    #[error("the path has more than {NESTING_MAX} steps")]
    TooLong,
}

/// A field could not be read: the message is not whole in the given bytes, or was not validated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the field's value is not within the given bytes: copy the message whole before reading it")]
pub struct ReadError;
