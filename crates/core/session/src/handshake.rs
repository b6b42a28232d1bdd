//! The opening of a connection: who speaks which version of what, for which service, in which encoding.
//!
//! ```text
//! client                               server
//!   preamble, HELLO  ───────────────►    decides
//!                    ◄───────────────  preamble, WELCOME          (go on)
//!                    ◄───────────────  preamble, REFUSE           (no, and why; the connection closes)
//!                    ◄───────────────  preamble, SEND_SCHEMA      (the hashes differ)
//!   SCHEMA           ───────────────►    compares
//!                    ◄───────────────  WELCOME or REFUSE
//! ```
//!
//! Both machines take whatever bytes have come and say what to do next. What a peer can make them keep is bounded.

mod form;

use provost_datapath::MissingMethods;
use provost_wire::Code;
use provost_wire::frame::frame_kind;
use provost_wire::limits::{
    CALLS_IN_FLIGHT_MAX, HANDSHAKE_BYTES_MAX, MESSAGE_BYTES_MAX, NAME_BYTES_MAX, SERVICE_METHODS_MAX,
    STREAM_WINDOW_BYTES,
};

use form::{
    UnreadBytes, decode_hello, decode_refusal, decode_welcome, encode_hello, encode_refusal, encode_welcome,
    malformed, preamble, put_frame,
};

/// Length of what opens a connection in each direction: magic, version, two zero bytes.
pub const PREAMBLE_BYTES: usize = 8;
/// Length of a schema's content hash.
pub const SCHEMA_HASH_BYTES: usize = 32;
/// Longest reason of a refusal, in bytes; a longer one is cut.
pub const REASON_BYTES_MAX: usize = 4096;
/// Longest workload identity of a caller, in bytes: that of a SPIFFE id.
pub const WORKLOAD_BYTES_MAX: usize = 2048;
/// A caller with texts as long as they can be: three names, a workload, their lengths, a number.
const CALLER_BYTES_MAX: usize = 3 * (NAME_BYTES_MAX + 2) + WORKLOAD_BYTES_MAX + 2 + 4;
/// Longest body of a `HELLO`: every name as long as it can be.
pub const HELLO_BYTES_MAX: u32 =
    (64 + NAME_BYTES_MAX + SERVICE_METHODS_MAX * (NAME_BYTES_MAX + 3) + CALLER_BYTES_MAX) as u32;

/// Which messages of a method are streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct MethodKind {
    /// Whether the client sends any number of messages.
    pub client_streaming: bool,
    /// Whether the server sends any number of messages.
    pub server_streaming: bool,
}

/// A method as an end names it to the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Method {
    /// Name within its service.
    pub name: String,
    /// Which of its messages are streams.
    pub kind: MethodKind,
}

/// In which form messages travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// The linear native form; both ends have the same schema.
    Native,
    /// Protobuf; the ends' schemas are compatible but not equal.
    Protobuf,
}

/// What an end is ready to receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest message in bytes.
    pub message_bytes_max: u32,
    /// Window of each stream at its start, in bytes.
    pub stream_window_bytes: u32,
    /// Calls in flight on the connection.
    pub calls_in_flight_max: u32,
}

impl Limits {
    /// The same of an end that takes compressed messages as they are. Its window is an odd number, which ends of earlier versions
    /// read as what it says; theirs are all even.
    #[must_use]
    pub const fn taking_compressed(self) -> Limits {
        Limits {
            stream_window_bytes: (self.stream_window_bytes - 1) | 1,
            ..self
        }
    }

    /// Whether the end takes compressed messages: of all encodings that this version knows.
    #[must_use]
    pub const fn takes_compressed(self) -> bool {
        self.stream_window_bytes & 1 == 1
    }
}

const _: () = assert!(STREAM_WINDOW_BYTES.is_multiple_of(2));

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            message_bytes_max: MESSAGE_BYTES_MAX,
            stream_window_bytes: STREAM_WINDOW_BYTES,
            calls_in_flight_max: CALLS_IN_FLIGHT_MAX as u32,
        }
    }
}

/// What a client says first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Full name of the service that it wants.
    pub service: String,
    /// Content hash of its schema.
    pub schema_hash: [u8; SCHEMA_HASH_BYTES],
    /// The service's methods as the client knows them; a frame's `method` is an index of this list.
    pub methods: Vec<Method>,
    /// What the client is ready to receive.
    pub limits: Limits,
    /// The app that calls, where the client's node says so: only to servers that take it.
    pub caller: Option<CallerAttestation>,
}

