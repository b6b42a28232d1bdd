//! What both directions know of protobuf's encoding.

use provost_schema::Type;

/// How the value of a record is delimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum WireType {
    Varint = 0,
    Fixed64 = 1,
    Len = 2,
    GroupStart = 3,
    GroupEnd = 4,
    Fixed32 = 5,
}

impl WireType {
    pub(crate) fn from_tag(tag: u32) -> Option<WireType> {
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

    /// How a single value of a type is delimited.
    pub(crate) fn of(ty: Type) -> WireType {
        match ty {
            Type::Bool | Type::Enum(_) => WireType::Varint,
            Type::Int32 | Type::Sint32 | Type::Uint32 | Type::Int64 | Type::Sint64 | Type::Uint64 => {
                WireType::Varint
            }
            Type::Fixed32 | Type::Sfixed32 | Type::Float => WireType::Fixed32,
            Type::Fixed64 | Type::Sfixed64 | Type::Double => WireType::Fixed64,
            Type::String | Type::Bytes | Type::Message(_) => WireType::Len,
        }
    }

    pub(crate) fn tag(self, number: u32) -> u32 {
        number << 3 | self as u32
    }
}

/// The varint of a native value, given its bits (those of a 32-bit value in the low half).
#[inline]
pub(crate) fn to_varint(ty: Type, bits: u64) -> u64 {
    let word = bits as u32 as i32;
    match ty {
        Type::Int32 | Type::Enum(_) => i64::from(word) as u64,
        Type::Sint32 => u64::from((word << 1 ^ word >> 31) as u32),
        Type::Sint64 => ((bits as i64) << 1 ^ (bits as i64) >> 63) as u64,
        _ => bits,
    }
}

/// The bits of the native value of a varint or of fixed bytes (those of a 32-bit value in the low half, sign-extended
/// if it is signed).
#[inline]
pub(crate) fn native_bits(ty: Type, raw: u64) -> u64 {
    let word = raw as u32;
    match ty {
        Type::Bool => u64::from(raw != 0),
        Type::Int32 | Type::Sfixed32 | Type::Enum(_) => word as i32 as u64,
        Type::Uint32 => u64::from(word),
        Type::Sint32 => ((word >> 1) as i32 ^ -((word & 1) as i32)) as u64,
        Type::Sint64 => raw >> 1 ^ (raw & 1).wrapping_neg(),
        _ => raw,
    }
}
