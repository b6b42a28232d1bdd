//! What a peer does to make this end work or remember: each attack ends at a named limit, and honest peers stay far below.

mod kit;

use kit::{OwnedEvent, TestEnd, chunk, frame, list, ok_head, request};
use provost_http2::config::{CONTINUATION_FRAMES_MAX, OUTPUT_BYTES_MAX, STREAM_QUEUE_CHUNKS_MAX};
use provost_http2::floods::{FloodLimits, RAPID_RESET_NS};
use provost_http2::frame::{FrameKind, PREFACE, flags};
use provost_http2::{
    ConnectionError, ErrorCode, Http2Config, OUTPUT_STOPS_INPUT_BYTES, ResetCause, SendError, StreamEnd,
    setting, setting_bytes,
};

fn server() -> TestEnd {
    TestEnd::server(Http2Config::default())
}

/// Does something again and again until the connection ends; says how often, and checks how.
fn until_calm(
    end: &mut TestEnd,
    mut attack: impl FnMut(&mut TestEnd, u32) -> Result<(), ConnectionError>,
) -> u32 {
    for round in 0..1_000_000 {
        let done = attack(end, round);
        end.sent_bytes();
        end.events.clear();
        if let Err(error) = done {
            assert_eq!(error.code, ErrorCode::ENHANCE_YOUR_CALM, "{error}");
            return round;
        }
    }
    panic!("nothing stops it");
}

fn new_stream(round: u32) -> u32 {
    1 + 2 * round
}

/// CVE-2023-44487: streams that are opened and taken back.
#[test]
fn rapid_reset() {
    let mut server = server();
    let rounds = until_calm(&mut server, |server, round| {
        server.say_head(new_stream(round), &request(&[]), StreamEnd::Ends)?;
        server.say(FrameKind::ResetStream, 0, new_stream(round), &8_u32.to_be_bytes())
    });
    assert_eq!(rounds, FloodLimits::default().reset.burst);
}

/// A client that cancels many calls and completes as many is an honest one.
#[test]
fn cancellations_among_completed_calls_are_no_flood() {
    let mut server = server();
    for round in 0..5_000 {
        let (cancelled, completed) = (1 + 4 * round, 3 + 4 * round);
        server
            .say_head(cancelled, &request(&[]), StreamEnd::Ends)
            .unwrap();
        server
            .say(FrameKind::ResetStream, 0, cancelled, &8_u32.to_be_bytes())
            .unwrap();
        server
            .say_head(completed, &request(&[]), StreamEnd::Ends)
            .unwrap();
        server
            .connection
            .respond(completed, &list(&[(":status", "200")]), StreamEnd::Ends, 0)
            .unwrap();
        server.sent_bytes();
        server.events.clear();
    }
}

/// A client whose calls nobody answers gives them up when their deadlines pass, however many of them do.
/// One that waits less takes streams back rapidly.
#[test]
fn calls_that_are_given_up_after_a_while_are_no_flood() {
    let cancel = 8_u32.to_be_bytes();
    let mut server = server();
    let calls = FloodLimits::default().reset.burst;
    for round in 0..10 {
        for call in 0..calls {
            let stream = new_stream(round * calls + call);
            server.say_head(stream, &request(&[]), StreamEnd::Ends).unwrap();
        }
        server.now_ns += RAPID_RESET_NS;
        for call in 0..calls {
            let stream = new_stream(round * calls + call);
            server.say(FrameKind::ResetStream, 0, stream, &cancel).unwrap();
        }
        server.sent_bytes();
        server.events.clear();
    }

    let mut server = self::server();
    let rounds = until_calm(&mut server, |server, round| {
        server.say_head(new_stream(round), &request(&[]), StreamEnd::Ends)?;
        server.now_ns += RAPID_RESET_NS / 1_000;
        server.say(FrameKind::ResetStream, 0, new_stream(round), &cancel)
    });
    assert!(rounds < 2 * calls, "{rounds}");
}

/// RFC 9113, section 8.1: a client that has its whole response need not send the rest of its request, and resets the stream.
#[test]
fn resets_after_whole_responses_are_no_flood() {
    let mut server = server();
    for round in 0..3 * FloodLimits::default().reset.burst {
        let stream = new_stream(round);
        server
            .say_head(stream, &request(&[]), StreamEnd::Continues)
            .unwrap();
        server
            .connection
            .respond(stream, &list(&[(":status", "200")]), StreamEnd::Ends, 0)
            .unwrap();
        server.say(FrameKind::ResetStream, 0, stream, &[0; 4]).unwrap();
        server.sent_bytes();
        server.events.clear();
    }
}

