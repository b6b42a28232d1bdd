//! Selective acknowledgement: what has arrived is not sent again because something else was lost.

use provost_datagram::Checking;
use provost_datagram::packet::{Body, Flags, Head, Header, Kind, Packet, Prefix};
use provost_nic::registers::{self, CounterName};
use provost_nic::{Balance, Board, EntryKind};
use provost_nic_model::WirePacket;
use provost_nic_tests::rig::{CLIENT, LOCAL_TOKEN, NicRig, PEER};
use provost_nic_tests::say_skipped;

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
