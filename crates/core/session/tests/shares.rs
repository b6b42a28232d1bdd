//! What a peer can make an end hold for messages that do not come, and an app for streams whose windows it does not heed.

mod kit;

use std::sync::Arc;

use kit::{Peer, Setup, frame, step};
use proptest::prelude::*;
use provost_conformance::{BIDI, Content, UNARY, content, content_bytes};
use provost_datapath::{
    ConnectionSignals, FlowHints, PrivateBytes, ReceiveHeap, Step, Successor, message_offset,
};
use provost_session::Role;
use provost_session::handshake::{Encoding, Limits};
use provost_wire::Code;
use provost_wire::descriptor::Parts;
use provost_wire::frame::{FrameHeader, frame_kind};
use provost_wire::limits::{CHUNK_BYTES_MAX, MESSAGE_BYTES_MAX};

const REQUEST: Parts = Parts(Parts::BEGIN.0 | Parts::MESSAGE.0 | Parts::END.0);
/// Longer than any message may take that is alone on its connection.
const LONG_NS: u64 = 3_600_000_000_000;

/// The header of a request of so many bytes, of which none come with it.
fn announced(call: u64, message_bytes: u32) -> Vec<u8> {
    begun(call, message_bytes, b"")
}

/// The first frame of a request of so many bytes.
fn begun(call: u64, message_bytes: u32, first: &[u8]) -> Vec<u8> {
    let (mut header, body) = step(call, REQUEST, first);
    header.method = UNARY.into();
    header.message_bytes = message_bytes.into();
    frame(&(header, body))
}

fn chunk(call: u64, bytes: &[u8]) -> Vec<u8> {
    let header = FrameHeader {
        body_bytes: (bytes.len() as u32).into(),
        kind: frame_kind::CHUNK,
        call: call.into(),
        ..FrameHeader::default()
    };
    frame(&(header, bytes.to_vec()))
}

#[test]
fn announced_messages_take_memory_as_they_come() {
    let mut server = Peer::new(Role::Server, Setup::default());
    server.heap.bytes_max = 4 << 20;
    for call in 1..=2 {
        server.input(&announced(call, MESSAGE_BYTES_MAX)).unwrap();
    }
    assert!(server.steps().is_empty(), "nothing has come whole");
    assert!(server.output().is_empty(), "nothing has failed for want of room");
    // An honest one still finds room, and is put together from its pieces.
    let message: Vec<u8> = (0..1_000_000_u32).map(|at| (at / 7) as u8).collect();
    let mut honest = Peer::new(Role::Server, Setup::default());
    honest.heap.bytes_max = 4 << 20;
    honest.input(&announced(1, 1_000_000)).unwrap();
    for piece in message.chunks(CHUNK_BYTES_MAX as usize) {
        // What comes in does so straight or by copies, in pieces of any length.
        let (head, rest) = piece.split_at(piece.len() / 3);
        let bytes = chunk(1, piece);
        honest.input(&bytes[..bytes.len() - piece.len()]).unwrap();
        honest.input(head).unwrap();
        let mut rest = rest;
        while !rest.is_empty() {
            let taken = honest.input_direct(rest).unwrap();
            if taken == 0 {
                honest.input(rest).unwrap();
                break;
            }
            rest = &rest[taken..];
        }
    }
    let steps = honest.steps();
    assert_eq!(steps.len(), 1);
    assert!(
        steps[0].message == message,
        "the message came otherwise than it was sent"
    );
    assert_eq!(honest.heap.live_blocks(), 0);
}

/// A server's ends of connections, whose app has one receive heap.
struct Connections {
    peers: Vec<Peer>,
}

impl Connections {
    const HEAP_BYTES: u64 = 8 << 20;
    const LARGEST_BYTES: u32 = 2 << 20;

