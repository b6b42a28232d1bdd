//! What a list of fields must be to be a head or trailers (RFC 9113, sections 8.2 and 8.3).

use crate::fields::{FieldList, FieldRef};

/// Why a message is malformed (RFC 9113, section 8.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeadFault {
    #[error("a field's name is empty, or has a byte that no name may have")]
    Name,
    #[error("a field's value has a NUL, CR or LF, or whitespace at an end where none may be")]
    Value,
    #[error("a field that belongs to a connection of HTTP/1.1")]
    ConnectionSpecific,
    #[error("the field te says something else than trailers")]
    Te,
    #[error("a pseudo-header field follows another field")]
    PseudoOrder,
    #[error("a pseudo-header field that is not known, or not for this kind of message")]
    PseudoUnknown,
    #[error("a pseudo-header field comes twice")]
    PseudoTwice,
    #[error("a pseudo-header field is missing")]
    PseudoMissing,
    #[error("the field :path is empty or does not begin as it must")]
    Path,
    #[error("the fields host and :authority differ")]
    Host,
    #[error("the field :status is not a number of three digits, or 101")]
    Status,
    #[error("the fields content-length are no number, or differ")]
    ContentLength,
    #[error("the body is longer or shorter than content-length says")]
    BodyLength,
    #[error("the message ends where it cannot, or goes on where it cannot")]
    Sequence,
}

/// What a connection has to know of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadFacts {
    /// The status of a response; 0 for a request.
    pub status: u16,
    /// Bytes of the body, if the head says so.
    pub content_length: Option<u64>,
    /// Of a request: its response has no body, whatever its length says.
    pub is_head_method: bool,
}

/// Pseudo-header fields, a bit each.
mod pseudo {
    pub(super) const METHOD: u8 = 1;
    pub(super) const SCHEME: u8 = 2;
    pub(super) const AUTHORITY: u8 = 4;
    pub(super) const PATH: u8 = 8;
    pub(super) const STATUS: u8 = 16;
    pub(super) const OF_REQUESTS: u8 = METHOD | SCHEME | AUTHORITY | PATH;
}

/// Checks the head of a request.
///
/// # Errors
/// The request is malformed.
pub fn check_request(fields: &FieldList) -> Result<HeadFacts, HeadFault> {
    let found = FoundFields::of(fields, pseudo::OF_REQUESTS)?;
    let is_connect = found.method == Some(b"CONNECT");
    let needed = if is_connect {
        pseudo::METHOD | pseudo::AUTHORITY
    } else {
        pseudo::METHOD | pseudo::SCHEME | pseudo::PATH
    };
    if found.pseudo & needed != needed {
        return Err(HeadFault::PseudoMissing);
    }
    if is_connect && found.pseudo != needed {
        return Err(HeadFault::PseudoUnknown);
    }
    if !is_connect {
        check_path(&found)?;
    }
    if let (Some(host), Some(authority)) = (found.host, found.authority)
        && !host.eq_ignore_ascii_case(authority)
    {
        return Err(HeadFault::Host);
    }
    Ok(HeadFacts {
        status: 0,
        content_length: found.content_length,
        is_head_method: found.method == Some(b"HEAD"),
    })
}

/// Checks the head of a response, an interim one among them.
///
/// # Errors
/// The response is malformed.
pub fn check_response(fields: &FieldList) -> Result<HeadFacts, HeadFault> {
    let found = FoundFields::of(fields, pseudo::STATUS)?;
    let status = found.status.ok_or(HeadFault::PseudoMissing)?;
    let [a @ b'1'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9'] = status else {
        return Err(HeadFault::Status);
    };
    let digits = [a, b, c].map(|digit| u16::from(digit - b'0'));
    let status = digits[0] * 100 + digits[1] * 10 + digits[2];
    if status == 101 {
        return Err(HeadFault::Status);
    }
    Ok(HeadFacts {
        status,
        content_length: found.content_length,
        is_head_method: false,
    })
}

/// Checks trailers.
///
/// # Errors
/// The message is malformed.
pub fn check_trailers(fields: &FieldList) -> Result<(), HeadFault> {
    FoundFields::of(fields, 0).map(|_| ())
}

