//! Whatever packets of session management come, and in whatever state a session is, the host stands, and sends no more than it was asked.

use std::collections::HashMap;

use proptest::prelude::*;
use provost_datagram::handshake::{Accept, MarkUse, Open, PacketFallback, VERSION};
use provost_datagram::packet::{Head, Header, Kind};
use provost_datagram::{Checking, SessionId};
use provost_nic::{Balance, Board, EntryHead, EntryKind, FetchMode, FlowShape, IDENTITY, Line, registers};
use provost_nic_host::{HostConfig, HostEvent, NicHost};

const PEER: u64 = 7;
const SLOTS: u32 = 16;
const SLOT_LINES: u32 = 8;
const BASE: u32 = 100;

/// A board without a NIC: memory, and a register that says that one is there.
#[derive(Default)]
struct EmptyBoard {
    memory: HashMap<u32, Line>,
    received: u32,
    sent: u32,
}

impl Board for EmptyBoard {
    fn read_line(&mut self, address: u32) -> Line {
        self.memory.get(&address).copied().unwrap_or([0; 64])
    }
    fn write_line(&mut self, address: u32, line: &Line) {
        self.memory.insert(address, *line);
    }
    fn read_register(&mut self, address: u16) -> u32 {
        if address == registers::IDENTITY {
            IDENTITY
        } else {
            0
        }
    }
    fn write_register(&mut self, _: u16, _: u32) {}
    fn push_line(&mut self, _: u8, _: &Line) -> bool {
        false
    }
}

impl EmptyBoard {
    /// Writes a packet into the receive ring, as a NIC would.
    fn deliver(&mut self, packet: &[u8]) {
        let slot = BASE + SLOTS * SLOT_LINES + self.received % SLOTS * SLOT_LINES;
        for (index, piece) in packet.chunks(64).enumerate() {
            let mut line = [0; 64];
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
            let mut status = [0; 64];
            status[..2].copy_from_slice(&(self.sent as u16).to_le_bytes());
            self.write_line(BASE + 2 * SLOTS * SLOT_LINES, &status);
        }
    }
}

fn host(board: &mut EmptyBoard) -> NicHost {
    let config = HostConfig {
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
        sessions_max: 8,
        packet_bytes_max: 400,
        checking: Checking::Wire,
        timeout_ticks: 1,
        tries_max: 1,
        handshake_timeout_ns: 1_000,
        secret: [1, 2],
    };
    NicHost::start(board, config).expect("a NIC answers")
}

fn open(cookie: u64, cipher: u8) -> Vec<u8> {
    let open = Open {
        versions: (VERSION, VERSION),
        selective: true,
        slots: 4,
        session: 9,
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
    board.deliver(packet);
    host.poll(board, 1_000_000).expect("commands end");
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
