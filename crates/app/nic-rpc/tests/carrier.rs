//! Calls of a session whose peer does not answer: they wait, as many as may, and each ends once.

use std::collections::HashMap;
use std::net::SocketAddr;

use provost_datagram::{Call, CallError, EndReason, Event, MsgBuf};
use provost_datagram_rpc::CallCarrier;
use provost_nic::{Board, IDENTITY, LINE_BYTES, Line, registers};
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
