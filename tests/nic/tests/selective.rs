//! Selective acknowledgement: what has arrived is not sent again because something else was lost.

use provost_datagram::Checking;
use provost_datagram::packet::{Body, Flags, Head, Header, Kind, Packet, Prefix};
use provost_nic::registers::{self, CounterName};
use provost_nic::{Balance, Board, EntryHead, EntryKind, MessageAreas, MessagePart};
use provost_nic_model::WirePacket;
use provost_nic_tests::rig::{CLIENT, LOCAL_TOKEN, NicRig, PEER, SERVER};
use provost_nic_tests::say_skipped;

/// What a packet of the rig's connections carries.
const PACKET_PAYLOAD: usize = 400;
/// Packets of a message at most.
const PACKETS: u16 = 7;
const AREAS: MessageAreas = MessageAreas {
    base: 8_192,
    lines_log2: 6,
};
const SLOTS: u8 = 8;
/// Ticks of 64 ns until a request is sent again, at first.
const TIMEOUT_TICKS: u32 = 20;

fn rig() -> Option<NicRig> {
    let rig = NicRig::new(Checking::Packets, Balance::Static);
    rig.map_err(say_skipped).ok()
}

/// A packet of the peer about the client's first call of this slot.
fn about(kind: Kind, slot: u8, packet: u16) -> Vec<u8> {
    let header = Header {
        kind,
        flags: Flags::UNTIMED,
        slot,
        session: CLIENT,
        token: LOCAL_TOKEN,
        call: 1,
        packet,
    };
    let prefix = Prefix {
        message_bytes: 0,
        code: 0,
        held: 0xffff,
    };
    let head = if kind == Kind::Response {
        Head::of_data(&header, &prefix)
    } else {
        Head::bare(&header)
    };
    head.seal(&[], Checking::Packets).bytes().to_vec()
}

/// Kind, slot and first byte of the payload of each packet that was sent since the last look.
fn sent(rig: &mut NicRig) -> Vec<(Kind, u8, Option<u8>)> {
    let of = |bytes: &[u8]| {
        let Packet { header, body } = Packet::parse(bytes, Checking::Packets).expect("it is whole");
        let payload = match body {
            Body::Data(_, payload) => payload.first().copied(),
            _ => None,
        };
        (header.kind, header.slot, payload)
    };
    rig.sent().iter().map(|packet| of(&packet.bytes)).collect()
}

/// Of eight calls on their way, one is answered never, one is being executed, six are answered in another order: only the first is sent again.
#[test]
fn a_loss_in_one_slot_sends_nothing_of_the_others_again() {
    for (lost, at_work) in [(0, 7), (3, 4), (7, 0)] {
        let Some(mut rig) = rig() else {
            return;
        };
        rig.nic.write_register(registers::TIMEOUT, TIMEOUT_TICKS);
        for slot in 0..SLOTS {
            rig.send(0, EntryKind::Request, CLIENT, 1, slot.into(), &[slot; 30]);
        }
        // Before any time-out: 20 ticks are 256 cycles.
        (0..100).for_each(|_| rig.nic.step());
        let requests: Vec<_> = (0..SLOTS).map(|slot| (Kind::Request, slot, Some(slot))).collect();
        assert_eq!(sent(&mut rig), requests);
        let answered = (0..SLOTS).rev().filter(|slot| ![lost, at_work].contains(slot));
        let packets = answered.clone().map(|slot| about(Kind::Response, slot, 0));
        for bytes in packets.chain([about(Kind::CreditReturn, at_work, 1)]) {
            let remote = PEER;
            rig.nic.inject(WirePacket { remote, bytes });
        }
        // What is being executed has four times the time.
        (0..500).for_each(|_| rig.nic.step());
        assert_eq!(
            sent(&mut rig),
            [(Kind::Request, lost, Some(lost))],
            "lost: {lost}"
        );
        assert_eq!(rig.counter(CounterName::Retransmissions), 1);
        let ended: Vec<u64> = rig.receive(0).iter().map(|received| received.head.tag).collect();
        assert_eq!(ended, answered.map(u64::from).collect::<Vec<_>>());
    }
}

