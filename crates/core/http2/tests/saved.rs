//! A connection whose ends are replaced at any moment, in the middle of frames too, does exactly what it does without: the same
//! bytes both ways and the same events, byte for byte.

mod kit;

use std::collections::VecDeque;

use kit::{OwnedEvent, TestConnection, TestEnd, chunk, list, owned, request};
use proptest::prelude::*;
use provost_http2::frame::{FrameKind, flags};
use provost_http2::{
    ErrorCode, FieldIndexing, HeadKind, Http2Config, KeepalivePolicy, RestoreFault, SavedConnection,
    StreamEnd,
};
use provost_random::SeededRandom;

/// Moves of a script.
const MOVES: usize = 300;
/// Bytes that one move brings over the wire at most.
const WIRE_BYTES_MAX: u64 = 30_000;
const CLIENT: usize = 0;
const SERVER: usize = 1;

/// Two ends and what is between them.
struct TwoEnds {
    ends: [TestConnection; 2],
    /// Towards the client, towards the server.
    wires: [VecDeque<u8>; 2],
    /// What each end has been given and has not taken.
    inputs: [Vec<u8>; 2],
    /// Bodies that are not released yet: end, stream, bytes.
    held: Vec<(usize, u32, u32)>,
    streams: Vec<u32>,
    now_ns: u64,
    log: Vec<String>,
    script: SeededRandom,
    replacements: Option<SeededRandom>,
}

fn config() -> Http2Config {
    Http2Config {
        streams_max: 8,
        stream_window_bytes: 40_000,
        connection_window_bytes: 90_000,
        stream_queue_bytes_max: 30_000,
        header_list_bytes_max: 3_000,
        keepalive: Some(KeepalivePolicy {
            interval_ns: 50_000_000,
            timeout_ns: 10_000_000_000,
        }),
        ..Http2Config::default()
    }
}

impl TwoEnds {
    fn new(seed: u64, replacements: Option<u64>) -> TwoEnds {
        TwoEnds {
            ends: [
                TestConnection::client(config(), 0),
                TestConnection::server(config(), 0),
            ],
            wires: Default::default(),
            inputs: Default::default(),
            held: Vec::new(),
            streams: Vec::new(),
            now_ns: 0,
            log: Vec::new(),
            script: SeededRandom::new(seed),
            replacements: replacements.map(SeededRandom::new),
        }
    }

    /// Runs the script to its end, and says all that anybody could notice.
    fn run(mut self) -> Vec<String> {
        for _ in 0..MOVES {
            self.make_a_move();
            self.maybe_replace();
        }
        for _ in 0..200 {
            self.carry(CLIENT, usize::MAX);
            self.carry(SERVER, usize::MAX);
            self.release_all();
            self.maybe_replace();
        }
        for end in [CLIENT, SERVER] {
            self.log
                .push(format!("{end} has {} streams", self.ends[end].open_streams()));
        }
        self.log
    }

    fn maybe_replace(&mut self) {
        let Some(random) = &mut self.replacements else {
            return;
        };
        for end in &mut self.ends {
            if random.one_in(3) {
                let bytes = end.save().to_bytes();
                let state = SavedConnection::from_bytes(&bytes).expect("a state is read");
                *end = TestConnection::restore(state, config()).expect("a state is accepted");
                assert_eq!(end.save().to_bytes(), bytes, "a connection is saved as another");
            }
        }
    }

    fn make_a_move(&mut self) {
        match self.script.below(20) {
            0..=2 => self.open(),
            3 | 4 => self.respond(),
            5..=8 => self.send(),
            9 => self.trailers(),
            10 => self.reset(),
            11 => self.pass_time(),
            12 => self.release_all(),
            13 if self.script.one_in(20) => self.ends[SERVER].drain(self.now_ns),
            13 => self.change_settings(),
            14 => {
                let end = self.script.index(2);
                let payload = self.script.number();
                let pinged = self.ends[end].ping(payload, self.now_ns);
                self.note(format_args!("{end} pings {pinged:?}"));
            }
            _ => {
                let bytes = match self.script.below(3) {
                    0 => self.script.between(1, 20),
                    _ => self.script.between(1, WIRE_BYTES_MAX),
                };
                let end = self.script.index(2);
                self.carry(end, bytes as usize);
            }
        }
    }

    fn note(&mut self, what: std::fmt::Arguments<'_>) {
        self.log.push(what.to_string());
    }

    fn any_stream(&mut self) -> u32 {
        let recent = self.streams.len().saturating_sub(6);
        match self.streams[recent..] {
            [] => 1,
            ref streams => *self.script.pick(streams),
        }
    }

    fn any_end(&mut self) -> StreamEnd {
        match self.script.below(3) {
            0 => StreamEnd::Ends,
            _ => StreamEnd::Continues,
        }
    }

