//! Google's well-known types, which have forms of their own in JSON. They are known by their names, whichever program's
//! generated code they are of.

use std::borrow::Cow;

use super::super::decode;
use super::super::encode;
use super::super::error::{EncodeError, JsonError};
use super::super::fields::{FieldElement, FieldInfo, FieldMut, FieldRef, ReflectMessage, ValueRef};
use super::AnyType;
use super::read::{JsonReader, expected, full, shown};
use super::time::{duration_of, duration_text, timestamp_of, timestamp_text};
use super::value::JsonValue;
use super::write::{JsonWriter, default_of, within};
use crate::well_known as types;

/// A value that JSON's `null` is one of.
pub(super) const VALUE: &str = "google.protobuf.Value";
/// The enum whose only value JSON writes as `null`.
pub(super) const NULL_VALUE: &str = "google.protobuf.NullValue";
const TYPE: &str = "@type";
const EMPTY: &str = "google.protobuf.Empty";

/// Which form a type has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JsonForm {
    Any,
    Timestamp,
    Duration,
    FieldMask,
    Struct,
    Value,
    ListValue,
    Wrapper,
}

fn form_of(full_name: &str) -> Option<JsonForm> {
    Some(match full_name.strip_prefix("google.protobuf.")? {
        "Any" => JsonForm::Any,
        "Timestamp" => JsonForm::Timestamp,
        "Duration" => JsonForm::Duration,
        "FieldMask" => JsonForm::FieldMask,
        "Struct" => JsonForm::Struct,
        "Value" => JsonForm::Value,
        "ListValue" => JsonForm::ListValue,
        "DoubleValue" | "FloatValue" | "Int64Value" | "UInt64Value" | "Int32Value" | "UInt32Value"
        | "BoolValue" | "StringValue" | "BytesValue" => JsonForm::Wrapper,
        _ => return None,
    })
}

macro_rules! any_types {
    ($($ty:ident),*) => {
        &[$(AnyType {
            full_name: <types::$ty as crate::message::Message>::FULL_NAME,
            make: || Ok(Box::new(types::$ty::unset()?)),
        }),*]
    };
}

/// What an `Any` may hold without being told.
pub(super) const TYPES: &[AnyType] = any_types![
    Any,
    Timestamp,
    Duration,
    FieldMask,
    Struct,
    Value,
    ListValue,
    DoubleValue,
    FloatValue,
    Int64Value,
    UInt64Value,
    Int32Value,
    UInt32Value,
    BoolValue,
    StringValue,
    BytesValue,
    Empty
];

/// The form of a message that has one of its own.
pub(super) fn write<'m>(
    writer: JsonWriter<'_>,
    message: &'m dyn ReflectMessage,
    depth: u32,
) -> Option<Result<JsonValue<'m>, EncodeError>> {
    let text = |text: Option<String>, otherwise: &str| match text {
        Some(text) => Ok(JsonValue::Text(text.into())),
        None => Err(no_form(otherwise)),
    };
    Some(match form_of(message.info().full_name)? {
        JsonForm::Timestamp => text(
            timestamp_text(integer(message, 1), integer(message, 2) as i32),
            "the time is not between the years 1 and 9999, or its nanoseconds are not between 0 and 999,999,999",
        ),
        JsonForm::Duration => text(
            duration_text(integer(message, 1), integer(message, 2) as i32),
            "the duration is longer than 10,000 years, or the signs of its parts differ",
        ),
        JsonForm::FieldMask => text(
            mask_text(message),
            "a path would be another one when it is read: it may have small letters, digits, and `_` before letters",
        ),
        JsonForm::Struct => members(writer, message, depth),
        JsonForm::ListValue => elements(writer, message, depth),
        JsonForm::Value => value(writer, message, depth),
        JsonForm::Wrapper => wrapped(writer, message, depth),
        JsonForm::Any => any(writer, message, depth),
    })
}

fn no_form(message: &str) -> EncodeError {
    EncodeError::Json {
        field: String::new(),
        message: message.to_owned(),
    }
}

