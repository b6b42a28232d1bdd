//! A driver's turns: many packets at a time, and handlers that take their time, are neither taken for a slow network nor do they
//! keep answers from being sent. Where many sessions are served, it looks at packets before it takes them, to have their sessions fetched:
//! whatever is in them, nothing else comes of it.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::time::Duration;

use provost_datagram::{
    Algorithm, Call, Checking, Cipher, Clock, Config, CongestionConfig, Driver, Drops, Event, Monotonic,
    MsgBuf, Sealing, Security, SessionId, SwiftConfig,
};
use provost_packets::{Arrival, InProcess, Integrity, LOOK_BYTES, Wire};

const SESSIONS: usize = 20;
const CALLS_PER_SESSION: usize = 8;
/// What a handler takes for one event. All of a turn of both ends stay below what counts as a stall.
const HANDLER_NS: u64 = 550;
const PACKETS_PER_BATCH: usize = 32;
const FEW: usize = 20;
const MANY: usize = 300;
const RING_PACKETS: usize = 4096;
const ANSWER_BYTES: usize = 32;
/// Turns of both ends after which no call is waited for any more.
const TURNS_MAX: usize = 1_000_000;

/// A clock that stands still but for what handlers take.
#[derive(Clone, Default)]
struct ManualClock(Rc<Cell<u64>>);

impl ManualClock {
    fn pass(&self, ns: u64) {
        self.0.set(self.0.get() + ns);
    }
}

impl Clock for ManualClock {
    fn now_ns(&mut self) -> u64 {
        self.pass(10);
        self.0.get()
    }
}

/// A wire that counts the packets it was given, and those that it has shown before they were taken.
struct CountedWire {
    wire: InProcess,
    sent: Rc<Cell<usize>>,
    /// Those of them that it was told to be one of several.
    parts: usize,
    looks: usize,
    shown: usize,
    /// Whether each second look sees nothing, as if the peer had taken back what it sent.
    fickle: bool,
    /// Packets to be sent beside those of the endpoint.
    strays: Rc<RefCell<Vec<Vec<u8>>>>,
}

impl CountedWire {
    fn new(wire: InProcess) -> CountedWire {
        CountedWire {
            wire,
            sent: Rc::default(),
            parts: 0,
            looks: 0,
            shown: 0,
            fickle: false,
            strays: Rc::default(),
        }
    }
}

impl Wire for CountedWire {
    type Address = u8;

    fn address(&self) -> u8 {
        self.wire.address()
    }

    fn packet_bytes_max(&self) -> usize {
        self.wire.packet_bytes_max()
    }

    fn receive_ring_packets(&self) -> usize {
        self.wire.receive_ring_packets()
    }

    fn integrity(&self) -> Integrity {
        self.wire.integrity()
    }

    fn receive(&mut self, packets_max: usize, take: impl FnMut(Arrival<'_, u8>)) -> io::Result<usize> {
        self.wire.receive(packets_max, take)
    }

    fn transmit_room(&self) -> usize {
        self.wire.transmit_room()
    }

    fn transmit(&mut self, to: u8, head: &[u8], payload: &[u8]) {
        self.sent.set(self.sent.get() + 1);
        self.wire.transmit(to, head, payload);
    }

    fn transmit_part(&mut self, to: u8, head: &[u8], payload: &[u8]) {
        self.parts += 1;
        self.transmit(to, head, payload);
    }

    fn look_ahead(&mut self, packets_max: usize, look: impl FnMut([u8; LOOK_BYTES])) -> usize {
        self.looks += 1;
        if self.fickle && self.looks.is_multiple_of(2) {
            return 0;
        }
        let shown = self.wire.look_ahead(packets_max, look);
        self.shown += shown;
        shown
    }

    fn flush(&mut self) -> io::Result<()> {
        let to = 1 - self.wire.address();
        for stray in self.strays.take() {
            self.wire.transmit(to, &stray, b"");
        }
        self.wire.flush()
    }

    fn wait(&mut self, at_most: Option<Duration>) -> io::Result<()> {
        self.wire.wait(at_most)
    }
}

struct DriverPair {
    clock: ManualClock,
    client: Driver<CountedWire, ManualClock>,
    server: Driver<CountedWire, ManualClock>,
    sessions: Vec<SessionId>,
    /// Packets that the server has handed to its wire.
    sent: Rc<Cell<usize>>,
    /// What the server's handler takes.
    handler_ns: u64,
}

impl DriverPair {
    fn new(algorithm: Algorithm) -> DriverPair {
        let clock = ManualClock::default();
        let (one, other) = InProcess::pair(1500, 4096);
        let driver = |wire, secret| {
            let config = Config {
                secret,
                congestion: CongestionConfig {
                    algorithm,
                    ..CongestionConfig::default()
                },
                ..Config::default()
            };
            let wire = CountedWire::new(wire);
            let sent = Rc::clone(&wire.sent);
            let driver = Driver::with_clock(config, wire, clock.clone()).expect("the options are in range");
            (driver, sent)
        };
        let ((client, _), (server, sent)) = (driver(one, [1, 2]), driver(other, [3, 4]));
        let mut pair = DriverPair {
            clock: clock.clone(),
            client,
            server,
            sessions: Vec::new(),
            sent,
            handler_ns: HANDLER_NS,
        };
        pair.connect();
        pair
    }

