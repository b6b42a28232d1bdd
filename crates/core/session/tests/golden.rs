//! The examples in `docs/protocol.md` are what the implementation sends and takes.

mod kit;

use std::collections::HashMap;

use kit::{Peer, Setup};
use provost_conformance::UNARY;
use provost_datapath::{Body, EncodedBody, Step};
use provost_session::Role;
use provost_session::handshake::{
    ClientHandshake, Decision, Encoding, Hello, Limits, Method, MethodKind, ServerHandshake,
};
use provost_wire::Code;
use provost_wire::descriptor::Parts;
use provost_wire::metadata;

/// The blocks of hex that begin with ```` ```golden NAME ````.
fn examples() -> HashMap<String, Vec<u8>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/protocol.md");
    let text = std::fs::read_to_string(path).unwrap();
    let blocks = text.split("```golden ").skip(1);
    blocks
        .map(|block| {
            let (name, rest) = block.split_once('\n').unwrap();
            let (hex, _) = rest.split_once("```").unwrap();
            let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
            let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
            (name.trim().to_owned(), digits.chunks(2).map(byte).collect())
        })
        .collect()
}

#[track_caller]
fn is_example(examples: &mut HashMap<String, Vec<u8>>, name: &str, bytes: &[u8]) {
    let example = examples
        .remove(name)
        .unwrap_or_else(|| panic!("docs/protocol.md has no example {name}"));
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!(hex(bytes), hex(&example), "{name}");
}

fn body(entries: &[(&str, &[u8])], message: &[u8]) -> Body {
    let mut bytes = Vec::new();
    for (key, value) in entries {
        metadata::append(&mut bytes, key, value).unwrap();
    }
    let metadata_bytes = bytes.len() as u32;
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes.extend_from_slice(message);
    let buffer = provost_datapath::Buffer::from(bytes);
    Body::Encoded(EncodedBody::plain(buffer, metadata_bytes, message.len() as u32))
}

#[test]
fn the_document_shows_what_is_sent() {
    let mut examples = examples();
    let get = Method {
        name: "Get".into(),
        kind: MethodKind::default(),
    };
    let limits = Limits::default();
    let hello = Hello {
        service: "kv.Kv".into(),
        schema_hash: [7; 32],
        methods: vec![get.clone()],
        limits,
        caller: None,
    };
    let mut client = ClientHandshake::new(&hello, Vec::new());
    let first = client.output();
    is_example(&mut examples, "hello", &first);
    let mut server = ServerHandshake::new();
    server.input(&first).unwrap();
    server
        .decide(Decision::Welcome {
            encoding: Encoding::Native,
            methods: vec![get],
            limits,
        })
        .unwrap();
    is_example(&mut examples, "welcome", &server.output());
    let mut server = ServerHandshake::new();
    server.input(&first).unwrap();
    server
        .decide(Decision::Refuse {
            code: Code::NotFound,
            reason: "k.v".into(),
        })
        .unwrap_err();
    is_example(&mut examples, "refuse", &server.output());

    let (mut client, mut server) = (
        Peer::new(Role::Client, Setup::default()),
        Peer::new(Role::Server, Setup::default()),
    );
    let parts = Parts::BEGIN | Parts::MESSAGE | Parts::END;
    let step = Step {
        method: UNARY,
        deadline: client.now + 1_000_000_000,
        ..Step::new(1, parts)
    };
    client.send_raw(Step {
        body: body(&[("a", b"b")], b"hello"),
        ..step
    });
    let request = client.output();
    is_example(&mut examples, "request", &request);
    server.input(&request).unwrap();
    let call = server.steps()[0].call;
    let step = Step {
        body: body(&[], b"ok"),
        ..Step::new(call, Parts::MESSAGE | Parts::STATUS)
    };
    server.send_raw(step);
    let response = server.output();
    is_example(&mut examples, "response", &response);
    client.input(&response).unwrap();
    assert_eq!(client.steps().len(), 1);

    client.send_raw(Step {
        body: body(&[], b"hello"),
        ..Step::new(2, parts)
    });
    client.output();
    client.send_raw(Step {
        status: Code::Cancelled,
        ..Step::new(2, Parts::CANCEL)
    });
    is_example(&mut examples, "cancel", &client.output());

    let mut quiet = Peer::new(
        Role::Client,
        Setup {
            keepalive_ns: 10,
            ..Setup::default()
        },
    );
    quiet.connection.tick(10).unwrap();
    is_example(&mut examples, "ping", &quiet.output());
    let mut draining = Peer::new(Role::Server, Setup::default());
    draining.connection.drain();
    is_example(&mut examples, "go-away", &draining.output());
    assert!(examples.is_empty(), "not checked: {:?}", examples.keys());
}
