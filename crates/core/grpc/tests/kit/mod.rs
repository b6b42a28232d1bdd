//! Two ends of a connection, and what passes between them.
#![allow(dead_code)]

use std::sync::Arc;

use provost_grpc::{
    EndCause, GrpcConfig, GrpcConnection, GrpcEvent, GrpcStatus, MessageForm, RequestHead, ResponseHead,
};
use provost_http2::{FieldList, Http2Connection, Http2Event, StreamEnd};
use provost_wire::Code;
use provost_wire::metadata;

pub(crate) type TestConnection = GrpcConnection<Arc<[u8]>>;

/// A client and a server of gRPC.
pub(crate) struct ConnectedPair {
    pub(crate) client: TestConnection,
    pub(crate) server: TestConnection,
    pub(crate) now_ns: u64,
}

impl ConnectedPair {
    pub(crate) fn new(config: GrpcConfig) -> ConnectedPair {
        let mut pair = ConnectedPair {
            client: TestConnection::client(config, 0),
            server: TestConnection::server(config, 0),
            now_ns: 0,
        };
        pair.exchange();
        pair
    }

    /// Passes bytes until none are left; the events of the client and of the server.
    pub(crate) fn exchange(&mut self) -> (Vec<GrpcEvent>, Vec<GrpcEvent>) {
        let (mut at_client, mut at_server) = (Vec::new(), Vec::new());
        loop {
            let to_server = output(&mut self.client, self.now_ns);
            at_server.extend(take(&mut self.server, &to_server, self.now_ns));
            let to_client = output(&mut self.server, self.now_ns);
            at_client.extend(take(&mut self.client, &to_client, self.now_ns));
            if to_server.is_empty() && to_client.is_empty() {
                return (at_client, at_server);
            }
        }
    }

    /// A call that the server has heard of, without a message yet.
    pub(crate) fn call(&mut self, head: &RequestHead) -> u32 {
        let call = self.client.call(head, self.now_ns).unwrap();
        let (_, at_server) = self.exchange();
        let heard = at_server
            .iter()
            .any(|event| matches!(event, GrpcEvent::Request { call: heard, .. } if *heard == call));
        assert!(heard, "{at_server:?}");
        call
    }
}

fn output(connection: &mut TestConnection, now_ns: u64) -> Vec<u8> {
    connection.fill(now_ns);
    let bytes = connection.copied_output();
    connection.advance(bytes.len(), now_ns);
    bytes
}

fn take(connection: &mut TestConnection, mut bytes: &[u8], now_ns: u64) -> Vec<GrpcEvent> {
    let mut events = Vec::new();
    while let Ok(received) = connection.receive(bytes, now_ns) {
        bytes = &bytes[received.consumed..];
        match received.event {
            Some(GrpcEvent::PeerSettings) => {}
            Some(event) => events.push(event),
            None => break,
        }
    }
    events
}

/// One end of gRPC, and opposite it one of HTTP/2 that says whatever a test makes it say.
pub(crate) struct RawPair {
    pub(crate) grpc: TestConnection,
    pub(crate) raw: Http2Connection<Arc<[u8]>>,
}

/// What the raw end heard.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RawEvent {
    Head(Vec<(String, String)>, StreamEnd),
    Data(Vec<u8>),
    Reset(u32),
}

impl RawPair {
    /// A server of gRPC under test.
    pub(crate) fn server(config: GrpcConfig) -> RawPair {
        let grpc = TestConnection::server(config, 0);
        let raw = Http2Connection::client(config.http2, 0);
        RawPair::greeted(grpc, raw)
    }

    /// A client of gRPC under test.
    pub(crate) fn client(config: GrpcConfig) -> RawPair {
        let grpc = TestConnection::client(config, 0);
        let raw = Http2Connection::server(config.http2, 0);
        RawPair::greeted(grpc, raw)
    }

    fn greeted(grpc: TestConnection, raw: Http2Connection<Arc<[u8]>>) -> RawPair {
        let mut pair = RawPair { grpc, raw };
        pair.exchange();
        pair
    }

    /// Passes bytes until none are left; what the end of gRPC tells, and what the raw one heard.
    pub(crate) fn exchange(&mut self) -> (Vec<GrpcEvent>, Vec<RawEvent>) {
        let (mut told, mut heard) = (Vec::new(), Vec::new());
        loop {
            self.raw.fill(0);
            let to_grpc = self.raw.copied_output();
            self.raw.advance(to_grpc.len(), 0);
            told.extend(take(&mut self.grpc, &to_grpc, 0));
            let to_raw = output(&mut self.grpc, 0);
            self.on_event(&to_raw, &mut heard);
            if to_grpc.is_empty() && to_raw.is_empty() {
                return (told, heard);
            }
        }
    }

