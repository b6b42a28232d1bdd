//! Whoever is not on the path, and whatever is not a packet, changes nothing; nor, where sessions are sealed, does whoever
//! is on the path.

use provost_datagram::packet::{Flags, HEADER_BYTES, Head, Header, Kind, Prefix};
use provost_datagram::{
    Call, Cipher, Config, EndReason, Endpoint, Event, Mark, MsgBuf, Payload, Refusal, Sealing, Security,
    SessionId,
};

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

/// How ends can be secured, with seeds of their own.
fn securities(cipher: Option<Cipher>) -> [Security; 2] {
    [5, 6].map(|seed| match cipher {
        None => Security::Plain,
        Some(cipher) => Security::Sealed(Sealing {
            cipher,
            pre_shared_key: [7; 32],
            seed: [seed; 32],
        }),
    })
}

const CIPHERS: [Option<Cipher>; 3] = [None, Some(Cipher::ChaCha20Poly1305), Some(Cipher::Aes128Gcm)];

impl Pair {
    fn new() -> Pair {
        Pair::secured(securities(None))
    }

    fn secured([client, server]: [Security; 2]) -> Pair {
        let end = |secret, security| {
            Endpoint::new(Config {
                secret,
                security,
                ..Config::default()
            })
            .unwrap()
        };
        Pair {
            now_ns: 1_000_000,
            ends: [end([1, 2], client), end([3, 4], server)],
            seen: Vec::new(),
            completed: Vec::new(),
            executed: Vec::new(),
            ended: Vec::new(),
            connected: None,
        }
    }

