//! How often the NIC accepts an RPC when neither host memory nor the wire keeps it waiting. Cycles of the RTL are counted, so the
//! figures are exact.

use provost_datagram::Checking;
use provost_nic::{Balance, ConnectionRole, EntryKind};
use provost_nic_model::{HostTiming, SimulatedNic, WirePacket};
use provost_nic_tests::rig::{NicRig, PEER};
use provost_nic_tests::say_skipped;

/// Connections with calls in all their slots: 48 requests, 12 for each of four flows of 16 slots.
const CONNECTIONS: u16 = 6;
const SLOTS: u8 = 8;
const CALLS: u64 = 48;
/// Cycles for an RPC: its request, and its response.
const RPC_CYCLES: u64 = 4;
/// Cycles from the first packet or entry to the first decision, and from the last decision to what follows from it.
const PIPELINE_CYCLES: u64 = 16;

fn requests(connections: std::ops::Range<u16>) -> impl Iterator<Item = WirePacket> {
    let packet = |(connection, slot)| WirePacket {
        remote: PEER,
        bytes: NicRig::request_to(connection, slot, 1, 7, &[9; 40], Checking::Packets),
    };
    connections
        .flat_map(|connection| (0..SLOTS).map(move |slot| (connection, slot)))
        .map(packet)
}

/// Has requests arrive so many cycles apart, until all are delivered and so many packets have been sent: cycles, and flow, connection and tag of
/// each request.
fn run(
    rig: &mut NicRig,
    mut arriving: impl Iterator<Item = WirePacket>,
    apart: u64,
    packets: u64,
) -> (u64, Vec<(usize, u16, u64)>) {
    let began = rig.nic.cycle();
    let (mut tags, mut sent, mut next) = (Vec::new(), 0, began);
    while (tags.len() as u64) < CALLS || sent < packets {
        if next <= rig.nic.cycle()
            && let Some(packet) = arriving.next()
        {
            rig.nic.inject(packet);
            next += apart;
        }
        rig.nic.step();
        sent += std::iter::from_fn(|| rig.nic.sent()).count() as u64;
        for flow in 0..rig.rings.len() {
            while let Some(received) = rig.rings[flow].receive(&mut rig.nic) {
                assert_eq!(received.head.kind, EntryKind::Request);
                tags.push((flow, received.head.connection, received.head.tag));
            }
            // Takes a cycle, in which the NIC goes on.
            rig.rings[flow].flush(&mut rig.nic);
        }
        let waited = rig.nic.cycle() - began;
        assert!(waited < 2_000, "{} requests, {sent} packets", tags.len());
    }
    (rig.nic.cycle() - began, tags)
}

#[test]
fn the_nic_accepts_an_rpc_of_64_bytes_every_four_cycles() {
    let timing = HostTiming {
        read_cycles: 1,
        ..HostTiming::default()
    };
    let nic = match SimulatedNic::new(1 << 14, timing) {
        Ok(nic) => nic,
        Err(reason) => return say_skipped(reason),
    };
    let mut rig = NicRig::of(nic, Checking::Packets, Balance::RoundRobin);
    let first = 2..2 + CONNECTIONS;
    let second = first.end..first.end + CONNECTIONS;
    for connection in first.start..second.end {
        rig.load(connection, ConnectionRole::Server, Balance::RoundRobin, 0);
    }
    let (cycles, tags) = run(&mut rig, requests(first), RPC_CYCLES / 2, 0);
    println!("simulated: {CALLS} requests alone in {cycles} cycles");
    assert!(
        cycles <= CALLS * RPC_CYCLES / 2 + PIPELINE_CYCLES,
        "{cycles} cycles"
    );

    // The responses to these go out while other requests come in.
    for (flow, connection, tag) in tags {
        rig.send(flow, EntryKind::Response, connection, 0, tag, &[5; 40]);
    }
    let (cycles, _) = run(&mut rig, requests(second), RPC_CYCLES, CALLS);
    println!("simulated: {CALLS} requests and {CALLS} responses in {cycles} cycles");
    assert!(cycles <= CALLS * RPC_CYCLES + PIPELINE_CYCLES, "{cycles} cycles");
}
