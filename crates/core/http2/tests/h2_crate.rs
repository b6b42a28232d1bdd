//! Beside the `h2` crate: our client calls its server, its client calls our server, and both read the same from the same.

mod kit;

use std::collections::BTreeMap;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, Version};
use kit::{OwnedEvent, TestConnection, TestEnd, chunk, frame, owned, request};
use proptest::collection::vec;
use proptest::prelude::*;
use provost_http2::frame::{FrameKind, PREFACE, flags};
use provost_http2::{
    EndpointRole, ErrorCode, FieldList, HeadKind, Http2Config, SendError, StreamEnd, setting, setting_bytes,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

/// More than any test has under way, so that no write waits.
const PIPE_BYTES: usize = 64 << 20;

/// What one end says on a stream.
#[derive(Clone, Debug)]
struct SaidMessage {
    fields: Vec<(String, String)>,
    body: Vec<u8>,
    trailers: Vec<(String, String)>,
}

fn fields() -> impl Strategy<Value = Vec<(String, String)>> {
    vec(("x-[a-c]{1,3}", "([!-~]([ -~]{0,40}[!-~])?)?"), 0..6)
}

fn message() -> impl Strategy<Value = SaidMessage> {
    let bytes = prop_oneof![Just(0), 1_usize..100, 1_000_usize..120_000];
    let body = (bytes, any::<u8>()).prop_map(|(bytes, byte)| vec![byte; bytes]);
    (fields(), body, fields()).prop_map(|(fields, body, trailers)| SaidMessage {
        fields,
        body,
        trailers,
    })
}

fn map(fields: &[(String, String)]) -> HeaderMap {
    let field = |(name, value): &(String, String)| {
        (
            HeaderName::from_bytes(name.as_bytes()).unwrap(),
            HeaderValue::from_str(value).unwrap(),
        )
    };
    fields.iter().map(field).collect()
}

/// By name, each name's values in their order: what the `http` crate keeps.
fn sorted(fields: &[(String, String)]) -> BTreeMap<String, Vec<String>> {
    let mut sorted: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, value) in fields.iter().filter(|(name, _)| !name.starts_with(':')) {
        sorted.entry(name.clone()).or_default().push(value.clone());
    }
    sorted
}

fn unmapped(map: &HeaderMap) -> Vec<(String, String)> {
    let text = |value: &HeaderValue| String::from_utf8(value.as_bytes().to_vec()).unwrap();
    map.iter()
        .map(|(name, value)| (name.to_string(), text(value)))
        .collect()
}

/// What came on a stream.
#[derive(Debug, Default)]
struct HeardMessage {
    fields: Vec<(String, String)>,
    body: Vec<u8>,
    trailers: Vec<(String, String)>,
    is_ended: bool,
}

impl HeardMessage {
    fn assert_is(&self, message: &SaidMessage) {
        assert!(self.is_ended);
        assert_eq!(sorted(&self.fields), sorted(&message.fields));
        assert_eq!(self.body.len(), message.body.len());
        assert_eq!(self.body, message.body);
        assert_eq!(sorted(&self.trailers), sorted(&message.trailers));
    }
}

/// One of our ends at a pipe.
struct PipedEnd {
    connection: TestConnection,
    pipe: DuplexStream,
    heard: BTreeMap<u32, HeardMessage>,
    /// What is to be said, and how much of the body was.
    saying: BTreeMap<u32, (SaidMessage, usize)>,
    /// What a server answers with, by path.
    answers: Vec<SaidMessage>,
}

impl PipedEnd {
    fn new(connection: TestConnection, pipe: DuplexStream) -> PipedEnd {
        PipedEnd {
            connection,
            pipe,
            heard: BTreeMap::new(),
            saying: BTreeMap::new(),
            answers: Vec::new(),
        }
    }

    /// Sends and reads until the other end closes, or `is_done`.
    async fn pump(&mut self, is_done: impl Fn(&PipedEnd) -> bool) {
        let mut buffer = vec![0; 30_000];
        loop {
            self.say();
            self.send().await;
            if is_done(self) {
                return;
            }
            let read = self.pipe.read(&mut buffer).await.unwrap();
            if read == 0 {
                return;
            }
            self.take(&buffer[..read]);
        }
    }

    async fn send(&mut self) {
        loop {
            self.connection.fill(0);
            let out = self.connection.copied_output();
            if out.is_empty() {
                return;
            }
            self.connection.advance(out.len(), 0);
            if self.pipe.write_all(&out).await.is_err() {
                return;
            }
        }
    }

