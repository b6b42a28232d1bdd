//! Valid messages of any schema, in the native layout, with a note of every place where they can be made invalid.

use provost_schema::{Cardinality, Field, Message, MessageId, Oneof, Pair, Schema, Slot, Type};

use crate::random::Random;
use crate::raw::window_offset;

/// Elements of a list, at most.
const ELEMENTS_MAX: u64 = 5;
/// Longest string, in bytes; some are past the size from which they are gathered in place.
const TEXT_BYTES_MAX: u64 = 6000;
/// How deep the messages nest.
const DEPTH_MAX: u32 = 4;
/// An attack's message has at most so many bytes.
pub const MESSAGE_BYTES_MAX: u64 = 1 << 20;

/// What can be made invalid at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaceKind {
    /// A word pair: offset and length of a string, bytes, list or map that is not empty.
    Reference,
    /// An offset of a message of its own.
    Pointer,
    Presence,
    /// The tag of a oneof.
    Tag,
    Bool,
    /// A byte of a string.
    Text,
    /// The second key of a map, an unsigned number or a bool of so many bytes.
    SecondKey {
        bytes: u32,
        /// How far behind the first it lies.
        stride: u32,
    },
}

/// A place in the send heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessagePlace {
    pub kind: PlaceKind,
    /// Where, in bytes from the send heap's begin.
    pub at: u64,
}

/// A message in the making.
#[derive(Debug)]
pub struct Built {
    /// Where its bytes go in the send heap.
    pub at: u64,
    /// Its bytes; the root struct comes first.
    pub bytes: Vec<u8>,
    /// Where it can be made invalid.
    pub places: Vec<MessagePlace>,
}

impl Built {
    /// The root struct's offset in the window, in units of 8 bytes.
    #[must_use]
    pub fn root(&self) -> u32 {
        window_offset(self.at)
    }
}

/// A valid message at this place of the send heap, which must be a multiple of 8.
#[must_use]
pub fn build(schema: &Schema, message: MessageId, at: u64, random: &mut Random) -> Built {
    let mut builder = Builder {
        schema,
        random,
        built: Built {
            at,
            bytes: Vec::new(),
            places: Vec::new(),
        },
    };
    let message = schema.message(message);
    let root = builder.room(message.size as usize);
    builder.fill(message, root, 0);
    builder.built
}

struct Builder<'a> {
    schema: &'a Schema,
    random: &'a mut Random,
    built: Built,
}

