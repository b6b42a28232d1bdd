//! The registers, the counters and the histogram of call times: each register that `hw/registers.toml` has is read, and compared with what the
//! test wrote or counted itself.

use std::collections::{BTreeMap, BTreeSet};

use provost_datagram::Checking;
use provost_datagram::packet::{Flags, Head, Header, Kind, Prefix};
use provost_nic::registers::{self, CounterName};
use provost_nic::{Balance, Board, COMMAND_LOAD, ConnectionRole, EntryKind, IDENTITY, LINE_BYTES};
use provost_nic_model::{HostTiming, SimulatedNic, WirePacket};
use provost_nic_tests::rig::{CLIENT, LOCAL_TOKEN, NicRig, PEER, SERVER};
use provost_nic_tests::say_skipped;

const DESCRIPTION: &str = include_str!("../../../hw/registers.toml");
/// Flows of the NIC that is tested.
const FLOWS: u16 = 4;

/// A register as the description has it.
struct DescribedRegister {
    name: String,
    access: String,
    addresses: Vec<u16>,
}

fn described() -> Vec<DescribedRegister> {
    let table: toml::Table = DESCRIPTION.parse().expect("the description is TOML");
    let registers = table["register"].as_array().expect("there are registers");
    let number = |register: &toml::Value, key: &str, otherwise: i64| {
        register
            .get(key)
            .and_then(toml::Value::as_integer)
            .unwrap_or(otherwise) as u16
    };
    let described = |register: &toml::Value| {
        let (offset, stride) = (number(register, "offset", 0), number(register, "stride", 4));
        DescribedRegister {
            name: register["name"].as_str().expect("a name").into(),
            access: register["access"].as_str().expect("an access").into(),
            addresses: (0..number(register, "array", 1))
                .map(|at| offset + at * stride)
                .collect(),
        }
    };
    registers.iter().map(described).collect()
}

/// What is read of a register after this was written.
fn kept(name: &str, index: u16, written: u32) -> u32 {
    match name {
        _ if name.starts_with("FLOW_") && index >= FLOWS => 0,
        "FLOW_DOORBELL" | "FLOW_FREED" => written & 0xffff,
        _ => written,
    }
}

#[test]
fn every_register_reads_as_described_and_holds_what_was_written_to_it_alone() {
    let nic = SimulatedNic::new(1 << 14, HostTiming::default()).map_err(say_skipped);
    let Ok(mut nic) = nic else {
        return;
    };
    let all = described();
    let mut read = BTreeSet::new();
    let mut expect = |nic: &mut SimulatedNic, name: &str, address: u16, expected: u32| {
        read.insert(address);
        assert_eq!(nic.read_register(address), expected, "{name} at {address:#x}");
    };
    // After the reset, and what does not change by writes.
    for register in &all {
        for (index, address) in register.addresses.iter().enumerate() {
            let value = match &*register.name {
                "IDENTITY" => IDENTITY,
                "PARAMETERS" => {
                    u32::from(FLOWS) | 64 << 8 | (LINE_BYTES as u32 / 64).ilog2() << 20 | 32 << 24
                }
                "TIMEOUT" => 15_625,
                "TRIES_MAX" => 10,
                _ => 0,
            };
            expect(&mut nic, &register.name, *address, value);
            if register.access == "ro" {
                nic.write_register(*address, !value);
                expect(&mut nic, &register.name, *address, value);
            }
            assert!(index < 32);
        }
    }
    // A command is busy until it is done, and reads as zero.
    nic.write_register(registers::CONNECTION, COMMAND_LOAD | 7);
    expect(&mut nic, "CONNECTION_BUSY", registers::CONNECTION_BUSY, 1);
    expect(&mut nic, "CONNECTION", registers::CONNECTION, 0);
    while nic.read_register(registers::CONNECTION_BUSY) == 1 {}
    // All are written before any is read, each with a number of its own, and nothing is enabled by it.
    let value = |address: u16| (u32::from(address) << 17) | (u32::from(address) * 0x12);
    let mut freed = 0;
    for register in all.iter().filter(|register| register.access == "rw") {
        for (index, address) in register.addresses.iter().enumerate() {
            nic.write_register(*address, value(*address));
            let forges = register.name == "FLOW_FREED" && index < usize::from(FLOWS);
            freed += u32::from(forges);
        }
    }
    for register in all.iter().filter(|register| register.access == "rw") {
        for (index, address) in register.addresses.iter().enumerate() {
            let expected = kept(&register.name, index as u16, value(*address));
            expect(&mut nic, &register.name, *address, expected);
        }
    }
    // What was freed had not been received, and nothing else has happened.
    for index in 0..registers::COUNTER_COUNT {
        let expected = if index == CounterName::CreditsForged as u16 {
            freed
        } else {
            0
        };
        expect(&mut nic, "COUNTER", registers::counter(index), expected);
    }
    let known: BTreeSet<u16> = all
        .iter()
        .flat_map(|register| register.addresses.clone())
        .collect();
    assert_eq!(read, known, "each register was read");
    assert!(known.len() > 150, "{} registers", known.len());
}

