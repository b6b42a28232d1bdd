//! Random messages of a type.

use std::collections::HashMap;

use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, Value};

use super::entropy::Entropy;

const DEPTH_MAX: usize = 6;
const ELEMENTS_MAX: usize = 5;
/// Lengths around those at which a string is gathered in place.
const LARGE_BYTES: [usize; 4] = [4095, 4096, 4097, 9000];

pub(crate) fn sample(entropy: &mut Entropy<'_>, of: &MessageDescriptor) -> DynamicMessage {
    message(entropy, of, 0)
}

fn message(entropy: &mut Entropy<'_>, of: &MessageDescriptor, depth: usize) -> DynamicMessage {
    let mut message = DynamicMessage::new(of.clone());
    for field in of.fields() {
        // Once the bytes are spent nothing more is set, so that messages end.
        if entropy.is_spent() || entropy.chance(3) {
            continue;
        }
        if let Some(value) = field_value(entropy, &field, depth) {
            message.set_field(&field, value);
        }
    }
    message
}

fn field_value(entropy: &mut Entropy<'_>, field: &FieldDescriptor, depth: usize) -> Option<Value> {
    let count = entropy.below(ELEMENTS_MAX + 1);
    if field.is_map() {
        let Kind::Message(entry) = field.kind() else {
            return None;
        };
        let (key, value) = (entry.map_entry_key_field(), entry.map_entry_value_field());
        let pairs: HashMap<MapKey, Value> = (0..count)
            .filter_map(|_| {
                let key = single(entropy, &key.kind(), depth)?;
                Some((key.into_map_key()?, single(entropy, &value.kind(), depth)?))
            })
            .collect();
        return Some(Value::Map(pairs));
    }
    if field.is_list() {
        return Some(Value::List(
            (0..count)
                .filter_map(|_| single(entropy, &field.kind(), depth))
                .collect(),
        ));
    }
    single(entropy, &field.kind(), depth)
}

trait IntoMapKey {
    fn into_map_key(self) -> Option<MapKey>;
}

impl IntoMapKey for Value {
    fn into_map_key(self) -> Option<MapKey> {
        Some(match self {
            Value::Bool(key) => MapKey::Bool(key),
            Value::I32(key) => MapKey::I32(key),
            Value::I64(key) => MapKey::I64(key),
            Value::U32(key) => MapKey::U32(key),
            Value::U64(key) => MapKey::U64(key),
            Value::String(key) => MapKey::String(key),
            _ => return None,
        })
    }
}

fn single(entropy: &mut Entropy<'_>, kind: &Kind, depth: usize) -> Option<Value> {
    Some(match kind {
        Kind::Double => Value::F64(finite(f64::from_bits(entropy.number()))),
        Kind::Float => Value::F32(finite(f64::from(f32::from_bits(entropy.number() as u32))) as f32),
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => Value::I32(entropy.number() as i32),
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => Value::I64(entropy.number() as i64),
        Kind::Uint32 | Kind::Fixed32 => Value::U32(entropy.number() as u32),
        Kind::Uint64 | Kind::Fixed64 => Value::U64(entropy.number()),
        Kind::Bool => Value::Bool(entropy.chance(2)),
        Kind::String => Value::String(text(entropy)),
        Kind::Bytes => Value::Bytes(bytes(entropy).into()),
        Kind::Enum(_) => Value::EnumNumber(entropy.number() as i32),
        Kind::Message(_) if depth >= DEPTH_MAX => return None,
        Kind::Message(of) => Value::Message(message(entropy, of, depth + 1)),
    })
}

/// A number that equals itself.
fn finite(number: f64) -> f64 {
    if number.is_finite() { number } else { 1.5 }
}

fn text(entropy: &mut Entropy<'_>) -> String {
    const LETTERS: [char; 6] = ['a', 'b', 'ß', '語', '🦀', '\0'];
    if entropy.chance(16) {
        return "x".repeat(LARGE_BYTES[entropy.below(LARGE_BYTES.len())]);
    }
    (0..entropy.below(12))
        .map(|_| LETTERS[entropy.below(LETTERS.len())])
        .collect()
}

fn bytes(entropy: &mut Entropy<'_>) -> Vec<u8> {
    if entropy.chance(16) {
        return vec![entropy.byte(); LARGE_BYTES[entropy.below(LARGE_BYTES.len())]];
    }
    (0..entropy.below(20)).map(|_| entropy.byte()).collect()
}
