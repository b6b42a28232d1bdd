//! The bytes of a saved state: fields one behind the other, little-endian, lengths before what they count.

use crate::{NotSaved, RestoreError};

/// Writes fields. What it wrote is read by a [`FieldReader`] in the same order.
#[derive(Clone, Debug, Default)]
pub struct FieldWriter {
    /// What was written.
    pub bytes: Vec<u8>,
}

impl FieldWriter {
    /// Nothing yet.
    #[must_use]
    pub fn new() -> FieldWriter {
        FieldWriter::default()
    }

    /// A byte.
    pub fn u8(&mut self, value: u8) {
        self.bytes.push(value);
    }

    /// A truth value: 0 or 1.
    pub fn flag(&mut self, value: bool) {
        self.bytes.push(u8::from(value));
    }

    /// Two bytes.
    pub fn u16(&mut self, value: u16) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// Four bytes.
    pub fn u32(&mut self, value: u32) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// Eight bytes.
    pub fn u64(&mut self, value: u64) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// Eight bytes.
    pub fn i64(&mut self, value: i64) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// How many of something follow. What an engine has is bounded far below 2³².
    pub fn count(&mut self, count: usize) {
        self.u32(u32::try_from(count).unwrap_or(u32::MAX));
    }

    /// A length and so many bytes.
    pub fn run(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.bytes.extend_from_slice(bytes);
    }

    /// A length and a text.
    pub fn text(&mut self, text: &str) {
        self.run(text.as_bytes());
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

    /// The same for what was not saved beside the state.
    pub fn not_saved(&self, error: NotSaved) -> RestoreError {
        self.damaged(error.to_string())
    }

    /// So many bytes.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], RestoreError> {
        let (field, rest) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or_else(|| self.damaged("it ends in the midst of a field"))?;
        self.rest = rest;
        Ok(*field)
    }

    /// A byte.
    pub fn u8(&mut self) -> Result<u8, RestoreError> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// A truth value.
    pub fn flag(&mut self) -> Result<bool, RestoreError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(self.damaged(format!("{other} is no truth value"))),
        }
    }

    /// Two bytes.
    pub fn u16(&mut self) -> Result<u16, RestoreError> {
        self.array().map(u16::from_le_bytes)
    }

    /// Four bytes.
    pub fn u32(&mut self) -> Result<u32, RestoreError> {
        self.array().map(u32::from_le_bytes)
    }

    /// Eight bytes.
    pub fn u64(&mut self) -> Result<u64, RestoreError> {
        self.array().map(u64::from_le_bytes)
    }

    /// Eight bytes.
    pub fn i64(&mut self) -> Result<i64, RestoreError> {
        self.array().map(i64::from_le_bytes)
    }

    /// How many of something follow, at most `max`.
    pub fn count(&mut self, max: usize) -> Result<usize, RestoreError> {
        let count = self.u32()? as usize;
        match count <= max {
            true => Ok(count),
            false => Err(self.damaged(format!("{count} items where {max} are the most"))),
        }
    }

    /// A length and so many bytes.
    pub fn run(&mut self) -> Result<&'a [u8], RestoreError> {
        let length = self.u32()? as usize;
        let (run, rest) = self
            .rest
            .split_at_checked(length)
            .ok_or_else(|| self.damaged(format!("{length} bytes are announced, which are not there")))?;
        self.rest = rest;
        Ok(run)
    }

    /// A length and a text.
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
