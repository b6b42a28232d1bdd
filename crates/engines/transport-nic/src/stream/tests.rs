//! Two streams whose NICs' wire is a pair of sockets.

use std::time::Instant;

use provost_datapath::{FieldReader, FieldWriter, RestoreError, SavedState};
use provost_transport::Carrier;

use super::*;
use crate::carrier::NicCarrier;

/// Rounds in which what a test waits for has to happen: simulated NICs need few, the timers of lost packets some thousands.
const ROUNDS: u32 = 200_000;

struct StreamPair {
    client: NicStream,
    server: NicStream,
    began: Instant,
}

impl StreamPair {
    /// None without a model of the NIC.
    fn open() -> Option<StreamPair> {
        let sockets = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").expect("loopback has a port"));
        let [ours, theirs] = sockets
            .each_ref()
            .map(|socket| socket.local_addr().expect("it is bound"));
        let [client, server] = sockets;
        client.connect(theirs).expect("it is bound");
        server.connect(ours).expect("it is bound");
        let client = match NicStream::open(client) {
            Ok(client) => client,
            Err(reason) => {
                provost_skip::missing("a model of the NIC", &reason.to_string());
                return None;
            }
        };
        // Whatever is no packet is dropped.
        let server = NicStream::serve(server, &[]).expect("the other one has a model too");
        let began = Instant::now();
        let mut pair = StreamPair {
            client,
            server,
            began,
        };
        pair.until("both have room", |pair| {
            pair.client.room() > 0 && pair.server.room() > 0
        });
        Some(pair)
    }

    fn poll(&mut self) {
        let now_ns = self.began.elapsed().as_nanos() as u64;
        for stream in [&mut self.client, &mut self.server] {
            stream
                .poll(now_ns, SocketReading::Try)
                .expect("the wire is whole");
        }
    }

    fn until(&mut self, what: &str, holds: impl Fn(&StreamPair) -> bool) {
        let mut rounds = 0;
        while !holds(self) {
            assert!(rounds < ROUNDS, "waited too long: {what}");
            self.poll();
            rounds += 1;
        }
    }
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 7 + at / 251) as u8).collect()
}

/// Takes the segment that has come.
fn take(stream: &mut NicStream) -> Vec<u8> {
    let NextSegment::Bytes(bytes) = stream.next() else {
        panic!("{:?} has come", stream.next());
    };
    let bytes = bytes.to_vec();
    stream.taken();
    bytes
}

#[test]
fn a_segment_of_seven_packets_is_one_call_in_each_direction() {
    let Some(mut pair) = StreamPair::open() else {
        return;
    };
    let long = pattern(SEGMENT_BYTES_MAX);
    assert_eq!(SEGMENT_BYTES_MAX, 7 * 1448 - HEAD_BYTES);
    assert_eq!((pair.client.room(), pair.server.room()), (long.len(), long.len()));
    pair.client.send(&long).unwrap();
    pair.server.send(&long).unwrap();
    pair.until("both segments come", |pair| {
        pair.client.has_next() && pair.server.has_next()
    });
    assert!(take(&mut pair.client) == long && take(&mut pair.server) == long);
    assert_eq!((pair.client.received, pair.server.received), (1, 1));
}

/// A client of an earlier version asks without a length, and reads one packet.
#[test]
fn who_asks_without_a_length_gets_one_packet() {
    let Some(mut pair) = StreamPair::open() else {
        return;
    };
    pair.server.held.clear();
    let request = RequestTag::from_parts((0, 0));
    pair.server.hold(request, &[]).unwrap();
    assert_eq!(pair.server.room(), 1448 - HEAD_BYTES);
    for unreadable in [&[0; 4][..], &[9, 0, 0, 0], &[0; 3], &[0; 5]] {
        let refused = pair.server.hold(request, unreadable).unwrap_err();
        assert!(
            refused.to_string().contains("a length that cannot be"),
            "{refused}"
        );
    }
    // More than this end's NIC carries is not given.
    pair.server.held.clear();
    pair.server.hold(request, &u32::MAX.to_le_bytes()).unwrap();
    assert_eq!(pair.server.room(), SEGMENT_BYTES_MAX);
}

#[test]
fn what_is_larger_than_the_session_takes_is_refused_with_its_bound() {
    let Some(mut pair) = StreamPair::open() else {
        return;
    };
    let larger = vec![0; SEGMENT_BYTES_MAX + 1];
    let refused = pair.client.send(&larger).unwrap_err().to_string();
    assert_eq!(
        refused,
        "the message has 10137 bytes, and the session takes 10136 at most: divide it, or use a transport that does"
    );
}

fn saved(stream: &NicStream) -> Vec<u8> {
    let mut out = FieldWriter::new();
    stream.save(&mut out);
    SavedState::new(NicCarrier::KIND, 2, out).bytes
}

fn restored(socket: &UdpSocket, bytes: &[u8]) -> Result<NicStream, RestoreError> {
    let socket = socket.try_clone().expect("there are descriptors left");
    let mut fields = FieldReader::new(NicCarrier::KIND, bytes);
    let stream = NicStream::restore(socket, &mut fields)?;
    fields.end()?;
    Ok(stream)
}

