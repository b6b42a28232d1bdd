//! Requests that a server holds (long polls) are not in the network: they take nothing of the congestion window, and other
//! calls of the session go on while the window is at its least.

use provost_datagram::{
    Algorithm, Call, Config, Endpoint, Event, Mark, MsgBuf, RequestHandle, SessionId, SwiftConfig,
};

/// The method whose requests the server keeps.
const HOLD: u16 = 1;
/// The method that the server answers at once.
const ECHO: u16 = 2;
/// How long a packet is on its way, in nanoseconds.
const HOP_NS: u64 = 10_000;

/// What happens to packets on their way to the server.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CableFault {
    None,
    /// Each arrives twice.
    Doubles,
    /// The next one does not arrive.
    LosesNext,
}

/// A client and a server with a cable between them.
struct Pair {
    now_ns: u64,
    client: Endpoint<u8>,
    server: Endpoint<u8>,
    session: Option<SessionId>,
    held: Vec<RequestHandle>,
    completed: Vec<u64>,
    cable: CableFault,
}

impl Pair {
    fn new(window_packets_max: u32) -> Pair {
        let mut config = Config {
            secret: [1, 2],
            ..Config::default()
        };
        config.congestion.algorithm = Algorithm::Swift(SwiftConfig {
            window_packets_max,
            ..SwiftConfig::default()
        });
        let server = Config {
            secret: [3, 4],
            ..config.clone()
        };
        let mut pair = Pair {
            now_ns: 1,
            client: Endpoint::new(config).expect("the client's options are in range"),
            server: Endpoint::new(server).expect("the server's options are in range"),
            session: None,
            held: Vec::new(),
            completed: Vec::new(),
            cable: CableFault::None,
        };
        pair.session = Some(pair.client.connect(1, 1).expect("there is room for a session"));
        pair.hops(8);
        pair
    }

    /// Carries packets both ways so many times.
    fn hops(&mut self, hops: usize) {
        for _ in 0..hops {
            self.now_ns += HOP_NS;
            self.client.handle_timers(self.now_ns);
            while let Some(transmit) = self.client.poll_transmit(self.now_ns) {
                let bytes = [transmit.head.bytes(), transmit.payload].concat();
                if self.cable == CableFault::LosesNext {
                    self.cable = CableFault::None;
                    continue;
                }
                let event = self.server.receive(self.now_ns, 0, Mark::None, &bytes);
                match event {
                    Some(Event::Request {
                        handle, method: HOLD, ..
                    }) => self.held.push(handle),
                    Some(Event::Request { handle, .. }) => self
                        .server
                        .respond_inline(self.now_ns, handle, 0, b"echo")
                        .expect("the request waits for its response"),
                    _ => {}
                }
                if self.cable == CableFault::Doubles {
                    let event = self.server.receive(self.now_ns, 0, Mark::None, &bytes);
                    assert!(event.is_none(), "a packet that comes twice is heard once");
                }
            }
            self.now_ns += HOP_NS;
            self.server.handle_timers(self.now_ns);
            while let Some(transmit) = self.server.poll_transmit(self.now_ns) {
                let bytes = [transmit.head.bytes(), transmit.payload].concat();
                if let Some(Event::Completed(completion)) =
                    self.client.receive(self.now_ns, 1, Mark::None, &bytes)
                {
                    assert!(completion.outcome.is_ok(), "{:?}", completion.outcome);
                    self.completed.push(completion.tag);
                }
            }
        }
    }

    fn call(&mut self, method: u16, tag: u64, request_bytes: usize) {
        let call = Call {
            method,
            tag,
            request: MsgBuf::from_slice(&vec![7; request_bytes]),
            response: MsgBuf::with_capacity(64),
        };
        let session = self.session.expect("the session was asked for");
        self.client
            .call(self.now_ns, session, call)
            .expect("the call is taken");
    }

    fn answer_held(&mut self) {
        for handle in self.held.drain(..) {
            self.server
                .respond_inline(self.now_ns, handle, 0, b"late")
                .expect("the request waits for its response");
        }
    }
}

#[test]
fn a_long_poll_does_not_stop_other_calls_when_the_window_is_one_packet() {
    let mut pair = Pair::new(1);
    pair.call(HOLD, 1, 32);
    pair.hops(2);
    assert_eq!(pair.held.len(), 1, "the long poll is with the server");
    for tag in 100..120 {
        pair.call(ECHO, tag, 32);
        pair.hops(3);
    }
    assert_eq!(pair.completed, (100..120).collect::<Vec<_>>());
    assert_eq!(
        pair.client.statistics().timeouts,
        0,
        "no time-out was needed for that"
    );
    pair.answer_held();
    pair.hops(2);
    assert_eq!(pair.completed.last(), Some(&1));
}

#[test]
fn requests_of_many_packets_that_are_held_leave_the_window_to_others() {
    let mut pair = Pair::new(2);
    pair.call(HOLD, 1, 20_000);
    pair.call(HOLD, 2, 20_000);
    pair.hops(60);
    assert_eq!(pair.held.len(), 2, "both requests are with the server");
    for tag in 100..110 {
        pair.call(ECHO, tag, 32);
        pair.hops(3);
    }
    assert_eq!(pair.completed.len(), 10, "{:?}", pair.completed);
    pair.answer_held();
    pair.hops(4);
    assert_eq!(pair.completed.len(), 12);
}

#[test]
fn held_requests_take_credits_still_so_that_responses_find_room() {
    let mut pair = Pair::new(1);
    let slots = usize::from(Config::default().slots);
    for tag in 0..slots as u64 + 3 {
        pair.call(HOLD, tag, 32);
    }
    pair.hops(40);
    assert_eq!(pair.held.len(), slots, "each slot has one call, and no more");
    pair.answer_held();
    pair.hops(40);
    assert_eq!(pair.completed.len(), slots);
    assert_eq!(pair.held.len(), 3);
    pair.answer_held();
    pair.hops(10);
    assert_eq!(pair.completed.len(), slots + 3);
}

/// Packets sent again, probes, and those that the server had before.
fn repetitions(pair: &Pair) -> [u64; 3] {
    let client = pair.client.statistics();
    [
        client.packets_resent,
        client.probes_sent,
        pair.server.statistics().packets_duplicate,
    ]
}

#[test]
fn a_held_request_is_sent_again_once_and_then_only_probed_for() {
    let mut pair = Pair::new(64);
    pair.call(HOLD, 1, 32);
    while pair.client.statistics().probes_sent < 3 {
        pair.hops(1);
    }
    pair.hops(1);
    let [resent, probes, duplicates] = repetitions(&pair);
    // Nobody has answered when it is sent again; that answer says that the server has it. It had all of them before.
    assert_eq!((resent, probes), (1, duplicates - 1));
    pair.answer_held();
    pair.hops(2);
    assert_eq!(pair.completed, [1]);
}

#[test]
fn packets_that_the_network_doubles_are_duplicates_and_nothing_else() {
    let mut pair = Pair::new(64);
    pair.cable = CableFault::Doubles;
    for tag in 0..10 {
        pair.call(ECHO, tag, 32);
        pair.hops(3);
    }
    assert_eq!(pair.completed.len(), 10);
    assert_eq!(repetitions(&pair), [0, 0, 10]);
}

#[test]
fn a_packet_that_is_lost_is_sent_again_and_is_no_duplicate() {
    let mut pair = Pair::new(64);
    pair.cable = CableFault::LosesNext;
    pair.call(ECHO, 1, 32);
    while pair.completed.is_empty() {
        pair.hops(1);
    }
    assert_eq!(repetitions(&pair), [1, 0, 0]);
}
