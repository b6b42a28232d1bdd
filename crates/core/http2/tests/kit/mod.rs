//! A connection under test, and a peer that says whatever it is told: frames from hand.
#![allow(dead_code)]

use std::sync::Arc;

use provost_http2::frame::{FRAME_HEADER_BYTES, FrameHeader, FrameKind, PREFACE, flags};
use provost_http2::hpack::{HpackDecoder, HpackEncoder};
use provost_http2::{
    ConnectionError, ErrorCode, FieldList, HeadKind, Http2Config, Http2Connection, Http2Event, ResetCause,
    SavedConnection, StreamEnd,
};

pub(crate) type TestChunk = Arc<[u8]>;
pub(crate) type TestConnection = Http2Connection<TestChunk>;

/// An event that borrows nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OwnedEvent {
    Head(u32, HeadKind, Vec<(String, String)>, StreamEnd),
    Data(u32, Vec<u8>, StreamEnd),
    Reset(u32, ErrorCode, ResetCause),
    Writable(u32),
    PeerSettings,
    Pong(u64),
    GoAway(u32, ErrorCode, Vec<u8>),
}

pub(crate) fn owned(event: &Http2Event<'_>) -> OwnedEvent {
    match event {
        Http2Event::Head {
            stream,
            kind,
            fields,
            end,
        } => OwnedEvent::Head(*stream, *kind, pairs(fields), *end),
        Http2Event::Data { stream, data, end } => OwnedEvent::Data(*stream, data.to_vec(), *end),
        Http2Event::Reset { stream, code, cause } => OwnedEvent::Reset(*stream, *code, *cause),
        Http2Event::Writable { stream } => OwnedEvent::Writable(*stream),
        Http2Event::PeerSettings => OwnedEvent::PeerSettings,
        Http2Event::Pong { payload } => OwnedEvent::Pong(*payload),
        Http2Event::GoAway {
            last_stream,
            code,
            debug,
        } => OwnedEvent::GoAway(*last_stream, *code, debug.to_vec()),
    }
}

pub(crate) fn pairs(fields: &FieldList) -> Vec<(String, String)> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let pair = |field: provost_http2::FieldRef<'_>| (text(field.name), text(field.value));
    fields.iter().map(pair).collect()
}

pub(crate) fn list(fields: &[(&str, &str)]) -> FieldList {
    fields.iter().copied().collect()
}

pub(crate) const REQUEST: [(&str, &str); 4] = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/a.B/C"),
    (":authority", "localhost"),
];

pub(crate) fn request(more: &[(&str, &str)]) -> FieldList {
    list(&[&REQUEST[..], more].concat())
}

pub(crate) fn frame(kind: FrameKind, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = payload.len() as u32;
    let header = FrameHeader {
        length,
        kind,
        flags,
        stream,
    };
    [&header.bytes()[..], payload].concat()
}

/// The frames of some bytes, each with its payload.
pub(crate) fn frames(mut bytes: &[u8]) -> Vec<(FrameHeader, Vec<u8>)> {
    let mut frames = Vec::new();
    bytes = bytes.strip_prefix(PREFACE).unwrap_or(bytes);
    while let Some((header, rest)) = bytes.split_first_chunk::<FRAME_HEADER_BYTES>() {
        let header = FrameHeader::read(*header);
        let (payload, rest) = rest.split_at(header.length as usize);
        frames.push((header, payload.to_vec()));
        bytes = rest;
    }
    assert!(bytes.is_empty(), "a frame is cut");
    frames
}

/// A connection, and all that it did.
pub(crate) struct TestEnd {
    pub(crate) connection: TestConnection,
    pub(crate) events: Vec<OwnedEvent>,
    pub(crate) now_ns: u64,
    /// What the peer encodes with.
    pub(crate) encoder: HpackEncoder,
    /// What the peer decodes with.
    pub(crate) decoder: HpackDecoder,
    /// Whether bodies are released as they come.
    pub(crate) releases: bool,
}

impl TestEnd {
    fn new(connection: TestConnection) -> TestEnd {
        TestEnd {
            connection,
            events: Vec::new(),
            now_ns: 0,
            encoder: HpackEncoder::new(),
            decoder: HpackDecoder::new(1 << 20),
            releases: true,
        }
    }

    /// A server whose client has said hello.
    pub(crate) fn server(config: Http2Config) -> TestEnd {
        let mut end = TestEnd::new(TestConnection::server(config, 0));
        end.take(PREFACE).unwrap();
        end.greet();
        end
    }

    /// A client whose server has said hello.
    pub(crate) fn client(config: Http2Config) -> TestEnd {
        let mut end = TestEnd::new(TestConnection::client(config, 0));
        end.greet();
        end
    }

    /// A server that has heard nothing.
    pub(crate) fn fresh_server() -> TestEnd {
        TestEnd::new(TestConnection::server(Http2Config::default(), 0))
    }

    /// A client that has heard nothing.
    pub(crate) fn fresh_client() -> TestEnd {
        TestEnd::new(TestConnection::client(Http2Config::default(), 0))
    }

    fn greet(&mut self) {
        self.say(FrameKind::Settings, 0, 0, &[]).unwrap();
        self.say(FrameKind::Settings, flags::ACK, 0, &[]).unwrap();
        self.sent();
        self.events.clear();
    }

