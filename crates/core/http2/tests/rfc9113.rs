//! RFC 9113, sections 3 to 7: what a peer may not do, and what comes of it; what this end must do.

mod kit;

use kit::{END, OwnedEvent, TestEnd, asking_client, chunk, client, frame, list, ok_head, request, server};
use provost_http2::frame::{FrameKind, PREFACE, flags};
use provost_http2::{
    ErrorCode, HeadKind, Http2Config, ResetCause, SendError, StreamEnd, setting, setting_bytes,
};

/// Section 3.4: the client's preface comes first, then SETTINGS, from both ends.
#[test]
fn section_3_4_prefaces() {
    let mut client = TestEnd::fresh_client();
    let sent = client.sent_bytes();
    assert!(sent.starts_with(PREFACE));
    assert_eq!(kit::frames(&sent)[0].0.kind, FrameKind::Settings);
    let mut server = TestEnd::fresh_server();
    assert_eq!(server.sent()[0].0.kind, FrameKind::Settings);
}

/// Section 3.4: a preface that is another is a PROTOCOL_ERROR.
#[test]
fn section_3_4_a_wrong_preface_is_refused() {
    let mut server = TestEnd::fresh_server();
    let error = server.take(b"GET / HTTP/1.1\r\n").unwrap_err();
    assert_eq!(error.code, ErrorCode::PROTOCOL_ERROR);
}

/// Section 3.4: the first frame is SETTINGS, and no acknowledgement.
#[test]
fn section_3_4_the_first_frame_is_settings() {
    for first in [
        frame(FrameKind::Ping, 0, 0, &[0; 8]),
        frame(FrameKind::Settings, flags::ACK, 0, &[]),
    ] {
        let mut client = TestEnd::fresh_client();
        assert_eq!(client.take(&first).unwrap_err().code, ErrorCode::PROTOCOL_ERROR);
        let mut server = TestEnd::fresh_server();
        server.take(PREFACE).unwrap();
        assert_eq!(server.take(&first).unwrap_err().code, ErrorCode::PROTOCOL_ERROR);
    }
}

/// Sections 4.1 and 5.5: frames of unknown types are ignored, and flags that a type does not define.
#[test]
fn section_5_5_unknown_frames_are_ignored() {
    let mut server = server();
    server.say(FrameKind::Unknown(0xef), 0xff, 7, &[1; 300]).unwrap();
    server.say(FrameKind::Ping, 0xf0, 0, &[3; 8]).unwrap();
    assert_eq!(server.sent_kinds(), [FrameKind::Ping]);
}

/// Section 5.5: in the middle of a field block they are not.
#[test]
fn section_5_5_unknown_frames_in_a_field_block_are_refused() {
    let mut server = server();
    let block = server.block(&request(&[]));
    server.say(FrameKind::Headers, 0, 1, &block).unwrap();
    assert_eq!(
        server.say_wrong(FrameKind::Unknown(0xef), 0, 1, &[]),
        ErrorCode::PROTOCOL_ERROR
    );
}

/// Section 4.2: a frame larger than SETTINGS_MAX_FRAME_SIZE.
#[test]
fn section_4_2_larger_frames_are_refused() {
    for kind in [
        FrameKind::Data,
        FrameKind::Headers,
        FrameKind::Settings,
        FrameKind::Unknown(0x77),
    ] {
        let (mut server, stream) = (server(), u32::from(kind != FrameKind::Settings));
        if kind == FrameKind::Data {
            server.say_request(1);
        }
        let code = server.say_wrong(kind, 0, stream, &[0; 16_386]);
        assert_eq!(code, ErrorCode::FRAME_SIZE_ERROR, "{kind:?}");
    }
}

/// Section 4.2: frames of 2¹⁴ bytes are taken; and what this end sends is no larger than the peer takes.
#[test]
fn section_4_2_frames_of_the_smallest_limit() {
    let mut server = server();
    server.say_request(1);
    server.say(FrameKind::Data, 0, 1, &[7; 16_384]).unwrap();
    assert_eq!(
        server.events,
        [OwnedEvent::Data(1, vec![7; 16_384], StreamEnd::Continues)]
    );
    server
        .connection
        .respond(1, &ok_head(), StreamEnd::Continues, 0)
        .unwrap();
    server
        .connection
        .send_data(1, chunk(&[1; 40_000]), StreamEnd::Ends, 0)
        .unwrap();
    let lengths: Vec<u32> = server
        .sent()
        .iter()
        .skip(1)
        .map(|(header, _)| header.length)
        .collect();
    assert_eq!(lengths, [16_384, 16_384, 7_232]);
}

