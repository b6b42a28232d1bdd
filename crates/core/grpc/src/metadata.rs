//! Custom metadata: fields of HTTP/2 to the blocks that the rest of the service carries, and back.

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use provost_http2::FieldList;
use provost_wire::metadata::{self, MetadataError};

/// Padding is read and not required, and is not written (PROTOCOL-HTTP2, Requests: Binary-Header).
pub(crate) const BASE64: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, LENIENT);
/// The alphabet of URLs, for the requests of GET.
pub(crate) const BASE64_URL: GeneralPurpose = GeneralPurpose::new(&alphabet::URL_SAFE, LENIENT);
const LENIENT: GeneralPurposeConfig = GeneralPurposeConfig::new()
    .with_encode_padding(false)
    .with_decode_padding_mode(DecodePaddingMode::Indifferent)
    .with_decode_allow_trailing_bits(true);

/// Why metadata cannot pass.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MetadataFault {
    /// A `-bin` value is no base64.
    #[error("the value of the metadata key {key} is not base64")]
    Base64 {
        /// The key as it came.
        key: String,
    },
    /// The key is the protocol's own.
    #[error("the metadata key {key} belongs to gRPC's protocol: use another")]
    Reserved {
        /// The key that the application set.
        key: String,
    },
    /// A key or a value has bytes that it cannot have, or there is too much of it.
    #[error("metadata is refused: {0}")]
    Block(#[from] MetadataError),
}

/// The custom metadata of a head or of trailers, as a block. Keys that come twice stay two entries, in their order.
///
/// # Errors
/// A key or a value is one that gRPC does not have, or the block is over its limit.
pub fn read_metadata(fields: &FieldList) -> Result<Vec<u8>, MetadataFault> {
    let mut block = Vec::new();
    for field in fields.iter() {
        // A name that is no UTF-8 is refused with the others that are no key.
        let key = std::str::from_utf8(field.name).unwrap_or_default();
        if key.starts_with(':') || is_reserved(key) {
            continue;
        }
        if block.is_empty() {
            // It grows once, if at all.
            block.reserve(fields.text_bytes());
        }
        if !key.ends_with("-bin") {
            // PROTOCOL-HTTP2, Requests: whitespace at the ends of an ASCII-Value may be stripped.
            metadata::append(&mut block, key, field.value.trim_ascii())?;
            continue;
        }
        for value in field.value.split(|byte| *byte == b',') {
            metadata::append(&mut block, key, &decode_binary(key, value.trim_ascii())?)?;
        }
    }
    metadata::check(&block)?;
    Ok(block)
}

/// Appends the entries of a block that [`metadata::check`] accepts. What only says a status, in a native block, is left out.
///
/// # Errors
/// A key is the protocol's own.
pub fn write_metadata(block: &[u8], fields: &mut FieldList) -> Result<(), MetadataFault> {
    for (key, value) in metadata::entries(block) {
        if key == metadata::STATUS_MESSAGE || key == metadata::STATUS_DETAILS {
            continue;
        }
        if is_reserved(key) {
            return Err(MetadataFault::Reserved { key: key.to_owned() });
        }
        if key.ends_with("-bin") {
            fields.push(key.as_bytes(), BASE64.encode(value).as_bytes());
        } else {
            // As what is read.
            fields.push(key.as_bytes(), value.trim_ascii());
        }
    }
    Ok(())
}

pub(crate) fn decode_binary(key: &str, value: &[u8]) -> Result<Vec<u8>, MetadataFault> {
    BASE64
        .decode(value)
        .map_err(|_| MetadataFault::Base64 { key: key.to_owned() })
}

