//! What a service delivers must be valid, whoever sent it: an independent check of received messages, in place.

use provost_schema::{Cardinality, Field, Message, MessageId, Pair, Schema, Slot, Type};
use provost_wire::limits::NESTING_MAX;

use crate::raw::Segment;

/// What the good apps' payloads are made of. Nobody else's memory may ever hold it.
pub const CANARY: &[u8; 16] = b"\xC3canary/7f3a9e\xA9!";

/// Bytes of one leaf that are looked at, at most.
const LEAF_BYTES_MAX: u64 = 64 << 20;

/// Checks a message that a service has delivered at an offset of the window. Says what is wrong with it.
pub fn check(schema: &Schema, message: MessageId, segments: &[Segment], root: u32) -> Result<(), String> {
    let mut checker = Checker {
        schema,
        segments,
        visited_bytes: 0,
    };
    checker.message(schema.message(message), u64::from(root) * 8, 0)
}

/// Whether a segment holds what good apps have sent.
pub fn find_canary(segment: &Segment) -> bool {
    let mut bytes = vec![0; segment.memory.bytes() as usize];
    let read = segment.memory.read_at(0, &mut bytes).unwrap_or(0);
    bytes[..read].windows(CANARY.len()).any(|window| window == CANARY)
}

struct Checker<'a> {
    schema: &'a Schema,
    segments: &'a [Segment],
    visited_bytes: u64,
}