    fn open(&mut self) {
        let value = self.any_text();
        let end = self.any_end();
        let mut head = request(&[("x-value", &value)]);
        head.push_field(b"authorization", b"secret", FieldIndexing::Never);
        let opened = self.ends[CLIENT].open(&head, end, self.now_ns);
        self.note(format_args!("open {opened:?}"));
        self.streams.extend(opened.ok());
    }

    fn any_text(&mut self) -> String {
        let length = match self.script.below(20) {
            0 => 4_000,
            1 => 1_500,
            _ => 10,
        };
        let letter = |random: &mut SeededRandom| char::from(b'a' + random.below(3) as u8);
        (0..self.script.below(length))
            .map(|_| letter(&mut self.script))
            .collect()
    }

    fn respond(&mut self) {
        let (stream, value, end) = (self.any_stream(), self.any_text(), self.any_end());
        let (status, end) = match self.script.below(5) {
            0 => ("103", StreamEnd::Continues),
            _ => ("200", end),
        };
        let head = list(&[(":status", status), ("x-value", &value)]);
        let responded = self.ends[SERVER].respond(stream, &head, end, self.now_ns);
        self.note(format_args!("respond {stream} {responded:?}"));
    }

    fn send(&mut self) {
        let (end, stream, last) = (self.script.index(2), self.any_stream(), self.any_end());
        let bytes = match self.script.below(3) {
            0 => self.script.below(40),
            1 => self.script.below(3_000),
            _ => self.script.below(60_000),
        };
        let body = self.script.bytes(bytes as usize);
        let sent = self.ends[end].send_data(stream, chunk(&body), last, self.now_ns);
        let sent = sent.map_err(|(error, _)| error);
        self.note(format_args!("{end} sends {bytes} on {stream} {sent:?}"));
    }

    fn trailers(&mut self) {
        let (end, stream) = (self.script.index(2), self.any_stream());
        let sent = self.ends[end].send_trailers(stream, list(&[("grpc-status", "0")]), self.now_ns);
        self.note(format_args!("{end} trails {stream} {sent:?}"));
    }

    fn reset(&mut self) {
        let (end, stream) = (self.script.index(2), self.any_stream());
        let reset = self.ends[end].reset(stream, ErrorCode::CANCEL, self.now_ns);
        self.note(format_args!("{end} resets {stream} {reset:?}"));
    }

    fn pass_time(&mut self) {
        self.now_ns += self.script.below(100_000_000);
        for end in [CLIENT, SERVER] {
            let due = self.ends[end].next_timeout();
            let done = self.ends[end].on_time(self.now_ns);
            let line = format!("{end} at {} due {due:?} {}", self.now_ns, done.is_ok());
            self.log.push(line);
        }
    }

    fn change_settings(&mut self) {
        let end = self.script.index(2);
        let changed = Http2Config {
            stream_window_bytes: self.script.between(1_000, 60_000) as u32,
            header_table_bytes: self.script.below(6_000) as u32,
            ..config()
        };
        let changed = self.ends[end].change_settings(&changed, self.now_ns);
        self.note(format_args!("{end} changes settings {changed:?}"));
    }

    fn release_all(&mut self) {
        for (end, stream, bytes) in std::mem::take(&mut self.held) {
            self.ends[end].release(stream, bytes);
        }
    }

    /// Brings bytes to an end, from the other one.
    fn carry(&mut self, to: usize, bytes: usize) {
        let from = 1 - to;
        self.ends[from].fill(self.now_ns);
        let out = self.ends[from].copied_output();
        let sent = out.len().min(bytes);
        self.ends[from].advance(sent, self.now_ns);
        self.wires[to].extend(&out[..sent]);
        self.note(format_args!("{from} sent {:x}", hash(&out[..sent])));
        let arrived = self.wires[to].len().min(bytes);
        let arrived: Vec<u8> = self.wires[to].drain(..arrived).collect();
        self.inputs[to].extend(arrived);
        self.take(to);
    }

    fn take(&mut self, end: usize) {
        let input = std::mem::take(&mut self.inputs[end]);
        let mut rest = &input[..];
        loop {
            // In pieces, so that a frame is cut between two calls too.
            let piece = &rest[..rest.len().min(5_000)];
            let received = match self.ends[end].receive(piece, self.now_ns) {
                Ok(received) => received,
                Err(error) => {
                    self.log.push(format!("{end} fails {:?}", error.code));
                    return;
                }
            };
            let is_at_rest = received.consumed == 0 && received.event.is_none();
            rest = &rest[received.consumed..];
            if let Some(event) = received.event.map(|event| owned(&event)) {
                if let OwnedEvent::Data(stream, data, _) = &event {
                    self.held.push((end, *stream, data.len() as u32));
                }
                self.log.push(format!(
                    "{end} {:x}: {:.120}",
                    hash(format!("{event:?}").as_bytes()),
                    format!("{event:?}")
                ));
            }
            self.maybe_replace();
            if is_at_rest {
                break;
            }
        }
        self.inputs[end] = rest.to_vec();
    }
}

