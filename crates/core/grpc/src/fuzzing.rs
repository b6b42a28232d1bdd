//! What must hold of any bytes whatever, for fuzzers: each function panics if it does not.

use std::sync::Arc;

use provost_datapath::{FieldReader, FieldWriter};
use provost_http2::{EndpointRole, FieldList, Http2Connection, StreamEnd, check_request, check_response};

use crate::calls::GrpcEvent;
use crate::connection::{GrpcConfig, GrpcConnection};
use crate::framing::{MessageForm, MessageReader, message_prefix};
use crate::head::{RequestHead, ResponseHead, UriScheme};
use crate::metadata::read_metadata;
use crate::status::GrpcStatus;
use provost_compression::MessageEncoding;

/// Bytes of messages, small enough to be exceeded.
const MESSAGE_BYTES_MAX: u32 = 4_000;
/// Steps of time between two pieces of input.
const STEP_NS: u64 = 1_000_000;

type FuzzedConnection = GrpcConnection<Arc<[u8]>>;

/// Takes any bytes as a body: the first byte says in which pieces it comes and how its messages are compressed.
pub fn messages(input: &[u8]) {
    let Some((choice, body)) = input.split_first() else {
        return;
    };
    let encoding = MessageEncoding::ALL[usize::from(choice & 3)];
    let (mut whole, mut in_pieces) = (MessageReader::default(), MessageReader::default());
    let expected = read_all(&mut whole, body.chunks(body.len().max(1)));
    let got = read_all(&mut in_pieces, body.chunks(1 + usize::from(choice >> 2)));
    assert!(expected == got, "messages depend on how their bytes are cut");
    for (form, bytes) in expected {
        let message = crate::GrpcMessage { form, bytes };
        if let Ok(plain) = message.into_plain(encoding, MESSAGE_BYTES_MAX) {
            assert!(plain.len() <= MESSAGE_BYTES_MAX as usize);
        }
    }
}

/// Takes lines of any bytes as the fields of a head, each a name and a value with a colon between. What is read of it is written and
/// read again.
pub fn heads(input: &[u8]) {
    let mut fields = FieldList::new();
    for line in input.split(|byte| *byte == b'\n') {
        let colon = line.iter().skip(1).position(|byte| *byte == b':');
        let (name, value) = line.split_at(colon.map_or(line.len(), |at| at + 1));
        fields.push(name, value.get(1..).unwrap_or_default());
    }
    if check_request(&fields).is_ok()
        && let Ok(read) = RequestHead::read(&fields, StreamEnd::Ends)
    {
        let mut written = FieldList::new();
        read.head
            .write(UriScheme::Http, &mut written)
            .expect("what was read is written");
        let again = RequestHead::read(&written, StreamEnd::Continues).expect("and read");
        assert_eq!(again.head.metadata, read.head.metadata);
    }
    if check_response(&fields).is_ok()
        && let Ok(head) = ResponseHead::read(&fields)
    {
        let mut written = FieldList::new();
        head.write(&mut written).expect("what was read is written");
        assert_eq!(ResponseHead::read(&written), Ok(head));
    }
    if let Ok(Some(status)) = GrpcStatus::read(&fields) {
        let mut written = FieldList::new();
        status.write(&mut written);
        assert_eq!(GrpcStatus::read(&written), Ok(Some(status)));
    }
    let _ = read_metadata(&fields);
}

/// Takes any bytes as what a client says to a server after its preface: the first byte says in which pieces they come. The server
/// answers what it can.
pub fn server(input: &[u8]) {
    let Some((cut, talk)) = input.split_first() else {
        return;
    };
    let mut server = FuzzedConnection::server(config(), 0);
    let preface = Http2Connection::<Arc<[u8]>>::client(config().http2, 0).copied_output();
    serve(&mut server, &[&preface, talk].concat(), *cut);
}

fn serve(server: &mut FuzzedConnection, talk: &[u8], cut: u8) {
    for (number, piece) in talk.chunks(1 + usize::from(cut) * 4).enumerate() {
        let now_ns = number as u64 * STEP_NS;
        let mut rest = piece;
        while let Ok(received) = server.receive(rest, now_ns) {
            rest = &rest[received.consumed..];
            let Some(event) = received.event else { break };
            answer(server, event, now_ns);
        }
        let _ = server.on_time(now_ns);
        server.fill(now_ns);
        let sent = server.output_bytes() / 2 + 1;
        server.advance(sent, now_ns);
    }
}

/// Takes any bytes as a saved connection, of either role. One that is accepted goes on with what it is told next.
pub fn saved(input: &[u8]) {
    for role in [EndpointRole::Server, EndpointRole::Client] {
        let mut fields = FieldReader::new("gRPC connection", input);
        let restored = FuzzedConnection::restore(&mut fields, role, config(), Into::into);
        if let Ok(mut connection) = restored {
            serve(&mut connection, &input[..input.len().min(2_000)], 9);
            connection.lose(0);
            let _ = connection.receive(&[], 0);
        }
    }
}

