//! RFC 9113, sections 8 to 10: messages, and what connections do beside them.

mod kit;

use kit::{OwnedEvent, TestEnd, asking_client, client, list, ok_head, request, server};
use provost_http2::frame::{FrameKind, flags};
use provost_http2::{
    ConnectionError, ErrorCode, HeadFault, HeadKind, Http2Config, ResetCause, SendError, StreamEnd, setting,
    setting_bytes,
};

/// Section 8.1: interim responses, the final one, DATA, trailers.
#[test]
fn section_8_1_a_whole_response() {
    let mut client = asking_client();
    client
        .say_head(1, &list(&[(":status", "100")]), StreamEnd::Continues)
        .unwrap();
    client
        .say_head(1, &list(&[(":status", "103")]), StreamEnd::Continues)
        .unwrap();
    client.say_head(1, &ok_head(), StreamEnd::Continues).unwrap();
    client.say(FrameKind::Data, 0, 1, b"body").unwrap();
    client
        .say_head(1, &list(&[("grpc-status", "0")]), StreamEnd::Ends)
        .unwrap();
    let kinds: Vec<Option<HeadKind>> = client
        .events
        .iter()
        .map(|event| match event {
            OwnedEvent::Head(_, kind, ..) => Some(*kind),
            _ => None,
        })
        .collect();
    use HeadKind::{Interim, Response, Trailers};
    assert_eq!(
        kinds,
        [Some(Interim), Some(Interim), Some(Response), None, Some(Trailers)]
    );
}

/// Section 8.1: parts that come where they cannot make the message malformed.
#[test]
fn section_8_1_parts_out_of_order() {
    type Parts = fn(&mut TestEnd) -> Result<(), ConnectionError>;
    let wrong: [Parts; 4] = [
        |client| client.say(FrameKind::Data, 0, 1, b"before the head"),
        |client| client.say_head(1, &list(&[(":status", "100")]), StreamEnd::Ends),
        |client| {
            client.say_head(1, &ok_head(), StreamEnd::Continues)?;
            client.say_head(1, &list(&[("trailers", "without an end")]), StreamEnd::Continues)
        },
        |client| {
            client.say_head(1, &ok_head(), StreamEnd::Continues)?;
            client.say_head(1, &list(&[(":status", "200")]), StreamEnd::Ends)
        },
    ];
    for parts in wrong {
        let mut client = asking_client();
        parts(&mut client).unwrap();
        assert_eq!(client.resets(), [(1, ErrorCode::PROTOCOL_ERROR)]);
        let last = client.take_events().pop();
        assert_eq!(
            last,
            Some(OwnedEvent::Reset(1, ErrorCode::PROTOCOL_ERROR, ResetCause::Fault))
        );
    }
}

/// Section 8.2.1 and PROTOCOL-HTTP2: some servers send a message that ends in a space, and it is taken as it is.
#[test]
fn section_8_2_1_spaces_at_the_ends_of_values_are_taken() {
    let mut client = asking_client();
    client.say_head(1, &ok_head(), StreamEnd::Continues).unwrap();
    let trailers = list(&[("grpc-status", "5"), ("grpc-message", "no such key: ")]);
    client.say_head(1, &trailers, StreamEnd::Ends).unwrap();
    assert_eq!(client.resets(), []);
    let events = client.take_events();
    let has_message = |event: &OwnedEvent| match event {
        OwnedEvent::Head(_, HeadKind::Trailers, fields, _) => fields[1].1 == "no such key: ",
        _ => false,
    };
    assert!(events.iter().any(has_message), "{events:?}");
}

/// Section 8.1.1: malformed requests and responses are stream errors PROTOCOL_ERROR, and the connection goes on.
#[test]
fn section_8_1_1_malformed_heads() {
    let mut server = server();
    let heads = [
        request(&[("Upper", "case")]),
        request(&[("connection", "close")]),
        request(&[("te", "gzip")]),
        request(&[(":path", "/twice")]),
        request(&[(":authority", " a")]),
        list(&[(":method", "GET")]),
        request(&[("a", "b"), (":late", "")]),
    ];
    let streams = (1..).step_by(2);
    for (stream, head) in streams.zip(&heads) {
        server.say_head(stream, head, StreamEnd::Ends).unwrap();
        assert_eq!(server.resets(), [(stream, ErrorCode::PROTOCOL_ERROR)], "{head:?}");
    }
    assert_eq!(server.events, []);
    let mut client = asking_client();
    client
        .say_head(1, &list(&[(":status", "99")]), StreamEnd::Ends)
        .unwrap();
    assert_eq!(client.resets(), [(1, ErrorCode::PROTOCOL_ERROR)]);
}

