//! Messages of one packet: which of a session's slots have one to send is a bit each, and a session whose calls have ended rests
//! until its timer fires. Nothing goes twice, nothing is left behind, and no call that gets lost is forgotten.

use std::collections::BTreeSet;

use provost_datagram::{
    Call, Checking, Cipher, Config, EndReason, Endpoint, Event, Mark, MsgBuf, Sealing, Security, SessionId,
};

const CLIENT: usize = 0;
const SERVER: usize = 1;
const SESSIONS: usize = 3;
const CALLS_PER_SESSION: usize = 5;
const CALLS: usize = SESSIONS * CALLS_PER_SESSION;
/// Bytes of a request that is its tag alone.
const TAG_BYTES: usize = size_of::<u64>();
/// Bytes of a request of several packets.
const LARGE_BYTES: usize = 10_000;
/// Packets that a wire takes at a time: fewer than a session has to send, and no part of it.
const ROOM: usize = 3;
/// Between two looks at the timers: shorter than what counts as a stall.
const STEP_NS: u64 = 100_000;
const SECOND_NS: u64 = 1_000_000_000;

/// How packets are asked for.
#[derive(Clone, Copy, Debug)]
enum SendingBy {
    Many,
    OneByOne,
}

struct LossyNetwork {
    now_ns: u64,
    ends: [Endpoint<u8>; 2],
    sessions: Vec<SessionId>,
    completed: BTreeSet<u64>,
    ended: Vec<EndReason>,
}

impl LossyNetwork {
    fn new(checking: Checking, security: &Security) -> LossyNetwork {
        LossyNetwork::with(&Config {
            checking,
            security: security.clone(),
            ..Config::default()
        })
    }

    fn with(config: &Config) -> LossyNetwork {
        let end = |secret| {
            let config = Config {
                secret,
                ..config.clone()
            };
            Endpoint::new(config).unwrap()
        };
        let mut network = LossyNetwork {
            now_ns: 1_000_000,
            ends: [end([1, 2]), end([3, 4])],
            sessions: Vec::new(),
            completed: BTreeSet::new(),
            ended: Vec::new(),
        };
        for _ in 0..SESSIONS {
            network.ends[CLIENT]
                .connect(network.now_ns, SERVER as u8)
                .unwrap();
            network.exchange();
        }
        assert_eq!(network.sessions.len(), SESSIONS);
        network
    }

    fn plain() -> LossyNetwork {
        LossyNetwork::new(Checking::Wire, &Security::Plain)
    }

    fn call(&mut self, session: usize, tag: u64) {
        self.call_with(session, tag, TAG_BYTES);
    }

    /// Makes a call whose request has so many bytes. It is answered with the tag.
    fn call_with(&mut self, session: usize, tag: u64, bytes: usize) {
        let mut request = tag.to_le_bytes().to_vec();
        request.resize(bytes, 0);
        let call = Call {
            method: 1,
            tag,
            request: MsgBuf::from_slice(&request),
            response: MsgBuf::with_capacity(32),
        };
        self.ends[CLIENT]
            .call(self.now_ns, self.sessions[session], call)
            .unwrap();
    }

    /// What an end sends when there is room for so many packets.
    fn sent(&mut self, from: usize, room: usize, sending_by: SendingBy) -> Vec<Vec<u8>> {
        let (end, mut packets) = (&mut self.ends[from], Vec::new());
        match sending_by {
            SendingBy::Many => {
                let told = end.transmit(self.now_ns, room, |_, head, payload| {
                    packets.push([head, payload].concat());
                });
                assert_eq!(told, packets.len());
            }
            SendingBy::OneByOne => {
                while packets.len() < room
                    && let Some(transmit) = end.poll_transmit(self.now_ns)
                {
                    packets.push([transmit.head.bytes(), transmit.payload].concat());
                }
            }
        }
        packets
    }

