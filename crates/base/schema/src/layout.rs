//! The native layout of a message: a C struct whose members stand by descending alignment, then ascending number.

use crate::{Cardinality, Field, Message, Oneof, Pair, Slot, Type};

/// Size and alignment of a value, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) size: u32,
    pub(crate) align: u32,
}

/// A presence word, a tag, or an offset alone.
const WORD: Extent = Extent { size: 4, align: 4 };
/// An offset and a length.
const REFERENCE: Extent = Extent { size: 8, align: 4 };

pub(crate) fn round_up(size: u32, align: u32) -> u32 {
    size.div_ceil(align) * align
}

/// The extent of a value of this type as a member of a struct: a message lies elsewhere.
fn member_extent(ty: Type) -> Extent {
    match ty {
        Type::Bool => Extent { size: 1, align: 1 },
        Type::Int32 | Type::Sint32 | Type::Uint32 | Type::Fixed32 | Type::Sfixed32 | Type::Float => WORD,
        Type::Enum(_) | Type::Message(_) => WORD,
        Type::Int64 | Type::Sint64 | Type::Uint64 | Type::Fixed64 | Type::Sfixed64 | Type::Double => {
            Extent { size: 8, align: 8 }
        }
        Type::String | Type::Bytes => REFERENCE,
    }
}

/// A word, then a value: an optional field or a oneof. Returns the value's place and the whole's extent.
fn after_word(value: Extent) -> (u32, Extent) {
    let align = value.align.max(WORD.align);
    let value_at = round_up(WORD.size, value.align);
    (
        value_at,
        Extent {
            size: round_up(value_at + value.size, align),
            align,
        },
    )
}

/// The extent of a union of the members' values.
fn union_extent(members: &[Field]) -> Extent {
    let extents = || members.iter().map(|member| member_extent(member.ty));
    let align = extents().map(|extent| extent.align).max().unwrap_or(1);
    Extent {
        size: round_up(extents().map(|extent| extent.size).max().unwrap_or(0), align),
        align,
    }
}

fn slot_extent(slot: &Slot) -> Extent {
    match slot {
        Slot::Oneof(oneof) => after_word(union_extent(&oneof.members)).1,
        Slot::Field(field) => match field.cardinality {
            Cardinality::Implicit | Cardinality::OneofMember => member_extent(field.ty),
            Cardinality::Optional { .. } => after_word(member_extent(field.ty)).1,
            Cardinality::Repeated { .. } | Cardinality::Map(_) => REFERENCE,
        },
    }
}

fn lowest_number(slot: &Slot) -> u32 {
    match slot {
        Slot::Field(field) => field.number,
        Slot::Oneof(oneof) => oneof.members.first().map_or(0, |member| member.number),
    }
}

/// Puts the slots in layout order and sets every place but those in map pairs. `members` of oneofs must be sorted.
pub(crate) fn lay_out(message: &mut Message) {
    message
        .slots
        .sort_by_key(|slot| (std::cmp::Reverse(slot_extent(slot).align), lowest_number(slot)));
    let (mut end, mut align) = (0, 1);
    for slot in &mut message.slots {
        let extent = slot_extent(slot);
        let at = round_up(end, extent.align);
        place(slot, at);
        end = at + extent.size;
        align = align.max(extent.align);
    }
    // An empty message still has an address of its own: one reserved byte.
    message.size = round_up(end.max(1), align);
    message.align = align;
}

fn place(slot: &mut Slot, at: u32) {
    match slot {
        Slot::Field(field) => {
            field.offset = at;
            if let Cardinality::Optional { value_offset } = &mut field.cardinality {
                *value_offset = at + after_word(member_extent(field.ty)).0;
            }
        }
        Slot::Oneof(oneof) => place_oneof(oneof, at),
    }
}

fn place_oneof(oneof: &mut Oneof, at: u32) {
    let (value_at, extent) = after_word(union_extent(&oneof.members));
    oneof.offset = at;
    oneof.value_offset = at + value_at;
    oneof.size = extent.size;
    oneof.align = extent.align;
    for member in &mut oneof.members {
        member.offset = oneof.value_offset;
    }
}

/// Lays the pairs of all maps out, once the size of every message is known.
pub(crate) fn lay_out_pairs(messages: &mut [Message]) {
    let extents: Vec<Extent> = messages
        .iter()
        .map(|message| Extent {
            size: message.size,
            align: message.align,
        })
        .collect();
    for slot in messages.iter_mut().flat_map(|message| &mut message.slots) {
        if let Slot::Field(Field {
            cardinality: Cardinality::Map(pair),
            ty,
            ..
        }) = slot
        {
            let value = match *ty {
                Type::Message(id) => extents[id.0 as usize],
                ty => member_extent(ty),
            };
            lay_out_pair(pair, value);
        }
    }
}

fn lay_out_pair(pair: &mut Pair, value: Extent) {
    let key = member_extent(pair.key);
    pair.align = key.align.max(value.align);
    pair.value_offset = round_up(key.size, value.align);
    pair.size = round_up(pair.value_offset + value.size, pair.align);
}
