//! From the native layout to protobuf.
//!
//! The encoder writes from the last byte to the first: when it comes to the length of a message, the message has been
//! written, so that nothing is measured beforehand and one walk is enough.

use provost_schema::{MessageId, Type};
use provost_wire::limits::{MESSAGE_BYTES_MAX, NESTING_MAX};

use crate::native::{self, UNIT};
use crate::protobuf::{WireType, to_varint};
use crate::tables::{FieldForm, REFERENCE_BYTES, StructIndex, TableField, scalar_bytes};
use crate::{EncodeError, MessageError, Tables};

/// Room that the encoder asks for beyond what a message's native form takes, in bytes.
const SPARE_BYTES: usize = 64;
impl Tables {
    /// Appends the protobuf form of a linear message to `out`: fields in ascending order of their numbers, lists of
    /// scalars packed where the schema says so. The message should have been validated; of one that was not, the
    /// outcome is an error or some message, and takes no longer. After an error `out` is as before.
    pub fn encode(&self, message: MessageId, linear: &[u8], out: &mut Vec<u8>) -> Result<(), EncodeError> {
        self.encode_in_window(message, linear, 0, out)
    }

    /// As [`Tables::encode`], of a message whose references were made relative to a window in which its first byte is at
    /// `window_at` (see [`Tables::validate_and_relocate`]).
    pub fn encode_in_window(
        &self,
        message: MessageId,
        linear: &[u8],
        window_at: u32,
        out: &mut Vec<u8>,
    ) -> Result<(), EncodeError> {
        let index = self.message(message).ok_or(MessageError::Unknown(message))?;
        if linear.len() > MESSAGE_BYTES_MAX as usize {
            return Err(MessageError::TooLong {
                max: MESSAGE_BYTES_MAX,
            }
            .into());
        }
        let start = out.len();
        let mut encoder = Encoder {
            tables: self,
            linear,
            window_at,
            budget: (linear.len() as u64).next_multiple_of(u64::from(UNIT)),
            out: Backward::new(out, linear.len()),
        };
        let outcome = encoder.root(index);
        encoder.out.finish();
        if outcome.is_err() {
            out.truncate(start);
        }
        outcome
    }
}

struct Encoder<'a> {
    tables: &'a Tables,
    linear: &'a [u8],
    /// What was added to its offsets, in units of 8 bytes.
    window_at: u32,
    /// Bytes of blocks that may still be visited: each of a valid message is visited once.
    budget: u64,
    out: Backward<'a>,
}

