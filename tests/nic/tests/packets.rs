//! The NIC's packets are those of the software transport: its golden packets are taken as they are, and what the NIC sends is what software
//! writes of the same fields.

use provost_datagram::Checking;
use provost_datagram::packet::{Body, Flags, Head, Header, Kind, Packet, Prefix};
use provost_nic::registers::CounterName;
use provost_nic::{Balance, EntryKind};
use provost_nic_tests::rig::{CLIENT, LOCAL_TOKEN, NicRig, PEER, REMOTE, SERVER};
use provost_nic_tests::{SeededRandom, say_skipped};

const GOLDEN: &str = include_str!("../../../crates/core/datagram/tests/golden/packets.txt");

fn rig(checking: Checking) -> Option<NicRig> {
    NicRig::new(checking, Balance::Static).map_err(say_skipped).ok()
}

/// Name and bytes of each golden packet.
fn golden() -> Vec<(String, Vec<u8>)> {
    let mut packets: Vec<(String, Vec<u8>)> = Vec::new();
    for line in GOLDEN.lines() {
        let words: Result<Vec<u8>, _> = line
            .split_whitespace()
            .map(|word| u8::from_str_radix(word, 16))
            .collect();
        match words {
            Ok(bytes) if line.starts_with("  ") => {
                packets.last_mut().expect("a name goes first").1.extend(bytes)
            }
            _ if !line.starts_with(' ') => packets.push((line.into(), Vec::new())),
            _ => {}
        }
    }
    packets
}

#[test]
fn golden_packets_are_taken_for_what_software_takes_them() {
    let packets = golden();
    assert!(packets.len() >= 16, "{} packets", packets.len());
    for (name, bytes) in packets {
        for checking in [Checking::Wire, Checking::Packets] {
            let Some(mut rig) = rig(checking) else {
                return;
            };
            let counters = |rig: &mut NicRig| {
                [
                    CounterName::PacketsReceived,
                    CounterName::DroppedLength,
                    CounterName::DroppedCheck,
                    CounterName::DroppedKind,
                ]
                .map(|name| rig.counter(name))
            };
            rig.inject(&bytes);
            let expected = match Packet::parse(&bytes, checking) {
                Ok(_) => [1, 0, 0, 0],
                Err(provost_datagram::packet::Malformed::Check) => [0, 0, 1, 0],
                Err(other) => panic!("{name}: {other}"),
            };
            assert_eq!(counters(&mut rig), expected, "{name}, {checking:?}");
            // Session management is given to the host as it is.
            if bytes[0] & 15 >= 5 && bytes[0] & 15 != 13 && expected[0] == 1 {
                let received = rig.receive(0);
                assert_eq!(received.len(), 1, "{name}");
                assert_eq!(received[0].head.kind, EntryKind::Raw);
                assert_eq!(
                    (received[0].head.remote, &received[0].payload),
                    (PEER, &bytes),
                    "{name}"
                );
            }
        }
    }
}

/// Any bytes: the NIC drops what software drops, for the same reason.
#[test]
fn damaged_packets_are_dropped_for_the_reason_that_software_gives() {
    let mut random = SeededRandom::new(7);
    let Some(mut rig) = rig(Checking::Wire) else {
        return;
    };
    let (mut expected, mut taken) = ([0; 4], 0);
    let packets = golden();
    for _ in 0..400 {
        let mut bytes = packets[random.below(packets.len() as u64) as usize].1.clone();
        match random.below(4) {
            0 => bytes.truncate(random.below(bytes.len() as u64) as usize + 1),
            1 => bytes.extend((0..random.below(200)).map(|_| random.draw() as u8)),
            2 => bytes[0] = random.draw() as u8,
            _ => {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] = random.draw() as u8;
            }
        }
        let reason = Packet::parse(&bytes, Checking::Wire)
            .err()
            .map(|reason| format!("{reason:?}"));
        let index = match reason.as_deref() {
            None => 0,
            Some("Short" | "Length") => 1,
            Some("Check") => 2,
            _ => 3,
        };
        expected[index] += 1;
        rig.inject(&bytes);
        taken += rig.receive(0).len();
    }
    let counted = [
        CounterName::PacketsReceived,
        CounterName::DroppedLength,
        CounterName::DroppedCheck,
        CounterName::DroppedKind,
    ]
    .map(|name| rig.counter(name));
    assert_eq!(counted, expected);
    assert!(
        expected.iter().all(|count| *count > 0),
        "each reason happened: {expected:?}"
    );
    assert!(taken > 0);
}

fn header(kind: Kind, flags: Flags, slot: u8, call: u32, packet: u16) -> Header {
    Header {
        kind,
        flags,
        slot,
        session: REMOTE.0,
        token: REMOTE.1,
        call,
        packet,
    }
}

