//! What a peer can do wrong is named; what befalls one call stays with that call.

mod kit;

use kit::{Peer, Setup, frame, step};
use provost_conformance::fixtures::{FromFixture, ToFixture};
use provost_conformance::{BIDI, Content, UNARY, content};
use provost_datapath::{FieldReader, FieldWriter, Step};
use provost_session::handshake::{Encoding, Limits};
use provost_session::{Connection, ProtocolError, Role};
use provost_wire::Code;
use provost_wire::descriptor::Parts;
use provost_wire::frame::{FrameHeader, frame_kind};
use provost_wire::limits::{CHUNK_BYTES_MAX, STREAM_WINDOW_BYTES};

const REQUEST: Parts = Parts(Parts::BEGIN.0 | Parts::MESSAGE.0 | Parts::END.0);

type Frame = (FrameHeader, Vec<u8>);

fn with(mut frame: Frame, change: impl Fn(&mut FrameHeader)) -> Frame {
    change(&mut frame.0);
    frame
}

fn chunk(call: u64, bytes: usize) -> Frame {
    let header = FrameHeader {
        body_bytes: (bytes as u32).into(),
        kind: frame_kind::CHUNK,
        call: call.into(),
        ..FrameHeader::default()
    };
    (header, vec![0; bytes])
}

fn window(call: u64, bytes: u32) -> Frame {
    with(step(call, Parts::WINDOW, b""), |header| {
        header.status_or_window = bytes.into()
    })
}

fn begin(call: u64, method: u16) -> Frame {
    with(step(call, Parts::BEGIN, b""), |header| {
        header.method = method.into()
    })
}

/// The error that a server finds in these frames.
fn error(frames: &[Frame]) -> ProtocolError {
    let mut server = Peer::new(Role::Server, Setup::default());
    let bytes: Vec<u8> = frames.iter().flat_map(frame).collect();
    server.input(&bytes).expect_err("the frames are wrong")
}

#[test]
fn headers_that_contradict_themselves() {
    let good = || step(1, REQUEST, b"12345678");
    let wrong: [(&str, Frame); 12] = [
        (
            "compression",
            with(good(), |header| header.compression = 1.into()),
        ),
        (
            "status or window",
            with(good(), |header| header.status_or_window = 1.into()),
        ),
        ("fit", with(good(), |header| header.message_bytes = 7.into())),
        ("fit", with(good(), |header| header.metadata_bytes = 9.into())),
        (
            "metadata is too long",
            with(good(), |header| header.metadata_bytes = (1 << 20).into()),
        ),
        ("292", with(good(), |header| header.timeout_ns = u64::MAX.into())),
        ("no bytes", step(1, REQUEST, b"")),
        ("carries none", with(step(1, Parts::BEGIN, b"1"), |_| ())),
        (
            "without BEGIN",
            with(step(1, Parts::MESSAGE, b"1"), |header| header.method = 1.into()),
        ),
        (
            "not zero",
            with(chunk(1, 8), |header| header.parts = Parts::MESSAGE),
        ),
        (
            "not zero",
            with(chunk(0, 0), |header| {
                (header.kind, header.body_bytes) = (frame_kind::PING, 1.into())
            }),
        ),
        ("fit", with(good(), |header| header.body_bytes = (1 << 30).into())),
    ];
    for (what, frame) in wrong {
        let found = error(&[frame]);
        assert!(matches!(found, ProtocolError::Header { .. }), "{found:?}");
        assert!(found.to_string().contains(what), "{found} should say {what}");
    }
}