/// States to start from: a server's with calls whose messages have come in part, and a client's with messages that wait.
#[must_use]
pub fn saved_seeds() -> Vec<Vec<u8>> {
    let mut server = FuzzedConnection::server(config(), 0);
    let preface = Http2Connection::<Arc<[u8]>>::client(config().http2, 0).copied_output();
    let conversation = server_seeds().remove(0);
    let talk = [&preface, &conversation[1..]].concat();
    serve(&mut server, &talk[..talk.len() / 2], 1);
    let mut client = FuzzedConnection::client(config(), 0);
    if let Ok(call) = client.call(&RequestHead::new("/a.B/C"), 0) {
        let _ = client.send_message(call, MessageForm::Plain, vec![7; 3_000].into(), 0);
    }
    let state = |connection: &FuzzedConnection| {
        let mut out = FieldWriter::new();
        connection.save(&mut out);
        out.bytes
    };
    vec![state(&server), state(&client)]
}

fn answer(server: &mut FuzzedConnection, event: GrpcEvent, now_ns: u64) {
    match event {
        GrpcEvent::Request { call, head } if head.path.len() % 2 == 0 => {
            let _ = server.respond(call, &ResponseHead::default(), now_ns);
        }
        GrpcEvent::Message { call, message } => {
            assert!(message.bytes.len() <= MESSAGE_BYTES_MAX as usize);
            let bytes = message.bytes.len();
            let _ = server.send_message(call, MessageForm::Plain, message.bytes.into(), now_ns);
            server.consume(call, bytes);
        }
        GrpcEvent::HalfClosed { call } => {
            let _ = server.finish(call, &GrpcStatus::ok(), &[], now_ns);
        }
        _ => {}
    }
}

fn config() -> GrpcConfig {
    GrpcConfig {
        received_message_bytes_max: MESSAGE_BYTES_MAX,
        partial_bytes_max: 2 * MESSAGE_BYTES_MAX as usize,
        large_message_bytes_max: MESSAGE_BYTES_MAX as usize,
        ..GrpcConfig::default()
    }
}

fn read_all<'a>(
    reader: &mut MessageReader,
    pieces: impl Iterator<Item = &'a [u8]>,
) -> Vec<(MessageForm, Vec<u8>)> {
    let mut messages = Vec::new();
    for mut piece in pieces {
        loop {
            match reader.read(&mut piece, MESSAGE_BYTES_MAX) {
                Ok(Some(message)) => messages.push((message.form, message.bytes)),
                Ok(None) => break,
                Err(_) => return messages,
            }
        }
    }
    messages
}

/// Bodies to start from: one of each encoding, and one that is cut.
#[must_use]
pub fn messages_seeds() -> Vec<Vec<u8>> {
    let seed = |(choice, encoding): (usize, MessageEncoding)| {
        let compressed = encoding.compress(&[b'a'; 300]);
        let prefix = message_prefix(MessageForm::Compressed, compressed.len() as u32);
        let plain = message_prefix(MessageForm::Plain, 3);
        [&[choice as u8 | 28][..], &plain, b"abc", &prefix, &compressed].concat()
    };
    let mut seeds: Vec<Vec<u8>> = MessageEncoding::ALL.into_iter().enumerate().map(seed).collect();
    seeds.push(vec![0, 1, 0, 0, 0, 9, 1]);
    seeds
}

/// Heads to start from.
#[must_use]
pub fn heads_seeds() -> Vec<Vec<u8>> {
    [
        ":method:POST\n:scheme:http\n:path:/a.B/C\nte:trailers\ncontent-type:application/grpc+proto\n\
         grpc-timeout:10m\ngrpc-encoding:gzip\ngrpc-accept-encoding:gzip, zstd\na-bin:AAE=,AA\nb:c",
        ":method:GET\n:scheme:http\n:path:/a.B/C?AAE\ncontent-type:application/grpc",
        ":status:200\ncontent-type:application/grpc;x\ngrpc-encoding:deflate\nuser:me",
        "grpc-status:5\ngrpc-message:no%20such%20%C3%A9\ngrpc-status-details-bin:CAU",
    ]
    .map(|seed| seed.as_bytes().to_vec())
    .to_vec()
}

/// Conversations to start from.
#[must_use]
pub fn server_seeds() -> Vec<Vec<u8>> {
    let config = config();
    let mut client = FuzzedConnection::client(config, 0);
    let greeting = client.copied_output().len();
    for path in ["/a.B/C", "/a.B/Cc"] {
        let call = client.call(&RequestHead::new(path), 0).expect("a call is opened");
        let sent = client.send_message(call, MessageForm::Plain, vec![7; 1_500].into(), 0);
        sent.expect("a message is sent");
        client.half_close(call, 0).expect("the half is closed");
    }
    let call = client
        .call(&RequestHead::new("/a.B/D"), 0)
        .expect("a call is opened");
    client.fill(0);
    client
        .cancel(call, provost_wire::Code::Cancelled, 0)
        .expect("it is open");
    client.fill(0);
    vec![[&[60], &client.copied_output()[greeting..]].concat()]
}
