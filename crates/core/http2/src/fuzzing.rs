//! What must hold of any bytes whatever, for fuzzers: each function panics if it does not.

use std::sync::Arc;

use crate::config::{EndpointRole, Http2Config};
use crate::connection::{HeadKind, Http2Connection, Http2Event, SavedConnection, StreamEnd};
use crate::fields::FieldList;
use crate::frame::{FrameHeader, FrameKind, PREFACE, flags};
use crate::hpack::{HpackDecoder, HpackEncoder};

/// Steps of time between two pieces of input.
const STEP_NS: u64 = 1_000_000;
/// Bytes of lists of fields, small enough to be exceeded.
const LIST_BYTES_MAX: usize = 2_000;

type FuzzedConnection = Http2Connection<Arc<[u8]>>;

/// Takes any bytes as what a client says to a server: the first byte says in which pieces they come, and when the process is
/// replaced. The server answers what it can.
pub fn server(input: &[u8]) {
    let connection = FuzzedConnection::server(config(), 0);
    exercise(connection, input, PREFACE);
}

/// Takes any bytes as what a server says to a client that has sent requests.
pub fn client(input: &[u8]) {
    let mut connection = FuzzedConnection::client(config(), 0);
    for end in [StreamEnd::Ends, StreamEnd::Continues, StreamEnd::Continues] {
        let _ = connection.open(&request(), end, 0);
    }
    let _ = connection.send_data(3, vec![7; 30_000].into(), StreamEnd::Continues, 0);
    exercise(connection, input, &[]);
}

/// Takes any bytes as a field block, in pieces; what it decodes to is encoded and decoded again.
pub fn hpack(input: &[u8]) {
    let Some((cut, block)) = input.split_first() else {
        return;
    };
    let mut decoder = HpackDecoder::new(LIST_BYTES_MAX);
    let pieces = block.chunks(1 + usize::from(*cut));
    let decoded = pieces
        .map(|piece| decoder.fragment(piece))
        .collect::<Result<Vec<()>, _>>();
    if decoded.is_err() || decoder.end().is_err() {
        return;
    }
    let fields = decoder.fields().clone();
    assert!(fields.list_bytes() <= LIST_BYTES_MAX, "a list is over its limit");
    let (mut encoder, mut again) = (HpackEncoder::new(), HpackDecoder::new(LIST_BYTES_MAX));
    for _ in 0..2 {
        let mut block = Vec::new();
        encoder.encode(&fields, &mut block);
        again.fragment(&block).expect("an encoded block is decoded");
        again.end().expect("an encoded block ends");
        let pairs = again.fields().iter().zip(fields.iter());
        assert_eq!(again.fields().len(), fields.len());
        pairs.for_each(|(left, right)| assert_eq!((left.name, left.value), (right.name, right.value)));
    }
}

/// Takes any bytes as a saved connection. One that is accepted is saved as it was, and goes on.
pub fn saved(input: &[u8]) {
    let Ok(state) = SavedConnection::from_bytes(input) else {
        return;
    };
    assert_eq!(state.to_bytes(), input, "a state reads as another");
    let Ok(connection) = FuzzedConnection::restore(state.clone(), config()) else {
        return;
    };
    assert!(connection.save() == state, "a connection is saved as another");
    exercise(connection, &input[..input.len().min(2_000)], &[]);
}

/// Conversations to start from, without the client's preface.
#[must_use]
pub fn server_seeds() -> Vec<Vec<u8>> {
    let mut encoder = HpackEncoder::new();
    let mut conversation = vec![9];
    frame(&mut conversation, FrameKind::Settings, 0, 0, &[0, 4, 0, 1, 0, 0]);
    frame(&mut conversation, FrameKind::Settings, flags::ACK, 0, &[]);
    for stream in [1, 3, 5] {
        let mut block = Vec::new();
        encoder.encode(&request(), &mut block);
        let (front, back) = block.split_at(block.len() / 2);
        frame(&mut conversation, FrameKind::Headers, 0, stream, front);
        frame(
            &mut conversation,
            FrameKind::Continuation,
            flags::END_HEADERS,
            stream,
            back,
        );
        frame(
            &mut conversation,
            FrameKind::Data,
            flags::PADDED,
            stream,
            b"\x03body\0\0\0",
        );
    }
    frame(&mut conversation, FrameKind::Data, flags::END_STREAM, 1, &[]);
    frame(
        &mut conversation,
        FrameKind::WindowUpdate,
        0,
        3,
        &1_000_u32.to_be_bytes(),
    );
    frame(&mut conversation, FrameKind::Ping, 0, 0, &[1; 8]);
    frame(&mut conversation, FrameKind::Priority, 0, 9, &[0; 5]);
    frame(
        &mut conversation,
        FrameKind::ResetStream,
        0,
        5,
        &8_u32.to_be_bytes(),
    );
    frame(&mut conversation, FrameKind::Unknown(0x42), 0, 0, b"anything");
    frame(
        &mut conversation,
        FrameKind::GoAway,
        0,
        0,
        b"\0\0\0\x01\0\0\0\0bye",
    );
    vec![conversation]
}