/// Section 8.1.1: the content is as long as content-length says.
#[test]
fn section_8_1_1_content_length() {
    let sent = |bodies: &[(&[u8], StreamEnd)]| {
        let mut server = server();
        server
            .say_head(1, &request(&[("content-length", "4")]), StreamEnd::Continues)
            .unwrap();
        for (body, end) in bodies {
            server.say(FrameKind::Data, kit::end_flag(*end), 1, body).unwrap();
        }
        server.resets()
    };
    let wrong = [(1, ErrorCode::PROTOCOL_ERROR)];
    assert_eq!(sent(&[(b"1234", StreamEnd::Ends)]), []);
    assert_eq!(
        sent(&[(b"12", StreamEnd::Continues), (b"34", StreamEnd::Ends)]),
        []
    );
    assert_eq!(sent(&[(b"123", StreamEnd::Ends)]), wrong);
    assert_eq!(sent(&[(b"12345", StreamEnd::Continues)]), wrong);
    assert_eq!(
        sent(&[(b"1234", StreamEnd::Continues), (b"5", StreamEnd::Ends)]),
        wrong
    );
    let mut server = server();
    server
        .say_head(1, &request(&[("content-length", "4")]), StreamEnd::Ends)
        .unwrap();
    assert_eq!(server.resets(), wrong);
    server
        .say_head(3, &request(&[("content-length", "4")]), StreamEnd::Continues)
        .unwrap();
    server
        .say_head(3, &list(&[("a", "trailer")]), StreamEnd::Ends)
        .unwrap();
    assert_eq!(server.resets(), [(3, ErrorCode::PROTOCOL_ERROR)]);
}

/// Section 8.1.1: responses to HEAD and those of status 304 have no content, whatever their length says.
#[test]
fn section_8_1_1_lengths_without_content() {
    let mut client = client();
    let head = list(&[(":method", "HEAD"), (":scheme", "http"), (":path", "/")]);
    client.connection.open(&head, StreamEnd::Ends, 0).unwrap();
    client.connection.open(&request(&[]), StreamEnd::Ends, 0).unwrap();
    for (stream, status) in [(1, "200"), (3, "304")] {
        let response = list(&[(":status", status), ("content-length", "77")]);
        client.say_head(stream, &response, StreamEnd::Ends).unwrap();
    }
    assert_eq!((client.resets(), client.events.len()), (vec![], 2));
}

/// Section 8.1: a server that answered before the request ended resets it with NO_ERROR in time; and a client keeps such a
/// response.
#[test]
fn section_8_1_early_responses() {
    let mut server = server();
    server.say_request(1);
    server
        .connection
        .respond(1, &ok_head(), StreamEnd::Ends, 0)
        .unwrap();
    server.sent();
    let limit_ns = Http2Config::default().time_limits.half_closed_ns;
    server.connection.on_time(limit_ns / 2).unwrap();
    assert_eq!(server.resets(), []);
    server.connection.on_time(limit_ns * 2).unwrap();
    assert_eq!(server.resets(), [(1, ErrorCode::NO_ERROR)]);

    let mut client = asking_client();
    client.say_head(1, &ok_head(), StreamEnd::Ends).unwrap();
    client.say(FrameKind::ResetStream, 0, 1, &[0; 4]).unwrap();
    assert_eq!(
        client.events[1],
        OwnedEvent::Reset(1, ErrorCode::NO_ERROR, ResetCause::Peer)
    );
}

/// Sections 8.2 and 8.3: this end sends nothing malformed.
#[test]
fn section_8_2_nothing_malformed_is_sent() {
    let mut client = client();
    let wrong = client
        .connection
        .open(&request(&[("X", "y")]), StreamEnd::Ends, 0);
    assert_eq!(wrong, Err(SendError::Malformed(HeadFault::Name)));
    let mut server = server();
    server.say_request(1);
    let interim = list(&[(":status", "100")]);
    assert!(
        server
            .connection
            .respond(1, &interim, StreamEnd::Ends, 0)
            .is_err()
    );
    server
        .connection
        .respond(1, &interim, StreamEnd::Continues, 0)
        .unwrap();
    server
        .connection
        .respond(1, &ok_head(), StreamEnd::Continues, 0)
        .unwrap();
    assert!(
        server
            .connection
            .respond(1, &ok_head(), StreamEnd::Ends, 0)
            .is_err()
    );
    let trailers = server.connection.send_trailers(1, list(&[(":status", "200")]), 0);
    assert_eq!(trailers, Err(SendError::Malformed(HeadFault::PseudoUnknown)));
    server
        .connection
        .send_trailers(1, list(&[("a", "b")]), 0)
        .unwrap();
    assert!(
        server
            .connection
            .send_trailers(1, list(&[("a", "b")]), 0)
            .is_err()
    );
    let sent = server.sent();
    let ends: Vec<bool> = sent
        .iter()
        .map(|(header, _)| header.has(flags::END_STREAM))
        .collect();
    assert_eq!(ends, [false, false, true]);
}

