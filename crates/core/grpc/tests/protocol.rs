//! What gRPC's PROTOCOL-HTTP2 asks for, by its sections: an end under test, opposite another or one that says anything.

mod kit;

use kit::{
    ConnectedPair, RESPONSE, RawEvent, RawPair, block, list, messages, request, respond, send, status_of,
};
use provost_grpc::{
    CallFault, CompressionFault, EndCause, GrpcConfig, GrpcEvent, GrpcStatus, MessageEncoding, MessageForm,
    RequestHead, ResponseHead,
};
use provost_http2::{ErrorCode, Http2Config, SendError, StreamEnd};
use provost_wire::Code;

const SECOND_NS: u64 = 1_000_000_000;

fn ended(events: &[GrpcEvent]) -> (GrpcStatus, Vec<u8>, EndCause) {
    match events.last() {
        Some(GrpcEvent::Ended {
            status,
            metadata,
            cause,
            ..
        }) => (status.clone(), metadata.clone(), *cause),
        other => panic!("{other:?}"),
    }
}

/// Requests and Responses: all kinds of methods are messages both ways, then the client's half-close, then trailers.
#[test]
fn streams_both_ways() {
    let mut pair = ConnectedPair::new(GrpcConfig::default());
    let head = RequestHead {
        metadata: block(&[("user", b"ann"), ("raw-bin", &[0, 255])]),
        ..RequestHead::new("/a.B/C")
    };
    let call = pair.client.call(&head, 0).unwrap();
    let (_, at_server) = pair.exchange();
    assert_eq!(at_server, [GrpcEvent::Request { call, head }]);

    let response = ResponseHead {
        metadata: block(&[("served-by", b"b")]),
        ..ResponseHead::default()
    };
    pair.server.respond(call, &response, 0).unwrap();
    let (at_client, _) = pair.exchange();
    assert_eq!(at_client, [GrpcEvent::Response { call, head: response }]);
    for turn in 0..3 {
        send(&mut pair.client, call, &[turn; 100], 0);
        let (_, at_server) = pair.exchange();
        assert_eq!(messages(&at_server), [vec![turn; 100]]);
        send(&mut pair.server, call, &[turn; 40_000], 0);
        let (at_client, _) = pair.exchange();
        assert_eq!(messages(&at_client), [vec![turn; 40_000]]);
    }
    pair.client.half_close(call, 0).unwrap();
    assert_eq!(pair.exchange().1, [GrpcEvent::HalfClosed { call }]);
    let again = pair.client.half_close(call, 0);
    assert!(matches!(again, Err(CallFault::State(_))));

    let status = GrpcStatus {
        code: Code::Aborted,
        message: "no \u{e9}".into(),
        details: Some(vec![1, 2]),
    };
    let trailing = block(&[("cost", b"3")]);
    pair.server.finish(call, &status, &trailing, 0).unwrap();
    let (at_client, _) = pair.exchange();
    assert_eq!(ended(&at_client), (status, trailing, EndCause::Answered));
    assert_eq!((pair.client.open_calls(), pair.server.open_calls()), (0, 0));
    assert_eq!(
        pair.client.cancel(call, Code::Cancelled, 0),
        Err(CallFault::NoCall)
    );
}

/// Responses: Trailers-Only, written and read.
#[test]
fn responses_trailers_only() {
    let mut pair = RawPair::server(GrpcConfig::default());
    pair.ask(&[], b"", StreamEnd::Ends);
    let status = GrpcStatus::new(Code::NotFound, "");
    pair.grpc.finish(1, &status, &block(&[("a", b"b")]), 0).unwrap();
    let (_, heard) = pair.exchange();
    let expected = [
        (":status", "200"),
        ("content-type", "application/grpc"),
        ("grpc-status", "5"),
        ("a", "b"),
    ];
    assert_eq!(
        heard,
        [RawEvent::Head(kit::pairs(&list(&expected)), StreamEnd::Ends)]
    );

    let mut pair = RawPair::client(GrpcConfig::default());
    let (before, status, cause) =
        pair.answered(&[&RESPONSE[..], &[("grpc-status", "5")]].concat(), b"", None);
    assert_eq!(
        (before, status.code, cause),
        (vec![], Code::NotFound, EndCause::Answered)
    );
}

