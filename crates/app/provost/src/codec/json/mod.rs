//! Protobuf's JSON: a message becomes a [`JsonValue`] and that a text, and back.

mod number;
mod read;
#[cfg(feature = "serde")]
pub(crate) mod serde_value;
mod text;
mod time;
mod value;
mod well_known;
mod write;

use super::error::{EncodeError, JsonError, JsonPlace};
use super::fields::{FieldElement, ReflectMessage};
use crate::shared::HeapFull;
use value::JsonValue;

/// How messages are written as JSON and read from it. The default is protobuf's own: names in lowerCamelCase, names of
/// enums' values, nothing for what has its default, and unknown names are refused.
///
/// ```
/// use provost::JsonFormat;
/// use provost::well_known::{Any, StringValue};
///
/// let format = JsonFormat::new().any::<StringValue>();
/// let any = Any::pack(&StringValue { value: "x".into() })?;
/// let text = format.write(&any)?;
/// assert_eq!(text, r#"{"@type":"type.googleapis.com/google.protobuf.StringValue","value":"x"}"#);
/// assert_eq!(format.read::<Any>(&text)?, any);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct JsonFormat {
    has_proto_names: bool,
    has_defaults: bool,
    has_enum_numbers: bool,
    ignores_unknown: bool,
    types: Vec<AnyType>,
}

/// A type that an `Any` may hold.
#[derive(Clone, Copy, Debug)]
struct AnyType {
    full_name: &'static str,
    make: fn() -> Result<Box<dyn ReflectMessage>, HeapFull>,
}

impl JsonFormat {
    /// The default format.
    #[must_use]
    pub fn new() -> JsonFormat {
        JsonFormat::default()
    }

    /// Writes fields by their names in the `.proto` file. (Both names are read in any case.)
    #[must_use]
    pub fn proto_names(mut self) -> JsonFormat {
        self.has_proto_names = true;
        self
    }

    /// Writes fields without presence also when they have their default: zeros, empty texts, lists and maps.
    #[must_use]
    pub fn defaults(mut self) -> JsonFormat {
        self.has_defaults = true;
        self
    }

    /// Writes enums as numbers. (Numbers are read in any case.)
    #[must_use]
    pub fn enum_numbers(mut self) -> JsonFormat {
        self.has_enum_numbers = true;
        self
    }

    /// Passes over unknown fields, and values with unknown names of enums.
    #[must_use]
    pub fn ignore_unknown(mut self) -> JsonFormat {
        self.ignores_unknown = true;
        self
    }

    /// Knows a type that an `Any` may hold. Those that have a form of their own in JSON, such as `Timestamp`, are known.
    #[must_use]
    pub fn any<T: ReflectMessage + FieldElement>(mut self) -> JsonFormat {
        let make = || Ok(Box::new(T::unset()?) as Box<dyn ReflectMessage>);
        if let Ok(message) = make() {
            let full_name = message.info().full_name;
            self.types.push(AnyType { full_name, make });
        }
        self
    }

    /// The message as JSON, on one line.
    ///
    /// # Errors
    /// If the message nests too deep, or has a value without a form in JSON, such as a time past the year 9999.
    pub fn write<T: ReflectMessage>(&self, message: &T) -> Result<String, EncodeError> {
        let mut text = String::new();
        self.value_of(message)?.write(&mut text);
        Ok(text)
    }

    /// The message that a JSON text is.
    ///
    /// # Errors
    /// If it is no JSON, or not of this type, or the send heap is full.
    pub fn read<T: ReflectMessage + FieldElement>(&self, json: &str) -> Result<T, JsonError> {
        self.read_value(&text::parse(json)?)
    }

    pub(super) fn value_of<'m>(&self, message: &'m dyn ReflectMessage) -> Result<JsonValue<'m>, EncodeError> {
        write::JsonWriter { format: self }.message(message, 0)
    }

    pub(super) fn read_value<T: ReflectMessage + FieldElement>(
        &self,
        value: &JsonValue<'_>,
    ) -> Result<T, JsonError> {
        let mut message = T::unset().map_err(read::full)?;
        read::JsonReader { format: self }.message(value, &mut message, 0)?;
        Ok(message)
    }

    /// An empty message of the type that a URL names.
    fn message_of(&self, type_url: &str) -> Result<Box<dyn ReflectMessage>, String> {
        let name = type_url.rsplit_once('/').map(|(_, name)| name);
        let name =
            name.ok_or_else(|| format!("`{type_url}` is no URL of a type, such as type.googleapis.com/a.B"))?;
        let mut known = self.types.iter().chain(well_known::TYPES);
        let found = known
            .find(|known| known.full_name == name)
            .ok_or_else(|| format!("the type `{name}` is not known: tell the JsonFormat of it, by `any`"))?;
        (found.make)().map_err(|full| full.to_string())
    }
}

impl JsonError {
    fn new(message: impl Into<String>) -> JsonError {
        JsonError {
            place: JsonPlace::Field(String::new()),
            message: message.into(),
        }
    }

    /// The same, within the value of this name or index.
    fn within(mut self, step: impl std::fmt::Display) -> JsonError {
        if let JsonPlace::Field(path) = &mut self.place {
            *path = path_within(step, path);
        }
        self
    }
}

/// A path that begins with a step.
fn path_within(step: impl std::fmt::Display, path: &str) -> String {
    if path.starts_with('[') || path.is_empty() {
        format!("{step}{path}")
    } else {
        format!("{step}.{path}")
    }
}