fn one(message: &dyn ReflectMessage, number: u32) -> Option<ValueRef<'_>> {
    match message.field(number) {
        FieldRef::One(value) => value,
        _ => None,
    }
}

fn integer(message: &dyn ReflectMessage, number: u32) -> i64 {
    match one(message, number) {
        Some(ValueRef::I64(value)) => value,
        Some(ValueRef::I32(value)) => i64::from(value),
        _ => 0,
    }
}

fn mask_text(message: &dyn ReflectMessage) -> Option<String> {
    let FieldRef::Many(paths) = message.field(1) else {
        return None;
    };
    let path = |index| match paths.element(index) {
        ValueRef::Text(path) => camel_path(path),
        _ => None,
    };
    let paths: Option<Vec<String>> = (0..paths.count()).map(path).collect();
    paths.map(|paths| paths.join(","))
}

/// `foo_bar.baz` as `fooBar.baz`; `None` if the way back leads elsewhere, or nowhere.
fn camel_path(path: &str) -> Option<String> {
    if path.is_empty() {
        return None;
    }
    let mut camel = String::with_capacity(path.len());
    let mut letters = path.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '_' => camel.push(
                letters
                    .next()
                    .filter(char::is_ascii_lowercase)?
                    .to_ascii_uppercase(),
            ),
            'A'..='Z' | ',' => return None,
            other => camel.push(other),
        }
    }
    Some(camel)
}

/// `fooBar.baz` as `foo_bar.baz`.
fn snake_path(path: &str) -> Option<String> {
    let mut snake = String::with_capacity(path.len() + 4);
    for letter in path.chars() {
        match letter {
            '_' => return None,
            'A'..='Z' => snake.extend(['_', letter.to_ascii_lowercase()]),
            other => snake.push(other),
        }
    }
    Some(snake)
}

fn field_of(message: &dyn ReflectMessage, number: u32) -> Result<&'static FieldInfo, EncodeError> {
    let found = message.info().numbered(number);
    found.ok_or_else(|| no_form("the type has not the fields of the well-known type of its name"))
}

fn members<'m>(
    writer: JsonWriter<'_>,
    message: &'m dyn ReflectMessage,
    depth: u32,
) -> Result<JsonValue<'m>, EncodeError> {
    match message.field(1) {
        FieldRef::MapPairs(pairs) => writer.pairs(field_of(message, 1)?, pairs, depth),
        _ => Ok(JsonValue::Object(Vec::new())),
    }
}

fn elements<'m>(
    writer: JsonWriter<'_>,
    message: &'m dyn ReflectMessage,
    depth: u32,
) -> Result<JsonValue<'m>, EncodeError> {
    let kind = field_of(message, 1)?.kind;
    let FieldRef::Many(elements) = message.field(1) else {
        return Ok(JsonValue::List(Vec::new()));
    };
    let value = |index| {
        let value = writer.value(kind, elements.element(index), depth);
        value.map_err(|error| within(error, format_args!("[{index}]")))
    };
    let values: Result<_, _> = (0..elements.count()).map(value).collect();
    values.map(JsonValue::List)
}

fn value<'m>(
    writer: JsonWriter<'_>,
    message: &'m dyn ReflectMessage,
    depth: u32,
) -> Result<JsonValue<'m>, EncodeError> {
    let mut set = message
        .info()
        .fields
        .iter()
        .filter_map(|field| Some((field, one(message, field.number)?)));
    match set.next() {
        None => Err(no_form("the value has no kind; null has one too")),
        Some((_, ValueRef::F64(number))) if !number.is_finite() => {
            Err(no_form("the value is not a finite number"))
        }
        Some((field, value)) => writer.value(field.kind, value, depth),
    }
}

fn wrapped<'m>(
    writer: JsonWriter<'_>,
    message: &'m dyn ReflectMessage,
    depth: u32,
) -> Result<JsonValue<'m>, EncodeError> {
    let kind = field_of(message, 1)?.kind;
    writer.value(kind, one(message, 1).unwrap_or_else(|| default_of(kind)), depth)
}

