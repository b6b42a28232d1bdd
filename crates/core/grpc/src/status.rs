//! How a call ends: its status in trailers, and what codes of HTTP and HTTP/2 mean to gRPC.

use std::borrow::Cow;

use base64::Engine;
use provost_http2::{ErrorCode, FieldList};
use provost_wire::Code;

use crate::metadata::{BASE64, MetadataFault, decode_binary};

/// How a call ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GrpcStatus {
    pub code: Code,
    /// What people are told.
    pub message: String,
    /// A `google.rpc.Status`, as bytes.
    pub details: Option<Vec<u8>>,
}

impl GrpcStatus {
    /// A status without details.
    #[must_use]
    pub fn new(code: Code, message: impl Into<String>) -> GrpcStatus {
        GrpcStatus {
            code,
            message: message.into(),
            details: None,
        }
    }

    /// That of a call that succeeded.
    #[must_use]
    pub fn ok() -> GrpcStatus {
        GrpcStatus::default()
    }

    /// The status that trailers, or a head without a body, say; None if they say none.
    ///
    /// # Errors
    /// The details are no base64.
    pub fn read(fields: &FieldList) -> Result<Option<GrpcStatus>, MetadataFault> {
        let Some(number) = fields.get(b"grpc-status") else {
            return Ok(None);
        };
        let details = fields
            .get(b"grpc-status-details-bin")
            .map(|value| decode_binary("grpc-status-details-bin", value))
            .transpose()?;
        Ok(Some(GrpcStatus {
            code: read_code(number),
            message: fields
                .get(b"grpc-message")
                .map(decode_percent)
                .unwrap_or_default(),
            details,
        }))
    }

    /// Appends the fields of the status (PROTOCOL-HTTP2, Responses: Trailers).
    pub fn write(&self, fields: &mut FieldList) {
        fields.push(b"grpc-status", code_digits(self.code));
        if !self.message.is_empty() {
            fields.push(b"grpc-message", encode_percent(&self.message).as_bytes());
        }
        if let Some(details) = &self.details {
            fields.push(b"grpc-status-details-bin", BASE64.encode(details).as_bytes());
        }
    }
}

/// A code as the field `grpc-status` has it.
fn code_digits(code: Code) -> &'static [u8] {
    const DIGITS: [&[u8]; 17] = [
        b"0", b"1", b"2", b"3", b"4", b"5", b"6", b"7", b"8", b"9", b"10", b"11", b"12", b"13", b"14", b"15",
        b"16",
    ];
    DIGITS.get(code.number() as usize).copied().unwrap_or(b"2")
}

/// A code that is no number, or none that gRPC knows, is UNKNOWN.
fn read_code(value: &[u8]) -> Code {
    let number = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
    Code::from_number(number.unwrap_or(u32::MAX))
}

/// Percent-encodes a status message (PROTOCOL-HTTP2, Responses: Percent-Encoded). Spaces at its ends are encoded as well, for no
/// field of HTTP/2 has them.
///
/// ```
/// assert_eq!(provost_grpc::encode_percent("5 %\n"), "5 %25%0A");
/// ```
#[must_use]
pub fn encode_percent(message: &str) -> String {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let (mut encoded, last) = (
        String::with_capacity(message.len()),
        message.len().saturating_sub(1),
    );
    for (at, byte) in message.bytes().enumerate() {
        let is_plain = (b' '..=b'~').contains(&byte) && byte != b'%';
        if is_plain && (byte != b' ' || (at != 0 && at != last)) {
            encoded.push(char::from(byte));
            continue;
        }
        encoded.push('%');
        encoded.push(char::from(DIGITS[usize::from(byte >> 4)]));
        encoded.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    encoded
}

/// Decodes a status message. What is wrong in it is kept as it is, or replaced where it is no UTF-8: a message is never thrown away.
#[must_use]
pub fn decode_percent(value: &[u8]) -> String {
    let (mut decoded, mut rest) = (Vec::with_capacity(value.len()), value);
    while let Some((first, after)) = rest.split_first() {
        let escaped = match rest {
            [b'%', high, low, ..] => hex(*high).zip(hex(*low)),
            _ => None,
        };
        if let Some((high, low)) = escaped {
            decoded.push(high << 4 | low);
            rest = &rest[3..];
        } else {
            decoded.push(*first);
            rest = after;
        }
    }
    match String::from_utf8_lossy(&decoded) {
        Cow::Borrowed(text) => text.to_owned(),
        Cow::Owned(text) => text,
    }
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|value| value as u8)
}

