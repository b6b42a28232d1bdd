//! A native message as JSON: protobuf's JSON form, with the names as they are in the schema's source.

use provost_schema::{Cardinality, EnumId, Field, MessageId, Pair, Schema, Slot, Type};
use serde_json::{Map, Value};

use crate::tap::redaction::{CompiledRedaction, HiddenFields};
use crate::tap::repeated::RedactedValues;

/// What stands where something is hidden.
pub(crate) const REDACTED: &str = "[redacted]";
/// Messages in messages, at most (as in the native layout).
const NESTING_MAX: usize = 101;

/// A message that was checked when it was gathered or received. What makes no sense all the same is left out.
pub(crate) struct Printer<'a> {
    pub(crate) schema: &'a Schema,
    pub(crate) redaction: &'a CompiledRedaction,
    /// Where what is hidden is noted.
    pub(crate) redacted: &'a RedactedValues,
    pub(crate) bytes: &'a [u8],
    /// What references count from.
    pub(crate) window_at: u32,
}

impl<'a> Printer<'a> {
    /// The whole message; `None` if it is none of this type.
    pub(crate) fn print(&self, message: MessageId) -> Option<Value> {
        self.message(message, 0, &HiddenFields::of_root(self.redaction, message), 0)
    }

    fn message(&self, id: MessageId, base: usize, hidden: &HiddenFields<'a>, depth: usize) -> Option<Value> {
        if depth >= NESTING_MAX {
            return None;
        }
        let message = self.schema.message(id);
        let mut fields = Vec::new();
        for slot in &message.slots {
            match slot {
                Slot::Field(field) => fields.push(field),
                Slot::Oneof(oneof) => {
                    let tag = self.word(base + oneof.offset as usize)?;
                    fields.extend(oneof.members.iter().find(|member| member.number == tag));
                }
            }
        }
        fields.sort_by_key(|field| field.number);
        let mut out = Map::new();
        for field in fields {
            if let Some(value) = self.field(field, base, hidden, depth)? {
                out.insert(field.name.clone(), value);
            }
        }
        Some(Value::Object(out))
    }

    /// `Some(None)`: it is not set, or has its default without presence.
    #[allow(clippy::option_option, reason = "the outer one is for what makes no sense")]
    fn field(
        &self,
        field: &Field,
        base: usize,
        hidden: &HiddenFields<'a>,
        depth: usize,
    ) -> Option<Option<Value>> {
        let at = base + field.offset as usize;
        let within = hidden.of_field(self.redaction, field);
        let is_set = match &field.cardinality {
            Cardinality::Implicit => !self.is_default(field.ty, at)?,
            Cardinality::Optional { .. } => self.word(at)? != 0,
            Cardinality::Repeated { .. } | Cardinality::Map(_) => self.word(at + 4)? != 0,
            Cardinality::OneofMember => true,
        };
        if !is_set {
            return Some(None);
        }
        let Some(within) = within else {
            let whole = self.whole(field, base, depth);
            whole
                .iter()
                .for_each(|value| self.redacted.note(&field.name, value));
            return Some(Some(REDACTED.into()));
        };
        self.value(field, base, &within, depth).map(Some)
    }

    /// A field as it is, with what is hidden.
    fn whole(&self, field: &Field, base: usize, depth: usize) -> Option<Value> {
        let (nothing, unused) = (CompiledRedaction::default(), RedactedValues::default());
        let printer = Printer {
            schema: self.schema,
            redaction: &nothing,
            redacted: &unused,
            bytes: self.bytes,
            window_at: self.window_at,
        };
        printer.value(field, base, &HiddenFields::default(), depth)
    }

    /// The value of a field that is set.
    fn value(&self, field: &Field, base: usize, within: &HiddenFields<'a>, depth: usize) -> Option<Value> {
        let at = base + field.offset as usize;
        match &field.cardinality {
            Cardinality::Implicit | Cardinality::OneofMember => self.member(field.ty, at, within, depth),
            Cardinality::Optional { value_offset } => {
                self.member(field.ty, base + *value_offset as usize, within, depth)
            }
            Cardinality::Repeated { .. } => self.list(field.ty, at, within, depth),
            Cardinality::Map(pair) => self.map(field.ty, pair, at, within, depth),
        }
    }

    fn list(&self, ty: Type, at: usize, hidden: &HiddenFields<'a>, depth: usize) -> Option<Value> {
        let (start, count) = self.block(at)?;
        let size = self.element_bytes(ty);
        let element = |n: usize| self.element(ty, start + n * size, hidden, depth);
        (0..count)
            .map(element)
            .collect::<Option<Vec<_>>>()
            .map(Value::Array)
    }

    fn map(
        &self,
        ty: Type,
        pair: &Pair,
        at: usize,
        hidden: &HiddenFields<'a>,
        depth: usize,
    ) -> Option<Value> {
        let (start, count) = self.block(at)?;
        let mut out = Map::new();
        for n in 0..count {
            let place = start + n * pair.size as usize;
            let key = match self.element(pair.key, place, hidden, depth)? {
                Value::String(text) => text,
                other => other.to_string(),
            };
            let value = self.element(ty, place + pair.value_offset as usize, hidden, depth)?;
            out.insert(key, value);
        }
        Some(Value::Object(out))
    }

