//! Two NICs and the wire between them, in lock-step: a cycle of all, then the next.

use std::collections::VecDeque;

use provost_nic::{Board, COMMAND_LOAD, ConnectionLine, registers};
use provost_nic_model::{SimulatedNic, WirePacket};

use crate::interface::CYCLE_NS;

/// Cycles that a packet travels: what a switch adds to it (300 ns; eRPC, NSDI '19, section 6.1).
pub(crate) const WIRE_CYCLES: u64 = 60;
/// Cycles without any call's end after which something is wrong.
pub(crate) const STALL_CYCLES: u64 = 1_000_000;
/// Addresses of both hosts.
pub(crate) const ADDRESSES: [u64; 2] = [1, 2];

/// Two NICs, and what is on its way between them.
pub(crate) struct NicWires {
    pub(crate) nics: [SimulatedNic; 2],
    /// Packets on their way to each NIC, with the cycle in which their first lines arrive.
    arriving: [VecDeque<(u64, WirePacket)>; 2],
    wire_cycles: u64,
    pub(crate) cycle: u64,
}

impl NicWires {
    pub(crate) fn new(nics: [SimulatedNic; 2], wire_cycles: u64) -> NicWires {
        NicWires {
            nics,
            arriving: [VecDeque::new(), VecDeque::new()],
            wire_cycles,
            cycle: 0,
        }
    }

    /// The time in which everything here happens.
    pub(crate) fn now_ns(&self) -> f64 {
        self.cycle as f64 * CYCLE_NS
    }

    /// Lets the NIC that is behind catch up: registers were read of each by itself.
    pub(crate) fn align(&mut self) {
        let cycle = self.nics.iter().map(SimulatedNic::cycle).max().unwrap_or(0);
        for nic in &mut self.nics {
            while nic.cycle() < cycle {
                nic.step();
            }
        }
        self.cycle = cycle;
    }

    /// One cycle, in which the hosts' cores do this.
    pub(crate) fn step(&mut self, hosts: impl FnOnce(&mut [SimulatedNic; 2], f64)) {
        for (arriving, nic) in self.arriving.iter_mut().zip(&mut self.nics) {
            while arriving.front().is_some_and(|(at, _)| *at <= self.cycle) {
                nic.inject(arriving.pop_front().expect("it has a front").1);
            }
        }
        hosts(&mut self.nics, self.cycle as f64 * CYCLE_NS);
        for (from, nic) in self.nics.iter_mut().enumerate() {
            nic.step();
            while let Some(packet) = nic.sent() {
                let packet = WirePacket {
                    remote: ADDRESSES[from],
                    ..packet
                };
                let at = self.cycle + first_line_cycles(&packet, self.wire_cycles);
                self.arriving[1 - from].push_back((at, packet));
            }
        }
        self.cycle += 1;
    }
}

/// Cycles from the end of a packet at its sender to its first line at the receiver: each line arrives as long after it was sent, for switches pass
/// on the beginning of a packet before they have its end. A packet that is longer than the way arrives once it has been sent.
fn first_line_cycles(packet: &WirePacket, wire_cycles: u64) -> u64 {
    let lines = packet.bytes.len().div_ceil(provost_nic::LINE_BYTES) as u64;
    wire_cycles.saturating_sub(lines.saturating_sub(1)).max(1)
}

/// Tells a NIC of a connection, of the table at the beginning of memory.
pub(crate) fn load_connection(nic: &mut SimulatedNic, connection: u16, line: &ConnectionLine) {
    nic.write_line(connection.into(), &line.encode());
    nic.write_register(registers::CONNECTION, COMMAND_LOAD | u32::from(connection));
    while nic.read_register(registers::CONNECTION_BUSY) == 1 {}
}

/// CPU time of this thread.
pub(crate) fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
