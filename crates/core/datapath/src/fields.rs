//! The bytes of a saved state: fields one behind the other, little-endian, lengths before what they count.

use crate::{NotSaved, RestoreError};

/// A value that is a field of saved states, in one form wherever it stands.
pub trait SavedField: Sized {
    fn save(&self, out: &mut FieldWriter);

    /// Reads what [`SavedField::save`] has appended.
    ///
    /// # Errors
    /// The state ends before, or the bytes make no such value.
    fn restore(fields: &mut FieldReader<'_>) -> Result<Self, RestoreError>;
}

impl SavedField for u64 {
    fn save(&self, out: &mut FieldWriter) {
        out.u64(*self);
    }

    fn restore(fields: &mut FieldReader<'_>) -> Result<u64, RestoreError> {
        fields.u64()
    }
}

impl SavedField for String {
    fn save(&self, out: &mut FieldWriter) {
        out.text(self);
    }

    fn restore(fields: &mut FieldReader<'_>) -> Result<String, RestoreError> {
        fields.text().map(str::to_owned)
    }
}

/// A secret: a length and the bytes, of which there must be as many.
impl<const BYTES: usize> SavedField for [u8; BYTES] {
    fn save(&self, out: &mut FieldWriter) {
        out.run(self);
    }

    fn restore(fields: &mut FieldReader<'_>) -> Result<[u8; BYTES], RestoreError> {
        let bytes = fields.run()?.try_into();
        bytes.map_err(|_| fields.damaged(format!("a field is not of {BYTES} bytes")))
    }
}

/// A truth value, and the field if there is one.
impl<T: SavedField> SavedField for Option<T> {
    fn save(&self, out: &mut FieldWriter) {
        out.flag(self.is_some());
        if let Some(value) = self {
            value.save(out);
        }
    }

    fn restore(fields: &mut FieldReader<'_>) -> Result<Option<T>, RestoreError> {
        if fields.flag()? {
            T::restore(fields).map(Some)
        } else {
            Ok(None)
        }
    }
}

impl<A: SavedField, B: SavedField> SavedField for (A, B) {
    fn save(&self, out: &mut FieldWriter) {
        self.0.save(out);
        self.1.save(out);
    }

    fn restore(fields: &mut FieldReader<'_>) -> Result<(A, B), RestoreError> {
        Ok((A::restore(fields)?, B::restore(fields)?))
    }
}

/// No field at all.
impl SavedField for () {
    fn save(&self, _out: &mut FieldWriter) {}

    fn restore(_fields: &mut FieldReader<'_>) -> Result<(), RestoreError> {
        Ok(())
    }
}

impl SavedField for u16 {
    fn save(&self, out: &mut FieldWriter) {
        out.u16(*self);
    }

    fn restore(fields: &mut FieldReader<'_>) -> Result<u16, RestoreError> {
        fields.u16()
    }
}

/// Writes fields. What it wrote is read by a [`FieldReader`] in the same order.
#[derive(Clone, Debug, Default)]
pub struct FieldWriter {
    pub bytes: Vec<u8>,
}

impl FieldWriter {
    /// A writer that has written nothing.
    #[must_use]
    pub fn new() -> FieldWriter {
        FieldWriter::default()
    }

    pub fn u8(&mut self, value: u8) {
        self.bytes.push(value);
    }

    /// Appends a truth value as a byte, 0 or 1.
    pub fn flag(&mut self, value: bool) {
        self.bytes.push(u8::from(value));
    }

    /// Appends two bytes.
    pub fn u16(&mut self, value: u16) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// Appends four bytes.
    pub fn u32(&mut self, value: u32) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// Appends eight bytes.
    pub fn u64(&mut self, value: u64) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// Appends eight bytes of a signed number.
    pub fn i64(&mut self, value: i64) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// How many of something follow. What an engine has is bounded far below 2³².
    pub fn count(&mut self, count: usize) {
        self.u32(u32::try_from(count).unwrap_or(u32::MAX));
    }

    /// Appends a length and so many bytes.
    pub fn run(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.bytes.extend_from_slice(bytes);
    }

    /// Appends a length and the text in UTF-8.
    pub fn text(&mut self, text: &str) {
        self.run(text.as_bytes());
    }

    /// Appends how many there are, and each of them.
    pub fn list<'a, T: SavedField + 'a>(&mut self, values: impl ExactSizeIterator<Item = &'a T>) {
        self.count(values.len());
        values.for_each(|value| value.save(self));
    }

    /// A length and whatever `write` appends.
    pub fn nested(&mut self, write: impl FnOnce(&mut FieldWriter)) {
        let at = self.bytes.len();
        self.u32(0);
        write(self);
        let length = self.bytes.len() - at - 4;
        let length = u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes();
        if let Some(place) = self.bytes.get_mut(at..at + 4) {
            place.copy_from_slice(&length);
        }
    }
}

/// Reads fields, and says what is wrong in the name of an engine's kind.
#[derive(Clone, Debug)]
pub struct FieldReader<'a> {
    kind: &'static str,
    rest: &'a [u8],
}

