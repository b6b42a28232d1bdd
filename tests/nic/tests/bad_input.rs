//! What hosts and peers do wrong is counted and refused; nothing hangs, and other flows go on.

use provost_datagram::Checking;
use provost_datagram::packet::{Flags, Head, Header, Kind, Packet, Prefix};
use provost_nic::registers::{self, CounterName};
use provost_nic::{Balance, Board, EntryHead, EntryKind, LINE_BYTES, Line};
use provost_nic_tests::rig::{CLIENT, LOCAL_TOKEN, NicRig, SERVER};
use provost_nic_tests::{SeededRandom, say_skipped};

fn rig(balance: Balance) -> Option<NicRig> {
    NicRig::new(Checking::Wire, balance).map_err(say_skipped).ok()
}

const DESCRIPTOR: u16 = 1;
const CONNECTION: u16 = 2;
const BUSY: u16 = 3;
const STALE: u16 = 4;
const TIMEOUT: u16 = 5;
const TOO_LARGE: u16 = 6;

/// Writes a slot of flow 1's transmit ring as it stands, past the driver's checks.
fn write_slot(rig: &mut NicRig, slot: u32, mut line: Line) {
    line[0] |= 1;
    rig.nic.write_line(rig.rings[1].shape().base + (slot << 3), &line);
}

#[test]
fn entries_that_lie_are_refused_and_the_other_flows_go_on() {
    let Some(mut rig) = rig(Balance::Static) else {
        return;
    };
    let head = |kind, bytes, connection, tag| EntryHead {
        kind,
        bytes,
        connection,
        code: 1,
        tag,
        remote: 0,
    };
    // A packet of a message: its number, and the message's bytes.
    let part = |kind, bytes, connection, tag, packet: u64, message: u64| {
        let remote = packet << 32 | message;
        let head = head(kind, bytes, connection, tag);
        EntryHead { remote, ..head }.encode(true, b"")
    };
    let kind_of_nobody = {
        let mut line = head(EntryKind::Request, 8, CLIENT, 0).encode(true, b"");
        line[0] = 0xe1;
        line
    };
    let bad = [
        (kind_of_nobody, DESCRIPTOR),
        // Longer than the slot; than anything.
        (
            head(EntryKind::Request, 1_100, CLIENT, 1).encode(true, b""),
            DESCRIPTOR,
        ),
        (
            head(EntryKind::Request, 65_535, CLIENT, 2).encode(true, b""),
            DESCRIPTOR,
        ),
        (head(EntryKind::Raw, 3, CLIENT, 3).encode(true, b""), DESCRIPTOR),
        // Longer than the session takes; of no connection; in the wrong direction; of no request.
        (
            head(EntryKind::Request, 401, CLIENT, 4).encode(true, b""),
            TOO_LARGE,
        ),
        (head(EntryKind::Request, 8, 77, 5).encode(true, b""), CONNECTION),
        (
            head(EntryKind::Request, 8, SERVER, 6).encode(true, b""),
            CONNECTION,
        ),
        (
            head(EntryKind::Response, 8, CLIENT, 7).encode(true, b""),
            CONNECTION,
        ),
        (head(EntryKind::Response, 8, SERVER, 8).encode(true, b""), STALE),
        (
            head(EntryKind::Response, 8, SERVER, u64::MAX).encode(true, b""),
            STALE,
        ),
        // A message of more than seven packets, or of fewer bytes than this one; a request that begins in its middle; an eighth packet; one of no
        // request.
        (part(EntryKind::Request, 400, CLIENT, 9, 0, 2_801), TOO_LARGE),
        (part(EntryKind::Request, 400, CLIENT, 10, 0, 399), TOO_LARGE),
        (part(EntryKind::Request, 400, CLIENT, 11, 1, 800), TOO_LARGE),
        (part(EntryKind::Fragment, 400, CLIENT, 12, 7, 2_800), TOO_LARGE),
        (part(EntryKind::Fragment, 400, CLIENT, 13, 1, 800), STALE),
        (part(EntryKind::Fragment, 400, SERVER, 14, 1, 800), CONNECTION),
    ];
    for (slot, (line, _)) in bad.iter().enumerate() {
        write_slot(&mut rig, slot as u32, *line);
    }
    // An entry of several lines ends its batch.
    rig.settle();
    rig.settle();
    let refused = rig.receive(1);
    let codes: Vec<u16> = refused.iter().map(|received| received.head.code).collect();
    assert!(
        refused
            .iter()
            .all(|received| received.head.kind == EntryKind::Error)
    );
    assert_eq!(codes, bad.map(|(_, code)| code));
    assert_eq!(rig.counter(CounterName::EntriesRefused), bad.len() as u32);
    assert_eq!(rig.sent(), []);
    // Flow 0 has noticed nothing.
    rig.send(0, EntryKind::Request, CLIENT, 1, 9, b"payload");
    rig.settle();
    assert_eq!(rig.sent().len(), 1);
}

