//! A core of a simulated host: it does one thing after the other, each takes virtual time, and what it writes reaches the NIC when
//! the interface says so.

use provost_nic::{Board, EntryHead, EntryKind, Line, Received, RingDriver, entry_lines};
use provost_nic_model::{BusWrite, SimulatedNic};

use crate::interface::{CYCLE_NS, HostInterface};

/// What a core has written and not handed over yet.
enum PostedWrite {
    Line(u32, Line),
    Bus(BusWrite),
}

/// The NIC's memory as the host sees it now, and a place for what it writes.
struct PostingBoard<'n> {
    nic: &'n mut SimulatedNic,
    posted: &'n mut Vec<PostedWrite>,
}

impl Board for PostingBoard<'_> {
    fn read_line(&mut self, address: u32) -> Line {
        self.nic.read_line(address)
    }

    fn write_line(&mut self, address: u32, line: &Line) {
        self.posted.push(PostedWrite::Line(address, *line));
    }

    /// A driver that waited for a register here would stop the clock: none does while calls are on their way.
    fn read_register(&mut self, address: u16) -> u32 {
        unreachable!("register {address:#x} is read while the clock stands")
    }

    fn write_register(&mut self, address: u16, value: u32) {
        self.posted
            .push(PostedWrite::Bus(BusWrite::Register(address, value)));
    }

    fn push_line(&mut self, flow: u8, line: &Line) -> bool {
        self.posted.push(PostedWrite::Bus(BusWrite::Push(flow, *line)));
        true
    }
}

/// A core with a flow of its own.
pub(crate) struct HostCore {
    ring: RingDriver,
    interface: HostInterface,
    posted: Vec<PostedWrite>,
    /// Entries received since credits were returned.
    uncredited: u32,
    /// Until when the core is at work.
    pub(crate) free_ns: f64,
}

impl HostCore {
    pub(crate) fn new(ring: RingDriver, interface: HostInterface) -> HostCore {
        HostCore {
            ring,
            interface,
            posted: Vec::new(),
            uncredited: 0,
            free_ns: 0.0,
        }
    }

    pub(crate) fn batch(&self) -> usize {
        self.interface.batch as usize
    }

    fn spend(&mut self, payload_bytes: usize) {
        let lines_after = entry_lines(payload_bytes) - 1;
        // A call is one entry written and one taken.
        self.free_ns += self.interface.entry_ns / 2.0 + lines_after as f64 * self.interface.line_ns;
    }

    /// Takes the next entry that has come.
    pub(crate) fn receive(&mut self, nic: &mut SimulatedNic) -> Option<Received> {
        let mut board = PostingBoard {
            nic,
            posted: &mut self.posted,
        };
        let received = self.ring.receive(&mut board)?;
        self.spend(received.payload.len());
        self.uncredited += 1;
        if self.uncredited >= self.interface.credit_batch {
            self.free_ns += self.interface.batch_ns;
            self.return_credits(nic);
            self.post(nic);
        }
        Some(received)
    }

    /// Writes an entry, to be handed over with its batch.
    pub(crate) fn send(
        &mut self,
        nic: &mut SimulatedNic,
        (kind, connection, tag): (EntryKind, u16, u64),
        payload: &[u8],
    ) {
        let head = EntryHead {
            kind,
            bytes: 0,
            connection,
            code: 0,
            tag,
            remote: 0,
        };
        let mut board = PostingBoard {
            nic,
            posted: &mut self.posted,
        };
        let sent = self.ring.send(&mut board, &head, payload);
        sent.expect("the ring has more slots than there are calls");
        self.spend(payload.len());
    }

    /// Hands over what was written, and returns credits on the way.
    pub(crate) fn hand_over(&mut self, nic: &mut SimulatedNic) {
        self.free_ns += self.interface.batch_ns;
        // Who pushes needs a doorbell for what went through the ring alone.
        let through_ring = self
            .posted
            .iter()
            .any(|posted| matches!(posted, PostedWrite::Line(..)));
        if self.interface.credit_batch == u32::MAX || through_ring {
            self.return_credits(nic);
        }
        self.post(nic);
    }

    fn return_credits(&mut self, nic: &mut SimulatedNic) {
        let mut board = PostingBoard {
            nic,
            posted: &mut self.posted,
        };
        self.ring.flush(&mut board);
        self.uncredited = 0;
    }

    /// What was written is there as soon as the core goes on: that is what it has waited for.
    fn post(&mut self, nic: &mut SimulatedNic) {
        let at = (self.free_ns / CYCLE_NS).ceil() as u64;
        for posted in self.posted.drain(..) {
            match posted {
                PostedWrite::Line(address, line) => nic.post_line(at, address, line),
                PostedWrite::Bus(write) => nic.post_bus(at, write),
            }
        }
    }
}
