//! Messages of several packets: between NICs and with software on wires that do harm, packet by packet as software writes them, and what
//! peers say wrongly of lengths.

use provost_datagram::Checking;
use provost_datagram::packet::{Flags, Head, Header, Kind, Prefix};
use provost_nic::registers::CounterName;
use provost_nic::{
    Balance, Board, EntryHead, EntryKind, FetchMode, LINE_BYTES, Line, MessageAreas, MessagePart,
    StoredMessage,
};
use provost_nic_model::{HostTiming, WirePacket};
use provost_nic_tests::rig::{CLIENT, LOCAL_TOKEN, NicRig, REMOTE, SERVER};
use provost_nic_tests::{
    CallPattern, HostKind, SeededRandom, WireFaults, World, WorldConfig, nic_config_with_areas, say_skipped,
};

/// Seven packets of 1,000 bytes.
const BYTES_MAX: usize = 7_000;

fn config(hosts: [HostKind; 2], faults: WireFaults, seed: u64) -> WorldConfig {
    let nic = nic_config_with_areas(FetchMode::Polled);
    WorldConfig {
        seed,
        hosts,
        faults,
        sessions: 3,
        pattern: CallPattern { bytes_max: BYTES_MAX },
        nic: [nic.clone(), nic],
        timing: HostTiming::default(),
    }
}

const FAULTS: WireFaults = WireFaults {
    loss: 20,
    duplication: 10,
    reordering: 20,
    corruption: 10,
};

/// Each call, of up to seven packets in both directions, is executed once and ends well once.
#[test]
fn messages_of_several_packets_go_between_nics_and_software() {
    use HostKind::{Nic, Software};
    for (seed, hosts) in [[Nic, Nic], [Nic, Software], [Software, Nic]]
        .into_iter()
        .enumerate()
    {
        for faults in [WireFaults::default(), FAULTS] {
            let mut world = match World::new(config(hosts, faults, seed as u64 + 1)) {
                Ok(world) => world,
                Err(reason) => return say_skipped(reason),
            };
            const CALLS: u64 = 300;
            world.connect();
            world.call(CALLS);
            assert_eq!(world.client.failed, Default::default(), "{hosts:?}");
            assert_eq!(world.client.completed.len() as u64, CALLS);
            assert!(world.client.completed.values().all(|times| *times == 1));
            assert_eq!(world.server.executed.len() as u64, CALLS);
            assert!(world.server.executed.values().all(|times| *times == 1));
            let longest = world.server.by_lines.keys().max();
            assert!(longest >= Some(&(BYTES_MAX / LINE_BYTES)), "{longest:?} lines");
            println!(
                "{hosts:?}: {CALLS} calls in {} cycles, faults {:?}",
                world.cycle(),
                world.faults_made
            );
            world.disconnect();
        }
    }
}

const AREAS: MessageAreas = MessageAreas {
    base: 8_192,
    lines_log2: 6,
};
/// Bits of a request's tag that name it; the others are the time at which the packet came.
const SLOT_AND_CALL: u64 = (1 << 35) - 1;
/// What a packet of the rig's connections carries.
const PACKET_PAYLOAD: usize = 400;

fn rig() -> Option<NicRig> {
    let mut rig = NicRig::new(Checking::Packets, Balance::Static)
        .map_err(say_skipped)
        .ok()?;
    assert!(AREAS.announce(&mut rig.nic));
    Some(rig)
}

fn payload(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at / 7) as u8 ^ at as u8).collect()
}

/// A packet of a message, as software writes it.
fn packet(
    kind: Kind,
    flags: Flags,
    to: (u16, u32),
    call: u32,
    number: u16,
    message: &[u8],
    code: u16,
) -> Vec<u8> {
    let begin = usize::from(number) * PACKET_PAYLOAD;
    let bytes = &message[begin..(begin + PACKET_PAYLOAD).min(message.len())];
    let header = Header {
        kind,
        flags,
        slot: 0,
        session: to.0,
        token: to.1,
        call,
        packet: number,
    };
    let prefix = Prefix {
        message_bytes: message.len() as u32,
        code,
        held: 0,
    };
    [
        Head::of_data(&header, &prefix)
            .seal(bytes, Checking::Packets)
            .bytes(),
        bytes,
    ]
    .concat()
}