    fn take(&mut self, mut bytes: &[u8]) {
        loop {
            let received = self
                .connection
                .receive(bytes, 0)
                .expect("the other end keeps the rules");
            bytes = &bytes[received.consumed..];
            let Some(event) = received.event.map(|event| owned(&event)) else {
                return;
            };
            self.on_event(event);
        }
    }

    fn on_event(&mut self, event: OwnedEvent) {
        match event {
            OwnedEvent::Head(stream, HeadKind::Trailers, fields, _) => {
                let heard = self.heard.get_mut(&stream).unwrap();
                heard.trailers = fields;
                heard.is_ended = true;
            }
            OwnedEvent::Head(stream, kind, fields, end) => {
                if kind == HeadKind::Request {
                    self.answer(stream, &fields);
                }
                let heard = self.heard.entry(stream).or_default();
                heard.fields = fields;
                heard.is_ended = end == StreamEnd::Ends;
            }
            OwnedEvent::Data(stream, data, end) => {
                let heard = self.heard.get_mut(&stream).unwrap();
                heard.body.extend(&data);
                heard.is_ended = end == StreamEnd::Ends;
                self.connection.release(stream, data.len() as u32);
            }
            OwnedEvent::Reset(stream, code, _) => panic!("stream {stream} is reset with {code}"),
            _ => {}
        }
    }

    fn answer(&mut self, stream: u32, fields: &[(String, String)]) {
        let path = fields.iter().find(|(name, _)| name == ":path").unwrap();
        let number: usize = path.1.trim_start_matches('/').parse().unwrap();
        let message = self.answers[number].clone();
        let head = [(":status".to_owned(), "200".to_owned())]
            .into_iter()
            .chain(message.fields.clone());
        let head: FieldList = head.collect();
        self.connection
            .respond(stream, &head, StreamEnd::Continues, 0)
            .unwrap();
        self.saying.insert(stream, (message, 0));
    }

    /// Says as much as the queues take.
    fn say(&mut self) {
        for (stream, (message, said)) in &mut self.saying {
            while *said < message.body.len() {
                let end = (*said + 25_000).min(message.body.len());
                let part = chunk(&message.body[*said..end]);
                match self.connection.send_data(*stream, part, StreamEnd::Continues, 0) {
                    Ok(()) => *said = end,
                    Err((SendError::QueueFull, _)) => break,
                    Err((error, _)) => panic!("{error}"),
                }
            }
            if *said == message.body.len() {
                *said += 1;
                if message.trailers.is_empty() {
                    let end = self.connection.send_data(*stream, chunk(b""), StreamEnd::Ends, 0);
                    end.map_err(|(error, _)| error).unwrap();
                } else {
                    let trailers = message.trailers.iter().cloned().collect();
                    self.connection.send_trailers(*stream, trailers, 0).unwrap();
                }
            }
        }
    }
}

async fn read_body(body: &mut h2::RecvStream) -> (Vec<u8>, Vec<(String, String)>) {
    let mut all = Vec::new();
    while let Some(part) = body.data().await {
        let part = part.unwrap();
        body.flow_control().release_capacity(part.len()).unwrap();
        all.extend_from_slice(&part);
    }
    let trailers = body.trailers().await.unwrap();
    (
        all,
        trailers.map(|trailers| unmapped(&trailers)).unwrap_or_default(),
    )
}

fn send_message(stream: &mut h2::SendStream<Bytes>, message: &SaidMessage) {
    stream
        .send_data(Bytes::from(message.body.clone()), message.trailers.is_empty())
        .unwrap();
    if !message.trailers.is_empty() {
        stream.send_trailers(map(&message.trailers)).unwrap();
    }
}

/// The server of the `h2` crate: answers with the message whose number is the path, and says what it heard.
async fn serve(pipe: DuplexStream, answers: Vec<SaidMessage>) -> BTreeMap<usize, HeardMessage> {
    let mut connection = h2::server::handshake(pipe).await.unwrap();
    let mut calls = Vec::new();
    while let Some(accepted) = connection.accept().await {
        let Ok((request, mut respond)) = accepted else {
            break;
        };
        let number: usize = request.uri().path().trim_start_matches('/').parse().unwrap();
        let answer = answers[number].clone();
        calls.push(tokio::spawn(async move {
            let (head, mut body) = request.into_parts();
            let mut response = Response::new(());
            *response.headers_mut() = map(&answer.fields);
            let mut stream = respond.send_response(response, false).unwrap();
            send_message(&mut stream, &answer);
            let (body, trailers) = read_body(&mut body).await;
            let fields = unmapped(&head.headers);
            let heard = HeardMessage {
                fields,
                body,
                trailers,
                is_ended: true,
            };
            (number, heard)
        }));
    }
    let mut heard = BTreeMap::new();
    for call in calls {
        heard.extend([call.await.unwrap()]);
    }
    heard
}

