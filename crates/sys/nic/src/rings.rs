//! A flow's two rings, as the host uses them.
//!
//! A ring has slots of a fixed number of lines. Who writes a slot writes its first line last, with a phase bit that is 1 in the ring's
//! first lap, 0 in the next, and so on; so who reads sees by one line whether the slot is new.

use crate::entry::{EntryHead, EntryKind, PAYLOAD_FIRST_BYTES, entry_lines, raw_lines};
use crate::{Board, LINE_BYTES, MessagePart, StoredMessage, registers};

/// Where an entry names the area of its response.
const AREA_AT: usize = 1;

/// How the NIC learns of entries in a transmit ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchMode {
    /// It polls the ring, as over a coherent interconnect.
    Polled,
    /// It fetches as far as the doorbell says, in batches, as over PCIe.
    Doorbell,
    /// The host pushes entries of one line by MMIO; longer ones go through the ring, with doorbells. (Would the NIC poll that ring, what is
    /// pushed would wait for its reads.)
    Push,
}

/// Where a flow's rings are, and how large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowShape {
    pub flow: u8,
    /// Line address of the first of [`FlowShape::lines`] lines.
    pub base: u32,
    /// Slots of each ring, as a logarithm, 1 to 15.
    pub slots_log2: u8,
    /// Lines of a slot, as a logarithm, 0 to 5.
    pub slot_lines_log2: u8,
    /// How the NIC learns of entries.
    pub fetch: FetchMode,
    /// Calls that the flow may have on their way; fewer than the slots less one.
    pub calls_max: u8,
}

impl FlowShape {
    fn slots(&self) -> u32 {
        1 << self.slots_log2
    }

    /// Lines that both rings and the status line take.
    #[must_use]
    pub fn lines(&self) -> u32 {
        2 * (self.slots() << self.slot_lines_log2) + 1
    }

    /// Line address of the receive ring.
    #[must_use]
    pub fn receive_base(&self) -> u32 {
        self.base + (self.slots() << self.slot_lines_log2)
    }

    fn status(&self) -> u32 {
        self.base + 2 * (self.slots() << self.slot_lines_log2)
    }
}

/// Why an entry was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// The NIC has not taken enough of the entries before.
    #[error("the transmit ring is full: poll, and try again")]
    Full,
    /// It has more lines than a slot.
    #[error("the entry has {lines} lines, a slot of this flow has {slot_lines}")]
    TooLong { lines: usize, slot_lines: usize },
    /// The shape cannot be.
    #[error("a flow of {0:?} cannot be")]
    Shape(FlowShape),
}

/// What the NIC has written into a receive ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    pub head: EntryHead,
    /// Its payload; of a raw entry, the packet.
    pub payload: Vec<u8>,
    /// The payload lies in an area instead.
    pub stored: Option<StoredMessage>,
}

/// A flow, as the host drives it.
#[derive(Debug)]
pub struct RingDriver {
    shape: FlowShape,
    written: u16,
    rung: u16,
    taken: u16,
    received: u16,
    freed: u16,
}

impl RingDriver {
    /// Clears the rings and starts the flow.
    ///
    /// # Errors
    /// If the shape cannot be.
    pub fn start(board: &mut impl Board, shape: FlowShape) -> Result<RingDriver, RingError> {
        let possible = (1..=15).contains(&shape.slots_log2)
            && shape.slot_lines_log2 <= 5
            && u32::from(shape.calls_max) + 1 < shape.slots()
            && u16::from(shape.flow) < registers::FLOW_TX_BASE_COUNT;
        if !possible {
            return Err(RingError::Shape(shape));
        }
        for line in 0..shape.lines() {
            board.write_line(shape.base + line, &[0; LINE_BYTES]);
        }
        let flow = u16::from(shape.flow);
        board.write_register(registers::flow_tx_base(flow), shape.base);
        board.write_register(registers::flow_rx_base(flow), shape.receive_base());
        board.write_register(registers::flow_status(flow), shape.status());
        let bits = u32::from(shape.slots_log2)
            | u32::from(shape.slot_lines_log2) << 4
            | u32::from(shape.fetch != FetchMode::Polled) << 8
            | 1 << 16
            | u32::from(shape.calls_max) << 24;
        board.write_register(registers::flow_shape(flow), bits);
        Ok(RingDriver {
            shape,
            written: 0,
            rung: 0,
            taken: 0,
            received: 0,
            freed: 0,
        })
    }

    #[must_use]
    pub fn shape(&self) -> &FlowShape {
        &self.shape
    }

    /// Bytes of payload that an entry can have.
    #[must_use]
    pub fn payload_bytes_max(&self) -> usize {
        (LINE_BYTES << self.shape.slot_lines_log2) - (LINE_BYTES - PAYLOAD_FIRST_BYTES)
    }

