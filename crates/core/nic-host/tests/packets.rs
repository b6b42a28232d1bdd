//! Whatever packets of session management come, and in whatever state a session is, the host stands, and sends no more than it was asked.

use std::collections::HashMap;

use proptest::prelude::*;
use provost_datagram::handshake::{Accept, MarkUse, Open, PacketFallback, VERSION};
use provost_datagram::packet::{Head, Header, Kind, Packet};
use provost_datagram::{Checking, SessionId};
use provost_nic::{
    Balance, Board, EntryHead, EntryKind, FetchMode, FlowShape, IDENTITY, LINE_BYTES, Line, MessageAreas,
    registers,
};
use provost_nic_host::{
    HostConfig, HostError, HostEvent, NicHost, RequestTag, TIMEOUT_TICKS_MAX, TRIES_LIMIT,
};

const PEER: u64 = 7;
const SLOTS: u32 = 16;
const SLOT_LINES: u32 = 8;
const BASE: u32 = 100;
const SESSIONS_MAX: u16 = 8;
/// Silence after which a session may make room, and how long its number is kept.
const IDLE_NS_MIN: u64 = 10_000_000;
const LEAVING_NS: u64 = 1_000;

/// A board without a NIC: memory, and a register that says that one is there.
#[derive(Default)]
struct EmptyBoard {
    memory: HashMap<u32, Line>,
    received: u32,
    sent: u32,
    parameters: u32,
    written: Vec<(u16, u32)>,
}

impl Board for EmptyBoard {
    fn read_line(&mut self, address: u32) -> Line {
        self.memory.get(&address).copied().unwrap_or([0; LINE_BYTES])
    }
    fn write_line(&mut self, address: u32, line: &Line) {
        self.memory.insert(address, *line);
    }
    fn read_register(&mut self, address: u16) -> u32 {
        match address {
            registers::IDENTITY => IDENTITY,
            registers::PARAMETERS => self.parameters,
            _ => 0,
        }
    }
    fn write_register(&mut self, address: u16, value: u32) {
        self.written.push((address, value));
    }
    fn push_line(&mut self, _: u8, _: &Line) -> bool {
        false
    }
}

impl EmptyBoard {
    /// Writes a packet into the receive ring, as a NIC would.
    fn deliver(&mut self, packet: &[u8]) {
        let slot = BASE + SLOTS * SLOT_LINES + self.received % SLOTS * SLOT_LINES;
        for (index, piece) in packet.chunks(LINE_BYTES).enumerate() {
            let mut line = [0; LINE_BYTES];
            line[..piece.len()].copy_from_slice(piece);
            self.write_line(slot + 1 + index as u32, &line);
        }
        self.deliver_head(EntryHead {
            kind: EntryKind::Raw,
            bytes: packet.len() as u16,
            connection: 0,
            code: 0,
            tag: 0,
            remote: PEER,
        });
    }

    /// Writes the first line of an entry, last.
    fn deliver_head(&mut self, head: EntryHead) {
        let slot = BASE + SLOTS * SLOT_LINES + self.received % SLOTS * SLOT_LINES;
        let line = head.encode(self.received & SLOTS == 0, b"");
        self.write_line(slot, &line);
        self.received += 1;
    }

    /// Has a response of two packets, so many bytes in all, be in an area of the first connection, as a NIC would.
    fn deliver_stored_response(&mut self, tag: u64, bytes: u16) {
        let slot = BASE + SLOTS * SLOT_LINES + self.received % SLOTS * SLOT_LINES;
        self.deliver_head(EntryHead {
            kind: EntryKind::Response,
            bytes,
            connection: 0,
            code: 0,
            tag,
            remote: 0,
        });
        let mut line = self.read_line(slot);
        line[22] = 2;
        self.write_line(slot, &line);
    }