/// Requests: a Content-Type that is not gRPC's is answered by 415, another method by 405.
#[test]
fn requests_that_are_not_grpc() {
    let mut pair = RawPair::server(GrpcConfig::default());
    for (field, status) in [
        (("content-type", "text/html"), "415"),
        (("content-type", "application/grpc-web"), "415"),
        ((":method", "PUT"), "405"),
    ] {
        let (told, heard) = pair.ask(&[field], b"body", StreamEnd::Ends);
        assert_eq!(told, []);
        assert_eq!(status_of(&heard).0, status);
    }
    assert_eq!(pair.grpc.open_calls(), 0);
}

/// Requests: calls whose head cannot be carried out are answered, and the server's application hears nothing of them.
#[test]
fn requests_that_cannot_be_carried_out() {
    let mut pair = RawPair::server(GrpcConfig::default());
    for (field, code) in [
        ((":path", "/nothing"), Code::Unimplemented),
        (("grpc-encoding", "snappy"), Code::Unimplemented),
        (("grpc-timeout", "soon"), Code::Internal),
        (("a-bin", "*"), Code::Internal),
    ] {
        let (told, heard) = pair.ask(&[field], b"", StreamEnd::Continues);
        assert_eq!(told, []);
        assert_eq!(status_of(&heard), ("200".into(), code), "{field:?}");
    }
}

/// Requests: Length-Prefixed-Message. A body that is none ends the call, and the rest of the body is read over.
#[test]
fn requests_malformed_bodies() {
    let config = GrpcConfig {
        received_message_bytes_max: 100,
        ..GrpcConfig::default()
    };
    let mut pair = RawPair::server(config);
    for (body, code) in [
        (&b"\x02\0\0\0\0"[..], Code::Internal),
        (b"\0\0\0\0\x65", Code::ResourceExhausted),
        (b"\x01\0\0\0\x01x", Code::Internal),
        (b"\0\0\0\0\x05xx", Code::Internal),
    ] {
        let (told, heard) = pair.ask(&[], body, StreamEnd::Ends);
        let (status, _, cause) = ended(&told);
        assert_eq!((status.code, cause), (code, EndCause::Local), "{body:?}");
        assert_eq!(status_of(&heard), ("200".into(), code));
    }
    assert_eq!(pair.grpc.open_calls(), 0);
}

/// Responses: what servers that are not gRPC's, or not whole, say; the mapping of HTTP's statuses.
#[test]
fn responses_without_a_status() {
    let mut pair = RawPair::client(GrpcConfig::default());
    let html = ("content-type", "text/html");
    type Fields<'a> = &'a [(&'a str, &'a str)];
    let table: [(Fields<'_>, &[u8], Option<Fields<'_>>, Code); 7] = [
        (&[(":status", "503"), html], b"busy", None, Code::Unavailable),
        (&[(":status", "404")], b"", None, Code::Unimplemented),
        (&[(":status", "200"), html], b"<html>", None, Code::Unknown),
        (&RESPONSE, b"\0\0\0\0\0", None, Code::Internal),
        (&RESPONSE, b"\0\0\0\0\0", Some(&[("a", "b")]), Code::Internal),
        (
            &RESPONSE,
            b"\0\0\0\0\x09x",
            Some(&[("grpc-status", "0")]),
            Code::Internal,
        ),
        (
            &RESPONSE,
            b"\0\0\0\0\x09x",
            Some(&[("grpc-status", "7")]),
            Code::PermissionDenied,
        ),
    ];
    for (head, body, trailers, code) in table {
        let (_, status, cause) = pair.answered(head, body, trailers);
        assert_eq!((status.code, cause), (code, EndCause::Answered), "{status:?}");
    }
}

/// Errors: RST_STREAM of the server, by code; REFUSED_STREAM says that the call can be sent again.
#[test]
fn errors_resets_of_servers() {
    let mut pair = RawPair::client(GrpcConfig::default());
    for (code, expected) in [
        (ErrorCode::CANCEL, (Code::Cancelled, EndCause::Reset)),
        (
            ErrorCode::REFUSED_STREAM,
            (Code::Unavailable, EndCause::NotProcessed),
        ),
        (
            ErrorCode::ENHANCE_YOUR_CALM,
            (Code::ResourceExhausted, EndCause::Reset),
        ),
        (ErrorCode::INTERNAL_ERROR, (Code::Internal, EndCause::Reset)),
    ] {
        let call = pair.grpc.call(&RequestHead::new("/a.B/C"), 0).unwrap();
        pair.exchange();
        pair.raw.reset(call, code, 0).unwrap();
        let (status, _, cause) = ended(&pair.exchange().0);
        assert_eq!((status.code, cause), expected);
    }
}