/// What a node says of an app of its that calls. Nothing here is proved: who believes it has to trust the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallerAttestation {
    /// The name of the node.
    pub node: String,
    /// The name of the app.
    pub app: String,
    /// The name of its user on that node; empty where the number has none.
    pub user: String,
    /// The number of its user on that node.
    pub uid: u32,
    /// Its workload identity, such as a SPIFFE id; empty without one.
    pub workload: String,
}

/// What the two ends agreed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// In which form messages travel.
    pub encoding: Encoding,
    /// What the peer is ready to receive.
    pub peer_limits: Limits,
    /// For each method index of a frame: the index in this end's own schema and the method's kind, or nothing where
    /// this end has no such method. On the client's side, its own list.
    pub methods: Vec<Option<(u16, MethodKind)>>,
    /// Those of the client's methods that the server lacks. Empty on the client's side, which is not told of them.
    pub missing: MissingMethods,
}

/// How a server answers a `HELLO` or a schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Go on. `methods` are the server's own, in schema order; they are matched with the client's by name.
    Welcome {
        /// In which form messages travel.
        encoding: Encoding,
        methods: Vec<Method>,
        /// What the server is ready to receive.
        limits: Limits,
    },
    /// The hashes differ and the client's schema is not known: ask for it. Only as an answer to a `HELLO`.
    NeedSchema,
    /// No, and why; for incompatible schemas the reason names the field.
    Refuse {
        /// The status that the client's caller gets.
        code: Code,
        /// What is wrong, where, what to do.
        reason: String,
    },
}

/// Why a handshake failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// The first bytes are not ours.
    #[error(
        "the peer does not speak this protocol: it sent {found:02x?} where \"PVST\" was due{}",
        hint(found)
    )]
    NotOurs {
        /// What came, as far as it is wrong.
        found: Vec<u8>,
    },
    /// The peer speaks another version.
    #[error("the peer speaks protocol version {theirs}, this end version {ours}: upgrade the older one")]
    Version { theirs: u16, ours: u16 },
    #[error("{reason}")]
    Refused { code: Code, reason: String },
    /// The peer broke the protocol.
    #[error("malformed handshake: {what}")]
    Malformed { what: &'static str },
    /// A frame is longer than it may be.
    #[error("malformed handshake: a frame of {bytes} bytes, where at most {bytes_max} are allowed")]
    TooLong {
        /// Its length in bytes.
        bytes: u32,
        /// The most that is taken.
        bytes_max: u32,
    },
    /// A text of the caller is longer than it may be.
    #[error("malformed handshake: the caller's {what} has {bytes} bytes, at most {bytes_max} are allowed")]
    CallerTooLong {
        /// Which of the texts it is.
        what: &'static str,
        /// Its length in bytes.
        bytes: usize,
        /// The most that is taken.
        bytes_max: usize,
    },
    /// This end refused the peer (server only); the refusal is in the output.
    #[error("refused: {reason}")]
    Refusing {
        /// The status code that was sent.
        code: Code,
        /// The reason that was sent.
        reason: String,
    },
}

fn hint(found: &[u8]) -> &'static str {
    match found {
        [0x16, ..] => " (this looks like TLS: one end has TLS configured, the other has not)",
        [0x15, ..] => " (this looks like a TLS alert: one end has TLS configured, the other has not)",
        b"GET " | b"POST" | b"HEAD" | b"PUT " | b"HTTP" => " (this looks like HTTP)",
        b"PRI " => " (this looks like HTTP/2 or gRPC)",
        _ => "",
    }
}

impl HandshakeError {
    /// The status of calls that wait for this connection.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            HandshakeError::Refused { code, .. } | HandshakeError::Refusing { code, .. } => *code,
            HandshakeError::Version { .. } => Code::FailedPrecondition,
            _ => Code::Unavailable,
        }
    }
}

/// What to do after [`ClientHandshake::input`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientEvent {
    /// Send the output, if any, and read on.
    Pending,
    /// Both ends agree; what was read past the handshake is in `leftover`.
    Done {
        /// What they agreed on.
        agreement: Agreement,
        /// Bytes that belong to the connection already.
        leftover: Vec<u8>,
    },
}

