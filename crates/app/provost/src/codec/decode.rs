//! From protobuf's bytes. What they say is added to a message, as protobuf merges: the last of several values counts,
//! messages grow together, lists get longer. A field that the type does not have, or has with another type, is passed
//! over.

use provost_wire::limits::NESTING_MAX;

use super::error::{DecodeError, DecodeErrorKind};
use super::fields::{
    FieldElement, FieldInfo, FieldKind, FieldMut, FieldRef, FieldShape, ListElements, MapPairs,
    ReflectMessage, ValueRef,
};
use super::protobuf::{WireType, pair_fields};

/// Adds what `bytes` say to a message.
pub(super) fn merge(message: &mut dyn ReflectMessage, bytes: &[u8]) -> Result<(), DecodeError> {
    let mut input = ProtobufInput {
        bytes,
        at: 0,
        end: bytes.len(),
        has_pairs: false,
    };
    let merged = input.message(message, 0);
    // Once for all: a message that comes in many pieces is not sorted after each.
    let settled = if input.has_pairs {
        merged.and_then(|()| settle(message))
    } else {
        merged
    };
    settled.map_err(|kind| DecodeError { kind, at: input.at })
}

/// Bytes of the longest tag: 32 bits. A longer one is refused whatever it says, as protobuf's conformance tests want it.
const TAG_BYTES_MAX: usize = 5;

type DecodeOutcome<T> = Result<T, DecodeErrorKind>;

/// What is left of a message, and where it is in the whole.
struct ProtobufInput<'a> {
    bytes: &'a [u8],
    at: usize,
    end: usize,
    /// Whether there are maps whose pairs have to be sorted.
    has_pairs: bool,
}

/// What stands before a value.
struct RecordTag {
    number: u32,
    wire: WireType,
}

impl<'a> ProtobufInput<'a> {
    fn message(&mut self, message: &mut dyn ReflectMessage, depth: u32) -> DecodeOutcome<()> {
        if depth > NESTING_MAX {
            return Err(DecodeErrorKind::Nesting);
        }
        let info = message.info();
        while self.at < self.end {
            let tag = self.tag()?;
            match info.numbered(tag.number) {
                Some(field) => self.field(message, field, &tag, depth)?,
                None => self.skip(&tag, depth)?,
            }
        }
        Ok(())
    }

    fn field(
        &mut self,
        message: &mut dyn ReflectMessage,
        field: &FieldInfo,
        tag: &RecordTag,
        depth: u32,
    ) -> DecodeOutcome<()> {
        let single = WireType::of(field.kind);
        let is_list = matches!(field.shape, FieldShape::Repeated | FieldShape::Packed);
        let is_map = matches!(field.shape, FieldShape::Map(_));
        let is_expected = if is_map {
            tag.wire == WireType::Len
        } else {
            tag.wire == single || is_list && tag.wire == WireType::Len
        };
        if !is_expected {
            return self.skip(tag, depth);
        }
        match message.open(field.number)? {
            FieldMut::One(element) => self.value(element, field.kind, depth),
            FieldMut::Many(elements) if tag.wire == single => {
                self.value(elements.append()?, field.kind, depth)
            }
            FieldMut::Many(elements) => self.packed(elements, field.kind, depth),
            FieldMut::MapPairs(pairs) => self.pair(pairs, field, depth),
            FieldMut::Unknown => self.skip(tag, depth),
        }
    }

    fn packed(&mut self, elements: &mut dyn ListElements, kind: FieldKind, depth: u32) -> DecodeOutcome<()> {
        self.prefixed(|input| {
            while input.at < input.end {
                input.value(elements.append()?, kind, depth)?;
            }
            Ok(())
        })
    }

    fn pair(&mut self, pairs: &mut dyn MapPairs, field: &FieldInfo, depth: u32) -> DecodeOutcome<()> {
        let FieldShape::Map(key_kind) = field.shape else {
            return Ok(());
        };
        self.has_pairs = true;
        let parts = pair_fields(field, key_kind);
        let (key, value) = pairs.append()?;
        self.prefixed(|input| {
            while input.at < input.end {
                let tag = input.tag()?;
                let part = parts.iter().find(|part| part.number == tag.number);
                match part.filter(|part| tag.wire == WireType::of(part.kind)) {
                    Some(part) if part.number == 1 => input.value(key, part.kind, depth)?,
                    Some(part) => input.value(value, part.kind, depth)?,
                    None => input.skip(&tag, depth)?,
                }
            }
            Ok(())
        })
    }

    fn value(&mut self, element: &mut dyn FieldElement, kind: FieldKind, depth: u32) -> DecodeOutcome<()> {
        let value = match kind {
            FieldKind::Message(_) => {
                return self.prefixed(|input| match element.message() {
                    Some(message) => input.message(message, depth + 1),
                    None => Ok(()),
                });
            }
            FieldKind::String => {
                let at = self.at;
                let text = std::str::from_utf8(self.delimited()?);
                ValueRef::Text(text.map_err(|_| {
                    self.at = at;
                    DecodeErrorKind::Utf8
                })?)
            }
            FieldKind::Bytes => ValueRef::Bytes(self.delimited()?),
            scalar => self.scalar(scalar)?,
        };
        Ok(element.set(value)?)
    }