    /// All that an end has to send, a few packets at a time.
    fn all_sent(&mut self, from: usize, sending_by: SendingBy) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        loop {
            let some = self.sent(from, ROOM, sending_by);
            assert!(some.len() <= ROOM, "{} packets into {ROOM} places", some.len());
            if some.is_empty() {
                return all;
            }
            all.extend(some);
            assert!(all.len() <= 4 * CALLS, "it sends without end");
        }
    }

    fn deliver(&mut self, to: usize, packets: &[Vec<u8>]) {
        for packet in packets {
            let event = self.ends[to].receive(self.now_ns, 1 - to as u8, Mark::None, packet);
            if let Some(event) = event {
                self.handle(to, event);
            }
        }
        while let Some(event) = self.ends[to].poll_event() {
            self.handle(to, event);
        }
    }

    fn handle(&mut self, side: usize, event: Event<'_>) {
        match event {
            Event::Connected(session) => self.sessions.push(session),
            Event::Request { handle, payload, .. } => self.ends[side]
                .respond_inline(self.now_ns, handle, 0, &payload[..TAG_BYTES])
                .unwrap(),
            Event::Completed(completion) if completion.outcome.is_ok() => {
                assert_eq!(*completion.response, completion.tag.to_le_bytes());
                assert!(self.completed.insert(completion.tag), "a call ends once");
            }
            Event::Ended(_, reason) => self.ended.push(reason),
            _ => {}
        }
    }

    /// Lets packets go both ways until there are none.
    fn exchange(&mut self) {
        loop {
            let mut packets = 0;
            for from in [CLIENT, SERVER] {
                let sent = self.sent(from, 64, SendingBy::Many);
                packets += sent.len();
                self.deliver(1 - from, &sent);
            }
            if packets == 0 {
                return;
            }
        }
    }

    fn step(&mut self) {
        self.now_ns += STEP_NS;
        for side in [CLIENT, SERVER] {
            self.ends[side].handle_timers(self.now_ns);
            self.deliver(side, &[]);
        }
    }

    /// Lets so much time pass. Packets arrive.
    fn pass(&mut self, ns: u64) {
        for _ in 0..ns / STEP_NS {
            self.step();
            self.exchange();
        }
    }

    fn timers_fired(&self) -> u64 {
        self.ends[CLIENT].statistics().timers_fired
    }
}

fn guards() -> [(Checking, Security); 3] {
    let sealing = Sealing {
        cipher: Cipher::Aes128Gcm,
        pre_shared_key: [1; 32],
        seed: [2; 32],
    };
    [
        (Checking::Wire, Security::Plain),
        (Checking::Crc32c, Security::Plain),
        (Checking::Wire, Security::Sealed(sealing)),
    ]
}

#[test]
fn every_message_goes_once_however_little_room_there_is() {
    for (checking, security) in guards() {
        for sending_by in [SendingBy::Many, SendingBy::OneByOne] {
            let mut network = LossyNetwork::new(checking, &security);
            for tag in 0..CALLS {
                network.call(tag % SESSIONS, tag as u64);
            }
            let requests = network.all_sent(CLIENT, sending_by);
            assert_eq!(requests.len(), CALLS, "requests, {checking:?} {sending_by:?}");
            network.deliver(SERVER, &requests);
            let responses = network.all_sent(SERVER, sending_by);
            assert_eq!(responses.len(), CALLS, "responses, {checking:?} {sending_by:?}");
            network.deliver(CLIENT, &responses);
            assert_eq!(network.completed.len(), CALLS);
            let duplicates = network
                .ends
                .each_ref()
                .map(|end| end.statistics().packets_duplicate);
            assert_eq!(duplicates, [0, 0]);
        }
    }
}

/// What leaves a slot must not be what another one's bit says, nor what the slot sent before.
#[test]
fn messages_that_are_queued_while_others_leave_go_too() {
    let mut network = LossyNetwork::plain();
    for tag in 0..4 {
        network.call(0, tag);
    }
    let first = network.sent(CLIENT, 2, SendingBy::Many);
    network.call(1, 4);
    network.deliver(SERVER, &first);
    let answers = network.sent(SERVER, 1, SendingBy::Many);
    network.deliver(CLIENT, &answers);
    // Its slot is free again, while requests of others still wait in the same session.
    network.call(0, 5);
    let rest = network.all_sent(CLIENT, SendingBy::Many);
    assert_eq!((first.len(), rest.len()), (2, 4));
    network.deliver(SERVER, &rest);
    let answers = network.all_sent(SERVER, SendingBy::Many);
    network.deliver(CLIENT, &answers);
    assert_eq!(network.completed, (0..6).collect());
}

/// Whatever set the timer while the sessions were opened has fired.
fn settled() -> LossyNetwork {
    let mut network = LossyNetwork::plain();
    network.pass(SECOND_NS);
    network
}

