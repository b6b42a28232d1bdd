//! Numbers and byte strings, little-endian, as they are written to peers and to files, and read back with every length
//! checked.

/// Writes behind what is there.
pub(crate) trait PutBytes {
    fn put_u8(&mut self, value: u8);
    fn put_u64(&mut self, value: u64);
    /// Bytes, with their number before them.
    fn put_bytes(&mut self, bytes: &[u8]);
}

impl PutBytes for Vec<u8> {
    fn put_u8(&mut self, value: u8) {
        self.push(value);
    }

    fn put_u64(&mut self, value: u64) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn put_bytes(&mut self, bytes: &[u8]) {
        self.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        self.extend_from_slice(bytes);
    }
}

/// Takes from the front; `None` once something is missing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordReader<'b>(&'b [u8]);

impl<'b> RecordReader<'b> {
    pub(crate) fn new(bytes: &'b [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn take(&mut self, bytes: usize) -> Option<&'b [u8]> {
        let (front, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(front)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        Some(self.take(1)?[0])
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    /// Bytes with their number before them.
    pub(crate) fn bytes(&mut self) -> Option<&'b [u8]> {
        let length = self.u32()? as usize;
        self.take(length)
    }

    /// As [`RecordReader::bytes`], if there are no more than so many.
    pub(crate) fn bytes_within(&mut self, bytes_max: usize) -> Option<&'b [u8]> {
        self.bytes().filter(|bytes| bytes.len() <= bytes_max)
    }

    /// What was read, if nothing is left over.
    pub(crate) fn finish<T>(self, value: T) -> Option<T> {
        self.is_empty().then_some(value)
    }
}
