//! What 8 MiB take from one core to another in packets of this wire, beside two copies of as much by one core.
//!
//! ```text
//! cargo run --release -p provost-shared-wire --example large-packets
//! ```
//!
//! The sender's packets are copied once more where they come, so each byte is copied twice on either way. Medians, in µs. Both
//! threads poll: give them two idle cores.

use std::error::Error;
use std::hint::{black_box, spin_loop};
use std::time::Instant;

use provost_packets::Wire;
use provost_shared_wire::{Options, SharedWire};

const BYTES: usize = 8 << 20;
const ROUNDS: usize = 15;
/// Bytes of a packet, and packets on their way: a mebibyte each.
const SHAPES: [(usize, u32); 4] = [(1_472, 512), (4_088, 256), (16_376, 64), (32_760, 32)];

/// What the wire is told of packets.
#[derive(Clone, Copy)]
enum PacketRelation {
    OneByOne,
    AsParts,
}

fn main() -> Result<(), Box<dyn Error>> {
    println!("two copies by one core: {:.0}", median(two_copies()));
    for (packet_bytes_max, ring_packets) in SHAPES {
        let options = Options {
            packet_bytes_max,
            ring_packets,
        };
        let [one_by_one, parts] =
            [PacketRelation::OneByOne, PacketRelation::AsParts].map(|relation| by_wire(options, relation));
        println!(
            "packets of {packet_bytes_max:6} bytes: {:.0} as packets, {:.0} as parts of a message",
            median(one_by_one?),
            median(parts?)
        );
    }
    Ok(())
}

fn median(mut took_us: Vec<f64>) -> f64 {
    took_us.sort_by(f64::total_cmp);
    took_us[took_us.len() / 2]
}

fn two_copies() -> Vec<f64> {
    let (from, mut to) = (vec![7_u8; BYTES], vec![0_u8; BYTES]);
    let rounds = (0..ROUNDS).map(|_| {
        let began = Instant::now();
        for _ in 0..2 {
            to.copy_from_slice(black_box(&from));
            black_box(&mut to);
        }
        began.elapsed().as_secs_f64() * 1e6
    });
    rounds.collect()
}

/// Sends the bytes, and waits until the other end has said that it has copied them.
fn by_wire(options: Options, relation: PacketRelation) -> Result<Vec<f64>, Box<dyn Error>> {
    let (mut here, mut there) = SharedWire::pair(options)?;
    // SAFETY: both are ends of this type, which write to no slot that was not given back.
    unsafe { there.trust_peer() };
    let taking = std::thread::spawn(move || take(&mut there).map_err(|error| error.to_string()));
    let from = vec![7_u8; BYTES];
    let mut took = Vec::new();
    for _ in 0..ROUNDS {
        let began = Instant::now();
        for packet in from.chunks(options.packet_bytes_max) {
            while here.transmit_room() == 0 {
                here.flush()?;
                spin_loop();
            }
            match relation {
                PacketRelation::OneByOne => here.transmit(here.peer(), &[], packet),
                PacketRelation::AsParts => here.transmit_part(here.peer(), &[], packet),
            }
            here.flush()?;
        }
        while here.receive(1, |_| {})? == 0 {
            spin_loop();
        }
        took.push(began.elapsed().as_secs_f64() * 1e6);
    }
    taking.join().map_err(|_| "the other end panicked")??;
    Ok(took)
}

fn take(wire: &mut SharedWire) -> std::io::Result<()> {
    let mut to = vec![0_u8; BYTES];
    for _ in 0..ROUNDS {
        let mut came = 0;
        while came < BYTES {
            let packets = wire.receive(8, |arrival| {
                to[came..][..arrival.bytes.len()].copy_from_slice(arrival.bytes);
                came += arrival.bytes.len();
            })?;
            if packets == 0 {
                spin_loop();
            }
            wire.flush()?;
        }
        black_box(&mut to);
        wire.transmit(wire.peer(), &[], b"done");
        wire.flush()?;
    }
    Ok(())
}
