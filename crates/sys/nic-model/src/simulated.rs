//! The NIC with host memory and a wire around it, cycle by cycle.

use std::collections::VecDeque;

use provost_nic::{Board, LINE_BYTES, Line};

use crate::model::{ModelUnavailable, PortHandle, RtlModel};

/// Cycles of 5 ns (200 MHz) in 64 ns, times 10.
const CYCLES_PER_TICK_TENTHS: u64 = 128;
/// Reads of host memory that can be out.
const READS_MAX: usize = 64;

/// How long host memory takes, in cycles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostTiming {
    /// From a read to its line.
    pub read_cycles: u32,
    /// From a write of the NIC until the host sees it; no longer than a read, so that a read sees earlier writes.
    pub write_cycles: u32,
    /// Between two lines that are read.
    pub line_cycles: u32,
}

impl Default for HostTiming {
    /// Reads take 200 ns at 200 MHz, writes no time, and a line comes in each cycle.
    fn default() -> Self {
        Self {
            read_cycles: 40,
            write_cycles: 0,
            line_cycles: 1,
        }
    }
}

/// With which parameters the NIC is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NicShape {
    /// 4 flows, of which 4 slots are read at once.
    Standard,
    /// 8 flows, of which 16 slots are read at once.
    Wide,
}

/// An access of the host to the NIC's registers or its window for pushes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BusWrite {
    /// A register, and its value.
    Register(u16, u32),
    /// A line that is pushed to a flow.
    Push(u8, Line),
}

/// A packet on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WirePacket {
    /// Where it goes, or where it came from: 48 bits.
    pub remote: u64,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

struct Ports {
    now: PortHandle,
    csr_write: PortHandle,
    csr_address: PortHandle,
    csr_write_data: PortHandle,
    csr_read_data: PortHandle,
    push_valid: PortHandle,
    push_ready: PortHandle,
    push_flow: PortHandle,
    push_line: PortHandle,
    host_read: PortHandle,
    host_read_address: PortHandle,
    host_data_valid: PortHandle,
    host_data: PortHandle,
    host_read_ready: PortHandle,
    host_write: PortHandle,
    host_write_address: PortHandle,
    host_write_data: PortHandle,
    tx_valid: PortHandle,
    tx_data: PortHandle,
    tx_bytes: PortHandle,
    tx_last: PortHandle,
    tx_remote: PortHandle,
    rx_valid: PortHandle,
    rx_data: PortHandle,
    rx_bytes: PortHandle,
    rx_last: PortHandle,
    rx_remote: PortHandle,
}

/// A simulated NIC and its host's memory. Registers are read and written at once, and each access takes a cycle; what is *posted*
/// reaches the NIC later, while other cycles pass.
pub struct SimulatedNic {
    model: RtlModel,
    ports: Ports,
    memory: Vec<Line>,
    timing: HostTiming,
    cycle: u64,
    /// By how much time is ahead of what the cycles took.
    skipped_ticks: u64,
    /// Reads that are out, with the cycle in which their line is there.
    reads: VecDeque<(u64, u32)>,
    /// Packets for the NIC, and how much of the first it has got.
    arriving: VecDeque<WirePacket>,
    arrived_bytes: usize,
    /// What the NIC has written and the host does not see yet, what the host has written and the NIC does not see yet, and accesses of
    /// the host that have not reached the NIC: each with the cycle in which that changes.
    nic_writes: VecDeque<(u64, u32, Line)>,
    host_writes: VecDeque<(u64, u32, Line)>,
    bus_writes: VecDeque<(u64, BusWrite)>,
    /// What of a packet the NIC has sent.
    leaving: Vec<u8>,
    left: VecDeque<WirePacket>,
    /// Accesses to host memory beyond its end, which are the host's mistakes.
    stray: u64,
    situations: SituationCounts,
}

impl SimulatedNic {
    /// A NIC, reset, with so many lines of host memory.
    ///
    /// # Errors
    /// If there is no model of it.
    pub fn new(memory_lines: usize, timing: HostTiming) -> Result<SimulatedNic, ModelUnavailable> {
        Self::of_shape(NicShape::Standard, memory_lines, timing)
    }