fn check_path(found: &FoundFields<'_>) -> Result<(), HeadFault> {
    let is_http = matches!(found.scheme, Some(b"http" | b"https"));
    let is_right = match found.path {
        Some([b'/', ..]) => true,
        Some(b"*") => found.method == Some(b"OPTIONS"),
        _ => !is_http,
    };
    if is_right {
        return Ok(());
    }
    Err(HeadFault::Path)
}

#[derive(Default)]
struct FoundFields<'a> {
    /// Bits of the pseudo-header fields that came.
    pseudo: u8,
    method: Option<&'a [u8]>,
    scheme: Option<&'a [u8]>,
    authority: Option<&'a [u8]>,
    path: Option<&'a [u8]>,
    status: Option<&'a [u8]>,
    host: Option<&'a [u8]>,
    content_length: Option<u64>,
}

impl<'a> FoundFields<'a> {
    fn of(fields: &'a FieldList, pseudo_allowed: u8) -> Result<FoundFields<'a>, HeadFault> {
        let (mut found, mut has_regular) = (FoundFields::default(), false);
        for field in fields.iter() {
            check_value(field.value)?;
            if field.name.first() == Some(&b':') {
                if has_regular {
                    return Err(HeadFault::PseudoOrder);
                }
                check_ends(field.value)?;
                found.pseudo_field(field, pseudo_allowed)?;
            } else {
                has_regular = true;
                found.regular_field(field)?;
            }
        }
        Ok(found)
    }

    fn pseudo_field(&mut self, field: FieldRef<'a>, allowed: u8) -> Result<(), HeadFault> {
        let (bit, place) = match field.name {
            b":method" => (pseudo::METHOD, &mut self.method),
            b":scheme" => (pseudo::SCHEME, &mut self.scheme),
            b":authority" => (pseudo::AUTHORITY, &mut self.authority),
            b":path" => (pseudo::PATH, &mut self.path),
            b":status" => (pseudo::STATUS, &mut self.status),
            _ => return Err(HeadFault::PseudoUnknown),
        };
        if bit & allowed == 0 {
            return Err(HeadFault::PseudoUnknown);
        }
        if self.pseudo & bit != 0 {
            return Err(HeadFault::PseudoTwice);
        }
        self.pseudo |= bit;
        *place = Some(field.value);
        Ok(())
    }

    fn regular_field(&mut self, field: FieldRef<'a>) -> Result<(), HeadFault> {
        check_name(field.name)?;
        match field.name {
            b"connection" | b"proxy-connection" | b"keep-alive" | b"transfer-encoding" | b"upgrade" => {
                Err(HeadFault::ConnectionSpecific)
            }
            b"te" if !field.value.eq_ignore_ascii_case(b"trailers") => Err(HeadFault::Te),
            b"host" => {
                if self.host.is_some_and(|host| host != field.value) {
                    return Err(HeadFault::Host);
                }
                self.host = Some(field.value);
                Ok(())
            }
            b"content-length" => {
                let length = content_length(field.value).ok_or(HeadFault::ContentLength)?;
                if self.content_length.is_some_and(|other| other != length) {
                    return Err(HeadFault::ContentLength);
                }
                self.content_length = Some(length);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

fn content_length(value: &[u8]) -> Option<u64> {
    let is_number = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    let text = is_number.then(|| std::str::from_utf8(value).ok())??;
    text.parse().ok()
}

/// Bytes of names in lower case: a token of RFC 9110, section 5.6.2, without A to Z.
static NAME_BYTES: [bool; 256] = name_bytes();

const fn name_bytes() -> [bool; 256] {
    let (mut allowed, mut byte) = ([false; 256], 0);
    while byte < 256 {
        allowed[byte] = matches!(
            byte as u8,
            b'a'..=b'z' | b'0'..=b'9' | b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.' | b'^' | b'_'
                | b'`' | b'|' | b'~'
        );
        byte += 1;
    }
    allowed
}

fn check_name(name: &[u8]) -> Result<(), HeadFault> {
    let is_right = |right, byte: &u8| right & NAME_BYTES[usize::from(*byte)];
    if !name.is_empty() && name.iter().fold(true, is_right) {
        return Ok(());
    }
    Err(HeadFault::Name)
}

/// Checks what only an end that sends holds to: no value has whitespace at an end (RFC 9113, section 8.2.1). An end that receives takes
/// such a value of a regular field as it is: PROTOCOL-HTTP2 lets a grpc-message end in a space, and some servers send one.
///
/// # Errors
/// The message is malformed.
pub(crate) fn check_sent_values(fields: &FieldList) -> Result<(), HeadFault> {
    fields.iter().try_for_each(|field| check_ends(field.value))
}

fn check_ends(value: &[u8]) -> Result<(), HeadFault> {
    let is_space = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    if is_space(value.first()) || is_space(value.last()) {
        return Err(HeadFault::Value);
    }
    Ok(())
}

fn check_value(value: &[u8]) -> Result<(), HeadFault> {
    // To its end in any case: so the compiler looks at many bytes at once.
    let is_break = |byte: &u8| matches!(byte, b'\0' | b'\r' | b'\n');
    let has_break = value.iter().fold(false, |found, byte| found | is_break(byte));
    if has_break {
        return Err(HeadFault::Value);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(fields: &[(&str, &str)]) -> FieldList {
        fields.iter().copied().collect()
    }

    const GET: [(&str, &str); 3] = [(":method", "GET"), (":scheme", "https"), (":path", "/")];

    fn request(more: &[(&str, &str)]) -> Result<HeadFacts, HeadFault> {
        check_request(&list(&[&GET[..], more].concat()))
    }

    fn response(fields: &[(&str, &str)]) -> Result<u16, HeadFault> {
        check_response(&list(fields)).map(|facts| facts.status)
    }

    /// RFC 9113, section 8.2: names are in lower case; one in upper case makes the message malformed.
    #[test]
    fn rfc9113_8_2_names_in_upper_case_are_malformed() {
        assert_eq!(request(&[("X-Id", "1")]), Err(HeadFault::Name));
        assert!(request(&[("x-id", "1")]).is_ok());
    }

    /// RFC 9113, section 8.2.1: bytes that no name has; a colon anywhere but before a pseudo-header field's.
    #[test]
    fn rfc9113_8_2_1_names() {
        for name in ["", "a b", "a\u{7f}", "a\u{e9}", "a:b", "a\0"] {
            assert_eq!(request(&[(name, "1")]), Err(HeadFault::Name), "{name:?}");
        }
    }

    /// RFC 9113, section 8.2.1: NUL, CR and LF in values. Whitespace around them is taken, and never sent; a pseudo-header field has none.
    #[test]
    fn rfc9113_8_2_1_values() {
        for value in ["a\0b", "a\rb", "a\nb"] {
            assert_eq!(request(&[("x", value)]), Err(HeadFault::Value), "{value:?}");
        }
        for value in ["", "a b", "a\tb", "\u{e9}"] {
            assert!(request(&[("x", value)]).is_ok(), "{value:?}");
            assert_eq!(check_sent_values(&list(&[("x", value)])), Ok(()), "{value:?}");
        }
        for value in [" a", "a ", "\ta", "a\t", " "] {
            assert!(request(&[("x", value)]).is_ok(), "{value:?}");
            assert_eq!(check_trailers(&list(&[("x", value)])), Ok(()), "{value:?}");
            let sent = check_sent_values(&list(&[("x", value)]));
            assert_eq!(sent, Err(HeadFault::Value), "{value:?}");
            assert_eq!(
                response(&[(":status", value)]),
                Err(HeadFault::Value),
                "{value:?}"
            );
        }
    }

    /// RFC 9113, section 8.2.2: fields of a connection.
    #[test]
    fn rfc9113_8_2_2_connection_specific_fields_are_malformed() {
        for name in [
            "connection",
            "proxy-connection",
            "keep-alive",
            "transfer-encoding",
            "upgrade",
        ] {
            assert_eq!(request(&[(name, "x")]), Err(HeadFault::ConnectionSpecific));
        }
        assert_eq!(request(&[("te", "gzip")]), Err(HeadFault::Te));
        assert!(request(&[("te", "trailers")]).is_ok());
    }

    /// RFC 9113, section 8.3: pseudo-header fields come first, once, and are those of the message's kind.
    #[test]
    fn rfc9113_8_3_pseudo_header_fields() {
        let late = [
            (":method", "GET"),
            ("a", "b"),
            (":scheme", "http"),
            (":path", "/"),
        ];
        assert_eq!(check_request(&list(&late)), Err(HeadFault::PseudoOrder));
        assert_eq!(request(&[(":path", "/")]), Err(HeadFault::PseudoTwice));
        assert_eq!(request(&[(":status", "200")]), Err(HeadFault::PseudoUnknown));
        assert_eq!(request(&[(":protocol", "x")]), Err(HeadFault::PseudoUnknown));
        assert_eq!(
            response(&[(":status", "200"), (":path", "/")]),
            Err(HeadFault::PseudoUnknown)
        );
        assert_eq!(
            check_trailers(&list(&[(":status", "200")])),
            Err(HeadFault::PseudoUnknown)
        );
        assert_eq!(check_trailers(&list(&[("grpc-status", "0")])), Ok(()));
    }

    /// RFC 9113, section 8.3.1: what a request must have.
    #[test]
    fn rfc9113_8_3_1_requests() {
        for missing in 0..GET.len() {
            let mut fields = GET.to_vec();
            fields.remove(missing);
            assert_eq!(check_request(&list(&fields)), Err(HeadFault::PseudoMissing));
        }
        let path = |method, path| {
            check_request(&list(&[
                (":method", method),
                (":scheme", "http"),
                (":path", path),
            ]))
        };
        assert_eq!(path("GET", ""), Err(HeadFault::Path));
        assert_eq!(path("GET", "a"), Err(HeadFault::Path));
        assert_eq!(path("GET", "*"), Err(HeadFault::Path));
        assert!(path("OPTIONS", "*").is_ok());
        let hosts = [(":authority", "a.example"), ("host", "b.example")];
        let authority = [&GET[..], &hosts].concat();
        assert_eq!(check_request(&list(&authority)), Err(HeadFault::Host));
    }

    /// RFC 9113, section 8.3.2: a response has one `:status`; section 8.6: never 101.
    #[test]
    fn rfc9113_8_3_2_responses() {
        assert_eq!(response(&[(":status", "200")]), Ok(200));
        assert_eq!(response(&[(":status", "103")]), Ok(103));
        assert_eq!(response(&[("a", "b")]), Err(HeadFault::PseudoMissing));
        for status in ["", "20", "2000", "2x0", "099", "101"] {
            assert_eq!(
                response(&[(":status", status)]),
                Err(HeadFault::Status),
                "{status}"
            );
        }
    }

    /// RFC 9113, section 8.5: CONNECT has an authority, and neither scheme nor path.
    #[test]
    fn rfc9113_8_5_connect() {
        let connect =
            |more: &[(&str, &str)]| check_request(&list(&[&[(":method", "CONNECT")], more].concat()));
        assert!(connect(&[(":authority", "a:1")]).is_ok());
        assert_eq!(connect(&[]), Err(HeadFault::PseudoMissing));
        assert_eq!(
            connect(&[(":authority", "a:1"), (":path", "/")]),
            Err(HeadFault::PseudoUnknown)
        );
    }

    /// RFC 9113, section 8.1.1: lengths that are no number, or not one number.
    #[test]
    fn rfc9113_8_1_1_content_lengths() {
        let length = |value| request(&[("content-length", value)]);
        assert_eq!(length("12").unwrap().content_length, Some(12));
        for value in ["", "x", "+1", "-1", "1,1", "18446744073709551616"] {
            assert_eq!(length(value), Err(HeadFault::ContentLength), "{value}");
        }
        let two = |other| request(&[("content-length", "1"), ("content-length", other)]);
        assert_eq!(two("2"), Err(HeadFault::ContentLength));
        assert!(two("1").is_ok());
    }
}
