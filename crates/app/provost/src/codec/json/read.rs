//! From JSON values to messages.

use std::collections::BTreeSet;

use provost_wire::limits::NESTING_MAX;

use super::super::base64;
use super::super::error::JsonError;
use super::super::fields::{
    EnumInfo, FieldElement, FieldInfo, FieldKind, FieldMut, FieldShape, ListElements, MapPairs,
    ReflectMessage, ValueRef,
};
use super::number::{integer_of, is_number};
use super::value::JsonValue;
use super::{JsonFormat, well_known};
use crate::shared::HeapFull;

type ReadOutcome<T> = Result<T, JsonError>;

/// Reads messages in a format.
#[derive(Clone, Copy)]
pub(super) struct JsonReader<'f> {
    pub(super) format: &'f JsonFormat,
}

/// What has been set of a message.
#[derive(Default)]
struct SeenFields {
    fields: BTreeSet<u32>,
    oneofs: BTreeSet<&'static str>,
}

impl SeenFields {
    fn note(&mut self, field: &FieldInfo) -> ReadOutcome<()> {
        if !self.fields.insert(field.number) {
            return Err(JsonError::new("the field stands here twice"));
        }
        match field.shape {
            FieldShape::Member(oneof) if !self.oneofs.insert(oneof) => Err(JsonError::new(format!(
                "another member of the oneof `{oneof}` is set already"
            ))),
            _ => Ok(()),
        }
    }
}

impl JsonReader<'_> {
    /// Sets a message to what a value says; it must be empty.
    pub(super) fn message(
        self,
        json: &JsonValue<'_>,
        message: &mut dyn ReflectMessage,
        depth: u32,
    ) -> ReadOutcome<()> {
        if depth > NESTING_MAX {
            return Err(JsonError::new(format!(
                "messages nest deeper than {NESTING_MAX} levels"
            )));
        }
        match well_known::read(self, json, message, depth) {
            Some(read) => read,
            None => self.members(json, message, depth, None),
        }
    }

    /// The fields of a message, but for the name `except`.
    pub(super) fn members(
        self,
        json: &JsonValue<'_>,
        message: &mut dyn ReflectMessage,
        depth: u32,
        except: Option<&str>,
    ) -> ReadOutcome<()> {
        let JsonValue::Object(members) = json else {
            return Err(expected("an object", json));
        };
        let info = message.info();
        let mut seen = SeenFields::default();
        for (name, value) in members.iter().filter(|(name, _)| Some(name.as_ref()) != except) {
            let found = info
                .fields
                .iter()
                .find(|field| field.json_name == name || field.name == name);
            let Some(field) = found else {
                if self.format.ignores_unknown {
                    continue;
                }
                return Err(JsonError::new(format!("{} has no such field", info.full_name)).within(name));
            };
            if *value == JsonValue::Null && !takes_null(field) {
                continue;
            }
            let read = seen
                .note(field)
                .and_then(|()| self.field(field, value, message, depth));
            read.map_err(|error| error.within(name))?;
        }
        Ok(())
    }

    fn field(
        self,
        field: &FieldInfo,
        json: &JsonValue<'_>,
        message: &mut dyn ReflectMessage,
        depth: u32,
    ) -> ReadOutcome<()> {
        if self.is_passed_over(field.kind, json) {
            return Ok(());
        }
        match message.open(field.number).map_err(full)? {
            FieldMut::One(element) => self.value(field.kind, json, element, depth),
            FieldMut::Many(elements) => self.elements(field, json, elements, depth),
            FieldMut::MapPairs(pairs) => self.pairs(field, json, pairs, depth),
            FieldMut::Unknown => Ok(()),
        }
    }

    pub(super) fn elements(
        self,
        field: &FieldInfo,
        json: &JsonValue<'_>,
        elements: &mut dyn ListElements,
        depth: u32,
    ) -> ReadOutcome<()> {
        let JsonValue::List(values) = json else {
            return Err(expected("a list", json));
        };
        for (index, value) in values.iter().enumerate() {
            if self.is_passed_over(field.kind, value) {
                continue;
            }
            let element = elements.append().map_err(full)?;
            let read = self.value(field.kind, value, element, depth);
            read.map_err(|error| error.within(format_args!("[{index}]")))?;
        }
        Ok(())
    }

    pub(super) fn pairs(
        self,
        field: &FieldInfo,
        json: &JsonValue<'_>,
        pairs: &mut dyn MapPairs,
        depth: u32,
    ) -> ReadOutcome<()> {
        let FieldShape::Map(key_kind) = field.shape else {
            return Ok(());
        };
        let JsonValue::Object(members) = json else {
            return Err(expected("an object", json));
        };
        let mut count = 0;
        for (name, json) in members {
            if self.is_passed_over(field.kind, json) {
                continue;
            }
            let (key, value) = pairs.append().map_err(full)?;
            let read =
                read_key(key_kind, name, key).and_then(|()| self.value(field.kind, json, value, depth));
            read.map_err(|error| error.within(format_args!("[\"{name}\"]")))?;
            count += 1;
        }
        pairs.settle();
        if pairs.count() == count {
            Ok(())
        } else {
            Err(JsonError::new("a key stands in this map twice"))
        }
    }

    pub(super) fn value(
        self,
        kind: FieldKind,
        json: &JsonValue<'_>,
        element: &mut dyn FieldElement,
        depth: u32,
    ) -> ReadOutcome<()> {
        let value = match (kind, json) {
            (FieldKind::Message(_), json) => {
                return element
                    .message()
                    .map_or(Ok(()), |message| self.message(json, message, depth + 1));
            }
            (FieldKind::Bytes, JsonValue::Text(text)) => {
                let bytes = base64::decode(text).ok_or_else(|| JsonError::new("the text is no base64"))?;
                return element.set(ValueRef::Bytes(&bytes)).map_err(full);
            }
            (FieldKind::String, JsonValue::Text(text)) => ValueRef::Text(text),
            (FieldKind::String | FieldKind::Bytes, other) => return Err(expected("a text", other)),
            (FieldKind::Bool, JsonValue::Bool(value)) => ValueRef::Bool(*value),
            (FieldKind::Bool, other) => return Err(expected("`true` or `false`", other)),
            (FieldKind::Enum(info), json) => enumeration(info, json)?,
            (FieldKind::Float | FieldKind::Double, json) => float(kind, json)?,
            (_, JsonValue::Number(text) | JsonValue::Text(text)) => integer(kind, text)?,
            (_, other) => return Err(expected("a number", other)),
        };
        element.set(value).map_err(full)
    }

    /// Whether a value is the name of an enum's that is not known, where that is no error.
    fn is_passed_over(self, kind: FieldKind, json: &JsonValue<'_>) -> bool {
        match (kind, json) {
            (FieldKind::Enum(info), JsonValue::Text(name)) => {
                self.format.ignores_unknown && info.number_of(name).is_none()
            }
            _ => false,
        }
    }
}