/// Section 4.3: a block that cannot be decoded is a COMPRESSION_ERROR.
#[test]
fn section_4_3_blocks_that_cannot_be_decoded() {
    let mut server = server();
    assert_eq!(
        server.say_wrong(FrameKind::Headers, END, 1, &[0x80]),
        ErrorCode::COMPRESSION_ERROR
    );
    let mut server = kit::server();
    assert_eq!(
        server.say_wrong(FrameKind::Headers, END, 1, &[0x40, 0x05, b'a']),
        ErrorCode::COMPRESSION_ERROR
    );
}

/// Section 4.3: blocks are decoded even if nobody wants their fields.
#[test]
fn section_4_3_blocks_of_refused_streams_are_decoded() {
    let mut server = TestEnd::server(Http2Config {
        streams_max: 1,
        ..Http2Config::default()
    });
    server.say_request(1);
    server
        .say_head(3, &request(&[("x-new", "entry")]), StreamEnd::Ends)
        .unwrap();
    assert_eq!(server.resets(), [(3, ErrorCode::REFUSED_STREAM)]);
    server.connection.reset(1, ErrorCode::CANCEL, 0).unwrap();
    server
        .say_head(5, &request(&[("x-new", "entry")]), StreamEnd::Ends)
        .unwrap();
    let OwnedEvent::Head(5, HeadKind::Request, fields, StreamEnd::Ends) = &server.events[0] else {
        panic!("{:?}", server.events)
    };
    assert_eq!(fields.last().unwrap(), &("x-new".into(), "entry".into()));
}

/// Section 5.1, idle: only HEADERS and PRIORITY.
#[test]
fn section_5_1_frames_on_idle_streams() {
    for (kind, payload) in [
        (FrameKind::Data, &b"abcd"[..]),
        (FrameKind::ResetStream, &[0; 4]),
        (FrameKind::WindowUpdate, &[0, 0, 0, 1]),
    ] {
        assert_eq!(
            server().say_wrong(kind, 0, 1, payload),
            ErrorCode::PROTOCOL_ERROR,
            "{kind:?}"
        );
        assert_eq!(
            client().say_wrong(kind, 0, 2, payload),
            ErrorCode::PROTOCOL_ERROR,
            "{kind:?}"
        );
    }
    server().say(FrameKind::Priority, 0, 1, &[0; 5]).unwrap();
    let block = client().block(&ok_head());
    assert_eq!(
        client().say_wrong(FrameKind::Headers, END, 1, &block),
        ErrorCode::PROTOCOL_ERROR
    );
}

/// Section 5.1, half closed (remote): DATA and HEADERS are a stream error STREAM_CLOSED.
#[test]
fn section_5_1_half_closed_remote() {
    let mut server = server();
    server.say_head(1, &request(&[]), StreamEnd::Ends).unwrap();
    server.say(FrameKind::WindowUpdate, 0, 1, &[0, 0, 0, 1]).unwrap();
    server.say(FrameKind::Data, 0, 1, b"late").unwrap();
    assert_eq!(server.resets(), [(1, ErrorCode::STREAM_CLOSED)]);
    server.say_head(3, &request(&[]), StreamEnd::Ends).unwrap();
    server.say_head(3, &list(&[("a", "b")]), StreamEnd::Ends).unwrap();
    assert_eq!(server.resets(), [(3, ErrorCode::STREAM_CLOSED)]);
}

/// Section 5.1, half closed (local): this end sends no more; the peer goes on.
#[test]
fn section_5_1_half_closed_local() {
    let mut client = client();
    client.connection.open(&request(&[]), StreamEnd::Ends, 0).unwrap();
    let (error, _) = client
        .connection
        .send_data(1, chunk(b"x"), StreamEnd::Ends, 0)
        .unwrap_err();
    assert!(matches!(error, SendError::State(_)));
    client.say_head(1, &ok_head(), StreamEnd::Continues).unwrap();
    client
        .say(FrameKind::Data, flags::END_STREAM, 1, b"body")
        .unwrap();
    assert_eq!(
        client.events[1],
        OwnedEvent::Data(1, b"body".to_vec(), StreamEnd::Ends)
    );
    assert_eq!(client.connection.open_streams(), 0);
}