    fn open(count: usize, encoding: Encoding) -> Connections {
        let limits = Limits {
            message_bytes_max: Connections::LARGEST_BYTES,
            ..Limits::default()
        };
        let setup = Setup {
            encoding,
            limits,
            ..Setup::default()
        };
        let mut peers: Vec<Peer> = (0..count).map(|_| Peer::new(Role::Server, setup)).collect();
        peers[0].heap.bytes_max = Connections::HEAP_BYTES;
        Connections { peers }
    }

    /// Has some of them count as the connections of one peer.
    fn are_of_one_peer(&mut self, which: std::ops::Range<usize>) -> Arc<PrivateBytes> {
        let share = PrivateBytes::of_peer();
        for peer in &mut self.peers[which] {
            let signals = ConnectionSignals::new().with_peer_share(Some(Arc::clone(&share)));
            peer.connection.apply_signals(&signals, FlowHints::default());
        }
        share
    }

    /// Lets something happen at one of them, with the heap of all.
    fn at<R>(&mut self, which: usize, happens: impl FnOnce(&mut Peer) -> R) -> R {
        let heap = std::mem::take(&mut self.peers[0].heap);
        self.peers[which].heap = heap;
        let result = happens(&mut self.peers[which]);
        let heap = std::mem::take(&mut self.peers[which].heap);
        self.peers[0].heap = heap;
        result
    }

    /// Announces messages of every length, from the largest to a kibibyte, and brings nearly all of each, as far as there is room.
    fn bring_nearly_all(&mut self, which: usize) {
        self.at(which, |peer| {
            let lengths = (0..12).map(|halved| Connections::LARGEST_BYTES >> halved);
            for (call, bytes) in (1..).zip(lengths) {
                if bytes <= CHUNK_BYTES_MAX {
                    peer.input(&begun(call, bytes, &vec![7; bytes as usize - 1]))
                        .unwrap();
                    continue;
                }
                peer.input(&announced(call, bytes)).unwrap();
                for _ in 1..bytes / CHUNK_BYTES_MAX {
                    peer.input(&chunk(call, &[7; CHUNK_BYTES_MAX as usize])).unwrap();
                }
            }
        });
    }

    fn pass_time(&mut self, passed_ns: u64) {
        for which in 0..self.peers.len() {
            self.at(which, |peer| {
                peer.now += passed_ns;
                peer.expire_arrivals();
            });
        }
    }

    /// Whether a message of so many bytes comes in, in chunks.
    fn serves(&mut self, which: usize, call: u64, bytes: u32) -> bool {
        self.at(which, |peer| {
            peer.input(&announced(call, bytes)).unwrap();
            for piece in vec![7; bytes as usize].chunks(CHUNK_BYTES_MAX as usize) {
                peer.input(&chunk(call, piece)).unwrap();
            }
            peer.steps().len() == 1
        })
    }
}

#[test]
fn connections_that_send_nearly_all_leave_room_for_others() {
    for encoding in [Encoding::Native, Encoding::Protobuf] {
        let mut connections = Connections::open(8, encoding);
        for which in 0..2 {
            connections.bring_nearly_all(which);
        }
        assert!(connections.serves(2, 1, 512 << 10), "{encoding:?}");
        // However many there are, what comes in one piece has room.
        for which in 3..7 {
            connections.bring_nearly_all(which);
        }
        let whole = [7; CHUNK_BYTES_MAX as usize];
        let steps = connections.at(7, |peer| {
            peer.input(&frame(&step(1, REQUEST, &whole))).unwrap();
            peer.steps()
        });
        assert_eq!(steps.len(), 1, "{encoding:?}");
        // Those who stop and hold much are ended before long, and those who hold little in time.
        connections.pass_time(31_000_000_000);
        connections.pass_time(31_000_000_000);
        assert!(
            connections.serves(7, 2, Connections::LARGEST_BYTES),
            "{encoding:?}"
        );
        connections.pass_time(LONG_NS);
        assert_eq!(connections.peers[0].heap.live_blocks(), 0, "{encoding:?}");
        assert_eq!(connections.peers[0].heap.private_bytes(), 0, "{encoding:?}");
    }
}

