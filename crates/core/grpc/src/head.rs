//! The heads of requests and responses.

use base64::Engine;
use provost_http2::{FieldList, StreamEnd};
use provost_wire::Code;

use crate::encoding_set::EncodingSet;
use crate::metadata::{BASE64_URL, MetadataFault, read_metadata, write_metadata};
use crate::status::{GrpcStatus, code_of_http_status};
use crate::timeout::{read_timeout, write_timeout};
use provost_compression::MessageEncoding;

const CONTENT_TYPE: &[u8] = b"application/grpc";

/// What `:scheme` says of the carrier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UriScheme {
    #[default]
    Http,
    Https,
}

impl UriScheme {
    fn name(self) -> &'static [u8] {
        match self {
            UriScheme::Http => b"http",
            UriScheme::Https => b"https",
        }
    }
}

/// How messages become bytes, as `content-type` says after `application/grpc`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum MessageCodec {
    /// Also when nothing is said.
    #[default]
    Protobuf,
    /// Another, of this name, such as `json`.
    Named(String),
}

/// Room for the fields of a head, so that most lists grow once.
const HEAD_FIELDS: usize = 12;
/// Bytes of what heads have whatever the call is: names, and values such as the encodings.
const HEAD_TEXT_BYTES: usize = 192;

impl MessageCodec {
    /// Reads a `content-type`; None if it is not gRPC's (PROTOCOL-HTTP2, Requests: Content-Type).
    fn read(value: &[u8]) -> Option<MessageCodec> {
        // As nearly everybody writes it.
        if value == CONTENT_TYPE {
            return Some(MessageCodec::Protobuf);
        }
        let essence = value.split(|byte| *byte == b';').next().unwrap_or_default();
        let essence = essence.trim_ascii().to_ascii_lowercase();
        let codec = match essence.strip_prefix(CONTENT_TYPE)? {
            [] | b"+proto" => return Some(MessageCodec::Protobuf),
            [b'+', codec @ ..] if !codec.is_empty() => codec,
            _ => return None,
        };
        String::from_utf8(codec.to_vec()).ok().map(MessageCodec::Named)
    }

    fn write(&self, fields: &mut FieldList) {
        match self {
            MessageCodec::Protobuf => fields.push(b"content-type", CONTENT_TYPE),
            MessageCodec::Named(name) => {
                fields.push(b"content-type", &[CONTENT_TYPE, b"+", name.as_bytes()].concat());
            }
        }
    }
}

/// The head of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHead {
    /// Of the form `/package.Service/Method`.
    pub path: String,
    /// What the caller calls the server.
    pub authority: Option<String>,
    /// How long the call may take, from when the head was sent.
    pub timeout_ns: Option<u64>,
    pub codec: MessageCodec,
    /// What `grpc-message-type` says: the full name of the request's type.
    pub message_type: Option<String>,
    /// Of the messages of the request.
    pub encoding: MessageEncoding,
    /// Encodings of messages that the caller takes.
    pub accepts: EncodingSet,
    /// A block of `provost_wire::metadata`.
    pub metadata: Vec<u8>,
}

/// The head of the answer to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseHead {
    pub codec: MessageCodec,
    /// Of the messages of the response.
    pub encoding: MessageEncoding,
    /// Encodings of messages that the server takes.
    pub accepts: EncodingSet,
    /// A block of `provost_wire::metadata`.
    pub metadata: Vec<u8>,
}

impl Default for ResponseHead {
    fn default() -> ResponseHead {
        ResponseHead {
            codec: MessageCodec::Protobuf,
            encoding: MessageEncoding::Identity,
            accepts: EncodingSet::ALL,
            metadata: Vec::new(),
        }
    }
}

/// Why a request is no call, and what its sender is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeadRefusal {
    /// It is not gRPC: a status of HTTP says so.
    Http(u16),
    /// It is a call that cannot be carried out.
    Call(GrpcStatus),
}

impl From<MetadataFault> for HeadRefusal {
    fn from(fault: MetadataFault) -> HeadRefusal {
        HeadRefusal::Call(GrpcStatus::new(Code::Internal, fault.to_string()))
    }
}

impl HeadRefusal {
    /// The response as a whole.
    pub(crate) fn fields(&self) -> FieldList {
        match self {
            HeadRefusal::Http(405) => [(":status", "405"), ("allow", "POST")].into_iter().collect(),
            HeadRefusal::Http(status) => [(":status", status.to_string())].into_iter().collect(),
            HeadRefusal::Call(status) => {
                let mut fields = FieldList::new();
                write_trailers_only(&mut fields);
                write_accepts(EncodingSet::ALL, &mut fields);
                status.write(&mut fields);
                fields
            }
        }
    }
}