#[derive(Debug)]
pub struct ClientHandshake {
    input: UnreadBytes,
    output: Vec<u8>,
    methods: Vec<Method>,
    schema: Vec<u8>,
    schema_state: SchemaState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SchemaState {
    NotSent,
    Sent,
}

impl ClientHandshake {
    /// Begins; the first output is ready. `schema` is the serialized descriptor set, sent only when asked for.
    #[must_use]
    pub fn new(hello: &Hello, schema: Vec<u8>) -> ClientHandshake {
        let mut output = preamble().to_vec();
        put_frame(&mut output, frame_kind::HELLO, &encode_hello(hello));
        ClientHandshake {
            input: UnreadBytes::new(),
            output,
            methods: hello.methods.clone(),
            schema,
            schema_state: SchemaState::NotSent,
        }
    }

    /// Takes what is to be sent now.
    pub fn output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// Takes bytes that have come.
    pub fn input(&mut self, bytes: &[u8]) -> Result<ClientEvent, HandshakeError> {
        self.input.push(bytes);
        self.input.take_preamble()?;
        while let Some((kind, body)) = self.input.take_frame(answer_bytes_max)? {
            match (kind, self.schema_state) {
                (frame_kind::WELCOME, _) => return self.welcomed(&body),
                (frame_kind::REFUSE, _) => return Err(decode_refusal(&body)),
                (frame_kind::SEND_SCHEMA, SchemaState::NotSent) => {
                    self.schema_state = SchemaState::Sent;
                    let schema = std::mem::take(&mut self.schema);
                    put_frame(&mut self.output, frame_kind::SCHEMA, &schema);
                }
                _ => return Err(malformed("the server's answer is out of turn")),
            }
        }
        Ok(ClientEvent::Pending)
    }

    fn welcomed(&mut self, body: &[u8]) -> Result<ClientEvent, HandshakeError> {
        let (encoding, peer_limits) = decode_welcome(body)?;
        let methods = self.methods.iter().enumerate();
        let agreement = Agreement {
            encoding,
            peer_limits,
            methods: methods
                .map(|(at, method)| Some((at as u16, method.kind)))
                .collect(),
            missing: MissingMethods::default(),
        };
        Ok(ClientEvent::Done {
            agreement,
            leftover: self.input.take_rest(),
        })
    }
}

fn answer_bytes_max(kind: u8) -> Option<u32> {
    match kind {
        frame_kind::WELCOME => Some(64),
        frame_kind::REFUSE => Some(REASON_BYTES_MAX as u32 + 4),
        frame_kind::SEND_SCHEMA => Some(0),
        _ => None,
    }
}

/// What to do after [`ServerHandshake::input`] or [`ServerHandshake::decide`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerEvent {
    /// Send the output, if any, and read on.
    Pending,
    /// The client said hello: [`ServerHandshake::decide`].
    Hello,
    /// The client sent its schema (a serialized `FileDescriptorSet`): [`ServerHandshake::decide`].
    Schema(Vec<u8>),
    /// Both ends agree: send the output; what was read past the handshake is in `leftover`.
    Done {
        /// What they agreed on.
        agreement: Agreement,
        /// Bytes that belong to the connection already.
        leftover: Vec<u8>,
    },
}

#[derive(Debug)]
pub struct ServerHandshake {
    input: UnreadBytes,
    output: Vec<u8>,
    state: ServerState,
    hello: Option<Hello>,
}

/// ```text
/// AwaitHello ──► Deciding ──► Done
///                  │  ▲
///                  ▼  │
///              AwaitSchema
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ServerState {
    AwaitHello,
    Deciding,
    AwaitSchema,
    Done,
}

impl Default for ServerHandshake {
    fn default() -> ServerHandshake {
        ServerHandshake::new()
    }
}

impl ServerHandshake {
    /// Waits for a client's first bytes.
    #[must_use]
    pub fn new() -> ServerHandshake {
        ServerHandshake {
            input: UnreadBytes::new(),
            output: Vec::new(),
            state: ServerState::AwaitHello,
            hello: None,
        }
    }

    /// Takes what is to be sent now, also after an error: it holds the refusal.
    pub fn output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// What the client said, once it has.
    #[must_use]
    pub fn hello(&self) -> Option<&Hello> {
        self.hello.as_ref()
    }

    /// Takes bytes that have come.
    pub fn input(&mut self, bytes: &[u8]) -> Result<ServerEvent, HandshakeError> {
        self.input.push(bytes);
        let result = self.advance();
        if let Err(error) = &result {
            self.refuse_malformed(error);
        }
        result
    }

