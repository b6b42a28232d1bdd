//! [`JsonValue`] through serde, so that messages stand within other types that serde writes and reads.

use std::borrow::Cow;
use std::fmt;

use provost_wire::limits::NESTING_MAX;
use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{Error as _, SerializeMap, SerializeSeq};
use serde::{Serialize, Serializer};

use super::super::fields::{FieldElement, ReflectMessage};
use super::JsonFormat;
use super::number::float_text;
use super::value::JsonValue;

/// Values nest this deep: a message within a list or a map takes two levels.
const LEVELS_MAX: u32 = 2 * NESTING_MAX + 2;

/// Gives a message to serde as protobuf's JSON has it, with the default [`JsonFormat`]. Generated code calls it.
///
/// # Errors
/// If the message has no form in JSON, or the serializer fails.
pub fn serialize_message<T: ReflectMessage, S: Serializer>(
    message: &T,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let value = JsonFormat::new().value_of(message).map_err(S::Error::custom)?;
    value.serialize(serializer)
}

/// Makes a message of what serde reads, as protobuf's JSON has it, with the default [`JsonFormat`]. Generated code calls it.
///
/// # Errors
/// If what is read is not of this type, the send heap is full, or the deserializer fails.
pub fn deserialize_message<'de, T: ReflectMessage + FieldElement, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    let value = ValueSeed { level: 0 }.deserialize(deserializer)?;
    JsonFormat::new()
        .read_value(&value)
        .map_err(<D::Error as de::Error>::custom)
}

impl Serialize for JsonValue<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            JsonValue::Null => serializer.serialize_unit(),
            JsonValue::Bool(value) => serializer.serialize_bool(*value),
            JsonValue::Number(text) => serialize_number(text, serializer),
            JsonValue::Text(text) => serializer.serialize_str(text),
            JsonValue::List(values) => {
                let mut list = serializer.serialize_seq(Some(values.len()))?;
                values
                    .iter()
                    .try_for_each(|value| list.serialize_element(value))?;
                list.end()
            }
            JsonValue::Object(members) => {
                let mut map = serializer.serialize_map(Some(members.len()))?;
                for (name, value) in members {
                    map.serialize_entry(&**name, value)?;
                }
                map.end()
            }
        }
    }
}

fn serialize_number<S: Serializer>(text: &str, serializer: S) -> Result<S::Ok, S::Error> {
    // An integer has no zero with a sign.
    if text != "-0"
        && let Ok(number) = text.parse::<i64>()
    {
        return serializer.serialize_i64(number);
    }
    let number = text.parse::<f64>().map_err(S::Error::custom)?;
    serializer.serialize_f64(number)
}

/// Reads a value that stands this deep.
#[derive(Clone, Copy)]
struct ValueSeed {
    level: u32,
}

impl ValueSeed {
    fn inside<E: de::Error>(self) -> Result<ValueSeed, E> {
        if self.level >= LEVELS_MAX {
            return Err(E::custom(format_args!(
                "values nest deeper than {LEVELS_MAX} levels"
            )));
        }
        Ok(ValueSeed {
            level: self.level + 1,
        })
    }
}

impl<'de> DeserializeSeed<'de> for ValueSeed {
    type Value = JsonValue<'static>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<JsonValue<'static>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

fn number_of<E>(number: impl fmt::Display) -> Result<JsonValue<'static>, E> {
    Ok(JsonValue::Number(number.to_string().into()))
}

impl<'de> Visitor<'de> for ValueSeed {
    type Value = JsonValue<'static>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a message as protobuf's JSON has it")
    }

    fn visit_unit<E: de::Error>(self) -> Result<JsonValue<'static>, E> {
        Ok(JsonValue::Null)
    }

    fn visit_none<E: de::Error>(self) -> Result<JsonValue<'static>, E> {
        Ok(JsonValue::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<JsonValue<'static>, D::Error> {
        self.inside()?.deserialize(deserializer)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<JsonValue<'static>, E> {
        Ok(JsonValue::Bool(value))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<JsonValue<'static>, E> {
        number_of(value)
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<JsonValue<'static>, E> {
        number_of(value)
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<JsonValue<'static>, E> {
        Ok(match value {
            _ if value.is_nan() => JsonValue::Text("NaN".into()),
            f64::INFINITY => JsonValue::Text("Infinity".into()),
            f64::NEG_INFINITY => JsonValue::Text("-Infinity".into()),
            finite => JsonValue::Number(float_text(format!("{finite:?}")).into()),
        })
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<JsonValue<'static>, E> {
        Ok(JsonValue::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_string<E: de::Error>(self, text: String) -> Result<JsonValue<'static>, E> {
        Ok(JsonValue::Text(text.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<JsonValue<'static>, A::Error> {
        let inside = self.inside()?;
        let mut values = Vec::new();
        while let Some(value) = elements.next_element_seed(inside)? {
            values.push(value);
        }
        Ok(JsonValue::List(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut pairs: A) -> Result<JsonValue<'static>, A::Error> {
        let inside = self.inside()?;
        let mut members = Vec::new();
        while let Some(name) = pairs.next_key_seed(inside)? {
            let name = match name {
                JsonValue::Text(text) | JsonValue::Number(text) => text,
                JsonValue::Bool(value) => value.to_string().into(),
                other => {
                    let message = format!("a name is expected, and this is {}", other.kind());
                    return Err(de::Error::custom(message));
                }
            };
            members.push((name, pairs.next_value_seed(inside)?));
        }
        Ok(JsonValue::Object(members))
    }
}