/// A NIC, and what the test has counted of what it did.
struct CountedRig {
    rig: NicRig,
    counted: BTreeMap<u16, u32>,
    histogram: [u32; 24],
    tag: u64,
}

impl CountedRig {
    fn count(&mut self, name: CounterName, times: usize) {
        *self.counted.entry(name as u16).or_default() += times as u32;
    }

    /// A packet that comes whole, about a connection that is in the cache, and of which this comes.
    fn good(&mut self, bytes: &[u8], counts: &[CounterName]) {
        self.rig.inject(bytes);
        self.count(CounterName::PacketsReceived, 1);
        self.count(CounterName::ConnectionHits, 1);
        counts.iter().for_each(|name| self.count(*name, 1));
        self.sent();
    }

    /// A packet that is dropped when it comes.
    fn dropped(&mut self, bytes: &[u8], reason: CounterName) {
        self.rig.inject(bytes);
        self.count(reason, 1);
    }

    fn sent(&mut self) -> Vec<WirePacket> {
        let sent = self.rig.sent();
        self.count(CounterName::PacketsSent, sent.len());
        sent
    }

    /// An entry about a connection that is in the cache.
    fn entry(&mut self, flow: usize, kind: EntryKind, connection: u16, tag: u64) {
        self.rig.send(flow, kind, connection, 1, tag, b"payload");
        self.count(CounterName::EntriesTaken, 1);
        self.count(CounterName::ConnectionHits, 1);
    }

    /// The host answers the requests that have come to flow 0, by the ring of flow 1.
    fn answer(&mut self, received: &[provost_nic::Received]) {
        for request in received {
            assert_eq!(request.head.kind, EntryKind::Request);
            self.entry(1, EntryKind::Response, SERVER, request.head.tag);
            self.rig.settle();
        }
        self.sent();
    }

    /// A call whose response comes after so many cycles, a little more or less than the NIC counts.
    fn call_taking(&mut self, cycles: u64, call: u32) {
        self.tag += 1;
        self.entry(0, EntryKind::Request, CLIENT, self.tag);
        self.count(CounterName::RequestsSent, 1);
        let sent = loop {
            self.rig.nic.step();
            if !self.sent().is_empty() {
                break self.rig.nic.cycle();
            }
        };
        while self.rig.nic.cycle() < sent + cycles {
            self.rig.nic.step();
        }
        self.good(&response(call), &[CounterName::CallsCompleted]);
        assert_eq!(self.rig.receive(0).len(), 1);
    }
}

fn response(call: u32) -> Vec<u8> {
    let header = Header {
        kind: Kind::Response,
        flags: Flags::NONE,
        slot: 0,
        session: CLIENT,
        token: LOCAL_TOKEN,
        call,
        packet: 0,
    };
    let prefix = Prefix {
        message_bytes: 0,
        code: 0,
        held: 0,
    };
    let head = Head::of_data(&header, &prefix).seal(&[], Checking::Packets);
    head.bytes().to_vec()
}

fn request(slot: u8, call: u32, method: u16) -> Vec<u8> {
    NicRig::request(slot, call, method, b"payload", Checking::Packets)
}

