//! Policies in the NIC: the access list, token buckets and load balancing, before the receive ring is written.

use provost_datagram::Checking;
use provost_datagram::packet::{Body, Kind, Packet};
use provost_nic::registers::{self, CounterName};
use provost_nic::{Balance, Board, ConnectionRole, EntryKind};
use provost_nic_tests::rig::{NicRig, SERVER};
use provost_nic_tests::say_skipped;

const PERMISSION_DENIED: u16 = 7;
const RESOURCE_EXHAUSTED: u16 = 8;

fn rig(balance: Balance) -> Option<NicRig> {
    NicRig::new(Checking::Wire, balance).map_err(say_skipped).ok()
}

/// The statuses of the responses that the NIC has sent.
fn statuses(rig: &mut NicRig) -> Vec<u16> {
    let packets = rig.sent();
    let status = |bytes: &[u8]| match Packet::parse(bytes, Checking::Wire) {
        Ok(Packet {
            header,
            body: Body::Data(prefix, payload),
        }) if header.kind == Kind::Response && payload.is_empty() => Some(prefix.code),
        _ => None,
    };
    packets
        .iter()
        .filter_map(|packet| status(&packet.bytes))
        .collect()
}

fn ask(rig: &mut NicRig, slot: u8, call: u32, method: u16, payload: &[u8]) {
    rig.inject(&NicRig::request(slot, call, method, payload, Checking::Wire));
}

fn delivered(rig: &mut NicRig) -> Vec<Vec<usize>> {
    (0..4)
        .map(|flow| {
            rig.receive(flow)
                .iter()
                .map(|received| received.payload.len())
                .collect()
        })
        .collect()
}

#[test]
fn the_access_list_denies_a_range_of_a_field_for_one_method_and_answers_repeats_alike() {
    let Some(mut rig) = rig(Balance::Static) else {
        return;
    };
    // Of method 5, a field at offset 4 from 100 to 200.
    rig.nic
        .write_register(registers::rule_control(0), 1 | 4 << 3 | 5 << 16);
    rig.nic.write_register(registers::rule_low(0), 100);
    rig.nic.write_register(registers::rule_high(0), 200);
    let request = |field: u32| [&[0; 4][..], &field.to_le_bytes(), &[1; 8]].concat();
    let (mut call, mut denied) = (0, 0);
    for (method, field, passes) in [
        (5, 99, true),
        (5, 100, false),
        (5, 150, false),
        (6, 150, true),
        (5, 200, false),
        (5, 201, true),
    ] {
        call += 1;
        ask(&mut rig, 0, call, method, &request(field));
        let received = rig.receive(0);
        assert_eq!(
            received.len(),
            usize::from(passes),
            "method {method}, field {field}"
        );
        if passes {
            rig.send(0, EntryKind::Response, SERVER, 0, received[0].head.tag, b"yes");
            rig.settle();
            assert_eq!(statuses(&mut rig), []);
        } else {
            denied += 1;
            assert_eq!(statuses(&mut rig), [PERMISSION_DENIED]);
            ask(&mut rig, 0, call, method, &request(field));
            assert_eq!(statuses(&mut rig), [PERMISSION_DENIED]);
            assert_eq!(rig.receive(0), []);
        }
    }
    assert_eq!(rig.counter(CounterName::RequestsDenied), 2 * denied);
    assert_eq!(rig.counter(CounterName::RequestsDelivered), 3);
}

#[test]
fn the_access_list_denies_by_the_hash_of_the_key() {
    let Some(mut rig) = rig(Balance::Static) else {
        return;
    };
    // Of any method, where the lowest two bits of the hash are 1.
    rig.nic.write_register(registers::rule_control(3), 1 | 2 | 4);
    rig.nic.write_register(registers::rule_low(3), 1);
    rig.nic.write_register(registers::rule_high(3), 3);
    let mut passed = Vec::new();
    for key in 0..64u64 {
        ask(
            &mut rig,
            (key % 8) as u8,
            key as u32 / 8 + 1,
            1,
            &key.to_le_bytes(),
        );
        let received = rig.receive(0);
        for request in &received {
            rig.send(0, EntryKind::Response, SERVER, 0, request.head.tag, b"yes");
        }
        passed.push(!received.is_empty());
        rig.settle();
    }
    let count = passed.iter().filter(|passed| **passed).count();
    assert!(
        (36..60).contains(&count),
        "about three quarters of 64 pass: {count}"
    );
}

#[test]
fn a_token_bucket_lets_its_burst_pass_and_then_one_for_each_period() {
    let Some(mut rig) = rig(Balance::Static) else {
        return;
    };
    rig.load(SERVER, ConnectionRole::Server, Balance::Static, 2);
    rig.nic.write_register(registers::bucket_burst(2), 3);
    // 1,000 ticks are 12,800 cycles.
    rig.nic.write_register(registers::bucket_period(2), 1_000);
    let wait = |rig: &mut NicRig, cycles: u64| {
        let until = rig.nic.cycle() + cycles;
        while rig.nic.cycle() < until {
            rig.nic.step();
        }
    };
    wait(&mut rig, 60_000);
    let (mut passed, began) = (0, rig.nic.cycle());
    for call in 1..=30 {
        ask(&mut rig, 0, call, 1, b"key");
        for request in rig.receive(0) {
            passed += 1;
            rig.send(0, EntryKind::Response, SERVER, 0, request.head.tag, b"yes");
        }
        rig.settle();
        assert!(
            statuses(&mut rig)
                .iter()
                .all(|status| [0, RESOURCE_EXHAUSTED].contains(status))
        );
    }
    let periods = (rig.nic.cycle() - began) / 12_800;
    let most = 3 + periods + 1;
    assert!(
        (3 + periods - 1..=most).contains(&passed),
        "{passed} passed in {periods} periods"
    );
    assert_eq!(u64::from(rig.counter(CounterName::RequestsLimited)) + passed, 30);
}

#[test]
fn requests_are_spread_as_the_connection_says() {
    let requests = |rig: &mut NicRig, key: &dyn Fn(u64) -> u64| {
        for number in 0..8u64 {
            ask(
                rig,
                number as u8,
                1,
                1,
                &[&key(number).to_le_bytes()[..], &[0; 8]].concat(),
            );
        }
        delivered(rig).iter().map(Vec::len).collect::<Vec<_>>()
    };
    for (balance, expected) in [
        (Balance::Static, vec![8, 0, 0, 0]),
        (Balance::RoundRobin, vec![2, 2, 2, 2]),
        (Balance::LeastLoaded, vec![2, 2, 2, 2]),
    ] {
        let Some(mut rig) = rig(balance) else {
            return;
        };
        assert_eq!(requests(&mut rig, &|number| number), expected, "{balance:?}");
    }
    // The same key goes to the same flow; many keys go to all.
    let mut seen = [false; 4];
    for key in 0..12 {
        let Some(mut rig) = rig(Balance::ObjectKey) else {
            return;
        };
        let counts = requests(&mut rig, &|_| key);
        assert!(counts.contains(&8), "{counts:?}");
        seen[counts.iter().position(|count| *count == 8).expect("one has all")] = true;
    }
    assert_eq!(seen, [true; 4]);
}