/// A request, as its head says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReadRequest {
    pub(crate) head: RequestHead,
    /// The message of a request of GET, which has no body.
    pub(crate) message: Option<Vec<u8>>,
}

impl RequestHead {
    /// A call without metadata, deadline or compression.
    #[must_use]
    pub fn new(path: impl Into<String>) -> RequestHead {
        RequestHead {
            path: path.into(),
            authority: None,
            timeout_ns: None,
            codec: MessageCodec::Protobuf,
            message_type: None,
            encoding: MessageEncoding::Identity,
            accepts: EncodingSet::ALL,
            metadata: Vec::new(),
        }
    }

    /// The full names of the service and the method; None if the path is not of gRPC's form.
    #[must_use]
    pub fn service_and_method(&self) -> Option<(&str, &str)> {
        let (service, method) = self.path.strip_prefix('/')?.rsplit_once('/')?;
        (!service.is_empty() && !method.is_empty()).then_some((service, method))
    }

    /// PROTOCOL-HTTP2, Requests: Request-Headers, in the order that is recommended there.
    pub(crate) fn write(&self, scheme: UriScheme, fields: &mut FieldList) -> Result<(), MetadataFault> {
        let own_bytes = self.path.len() + self.authority.as_deref().map_or(0, str::len);
        fields.make_room(HEAD_FIELDS, HEAD_TEXT_BYTES + own_bytes + self.metadata.len());
        fields.push(b":method", b"POST");
        fields.push(b":scheme", scheme.name());
        fields.push(b":path", self.path.as_bytes());
        if let Some(authority) = &self.authority {
            fields.push(b":authority", authority.as_bytes());
        }
        if let Some(timeout_ns) = self.timeout_ns {
            fields.push(b"grpc-timeout", write_timeout(timeout_ns).as_bytes());
        }
        fields.push(b"te", b"trailers");
        self.codec.write(fields);
        if let Some(message_type) = &self.message_type {
            fields.push(b"grpc-message-type", message_type.as_bytes());
        }
        write_encoding(self.encoding, fields);
        write_accepts(self.accepts, fields);
        write_metadata(&self.metadata, fields)
    }

    /// Reads the head of a request that is well-formed as HTTP/2 has it.
    pub(crate) fn read(fields: &FieldList, end: StreamEnd) -> Result<ReadRequest, HeadRefusal> {
        let target = fields.get(b":path").unwrap_or_default();
        let (path, message) = match (fields.get(b":method"), end) {
            (Some(b"POST"), _) => (target, None),
            (Some(b"GET"), StreamEnd::Ends) => get_message(target).ok_or(HeadRefusal::Http(405))?,
            _ => return Err(HeadRefusal::Http(405)),
        };
        let content_type = fields.get(b"content-type").unwrap_or_default();
        let codec = MessageCodec::read(content_type).ok_or(HeadRefusal::Http(415))?;
        let head = RequestHead {
            path: text(path).ok_or_else(unknown_path)?,
            authority: fields
                .get(b":authority")
                .or_else(|| fields.get(b"host"))
                .and_then(text),
            timeout_ns: fields.get(b"grpc-timeout").map(timeout_of).transpose()?,
            codec,
            message_type: fields.get(b"grpc-message-type").and_then(text),
            encoding: encoding_of(fields).map_err(HeadRefusal::Call)?,
            accepts: EncodingSet::read(fields.get(b"grpc-accept-encoding").unwrap_or_default()),
            metadata: read_metadata(fields)?,
        };
        head.service_and_method().ok_or_else(unknown_path)?;
        Ok(ReadRequest { head, message })
    }
}

impl ResponseHead {
    pub(crate) fn write(&self, fields: &mut FieldList) -> Result<(), MetadataFault> {
        fields.make_room(HEAD_FIELDS, HEAD_TEXT_BYTES + self.metadata.len());
        fields.push(b":status", b"200");
        self.codec.write(fields);
        write_encoding(self.encoding, fields);
        write_accepts(self.accepts, fields);
        write_metadata(&self.metadata, fields)
    }

    /// Reads the head of a response; or how the call ended, if that is what it says.
    ///
    /// # Errors
    /// The status of a call that ends with this head.
    pub(crate) fn read(fields: &FieldList) -> Result<ResponseHead, GrpcStatus> {
        let malformed = |fault: MetadataFault| GrpcStatus::new(Code::Internal, fault.to_string());
        let content_type = fields.get(b"content-type").unwrap_or_default();
        let codec = MessageCodec::read(content_type);
        let is_http_ok = fields.get(b":status") == Some(b"200");
        let (true, Some(codec)) = (is_http_ok, codec) else {
            let status = GrpcStatus::read(fields).map_err(malformed)?;
            return Err(status.unwrap_or_else(|| not_grpc(fields)));
        };
        Ok(ResponseHead {
            codec,
            encoding: encoding_of(fields).map_err(|status| GrpcStatus {
                code: Code::Internal,
                ..status
            })?,
            accepts: EncodingSet::read(fields.get(b"grpc-accept-encoding").unwrap_or_default()),
            metadata: read_metadata(fields).map_err(malformed)?,
        })
    }
}