#[test]
fn any_lines_in_a_transmit_ring_are_taken_or_refused_and_nothing_hangs() {
    for seed in 0..20 {
        let Some(mut rig) = rig(Balance::Static) else {
            return;
        };
        let mut random = SeededRandom::new(seed);
        for slot in 0..16 {
            let mut line = [0; LINE_BYTES];
            line.fill_with(|| random.draw() as u8);
            // Half have a kind and a connection that are known.
            if random.chance(500) {
                line[0] = 1 + random.below(3) as u8 * 16 + 16;
                line[2..6].copy_from_slice(&[random.draw() as u8, 0, 1 + random.below(2) as u8, 0]);
            }
            write_slot(&mut rig, slot, line);
        }
        for _ in 0..4 {
            rig.settle();
            rig.receive(1);
        }
        assert_eq!(rig.counter(CounterName::EntriesTaken), 16, "seed {seed}");
        rig.sent();
        rig.send(0, EntryKind::Request, CLIENT, 1, 9, b"payload");
        rig.settle();
        let went = rig.sent().len() + rig.receive(0).len();
        assert_eq!(
            went, 1,
            "seed {seed}: flow 0 sends, or is told that the slots are taken"
        );
    }
}

#[test]
fn a_host_that_does_not_free_its_ring_loses_no_request_and_holds_nobody_up() {
    let Some(mut rig) = rig(Balance::ObjectKey) else {
        return;
    };
    // Keys by the flow that they go to.
    let mut keys = [None; 4];
    for (call, key) in (0..24u64).enumerate() {
        rig.inject(&NicRig::request(
            (call % 8) as u8,
            call as u32 / 8 + 1,
            1,
            &key.to_le_bytes(),
            Checking::Wire,
        ));
        for (flow, found) in keys.iter_mut().enumerate() {
            for received in rig.receive(flow) {
                *found = Some(key);
                rig.send(flow, EntryKind::Response, SERVER, 0, received.head.tag, b"");
            }
        }
        rig.settle();
    }
    let [Some(stuck), Some(free), ..] = keys else {
        panic!("keys for both flows: {keys:?}");
    };
    // Flow 0's host answers, by another flow, and never frees. Its ring has 16 slots, one of which is left to entries.
    let mut tags = Vec::new();
    let mut last = None;
    for call in 4..40 {
        let slot = 0;
        rig.inject(&NicRig::request(
            slot,
            call,
            1,
            &stuck.to_le_bytes(),
            Checking::Wire,
        ));
        let Some(received) = rig.rings[0].receive(&mut rig.nic) else {
            last = Some(call);
            break;
        };
        tags.push(received.head.tag);
        rig.send(2, EntryKind::Response, SERVER, 0, received.head.tag, b"");
        rig.settle();
    }
    let last = last.expect("the ring fills up");
    assert_eq!(tags.len(), 15);
    assert!(rig.counter(CounterName::DroppedRoom) > 0);
    // Flow 1 goes on.
    rig.inject(&NicRig::request(1, 4, 1, &free.to_le_bytes(), Checking::Wire));
    assert_eq!(rig.receive(1).len(), 1);
    // Once it frees, the client's next try is delivered.
    rig.rings[0].flush(&mut rig.nic);
    rig.inject(&NicRig::request(0, last, 1, &stuck.to_le_bytes(), Checking::Wire));
    assert_eq!(rig.receive(0).len(), 1);
}

