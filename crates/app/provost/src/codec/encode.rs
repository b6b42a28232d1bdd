//! To protobuf's bytes, in two walks: the first notes the length of everything that is prefixed by one, in the order in
//! which the second writes it.

use provost_wire::limits::NESTING_MAX;

use super::error::EncodeError;
use super::fields::{
    FieldInfo, FieldKind, FieldRef, FieldShape, ListElements, MapPairs, ReflectMessage, ValueRef,
};
use super::protobuf::{WireType, pair_fields};

/// Appends a message to `out`.
pub(super) fn encode(message: &dyn ReflectMessage, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    let mut lengths = Vec::new();
    let bytes = LengthWalk {
        lengths: &mut lengths,
    }
    .message(message, 0)?;
    out.reserve(bytes);
    let mut lengths = lengths.into_iter();
    WriteWalk {
        out,
        lengths: &mut lengths,
    }
    .message(message);
    Ok(())
}

/// The first walk. Each function returns how many bytes what it is given takes.
struct LengthWalk<'l> {
    lengths: &'l mut Vec<usize>,
}

impl LengthWalk<'_> {
    fn message(&mut self, message: &dyn ReflectMessage, depth: u32) -> Result<usize, EncodeError> {
        if depth > NESTING_MAX {
            return Err(EncodeError::Nesting);
        }
        let mut bytes = 0;
        for field in message.info().fields {
            bytes += match message.field(field.number) {
                FieldRef::One(None) => 0,
                FieldRef::One(Some(value)) => self.record(field, value, depth)?,
                FieldRef::Many(elements) => self.elements(field, elements, depth)?,
                FieldRef::MapPairs(pairs) => self.pairs(field, pairs, depth)?,
            };
        }
        Ok(bytes)
    }

    fn record(&mut self, field: &FieldInfo, value: ValueRef<'_>, depth: u32) -> Result<usize, EncodeError> {
        let tag = varint_bytes(WireType::of(field.kind).tag(field.number));
        let content = match value {
            ValueRef::Message(message) => self.prefixed(|this| this.message(message, depth + 1))?,
            scalar => scalar_bytes(field.kind, scalar),
        };
        Ok(tag + content)
    }

    fn elements(
        &mut self,
        field: &FieldInfo,
        elements: &dyn ListElements,
        depth: u32,
    ) -> Result<usize, EncodeError> {
        if elements.count() == 0 {
            return Ok(0);
        }
        let mut values = (0..elements.count()).map(|index| elements.element(index));
        match field.shape {
            FieldShape::Packed => {
                let tag = varint_bytes(WireType::Len.tag(field.number));
                let content = || Ok(values.map(|value| scalar_bytes(field.kind, value)).sum());
                Ok(tag + self.prefixed(|_| content())?)
            }
            _ => values.try_fold(0, |bytes, value| Ok(bytes + self.record(field, value, depth)?)),
        }
    }

    fn pairs(&mut self, field: &FieldInfo, pairs: &dyn MapPairs, depth: u32) -> Result<usize, EncodeError> {
        let FieldShape::Map(key) = field.shape else {
            return Ok(0);
        };
        let [key_field, value_field] = pair_fields(field, key);
        let tag = varint_bytes(WireType::Len.tag(field.number));
        (0..pairs.count())
            .map(|index| pairs.pair(index))
            .try_fold(0, |bytes, (key, value)| {
                let pair = self.prefixed(|this| {
                    Ok(this.record(&key_field, key, depth)? + this.record(&value_field, value, depth)?)
                })?;
                Ok(bytes + tag + pair)
            })
    }

    /// What is prefixed by its length, with the prefix.
    fn prefixed(
        &mut self,
        content: impl FnOnce(&mut Self) -> Result<usize, EncodeError>,
    ) -> Result<usize, EncodeError> {
        let place = self.lengths.len();
        self.lengths.push(0);
        let bytes = content(self)?;
        self.lengths[place] = bytes;
        Ok(varint_bytes(bytes as u64) + bytes)
    }
}

/// The second walk, which takes the same ways as the first.
struct WriteWalk<'o, 'l> {
    out: &'o mut Vec<u8>,
    lengths: &'l mut std::vec::IntoIter<usize>,
}

