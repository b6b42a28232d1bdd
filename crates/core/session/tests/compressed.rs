//! Messages that pass as they came: only to an end that says that it takes them, and through successors.

mod kit;

use kit::{Peer, Setup, frame, step};
use proptest::prelude::*;
use provost_compression::MessageEncoding;
use provost_conformance::content_bytes;
use provost_datapath::{
    Body, Buffer, EncodedBody, FieldReader, FieldWriter, InPlace, MessageCompression, Step, Successor,
};
use provost_session::handshake::{Encoding, Limits};
use provost_session::{ProtocolError, Role};
use provost_wire::Code;
use provost_wire::descriptor::Parts;
use provost_wire::limits::STREAM_WINDOW_BYTES;

const REQUEST: Parts = Parts(Parts::BEGIN.0 | Parts::MESSAGE.0 | Parts::END.0);
const PLAIN_BYTES: usize = 400_000;

/// An end whose peer takes what it takes itself.
fn end(role: Role, limits: Limits) -> Peer {
    let encoding = Encoding::Protobuf;
    Peer::new(
        role,
        Setup {
            encoding,
            limits,
            ..Setup::default()
        },
    )
}

fn taking() -> Limits {
    Limits::default().taking_compressed()
}

/// A message that compresses to several frames, and what it is without that.
fn message() -> (Vec<u8>, Vec<u8>) {
    let plain = content_bytes(7, PLAIN_BYTES as u32);
    (MessageEncoding::Gzip.compress(&plain), plain)
}

fn request(compressed: &[u8], plain_bytes_max: u32) -> Step {
    let body = EncodedBody::of(&[], compressed, Buffer::default());
    Step {
        body: Body::Encoded(EncodedBody {
            compression: MessageCompression::new(MessageEncoding::Gzip, plain_bytes_max),
            ..body
        }),
        ..Step::new(1, REQUEST)
    }
}

/// The body of the one step that an end tells its app.
fn told(peer: &mut Peer) -> EncodedBody {
    let step = peer.next_step().expect("a step has come");
    match step.body {
        Body::Encoded(body) => body,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_end_that_takes_compressed_messages_gets_them_as_they_are() {
    let (compressed, plain) = message();
    let (mut client, mut server) = (end(Role::Client, taking()), end(Role::Server, taking()));
    client.send_raw(request(&compressed, u32::MAX));
    server.input(&client.output()).unwrap();
    let mut body = told(&mut server);
    assert_eq!(body.encoding(), MessageEncoding::Gzip);
    assert_eq!(body.message(), Some(&compressed[..]));
    body.decompress().unwrap();
    assert_eq!(body.protobuf(), Some(&plain[..]));
}

#[test]
fn an_end_that_does_not_say_so_gets_them_plain() {
    let (compressed, plain) = message();
    let (mut client, mut server) = (
        end(Role::Client, Limits::default()),
        end(Role::Server, Limits::default()),
    );
    client.send_raw(request(&compressed, u32::MAX));
    server.input(&client.output()).unwrap();
    let body = told(&mut server);
    assert_eq!(body.encoding(), MessageEncoding::Identity);
    assert_eq!(body.message(), Some(&plain[..]));

    // What becomes too large for that, or is none, ends its call alone.
    let mut client = end(Role::Client, Limits::default());
    client.send_raw(request(&compressed, PLAIN_BYTES as u32 - 1));
    assert_eq!(client.steps()[0].status, Code::ResourceExhausted);
    client.send_raw(Step {
        call: 2,
        ..request(b"no gzip", u32::MAX)
    });
    assert_eq!(client.steps()[0].status, Code::Internal);
    assert!(client.output().is_empty());
}

#[test]
fn what_an_end_does_not_take_is_an_error_of_its_peer() {
    let of = |parts, compression: u32| {
        let mut of = step(1, parts, b"12345678");
        of.0.compression = compression.into();
        frame(&of)
    };
    for (limits, parts, compression) in [
        (Limits::default(), REQUEST, 1),
        (taking(), REQUEST, 4),
        (taking(), Parts::BEGIN, 1),
    ] {
        let mut server = end(Role::Server, limits);
        let refused = server.input(&of(parts, compression)).unwrap_err();
        assert!(matches!(refused, ProtocolError::Header { .. }), "{refused}");
    }
    let mut server = end(Role::Server, taking());
    server.input(&of(REQUEST, 3)).unwrap();
    // A native message is not compressed.
    let setup = Setup {
        limits: taking(),
        ..Setup::default()
    };
    let mut native = Peer::new(Role::Server, setup);
    assert!(native.input(&of(REQUEST, 1)).is_err());
}

#[test]
fn an_end_says_what_it_takes_by_a_window_that_earlier_ones_take_for_one() {
    for even in [STREAM_WINDOW_BYTES, 4096, 2] {
        let limits = Limits {
            stream_window_bytes: even,
            ..Limits::default()
        };
        assert!(!limits.takes_compressed());
        let taking = limits.taking_compressed();
        assert!(taking.takes_compressed() && taking.taking_compressed() == taking);
        // A sender that heeds it sends no more than an app expects.
        assert!((1..even).contains(&taking.stream_window_bytes));
    }
}

/// The version of the form in which an end is saved.
fn form(peer: &Peer) -> u32 {
    let mut out = FieldWriter::new();
    peer.connection.save(&mut InPlace::new(|_, _| {}), &mut out);
    FieldReader::new("connection", &out.bytes).u32().unwrap()
}

#[test]
fn only_what_holds_compressed_messages_is_in_a_form_that_earlier_programs_do_not_read() {
    let (compressed, _) = message();
    let (mut client, mut server) = (end(Role::Client, taking()), end(Role::Server, taking()));
    assert_eq!((form(&client), form(&server)), (1, 1));
    client.send_raw(request(&compressed, u32::MAX));
    assert_eq!(form(&client), 2, "it waits");
    let part = client.output_part(100_000);
    server.input(&part).unwrap();
    assert_eq!(form(&server), 2, "it has come in part");
    server.input(&client.output()).unwrap();
    assert_eq!(form(&server), 2, "it waits for the app");
    told(&mut server);
    assert_eq!((form(&client), form(&server)), (1, 1));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]
    #[test]
    fn successors_of_both_ends_pass_them_on(cuts in proptest::collection::vec(1_usize..200_000, 1..6)) {
        let (compressed, _) = message();
        let (mut client, mut server) = (end(Role::Client, taking()), end(Role::Server, taking()));
        client.send_raw(request(&compressed, u32::MAX));
        for cut in cuts {
            client.succeed(Successor::OtherProcess);
            let part = client.output_part(cut);
            server.succeed(Successor::OtherProcess);
            server.input(&part).unwrap();
            server.succeed(Successor::OtherProcess);
        }
        server.input(&client.output()).unwrap();
        server.succeed(Successor::OtherProcess);
        let body = told(&mut server);
        prop_assert_eq!(body.encoding(), MessageEncoding::Gzip);
        prop_assert_eq!(body.message(), Some(&compressed[..]));
    }
}
