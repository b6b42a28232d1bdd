//! Whoever is not on the path, and whatever is not a packet, changes nothing.

use provost_datagram::packet::{Flags, HEADER_BYTES, Head, Header, Kind, Prefix};
use provost_datagram::{Call, Config, EndReason, Endpoint, Event, Mark, MsgBuf, SessionId};

const CLIENT: u8 = 0;
const SERVER: u8 = 1;
const STRANGER: u8 = 2;

/// Two endpoints, and every packet that ever went between them.
struct Pair {
    now_ns: u64,
    ends: [Endpoint<u8>; 2],
    seen: Vec<(u8, Vec<u8>)>,
    completed: Vec<u64>,
    executed: Vec<u16>,
    ended: Vec<EndReason>,
    connected: Option<SessionId>,
}

impl Pair {
    fn new() -> Pair {
        let end = |secret| {
            Endpoint::new(Config {
                secret,
                ..Config::default()
            })
            .unwrap()
        };
        Pair {
            now_ns: 1_000_000,
            ends: [end([1, 2]), end([3, 4])],
            seen: Vec::new(),
            completed: Vec::new(),
            executed: Vec::new(),
            ended: Vec::new(),
            connected: None,
        }
    }

    fn connected() -> (Pair, SessionId) {
        let mut pair = Pair::new();
        let session = pair.ends[0].connect(pair.now_ns, SERVER).unwrap();
        pair.settle();
        assert_eq!(pair.connected, Some(session));
        (pair, session)
    }

    fn deliver(&mut self, from: u8, to: u8, bytes: &[u8]) {
        let event = self.ends[usize::from(to)].receive(self.now_ns, from, Mark::None, bytes);
        match event {
            Some(Event::Request {
                handle,
                method,
                payload,
            }) => {
                self.executed.push(method);
                self.ends[usize::from(to)]
                    .respond_inline(self.now_ns, handle, 0, &payload)
                    .unwrap();
            }
            Some(Event::Completed(completion)) => self.completed.push(completion.tag),
            Some(Event::Connected(session)) => self.connected = Some(session),
            Some(Event::Ended(_, reason)) => self.ended.push(reason),
            _ => {}
        }
        while let Some(event) = self.ends[usize::from(to)].poll_event() {
            match event {
                Event::Completed(completion) => self.completed.push(completion.tag),
                Event::Ended(_, reason) => self.ended.push(reason),
                _ => {}
            }
        }
    }

    fn settle(&mut self) {
        loop {
            self.now_ns += 1_000;
            let mut packets = Vec::new();
            for side in [CLIENT, SERVER] {
                while let Some(transmit) = self.ends[usize::from(side)].poll_transmit(self.now_ns) {
                    packets.push((
                        side,
                        transmit.to,
                        [transmit.head.bytes(), transmit.payload].concat(),
                    ));
                }
            }
            if packets.is_empty() {
                return;
            }
            for (from, to, bytes) in packets {
                if to <= SERVER {
                    self.deliver(from, to, &bytes);
                }
                self.seen.push((from, bytes));
            }
        }
    }

    fn call(&mut self, session: SessionId, tag: u64) {
        let call = Call {
            method: tag as u16,
            tag,
            request: MsgBuf::from_slice(b"question"),
            response: MsgBuf::with_capacity(64),
        };
        self.ends[0].call(self.now_ns, session, call).unwrap();
        self.settle();
    }
}

#[test]
fn packets_seen_before_are_not_acted_on_again() {
    let (mut pair, session) = Pair::connected();
    for tag in 0..20 {
        pair.call(session, tag);
    }
    let recorded = pair.seen.clone();
    for (from, bytes) in &recorded {
        pair.deliver(*from, 1 - *from, bytes);
        pair.settle();
    }
    assert_eq!(pair.executed, (0..20).collect::<Vec<u16>>());
    assert_eq!(pair.completed, (0..20).collect::<Vec<u64>>());
    pair.call(session, 20);
    assert_eq!(pair.completed.len(), 21);
    assert_eq!(pair.ended, []);
}