/// A packet without a message.
fn bare(kind: Kind, flags: Flags, to: (u16, u32), call: u32, number: u16) -> Vec<u8> {
    let header = Header {
        kind,
        flags,
        slot: 0,
        session: to.0,
        token: to.1,
        call,
        packet: number,
    };
    Head::bare(&header).seal(&[], Checking::Packets).bytes().to_vec()
}

fn sent(rig: &mut NicRig) -> Vec<Vec<u8>> {
    rig.settle();
    rig.sent()
        .into_iter()
        .map(|WirePacket { bytes, .. }| bytes)
        .collect()
}

#[test]
fn a_client_sends_and_fetches_messages_packet_by_packet_as_software_does() {
    let Some(mut rig) = rig() else {
        return;
    };
    let request = payload(1_000);
    let part = |packet: u16| MessagePart {
        message_bytes: 1_000,
        packet,
        area: 5,
    };
    let mut head = EntryHead {
        kind: EntryKind::Request,
        bytes: 0,
        connection: CLIENT,
        code: 7,
        tag: 99,
        remote: 0,
    };
    let to = REMOTE;
    rig.rings[0]
        .send_part(&mut rig.nic, &head, part(0), &request[..400])
        .expect("there is room");
    let expected = packet(Kind::Request, Flags::RETURN, to, 1, 0, &request, 7);
    assert_eq!(sent(&mut rig), [expected]);
    // The server has the first packet: the host is asked for what follows.
    rig.inject(&bare(
        Kind::CreditReturn,
        Flags::UNTIMED,
        (CLIENT, LOCAL_TOKEN),
        1,
        1,
    ));
    let asked = rig.receive(0);
    assert_eq!(asked.len(), 1);
    assert_eq!(
        (asked[0].head.kind, asked[0].head.code, asked[0].head.tag),
        (EntryKind::Repeat, 1, 99)
    );
    head.kind = EntryKind::Fragment;
    head.tag = asked[0].head.remote;
    for (number, bytes) in [(1, &request[400..800]), (2, &request[800..])] {
        rig.rings[0]
            .send_part(&mut rig.nic, &head, part(number), bytes)
            .expect("there is room");
    }
    let expected = [1, 2].map(|number| packet(Kind::Request, Flags::NONE, to, 1, number, &request, 7));
    assert_eq!(sent(&mut rig), expected);
    // A response of three packets: after the first, the others are asked for.
    let response = payload(1_200);
    let from = (CLIENT, LOCAL_TOKEN);
    rig.inject(&packet(Kind::Response, Flags::UNTIMED, from, 1, 0, &response, 3));
    assert_eq!(
        sent(&mut rig),
        [bare(Kind::RequestForResponse, Flags::range(2), to, 1, 1)]
    );
    for number in [2, 2, 1] {
        assert_eq!(rig.receive(0), [], "packet 1 is missing");
        rig.inject(&packet(
            Kind::Response,
            Flags::UNTIMED,
            from,
            1,
            number,
            &response,
            3,
        ));
    }
    let received = rig.receive(0);
    assert_eq!(received.len(), 1);
    assert_eq!(
        (received[0].head.kind, received[0].head.tag),
        (EntryKind::Response, 99)
    );
    let stored = received[0].stored.expect("it has several packets");
    assert_eq!(
        stored,
        StoredMessage {
            area: 5,
            bytes: 1_200
        }
    );
    assert_eq!(
        AREAS.read(&mut rig.nic, CLIENT, stored, PACKET_PAYLOAD),
        Some((3, response))
    );
}

