//! Fields to blocks.

use super::static_table::{self, TableMatch};
use super::table::{DynamicTable, InsertedEntry};
use super::{ENTRY_OVERHEAD_BYTES, TABLE_BYTES_INITIAL, huffman_bytes, huffman_encode, integer};
use crate::fields::{FieldIndexing, FieldList, FieldRef};

/// Bytes of the dynamic table that an encoder uses at most, however many the peer offers.
pub const ENCODER_TABLE_BYTES_MAX: u32 = 4_096;

/// Slots of each index; a power of two.
const SLOTS: usize = 256;
/// Marks of insertions: more than there are entries in a table.
const MARKS: u64 = 255;
/// A field larger than this part of the table would evict too many others.
const LARGE_FIELD_PART: usize = 4;

/// Fields whose next value is another one: an entry for them would only evict others.
const CHANGING_NAMES: [&[u8]; 12] = [
    b"content-length",
    b"grpc-timeout",
    b"grpc-message",
    b"grpc-status-details-bin",
    b"traceparent",
    b"date",
    b"etag",
    b"age",
    b"if-modified-since",
    b"if-none-match",
    b"location",
    b"set-cookie",
];

/// Fields whose values are secrets that might be guessed by what their blocks come to: no table has them, here or further
/// on (RFC 7541, section 7.1.3).
const SECRET_NAMES: [&[u8]; 2] = [b"authorization", b"proxy-authorization"];
/// So is a cookie that is shorter, in bytes: a longer one is hard to guess.
const SHORT_COOKIE_BYTES: usize = 20;

/// Encodes the blocks for one peer, in order.
#[derive(Clone, Debug)]
pub struct HpackEncoder {
    table: DynamicTable,
    /// What the peer allows.
    peer_bytes: u32,
    /// The table's size has to be told at the beginning of the next block.
    size_update: Option<SizeUpdate>,
    index: FieldIndex,
}

/// A change of the table's size that the peer's decoder has to hear of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SizeUpdate {
    /// The smallest size since the last block.
    pub(crate) lowest: u32,
    /// The size that holds now.
    pub(crate) last: u32,
}

impl HpackEncoder {
    /// An encoder for a peer of which nothing is known.
    #[must_use]
    pub fn new() -> HpackEncoder {
        HpackEncoder {
            table: DynamicTable::new(TABLE_BYTES_INITIAL.min(ENCODER_TABLE_BYTES_MAX) as usize),
            peer_bytes: TABLE_BYTES_INITIAL,
            size_update: None,
            index: FieldIndex::default(),
        }
    }

    /// The peer's decoder allows a table of so many bytes (`SETTINGS_HEADER_TABLE_SIZE`).
    ///
    /// A reduction is told even if the table is small enough already: the peer may insist on it (RFC 9113, section 4.3.1).
    pub fn set_peer_table_bytes(&mut self, bytes: u32) {
        let size = bytes.min(ENCODER_TABLE_BYTES_MAX);
        let is_news = bytes < self.peer_bytes || size as usize != self.table.size_max();
        self.peer_bytes = bytes;
        if is_news {
            let lowest = self.size_update.map_or(size, |update| update.lowest.min(size));
            self.size_update = Some(SizeUpdate { lowest, last: size });
            self.table.set_size_max(size as usize);
        }
    }

    /// What the peer's decoder allows.
    pub(crate) fn peer_table_bytes(&self) -> u32 {
        self.peer_bytes
    }

    /// Appends the block of these fields.
    pub fn encode(&mut self, fields: &FieldList, out: &mut Vec<u8>) {
        if let Some(update) = self.size_update.take() {
            if update.lowest < update.last {
                integer::encode(update.lowest, 5, 0b0010_0000, out);
            }
            integer::encode(update.last, 5, 0b0010_0000, out);
        }
        for field in fields.iter() {
            self.field(field, out);
        }
    }