/// Section 10.5.1: a list over SETTINGS_MAX_HEADER_LIST_SIZE: 431 for a request, RST_STREAM for the rest; the tables stay in
/// step. And this end sends none that the peer does not take.
#[test]
fn section_10_5_1_lists_over_the_limit() {
    let small = Http2Config {
        header_list_bytes_max: 300,
        ..Http2Config::default()
    };
    let mut server = TestEnd::server(small);
    let long = "v".repeat(200);
    server
        .say_head(1, &request(&[("x-long", &long)]), StreamEnd::Continues)
        .unwrap();
    let sent = server.sent();
    let kinds: Vec<FrameKind> = sent.iter().map(|(header, _)| header.kind).collect();
    assert_eq!(kinds, [FrameKind::Headers, FrameKind::ResetStream]);
    assert_eq!(server.decoded(&sent[0].1), [(":status".into(), "431".into())]);
    server.say_head(3, &request(&[]), StreamEnd::Continues).unwrap();
    assert_eq!(server.events.len(), 1);
    server
        .say_head(
            3,
            &list(&[("x-long", &long), ("x-longer", &long)]),
            StreamEnd::Ends,
        )
        .unwrap();
    assert_eq!(server.resets(), [(3, ErrorCode::ENHANCE_YOUR_CALM)]);

    let mut client = client();
    client
        .say(
            FrameKind::Settings,
            0,
            0,
            &setting_bytes(setting::MAX_HEADER_LIST_SIZE, 100),
        )
        .unwrap();
    let refused = client.connection.open(&request(&[]), StreamEnd::Ends, 0);
    assert!(
        matches!(refused, Err(SendError::ListTooLarge { .. })),
        "{refused:?}"
    );
}

/// Section 9.1: an end that says nothing is pinged, and given up without an answer.
#[test]
fn section_9_1_keepalive() {
    let mut client = TestEnd::client(Http2Config {
        keepalive: Some(provost_http2::KeepalivePolicy {
            interval_ns: 1_000,
            timeout_ns: 500,
        }),
        ..Http2Config::default()
    });
    assert_eq!(client.connection.next_timeout(), Some(1_000));
    for round in 0..3 {
        let now_ns = client.connection.next_timeout().unwrap();
        client.now_ns = now_ns;
        client.connection.on_time(now_ns).unwrap();
        let ping = client.sent();
        assert_eq!(ping.len(), 1, "{round}");
        client.say(FrameKind::Ping, flags::ACK, 0, &ping[0].1).unwrap();
        assert_eq!(client.connection.next_timeout(), Some(now_ns + 1_000));
    }
    let ping_ns = client.connection.next_timeout().unwrap();
    client.connection.on_time(ping_ns).unwrap();
    client.now_ns = ping_ns;
    client.sent();
    assert_eq!(client.connection.next_timeout(), Some(ping_ns + 500));
    client.connection.on_time(ping_ns + 500).unwrap_err();
    assert!(client.connection.failure().is_some());
}

/// A process that stood still has not read what came meanwhile, so what the peer must do counts anew from when it goes on.
#[test]
fn section_9_1_time_in_which_this_end_stood_still() {
    const SECOND_NS: u64 = 1_000_000_000;
    let mut server = TestEnd::server(Http2Config {
        keepalive: Some(provost_http2::KeepalivePolicy {
            interval_ns: SECOND_NS,
            timeout_ns: SECOND_NS,
        }),
        ..Http2Config::default()
    });
    server.connection.on_time(SECOND_NS).unwrap();
    assert_eq!(server.sent_kinds(), [FrameKind::Ping]);
    server.connection.on_time(4 * SECOND_NS).unwrap();
    server.connection.on_time(5 * SECOND_NS - 1).unwrap();
    server.connection.on_time(5 * SECOND_NS).unwrap_err();

    // What waits for the carrier.
    let mut server = self::server();
    server.connection.ping(1, 0).unwrap();
    let limit_ns = Http2Config::default().time_limits.output_ns;
    server.connection.on_time(limit_ns + 2 * SECOND_NS).unwrap();
    assert_eq!(
        server.connection.next_timeout(),
        Some(2 * limit_ns + 2 * SECOND_NS)
    );
    let error = server
        .connection
        .on_time(2 * limit_ns + 2 * SECOND_NS)
        .unwrap_err();
    assert_eq!(error.code, ErrorCode::ENHANCE_YOUR_CALM);
}