#[test]
fn who_has_brought_a_message_has_room_for_the_next_when_it_is_announced() {
    const BYTES: u32 = 1 << 20;
    let mut connections = Connections::open(1, Encoding::Native);
    let announce = |connections: &mut Connections, call| {
        connections.at(0, |peer| {
            let before = peer.heap.room_in_part();
            peer.input(&announced(call, BYTES)).unwrap();
            before - peer.heap.room_in_part()
        })
    };
    let unproven = announce(&mut connections, 1);
    assert!(unproven < u64::from(CHUNK_BYTES_MAX), "{unproven}");
    connections.at(0, |peer| {
        for piece in vec![7; BYTES as usize].chunks(CHUNK_BYTES_MAX as usize) {
            peer.input(&chunk(1, piece)).unwrap();
        }
        assert_eq!(peer.steps().len(), 1);
    });
    let proven = announce(&mut connections, 2);
    assert!(proven >= u64::from(BYTES), "{proven}");
    // As much at once, and no more.
    let beyond = announce(&mut connections, 3);
    assert!(beyond < u64::from(CHUNK_BYTES_MAX), "{beyond}");
    // Who then stops is believed no more.
    connections.pass_time(LONG_NS);
    connections.pass_time(LONG_NS);
    let stopped = announce(&mut connections, 4);
    assert!(stopped < u64::from(CHUNK_BYTES_MAX), "{stopped}");
}

/// Bytes of an app's room that one peer leaves to all others, whatever it sends.
const LEFT_BY_ONE_PEER: u64 = Connections::HEAP_BYTES / 8 * 7 / 3;

#[test]
fn however_many_connections_a_peer_has_it_takes_one_share() {
    for encoding in [Encoding::Native, Encoding::Protobuf] {
        for count in [1, 3, 12] {
            let mut connections = Connections::open(count + 1, encoding);
            let share = connections.are_of_one_peer(0..count);
            for which in 0..count {
                connections.bring_nearly_all(which);
            }
            let left = connections.at(0, |peer| peer.heap.room_in_part());
            let text = format!(
                "{encoding:?}, {count} connections hold {}, {left} left",
                share.held()
            );
            assert!(left >= LEFT_BY_ONE_PEER - (64 << 10), "{text}");
            assert!(count < 3 || share.held() > 3 << 20, "{text}");
            // Another peer has room for a message that comes in part.
            assert!(connections.serves(count, 1, 1 << 20), "{text}");
            // What its connections hold is given back, also by those that are gone.
            connections.peers.drain(1..count).for_each(drop);
            connections.pass_time(LONG_NS);
            assert_eq!(share.held(), 0, "{text}");
        }
    }
}

#[test]
fn frames_that_stop_in_their_midst_take_one_share_too() {
    const COUNT: usize = 200;
    for encoding in [Encoding::Native, Encoding::Protobuf] {
        let mut connections = Connections::open(COUNT + 1, encoding);
        let share = connections.are_of_one_peer(0..COUNT);
        let whole = begun(1, CHUNK_BYTES_MAX, &[7; CHUNK_BYTES_MAX as usize]);
        let (torn, rest) = whole.split_at(100);
        for which in 0..COUNT {
            connections.at(which, |peer| peer.input(torn).unwrap());
        }
        let left = connections.at(0, |peer| peer.heap.room_in_part());
        let text = format!("{encoding:?}, {} held, {left} left", share.held());
        assert!(share.held() > 4 << 20, "{text}");
        // Another peer has room, for messages that come in part as well.
        let comes = |peer: &mut Peer, bytes: &[u8]| {
            peer.input(bytes).unwrap();
            peer.steps().len()
        };
        assert_eq!(connections.at(COUNT, |peer| comes(peer, &whole)), 1, "{text}");
        assert!(connections.serves(COUNT, 2, 256 << 10), "{text}");
        // What was held comes in, and what was refused is skipped.
        assert_eq!(connections.at(0, |peer| comes(peer, rest)), 1, "{text}");
        assert_eq!(connections.at(COUNT - 1, |peer| comes(peer, rest)), 0, "{text}");
        let next = frame(&step(2, REQUEST, b"12345678"));
        assert_eq!(connections.at(COUNT - 1, |peer| comes(peer, &next)), 1, "{text}");
        connections.pass_time(LONG_NS);
        assert_eq!(share.held(), 0, "{text}");
        assert_eq!(connections.peers[0].heap.live_blocks(), 0, "{text}");
        assert_eq!(connections.peers[0].heap.private_bytes(), 0, "{text}");
    }
}