/// The slot is free for the next call once its response is here, before the host has read it.
#[test]
fn a_response_that_waits_to_be_read_keeps_its_bytes_while_the_slot_has_another() {
    let Some(mut rig) = rig() else {
        return;
    };
    let responses = [payload(1_200), payload(1_200).into_iter().rev().collect()];
    for (call, response) in (1..).zip(&responses) {
        let head = EntryHead {
            kind: EntryKind::Request,
            bytes: 0,
            connection: CLIENT,
            code: 1,
            tag: call.into(),
            remote: 0,
        };
        let part = MessagePart {
            message_bytes: 8,
            packet: 0,
            area: call as u8,
        };
        rig.rings[0]
            .send_part(&mut rig.nic, &head, part, &[0; 8])
            .expect("there is room");
        rig.settle();
        for number in 0..3 {
            let from = (CLIENT, LOCAL_TOKEN);
            rig.inject(&packet(
                Kind::Response,
                Flags::UNTIMED,
                from,
                call,
                number,
                response,
                0,
            ));
        }
    }
    let received = rig.receive(0);
    assert_eq!(received.len(), 2);
    for (received, response) in received.into_iter().zip(responses) {
        let stored = received.stored.expect("it has several packets");
        let read = AREAS.read(&mut rig.nic, CLIENT, stored, PACKET_PAYLOAD);
        assert_eq!(read, Some((0, response)));
    }
}

#[test]
fn a_server_takes_messages_in_order_and_gives_packets_that_are_asked_for() {
    let Some(mut rig) = rig() else {
        return;
    };
    let request = payload(900);
    let from = (SERVER, LOCAL_TOKEN);
    let part = |number, flags| packet(Kind::Request, flags, from, 1, number, &request, 5);
    let returned = |number| bare(Kind::CreditReturn, Flags::UNTIMED, REMOTE, 1, number);
    rig.inject(&part(1, Flags::NONE));
    assert_eq!(sent(&mut rig), Vec::<Vec<u8>>::new(), "the first has the verdict");
    rig.inject(&part(0, Flags::RETURN));
    assert_eq!(sent(&mut rig), [returned(1)]);
    rig.inject(&part(2, Flags::NONE));
    assert_eq!(sent(&mut rig), [returned(1)], "one is missing");
    rig.inject(&part(1, Flags::NONE));
    assert_eq!(rig.receive(0), []);
    rig.inject(&part(2, Flags::NONE));
    rig.inject(&part(0, Flags::RETURN));
    assert_eq!(sent(&mut rig), [returned(3)], "all are here");
    let received = rig.receive(0);
    assert_eq!(received.len(), 1);
    let stored = received[0].stored.expect("it has several packets");
    assert_eq!(
        AREAS.read(&mut rig.nic, SERVER, stored, PACKET_PAYLOAD),
        Some((5, request))
    );
    // The response's packets beyond the first are given when they are asked for.
    let response = payload(800);
    let head = EntryHead {
        kind: EntryKind::Response,
        bytes: 0,
        connection: SERVER,
        code: 2,
        tag: received[0].head.tag,
        remote: 0,
    };
    let part = |packet| MessagePart {
        message_bytes: 800,
        packet,
        area: 0,
    };
    rig.rings[0]
        .send_part(&mut rig.nic, &head, part(0), &response[..400])
        .expect("there is room");
    let first = sent(&mut rig);
    assert_eq!(first.len(), 1);
    rig.inject(&bare(Kind::RequestForResponse, Flags::range(1), from, 1, 1));
    let asked = rig.receive(0);
    assert_eq!(asked.len(), 1);
    assert_eq!(
        (
            asked[0].head.kind,
            asked[0].head.code,
            asked[0].head.bytes,
            asked[0].head.tag & SLOT_AND_CALL
        ),
        (EntryKind::Repeat, 1, 1, head.tag & SLOT_AND_CALL)
    );
    rig.rings[0]
        .send_part(&mut rig.nic, &head, part(1), &response[400..])
        .expect("there is room");
    let second = sent(&mut rig);
    for (number, bytes) in [(0, &first[0]), (1, &second[0])] {
        let fields = provost_datagram::packet::Packet::parse(bytes, Checking::Packets).expect("it is whole");
        let header = fields.header;
        assert_eq!(
            (header.kind, header.packet, header.call),
            (Kind::Response, number, 1)
        );
        assert_eq!(bytes[16..20], 800u32.to_le_bytes());
        assert_eq!(bytes[24..], response[usize::from(number) * 400..][..400]);
    }
}