/// A server has seven requests of eight; those that come again are acknowledged slot by slot, and none is asked for.
#[test]
fn a_server_acknowledges_each_slot_by_itself() {
    let Some(mut rig) = rig() else {
        return;
    };
    const LOST: u8 = 2;
    let ask = |slot: u8| NicRig::request(slot, 1, 1, &[slot; 30], Checking::Packets);
    for slot in (0..SLOTS).filter(|slot| *slot != LOST) {
        rig.inject(&ask(slot));
    }
    assert_eq!(sent(&mut rig), []);
    rig.inject(&ask(5));
    assert_eq!(sent(&mut rig), [(Kind::CreditReturn, 5, None)]);
    // The one that was lost comes late: it is delivered, after what was asked after it.
    rig.inject(&ask(LOST));
    let delivered: Vec<u8> = rig
        .receive(0)
        .iter()
        .map(|received| received.payload[0])
        .collect();
    assert_eq!(delivered, [0, 1, 3, 4, 5, 6, 7, LOST]);
    assert_eq!(sent(&mut rig), []);
    assert_eq!(rig.counter(CounterName::RequestsDelivered), SLOTS.into());
}

fn message() -> Vec<u8> {
    let bytes = usize::from(PACKETS) * PACKET_PAYLOAD - 30;
    (0..bytes).map(|at| (at / 7) as u8 ^ at as u8).collect()
}

/// A rig with areas for messages of several packets.
fn rig_with_areas() -> Option<NicRig> {
    let mut rig = rig()?;
    assert!(AREAS.announce(&mut rig.nic));
    Some(rig)
}

/// A packet of the peer: of a message of slot 0's first call, of so many bytes as it says.
fn part_saying(kind: Kind, flags: Flags, number: u16, message_bytes: usize) -> Vec<u8> {
    let message = message();
    let begin = usize::from(number) * PACKET_PAYLOAD;
    let bytes = &message[begin..(begin + PACKET_PAYLOAD).min(message.len())];
    let header = Header {
        kind,
        flags,
        slot: 0,
        session: if kind == Kind::Request { SERVER } else { CLIENT },
        token: LOCAL_TOKEN,
        call: 1,
        packet: number,
    };
    let prefix = Prefix {
        message_bytes: message_bytes as u32,
        code: 5,
        held: 0,
    };
    let head = Head::of_data(&header, &prefix).seal(bytes, Checking::Packets);
    [head.bytes(), bytes].concat()
}

fn part(kind: Kind, number: u16) -> Vec<u8> {
    let flags = if kind == Kind::Request && number == 0 {
        Flags::RETURN
    } else {
        Flags::NONE
    };
    part_saying(kind, flags, number, message().len())
}

/// Of each credit return that was sent: packets without a gap, and those beyond.
fn returns(rig: &mut NicRig) -> Vec<(u16, u64)> {
    let of = |bytes: &[u8]| match Packet::parse(bytes, Checking::Packets).expect("it is whole") {
        Packet {
            header,
            body: Body::Bitmap(beyond),
        } => (header.packet, beyond),
        other => panic!("not a credit return: {other:?}"),
    };
    rig.sent().iter().map(|packet| of(&packet.bytes)).collect()
}

/// What of a request has arrived stays: its sender is told which packets, and each is needed once, though two were lost.
#[test]
fn a_server_keeps_packets_of_a_request_behind_one_that_was_lost_and_says_which() {
    let Some(mut rig) = rig_with_areas() else {
        return;
    };
    let mut ask = |number| {
        rig.inject(&part(Kind::Request, number));
        returns(&mut rig)
    };
    assert_eq!(ask(0), [(1, 0)]);
    // Packets 1 and 4 are lost.
    assert_eq!(ask(2), [(1, 0b1)]);
    assert_eq!(ask(3), [(1, 0b11)]);
    assert_eq!(ask(5), [(1, 0b1011)]);
    // What comes twice is said again, and nothing else comes of it.
    assert_eq!(ask(3), [(1, 0b1011)]);
    // The last waits for the others: only with them its bytes are known to end the message.
    assert_eq!(ask(6), [(1, 0b1011)]);
    assert_eq!(ask(1), []);
    assert_eq!(ask(2), [(4, 0b1)]);
    assert_eq!(ask(4), []);
    assert_eq!(ask(6), []);
    let received = rig.receive(0);
    assert_eq!(received.len(), 1);
    let stored = received[0].stored.expect("it has several packets");
    let read = AREAS.read(&mut rig.nic, SERVER, stored, PACKET_PAYLOAD);
    assert_eq!(read, Some((5, message())));
}