/// What a server might say to the client of [`client`].
#[must_use]
pub fn client_seeds() -> Vec<Vec<u8>> {
    let mut encoder = HpackEncoder::new();
    let mut conversation = vec![200];
    frame(&mut conversation, FrameKind::Settings, 0, 0, &[0, 1, 0, 0, 0, 64]);
    for status in ["103", "200"] {
        let head: FieldList = [(":status", status), ("x-a", "b")].into_iter().collect();
        let mut block = Vec::new();
        encoder.encode(&head, &mut block);
        frame(
            &mut conversation,
            FrameKind::Headers,
            flags::END_HEADERS,
            1,
            &block,
        );
    }
    frame(&mut conversation, FrameKind::Data, 0, 1, b"body");
    let mut block = Vec::new();
    encoder.encode(&[("grpc-status", "0")].into_iter().collect(), &mut block);
    let end = flags::END_HEADERS | flags::END_STREAM;
    frame(&mut conversation, FrameKind::Headers, end, 1, &block);
    frame(&mut conversation, FrameKind::GoAway, 0, 0, b"\0\0\0\x03\0\0\0\0");
    vec![conversation]
}

/// Blocks to start from.
#[must_use]
pub fn hpack_seeds() -> Vec<Vec<u8>> {
    let (mut encoder, mut seed) = (HpackEncoder::new(), vec![3]);
    encoder.set_peer_table_bytes(1_000);
    encoder.encode(&request(), &mut seed);
    encoder.encode(&request(), &mut seed);
    vec![
        seed,
        vec![
            1, 0x82, 0x86, 0x84, 0x41, 0x8c, 0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90,
            0xf4, 0xff,
        ],
    ]
}

/// States to start from: a server's in the middle of a conversation, and a client's with a queue.
#[must_use]
pub fn saved_seeds() -> Vec<Vec<u8>> {
    let mut server = FuzzedConnection::server(config(), 0);
    let talk = [&PREFACE[..], &server_seeds()[0][1..]].concat();
    let cut = talk.len() * 2 / 3;
    receive(&mut server, &talk[..cut], 0);
    let mut client = FuzzedConnection::client(config(), 0);
    let _ = client.open(&request(), StreamEnd::Continues, 0);
    let _ = client.send_data(1, vec![1; 70_000].into(), StreamEnd::Continues, 0);
    client.fill(0);
    client.advance(100, 0);
    vec![server.save().to_bytes(), client.save().to_bytes()]
}

fn config() -> Http2Config {
    Http2Config {
        streams_max: 4,
        stream_window_bytes: 10_000,
        header_list_bytes_max: LIST_BYTES_MAX as u32,
        ..Http2Config::default()
    }
}

fn request() -> FieldList {
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/demo.Greeter/Greet"),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        ("x-request-id", "0123456789abcdef"),
    ];
    fields.into_iter().collect()
}

fn frame(out: &mut Vec<u8>, kind: FrameKind, flags: u8, stream: u32, payload: &[u8]) {
    let length = payload.len() as u32;
    let header = FrameHeader {
        length,
        kind,
        flags,
        stream,
    };
    out.extend_from_slice(&header.bytes());
    out.extend_from_slice(payload);
}

/// Feeds a connection, with a successor in its place now and then.
fn exercise(mut connection: FuzzedConnection, input: &[u8], preface: &[u8]) {
    let Some((pieces, talk)) = input.split_first() else {
        return;
    };
    let piece_bytes = 1 + usize::from(pieces & 0x7f) * 8;
    let is_replaced = pieces & 0x80 != 0;
    receive(&mut connection, preface, 0);
    for (number, piece) in talk.chunks(piece_bytes).enumerate() {
        let now_ns = (number as u64).saturating_mul(STEP_NS);
        receive(&mut connection, piece, now_ns);
        let _ = connection.on_time(now_ns);
        connection.fill(now_ns);
        if is_replaced {
            let state = SavedConnection::from_bytes(&connection.save().to_bytes()).expect("a state is read");
            let restored = FuzzedConnection::restore(state.clone(), config()).expect("a state is accepted");
            assert!(restored.save() == state, "a connection is saved as another");
            connection = restored;
        }
        let sent = connection.output_bytes() / 2 + 1;
        connection.advance(sent, now_ns);
        assert!(
            connection.output_bytes() < crate::OUTPUT_STOPS_INPUT_BYTES * 2,
            "the output has no bound"
        );
    }
}

fn receive(connection: &mut FuzzedConnection, input: &[u8], now_ns: u64) {
    let mut rest = input;
    loop {
        let Ok(received) = connection.receive(rest, now_ns) else {
            return;
        };
        assert!(received.consumed <= rest.len());
        let is_at_rest = received.consumed == 0 && received.event.is_none();
        rest = &rest[received.consumed..];
        match received.event {
            Some(Http2Event::Data { stream, data, .. }) => {
                let bytes = data.len() as u32;
                connection.release(stream, bytes);
            }
            Some(Http2Event::Head {
                stream,
                kind: HeadKind::Request,
                ..
            }) => answer(connection, stream, now_ns),
            Some(_) => {}
            None if is_at_rest || rest.is_empty() => return,
            None => {}
        }
    }
}

fn answer(connection: &mut FuzzedConnection, stream: u32, now_ns: u64) {
    debug_assert_eq!(connection.role(), EndpointRole::Server);
    let head: FieldList = [(":status", "200")].into_iter().collect();
    let _ = connection.respond(stream, &head, StreamEnd::Continues, now_ns);
    let _ = connection.send_data(stream, vec![1; 3_000].into(), StreamEnd::Continues, now_ns);
    let trailers = [("grpc-status", "0")].into_iter().collect();
    let _ = connection.send_trailers(stream, trailers, now_ns);
}
