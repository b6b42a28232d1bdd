//! Metadata as it is typed and printed.

use std::str::FromStr;

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use tonic::metadata::{AsciiMetadataKey, BinaryMetadataKey, KeyAndValueRef, MetadataMap, MetadataValue};

use provost_terminal::failure::Failure;

/// With padding or without, as gRPC takes it.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// A key and a value of metadata, as typed: `key: value`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MetadataEntry {
    key: String,
    value: String,
}

impl MetadataEntry {
    /// Reads what is typed.
    pub(crate) fn parse(text: &str) -> Result<MetadataEntry, String> {
        let (key, value) = text
            .split_once(':')
            .ok_or("write KEY: VALUE, such as 'authorization: Bearer x'")?;
        let entry = MetadataEntry {
            key: key.trim().to_ascii_lowercase(),
            value: value.trim().to_owned(),
        };
        let mut map = MetadataMap::new();
        entry.add_to(&mut map)?;
        Ok(entry)
    }

    fn add_to(&self, map: &mut MetadataMap) -> Result<(), String> {
        let key = &self.key;
        if key.starts_with("grpc-") || key.starts_with(':') {
            return Err(format!("{key} is gRPC's own (for a deadline: --timeout)"));
        }
        if key.ends_with("-bin") {
            let name = BinaryMetadataKey::from_str(key).map_err(|_| bad_key(key))?;
            let bytes = BASE64
                .decode(&self.value)
                .map_err(|_| format!("{key}: the value is no base64"))?;
            map.append_bin(name, MetadataValue::from_bytes(&bytes));
            return Ok(());
        }
        let name = AsciiMetadataKey::from_str(key).map_err(|_| bad_key(key))?;
        let is_printable = self.value.bytes().all(|byte| matches!(byte, b' '..=b'~'));
        let value = is_printable
            .then(|| MetadataValue::from_str(&self.value).ok())
            .flatten();
        let value = value.ok_or_else(|| bad_value(key))?;
        map.append(name, value);
        Ok(())
    }
}

fn bad_key(key: &str) -> String {
    format!("{key:?} is no key of metadata: letters, digits, '_', '-' and '.'")
}

fn bad_value(key: &str) -> String {
    format!("{key}: the value has to be printable ASCII; bytes go in base64, under a key that ends in -bin")
}

/// All of it, as it is sent.
pub(crate) fn metadata_map(entries: &[MetadataEntry]) -> Result<MetadataMap, Failure> {
    let mut map = MetadataMap::new();
    for entry in entries {
        entry.add_to(&mut map).map_err(Failure::usage)?;
    }
    Ok(map)
}

/// An entry as text; bytes as the base64 that they came as.
pub(crate) fn text_of(entry: &KeyAndValueRef<'_>) -> (String, String) {
    match entry {
        KeyAndValueRef::Ascii(key, value) => {
            let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
            (key.to_string(), value)
        }
        KeyAndValueRef::Binary(key, value) => {
            let value = String::from_utf8_lossy(value.as_encoded_bytes()).into_owned();
            (key.to_string(), value)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_typed_as_headers_are_and_bytes_in_base64() {
        let typed = ["Tenant: a b", "trace-bin: AQI", "trace-bin: AQI=", "tenant:c"];
        let entries: Vec<_> = typed
            .iter()
            .map(|text| MetadataEntry::parse(text).unwrap())
            .collect();
        let map = metadata_map(&entries).unwrap();
        let tenants: Vec<_> = map
            .get_all("tenant")
            .iter()
            .map(|value| value.to_str().unwrap())
            .collect();
        assert_eq!(tenants, ["a b", "c"]);
        for value in &map.get_all_bin("trace-bin") {
            assert_eq!(&value.to_bytes().unwrap()[..], [1, 2]);
        }
        let shown: Vec<_> = map.iter().map(|entry| text_of(&entry)).collect();
        assert!(
            shown.contains(&("trace-bin".to_owned(), "AQI".to_owned())),
            "{shown:?}"
        );
    }

    #[test]
    fn what_cannot_be_metadata_is_refused_with_the_key() {
        for (typed, word) in [
            ("tenant", "KEY: VALUE"),
            ("grpc-timeout: 1S", "--timeout"),
            ("a b: c", "a b"),
            ("x-bin: !", "x-bin: the value is no base64"),
            ("x: \u{e9}", "-bin"),
        ] {
            let error = MetadataEntry::parse(typed).unwrap_err();
            assert!(error.contains(word), "{typed}: {error}");
        }
    }
}