    /// The packets that the host has sent since the last time; the NIC has taken them.
    fn sent(&mut self) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        loop {
            let slot = BASE + self.sent % SLOTS * SLOT_LINES;
            let first = self.read_line(slot);
            if EntryHead::phase(&first) != (self.sent & SLOTS == 0) {
                return packets;
            }
            let head = EntryHead::decode(&first).expect("the host writes entries");
            let lines = (1..SLOT_LINES).flat_map(|line| self.read_line(slot + line));
            packets.push(lines.take(head.bytes.into()).collect());
            self.sent += 1;
            let mut status = [0; LINE_BYTES];
            status[..2].copy_from_slice(&(self.sent as u16).to_le_bytes());
            self.write_line(BASE + 2 * SLOTS * SLOT_LINES, &status);
        }
    }
}

fn host(board: &mut EmptyBoard) -> NicHost {
    NicHost::start(board, config()).expect("a NIC answers")
}

fn config() -> HostConfig {
    HostConfig {
        flows: vec![FlowShape {
            flow: 0,
            base: BASE,
            slots_log2: SLOTS.ilog2() as u8,
            slot_lines_log2: SLOT_LINES.ilog2() as u8,
            fetch: FetchMode::Polled,
            calls_max: 8,
        }],
        serving: (0, 1),
        balance: Balance::Static,
        table_base: 0,
        areas: None,
        sessions_max: SESSIONS_MAX,
        packet_bytes_max: 400,
        checking: Checking::Wire,
        timeout_ticks: 1,
        tries_max: 1,
        handshake_timeout_ns: LEAVING_NS,
        idle_ns_min: IDLE_NS_MIN,
        secret: [1, 2],
    }
}

#[test]
fn a_nic_with_lines_of_another_width_is_refused() {
    let mut board = EmptyBoard {
        parameters: 2 << 20,
        ..EmptyBoard::default()
    };
    let started = NicHost::start(&mut board, config());
    assert!(matches!(started, Err(HostError::LineBytes(256))));
}

#[test]
fn a_nic_that_still_runs_is_stopped_before_it_is_told_anything_else() {
    let mut board = EmptyBoard::default();
    host(&mut board);
    let stopped = (0..registers::FLOW_SHAPE_COUNT).map(|flow| (registers::flow_shape(flow), 0));
    let stopped: Vec<(u16, u32)> = [(registers::CONTROL, 0)].into_iter().chain(stopped).collect();
    assert_eq!(board.written[..stopped.len()], stopped);
}

#[test]
fn what_the_nic_would_take_for_another_time_out_is_refused() {
    let started = |timeout_ticks, tries_max| {
        let config = HostConfig {
            timeout_ticks,
            tries_max,
            ..config()
        };
        NicHost::start(&mut EmptyBoard::default(), config).map(|_| ())
    };
    assert_eq!(started(TIMEOUT_TICKS_MAX, TRIES_LIMIT), Ok(()));
    for (timeout_ticks, tries_max) in [(0, 1), (TIMEOUT_TICKS_MAX + 1, 1), (1, TRIES_LIMIT + 1)] {
        let refused = Err(HostError::Retries {
            timeout_ticks,
            tries_max,
        });
        assert_eq!(started(timeout_ticks, tries_max), refused);
    }
}

fn open(cookie: u64, cipher: u8) -> Vec<u8> {
    open_of(9, cookie, cipher)
}

/// An Open of the peer's session with this number.
fn open_of(session: u16, cookie: u64, cipher: u8) -> Vec<u8> {
    let open = Open {
        versions: (VERSION, VERSION),
        selective: true,
        slots: 4,
        session,
        token: 77,
        credits: 32,
        packet_bytes: 1472,
        nonce: 5,
        cookie,
        cipher,
        marks: MarkUse::Unread,
        fallback: PacketFallback::Off,
    };
    let head = Head::bare(&Header::of_session(Kind::Open, u16::MAX, 0));
    [head.bytes(), &open.encode()].concat()
}