/// The fields with which a response begins that has neither a head of its own nor messages (PROTOCOL-HTTP2, Responses:
/// Trailers-Only).
pub(crate) fn write_trailers_only(fields: &mut FieldList) {
    fields.push(b":status", b"200");
    MessageCodec::Protobuf.write(fields);
}

/// A response that is not gRPC's: some other server, or something between, answered (HTTP to gRPC Status Code Mapping).
pub(crate) fn not_grpc(fields: &FieldList) -> GrpcStatus {
    let read = |name: &[u8]| fields.get(name).and_then(text).unwrap_or_default();
    let status = read(b":status");
    let message = format!(
        "the response is not gRPC's: HTTP status {status}, content-type \"{}\"",
        read(b"content-type")
    );
    let code = code_of_http_status(status.parse().unwrap_or_default());
    GrpcStatus::new(code, message)
}

/// The path of a request of GET, and the message in its query.
fn get_message(target: &[u8]) -> Option<(&[u8], Option<Vec<u8>>)> {
    let question = target.iter().position(|byte| *byte == b'?')?;
    let message = BASE64_URL.decode(&target[question + 1..]).ok()?;
    Some((&target[..question], Some(message)))
}

fn unknown_path() -> HeadRefusal {
    let message = "the path is not of the form /package.Service/Method";
    HeadRefusal::Call(GrpcStatus::new(Code::Unimplemented, message))
}

fn timeout_of(value: &[u8]) -> Result<u64, HeadRefusal> {
    let message = "the field grpc-timeout is malformed: it is up to 8 digits and one of H, M, S, m, u, n";
    read_timeout(value).ok_or_else(|| HeadRefusal::Call(GrpcStatus::new(Code::Internal, message)))
}

fn encoding_of(fields: &FieldList) -> Result<MessageEncoding, GrpcStatus> {
    let Some(name) = fields.get(b"grpc-encoding") else {
        return Ok(MessageEncoding::Identity);
    };
    MessageEncoding::named(name).ok_or_else(|| {
        let name = String::from_utf8_lossy(name);
        GrpcStatus::new(
            Code::Unimplemented,
            format!("the encoding {name} of messages is not known here"),
        )
    })
}

fn write_encoding(encoding: MessageEncoding, fields: &mut FieldList) {
    if encoding != MessageEncoding::Identity {
        fields.push(b"grpc-encoding", encoding.name().as_bytes());
    }
}

fn write_accepts(accepts: EncodingSet, fields: &mut FieldList) {
    if accepts != EncodingSet::UNSAID {
        fields.push(b"grpc-accept-encoding", accepts.names().as_bytes());
    }
}

