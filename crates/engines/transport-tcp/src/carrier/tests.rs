use std::cell::Cell;
use std::io::{Read, Write};
use std::sync::Arc;

use provost_conformance::{Bench, End, LeftState, Node, Pair, Successors, content};
use provost_datapath::{BufferPool, ConnectionSignals, Engine, Progress, Restorer, Step};
use provost_session::Piece;
use provost_tls::{Purpose, TlsHandshake, TlsSession};
use provost_wire::descriptor::Parts;
use provost_wire::frame::{HEADER_BYTES, frame_kind};
use provost_wire::limits::CHUNK_BYTES_MAX;

use super::*;
use crate::{Established, Role, TcpTransport, TransportConfig};

#[path = "../../../../core/tls/tests/certificates/mod.rs"]
mod certificates;
#[path = "../../tests/pairs/mod.rs"]
mod pairs;

thread_local! {
    static COPIED_BYTES: Cell<usize> = const { Cell::new(0) };
    static FOLLOWED_WRITES: Cell<usize> = const { Cell::new(0) };
}

pub(super) fn count_copied(bytes: usize) {
    COPIED_BYTES.set(COPIED_BYTES.get() + bytes);
}

pub(super) fn count_written(following: FollowUp) {
    if following == FollowUp::AtOnce {
        FOLLOWED_WRITES.set(FOLLOWED_WRITES.get() + 1);
    }
}

struct NoSuccessors;

impl Successors for NoSuccessors {
    fn one(&mut self, _: Role, _: LeftState, _: &mut dyn Restorer) -> Result<Box<dyn Engine>, RestoreError> {
        unreachable!("nothing is replaced here")
    }
}

fn end(established: Established) -> End {
    let link = Arc::new(ConnectionSignals::new());
    let config = TransportConfig {
        keepalive_interval_ns: 0,
        ..TransportConfig::default()
    };
    End {
        engine: Box::new(TcpTransport::new(established, config, link.clone(), 0)),
        link,
    }
}

/// Engines at these ends, of which each poll moves so many bytes.
fn bench((client, server): (Established, Established), turn_bytes: u32) -> Bench {
    Bench::new(Pair {
        client: end(client),
        server: end(server),
        between: Box::new(|_| None),
        successors: Box::new(NoSuccessors),
        hot_restarts: None,
        turn_bytes: Some(turn_bytes),
    })
}

/// How many bytes of requests of this size were copied on their way into the heap, of how many.
fn copied(requests: u64, request_bytes: u32) -> (usize, usize) {
    // The reader keeps up with the writer, so that it stands before a header whenever it reads.
    let mut bench = bench(pairs::established_apart(), CHUNK_BYTES_MAX);
    COPIED_BYTES.set(0);
    let request = Parts::BEGIN.with(Parts::MESSAGE).with(Parts::END);
    for call in 1..=requests {
        bench
            .client
            .send(Step::new(call, request), &content(1, request_bytes));
        bench.until("a request has come", |bench| {
            bench.server.events.drain(..).count() > 0
        });
        bench.server.send_bare(Step::new(call, Parts::CANCEL));
    }
    (COPIED_BYTES.get(), requests as usize * request_bytes as usize)
}

/// Of each frame only the header, and what came with it, goes through the thread's buffer.
#[test]
fn bodies_of_large_messages_come_to_where_they_belong() {
    let (copied, bytes) = copied(20, 4 << 20);
    assert!(copied < bytes / 8, "{copied} of {bytes} bytes were copied");
}

#[test]
fn small_messages_are_read_many_at_once() {
    let (copied, bytes) = copied(100, 1_000);
    assert!(copied >= bytes, "{copied} of {bytes} bytes were copied");
}

/// A connection that is to leave others their turn waits for what is on its way where a network is between, and only for its
/// socket within a host.
#[test]
fn only_the_queues_of_a_network_are_kept_short() {
    for (ends, waits_for_the_wire) in [
        (pairs::established(None), false),
        (pairs::established_apart(), true),
    ] {
        let mut bench = bench(ends, CHUNK_BYTES_MAX);
        let request = Parts::BEGIN.with(Parts::MESSAGE).with(Parts::END);
        bench.client.send(Step::new(1, request), &content(1, 16 << 20));
        // The peer takes nothing.
        for _ in 0..1000 {
            bench.now += 1;
            bench.client.poll(bench.now);
        }
        assert_eq!(bench.client.wake_at().is_some(), waits_for_the_wire);
    }
}

/// How many segments so many requests take whose bodies would fill 256, where a poll writes so many bytes.
fn segments(requests: u64, turn_bytes: u32) -> u32 {
    let (client, server) = pairs::established(None);
    let stream = client.carrier.stream().try_clone().unwrap();
    let mut bench = bench((client, server), turn_bytes);
    let request = Parts::BEGIN.with(Parts::MESSAGE).with(Parts::END);
    let request_bytes = (16 << 20) / requests as u32;
    for call in 1..=requests {
        bench
            .client
            .send(Step::new(call, request), &content(1, request_bytes));
    }
    let segments = || provost_net::output_state(&stream).unwrap().sent_segments;
    let segments_before = segments();
    bench.until("all requests have come", |bench| {
        bench.server.events.len() as u64 == requests
    });
    segments() - segments_before
}