/// Has the host take a packet, and gives what it sends.
fn exchange(host: &mut NicHost, board: &mut EmptyBoard, packet: &[u8]) -> Vec<Vec<u8>> {
    exchange_at(1_000_000, host, board, packet)
}

fn exchange_at(now_ns: u64, host: &mut NicHost, board: &mut EmptyBoard, packet: &[u8]) -> Vec<Vec<u8>> {
    board.deliver(packet);
    host.poll(board, now_ns).expect("commands end");
    board.sent()
}

#[test]
fn a_session_begins_only_with_the_cookie_and_a_repeated_open_gets_the_same_accept() {
    let mut board = EmptyBoard::default();
    let mut host = host(&mut board);
    let challenge = exchange(&mut host, &mut board, &open(0, 0));
    assert_eq!((challenge.len(), challenge[0][0]), (1, Kind::Challenge as u8));
    assert_eq!(host.poll_event(), None);
    let cookie = u64::from_le_bytes(challenge[0][24..32].try_into().unwrap());
    let wrong = exchange(&mut host, &mut board, &open(cookie + 1, 0));
    assert_eq!(wrong[0][0], Kind::Challenge as u8);
    let accept = exchange(&mut host, &mut board, &open(cookie, 0));
    assert_eq!((accept.len(), accept[0][0]), (1, Kind::Accept as u8));
    // Slots as asked for, and no more credits than slots; packets as large as this end takes.
    assert_eq!((accept[0][25], &accept[0][32..36]), (4, &[4, 0, 0x90, 1][..]));
    assert!(matches!(host.poll_event(), Some(HostEvent::Accepted(_))));
    assert_eq!(exchange(&mut host, &mut board, &open(cookie, 0)), accept);
    assert_eq!(host.poll_event(), None);
}

/// Opens the peer's session with this number: the kinds of packets that answer, by number of the peer's session.
fn opened(now_ns: u64, host: &mut NicHost, board: &mut EmptyBoard, session: u16) -> Vec<(u8, u16)> {
    let challenge = exchange_at(now_ns, host, board, &open_of(session, 0, 0));
    let cookie = u64::from_le_bytes(challenge[0][24..32].try_into().unwrap());
    let answers = exchange_at(now_ns, host, board, &open_of(session, cookie, 0));
    let header = |packet: &Vec<u8>| Packet::parse(packet, Checking::Wire).unwrap().header;
    let headers = answers.iter().map(header);
    headers
        .map(|header| (header.kind as u8, header.session))
        .collect()
}

/// Has the NIC write a request of the session with this number, in its slot 0.
fn request(now_ns: u64, host: &mut NicHost, board: &mut EmptyBoard, connection: u16) -> Option<RequestTag> {
    board.deliver_head(EntryHead {
        kind: EntryKind::Request,
        bytes: 0,
        connection,
        code: 1,
        tag: 1,
        remote: 0,
    });
    host.poll(board, now_ns).unwrap();
    match host.poll_event() {
        Some(HostEvent::Request { request, .. }) => Some(request),
        _ => None,
    }
}