impl Checker<'_> {
    fn bytes(&mut self, at: u64, count: u64) -> Result<Vec<u8>, String> {
        self.visited_bytes += count;
        if count > LEAF_BYTES_MAX || self.visited_bytes > 4 * LEAF_BYTES_MAX {
            return Err(format!("{count} bytes at {at:#x} are too many"));
        }
        let inside = |segment: &&Segment| {
            at >= segment.at && at.saturating_add(count) <= segment.at + segment.memory.bytes()
        };
        let segment = self.segments.iter().find(inside);
        let segment = segment.ok_or_else(|| format!("{count} bytes at {at:#x} are in no segment"))?;
        let mut bytes = vec![0; count as usize];
        match segment.memory.read_at(at - segment.at, &mut bytes) {
            Ok(read) if read == bytes.len() => Ok(bytes),
            other => Err(format!("{count} bytes at {at:#x} cannot be read: {other:?}")),
        }
    }

    fn word(&mut self, at: u64) -> Result<u32, String> {
        let bytes = self.bytes(at, 4)?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    /// Address and count of a string, list or map.
    fn reference(&mut self, at: u64) -> Result<(u64, u64), String> {
        Ok((u64::from(self.word(at)?) * 8, u64::from(self.word(at + 4)?)))
    }

    fn message(&mut self, message: &Message, at: u64, depth: u32) -> Result<(), String> {
        if depth > NESTING_MAX {
            return Err(format!("nests deeper than {NESTING_MAX}"));
        }
        self.bytes(at, u64::from(message.size))?;
        for slot in &message.slots {
            match slot {
                Slot::Field(field) => self.field(field, at, depth),
                Slot::Oneof(oneof) => match self.word(at + u64::from(oneof.offset))? {
                    0 => Ok(()),
                    tag => match oneof.members.iter().find(|member| member.number == tag) {
                        Some(member) => self.value(member.ty, at + u64::from(oneof.value_offset), depth),
                        None => Err(format!("{} has the tag {tag}", oneof.name)),
                    },
                },
            }
            .map_err(|wrong| format!("{}: {wrong}", message.full_name))?;
        }
        Ok(())
    }

    fn field(&mut self, field: &Field, base: u64, depth: u32) -> Result<(), String> {
        let at = base + u64::from(field.offset);
        match &field.cardinality {
            Cardinality::Implicit | Cardinality::OneofMember => self.value(field.ty, at, depth),
            Cardinality::Optional { value_offset } => match self.word(at)? {
                0 => Ok(()),
                1 => self.value(field.ty, base + u64::from(*value_offset), depth),
                other => Err(format!("{} has the presence {other}", field.name)),
            },
            Cardinality::Repeated { .. } => self.list(field.ty, at, depth),
            Cardinality::Map(pair) => self.map(pair, field.ty, at, depth),
        }
        .map_err(|wrong| format!("{}: {wrong}", field.name))
    }

    fn list(&mut self, ty: Type, at: u64, depth: u32) -> Result<(), String> {
        let (first, count) = self.reference(at)?;
        let stride = self.element_bytes(ty);
        let holds_anything = !matches!(ty, Type::Bool | Type::String | Type::Bytes | Type::Message(_));
        if count == 0 {
            return Ok(());
        }
        if holds_anything {
            return self.bytes(first, count * stride).map(drop);
        }
        (0..count).try_for_each(|index| self.element(ty, first + index * stride, depth))
    }

    fn map(&mut self, pair: &Pair, value: Type, at: u64, depth: u32) -> Result<(), String> {
        let (first, count) = self.reference(at)?;
        let mut last_key = None;
        for index in 0..count {
            let pair_at = first + index * u64::from(pair.size);
            let key = self.key(pair.key, pair_at)?;
            if last_key.as_ref().is_some_and(|last| *last >= key) {
                return Err(format!(
                    "key {index} of {count} is not greater than the one before"
                ));
            }
            last_key = Some(key);
            self.element(value, pair_at + u64::from(pair.value_offset), depth)?;
        }
        Ok(())
    }

    /// A key as something that is ordered as the layout orders it.
    fn key(&mut self, ty: Type, at: u64) -> Result<(i128, Vec<u8>), String> {
        self.value(ty, at, 0)?;
        let word = |checker: &mut Self| checker.word(at);
        Ok(match ty {
            Type::String => {
                let (first, count) = self.reference(at)?;
                (
                    0,
                    if count == 0 {
                        Vec::new()
                    } else {
                        self.bytes(first, count)?
                    },
                )
            }
            Type::Bool => (i128::from(self.bytes(at, 1)?[0]), Vec::new()),
            Type::Int32 | Type::Sint32 | Type::Sfixed32 => (i128::from(word(self)? as i32), Vec::new()),
            Type::Uint32 | Type::Fixed32 => (i128::from(word(self)?), Vec::new()),
            signed_or_not => {
                let number = u64::from(self.word(at)?) | u64::from(self.word(at + 4)?) << 32;
                match signed_or_not {
                    Type::Int64 | Type::Sint64 | Type::Sfixed64 => (i128::from(number as i64), Vec::new()),
                    _ => (i128::from(number), Vec::new()),
                }
            }
        })
    }

    fn element_bytes(&self, ty: Type) -> u64 {
        match ty {
            Type::Bool => 1,
            Type::String | Type::Bytes => 8,
            Type::Int64 | Type::Sint64 | Type::Uint64 | Type::Fixed64 | Type::Sfixed64 | Type::Double => 8,
            Type::Message(id) => u64::from(self.schema.message(id).size),
            _ => 4,
        }
    }

    fn element(&mut self, ty: Type, at: u64, depth: u32) -> Result<(), String> {
        match ty {
            Type::Message(id) => {
                let schema = self.schema;
                self.message(schema.message(id), at, depth + 1)
            }
            ty => self.value(ty, at, depth),
        }
    }

    fn value(&mut self, ty: Type, at: u64, depth: u32) -> Result<(), String> {
        match ty {
            Type::Bool => match self.bytes(at, 1)?[0] {
                0 | 1 => Ok(()),
                other => Err(format!("a bool is {other}")),
            },
            Type::String => {
                let (first, count) = self.reference(at)?;
                let text = if count == 0 {
                    Vec::new()
                } else {
                    self.bytes(first, count)?
                };
                std::str::from_utf8(&text)
                    .map(drop)
                    .map_err(|error| error.to_string())
            }
            Type::Bytes => {
                let (first, count) = self.reference(at)?;
                if count == 0 {
                    Ok(())
                } else {
                    self.bytes(first, count).map(drop)
                }
            }
            Type::Message(id) => {
                let target = u64::from(self.word(at)?) * 8;
                let schema = self.schema;
                self.message(schema.message(id), target, depth + 1)
            }
            ty => {
                let count = self.element_bytes(ty);
                self.bytes(at, count).map(drop)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use provost_shm::Memfd;
    use provost_wire::limits::SEND_WINDOW;

    use super::*;
    use crate::message::{Built, PlaceKind, build};
    use crate::random::random_of;
    use crate::schema::TargetSchema;

    const AT: u64 = 4096;

    /// The message as if it had been received.
    fn received(built: &Built, change: impl FnOnce(&Memfd)) -> Segment {
        let memory = Memfd::create("test", AT + built.bytes.len() as u64).unwrap();
        memory.write_at(AT, &built.bytes).unwrap();
        change(&memory);
        Segment {
            id: 0,
            at: u64::from(SEND_WINDOW) * 8,
            memory,
        }
    }

    #[test]
    fn what_is_built_is_valid_and_every_place_can_be_made_invalid() {
        let target = TargetSchema::load().unwrap();
        let mut kinds = std::collections::HashSet::new();
        for seed in 0..60 {
            let built = build(&target.schema, target.everything, AT, &mut random_of(seed, 0));
            let verdict = |segment| check(&target.schema, target.everything, &[segment], built.root());
            assert_eq!(verdict(received(&built, |_| ())), Ok(()));
            for place in &built.places {
                kinds.insert(std::mem::discriminant(&place.kind));
                let segment = received(&built, |memory| {
                    let (bytes, more) = match place.kind {
                        PlaceKind::SecondKey { bytes, stride } => {
                            let first = (place.at - built.at) as usize - stride as usize;
                            (built.bytes[first..first + bytes as usize].to_vec(), 0)
                        }
                        PlaceKind::Reference => (u32::MAX.to_le_bytes().to_vec(), 4),
                        PlaceKind::Text | PlaceKind::Bool => (vec![0xFF], 0),
                        _ => (u32::MAX.to_le_bytes().to_vec(), 0),
                    };
                    memory.write_at(place.at + more, &bytes).unwrap();
                });
                assert!(verdict(segment).is_err(), "{place:?}");
            }
        }
        assert_eq!(kinds.len(), 7, "not every kind of place was met");
    }

    #[test]
    fn canaries_are_found() {
        let memory = Memfd::create("test", 1 << 16).unwrap();
        let segment = Segment { id: 0, at: 0, memory };
        assert!(!find_canary(&segment));
        segment.memory.write_at(12_345, CANARY).unwrap();
        assert!(find_canary(&segment));
    }
}
