//! As many connections as there are numbers, open at once: whatever the cache of 64 lines holds, each connection's state stays its own.

use std::collections::BTreeMap;

use provost_datagram::Checking;
use provost_datagram::packet::{Body, Flags, Head, Header, Kind, Packet, Prefix};
use provost_nic::registers::{self, CounterName};
use provost_nic::{
    Balance, Board, COMMAND_LOAD, CONTROL_ENABLE, ConnectionLine, ConnectionRole, EntryHead, EntryKind,
    FetchMode, FlowShape, Received, RingDriver,
};
use provost_nic_model::{HostTiming, SimulatedNic, WirePacket};
use provost_nic_tests::{SeededRandom, say_skipped};

/// All that a number of 16 bits names.
const CONNECTIONS: u32 = 65_536;
/// Sets and ways of the connection cache.
const SETS: u32 = 16;
const WAYS: u32 = 4;
/// Cycles after which an answer is late.
const LATE_CYCLES: u64 = 20_000;
/// Where the NIC's part of a line begins: the numbers of calls, then three bits of each slot.
const CALLS_AT: usize = 22;
const PHASES_AT: usize = 54;
const BUFFERS_AT: usize = 57;
/// A slot of a server whose host has answered.
const RESPONDED: u32 = 2;

/// A NIC, its host, and every peer on the wire, with what each connection must be like.
struct ManyConnections {
    nic: SimulatedNic,
    ring: RingDriver,
    random: SeededRandom,
    /// The number of the last call of each slot that has had one.
    calls: BTreeMap<(u16, u8), u32>,
    /// Packets and entries that a connection was looked up for.
    lookups: u32,
    tag: u64,
}