#[test]
fn clients_that_say_nothing_make_room_for_others() {
    const ACCEPT: u8 = Kind::Accept as u8;
    const REFUSE: u8 = Kind::Refuse as u8;
    const RESET: u8 = Kind::Reset as u8;
    let mut board = EmptyBoard::default();
    let mut host = host(&mut board);
    let mut accepted = Vec::new();
    for session in 0..SESSIONS_MAX {
        assert_eq!(
            opened(u64::from(session), &mut host, &mut board, session),
            [(ACCEPT, session)]
        );
        accepted.extend(host.poll_event());
    }
    let HostEvent::Accepted(third) = accepted[2] else {
        panic!("{accepted:?}");
    };
    // The first has a request that waits for its response, the second was answered a moment ago.
    let waiting = request(100, &mut host, &mut board, 0).unwrap();
    let answered = request(100, &mut host, &mut board, 1).unwrap();
    let new = SESSIONS_MAX;
    assert_eq!(
        opened(IDLE_NS_MIN, &mut host, &mut board, new),
        [(REFUSE, new)],
        "as none is idle for so long"
    );
    host.respond(&mut board, answered, 0, b"");
    board.sent();
    let now_ns = IDLE_NS_MIN + 99;
    assert_eq!(opened(now_ns, &mut host, &mut board, new), [(RESET, 2)]);
    assert_eq!(host.poll_event(), Some(HostEvent::Ended(third)));
    assert_eq!(
        opened(now_ns, &mut host, &mut board, new),
        [],
        "one place is enough"
    );
    assert_eq!(
        request(now_ns, &mut host, &mut board, 2),
        None,
        "a request of the old session"
    );
    let now_ns = now_ns + LEAVING_NS;
    host.poll(&mut board, now_ns).unwrap();
    assert_eq!(opened(now_ns, &mut host, &mut board, new), [(ACCEPT, new)]);
    assert!(matches!(host.poll_event(), Some(HostEvent::Accepted(id)) if id != third));
    // Those that were used least recently go first; the one that waits stays.
    let mut gone = Vec::new();
    let mut now_ns = 2 * IDLE_NS_MIN;
    for session in new + 1..2 * new {
        gone.extend(opened(now_ns, &mut host, &mut board, session));
        now_ns += LEAVING_NS;
        host.poll(&mut board, now_ns).unwrap();
        opened(now_ns, &mut host, &mut board, session);
    }
    let resets: Vec<u16> = gone
        .iter()
        .filter(|(kind, _)| *kind == RESET)
        .map(|(_, session)| *session)
        .collect();
    assert_eq!(resets, [3, 4, 5, 6, 7, 1, 8]);
    host.respond(&mut board, waiting, 0, b"");
    assert_eq!(board.sent().len(), 1);
}

#[test]
fn a_client_whose_session_is_gone_hears_so_when_it_says_goodbye_again() {
    let mut board = EmptyBoard::default();
    let mut host = host(&mut board);
    let close = |token| {
        Head::bare(&Header::of_session(Kind::Close, 3, token))
            .bytes()
            .to_vec()
    };
    let unknown = Head::bare(&Header::of_session(Kind::Unknown, 3, 5))
        .bytes()
        .to_vec();
    assert_eq!(exchange(&mut host, &mut board, &close(5)), [unknown]);
}

#[test]
fn a_full_flow_and_unknown_sessions_take_no_calls() {
    let mut board = EmptyBoard::default();
    let mut host = host(&mut board);
    let session = SessionId::from_bits(3);
    assert!(host.call(&mut board, session, 1, 1, b"x").is_err());
    assert_eq!(host.free_slots(session), 0);
    for _ in 0..8 {
        host.connect(0, PEER).unwrap();
    }
    assert!(host.connect(0, PEER).is_err());
}

/// Opens a session, as a server that takes what it is asked for.
fn connected(host: &mut NicHost, board: &mut EmptyBoard) -> SessionId {
    let id = host.connect(0, PEER).unwrap();
    host.poll(board, 1_000_000).unwrap();
    let sent = board.sent();
    let header_bytes = Head::bare(&Header::of_session(Kind::Open, u16::MAX, 0))
        .bytes()
        .len();
    let open = Open::decode(&sent.last().unwrap()[header_bytes..]).unwrap();
    let accept = Accept {
        nonce: open.nonce,
        version: VERSION,
        slots: 4,
        session: 5,
        token: 6,
        credits: 4,
        packet_bytes: open.packet_bytes,
        message_bytes_max: 300,
        marks: MarkUse::Unread,
        fallback: PacketFallback::Off,
    };
    let head = Head::bare(&Header::of_session(Kind::Accept, open.session, open.token));
    exchange(host, board, &[head.bytes(), &accept.encode()].concat());
    assert_eq!(host.poll_event(), Some(HostEvent::Connected(id)));
    id
}

