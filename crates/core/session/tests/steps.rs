//! Any steps in, the same steps out, however the bytes are cut; and nothing that a peer sends brings an end down.

mod kit;

use kit::{Got, Peer, Setup};
use proptest::prelude::*;
use provost_conformance::{BIDI, CLIENT_STREAM, Content, Random, SERVER_STREAM, UNARY, content_bytes};
use provost_datapath::Step;
use provost_session::Role;
use provost_session::handshake::{Encoding, Limits};
use provost_wire::Code;
use provost_wire::descriptor::Parts;

/// A step as it must come out: parts, metadata, message.
type Expected = (u8, Vec<u8>, Vec<u8>);

/// A random client's steps of a few calls, interleaved, and what the server must get of each call.
fn script(random: &mut Random, client: &mut Peer) -> Vec<Vec<Expected>> {
    let calls = random.between(1, 6);
    let mut expected = vec![Vec::new(); calls as usize];
    let mut queues: Vec<Vec<(Step, Content)>> = (0..calls).map(|at| call(random, at + 1)).collect();
    let mut token = 0;
    while queues.iter().any(|queue| !queue.is_empty()) {
        let at = random.below(calls) as usize;
        if queues[at].is_empty() {
            continue;
        }
        let (step, content) = queues[at].remove(0);
        let message = content_bytes(content.seed, content.message_bytes);
        expected[at].push((step.parts.0, content.metadata_block(), message));
        token += 1;
        client.send(step, &content, token);
    }
    expected
}

fn call(random: &mut Random, id: u64) -> Vec<(Step, Content)> {
    let method = [UNARY, CLIENT_STREAM, SERVER_STREAM, BIDI][random.below(4) as usize];
    let message = |random: &mut Random| Content {
        seed: random.number(),
        message_bytes: match random.below(4) {
            0 => random.between(1, 40) as u32,
            1 => random.between(1, 5_000) as u32,
            2 => random.between(60_000, 70_000) as u32,
            _ => random.between(1, 200_000) as u32,
        },
        metadata: Vec::new(),
    };
    let metadata = match random.below(2) {
        0 => Vec::new(),
        _ => vec![("key-bin".to_owned(), content_bytes(1, random.below(3_000) as u32))],
    };
    let begin = Step {
        method,
        ..Step::new(id, Parts::BEGIN)
    };
    if method == UNARY || method == SERVER_STREAM {
        let parts = Parts::BEGIN | Parts::MESSAGE | Parts::END;
        return vec![(
            Step { parts, ..begin },
            Content {
                metadata,
                ..message(random)
            },
        )];
    }
    let mut steps = vec![(
        begin,
        Content {
            metadata,
            ..Content::default()
        },
    )];
    // Less than a window: nobody gives any back here.
    for _ in 0..random.below(3) {
        steps.push((Step::new(id, Parts::MESSAGE), message(random)));
    }
    steps.push((Step::new(id, Parts::END), Content::default()));
    steps
}

/// Feeds bytes in random pieces, now and then straight to their place.
fn feed(random: &mut Random, bytes: &[u8], server: &mut Peer) -> Vec<Got> {
    let most = [97, 700, 5_000, 200_000][random.below(4) as usize];
    let (mut at, mut steps) = (0, Vec::new());
    while at < bytes.len() {
        let length = (random.between(1, most) as usize).min(bytes.len() - at);
        let direct = match random.below(2) {
            0 => server.input_direct(&bytes[at..at + length]).unwrap(),
            _ => 0,
        };
        if direct == 0 {
            server.input(&bytes[at..at + length]).unwrap();
        }
        at += if direct == 0 { length } else { direct };
        steps.extend(server.steps());
    }
    steps
}

fn round_trip(seed: u64, encoding: Encoding) {
    let mut random = Random::new(seed);
    let setup = Setup {
        encoding,
        ..Setup::default()
    };
    let (mut client, mut server) = (Peer::new(Role::Client, setup), Peer::new(Role::Server, setup));
    let expected = script(&mut random, &mut client);
    let bytes = client.output();
    let got = feed(&mut random, &bytes, &mut server);
    let mut calls: Vec<u64> = got.iter().map(|step| step.call).collect();
    calls.sort_unstable();
    calls.dedup();
    let mut by_call: Vec<Vec<_>> = Vec::new();
    for call in calls {
        let of_call = got.iter().filter(|step| step.call == call);
        by_call.push(
            of_call
                .map(|step| (step.parts.0, step.metadata.clone(), step.message.clone()))
                .collect(),
        );
    }
    let mut expected = expected;
    expected.sort();
    by_call.sort();
    assert!(
        by_call == expected,
        "seed {seed}: the steps that came are not those that were sent"
    );
    assert_eq!(server.heap.live_blocks(), 0);
    let steps: usize = expected.iter().map(Vec::len).sum();
    assert!(client.sent.len() <= steps && !client.sent.is_empty());
}

#[test]
fn any_steps_survive_any_cuts() {
    for seed in 0..40 {
        round_trip(seed, Encoding::Native);
        round_trip(seed, Encoding::Protobuf);
    }
}

/// A valid stream to start from.
fn valid_stream(seed: u64, role: Role) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut client = Peer::new(Role::Client, Setup::default());
    script(&mut random, &mut client);
    let bytes = client.output();
    if role == Role::Server {
        return bytes;
    }
    let mut server = Peer::new(Role::Server, Setup::default());
    server.input(&bytes).unwrap();
    for got in server.steps() {
        if got.parts.contains(Parts::END) {
            let step = Step {
                status: Code::Ok,
                ..Step::new(got.call, Parts::STATUS)
            };
            server.send(step, &Content::default(), 0);
        }
    }
    server.output()
}

/// An end that has begun a few calls, as a client that waits for answers.
fn victim(seed: u64, role: Role) -> Peer {
    let limits = Limits {
        message_bytes_max: 1 << 20,
        ..Limits::default()
    };
    let mut peer = Peer::new(
        role,
        Setup {
            limits,
            ..Setup::default()
        },
    );
    if role == Role::Client {
        script(&mut Random::new(seed), &mut peer);
        peer.output();
    }
    peer
}

fn survive(role: Role, seed: u64, bytes: &[u8]) {
    let mut peer = victim(seed, role);
    for piece in bytes.chunks(4_001) {
        if peer.input(piece).is_err() {
            break;
        }
        peer.steps();
        // What has begun to come in is bounded by two messages, whatever was promised.
        assert!(peer.heap.live_blocks() <= 16 << 10);
    }
    peer.output();
    peer.end(Code::Unavailable, "test");
    peer.steps();
    assert_eq!(peer.heap.live_blocks(), 0, "every block is given back");
    assert_eq!(peer.connection.calls_in_flight(), 0);
    assert!(peer.connection.is_over());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn arbitrary_bytes_bring_nothing_down(bytes in prop::collection::vec(any::<u8>(), 0..2_000), server: bool) {
        survive(if server { Role::Server } else { Role::Client }, 1, &bytes);
    }

    #[test]
    fn damaged_streams_bring_nothing_down(
        seed in 0u64..20,
        server: bool,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let role = if server { Role::Server } else { Role::Client };
        let mut bytes = valid_stream(seed, role);
        prop_assume!(!bytes.is_empty());
        for (at, value) in damage {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        bytes.truncate(cut.index(bytes.len()) + 1);
        survive(role, seed, &bytes);
    }
}