/// Section 5.1, closed by END_STREAM of both ends: HEADERS and DATA are a connection error STREAM_CLOSED; late
/// WINDOW_UPDATE, RST_STREAM and PRIORITY are nothing.
#[test]
fn section_5_1_closed_by_both_ends() {
    let closed = || {
        let mut server = server();
        server.say_head(1, &request(&[]), StreamEnd::Ends).unwrap();
        server
            .connection
            .respond(1, &ok_head(), StreamEnd::Ends, 0)
            .unwrap();
        server.sent();
        assert_eq!(server.connection.open_streams(), 0);
        server.say(FrameKind::WindowUpdate, 0, 1, &[0, 0, 0, 1]).unwrap();
        server.say(FrameKind::ResetStream, 0, 1, &[0, 0, 0, 8]).unwrap();
        server.say(FrameKind::Priority, 0, 1, &[0; 5]).unwrap();
        server
    };
    assert_eq!(
        closed().say_wrong(FrameKind::Data, 0, 1, b"x"),
        ErrorCode::STREAM_CLOSED
    );
    let mut server = closed();
    let block = server.block(&request(&[]));
    assert_eq!(
        server.say_wrong(FrameKind::Headers, END, 1, &block),
        ErrorCode::STREAM_CLOSED
    );
}

/// Section 5.1, closed by the peer's RST_STREAM: what follows is a stream error STREAM_CLOSED.
#[test]
fn section_5_1_closed_by_the_peers_reset() {
    let mut server = server();
    server.say_request(1);
    server
        .say(FrameKind::ResetStream, 0, 1, &8_u32.to_be_bytes())
        .unwrap();
    assert_eq!(
        server.events,
        [OwnedEvent::Reset(1, ErrorCode::CANCEL, ResetCause::Peer)]
    );
    server.say(FrameKind::Data, 0, 1, b"late").unwrap();
    assert_eq!(server.resets(), [(1, ErrorCode::STREAM_CLOSED)]);
}

/// Section 5.1, closed by this end's RST_STREAM: what the peer sent before it knew is ignored; DATA still counts for the
/// connection's window, and blocks for the tables.
#[test]
fn section_5_1_closed_by_this_ends_reset() {
    let mut server = TestEnd::server(Http2Config {
        connection_window_bytes: 65_535,
        ..Http2Config::default()
    });
    server.say_request(1);
    server.connection.reset(1, ErrorCode::CANCEL, 0).unwrap();
    server.sent();
    for _ in 0..3 {
        server.say(FrameKind::Data, 0, 1, &[0; 16_384]).unwrap();
    }
    server
        .say_head(1, &list(&[("x-trailer", "in the table")]), StreamEnd::Ends)
        .unwrap();
    let updates = server.sent();
    assert_eq!(updates.len(), 1);
    assert_eq!(
        (updates[0].0.kind, updates[0].0.stream),
        (FrameKind::WindowUpdate, 0)
    );
    assert_eq!(server.events, []);
    server
        .say_head(3, &request(&[("x-trailer", "in the table")]), StreamEnd::Ends)
        .unwrap();
    assert_eq!(server.events.len(), 1);
}

/// Section 5.1.1: a client's streams are odd, and only it opens any.
#[test]
fn section_5_1_1_even_numbers_are_refused() {
    let mut server = server();
    let block = server.block(&request(&[]));
    assert_eq!(
        server.say_wrong(FrameKind::Headers, END, 2, &block),
        ErrorCode::PROTOCOL_ERROR
    );
}

/// Section 5.1.1: numbers rise. A stream that was passed over is closed.
#[test]
fn section_5_1_1_numbers_rise() {
    let mut server = server();
    server.say_request(5);
    let block = server.block(&request(&[]));
    assert_eq!(
        server.say_wrong(FrameKind::Headers, END, 3, &block),
        ErrorCode::PROTOCOL_ERROR
    );
}

