//! Calls of all kinds, and what goes with them.

mod kit;

use kit::{CHAT, DOWNLOAD, SECOND_NS, TransportRig, UNARY, UPLOAD, begin, block};
use provost_grpc::{
    COMPRESSION_REQUEST, EncodingSet, GrpcConfig, GrpcEvent, GrpcMessage, GrpcStatus, MessageEncoding,
    MessageForm, ResponseHead,
};
use provost_transport_grpc::GrpcTransportConfig;
use provost_wire::Code;
use provost_wire::descriptor::Parts;
use provost_wire::metadata::{self, STATUS_DETAILS, STATUS_MESSAGE};

fn entry(key: &str, value: &[u8]) -> (String, Vec<u8>) {
    (key.to_owned(), value.to_vec())
}

#[test]
fn a_unary_call_goes_as_grpc_has_it_and_its_answer_is_one_step() {
    let mut rig = TransportRig::new();
    rig.call(7, UNARY, b"ann");
    rig.run();
    let (call, head) = rig.server.request();
    assert_eq!(head.path, "/greeter.Greeter/Unary");
    assert_eq!(head.authority.as_deref(), Some("greeter.test:50051"));
    assert_eq!(head.timeout_ns, None);
    assert_eq!(rig.server.messages(call), [b"ann"]);
    assert!(rig.server.is_half_closed(call));

    rig.server.answer(call, b"hello ann", rig.now);
    rig.run();
    let told = rig.told_once();
    assert_eq!((told.call, told.parts), (7, Parts::MESSAGE | Parts::STATUS));
    assert_eq!((told.status, told.message), (Code::Ok, b"hello ann".to_vec()));
    assert!(told.metadata.is_empty());
}

#[test]
fn a_message_of_defaults_has_no_bytes() {
    let mut rig = TransportRig::new();
    rig.push(begin(1, UNARY, Parts::MESSAGE | Parts::END, &[], None));
    rig.run();
    let (call, _) = rig.server.request();
    assert_eq!(rig.server.messages(call), [b""]);
    rig.server.answer(call, b"", rig.now);
    rig.run();
    let told = rig.told_once();
    assert_eq!(told.parts, Parts::MESSAGE | Parts::STATUS);
    assert!(told.message.is_empty());
}

#[test]
fn metadata_goes_both_ways() {
    let mut rig = TransportRig::new();
    let sent = block(&[("who", b"ann"), ("key-bin", &[0, 1, 255]), ("who", b"bob")]);
    rig.push(begin(1, UNARY, Parts::MESSAGE | Parts::END, &sent, Some(b"x")));
    rig.run();
    let (call, head) = rig.server.request();
    assert!(head.metadata.starts_with(&sent), "{:?}", head.metadata);
    let came: Vec<_> = provost_wire::metadata::entries(&head.metadata).collect();
    let agent = came.iter().find(|(key, _)| *key == "user-agent");
    assert!(agent.is_some_and(|(_, value)| value.starts_with(b"grpc-provost/")));

    let initial = block(&[("initial", b"1"), ("i-bin", &[7, 0])]);
    let trailing = block(&[("trailing", b"2"), ("t-bin", &[0, 9])]);
    rig.server.respond(call, initial, rig.now);
    assert!(rig.server.send(call, b"y", rig.now));
    let finished = rig
        .server
        .grpc
        .finish(call, &GrpcStatus::ok(), &trailing, rig.now);
    finished.unwrap();
    rig.run();
    let told = rig.told();
    assert_eq!(told.len(), 2, "{told:?}");
    assert_eq!(told[0].parts, Parts::HEADERS);
    assert_eq!(
        told[0].metadata,
        [entry("initial", b"1"), entry("i-bin", &[7, 0])]
    );
    assert_eq!(told[1].parts, Parts::MESSAGE | Parts::STATUS);
    assert_eq!(
        told[1].metadata,
        [entry("trailing", b"2"), entry("t-bin", &[0, 9])]
    );
}