/// Whether a field belongs to the protocol: it says something of the call, the message or the connection, and is no metadata.
fn is_reserved(key: &str) -> bool {
    matches!(
        key,
        "connection"
            | "content-length"
            | "content-type"
            | "grpc-accept-encoding"
            | "grpc-encoding"
            | "grpc-message"
            | "grpc-message-type"
            | "grpc-status"
            | "grpc-status-details-bin"
            | "grpc-timeout"
            | "host"
            | "keep-alive"
            | "te"
            | "transfer-encoding"
            | "upgrade"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn list(fields: &[(&str, &str)]) -> FieldList {
        fields.iter().copied().collect()
    }

    fn entries(fields: &[(&str, &str)]) -> Vec<(String, Vec<u8>)> {
        let block = read_metadata(&list(fields)).unwrap();
        let owned = |(key, value): (&str, &[u8])| (key.to_owned(), value.to_vec());
        metadata::entries(&block).map(owned).collect()
    }

    /// PROTOCOL-HTTP2, Requests: Binary-Header, padded and not.
    #[test]
    fn requests_binary_values_in_both_forms() {
        for value in ["AP8", "AP8="] {
            assert_eq!(entries(&[("a-bin", value)]), [("a-bin".into(), vec![0, 255])]);
        }
        let got = entries(&[("a-bin", "AP8=,AP8, AQ== ,,AgM=")]);
        let expected: [&[u8]; 5] = [&[0, 255], &[0, 255], &[1], &[], &[2, 3]];
        assert_eq!(got, expected.map(|value| ("a-bin".to_owned(), value.to_vec())));
        let malformed_second = read_metadata(&list(&[("a-bin", "AP8=,A*")]));
        assert_eq!(
            malformed_second,
            Err(MetadataFault::Base64 { key: "a-bin".into() })
        );
        assert_eq!(entries(&[("a-bin", "")]), [("a-bin".into(), vec![])]);
        let malformed = read_metadata(&list(&[("a-bin", "A*")]));
        assert_eq!(malformed, Err(MetadataFault::Base64 { key: "a-bin".into() }));
        let mut fields = FieldList::new();
        let mut block = Vec::new();
        metadata::append(&mut block, "a-bin", &[0, 255]).unwrap();
        write_metadata(&block, &mut fields).unwrap();
        assert_eq!(fields.get(b"a-bin"), Some(&b"AP8"[..]));
    }

    /// PROTOCOL-HTTP2, Requests: Binary-Header values are split at commas before they are decoded; duplicated keys stay in order.
    #[test]
    fn requests_duplicated_keys() {
        let got = entries(&[("a-bin", "AA,AQ, Ag=="), ("b", "1,2"), ("c", "x"), ("b", "3")]);
        let expected: [(&str, &[u8]); 6] = [
            ("a-bin", &[0]),
            ("a-bin", &[1]),
            ("a-bin", &[2]),
            ("b", b"1,2"),
            ("c", b"x"),
            ("b", b"3"),
        ];
        let owned = expected.map(|(key, value)| (key.to_owned(), value.to_vec()));
        assert_eq!(got, owned);
    }

    /// PROTOCOL-HTTP2, Requests: what belongs to the protocol is no metadata, in either direction; the rest of `grpc-` passes.
    #[test]
    fn requests_reserved_metadata() {
        let of_http = [
            ":authority",
            ":method",
            ":path",
            ":protocol",
            ":scheme",
            ":status",
        ];
        let of_protocol = "connection content-length content-type grpc-accept-encoding grpc-encoding grpc-message \
                           grpc-message-type grpc-status grpc-status-details-bin grpc-timeout host keep-alive te \
                           transfer-encoding upgrade";
        let of_protocol: Vec<&str> = of_protocol.split_whitespace().collect();
        let passing = ["grpc-trace-bin", "grpc-previous-rpc-attempts", "user-agent"];
        let all = of_http.iter().chain(&of_protocol).chain(&passing);
        let fields: Vec<(&str, &str)> = all.map(|key| (*key, "AA")).collect();
        let keys: Vec<String> = entries(&fields).into_iter().map(|(key, _)| key).collect();
        assert_eq!(keys, passing);
        for key in of_protocol {
            let mut block = Vec::new();
            metadata::append(&mut block, key, b"1").unwrap();
            let refused = write_metadata(&block, &mut FieldList::new());
            assert_eq!(refused, Err(MetadataFault::Reserved { key: key.into() }));
        }
    }

    /// PROTOCOL-HTTP2, Requests: Header-Name and ASCII-Value.
    #[test]
    fn requests_malformed_metadata() {
        for (key, value) in [("a!", "x"), ("a", "\u{e9}"), ("a", "x\ty")] {
            let refused = read_metadata(&list(&[(key, value)]));
            assert!(matches!(refused, Err(MetadataFault::Block(_))), "{key}: {value}");
        }
    }

    /// PROTOCOL-HTTP2, Requests: whitespace at the ends of a value may be stripped; HTTP/2 has no such values, and some peers send them.
    #[test]
    fn requests_whitespace_at_the_ends() {
        assert_eq!(entries(&[("a", " x y\t")]), [("a".into(), b"x y".to_vec())]);
        let (mut block, mut fields) = (Vec::new(), FieldList::new());
        metadata::append(&mut block, "a", b" x y ").unwrap();
        write_metadata(&block, &mut fields).unwrap();
        assert_eq!(fields.get(b"a"), Some(&b"x y"[..]));
    }

    fn entry() -> impl Strategy<Value = (String, Vec<u8>)> {
        let binary = ("[a-z0-9_.-]{0,8}-bin", vec(any::<u8>(), 0..40));
        let text = ("x[a-z0-9_.-]{0,8}", "([!-~]([ -~]{0,20}[!-~])?)?")
            .prop_map(|(key, value)| (key, value.into_bytes()));
        prop_oneof![
            binary,
            text.prop_filter("a binary key", |(key, _)| !key.ends_with("-bin"))
        ]
    }

    proptest! {
        #[test]
        fn metadata_is_read_as_written(expected in vec(entry(), 0..20)) {
            let mut block = Vec::new();
            for (key, value) in &expected {
                metadata::append(&mut block, key, value).unwrap();
            }
            let mut fields = FieldList::new();
            write_metadata(&block, &mut fields).unwrap();
            prop_assert_eq!(read_metadata(&fields).unwrap(), block);
        }
    }
}