/// A client that cancels many calls brings about frames that come late. Its server is not to blame, and the windows and tables
/// stay in step.
#[test]
fn late_frames_of_streams_that_a_client_reset_are_no_flood() {
    let mut client = TestEnd::client(Http2Config {
        connection_window_bytes: 65_535,
        ..Http2Config::default()
    });
    let rounds = 3 * FloodLimits::default().other.burst;
    let open = |client: &mut TestEnd| client.connection.open(&request(&[]), StreamEnd::Ends, 0).unwrap();
    for _ in 0..rounds {
        let stream = open(&mut client);
        client.connection.reset(stream, ErrorCode::CANCEL, 0).unwrap();
        client.say_head(stream, &ok_head(), StreamEnd::Continues).unwrap();
        client.say(FrameKind::Data, 0, stream, &[0; 1_000]).unwrap();
        client
            .say(FrameKind::ResetStream, 0, stream, &8_u32.to_be_bytes())
            .unwrap();
        client.sent_bytes();
    }
    // Those that are remembered no longer.
    for round in 0..rounds {
        client
            .say_head(new_stream(round % 500), &ok_head(), StreamEnd::Ends)
            .unwrap();
        client
            .say(FrameKind::Data, 0, new_stream(round % 500), &[0; 1_000])
            .unwrap();
        client
            .say(
                FrameKind::ResetStream,
                0,
                new_stream(round % 500),
                &8_u32.to_be_bytes(),
            )
            .unwrap();
        client.sent_bytes();
    }
    assert_eq!(client.events, []);
    let stream = open(&mut client);
    client
        .say_head(
            stream,
            &list(&[(":status", "200"), ("x-new", "1")]),
            StreamEnd::Ends,
        )
        .unwrap();
    assert_eq!(client.take_events().len(), 1);
}

/// A server that goes on after its own RST_STREAM is told so, and that is no flood either.
#[test]
fn late_frames_of_streams_that_the_server_reset_are_answered_once() {
    let mut client = TestEnd::client(Http2Config::default());
    for round in 0..FloodLimits::default().provoked_reset.burst * 3 {
        let stream = client.connection.open(&request(&[]), StreamEnd::Ends, 0).unwrap();
        assert_eq!(stream, new_stream(round));
        client
            .say(FrameKind::ResetStream, 0, stream, &8_u32.to_be_bytes())
            .unwrap();
        client.sent_bytes();
        client.say(FrameKind::Data, 0, stream, b"late").unwrap();
        client.say(FrameKind::Data, 0, stream, b"later").unwrap();
        assert_eq!(client.resets(), [(stream, ErrorCode::STREAM_CLOSED)]);
    }
}

/// CVE-2025-8671, MadeYouReset: a server is made to reset streams by frames that are wrong, while it works on the requests.
#[test]
fn made_you_reset() {
    type Provocation = fn(&mut TestEnd, u32) -> Result<(), ConnectionError>;
    let provocations: [Provocation; 6] = [
        |server, id| server.say(FrameKind::WindowUpdate, 0, id, &[0; 4]),
        |server, id| server.say(FrameKind::WindowUpdate, 0, id, &[0x7f, 0xff, 0xff, 0xff]),
        |server, id| server.say(FrameKind::Data, 0, id, b"after the end"),
        |server, id| server.say_head(id, &list(&[("a", "b")]), StreamEnd::Ends),
        |server, id| server.say(FrameKind::Priority, 0, id, &[0; 4]),
        |server, id| server.say_head(id + 2, &request(&[("X", "malformed")]), StreamEnd::Ends),
    ];
    for provoke in provocations {
        let mut server = server();
        let rounds = until_calm(&mut server, |server, round| {
            let id = 1 + 4 * round;
            server.say_head(id, &request(&[]), StreamEnd::Ends)?;
            provoke(server, id)
        });
        assert_eq!(rounds, FloodLimits::default().provoked_reset.burst);
    }
}

