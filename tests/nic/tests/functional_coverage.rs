//! Situations within the NIC, module by module (`hw/bench/nic_covered.sv` lists them): calls between NICs over wires that do harm, and what hosts and
//! peers do seldom or wrongly, together bring about all but eight. Calls over a good wire do not, and the check says so.

use std::collections::BTreeSet;

use provost_datagram::Checking;
use provost_datagram::packet::{Flags, Head, Header, Kind, Packet, Prefix};
use provost_nic::registers;
use provost_nic::{
    Balance, Board, COMMAND_CLOSE, ConnectionRole, EntryKind, FetchMode, LINE_BYTES, MessageAreas, RingDriver,
};
use provost_nic_model::{HostTiming, WirePacket};
use provost_nic_tests::rig::{CLIENT, LOCAL_TOKEN, NicRig, PEER, SERVER};
use provost_nic_tests::{
    CallPattern, HostKind, ModuleCoverage, SeededRandom, WireFaults, World, WorldConfig, model_or_skip,
    nic_config, nic_config_with_areas,
};

/// Modules whose situations their own tests count: `--test modules` and `--test clocks`. Of packages there are none, and the NIC with several clocks is
/// made of modules that are listed.
const TESTED_ALONE: [&str; 15] = [
    "bus_crossing",
    "clock_fifo",
    "clocked_nic",
    "connection_cache",
    "gray_counter",
    "gray_synchronizer",
    "host_crossing",
    "load_balancer",
    "nic_pkg",
    "nic_registers_pkg",
    "packet_fifo",
    "receive_credits",
    "server_slot",
    "token_buckets",
    "wire_crossing",
];

/// What these do not bring about: simulated memory takes a line in each cycle, so nothing piles up behind it; and no response comes in the few cycles in
/// which its request is sent again.
const NOT_BROUGHT_ABOUT: [(&str, &str); 8] = [
    (
        "call_table",
        "a buffer is free as its packet has left, its call having ended",
    ),
    ("call_table", "a call ends while it is sent again"),
    ("fifo", "full"),
    ("host_port", "as many reads out as can be"),
    ("order_queue", "no room for two long orders"),
    ("order_queue", "no room for two packets to send"),
    ("rx_writer", "a line is waited for"),
    ("transport_core", "an event waits for the queues"),
];

const FAULTS: WireFaults = WireFaults {
    loss: 30,
    duplication: 20,
    reordering: 30,
    corruption: 20,
};

/// Calls between two NICs.
fn calls(
    coverage: &mut ModuleCoverage,
    nic: provost_nic_host::HostConfig,
    (sessions, calls, bytes_max): (usize, u64, usize),
    faults: WireFaults,
) {
    let config = WorldConfig {
        seed: 7,
        hosts: [HostKind::Nic; 2],
        faults,
        sessions,
        pattern: CallPattern { bytes_max },
        nic: [nic.clone(), nic],
        timing: HostTiming::default(),
    };
    let mut world = World::new(config).expect("there is a model");
    world.connect();
    world.call(calls);
    world.disconnect();
    (0..2)
        .filter_map(|side| world.nic(side))
        .for_each(|nic| coverage.add(nic));
}

fn rig(balance: Balance) -> NicRig {
    NicRig::new(Checking::Wire, balance).expect("there is a model")
}

/// Has packets arrive back to back.
fn arrive(rig: &mut NicRig, packets: impl IntoIterator<Item = Vec<u8>>) {
    for bytes in packets {
        rig.nic.inject(WirePacket { remote: PEER, bytes });
    }
    while rig.nic.arriving() > 0 {
        rig.nic.step();
    }
}

/// A packet of the peer that begins as a request does.
fn packet(
    kind: Kind,
    (slot, session, call, number): (u8, u16, u32, u16),
    message_bytes: u32,
    payload: &[u8],
) -> Vec<u8> {
    let header = Header {
        kind,
        flags: Flags::NONE,
        slot,
        session,
        token: LOCAL_TOKEN,
        call,
        packet: number,
    };
    let prefix = Prefix {
        message_bytes,
        code: 0,
        held: 0,
    };
    let head = Head::of_data(&header, &prefix).seal(payload, Checking::Wire);
    [head.bytes(), payload].concat()
}

