//! [`Bytes`] and [`String`]: lists of bytes with the manners of `Vec<u8>` and `std::string::String`.

use std::borrow::{Borrow, Cow};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::{Deref, DerefMut};

use super::heap::HeapFull;
use super::list::List;

/// Bytes in shared memory: `bytes` in a schema.
///
/// Cloning 4 KiB and more copies nothing: the clones have one block of memory, and the first write to one of them copies it.
/// (A clone of received bytes, or of a part of a received message, is a copy in the send heap.)
///
/// ```
/// use provost::shared::Bytes;
///
/// let mut bytes = Bytes::from(&b"abc"[..]);
/// bytes.extend_from_slice(b"def");
/// bytes[0] = b'A';
/// assert_eq!(bytes, b"Abcdef");
/// ```
#[derive(Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub struct Bytes(List<u8>);

impl Clone for Bytes {
    fn clone(&self) -> Bytes {
        Bytes(self.0.share())
    }
}

impl Bytes {
    /// No bytes. Takes no memory.
    #[must_use]
    pub const fn new() -> Bytes {
        Bytes(List::new())
    }

    /// No bytes, with room for `capacity`.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Bytes {
        Bytes(List::with_capacity(capacity))
    }

    /// `len` zero bytes, to be written in place.
    #[must_use]
    pub fn zeroed(len: usize) -> Bytes {
        Self::try_zeroed(len).unwrap_or_else(|full| full.panic())
    }

    /// As [`Bytes::zeroed`], but says when the heap is full.
    pub fn try_zeroed(len: usize) -> Result<Bytes, HeapFull> {
        List::try_zeroed(len).map(Bytes)
    }

    /// A copy of `bytes`, or the error when the heap is full.
    pub fn try_from_slice(bytes: &[u8]) -> Result<Bytes, HeapFull> {
        let mut copy = List::new();
        copy.try_extend_from_slice(bytes)?;
        Ok(Bytes(copy))
    }

    /// How many bytes fit without another allocation.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.0.capacity()
    }

    /// Makes room for `additional` more bytes.
    pub fn reserve(&mut self, additional: usize) {
        self.own_alone(additional).reserve(additional);
    }

    /// Appends a byte.
    pub fn push(&mut self, byte: u8) {
        self.own_alone(1).push(byte);
    }

    /// Appends bytes.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        self.try_extend_from_slice(bytes)
            .unwrap_or_else(|full| full.panic());
    }

    /// As [`Bytes::extend_from_slice`], but says when the heap is full.
    pub fn try_extend_from_slice(&mut self, bytes: &[u8]) -> Result<(), HeapFull> {
        self.0.try_own_alone(bytes.len())?;
        self.0.try_extend_from_slice(bytes)
    }

    /// The list, when no clone has the same memory any more.
    fn own_alone(&mut self, additional: usize) -> &mut List<u8> {
        let alone = self.0.try_own_alone(additional);
        alone.unwrap_or_else(|full| full.panic());
        &mut self.0
    }

    /// Forgets the bytes from `len` on.
    pub fn truncate(&mut self, len: usize) {
        self.0.truncate(len);
    }

    /// Forgets all bytes and keeps the memory.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Where the bytes are in the window.
    pub(crate) fn offset(&self) -> u32 {
        self.0.offset()
    }

    /// The bytes as a slice.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.0
    }
}

impl Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for Bytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.own_alone(0)
    }
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Borrow<[u8]> for Bytes {
    fn borrow(&self) -> &[u8] {
        self
    }
}

impl Hash for Bytes {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self[..].hash(state);
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b\"{}\"", self.escape_ascii())
    }
}

impl fmt::Write for String {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.try_push_str(text).map_err(|_| fmt::Error)
    }
}

impl std::io::Write for Bytes {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.try_extend_from_slice(bytes)
            .map_err(|full| std::io::Error::new(std::io::ErrorKind::OutOfMemory, full))?;
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Extend<u8> for Bytes {
    fn extend<I: IntoIterator<Item = u8>>(&mut self, bytes: I) {
        self.own_alone(0).extend(bytes);
    }
}

impl FromIterator<u8> for Bytes {
    fn from_iter<I: IntoIterator<Item = u8>>(bytes: I) -> Bytes {
        Bytes(bytes.into_iter().collect())
    }
}

impl<'a> IntoIterator for &'a Bytes {
    type Item = &'a u8;
    type IntoIter = std::slice::Iter<'a, u8>;
    fn into_iter(self) -> std::slice::Iter<'a, u8> {
        self.iter()
    }
}

macro_rules! copies_of_bytes {
    ($($(const $n:ident)? $other:ty),*) => {
        $(impl$(<const $n: usize>)? From<$other> for Bytes {
            fn from(bytes: $other) -> Bytes {
                Bytes::try_from_slice(&bytes[..]).unwrap_or_else(|full| full.panic())
            }
        })*
    };
}
copies_of_bytes!(&[u8], Vec<u8>, &Vec<u8>, const N [u8; N], const N &[u8; N]);

macro_rules! equals_bytes {
    ($($(const $n:ident)? $other:ty),*) => {
        $(impl$(<const $n: usize>)? PartialEq<$other> for Bytes {
            fn eq(&self, other: &$other) -> bool {
                self[..] == other[..]
            }
        }
        impl$(<const $n: usize>)? PartialEq<Bytes> for $other {
            fn eq(&self, other: &Bytes) -> bool {
                self[..] == other[..]
            }
        })*
    };
}
equals_bytes!([u8], &[u8], Vec<u8>, const N [u8; N], const N &[u8; N]);