    fn connected(cipher: Option<Cipher>) -> (Pair, SessionId) {
        let mut pair = Pair::secured(securities(cipher));
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
                if let Payload::Owned(buffer) = payload {
                    self.ends[usize::from(to)].recycle(buffer);
                }
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
    for cipher in CIPHERS {
        let (mut pair, session) = Pair::connected(cipher);
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
}

#[test]
fn a_stranger_with_every_packet_but_another_address_or_token_gets_nowhere() {
    for cipher in CIPHERS {
        let (mut pair, session) = Pair::connected(cipher);
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
}

#[test]
fn a_late_copy_of_an_open_does_not_hold_room_for_long() {
    for cipher in CIPHERS {
        let (mut pair, session) = Pair::connected(cipher);
        let ring = pair.ends[1].ring_packets_free() + u32::from(Config::default().credits);
        let is_open = |(from, packet): &&(u8, Vec<u8>)| *from == CLIENT && packet[0] == Kind::Open as u8;
        let (_, open) = pair.seen.iter().rfind(is_open).cloned().expect("it was sent");
        pair.ends[0].disconnect(pair.now_ns, session);
        pair.settle();
        assert_eq!(pair.ends[1].ring_packets_free(), ring, "the session is closed");
        pair.deliver(CLIENT, SERVER, &open);
        pair.settle();
        let held = ring - pair.ends[1].ring_packets_free();
        assert!(held > 0, "the copy opened a session that nobody wants");
        let config = Config::default();
        pair.now_ns += config.keepalive_ns + config.peer_timeout_ns + 20_000_000;
        // Nobody needed to poll meanwhile.
        pair.ends[1].wake_at();
        pair.ends[1].handle_timers(pair.now_ns);
        assert_eq!(pair.ends[1].ring_packets_free(), ring, "it is forgotten");
    }
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
    let (mut pair, session) = Pair::connected(None);
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

#[test]
fn who_reads_the_packets_of_a_sealed_session_can_neither_read_nor_change_it() {
    for cipher in [Cipher::ChaCha20Poly1305, Cipher::Aes128Gcm] {
        let (mut pair, session) = Pair::connected(Some(cipher));
        for tag in 0..5 {
            pair.call(session, tag);
        }
        let question = b"question";
        let shows = |bytes: &[u8]| bytes.windows(question.len()).any(|part| part == question);
        assert!(!pair.seen.iter().any(|(_, bytes)| shows(bytes)));
        // Every bit of every packet, one by one, to its receiver, from the right address.
        for (from, bytes) in pair.seen.clone() {
            for at in 0..bytes.len() {
                let mut changed = bytes.clone();
                changed[at] ^= 1 << (at % 8);
                pair.deliver(from, 1 - from, &changed);
                pair.settle();
            }
        }
        forge_everything(&mut pair);
        assert_eq!(pair.ended, []);
        assert_eq!(pair.executed, [0, 1, 2, 3, 4]);
        assert_eq!(pair.completed, [0, 1, 2, 3, 4]);
        let drops = pair.ends.each_ref().map(|end| end.statistics().dropped);
        assert!(drops.iter().all(|dropped| dropped.forged > 100), "{drops:?}");
        pair.call(session, 5);
        assert_eq!(pair.completed.len(), 6);
    }
}

/// Sends both ends packets of every kind, with the right session and token, which any packet shows.
fn forge_everything(pair: &mut Pair) {
    for (from, bytes) in pair.seen.clone() {
        for kind in 1..=14 {
            let mut forged = bytes.clone();
            forged[0] = forged[0] & 0xf0 | kind;
            for length in [HEADER_BYTES, HEADER_BYTES + 8, HEADER_BYTES + 24, bytes.len()] {
                pair.deliver(from, 1 - from, &forged[..length.min(forged.len())]);
            }
        }
        pair.settle();
    }
}

#[test]
fn ends_that_are_not_secured_alike_have_no_session() {
    let sealed = |key, seed| {
        Security::Sealed(Sealing {
            cipher: Cipher::Aes128Gcm,
            pre_shared_key: [key; 32],
            seed: [seed; 32],
        })
    };
    for securities in [
        [Security::Plain, sealed(1, 2)],
        [sealed(1, 2), Security::Plain],
        [sealed(1, 2), sealed(3, 4)],
    ] {
        let mut pair = Pair::secured(securities);
        pair.ends[0].connect(pair.now_ns, SERVER).unwrap();
        pair.settle();
        assert_eq!(pair.connected, None);
        assert_eq!(pair.ended, [EndReason::Refused(Refusal::Security)]);
        assert_eq!(pair.ends[1].ring_packets_free(), pair.ends[0].ring_packets_free());
    }
}

#[test]
fn a_server_without_the_key_cannot_accept() {
    let (mut real, _) = Pair::connected(Some(Cipher::Aes128Gcm));
    let accept = real
        .seen
        .iter()
        .find(|(_, bytes)| bytes[0] & 15 == Kind::Accept as u8);
    let accept = accept.unwrap().1.clone();
    // The same client again, before anybody has answered: all that it says is the same.
    let mut pair = Pair::secured(securities(Some(Cipher::Aes128Gcm)));
    pair.ends[0].connect(pair.now_ns, SERVER).unwrap();
    for at in HEADER_BYTES..accept.len() {
        let mut changed = accept.clone();
        changed[at] ^= 1;
        pair.deliver(SERVER, CLIENT, &changed);
        assert_eq!(pair.connected, None, "byte {at}");
    }
    pair.deliver(SERVER, CLIENT, &accept);
    assert!(pair.connected.is_some());
    real.settle();
}

/// Where the cookie is in an Open, and in a Challenge.
const OPEN_COOKIE: std::ops::Range<usize> = HEADER_BYTES + 24..HEADER_BYTES + 32;
const CHALLENGE_COOKIE: std::ops::Range<usize> = HEADER_BYTES + 8..HEADER_BYTES + 16;

#[test]
fn who_repeats_the_open_of_a_sealed_session_from_addresses_of_his_own_gets_no_session() {
    for cipher in CIPHERS.into_iter().flatten() {
        let (mut pair, session) = Pair::connected(Some(cipher));
        let (_, open) = pair.seen[0].clone();
        let free = pair.ends[1].ring_packets_free();
        for address in STRANGER..200 {
            pair.deliver(address, SERVER, &open);
            let challenge = pair.ends[1].poll_transmit(pair.now_ns).unwrap();
            assert_eq!(challenge.to, address);
            let mut with_cookie = open.clone();
            let cookie = &[challenge.head.bytes(), challenge.payload].concat()[CHALLENGE_COOKIE];
            with_cookie[OPEN_COOKIE].copy_from_slice(cookie);
            pair.deliver(address, SERVER, &with_cookie);
            while pair.ends[1].poll_transmit(pair.now_ns).is_some() {}
            pair.now_ns += 100_000;
        }
        assert_eq!(pair.ends[1].ring_packets_free(), free, "no session was made");
        assert_eq!(pair.ends[1].statistics().dropped.replayed, 198);
        pair.call(session, 1);
        assert_eq!(pair.completed, [1], "the client's own session goes on");
    }
}

#[test]
fn a_flood_from_strangers_gets_few_answers_and_leaves_room_for_calls() {
    let (mut pair, session) = Pair::connected(None);
    let (_, open) = pair.seen[0].clone();
    let for_nobody = Head::bare(&Header::of_session(Kind::Ping, 999, 77));
    for flood in [&open[..], for_nobody.bytes()] {
        let mut answers = 0;
        // A millisecond of packets that ask for an answer.
        for at in 0..10_000u64 {
            let now_ns = pair.now_ns + at * 100;
            pair.ends[1].receive(now_ns, STRANGER, Mark::None, flood);
            if at % 32 == 0 {
                answers += pair.ends[1].transmit(now_ns, 32, |_, _, _| {});
            }
        }
        pair.now_ns += 1_000_000;
        assert!(answers > 0 && answers <= 2 * 512, "{answers} answers");
    }
    assert!(pair.ends[1].statistics().dropped.strangers > 15_000);

    // Answers to strangers that wait take a quarter of a turn from the response to a call.
    for _ in 0..100 {
        pair.ends[1].receive(pair.now_ns, STRANGER, Mark::None, &open);
    }
    let call = Call {
        method: 1,
        tag: 1,
        request: MsgBuf::from_slice(b"question"),
        response: MsgBuf::with_capacity(64),
    };
    pair.ends[0].call(pair.now_ns, session, call).unwrap();
    let request = pair.ends[0]
        .poll_transmit(pair.now_ns)
        .map(|transmit| [transmit.head.bytes(), transmit.payload].concat());
    pair.deliver(CLIENT, SERVER, &request.unwrap());
    let mut to_client = 0;
    pair.ends[1].transmit(pair.now_ns, 8, |to, _, _| to_client += usize::from(to == CLIENT));
    assert_eq!(to_client, 1, "the response goes with the first turn");
}
