//! Connections over two simulated NICs whose wire loses, doubles, delays and damages packets: the NICs send again what is lost, and
//! segments are put in order.

mod ends;

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use ends::{IDLE_ROUND_NS, has_model, pair_through};
use provost_conformance::{CASES, Pair, Random, run_case};

/// Of a thousand packets, so many suffer each kind of harm.
const HARM_PER_MILLE: u64 = 20;
/// Cases of the suite that move many segments, by the beginning of their names.
const CASES_RUN: [&str; 3] = ["streams in each", "messages of every size", "the order of steps"];

/// A wire between a client and the socket to which it wants to send.
struct HarmfulWire {
    inner: UdpSocket,
    outer: UdpSocket,
    client: Option<SocketAddr>,
    /// A delayed packet in each direction.
    held: [Option<Vec<u8>>; 2],
    random: Random,
    harmed: HarmCounts,
}

/// Packets that were lost, doubled, delayed, damaged.
type HarmCounts = Arc<[AtomicU64; 4]>;

impl HarmfulWire {
    fn to(server: SocketAddr, seed: u64) -> HarmfulWire {
        let [inner, outer] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        outer.connect(server).unwrap();
        inner.set_nonblocking(true).unwrap();
        outer.set_nonblocking(true).unwrap();
        HarmfulWire {
            inner,
            outer,
            client: None,
            held: [None, None],
            random: Random::new(seed),
            harmed: Arc::new([(); 4].map(|()| AtomicU64::new(0))),
        }
    }

    /// Passes on what has come; says whether anything has.
    fn carry(&mut self) -> bool {
        let mut buffer = [0; 2048];
        let mut moved = false;
        while let Ok((bytes, from)) = self.inner.recv_from(&mut buffer) {
            moved = true;
            self.client = Some(from);
            for packet in harm(
                &buffer[..bytes],
                &mut self.held[0],
                &mut self.random,
                &self.harmed,
            ) {
                let _ = self.outer.send(&packet);
            }
        }
        let Some(client) = self.client else {
            return moved;
        };
        while let Ok(bytes) = self.outer.recv(&mut buffer) {
            moved = true;
            for packet in harm(
                &buffer[..bytes],
                &mut self.held[1],
                &mut self.random,
                &self.harmed,
            ) {
                let _ = self.inner.send_to(&packet, client);
            }
        }
        moved
    }

    /// Has a thread carry packets until it is told to stop.
    fn carry_until(mut self, stopped: Arc<AtomicBool>) -> JoinHandle<HarmfulWire> {
        std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                if !self.carry() {
                    std::thread::yield_now();
                }
            }
            self
        })
    }
}

/// Two ends over such a wire. As they connect, a thread carries packets and the clock is the system's. Then the ends are polled by a clock that
/// waits for the wire: it goes on only when the wire has carried all that was sent.
fn pair_over_harmful_wire(seed: u64, harmed: &mut Vec<HarmCounts>) -> Pair {
    let stopped = Arc::new(AtomicBool::new(false));
    let mut carrying = None;
    let pair = pair_through(|server| {
        let wire = HarmfulWire::to(server, seed);
        let address = wire.inner.local_addr().unwrap();
        harmed.push(wire.harmed.clone());
        carrying = Some(wire.carry_until(stopped.clone()));
        address
    });
    stopped.store(true, Ordering::Relaxed);
    let mut wire = carrying.expect("the pair asked for it").join().unwrap();
    Pair {
        between: Box::new(move |now| Some(if wire.carry() { now } else { now + IDLE_ROUND_NS })),
        ..pair
    }
}

/// What becomes of a packet: those that go on now. One that is delayed goes behind the next.
fn harm(packet: &[u8], held: &mut Option<Vec<u8>>, random: &mut Random, counts: &HarmCounts) -> Vec<Vec<u8>> {
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
        run_case(case, &|| pair_over_harmful_wire(seed, &mut harmed.borrow_mut()));
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