/// Section 5.1.2: more streams than allowed are refused, and this end opens no more than the peer allows.
#[test]
fn section_5_1_2_streams_at_a_time() {
    let mut server = TestEnd::server(Http2Config {
        streams_max: 2,
        ..Http2Config::default()
    });
    server.say_request(1);
    server.say_request(3);
    server.say_head(5, &request(&[]), StreamEnd::Ends).unwrap();
    assert_eq!(server.resets(), [(5, ErrorCode::REFUSED_STREAM)]);

    let mut client = client();
    client
        .say(
            FrameKind::Settings,
            0,
            0,
            &setting_bytes(setting::MAX_CONCURRENT_STREAMS, 1),
        )
        .unwrap();
    client.connection.open(&request(&[]), StreamEnd::Ends, 0).unwrap();
    let second = client.connection.open(&request(&[]), StreamEnd::Ends, 0);
    assert_eq!(second, Err(SendError::TooManyStreams));
    client.say_head(1, &ok_head(), StreamEnd::Ends).unwrap();
    client.connection.open(&request(&[]), StreamEnd::Ends, 0).unwrap();
}

/// Section 5.2: this end sends no more than either window allows, and goes on when they open.
#[test]
fn section_5_2_both_windows_stop_the_sender() {
    let mut server = server();
    server
        .say(
            FrameKind::Settings,
            0,
            0,
            &setting_bytes(setting::INITIAL_WINDOW_SIZE, 50_000),
        )
        .unwrap();
    let payload = |server: &mut TestEnd| -> usize {
        let data = server
            .sent()
            .into_iter()
            .filter(|(header, _)| header.kind == FrameKind::Data);
        data.map(|(_, payload)| payload.len()).sum()
    };
    for stream in [1, 3] {
        server.say_request(stream);
        server
            .connection
            .respond(stream, &ok_head(), StreamEnd::Continues, 0)
            .unwrap();
        server
            .connection
            .send_data(stream, chunk(&[0; 60_000]), StreamEnd::Ends, 0)
            .unwrap();
    }
    assert_eq!(payload(&mut server), 65_535, "the connection's window");
    server
        .say(FrameKind::WindowUpdate, 0, 0, &100_000_u32.to_be_bytes())
        .unwrap();
    assert_eq!(payload(&mut server), 100_000 - 65_535, "the streams' windows");
    server
        .say(FrameKind::WindowUpdate, 0, 1, &3_u32.to_be_bytes())
        .unwrap();
    assert_eq!(payload(&mut server), 3);
    server
        .say(FrameKind::WindowUpdate, 0, 3, &20_000_u32.to_be_bytes())
        .unwrap();
    assert_eq!(payload(&mut server), 10_000);
    assert_eq!(server.connection.queued_bytes(3), Some(0));
}

/// Section 6.1: DATA belongs to a stream. Its padding counts for the windows, and goes back at once.
#[test]
fn section_6_1_padding_counts() {
    assert_eq!(
        server().say_wrong(FrameKind::Data, 0, 0, b"x"),
        ErrorCode::PROTOCOL_ERROR
    );
    let mut server = TestEnd::server(Http2Config {
        stream_window_bytes: 65_535,
        connection_window_bytes: 65_535,
        ..Http2Config::default()
    });
    server.releases = false;
    server.say_request(1);
    let padded = [&[200][..], b"body", &[0; 200]].concat();
    for _ in 0..400 {
        server.say(FrameKind::Data, flags::PADDED, 1, &padded).unwrap();
        server.sent();
    }
    assert_eq!(server.events.len(), 400);
    assert_eq!(
        server.events[0],
        OwnedEvent::Data(1, b"body".to_vec(), StreamEnd::Continues)
    );
}

/// Section 6.1: padding that is longer than the frame.
#[test]
fn section_6_1_padding_longer_than_the_frame() {
    let mut server = server();
    server.say_request(1);
    assert_eq!(
        server.say_wrong(FrameKind::Data, flags::PADDED, 1, &[5, 0, 0]),
        ErrorCode::PROTOCOL_ERROR
    );
    let mut server = kit::server();
    assert_eq!(
        server.say_wrong(FrameKind::Headers, END | flags::PADDED, 1, &[9, 0]),
        ErrorCode::PROTOCOL_ERROR
    );
}