impl Builder<'_> {
    /// So many zero bytes, aligned as every block is.
    fn room(&mut self, bytes: usize) -> usize {
        let at = self.built.bytes.len();
        self.built.bytes.resize((at + bytes).next_multiple_of(8), 0);
        at
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.built.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn put_word(&mut self, at: usize, word: u32) {
        self.put(at, &word.to_le_bytes());
    }

    fn put_reference(&mut self, at: usize, target: usize, count: usize) {
        if count == 0 {
            return;
        }
        self.put_word(at, window_offset(self.built.at + target as u64));
        self.put_word(at + 4, count as u32);
        self.place(PlaceKind::Reference, at);
    }

    fn place(&mut self, kind: PlaceKind, at: usize) {
        self.built.places.push(MessagePlace {
            kind,
            at: self.built.at + at as u64,
        });
    }

    fn fill(&mut self, message: &Message, at: usize, depth: u32) {
        for slot in &message.slots {
            match slot {
                Slot::Field(field) => self.field(field, at, depth),
                Slot::Oneof(oneof) => self.oneof(oneof, at, depth),
            }
        }
    }

    fn field(&mut self, field: &Field, base: usize, depth: u32) {
        let at = base + field.offset as usize;
        match &field.cardinality {
            Cardinality::Implicit | Cardinality::OneofMember => self.value(field.ty, at, depth),
            Cardinality::Optional { value_offset } => {
                let too_deep = matches!(field.ty, Type::Message(_)) && depth >= DEPTH_MAX;
                self.place(PlaceKind::Presence, at);
                if !too_deep && !self.random.one_in(3) {
                    self.put_word(at, 1);
                    self.value(field.ty, base + *value_offset as usize, depth);
                }
            }
            Cardinality::Repeated { .. } => {
                let count = self.random.below(ELEMENTS_MAX) as usize;
                let (stride, _) = self.element(field.ty);
                let list = self.room(stride * count);
                (0..count).for_each(|index| self.element_value(field.ty, list + index * stride, depth));
                self.put_reference(at, list, count);
            }
            Cardinality::Map(pair) => self.map(pair, field.ty, at, depth),
        }
    }

    fn oneof(&mut self, oneof: &Oneof, base: usize, depth: u32) {
        let at = base + oneof.offset as usize;
        self.place(PlaceKind::Tag, at);
        let member = self.random.pick(&oneof.members).clone();
        if !self.random.one_in(4) {
            self.put_word(at, member.number);
            self.value(member.ty, base + oneof.value_offset as usize, depth);
        }
    }

    /// Pairs with strictly increasing keys.
    fn map(&mut self, pair: &Pair, value: Type, at: usize, depth: u32) {
        let keys_max = if pair.key == Type::Bool { 2 } else { ELEMENTS_MAX };
        let count = self.random.below(keys_max + 1) as usize;
        let stride = pair.size as usize;
        let list = self.room(stride * count);
        for index in 0..count {
            let pair_at = list + index * stride;
            self.key(pair.key, pair_at, index);
            self.element_value(value, pair_at + pair.value_offset as usize, depth);
        }
        if count >= 2 {
            let (bytes, _) = self.element(pair.key);
            let kind = PlaceKind::SecondKey {
                bytes: bytes as u32,
                stride: pair.size,
            };
            self.place(kind, list + stride);
        }
        self.put_reference(at, list, count);
    }

    fn key(&mut self, ty: Type, at: usize, index: usize) {
        match ty {
            Type::String => self.text(at, format!("key-{index}").as_bytes()),
            Type::Bool => self.put(at, &[index as u8]),
            Type::Int64 | Type::Sint64 | Type::Uint64 | Type::Fixed64 | Type::Sfixed64 => {
                self.put(at, &(index as u64).to_le_bytes());
            }
            _ => self.put_word(at, index as u32),
        }
    }

    /// Size and alignment of an element of a list.
    fn element(&self, ty: Type) -> (usize, usize) {
        match ty {
            Type::Bool => (1, 1),
            Type::String | Type::Bytes => (8, 4),
            Type::Int64 | Type::Sint64 | Type::Uint64 | Type::Fixed64 | Type::Sfixed64 | Type::Double => {
                (8, 8)
            }
            Type::Message(id) => {
                let message = self.schema.message(id);
                (message.size as usize, message.align as usize)
            }
            _ => (4, 4),
        }
    }

    /// A message lies in its list or pair itself; everything else is as in a struct.
    fn element_value(&mut self, ty: Type, at: usize, depth: u32) {
        match ty {
            Type::Message(id) => {
                let schema = self.schema;
                self.fill(schema.message(id), at, depth + 1);
            }
            ty => self.value(ty, at, depth),
        }
    }

    fn value(&mut self, ty: Type, at: usize, depth: u32) {
        match ty {
            Type::Bool => {
                let value = self.random.below(2) as u8;
                self.put(at, &[value]);
                self.place(PlaceKind::Bool, at);
            }
            Type::String => {
                let text = self.some_text();
                self.text(at, text.as_bytes());
            }
            Type::Bytes => {
                let count = self.some_length();
                let bytes = self.random.bytes(count);
                self.blob(at, &bytes);
            }
            Type::Message(id) => {
                let message = self.schema.message(id);
                let target = self.room(message.size as usize);
                self.put_word(at, window_offset(self.built.at + target as u64));
                self.place(PlaceKind::Pointer, at);
                self.fill(message, target, depth + 1);
            }
            ty => {
                let (bytes, _) = self.element(ty);
                let number = self.random.number().to_le_bytes();
                self.put(at, &number[..bytes]);
            }
        }
    }

    fn text(&mut self, at: usize, text: &[u8]) {
        let target = self.blob(at, text);
        if !text.is_empty() {
            let character = self.random.below(text.len() as u64) as usize;
            self.place(PlaceKind::Text, target + character);
        }
    }

    fn blob(&mut self, at: usize, bytes: &[u8]) -> usize {
        let target = self.room(bytes.len());
        self.put(target, bytes);
        self.put_reference(at, target, bytes.len());
        target
    }

    fn some_text(&mut self) -> String {
        let length = self.some_length();
        (0..length)
            .map(|_| *self.random.pick(&['a', 'b', 'z', '0', ' ', '~']))
            .collect()
    }

    fn some_length(&mut self) -> usize {
        let most = if self.random.one_in(10) {
            TEXT_BYTES_MAX
        } else {
            40
        };
        self.random.below(most) as usize
    }
}