    fn connect(&mut self) {
        let to = self.server.wire().address();
        for _ in 0..SESSIONS {
            let (now_ns, endpoint) = self.client.endpoint();
            endpoint.connect(now_ns, to).expect("there is room");
        }
        while self.sessions.len() < SESSIONS {
            let sessions = &mut self.sessions;
            let connected = |_: &mut _, _, event: Event<'_>| {
                if let Event::Connected(session) = event {
                    sessions.push(session);
                }
            };
            self.client.turn(connected).expect("the wire is of use");
            self.server.turn(|_, _, _| {}).expect("the wire is of use");
        }
    }

    fn call_all(&mut self) {
        let (now_ns, endpoint) = self.client.endpoint();
        for session in &self.sessions {
            for tag in 0..CALLS_PER_SESSION as u64 {
                let call = Call {
                    method: 1,
                    tag,
                    request: MsgBuf::from_slice(&[7; 32]),
                    response: MsgBuf::with_capacity(32),
                };
                endpoint.call(now_ns, *session, call).expect("the call is taken");
            }
        }
    }

    /// Both ends take turns until all calls are answered; says how many turns that took.
    fn answer_all(&mut self) -> usize {
        let (mut answered, mut turns) = (0, 0);
        while answered < SESSIONS * CALLS_PER_SESSION {
            turns += 1;
            let clock = self.clock.clone();
            let complete = |_: &mut _, _, event: Event<'_>| {
                clock.pass(HANDLER_NS);
                answered += usize::from(matches!(event, Event::Completed(_)));
            };
            self.client.turn(complete).expect("the wire is of use");
            self.serve(|_, _| {});
        }
        turns
    }

    /// The server's turn; says for each request how many were before it, and how many packets have been sent by then.
    fn serve(&mut self, mut watch: impl FnMut(usize, usize)) {
        let (clock, sent, handler_ns) = (self.clock.clone(), Rc::clone(&self.sent), self.handler_ns);
        let mut requests = 0;
        let respond = |endpoint: &mut provost_datagram::Endpoint<u8>, now_ns, event: Event<'_>| {
            if let Event::Request { handle, .. } = event {
                watch(requests, sent.get());
                requests += 1;
                clock.pass(handler_ns);
                endpoint
                    .respond_inline(now_ns, handle, 0, &[7; 32])
                    .expect("the request waits for its response");
            }
        };
        self.server.turn(respond).expect("the wire is of use");
    }
}

#[test]
fn what_handlers_take_is_not_taken_for_congestion() {
    let [without, with] = [Algorithm::Off, Algorithm::Swift(SwiftConfig::default())].map(|algorithm| {
        let mut pair = DriverPair::new(algorithm);
        let turns: Vec<usize> = (0..20)
            .map(|_| {
                pair.call_all();
                pair.answer_all()
            })
            .collect();
        let paced = pair.client.endpoint().1.statistics().packets_paced;
        assert_eq!(paced, 0, "nothing has to be paced");
        turns
    });
    assert_eq!(without, with, "turns until all calls were answered");
}