fn text(value: &[u8]) -> Option<String> {
    std::str::from_utf8(value).ok().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: [(&str, &str); 5] = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/a.B/C"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
    ];

    fn list(fields: &[(&str, &str)]) -> FieldList {
        fields.iter().copied().collect()
    }

    /// The request with other values, and more fields.
    fn request(other: &[(&str, &str)]) -> Result<ReadRequest, HeadRefusal> {
        let kept = REQUEST
            .iter()
            .filter(|(name, _)| other.iter().all(|(more, _)| more != name));
        let fields: Vec<(&str, &str)> = kept.chain(other).copied().collect();
        RequestHead::read(&list(&fields), StreamEnd::Continues)
    }

    fn refused_code(other: &[(&str, &str)]) -> Code {
        match request(other) {
            Err(HeadRefusal::Call(status)) => status.code,
            other => panic!("{other:?}"),
        }
    }

    /// PROTOCOL-HTTP2, Requests: Content-Type; anything else is answered by 415.
    #[test]
    fn requests_content_types() {
        let known = [
            ("application/grpc", MessageCodec::Protobuf),
            ("application/grpc+proto", MessageCodec::Protobuf),
            ("Application/GRPC ; charset=utf-8", MessageCodec::Protobuf),
            ("application/grpc+json", MessageCodec::Named("json".into())),
        ];
        for (content_type, codec) in known {
            let read = request(&[("content-type", content_type)]).unwrap();
            assert_eq!(read.head.codec, codec, "{content_type}");
        }
        for content_type in [
            "",
            "text/html",
            "application/grpc-web",
            "application/grpc-web+proto",
            "application/grpcx",
            "application/grpc+",
        ] {
            let refused = request(&[("content-type", content_type)]);
            assert_eq!(refused, Err(HeadRefusal::Http(415)), "{content_type}");
        }
    }

    /// PROTOCOL-HTTP2, Requests: Method, and the form of Path.
    #[test]
    fn requests_methods_and_paths() {
        assert_eq!(request(&[(":method", "PUT")]), Err(HeadRefusal::Http(405)));
        for path in ["/", "/a", "/a/", "//b"] {
            assert_eq!(refused_code(&[(":path", path)]), Code::Unimplemented, "{path}");
        }
        let read = request(&[(":path", "/a.b.C/D")]).unwrap();
        assert_eq!(read.head.service_and_method(), Some(("a.b.C", "D")));
    }

    /// PROTOCOL-HTTP2, Requests: Timeout, and what is none.
    #[test]
    fn requests_timeouts() {
        let read = request(&[("grpc-timeout", "3S")]).unwrap();
        assert_eq!(read.head.timeout_ns, Some(3_000_000_000));
        assert_eq!(refused_code(&[("grpc-timeout", "3")]), Code::Internal);
    }

    /// COMPRESSION: an encoding that the server does not know is UNIMPLEMENTED, and the answer names those that it knows.
    #[test]
    fn compression_of_unknown_encodings() {
        let Err(refusal) = request(&[("grpc-encoding", "snappy")]) else {
            panic!("it is not known");
        };
        let fields = refusal.fields();
        assert_eq!(fields.get(b"grpc-status"), Some(&b"12"[..]));
        let names = EncodingSet::ALL.names();
        assert_eq!(fields.get(b"grpc-accept-encoding"), Some(names.as_bytes()));
    }

    /// INTEROP, `cacheable_unary`: the message stands in the query, in the alphabet of URLs.
    #[test]
    fn interop_cacheable_requests() {
        let get = |path, end| {
            let mut fields = REQUEST;
            fields[0].1 = "GET";
            fields[2].1 = path;
            RequestHead::read(&list(&fields), end)
        };
        for path in ["/a.B/C?-_8", "/a.B/C?-_8="] {
            let read = get(path, StreamEnd::Ends).unwrap();
            assert_eq!(read.head.path, "/a.B/C");
            assert_eq!(read.message, Some(vec![0xfb, 0xff]));
        }
        let refused = Err(HeadRefusal::Http(405));
        assert_eq!(get("/a.B/C", StreamEnd::Ends), refused);
        assert_eq!(get("/a.B/C?*", StreamEnd::Ends), refused);
        assert_eq!(get("/a.B/C?-_8", StreamEnd::Continues), refused);
    }

    /// PROTOCOL-HTTP2, Requests: what is written is read.
    #[test]
    fn requests_are_read_as_written() {
        let mut metadata = Vec::new();
        provost_wire::metadata::append(&mut metadata, "a-bin", &[1, 2]).unwrap();
        let head = RequestHead {
            authority: Some("host:1".into()),
            timeout_ns: Some(1_500),
            codec: MessageCodec::Named("json".into()),
            message_type: Some("a.Request".into()),
            encoding: MessageEncoding::Gzip,
            metadata,
            ..RequestHead::new("/a.B/C")
        };
        let mut fields = FieldList::new();
        head.write(UriScheme::Https, &mut fields).unwrap();
        let read = RequestHead::read(&fields, StreamEnd::Continues).unwrap();
        assert_eq!(read, ReadRequest { head, message: None });
        // Timeout comes right after what begins with a colon, and the rest before metadata.
        let names: Vec<&[u8]> = fields.iter().map(|field| field.name).collect();
        assert_eq!(names[4], b"grpc-timeout");
        assert_eq!(names.last(), Some(&&b"a-bin"[..]));
    }

    /// PROTOCOL-HTTP2, Responses: a response that is not gRPC's has a status by the mapping of HTTP's.
    #[test]
    fn responses_of_others() {
        let code = |fields: &[(&str, &str)]| ResponseHead::read(&list(fields)).unwrap_err().code;
        let html = ("content-type", "text/html");
        assert_eq!(code(&[(":status", "200"), html]), Code::Unknown);
        assert_eq!(code(&[(":status", "503"), html]), Code::Unavailable);
        let grpc = ("content-type", "application/grpc");
        assert_eq!(code(&[(":status", "404"), grpc]), Code::Unimplemented);
        // A status of gRPC counts for more.
        assert_eq!(
            code(&[(":status", "404"), grpc, ("grpc-status", "5")]),
            Code::NotFound
        );
        let snappy = ("grpc-encoding", "snappy");
        assert_eq!(code(&[(":status", "200"), grpc, snappy]), Code::Internal);
    }
}