#[test]
fn a_call_that_outlives_its_session_is_none_of_the_next_with_its_number() {
    let mut board = EmptyBoard::default();
    let mut host = host(&mut board);
    let first = connected(&mut host, &mut board);
    host.call(&mut board, first, 11, 1, b"late").unwrap();
    let unknown = Head::bare(&Header::of_session(Kind::Unknown, 5, 6));
    exchange(&mut host, &mut board, unknown.bytes());
    assert_eq!(host.poll_event(), Some(HostEvent::Ended(first)));
    // Its number is free when the rings have nothing of it.
    host.poll(&mut board, 1_000_000 + LEAVING_NS).unwrap();
    let second = connected(&mut host, &mut board);
    assert_eq!(
        second.to_bits() >> 32,
        first.to_bits() >> 32,
        "a number is used again"
    );
    host.call(&mut board, second, 12, 1, b"now").unwrap();
    // The NIC gives the first call up.
    board.deliver_head(EntryHead {
        kind: EntryKind::Error,
        bytes: 0,
        connection: 0,
        code: 5,
        tag: 0,
        remote: 0,
    });
    host.poll(&mut board, 1_000_000).unwrap();
    let outcome = Err(provost_nic::EntryError::Timeout);
    assert_eq!(host.poll_event(), Some(HostEvent::Completed { tag: 11, outcome }));
    assert_eq!(host.free_slots(second), 3);
}

#[test]
fn a_response_behind_the_word_that_its_session_is_over_ends_its_call() {
    let mut board = EmptyBoard::default();
    let areas = MessageAreas {
        base: BASE + 1_000,
        lines_log2: 5,
    };
    let config = HostConfig {
        areas: Some(areas),
        ..config()
    };
    let mut host = NicHost::start(&mut board, config).expect("a NIC answers");
    let session = connected(&mut host, &mut board);
    host.call(&mut board, session, 11, 1, b"x").unwrap();
    board.deliver(Head::bare(&Header::of_session(Kind::Unknown, 5, 6)).bytes());
    board.deliver_stored_response(0, 500);
    // Another call of the session was told the same.
    board.deliver(Head::bare(&Header::of_session(Kind::Unknown, 5, 6)).bytes());
    host.poll(&mut board, 1_000_000).unwrap();
    let outcome = Ok((0, vec![0; 500]));
    assert_eq!(host.poll_event(), Some(HostEvent::Ended(session)));
    assert_eq!(host.poll_event(), Some(HostEvent::Completed { tag: 11, outcome }));
    assert_eq!(host.poll_event(), None);
}

/// Sixteen Closes; then its number is another session's.
#[test]
fn a_server_that_is_gone_keeps_no_number() {
    const CLOSES: usize = 16;
    let mut board = EmptyBoard::default();
    let mut host = host(&mut board);
    let session = connected(&mut host, &mut board);
    board.sent();
    let began_ns = 1_000_000;
    host.disconnect(&mut board, began_ns, session).unwrap();
    let mut closes = 0;
    for round in 0..2 * CLOSES as u64 {
        host.poll(&mut board, began_ns + round * LEAVING_NS).unwrap();
        closes += board.sent().len();
    }
    assert_eq!(closes, CLOSES);
    assert_eq!(host.poll_event(), Some(HostEvent::Ended(session)));
    assert_eq!(host.poll_event(), None);
    for _ in 0..SESSIONS_MAX {
        host.connect(0, PEER).expect("its number is free");
    }
}