#[test]
fn an_agent_that_the_app_names_stays() {
    let mut rig = TransportRig::new();
    let own = block(&[("user-agent", b"mine/1")]);
    rig.push(begin(1, UNARY, Parts::MESSAGE | Parts::END, &own, Some(b"")));
    rig.run();
    assert_eq!(rig.server.request().1.metadata, own);
}

#[test]
fn metadata_that_belongs_to_the_protocol_ends_its_call() {
    let mut rig = TransportRig::new();
    let own = block(&[("grpc-timeout", b"1S")]);
    rig.push(begin(1, UNARY, Parts::MESSAGE | Parts::END, &own, Some(b"")));
    rig.call(2, UNARY, b"");
    rig.run();
    let told = rig.told_once();
    assert_eq!(
        (told.call, told.parts, told.status),
        (1, Parts::CANCEL, Code::Internal)
    );
    assert!(told.reason().contains("grpc-timeout"), "{}", told.reason());
    rig.server.request();
}

#[test]
fn a_client_streams() {
    let mut rig = TransportRig::new();
    rig.open(1, UPLOAD);
    rig.run();
    let (call, _) = rig.server.request();
    for text in ["one", "two", "three"] {
        rig.send(1, text.as_bytes());
    }
    rig.run();
    assert_eq!(rig.server.messages(call), [&b"one"[..], b"two", b"three"]);
    assert!(!rig.server.is_half_closed(call));
    rig.end(1);
    rig.run();
    assert!(rig.server.is_half_closed(call));
    rig.server.answer(call, b"3", rig.now);
    rig.run();
    assert_eq!(rig.told_once().message, b"3");
}

#[test]
fn a_server_streams() {
    let mut rig = TransportRig::new();
    rig.call(1, DOWNLOAD, b"go");
    rig.run();
    let (call, _) = rig.server.request();
    rig.server.respond(call, Vec::new(), rig.now);
    rig.run();
    assert_eq!(rig.told_once().parts, Parts::HEADERS, "before there is a message");
    assert!(rig.server.send(call, b"one", rig.now));
    rig.run();
    assert!(rig.server.send(call, b"two!", rig.now));
    rig.server
        .grpc
        .finish(call, &GrpcStatus::ok(), &[], rig.now)
        .unwrap();
    rig.run();
    let told = rig.told();
    let parts: Vec<_> = told.iter().map(|told| told.parts).collect();
    assert_eq!(parts, [Parts::MESSAGE, Parts::MESSAGE, Parts::STATUS]);
    assert_eq!(
        (&told[0].message[..], &told[1].message[..]),
        (&b"one"[..], &b"two!"[..])
    );
    assert_eq!((told[0].window_bytes, told[1].window_bytes), (67, 68));
}

#[test]
fn both_ends_stream_at_once() {
    let mut rig = TransportRig::new();
    rig.open(1, CHAT);
    rig.run();
    let (call, _) = rig.server.request();
    rig.server.respond(call, Vec::new(), rig.now);
    rig.run();
    rig.told();
    for round in 0..5_u8 {
        rig.send(1, &[round]);
        rig.run();
        assert_eq!(rig.server.read_messages(call), [[round]]);
        assert!(rig.server.send(call, &[round, round], rig.now));
        rig.run();
        assert_eq!(rig.told_once().message, [round, round]);
    }
    rig.end(1);
    rig.run();
    rig.server
        .grpc
        .finish(call, &GrpcStatus::ok(), &[], rig.now)
        .unwrap();
    rig.run();
    assert_eq!(rig.told_once().parts, Parts::STATUS);
}

