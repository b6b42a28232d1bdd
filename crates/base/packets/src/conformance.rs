//! What every wire has to pass, whatever it is made of.

use std::time::{Duration, Instant};

use crate::{LOOK_BYTES, Wire};

/// How often a test looks for a packet before it gives up; each look may sleep a little.
const LOOKS_MAX: u32 = 500;
const LOOK: Duration = Duration::from_millis(10);

/// Runs everything on fresh pairs of ends.
///
/// # Panics
/// If the wire does not conform.
pub fn suite<W: Wire>(pair: impl Fn() -> (W, W)) {
    pieces_arrive_as_one_packet_with_their_source(pair());
    every_size_up_to_the_largest_arrives(pair());
    a_batch_arrives_in_order(pair());
    what_cannot_be_sent_is_lost_and_the_rest_goes_on(pair());
    a_batch_is_no_larger_than_asked_for(pair());
    what_is_seen_ahead_is_what_comes_next(pair());
    waiting_ends_when_a_packet_is_there_or_time_is_up(pair());
}

fn receive_some<W: Wire>(wire: &mut W, packets: usize) -> Vec<(W::Address, Vec<u8>)> {
    let mut received = Vec::new();
    for _ in 0..LOOKS_MAX {
        let taken = wire
            .receive(packets - received.len(), |arrival| {
                received.push((arrival.from, arrival.bytes.to_vec()));
            })
            .expect("the wire works");
        if received.len() == packets {
            break;
        }
        if taken == 0 {
            wire.wait(Some(LOOK)).expect("the wire works");
        }
    }
    received
}

fn pieces_arrive_as_one_packet_with_their_source<W: Wire>((mut one, mut other): (W, W)) {
    one.transmit(other.address(), b"head and ", b"payload");
    one.transmit(other.address(), b"alone", b"");
    one.flush().expect("the wire works");
    let expected = [b"head and payload".to_vec(), b"alone".to_vec()].map(|bytes| (one.address(), bytes));
    assert_eq!(receive_some(&mut other, 2), expected);
    other.transmit(one.address(), b"back", b"");
    other.flush().expect("the wire works");
    assert_eq!(receive_some(&mut one, 1), [(other.address(), b"back".to_vec())]);
}

fn every_size_up_to_the_largest_arrives<W: Wire>((mut one, mut other): (W, W)) {
    let largest = one.packet_bytes_max();
    for bytes in [1, 16, 17, largest / 2, largest - 1, largest] {
        let packet: Vec<u8> = (0..bytes).map(|at| (at * 7) as u8).collect();
        let (head, payload) = packet.split_at(bytes.min(16));
        one.transmit(other.address(), head, payload);
        one.flush().expect("the wire works");
        assert_eq!(
            receive_some(&mut other, 1),
            [(one.address(), packet)],
            "of {bytes} bytes"
        );
    }
}

fn a_batch_arrives_in_order<W: Wire>((mut one, mut other): (W, W)) {
    let packets = one.transmit_room().min(32) as u8;
    assert!(packets > 1, "a wire has room for several packets");
    for round in 0..10 {
        for number in 0..packets {
            one.transmit(other.address(), &[round], &[number; 60]);
        }
        one.flush().expect("the wire works");
        let received = receive_some(&mut other, packets.into());
        let numbers: Vec<u8> = received.iter().map(|(_, bytes)| bytes[1]).collect();
        assert_eq!(numbers, (0..packets).collect::<Vec<u8>>(), "in round {round}");
    }
}

fn what_cannot_be_sent_is_lost_and_the_rest_goes_on<W: Wire>((mut one, mut other): (W, W)) {
    let too_large = vec![0; one.packet_bytes_max() + 1];
    one.transmit(other.address(), &too_large, b"");
    for _ in 0..one.transmit_room() + 10 {
        one.transmit(other.address(), b"flood", b"");
    }
    one.flush().expect("the wire works");
    let mut flood = 0;
    while other
        .receive(16, |arrival| assert_eq!(arrival.bytes, b"flood"))
        .expect("the wire works")
        > 0
    {
        flood += 1;
    }
    assert!(flood > 0);
    for _ in 0..LOOKS_MAX {
        one.flush().expect("the wire works");
        one.transmit(other.address(), b"after", b"");
        one.flush().expect("the wire works");
        let last = receive_some(&mut other, 1);
        if last.first().is_some_and(|(_, bytes)| bytes == b"after") {
            return;
        }
    }
    panic!("after a flood nothing arrives any more");
}

fn a_batch_is_no_larger_than_asked_for<W: Wire>((mut one, mut other): (W, W)) {
    for _ in 0..3 {
        one.transmit(other.address(), b"x", b"");
    }
    one.flush().expect("the wire works");
    assert_eq!(receive_some(&mut other, 1).len(), 1);
    assert_eq!(receive_some(&mut other, 2).len(), 2);
    assert_eq!(other.receive(8, |_| {}).expect("the wire works"), 0);
}

/// A wire may show nothing ahead; one that does shows how the packets begin that come, in order, and takes none.
fn what_is_seen_ahead_is_what_comes_next<W: Wire>((mut one, mut other): (W, W)) {
    for round in 0..10 {
        for number in 0..5 {
            let payload = vec![
                number;
                if number == 2 {
                    one.packet_bytes_max() - 1
                } else {
                    60
                }
            ];
            one.transmit(other.address(), &[round], &payload);
        }
        // Too short to be seen.
        one.transmit(other.address(), b"short", b"");
        one.transmit(other.address(), b"is not seen past it", b"");
        one.flush().expect("the wire works");
        for packets_max in [0, 1, 3, 64] {
            let mut seen = Vec::new();
            let packets = other.look_ahead(packets_max, |beginning| seen.push(beginning));
            assert_eq!(packets, seen.len());
            assert!(
                [0, packets_max.min(5)].contains(&packets),
                "{packets} of {packets_max}"
            );
            for (number, beginning) in seen.iter().enumerate() {
                let [first, rest @ ..] = beginning;
                assert_eq!((*first, rest), (round, &[number as u8; LOOK_BYTES - 1]));
            }
        }
        assert_eq!(receive_some(&mut other, 7).len(), 7, "in round {round}");
    }
    assert_eq!(other.look_ahead(8, |_| {}), 0);
}

fn waiting_ends_when_a_packet_is_there_or_time_is_up<W: Wire>((mut one, mut other): (W, W)) {
    let before = Instant::now();
    other
        .wait(Some(Duration::from_millis(20)))
        .expect("the wire works");
    assert!(before.elapsed() >= Duration::from_millis(10), "it did not wait");
    one.transmit(other.address(), b"x", b"");
    one.flush().expect("the wire works");
    // Without a limit: this test ends only if the packet ends it.
    other.wait(None).expect("the wire works");
    assert_eq!(receive_some(&mut other, 1).len(), 1);
}
