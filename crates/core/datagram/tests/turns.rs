//! A driver's turns: many packets at a time, and handlers that take their time, are neither taken for a slow network nor do they
//! keep answers from being sent.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use provost_datagram::{
    Algorithm, Call, Clock, Config, CongestionConfig, Driver, Event, MsgBuf, SessionId, SwiftConfig,
};
use provost_packets::{Arrival, InProcess, Integrity, Wire};

const SESSIONS: usize = 20;
const CALLS_PER_SESSION: usize = 8;
/// What a handler takes for one event. All of a turn of both ends stay below what counts as a stall.
const HANDLER_NS: u64 = 550;
const PACKETS_PER_BATCH: usize = 32;

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

/// A wire that counts the packets it was given.
struct CountedWire {
    wire: InProcess,
    sent: Rc<Cell<usize>>,
    /// Those of them that it was told to be one of several.
    parts: usize,
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

    fn flush(&mut self) -> io::Result<()> {
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
            let sent = Rc::new(Cell::new(0));
            let config = Config {
                secret,
                congestion: CongestionConfig {
                    algorithm,
                    ..CongestionConfig::default()
                },
                ..Config::default()
            };
            let wire = CountedWire {
                wire,
                sent: Rc::clone(&sent),
                parts: 0,
            };
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