#[test]
fn a_call_that_fails_at_once_has_trailers_only() {
    let mut rig = TransportRig::new();
    rig.call(1, UNARY, b"x");
    rig.run();
    let (call, _) = rig.server.request();
    let mut status = GrpcStatus::new(Code::NotFound, "no müller 100%");
    status.details = Some(vec![8, 5, 0, 255]);
    let metadata = block(&[("why", b"gone")]);
    rig.server.grpc.finish(call, &status, &metadata, rig.now).unwrap();
    rig.run();
    let told = rig.told_once();
    assert_eq!((told.parts, told.status), (Parts::STATUS, Code::NotFound));
    let expected = [
        entry(STATUS_MESSAGE, "no müller 100%".as_bytes()),
        entry(STATUS_DETAILS, &[8, 5, 0, 255]),
        entry("why", b"gone"),
    ];
    assert_eq!(told.metadata, expected);
}

#[test]
fn a_status_after_messages_ends_a_unary_call_without_them() {
    let mut rig = TransportRig::new();
    rig.call(1, UNARY, b"x");
    rig.run();
    let (call, _) = rig.server.request();
    rig.server.respond(call, Vec::new(), rig.now);
    assert!(rig.server.send(call, b"dropped", rig.now));
    let status = GrpcStatus::new(Code::Aborted, "after all");
    rig.server.grpc.finish(call, &status, &[], rig.now).unwrap();
    rig.run();
    let told = rig.told_once();
    assert_eq!((told.parts, told.status), (Parts::STATUS, Code::Aborted));
    assert!(told.message.is_empty());
}

#[test]
fn a_server_that_answers_too_much_or_too_little_is_at_fault() {
    let mut rig = TransportRig::new();
    rig.call(1, UNARY, b"x");
    rig.call(2, UNARY, b"x");
    rig.run();
    let ((first, _), (second, _)) = (rig.server.request(), rig.server.request());
    rig.server.respond(first, Vec::new(), rig.now);
    rig.server
        .grpc
        .finish(first, &GrpcStatus::ok(), &[], rig.now)
        .unwrap();
    rig.server.respond(second, Vec::new(), rig.now);
    assert!(rig.server.send(second, b"1", rig.now) && rig.server.send(second, b"2", rig.now));
    rig.run();
    let told = rig.told();
    assert_eq!(told.len(), 2, "{told:?}");
    for told in told {
        assert_eq!(told.status, Code::Unimplemented);
        assert!(told.message.is_empty());
    }
    assert_eq!(rig.server.end_of(second), Some(Code::Cancelled));
}

#[test]
fn compressed_answers_come_plain() {
    let mut rig = TransportRig::new();
    rig.call(1, UNARY, b"x");
    rig.run();
    let (call, head) = rig.server.request();
    let gzip = provost_grpc::MessageEncoding::Gzip;
    assert!(head.accepts.contains(gzip));
    let head = provost_grpc::ResponseHead {
        encoding: gzip,
        ..provost_grpc::ResponseHead::default()
    };
    rig.server.grpc.respond(call, &head, rig.now).unwrap();
    let plain = vec![7; 100_000];
    let compressed = gzip.compress(&plain);
    let form = MessageForm::Compressed;
    rig.server
        .grpc
        .send_message(call, form, compressed.into(), rig.now)
        .unwrap();
    rig.server
        .grpc
        .finish(call, &GrpcStatus::ok(), &[], rig.now)
        .unwrap();
    rig.run();
    let [head, last] = &rig.told()[..] else {
        panic!("a head that says how it was compressed, and the answer");
    };
    assert_eq!(head.parts, Parts::HEADERS);
    assert_eq!(head.metadata, [asking(gzip)]);
    assert_eq!(last.message, plain);
}

/// Metadata by which a message is asked to be compressed.
fn asking(encoding: MessageEncoding) -> (String, Vec<u8>) {
    entry(COMPRESSION_REQUEST, encoding.name().as_bytes())
}