/// What a connection is, told by its number alone.
fn line_of(number: u16) -> ConnectionLine {
    let mixed = (u64::from(number) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ConnectionLine {
        role: if mixed >> 63 == 0 {
            ConnectionRole::Client
        } else {
            ConnectionRole::Server
        },
        slots: 8,
        balance: Balance::Static,
        bucket: 0,
        flows: (0, 1),
        local_token: (mixed >> 8) as u32,
        remote_token: (mixed >> 21) as u32,
        remote_number: (mixed >> 40) as u16,
        payload_bytes_max: 40,
        remote: mixed & 0xffff_ffff_ffff,
    }
}

impl ManyConnections {
    fn open(connections: u32) -> Option<ManyConnections> {
        let mut nic = SimulatedNic::new(1 << 17, HostTiming::default())
            .map_err(say_skipped)
            .ok()?;
        let shape = FlowShape {
            flow: 0,
            base: CONNECTIONS,
            slots_log2: 5,
            slot_lines_log2: 0,
            fetch: FetchMode::Doorbell,
            calls_max: 8,
        };
        let ring = RingDriver::start(&mut nic, shape).expect("the shape can be");
        nic.write_register(registers::TIMEOUT, 1_000_000);
        nic.write_register(registers::CONTROL, CONTROL_ENABLE);
        for number in 0..connections {
            nic.write_line(number, &line_of(number as u16).encode());
            nic.write_register(registers::CONNECTION, COMMAND_LOAD | number);
            while nic.read_register(registers::CONNECTION_BUSY) == 1 {}
        }
        Some(ManyConnections {
            nic,
            ring,
            random: SeededRandom::new(65_536),
            calls: BTreeMap::new(),
            lookups: 0,
            tag: 0,
        })
    }

    fn inject(&mut self, connection: u16, kind: Kind, slot: u8, call: u32, payload: &[u8]) {
        let line = line_of(connection);
        let header = Header {
            kind,
            flags: Flags::NONE,
            slot,
            session: connection,
            token: line.local_token,
            call,
            packet: 0,
        };
        let prefix = Prefix {
            message_bytes: payload.len() as u32,
            code: 3,
            held: 0,
        };
        let head = if kind == Kind::Ping {
            Head::bare(&header)
        } else {
            Head::of_data(&header, &prefix)
        };
        let head = head.seal(payload, Checking::Wire);
        self.lookups += 1;
        self.nic.inject(WirePacket {
            remote: line.remote,
            bytes: [head.bytes(), payload].concat(),
        });
    }

    /// The next packet that the NIC sends, which must be for this connection's peer.
    fn sent(&mut self, connection: u16) -> (Header, Vec<u8>) {
        let until = self.nic.cycle() + LATE_CYCLES;
        let packet = loop {
            if let Some(packet) = self.nic.sent() {
                break packet;
            }
            self.nic.step();
            assert!(
                self.nic.cycle() < until,
                "connection {connection}: nothing is sent"
            );
        };
        let line = line_of(connection);
        let Packet { header, body } = Packet::parse(&packet.bytes, Checking::Wire).expect("it is whole");
        let of = (packet.remote, header.session, header.token);
        assert_eq!(
            of,
            (line.remote, line.remote_number, line.remote_token),
            "of {connection}"
        );
        let payload = match body {
            Body::Data(_, payload) => payload.to_vec(),
            _ => Vec::new(),
        };
        (header, payload)
    }

    /// What the host gets next, which must be this connection's.
    fn received(&mut self, connection: u16) -> Received {
        let until = self.nic.cycle() + LATE_CYCLES;
        loop {
            if let Some(received) = self.ring.receive(&mut self.nic) {
                assert_eq!(received.head.connection, connection);
                self.ring.flush(&mut self.nic);
                return received;
            }
            self.nic.step();
            assert!(self.nic.cycle() < until, "connection {connection}: nothing comes");
        }
    }

    fn send(&mut self, kind: EntryKind, connection: u16, tag: u64, payload: &[u8]) {
        let head = EntryHead {
            kind,
            bytes: 0,
            connection,
            code: 3,
            tag,
            remote: 0,
        };
        self.lookups += 1;
        self.ring
            .send(&mut self.nic, &head, payload)
            .expect("there is room");
        self.ring.flush(&mut self.nic);
    }

    /// A call by this connection, from one end to the other and back.
    fn call(&mut self, connection: u16) {
        let payload = self.random.draw().to_le_bytes();
        self.tag += 1;
        if line_of(connection).role == ConnectionRole::Client {
            let call = self.calls.entry((connection, 0)).or_default();
            *call += 1;
            let call = *call;
            self.send(EntryKind::Request, connection, self.tag, &payload);
            let (header, request) = self.sent(connection);
            assert_eq!((header.kind, header.slot, header.call), (Kind::Request, 0, call));
            assert_eq!(request, payload);
            self.inject(connection, Kind::Response, 0, call, &payload);
            let received = self.received(connection);
            let of = (received.head.kind, received.head.tag);
            assert_eq!(of, (EntryKind::Response, self.tag));
            assert_eq!(received.payload, payload);
        } else {
            let slot = self.random.below(8) as u8;
            let call = self.calls.entry((connection, slot)).or_default();
            *call += 1;
            let call = *call;
            self.inject(connection, Kind::Request, slot, call, &payload);
            let received = self.received(connection);
            assert_eq!(received.head.kind, EntryKind::Request, "of {connection}");
            assert_eq!(received.payload, payload);
            self.send(EntryKind::Response, connection, received.head.tag, &payload);
            let (header, response) = self.sent(connection);
            assert_eq!(
                (header.kind, header.slot, header.call),
                (Kind::Response, slot, call)
            );
            assert_eq!(response, payload);
        }
    }

    /// A server's last request comes once more: it is not delivered again, however long ago its connection left the cache.
    fn repeat(&mut self, connection: u16) {
        let last = self.calls.range((connection, 0)..=(connection, 7)).next();
        let Some((&(_, slot), &call)) = last else {
            return;
        };
        self.inject(connection, Kind::Request, slot, call, &[0; 8]);
        let kind = self.received(connection).head.kind;
        assert_eq!(kind, EntryKind::Repeat, "connection {connection}, call {call}");
    }

    /// Cycles from a Ping to its Pong, for which a connection is looked up and nothing else is done.
    fn ping(&mut self, connection: u16) -> u64 {
        let began = self.nic.cycle();
        self.inject(connection, Kind::Ping, 0, 0, &[]);
        assert_eq!(self.sent(connection).0.kind, Kind::Pong);
        self.nic.cycle() - began
    }

    fn counter(&mut self, name: CounterName) -> u32 {
        self.nic.read_register(registers::counter(name as u16))
    }

    /// Has the cache write back what it holds, by Pings to more connections of each set than it has ways.
    fn write_back(&mut self, servers: &[u16]) {
        for set in 0..SETS {
            let of_set = servers.iter().filter(|number| u32::from(**number) % SETS == set);
            for number in of_set.take(4 * WAYS as usize) {
                self.ping(*number);
            }
        }
    }

    /// The connection's line must be what its own calls made of it.
    fn check_line(&mut self, number: u16) {
        let line = self.nic.read_line(number.into());
        let mut expected = line_of(number).encode();
        let mut phases = 0u32;
        let of_client = line_of(number).role == ConnectionRole::Client;
        for (&(_, slot), call) in self.calls.range((number, 0)..=(number, 7)) {
            let at = CALLS_AT + 4 * usize::from(slot);
            expected[at..at + 4].copy_from_slice(&call.to_le_bytes());
            phases |= if of_client { 0 } else { RESPONDED << (3 * slot) };
        }
        expected[PHASES_AT..BUFFERS_AT].copy_from_slice(&phases.to_le_bytes()[..3]);
        assert_eq!(line[..BUFFERS_AT], expected[..BUFFERS_AT], "connection {number}");
    }
}

#[test]
fn all_connections_are_open_at_once_and_each_ones_state_stays_its_own() {
    let Some(mut bench) = ManyConnections::open(CONNECTIONS) else {
        return;
    };
    let opened_cycles = bench.nic.cycle();
    let servers: Vec<u16> = (0..=u16::MAX)
        .filter(|number| line_of(*number).role == ConnectionRole::Server)
        .collect();
    const CALLS: u64 = 6_000;
    for _ in 0..CALLS {
        // Any of all; often one of a few, which then is here or has just gone.
        let of = if bench.random.chance(300) {
            200
        } else {
            CONNECTIONS
        };
        let number = bench.random.below(of.into()) as u16;
        bench.call(number);
        if bench.random.chance(100) {
            let at = bench.random.below(200) as usize;
            bench.repeat(servers[at]);
        }
    }
    let [hits, misses] =
        [CounterName::ConnectionHits, CounterName::ConnectionMisses].map(|name| bench.counter(name));
    assert_eq!(hits + misses, bench.lookups, "each is a hit or a miss");
    bench.write_back(&servers);
    for number in 0..=u16::MAX {
        bench.check_line(number);
    }
    let used = bench
        .calls
        .keys()
        .map(|key| key.0)
        .collect::<std::collections::BTreeSet<_>>();
    println!(
        "{CONNECTIONS} connections opened in {opened_cycles} cycles; {CALLS} calls over {} of them: {hits} hits, {misses} misses",
        used.len()
    );
    assert!(used.len() > 3_000, "{} connections were used", used.len());
    assert_eq!(bench.nic.stray_accesses(), 0);
}

#[test]
fn hits_of_the_connection_cache_fall_and_misses_cost_one_read_as_more_connections_are_used() {
    let Some(mut bench) = ManyConnections::open(4_096) else {
        return;
    };
    let servers: Vec<u16> = (0..4_096)
        .filter(|number| line_of(*number).role == ConnectionRole::Server)
        .collect();
    let (mut rates, mut costs) = (Vec::new(), BTreeMap::new());
    for of in [16, 64, 128, 256, 1_024] {
        // Those of a set that came in one after the other may have taken each other's way.
        for number in servers[..of].iter().cycle().take(4 * of) {
            bench.ping(*number);
        }
        let before = bench.counter(CounterName::ConnectionHits);
        const PINGS: u32 = 2_000;
        for _ in 0..PINGS {
            let hits = bench.counter(CounterName::ConnectionHits);
            let number = servers[bench.random.below(of as u64) as usize];
            let cycles = bench.ping(number);
            let hit = bench.counter(CounterName::ConnectionHits) > hits;
            let (least, most) = costs.entry(hit).or_insert((cycles, cycles));
            (*least, *most) = (cycles.min(*least), cycles.max(*most));
        }
        let hits = bench.counter(CounterName::ConnectionHits) - before;
        println!(
            "{of} connections in turn at random: {} of 1,000 are hits",
            hits * 1_000 / PINGS
        );
        rates.push(f64::from(hits) / f64::from(PINGS));
    }
    println!("cycles from Ping to Pong, least and most: {costs:?} (hit: true)");
    assert_eq!(rates[0], 1.0, "what fits stays");
    assert!(
        rates.windows(2).all(|pair| pair[1] < pair[0] || pair[0] == 1.0),
        "{rates:?}"
    );
    // As many as there are lines for, of those that are used at random.
    for (of, rate) in [(128.0, rates[2]), (256.0, rates[3]), (1_024.0, rates[4])] {
        let expected = f64::from(SETS * WAYS) / of;
        assert!(
            (0.85 * expected..1.15 * expected).contains(&rate),
            "{rate} of {of}"
        );
    }
    // A miss is a read of host memory, of 40 cycles, and a few cycles of the cache.
    let extra = costs[&false].0 - costs[&true].1;
    assert!((40..=50).contains(&extra), "a miss costs {extra} cycles");
}