/// Errors: a client that cancels sends CANCEL, and the server's application is told.
#[test]
fn errors_cancellation() {
    let mut pair = ConnectedPair::new(GrpcConfig::default());
    let call = pair.call(&RequestHead::new("/a.B/C"));
    pair.client.cancel(call, Code::Cancelled, 0).unwrap();
    let (at_client, at_server) = pair.exchange();
    let (status, _, cause) = ended(&at_server);
    assert_eq!(
        (at_client, status.code, cause),
        (vec![], Code::Cancelled, EndCause::Reset)
    );
    let gone = pair.server.finish(call, &GrpcStatus::ok(), &[], 0);
    assert_eq!(gone, Err(CallFault::NoCall));
}

/// Requests: Timeout. Both ends end the call when it has passed; the server counts from when the head came.
#[test]
fn requests_deadlines() {
    let mut pair = ConnectedPair::new(GrpcConfig::default());
    let head = RequestHead {
        timeout_ns: Some(3 * SECOND_NS),
        ..RequestHead::new("/a.B/C")
    };
    pair.call(&head);
    let other = pair.call(&RequestHead::new("/a.B/C"));
    assert!(pair.client.next_timeout() <= Some(3 * SECOND_NS));
    pair.server.on_time(3 * SECOND_NS - 1).unwrap();
    assert_eq!(pair.server.open_calls(), 2);

    pair.server.on_time(3 * SECOND_NS).unwrap();
    let (at_client, at_server) = pair.exchange();
    let (status, _, cause) = ended(&at_server);
    assert_eq!((status.code, cause), (Code::DeadlineExceeded, EndCause::Local));
    let (status, _, cause) = ended(&at_client);
    assert_eq!((status.code, cause), (Code::DeadlineExceeded, EndCause::Answered));

    let late = pair.call(&head);
    pair.client.on_time(3 * SECOND_NS).unwrap();
    let (at_client, at_server) = pair.exchange();
    assert_eq!(ended(&at_client).0.code, Code::DeadlineExceeded);
    let (status, _, cause) = ended(&at_server);
    assert_eq!((status.code, cause), (Code::Cancelled, EndCause::Reset));
    assert!(
        late > other && pair.server.open_calls() == 1,
        "the call without a deadline goes on"
    );
}

/// COMPRESSION: messages pass as they were compressed; who needs one decompresses it within bounds.
#[test]
fn compression_both_ways() {
    let mut pair = ConnectedPair::new(GrpcConfig::default());
    let text = vec![b'a'; 30_000];
    for encoding in MessageEncoding::ALL.into_iter().skip(1) {
        let head = RequestHead {
            encoding,
            ..RequestHead::new("/a.B/C")
        };
        let call = pair.call(&head);
        let sent =
            pair.client
                .send_message(call, MessageForm::Compressed, encoding.compress(&text).into(), 0);
        sent.unwrap();
        send(&mut pair.client, call, &text, 0);
        let (_, at_server) = pair.exchange();
        for (event, form) in at_server
            .into_iter()
            .zip([MessageForm::Compressed, MessageForm::Plain])
        {
            let GrpcEvent::Message { message, .. } = event else {
                panic!("{event:?}");
            };
            assert_eq!(message.form, form);
            if form == MessageForm::Compressed {
                let refused = message.clone().into_plain(encoding, 29_999);
                assert_eq!(refused, Err(CompressionFault::TooLarge { bytes_max: 29_999 }));
            }
            assert_eq!(message.into_plain(encoding, 30_000).as_ref(), Ok(&text));
        }
        respond(&mut pair.server, call);
        let refused = pair
            .server
            .send_message(call, MessageForm::Compressed, text.clone().into(), 0);
        assert!(matches!(refused, Err((CallFault::State(_), _))));
        pair.server.finish(call, &GrpcStatus::ok(), &[], 0).unwrap();
        pair.exchange();
    }
}