fn config() -> Http2Config {
    Http2Config {
        stream_window_bytes: 70_000,
        connection_window_bytes: 100_000,
        stream_queue_bytes_max: 40_000,
        ..Http2Config::default()
    }
}

/// Our client and its server.
async fn call_h2_server(requests: &[SaidMessage], answers: &[SaidMessage]) {
    let (ours, theirs) = duplex(PIPE_BYTES);
    let server = tokio::spawn(serve(theirs, answers.to_vec()));
    let mut client = PipedEnd::new(TestConnection::client(config(), 0), ours);
    for (number, message) in requests.iter().enumerate() {
        let path = format!("/{number}");
        let own = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", &path),
            (":authority", "a"),
        ];
        let own = own.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let head: FieldList = own.into_iter().chain(message.fields.clone()).collect();
        let stream = client.connection.open(&head, StreamEnd::Continues, 0).unwrap();
        client.saying.insert(stream, (message.clone(), 0));
    }
    let count = requests.len();
    client
        .pump(|end| {
            end.heard.values().filter(|heard| heard.is_ended).count() == count
                && end.connection.open_streams() == 0
        })
        .await;
    client.connection.drain(0);
    client.send().await;
    for (heard, answer) in client.heard.values().zip(answers) {
        heard.assert_is(answer);
    }
    drop(client);
    let heard = server.await.unwrap();
    assert_eq!(heard.len(), count);
    for (number, heard) in heard {
        heard.assert_is(&requests[number]);
    }
}

/// Its client and our server.
async fn call_our_server(requests: &[SaidMessage], answers: &[SaidMessage]) {
    let (ours, theirs) = duplex(PIPE_BYTES);
    let mut server = PipedEnd::new(TestConnection::server(config(), 0), ours);
    server.answers = answers.to_vec();
    let server = tokio::spawn(async move {
        server.pump(|_| false).await;
        server.heard
    });
    let (send, connection) = h2::client::handshake(theirs).await.unwrap();
    let connection = tokio::spawn(connection);
    let mut calls = Vec::new();
    for (number, message) in requests.iter().enumerate() {
        let mut send = send.clone().ready().await.unwrap();
        let mut request = Request::new(());
        *request.version_mut() = Version::HTTP_2;
        *request.method_mut() = Method::POST;
        *request.uri_mut() = format!("http://a/{number}").parse().unwrap();
        *request.headers_mut() = map(&message.fields);
        let (response, mut stream) = send.send_request(request, false).unwrap();
        send_message(&mut stream, message);
        calls.push(tokio::spawn(async move {
            let (head, mut body) = response.await.unwrap().into_parts();
            let (body, trailers) = read_body(&mut body).await;
            let fields = unmapped(&head.headers);
            HeardMessage {
                fields,
                body,
                trailers,
                is_ended: true,
            }
        }));
    }
    for (call, answer) in calls.into_iter().zip(answers) {
        call.await.unwrap().assert_is(answer);
    }
    drop(send);
    connection.await.unwrap().unwrap();
    for (heard, message) in server.await.unwrap().values().zip(requests) {
        heard.assert_is(message);
    }
}

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
        .block_on(test);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.div_ceil(8), failure_persistence: None,
        ..ProptestConfig::default() })]

    #[test]
    fn our_client_calls_its_server(calls in vec((message(), message()), 1..12)) {
        let (requests, answers): (Vec<_>, Vec<_>) = calls.into_iter().unzip();
        run(call_h2_server(&requests, &answers));
    }

    #[test]
    fn its_client_calls_our_server(calls in vec((message(), message()), 1..12)) {
        let (requests, answers): (Vec<_>, Vec<_>) = calls.into_iter().unzip();
        run(call_our_server(&requests, &answers));
    }
}