/// Section 6.2: HEADERS with padding and priority, and in CONTINUATIONs (section 6.10).
#[test]
fn section_6_2_headers_with_padding_and_priority() {
    let mut server = server();
    let block = server.block(&request(&[]));
    let (front, back) = block.split_at(4);
    let padded = [&[2][..], &[0x80, 0, 0, 1, 255], front, &[0, 0]].concat();
    let all = flags::PADDED | flags::PRIORITY | flags::END_STREAM;
    server.say(FrameKind::Headers, all, 1, &padded).unwrap();
    server.say(FrameKind::Continuation, 0, 1, &back[..1]).unwrap();
    server
        .say(FrameKind::Continuation, flags::END_HEADERS, 1, &back[1..])
        .unwrap();
    let expected = kit::pairs(&request(&[]));
    assert_eq!(
        server.events,
        [OwnedEvent::Head(1, HeadKind::Request, expected, StreamEnd::Ends)]
    );
}

/// Section 6.2: between HEADERS and its CONTINUATIONs comes nothing.
#[test]
fn section_6_2_interrupted_blocks_are_refused() {
    let open = || {
        let mut server = server();
        let block = server.block(&request(&[]));
        server.say(FrameKind::Headers, 0, 1, &block).unwrap();
        server
    };
    for (kind, stream, payload) in [
        (FrameKind::Headers, 3, &[][..]),
        (FrameKind::Data, 1, &[]),
        (FrameKind::Ping, 0, &[0; 8]),
        (FrameKind::Priority, 1, &[0; 5]),
        (FrameKind::Continuation, 3, &[]),
    ] {
        assert_eq!(
            open().say_wrong(kind, flags::END_HEADERS, stream, payload),
            ErrorCode::PROTOCOL_ERROR
        );
    }
}

/// Section 6.3: PRIORITY of another length is a stream error FRAME_SIZE_ERROR.
#[test]
fn section_6_3_priority_of_another_length() {
    let mut server = server();
    server.say_request(1);
    server.say(FrameKind::Priority, 0, 1, &[0; 4]).unwrap();
    assert_eq!(server.resets(), [(1, ErrorCode::FRAME_SIZE_ERROR)]);
    assert_eq!(
        server.say_wrong(FrameKind::Priority, 0, 0, &[0; 5]),
        ErrorCode::PROTOCOL_ERROR
    );
}

/// Section 6.4: after RST_STREAM, this end sends nothing on the stream.
#[test]
fn section_6_4_nothing_follows_a_reset() {
    let mut server = server();
    server.say_request(1);
    server
        .connection
        .respond(1, &ok_head(), StreamEnd::Continues, 0)
        .unwrap();
    server
        .connection
        .send_data(1, chunk(&[0; 9_000]), StreamEnd::Continues, 0)
        .unwrap();
    server.say(FrameKind::ResetStream, 0, 1, &[0, 0, 0, 8]).unwrap();
    assert_eq!(server.sent_kinds(), [FrameKind::Headers]);
    assert_eq!(
        server.connection.respond(1, &ok_head(), StreamEnd::Ends, 0),
        Err(SendError::NoStream)
    );
    assert_eq!(
        server.say_wrong(FrameKind::ResetStream, 0, 1, &[0; 5]),
        ErrorCode::FRAME_SIZE_ERROR
    );
}

/// Section 6.5: SETTINGS are applied in order and acknowledged (section 6.5.3); unknown ones are ignored (section 6.5.2).
#[test]
fn section_6_5_settings_are_applied_and_acknowledged() {
    let mut server = server();
    let entries = [
        setting_bytes(setting::MAX_FRAME_SIZE, 20_000),
        setting_bytes(0x4242, 7),
        setting_bytes(setting::MAX_FRAME_SIZE, 30_000),
    ];
    server
        .say(FrameKind::Settings, 0, 0, entries.as_flattened())
        .unwrap();
    assert_eq!(server.connection.peer_settings().frame_bytes_max, 30_000);
    let sent = server.sent();
    assert_eq!(
        (sent.len(), sent[0].0.kind, sent[0].0.flags),
        (1, FrameKind::Settings, flags::ACK)
    );
}

/// Section 6.5.2: values that no end may have; and a server never enables push.
#[test]
fn section_6_5_2_wrong_values() {
    let wrong = [
        (setting::ENABLE_PUSH, 2, ErrorCode::PROTOCOL_ERROR),
        (
            setting::INITIAL_WINDOW_SIZE,
            1 << 31,
            ErrorCode::FLOW_CONTROL_ERROR,
        ),
        (setting::MAX_FRAME_SIZE, 100, ErrorCode::PROTOCOL_ERROR),
    ];
    for (number, value, code) in wrong {
        assert_eq!(
            server().say_wrong(FrameKind::Settings, 0, 0, &setting_bytes(number, value)),
            code
        );
    }
    let push = setting_bytes(setting::ENABLE_PUSH, 1);
    server().say(FrameKind::Settings, 0, 0, &push).unwrap();
    assert_eq!(
        client().say_wrong(FrameKind::Settings, 0, 0, &push),
        ErrorCode::PROTOCOL_ERROR
    );
}

