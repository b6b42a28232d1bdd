//! From protobuf to the native layout.
//!
//! A message may be scattered over protobuf in pieces: a singular message that occurs more than once is the
//! concatenation of its occurrences, and elements of a list may come between other fields. So each struct is made in
//! two steps. *Scanning* its pieces stores the scalars (the last one wins) and notes where the other fields' records
//! are, as runs. *Placing* then takes the runs in layout order and appends each field's blocks, which is what makes
//! the outcome canonical. Both steps look at each byte of a struct's own records a fixed number of times.

use std::cell::RefCell;
use std::ops::Range;

use provost_schema::{MessageId, Type};
use provost_wire::limits::{MESSAGE_BYTES_MAX, NESTING_MAX};

use crate::native::{self, UNIT, ordered_key};
use crate::protobuf::{WireType, native_bits};
use crate::records::{ProtobufRecord, RecordContent, Records, varint_at};
use crate::tables::{FieldForm, REFERENCE_BYTES, Struct, StructIndex, TableField, WORD_BYTES, scalar_bytes};
use crate::{DecodeError, Tables};

/// Runs of records that the decoder keeps track of at one time.
const RUNS_MAX: usize = 1 << 20;
/// Pairs of maps that the decoder sorts at one time.
const PAIRS_MAX: usize = 4 << 20;
/// Runs and pairs that are kept room for between messages.
const KEPT_MAX: usize = 4096;

/// Memory that [`Tables::decode`] works with, kept so that it does not allocate for each message.
#[derive(Debug, Default)]
pub struct Scratch {
    runs: Vec<RecordRun>,
    pairs: Vec<MapPair>,
}

thread_local! {
    static OF_THREAD: RefCell<Scratch> = RefCell::default();
}

impl Scratch {
    /// Lends the one that this thread keeps, to those who need one now and then. It is not lent twice at a time.
    pub fn of_thread<T>(work: impl FnOnce(&mut Scratch) -> T) -> T {
        OF_THREAD.with_borrow_mut(work)
    }

    fn reset(&mut self) {
        self.runs.clear();
        self.runs.shrink_to(KEPT_MAX);
        self.pairs.clear();
        self.pairs.shrink_to(KEPT_MAX);
    }

    /// Notes the pair of a map whose content this is, to be sorted.
    pub(crate) fn note_pair(
        &mut self,
        input: &[u8],
        key: Type,
        content: RecordContent,
    ) -> Result<(), DecodeError> {
        let key = key_of(input, key, content)?;
        if self.pairs.len() >= PAIRS_MAX {
            return Err(DecodeError::TooFragmented);
        }
        self.pairs.push(MapPair { key, content });
        Ok(())
    }

    /// Sorts the pairs from `first` by key, and of those with the same key keeps the last.
    fn sort_pairs(&mut self, input: &[u8], key: Type, first: usize) {
        let text = |key: u64| &input[(key >> 32) as usize..][..key as u32 as usize];
        let compare = |a: &MapPair, b: &MapPair| match key {
            Type::String => text(a.key).cmp(text(b.key)),
            _ => a.key.cmp(&b.key),
        };
        let pairs = &mut self.pairs;
        if pairs[first..].is_sorted_by(|a, b| compare(a, b).is_lt()) {
            return;
        }
        let by_key_and_place =
            |a: &MapPair, b: &MapPair| compare(a, b).then(a.content.start.cmp(&b.content.start));
        pairs[first..].sort_unstable_by(by_key_and_place);
        let mut kept = first;
        for next in first..pairs.len() {
            let is_last = pairs
                .get(next + 1)
                .is_none_or(|after| compare(&pairs[next], after).is_ne());
            if is_last {
                pairs[kept] = pairs[next];
                kept += 1;
            }
        }
        pairs.truncate(kept);
    }

    /// How many pairs from the first one on differ in their keys. They are forgotten.
    pub(crate) fn count_pairs(&mut self, input: &[u8], key: Type) -> u32 {
        self.sort_pairs(input, key, 0);
        let count = self.pairs.len() as u32;
        self.reset();
        count
    }

    /// Forgets the pairs of a map that another value takes the place of.
    pub(crate) fn forget_pairs(&mut self) {
        self.pairs.clear();
    }
}

