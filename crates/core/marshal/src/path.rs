//! Reading single fields, for policies that look at content.

use provost_schema::{MessageId, Type};
use provost_wire::limits::{MESSAGE_BYTES_MAX, NESTING_MAX};

use crate::elements::Elements;
use crate::native;
use crate::tables::{FieldForm, StructIndex, TableField, scalar_bytes};
use crate::{PathError, ReadError, Tables};

/// A field of a message or of the messages in it, found once by name and then read of many messages.
#[derive(Clone, Debug)]
pub struct FieldPath {
    /// The message that the path begins in.
    pub(crate) root: StructIndex,
    /// Singular messages on the way.
    pub(crate) through: Vec<TableField>,
    pub(crate) last: TableField,
}

/// A whole message in the native layout.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) window_at: u32,
}

/// Where the struct of a message is in a view: the message itself, or one in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StructPlace(pub(crate) u32);

impl StructPlace {
    /// Of the message itself.
    pub const ROOT: StructPlace = StructPlace(0);
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

    /// The message's bytes.
    #[must_use]
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// What its references count from: 0 for its first byte, else the place of that byte in a window.
    #[must_use]
    pub const fn window_at(&self) -> u32 {
        self.window_at
    }

    pub(crate) fn word(&self, at: u32) -> Result<u32, ReadError> {
        native::word(self.bytes, at).ok_or(ReadError)
    }

    pub(crate) fn referent(&self, at: u32) -> Result<&'a [u8], ReadError> {
        native::referent(self.bytes, at, self.window_at).ok_or(ReadError)
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
        let mut within = message;
        let root = self.message(message).ok_or(PathError::Unknown(message))?;
        let (through, last) = path
            .rsplit_once('.')
            .map_or((None, path), |(through, last)| (Some(through), last));
        let mut fields = Vec::new();
        for name in through.into_iter().flat_map(|through| through.split('.')) {
            let field = self.step(within, name)?;
            within = match (field.ty, field.shape) {
                (Type::Message(inner), FieldForm::Optional { .. } | FieldForm::Member { .. }) => inner,
                _ => {
                    return Err(PathError::NotAMessage {
                        message: self.name(within),
                        field: name.to_owned(),
                    });
                }
            };
            fields.push(field);
            if fields.len() > NESTING_MAX as usize {
                return Err(PathError::TooLong);
            }
        }
        Ok(FieldPath {
            root,
            through: fields,
            last: self.step(within, last)?,
        })
    }

    /// Reads a field of a validated message. `None` when it is absent; a field without presence has its default then.
    /// Of a message that is not whole, such as a gathered one whose leaves are elsewhere, what is not there cannot be
    /// told from the rest: that is an error, never `None`.
    pub fn read<'a>(&self, path: &FieldPath, message: View<'a>) -> Result<Option<Value<'a>>, ReadError> {
        self.read_at(path, message, StructPlace::ROOT)
    }

    /// As [`Tables::read`], of a message in the view: the path must be one of that message's type.
    pub fn read_at<'a>(
        &self,
        path: &FieldPath,
        message: View<'a>,
        within: StructPlace,
    ) -> Result<Option<Value<'a>>, ReadError> {
        match path.find(message, within)? {
            Some(base) => value(&path.last, base, message).map(Some),
            None => Ok(None),
        }
    }

    /// The length of a string or bytes, or the number of a list's or map's elements, also of what is elsewhere in a
    /// message that is not whole; `None` when the field is absent.
    pub fn length_at(
        &self,
        path: &FieldPath,
        message: View<'_>,
        within: StructPlace,
    ) -> Result<Option<u32>, ReadError> {
        let is_list = matches!(path.last.shape, FieldForm::List { .. } | FieldForm::Map { .. });
        if !is_list && !matches!(path.last.ty, Type::String | Type::Bytes) {
            return Err(ReadError);
        }
        let base = path.find(message, within)?;
        let reference =
            base.map(|base| native::reference(message.bytes, base + path.last.at).ok_or(ReadError));
        Ok(reference.transpose()?.map(|(_, length)| length))
    }

    /// Where the singular message is that a path names; `None` when it is absent.
    pub fn message_at(
        &self,
        path: &FieldPath,
        message: View<'_>,
        within: StructPlace,
    ) -> Result<Option<StructPlace>, ReadError> {
        let is_singular = matches!(
            path.last.shape,
            FieldForm::Optional { .. } | FieldForm::Member { .. }
        );
        if !is_singular || !matches!(path.last.ty, Type::Message(_)) {
            return Err(ReadError);
        }
        match path.find(message, within)? {
            Some(base) => follow(&path.last, base, message).map(|place| Some(StructPlace(place))),
            None => Ok(None),
        }
    }

    /// The list or map that a path names, without elements when it is absent.
    pub fn elements<'a>(
        &self,
        path: &FieldPath,
        message: View<'a>,
        within: StructPlace,
    ) -> Result<Elements<'a>, ReadError> {
        let base = path.find(message, within)?;
        self.elements_of(&path.last, base, message)
    }

    fn step(&self, within: MessageId, name: &str) -> Result<TableField, PathError> {
        let field = self
            .message(within)
            .and_then(|index| self.field_named(self.of(index), name));
        field.copied().ok_or_else(|| PathError::NoField {
            message: self.name(within),
            field: name.to_owned(),
        })
    }

    fn name(&self, message: MessageId) -> String {
        self.message_name(message).to_owned()
    }
}