#[test]
fn frames_out_of_turn() {
    let unary = || step(1, REQUEST, b"12345678");
    let long = with(step(1, REQUEST, b""), |header| {
        header.message_bytes = 100_000.into()
    });
    assert!(matches!(
        error(&[with(unary(), |header| header.kind = 99)]),
        ProtocolError::Kind { kind: 99 }
    ));
    assert!(matches!(
        error(&[with(unary(), |header| header.kind = frame_kind::HELLO)]),
        ProtocolError::Kind { .. }
    ));
    assert!(matches!(
        error(&[step(7, Parts::MESSAGE, b"1")]),
        ProtocolError::UnknownCall { call: 7 }
    ));
    assert!(matches!(
        error(&[step(0, REQUEST, b"1")]),
        ProtocolError::CallOrder { call: 0, .. }
    ));
    assert!(matches!(
        error(&[unary(), unary()]),
        ProtocolError::CallOrder { call: 1, highest: 1 }
    ));
    assert!(matches!(
        error(&[begin(1, 4)]),
        ProtocolError::Method {
            call: 1,
            method: 4,
            methods: 4
        }
    ));
    assert!(matches!(
        error(&[unary(), chunk(1, 8)]),
        ProtocolError::Chunk { .. }
    ));
    assert!(matches!(
        error(&[long.clone(), chunk(1, 65_536), chunk(1, 65_536)]),
        ProtocolError::Chunk { .. }
    ));
    assert!(matches!(
        error(&[long.clone(), chunk(1, CHUNK_BYTES_MAX as usize + 1)]),
        ProtocolError::Chunk { .. }
    ));
    assert!(matches!(
        error(&[long, step(1, Parts::END, b"")]),
        ProtocolError::Parts { .. }
    ));
    assert!(matches!(
        error(&[unary(), step(1, Parts::MESSAGE, b"1")]),
        ProtocolError::Parts { .. }
    ));
    assert!(matches!(
        error(&[step(1, Parts::STATUS, b"")]),
        ProtocolError::UnknownCall { .. }
    ));
    let reset = with(step(1, Parts::BEGIN | Parts::CANCEL, b""), |_| ());
    assert!(matches!(error(&[reset]), ProtocolError::Parts { .. }));
    let huge = with(step(1, REQUEST, b""), |header| {
        header.message_bytes = u32::MAX.into()
    });
    assert!(matches!(error(&[huge]), ProtocolError::MessageTooLong { .. }));
}

#[test]
fn windows_that_were_not_heeded_or_not_taken() {
    assert!(matches!(
        error(&[begin(1, UNARY), window(1, 5)]),
        ProtocolError::Window { .. }
    ));
    assert!(matches!(
        error(&[begin(1, BIDI), window(1, 5)]),
        ProtocolError::Window { .. }
    ));
    assert!(matches!(
        error(&[begin(1, BIDI), window(1, 0)]),
        ProtocolError::Window { .. }
    ));
    let message = step(1, Parts::MESSAGE, &vec![1; CHUNK_BYTES_MAX as usize]);
    let count = STREAM_WINDOW_BYTES / CHUNK_BYTES_MAX;
    let mut frames = vec![begin(1, BIDI)];
    frames.extend((0..count).map(|_| message.clone()));
    let mut server = Peer::new(Role::Server, Setup::default());
    let bytes: Vec<u8> = frames.iter().flat_map(frame).collect();
    assert_eq!(
        server.input(&bytes),
        Ok(()),
        "a window may be overdrawn by one message"
    );
    let found = server.input(&frame(&message)).expect_err("the window is used up");
    assert!(
        matches!(found, ProtocolError::Window { window_bytes, .. } if window_bytes <= 0),
        "{found:?}"
    );
    server.steps();
}

#[test]
fn metadata_that_is_malformed() {
    let bytes = b"\x01\x00\x01\x00\x00\x00Kv".to_vec();
    let head = |header: &mut FrameHeader| {
        header.metadata_bytes = 8.into();
        header.body_bytes = 8.into();
    };
    let bad_key = with((step(1, Parts::BEGIN, b"").0, bytes), head);
    assert!(matches!(
        error(&[bad_key]),
        ProtocolError::Metadata { call: 1, .. }
    ));
    let mut padded = with(
        (
            step(1, Parts::BEGIN, b"").0,
            b"\x01\x00\x00\x00\x00\x00k!".to_vec(),
        ),
        head,
    );
    padded.0.metadata_bytes = 7.into();
    assert!(error(&[padded]).to_string().contains("padding"));
}