/// The key of a pair: the last one in it, or the default.
fn key_of(input: &[u8], ty: Type, pair: RecordContent) -> Result<u64, DecodeError> {
    let mut key = ordered_key(ty, 0);
    for record in Records::new(input, pair) {
        let record = record?;
        if record.number != 1 || record.wire != WireType::of(ty) {
            continue;
        }
        key = match record.wire {
            WireType::Len => u64::from(record.content.start) << 32 | u64::from(record.content.len()),
            _ => ordered_key(ty, native_bits(ty, record.value)),
        };
    }
    Ok(key)
}

/// Records of one field that follow each other.
#[derive(Clone, Copy, Debug)]
struct RecordRun {
    /// Index of the field in the tables.
    field: u32,
    start: u32,
    end: u32,
}

/// A pair of a map that is being sorted.
#[derive(Clone, Copy, Debug)]
struct MapPair {
    /// A number that orders as the key does; of a string, where it is and its length.
    key: u64,
    content: RecordContent,
}

/// Where the pieces of a message are.
#[derive(Clone, Copy)]
enum MessagePieces {
    /// In one piece.
    Whole(RecordContent),
    /// The contents of the records of these runs that begin at `from` or later.
    Runs { first: usize, end: usize, from: u32 },
}

impl Tables {
    /// Appends the canonical linear form of a protobuf message to `out`, from its end rounded up to 8 bytes, and
    /// returns its length. Unknown fields are skipped; fields that occur more than once merge as protobuf has it.
    /// After an error `out` is as before.
    pub fn decode(
        &self,
        message: MessageId,
        protobuf: &[u8],
        out: &mut Vec<u8>,
        message_bytes_max: u32,
        scratch: &mut Scratch,
    ) -> Result<u32, DecodeError> {
        let index = self.message(message).ok_or(DecodeError::Unknown(message))?;
        if protobuf.len() > MESSAGE_BYTES_MAX as usize {
            return Err(DecodeError::TooLong {
                max: MESSAGE_BYTES_MAX,
            });
        }
        let before = out.len();
        out.resize(before.next_multiple_of(UNIT as usize), 0);
        let mut decoder = Decoder {
            tables: self,
            input: protobuf,
            base: out.len(),
            out,
            bytes_max: message_bytes_max.min(MESSAGE_BYTES_MAX),
            scratch,
        };
        let outcome = decoder.root(index);
        scratch.reset();
        if outcome.is_err() {
            out.truncate(before);
        }
        outcome
    }
}

struct Decoder<'a> {
    tables: &'a Tables,
    input: &'a [u8],
    out: &'a mut Vec<u8>,
    /// Where the message begins in `out`, a multiple of 8. All places are relative to it.
    base: usize,
    bytes_max: u32,
    scratch: &'a mut Scratch,
}

impl<'a> Decoder<'a> {
    fn root(&mut self, index: StructIndex) -> Result<u32, DecodeError> {
        let place = self.allocate(u64::from(self.tables.of(index).size))?;
        let whole = RecordContent {
            start: 0,
            end: self.input.len() as u32,
        };
        self.fill(index, place, MessagePieces::Whole(whole), 0)?;
        Ok((self.out.len() - self.base) as u32)
    }

    /// Fills the struct at `at`, which is all zeros, from the pieces of its message.
    fn fill(
        &mut self,
        index: StructIndex,
        at: u32,
        pieces: MessagePieces,
        depth: u32,
    ) -> Result<(), DecodeError> {
        let first = self.scratch.runs.len();
        match pieces {
            MessagePieces::Whole(content) => self.scan(index, at, content, first, depth)?,
            MessagePieces::Runs {
                first: from_run,
                end,
                from,
            } => {
                for run in from_run..end {
                    let run = self.scratch.runs[run];
                    if run.start < from {
                        continue;
                    }
                    for record in self.records(run) {
                        self.scan(index, at, record?.content, first, depth)?;
                    }
                }
            }
        }
        self.place(at, first, depth)?;
        self.scratch.runs.truncate(first);
        Ok(())
    }

