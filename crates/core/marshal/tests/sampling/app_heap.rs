//! An app's heap in the tests: messages written by walking the schema, without any of the tables under test. Blocks
//! lie in any order with dirt between them, and everything that has no meaning (padding, values that are absent,
//! offsets of empty lists) holds dirt too.

use std::num::NonZeroUsize;

use provost_marshal::ForeignRegion;
use provost_random::SeededRandom;
use provost_schema::{Cardinality, MessageId, Oneof, Schema, Slot, Type};

/// Where the heap begins in the app's window, in units of 8 bytes.
pub(crate) const WINDOW_AT: u32 = 1 << 18;

/// A heap, with one message in it.
pub(crate) struct AppHeap {
    words: Vec<u64>,
    pub(crate) root: u32,
}

impl AppHeap {
    /// Scatters a canonical linear message.
    pub(crate) fn scatter(schema: &Schema, message: MessageId, linear: &[u8], seed: u64) -> AppHeap {
        let mut writer = Writer {
            schema,
            linear,
            heap: Vec::new(),
            dirt: SeededRandom::new(seed),
        };
        let size = schema.messages[message.0 as usize].size as usize;
        let root = writer.block(size);
        writer.message(message, 0, root);
        AppHeap {
            root: WINDOW_AT + root as u32 / 8,
            words: writer
                .heap
                .chunks(8)
                .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
                .collect(),
        }
    }

    /// A heap of these bytes, whatever they are.
    pub(crate) fn of_bytes(bytes: &[u8], root: u32) -> AppHeap {
        let word = |chunk: &[u8]| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_le_bytes(word)
        };
        AppHeap {
            words: bytes.chunks(8).map(word).collect(),
            root,
        }
    }

    pub(crate) fn region(&self) -> ForeignRegion {
        let address = NonZeroUsize::new(self.words.as_ptr().expose_provenance()).unwrap();
        // SAFETY: the words are 8-aligned, initialized, and outlive the region in every test.
        unsafe { ForeignRegion::new(address, self.words.len() as u64 * 8, WINDOW_AT) }
    }

    pub(crate) fn words_mut(&mut self) -> &mut [u64] {
        &mut self.words
    }
}

struct Writer<'a> {
    schema: &'a Schema,
    linear: &'a [u8],
    heap: Vec<u8>,
    dirt: SeededRandom,
}

impl Writer<'_> {
    fn message(&mut self, id: MessageId, from: usize, to: usize) {
        let schema = self.schema;
        for slot in &schema.messages[id.0 as usize].slots {
            match slot {
                Slot::Field(field) => {
                    let at = field.offset as usize;
                    match &field.cardinality {
                        Cardinality::Implicit | Cardinality::OneofMember => {
                            self.value(field.ty, from + at, to + at)
                        }
                        Cardinality::Optional { value_offset } => {
                            self.raw(from + at, to + at, 4);
                            if self.word(from + at) == 1 {
                                let at = *value_offset as usize;
                                self.value(field.ty, from + at, to + at);
                            }
                        }
                        Cardinality::Repeated { .. } => {
                            let size = self.element_bytes(field.ty);
                            self.list(from + at, to + at, size, |writer, from, to| {
                                writer.element(field.ty, from, to);
                            });
                        }
                        Cardinality::Map(pair) => {
                            self.list(from + at, to + at, pair.size as usize, |writer, from, to| {
                                let value = pair.value_offset as usize;
                                writer.element(pair.key, from, to);
                                writer.element(field.ty, from + value, to + value);
                            });
                        }
                    }
                }
                Slot::Oneof(oneof) => self.oneof(oneof, from, to),
            }
        }
    }

    fn oneof(&mut self, oneof: &Oneof, from: usize, to: usize) {
        let (tag_at, at) = (oneof.offset as usize, oneof.value_offset as usize);
        self.raw(from + tag_at, to + tag_at, 4);
        let tag = self.word(from + tag_at);
        if let Some(member) = oneof.members.iter().find(|member| member.number == tag) {
            self.value(member.ty, from + at, to + at);
        }
    }

    /// A value of a field: a message is a reference.
    fn value(&mut self, ty: Type, from: usize, to: usize) {
        let Type::Message(id) = ty else {
            return self.element(ty, from, to);
        };
        let place = self.block(self.schema.messages[id.0 as usize].size as usize);
        self.set_word(to, WINDOW_AT + place as u32 / 8);
        self.message(id, self.word(from) as usize * 8, place);
    }

    /// A value of a list or a pair: a message lies in place.
    fn element(&mut self, ty: Type, from: usize, to: usize) {
        match ty {
            Type::Message(id) => self.message(id, from, to),
            Type::String | Type::Bytes => self.list(from, to, 1, |writer, from, to| writer.raw(from, to, 1)),
            scalar => self.raw(from, to, self.element_bytes(scalar)),
        }
    }

    fn list(&mut self, from: usize, to: usize, size: usize, each: impl Fn(&mut Self, usize, usize)) {
        let (off8, count) = (self.word(from) as usize, self.word(from + 4));
        self.set_word(to + 4, count);
        if count == 0 {
            return;
        }
        let place = self.block(count as usize * size);
        self.set_word(to, WINDOW_AT + place as u32 / 8);
        for element in (0..count as usize).map(|element| element * size) {
            each(self, off8 * 8 + element, place + element);
        }
    }

    fn element_bytes(&self, ty: Type) -> usize {
        match ty {
            Type::Bool => 1,
            Type::Message(id) => self.schema.messages[id.0 as usize].size as usize,
            Type::Int32 | Type::Sint32 | Type::Uint32 | Type::Fixed32 | Type::Sfixed32 => 4,
            Type::Float | Type::Enum(_) => 4,
            _ => 8,
        }
    }

    /// Takes a block somewhere: behind all others, after a gap of dirt. (Scattering by moving blocks around would do
    /// no more: nothing depends on their order.)
    fn block(&mut self, bytes: usize) -> usize {
        let gap = self.dirt.index(4) * 8;
        let place = self.heap.len() + gap;
        self.heap.extend(self.dirt.bytes(gap + bytes.next_multiple_of(8)));
        place
    }

    fn raw(&mut self, from: usize, to: usize, bytes: usize) {
        self.heap[to..to + bytes].copy_from_slice(&self.linear[from..from + bytes]);
    }

    fn word(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.linear[at..at + 4].try_into().unwrap())
    }

    fn set_word(&mut self, at: usize, word: u32) {
        self.heap[at..at + 4].copy_from_slice(&word.to_le_bytes());
    }
}