#[test]
fn a_host_that_frees_what_it_did_not_get_is_counted_and_ignored() {
    let Some(mut rig) = rig(Balance::Static) else {
        return;
    };
    rig.nic.write_register(registers::flow_freed(0), 1);
    rig.nic.write_register(registers::flow_freed(0), 60_000);
    assert_eq!(rig.counter(CounterName::CreditsForged), 2);
    for call in 1..=20 {
        let slot = (call % 8) as u8;
        rig.inject(&NicRig::request(
            slot,
            (call - 1) / 8 + 1,
            1,
            b"x",
            Checking::Wire,
        ));
    }
    assert!(
        rig.counter(CounterName::RequestsDelivered) <= 15,
        "no more than the ring has"
    );
}

#[test]
fn more_calls_than_slots_are_refused_and_a_silent_peer_fails_calls_after_all_tries() {
    let Some(mut rig) = rig(Balance::Static) else {
        return;
    };
    rig.nic.write_register(registers::TIMEOUT, 20);
    rig.nic.write_register(registers::TRIES_MAX, 3);
    for tag in 0..10 {
        rig.send(0, EntryKind::Request, CLIENT, 1, tag, b"payload");
    }
    for _ in 0..20 {
        rig.settle();
    }
    let mut codes: Vec<(u64, u16)> = rig
        .receive(0)
        .iter()
        .map(|received| (received.head.tag, received.head.code))
        .collect();
    codes.sort_unstable();
    let expected: Vec<(u64, u16)> = (0..10)
        .map(|tag| (tag, if tag < 8 { TIMEOUT } else { BUSY }))
        .collect();
    assert_eq!(codes, expected);
    assert_eq!(rig.counter(CounterName::Retransmissions), 24);
    assert_eq!(rig.sent().len(), 32);
    assert_eq!(rig.counter(CounterName::CallsFailed), 8);
    // The slots are free again.
    rig.send(0, EntryKind::Request, CLIENT, 1, 11, b"payload");
    rig.settle();
    assert!(!rig.sent().is_empty());
}

#[test]
fn packets_of_strangers_and_of_other_calls_change_nothing() {
    let Some(mut rig) = rig(Balance::Static) else {
        return;
    };
    let good = NicRig::request(0, 1, 1, b"once", Checking::Wire);
    let mut changed = Vec::new();
    // Another slot than there are, session, token, a call that is not the next, a later packet, another length of the message.
    for (at, value) in [(1, 8), (2, 9), (4, 0), (8, 3), (12, 1), (16, 9)] {
        let mut bytes = good.clone();
        bytes[at] = value;
        changed.push(bytes);
    }
    for bytes in &changed {
        rig.inject(bytes);
    }
    assert_eq!(rig.receive(0), []);
    let dropped = rig.counter(CounterName::DroppedToken) + rig.counter(CounterName::DroppedProtocol);
    assert_eq!(dropped, changed.len() as u32);
    // The request itself is delivered, once.
    for _ in 0..3 {
        rig.inject(&good);
    }
    assert_eq!(rig.receive(0).len(), 1);
}