#[test]
fn counters_and_histogram_are_what_the_test_counted_and_each_has_counted_something() {
    use CounterName::*;
    let Ok(rig) = NicRig::new(Checking::Packets, Balance::Static).map_err(say_skipped) else {
        return;
    };
    let mut bench = CountedRig {
        rig,
        counted: BTreeMap::new(),
        histogram: [0; 24],
        tag: 0,
    };
    // Calls of a client, one time from the middle of each bucket, and the more the later the bucket.
    let mut call = 0;
    for (times, bucket) in (7..=13).enumerate() {
        for _ in 0..=times {
            call += 1;
            bench.call_taking(5 << (bucket - 2), call);
            bench.histogram[bucket] += 1;
        }
    }
    // Its last response once more; a call that nobody answers; an entry in the wrong direction.
    bench.good(&response(call), &[DroppedStale]);
    bench.rig.nic.write_register(registers::TIMEOUT, 20);
    bench.rig.nic.write_register(registers::TRIES_MAX, 3);
    bench.entry(0, EntryKind::Request, CLIENT, 1_000);
    bench.count(RequestsSent, 1);
    (0..6).for_each(|_| bench.rig.settle());
    let sent = bench.sent().len();
    assert_eq!(sent, 4, "once, and again as often as may be");
    bench.count(Retransmissions, sent - 1);
    bench.count(CallsFailed, 1);
    // Each time-out looks the connection up, the last too.
    bench.count(ConnectionHits, sent);
    bench.entry(0, EntryKind::Request, SERVER, 1_001);
    bench.count(EntriesRefused, 1);
    bench.rig.settle();
    assert_eq!(bench.rig.receive(0).len(), 2);
    // Packets that are dropped when they come: short, damaged, of no kind.
    bench.dropped(&request(0, 1, 1)[..8], DroppedLength);
    let mut damaged = request(0, 1, 1);
    damaged[25] ^= 4;
    bench.dropped(&damaged, DroppedCheck);
    let mut unknown = request(0, 1, 1);
    // One less in one word and one more in another: the check stays right.
    unknown[0] -= 1;
    unknown[2] += 1;
    bench.dropped(&unknown, DroppedKind);
    // Requests: delivered, answered, come again; of a slot that is not; denied; without a token.
    bench.good(&request(0, 1, 1), &[RequestsDelivered]);
    let received = bench.rig.receive(0);
    bench.answer(&received);
    bench.good(&request(0, 1, 1), &[RequestsRepeated]);
    assert_eq!(bench.rig.receive(0).len(), 1);
    bench.good(&request(8, 1, 1), &[DroppedProtocol]);
    bench
        .rig
        .nic
        .write_register(registers::rule_control(0), 1 | 5 << 16);
    bench.rig.nic.write_register(registers::rule_high(0), u32::MAX);
    bench.good(&request(0, 2, 5), &[RequestsDenied]);
    bench.rig.nic.write_register(registers::bucket_period(1), 1 << 30);
    bench.rig.nic.write_register(registers::bucket_burst(1), 0);
    bench.rig.load(SERVER, ConnectionRole::Server, Balance::Static, 1);
    bench.good(&request(0, 1, 1), &[RequestsLimited]);
    bench.rig.load(SERVER, ConnectionRole::Server, Balance::Static, 0);
    // A ring that its host does not free: one of 16 slots is left to entries.
    let mut unfreed = Vec::new();
    for call in 1..=15 {
        bench.good(&request(0, call, 1), &[RequestsDelivered]);
        unfreed.extend(bench.rig.rings[0].receive(&mut bench.rig.nic));
        let last = unfreed.len() - 1..;
        let last = unfreed[last].to_vec();
        bench.answer(&last);
    }
    bench.good(&request(0, 16, 1), &[DroppedRoom]);
    bench.rig.rings[0].flush(&mut bench.rig.nic);
    bench.rig.nic.write_register(registers::flow_freed(3), 9);
    bench.count(CreditsForged, 1);
    // Packets of several lines for sessions that are not here, each read from host memory, come faster than that: the buffer has room for
    // some. Whose packet was taken is told so.
    const STRANGERS: u16 = 60;
    for number in 0..STRANGERS {
        let bytes = NicRig::request_to(100 + number, 0, 1, 1, &[7; 380], Checking::Packets);
        bench.rig.nic.inject(WirePacket { remote: PEER, bytes });
    }
    (0..4).for_each(|_| bench.rig.settle());
    let told = bench.sent().len();
    for name in [PacketsReceived, DroppedToken, ConnectionMisses] {
        bench.count(name, told);
    }
    bench.count(DroppedBuffer, usize::from(STRANGERS) - told);
    for name in CounterName::ALL {
        let counted = bench.counted.get(&(name as u16)).copied();
        println!("{name:?}: {counted:?}");
        assert_eq!(Some(bench.rig.counter(name)), counted, "{name:?}");
        assert_ne!(counted, Some(0), "{name:?} has happened");
    }
    for bucket in 0..registers::HISTOGRAM_COUNT {
        let of_nic = bench.rig.nic.read_register(registers::histogram(bucket));
        assert_eq!(of_nic, bench.histogram[usize::from(bucket)], "bucket {bucket}");
    }
    assert_eq!(
        bench.histogram.iter().sum::<u32>(),
        bench.counted[&(CallsCompleted as u16)]
    );
}