    /// Goes through one piece of a struct: stores scalars, notes runs.
    fn scan(
        &mut self,
        index: StructIndex,
        at: u32,
        piece: RecordContent,
        first_run: usize,
        depth: u32,
    ) -> Result<(), DecodeError> {
        if depth > NESTING_MAX {
            return Err(DecodeError::Nesting { at: piece.start });
        }
        let tables = self.tables;
        let of = tables.of(index);
        for record in Records::new(self.input, piece) {
            let record = record?;
            let Some(field_index) = tables.field_numbered(of, record.number) else {
                continue;
            };
            let field = tables.field(field_index);
            let single = WireType::of(field.ty);
            let is_list = matches!(field.shape, FieldForm::List { .. });
            // A field of another type than the schema's is an unknown field.
            if matches!(field.shape, FieldForm::Map { .. }) && record.wire == WireType::Len
                || is_list && (record.wire == WireType::Len || record.wire == single)
            {
                self.note(field_index, record, first_run)?;
            } else if !is_list && record.wire == single {
                self.mark_present(field, at, record.start);
                if single == WireType::Len {
                    self.note(field_index, record, first_run)?;
                } else {
                    self.store(field.ty, at + field.at, native_bits(field.ty, record.value));
                }
            }
        }
        Ok(())
    }

    fn note(&mut self, field: u32, record: ProtobufRecord, first_run: usize) -> Result<(), DecodeError> {
        let (start, end) = (record.start, record.content.end);
        if let Some(last) = self.scratch.runs[first_run..].last_mut()
            && (last.field, last.end) == (field, start)
        {
            last.end = end;
            return Ok(());
        }
        if self.scratch.runs.len() >= RUNS_MAX {
            return Err(DecodeError::TooFragmented);
        }
        self.scratch.runs.push(RecordRun { field, start, end });
        Ok(())
    }

    /// Sets presence or tag. A member of a oneof that was not set before starts anew: the value of a message is where
    /// the first record of it is, until it is placed.
    fn mark_present(&mut self, field: &TableField, at: u32, record_start: u32) {
        match field.shape {
            FieldForm::Optional { present_at } => self.set_word(at + present_at, 1),
            FieldForm::Member { tag_at, value_bytes } => {
                if self.word(at + tag_at) == field.number {
                    return;
                }
                self.set_word(at + tag_at, field.number);
                self.slot(at + field.at, value_bytes).fill(0);
                if let Type::Message(_) = field.ty {
                    self.set_word(at + field.at, record_start);
                }
            }
            _ => {}
        }
    }

    /// Appends the blocks of the noted runs, which belong to the struct at `at`.
    fn place(&mut self, at: u32, first_run: usize, depth: u32) -> Result<(), DecodeError> {
        let runs = &mut self.scratch.runs[first_run..];
        let order = |run: &RecordRun| (run.field, run.start);
        if !runs.is_sorted_by_key(order) {
            runs.sort_unstable_by_key(order);
        }
        let (mut first, last) = (first_run, self.scratch.runs.len());
        while first < last {
            let field = self.scratch.runs[first].field;
            let same = self.scratch.runs[first..last]
                .iter()
                .take_while(|run| run.field == field)
                .count();
            self.place_field(*self.tables.field(field), at, first..first + same, depth)?;
            first += same;
        }
        Ok(())
    }

    fn place_field(
        &mut self,
        field: TableField,
        base: u32,
        runs: Range<usize>,
        depth: u32,
    ) -> Result<(), DecodeError> {
        let at = base + field.at;
        let mut from = 0;
        if let FieldForm::Member { tag_at, .. } = field.shape {
            if self.word(base + tag_at) != field.number {
                return Ok(());
            }
            from = self.word(at);
        }
        let pieces = MessagePieces::Runs {
            first: runs.start,
            end: runs.end,
            from,
        };
        match (field.shape, field.ty) {
            (FieldForm::Map { pair }, _) => self.map(pair, at, runs, depth),
            (FieldForm::List { .. }, Type::Message(message)) => self.structs(message.0, at, runs, depth),
            (FieldForm::List { .. }, Type::String | Type::Bytes) => self.texts(field.ty, at, runs),
            (FieldForm::List { .. }, ty) => self.scalars(ty, at, runs),
            (FieldForm::Always, Type::Message(message)) => self.fill(message.0, at, pieces, depth + 1),
            (_, Type::Message(message)) => {
                let place = self.allocate(u64::from(self.tables.of(message.0).size))?;
                self.set_word(at, place / UNIT);
                self.fill(message.0, place, pieces, depth + 1)
            }
            (_, ty) => self.last_text(ty, at, runs),
        }
    }