/// What a response without a status of gRPC means (gRPC's HTTP to gRPC Status Code Mapping).
#[must_use]
pub fn code_of_http_status(status: u16) -> Code {
    match status {
        // 431 is not in the mapping: the head was too large, which is no fault of what lies between.
        400 | 431 => Code::Internal,
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        404 => Code::Unimplemented,
        429 | 502..=504 => Code::Unavailable,
        _ => Code::Unknown,
    }
}

/// What a caller that speaks HTTP and not gRPC is told, as `google.rpc.Code` describes each code.
#[must_use]
pub fn http_status_of_code(code: Code) -> u16 {
    match code {
        Code::Ok => 200,
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => 400,
        Code::Unauthenticated => 401,
        Code::PermissionDenied => 403,
        Code::NotFound => 404,
        Code::AlreadyExists | Code::Aborted => 409,
        Code::ResourceExhausted => 429,
        Code::Cancelled => 499,
        Code::Unknown | Code::Internal | Code::DataLoss => 500,
        Code::Unimplemented => 501,
        Code::Unavailable => 503,
        Code::DeadlineExceeded => 504,
    }
}

/// What RST_STREAM means to the call on the stream (PROTOCOL-HTTP2, Errors).
#[must_use]
pub fn code_of_reset(code: ErrorCode) -> Code {
    match code {
        ErrorCode::REFUSED_STREAM => Code::Unavailable,
        ErrorCode::CANCEL => Code::Cancelled,
        ErrorCode::ENHANCE_YOUR_CALM => Code::ResourceExhausted,
        ErrorCode::INADEQUATE_SECURITY => Code::PermissionDenied,
        known if known.0 <= ErrorCode::HTTP_1_1_REQUIRED.0 => Code::Internal,
        _ => Code::Unknown,
    }
}