fn any<'m>(
    writer: JsonWriter<'_>,
    message: &'m dyn ReflectMessage,
    depth: u32,
) -> Result<JsonValue<'m>, EncodeError> {
    let (url, bytes) = match (one(message, 1), one(message, 2)) {
        (None, None) => return Ok(JsonValue::Object(Vec::new())),
        (Some(ValueRef::Text(url)), Some(ValueRef::Bytes(bytes))) => (url, bytes),
        (Some(ValueRef::Text(url)), None) => (url, &[][..]),
        _ => return Err(no_form("the bytes are of no type: `type_url` is empty")),
    };
    let mut inner = writer.format.message_of(url).map_err(|error| no_form(&error))?;
    decode::merge(&mut *inner, bytes)
        .map_err(|error| no_form(&format!("its `value` is no such message: {error}")))?;
    let mut members = vec![(Cow::Borrowed(TYPE), JsonValue::Text(Cow::Borrowed(url)))];
    match form_of(inner.info().full_name) {
        Some(_) => members.push((
            Cow::Borrowed("value"),
            writer.message(&*inner, depth + 1)?.into_owned(),
        )),
        None => match writer.message(&*inner, depth + 1)?.into_owned() {
            JsonValue::Object(fields) => members.extend(fields),
            other => members.push((Cow::Borrowed("value"), other)),
        },
    }
    Ok(JsonValue::Object(members))
}

/// Reads a message whose type has a form of its own.
pub(super) fn read(
    reader: JsonReader<'_>,
    json: &JsonValue<'_>,
    message: &mut dyn ReflectMessage,
    depth: u32,
) -> Option<Result<(), JsonError>> {
    Some(match form_of(message.info().full_name)? {
        JsonForm::Timestamp => read_time(
            json,
            message,
            timestamp_of,
            "a time such as \"2023-11-14T22:13:20.5Z\"",
        ),
        JsonForm::Duration => read_time(json, message, duration_of, "a duration such as \"1.5s\""),
        JsonForm::FieldMask => read_mask(json, message),
        JsonForm::Struct | JsonForm::ListValue | JsonForm::Wrapper => {
            read_first(reader, json, message, depth)
        }
        JsonForm::Value => read_value(reader, json, message, depth),
        JsonForm::Any => read_any(reader, json, message, depth),
    })
}

fn set(message: &mut dyn ReflectMessage, number: u32, value: ValueRef<'_>) -> Result<(), JsonError> {
    match message.open(number).map_err(full)? {
        FieldMut::One(element) => element.set(value).map_err(full),
        _ => Ok(()),
    }
}

fn read_time(
    json: &JsonValue<'_>,
    message: &mut dyn ReflectMessage,
    parse: fn(&str) -> Option<(i64, i32)>,
    example: &str,
) -> Result<(), JsonError> {
    let JsonValue::Text(text) = json else {
        return Err(expected(example, json));
    };
    let no_time = || JsonError::new(format!("`{}` is not {example}", shown(text)));
    let (seconds, nanos) = parse(text).ok_or_else(no_time)?;
    set(message, 1, ValueRef::I64(seconds))?;
    set(message, 2, ValueRef::I32(nanos))
}

fn read_mask(json: &JsonValue<'_>, message: &mut dyn ReflectMessage) -> Result<(), JsonError> {
    let JsonValue::Text(text) = json else {
        return Err(expected("paths between commas", json));
    };
    let FieldMut::Many(paths) = message.open(1).map_err(full)? else {
        return Ok(());
    };
    for path in text.split(',').filter(|path| !path.is_empty()) {
        let no_path = || {
            JsonError::new(format!(
                "`{}` is no path: its names are in lowerCamelCase",
                shown(path)
            ))
        };
        let path = snake_path(path).ok_or_else(no_path)?;
        paths
            .append()
            .and_then(|element| element.set(ValueRef::Text(&path)))
            .map_err(full)?;
    }
    Ok(())
}