#[test]
fn a_server_that_ends_a_session_says_so_and_keeps_its_number_for_a_while() {
    let mut board = EmptyBoard::default();
    let mut host = host(&mut board);
    opened(0, &mut host, &mut board, 9);
    let Some(HostEvent::Accepted(first)) = host.poll_event() else {
        panic!("a session is opened");
    };
    host.disconnect(&mut board, 0, first).unwrap();
    assert_eq!(host.poll_event(), Some(HostEvent::Ended(first)));
    let kinds: Vec<u8> = board.sent().iter().map(|packet| packet[0]).collect();
    assert_eq!(kinds, [Kind::Reset as u8]);
    assert_eq!(request(0, &mut host, &mut board, 0), None, "it came before");
    let number_of = |event| match event {
        Some(HostEvent::Accepted(id)) => id.to_bits() >> 32,
        other => panic!("{other:?}"),
    };
    opened(0, &mut host, &mut board, 10);
    assert_eq!(number_of(host.poll_event()), 1);
    host.poll(&mut board, LEAVING_NS).unwrap();
    opened(LEAVING_NS, &mut host, &mut board, 11);
    assert_eq!(number_of(host.poll_event()), 0);
}

#[test]
fn a_session_takes_as_many_calls_as_slots_and_requests_as_large_as_its_server() {
    let mut board = EmptyBoard::default();
    let mut host = host(&mut board);
    let session = connected(&mut host, &mut board);
    let too_large = host.call(&mut board, session, 0, 1, &[0; 301]);
    let (bytes, bytes_max) = (301, 300);
    assert_eq!(too_large, Err(HostError::TooLarge { bytes, bytes_max }));
    for tag in 0..4 {
        assert_eq!(host.call(&mut board, session, tag, 1, &[0; 300]), Ok(()));
    }
    assert_eq!(host.call(&mut board, session, 4, 1, b"x"), Err(HostError::Busy));
    assert_eq!(board.sent().len(), 4);
    // The NIC says twice that a call has ended: it has ended once.
    for _ in 0..2 {
        board.deliver_head(EntryHead {
            kind: EntryKind::Response,
            bytes: 0,
            connection: 0,
            code: 0,
            tag: 2,
            remote: 0,
        });
    }
    host.poll(&mut board, 1_000_000).unwrap();
    let outcome = Ok((0, Vec::new()));
    assert_eq!(host.poll_event(), Some(HostEvent::Completed { tag: 2, outcome }));
    assert_eq!(host.poll_event(), None);
    assert_eq!(host.free_slots(session), 1);
}

/// Until an answer comes, and as often as the configuration says.
#[test]
fn a_client_asks_again_for_its_session() {
    let mut board = EmptyBoard::default();
    let mut host = host(&mut board);
    host.connect(0, PEER).unwrap();
    for round in 0..5 {
        for (now_ns, opens) in [(round * LEAVING_NS, 1), (round * LEAVING_NS + LEAVING_NS - 1, 0)] {
            host.poll(&mut board, now_ns).unwrap();
            assert_eq!(board.sent().len(), opens, "at {now_ns} ns");
        }
    }
}

/// What finds the transmit ring full goes when there is room.
#[test]
fn packets_that_find_the_ring_full_wait_for_room() {
    let mut board = EmptyBoard::default();
    let mut host = host(&mut board);
    let close = Head::bare(&Header::of_session(Kind::Close, 3, 4));
    let packets = 2 * SLOTS as usize + 3;
    for _ in 0..packets {
        board.deliver(close.bytes());
        host.poll(&mut board, 0).unwrap();
    }
    let mut unknowns = 0;
    for _ in 0..4 {
        unknowns += board.sent().len();
        host.poll(&mut board, 0).unwrap();
    }
    assert_eq!(unknowns, packets);
}

/// Whoever is told later asks again: it makes the host keep no more than this.
#[test]
fn what_is_asked_for_again_does_not_wait_without_bound() {
    const WAITING: usize = 256;
    let mut board = EmptyBoard::default();
    let mut host = host(&mut board);
    let close = Head::bare(&Header::of_session(Kind::Close, 3, 4));
    for _ in 0..2 * WAITING {
        board.deliver(close.bytes());
        host.poll(&mut board, 0).unwrap();
    }
    let mut unknowns = 0;
    for _ in 0..2 * WAITING {
        unknowns += board.sent().len();
        host.poll(&mut board, 0).unwrap();
    }
    assert_eq!(unknowns, SLOTS as usize + WAITING);
}

