//! Outbound: from an app's memory to a private copy.
//!
//! Each struct is copied first and then read from the copy, so that nothing is read twice from memory that the app
//! can change in between.

use std::cmp::Ordering;
use std::num::NonZeroUsize;

use provost_schema::MessageId;
use provost_wire::limits::{GATHER_SEGMENT_BYTES_MIN, GATHER_SEGMENTS_MAX, MESSAGE_BYTES_MAX, NESTING_MAX};

use crate::native::{self, UNIT};
use crate::tables::{Op, REFERENCE_BYTES, StructIndex, WORD_BYTES};
use crate::{ForeignRegion, GatherError, MessageError, Tables};

/// A large string, byte string or list of scalars that was left where it is, in the app's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// Address of its first byte in this process.
    pub address: NonZeroUsize,
    /// Its length in bytes.
    pub bytes: u32,
}

/// What came of gathering a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatherOutcome {
    /// The length of the whole message, or why there is none.
    pub outcome: Result<u32, GatherError>,
    /// Bytes that were copied to the head, also of a message that was refused.
    pub copied_bytes: u64,
}

impl Tables {
    /// Copies the message whose root struct is at window offset `root` (in units of 8 bytes) out of an app's memory.
    ///
    /// Structure and small leaves are appended to `head`, from its end rounded up to 8 bytes; large leaves are
    /// appended to `leaves` by address. Together they are the linear message: the head, then (if there are leaves, the
    /// head padded to 8 bytes) each leaf, padded to 8 bytes but for the last. Returns the length of the whole.
    ///
    /// All that is copied has been checked; what is left in `leaves` may change until it is sent, so the receiver must
    /// check it (the text of a large string is all there is to check). After an error `head` and `leaves` are as
    /// before.
    pub fn gather(
        &self,
        message: MessageId,
        root: u32,
        source: &ForeignRegion,
        head: &mut Vec<u8>,
        leaves: &mut Vec<Leaf>,
        message_bytes_max: u32,
    ) -> Result<u32, GatherError> {
        self.gather_counted(message, root, source, head, leaves, message_bytes_max)
            .outcome
    }

    /// As [`Tables::gather`], and says what it cost: an app can have much copied of what comes to nothing.
    pub fn gather_counted(
        &self,
        message: MessageId,
        root: u32,
        source: &ForeignRegion,
        head: &mut Vec<u8>,
        leaves: &mut Vec<Leaf>,
        message_bytes_max: u32,
    ) -> GatherOutcome {
        let Some(index) = self.message(message) else {
            return GatherOutcome {
                outcome: Err(MessageError::Unknown(message).into()),
                copied_bytes: 0,
            };
        };
        let (head_before, leaves_before) = (head.len(), leaves.len());
        head.resize(head_before.next_multiple_of(UNIT as usize), 0);
        let mut gatherer = Gatherer {
            tables: self,
            source,
            base: head.len(),
            head,
            first_leaf: leaves_before,
            leaves,
            tail_bytes: 0,
            last_leaf_at: NO_LEAF,
            end: 0,
            leaves_max: GATHER_SEGMENTS_MAX,
            bytes_max: message_bytes_max.min(MESSAGE_BYTES_MAX),
        };
        let outcome = gatherer.message(index, root);
        let copied_bytes = (head.len() - head_before) as u64;
        if outcome.is_err() {
            head.truncate(head_before);
            leaves.truncate(leaves_before);
        }
        GatherOutcome {
            outcome,
            copied_bytes,
        }
    }

    /// Writes the message whose root struct is at window offset `root` to the beginning of `out`, as one linear message
    /// without a tail, and returns its length: each byte is copied once. `out` needs room for the message's last block
    /// with its padding.
    ///
    /// All that is written has been checked. After an error what is in `out` is worthless.
    pub fn gather_to(
        &self,
        message: MessageId,
        root: u32,
        source: &ForeignRegion,
        out: &mut [u8],
    ) -> Result<u32, GatherError> {
        let index = self.message(message).ok_or(MessageError::Unknown(message))?;
        let bytes_max = (out.len() as u64 / u64::from(UNIT) * u64::from(UNIT)).min(MESSAGE_BYTES_MAX.into());
        let mut gatherer = Gatherer {
            tables: self,
            source,
            base: 0,
            head: &mut FixedMemory {
                bytes: out,
                length: 0,
            },
            first_leaf: 0,
            leaves: &mut Vec::new(),
            tail_bytes: 0,
            last_leaf_at: NO_LEAF,
            end: 0,
            leaves_max: 0,
            bytes_max: bytes_max as u32,
        };
        gatherer.message(index, root)
    }
}