    fn advance(&mut self) -> Result<ServerEvent, HandshakeError> {
        let state = self.state;
        if !matches!(state, ServerState::AwaitHello | ServerState::AwaitSchema) {
            return if self.input.bytes.len() > HELLO_BYTES_MAX as usize {
                Err(malformed("the client does not wait for the answer"))
            } else {
                Ok(ServerEvent::Pending)
            };
        }
        self.input.take_preamble()?;
        let bytes_max = move |kind| match (kind, state) {
            (frame_kind::HELLO, ServerState::AwaitHello) => Some(HELLO_BYTES_MAX),
            (frame_kind::SCHEMA, ServerState::AwaitSchema) => Some(HANDSHAKE_BYTES_MAX),
            _ => None,
        };
        let Some((kind, body)) = self.input.take_frame(bytes_max)? else {
            return Ok(ServerEvent::Pending);
        };
        self.state = ServerState::Deciding;
        if kind == frame_kind::SCHEMA {
            return Ok(ServerEvent::Schema(body));
        }
        self.hello = Some(decode_hello(&body)?);
        self.output = preamble().to_vec();
        Ok(ServerEvent::Hello)
    }

    pub fn decide(&mut self, decision: Decision) -> Result<ServerEvent, HandshakeError> {
        assert_eq!(
            self.state,
            ServerState::Deciding,
            "decide() answers a Hello or Schema event"
        );
        match decision {
            Decision::Welcome {
                encoding,
                methods,
                limits,
            } => self.welcome(encoding, &methods, limits),
            Decision::NeedSchema => {
                put_frame(&mut self.output, frame_kind::SEND_SCHEMA, &[]);
                self.state = ServerState::AwaitSchema;
                Ok(ServerEvent::Pending)
            }
            Decision::Refuse { code, reason } => Err(self.refuse(code, reason)),
        }
    }

    fn welcome(
        &mut self,
        encoding: Encoding,
        own: &[Method],
        limits: Limits,
    ) -> Result<ServerEvent, HandshakeError> {
        let Some(hello) = self.hello.as_ref() else {
            return Err(malformed("no hello to welcome"));
        };
        let methods = match match_methods(&hello.methods, own) {
            Ok(methods) => methods,
            Err(reason) => return Err(self.refuse(Code::FailedPrecondition, reason)),
        };
        let names = hello.methods.iter().map(|method| method.name.as_str());
        let missing = MissingMethods::of(&hello.service, names, |at| methods[at].is_none());
        let agreement = Agreement {
            encoding,
            peer_limits: hello.limits,
            methods,
            missing,
        };
        put_frame(
            &mut self.output,
            frame_kind::WELCOME,
            &encode_welcome(encoding, limits),
        );
        self.state = ServerState::Done;
        Ok(ServerEvent::Done {
            agreement,
            leftover: self.input.take_rest(),
        })
    }

    fn refuse(&mut self, code: Code, reason: String) -> HandshakeError {
        put_frame(
            &mut self.output,
            frame_kind::REFUSE,
            &encode_refusal(code, &reason),
        );
        self.state = ServerState::Done;
        HandshakeError::Refusing { code, reason }
    }

    /// Tells a client that made a mistake what it was. A stranger gets nothing but our preamble.
    fn refuse_malformed(&mut self, error: &HandshakeError) {
        self.state = ServerState::Done;
        if self.hello.is_none() {
            self.output = preamble().to_vec();
        }
        if !matches!(error, HandshakeError::NotOurs { .. }) {
            let refusal = encode_refusal(error.code(), &error.to_string());
            put_frame(&mut self.output, frame_kind::REFUSE, &refusal);
        }
    }
}