/// A packet of segmentation offload has 64 KiB, and within a host that is one segment. So a chunk is one by itself, and what fills
/// none waits for what follows at once.
#[test]
fn long_messages_leave_in_full_packets() {
    for (requests, turn_bytes, followed_writes) in [
        (1, WRITE_BYTES_MAX as u32, 256 / 2),
        (200, WRITE_BYTES_MAX as u32, 400 / 2),
        (1, CHUNK_BYTES_MAX, 0),
    ] {
        FOLLOWED_WRITES.set(0);
        let segments = segments(requests, turn_bytes);
        let followed = FOLLOWED_WRITES.get();
        assert!(
            followed >= followed_writes,
            "{requests} requests: {followed} writes were followed"
        );
        // A socket that is full sends what it has; with a second packet for each chunk there would be 512.
        assert!(
            segments <= 256 + 128,
            "{requests} requests, {turn_bytes} bytes a poll: {segments} segments"
        );
    }
}

/// Calls that are given up leave nothing behind them that what was written before could wait for.
#[test]
fn nothing_waits_for_what_was_given_up() {
    let (client, server) = pairs::established(None);
    let stream = client.carrier.stream().try_clone().unwrap();
    let mut bench = bench((client, server), CHUNK_BYTES_MAX);
    let request = Parts::BEGIN.with(Parts::MESSAGE).with(Parts::END);
    for call in 1..=3 {
        bench.client.send(Step::new(call, request), &content(1, 1 << 20));
    }
    bench.client.poll(1);
    // The peer's window is open again.
    for now in 1..10 {
        bench.server.poll(now);
    }
    for call in 1..=3 {
        bench.client.send_bare(Step::new(call, Parts::CANCEL));
    }
    bench.client.poll(2);
    assert_eq!(provost_net::output_state(&stream).unwrap().unsent_bytes, 0);
}

/// What a client says of one call, without TLS, and the end that it was said to.
fn said_to() -> (Vec<u8>, Established) {
    let (client, server) = pairs::established(None);
    let mut client = Node::new(end(client));
    let request = Parts::BEGIN.with(Parts::MESSAGE).with(Parts::END);
    client.send(Step::new(1, request), &content(1, 3_000));
    for now in 1..10 {
        client.poll(now);
    }
    let mut said = vec![0; 100_000];
    let count = server.carrier.stream().read(&mut said).unwrap();
    said.truncate(count);
    (said, server)
}

/// The records of a client and of a server.
fn shaken_hands() -> [TlsSession; 2] {
    let (client, server) = pairs::mutual_tls();
    let mut ends = [
        TlsHandshake::client(&client, "127.0.0.1:1", Purpose::Records).unwrap(),
        TlsHandshake::server(&server, Purpose::Records).unwrap(),
    ];
    while ends.iter().any(|end| !end.is_done()) {
        for from in 0..2 {
            let mut said = &ends[from].output().unwrap()[..];
            while let Some(header) = said.first_chunk() {
                let (record, behind) = said.split_at(5 + TlsHandshake::bytes_behind(*header));
                ends[1 - from].input(record).unwrap();
                said = behind;
            }
        }
    }
    ends.map(|end| end.into_session().unwrap())
}

/// Bytes that come each in a record of its own take many polls, between which others get their turn.
#[test]
fn a_poll_opens_so_many_records_at_most() {
    let (said, mut server) = said_to();
    let [mut session, of_server] = shaken_hands();
    let listener = provost_net::listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    listener.set_nonblocking(false).unwrap();
    let (far, _) = listener.accept().unwrap();
    provost_net::make_ready(&far).unwrap();
    let socket = CarrierSocket::new(far, Some(Box::new(of_server)), Vec::new());
    server.carrier = TcpCarrier::new(socket, server.carrier.peer.clone());
    let mut buffers = BufferPool::new();
    for byte in said.chunks(1) {
        session
            .seal(std::iter::once(Piece::Private(byte)), &mut buffers)
            .unwrap();
        let record = session.output(&mut buffers).unwrap();
        stream.write_all(record).unwrap();
        let bytes = record.len();
        session.sent(bytes, &mut buffers);
    }
    let mut server = Node::new(end(server));
    let (mut polls, mut copied_bytes) = (0, 0);
    while server.events.is_empty() {
        COPIED_BYTES.set(0);
        server.poll(polls);
        polls += 1;
        let records = COPIED_BYTES.get();
        assert!(
            records <= TcpCarrier::READ_BYTES_MAX / READ_BYTES_MIN,
            "{records} at once"
        );
        copied_bytes += records;
        assert!(polls < 1_000, "{copied_bytes} of {} bytes came", said.len());
    }
    assert_eq!(server.events[0].message.len(), 3_000);
    assert!(polls > 3, "{polls}");
}

/// A peer that has asked for more answers than it takes, and is gone, is found to be gone.
#[test]
fn a_peer_that_took_no_answers_is_missed_when_it_is_gone() {
    let (client, server) = pairs::established(None);
    let mut server = Node::new(end(server));
    let mut ping = [0; HEADER_BYTES];
    ping[4] = frame_kind::PING;
    let pings = ping.repeat(1_000);
    let (mut polls, mut stuck) = (0, 0);
    let mut rest = &pings[..];
    // Until the server reads no more, its socket being full of answers.
    while stuck < 1_000 {
        match client.carrier.stream().write(rest) {
            Ok(taken) => (rest, stuck) = (&rest[taken..], 0),
            Err(_) => stuck += 1,
        }
        if rest.is_empty() {
            rest = &pings;
        }
        polls += 1;
        assert_ne!(server.poll(polls), Progress::Ended);
    }
    // Answers are there that it has not read, so that its end is a reset.
    drop(client);
    let until = polls + 100_000;
    while server.poll(polls) != Progress::Ended {
        polls += 1;
        assert!(polls < until, "it is still waited for: {:?}", server.interest());
    }
    assert!(server.link.ended().is_some());
}