/// A client's host is told which packets the server lacks.
#[test]
fn a_client_asks_its_host_for_the_packets_of_a_request_that_were_lost() {
    let Some(mut rig) = rig_with_areas() else {
        return;
    };
    begin(&mut rig);
    for (first, beyond) in [(1, 0), (2, 0b1010)] {
        let header = Header {
            kind: Kind::CreditReturn,
            flags: Flags::UNTIMED,
            slot: 0,
            session: CLIENT,
            token: LOCAL_TOKEN,
            call: 1,
            packet: first,
        };
        let head = Head::of_credit_return(&header, beyond).seal(&[], Checking::Packets);
        rig.inject(head.bytes());
        let asked = rig.receive(0);
        assert_eq!(asked.len(), 1);
        let head = asked[0].head;
        assert_eq!((head.kind, head.code), (EntryKind::Repeat, first));
        assert_eq!(u64::from(head.bytes), beyond);
    }
}

/// The client begins a call, whose request has several packets.
fn begin(rig: &mut NicRig) {
    let head = EntryHead {
        kind: EntryKind::Request,
        bytes: 0,
        connection: CLIENT,
        code: 1,
        tag: 9,
        remote: 0,
    };
    let part = MessagePart {
        message_bytes: message().len() as u32,
        packet: 0,
        area: 2,
    };
    rig.rings[0]
        .send_part(&mut rig.nic, &head, part, &message()[..PACKET_PAYLOAD])
        .expect("there is room");
    rig.settle();
    assert_eq!(rig.sent().len(), 1);
}

/// Of a response, what was lost is asked for, run by run; what is there is not, in whatever order it came.
#[test]
fn a_client_asks_for_the_packets_of_a_response_that_were_lost_and_for_no_others() {
    let Some(mut rig) = rig_with_areas() else {
        return;
    };
    begin(&mut rig);
    let asked = |rig: &mut NicRig| -> Vec<(u16, u8)> {
        let of = |bytes: &[u8]| {
            let header = Packet::parse(bytes, Checking::Packets)
                .expect("it is whole")
                .header;
            assert_eq!(header.kind, Kind::RequestForResponse);
            // The flags are how many, less one.
            (header.packet, (bytes[0] >> 4) + 1)
        };
        rig.sent().iter().map(|packet| of(&packet.bytes)).collect()
    };
    rig.inject(&part(Kind::Response, 0));
    assert_eq!(asked(&mut rig), [(1, 6)]);
    // Packets 2, 3 and 5 are lost.
    for number in [6, 1, 4, 6, 0] {
        rig.inject(&part(Kind::Response, number));
    }
    // What says other bytes of the message is not of it.
    rig.inject(&part_saying(Kind::Response, Flags::NONE, 3, message().len() - 1));
    assert_eq!(asked(&mut rig), []);
    assert_eq!(rig.counter(CounterName::DroppedStale), 3);
    rig.nic.write_register(registers::TIMEOUT, TIMEOUT_TICKS);
    // The deadline that runs is of the old time-out: the next packet begins another.
    rig.inject(&part(Kind::Response, 3));
    assert_eq!(asked(&mut rig)[..1], [(2, 1)]);
    rig.inject(&part(Kind::Response, 2));
    assert_eq!(asked(&mut rig)[..1], [(5, 1)]);
    assert_eq!(rig.receive(0), []);
    rig.inject(&part(Kind::Response, 5));
    let received = rig.receive(0);
    assert_eq!(received.len(), 1);
    let stored = received[0].stored.expect("it has several packets");
    let read = AREAS.read(&mut rig.nic, CLIENT, stored, PACKET_PAYLOAD);
    assert_eq!(read, Some((5, message())));
}