fn sealed(head: Head, payload: &[u8], checking: Checking) -> Vec<u8> {
    [head.seal(payload, checking).bytes(), payload].concat()
}

/// Bytes of a request whose check would be zero.
const ZERO_CHECK: usize = 200;

#[test]
fn what_the_nic_sends_is_what_software_writes() {
    for checking in [Checking::Wire, Checking::Packets] {
        let Some(mut rig) = rig(checking) else {
            return;
        };
        // Requests of every length in lines, and the lengths around.
        for (call, bytes) in [0, 1, 39, 40, 41, 63, 104, 105, ZERO_CHECK, 300, 399, 400]
            .into_iter()
            .enumerate()
        {
            let mut payload: Vec<u8> = (0..bytes).map(|at| at as u8 ^ 0x33).collect();
            let prefix = Prefix {
                message_bytes: bytes as u32,
                code: 9,
                held: 0,
            };
            let call = call as u32 + 1;
            let head = || Head::of_data(&header(Kind::Request, Flags::NONE, 0, call, 0), &prefix);
            if bytes == ZERO_CHECK {
                // A word that takes the check's place in the sum: then that is zero, which says that there is none.
                payload[..2].fill(0);
                let check = sealed(head(), &payload, checking)[14..16].to_vec();
                payload[..2].copy_from_slice(&check);
            }
            rig.send(0, EntryKind::Request, CLIENT, 9, u64::from(call) - 1, &payload);
            rig.settle();
            let expected = sealed(head(), &payload, checking);
            if bytes == ZERO_CHECK && checking == Checking::Packets {
                assert_eq!(expected[14..16], [0xff; 2]);
            }
            let sent = rig.sent();
            assert_eq!(sent.len(), 1);
            assert_eq!(
                (sent[0].remote, &sent[0].bytes),
                (PEER, &expected),
                "{bytes} bytes"
            );
            // The peer's response makes the slot free.
            let response = Header {
                session: CLIENT,
                token: LOCAL_TOKEN,
                ..header(Kind::Response, Flags::NONE, 0, call, 0)
            };
            rig.inject(&sealed(Head::of_data(&response, &prefix), &payload, checking));
            let received = rig.receive(0);
            assert_eq!(received.len(), 1);
            assert_eq!(
                (received[0].head.kind, &received[0].payload),
                (EntryKind::Response, &payload)
            );
            assert_eq!(
                (received[0].head.code, received[0].head.tag),
                (9, u64::from(call) - 1)
            );
        }
        // A request that comes again while it is handled, and its response.
        let request = NicRig::request(3, 1, 5, b"question", checking);
        rig.inject(&request);
        let delivered = rig.receive(0);
        assert_eq!(
            (delivered.len(), &*delivered[0].payload, delivered[0].head.code),
            (1, &b"question"[..], 5)
        );
        rig.inject(&request);
        let credit_return = Head::bare(&header(Kind::CreditReturn, Flags::UNTIMED, 3, 1, 1));
        assert_eq!(rig.sent()[0].bytes, sealed(credit_return, &[], checking));
        rig.send(
            0,
            EntryKind::Response,
            SERVER,
            6,
            delivered[0].head.tag,
            b"answer",
        );
        rig.settle();
        let sent = rig.sent();
        let Ok(Packet {
            header: sent_header,
            body: Body::Data(prefix, payload),
        }) = Packet::parse(&sent[0].bytes, checking)
        else {
            panic!("not a response: {sent:?}");
        };
        assert_eq!(sent_header, header(Kind::Response, Flags::NONE, 3, 1, 0));
        assert_eq!(
            (payload, prefix.code, prefix.message_bytes),
            (&b"answer"[..], 6, 6)
        );
        assert!(prefix.held > 0, "the host had the call for more than 64 ns");
        // Ping and Pong; a stranger is told that nobody here knows the session.
        let mut ping = header(Kind::Ping, Flags::NONE, 0, 0, 0);
        (ping.session, ping.token) = (SERVER, LOCAL_TOKEN);
        rig.inject(&sealed(Head::bare(&ping), &[], checking));
        ping.token ^= 1;
        rig.inject(&sealed(Head::bare(&ping), &[], checking));
        let pong = Head::bare(&header(Kind::Pong, Flags::NONE, 0, 0, 0));
        let unknown = Head::bare(&Header::of_session(Kind::Unknown, SERVER, LOCAL_TOKEN ^ 1));
        let expected = [pong, unknown].map(|head| sealed(head, &[], checking));
        assert_eq!(
            rig.sent()
                .into_iter()
                .map(|packet| packet.bytes)
                .collect::<Vec<_>>(),
            expected
        );
    }
}