/// Policies: rules of a field and of the key's hash, keys at all offsets, and a bucket that is empty.
fn policies(coverage: &mut ModuleCoverage) {
    let mut rig = rig(Balance::ObjectKey);
    rig.load(SERVER, ConnectionRole::Server, Balance::ObjectKey, 2);
    rig.nic.write_register(registers::rule_control(0), 1 | 4);
    rig.nic.write_register(registers::rule_high(0), 1);
    rig.nic.write_register(registers::rule_control(3), 1 | 2 | 4);
    rig.nic.write_register(registers::rule_low(3), 1);
    rig.nic.write_register(registers::rule_high(3), 3);
    rig.nic.write_register(registers::bucket_period(2), 50_000);
    rig.nic.write_register(registers::bucket_burst(2), 12);
    rig.nic.skip_to(1_000_000);
    rig.settle();
    let mut calls = 0;
    for offset in [0, 8, 30] {
        rig.nic.write_register(registers::KEY_OFFSET, offset);
        for key in 0..16u64 {
            let (slot, call) = (calls % 8, calls / 8 + 1);
            calls += 1;
            let payload = [&key.to_le_bytes()[..], &key.to_le_bytes(), &[3; 24]].concat();
            let request = NicRig::request(slot as u8, call, 1, &payload, Checking::Wire);
            rig.inject(&request);
            // Asked again: what was denied stays denied, what is under way does not.
            rig.inject(&request);
            for flow in 0..4 {
                for received in rig.receive(flow) {
                    rig.send(flow, EntryKind::Response, SERVER, 0, received.head.tag, b"yes");
                    rig.settle();
                }
            }
        }
    }
    coverage.add(&rig.nic);
}

/// Entries of any content, in all flows at once, and entries of all kinds that make sense.
fn entries(coverage: &mut ModuleCoverage) {
    for seed in 0..4 {
        let mut rig = rig(Balance::Static);
        let mut random = SeededRandom::new(seed);
        let bases: Vec<u32> = rig.rings.iter().map(|ring| ring.shape().base).collect();
        for (slot, base) in (0..16).flat_map(|slot| bases.iter().map(move |base| (slot, base))) {
            let mut line = [0; LINE_BYTES];
            line.fill_with(|| random.draw() as u8);
            if random.chance(700) {
                line[0] = 1 + (random.below(3) as u8 + 1) * 16;
                line[2..6].copy_from_slice(&[
                    random.draw() as u8,
                    random.below(2) as u8,
                    1 + random.below(2) as u8,
                    0,
                ]);
                line[16..22].fill(0);
            }
            line[0] |= 1;
            rig.nic.write_line(base + (slot << 3), &line);
        }
        for _ in 0..6 {
            rig.settle();
            (0..4).for_each(|flow| drop(rig.receive(flow)));
        }
        coverage.add(&rig.nic);
    }
}

/// What the host does seldom: it pushes to no flow, writes registers of none, starts a flow anew while its lines are read, frees what it did not get.
fn seldom(coverage: &mut ModuleCoverage) {
    let mut rig = rig(Balance::Static);
    assert!(rig.nic.push_line(7, &[1; LINE_BYTES]));
    rig.nic.write_register(registers::flow_tx_base(6), 1);
    rig.nic.write_register(registers::flow_freed(0), 60_000);
    let shape = *rig.rings[1].shape();
    rig.send(1, EntryKind::Request, CLIENT, 1, 1, &[1; 300]);
    (0..30).for_each(|_| rig.nic.step());
    rig.rings[1] = RingDriver::start(&mut rig.nic, shape).expect("as before");
    rig.settle();
    // More entries than credits are left, as nothing is freed.
    for entries in [6, 14] {
        (0..entries).for_each(|tag| rig.send(3, EntryKind::Request, 77, 1, tag, b"nobody"));
        rig.settle();
    }
    // A call is out when its connection ends.
    rig.nic.write_register(registers::TIMEOUT, 20);
    rig.send(0, EntryKind::Request, CLIENT, 1, 2, b"payload");
    rig.settle();
    let command = COMMAND_CLOSE | u32::from(CLIENT);
    rig.nic.write_register(registers::CONNECTION, command);
    (0..4).for_each(|_| rig.settle());
    coverage.add(&rig.nic);
}

/// A peer that is silent, until all tries are made; then one that answers wrongly, or just as the request is sent again.
fn silence(coverage: &mut ModuleCoverage) {
    let mut rig = rig(Balance::Static);
    rig.nic.write_register(registers::TRIES_MAX, 9);
    rig.nic.write_register(registers::TIMEOUT, 4);
    for tag in 0..10 {
        rig.send(0, EntryKind::Request, CLIENT, 1, tag, b"payload");
    }
    (0..40).for_each(|_| rig.settle());
    rig.receive(0);
    for tag in 0..60 {
        rig.sent();
        rig.send(0, EntryKind::Request, CLIENT, 1, tag, b"payload");
        (0..200).for_each(|_| rig.nic.step());
        let Some(sent) = rig.sent().pop() else {
            continue;
        };
        let Ok(request) = Packet::parse(&sent.bytes, Checking::Wire) else {
            panic!("the NIC sends whole packets");
        };
        let header = request.header;
        // Packets of strangers keep the transmitter busy, so that what is sent again waits.
        arrive(
            &mut rig,
            (0..12).map(|_| packet(Kind::Request, (0, 99, 1, 0), 1, b"x")),
        );
        (0..tag).for_each(|_| rig.nic.step());
        let said = if tag % 3 == 0 { 9 } else { 8 };
        arrive(
            &mut rig,
            [packet(
                Kind::Response,
                (header.slot, CLIENT, header.call, 0),
                said,
                &[1; 8],
            )],
        );
        rig.settle();
        rig.receive(0);
    }
    coverage.add(&rig.nic);
}