/// INTEROP, `cacheable_unary`: a request of GET is a unary call whose message stands in the query.
#[test]
fn interop_cacheable_requests() {
    let mut pair = RawPair::server(GrpcConfig::default());
    let head = request(&[(":method", "GET"), (":path", "/a.B/C?aGk")]);
    let call = pair.raw.open(&head, StreamEnd::Ends, 0).unwrap();
    let (told, _) = pair.exchange();
    assert!(matches!(&told[0], GrpcEvent::Request { head, .. } if head.path == "/a.B/C"));
    assert_eq!(messages(&told), [b"hi"]);
    assert_eq!(told[2..], [GrpcEvent::HalfClosed { call }]);
    respond(&mut pair.grpc, call);
    send(&mut pair.grpc, call, b"answer", 0);
    pair.grpc.finish(call, &GrpcStatus::ok(), &[], 0).unwrap();
    let (_, heard) = pair.exchange();
    assert_eq!(heard[1], RawEvent::Data(b"\0\0\0\0\x06answer".to_vec()));
}

/// Responses: trailers over what the client takes go without their metadata, and the status is told all the same.
#[test]
fn responses_trailers_over_the_clients_limit() {
    let config = GrpcConfig {
        http2: Http2Config {
            header_list_bytes_max: 1_000,
            ..Http2Config::default()
        },
        ..GrpcConfig::default()
    };
    let mut pair = ConnectedPair::new(config);
    for with_head in [false, true] {
        let call = pair.call(&RequestHead::new("/a.B/C"));
        if with_head {
            respond(&mut pair.server, call);
        }
        let status = GrpcStatus::new(Code::DataLoss, "why");
        let large = block(&[("a", &[b'x'; 2_000])]);
        pair.server.finish(call, &status, &large, 0).unwrap();
        let (told, _) = pair.exchange();
        assert_eq!(ended(&told), (status, vec![], EndCause::Answered));
    }
}

/// Connection Management: GOAWAY. Calls under way go on; those that the server never saw can be sent again.
#[test]
fn connection_management_goaway() {
    let mut pair = ConnectedPair::new(GrpcConfig::default());
    let call = pair.call(&RequestHead::new("/a.B/C"));
    pair.server.drain(0);
    let (at_client, _) = pair.exchange();
    assert!(at_client.contains(&GrpcEvent::Draining), "{at_client:?}");
    let refused = pair.client.call(&RequestHead::new("/a.B/C"), 0);
    assert_eq!(refused, Err(CallFault::Http2(SendError::NoMoreStreams)));
    pair.server.finish(call, &GrpcStatus::ok(), &[], 0).unwrap();
    let (at_client, _) = pair.exchange();
    assert_eq!(ended(&at_client).0, GrpcStatus::ok());
    pair.client.half_close(call, 0).unwrap_err();
    pair.exchange();
    assert!(pair.server.is_over());
}

/// Errors: a connection that is gone ends all calls with UNAVAILABLE.
#[test]
fn errors_lost_connections() {
    let mut pair = ConnectedPair::new(GrpcConfig::default());
    pair.call(&RequestHead::new("/a.B/C"));
    pair.client.lose(0);
    let received = pair.client.receive(&[], 0).unwrap();
    let (status, _, cause) = ended(&received.event.into_iter().collect::<Vec<_>>());
    assert_eq!((status.code, cause), (Code::Unavailable, EndCause::Lost));
    pair.client.receive(&[], 0).unwrap_err();

    // A peer that breaks HTTP/2.
    pair.server.receive(&[0, 0, 1, 6, 0, 0, 0, 0, 0, 9], 0).unwrap();
    pair.server.receive(&[], 0).unwrap_err();
    assert_eq!(pair.server.open_calls(), 0);
}

/// Requests: what the application must not send.
#[test]
fn requests_reserved_metadata_is_refused() {
    let mut pair = ConnectedPair::new(GrpcConfig::default());
    let head = RequestHead {
        metadata: block(&[("grpc-timeout", b"1S")]),
        ..RequestHead::new("/a.B/C")
    };
    assert!(matches!(pair.client.call(&head, 0), Err(CallFault::Metadata(_))));
    let call = pair.call(&RequestHead::new("/a.B/C"));
    let refused = pair
        .server
        .finish(call, &GrpcStatus::ok(), &block(&[("te", b"x")]), 0);
    assert!(matches!(refused, Err(CallFault::Metadata(_))));
    assert_eq!(pair.server.open_calls(), 1, "nothing was changed");
}