#[test]
fn a_server_over_its_limit_of_calls_refuses_the_call_alone() {
    let limits = Limits {
        calls_in_flight_max: 2,
        ..Limits::default()
    };
    let mut server = Peer::new(
        Role::Server,
        Setup {
            limits,
            ..Setup::default()
        },
    );
    let bytes: Vec<u8> = (1..=3)
        .flat_map(|call| frame(&step(call, REQUEST, b"12345678")))
        .collect();
    server.input(&bytes).unwrap();
    assert_eq!(
        server.steps().iter().map(|step| step.call).collect::<Vec<_>>(),
        [1, 2]
    );
    let mut client = Peer::new(Role::Client, Setup::default());
    for call in [10, 11, 12] {
        client.send(
            Step {
                method: UNARY,
                ..Step::new(call, REQUEST)
            },
            &content(1, 8),
            0,
        );
    }
    // The same three calls as a client numbers them.
    let mut server = Peer::new(
        Role::Server,
        Setup {
            limits,
            ..Setup::default()
        },
    );
    server.input(&client.output()).unwrap();
    server.steps();
    client.input(&server.output()).unwrap();
    let got = client.steps();
    assert_eq!(got.len(), 1);
    assert_eq!(
        (got[0].call, got[0].parts, got[0].status),
        (12, Parts::CANCEL, Code::ResourceExhausted)
    );
}

#[test]
fn a_client_keeps_within_the_servers_limit_of_calls() {
    let limits = Limits {
        calls_in_flight_max: 2,
        ..Limits::default()
    };
    let mut client = Peer::new(
        Role::Client,
        Setup {
            limits,
            ..Setup::default()
        },
    );
    for call in 1..=3 {
        client.send(Step::new(call, REQUEST), &content(1, 8), call);
    }
    let got = client.steps();
    assert_eq!(
        got.iter()
            .map(|step| (step.call, step.status))
            .collect::<Vec<_>>(),
        [(3, Code::ResourceExhausted)]
    );
    assert_eq!(client.sent, [3], "what was not taken is given back at once");
}

#[test]
fn what_comes_for_a_call_that_has_ended_is_skipped() {
    let mut server = Peer::new(Role::Server, Setup::default());
    let long = with(step(1, Parts::BEGIN | Parts::MESSAGE, b""), |header| {
        header.message_bytes = 100_000.into();
        header.method = BIDI.into();
    });
    server.input(&frame(&long)).unwrap();
    server
        .input(&frame(&with(step(1, Parts::CANCEL, b""), |header| {
            header.status_or_window = 1.into()
        })))
        .unwrap();
    assert_eq!(
        server.steps(),
        [],
        "an app that never heard of a call is not told of its end"
    );
    server.input(&frame(&chunk(1, 65_536))).unwrap();
    server.input(&frame(&window(1, 5))).unwrap();
    server.input(&frame(&step(2, REQUEST, b"12345678"))).unwrap();
    assert_eq!(server.steps().len(), 1);
    assert_eq!(server.heap.live_blocks(), 0);
}

#[test]
fn a_silent_peer_is_asked_and_then_taken_for_gone() {
    let setup = Setup {
        keepalive_ns: 1_000,
        ..Setup::default()
    };
    let (mut client, mut server) = (Peer::new(Role::Client, setup), Peer::new(Role::Server, setup));
    assert_eq!(client.connection.wake_at(), Some(1_000));
    client.connection.tick(999).unwrap();
    assert_eq!(client.output(), b"");
    client.connection.tick(1_000).unwrap();
    let ping = client.output();
    assert_eq!(
        ping,
        frame(&with(chunk(0, 0), |header| header.kind = frame_kind::PING))
    );
    server.input(&ping).unwrap();
    client.now = 1_500;
    client.input(&server.output()).unwrap();
    client.connection.tick(2_400).unwrap();
    client.connection.tick(2_500).unwrap();
    client.output();
    assert!(client.connection.tick(3_500).is_err());
}