/// The peer's response to the call that a request packet of the NIC began.
fn response_to(request: &[u8], payload: &[u8]) -> Vec<u8> {
    let Ok(packet) = Packet::parse(request, Checking::Wire) else {
        panic!("the NIC sends whole packets");
    };
    let header = Header {
        kind: Kind::Response,
        flags: Flags::NONE,
        session: CLIENT,
        token: LOCAL_TOKEN,
        ..packet.header
    };
    let prefix = Prefix {
        message_bytes: payload.len() as u32,
        code: 0,
        held: 0,
    };
    let head = Head::of_data(&header, &prefix).seal(payload, Checking::Wire);
    [head.bytes(), payload].concat()
}

/// Makes a call from a flow, and has its response arrive.
fn call(rig: &mut NicRig, flow: usize, tag: u64) {
    rig.send(flow, EntryKind::Request, CLIENT, 1, tag, b"payload");
    rig.settle();
    let sent = rig.sent();
    assert_eq!(sent.len(), 1, "call {tag}");
    rig.inject(&response_to(&sent[0].bytes, &tag.to_le_bytes()));
}

#[test]
fn a_host_that_stops_polling_loses_no_response_and_holds_nobody_up() {
    let Some(mut rig) = rig(Balance::Static) else {
        return;
    };
    // Flow 1's host makes as many calls as its ring has slots, and looks at none of what comes.
    for tag in 0..16 {
        call(&mut rig, 1, tag);
    }
    // The NIC takes no entry that it could not answer.
    rig.send(1, EntryKind::Request, CLIENT, 1, 16, b"payload");
    rig.settle();
    assert_eq!(rig.sent(), []);
    // Flow 2 goes on, for several laps of its ring.
    for tag in 100..150 {
        call(&mut rig, 2, tag);
        let received = rig.receive(2);
        assert_eq!(received.len(), 1);
        assert_eq!(
            (received[0].head.tag, &received[0].payload[..]),
            (tag, &tag.to_le_bytes()[..])
        );
    }
    // When its host looks again, everything is there, and the last call begins.
    let tags: Vec<u64> = rig.receive(1).iter().map(|received| received.head.tag).collect();
    assert_eq!(tags, (0..16).collect::<Vec<u64>>());
    rig.settle();
    assert_eq!(rig.sent().len(), 1);
}

#[test]
fn corrupted_packets_cost_the_requests_among_them_nothing() {
    let Some(mut rig) = NicRig::new(Checking::Packets, Balance::ObjectKey)
        .map_err(say_skipped)
        .ok()
    else {
        return;
    };
    let mut random = SeededRandom::new(3);
    let (mut delivered, mut damaged) = (Vec::new(), 0);
    for number in 0..200u64 {
        let (slot, call) = ((number % 8) as u8, (number / 8) as u32 + 1);
        let request = NicRig::request(slot, call, 1, &number.to_le_bytes(), Checking::Packets);
        for _ in 0..random.below(4) {
            let mut bytes = request.clone();
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] ^= 1 + random.below(255) as u8;
            // Some are cut, some have a tail of several lines.
            match random.below(3) {
                0 => bytes.truncate(at + 1),
                1 => bytes.resize(bytes.len() + random.below(2_500) as usize, 7),
                _ => {}
            }
            rig.inject(&bytes);
            damaged += 1;
        }
        rig.inject(&request);
        for flow in 0..4 {
            for received in rig.receive(flow) {
                delivered.push(u64::from_le_bytes(received.payload[..].try_into().unwrap()));
                rig.send(flow, EntryKind::Response, SERVER, 0, received.head.tag, b"");
                rig.settle();
            }
        }
    }
    assert_eq!(delivered, (0..200).collect::<Vec<u64>>());
    let dropped = [
        CounterName::DroppedCheck,
        CounterName::DroppedLength,
        CounterName::DroppedKind,
    ];
    let dropped: u32 = dropped.map(|name| rig.counter(name)).iter().sum();
    assert!(damaged > 200 && dropped == damaged, "{dropped} of {damaged}");
}
