//! Inbound: checks, and relocation into an app's window.
//!
//! Every block of a linear message is exactly where the walk expects it: behind the last one, or (for leaves) behind
//! the last one of the tail. So blocks never overlap and none is seen twice, which is why the references can be
//! rewritten while they are checked, and why the work is bounded by the message's length.

use std::cmp::Ordering;

use provost_schema::MessageId;
use provost_wire::limits::{MESSAGE_BYTES_MAX, NESTING_MAX};

use crate::native::{self, UNIT};
use crate::tables::{Op, REFERENCE_BYTES, StructIndex};
use crate::{MessageError, Tables};

impl Tables {
    /// Checks that `bytes` is a well-formed linear message.
    pub fn validate(&self, message: MessageId, bytes: &[u8]) -> Result<(), MessageError> {
        Validator::new(self, NativeReading(bytes))?.message(message)
    }

    /// Checks that `bytes` is a well-formed linear message and makes its references relative to the window in which
    /// its first byte is at `window_at` (in units of 8 bytes). After an error the bytes are worthless.
    pub fn validate_and_relocate(
        &self,
        message: MessageId,
        bytes: &mut [u8],
        window_at: u32,
    ) -> Result<(), MessageError> {
        let units = bytes.len().div_ceil(UNIT as usize) as u64;
        if u64::from(window_at) + units > u64::from(u32::MAX) {
            return Err(MessageError::Window { window_at });
        }
        Validator::new(self, Relocating { bytes, window_at })?.message(message)
    }

    /// The reverse of [`Tables::validate_and_relocate`]: checks a message whose references are relative to a window in which
    /// its first byte is at `window_at`, and makes them relative to that byte again, so that it can be moved. After an
    /// error the bytes are worthless.
    pub fn make_movable(
        &self,
        message: MessageId,
        bytes: &mut [u8],
        window_at: u32,
    ) -> Result<(), MessageError> {
        Validator::new(self, MadeMovable { bytes, window_at })?.message(message)
    }
}

/// The message under check.
trait CheckedBytes {
    fn get(&self) -> &[u8];
    /// What was added to the offsets that have been checked.
    fn window_at(&self) -> u32;
    /// An offset that has not been checked, from the message's first byte.
    fn relative_to_start(&self, off8: u32) -> u32 {
        off8
    }
    /// An offset was found right.
    fn accept(&mut self, at: u32, off8: u32);
    /// The reference at `at` names nothing: its offset may be anything.
    fn accept_empty(&mut self, at: u32);
}

struct NativeReading<'a>(&'a [u8]);

impl CheckedBytes for NativeReading<'_> {
    fn get(&self) -> &[u8] {
        self.0
    }
    fn window_at(&self) -> u32 {
        0
    }
    fn accept(&mut self, _at: u32, _off8: u32) {}
    fn accept_empty(&mut self, _at: u32) {}
}

struct Relocating<'a> {
    bytes: &'a mut [u8],
    window_at: u32,
}

impl Relocating<'_> {
    fn set(&mut self, at: u32, off8: u32) {
        set_offset(self.bytes, at, off8);
    }
}

fn set_offset(bytes: &mut [u8], at: u32, off8: u32) {
    let rest = bytes.get_mut(at as usize..);
    if let Some(slot) = rest.and_then(|rest| rest.first_chunk_mut()) {
        *slot = off8.to_le_bytes();
    }
}

impl CheckedBytes for Relocating<'_> {
    fn get(&self) -> &[u8] {
        self.bytes
    }
    fn window_at(&self) -> u32 {
        self.window_at
    }
    fn accept(&mut self, at: u32, off8: u32) {
        self.set(at, off8 + self.window_at);
    }
    fn accept_empty(&mut self, at: u32) {
        self.set(at, 0);
    }
}

struct MadeMovable<'a> {
    bytes: &'a mut [u8],
    window_at: u32,
}

impl CheckedBytes for MadeMovable<'_> {
    fn get(&self) -> &[u8] {
        self.bytes
    }
    fn window_at(&self) -> u32 {
        0
    }
    fn relative_to_start(&self, off8: u32) -> u32 {
        // One that is too small comes out past every message, and is refused.
        off8.wrapping_sub(self.window_at)
    }
    fn accept(&mut self, at: u32, off8: u32) {
        set_offset(self.bytes, at, off8);
    }
    fn accept_empty(&mut self, at: u32) {
        set_offset(self.bytes, at, 0);
    }
}

/// Where a block may be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BlockHome {
    /// Behind the block before it.
    Head,
    /// There, or in the tail: it is a leaf.
    HeadOrTail,
}