fn match_methods(theirs: &[Method], own: &[Method]) -> Result<Vec<Option<(u16, MethodKind)>>, String> {
    let by_name: std::collections::HashMap<&str, usize> = own
        .iter()
        .enumerate()
        .map(|(at, method)| (method.name.as_str(), at))
        .collect();
    theirs
        .iter()
        .map(|method| match by_name.get(method.name.as_str()) {
            None => Ok(None),
            Some(&at) if own[at].kind == method.kind => Ok(Some((at as u16, method.kind))),
            Some(_) => Err(format!(
                "method {}: client and server disagree on whether its messages are streams",
                method.name
            )),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use provost_wire::frame::{FrameHeader, PROTOCOL_VERSION};
    use zerocopy::IntoBytes;

    use super::*;

    fn method(name: &str, client_streaming: bool) -> Method {
        Method {
            name: name.into(),
            kind: MethodKind {
                client_streaming,
                server_streaming: false,
            },
        }
    }

    fn hello() -> Hello {
        Hello {
            service: "kv.Kv".into(),
            schema_hash: [7; 32],
            methods: vec![method("Get", false), method("Load", true)],
            limits: Limits::default(),
            caller: None,
        }
    }

    fn caller() -> CallerAttestation {
        CallerAttestation {
            node: "a".into(),
            app: "till".into(),
            user: "shop".into(),
            uid: 1001,
            workload: "spiffe://example.org/till".into(),
        }
    }

    fn welcome(encoding: Encoding) -> Decision {
        Decision::Welcome {
            encoding,
            methods: vec![method("Load", true), method("Get", false)],
            limits: Limits {
                calls_in_flight_max: 5,
                ..Limits::default()
            },
        }
    }

    /// Feeds bytes in pieces of `piece` bytes, and gives the last event.
    fn feed(
        bytes: &[u8],
        piece: usize,
        mut input: impl FnMut(&[u8]) -> Result<ServerEvent, HandshakeError>,
    ) -> Result<ServerEvent, HandshakeError> {
        let mut last = ServerEvent::Pending;
        for piece in bytes.chunks(piece) {
            last = input(piece)?;
        }
        Ok(last)
    }

    #[test]
    fn equal_schemas_agree_in_one_round_trip_and_methods_match_by_name() {
        for piece in [1, 7, 4096] {
            let mut client = ClientHandshake::new(&hello(), Vec::new());
            let mut server = ServerHandshake::new();
            let event = feed(&client.output(), piece, |bytes| server.input(bytes)).unwrap();
            assert_eq!(event, ServerEvent::Hello);
            assert_eq!(server.hello(), Some(&hello()));
            let ServerEvent::Done { agreement, leftover } = server.decide(welcome(Encoding::Native)).unwrap()
            else {
                panic!("not done");
            };
            assert_eq!(
                agreement.methods,
                [
                    Some((1, hello().methods[0].kind)),
                    Some((0, hello().methods[1].kind))
                ]
            );
            assert!(leftover.is_empty());
            let mut answer = server.output();
            answer.extend_from_slice(b"and more");
            let ClientEvent::Done { agreement, leftover } = client.input(&answer).unwrap() else {
                panic!("not done");
            };
            assert_eq!(
                (agreement.encoding, agreement.peer_limits.calls_in_flight_max),
                (Encoding::Native, 5)
            );
            assert_eq!(leftover, b"and more");
        }
    }

    #[test]
    fn a_schema_is_sent_when_asked_for_and_a_refusal_names_the_field() {
        let mut client = ClientHandshake::new(&hello(), b"descriptors".to_vec());
        let mut server = ServerHandshake::new();
        server.input(&client.output()).unwrap();
        assert_eq!(server.decide(Decision::NeedSchema), Ok(ServerEvent::Pending));
        assert_eq!(client.input(&server.output()), Ok(ClientEvent::Pending));
        assert_eq!(
            server.input(&client.output()),
            Ok(ServerEvent::Schema(b"descriptors".to_vec()))
        );
        let (code, reason) = (
            Code::FailedPrecondition,
            "kv.Entry.key: string became bytes".to_owned(),
        );
        let refusal = Decision::Refuse {
            code,
            reason: reason.clone(),
        };
        assert!(matches!(
            server.decide(refusal),
            Err(HandshakeError::Refusing { .. })
        ));
        assert_eq!(
            client.input(&server.output()),
            Err(HandshakeError::Refused { code, reason })
        );
    }

    fn heard(hello: &Hello) -> Result<Hello, HandshakeError> {
        let mut server = ServerHandshake::new();
        server.input(&ClientHandshake::new(hello, Vec::new()).output())?;
        Ok(server.hello().unwrap().clone())
    }

    #[test]
    fn a_caller_comes_as_it_was_sent_and_no_text_of_it_is_cut() {
        let with = |caller| Hello {
            caller: Some(caller),
            ..hello()
        };
        for caller in [
            caller(),
            CallerAttestation::default(),
            CallerAttestation {
                user: "u".repeat(NAME_BYTES_MAX),
                workload: "w".repeat(WORKLOAD_BYTES_MAX),
                ..caller()
            },
        ] {
            assert_eq!(heard(&with(caller.clone())), Ok(with(caller)));
        }
        // The beginning of a name is the name of somebody else: what does not fit is left out.
        let long = CallerAttestation {
            app: "a".repeat(NAME_BYTES_MAX + 1),
            workload: "w".repeat(WORKLOAD_BYTES_MAX + 1),
            ..caller()
        };
        let left = CallerAttestation {
            app: String::new(),
            workload: String::new(),
            ..caller()
        };
        assert_eq!(heard(&with(long)), Ok(with(left)));
    }

    #[test]
    fn a_callers_text_that_is_too_long_is_refused_by_its_name() {
        let named = Hello {
            caller: Some(caller()),
            ..hello()
        };
        let mut body = encode_hello(&named);
        let at = body.windows(4).position(|bytes| bytes == b"till").unwrap() - 2;
        body[at..at + 2].copy_from_slice(&(NAME_BYTES_MAX as u16 + 1).to_le_bytes());
        let error = decode_hello(&body).unwrap_err();
        assert!(
            error.to_string().contains("the caller's app has 257 bytes"),
            "{error}"
        );
        let whole = encode_hello(&named);
        for cut in encode_hello(&hello()).len() + 1..whole.len() {
            assert!(decode_hello(&whole[..cut]).is_err(), "{cut}");
        }
        assert!(decode_hello(&[&whole[..], &[0]].concat()).is_err());
    }

    #[test]
    fn another_version_is_named_on_both_sides() {
        let mut client = ClientHandshake::new(&hello(), Vec::new());
        let mut first = client.output();
        first[4] = 9;
        let mut server = ServerHandshake::new();
        let error = server.input(&first).unwrap_err();
        assert_eq!(
            error,
            HandshakeError::Version {
                theirs: 9,
                ours: PROTOCOL_VERSION
            }
        );
        let mut answer = server.output();
        assert!(
            matches!(client.input(&answer), Err(HandshakeError::Refused { reason, .. }) if reason.contains("version 9") && reason.contains("version 1"))
        );
        answer[4] = 3;
        let mut client = ClientHandshake::new(&hello(), Vec::new());
        assert_eq!(
            client.input(&answer),
            Err(HandshakeError::Version { theirs: 3, ours: 1 })
        );
    }

    #[test]
    fn strangers_are_recognized_by_their_first_byte() {
        for stranger in [&b"GET / HTTP/1.1\r\n"[..], &[0x16, 3, 1, 0], b"P", b"\0"] {
            let mut server = ServerHandshake::new();
            let result = server.input(stranger);
            match stranger {
                b"P" => assert_eq!(result, Ok(ServerEvent::Pending)),
                _ => assert!(
                    matches!(result, Err(HandshakeError::NotOurs { .. })),
                    "{result:?}"
                ),
            }
        }
        let error = ServerHandshake::new().input(&[0x16, 3, 1, 0]).unwrap_err();
        assert!(error.to_string().contains("TLS"), "{error}");
    }

    #[test]
    fn a_frame_over_its_bound_is_refused_by_its_header() {
        let mut bytes = preamble().to_vec();
        let header = FrameHeader {
            body_bytes: u32::MAX.into(),
            kind: frame_kind::HELLO,
            ..FrameHeader::default()
        };
        bytes.extend_from_slice(header.as_bytes());
        assert!(matches!(
            ServerHandshake::new().input(&bytes),
            Err(HandshakeError::TooLong { .. })
        ));
    }

    #[test]
    fn methods_that_stream_on_one_side_only_are_refused_by_name() {
        let mut client = ClientHandshake::new(&hello(), Vec::new());
        let mut server = ServerHandshake::new();
        server.input(&client.output()).unwrap();
        let decision = Decision::Welcome {
            encoding: Encoding::Protobuf,
            methods: vec![method("Load", false)],
            limits: Limits::default(),
        };
        let error = server.decide(decision).unwrap_err();
        assert!(error.to_string().contains("Load"), "{error}");
        assert!(matches!(
            client.input(&server.output()),
            Err(HandshakeError::Refused { .. })
        ));
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_bytes_never_panic_and_keep_no_more_than_the_bound(
            bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..300),
            ours in proptest::bool::ANY,
        ) {
            let mut input = if ours { preamble().to_vec() } else { Vec::new() };
            input.extend(bytes);
            let mut server = ServerHandshake::new();
            let _ = server.input(&input);
            let mut client = ClientHandshake::new(&hello(), Vec::new());
            let _ = client.input(&input);
        }
    }
}
