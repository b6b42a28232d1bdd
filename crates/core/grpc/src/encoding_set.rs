//! Which encodings an end takes.

use std::borrow::Cow;

use provost_compression::MessageEncoding;
use provost_datapath::{FieldReader, FieldWriter, RestoreError, SavedField};

/// Encodings that an end takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodingSet(u8);

impl EncodingSet {
    /// Of an end that has not said what it takes.
    pub const UNSAID: EncodingSet = EncodingSet(0);
    /// What every end takes, and nothing else.
    pub const IDENTITY: EncodingSet = EncodingSet(1);
    /// What this implementation takes.
    pub const ALL: EncodingSet = EncodingSet((1 << MessageEncoding::ALL.len()) - 1);

    /// Reads the value of `grpc-accept-encoding`, empty where there is none; encodings that are not known here are read over.
    #[must_use]
    pub fn read(value: &[u8]) -> EncodingSet {
        if value.is_empty() {
            return EncodingSet::UNSAID;
        }
        let named = value
            .split(|byte| *byte == b',')
            .filter_map(|name| MessageEncoding::named(name.trim_ascii()));
        named.fold(EncodingSet::IDENTITY, |set, encoding| {
            EncodingSet(set.0 | 1 << encoding as u8)
        })
    }

    /// The value of `grpc-accept-encoding` that says this set.
    #[must_use]
    pub fn names(self) -> Cow<'static, str> {
        if self == EncodingSet::ALL {
            return Cow::Borrowed("identity,gzip,deflate,zstd");
        }
        if self == EncodingSet::UNSAID {
            return Cow::Borrowed("");
        }
        let named = MessageEncoding::ALL
            .into_iter()
            .filter(|encoding| self.contains(*encoding));
        Cow::Owned(named.map(MessageEncoding::name).collect::<Vec<_>>().join(","))
    }

    /// Whether this encoding is in the set.
    #[must_use]
    pub fn contains(self, encoding: MessageEncoding) -> bool {
        encoding == MessageEncoding::Identity || self.0 & (1 << encoding as u8) != 0
    }
}

/// The names of its encodings, as `grpc-accept-encoding` has them.
impl SavedField for EncodingSet {
    fn save(&self, out: &mut FieldWriter) {
        out.text(&self.names());
    }

    fn restore(fields: &mut FieldReader<'_>) -> Result<EncodingSet, RestoreError> {
        fields.text().map(|names| EncodingSet::read(names.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// COMPRESSION: lists of the names of encodings.
    #[test]
    fn lists_of_encodings() {
        assert_eq!(EncodingSet::ALL.names(), "identity,gzip,deflate,zstd");
        assert_eq!(
            EncodingSet::read(EncodingSet::ALL.names().as_bytes()),
            EncodingSet::ALL
        );
        let some = EncodingSet::read(b"snappy , gzip,,zstd");
        let has = MessageEncoding::ALL.map(|encoding| some.contains(encoding));
        assert_eq!(has, [true, true, false, true]);
        assert_eq!(EncodingSet::read(b"identity"), EncodingSet::IDENTITY);
        assert_eq!(EncodingSet::read(b"snappy"), EncodingSet::IDENTITY);
        assert_eq!(EncodingSet::IDENTITY.names(), "identity");
        // Who says nothing has not said that it takes nothing compressed.
        assert_eq!(EncodingSet::read(b""), EncodingSet::UNSAID);
        assert_eq!(EncodingSet::UNSAID.names(), "");
        assert!(EncodingSet::UNSAID.contains(MessageEncoding::Identity));
    }
}