impl Encoder<'_> {
    fn root(&mut self, index: StructIndex) -> Result<(), EncodeError> {
        let size = self.tables.of(index).size;
        self.spend(0, u64::from(size))?;
        self.fields(index, 0, 0)?;
        self.check_written()
    }

    /// Writes the fields of the struct at `base`, from the last to the first.
    fn fields(&mut self, index: StructIndex, base: u32, depth: u32) -> Result<(), EncodeError> {
        if depth > NESTING_MAX {
            return Err(MessageError::Nesting { at: base }.into());
        }
        let tables = self.tables;
        let mut fields = tables.fields_by_number(tables.of(index)).iter().rev();
        fields.try_for_each(|&field| self.field(tables.field(field), base, depth))
    }

    fn field(&mut self, field: &TableField, base: u32, depth: u32) -> Result<(), EncodeError> {
        let at = base + field.at;
        let is_present = match field.shape {
            FieldForm::Implicit => self.is_not_default(field.ty, at)?,
            FieldForm::Always => true,
            FieldForm::Optional { present_at } => self.word(base + present_at)? != 0,
            FieldForm::Member { tag_at, .. } => self.word(base + tag_at)? == field.number,
            FieldForm::List { packed: true } => return self.packed(field, at),
            FieldForm::List { packed: false } => return self.list(field, at, depth),
            FieldForm::Map { pair } => return self.structs(field, pair, at, depth),
        };
        match (is_present, field.ty, field.shape) {
            (false, ..) => Ok(()),
            (true, Type::Message(message), FieldForm::Always) => {
                self.delimited(field, message.0, at, depth + 1)
            }
            (true, Type::Message(message), _) => {
                let place = self.boxed(message.0, at)?;
                self.delimited(field, message.0, place, depth + 1)
            }
            (true, ty, _) => self.value(field.number, ty, at),
        }
    }

    fn is_not_default(&self, ty: Type, at: u32) -> Result<bool, EncodeError> {
        Ok(match ty {
            Type::String | Type::Bytes => self.reference(at)?.1 != 0,
            _ => self.bits(ty, at)? != 0,
        })
    }

    /// Writes a record of a value that is not a message.
    fn value(&mut self, number: u32, ty: Type, at: u32) -> Result<(), EncodeError> {
        let wire = WireType::of(ty);
        if wire == WireType::Len {
            let (place, bytes) = self.block(at, 1)?;
            let linear = self.linear;
            let bytes = native::slice(linear, place, bytes).ok_or(misplaced(at))?;
            self.out.put(bytes);
            self.out.varint(bytes.len() as u64);
        } else {
            let bits = self.bits(ty, at)?;
            self.scalar(ty, bits);
        }
        self.out.varint(u64::from(wire.tag(number)));
        Ok(())
    }

    fn scalar(&mut self, ty: Type, bits: u64) {
        match WireType::of(ty) {
            WireType::Fixed32 => self.out.put_array((bits as u32).to_le_bytes()),
            WireType::Fixed64 => self.out.put_array(bits.to_le_bytes()),
            _ => self.out.varint(to_varint(ty, bits)),
        }
    }

    /// Writes a record of the struct at `base`.
    fn delimited(
        &mut self,
        field: &TableField,
        index: StructIndex,
        base: u32,
        depth: u32,
    ) -> Result<(), EncodeError> {
        let end = self.out.written();
        self.fields(index, base, depth)?;
        let bytes = self.out.written().saturating_sub(end);
        self.out.varint(bytes as u64);
        self.out.varint(u64::from(WireType::Len.tag(field.number)));
        Ok(())
    }

    fn packed(&mut self, field: &TableField, at: u32) -> Result<(), EncodeError> {
        let element_bytes = scalar_bytes(field.ty).unwrap_or(REFERENCE_BYTES);
        let (place, count) = self.block(at, element_bytes)?;
        if count == 0 {
            return Ok(());
        }
        let linear = self.linear;
        let elements = native::slice(linear, place, count * element_bytes).ok_or(misplaced(at))?;
        let end = self.out.written();
        match WireType::of(field.ty) {
            WireType::Varint => self.varints(field.ty, elements),
            _ => self.out.put(elements),
        }
        let bytes = self.out.written().saturating_sub(end);
        self.out.varint(bytes as u64);
        self.out.varint(u64::from(WireType::Len.tag(field.number)));
        Ok(())
    }

    fn varints(&mut self, ty: Type, elements: &[u8]) {
        let out = &mut self.out;
        match scalar_bytes(ty) {
            Some(1) => elements
                .iter()
                .rev()
                .for_each(|bool| out.varint(u64::from(*bool))),
            Some(4) => {
                let words = elements
                    .as_chunks()
                    .0
                    .iter()
                    .rev()
                    .map(|word| u32::from_le_bytes(*word));
                words.for_each(|word| out.varint(to_varint(ty, u64::from(word))));
            }
            _ => {
                let longs = elements
                    .as_chunks()
                    .0
                    .iter()
                    .rev()
                    .map(|long| u64::from_le_bytes(*long));
                longs.for_each(|long| out.varint(to_varint(ty, long)));
            }
        }
    }

    fn list(&mut self, field: &TableField, at: u32, depth: u32) -> Result<(), EncodeError> {
        if let Type::Message(message) = field.ty {
            return self.structs(field, message.0, at, depth + 1);
        }
        let element_bytes = scalar_bytes(field.ty).unwrap_or(REFERENCE_BYTES);
        let (place, count) = self.block(at, element_bytes)?;
        let places = (0..count).rev().map(|element| place + element * element_bytes);
        places
            .into_iter()
            .try_for_each(|place| self.value(field.number, field.ty, place))
    }

    fn structs(
        &mut self,
        field: &TableField,
        index: StructIndex,
        at: u32,
        depth: u32,
    ) -> Result<(), EncodeError> {
        let size = self.tables.of(index).size;
        let (place, count) = self.block(at, size)?;
        (0..count)
            .rev()
            .try_for_each(|element| self.delimited(field, index, place + element * size, depth))
    }

    fn boxed(&mut self, index: StructIndex, at: u32) -> Result<u32, EncodeError> {
        let place = native::place(self.word(at)?, self.window_at).ok_or(misplaced(at))?;
        self.spend(place, u64::from(self.tables.of(index).size))?;
        Ok(place)
    }

    /// The place and count of what a reference names, once it is known to be there.
    fn block(&mut self, at: u32, element_bytes: u32) -> Result<(u32, u32), EncodeError> {
        let (off8, count) = self.reference(at)?;
        if count == 0 {
            return Ok((0, 0));
        }
        let place = native::place(off8, self.window_at).ok_or(misplaced(at))?;
        self.spend(place, u64::from(count) * u64::from(element_bytes))?;
        Ok((place, count))
    }

    fn spend(&mut self, place: u32, bytes: u64) -> Result<(), EncodeError> {
        let beyond = MessageError::Reference { at: place, bytes };
        if u64::from(place) + bytes > self.linear.len() as u64 {
            return Err(beyond.into());
        }
        let cost = bytes.next_multiple_of(u64::from(UNIT));
        self.budget = self.budget.checked_sub(cost).ok_or(beyond)?;
        Ok(())
    }

    fn check_written(&self) -> Result<(), EncodeError> {
        // What is over is noticed when more room is made, and here.
        if self.out.is_over || self.out.written() > MESSAGE_BYTES_MAX as usize {
            Err(EncodeError::TooLong)
        } else {
            Ok(())
        }
    }

    /// The bits of a scalar; those of a smaller one in the low end.
    fn bits(&self, ty: Type, at: u32) -> Result<u64, EncodeError> {
        let bits = match scalar_bytes(ty) {
            Some(1) => native::byte(self.linear, at).map(u64::from),
            Some(4) => native::word(self.linear, at).map(u64::from),
            _ => native::long(self.linear, at),
        };
        bits.ok_or(misplaced(at))
    }

    fn word(&self, at: u32) -> Result<u32, EncodeError> {
        native::word(self.linear, at).ok_or(misplaced(at))
    }

    fn reference(&self, at: u32) -> Result<(u32, u32), EncodeError> {
        native::reference(self.linear, at).ok_or(misplaced(at))
    }
}