/// Where the head of a message is put together.
trait HeadMemory {
    fn bytes(&self) -> &[u8];
    fn bytes_mut(&mut self) -> &mut [u8];
    fn truncate(&mut self, bytes: usize);
    /// Copies a block to the end, and zeros up to the next multiple of 8.
    fn append(&mut self, source: &ForeignRegion, off8: u32, bytes: u32) -> Result<(), GatherError>;
}

impl HeadMemory for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }
    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }
    fn truncate(&mut self, bytes: usize) {
        self.truncate(bytes);
    }
    fn append(&mut self, source: &ForeignRegion, off8: u32, bytes: u32) -> Result<(), GatherError> {
        source.copy_padded(off8, bytes, self)
    }
}

/// Memory of a fixed size, of which so much is used.
struct FixedMemory<'a> {
    bytes: &'a mut [u8],
    length: usize,
}

impl HeadMemory for FixedMemory<'_> {
    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.length]
    }
    fn truncate(&mut self, bytes: usize) {
        self.length = self.length.min(bytes);
    }
    fn append(&mut self, source: &ForeignRegion, off8: u32, bytes: u32) -> Result<(), GatherError> {
        let end = self.length + (bytes as usize).next_multiple_of(UNIT as usize);
        let max = self.bytes.len() as u32;
        let room = self
            .bytes
            .get_mut(self.length..end)
            .ok_or(MessageError::TooLong { max })?;
        source.copy_padded_to(off8, bytes, room)?;
        self.length = end;
        Ok(())
    }
}

/// The end of the chain of leaves.
const NO_LEAF: u32 = u32::MAX;

struct Gatherer<'a, H> {
    tables: &'a Tables,
    source: &'a ForeignRegion,
    head: &'a mut H,
    /// Where the message begins in `head`, a multiple of 8. All places are relative to it.
    base: usize,
    leaves: &'a mut Vec<Leaf>,
    /// How many leaves were there before.
    first_leaf: usize,
    /// Length of the leaves, each padded to 8 bytes.
    tail_bytes: u32,
    /// Where the reference to the newest leaf is. While the head grows, the offset in it is the place of the reference
    /// before it, and so on back to `NO_LEAF`.
    last_leaf_at: u32,
    /// Where the last block of the head ends, without padding.
    end: u32,
    /// How many leaves may be left where they are.
    leaves_max: usize,
    bytes_max: u32,
}