impl WriteWalk<'_, '_> {
    fn message(&mut self, message: &dyn ReflectMessage) {
        for field in message.info().fields {
            match message.field(field.number) {
                FieldRef::One(None) => {}
                FieldRef::One(Some(value)) => self.record(field, value),
                FieldRef::Many(elements) => self.elements(field, elements),
                FieldRef::MapPairs(pairs) => self.pairs(field, pairs),
            }
        }
    }

    fn record(&mut self, field: &FieldInfo, value: ValueRef<'_>) {
        put_varint(self.out, WireType::of(field.kind).tag(field.number));
        match value {
            ValueRef::Message(message) => {
                self.length();
                self.message(message);
            }
            scalar => put_scalar(self.out, field.kind, scalar),
        }
    }

    fn elements(&mut self, field: &FieldInfo, elements: &dyn ListElements) {
        if elements.count() == 0 {
            return;
        }
        let values = (0..elements.count()).map(|index| elements.element(index));
        match field.shape {
            FieldShape::Packed => {
                put_varint(self.out, WireType::Len.tag(field.number));
                self.length();
                values.for_each(|value| put_scalar(self.out, field.kind, value));
            }
            _ => values.for_each(|value| self.record(field, value)),
        }
    }

    fn pairs(&mut self, field: &FieldInfo, pairs: &dyn MapPairs) {
        let FieldShape::Map(key) = field.shape else { return };
        let [key_field, value_field] = pair_fields(field, key);
        for index in 0..pairs.count() {
            let (key, value) = pairs.pair(index);
            put_varint(self.out, WireType::Len.tag(field.number));
            self.length();
            self.record(&key_field, key);
            self.record(&value_field, value);
        }
    }

    /// The next length that was noted.
    fn length(&mut self) {
        let bytes = self.lengths.next().unwrap_or_default();
        put_varint(self.out, bytes as u64);
    }
}

fn varint_bytes(value: u64) -> usize {
    (70 - (value | 1).leading_zeros() as usize) / 7
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// How many bytes the value of a record takes that is no message, with its length if it has one.
fn scalar_bytes(kind: FieldKind, value: ValueRef<'_>) -> usize {
    match value {
        ValueRef::Text(text) => varint_bytes(text.len() as u64) + text.len(),
        ValueRef::Bytes(bytes) => varint_bytes(bytes.len() as u64) + bytes.len(),
        number => match WireType::of(kind) {
            WireType::Fixed32 => 4,
            WireType::Fixed64 => 8,
            _ => varint_bytes(varint_of(kind, number)),
        },
    }
}

fn put_scalar(out: &mut Vec<u8>, kind: FieldKind, value: ValueRef<'_>) {
    match value {
        ValueRef::Text(text) => put_prefixed(out, text.as_bytes()),
        ValueRef::Bytes(bytes) => put_prefixed(out, bytes),
        ValueRef::F32(value) => out.extend_from_slice(&value.to_le_bytes()),
        ValueRef::F64(value) => out.extend_from_slice(&value.to_le_bytes()),
        number => match WireType::of(kind) {
            WireType::Fixed32 => out.extend_from_slice(&(varint_of(kind, number) as u32).to_le_bytes()),
            WireType::Fixed64 => out.extend_from_slice(&varint_of(kind, number).to_le_bytes()),
            _ => put_varint(out, varint_of(kind, number)),
        },
    }
}

fn put_prefixed(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// The number that stands for an integer, a bool or an enum.
fn varint_of(kind: FieldKind, value: ValueRef<'_>) -> u64 {
    match (kind, value) {
        (FieldKind::Sint32, ValueRef::I32(value)) => u64::from((value << 1 ^ value >> 31) as u32),
        (FieldKind::Sint64, ValueRef::I64(value)) => (value << 1 ^ value >> 63) as u64,
        (_, ValueRef::Bool(value)) => u64::from(value),
        (_, ValueRef::I32(value)) => i64::from(value) as u64,
        (_, ValueRef::U32(value)) => u64::from(value),
        (_, ValueRef::I64(value)) => value as u64,
        (_, ValueRef::U64(value)) => value,
        _ => 0,
    }
}
