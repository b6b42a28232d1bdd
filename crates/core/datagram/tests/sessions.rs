//! Twenty thousand sessions on one endpoint: a turn's work depends on what happens in it, not on how many sessions there
//! are, and the receive ring bounds them.

use provost_datagram::{
    Call, Config, ConnectError, EndReason, Endpoint, Event, Mark, MsgBuf, Refusal, SessionId,
};

const MANY: usize = 20_000;
const FEW: usize = 20;
const CREDITS: u16 = 8;

struct Pair {
    now_ns: u64,
    ends: [Endpoint<u8>; 2],
    sessions: Vec<SessionId>,
    answered: usize,
    refused: usize,
    /// Packets that went between the ends.
    packets: usize,
    /// How often an end was looked at.
    looks: usize,
}

impl Pair {
    fn new(rings: [u32; 2]) -> Pair {
        let end = |secret, receive_ring_packets| {
            Endpoint::new(Config {
                secret,
                credits: CREDITS,
                sessions_max: MANY,
                receive_ring_packets,
                peer_timeout_ns: 100_000_000_000,
                ..Config::default()
            })
            .unwrap()
        };
        Pair {
            now_ns: 1_000_000,
            ends: [end([1, 2], rings[0]), end([3, 4], rings[1])],
            sessions: Vec::new(),
            answered: 0,
            refused: 0,
            packets: 0,
            looks: 0,
        }
    }

    fn connected(sessions: usize) -> Pair {
        let ring = sessions as u32 * u32::from(CREDITS);
        let mut pair = Pair::new([ring; 2]);
        for _ in 0..sessions {
            pair.ends[0].connect(pair.now_ns, 1).unwrap();
            pair.settle();
        }
        assert_eq!(pair.sessions.len(), sessions);
        pair
    }

    fn handle(&mut self, side: usize, event: Event<'_>) {
        match event {
            Event::Connected(session) => self.sessions.push(session),
            Event::Request { handle, payload, .. } => self.ends[side]
                .respond_inline(self.now_ns, handle, 0, &payload)
                .unwrap(),
            Event::Completed(completion) => self.answered += usize::from(completion.outcome == Ok(0)),
            Event::Ended(_, reason) => {
                self.refused += usize::from(reason == EndReason::Refused(Refusal::RingFull));
            }
            _ => {}
        }
    }

    /// Lets packets go back and forth until none is left.
    fn settle(&mut self) {
        loop {
            self.now_ns += 1_000;
            let before = self.packets;
            for side in 0..2 {
                self.looks += 1;
                let mut leaving = Vec::new();
                self.ends[side].transmit(self.now_ns, 64, |_, head, payload| {
                    leaving.push([head, payload].concat());
                });
                self.packets += leaving.len();
                for bytes in leaving {
                    let to = 1 - side;
                    let event = self.ends[to].receive(self.now_ns, side as u8, Mark::None, &bytes);
                    if let Some(event) = event {
                        self.handle(to, event);
                    }
                }
                self.ends[side].handle_timers(self.now_ns);
                while let Some(event) = self.ends[side].poll_event() {
                    self.handle(side, event);
                }
            }
            if self.packets == before {
                return;
            }
        }
    }

    fn call_each(&mut self, sessions: usize) {
        let step = self.sessions.len() / sessions;
        for at in 0..sessions {
            let call = Call {
                method: 1,
                tag: at as u64,
                request: MsgBuf::from_slice(&[7; 32]),
                response: MsgBuf::with_capacity(32),
            };
            let session = self.sessions[at * step];
            self.ends[0].call(self.now_ns, session, call).unwrap();
        }
        self.settle();
    }

    fn timers(&self) -> u64 {
        self.ends.iter().map(|end| end.statistics().timers_fired).sum()
    }
}

#[test]
fn a_call_costs_as_many_packets_looks_and_timers_among_many_sessions_as_among_few() {
    let [few, many] = [FEW, MANY].map(|sessions| {
        let mut pair = Pair::connected(sessions);
        let (packets, looks, timers) = (pair.packets, pair.looks, pair.timers());
        for _ in 0..50 {
            pair.call_each(FEW);
        }
        assert_eq!(pair.answered, 50 * FEW);
        (pair.packets - packets, pair.looks - looks, pair.timers() - timers)
    });
    assert_eq!((few.0, few.1), (many.0, many.1));
    // Keepalives of the idle would be due only later; timers that fire are those of sessions that did something.
    assert!(
        many.2 <= few.2 + 50,
        "{} timers among many, {} among few",
        many.2,
        few.2
    );
}

#[test]
fn every_session_of_many_can_be_used_and_given_up() {
    let mut pair = Pair::connected(MANY);
    assert_eq!(pair.ends[0].ring_packets_free(), 0);
    assert_eq!(pair.ends[0].connect(pair.now_ns, 1), Err(ConnectError::RingFull));
    pair.call_each(MANY);
    assert_eq!(pair.answered, MANY);
    for some in std::mem::take(&mut pair.sessions).chunks(500) {
        for session in some {
            pair.ends[0].disconnect(pair.now_ns, *session);
        }
        pair.settle();
    }
    let all = MANY as u32 * u32::from(CREDITS);
    assert_eq!(pair.ends.each_ref().map(Endpoint::ring_packets_free), [all; 2]);
    pair.ends[0].connect(pair.now_ns, 1).unwrap();
    pair.settle();
    assert_eq!(pair.sessions.len(), 1);
}

#[test]
fn a_server_refuses_sessions_past_its_ring() {
    let mut pair = Pair::new([1_000 * u32::from(CREDITS), 300 * u32::from(CREDITS)]);
    for _ in 0..1_000 {
        pair.ends[0].connect(pair.now_ns, 1).unwrap();
        pair.settle();
        // Not so fast that refusals, which are answers to strangers, are too many for a millisecond.
        pair.now_ns += 10_000;
    }
    // All of their credits for 300 and a little less; the last few have fewer.
    let connected = pair.sessions.len();
    assert!((300..320).contains(&connected), "{connected} sessions");
    assert_eq!(pair.refused, 1_000 - connected);
    assert_eq!(pair.ends[1].ring_packets_free(), 0);
}

#[test]
fn few_sessions_do_not_fill_a_ring_that_has_no_room_for_all() {
    let (small, large) = (5 * u32::from(CREDITS), 1_000 * u32::from(CREDITS));
    // The server's ring, then that of the end that asks.
    for rings in [[large, small], [small, large]] {
        let free = |pair: &Pair| pair.ends.each_ref().map(Endpoint::ring_packets_free);
        let mut pair = Pair::new(rings);
        for _ in 0..10 {
            pair.ends[0].connect(pair.now_ns, 1).unwrap();
            pair.settle();
        }
        assert_eq!((pair.sessions.len(), pair.refused), (10, 0));
        assert!(free(&pair).iter().all(|free| *free > 0), "{:?}", free(&pair));
        let taken = [0, 1].map(|side| rings[side] - free(&pair)[side]);
        assert_eq!(
            taken[0], taken[1],
            "both ends count the credits that they agreed on"
        );
        pair.call_each(10);
        assert_eq!(pair.answered, 10);
        while pair.ends.iter().all(|end| end.ring_packets_free() > 0) {
            pair.ends[0].connect(pair.now_ns, 1).unwrap();
            pair.settle();
        }
        for session in pair.sessions.clone() {
            pair.ends[0].disconnect(pair.now_ns, session);
        }
        pair.settle();
        assert_eq!(free(&pair), rings, "all of it is given back");
    }
}
