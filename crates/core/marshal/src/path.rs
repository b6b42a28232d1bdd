//! Reading single fields, for policies that look at content.

use provost_schema::MessageId;

use crate::{PathError, ReadError, Tables};

/// A field of a message or of the messages in it, found once by name and then read of many messages.
#[derive(Clone, Debug)]
pub struct FieldPath {}

/// A whole message in the native layout.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    bytes: &'a [u8],
    window_at: u32,
}

impl<'a> View<'a> {
    /// A linear message: its references are relative to its first byte.
    #[must_use]
    pub const fn linear(bytes: &'a [u8]) -> View<'a> {
        View { bytes, window_at: 0 }
    }

    /// A message whose references were made relative to a window in which it begins at `window_at`.
    #[must_use]
    pub const fn relocated(bytes: &'a [u8], window_at: u32) -> View<'a> {
        View { bytes, window_at }
    }
}

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Value<'a> {
    Bool(bool),
    /// Of a signed integer field of 32 or 64 bits.
    Int(i64),
    /// Of an unsigned integer field of 32 or 64 bits.
    Uint(u64),
    Float(f32),
    Double(f64),
    Enum(i32),
    String(&'a str),
    Bytes(&'a [u8]),
    /// A singular message that is present.
    Message,
    /// A list or a map, by the number of its elements.
    List(u32),
}

impl Tables {
    /// Finds the field that `path` names: field names separated by dots, all but the last of singular messages.
    pub fn field_path(&self, message: MessageId, path: &str) -> Result<FieldPath, PathError> {
        let _ = path;
        Err(PathError::Unknown(message))
    }

    /// Reads a field of a validated message. `None` when it is absent; a field without presence has its default then.
    pub fn read<'a>(&self, path: &FieldPath, message: View<'a>) -> Result<Option<Value<'a>>, ReadError> {
        let _ = (path, message.bytes, message.window_at);
        Err(ReadError)
    }
}