    /// Writes an entry. Unless the NIC polls the ring or the entry is pushed, the NIC sees it after the next [`RingDriver::flush`].
    ///
    /// # Errors
    /// If there is no room for it.
    pub fn send(
        &mut self,
        board: &mut impl Board,
        head: &EntryHead,
        payload: &[u8],
    ) -> Result<(), RingError> {
        let whole = MessagePart {
            message_bytes: payload.len() as u32,
            packet: 0,
            area: 0,
        };
        self.send_part(board, head, whole, payload)
    }

    /// Writes an entry that is one packet of a message.
    ///
    /// # Errors
    /// If there is no room for it.
    pub fn send_part(
        &mut self,
        board: &mut impl Board,
        head: &EntryHead,
        part: MessagePart,
        payload: &[u8],
    ) -> Result<(), RingError> {
        let raw = head.kind == EntryKind::Raw;
        let lines = if raw {
            raw_lines(payload.len())
        } else {
            entry_lines(payload.len())
        };
        let slot_lines = 1 << self.shape.slot_lines_log2;
        if lines > slot_lines {
            return Err(RingError::TooLong { lines, slot_lines });
        }
        let head = EntryHead {
            bytes: payload.len() as u16,
            remote: if raw { head.remote } else { part.to_bits() },
            ..*head
        };
        if self.shape.fetch == FetchMode::Push && lines == 1 {
            let mut line = head.encode(true, payload);
            line[AREA_AT] = part.area;
            let pushed = board.push_line(self.shape.flow, &line);
            return if pushed { Ok(()) } else { Err(RingError::Full) };
        }
        if self.room(board) == 0 {
            return Err(RingError::Full);
        }
        let slot = self.slot_address(self.shape.base, self.written);
        let (first, rest) = if raw {
            (&[][..], payload)
        } else {
            payload.split_at(payload.len().min(PAYLOAD_FIRST_BYTES))
        };
        for (index, piece) in rest.chunks(LINE_BYTES).enumerate() {
            let mut line = [0; LINE_BYTES];
            line[..piece.len()].copy_from_slice(piece);
            board.write_line(slot + 1 + index as u32, &line);
        }
        let mut line = head.encode(self.phase(self.written), first);
        line[AREA_AT] = part.area;
        board.write_line(slot, &line);
        self.written = self.written.wrapping_add(1);
        Ok(())
    }

    /// Slots of the transmit ring that can be written now.
    pub fn room(&mut self, board: &mut impl Board) -> u32 {
        let used = |driver: &Self| u32::from(driver.written.wrapping_sub(driver.taken));
        if used(self) == self.shape.slots() {
            let status = board.read_line(self.shape.status());
            let taken = u16::from_le_bytes([status[0], status[1]]);
            // A count that is ahead of what was written says nothing.
            if taken.wrapping_sub(self.taken) <= self.written.wrapping_sub(self.taken) {
                self.taken = taken;
            }
        }
        self.shape.slots() - used(self)
    }

    /// Tells the NIC of what was written and freed since the last time.
    pub fn flush(&mut self, board: &mut impl Board) {
        let flow = u16::from(self.shape.flow);
        if self.shape.fetch != FetchMode::Polled && self.rung != self.written {
            board.write_register(registers::flow_doorbell(flow), self.written.into());
            self.rung = self.written;
        }
        if self.freed != self.received {
            board.write_register(registers::flow_freed(flow), self.received.into());
            self.freed = self.received;
        }
    }

    /// Takes the next entry of the receive ring. Its slot is free for the NIC after the next [`RingDriver::flush`].
    ///
    /// What the NIC says is checked as far as lengths go: a slot that cannot be is skipped.
    pub fn receive(&mut self, board: &mut impl Board) -> Option<Received> {
        loop {
            let slot = self.slot_address(self.shape.receive_base(), self.received);
            let first = board.read_line(slot);
            if EntryHead::phase(&first) != self.phase(self.received) {
                return None;
            }
            self.received = self.received.wrapping_add(1);
            let Some(head) = EntryHead::decode(&first) else {
                continue;
            };
            let stored = EntryHead::stored(&first);
            let raw = head.kind == EntryKind::Raw;
            // Of a repetition, it is a number of packets; what is stored lies elsewhere.
            let elsewhere = head.kind == EntryKind::Repeat || stored.is_some();
            let bytes = if elsewhere { 0 } else { usize::from(head.bytes) };
            let lines = if raw { raw_lines(bytes) } else { entry_lines(bytes) };
            if lines > 1 << self.shape.slot_lines_log2 {
                continue;
            }
            let mut payload = Vec::with_capacity(lines * LINE_BYTES);
            if !raw {
                payload.extend_from_slice(&first[LINE_BYTES - PAYLOAD_FIRST_BYTES..]);
            }
            for index in 1..lines {
                payload.extend_from_slice(&board.read_line(slot + index as u32));
            }
            payload.truncate(bytes);
            return Some(Received {
                head,
                payload,
                stored,
            });
        }
    }

    fn slot_address(&self, base: u32, count: u16) -> u32 {
        base + ((u32::from(count) & (self.shape.slots() - 1)) << self.shape.slot_lines_log2)
    }

    fn phase(&self, count: u16) -> bool {
        u32::from(count) & self.shape.slots() == 0
    }
}