    /// A value of a field: a message is elsewhere.
    fn member(&self, ty: Type, at: usize, hidden: &HiddenFields<'a>, depth: usize) -> Option<Value> {
        match ty {
            Type::Message(id) => {
                let place = self.place(self.word(at)?)?;
                self.message(id, place, hidden, depth + 1)
            }
            _ => self.scalar(ty, at),
        }
    }

    /// A value of a list or map: a message is there itself.
    fn element(&self, ty: Type, at: usize, hidden: &HiddenFields<'a>, depth: usize) -> Option<Value> {
        match ty {
            Type::Message(id) => self.message(id, at, hidden, depth + 1),
            _ => self.scalar(ty, at),
        }
    }

    fn scalar(&self, ty: Type, at: usize) -> Option<Value> {
        Some(match ty {
            Type::Bool => (*self.bytes.get(at)? != 0).into(),
            Type::Int32 | Type::Sint32 | Type::Sfixed32 => (self.word(at)? as i32).into(),
            Type::Uint32 | Type::Fixed32 => self.word(at)?.into(),
            // As texts, because many readers of JSON only have doubles.
            Type::Int64 | Type::Sint64 | Type::Sfixed64 => (self.long(at)? as i64).to_string().into(),
            Type::Uint64 | Type::Fixed64 => self.long(at)?.to_string().into(),
            Type::Float => float(f64::from(f32::from_bits(self.word(at)?))),
            Type::Double => float(f64::from_bits(self.long(at)?)),
            Type::Enum(id) => self.enum_value(id, self.word(at)? as i32),
            Type::String => String::from_utf8_lossy(self.run(at)?).into_owned().into(),
            Type::Bytes => shown_bytes(self.run(at)?, self.redaction.bytes).into(),
            Type::Message(_) => return None,
        })
    }

    fn enum_value(&self, id: EnumId, number: i32) -> Value {
        let values = &self.schema.enumeration(id).values;
        let named = values.iter().find(|value| value.number == number);
        named.map_or_else(|| number.into(), |value| value.name.as_str().into())
    }

    fn is_default(&self, ty: Type, at: usize) -> Option<bool> {
        Some(match ty {
            Type::String | Type::Bytes => self.word(at + 4)? == 0,
            Type::Bool => *self.bytes.get(at)? == 0,
            _ if self.element_bytes(ty) == 8 => self.long(at)? == 0,
            _ => self.word(at)? == 0,
        })
    }

    fn element_bytes(&self, ty: Type) -> usize {
        match ty {
            Type::Bool => 1,
            Type::Int32 | Type::Sint32 | Type::Uint32 | Type::Fixed32 | Type::Sfixed32 => 4,
            Type::Float | Type::Enum(_) => 4,
            Type::Int64 | Type::Sint64 | Type::Uint64 | Type::Fixed64 | Type::Sfixed64 | Type::Double => 8,
            Type::String | Type::Bytes => 8,
            Type::Message(id) => self.schema.message(id).size as usize,
        }
    }
}

// Reading.
impl<'a> Printer<'a> {
    fn word(&self, at: usize) -> Option<u32> {
        self.bytes
            .get(at..)?
            .first_chunk()
            .map(|word| u32::from_le_bytes(*word))
    }

    fn long(&self, at: usize) -> Option<u64> {
        self.bytes
            .get(at..)?
            .first_chunk()
            .map(|long| u64::from_le_bytes(*long))
    }

    fn place(&self, offset: u32) -> Option<usize> {
        (offset.checked_sub(self.window_at)? as usize).checked_mul(8)
    }

    /// Where the block of a list or map begins, and how many elements it has.
    fn block(&self, at: usize) -> Option<(usize, usize)> {
        let count = self.word(at + 4)? as usize;
        // Each element takes a byte at least.
        (count <= self.bytes.len()).then_some(())?;
        Some((self.place(self.word(at)?)?, count))
    }

    /// The bytes of a string or of bytes.
    fn run(&self, at: usize) -> Option<&'a [u8]> {
        let length = self.word(at + 4)? as usize;
        if length == 0 {
            return Some(&[]);
        }
        self.bytes.get(self.place(self.word(at)?)?..)?.get(..length)
    }
}

fn float(value: f64) -> Value {
    match serde_json::Number::from_f64(value) {
        Some(number) => Value::Number(number),
        None if value.is_nan() => "NaN".into(),
        None if value > 0.0 => "Infinity".into(),
        None => "-Infinity".into(),
    }
}

/// Bytes in base64, or by their length alone.
pub(crate) fn shown_bytes(bytes: &[u8], by_length: bool) -> String {
    if by_length {
        return match bytes.len() {
            1 => "[1 byte]".to_owned(),
            count => format!("[{count} bytes]"),
        };
    }
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or_default());
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for at in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * at) & 63) as usize];
            out.push(if at <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_base64_or_a_length() {
        let shown = |bytes: &[u8]| shown_bytes(bytes, false);
        assert_eq!(
            [shown(b""), shown(b"f"), shown(b"fo"), shown(b"foo")],
            ["", "Zg==", "Zm8=", "Zm9v"]
        );
        assert_eq!(shown(&[0xff, 0xef, 0xbe, 0xad]), "/+++rQ==");
        assert_eq!(shown_bytes(b"secret", true), "[6 bytes]");
    }
}