/// What happens at one of a peer's connections.
#[derive(Clone, Copy, Debug)]
enum PeerHappening {
    Announced(u32),
    /// Chunks of the last message that was announced come. One that has come whole, or was given up, is skipped.
    Chunks(u8),
    Cancelled(u8),
    Succeeded,
}

fn happening() -> impl Strategy<Value = PeerHappening> {
    prop_oneof![
        3 => (1..=Connections::LARGEST_BYTES).prop_map(PeerHappening::Announced),
        6 => (1..32_u8).prop_map(PeerHappening::Chunks),
        1 => any::<u8>().prop_map(PeerHappening::Cancelled),
        1 => Just(PeerHappening::Succeeded),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]
    #[test]
    fn what_a_peer_holds_is_within_its_share_and_all_of_it_is_given_back(
        is_native in any::<bool>(),
        happenings in proptest::collection::vec((0..4_usize, happening()), 1..100),
    ) {
        let encoding = [Encoding::Protobuf, Encoding::Native][usize::from(is_native)];
        let mut connections = Connections::open(4, encoding);
        let share = connections.are_of_one_peer(0..4);
        let signals = ConnectionSignals::new().with_peer_share(Some(Arc::clone(&share)));
        let mut calls = [0_u64; 4];
        for (which, happening) in happenings {
            let call = &mut calls[which];
            connections.at(which, |peer| {
                match happening {
                    PeerHappening::Announced(bytes) => {
                        *call += 1;
                        peer.input(&announced(*call, bytes)).unwrap();
                    }
                    PeerHappening::Chunks(count) if *call > 0 => {
                        let piece = chunk(*call, &[7; CHUNK_BYTES_MAX as usize]);
                        // More than was announced is the connection's end.
                        let _ = (0..count).try_for_each(|_| peer.input(&piece));
                    }
                    PeerHappening::Cancelled(which) if *call > 0 => {
                        let cancel = step(1 + u64::from(which) % *call, Parts::CANCEL, b"");
                        let _ = peer.input(&frame(&cancel));
                    }
                    PeerHappening::Succeeded => {
                        peer.succeed(Successor::SameProcess);
                        peer.connection.apply_signals(&signals, FlowHints::default());
                    }
                    _ => {}
                }
                peer.steps();
            });
            let left = connections.at(0, |peer| peer.heap.room_in_part());
            prop_assert!(left >= LEFT_BY_ONE_PEER - (64 << 10), "{left} left");
        }
        connections.pass_time(LONG_NS);
        connections.pass_time(LONG_NS);
        prop_assert_eq!(share.held(), 0);
    }
}