/// MadeYouReset by streams over the limit, once the client knows the limit.
#[test]
fn streams_over_the_limit() {
    let mut server = TestEnd::server(Http2Config {
        streams_max: 1,
        ..Http2Config::default()
    });
    server.say_request(1);
    let rounds = until_calm(&mut server, |server, round| {
        server.say_head(new_stream(round + 1), &request(&[]), StreamEnd::Ends)
    });
    assert_eq!(rounds, FloodLimits::default().provoked_reset.burst);
}

/// A client that knows no limit yet is only refused.
#[test]
fn streams_before_the_limit_is_known_are_refused() {
    let mut server = TestEnd::fresh_server();
    server.take(PREFACE).unwrap();
    server.say(FrameKind::Settings, 0, 0, &[]).unwrap();
    for round in 0..3_000 {
        server
            .say_head(new_stream(round), &request(&[]), StreamEnd::Ends)
            .unwrap();
        server.sent_bytes();
    }
    assert_eq!(
        server.connection.open_streams(),
        Http2Config::default().streams_max as usize
    );
}

/// CVE-2024-27316 and others: a block that CONTINUATIONs never end.
#[test]
fn continuation_flood() {
    for fragment in [&[][..], &[0x82]] {
        let mut server = server();
        server.say(FrameKind::Headers, 0, 1, &[0x82]).unwrap();
        let rounds = until_calm(&mut server, |server, _| {
            server.say(FrameKind::Continuation, 0, 1, fragment)
        });
        assert_eq!(rounds, CONTINUATION_FRAMES_MAX);
    }
}

/// The same with fragments as large as frames may be: the bytes of a block are bounded too.
#[test]
fn continuation_flood_of_large_fragments() {
    let mut server = server();
    let block = [&b"\x00\x01a\x7f\xff\xff\xff\x07"[..], &[b'x'; 16_000]].concat();
    server.say(FrameKind::Headers, 0, 1, &block).unwrap();
    let rounds = until_calm(&mut server, |server, _| {
        server.say(FrameKind::Continuation, 0, 1, &[b'x'; 16_000])
    });
    assert!(rounds < 8, "{rounds}");
}

/// A field block that does not end in time.
#[test]
fn a_block_that_takes_for_ever() {
    let mut server = server();
    server.say(FrameKind::Headers, 0, 1, &[0x82]).unwrap();
    let due = server.connection.next_timeout().unwrap();
    assert_eq!(due, Http2Config::default().time_limits.field_block_ns);
    assert_eq!(
        server.connection.on_time(due).unwrap_err().code,
        ErrorCode::ENHANCE_YOUR_CALM
    );
}

/// CVE-2019-9512, CVE-2019-9515, CVE-2019-9518 and others: frames that bring the peer no further.
#[test]
fn floods_of_frames_without_use() {
    let limits = FloodLimits::default();
    let mut server = self::server();
    let rounds = until_calm(&mut server, |server, _| {
        server.say(FrameKind::Ping, 0, 0, &[0; 8])
    });
    assert_eq!(rounds, limits.ping.burst);

    let mut server = self::server();
    let settings = setting_bytes(setting::INITIAL_WINDOW_SIZE, 70_000);
    let rounds = until_calm(&mut server, |server, _| {
        server.say(FrameKind::Settings, 0, 0, &settings)
    });
    assert!(rounds <= limits.settings.burst, "{rounds}");

    let mut server = self::server();
    server.say_request(1);
    let rounds = until_calm(&mut server, |server, _| server.say(FrameKind::Data, 0, 1, &[]));
    assert!(rounds.abs_diff(limits.empty.burst) <= 1, "{rounds}");

    // Nothing but padding, of no bytes and of three, carries as little: it excuses no PING between.
    for padded in [&[0][..], &[3, 0, 0, 0]] {
        let mut server = self::server();
        server.say_request(1);
        let rounds = until_calm(&mut server, |server, _| {
            server.say(FrameKind::Ping, 0, 0, &[0; 8])?;
            server.say(FrameKind::Data, flags::PADDED, 1, padded)
        });
        assert!(rounds.abs_diff(limits.empty.burst) <= 1, "{rounds}");
    }

    let mut server = self::server();
    server.say_request(1);
    let rounds = until_calm(&mut server, |server, round| {
        server.say(FrameKind::WindowUpdate, 0, round % 2, &[0, 0, 0, 1])
    });
    assert!(rounds.abs_diff(limits.window.burst) <= 1, "{rounds}");

    let mut server = self::server();
    let rounds = until_calm(&mut server, |server, _| {
        server.say(FrameKind::Priority, 0, 9, &[0; 5])
    });
    assert_eq!(rounds, limits.other.burst);

    let mut server = self::server();
    let rounds = until_calm(&mut server, |server, _| {
        server.say(FrameKind::Unknown(0x99), 0, 9, &[0; 50])
    });
    assert_eq!(rounds, limits.other.burst);
}