/// Serves many requests at once, each of which takes so long, and says after how many batches at most answers leave.
fn batches_before_answers(pair: &mut DriverPair, handler_ns: u64) -> usize {
    pair.handler_ns = handler_ns;
    pair.call_all();
    pair.client.turn(|_, _, _| {}).expect("the wire is of use");
    let before = pair.sent.get();
    let (mut requests, mut batches_max) = (0, 0);
    pair.serve(|earlier, sent| {
        requests += 1;
        let unanswered = earlier.saturating_sub(sent - before);
        batches_max = batches_max.max(unanswered / PACKETS_PER_BATCH + 1);
    });
    assert!(requests > 3 * PACKETS_PER_BATCH, "only {requests} requests came");
    batches_max
}

#[test]
fn a_server_that_was_idle_answers_each_batch_before_it_takes_the_next() {
    let mut pair = DriverPair::new(Algorithm::Off);
    pair.serve(|_, _| {});
    pair.clock.pass(10_000);
    assert_eq!(batches_before_answers(&mut pair, HANDLER_NS), 1);
}

#[test]
fn a_server_that_lags_behind_answers_two_batches_at_once() {
    let mut pair = DriverPair::new(Algorithm::Off);
    assert_eq!(batches_before_answers(&mut pair, HANDLER_NS), 2);
}

#[test]
fn a_server_whose_handlers_are_slow_answers_each_batch() {
    let mut pair = DriverPair::new(Algorithm::Off);
    assert_eq!(batches_before_answers(&mut pair, 1_000), 1);
}

#[test]
fn a_wire_is_told_which_packets_are_one_of_several_of_a_message() {
    const PACKETS: usize = 5;
    let mut pair = DriverPair::new(Algorithm::Off);
    let before = pair.client.wire().parts;
    pair.call_all();
    pair.client.turn(|_, _, _| {}).expect("the wire is of use");
    assert_eq!(pair.client.wire().parts, before, "each message has one packet");
    let (now_ns, endpoint) = pair.client.endpoint();
    let call = Call {
        method: 1,
        tag: 0,
        request: MsgBuf::from_slice(&vec![7; PACKETS * endpoint.packet_payload_bytes()]),
        response: MsgBuf::with_capacity(32),
    };
    endpoint
        .call(now_ns, pair.sessions[0], call)
        .expect("the call is taken");
    pair.answer_all();
    for _ in 0..10 * PACKETS {
        pair.client.turn(|_, _, _| {}).expect("the wire is of use");
        pair.serve(|_, _| {});
    }
    assert_eq!(pair.client.wire().parts, before + PACKETS);
}

/// Two ends with so many sessions, on the machine's clock.
struct ManyPair {
    client: Driver<CountedWire, Monotonic>,
    server: Driver<CountedWire, Monotonic>,
    sessions: Vec<SessionId>,
    answered: usize,
    /// What the client's wire sends beside the client's packets.
    strays: Rc<RefCell<Vec<Vec<u8>>>>,
}

impl ManyPair {
    fn connected(sessions: usize, (checking, security): (Checking, Security), fickle: bool) -> ManyPair {
        let (one, other) = InProcess::pair(1500, RING_PACKETS);
        let driver = |wire, secret| {
            let config = Config {
                secret,
                credits: 8,
                receive_ring_packets: RING_PACKETS as u32,
                checking,
                security: security.clone(),
                ..Config::default()
            };
            let wire = CountedWire {
                fickle,
                ..CountedWire::new(wire)
            };
            let strays = Rc::clone(&wire.strays);
            let driver = Driver::with_clock(config, wire, Monotonic::default());
            (driver.expect("the options are in range"), strays)
        };
        let ((client, strays), (server, _)) = (driver(one, [1, 2]), driver(other, [3, 4]));
        let mut pair = ManyPair {
            client,
            server,
            sessions: Vec::new(),
            answered: 0,
            strays,
        };
        for number in 1..=sessions {
            let to = pair.server.wire().address();
            let (now_ns, endpoint) = pair.client.endpoint();
            endpoint.connect(now_ns, to).expect("there is room");
            pair.turn_until("connected sessions", number, |pair| pair.sessions.len());
        }
        pair
    }

    /// Takes turns until so many of them have been counted.
    fn turn_until(&mut self, what: &str, number: usize, count: impl Fn(&ManyPair) -> usize) {
        for _ in 0..TURNS_MAX {
            if count(self) == number {
                return;
            }
            self.turn();
        }
        panic!("{} of {number} {what} after {TURNS_MAX} turns", count(self));
    }