/// Calls once with what the app asks; how the request names its encoding, and its message.
fn requested(
    rig: &mut TransportRig,
    id: u64,
    asked: Option<MessageEncoding>,
) -> (MessageEncoding, GrpcMessage) {
    let asked = asked.map(|encoding| block(&[(COMPRESSION_REQUEST, encoding.name().as_bytes())]));
    let parts = Parts::MESSAGE | Parts::END;
    rig.push(begin(
        id,
        UNARY,
        parts,
        &asked.unwrap_or_default(),
        Some(&[7; 10_000]),
    ));
    rig.run();
    let (call, head) = rig.server.request();
    assert!(metadata::find(&head.metadata, COMPRESSION_REQUEST).is_none());
    let message = rig.server.events.iter().find_map(|event| match event {
        GrpcEvent::Message { call: of, message } if *of == call => Some(message.clone()),
        _ => None,
    });
    rig.server.answer(call, b"", rig.now);
    rig.run();
    rig.told();
    (head.encoding, message.unwrap())
}

#[test]
fn requests_are_compressed_as_the_app_asks_or_the_route_says() {
    use MessageEncoding::{Gzip, Identity, Zstd};
    for (compression, asked, encoding) in [
        (Identity, None, Identity),
        (Identity, Some(Zstd), Zstd),
        (Gzip, None, Gzip),
        (Gzip, Some(Identity), Identity),
    ] {
        let config = GrpcTransportConfig {
            compression,
            ..GrpcTransportConfig::default()
        };
        let mut rig = TransportRig::with(config, GrpcConfig::default());
        let (named, message) = requested(&mut rig, 1, asked);
        assert_eq!(named, encoding);
        assert_eq!(message.form == MessageForm::Plain, encoding == Identity);
        assert_eq!(message.into_plain(encoding, 10_000).unwrap(), [7; 10_000]);
    }
}

#[test]
fn a_server_gets_nothing_compressed_that_it_has_said_it_does_not_take() {
    let gzip = MessageEncoding::Gzip;
    for (said, first) in [
        ("zstd", MessageEncoding::Identity),
        ("identity", MessageEncoding::Identity),
        // Before it has said anything, the caller's word counts.
        ("", gzip),
    ] {
        let mut rig = TransportRig::new();
        rig.push(begin(1, UNARY, Parts::MESSAGE | Parts::END, &[], Some(b"x")));
        rig.run();
        let (call, _) = rig.server.request();
        let head = ResponseHead {
            accepts: EncodingSet::read(said.as_bytes()),
            ..ResponseHead::default()
        };
        rig.server.grpc.respond(call, &head, rig.now).unwrap();
        rig.run();
        let (named, message) = requested(&mut rig, 2, Some(gzip));
        assert_eq!(named, first, "{said:?}");
        assert_eq!(message.form == MessageForm::Plain, first != gzip, "{said:?}");
        // The head of that answer says that it takes all.
        let (named, _) = requested(&mut rig, 3, Some(gzip));
        assert_eq!(named, gzip, "{said:?}");
    }
}

/// The status of a call that is answered with a message which says that it is compressed.
fn answered_with(method: u16, compressed: &[u8]) -> Code {
    let config = GrpcTransportConfig {
        message_bytes_max: 1_000,
        ..GrpcTransportConfig::default()
    };
    let mut rig = TransportRig::with(config, GrpcConfig::default());
    rig.call(1, method, b"x");
    rig.run();
    let (call, _) = rig.server.request();
    let head = ResponseHead {
        encoding: MessageEncoding::Gzip,
        ..ResponseHead::default()
    };
    let (server, now) = (&mut rig.server.grpc, rig.now);
    server.respond(call, &head, now).unwrap();
    let sent = server.send_message(call, MessageForm::Compressed, compressed.into(), now);
    assert!(sent.is_ok());
    server.finish(call, &GrpcStatus::ok(), &[], now).unwrap();
    rig.run();
    rig.told().pop().expect("the call ends").status
}