    fn field(&mut self, field: FieldRef<'_>, out: &mut Vec<u8>) {
        let indexing = self.indexing(field);
        if indexing == FieldIndexing::Never {
            let name = self.find_name(field.name);
            literal(name, field, 4, 0b0001_0000, out);
            return;
        }
        let place = static_table::find(field.name, field.value);
        if let Some(TableMatch::Field(index)) = place {
            integer::encode(index, 7, 0b1000_0000, out);
            return;
        }
        let hash = FieldHash::of(field);
        let place = match self.index.find(&hash, field, &self.table) {
            Some(TableMatch::Field(index)) => {
                integer::encode(index, 7, 0b1000_0000, out);
                return;
            }
            found => place.or(found),
        };
        let name = place.map_or(0, TableMatch::index);
        if indexing == FieldIndexing::Without {
            literal(name, field, 4, 0, out);
            return;
        }
        literal(name, field, 6, 0b0100_0000, out);
        if let InsertedEntry::Number(number) = self.table.insert(field.name, field.value) {
            self.index.insert(&hash, number);
        }
    }

    fn indexing(&self, field: FieldRef<'_>) -> FieldIndexing {
        if field.indexing != FieldIndexing::Automatic {
            return field.indexing;
        }
        let is_short_cookie = field.name == b"cookie" && field.value.len() < SHORT_COOKIE_BYTES;
        if is_short_cookie || SECRET_NAMES.contains(&field.name) {
            return FieldIndexing::Never;
        }
        let is_large = field.list_bytes() > self.table.size_max() / LARGE_FIELD_PART;
        if is_large || CHANGING_NAMES.contains(&field.name) {
            return FieldIndexing::Without;
        }
        FieldIndexing::Automatic
    }

    /// The index of a name, whatever value stands beside it; 0 if there is none.
    fn find_name(&self, name: &[u8]) -> u32 {
        // A field that no table has: its value is NUL.
        let nameless = FieldRef {
            name,
            value: b"\0",
            indexing: FieldIndexing::Never,
        };
        let place = static_table::find(name, nameless.value)
            .or_else(|| self.index.find(&FieldHash::of(nameless), nameless, &self.table));
        place.map_or(0, TableMatch::index)
    }
}

impl Default for HpackEncoder {
    fn default() -> HpackEncoder {
        HpackEncoder::new()
    }
}

impl TableMatch {
    fn index(self) -> u32 {
        match self {
            TableMatch::Field(index) | TableMatch::Name(index) => index,
        }
    }
}

/// A literal whose name stands at `name` of the tables, or in the block if that is 0.
fn literal(name: u32, field: FieldRef<'_>, prefix_bits: u32, first: u8, out: &mut Vec<u8>) {
    integer::encode(name, prefix_bits, first, out);
    if name == 0 {
        string(field.name, out);
    }
    string(field.value, out);
}

/// A string, in the shorter of the two forms.
fn string(text: &[u8], out: &mut Vec<u8>) {
    let coded = huffman_bytes(text);
    if coded < text.len() {
        integer::encode(coded as u32, 7, 0x80, out);
        huffman_encode(text, out);
    } else {
        integer::encode(text.len() as u32, 7, 0, out);
        out.extend_from_slice(text);
    }
}

/// Where the newest field of a hash stands: by name and value, and by name alone. A slot has one mark; what it says is
/// checked against the table, so that a stale or a wrong one costs a few bytes and no more.
#[derive(Clone, Debug, Default)]
struct FieldIndex {
    /// [`mark`]s of insertions; 0 is none. Empty until the first insertion.
    by_field: Vec<u8>,
    by_name: Vec<u8>,
}