#[test]
fn a_message_in_part_counts_once_whoever_goes_on_with_it() {
    for successor in [Successor::SameProcess, Successor::OtherProcess] {
        let mut server = Peer::new(
            Role::Server,
            Setup {
                encoding: Encoding::Protobuf,
                ..Setup::default()
            },
        );
        let piece = [7; CHUNK_BYTES_MAX as usize];
        server.input(&announced(1, 3 * CHUNK_BYTES_MAX)).unwrap();
        server.input(&chunk(1, &piece)).unwrap();
        let held_bytes = server.heap.private_bytes();
        assert!(held_bytes >= u64::from(CHUNK_BYTES_MAX), "{held_bytes}");
        server.succeed(successor);
        server.expire_arrivals();
        assert_eq!(server.heap.private_bytes(), held_bytes, "{successor:?}");
        server.input(&chunk(1, &piece)).unwrap();
        server.input(&chunk(1, &piece)).unwrap();
        assert_eq!(server.steps().len(), 1);
        assert_eq!(server.heap.private_bytes(), 0, "{successor:?}");
    }
}

#[test]
fn two_of_the_largest_messages_of_one_connection_fit_a_heap_of_four_and_one_fits_a_heap_of_two() {
    for (heap_bytes, calls) in [(4, 2), (2, 1)] {
        let mut server = Peer::new(Role::Server, Setup::default());
        server.heap.bytes_max = heap_bytes * u64::from(MESSAGE_BYTES_MAX);
        for call in 1..=calls {
            server.input(&announced(call, MESSAGE_BYTES_MAX)).unwrap();
        }
        for _ in 0..MESSAGE_BYTES_MAX / CHUNK_BYTES_MAX {
            for call in 1..=calls {
                server
                    .input(&chunk(call, &[7; CHUNK_BYTES_MAX as usize]))
                    .unwrap();
            }
        }
        assert_eq!(server.steps().len() as u64, calls);
    }
}

#[test]
fn a_message_that_comes_slowly_comes_and_one_that_drips_does_not() {
    for (chunks, comes) in [(10, true), (1, false)] {
        let mut server = Peer::new(Role::Server, Setup::default());
        // As a whole it may take half an hour: that it goes on coming is what counts.
        let all = 1000;
        server.input(&announced(1, all * CHUNK_BYTES_MAX)).unwrap();
        for _ in 0..all - 20 {
            server.input(&chunk(1, &[7; CHUNK_BYTES_MAX as usize])).unwrap();
        }
        for _ in 0..20 / chunks {
            server.now += 31_000_000_000;
            server.expire_arrivals();
            for _ in 0..chunks {
                server.input(&chunk(1, &[7; CHUNK_BYTES_MAX as usize])).unwrap();
            }
        }
        assert_eq!(server.steps().len() == 1, comes, "{chunks} chunks in 31 s");
        assert_eq!(server.heap.live_blocks(), 0);
    }
}

#[test]
fn a_connection_has_so_many_messages_in_part_and_one_more_is_refused_alone() {
    let mut server = Peer::new(Role::Server, Setup::default());
    for call in 1..=2 {
        server.input(&announced(call, MESSAGE_BYTES_MAX)).unwrap();
    }
    assert!(server.output().is_empty(), "two of the largest may come at once");
    server.input(&announced(3, MESSAGE_BYTES_MAX)).unwrap();
    assert!(!server.output().is_empty(), "the peer is told");
    // What ends makes room.
    server.input(&frame(&step(1, Parts::CANCEL, b""))).unwrap();
    server.steps();
    server.input(&announced(4, MESSAGE_BYTES_MAX)).unwrap();
    assert!(server.output().is_empty());
}

/// A first frame with metadata that takes so many bytes, and none of the message.
fn with_metadata((mut header, _): (FrameHeader, Vec<u8>), bytes: u32) -> (FrameHeader, Vec<u8>) {
    let content = Content {
        metadata: vec![("key-bin".to_owned(), content_bytes(1, bytes))],
        ..Content::default()
    };
    let mut body = content.metadata_block();
    header.metadata_bytes = (body.len() as u32).into();
    body.resize(message_offset(body.len() as u32), 0);
    header.body_bytes = (body.len() as u32).into();
    (header, body)
}

