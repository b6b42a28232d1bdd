//! Connections over two simulated NICs whose wire loses, doubles, delays and damages packets: the NICs send again what is lost, and
//! segments are put in order.

mod ends;

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use ends::{has_model, pair_through};
use provost_conformance::{CASES, Random, run_case};

/// Of a thousand packets, so many suffer each kind of harm.
const HARM_PER_MILLE: u64 = 20;
/// Cases of the suite that move many segments, by the beginning of their names.
const CASES_RUN: [&str; 3] = ["streams in each", "messages of every size", "the order of steps"];

/// Passes packets on between a client and the socket to which it wants to send.
struct HarmfulRelay {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    /// Packets that were lost, doubled, delayed, damaged.
    harmed: Arc<[AtomicU64; 4]>,
    thread: Option<JoinHandle<()>>,
}

impl HarmfulRelay {
    fn to(server: SocketAddr, seed: u64) -> HarmfulRelay {
        let [inner, outer] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        outer.connect(server).unwrap();
        inner.set_nonblocking(true).unwrap();
        outer.set_nonblocking(true).unwrap();
        let address = inner.local_addr().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let harmed = Arc::new([(); 4].map(|()| AtomicU64::new(0)));
        let (stopped, counts) = (stop.clone(), harmed.clone());
        let thread = std::thread::spawn(move || {
            let mut random = Random::new(seed);
            let (mut client, mut held) = (None, [None, None]);
            let mut buffer = [0; 2048];
            while !stopped.load(Ordering::Relaxed) {
                let mut idle = true;
                if let Ok((bytes, from)) = inner.recv_from(&mut buffer) {
                    idle = false;
                    client = Some(from);
                    for packet in harm(&buffer[..bytes], &mut held[0], &mut random, &counts) {
                        let _ = outer.send(&packet);
                    }
                }
                if let (Ok(bytes), Some(client)) = (outer.recv(&mut buffer), client) {
                    idle = false;
                    for packet in harm(&buffer[..bytes], &mut held[1], &mut random, &counts) {
                        let _ = inner.send_to(&packet, client);
                    }
                }
                if idle {
                    std::thread::yield_now();
                }
            }
        });
        HarmfulRelay {
            address,
            stop,
            harmed,
            thread: Some(thread),
        }
    }
}

impl Drop for HarmfulRelay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What becomes of a packet: those that go on now. One that is delayed goes behind the next.
fn harm(
    packet: &[u8],
    held: &mut Option<Vec<u8>>,
    random: &mut Random,
    counts: &[AtomicU64; 4],
) -> Vec<Vec<u8>> {
    let mut packet = packet.to_vec();
    let mut happens = |kind: usize| {
        let happens = random.below(1000) < HARM_PER_MILLE;
        counts[kind].fetch_add(happens.into(), Ordering::Relaxed);
        happens
    };
    let [lost, doubled, delayed, damaged] = [0, 1, 2, 3].map(&mut happens);
    if lost {
        return Vec::new();
    }
    if damaged {
        let at = random.index(packet.len());
        packet[at] ^= 0x40;
    }
    if delayed {
        return held.replace(packet).into_iter().collect();
    }
    let copies = if doubled { 2 } else { 1 };
    std::iter::repeat_n(packet, copies).chain(held.take()).collect()
}

#[test]
fn calls_and_streams_go_on_over_a_wire_that_does_harm() {
    if !has_model() {
        return;
    }
    let harmed = std::cell::RefCell::new(Vec::new());
    for (seed, name) in (1..).zip(CASES_RUN) {
        let case = CASES
            .iter()
            .find(|case| case.name.starts_with(name))
            .expect("the suite has it");
        let relays = std::cell::RefCell::new(Vec::new());
        run_case(case, &|| {
            pair_through(|server| {
                let relay = HarmfulRelay::to(server, seed);
                let address = relay.address;
                harmed.borrow_mut().push(relay.harmed.clone());
                relays.borrow_mut().push(relay);
                address
            })
        });
    }
    for kind in 0..4 {
        let total: u64 = harmed
            .borrow()
            .iter()
            .map(|counts| counts[kind].load(Ordering::Relaxed))
            .sum();
        assert!(total > 5, "harm of kind {kind} was done {total} times");
    }
}