/// Text in shared memory: `string` in a schema. Always UTF-8. Cloned as [`Bytes`] is.
///
/// ```
/// use std::fmt::Write;
/// use provost::shared::String;
///
/// let mut text = String::from("key");
/// write!(text, "-{}", 7).unwrap();
/// assert_eq!(text, "key-7");
/// assert!(text.starts_with("key"));
/// ```
#[derive(Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub struct String(List<u8>);

impl Clone for String {
    fn clone(&self) -> String {
        String(self.0.share())
    }
}

impl String {
    /// No text. Takes no memory.
    #[must_use]
    pub const fn new() -> String {
        String(List::new())
    }

    /// No text, with room for `capacity` bytes.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> String {
        String(List::with_capacity(capacity))
    }

    /// A copy of `text`, or the error when the heap is full.
    pub fn try_from_str(text: &str) -> Result<String, HeapFull> {
        let mut copy = List::new();
        copy.try_extend_from_slice(text.as_bytes())?;
        Ok(String(copy))
    }

    /// How many bytes fit without another allocation.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.0.capacity()
    }

    /// Makes room for `additional` more bytes.
    pub fn reserve(&mut self, additional: usize) {
        let alone = self.0.try_own_alone(additional);
        alone.unwrap_or_else(|full| full.panic());
        self.0.reserve(additional);
    }

    /// Appends text.
    pub fn push_str(&mut self, text: &str) {
        self.try_push_str(text).unwrap_or_else(|full| full.panic());
    }

    /// As [`String::push_str`], but says when the heap is full.
    pub fn try_push_str(&mut self, text: &str) -> Result<(), HeapFull> {
        self.0.try_own_alone(text.len())?;
        self.0.try_extend_from_slice(text.as_bytes())
    }

    /// Appends a character.
    pub fn push(&mut self, character: char) {
        self.push_str(character.encode_utf8(&mut [0; 4]));
    }

    /// Forgets the text from byte `len` on.
    ///
    /// # Panics
    ///
    /// When `len` is not between characters, as with `std::string::String`.
    pub fn truncate(&mut self, len: usize) {
        assert!(
            len >= self.len() || self.is_char_boundary(len),
            "byte {len} is inside a character"
        );
        self.0.truncate(len);
    }

    /// Forgets all text and keeps the memory.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// The text as a slice.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self
    }

    /// The bytes of the text.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        Bytes(self.0)
    }
}

impl Deref for String {
    type Target = str;
    #[inline]
    fn deref(&self) -> &str {
        // SAFETY: every way in takes whole `str`s, `truncate` cuts between characters, and received strings are
        // validated before they are published.
        unsafe { std::str::from_utf8_unchecked(&self.0) }
    }
}

impl AsRef<str> for String {
    fn as_ref(&self) -> &str {
        self
    }
}

impl AsRef<[u8]> for String {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl Borrow<str> for String {
    fn borrow(&self) -> &str {
        self
    }
}

impl Hash for String {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self[..].hash(state);
    }
}

impl fmt::Debug for String {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self[..].fmt(f)
    }
}

impl fmt::Display for String {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self)
    }
}

macro_rules! copies_of_text {
    ($($other:ty),*) => {
        $(impl From<$other> for String {
            fn from(text: $other) -> String {
                let text: &str = text.as_ref();
                String::try_from_str(text).unwrap_or_else(|full| full.panic())
            }
        })*
    };
}
copies_of_text!(
    &str,
    &mut str,
    std::string::String,
    &std::string::String,
    Cow<'_, str>,
    std::boxed::Box<str>
);

impl From<char> for String {
    fn from(character: char) -> String {
        String::from(&*character.encode_utf8(&mut [0; 4]))
    }
}

impl From<&String> for String {
    fn from(text: &String) -> String {
        text.clone()
    }
}

impl From<&String> for std::string::String {
    fn from(text: &String) -> std::string::String {
        text.as_str().to_owned()
    }
}

impl From<String> for std::string::String {
    fn from(text: String) -> std::string::String {
        text.as_str().to_owned()
    }
}

impl std::str::FromStr for String {
    type Err = HeapFull;
    fn from_str(text: &str) -> Result<String, HeapFull> {
        String::try_from_str(text)
    }
}

impl<'a> Extend<&'a str> for String {
    fn extend<I: IntoIterator<Item = &'a str>>(&mut self, texts: I) {
        texts.into_iter().for_each(|text| self.push_str(text));
    }
}

impl Extend<char> for String {
    fn extend<I: IntoIterator<Item = char>>(&mut self, characters: I) {
        characters.into_iter().for_each(|character| self.push(character));
    }
}

impl FromIterator<char> for String {
    fn from_iter<I: IntoIterator<Item = char>>(characters: I) -> String {
        let mut text = String::new();
        text.extend(characters);
        text
    }
}

impl<'a> FromIterator<&'a str> for String {
    fn from_iter<I: IntoIterator<Item = &'a str>>(texts: I) -> String {
        let mut text = String::new();
        text.extend(texts);
        text
    }
}

macro_rules! equals_text {
    ($($other:ty),*) => {
        $(impl PartialEq<$other> for String {
            fn eq(&self, other: &$other) -> bool {
                self[..] == other[..]
            }
        }
        impl PartialEq<String> for $other {
            fn eq(&self, other: &String) -> bool {
                self[..] == other[..]
            }
        })*
    };
}
equals_text!(str, &str, std::string::String, Cow<'_, str>);