/// Section 6.5.3: SETTINGS that nobody acknowledges end the connection with SETTINGS_TIMEOUT.
#[test]
fn section_6_5_3_settings_time_out() {
    let mut server = TestEnd::fresh_server();
    let deadline = server.connection.next_timeout().unwrap();
    server.connection.on_time(deadline - 1).unwrap();
    assert_eq!(
        server.connection.on_time(deadline).unwrap_err().code,
        ErrorCode::SETTINGS_TIMEOUT
    );
}

/// Section 6.5.3: what this end announces holds once it is acknowledged.
#[test]
fn section_6_5_3_new_settings_hold_after_their_acknowledgement() {
    let mut server = server();
    let larger = Http2Config {
        stream_window_bytes: 2 << 20,
        header_table_bytes: 0,
        ..Http2Config::default()
    };
    server.say_request(1);
    server.connection.change_settings(&larger, 0).unwrap();
    assert_eq!(server.sent_kinds(), [FrameKind::Settings]);
    server.say_head(3, &request(&[]), StreamEnd::Ends).unwrap();
    server.say(FrameKind::Settings, flags::ACK, 0, &[]).unwrap();
    let block = server.block(&request(&[]));
    let code = server.say_wrong(FrameKind::Headers, END, 5, &block);
    assert_eq!(
        code,
        ErrorCode::COMPRESSION_ERROR,
        "the table's reduction was not told"
    );
}

/// Section 8.4: nobody pushes to this end: a server has no such peer, a client has disabled it (section 6.6).
#[test]
fn section_6_6_push_promises_are_refused() {
    let promise = [&2_u32.to_be_bytes()[..], &[0x82]].concat();
    let mut server = server();
    server.say_request(1);
    assert_eq!(
        server.say_wrong(FrameKind::PushPromise, flags::END_HEADERS, 1, &promise),
        ErrorCode::PROTOCOL_ERROR
    );
    let mut client = TestEnd::fresh_client();
    let settings = &client.sent()[0];
    assert!(
        settings
            .1
            .chunks(6)
            .any(|entry| entry == setting_bytes(setting::ENABLE_PUSH, 0))
    );
    let mut client = asking_client();
    assert_eq!(
        client.say_wrong(FrameKind::PushPromise, flags::END_HEADERS, 1, &promise),
        ErrorCode::PROTOCOL_ERROR
    );
}

/// Section 6.7: a ping is answered with the same payload; an answer is not answered.
#[test]
fn section_6_7_pings() {
    let mut server = server();
    server.say(FrameKind::Ping, 0, 0, b"12345678").unwrap();
    server
        .say(FrameKind::Ping, flags::ACK, 0, &7_u64.to_be_bytes())
        .unwrap();
    let sent = server.sent();
    assert_eq!(sent.len(), 1);
    assert_eq!((sent[0].0.flags, &sent[0].1[..]), (flags::ACK, &b"12345678"[..]));
    assert_eq!(server.events, [OwnedEvent::Pong(7)]);
    assert_eq!(
        server.say_wrong(FrameKind::Ping, 0, 0, &[0; 6]),
        ErrorCode::FRAME_SIZE_ERROR
    );
    assert_eq!(
        kit::server().say_wrong(FrameKind::Ping, 0, 1, &[0; 8]),
        ErrorCode::PROTOCOL_ERROR
    );
}