impl FieldIndex {
    fn find(&self, hash: &FieldHash, field: FieldRef<'_>, table: &DynamicTable) -> Option<TableMatch> {
        let at = |slots: &[u8], hash: u64| {
            let marked = slots.get(hash as usize % SLOTS)?.checked_sub(1)?;
            let newest = table.inserted().checked_sub(1)?;
            let age = (newest % MARKS + MARKS - u64::from(marked)) % MARKS;
            table.by_number(newest.checked_sub(age)?)
        };
        let same = at(&self.by_field, hash.field)
            .filter(|(_, name, value)| *name == field.name && *value == field.value)
            .map(|(index, ..)| TableMatch::Field(index));
        same.or_else(|| {
            at(&self.by_name, hash.name)
                .filter(|(_, name, _)| *name == field.name)
                .map(|(index, ..)| TableMatch::Name(index))
        })
    }

    fn insert(&mut self, hash: &FieldHash, number: u64) {
        self.by_field.resize(SLOTS, 0);
        self.by_name.resize(SLOTS, 0);
        self.by_field[hash.field as usize % SLOTS] = mark(number);
        self.by_name[hash.name as usize % SLOTS] = mark(number);
    }
}

/// What tells an insertion from all others that may be in the table at a time.
fn mark(number: u64) -> u8 {
    (number % MARKS) as u8 + 1
}

struct FieldHash {
    name: u64,
    field: u64,
}

impl FieldHash {
    fn of(field: FieldRef<'_>) -> FieldHash {
        let name = hash(0x9e37_79b9_7f4a_7c15, field.name);
        FieldHash {
            name: name >> 32,
            field: hash(name, field.value) >> 32,
        }
    }
}

/// A quick hash. A collision costs an entry of the index, nothing else.
fn hash(seed: u64, text: &[u8]) -> u64 {
    const FACTOR: u64 = 0xff51_afd7_ed55_8ccd;
    let mut state = seed ^ text.len() as u64;
    let (words, rest) = text.as_chunks::<8>();
    for word in words {
        state = (state ^ u64::from_le_bytes(*word)).wrapping_mul(FACTOR);
        state ^= state >> 32;
    }
    for byte in rest {
        state = (state ^ u64::from(*byte)).wrapping_mul(FACTOR);
    }
    state ^ state >> 29
}

/// Everything that an encoder knows, as it is saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SavedEncoder {
    /// The dynamic table's fields, oldest first.
    pub(crate) table: FieldList,
    /// Bytes that the table may have.
    pub(crate) table_bytes_max: usize,
    /// Bytes that the peer allows.
    pub(crate) peer_bytes: u32,
    pub(crate) size_update: Option<SizeUpdate>,
}

impl HpackEncoder {
    pub(crate) fn save(&self) -> SavedEncoder {
        SavedEncoder {
            table: self.table.oldest_first().collect(),
            table_bytes_max: self.table.size_max(),
            peer_bytes: self.peer_bytes,
            size_update: self.size_update,
        }
    }

    /// An encoder that goes on. None: the state cannot be an encoder's.
    pub(crate) fn restore(saved: &SavedEncoder) -> Option<HpackEncoder> {
        let is_within = saved.table_bytes_max <= ENCODER_TABLE_BYTES_MAX.min(saved.peer_bytes) as usize;
        let is_sized = |update: SizeUpdate| {
            update.lowest <= update.last && update.last as usize == saved.table_bytes_max
        };
        if !is_within || !saved.size_update.is_none_or(is_sized) {
            return None;
        }
        let table = super::table::restored(&saved.table, saved.table_bytes_max)?;
        let mut encoder = HpackEncoder {
            table,
            peer_bytes: saved.peer_bytes,
            size_update: saved.size_update,
            index: FieldIndex::default(),
        };
        let first = encoder.table.inserted() - saved.table.len() as u64;
        for (number, field) in (first..).zip(saved.table.iter()) {
            encoder.index.insert(&FieldHash::of(field), number);
        }
        Some(encoder)
    }
}

const _: () = assert!(ENCODER_TABLE_BYTES_MAX as usize / ENTRY_OVERHEAD_BYTES <= SLOTS);
const _: () = assert!(((ENCODER_TABLE_BYTES_MAX as usize / ENTRY_OVERHEAD_BYTES) as u64) < MARKS);