/// Whatever packets say of numbers and lengths, nothing is written outside the slot's area, nothing incomplete is delivered, and nothing hangs.
#[test]
fn packets_that_lie_about_lengths_write_nothing_elsewhere_and_deliver_nothing_stale() {
    let Some(mut rig) = rig() else {
        return;
    };
    const CANARY: Line = [0xc5; LINE_BYTES];
    let area = 1 << AREAS.lines_log2;
    let own = AREAS.base + u32::from(SERVER) * 8 * area;
    let lines = AREAS.base..AREAS.base + AREAS.lines(4);
    for line in lines.clone() {
        rig.nic.write_line(line, &CANARY);
    }
    let mut random = SeededRandom::new(21);
    let (mut delivered, mut call) = (0, 1);
    for step in 0..1_500 {
        // No two calls have bytes in common, so that what is left of another shows.
        let message: Vec<u8> = payload(2_800).iter().map(|byte| byte ^ call as u8).collect();
        let number = random.below(5) as u16;
        let lies = |random: &mut SeededRandom| random.chance(150);
        let whole = [700, 1_000, 1_300][random.below(3) as usize];
        let message_bytes = if lies(&mut random) {
            random.draw() as u32 >> random.below(32)
        } else {
            whole
        };
        let rest = (whole as usize).saturating_sub(usize::from(number) * PACKET_PAYLOAD);
        let bytes = if lies(&mut random) {
            random.below(500) as usize
        } else {
            rest.min(PACKET_PAYLOAD)
        };
        let header = Header {
            kind: Kind::Request,
            flags: if random.chance(300) {
                Flags::RETURN
            } else {
                Flags::NONE
            },
            slot: 0,
            session: SERVER,
            token: LOCAL_TOKEN,
            call,
            packet: if random.chance(20) {
                random.draw() as u16
            } else {
                number
            },
        };
        let prefix = Prefix {
            message_bytes,
            code: 1,
            held: 0,
        };
        let bytes = &message[..bytes];
        let head = Head::of_data(&header, &prefix).seal(bytes, Checking::Packets);
        rig.inject(&[head.bytes(), bytes].concat());
        drop(rig.sent());
        for received in (0..4).flat_map(|flow| rig.receive(flow)).collect::<Vec<_>>() {
            assert_eq!(received.head.kind, EntryKind::Request);
            if let Some(stored) = received.stored {
                let read = AREAS.read(&mut rig.nic, SERVER, stored, PACKET_PAYLOAD);
                let (_, bytes) = read.expect("the NIC says what can be");
                // All of it was written by packets of this call: each begins as every payload here.
                let begins = bytes.chunks(PACKET_PAYLOAD).all(|part| message.starts_with(part));
                assert!(begins, "step {step}: something stale in {} bytes", bytes.len());
            }
            delivered += 1;
            rig.send(0, EntryKind::Response, SERVER, 0, received.head.tag, b"");
            rig.settle();
            call += 1;
        }
    }
    for line in lines.filter(|line| !(own..own + area).contains(line)) {
        assert_eq!(rig.nic.read_line(line), CANARY, "line {line}");
    }
    assert_eq!(rig.nic.stray_accesses(), 0);
    println!("{delivered} requests were delivered");
    assert!(delivered > 20, "{delivered} requests were delivered");
    assert!(rig.counter(CounterName::DroppedProtocol) > 100);
}
