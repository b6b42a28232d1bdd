//! Areas: where the NIC writes the packets of a message of several, as they came. Each connection has eight: a request goes to that of its slot,
//! which is free until the host has responded; a response to the one that its call has named, which is free once the host has read it. The packets
//! keep their heads and begin at whole lines, so that nothing is shifted and the NIC holds no part of a message.

use crate::{Board, LINE_BYTES, SLOTS_MAX, registers};

/// Packets of a message at most.
pub const MESSAGE_PACKETS_MAX: usize = 7;
/// Bytes of a data packet before its payload.
const PACKET_HEAD_BYTES: usize = 24;
/// Lines of an area at most, as a logarithm.
const LINES_LOG2_MAX: u8 = 8;

/// A packet's place in its message, as the host tells it the NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessagePart {
    /// Bytes of the whole message.
    pub message_bytes: u32,
    /// The number of the packet, from 0.
    pub packet: u16,
    /// Of a request: the area to which the response goes, if it has several packets.
    pub area: u8,
}

impl MessagePart {
    /// The 48 bits of an entry's head that say so.
    pub(crate) fn to_bits(self) -> u64 {
        u64::from(self.packet) << 32 | u64::from(self.message_bytes)
    }
}

/// Where a message lies that the NIC has received in several packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredMessage {
    /// The area of its connection.
    pub area: u8,
    /// Bytes of the message.
    pub bytes: u16,
}

/// The areas of a NIC's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageAreas {
    /// Line address of the first.
    pub base: u32,
    /// Lines of each, as a logarithm, 1 to 8.
    pub lines_log2: u8,
}

impl MessageAreas {
    /// Lines that the areas of so many connections take.
    #[must_use]
    pub fn lines(&self, connections: u16) -> u32 {
        (u32::from(connections) * u32::from(SLOTS_MAX)) << self.lines_log2
    }

    /// Tells the NIC of them; `false` if it knows none of this shape.
    #[must_use]
    pub fn announce(&self, board: &mut impl Board) -> bool {
        if !(1..=LINES_LOG2_MAX).contains(&self.lines_log2) {
            return false;
        }
        board.write_register(registers::AREA_BASE, self.base);
        board.write_register(registers::AREA_SHAPE, self.lines_log2.into());
        true
    }

    /// Bytes of the largest message whose packets carry so many bytes each: none that an area does not hold.
    #[must_use]
    pub fn message_bytes_max(&self, packet_payload: usize) -> usize {
        let packets = (1 << self.lines_log2) / packet_lines(packet_payload);
        packets.min(MESSAGE_PACKETS_MAX) * packet_payload
    }

    /// Reads a message whose packets carry so many bytes each: the code of its first packet, and its bytes. `None` if it is larger than what an
    /// area holds, which no NIC says.
    #[must_use]
    pub fn read(
        &self,
        board: &mut impl Board,
        connection: u16,
        stored: StoredMessage,
        packet_payload: usize,
    ) -> Option<(u16, Vec<u8>)> {
        let bytes = usize::from(stored.bytes);
        if packet_payload == 0 || bytes > self.message_bytes_max(packet_payload) || stored.area >= SLOTS_MAX {
            return None;
        }
        let area = u32::from(connection) * u32::from(SLOTS_MAX) + u32::from(stored.area);
        let area = self.base + (area << self.lines_log2);
        let stride = packet_lines(packet_payload);
        let mut message = Vec::with_capacity(bytes);
        let mut code = 0;
        for packet in 0..bytes.div_ceil(packet_payload) {
            let part = packet_payload.min(bytes - message.len());
            let lines = (PACKET_HEAD_BYTES + part).div_ceil(LINE_BYTES);
            let first = area + (packet * stride) as u32;
            let read: Vec<u8> = (0..lines as u32)
                .flat_map(|line| board.read_line(first + line))
                .collect();
            if packet == 0 {
                // Policies have seen this packet's method, and no other's.
                code = u16::from_le_bytes([read[20], read[21]]);
            }
            message.extend_from_slice(&read[PACKET_HEAD_BYTES..PACKET_HEAD_BYTES + part]);
        }
        Some((code, message))
    }
}

/// Lines of a full packet.
fn packet_lines(packet_payload: usize) -> usize {
    (packet_payload + PACKET_HEAD_BYTES).div_ceil(LINE_BYTES)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Line;

    /// Memory whose lines say their address.
    struct AddressedMemory {
        lines: std::ops::Range<u32>,
    }

    impl Board for AddressedMemory {
        fn read_line(&mut self, address: u32) -> Line {
            assert!(self.lines.contains(&address), "line {address} is of no area");
            std::array::from_fn(|at| address.to_le_bytes()[at % 4])
        }

        fn write_line(&mut self, _: u32, _: &Line) {}

        fn read_register(&mut self, _: u16) -> u32 {
            0
        }

        fn write_register(&mut self, _: u16, _: u32) {}

        fn push_line(&mut self, _: u8, _: &Line) -> bool {
            false
        }
    }

    proptest! {
        /// Whatever a NIC says of a message, it is read from its own area or refused.
        #[test]
        fn a_message_is_read_from_its_area_or_refused(
            connection in 0u16..4, area: u8, bytes: u16, packet_payload in 0usize..3_000, lines_log2 in 1u8..=8,
        ) {
            let areas = MessageAreas { base: 100, lines_log2 };
            let first = 100 + ((u32::from(connection) * 8 + u32::from(area % 8)) << lines_log2);
            let mut memory = AddressedMemory { lines: first..first + (1 << lines_log2) };
            let stored = StoredMessage { area, bytes };
            if let Some((_, message)) = areas.read(&mut memory, connection, stored, packet_payload) {
                prop_assert_eq!(message.len(), usize::from(bytes));
            }
        }
    }

    #[test]
    fn an_area_bounds_its_messages() {
        let areas = |lines_log2| MessageAreas { base: 0, lines_log2 };
        assert_eq!(areas(7).message_bytes_max(1000), 7000);
        assert_eq!(areas(6).message_bytes_max(1000), 4000);
        assert_eq!(areas(8).message_bytes_max(2024), 7 * 2024);
        assert_eq!(areas(2).message_bytes_max(1000), 0);
        assert_eq!(areas(7).lines(3), 3 * 8 * 128);
    }
}