/// Honest traffic between them forgives pings, and time does.
#[test]
fn honest_peers_may_ping() {
    let mut server = self::server();
    server.say_request(1);
    for _ in 0..20_000 {
        server.say(FrameKind::Data, 0, 1, b"body").unwrap();
        server.say(FrameKind::Ping, 0, 0, &[0; 8]).unwrap();
        server.sent_bytes();
        server.events.clear();
    }
    let mut server = self::server();
    for second in 0..100 {
        server.now_ns = second * 1_000_000_000;
        for _ in 0..FloodLimits::default().ping.per_second {
            server.say(FrameKind::Ping, 0, 0, &[0; 8]).unwrap();
        }
        server.sent_bytes();
    }
}

/// A slow reader: what waits for it is bounded, however much the application has to say and however often the peer asks.
#[test]
fn a_peer_that_reads_nothing_is_read_no_more() {
    let mut server = self::server();
    server.connection.drain(0);
    server
        .say(
            FrameKind::Settings,
            0,
            0,
            &setting_bytes(setting::INITIAL_WINDOW_SIZE, 0x7fff_ffff),
        )
        .unwrap();
    server
        .say(FrameKind::WindowUpdate, 0, 0, &0x7000_0000_u32.to_be_bytes())
        .unwrap();
    for stream in (1..200).step_by(2) {
        server.say_request(stream);
        server
            .connection
            .respond(stream, &list(&[(":status", "200")]), StreamEnd::Continues, 0)
            .unwrap();
        server
            .connection
            .send_data(stream, chunk(&[0; 300_000]), StreamEnd::Ends, 0)
            .unwrap();
    }
    server.connection.fill(0);
    assert!(server.connection.output_bytes() < OUTPUT_BYTES_MAX + 20_000);
    // Each request of 1,000 small ones makes an answer of this end's own.
    let (mut answered, late) = (0, request(&[("connection", "close")]));
    let mut taken = Ok(());
    while taken.is_ok() && !server.connection.is_blocked() {
        let block = server.block(&late);
        let stream = 201 + 2 * answered;
        let bytes = frame(FrameKind::Headers, flags::END_HEADERS, stream, &block);
        taken = server.connection.receive(&bytes, 0).map(|_| ());
        answered += 1;
        server.now_ns += 1_000_000_000;
    }
    assert!(server.connection.output_bytes() < OUTPUT_STOPS_INPUT_BYTES + 20_000);
}

/// What stops the input is what the peer does not read of answers; it goes on when that has left.
#[test]
fn a_blocked_connection_goes_on() {
    let mut server = TestEnd::server(Http2Config {
        floods: FloodLimits {
            ping: provost_http2::floods::FloodLimit::new(u32::MAX, 0, 0),
            ..FloodLimits::default()
        },
        ..Http2Config::default()
    });
    let ping = frame(FrameKind::Ping, 0, 0, &[0; 8]);
    let many = ping.repeat(2 * OUTPUT_STOPS_INPUT_BYTES / ping.len());
    let received = server.connection.receive(&many, 0).unwrap();
    assert!(received.consumed < many.len() && received.event.is_none());
    let consumed = received.consumed;
    assert!(server.connection.is_blocked());
    assert!(server.connection.output_bytes() <= OUTPUT_STOPS_INPUT_BYTES + ping.len());
    assert_eq!(
        server.connection.receive(&many[consumed..], 0).unwrap().consumed,
        0
    );
    server.sent_bytes();
    assert!(server.connection.receive(&many[consumed..], 0).unwrap().consumed > 0);
    let limit_ns = Http2Config::default().time_limits.output_ns;
    assert_eq!(
        server.connection.on_time(limit_ns).unwrap_err().code,
        ErrorCode::ENHANCE_YOUR_CALM
    );
}

