//! What both directions know of protobuf's encoding.

use super::fields::{FieldInfo, FieldKind, FieldShape};

/// How the value of a record is delimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum WireType {
    Varint = 0,
    Fixed64 = 1,
    Len = 2,
    GroupStart = 3,
    GroupEnd = 4,
    Fixed32 = 5,
}

impl WireType {
    pub(super) fn from_tag(tag: u64) -> Option<WireType> {
        Some(match tag & 7 {
            0 => WireType::Varint,
            1 => WireType::Fixed64,
            2 => WireType::Len,
            3 => WireType::GroupStart,
            4 => WireType::GroupEnd,
            5 => WireType::Fixed32,
            _ => return None,
        })
    }

    /// How a single value is delimited.
    pub(super) fn of(kind: FieldKind) -> WireType {
        match kind {
            FieldKind::Fixed32 | FieldKind::Sfixed32 | FieldKind::Float => WireType::Fixed32,
            FieldKind::Fixed64 | FieldKind::Sfixed64 | FieldKind::Double => WireType::Fixed64,
            FieldKind::String | FieldKind::Bytes | FieldKind::Message(_) => WireType::Len,
            _ => WireType::Varint,
        }
    }

    pub(super) fn tag(self, number: u32) -> u64 {
        u64::from(number << 3 | self as u32)
    }
}

/// A pair of a map as protobuf has it: a message of a key and a value.
pub(super) fn pair_fields(field: &FieldInfo, key: FieldKind) -> [FieldInfo; 2] {
    let part = |number, name, kind| FieldInfo {
        number,
        name,
        json_name: name,
        kind,
        shape: FieldShape::Optional,
    };
    [part(1, "key", key), part(2, "value", field.kind)]
}
