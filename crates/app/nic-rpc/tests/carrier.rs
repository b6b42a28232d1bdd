//! Calls of a session whose peer does not answer: they wait, as many as may, and each ends once.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;

use provost_datagram::handshake::{Accept, MarkUse, Open, PacketFallback, VERSION};
use provost_datagram::packet::{Head, Header, Kind};
use provost_datagram::{Call, CallError, Checking, EndReason, Event, MsgBuf, SessionId};
use provost_datagram_rpc::CallCarrier;
use provost_nic::{
    Board, EntryHead, EntryKind, FlowShape, IDENTITY, LINE_BYTES, Line, MESSAGE_PACKETS_MAX, registers,
};
use provost_nic_host::{HostConfig, NicHost};
use provost_nic_rpc::NicCarrier;

/// Calls that wait for a slot of a session, as docs/nic.md says.
const WAITING_MAX: u64 = 1_024;
/// An Open is given up after five seconds.
const OPENING_NS: u64 = 5_000_000_000;

/// A board without a NIC: memory, and a register that says that one is there.
#[derive(Default)]
struct SilentBoard(HashMap<u32, Line>);

impl Board for SilentBoard {
    fn read_line(&mut self, address: u32) -> Line {
        self.0.get(&address).copied().unwrap_or([0; LINE_BYTES])
    }
    fn write_line(&mut self, address: u32, line: &Line) {
        self.0.insert(address, *line);
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

fn call(tag: u64, bytes: usize) -> Call {
    Call {
        tag,
        method: 1,
        request: MsgBuf::from_slice(&vec![0; bytes]),
        response: MsgBuf::from_slice(b""),
    }
}

#[test]
fn calls_of_a_session_that_does_not_open_wait_and_end_once() {
    let mut board = SilentBoard::default();
    let config = HostConfig::of_one_flow(4, 8, [1, 2]);
    let bytes_max = config.payload_bytes_max();
    let host = NicHost::start(&mut board, config).expect("a NIC answers");
    let mut carrier = NicCarrier::new(board, host, bytes_max);
    let peer: SocketAddr = "10.0.0.1:7000".parse().unwrap();
    let session = carrier.connect(0, peer).unwrap();
    let refused = carrier.call(0, session, call(0, bytes_max.1 + 1)).unwrap_err();
    assert_eq!(refused.error, CallError::RequestTooLarge);
    for tag in 0..WAITING_MAX {
        carrier.call(0, session, call(tag, 8)).expect("there is room");
    }
    let refused = carrier.call(0, session, call(WAITING_MAX, 8)).unwrap_err();
    assert_eq!(
        (refused.error, refused.call.tag),
        (CallError::BacklogFull, WAITING_MAX)
    );
    carrier.poll(OPENING_NS).unwrap();
    assert!(carrier.event().is_none(), "it may still open");
    carrier.poll(OPENING_NS + 1).unwrap();
    for tag in 0..WAITING_MAX {
        let Some(Event::Completed(completion)) = carrier.event() else {
            panic!("call {tag} ends");
        };
        let outcome = Err(CallError::Ended(EndReason::PeerTimeout));
        assert_eq!((completion.tag, completion.outcome), (tag, outcome));
    }
    let ended = carrier.event();
    assert!(matches!(ended, Some(Event::Ended(id, EndReason::PeerTimeout)) if id == session));
    assert!(carrier.event().is_none(), "nothing ends twice");
    let refused = carrier.call(OPENING_NS + 2, session, call(0, 8)).unwrap_err();
    assert_eq!(refused.error, CallError::NoSession);
}

/// A carrier whose NIC is played by whoever holds it: it has the rings' shape, and counts what it has given the host.
struct PlayedNic {
    carrier: NicCarrier<SharedBoard>,
    board: SharedBoard,
    ring: FlowShape,
    given: u32,
}

/// A board that carrier and test both hold.
#[derive(Clone, Default)]
struct SharedBoard(Rc<RefCell<SilentBoard>>);

impl Board for SharedBoard {
    fn read_line(&mut self, address: u32) -> Line {
        self.0.borrow_mut().read_line(address)
    }
    fn write_line(&mut self, address: u32, line: &Line) {
        self.0.borrow_mut().write_line(address, line);
    }
    fn read_register(&mut self, address: u16) -> u32 {
        self.0.borrow_mut().read_register(address)
    }
    fn write_register(&mut self, address: u16, value: u32) {
        self.0.borrow_mut().write_register(address, value);
    }
    fn push_line(&mut self, flow: u8, line: &Line) -> bool {
        self.0.borrow_mut().push_line(flow, line)
    }
}

impl PlayedNic {
    /// One whose flow has so many calls at most.
    fn with_calls(calls_max: u8) -> PlayedNic {
        let mut board = SharedBoard::default();
        let config = HostConfig {
            checking: Checking::Wire,
            ..HostConfig::of_one_flow(4, calls_max, [1, 2])
        };
        let (bytes_max, ring) = (config.payload_bytes_max(), config.flows[0]);
        let host = NicHost::start(&mut board, config).expect("a NIC answers");
        PlayedNic {
            carrier: NicCarrier::new(board.clone(), host, bytes_max),
            board,
            ring,
            given: 0,
        }
    }

    fn give(&mut self, head: EntryHead, packet: &[u8]) {
        let slots = 1 << self.ring.slots_log2;
        let slot = self.ring.receive_base() + ((self.given % slots) << self.ring.slot_lines_log2);
        for (index, piece) in packet.chunks(LINE_BYTES).enumerate() {
            let mut line = [0; LINE_BYTES];
            line[..piece.len()].copy_from_slice(piece);
            self.board.write_line(slot + 1 + index as u32, &line);
        }
        let line = head.encode(self.given & slots == 0, b"");
        self.board.write_line(slot, &line);
        self.given += 1;
        self.carrier.poll(0).unwrap();
    }

    /// Opens a session with so many slots, as its server would. Its Open is the entry with this number.
    fn open(&mut self, entry: u32, slots: u8) -> SessionId {
        let session = self.carrier.connect(0, "10.0.0.1:7000".parse().unwrap()).unwrap();
        self.carrier.poll(0).unwrap();
        let slot = self.ring.base + (entry << self.ring.slot_lines_log2);
        let sent: Vec<u8> = (1..4)
            .flat_map(|line| self.board.read_line(slot + line))
            .collect();
        let header_bytes = Head::bare(&Header::of_session(Kind::Open, 0, 0)).bytes().len();
        let bytes = usize::from(EntryHead::decode(&self.board.read_line(slot)).unwrap().bytes);
        let open = Open::decode(&sent[header_bytes..bytes]).expect("an Open");
        let accept = Accept {
            nonce: open.nonce,
            version: VERSION,
            slots,
            session: 5,
            token: 6,
            credits: u16::from(slots) * MESSAGE_PACKETS_MAX as u16,
            packet_bytes: open.packet_bytes,
            message_bytes_max: 300,
            marks: MarkUse::Unread,
            fallback: PacketFallback::Off,
        };
        let head = Head::bare(&Header::of_session(Kind::Accept, open.session, open.token));
        let packet = [head.bytes(), &accept.encode()].concat();
        let raw = EntryHead {
            kind: EntryKind::Raw,
            bytes: packet.len() as u16,
            connection: 0,
            code: 0,
            tag: 0,
            remote: 0x0a00_0001_1b58,
        };
        self.give(raw, &packet);
        assert!(matches!(self.carrier.event(), Some(Event::Connected(id)) if id == session));
        session
    }

    /// Has the call with this number end, of all that the host has made.
    fn respond(&mut self, number: u64) {
        let head = EntryHead {
            kind: EntryKind::Response,
            bytes: 0,
            connection: 0,
            code: 0,
            tag: number,
            remote: 0,
        };
        self.give(head, b"");
    }

    /// What has ended, by what the caller calls it.
    fn ended(&mut self) -> Vec<u64> {
        let mut ended = Vec::new();
        while let Some(event) = self.carrier.event() {
            if let Event::Completed(completion) = event {
                assert_eq!(completion.outcome, Ok(0));
                ended.push(completion.tag);
            }
        }
        ended
    }
}

#[test]
fn a_session_whose_call_waits_for_those_of_others_has_its_turn() {
    let mut nic = PlayedNic::with_calls(4);
    let (first, second) = (nic.open(0, 4), nic.open(1, 4));
    for tag in 0..6 {
        nic.carrier.call(0, first, call(tag, 8)).unwrap();
    }
    // The flow has four calls of the first session; two wait, and the second session has none under way.
    nic.carrier.call(0, second, call(100, 8)).unwrap();
    for number in 0..4 {
        nic.respond(number);
        assert_eq!(nic.ended(), [number]);
    }
    // One of each session in turn: the first session's fifth call, the second session's, the first session's sixth.
    for (number, tag) in [(4, 4), (5, 100), (6, 5)] {
        nic.respond(number);
        assert_eq!(nic.ended(), [tag]);
    }
}