#[test]
fn a_stranger_with_every_packet_but_another_address_or_token_gets_nowhere() {
    let (mut pair, session) = Pair::connected();
    pair.call(session, 1);
    for (from, bytes) in pair.seen.clone() {
        pair.deliver(STRANGER, 1 - from, &bytes);
        let mut guess = bytes;
        guess[4] ^= 1;
        pair.deliver(from, 1 - from, &guess);
        pair.settle();
    }
    for kind in [
        Kind::Reset,
        Kind::Close,
        Kind::Closed,
        Kind::Unknown,
        Kind::Ping,
        Kind::Pong,
    ] {
        for token in 0..1000 {
            let head = Head::bare(&Header::of_session(kind, 0, token));
            pair.deliver(SERVER, CLIENT, head.bytes());
            pair.deliver(CLIENT, SERVER, head.bytes());
        }
    }
    pair.settle();
    assert_eq!((pair.executed.len(), pair.completed.len()), (1, 1));
    assert_eq!(pair.ended, []);
    assert!(pair.ends[0].statistics().dropped.token >= 3000);
    pair.call(session, 2);
    assert_eq!(pair.completed, [1, 2]);
}

#[test]
fn an_open_without_its_cookie_costs_the_server_nothing() {
    let mut pair = Pair::new();
    pair.ends[0].connect(pair.now_ns, SERVER).unwrap();
    let first = pair.ends[0].poll_transmit(pair.now_ns).map(|transmit| {
        let bytes = [transmit.head.bytes(), transmit.payload].concat();
        (transmit.to, bytes)
    });
    let (_, open) = first.unwrap();
    let free = pair.ends[1].ring_packets_free();
    for address in 2..200 {
        pair.deliver(address, SERVER, &open);
        let answer = pair.ends[1].poll_transmit(pair.now_ns).unwrap();
        let bytes = answer.head.bytes().len() + answer.payload.len();
        assert!(
            bytes <= open.len(),
            "an answer longer than the question amplifies floods"
        );
    }
    assert_eq!(pair.ends[1].ring_packets_free(), free);
}

#[test]
fn a_peer_that_breaks_the_rules_gets_nowhere_either() {
    let (mut pair, session) = Pair::connected();
    pair.call(session, 1);
    let valid = pair
        .seen
        .iter()
        .find(|(from, bytes)| *from == CLIENT && bytes[0] & 15 == 1)
        .unwrap();
    let number = u16::from_le_bytes([valid.1[2], valid.1[3]]);
    let token = u32::from_le_bytes([valid.1[4], valid.1[5], valid.1[6], valid.1[7]]);
    let kinds = [
        Kind::Request,
        Kind::RequestForResponse,
        Kind::CreditReturn,
        Kind::Response,
        Kind::Accept,
    ];
    for kind in kinds {
        for slot in [0, 1, 7, 8, 255] {
            for call in [0, 1, 2, 3, u32::MAX] {
                for packet in [0, 1, 300, u16::MAX] {
                    for message_bytes in [0, 1, 8, 1449, 1 << 20, u32::MAX] {
                        let header = Header {
                            kind,
                            flags: Flags::range(16),
                            slot,
                            session: number,
                            token,
                            call,
                            packet,
                        };
                        let prefix = Prefix {
                            message_bytes,
                            code: 9,
                            held: 0,
                        };
                        let head = Head::of_data(&header, &prefix);
                        for payload in [0, 1, 1448] {
                            let bytes = [head.bytes(), &vec![1; payload]].concat();
                            pair.deliver(CLIENT, SERVER, &bytes);
                            pair.deliver(CLIENT, SERVER, &bytes[..HEADER_BYTES]);
                        }
                    }
                }
            }
            pair.settle();
        }
    }
    assert_eq!(pair.ended, []);
    assert_eq!(pair.completed, [1], "the client's own calls are not touched");
}
