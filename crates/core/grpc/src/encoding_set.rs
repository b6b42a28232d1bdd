//! Which encodings an end takes.

use std::borrow::Cow;

use provost_compression::MessageEncoding;
use provost_datapath::{FieldReader, FieldWriter, RestoreError, SavedField};

/// Encodings that an end takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodingSet(u8);

impl EncodingSet {
    /// What every end takes.
    pub const IDENTITY: EncodingSet = EncodingSet(1);
    /// What this implementation takes.
    pub const ALL: EncodingSet = EncodingSet((1 << MessageEncoding::ALL.len()) - 1);
    /// Reads the value of `grpc-accept-encoding`; encodings that are not known here are read over.
    #[must_use]
    pub fn read(value: &[u8]) -> EncodingSet {
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
        let named = MessageEncoding::ALL
            .into_iter()
            .filter(|encoding| self.contains(*encoding));
        Cow::Owned(named.map(MessageEncoding::name).collect::<Vec<_>>().join(","))
    }

    /// Whether this encoding is in the set.
    #[must_use]
    pub fn contains(self, encoding: MessageEncoding) -> bool {
        self.0 & (1 << encoding as u8) != 0
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
        assert_eq!(EncodingSet::read(b""), EncodingSet::IDENTITY);
    }
}