/// How a call that cannot end by trailers is reset, so that its peer reads the code from it as far as RST_STREAM can tell
/// (PROTOCOL-HTTP2, Errors). Never REFUSED_STREAM: that would say that the call was not carried out.
#[must_use]
pub fn reset_of_code(code: Code) -> ErrorCode {
    match code {
        Code::Cancelled | Code::DeadlineExceeded => ErrorCode::CANCEL,
        Code::ResourceExhausted => ErrorCode::ENHANCE_YOUR_CALM,
        Code::PermissionDenied | Code::Unauthenticated => ErrorCode::INADEQUATE_SECURITY,
        Code::Ok => ErrorCode::NO_ERROR,
        _ => ErrorCode::INTERNAL_ERROR,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// PROTOCOL-HTTP2, Responses: Percent-Encoded has spaces anywhere.
    #[test]
    fn responses_messages_may_end_in_spaces() {
        let fields: FieldList = [("grpc-status", "5"), ("grpc-message", "no such key: ")]
            .into_iter()
            .collect();
        let read = GrpcStatus::read(&fields).unwrap().unwrap();
        assert_eq!(read, GrpcStatus::new(Code::NotFound, "no such key: "));
        let mut written = FieldList::new();
        read.write(&mut written);
        assert_eq!(written.get(b"grpc-message"), Some(&b"no such key:%20"[..]));
    }

    /// PROTOCOL-HTTP2, Responses: Percent-Encoded, both ways.
    #[test]
    fn responses_percent_encoded_messages() {
        let pairs = [
            ("plain text", "plain text"),
            ("100%", "100%25"),
            ("\t\r\n", "%09%0D%0A"),
            ("\u{e9}\u{1f600}", "%C3%A9%F0%9F%98%80"),
            (" ends ", "%20ends%20"),
            ("~\u{7f}", "~%7F"),
        ];
        for (message, encoded) in pairs {
            assert_eq!(encode_percent(message), encoded);
            assert_eq!(decode_percent(encoded.as_bytes()), message);
        }
    }

    /// PROTOCOL-HTTP2, Responses: values that are wrong are no error, and nothing is thrown away.
    #[test]
    fn responses_malformed_messages_are_kept() {
        let pairs = [
            (&b"%"[..], "%"),
            (b"%4", "%4"),
            (b"%zz", "%zz"),
            (b"%c3%A9", "\u{e9}"),
            (b"%FFx", "\u{fffd}x"),
            (b"\xc3\xa9", "\u{e9}"),
        ];
        for (encoded, message) in pairs {
            assert_eq!(decode_percent(encoded), message);
        }
    }

    /// PROTOCOL-HTTP2, Responses: Status, Status-Message, and the details beside them.
    #[test]
    fn responses_statuses_are_read_as_written() {
        let status = GrpcStatus {
            code: Code::NotFound,
            message: "no \u{e9}".into(),
            details: Some(vec![8, 5, 255]),
        };
        let mut fields = FieldList::new();
        status.write(&mut fields);
        assert_eq!(fields.get(b"grpc-status"), Some(&b"5"[..]));
        assert_eq!(fields.get(b"grpc-status-details-bin"), Some(&b"CAX/"[..]));
        assert_eq!(GrpcStatus::read(&fields), Ok(Some(status)));
        assert_eq!(GrpcStatus::read(&FieldList::new()), Ok(None));
    }

    /// gRPC's status codes: a number that nobody knows is UNKNOWN.
    #[test]
    fn responses_codes_that_nobody_knows() {
        for value in ["17", "99999999999", "-1", "x", ""] {
            let fields: FieldList = [("grpc-status", value)].into_iter().collect();
            let status = GrpcStatus::read(&fields).unwrap().unwrap();
            assert_eq!(status.code, Code::Unknown, "{value}");
        }
    }

    /// PROTOCOL-HTTP2, Errors: the table of codes.
    #[test]
    fn errors_codes_of_resets() {
        let table = [
            (ErrorCode::NO_ERROR, Code::Internal),
            (ErrorCode::PROTOCOL_ERROR, Code::Internal),
            (ErrorCode::INTERNAL_ERROR, Code::Internal),
            (ErrorCode::FLOW_CONTROL_ERROR, Code::Internal),
            (ErrorCode::SETTINGS_TIMEOUT, Code::Internal),
            (ErrorCode::FRAME_SIZE_ERROR, Code::Internal),
            (ErrorCode::REFUSED_STREAM, Code::Unavailable),
            (ErrorCode::CANCEL, Code::Cancelled),
            (ErrorCode::COMPRESSION_ERROR, Code::Internal),
            (ErrorCode::CONNECT_ERROR, Code::Internal),
            (ErrorCode::ENHANCE_YOUR_CALM, Code::ResourceExhausted),
            (ErrorCode::INADEQUATE_SECURITY, Code::PermissionDenied),
            (ErrorCode(99), Code::Unknown),
        ];
        for (reset, code) in table {
            assert_eq!(code_of_reset(reset), code, "{reset}");
        }
        for code in [
            Code::Cancelled,
            Code::ResourceExhausted,
            Code::PermissionDenied,
            Code::Internal,
        ] {
            assert_eq!(code_of_reset(reset_of_code(code)), code);
        }
        assert!(
            Code::ALL
                .iter()
                .all(|code| reset_of_code(*code) != ErrorCode::REFUSED_STREAM)
        );
    }

    /// HTTP to gRPC Status Code Mapping: the table.
    #[test]
    fn http_statuses() {
        let table = [
            (400, Code::Internal),
            (401, Code::Unauthenticated),
            (403, Code::PermissionDenied),
            (404, Code::Unimplemented),
            (429, Code::Unavailable),
            (502, Code::Unavailable),
            (503, Code::Unavailable),
            (504, Code::Unavailable),
            (200, Code::Unknown),
            (418, Code::Unknown),
            (500, Code::Unknown),
        ];
        for (status, code) in table {
            assert_eq!(code_of_http_status(status), code, "{status}");
        }
        for code in [Code::Unauthenticated, Code::PermissionDenied, Code::Unavailable] {
            assert_eq!(code_of_http_status(http_status_of_code(code)), code);
        }
    }

    proptest! {
        #[test]
        fn messages_are_decoded_as_encoded(message in any::<String>()) {
            let encoded = encode_percent(&message);
            prop_assert!(encoded.bytes().all(|byte| (b' '..=b'~').contains(&byte)));
            prop_assert_eq!(encoded.trim(), &encoded);
            prop_assert_eq!(decode_percent(encoded.as_bytes()), message);
        }
    }
}