/// A slow writer of a stream: its queue is bounded, and tells when there is room.
#[test]
fn queues_are_bounded() {
    let mut server = self::server();
    server.say_request(1);
    server
        .connection
        .respond(1, &list(&[(":status", "200")]), StreamEnd::Continues, 0)
        .unwrap();
    let mut accepted = 0;
    let (error, _) = loop {
        match server
            .connection
            .send_data(1, chunk(&[0; 10_000]), StreamEnd::Continues, 0)
        {
            Ok(()) => accepted += 10_000,
            Err(refused) => break refused,
        }
    };
    assert_eq!(error, SendError::QueueFull);
    let bound = Http2Config::default().stream_queue_bytes_max;
    assert!((bound..bound + 10_000).contains(&accepted));
    server.sent_bytes();
    assert_eq!(server.take_events(), []);
    server
        .say(FrameKind::WindowUpdate, 0, 0, &1_000_000_u32.to_be_bytes())
        .unwrap();
    server
        .say(FrameKind::WindowUpdate, 0, 1, &100_000_u32.to_be_bytes())
        .unwrap();
    server.sent_bytes();
    assert_eq!(server.take_events(), [OwnedEvent::Writable(1)]);
    let mut small = self::server();
    small.say_request(1);
    small
        .connection
        .respond(1, &list(&[(":status", "200")]), StreamEnd::Continues, 0)
        .unwrap();
    let chunks = (0..).take_while(|_| {
        small
            .connection
            .send_data(1, chunk(b"x"), StreamEnd::Continues, 0)
            .is_ok()
    });
    assert_eq!(chunks.count(), STREAM_QUEUE_CHUNKS_MAX);
}

/// Streams that never end: by configuration, those that rest are reset; half of one that was answered is, always.
#[test]
fn streams_that_never_end() {
    let mut config = Http2Config::default();
    config.time_limits.stream_idle_ns = 1_000_000;
    let mut server = TestEnd::server(config);
    server.say_request(1);
    server.say_request(3);
    server.now_ns = 800_000;
    server.say(FrameKind::Data, 0, 3, b"alive").unwrap();
    server.events.clear();
    server.connection.on_time(1_100_000).unwrap();
    assert_eq!(server.resets(), [(1, ErrorCode::CANCEL)]);
    assert_eq!(
        server.take_events(),
        [OwnedEvent::Reset(1, ErrorCode::CANCEL, ResetCause::Fault)]
    );

    let mut server = self::server();
    server.say_request(1);
    server
        .connection
        .respond(1, &list(&[(":status", "200")]), StreamEnd::Ends, 0)
        .unwrap();
    let limit_ns = Http2Config::default().time_limits.half_closed_ns;
    server.now_ns = limit_ns - 1;
    server.say(FrameKind::Data, 0, 1, b"this keeps nothing").unwrap();
    server.connection.on_time(limit_ns).unwrap();
    assert_eq!(server.resets(), [(1, ErrorCode::NO_ERROR)]);
}

/// A bomb in a request: a large entry of the table, named again and again. 431, little memory, and the connection goes on, unless the
/// list is without end.
#[test]
fn hpack_bomb() {
    let mut server = self::server();
    let entry = [&b"\x82\x86\x84\x40\x01a\x7f\xa1\x1e"[..], &[b'x'; 4_000]].concat();
    let bomb = |again| [&entry[..], &vec![0xbe; again]].concat();
    let ends = flags::END_HEADERS | flags::END_STREAM;
    server.say(FrameKind::Headers, ends, 1, &bomb(60)).unwrap();
    assert_eq!(
        (server.sent_kinds(), server.take_events()),
        (vec![FrameKind::Headers], vec![])
    );
    server
        .say(FrameKind::Headers, ends, 3, b"\x82\x86\x84\xbe")
        .unwrap();
    let events = server.take_events();
    let OwnedEvent::Head(3, _, fields, _) = &events[0] else {
        panic!("{events:?}")
    };
    assert_eq!(fields[3].1.len(), 4_000, "the tables are in step");
    // So large that to decode it takes time from others: it is not.
    let ended = server
        .say(FrameKind::Headers, ends, 5, &bomb(12_000))
        .unwrap_err();
    assert_eq!(ended.code, ErrorCode::ENHANCE_YOUR_CALM);
}