    /// A singular string: the last one counts.
    fn last_text(&mut self, ty: Type, at: u32, runs: Range<usize>) -> Result<(), DecodeError> {
        let last = self.scratch.runs[runs.end - 1];
        match self.records(last).last() {
            Some(record) => self.text(ty, at, record?.content),
            None => Ok(()),
        }
    }

    fn text(&mut self, ty: Type, at: u32, content: RecordContent) -> Result<(), DecodeError> {
        let input = self.input;
        let bytes = &input[content.range()];
        if ty == Type::String && std::str::from_utf8(bytes).is_err() {
            return Err(DecodeError::Utf8 { at: content.start });
        }
        if bytes.is_empty() {
            return Ok(());
        }
        let place = self.start_block(bytes.len() as u64)?;
        self.out.extend_from_slice(bytes);
        self.set_reference(at, place, bytes.len() as u32);
        Ok(())
    }

    fn texts(&mut self, ty: Type, at: u32, runs: Range<usize>) -> Result<(), DecodeError> {
        let mut element = self.allocate_list(at, self.count_records(&runs)?, REFERENCE_BYTES)?;
        for run in runs {
            for record in self.records(self.scratch.runs[run]) {
                self.text(ty, element, record?.content)?;
                element += REFERENCE_BYTES;
            }
        }
        Ok(())
    }

    fn structs(
        &mut self,
        index: StructIndex,
        at: u32,
        runs: Range<usize>,
        depth: u32,
    ) -> Result<(), DecodeError> {
        let size = self.tables.of(index).size;
        let mut element = self.allocate_list(at, self.count_records(&runs)?, size)?;
        for run in runs {
            for record in self.records(self.scratch.runs[run]) {
                self.fill(index, element, MessagePieces::Whole(record?.content), depth + 1)?;
                element += size;
            }
        }
        Ok(())
    }

    fn scalars(&mut self, ty: Type, at: u32, runs: Range<usize>) -> Result<(), DecodeError> {
        let element_bytes = scalar_bytes(ty).unwrap_or(REFERENCE_BYTES);
        let mut count = 0;
        for run in runs.clone() {
            for record in self.records(self.scratch.runs[run]) {
                count += self.count_scalars(ty, element_bytes, &record?)?;
            }
        }
        let mut element = self.allocate_list(at, count, element_bytes)?;
        for run in runs {
            for record in self.records(self.scratch.runs[run]) {
                let record = record?;
                element = match (record.wire, WireType::of(ty)) {
                    (WireType::Len, WireType::Varint) => {
                        self.varints(ty, element, element_bytes, record.content)?
                    }
                    (WireType::Len, _) => self.fixed(element, record.content),
                    _ => {
                        self.store(ty, element, native_bits(ty, record.value));
                        element + element_bytes
                    }
                };
            }
        }
        Ok(())
    }

    fn count_scalars(
        &self,
        ty: Type,
        element_bytes: u32,
        record: &ProtobufRecord,
    ) -> Result<u32, DecodeError> {
        let content = &self.input[record.content.range()];
        match (record.wire, WireType::of(ty)) {
            (WireType::Len, WireType::Varint) => {
                Ok(content.iter().filter(|byte| **byte < 0x80).count() as u32)
            }
            (WireType::Len, _) if content.len().is_multiple_of(element_bytes as usize) => {
                Ok(content.len() as u32 / element_bytes)
            }
            (WireType::Len, _) => Err(DecodeError::Truncated { at: record.start }),
            _ => Ok(1),
        }
    }

    fn varints(
        &mut self,
        ty: Type,
        mut element: u32,
        element_bytes: u32,
        content: RecordContent,
    ) -> Result<u32, DecodeError> {
        let mut at = content.start;
        while at < content.end {
            let (varint, next) = varint_at(self.input, at, content.end)?;
            self.store(ty, element, native_bits(ty, varint));
            element += element_bytes;
            at = next;
        }
        Ok(element)
    }