impl FieldPath {
    /// Where the struct is that the last field is in, if that field is present.
    fn find(&self, message: View<'_>, within: StructPlace) -> Result<Option<u32>, ReadError> {
        // So that a place within the bytes and one within a struct can be added.
        if message.bytes.len() > MESSAGE_BYTES_MAX as usize || within.0 as usize > message.bytes.len() {
            return Err(ReadError);
        }
        let mut base = within.0;
        for field in &self.through {
            if !is_present(field, base, message)? {
                return Ok(None);
            }
            base = follow(field, base, message)?;
        }
        Ok(is_present(&self.last, base, message)?.then_some(base))
    }
}

/// Where the singular message is that a field refers to.
fn follow(field: &TableField, base: u32, message: View<'_>) -> Result<u32, ReadError> {
    let off8 = message.word(base + field.at)?;
    let place = native::place(off8, message.window_at).ok_or(ReadError)?;
    if (place as usize) < message.bytes.len() {
        Ok(place)
    } else {
        Err(ReadError)
    }
}

fn is_present(field: &TableField, base: u32, message: View<'_>) -> Result<bool, ReadError> {
    Ok(match field.shape {
        FieldForm::Optional { present_at } => message.word(base + present_at)? != 0,
        FieldForm::Member { tag_at, .. } => message.word(base + tag_at)? == field.number,
        FieldForm::Implicit | FieldForm::Always | FieldForm::List { .. } | FieldForm::Map { .. } => true,
    })
}

fn value<'a>(field: &TableField, base: u32, message: View<'a>) -> Result<Value<'a>, ReadError> {
    let at = base + field.at;
    if let FieldForm::List { .. } | FieldForm::Map { .. } = field.shape {
        return Ok(Value::List(
            native::reference(message.bytes, at).ok_or(ReadError)?.1,
        ));
    }
    scalar(field.ty, at, message)
}

/// The value of a type at a place; a message by its presence alone.
pub(crate) fn scalar<'a>(ty: Type, at: u32, message: View<'a>) -> Result<Value<'a>, ReadError> {
    let bits = || match scalar_bytes(ty) {
        Some(1) => native::byte(message.bytes, at).map(u64::from).ok_or(ReadError),
        Some(4) => message.word(at).map(u64::from),
        _ => native::long(message.bytes, at).ok_or(ReadError),
    };
    Ok(match ty {
        Type::Message(_) => Value::Message,
        Type::String => Value::String(std::str::from_utf8(message.referent(at)?).map_err(|_| ReadError)?),
        Type::Bytes => Value::Bytes(message.referent(at)?),
        number => number_value(number, bits()?),
    })
}

/// The value of a type that is neither text nor a message, from its native bits: those of 32-bit values in the low half.
pub(crate) fn number_value(ty: Type, bits: u64) -> Value<'static> {
    match ty {
        Type::Bool => Value::Bool(bits != 0),
        Type::Int32 | Type::Sint32 | Type::Sfixed32 => Value::Int(i64::from(bits as i32)),
        Type::Int64 | Type::Sint64 | Type::Sfixed64 => Value::Int(bits as i64),
        Type::Uint32 | Type::Fixed32 => Value::Uint(u64::from(bits as u32)),
        Type::Uint64 | Type::Fixed64 => Value::Uint(bits),
        Type::Float => Value::Float(f32::from_bits(bits as u32)),
        Type::Double => Value::Double(f64::from_bits(bits)),
        Type::Enum(_) => Value::Enum(bits as i32),
        Type::String | Type::Bytes | Type::Message(_) => Value::Message,
    }
}