    /// The same, of this shape.
    ///
    /// # Errors
    /// If there is no model of it.
    ///
    /// # Panics
    /// If writes take longer than reads.
    pub fn of_shape(
        shape: NicShape,
        memory_lines: usize,
        timing: HostTiming,
    ) -> Result<SimulatedNic, ModelUnavailable> {
        assert!(timing.write_cycles <= timing.read_cycles, "{timing:?}");
        let mut model = RtlModel::new(match shape {
            NicShape::Standard => "nic",
            NicShape::Wide => "nic_wide",
        })?;
        for ready in ["host_write_ready", "tx_ready", "host_read_ready"] {
            model.set_named(ready, 1);
        }
        model.reset();
        let port = |name| model.port(name);
        let ports = Ports {
            now: port("now"),
            csr_write: port("csr_write"),
            csr_address: port("csr_address"),
            csr_write_data: port("csr_write_data"),
            csr_read_data: port("csr_read_data"),
            push_valid: port("push_valid"),
            push_ready: port("push_ready"),
            push_flow: port("push_flow"),
            push_line: port("push_line"),
            host_read: port("host_read"),
            host_read_address: port("host_read_address"),
            host_data_valid: port("host_data_valid"),
            host_data: port("host_data"),
            host_read_ready: port("host_read_ready"),
            host_write: port("host_write"),
            host_write_address: port("host_write_address"),
            host_write_data: port("host_write_data"),
            tx_valid: port("tx_valid"),
            tx_data: port("tx_data"),
            tx_bytes: port("tx_bytes"),
            tx_last: port("tx_last"),
            tx_remote: port("tx_remote"),
            rx_valid: port("rx_valid"),
            rx_data: port("rx_data"),
            rx_bytes: port("rx_bytes"),
            rx_last: port("rx_last"),
            rx_remote: port("rx_remote"),
        };
        let situations = SituationCounts::of(&model);
        Ok(SimulatedNic {
            model,
            ports,
            memory: vec![[0; LINE_BYTES]; memory_lines],
            timing,
            cycle: 0,
            skipped_ticks: 0,
            reads: VecDeque::new(),
            nic_writes: VecDeque::new(),
            host_writes: VecDeque::new(),
            bus_writes: VecDeque::new(),
            arriving: VecDeque::new(),
            arrived_bytes: 0,
            leaving: Vec::new(),
            left: VecDeque::new(),
            stray: 0,
            situations,
        })
    }

    /// Cycles since the reset.
    #[must_use]
    pub fn cycle(&self) -> u64 {
        self.cycle
    }

    /// The NIC's time, in ticks of 64 ns.
    #[must_use]
    pub fn ticks(&self) -> u64 {
        self.cycle * 10 / CYCLES_PER_TICK_TENTHS + self.skipped_ticks
    }

    /// Lets time pass in which the NIC is not simulated, until this tick.
    pub fn skip_to(&mut self, ticks: u64) {
        self.skipped_ticks += ticks.saturating_sub(self.ticks());
    }

    /// Accesses of the NIC to memory that the host does not have.
    #[must_use]
    pub fn stray_accesses(&self) -> u64 {
        self.stray
    }

    /// How often situations have begun within the NIC: of which module, which, how often. None where the shape is not looked into.
    pub fn situations(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        let named = self.model.situations().iter();
        named
            .zip(&self.situations.began)
            .map(|((module, what), count)| (*module, *what, *count))
    }

    /// Has a packet arrive as soon as the wire is free; `remote` is where it came from.
    pub fn inject(&mut self, packet: WirePacket) {
        self.arriving.push_back(packet);
    }

    /// Packets that wait for the wire.
    #[must_use]
    pub fn arriving(&self) -> usize {
        self.arriving.len()
    }

    /// A packet that the NIC has sent; `remote` is where it goes.
    pub fn sent(&mut self) -> Option<WirePacket> {
        self.left.pop_front()
    }