/// What a server of the `h2` crate makes of a client's bytes: the code of its GOAWAY, or none.
async fn goaway_of_h2(talk: &[u8]) -> Option<ErrorCode> {
    let (mut ours, theirs) = duplex(PIPE_BYTES);
    let server = tokio::spawn(async move {
        let Ok(mut connection) = h2::server::handshake(theirs).await else {
            return;
        };
        let mut open = Vec::new();
        while let Some(Ok(accepted)) = connection.accept().await {
            open.push(accepted);
        }
    });
    ours.write_all(talk).await.unwrap();
    ours.shutdown().await.unwrap();
    let mut said = Vec::new();
    ours.read_to_end(&mut said).await.unwrap();
    server.await.unwrap();
    goaway(&said)
}

fn goaway(said: &[u8]) -> Option<ErrorCode> {
    let frames = kit::frames(said);
    let goaway = frames
        .iter()
        .find(|(header, _)| header.kind == FrameKind::GoAway)?;
    let code = u32::from_be_bytes(goaway.1[4..8].try_into().unwrap());
    (code != 0).then_some(ErrorCode(code))
}

/// What our server makes of them.
fn goaway_of_ours(talk: &[u8]) -> Option<ErrorCode> {
    let mut server = TestEnd::fresh_server();
    assert_eq!(server.connection.role(), EndpointRole::Server);
    let _ = server.take(talk);
    goaway(&server.sent_bytes())
}

/// Violations that end a connection: both end it. The code is the one that RFC 9113 asks for; `h2` says PROTOCOL_ERROR instead now
/// and then.
#[test]
fn violations_end_both_servers() {
    let mut peer = TestEnd::fresh_client();
    let block = peer.block(&request(&[]));
    let open = frame(FrameKind::Headers, flags::END_HEADERS, 1, &block);
    let with_stream = |more: Vec<u8>| [open.clone(), more].concat();
    let protocol = [
        frame(FrameKind::Data, 0, 0, b"x"),
        frame(FrameKind::Data, 0, 1, b"on an idle stream"),
        frame(FrameKind::Headers, flags::END_HEADERS, 0, &block),
        frame(FrameKind::Headers, flags::END_HEADERS, 2, &block),
        frame(FrameKind::ResetStream, 0, 0, &[0; 4]),
        frame(FrameKind::ResetStream, 0, 1, &[0; 4]),
        frame(FrameKind::Settings, 0, 1, &[]),
        frame(FrameKind::Settings, 0, 0, &setting_bytes(setting::ENABLE_PUSH, 2)),
        frame(
            FrameKind::Settings,
            0,
            0,
            &setting_bytes(setting::MAX_FRAME_SIZE, 1),
        ),
        frame(FrameKind::Ping, 0, 1, &[0; 8]),
        frame(FrameKind::WindowUpdate, 0, 0, &[0; 4]),
        frame(FrameKind::Continuation, flags::END_HEADERS, 1, &block),
        with_stream(frame(FrameKind::Data, flags::PADDED, 1, &[9, 0])),
        with_stream(frame(FrameKind::Continuation, flags::END_HEADERS, 1, &block)),
        [
            frame(FrameKind::Headers, 0, 1, &block),
            frame(FrameKind::Ping, 0, 0, &[0; 8]),
        ]
        .concat(),
    ];
    let size = [
        frame(FrameKind::Settings, 0, 0, &[0; 5]),
        frame(FrameKind::Settings, flags::ACK, 0, &[0; 6]),
        frame(FrameKind::Ping, 0, 0, &[0; 7]),
        frame(FrameKind::WindowUpdate, 0, 0, &[0; 3]),
        with_stream(frame(FrameKind::Data, 0, 1, &[0; 16_385])),
    ];
    let window = [frame(FrameKind::WindowUpdate, 0, 0, &[0x7f, 0xff, 0xff, 0xff])];
    let compression = [frame(FrameKind::Headers, flags::END_HEADERS, 1, &[0x80])];
    end_both(&protocol, ErrorCode::PROTOCOL_ERROR);
    end_both(&size, ErrorCode::FRAME_SIZE_ERROR);
    end_both(&window, ErrorCode::FLOW_CONTROL_ERROR);
    end_both(&compression, ErrorCode::COMPRESSION_ERROR);
}

fn end_both(talks: &[Vec<u8>], code: ErrorCode) {
    for talk in talks {
        let whole = [&PREFACE[..], &frame(FrameKind::Settings, 0, 0, &[]), talk].concat();
        assert_eq!(goaway_of_ours(&whole), Some(code), "{talk:x?}");
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let theirs = runtime.block_on(goaway_of_h2(&whole));
        assert!(theirs.is_some(), "{talk:x?}");
    }
}
