//! How many cycles the NIC takes when nothing else goes on. Figures of the RTL, simulated: they are printed, and bounded generously.

use provost_datagram::Checking;
use provost_nic::{Balance, EntryKind};
use provost_nic_model::HostTiming;
use provost_nic_tests::rig::{CLIENT, NicRig};
use provost_nic_tests::say_skipped;

/// Cycles until something is so.
fn cycles_until<T>(rig: &mut NicRig, mut found: impl FnMut(&mut NicRig) -> Option<T>) -> (u64, T) {
    let began = rig.nic.cycle();
    for _ in 0..2_000 {
        if let Some(found) = found(rig) {
            return (rig.nic.cycle() - began, found);
        }
        rig.nic.step();
    }
    panic!("nothing in 2,000 cycles");
}

#[test]
fn one_call_alone_takes_few_cycles_each_way() {
    let mut rig = match NicRig::new(Checking::Packets, Balance::Static) {
        Ok(rig) => rig,
        Err(reason) => return say_skipped(reason),
    };
    let memory = u64::from(HostTiming::default().read_cycles);
    let (mut out, mut inwards) = (Vec::new(), Vec::new());
    for round in 0..20u32 {
        // At every phase of the poller's round.
        for _ in 0..round * 3 {
            rig.nic.step();
        }
        rig.send(0, EntryKind::Request, CLIENT, 1, round.into(), &[7; 40]);
        let (cycles, packet) = cycles_until(&mut rig, |rig| rig.nic.sent());
        out.push(cycles);
        assert_eq!(packet.bytes.len(), 64);
        let slot = (round % 8) as u8;
        let request = NicRig::request(slot, round / 8 + 1, 1, &[9; 40], Checking::Packets);
        rig.nic.inject(provost_nic_model::WirePacket {
            remote: provost_nic_tests::rig::PEER,
            bytes: request,
        });
        let (cycles, received) = cycles_until(&mut rig, |rig| rig.rings[0].receive(&mut rig.nic));
        inwards.push(cycles);
        rig.rings[0].flush(&mut rig.nic);
        if received.head.kind == EntryKind::Request {
            rig.send(
                1,
                EntryKind::Response,
                received.head.connection,
                0,
                received.head.tag,
                b"",
            );
            rig.settle();
            while rig.nic.sent().is_some() {}
        }
        if round >= 7 {
            // The client's slots are taken: nobody answers them here.
            break;
        }
    }
    let (out_least, out_most) = (out.iter().min(), out.iter().max());
    let (in_least, in_most) = (inwards.iter().min(), inwards.iter().max());
    println!(
        "simulated cycles, memory answers a read in {memory}: entry written to packet sent {out_least:?} to {out_most:?}, \
         packet to slot written {in_least:?} to {in_most:?}"
    );
    // Four flows are polled in turn, a batch each.
    assert!(out_most <= Some(&(8 * memory)) && in_most <= Some(&60));
}