    fn scalar(&mut self, kind: FieldKind) -> DecodeOutcome<ValueRef<'static>> {
        let raw = match WireType::of(kind) {
            WireType::Fixed32 => u64::from(u32::from_le_bytes(self.fixed()?)),
            WireType::Fixed64 => u64::from_le_bytes(self.fixed()?),
            _ => self.varint()?,
        };
        let word = raw as u32;
        Ok(match kind {
            FieldKind::Bool => ValueRef::Bool(raw != 0),
            FieldKind::Uint32 | FieldKind::Fixed32 => ValueRef::U32(word),
            FieldKind::Sint32 => ValueRef::I32((word >> 1) as i32 ^ -((word & 1) as i32)),
            FieldKind::Int64 | FieldKind::Sfixed64 => ValueRef::I64(raw as i64),
            FieldKind::Sint64 => ValueRef::I64((raw >> 1) as i64 ^ -((raw & 1) as i64)),
            FieldKind::Uint64 | FieldKind::Fixed64 => ValueRef::U64(raw),
            FieldKind::Float => ValueRef::F32(f32::from_bits(word)),
            FieldKind::Double => ValueRef::F64(f64::from_bits(raw)),
            _ => ValueRef::I32(word as i32),
        })
    }

    fn tag(&mut self) -> DecodeOutcome<RecordTag> {
        let at = self.at;
        let tag = self.varint()?;
        let is_short = self.at - at <= TAG_BYTES_MAX;
        let number = u32::try_from(tag)
            .ok()
            .map(|tag| tag >> 3)
            .filter(|number| *number != 0 && is_short);
        let parsed = number.zip(WireType::from_tag(tag));
        let (number, wire) = parsed.ok_or_else(|| {
            self.at = at;
            DecodeErrorKind::Tag
        })?;
        Ok(RecordTag { number, wire })
    }

    /// Passes over the value of a field that is not wanted; a group with all that is in it.
    fn skip(&mut self, tag: &RecordTag, depth: u32) -> DecodeOutcome<()> {
        match tag.wire {
            WireType::Varint => self.varint().map(drop),
            WireType::Fixed32 => self.fixed::<4>().map(drop),
            WireType::Fixed64 => self.fixed::<8>().map(drop),
            WireType::Len => self.delimited().map(drop),
            WireType::GroupStart => self.skip_group(tag.number, depth + 1),
            WireType::GroupEnd => Err(DecodeErrorKind::Group),
        }
    }

    fn skip_group(&mut self, number: u32, depth: u32) -> DecodeOutcome<()> {
        if depth > NESTING_MAX {
            return Err(DecodeErrorKind::Nesting);
        }
        loop {
            let tag = self.tag()?;
            match tag.wire {
                WireType::GroupEnd if tag.number == number => return Ok(()),
                _ => self.skip(&tag, depth)?,
            }
        }
    }

    /// Reads what is prefixed by its length, which must be read to its end.
    fn prefixed(&mut self, read: impl FnOnce(&mut Self) -> DecodeOutcome<()>) -> DecodeOutcome<()> {
        let content = self.length()?;
        let outer = std::mem::replace(&mut self.end, content);
        read(self)?;
        self.end = outer;
        Ok(())
    }

    fn delimited(&mut self) -> DecodeOutcome<&'a [u8]> {
        let end = self.length()?;
        let bytes = &self.bytes[self.at..end];
        self.at = end;
        Ok(bytes)
    }

    /// Reads a length; where what has it ends.
    fn length(&mut self) -> DecodeOutcome<usize> {
        let bytes = self.varint()?;
        let left = self.end - self.at;
        let bytes = usize::try_from(bytes).ok().filter(|bytes| *bytes <= left);
        bytes
            .map(|bytes| self.at + bytes)
            .ok_or(DecodeErrorKind::Truncated)
    }

    fn fixed<const N: usize>(&mut self) -> DecodeOutcome<[u8; N]> {
        let bytes = self.bytes[self.at..self.end]
            .first_chunk()
            .ok_or(DecodeErrorKind::Truncated)?;
        self.at += N;
        Ok(*bytes)
    }

    fn varint(&mut self) -> DecodeOutcome<u64> {
        let mut value = 0;
        for (index, byte) in self.bytes[self.at..self.end].iter().take(10).enumerate() {
            value |= u64::from(byte & 0x7f) << (7 * index);
            if byte & 0x80 == 0 {
                // The tenth byte has one bit of 64.
                if index == 9 && *byte > 1 {
                    return Err(DecodeErrorKind::Varint);
                }
                self.at += index + 1;
                return Ok(value);
            }
        }
        match self.end - self.at {
            ..10 => Err(DecodeErrorKind::Truncated),
            _ => Err(DecodeErrorKind::Varint),
        }
    }
}

/// Brings the maps of a message, and of all messages in it, in order. (It nests no deeper than what was decoded.)
pub(super) fn settle(message: &mut dyn ReflectMessage) -> DecodeOutcome<()> {
    for field in message.info().fields {
        let is_absent = matches!(message.field(field.number), FieldRef::One(None));
        let has_messages = matches!(field.kind, FieldKind::Message(_));
        let is_map = matches!(field.shape, FieldShape::Map(_));
        if is_absent || !has_messages && !is_map {
            continue;
        }
        match message.open(field.number)? {
            FieldMut::One(element) => settle_element(element)?,
            FieldMut::Many(elements) => {
                (0..elements.count()).try_for_each(|index| settle_element(elements.element_mut(index)))?;
            }
            FieldMut::MapPairs(pairs) => {
                pairs.settle();
                let count = if has_messages { pairs.count() } else { 0 };
                (0..count).try_for_each(|index| settle_element(pairs.value_mut(index)))?;
            }
            FieldMut::Unknown => {}
        }
    }
    Ok(())
}

fn settle_element(element: &mut dyn FieldElement) -> DecodeOutcome<()> {
    element.message().map_or(Ok(()), settle)
}