    /// Writes a line that the NIC sees from this cycle on.
    pub fn post_line(&mut self, at_cycle: u64, address: u32, line: Line) {
        let before = self.host_writes.partition_point(|(at, ..)| *at <= at_cycle);
        self.host_writes.insert(before, (at_cycle, address, line));
    }

    /// Has an access reach the NIC in this cycle, or later if others are before it.
    pub fn post_bus(&mut self, at_cycle: u64, write: BusWrite) {
        let before = self.bus_writes.partition_point(|(at, _)| *at <= at_cycle);
        self.bus_writes.insert(before, (at_cycle, write));
    }

    pub fn step(&mut self) {
        let posted = self.offer_bus_write();
        self.run_cycle();
        if posted {
            self.model.set(self.ports.csr_write, 0);
            self.model.set(self.ports.push_valid, 0);
        }
    }

    fn run_cycle(&mut self) {
        self.settle_writes();
        self.offer_packet();
        self.offer_data();
        self.model.set(self.ports.now, self.ticks());
        let may_read = self.reads.len() < READS_MAX;
        self.model.set(self.ports.host_read_ready, u64::from(may_read));
        // Outputs follow from inputs within the cycle; what they say now is what the edge sees.
        self.model.settle();
        self.take_packet();
        self.take_accesses();
        self.situations.note(&self.model);
        self.model.edge();
        self.cycle += 1;
        self.settle_writes();
    }

    /// Puts the next access on the NIC's ports, if it is due and the NIC takes it.
    fn offer_bus_write(&mut self) -> bool {
        let due = self.bus_writes.front().filter(|(at, _)| *at <= self.cycle);
        match due.copied() {
            Some((_, BusWrite::Register(address, value))) => self.offer_register(address, value),
            Some((_, BusWrite::Push(flow, line))) if self.model.get(self.ports.push_ready) == 1 => {
                self.offer_push(flow, &line);
            }
            _ => return false,
        }
        self.bus_writes.pop_front();
        true
    }

    fn offer_register(&mut self, address: u16, value: u32) {
        self.model.set(self.ports.csr_write, 1);
        self.model.set(self.ports.csr_address, address.into());
        self.model.set(self.ports.csr_write_data, value.into());
    }

    fn offer_push(&mut self, flow: u8, line: &Line) {
        self.model.set(self.ports.push_valid, 1);
        self.model.set(self.ports.push_flow, flow.into());
        self.model.bytes_mut(self.ports.push_line).copy_from_slice(line);
    }

    /// Writes become visible whose time has come.
    fn settle_writes(&mut self) {
        for writes in [&mut self.nic_writes, &mut self.host_writes] {
            while let Some((_, address, line)) = writes.front().filter(|(at, ..)| *at <= self.cycle) {
                match self.memory.get_mut(*address as usize) {
                    Some(place) => *place = *line,
                    None => self.stray += 1,
                }
                writes.pop_front();
            }
        }
    }

    fn offer_packet(&mut self) {
        let packet = self.arriving.front();
        self.model.set(self.ports.rx_valid, u64::from(packet.is_some()));
        let Some(packet) = packet else {
            return;
        };
        let rest = &packet.bytes[self.arrived_bytes.min(packet.bytes.len())..];
        let bytes = rest.len().min(LINE_BYTES);
        let data = self.model.bytes_mut(self.ports.rx_data);
        data[..bytes].copy_from_slice(&rest[..bytes]);
        // The wire promises nothing about what lies beyond the packet's end.
        data[bytes..].fill(0xa5);
        let last = rest.len() <= LINE_BYTES;
        let remote = packet.remote;
        self.model.set(self.ports.rx_bytes, bytes as u64);
        self.model.set(self.ports.rx_last, u64::from(last));
        self.model.set(self.ports.rx_remote, remote);
        self.arrived_bytes += bytes;
        if last {
            self.arriving.pop_front();
            self.arrived_bytes = 0;
        }
    }