    fn fixed(&mut self, element: u32, content: RecordContent) -> u32 {
        let input = self.input;
        let bytes = &input[content.range()];
        self.slot(element, bytes.len() as u32).copy_from_slice(bytes);
        element + bytes.len() as u32
    }

    fn map(&mut self, pair: StructIndex, at: u32, runs: Range<usize>, depth: u32) -> Result<(), DecodeError> {
        let of = self.tables.of(pair);
        let key = of.key.unwrap_or(Type::Bool);
        let first = self.scratch.pairs.len();
        for run in runs {
            for record in self.records(self.scratch.runs[run]) {
                self.scratch.note_pair(self.input, key, record?.content)?;
            }
        }
        self.scratch.sort_pairs(self.input, key, first);
        let count = (self.scratch.pairs.len() - first) as u32;
        // A value that is missing is a message of defaults, on a level of its own as those that are there.
        if depth >= NESTING_MAX
            && let Some(pair) = self.scratch.pairs.get(first)
            && self.has_message_values(of)
        {
            let at = pair.content.start;
            return Err(DecodeError::Nesting { at });
        }
        let mut element = self.allocate_list(at, count, of.size)?;
        for place in first..first + count as usize {
            self.fill(
                pair,
                element,
                MessagePieces::Whole(self.scratch.pairs[place].content),
                depth,
            )?;
            element += of.size;
        }
        self.scratch.pairs.truncate(first);
        Ok(())
    }

    fn has_message_values(&self, pair: Struct) -> bool {
        let value = self.tables.field_numbered(pair, 2);
        value.is_some_and(|value| matches!(self.tables.field(value).ty, Type::Message(_)))
    }

    fn records(&self, run: RecordRun) -> Records<'a> {
        let RecordRun { start, end, .. } = run;
        Records::new(self.input, RecordContent { start, end })
    }

    fn count_records(&self, runs: &Range<usize>) -> Result<u32, DecodeError> {
        let mut count = 0;
        for run in &self.scratch.runs[runs.clone()] {
            for record in self.records(*run) {
                record?;
                count += 1;
            }
        }
        Ok(count)
    }

    /// Appends a list of zeros and refers to it at `at`. Where it is.
    fn allocate_list(&mut self, at: u32, count: u32, element_bytes: u32) -> Result<u32, DecodeError> {
        if count == 0 {
            return Ok(0);
        }
        let place = self.allocate(u64::from(count) * u64::from(element_bytes))?;
        self.set_reference(at, place, count);
        Ok(place)
    }

    /// Appends a block of zeros.
    fn allocate(&mut self, bytes: u64) -> Result<u32, DecodeError> {
        let place = self.start_block(bytes)?;
        self.out.resize(self.base + place as usize + bytes as usize, 0);
        Ok(place)
    }

    /// Pads the message so far, and checks that a block of `bytes` bytes may follow.
    fn start_block(&mut self, bytes: u64) -> Result<u32, DecodeError> {
        let padded = self.out.len().next_multiple_of(UNIT as usize);
        let place = padded - self.base;
        if place as u64 + bytes > u64::from(self.bytes_max) {
            return Err(DecodeError::TooLong { max: self.bytes_max });
        }
        self.out.resize(padded, 0);
        Ok(place as u32)
    }

    #[inline]
    fn store(&mut self, ty: Type, at: u32, bits: u64) {
        let at = self.base + at as usize;
        let out = &mut self.out[at..];
        match scalar_bytes(ty) {
            Some(1) => out[0] = bits as u8,
            Some(4) => out[..4].copy_from_slice(&(bits as u32).to_le_bytes()),
            _ => out[..8].copy_from_slice(&bits.to_le_bytes()),
        }
    }

    fn word(&self, at: u32) -> u32 {
        native::word(&self.out[self.base..], at).unwrap_or_default()
    }

    fn set_word(&mut self, at: u32, word: u32) {
        self.slot(at, WORD_BYTES).copy_from_slice(&word.to_le_bytes());
    }

    fn set_reference(&mut self, at: u32, place: u32, count: u32) {
        self.set_word(at, place / UNIT);
        self.set_word(at + WORD_BYTES, count);
    }

    fn slot(&mut self, at: u32, bytes: u32) -> &mut [u8] {
        &mut self.out[self.base + at as usize..][..bytes as usize]
    }
}