// gRPC's status codes: "Sent or received message was larger than configured limit", and "Could not decompress, but compression
// algorithm supported".
#[test]
fn a_response_over_the_limit_is_told_from_a_damaged_one() {
    for method in [UNARY, DOWNLOAD] {
        let fits = MessageEncoding::Gzip.compress(&[7; 1_000]);
        assert_eq!(answered_with(method, &fits), Code::Ok);
        let grows = MessageEncoding::Gzip.compress(&[7; 1_001]);
        assert_eq!(answered_with(method, &grows), Code::ResourceExhausted);
        assert_eq!(answered_with(method, b"damaged"), Code::Internal);
    }
}

#[test]
fn deadlines_go_as_timeouts_and_end_calls_here() {
    let mut rig = TransportRig::new();
    let mut step = begin(1, UNARY, Parts::MESSAGE | Parts::END, &[], Some(b"x"));
    step.deadline = rig.now + 5 * SECOND_NS;
    rig.push(step);
    rig.run();
    let (call, head) = rig.server.request();
    assert_eq!(head.timeout_ns, Some(5 * SECOND_NS));
    rig.advance(4 * SECOND_NS);
    assert!(rig.told().is_empty());
    rig.advance(2 * SECOND_NS);
    let told = rig.told_once();
    assert_eq!((told.parts, told.status), (Parts::CANCEL, Code::DeadlineExceeded));
    assert!(rig.server.end_of(call).is_some(), "the server is told");

    let mut late = begin(2, UNARY, Parts::MESSAGE | Parts::END, &[], Some(b"x"));
    late.deadline = rig.now;
    rig.push(late);
    rig.run();
    assert_eq!(rig.told_once().status, Code::DeadlineExceeded);
    assert_eq!(rig.server.grpc.open_calls(), 0);
}

#[test]
fn the_app_cancels() {
    let mut rig = TransportRig::new();
    rig.call(1, UNARY, b"x");
    rig.open(2, CHAT);
    rig.run();
    let ((first, _), (second, _)) = (rig.server.request(), rig.server.request());
    rig.cancel(1);
    rig.cancel(2);
    rig.run();
    assert_eq!(rig.server.end_of(first), Some(Code::Cancelled));
    assert_eq!(rig.server.end_of(second), Some(Code::Cancelled));
    assert!(rig.told().is_empty(), "who cancels knows");
    rig.send(2, b"late");
    rig.run();
    assert!(rig.told().is_empty());
}

// PROTOCOL-HTTP2, Errors.
#[test]
fn resets_of_the_server_have_the_codes_of_grpc() {
    let mut rig = TransportRig::new();
    let codes = [
        (0, Code::Internal),
        (1, Code::Internal),
        (2, Code::Internal),
        (3, Code::Internal),
        (8, Code::Cancelled),
        (11, Code::ResourceExhausted),
        (12, Code::PermissionDenied),
    ];
    for (id, (reset, code)) in (1..).zip(codes) {
        rig.call(id, UNARY, b"x");
        rig.run();
        let (call, _) = rig.server.request();
        rig.server.reset(call, reset);
        rig.run();
        let told = rig.told_once();
        assert_eq!(
            (told.call, told.parts, told.status),
            (id, Parts::CANCEL, code),
            "{reset}"
        );
    }
}

#[test]
fn a_method_that_does_not_exist_is_refused() {
    let mut rig = TransportRig::new();
    rig.call(1, 99, b"x");
    rig.run();
    assert_eq!(rig.told_once().status, Code::Unimplemented);
}

#[test]
fn an_answer_before_the_stream_ended_ends_the_call() {
    let mut rig = TransportRig::new();
    rig.open(1, UPLOAD);
    rig.send(1, b"one");
    rig.run();
    let (call, _) = rig.server.request();
    rig.server.answer(call, b"enough", rig.now);
    rig.run();
    assert_eq!(rig.told_once().message, b"enough");
    rig.send(1, b"nobody reads this");
    rig.end(1);
    rig.run();
    assert!(rig.told().is_empty());
    assert_eq!(rig.server.grpc.open_calls(), 0);
}