impl<H: HeadMemory> Gatherer<'_, H> {
    fn message(&mut self, index: StructIndex, root: u32) -> Result<u32, GatherError> {
        let at = self.block(root, u64::from(self.tables.of(index).size))?;
        self.follow(index, at, 0)?;
        let bytes = self.finish();
        if bytes > self.bytes_max {
            return Err(self.too_long());
        }
        Ok(bytes)
    }

    /// Gives the leaves their places behind the head, and returns the length of the whole message.
    fn finish(&mut self) -> u32 {
        let leaves = &self.leaves[self.first_leaf..];
        let Some(last) = leaves.last() else {
            self.head.truncate(self.base + self.end as usize);
            return self.end;
        };
        let mut place = self.end.next_multiple_of(UNIT) + self.tail_bytes;
        let bytes = place - (last.bytes.next_multiple_of(UNIT) - last.bytes);
        let mut reference_at = self.last_leaf_at;
        for leaf in leaves.iter().rev() {
            place -= leaf.bytes.next_multiple_of(UNIT);
            let slot = &mut self.head.bytes_mut()[self.base + reference_at as usize..][..WORD_BYTES as usize];
            reference_at = u32::from_le_bytes([slot[0], slot[1], slot[2], slot[3]]);
            slot.copy_from_slice(&(place / UNIT).to_le_bytes());
        }
        bytes
    }

    /// Does all that there is to do with the struct whose copy is at `at`.
    fn follow(&mut self, index: StructIndex, at: u32, depth: u32) -> Result<(), GatherError> {
        if depth > NESTING_MAX {
            return Err(MessageError::Nesting { at }.into());
        }
        let tables = self.tables;
        let mut ops = tables.ops(tables.of(index)).iter();
        while let Some(&op) = ops.next() {
            if let Op::Presence {
                at: word_at,
                value_at,
                value_bytes,
                skip,
            } = op
            {
                if !self.is_present(at + word_at)? {
                    self.clear(at + value_at, u32::from(value_bytes));
                    ops = ops.as_slice()[usize::from(skip)..].iter();
                }
            } else {
                self.apply(op, at, depth)?;
            }
        }
        Ok(())
    }

    fn apply(&mut self, op: Op, base: u32, depth: u32) -> Result<(), GatherError> {
        match op {
            Op::Bool { at } => self.check_bools(base + at, base + at, 1),
            Op::Scalars { at, element_bytes } => self.scalars(base + at, element_bytes),
            Op::Text { at } => self.text(base + at),
            Op::KeyText { at } => self.copied_text(base + at),
            Op::Bools { at } => match self.list(base + at, 1)? {
                Some((place, count)) => self.check_bools(base + at, place, count),
                None => Ok(()),
            },
            Op::Texts { at } => self.references(base + at, Self::text),
            Op::Blobs { at } => self.references(base + at, |gatherer, at| gatherer.scalars(at, 1)),
            Op::Structs { at, index } => self.structs(base + at, index, depth),
            Op::Pairs { at, index } => self.pairs(base + at, index, depth),
            Op::Boxed { at, index } => self.boxed(base + at, index, depth),
            Op::Inline { at, index } => self.follow(index, base + at, depth + 1),
            Op::Oneof {
                at,
                value_at,
                value_bytes,
                choices,
            } => {
                let tag = self.word(base + at);
                let Some(choice) = self.tables.choice(choices, tag) else {
                    if tag != 0 {
                        return Err(MessageError::Tag { at: base + at, tag }.into());
                    }
                    self.clear(base + value_at, value_bytes);
                    return Ok(());
                };
                self.clear(
                    base + value_at + choice.value_bytes,
                    value_bytes - choice.value_bytes,
                );
                choice.op.map_or(Ok(()), |op| self.apply(op, base, depth))
            }
            Op::Padding { at, bytes } => {
                self.clear(base + at, bytes);
                Ok(())
            }
            // Only `follow` can skip what belongs to an absent value.
            Op::Presence { .. } => Ok(()),
        }
    }

    fn text(&mut self, at: u32) -> Result<(), GatherError> {
        if self.take_leaf(at, 1)? {
            Ok(())
        } else {
            self.copied_text(at)
        }
    }

    fn copied_text(&mut self, at: u32) -> Result<(), GatherError> {
        let Some((place, bytes)) = self.list(at, 1)? else {
            return Ok(());
        };
        match std::str::from_utf8(self.bytes(place, bytes)) {
            Ok(_) => Ok(()),
            Err(_) => Err(MessageError::Utf8 { at }.into()),
        }
    }

    fn scalars(&mut self, at: u32, element_bytes: u32) -> Result<(), GatherError> {
        if !self.take_leaf(at, element_bytes)? {
            self.list(at, element_bytes)?;
        }
        Ok(())
    }

    fn references(
        &mut self,
        at: u32,
        each: impl Fn(&mut Self, u32) -> Result<(), GatherError>,
    ) -> Result<(), GatherError> {
        let Some((place, count)) = self.list(at, REFERENCE_BYTES)? else {
            return Ok(());
        };
        (0..count).try_for_each(|element| each(self, place + element * REFERENCE_BYTES))
    }

    fn structs(&mut self, at: u32, index: StructIndex, depth: u32) -> Result<(), GatherError> {
        let size = self.tables.of(index).size;
        let Some((place, count)) = self.list(at, size)? else {
            return Ok(());
        };
        if !self.tables.of(index).checked {
            self.clear_padding(index, place, count);
            return self.check_depth(at, depth + 1);
        }
        (0..count).try_for_each(|element| self.follow(index, place + element * size, depth + 1))
    }

    /// Clears the padding of structs that have nothing else to do with.
    fn clear_padding(&mut self, index: StructIndex, place: u32, count: u32) {
        let (tables, of) = (self.tables, self.tables.of(index));
        for op in tables.ops(of) {
            let Op::Padding { at, bytes } = *op else { continue };
            for element in 0..count {
                for byte in 0..bytes {
                    self.head.bytes_mut()[self.base + (place + element * of.size + at + byte) as usize] = 0;
                }
            }
        }
    }

    fn pairs(&mut self, at: u32, index: StructIndex, depth: u32) -> Result<(), GatherError> {
        let of = self.tables.of(index);
        let Some((place, count)) = self.list(at, of.size)? else {
            return Ok(());
        };
        for pair in (0..count).map(|element| place + element * of.size) {
            self.follow(index, pair, depth)?;
            if pair == place {
                continue;
            }
            let message = &self.head.bytes()[self.base..];
            let order = of
                .key
                .and_then(|ty| native::compare_keys(message, 0, ty, pair - of.size, pair));
            if order != Some(Ordering::Less) {
                return Err(MessageError::KeyOrder { at: pair }.into());
            }
        }
        Ok(())
    }

    fn boxed(&mut self, at: u32, index: StructIndex, depth: u32) -> Result<(), GatherError> {
        let of = self.tables.of(index);
        let place = self.block(self.word(at), u64::from(of.size))?;
        self.set_word(at, place / UNIT);
        self.follow(index, place, depth + 1)
    }

    /// Leaves a large leaf where it is. Whether it did.
    fn take_leaf(&mut self, at: u32, element_bytes: u32) -> Result<bool, GatherError> {
        let (off8, count) = self.reference(at);
        let bytes = u64::from(count) * u64::from(element_bytes);
        let taken = self.leaves.len() - self.first_leaf;
        if bytes < u64::from(GATHER_SEGMENT_BYTES_MIN) || taken >= self.leaves_max {
            return Ok(false);
        }
        let bytes = self.within_budget(bytes)?;
        let address = self.source.locate(off8, u64::from(bytes))?;
        self.leaves.push(Leaf { address, bytes });
        self.tail_bytes += bytes.next_multiple_of(UNIT);
        self.set_word(at, self.last_leaf_at);
        self.last_leaf_at = at;
        Ok(true)
    }

    /// Copies what a reference names, and has the reference name the copy. Its place and count, `None` if empty.
    fn list(&mut self, at: u32, element_bytes: u32) -> Result<Option<(u32, u32)>, GatherError> {
        let (off8, count) = self.reference(at);
        if count == 0 {
            self.set_word(at, 0);
            return Ok(None);
        }
        let place = self.block(off8, u64::from(count) * u64::from(element_bytes))?;
        self.set_word(at, place / UNIT);
        Ok(Some((place, count)))
    }

    /// Copies a block to the end of the head.
    fn block(&mut self, off8: u32, bytes: u64) -> Result<u32, GatherError> {
        let bytes = self.within_budget(bytes)?;
        let place = (self.head.bytes().len() - self.base) as u32;
        self.head.append(self.source, off8, bytes)?;
        self.end = place + bytes;
        Ok(place)
    }

    /// Checks that the message stays within its limit with this many bytes more.
    fn within_budget(&self, bytes: u64) -> Result<u32, GatherError> {
        let so_far = (self.head.bytes().len() - self.base) as u64 + u64::from(self.tail_bytes);
        if so_far + bytes > u64::from(self.bytes_max) {
            return Err(self.too_long());
        }
        Ok(bytes as u32)
    }

    fn too_long(&self) -> GatherError {
        MessageError::TooLong { max: self.bytes_max }.into()
    }

    fn check_depth(&self, at: u32, depth: u32) -> Result<(), GatherError> {
        if depth > NESTING_MAX {
            Err(MessageError::Nesting { at }.into())
        } else {
            Ok(())
        }
    }

    fn is_present(&self, at: u32) -> Result<bool, GatherError> {
        match self.word(at) {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(MessageError::Presence { at }.into()),
        }
    }

    fn check_bools(&self, at: u32, place: u32, count: u32) -> Result<(), GatherError> {
        if self.bytes(place, count).iter().fold(0, |all, byte| all | byte) > 1 {
            return Err(MessageError::Bool { at }.into());
        }
        Ok(())
    }

    fn clear(&mut self, at: u32, bytes: u32) {
        self.head.bytes_mut()[self.base + at as usize..][..bytes as usize].fill(0);
    }

    fn bytes(&self, at: u32, bytes: u32) -> &[u8] {
        &self.head.bytes()[self.base + at as usize..][..bytes as usize]
    }

    fn word(&self, at: u32) -> u32 {
        native::word(&self.head.bytes()[self.base..], at).unwrap_or_default()
    }

    fn reference(&self, at: u32) -> (u32, u32) {
        native::reference(&self.head.bytes()[self.base..], at).unwrap_or_default()
    }

    fn set_word(&mut self, at: u32, word: u32) {
        self.head.bytes_mut()[self.base + at as usize..][..WORD_BYTES as usize]
            .copy_from_slice(&word.to_le_bytes());
    }
}