#[test]
fn a_request_that_gets_lost_after_a_rest_times_out() {
    // A request of several packets does not end the short way.
    for bytes_before in [TAG_BYTES, LARGE_BYTES] {
        let mut network = settled();
        for tag in 0..3 {
            network.call_with(0, 2 * tag, bytes_before);
            network.exchange();
            network.pass(SECOND_NS);
            network.call(0, 2 * tag + 1);
            let lost = network.sent(CLIENT, 64, SendingBy::Many);
            assert_eq!(lost.len(), 1);
            network.pass(SECOND_NS);
            assert_eq!(network.completed.len() as u64, 2 * tag + 2, "a call is forgotten");
        }
        assert_eq!(network.ends[CLIENT].statistics().timeouts, 3);
    }
}

#[test]
fn a_request_that_gets_lost_times_out_though_another_call_ends() {
    let mut network = settled();
    network.call(0, 0);
    network.call(0, 1);
    let requests = network.sent(CLIENT, 64, SendingBy::Many);
    network.deliver(SERVER, &requests[1..]);
    let answers = network.sent(SERVER, 64, SendingBy::Many);
    network.deliver(CLIENT, &answers);
    assert_eq!(network.completed.len(), 1);
    network.pass(SECOND_NS);
    assert_eq!(network.completed.len(), 2, "the lost one is forgotten");
}

#[test]
fn a_session_that_rests_is_not_looked_at_before_its_timer_fires() {
    for bytes in [TAG_BYTES, LARGE_BYTES] {
        let mut network = settled();
        let before = network.timers_fired();
        for tag in 0..8 {
            network.call_with(0, tag, bytes);
            network.exchange();
            network.now_ns += STEP_NS;
        }
        assert_eq!(network.completed.len(), 8);
        network.pass(SECOND_NS);
        assert_eq!(network.timers_fired(), before, "it was looked at, {bytes} bytes");
    }
}

#[test]
fn a_session_that_rests_asks_whether_its_server_is_there_again_and_again() {
    let mut network = LossyNetwork::plain();
    network.call(0, 0);
    network.exchange();
    let keepalive_ns = Config::default().keepalive_ns;
    for period in 1..=3 {
        let before = network.ends[SERVER].statistics().packets_received;
        network.pass(keepalive_ns + SECOND_NS);
        let heard = network.ends[SERVER].statistics().packets_received - before;
        assert!(
            (1..=2 * SESSIONS as u64).contains(&heard),
            "{heard} packets in period {period}"
        );
    }
    assert!(network.ended.is_empty());
    // Nobody answers any more.
    let silent_ns = keepalive_ns + Config::default().peer_timeout_ns;
    for _ in 0..(silent_ns + SECOND_NS) / STEP_NS {
        network.step();
        drop(network.sent(CLIENT, 64, SendingBy::Many));
    }
    assert_eq!(network.ended, [EndReason::PeerTimeout; SESSIONS]);
}

/// As many calls as there are slots go at a time; each of the others begins where one of these ends.
#[test]
fn calls_that_wait_begin_and_are_measured_as_others_end() {
    const ROUNDS: u64 = 5;
    let mut network = LossyNetwork::plain();
    let slots = u64::from(Config::default().slots);
    for tag in 0..ROUNDS * slots {
        network.call(0, tag);
    }
    let before = network.ends[CLIENT].statistics().round_trips;
    for round in 1..=ROUNDS {
        let requests = network.sent(CLIENT, 64, SendingBy::Many);
        assert_eq!(requests.len() as u64, slots, "round {round}");
        network.deliver(SERVER, &requests);
        network.now_ns += STEP_NS;
        let answers = network.sent(SERVER, 64, SendingBy::Many);
        network.deliver(CLIENT, &answers);
        assert_eq!(network.completed.len() as u64, round * slots);
    }
    let measured = network.ends[CLIENT].statistics().round_trips - before;
    assert!(measured + 1 >= ROUNDS, "{measured} round trips of {ROUNDS}");
}

#[test]
fn calls_without_a_credit_go_on_when_others_end() {
    let mut network = LossyNetwork::with(&Config {
        credits: 2,
        ..Config::default()
    });
    for tag in 0..20 {
        network.call(0, tag);
    }
    network.exchange();
    assert_eq!(network.completed.len(), 20);
}

#[test]
fn a_session_closes_when_the_last_call_that_waited_has_ended() {
    let mut network = LossyNetwork::plain();
    for tag in 0..20 {
        network.call(0, tag);
    }
    let session = network.sessions[0];
    network.ends[CLIENT].disconnect(network.now_ns, session);
    network.exchange();
    assert_eq!(network.completed.len(), 20);
    assert!(network.ended.contains(&EndReason::Closed), "it stays");
}
