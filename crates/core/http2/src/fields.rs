//! Lists of fields, flat: one run of bytes for all names and values.

use crate::hpack::ENTRY_OVERHEAD_BYTES;

/// Whether a field may enter dynamic tables, the peer's and those of intermediaries (RFC 7541, section 6.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FieldIndexing {
    /// The encoder decides, by name and size.
    #[default]
    Automatic,
    /// Not here: its value will not come again.
    Without,
    /// Nowhere on its way: its value is a secret that might be guessed (RFC 7541, section 7.1.3).
    Never,
}

/// The fields of a head or of trailers, in their order; pseudo-header fields among them.
///
/// ```
/// use provost_http2::FieldList;
///
/// let mut head = FieldList::new();
/// head.push(b":status", b"200");
/// head.push(b"content-type", b"application/grpc");
/// assert_eq!(head.get(b"content-type"), Some(&b"application/grpc"[..]));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldList {
    bytes: Vec<u8>,
    fields: Vec<FieldRange>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FieldRange {
    start: usize,
    name_end: usize,
    end: usize,
    indexing: FieldIndexing,
}

/// A field of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldRef<'a> {
    /// In lower case; a pseudo-header field's begins with a colon.
    pub name: &'a [u8],
    /// Any bytes but NUL, CR and LF.
    pub value: &'a [u8],
    /// What is known of its secrecy.
    pub indexing: FieldIndexing,
}

impl FieldRef<'_> {
    /// What the field counts towards a limit of lists (RFC 9113, section 6.5.2).
    #[must_use]
    pub fn list_bytes(&self) -> usize {
        self.name.len() + self.value.len() + ENTRY_OVERHEAD_BYTES
    }
}

impl FieldList {
    /// A list of no fields.
    #[must_use]
    pub fn new() -> FieldList {
        FieldList::default()
    }

    /// Makes room for so many more fields, with so many bytes of names and values.
    pub fn make_room(&mut self, fields: usize, bytes: usize) {
        self.bytes.reserve(bytes);
        self.fields.reserve(fields);
    }

    /// Bytes of all names and values.
    #[must_use]
    pub fn text_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Appends a field; the encoder decides whether it enters the dynamic table.
    pub fn push(&mut self, name: &[u8], value: &[u8]) {
        self.push_field(name, value, FieldIndexing::Automatic);
    }

    /// Appends a field, and says what tables it may enter.
    pub fn push_field(&mut self, name: &[u8], value: &[u8], indexing: FieldIndexing) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(name);
        let name_end = self.bytes.len();
        self.bytes.extend_from_slice(value);
        self.close(start, name_end, indexing);
    }

    /// How many fields there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.fields.len()
    }

    /// Whether there is no field.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// The field at this place.
    #[must_use]
    pub fn field(&self, place: usize) -> Option<FieldRef<'_>> {
        self.fields.get(place).map(|range| self.at(range))
    }

    /// All fields, in their order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = FieldRef<'_>> {
        self.fields.iter().map(|range| self.at(range))
    }

    /// The value of the first field of this name.
    #[must_use]
    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        self.iter()
            .find(|field| field.name == name)
            .map(|field| field.value)
    }

    /// What the list counts towards a limit (RFC 9113, section 6.5.2).
    #[must_use]
    pub fn list_bytes(&self) -> usize {
        self.bytes.len() + self.fields.len() * ENTRY_OVERHEAD_BYTES
    }

    /// All `cookie` fields as one value, as they must be before they leave HTTP/2 (RFC 9113, section 8.2.3).
    #[must_use]
    pub fn joined_cookies(&self) -> Option<Vec<u8>> {
        let values: Vec<&[u8]> = self
            .iter()
            .filter(|field| field.name == b"cookie")
            .map(|field| field.value)
            .collect();
        (!values.is_empty()).then(|| values.join(&b"; "[..]))
    }

    /// Removes all fields, and keeps their memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.fields.clear();
    }

    /// What the list takes of memory, fields or not.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.bytes.capacity() + self.fields.capacity() * size_of::<FieldRange>()
    }

    /// The run of bytes, to append a name and a value to. [`FieldList::close`] makes them a field.
    pub(crate) fn open(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Makes a field of what was appended since `start`.
    pub(crate) fn close(&mut self, start: usize, name_end: usize, indexing: FieldIndexing) {
        let end = self.bytes.len();
        self.fields.push(FieldRange {
            start,
            name_end,
            end,
            indexing,
        });
    }

    /// Takes the last field away.
    pub(crate) fn pop(&mut self) {
        if let Some(last) = self.fields.pop() {
            self.bytes.truncate(last.start);
        }
    }

    /// Gives back memory beyond what an ordinary head needs.
    pub(crate) fn shrink(&mut self, bytes_kept: usize) {
        if self.bytes.capacity() > bytes_kept {
            self.bytes.shrink_to(bytes_kept);
            self.fields.shrink_to(bytes_kept / ENTRY_OVERHEAD_BYTES);
        }
    }

    fn at(&self, range: &FieldRange) -> FieldRef<'_> {
        FieldRef {
            name: &self.bytes[range.start..range.name_end],
            value: &self.bytes[range.name_end..range.end],
            indexing: range.indexing,
        }
    }
}

impl<N: AsRef<[u8]>, V: AsRef<[u8]>> FromIterator<(N, V)> for FieldList {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(fields: I) -> FieldList {
        let mut list = FieldList::new();
        for (name, value) in fields {
            list.push(name.as_ref(), value.as_ref());
        }
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 9113, section 8.2.3: cookies are joined before they leave HTTP/2.
    #[test]
    fn rfc9113_8_2_3_cookies_are_joined() {
        let list: FieldList = [("cookie", "a=b"), ("x", "y"), ("cookie", "c=d")]
            .into_iter()
            .collect();
        assert_eq!(list.joined_cookies().unwrap(), b"a=b; c=d");
        assert_eq!(FieldList::new().joined_cookies(), None);
    }
}