fn hash(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(bytes.len() as u64 ^ 0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases.div_ceil(4),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn replaced_ends_do_what_they_would_have_done(seed in any::<u64>(), replacements in any::<u64>()) {
        let without = TwoEnds::new(seed, None).run();
        let with = TwoEnds::new(seed, Some(replacements)).run();
        prop_assert_eq!(without, with);
    }

    /// A state whose bytes were changed is refused, or makes a connection that does not panic.
    #[test]
    fn damaged_states_do_no_harm(seed in any::<u64>(), place in any::<prop::sample::Index>(), bit in 0_u32..8) {
        let mut world = TwoEnds::new(seed, None);
        for _ in 0..60 {
            world.make_a_move();
        }
        for end in &world.ends {
            let mut bytes = end.save().to_bytes();
            let place = place.index(bytes.len());
            bytes[place] ^= 1_u8 << bit;
            provost_http2::fuzzing::saved(&bytes);
        }
    }
}

/// Windows that new settings open are told in the order of the streams, wherever the streams are kept.
#[test]
fn windows_of_new_settings_are_told_in_one_order() {
    let seed = 5_870_439_747_296_719_064;
    let without = TwoEnds::new(seed, None).run();
    for replacements in 0..40 {
        assert_eq!(TwoEnds::new(seed, Some(replacements)).run(), without);
    }
}

/// The scripts of the property do what they are meant to: calls complete, and heads, bodies, trailers and resets come.
#[test]
fn scripts_reach_everything() {
    let log: Vec<String> = (0..90).flat_map(|seed| TwoEnds::new(seed, None).run()).collect();
    let parts = [
        "Request",
        "Interim",
        "Response",
        "Trailers",
        "Data(",
        "Reset(",
        "Writable",
        "Pong",
        "PeerSettings",
        "GoAway",
    ];
    for part in parts {
        let count = log.iter().filter(|line| line.contains(part)).count();
        assert!(count > 10, "{part}: {count}");
    }
    let fails = log.iter().filter(|line| line.contains("fails")).count();
    assert!(fails < 10, "{fails}");
}

/// In the middle of everything: a header, a payload in part, a block without its end, padding, output that is half sent.
#[test]
fn a_conversation_is_cut_at_every_byte() {
    let mut peer = TestEnd::client(config());
    let opened = peer
        .connection
        .open(&request(&[("x-a", "b")]), StreamEnd::Continues, 0)
        .unwrap();
    peer.connection
        .send_data(opened, chunk(b"a body"), StreamEnd::Ends, 0)
        .unwrap();
    let mut talk = peer.sent_bytes();
    let mut blocks = TestEnd::client(config());
    let block = blocks.block(&request(&[("x-c", "d")]));
    talk.extend(kit::frame(FrameKind::Headers, 0, 3, &block[..3]));
    talk.extend(kit::frame(
        FrameKind::Continuation,
        flags::END_HEADERS,
        3,
        &block[3..],
    ));
    talk.extend(kit::frame(
        FrameKind::Data,
        flags::PADDED | flags::END_STREAM,
        3,
        b"\x05padded\0\0\0\0\0",
    ));
    talk.extend(kit::frame(FrameKind::Unknown(0x99), 0, 3, b"unknown"));
    talk.extend(kit::frame(FrameKind::Ping, 0, 0, b"12345678"));
    let whole = |cuts: Option<usize>| {
        let mut server = TestEnd::server(config());
        for byte in 0..talk.len() {
            if cuts.is_some_and(|cut| byte % cut == 0) {
                server.replace(config());
            }
            server.take(&talk[byte..=byte]).unwrap();
        }
        let bytes = server.sent_bytes();
        (server.events, bytes)
    };
    let expected = whole(None);
    let heads = expected
        .0
        .iter()
        .filter(|event| matches!(event, OwnedEvent::Head(_, HeadKind::Request, ..)));
    assert_eq!(heads.count(), 2);
    for cut in 1..7 {
        assert_eq!(whole(Some(cut)), expected);
    }
}

/// A state of another version, and one that is cut or too long.
#[test]
fn states_that_cannot_be_read() {
    let bytes = TestConnection::client(config(), 0).save().to_bytes();
    let newer = [&[2, 0, 0, 0], &bytes[4..]].concat();
    assert_eq!(SavedConnection::from_bytes(&newer), Err(RestoreFault::Version(2)));
    let longer = [&bytes[..], &[0]].concat();
    assert_eq!(SavedConnection::from_bytes(&longer), Err(RestoreFault::Bytes));
    for end in 0..bytes.len() {
        assert!(SavedConnection::from_bytes(&bytes[..end]).is_err());
    }
}