    /// Takes bytes of the peer.
    pub(crate) fn take(&mut self, mut bytes: &[u8]) -> Result<(), ConnectionError> {
        loop {
            let received = self.connection.receive(bytes, self.now_ns)?;
            let is_at_rest = received.consumed == 0 && received.event.is_none();
            bytes = &bytes[received.consumed..];
            let Some(event) = received.event else {
                if is_at_rest || bytes.is_empty() {
                    assert!(bytes.is_empty() || self.connection.is_blocked());
                    return Ok(());
                }
                continue;
            };
            let event = owned(&event);
            if let (OwnedEvent::Data(stream, data, _), true) = (&event, self.releases) {
                self.connection.release(*stream, data.len() as u32);
            }
            self.events.push(event);
        }
    }

    /// Takes a frame of the peer.
    pub(crate) fn say(
        &mut self,
        kind: FrameKind,
        flags: u8,
        stream: u32,
        payload: &[u8],
    ) -> Result<(), ConnectionError> {
        self.take(&frame(kind, flags, stream, payload))
    }

    /// The same, and how the connection ends of it.
    pub(crate) fn say_wrong(&mut self, kind: FrameKind, flags: u8, stream: u32, payload: &[u8]) -> ErrorCode {
        let error = self
            .say(kind, flags, stream, payload)
            .expect_err("the connection ends");
        let sent = self.sent();
        let (last, payload) = sent.last().expect("a GOAWAY");
        assert_eq!(last.kind, FrameKind::GoAway);
        assert_eq!(payload[4..8], error.code.0.to_be_bytes());
        error.code
    }

    /// Takes a head or trailers of the peer.
    pub(crate) fn say_head(
        &mut self,
        stream: u32,
        fields: &FieldList,
        end: StreamEnd,
    ) -> Result<(), ConnectionError> {
        let block = self.block(fields);
        self.say(
            FrameKind::Headers,
            flags::END_HEADERS | end_flag(end),
            stream,
            &block,
        )
    }

    pub(crate) fn block(&mut self, fields: &FieldList) -> Vec<u8> {
        let mut block = Vec::new();
        self.encoder.encode(fields, &mut block);
        block
    }

    /// Takes a request without a body yet.
    pub(crate) fn say_request(&mut self, stream: u32) {
        self.say_head(stream, &request(&[]), StreamEnd::Continues)
            .unwrap();
        let last = self.events.pop();
        assert!(
            matches!(last, Some(OwnedEvent::Head(at, HeadKind::Request, ..)) if at == stream),
            "{last:?}"
        );
    }

    /// All bytes that the connection has to send.
    pub(crate) fn sent_bytes(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        loop {
            self.connection.fill(self.now_ns);
            let bytes = self.connection.copied_output();
            if bytes.is_empty() {
                return all;
            }
            self.connection.advance(bytes.len(), self.now_ns);
            all.extend(bytes);
        }
    }

    /// All frames that the connection has to send.
    pub(crate) fn sent(&mut self) -> Vec<(FrameHeader, Vec<u8>)> {
        let bytes = self.sent_bytes();
        frames(&bytes)
    }

    /// The kinds of frames that the connection has to send.
    pub(crate) fn sent_kinds(&mut self) -> Vec<FrameKind> {
        self.sent().into_iter().map(|(header, _)| header.kind).collect()
    }

    /// The streams that the connection resets, with the codes.
    pub(crate) fn resets(&mut self) -> Vec<(u32, ErrorCode)> {
        let code = |payload: &[u8]| ErrorCode(u32::from_be_bytes(payload.try_into().unwrap()));
        let resets = self
            .sent()
            .into_iter()
            .filter(|(header, _)| header.kind == FrameKind::ResetStream);
        resets
            .map(|(header, payload)| (header.stream, code(&payload)))
            .collect()
    }

    /// The fields of a frame with a whole block, as the peer decodes them.
    pub(crate) fn decoded(&mut self, payload: &[u8]) -> Vec<(String, String)> {
        self.decoder.fragment(payload).unwrap();
        self.decoder.end().unwrap();
        pairs(self.decoder.fields())
    }

    pub(crate) fn take_events(&mut self) -> Vec<OwnedEvent> {
        self.take(&[]).ok();
        std::mem::take(&mut self.events)
    }

    /// Puts a successor in the connection's place.
    pub(crate) fn replace(&mut self, config: Http2Config) {
        let bytes = self.connection.save().to_bytes();
        let state = SavedConnection::from_bytes(&bytes).expect("the state is read");
        assert_eq!(state.to_bytes(), bytes);
        self.connection = TestConnection::restore(state, config).expect("the state is accepted");
    }
}

pub(crate) fn end_flag(end: StreamEnd) -> u8 {
    match end {
        StreamEnd::Continues => 0,
        StreamEnd::Ends => flags::END_STREAM,
    }
}

pub(crate) fn chunk(bytes: &[u8]) -> TestChunk {
    bytes.into()
}

pub(crate) const END: u8 = flags::END_HEADERS | flags::END_STREAM;

pub(crate) fn server() -> TestEnd {
    TestEnd::server(Http2Config::default())
}

pub(crate) fn client() -> TestEnd {
    TestEnd::client(Http2Config::default())
}

/// A client with a request of its own, whose body is open.
pub(crate) fn asking_client() -> TestEnd {
    let mut end = client();
    let id = end
        .connection
        .open(&request(&[]), StreamEnd::Continues, 0)
        .unwrap();
    assert_eq!(id, 1);
    end.sent();
    end
}

pub(crate) fn ok_head() -> FieldList {
    list(&[(":status", "200")])
}