    fn offer_data(&mut self) {
        let due = self.reads.front().filter(|(at, _)| *at <= self.cycle).copied();
        self.model
            .set(self.ports.host_data_valid, u64::from(due.is_some()));
        let Some((_, address)) = due else {
            return;
        };
        self.reads.pop_front();
        // Memory is read when the line is sent, so a read sees every write that was made by then.
        let line = self.memory.get(address as usize).copied();
        self.stray += u64::from(line.is_none());
        self.model
            .bytes_mut(self.ports.host_data)
            .copy_from_slice(&line.unwrap_or([0; LINE_BYTES]));
    }

    fn take_packet(&mut self) {
        if self.model.get(self.ports.tx_valid) == 0 {
            return;
        }
        let bytes = self.model.get(self.ports.tx_bytes) as usize;
        let line = &self.model.bytes(self.ports.tx_data)[..bytes.min(LINE_BYTES)];
        self.leaving.extend_from_slice(line);
        if self.model.get(self.ports.tx_last) == 1 {
            let remote = self.model.get(self.ports.tx_remote);
            let bytes = std::mem::take(&mut self.leaving);
            self.left.push_back(WirePacket { remote, bytes });
        }
    }

    fn take_accesses(&mut self) {
        if self.model.get(self.ports.host_write) == 1 {
            let address = self.model.get(self.ports.host_write_address) as u32;
            let mut line = [0; LINE_BYTES];
            line.copy_from_slice(self.model.bytes(self.ports.host_write_data));
            let at = self.cycle + u64::from(self.timing.write_cycles);
            self.nic_writes.push_back((at, address, line));
        }
        let read = self.model.get(self.ports.host_read) & self.model.get(self.ports.host_read_ready);
        if read == 1 {
            let address = self.model.get(self.ports.host_read_address) as u32;
            let at = self.cycle + u64::from(self.timing.read_cycles);
            let after = self.reads.back().map_or(0, |(last, _)| *last);
            let at = at.max(after + u64::from(self.timing.line_cycles));
            self.reads.push_back((at, address));
        }
    }
}

/// How often each situation has begun that the model tells of.
#[derive(Default)]
struct SituationCounts {
    covered: Option<PortHandle>,
    before: Vec<u8>,
    began: Vec<u64>,
}

impl SituationCounts {
    fn of(model: &RtlModel) -> SituationCounts {
        let situations = model.situations().len();
        let covered = (situations > 0).then(|| model.port("covered"));
        SituationCounts {
            covered,
            before: vec![0; covered.map_or(0, |port| model.bytes(port).len())],
            began: vec![0; situations],
        }
    }

    /// Looks at the outputs of this cycle.
    fn note(&mut self, model: &RtlModel) {
        let Some(covered) = self.covered else {
            return;
        };
        let now = model.bytes(covered);
        if now == self.before {
            return;
        }
        for (at, (now, before)) in now.iter().zip(&mut self.before).enumerate() {
            let mut began = now & !*before;
            *before = *now;
            while began != 0 {
                self.began[8 * at + began.trailing_zeros() as usize] += 1;
                began &= began - 1;
            }
        }
    }
}

impl Board for SimulatedNic {
    fn read_line(&mut self, address: u32) -> Line {
        self.memory[address as usize]
    }

    fn write_line(&mut self, address: u32, line: &Line) {
        self.memory[address as usize] = *line;
    }

    fn read_register(&mut self, address: u16) -> u32 {
        self.model.set(self.ports.csr_address, address.into());
        self.run_cycle();
        self.model.get(self.ports.csr_read_data) as u32
    }

    fn write_register(&mut self, address: u16, value: u32) {
        self.offer_register(address, value);
        self.run_cycle();
        self.model.set(self.ports.csr_write, 0);
    }

    fn push_line(&mut self, flow: u8, line: &Line) -> bool {
        if self.model.get(self.ports.push_ready) == 0 {
            return false;
        }
        self.offer_push(flow, line);
        self.run_cycle();
        self.model.set(self.ports.push_valid, 0);
        true
    }
}