/// With segments under way in both directions, one that has come, and requests for segments.
fn pair_under_way() -> Option<StreamPair> {
    let mut pair = StreamPair::open()?;
    let long = pattern(SEGMENT_BYTES_MAX);
    pair.client.send(&long).unwrap();
    pair.until("the server has a segment", |pair| pair.server.has_next());
    pair.client.send(b"second").unwrap();
    pair.server.send(b"answer").unwrap();
    Some(pair)
}

#[test]
fn a_successor_goes_on_with_the_board_and_loses_nothing() {
    let Some(mut pair) = pair_under_way() else {
        return;
    };
    for stream in [&mut pair.client, &mut pair.server] {
        let bytes = saved(stream);
        let successor = restored(stream.socket(), &bytes).unwrap();
        assert_eq!(saved(&successor), bytes);
        *stream = successor;
    }
    assert!(take(&mut pair.server) == pattern(SEGMENT_BYTES_MAX));
    pair.until("the rest comes", |pair| {
        pair.client.has_next() && pair.server.has_next()
    });
    assert_eq!(take(&mut pair.server), b"second");
    assert_eq!(take(&mut pair.client), b"answer");
}

#[test]
fn a_state_of_a_board_that_is_gone_is_refused() {
    let Some(pair) = pair_under_way() else {
        return;
    };
    let (bytes, socket) = (saved(&pair.client), pair.client.socket().try_clone().unwrap());
    drop(pair);
    let refused = restored(&socket, &bytes).unwrap_err().to_string();
    assert!(
        refused.contains("cannot be handed on to another process"),
        "{refused}"
    );
    // A process of before this form says nothing of a board.
    let mut fields = FieldReader::new(NicCarrier::KIND, &bytes);
    let refused = NicCarrier::restore((), (), Vec::new(), &mut fields, 1).unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("cannot be handed on to another process"),
        "{refused}"
    );
}

#[test]
fn a_damaged_state_is_restored_or_refused_and_its_predecessor_goes_on() {
    let Some(mut pair) = pair_under_way() else {
        return;
    };
    let bytes = saved(&pair.server);
    let beginning = bytes.len().min(256);
    for length in (0..beginning).chain([bytes.len() - 1]) {
        assert!(
            restored(pair.server.socket(), &bytes[..length]).is_err(),
            "{length} bytes"
        );
    }
    for at in (0..beginning).chain(bytes.len() - 100..bytes.len()) {
        for flipped in [1, 0x80] {
            let mut damaged = bytes.clone();
            damaged[at] ^= flipped;
            let _ = restored(pair.server.socket(), &damaged);
        }
    }
    assert!(take(&mut pair.server) == pattern(SEGMENT_BYTES_MAX));
    pair.until("the rest comes", |pair| {
        pair.client.has_next() && pair.server.has_next()
    });
}

#[test]
fn segments_are_put_in_order_and_a_successor_has_those_that_came_early() {
    let Some(mut pair) = StreamPair::open() else {
        return;
    };
    let segment = |number: u64| segment::encode(number, SegmentEnd::GoesOn, &[number as u8]);
    for number in [3, 2] {
        pair.server.arrive(&segment(number), None).unwrap();
    }
    let bytes = saved(&pair.server);
    let mut server = restored(pair.server.socket(), &bytes).unwrap();
    assert!(!server.has_next(), "the first has not come");
    server.arrive(&segment(1), None).unwrap();
    for number in 1..=3 {
        assert_eq!(take(&mut server), [number]);
    }
    // What has come, what waits for others, and what no client can have sent by now.
    server.arrive(&segment(5), None).unwrap();
    for number in [0, 3, 5, 4 + UNTAKEN_MAX as u64, u64::MAX] {
        assert!(server.arrive(&segment(number), None).is_err(), "segment {number}");
    }
}

#[test]
fn a_client_leaves_no_more_requests_than_there_may_be() {
    let Some(mut pair) = StreamPair::open() else {
        return;
    };
    let StreamState::Open(session, _) = pair.server.state else {
        panic!("it is open");
    };
    let request = |call| HostEvent::Request {
        session,
        request: RequestTag::from_parts((0, call)),
        method: METHOD_POLL,
        flow: 0,
        payload: Vec::new(),
    };
    while pair.server.held.len() < POLL_CALLS {
        pair.server.handle(request(1)).unwrap();
    }
    assert!(pair.server.handle(request(2)).is_err());
}

/// Both ends' NICs tell each other that they are there; one that hears nothing for ten seconds gives up.
#[test]
fn a_peer_that_says_nothing_for_ten_seconds_counts_as_gone() {
    let Some(mut pair) = StreamPair::open() else {
        return;
    };
    const SECOND_NS: u64 = 1_000_000_000;
    let seconds = [6, 12, 18, 24];
    for second in seconds {
        for _ in 0..8 {
            for stream in [&mut pair.client, &mut pair.server] {
                stream.poll(second * SECOND_NS, SocketReading::Try).unwrap();
            }
        }
    }
    let last = seconds[3] * SECOND_NS;
    pair.client
        .poll(last + 9 * SECOND_NS, SocketReading::Try)
        .unwrap();
    let lost = pair.client.poll(last + 30 * SECOND_NS, SocketReading::Try);
    assert!(lost.unwrap_err().to_string().contains("ten seconds"));
}