/// Whether `null` is a value of a field; of all others it says that they are absent.
fn takes_null(field: &FieldInfo) -> bool {
    let is_single = !matches!(
        field.shape,
        FieldShape::Repeated | FieldShape::Packed | FieldShape::Map(_)
    );
    is_single
        && match field.kind {
            FieldKind::Message(full_name) => full_name == well_known::VALUE,
            FieldKind::Enum(info) => info.full_name == well_known::NULL_VALUE,
            _ => false,
        }
}

pub(super) fn expected(what: &str, found: &JsonValue<'_>) -> JsonError {
    JsonError::new(format!("{what} is expected, and this is {}", found.kind()))
}

pub(super) fn full(full: HeapFull) -> JsonError {
    JsonError::new(full.to_string())
}

fn enumeration(info: &EnumInfo, json: &JsonValue<'_>) -> ReadOutcome<ValueRef<'static>> {
    let number = match json {
        JsonValue::Null if info.full_name == well_known::NULL_VALUE => Some(0),
        JsonValue::Text(name) => info.number_of(name),
        JsonValue::Number(number) => integer_of(number).and_then(|number| i32::try_from(number).ok()),
        other => return Err(expected("a name or a number", other)),
    };
    let number = number.ok_or_else(|| JsonError::new(format!("{} has no such value", info.full_name)))?;
    Ok(ValueRef::I32(number))
}

fn read_key(kind: FieldKind, text: &str, key: &mut dyn FieldElement) -> ReadOutcome<()> {
    let value = match kind {
        FieldKind::String => ValueRef::Text(text),
        FieldKind::Bool => match text {
            "true" => ValueRef::Bool(true),
            "false" => ValueRef::Bool(false),
            _ => return Err(JsonError::new("the key is expected to be `true` or `false`")),
        },
        number => integer(number, text)?,
    };
    key.set(value).map_err(full)
}

fn integer(kind: FieldKind, text: &str) -> ReadOutcome<ValueRef<'static>> {
    let number =
        integer_of(text).ok_or_else(|| JsonError::new(format!("`{}` is no integer", shown(text))))?;
    let value = match kind {
        FieldKind::Int32 | FieldKind::Sint32 | FieldKind::Sfixed32 => {
            i32::try_from(number).map(ValueRef::I32)
        }
        FieldKind::Uint32 | FieldKind::Fixed32 => u32::try_from(number).map(ValueRef::U32),
        FieldKind::Int64 | FieldKind::Sint64 | FieldKind::Sfixed64 => {
            i64::try_from(number).map(ValueRef::I64)
        }
        _ => u64::try_from(number).map(ValueRef::U64),
    };
    value.map_err(|_| JsonError::new(format!("{number} does not fit the field's type")))
}

fn float(kind: FieldKind, json: &JsonValue<'_>) -> ReadOutcome<ValueRef<'static>> {
    let (text, is_quoted) = match json {
        JsonValue::Number(text) => (text, false),
        JsonValue::Text(text) => (text, true),
        other => return Err(expected("a number", other)),
    };
    let special = match &**text {
        "NaN" => Some(f64::NAN),
        "Infinity" => Some(f64::INFINITY),
        "-Infinity" => Some(f64::NEG_INFINITY),
        _ => None,
    };
    let is_float = matches!(kind, FieldKind::Float);
    if let Some(special) = special.filter(|_| is_quoted) {
        return Ok(if is_float {
            ValueRef::F32(special as f32)
        } else {
            ValueRef::F64(special)
        });
    }
    let no_number = || JsonError::new(format!("`{}` is no number of the field's type", shown(text)));
    if !is_number(text) {
        return Err(no_number());
    }
    let value = if is_float {
        text.parse()
            .ok()
            .filter(|value: &f32| value.is_finite())
            .map(ValueRef::F32)
    } else {
        text.parse()
            .ok()
            .filter(|value: &f64| value.is_finite())
            .map(ValueRef::F64)
    };
    value.ok_or_else(no_number)
}

/// The beginning of a text, for messages.
pub(super) fn shown(text: &str) -> String {
    const SHOWN_CHARACTERS_MAX: usize = 40;
    text.chars().take(SHOWN_CHARACTERS_MAX).collect()
}