    /// Both ends' turns: the server answers with the beginning of what it was asked.
    fn turn(&mut self) {
        let (sessions, answered) = (&mut self.sessions, &mut self.answered);
        let client = self.client.turn(|_, _, event| match event {
            Event::Connected(session) => sessions.push(session),
            Event::Completed(completion) => {
                assert_eq!(completion.outcome, Ok(0));
                assert_eq!(*completion.response, completion.request[..ANSWER_BYTES]);
                *answered += 1;
            }
            _ => {}
        });
        client.expect("the wire is of use");
        let server = self.server.turn(|endpoint, now_ns, event| {
            if let Event::Request { handle, payload, .. } = event {
                endpoint
                    .respond_inline(now_ns, handle, 0, &payload[..ANSWER_BYTES])
                    .expect("the request waits for its response");
            }
        });
        server.expect("the wire is of use");
    }

    /// A call of each session, of so many bytes; takes turns until all are answered.
    fn call_all(&mut self, bytes: usize) {
        self.answered = 0;
        let (now_ns, endpoint) = self.client.endpoint();
        for (number, session) in self.sessions.iter().enumerate() {
            let call = Call {
                method: 1,
                tag: number as u64,
                request: MsgBuf::from_slice(&vec![number as u8; bytes]),
                response: MsgBuf::with_capacity(ANSWER_BYTES),
            };
            endpoint.call(now_ns, *session, call).expect("the call is taken");
        }
        self.turn_until("answered calls", self.sessions.len(), |pair| pair.answered);
    }

    fn shown(&self) -> [usize; 2] {
        [self.client.wire().shown, self.server.wire().shown]
    }
}

#[test]
fn only_who_serves_many_sessions_looks_ahead_and_every_call_is_answered() {
    let sealing = Security::Sealed(Sealing {
        cipher: Cipher::Aes128Gcm,
        pre_shared_key: [1; 32],
        seed: [2; 32],
    });
    let setups = [
        (Checking::Wire, Security::Plain),
        (Checking::Packets, Security::Plain),
        (Checking::Crc32c, Security::Plain),
        (Checking::Packets, sealing),
    ];
    for (checking, security) in setups {
        let mut few = ManyPair::connected(FEW, (checking, security.clone()), false);
        few.call_all(ANSWER_BYTES);
        assert_eq!(few.shown(), [0, 0], "{checking:?}");

        let mut many = ManyPair::connected(MANY, (checking, security), false);
        many.call_all(ANSWER_BYTES);
        let [client, server] = many.shown();
        assert_eq!(
            client, 0,
            "a client's sessions are at hand when responses come ({checking:?})"
        );
        // Each is looked at for its session, and for its slot.
        assert!(
            server >= 2 * MANY,
            "{server} packets were seen ahead ({checking:?})"
        );
        many.call_all(4000);
    }
}

#[test]
fn packets_of_sessions_and_slots_that_there_are_not_are_looked_at_without_harm() {
    let mut pair = ManyPair::connected(MANY, (Checking::Packets, Security::Plain), false);
    let before = pair.server.endpoint().1.statistics().dropped;
    let mut packets = 0;
    for session in [0, 1, MANY - 1, MANY, 1024, usize::from(u16::MAX)] {
        for slot in [0, 7, 8, 15, 16, u8::MAX] {
            let [low, high, ..] = session.to_le_bytes();
            for bytes in [0, 1, 7, 8, 9, 60] {
                let mut packet = vec![0xff; bytes];
                let place = [1, slot, low, high];
                let stated = bytes.min(place.len());
                packet[..stated].copy_from_slice(&place[..stated]);
                pair.strays.borrow_mut().push(packet);
                packets += 1;
            }
        }
        pair.turn();
    }
    let after = pair.server.endpoint().1.statistics().dropped;
    let dropped = |dropped: Drops| dropped.length + dropped.check + dropped.kind;
    assert_eq!(dropped(after) - dropped(before), packets);
    pair.call_all(ANSWER_BYTES);
}

#[test]
fn packets_that_are_not_seen_again_are_taken_all_the_same() {
    let mut pair = ManyPair::connected(MANY, (Checking::Wire, Security::Plain), true);
    pair.call_all(ANSWER_BYTES);
    let wire = pair.server.wire();
    assert!(
        wire.shown >= MANY && wire.looks > 2,
        "{} packets in {} looks",
        wire.shown,
        wire.looks
    );
}