/// The only field of a type, which is what JSON has in place of the message.
fn read_first(
    reader: JsonReader<'_>,
    json: &JsonValue<'_>,
    message: &mut dyn ReflectMessage,
    depth: u32,
) -> Result<(), JsonError> {
    let Some(field) = message.info().numbered(1) else {
        return Ok(());
    };
    match message.open(1).map_err(full)? {
        FieldMut::One(element) => reader.value(field.kind, json, element, depth),
        FieldMut::Many(elements) => reader.elements(field, json, elements, depth),
        FieldMut::MapPairs(pairs) => reader.pairs(field, json, pairs, depth),
        FieldMut::Unknown => Ok(()),
    }
}

/// Sets the member of a `Value` that a JSON value is.
fn read_value(
    reader: JsonReader<'_>,
    json: &JsonValue<'_>,
    message: &mut dyn ReflectMessage,
    depth: u32,
) -> Result<(), JsonError> {
    let number = match json {
        JsonValue::Null => 1,
        JsonValue::Number(_) => 2,
        JsonValue::Text(_) => 3,
        JsonValue::Bool(_) => 4,
        JsonValue::Object(_) => 5,
        JsonValue::List(_) => 6,
    };
    let kind = message.info().numbered(number).map(|field| field.kind);
    match (kind, message.open(number).map_err(full)?) {
        (Some(kind), FieldMut::One(element)) => reader.value(kind, json, element, depth),
        _ => Ok(()),
    }
}

fn is_empty_object(values: &[&JsonValue<'_>]) -> bool {
    matches!(values, [JsonValue::Object(members)] if members.is_empty())
}

fn read_any(
    reader: JsonReader<'_>,
    json: &JsonValue<'_>,
    message: &mut dyn ReflectMessage,
    depth: u32,
) -> Result<(), JsonError> {
    let JsonValue::Object(members) = json else {
        return Err(expected("an object", json));
    };
    let named = |wanted: &str| {
        members
            .iter()
            .filter(|(name, _)| name == wanted)
            .map(|(_, value)| value)
            .collect::<Vec<_>>()
    };
    let url = match named(TYPE).as_slice() {
        [] if members.is_empty() => return Ok(()),
        [JsonValue::Text(url)] => url.clone(),
        _ => {
            return Err(JsonError::new(
                "one text `@type` is expected, which names the type",
            ));
        }
    };
    let mut inner = reader.format.message_of(&url).map_err(JsonError::new)?;
    match form_of(inner.info().full_name) {
        // Some write `Empty` as if it had a form of its own.
        None if inner.info().full_name == EMPTY && is_empty_object(&named("value")) && members.len() == 2 => {
        }
        None => reader.members(json, &mut *inner, depth + 1, Some(TYPE))?,
        Some(_) => match named("value").as_slice() {
            [value] if members.len() == 2 => {
                reader
                    .message(value, &mut *inner, depth + 1)
                    .map_err(|error| error.within("value"))?;
            }
            _ => {
                return Err(JsonError::new(
                    "`@type` and one `value` are expected, for a type with a form of its own",
                ));
            }
        },
    }
    let mut bytes = Vec::new();
    encode::encode(&*inner, &mut bytes).map_err(|error| JsonError::new(error.to_string()))?;
    set(message, 1, ValueRef::Text(&url))?;
    set(message, 2, ValueRef::Bytes(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_go_there_and_back() {
        for (snake, camel) in [("foo", "foo"), ("foo_bar.baz_q", "fooBar.bazQ"), ("a1_b", "a1B")] {
            assert_eq!(camel_path(snake).as_deref(), Some(camel));
            assert_eq!(snake_path(camel).as_deref(), Some(snake));
        }
        for path in ["", "fooBar", "foo_3_bar", "foo__bar", "foo_", "a,b"] {
            assert_eq!(camel_path(path), None, "{path}");
        }
        assert_eq!(snake_path("foo_bar"), None);
    }
}
