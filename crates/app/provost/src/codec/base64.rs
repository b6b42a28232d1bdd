//! Base64 as JSON has `bytes`: written in the standard alphabet with padding; read in that or the one for addresses, with
//! padding or without.

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

const ENGINE: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

pub(super) fn encode(bytes: &[u8]) -> String {
    ENGINE.encode(bytes)
}

/// `None` for a text that is not base64.
pub(super) fn decode(text: &str) -> Option<Vec<u8>> {
    // The engine would take a padding of which a part is missing.
    if text.ends_with('=') && !text.len().is_multiple_of(4) {
        return None;
    }
    ENGINE.decode(text.replace('-', "+").replace('_', "/")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_of_rfc_4648() {
        let vectors = [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ];
        for (bytes, text) in vectors {
            assert_eq!(encode(bytes.as_bytes()), text);
            assert_eq!(decode(text).as_deref(), Some(bytes.as_bytes()));
            assert_eq!(
                decode(text.trim_end_matches('=')).as_deref(),
                Some(bytes.as_bytes())
            );
        }
        assert_eq!(decode("-_-_"), decode("+/+/"));
        for wrong in ["A", "Zg=", "Zg===", "Zm9v=", "Zm 9", "Zm9v\n", "Z=g=", "="] {
            assert_eq!(decode(wrong), None, "{wrong}");
        }
    }
}