/// What peers send seldom or wrongly: Pings, strangers' packets, packets of all kinds, cut and long ones, lengths that lie, more than there is room for.
fn peers(coverage: &mut ModuleCoverage) {
    let mut rig = rig(Balance::Static);
    let areas = MessageAreas {
        base: 8_192,
        lines_log2: 6,
    };
    assert!(areas.announce(&mut rig.nic));
    rig.inject(&packet(Kind::Request, (0, SERVER, 1, 0), 2_000, &[1; 17]));
    let good = NicRig::request(0, 1, 1, b"once", Checking::Wire);
    for kind in 0..16 {
        for bytes in [1, 8, 16, 17, 24, 32, 65, 129, 2_100] {
            let mut changed = good.clone();
            changed[0] = kind;
            changed.resize(bytes, 3);
            rig.inject(&changed);
        }
        (0..4).for_each(|flow| drop(rig.receive(flow)));
    }
    let ping = Header {
        kind: Kind::Ping,
        flags: Flags::NONE,
        slot: 0,
        session: SERVER,
        token: LOCAL_TOKEN,
        call: 0,
        packet: 0,
    };
    rig.inject(Head::bare(&ping).seal(&[], Checking::Wire).bytes());
    arrive(
        &mut rig,
        (0..60).map(|_| packet(Kind::Request, (0, 99, 1, 0), 1, b"x")),
    );
    arrive(
        &mut rig,
        (0..300).map(|_| packet(Kind::Response, (0, CLIENT, 9, 0), 50, &[1; 50])),
    );
    rig.settle();
    // A request whose host answers after a second.
    rig.inject(&good);
    for received in rig.receive(0) {
        let ticks = rig.nic.ticks();
        rig.nic.skip_to(ticks + 1_000_000_000 / 64);
        rig.send(0, EntryKind::Response, SERVER, 0, received.head.tag, b"at last");
        rig.settle();
    }
    // A host that frees nothing.
    for number in 1..40 {
        rig.inject(&NicRig::request(1, number, 1, b"x", Checking::Wire));
        while let Some(received) = rig.rings[0].receive(&mut rig.nic) {
            rig.send(2, EntryKind::Response, SERVER, 0, received.head.tag, b"");
            rig.settle();
        }
    }
    coverage.add(&rig.nic);
}

fn all() -> ModuleCoverage {
    let mut coverage = ModuleCoverage::default();
    for fetch in [FetchMode::Polled, FetchMode::Doorbell, FetchMode::Push] {
        calls(
            &mut coverage,
            nic_config_with_areas(fetch),
            (6, 150, 7_000),
            FAULTS,
        );
    }
    // More connections than the cache has lines.
    calls(
        &mut coverage,
        nic_config(FetchMode::Polled),
        (100, 400, 900),
        FAULTS,
    );
    policies(&mut coverage);
    entries(&mut coverage);
    seldom(&mut coverage);
    silence(&mut coverage);
    peers(&mut coverage);
    coverage
}

#[test]
fn all_situations_come_up_but_those_that_are_listed() {
    if model_or_skip("nic").is_none() {
        return;
    }
    let coverage = all();
    print!("{coverage}");
    assert_eq!(coverage.missing(), NOT_BROUGHT_ABOUT);
    let rtl = concat!(env!("CARGO_MANIFEST_DIR"), "/../../hw/rtl");
    let files = std::fs::read_dir(rtl).expect("the RTL is in the repository");
    let files = files.map(|file| file.expect("it can be read").path());
    let modules: BTreeSet<String> = files
        .filter_map(|file| Some(file.file_stem()?.to_str()?.to_string()))
        .collect();
    let counted = coverage.modules().chain(TESTED_ALONE).map(String::from).collect();
    assert_eq!(
        modules, counted,
        "each module has situations, here or in a test of its own"
    );
}

#[test]
fn calls_over_a_good_wire_are_not_enough() {
    if model_or_skip("nic").is_none() {
        return;
    }
    let mut coverage = ModuleCoverage::default();
    calls(
        &mut coverage,
        nic_config(FetchMode::Polled),
        (3, 100, 900),
        WireFaults::default(),
    );
    let missing = coverage.missing();
    for seldom in [
        ("access_list", "a range denies"),
        ("call_table", "a request is sent again"),
        ("packet_rx", "a packet too long"),
        ("receive_order", "a request of several packets"),
        ("tx_poller", "an entry is pushed"),
    ] {
        assert!(missing.contains(&seldom), "{seldom:?} came up: {missing:?}");
    }
    assert!(!missing.contains(&("receive_order", "a request of one packet")));
}