struct Validator<'a, B> {
    tables: &'a Tables,
    bytes: B,
    /// Where the last block of the head ends, without padding.
    head_end: u32,
    /// Where the head must have ended: where the tail begins, or the message's length while no tail is known.
    head_limit: u32,
    /// Where the last block of the tail ends, without padding; 0 while no tail is known.
    tail_end: u32,
    len: u32,
}

impl<'a, B: CheckedBytes> Validator<'a, B> {
    fn new(tables: &'a Tables, bytes: B) -> Result<Validator<'a, B>, MessageError> {
        let len = u32::try_from(bytes.get().len())
            .ok()
            .filter(|len| *len <= MESSAGE_BYTES_MAX);
        let len = len.ok_or(MessageError::TooLong {
            max: MESSAGE_BYTES_MAX,
        })?;
        Ok(Validator {
            tables,
            bytes,
            head_end: 0,
            head_limit: len,
            tail_end: 0,
            len,
        })
    }

    fn message(&mut self, message: MessageId) -> Result<(), MessageError> {
        let index = self
            .tables
            .message(message)
            .ok_or(MessageError::Unknown(message))?;
        let size = self.tables.of(index).size;
        if size > self.len {
            return Err(MessageError::Length {
                end: size,
                bytes: self.len,
            });
        }
        self.head_end = size;
        self.follow(index, 0, 0)?;
        self.check_end()
    }

    fn check_end(&self) -> Result<(), MessageError> {
        let has_tail = self.tail_end != 0;
        if has_tail && self.head_end.next_multiple_of(UNIT) != self.head_limit {
            return Err(MessageError::Tail {
                at: self.head_limit,
                head_end: self.head_end,
            });
        }
        let end = if has_tail { self.tail_end } else { self.head_end };
        if end == self.len {
            Ok(())
        } else {
            Err(MessageError::Length { end, bytes: self.len })
        }
    }

    fn follow(&mut self, index: StructIndex, at: u32, depth: u32) -> Result<(), MessageError> {
        if depth > NESTING_MAX {
            return Err(MessageError::Nesting { at });
        }
        let tables = self.tables;
        let mut ops = tables.ops(tables.of(index)).iter();
        while let Some(&op) = ops.next() {
            if let Op::Presence {
                at: word_at, skip, ..
            } = op
            {
                if !self.is_present(at + word_at)? {
                    ops = ops.as_slice()[usize::from(skip)..].iter();
                }
            } else {
                self.apply(op, at, depth)?;
            }
        }
        Ok(())
    }

    fn apply(&mut self, op: Op, base: u32, depth: u32) -> Result<(), MessageError> {
        match op {
            Op::Bool { at } => self.check_bools(base + at, base + at, 1),
            Op::Scalars { at, element_bytes } => self
                .list(base + at, element_bytes, BlockHome::HeadOrTail)
                .map(drop),
            Op::Text { at } => self.text(base + at, BlockHome::HeadOrTail),
            Op::KeyText { at } => self.text(base + at, BlockHome::Head),
            Op::Bools { at } => match self.list(base + at, 1, BlockHome::Head)? {
                Some((place, count)) => self.check_bools(base + at, place, count),
                None => Ok(()),
            },
            Op::Texts { at } => self.references(base + at, |walk, at| walk.text(at, BlockHome::HeadOrTail)),
            Op::Blobs { at } => self.references(base + at, |walk, at| {
                walk.list(at, 1, BlockHome::HeadOrTail).map(drop)
            }),
            Op::Structs { at, index } => self.structs(base + at, index, depth),
            Op::Pairs { at, index } => self.pairs(base + at, index, depth),
            Op::Boxed { at, index } => self.boxed(base + at, index, depth),
            Op::Inline { at, index } => self.follow(index, base + at, depth + 1),
            Op::Oneof { at, choices, .. } => {
                let tag = self.word(base + at)?;
                match self.tables.choice(choices, tag) {
                    Some(choice) => choice.op.map_or(Ok(()), |op| self.apply(op, base, depth)),
                    None if tag == 0 => Ok(()),
                    None => Err(MessageError::Tag { at: base + at, tag }),
                }
            }
            // What padding holds is of no concern; `follow` deals with presence.
            Op::Padding { .. } | Op::Presence { .. } => Ok(()),
        }
    }

    fn text(&mut self, at: u32, home: BlockHome) -> Result<(), MessageError> {
        let Some((place, bytes)) = self.list(at, 1, home)? else {
            return Ok(());
        };
        let text = native::slice(self.bytes.get(), place, bytes).unwrap_or_default();
        std::str::from_utf8(text)
            .map(drop)
            .map_err(|_| MessageError::Utf8 { at })
    }

    fn references(
        &mut self,
        at: u32,
        each: impl Fn(&mut Self, u32) -> Result<(), MessageError>,
    ) -> Result<(), MessageError> {
        let Some((place, count)) = self.list(at, REFERENCE_BYTES, BlockHome::Head)? else {
            return Ok(());
        };
        (0..count).try_for_each(|element| each(self, place + element * REFERENCE_BYTES))
    }

    fn structs(&mut self, at: u32, index: StructIndex, depth: u32) -> Result<(), MessageError> {
        let of = self.tables.of(index);
        let Some((place, count)) = self.list(at, of.size, BlockHome::Head)? else {
            return Ok(());
        };
        if !of.checked {
            return if depth < NESTING_MAX {
                Ok(())
            } else {
                Err(MessageError::Nesting { at })
            };
        }
        (0..count).try_for_each(|element| self.follow(index, place + element * of.size, depth + 1))
    }

    fn pairs(&mut self, at: u32, index: StructIndex, depth: u32) -> Result<(), MessageError> {
        let of = self.tables.of(index);
        let Some((place, count)) = self.list(at, of.size, BlockHome::Head)? else {
            return Ok(());
        };
        for pair in (0..count).map(|element| place + element * of.size) {
            self.follow(index, pair, depth)?;
            if pair == place {
                continue;
            }
            let (bytes, window_at) = (self.bytes.get(), self.bytes.window_at());
            let order = of
                .key
                .and_then(|ty| native::compare_keys(bytes, window_at, ty, pair - of.size, pair));
            if order != Some(Ordering::Less) {
                return Err(MessageError::KeyOrder { at: pair });
            }
        }
        Ok(())
    }

    fn boxed(&mut self, at: u32, index: StructIndex, depth: u32) -> Result<(), MessageError> {
        let off8 = self.bytes.relative_to_start(self.word(at)?);
        let place = self.block(at, off8, u64::from(self.tables.of(index).size), BlockHome::Head)?;
        self.follow(index, place, depth + 1)
    }

    /// Checks where a reference points. Its place and count, `None` if it is empty.
    fn list(
        &mut self,
        at: u32,
        element_bytes: u32,
        home: BlockHome,
    ) -> Result<Option<(u32, u32)>, MessageError> {
        let misplaced = MessageError::Reference { at, bytes: 0 };
        let (off8, count) = native::reference(self.bytes.get(), at).ok_or(misplaced)?;
        if count == 0 {
            self.bytes.accept_empty(at);
            return Ok(None);
        }
        let off8 = self.bytes.relative_to_start(off8);
        let place = self.block(at, off8, u64::from(count) * u64::from(element_bytes), home)?;
        Ok(Some((place, count)))
    }

    /// Checks that a block is exactly where the next one must be.
    fn block(&mut self, at: u32, off8: u32, bytes: u64, home: BlockHome) -> Result<u32, MessageError> {
        let place = u64::from(off8) * u64::from(UNIT);
        let end = place + bytes;
        let in_head = place == u64::from(self.head_end.next_multiple_of(UNIT));
        let in_tail = !in_head && home == BlockHome::HeadOrTail && self.is_next_of_tail(place);
        let limit = if in_head { self.head_limit } else { self.len };
        if !(in_head || in_tail) || end > u64::from(limit) {
            return Err(MessageError::Reference { at, bytes });
        }
        let (place, end) = (place as u32, end as u32);
        if in_head {
            self.head_end = end;
        } else {
            self.head_limit = if self.tail_end == 0 {
                place
            } else {
                self.head_limit
            };
            self.tail_end = end;
        }
        self.bytes.accept(at, off8);
        Ok(place)
    }

    fn is_next_of_tail(&self, place: u64) -> bool {
        match self.tail_end {
            0 => place > u64::from(self.head_end),
            end => place == u64::from(end.next_multiple_of(UNIT)),
        }
    }

    fn is_present(&self, at: u32) -> Result<bool, MessageError> {
        match self.word(at)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(MessageError::Presence { at }),
        }
    }

    fn check_bools(&self, at: u32, place: u32, count: u32) -> Result<(), MessageError> {
        let bools = native::slice(self.bytes.get(), place, count).unwrap_or(&[u8::MAX]);
        if bools.iter().fold(0, |all, byte| all | byte) > 1 {
            return Err(MessageError::Bool { at });
        }
        Ok(())
    }

    fn word(&self, at: u32) -> Result<u32, MessageError> {
        native::word(self.bytes.get(), at).ok_or(MessageError::Reference { at, bytes: 0 })
    }
}
