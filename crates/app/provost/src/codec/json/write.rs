//! From messages to JSON values.

use std::borrow::Cow;

use provost_wire::limits::NESTING_MAX;

use super::super::base64;
use super::super::error::EncodeError;
use super::super::fields::{FieldInfo, FieldKind, FieldRef, FieldShape, MapPairs, ReflectMessage, ValueRef};
use super::number::float_text;
use super::value::JsonValue;
use super::{JsonFormat, path_within, well_known};

type WriteOutcome<'m> = Result<JsonValue<'m>, EncodeError>;
type ObjectMembers<'m> = Vec<(Cow<'m, str>, JsonValue<'m>)>;

/// Writes messages in a format.
#[derive(Clone, Copy)]
pub(super) struct JsonWriter<'f> {
    pub(super) format: &'f JsonFormat,
}

impl JsonWriter<'_> {
    pub(super) fn message<'m>(self, message: &'m dyn ReflectMessage, depth: u32) -> WriteOutcome<'m> {
        if depth > NESTING_MAX {
            return Err(EncodeError::Nesting);
        }
        match well_known::write(self, message, depth) {
            Some(value) => value,
            None => Ok(JsonValue::Object(self.members(message, depth)?)),
        }
    }

    /// The fields that are there, by ascending number.
    pub(super) fn members<'m>(
        self,
        message: &'m dyn ReflectMessage,
        depth: u32,
    ) -> Result<ObjectMembers<'m>, EncodeError> {
        let mut members = ObjectMembers::new();
        for field in message.info().fields {
            let name = if self.format.has_proto_names {
                field.name
            } else {
                field.json_name
            };
            let value = self.field(field, message.field(field.number), depth);
            if let Some(value) = value.map_err(|error| within(error, name))? {
                members.push((Cow::Borrowed(name), value));
            }
        }
        Ok(members)
    }

    fn field<'m>(
        self,
        field: &FieldInfo,
        value: FieldRef<'m>,
        depth: u32,
    ) -> Result<Option<JsonValue<'m>>, EncodeError> {
        let is_wanted = |count: usize| count > 0 || self.format.has_defaults;
        match value {
            FieldRef::One(Some(value)) => self.value(field.kind, value, depth).map(Some),
            FieldRef::One(None)
                if self.format.has_defaults && matches!(field.shape, FieldShape::Implicit) =>
            {
                self.value(field.kind, default_of(field.kind), depth).map(Some)
            }
            FieldRef::Many(elements) if is_wanted(elements.count()) => {
                let value = |index| {
                    let value = self.value(field.kind, elements.element(index), depth);
                    value.map_err(|error| within(error, format_args!("[{index}]")))
                };
                let values: Result<_, _> = (0..elements.count()).map(value).collect();
                values.map(|values| Some(JsonValue::List(values)))
            }
            FieldRef::MapPairs(pairs) if is_wanted(pairs.count()) => {
                self.pairs(field, pairs, depth).map(Some)
            }
            _ => Ok(None),
        }
    }

    pub(super) fn pairs<'m>(
        self,
        field: &FieldInfo,
        pairs: &'m dyn MapPairs,
        depth: u32,
    ) -> WriteOutcome<'m> {
        let member = |index| {
            let (key, value) = pairs.pair(index);
            let key = key_text(key);
            let value = self.value(field.kind, value, depth);
            match value {
                Ok(value) => Ok((key, value)),
                Err(error) => Err(within(error, format_args!("[\"{key}\"]"))),
            }
        };
        let members: Result<_, _> = (0..pairs.count()).map(member).collect();
        members.map(JsonValue::Object)
    }

    pub(super) fn value<'m>(self, kind: FieldKind, value: ValueRef<'m>, depth: u32) -> WriteOutcome<'m> {
        Ok(match (value, kind) {
            (ValueRef::Message(message), _) => return self.message(message, depth + 1),
            (ValueRef::I32(number), FieldKind::Enum(info)) => match info.name_of(number) {
                _ if info.full_name == well_known::NULL_VALUE => JsonValue::Null,
                Some(name) if !self.format.has_enum_numbers => JsonValue::Text(Cow::Borrowed(name)),
                _ => number_of(number),
            },
            (ValueRef::Bool(value), _) => JsonValue::Bool(value),
            (ValueRef::I32(value), _) => number_of(value),
            (ValueRef::U32(value), _) => number_of(value),
            (ValueRef::I64(value), _) => JsonValue::Text(value.to_string().into()),
            (ValueRef::U64(value), _) => JsonValue::Text(value.to_string().into()),
            (ValueRef::F32(value), _) => float(f64::from(value), format!("{value:?}")),
            (ValueRef::F64(value), _) => float(value, format!("{value:?}")),
            (ValueRef::Text(text), _) => JsonValue::Text(Cow::Borrowed(text)),
            (ValueRef::Bytes(bytes), _) => JsonValue::Text(base64::encode(bytes).into()),
        })
    }
}

/// An error within the value of this name or index.
pub(super) fn within(error: EncodeError, step: impl std::fmt::Display) -> EncodeError {
    match error {
        EncodeError::Json { field, message } => EncodeError::Json {
            field: path_within(step, &field),
            message,
        },
        other => other,
    }
}

fn number_of(number: impl std::fmt::Display) -> JsonValue<'static> {
    JsonValue::Number(number.to_string().into())
}

/// A floating-point number; `shortest` has as few digits as give it back.
fn float(value: f64, shortest: String) -> JsonValue<'static> {
    let name = match value {
        _ if value.is_nan() => "NaN",
        f64::INFINITY => "Infinity",
        f64::NEG_INFINITY => "-Infinity",
        _ => return JsonValue::Number(float_text(shortest).into()),
    };
    JsonValue::Text(name.into())
}

fn key_text(key: ValueRef<'_>) -> Cow<'_, str> {
    match key {
        ValueRef::Text(text) => Cow::Borrowed(text),
        ValueRef::Bool(value) => value.to_string().into(),
        ValueRef::I32(value) => value.to_string().into(),
        ValueRef::U32(value) => value.to_string().into(),
        ValueRef::I64(value) => value.to_string().into(),
        ValueRef::U64(value) => value.to_string().into(),
        _ => Cow::Borrowed(""),
    }
}

/// The default of a value that is no message.
pub(super) fn default_of(kind: FieldKind) -> ValueRef<'static> {
    match kind {
        FieldKind::Bool => ValueRef::Bool(false),
        FieldKind::Uint32 | FieldKind::Fixed32 => ValueRef::U32(0),
        FieldKind::Int64 | FieldKind::Sint64 | FieldKind::Sfixed64 => ValueRef::I64(0),
        FieldKind::Uint64 | FieldKind::Fixed64 => ValueRef::U64(0),
        FieldKind::Float => ValueRef::F32(0.0),
        FieldKind::Double => ValueRef::F64(0.0),
        FieldKind::String => ValueRef::Text(""),
        FieldKind::Bytes => ValueRef::Bytes(&[]),
        _ => ValueRef::I32(0),
    }
}