/// Section 6.8: after GOAWAY a client opens nothing; streams above the last were not processed, those below go on.
#[test]
fn section_6_8_goaway_at_a_client() {
    let mut client = client();
    for _ in 0..3 {
        client.connection.open(&request(&[]), StreamEnd::Ends, 0).unwrap();
    }
    client
        .say(FrameKind::GoAway, 0, 0, b"\0\0\0\x03\0\0\0\0later")
        .unwrap();
    assert_eq!(
        client.take_events(),
        [
            OwnedEvent::GoAway(3, ErrorCode::NO_ERROR, b"later".to_vec()),
            OwnedEvent::Reset(5, ErrorCode::REFUSED_STREAM, ResetCause::GoAway),
        ]
    );
    assert_eq!(
        client.connection.open(&request(&[]), StreamEnd::Ends, 0),
        Err(SendError::NoMoreStreams)
    );
    client.say_head(3, &ok_head(), StreamEnd::Ends).unwrap();
    assert_eq!(client.connection.open_streams(), 1);
    let code = client.say_wrong(FrameKind::GoAway, 0, 0, b"\0\0\0\x05\0\0\0\0");
    assert_eq!(code, ErrorCode::PROTOCOL_ERROR, "the last stream does not rise");
}

/// Section 6.8: a server ends in two steps, and takes what the client sent before it knew.
#[test]
fn section_6_8_a_graceful_end() {
    let mut server = server();
    server.say_request(1);
    server.connection.drain(0);
    let sent = server.sent();
    let kinds: Vec<FrameKind> = sent.iter().map(|(header, _)| header.kind).collect();
    assert_eq!(kinds, [FrameKind::GoAway, FrameKind::Ping]);
    assert_eq!(sent[0].1[..4], [0x7f, 0xff, 0xff, 0xff]);
    server.say_request(3);
    let ping = sent[1].1.clone();
    server.say(FrameKind::Ping, flags::ACK, 0, &ping).unwrap();
    let sent = server.sent();
    assert_eq!(
        (sent[0].0.kind, &sent[0].1[..4]),
        (FrameKind::GoAway, &[0, 0, 0, 3][..])
    );
    server.say_head(5, &request(&[]), StreamEnd::Ends).unwrap();
    assert_eq!((server.take_events(), server.sent_kinds()), (vec![], vec![]));
    for stream in [1, 3] {
        server
            .say(FrameKind::Data, flags::END_STREAM, stream, &[])
            .unwrap();
        assert!(!server.connection.is_over());
        server
            .connection
            .respond(stream, &ok_head(), StreamEnd::Ends, 0)
            .unwrap();
    }
    server.sent();
    assert!(server.connection.is_over());
}

/// Section 6.8: without an answer to the ping, time does it.
#[test]
fn section_6_8_a_graceful_end_without_an_answer() {
    let mut server = server();
    server.connection.drain(0);
    server.sent();
    let due = server.connection.next_timeout().unwrap();
    server.connection.on_time(due).unwrap();
    assert_eq!(server.sent_kinds(), [FrameKind::GoAway]);
    assert!(server.connection.is_over());
}

/// Section 6.9: an increment of 0 is an error, of the stream or the connection; so is one that overflows (section 6.9.1).
#[test]
fn section_6_9_wrong_increments() {
    let mut server = server();
    server.say_request(1);
    server.say(FrameKind::WindowUpdate, 0, 1, &[0; 4]).unwrap();
    assert_eq!(server.resets(), [(1, ErrorCode::PROTOCOL_ERROR)]);
    server.say_request(3);
    server
        .say(FrameKind::WindowUpdate, 0, 3, &[0x7f, 0xff, 0xff, 0xff])
        .unwrap();
    assert_eq!(server.resets(), [(3, ErrorCode::FLOW_CONTROL_ERROR)]);
    assert_eq!(
        server.say_wrong(FrameKind::WindowUpdate, 0, 0, &[0; 4]),
        ErrorCode::PROTOCOL_ERROR
    );
    let code = kit::server().say_wrong(FrameKind::WindowUpdate, 0, 0, &[0x7f, 0xff, 0xff, 0xff]);
    assert_eq!(code, ErrorCode::FLOW_CONTROL_ERROR);
    let code = kit::server().say_wrong(FrameKind::WindowUpdate, 0, 0, &[0, 0, 1]);
    assert_eq!(code, ErrorCode::FRAME_SIZE_ERROR);
}