#[test]
fn a_cancel_with_metadata_comes_beside_as_many_messages_as_there_may_be() {
    let mut server = Peer::new(Role::Server, Setup::default());
    let (mut header, _) = step(1, Parts::BEGIN, b"");
    header.method = BIDI.into();
    server.input(&frame(&(header, Vec::new()))).unwrap();
    let (mut header, _) = step(2, REQUEST, b"");
    header.method = UNARY.into();
    header.message_bytes = MESSAGE_BYTES_MAX.into();
    let begins = with_metadata((header, Vec::new()), 12_000);
    server.input(&frame(&begins)).unwrap();
    server.input(&announced(3, MESSAGE_BYTES_MAX)).unwrap();
    assert!(server.output().is_empty(), "both are on their way");
    server.steps();
    let cancel = with_metadata(step(1, Parts::CANCEL, b""), 8_000);
    server.input(&frame(&cancel)).unwrap();
    assert!(server.output().is_empty(), "the peer is told of no failure");
    let steps = server.steps();
    assert_eq!(steps.len(), 1);
    assert_eq!((steps[0].call, steps[0].parts), (1, Parts::CANCEL));
    assert_eq!(steps[0].status, Code::Ok, "the end is the peer's own");
    assert!(steps[0].metadata.len() > 8_000);
}

#[test]
fn a_message_that_stops_in_its_midst_ends_its_call_and_frees_its_memory() {
    let mut server = Peer::new(Role::Server, Setup::default());
    server.input(&announced(1, 1 << 20)).unwrap();
    server.input(&chunk(1, &[7; 50_000])).unwrap();
    server.now += 1_000_000_000;
    server.expire_arrivals();
    assert_eq!(server.heap.live_blocks(), 1, "it may take its time");
    // While its own app was behind, the peer could not go on.
    server.connection.pause(server.now);
    server.now += LONG_NS;
    server.expire_arrivals();
    assert_eq!(server.heap.live_blocks(), 1, "this end did not listen");
    server.input(&chunk(1, &[7; 50_000])).unwrap();
    server.now += LONG_NS;
    server.expire_arrivals();
    assert_eq!(server.heap.live_blocks(), 0);
    assert!(!server.output().is_empty(), "the peer is told");
    // The rest of it is skipped, and the connection goes on.
    server.input(&chunk(1, &[7; 50_000])).unwrap();
    let whole = step(2, REQUEST, b"12345678");
    server.input(&frame(&whole)).unwrap();
    assert_eq!(
        server.steps().iter().map(|step| step.call).collect::<Vec<_>>(),
        [2]
    );
}

#[test]
fn what_waits_for_windows_is_bounded_over_all_calls() {
    let window = 1000;
    let setup = Setup {
        limits: Limits {
            stream_window_bytes: window,
            ..Limits::default()
        },
        ..Setup::default()
    };
    let mut client = Peer::new(Role::Client, setup);
    let small = content(3, 8);
    let mut refused = None;
    let mut sent = 0;
    // Many streams that each heed the bound on one call's messages, and not their windows.
    'calls: for call in 1..=2_000 {
        client.send_raw(Step {
            method: BIDI,
            ..Step::new(call, Parts::BEGIN)
        });
        for _ in 0..40 {
            client.send(Step::new(call, Parts::MESSAGE), &small, 0);
            client.output();
            sent += 1;
            if let Some(step) = client.steps().into_iter().next() {
                refused = Some(step);
                break 'calls;
            }
        }
    }
    let refused = refused.expect("one that does not heed its window is ended");
    assert_eq!(
        (refused.parts, refused.status),
        (Parts::CANCEL, Code::ResourceExhausted)
    );
    assert!(sent < 40_000, "{sent} messages were taken");
    // Who heeds its window is served all the same.
    let next = refused.call + 1;
    client.send_raw(Step {
        method: BIDI,
        ..Step::new(next, Parts::BEGIN)
    });
    client.send(Step::new(next, Parts::MESSAGE), &small, 0);
    client.output();
    assert!(client.steps().is_empty());
}