fn misplaced(at: u32) -> EncodeError {
    MessageError::Reference { at, bytes: 0 }.into()
}

/// Bytes that are written from the last to the first, at the end of a vector.
struct Backward<'a> {
    out: &'a mut Vec<u8>,
    /// Length of the vector before.
    start: usize,
    /// Where the first byte written so far is; those from `start` to here are room.
    at: usize,
    /// Whether more was written than a message may have; then what is written is of no use.
    is_over: bool,
}

impl<'a> Backward<'a> {
    fn new(out: &'a mut Vec<u8>, native_bytes: usize) -> Backward<'a> {
        let start = out.len();
        out.resize(start + native_bytes + SPARE_BYTES, 0);
        let at = out.len();
        Backward {
            out,
            start,
            at,
            is_over: false,
        }
    }

    fn written(&self) -> usize {
        self.out.len() - self.at
    }

    fn put(&mut self, bytes: &[u8]) {
        self.make_room(bytes.len());
        self.at -= bytes.len();
        self.out[self.at..][..bytes.len()].copy_from_slice(bytes);
    }

    #[inline]
    fn put_array<const BYTES: usize>(&mut self, bytes: [u8; BYTES]) {
        self.make_room(BYTES);
        self.at -= BYTES;
        if let Some(slot) = self.out[self.at..].first_chunk_mut() {
            *slot = bytes;
        }
    }

    #[inline]
    fn varint(&mut self, mut value: u64) {
        if value < 0x80 {
            return self.put_array([value as u8]);
        }
        // Seven bits a byte: 9/64 is a little more than 1/7, and with this rounding right for all lengths to 64.
        let len = ((u64::BITS - value.leading_zeros()) * 9 + 64) as usize / 64;
        self.make_room(len);
        self.at -= len;
        let Some((last, first)) = self.out[self.at..][..len].split_last_mut() else {
            return;
        };
        for byte in first {
            *byte = value as u8 | 0x80;
            value >>= 7;
        }
        *last = value as u8;
    }

    #[inline]
    fn make_room(&mut self, bytes: usize) {
        if self.at - self.start < bytes {
            self.grow(bytes);
        }
    }

    /// Moves what is written towards the end of a longer vector.
    #[cold]
    fn grow(&mut self, bytes: usize) {
        if self.written() + bytes > MESSAGE_BYTES_MAX as usize {
            self.is_over = true;
            self.at = self.out.len();
        }
        let more = bytes.max(self.out.len() - self.start).max(SPARE_BYTES);
        let end = self.out.len();
        self.out.resize(end + more, 0);
        self.out.copy_within(self.at..end, self.at + more);
        self.at += more;
    }

    /// Moves what is written to the front.
    fn finish(self) {
        let written = self.written();
        self.out.copy_within(self.at.., self.start);
        self.out.truncate(self.start + written);
    }
}