    fn on_event(&mut self, mut bytes: &[u8], heard: &mut Vec<RawEvent>) {
        loop {
            let received = self.raw.receive(bytes, 0).expect("the connection goes on");
            bytes = &bytes[received.consumed..];
            let event = match received.event {
                None => return,
                Some(Http2Event::Head { fields, end, .. }) => RawEvent::Head(pairs(fields), end),
                Some(Http2Event::Data { stream, data, .. }) => {
                    let (data, bytes) = (data.to_vec(), data.len() as u32);
                    self.raw.release(stream, bytes);
                    RawEvent::Data(data)
                }
                Some(Http2Event::Reset { code, .. }) => RawEvent::Reset(code.0),
                Some(_) => continue,
            };
            heard.push(event);
        }
    }

    /// A request with a body, to a server under test; what the client hears of it.
    pub(crate) fn ask(
        &mut self,
        more: &[(&str, &str)],
        body: &[u8],
        end: StreamEnd,
    ) -> (Vec<GrpcEvent>, Vec<RawEvent>) {
        let head = request(more);
        let call = self.raw.open(&head, StreamEnd::Continues, 0).unwrap();
        self.raw.send_data(call, body.into(), end, 0).unwrap();
        self.exchange()
    }

    /// A call to a raw server, answered by this head and body, and maybe trailers; how it ended, and what came before.
    pub(crate) fn answered(
        &mut self,
        head: &[(&str, &str)],
        body: &[u8],
        trailers: Option<&[(&str, &str)]>,
    ) -> (Vec<GrpcEvent>, GrpcStatus, EndCause) {
        let call = self.grpc.call(&RequestHead::new("/a.B/C"), 0).unwrap();
        self.exchange();
        let end = |is_end| {
            if is_end {
                StreamEnd::Ends
            } else {
                StreamEnd::Continues
            }
        };
        let head_end = end(body.is_empty() && trailers.is_none());
        self.raw.respond(call, &list(head), head_end, 0).unwrap();
        if !body.is_empty() {
            self.raw
                .send_data(call, body.into(), end(trailers.is_none()), 0)
                .unwrap();
        }
        if let Some(trailers) = trailers {
            self.raw.send_trailers(call, list(trailers), 0).unwrap();
        }
        let (mut told, _) = self.exchange();
        match told.pop() {
            Some(GrpcEvent::Ended { status, cause, .. }) => (told, status, cause),
            other => panic!("{told:?}, then {other:?}"),
        }
    }
}

pub(crate) fn list(fields: &[(&str, &str)]) -> FieldList {
    fields.iter().copied().collect()
}

pub(crate) fn pairs(fields: &FieldList) -> Vec<(String, String)> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    fields
        .iter()
        .map(|field| (text(field.name), text(field.value)))
        .collect()
}

pub(crate) const REQUEST: [(&str, &str); 5] = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/a.B/C"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
];
pub(crate) const RESPONSE: [(&str, &str); 2] = [(":status", "200"), ("content-type", "application/grpc")];

/// The usual request with other values of some fields, and more fields.
pub(crate) fn request(other: &[(&str, &str)]) -> FieldList {
    let value = |(name, usual): &(&'static str, &'static str)| {
        let set = other.iter().find(|(set, _)| set == name);
        (*name, set.map_or(*usual, |(_, value)| *value).to_owned())
    };
    let is_more = |name: &str| REQUEST.iter().all(|(usual, _)| *usual != name);
    let more = other.iter().filter(|(name, _)| is_more(name));
    let more = more.map(|(name, value)| (*name, (*value).to_owned()));
    REQUEST.iter().map(value).chain(more).collect()
}

pub(crate) fn status_of(heard: &[RawEvent]) -> (String, Code) {
    let Some(RawEvent::Head(fields, StreamEnd::Ends)) = heard.last() else {
        panic!("{heard:?}");
    };
    let value = |name: &str| {
        fields
            .iter()
            .find(|(other, _)| other == name)
            .map(|(_, value)| value.clone())
    };
    let code = value("grpc-status").map_or(u32::MAX, |code| code.parse().unwrap());
    (value(":status").unwrap_or_default(), Code::from_number(code))
}

pub(crate) fn messages(events: &[GrpcEvent]) -> Vec<Vec<u8>> {
    let message = |event: &GrpcEvent| match event {
        GrpcEvent::Message { message, .. } => Some(message.bytes.clone()),
        _ => None,
    };
    events.iter().filter_map(message).collect()
}

pub(crate) fn block(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut block = Vec::new();
    for (key, value) in entries {
        metadata::append(&mut block, key, value).unwrap();
    }
    block
}

pub(crate) fn send(connection: &mut TestConnection, call: u32, bytes: &[u8], now_ns: u64) {
    connection
        .send_message(call, MessageForm::Plain, bytes.into(), now_ns)
        .unwrap();
}

pub(crate) fn respond(server: &mut TestConnection, call: u32) {
    server.respond(call, &ResponseHead::default(), 0).unwrap();
}