/// Section 6.9.1: a peer that exceeds a window of a stream, or the connection's.
#[test]
fn section_6_9_1_windows_that_are_exceeded() {
    let mut server = TestEnd::server(Http2Config {
        stream_window_bytes: 10_000,
        connection_window_bytes: 65_535,
        ..Http2Config::default()
    });
    server.releases = false;
    server.say_request(1);
    server.say(FrameKind::Data, 0, 1, &[0; 10_000]).unwrap();
    server.say(FrameKind::Data, 0, 1, &[0; 1]).unwrap();
    assert_eq!(server.resets(), [(1, ErrorCode::FLOW_CONTROL_ERROR)]);
    for stream in [3, 5, 7, 9, 11] {
        server.say_request(stream);
        server.say(FrameKind::Data, 0, stream, &[0; 10_000]).unwrap();
    }
    server.say_request(13);
    let code = server.say_wrong(FrameKind::Data, 0, 13, &[0; 10_000]);
    assert_eq!(code, ErrorCode::FLOW_CONTROL_ERROR);
}

/// Section 6.9.2: a change of SETTINGS_INITIAL_WINDOW_SIZE moves the windows of open streams, below 0 too; one that overflows
/// ends the connection.
#[test]
fn section_6_9_2_changes_of_the_initial_window() {
    let mut server = server();
    let window = |bytes| setting_bytes(setting::INITIAL_WINDOW_SIZE, bytes);
    let sent = |server: &mut TestEnd| -> u32 {
        let data = server
            .sent()
            .into_iter()
            .filter(|(header, _)| header.kind == FrameKind::Data);
        data.map(|(header, _)| header.length).sum()
    };
    server.say_request(1);
    server
        .connection
        .respond(1, &ok_head(), StreamEnd::Continues, 0)
        .unwrap();
    server
        .connection
        .send_data(1, chunk(&[0; 50_000]), StreamEnd::Continues, 0)
        .unwrap();
    assert_eq!(sent(&mut server), 50_000);
    server.say(FrameKind::Settings, 0, 0, &window(10_000)).unwrap();
    server
        .connection
        .send_data(1, chunk(&[0; 5_000]), StreamEnd::Continues, 0)
        .unwrap();
    server
        .say(FrameKind::WindowUpdate, 0, 1, &40_000_u32.to_be_bytes())
        .unwrap();
    assert_eq!(sent(&mut server), 0, "the window is 0");
    server.say(FrameKind::Settings, 0, 0, &window(10_100)).unwrap();
    assert_eq!(sent(&mut server), 100);
    server
        .say(FrameKind::WindowUpdate, 0, 1, &0x7fff_0000_u32.to_be_bytes())
        .unwrap();
    assert_eq!(
        server.say_wrong(FrameKind::Settings, 0, 0, &window(0x7fff_ffff)),
        ErrorCode::FLOW_CONTROL_ERROR
    );
}

/// Section 6.10: CONTINUATION follows HEADERS without END_HEADERS, on the same stream.
#[test]
fn section_6_10_continuations_without_a_block() {
    let mut server = server();
    assert_eq!(
        server.say_wrong(FrameKind::Continuation, 0, 0, &[]),
        ErrorCode::PROTOCOL_ERROR
    );
    let mut server = kit::server();
    server.say_request(1);
    let code = server.say_wrong(FrameKind::Continuation, flags::END_HEADERS, 1, &[]);
    assert_eq!(code, ErrorCode::PROTOCOL_ERROR);
}

/// Section 6.10: a head that is larger than a frame goes in CONTINUATIONs.
#[test]
fn section_6_10_large_heads_are_cut() {
    let mut client = client();
    let value = "\u{7f}".repeat(10_000);
    let head = request(&[("x-a", &value), ("x-b", &value), ("x-c", &value)]);
    client.connection.open(&head, StreamEnd::Ends, 0).unwrap();
    let sent = client.sent();
    let kinds: Vec<FrameKind> = sent.iter().map(|(header, _)| header.kind).collect();
    assert_eq!(kinds, [FrameKind::Headers, FrameKind::Continuation]);
    let ends: Vec<u8> = sent.iter().map(|(header, _)| header.flags).collect();
    assert_eq!(ends, [flags::END_STREAM, flags::END_HEADERS]);
    let block: Vec<u8> = sent.into_iter().flat_map(|(_, payload)| payload).collect();
    assert_eq!(client.decoded(&block), kit::pairs(&head));
}

/// Section 7: a code that nobody knows is no reason for anything.
#[test]
fn section_7_unknown_codes() {
    let mut server = server();
    server.say_request(1);
    server.say(FrameKind::ResetStream, 0, 1, &[0xff; 4]).unwrap();
    assert_eq!(
        server.events,
        [OwnedEvent::Reset(1, ErrorCode(u32::MAX), ResetCause::Peer)]
    );
}