impl<'a> FieldReader<'a> {
    /// Reads these bytes for an engine of this kind.
    #[must_use]
    pub fn new(kind: &'static str, bytes: &'a [u8]) -> FieldReader<'a> {
        FieldReader { kind, rest: bytes }
    }

    /// What to answer to a value that makes no sense.
    pub fn damaged(&self, reason: impl Into<String>) -> RestoreError {
        RestoreError::Damaged {
            kind: self.kind,
            reason: reason.into(),
        }
    }

    /// What to answer to a form that this code does not know.
    pub fn unknown_version(&self, found: u32, newest: u32) -> RestoreError {
        RestoreError::Version {
            kind: self.kind,
            found,
            newest,
        }
    }

    /// What to answer where something was not saved beside the state.
    pub fn not_saved(&self, error: NotSaved) -> RestoreError {
        self.damaged(error.to_string())
    }

    /// Reads bytes of a number that the type says.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], RestoreError> {
        let (field, rest) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or_else(|| self.damaged("it ends in the midst of a field"))?;
        self.rest = rest;
        Ok(*field)
    }

    pub fn u8(&mut self) -> Result<u8, RestoreError> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// Reads a truth value.
    pub fn flag(&mut self) -> Result<bool, RestoreError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(self.damaged(format!("{other} is no truth value"))),
        }
    }

    /// Reads two bytes.
    pub fn u16(&mut self) -> Result<u16, RestoreError> {
        self.array().map(u16::from_le_bytes)
    }

    /// Reads four bytes.
    pub fn u32(&mut self) -> Result<u32, RestoreError> {
        self.array().map(u32::from_le_bytes)
    }

    /// Reads eight bytes.
    pub fn u64(&mut self) -> Result<u64, RestoreError> {
        self.array().map(u64::from_le_bytes)
    }

    /// Reads eight bytes of a signed number.
    pub fn i64(&mut self) -> Result<i64, RestoreError> {
        self.array().map(i64::from_le_bytes)
    }

    /// How many of something follow, at most `max`.
    pub fn count(&mut self, max: usize) -> Result<usize, RestoreError> {
        let count = self.u32()? as usize;
        if count <= max {
            Ok(count)
        } else {
            Err(self.damaged(format!("{count} items where {max} are the most")))
        }
    }

    /// What [`FieldWriter::list`] has appended, of at most `max` values.
    pub fn list<T: SavedField>(&mut self, max: usize) -> Result<Vec<T>, RestoreError> {
        let count = self.count(max)?;
        (0..count).map(|_| T::restore(self)).collect()
    }

    /// Reads a length and so many bytes.
    pub fn run(&mut self) -> Result<&'a [u8], RestoreError> {
        let length = self.u32()? as usize;
        let (run, rest) = self
            .rest
            .split_at_checked(length)
            .ok_or_else(|| self.damaged(format!("{length} bytes are announced, which are not there")))?;
        self.rest = rest;
        Ok(run)
    }

    /// Reads a length and a text.
    pub fn text(&mut self) -> Result<&'a str, RestoreError> {
        let run = self.run()?;
        str::from_utf8(run).map_err(|_| self.damaged("a text is not UTF-8"))
    }

    /// What [`FieldWriter::nested`] wrote.
    pub fn nested(&mut self) -> Result<FieldReader<'a>, RestoreError> {
        Ok(FieldReader {
            kind: self.kind,
            rest: self.run()?,
        })
    }

    /// Whether everything was read.
    #[must_use]
    pub fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    /// Makes sure that nothing is left.
    pub fn end(self) -> Result<(), RestoreError> {
        match self.rest.len() {
            0 => Ok(()),
            left => Err(self.damaged(format!("{left} bytes more than it has fields"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_come_back_in_their_order_and_a_cut_is_noticed() {
        let mut out = FieldWriter::new();
        out.u8(1);
        out.flag(true);
        out.u16(515);
        out.u32(7);
        out.u64(u64::MAX);
        out.i64(-3);
        out.nested(|out| out.text("grüße"));
        let read = |bytes: &[u8]| -> Result<(), RestoreError> {
            let mut fields = FieldReader::new("test", bytes);
            assert_eq!((fields.u8()?, fields.flag()?, fields.u16()?), (1, true, 515));
            assert_eq!((fields.u32()?, fields.u64()?, fields.i64()?), (7, u64::MAX, -3));
            let mut nested = fields.nested()?;
            assert_eq!(nested.text()?, "grüße");
            nested.end()?;
            fields.end()
        };
        assert_eq!(read(&out.bytes), Ok(()));
        for cut in 0..out.bytes.len() {
            assert!(read(&out.bytes[..cut]).is_err());
        }
        out.u8(0);
        assert!(read(&out.bytes).is_err());
    }
}
