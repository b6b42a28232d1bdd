//! A flow's rings beside a NIC that is a few lines of Rust: every lap and every count that comes round, and whatever a NIC could say.

use std::collections::HashMap;

use provost_nic::{
    Board, EntryHead, EntryKind, FetchMode, FlowShape, LINE_BYTES, Line, RingDriver, RingError, registers,
};

const SLOTS: u32 = 4;
const SLOT_LINES: u32 = 2;
const BASE: u32 = 100;
const RECEIVE_BASE: u32 = BASE + SLOTS * SLOT_LINES;
const STATUS: u32 = RECEIVE_BASE + SLOTS * SLOT_LINES;

/// Memory, of which only the flow's lines may be touched, and registers as they were written last.
#[derive(Default)]
struct WatchedBoard {
    lines: HashMap<u32, Line>,
    registers: HashMap<u16, u32>,
}

impl Board for WatchedBoard {
    fn read_line(&mut self, address: u32) -> Line {
        assert!(
            (BASE..=STATUS).contains(&address),
            "line {address} is not the flow's"
        );
        self.lines.get(&address).copied().unwrap_or([0; LINE_BYTES])
    }
    fn write_line(&mut self, address: u32, line: &Line) {
        assert!(
            (BASE..=STATUS).contains(&address),
            "line {address} is not the flow's"
        );
        self.lines.insert(address, *line);
    }
    fn read_register(&mut self, address: u16) -> u32 {
        self.registers[&address]
    }
    fn write_register(&mut self, address: u16, value: u32) {
        self.registers.insert(address, value);
    }
    fn push_line(&mut self, _: u8, _: &Line) -> bool {
        false
    }
}

impl WatchedBoard {
    /// What the NIC finds in the slot of its next entry, if the host has written it: the entry's tag.
    fn entry(&mut self, taken: u32) -> Option<u64> {
        let first = self.read_line(BASE + taken % SLOTS * SLOT_LINES);
        let is_new = EntryHead::phase(&first) == (taken / SLOTS).is_multiple_of(2);
        is_new.then(|| EntryHead::decode(&first).expect("the host writes entries").tag)
    }

    fn say_taken(&mut self, taken: u32) {
        let mut status = [0; LINE_BYTES];
        status[..2].copy_from_slice(&(taken as u16).to_le_bytes());
        self.write_line(STATUS, &status);
    }

    /// Writes an entry for the host.
    fn deliver(&mut self, delivered: u32, head: &EntryHead) {
        let line = head.encode((delivered / SLOTS).is_multiple_of(2), b"");
        self.write_line(RECEIVE_BASE + delivered % SLOTS * SLOT_LINES, &line);
    }
}

fn started(fetch: FetchMode) -> (WatchedBoard, RingDriver) {
    let mut board = WatchedBoard::default();
    let shape = FlowShape {
        flow: 1,
        base: BASE,
        slots_log2: SLOTS.ilog2() as u8,
        slot_lines_log2: SLOT_LINES.ilog2() as u8,
        fetch,
        calls_max: 2,
    };
    let ring = RingDriver::start(&mut board, shape).expect("the shape can be");
    (board, ring)
}

fn head(tag: u64, bytes: u16) -> EntryHead {
    EntryHead {
        kind: EntryKind::Request,
        bytes,
        connection: 0,
        code: 1,
        tag,
        remote: 0,
    }
}

/// More entries than a count of 16 bits has numbers. The ring is filled and emptied in turn, so it is full and empty at every number.
#[test]
fn a_transmit_ring_takes_its_slots_and_no_more_in_every_lap() {
    for fetch in [FetchMode::Polled, FetchMode::Doorbell] {
        let (mut board, mut ring) = started(fetch);
        let (mut written, mut taken) = (0, 0);
        while written < 70_000 {
            while ring.send(&mut board, &head(written.into(), 0), b"") != Err(RingError::Full) {
                written += 1;
                assert!(written - taken <= SLOTS, "entry {taken} is written over");
            }
            assert_eq!(written - taken, SLOTS, "there is room after {written} entries");
            ring.flush(&mut board);
            if fetch == FetchMode::Doorbell {
                let doorbell = board.read_register(registers::flow_doorbell(1));
                assert_eq!(doorbell, written & 0xffff);
            }
            // The NIC takes some of them, another number each time.
            for _ in 0..1 + written % SLOTS {
                assert_eq!(board.entry(taken), Some(taken.into()));
                taken += 1;
            }
            board.say_taken(taken);
        }
    }
}

#[test]
fn a_nic_that_says_to_have_taken_what_was_never_written_frees_no_slot() {
    let (mut board, mut ring) = started(FetchMode::Polled);
    for tag in 0..SLOTS {
        ring.send(&mut board, &head(tag.into(), 0), b"")
            .expect("there is room");
    }
    for forged in [SLOTS + 1, 0x8000, 0xffff] {
        board.say_taken(forged);
        assert_eq!(ring.room(&mut board), 0, "{forged} entries");
    }
    board.say_taken(SLOTS - 1);
    assert_eq!(ring.room(&mut board), SLOTS - 1);
}

#[test]
fn what_is_received_is_given_back_in_every_lap() {
    let (mut board, mut ring) = started(FetchMode::Polled);
    let mut delivered: u32 = 0;
    while delivered < 70_000 {
        for _ in 0..1 + delivered % SLOTS {
            board.deliver(delivered, &head(delivered.into(), 0));
            delivered += 1;
            let received = ring.receive(&mut board).expect("an entry is there");
            assert_eq!(received.head.tag, u64::from(delivered) - 1);
        }
        assert_eq!(ring.receive(&mut board), None, "no entry comes twice");
        ring.flush(&mut board);
        let freed = board.read_register(registers::flow_freed(1));
        assert_eq!(freed, delivered & 0xffff);
    }
}

/// An entry that says to be longer than its slot is passed over: the lines behind it are another entry's.
#[test]
fn an_entry_longer_than_its_slot_is_passed_over_and_its_slot_given_back() {
    let (mut board, mut ring) = started(FetchMode::Polled);
    let room = ring.payload_bytes_max() as u16;
    for (delivered, bytes) in (0..).zip([room + 1, u16::MAX, room]) {
        board.deliver(delivered, &head(delivered.into(), bytes));
    }
    let received = ring.receive(&mut board).expect("the last one fits");
    assert_eq!((received.head.tag, received.payload.len()), (2, room.into()));
    assert_eq!(ring.receive(&mut board), None);
    ring.flush(&mut board);
    assert_eq!(board.read_register(registers::flow_freed(1)), 3);
    let too_long = vec![0; usize::from(room) + 1];
    let refused = ring.send(&mut board, &head(0, 0), &too_long);
    let (lines, slot_lines) = (SLOT_LINES as usize + 1, SLOT_LINES as usize);
    assert_eq!(refused, Err(RingError::TooLong { lines, slot_lines }));
}