#[test]
fn an_empty_protobuf_message_is_a_message() {
    let setup = Setup {
        encoding: Encoding::Protobuf,
        ..Setup::default()
    };
    let (mut client, mut server) = (Peer::new(Role::Client, setup), Peer::new(Role::Server, setup));
    client.send(
        Step {
            method: UNARY,
            ..Step::new(1, REQUEST)
        },
        &Content::default(),
        0,
    );
    server.input(&client.output()).unwrap();
    let got = server.steps();
    assert_eq!((got.len(), got[0].parts, got[0].message.len()), (1, REQUEST, 0));
}

#[test]
fn the_end_of_a_connection_ends_each_call_once() {
    let (mut client, mut server) = (
        Peer::new(Role::Client, Setup::default()),
        Peer::new(Role::Server, Setup::default()),
    );
    for call in 1..=3 {
        client.send(
            Step {
                method: BIDI,
                ..Step::new(call, Parts::BEGIN)
            },
            &Content::default(),
            0,
        );
    }
    server.input(&client.output()).unwrap();
    let begun: Vec<u64> = server.steps().iter().map(|step| step.call).collect();
    client.end(Code::Unavailable, "cut");
    server.end(Code::Unavailable, "cut");
    let ends = client.steps();
    assert!(
        ends.iter()
            .all(|step| step.status == Code::Unavailable && !step.metadata.is_empty())
    );
    assert_eq!(ends.iter().map(|step| step.call).collect::<Vec<_>>(), [1, 2, 3]);
    let ends = server.steps();
    assert!(
        ends.iter()
            .all(|step| (step.parts, step.status) == (Parts::CANCEL, Code::Cancelled))
    );
    assert_eq!(ends.iter().map(|step| step.call).collect::<Vec<_>>(), begun);
    client.send(
        Step {
            method: BIDI,
            ..Step::new(9, Parts::BEGIN)
        },
        &Content::default(),
        0,
    );
    assert_eq!(
        client
            .steps()
            .iter()
            .map(|step| (step.call, step.status))
            .collect::<Vec<_>>(),
        [(9, Code::Unavailable)]
    );
}

#[test]
fn a_peer_that_made_a_mistake_is_told_which() {
    let (mut client, mut server) = (
        Peer::new(Role::Client, Setup::default()),
        Peer::new(Role::Server, Setup::default()),
    );
    client.send(
        Step {
            method: BIDI,
            ..Step::new(1, Parts::BEGIN)
        },
        &Content::default(),
        0,
    );
    server.input(&client.output()).unwrap();
    let error = server
        .input(&frame(&step(99_000_000, Parts::MESSAGE, b"1")))
        .unwrap_err();
    let mut context = provost_datapath::Context {
        socket: provost_datapath::SocketHint::Try,
        flow: provost_datapath::FlowHints::default(),
        now: 1,
        buffers: &mut server.buffers,
        receive: &mut server.heap,
        sent: &mut server.sent,
    };
    server
        .connection
        .end_with_notice(Code::Internal, &error.to_string(), &mut context);
    let found = client.input(&server.output()).unwrap_err();
    assert!(
        matches!(&found, ProtocolError::PeerClosed { reason } if reason.contains("99000000")),
        "{found:?}"
    );
}

#[test]
fn an_end_that_has_come_takes_no_call_and_hides_none() {
    const REASON: &str = "it is over";
    let mut server = Peer::new(Role::Server, Setup::default());
    server.input(&frame(&begin(1, BIDI))).unwrap();
    server.end(Code::Unavailable, REASON);
    server.input(&frame(&begin(2, BIDI))).unwrap();
    assert_eq!(server.connection.calls_in_flight(), 1);

    let mut saved = FieldWriter::new();
    server.connection.save(&mut ToFixture, &mut saved);
    let restored = |bytes: &[u8]| {
        let restored = Connection::restore(&mut FieldReader::new("test", bytes), &mut FromFixture::default());
        restored.map(|connection| connection.calls_in_flight())
    };
    assert_eq!(restored(&saved.bytes), Ok(1));
    // As if the app knew already of the end of the call in the first slot.
    let mut texts = saved.bytes.windows(REASON.len());
    let told = texts.position(|bytes| bytes == REASON.as_bytes()).unwrap() + REASON.len();
    saved.bytes[told] = 1;
    assert!(restored(&saved.bytes).is_err());
}