#[test]
fn a_response_that_waits_for_room_ends_with_its_session() {
    let mut board = EmptyBoard::default();
    let mut host = host(&mut board);
    opened(0, &mut host, &mut board, 9);
    let Some(HostEvent::Accepted(id)) = host.poll_event() else {
        panic!("a session is opened");
    };
    let asked = request(0, &mut host, &mut board, 0).expect("its session is open");
    let stranger = Head::bare(&Header::of_session(Kind::Close, 3, 4));
    for _ in 0..SLOTS {
        board.deliver(stranger.bytes());
        host.poll(&mut board, 0).unwrap();
    }
    host.respond(&mut board, asked, 0, b"answer");
    board.deliver(Head::bare(&Header::of_session(Kind::Close, 0, id.to_bits() as u32)).bytes());
    host.poll(&mut board, 0).unwrap();
    let mut sent = 0;
    for _ in 0..4 {
        sent += board.sent().len();
        host.poll(&mut board, 0).unwrap();
    }
    // Those to the strangers, and that the session is closed.
    assert_eq!(sent, SLOTS as usize + 1);
}

#[test]
fn only_a_sessions_own_token_ends_it() {
    let mut board = EmptyBoard::default();
    let mut host = host(&mut board);
    opened(0, &mut host, &mut board, 9);
    let Some(HostEvent::Accepted(id)) = host.poll_event() else {
        panic!("a session is opened");
    };
    let token = id.to_bits() as u32;
    let close = |token| Head::bare(&Header::of_session(Kind::Close, 0, token));
    let unknown = exchange(&mut host, &mut board, close(token ^ 1).bytes());
    assert_eq!(unknown[0][0], Kind::Unknown as u8);
    assert_eq!(host.poll_event(), None);
    let closed = exchange(&mut host, &mut board, close(token).bytes());
    assert_eq!(closed[0][0], Kind::Closed as u8);
    assert_eq!(host.poll_event(), Some(HostEvent::Ended(id)));
}

/// A NIC that asks for packets of a response asks by the call: what the slot was answered with before, or is with by now, is another's.
#[test]
fn a_response_is_given_again_to_its_own_call_alone() {
    let mut board = EmptyBoard::default();
    let mut host = host(&mut board);
    opened(0, &mut host, &mut board, 9);
    assert!(matches!(host.poll_event(), Some(HostEvent::Accepted(_))));
    let asked = request(0, &mut host, &mut board, 0).expect("its session is open");
    host.respond(&mut board, asked, 0, b"answer");
    assert_eq!(board.sent().len(), 1);
    for (tag, given) in [(0, 0), (1, 1), (2, 0), (1 << 32 | 1, 0)] {
        board.deliver_head(EntryHead {
            kind: EntryKind::Repeat,
            bytes: 1,
            connection: 0,
            code: 0,
            tag,
            remote: 0,
        });
        host.poll(&mut board, 0).unwrap();
        assert_eq!(board.sent().len(), given, "call {tag}");
    }
}

proptest! {
    #[test]
    fn any_packet_is_taken_or_ignored(
        kinds in prop::collection::vec((5u8..16, 0u16..4, any::<bool>(), prop::collection::vec(any::<u8>(), 0..120)), 1..60),
    ) {
        let mut board = EmptyBoard::default();
        let mut host = host(&mut board);
        let id = host.connect(0, PEER).unwrap();
        let token = id.to_bits() as u32;
        for (kind, session, right_token, payload) in kinds {
            let token = if right_token { token } else { 1 };
            let mut packet = Head::bare(&Header::of_session(Kind::Ping, session, token)).bytes().to_vec();
            packet[0] = kind;
            packet.extend(payload);
            let sent = exchange(&mut host, &mut board, &packet);
            // An answer to this packet, and an Open or a Close of the session here.
            prop_assert!(sent.len() <= 2, "{} packets", sent.len());
            while host.poll_event().is_some() {}
        }
    }
}
