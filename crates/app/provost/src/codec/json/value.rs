//! [`JsonValue`]: what a JSON text says, and how it is written.

use std::borrow::Cow;

/// A JSON value. Numbers are kept as they are written, so that none loses digits.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum JsonValue<'a> {
    Null,
    Bool(bool),
    Number(Cow<'a, str>),
    Text(Cow<'a, str>),
    List(Vec<JsonValue<'a>>),
    Object(Vec<(Cow<'a, str>, JsonValue<'a>)>),
}

impl JsonValue<'_> {
    /// What kind of value it is, for messages.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            JsonValue::Null => "null",
            JsonValue::Bool(_) => "a bool",
            JsonValue::Number(_) => "a number",
            JsonValue::Text(_) => "a text",
            JsonValue::List(_) => "a list",
            JsonValue::Object(_) => "an object",
        }
    }

    pub(super) fn into_owned(self) -> JsonValue<'static> {
        match self {
            JsonValue::Null => JsonValue::Null,
            JsonValue::Bool(value) => JsonValue::Bool(value),
            JsonValue::Number(text) => JsonValue::Number(Cow::Owned(text.into_owned())),
            JsonValue::Text(text) => JsonValue::Text(Cow::Owned(text.into_owned())),
            JsonValue::List(values) => {
                JsonValue::List(values.into_iter().map(JsonValue::into_owned).collect())
            }
            JsonValue::Object(members) => {
                let owned = |(name, value): (Cow<'_, str>, JsonValue<'_>)| {
                    (name.into_owned().into(), value.into_owned())
                };
                JsonValue::Object(members.into_iter().map(owned).collect())
            }
        }
    }

    /// Writes it on one line, without spaces.
    pub(super) fn write(&self, out: &mut String) {
        match self {
            JsonValue::Null => out.push_str("null"),
            JsonValue::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
            JsonValue::Number(number) => out.push_str(number),
            JsonValue::Text(text) => write_text(text, out),
            JsonValue::List(values) => {
                out.push('[');
                for (index, value) in values.iter().enumerate() {
                    separate(index, out);
                    value.write(out);
                }
                out.push(']');
            }
            JsonValue::Object(members) => {
                out.push('{');
                for (index, (name, value)) in members.iter().enumerate() {
                    separate(index, out);
                    write_text(name, out);
                    out.push(':');
                    value.write(out);
                }
                out.push('}');
            }
        }
    }
}

fn separate(index: usize, out: &mut String) {
    if index > 0 {
        out.push(',');
    }
}

fn write_text(text: &str, out: &mut String) {
    use std::fmt::Write;
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            control if u32::from(control) < 0x20 => {
                // Writing to a `String` does not fail.
                let _ = write!(out, "\\u{:04x}", u32::from(control));
            }
            other => out.push(other),
        }
    }
    out.push('"');
}
