//! The NIC with host memory and a wire around it, cycle by cycle.

use std::collections::VecDeque;

use provost_nic::{Board, LINE_BYTES, Line};

use crate::clocked::{BusAccess, ClockEdges, ClockPeriods, InterfaceClock, InterfaceClocks, QueuedBus};
use crate::model::{ModelUnavailable, PortHandle, RtlModel};

/// Cycles of 5 ns (200 MHz) in 64 ns, times 10.
const CYCLES_PER_TICK_TENTHS: u64 = 128;
/// Reads of host memory that can be out.
const READS_MAX: usize = 64;
/// Lines that a NIC with nothing to do reads again and again, at most: as many slots of a polled ring as it reads at once.
const LOOKS: usize = 4;
/// Cycles after which an access of the host has reached a clocked NIC and come back, if it ever does.
const ACCESS_CYCLES_MAX: u64 = 100_000;

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
    /// The standard one with a clock for each of its interfaces. A cycle is one of the NIC's own clock.
    Clocked(ClockPeriods),
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

/// Registers and pushes of a NIC of one clock.
#[derive(Clone, Copy)]
struct BusPorts {
    csr_write: PortHandle,
    csr_address: PortHandle,
    csr_write_data: PortHandle,
    csr_read_data: PortHandle,
    push_valid: PortHandle,
    push_ready: PortHandle,
    push_flow: PortHandle,
    push_line: PortHandle,
}

impl BusPorts {
    fn of(model: &RtlModel) -> BusPorts {
        let port = |name| model.port(name);
        BusPorts {
            csr_write: port("csr_write"),
            csr_address: port("csr_address"),
            csr_write_data: port("csr_write_data"),
            csr_read_data: port("csr_read_data"),
            push_valid: port("push_valid"),
            push_ready: port("push_ready"),
            push_flow: port("push_flow"),
            push_line: port("push_line"),
        }
    }

    fn offer_register(self, model: &mut RtlModel, address: u16, value: u32) {
        model.set(self.csr_write, 1);
        model.set(self.csr_address, address.into());
        model.set(self.csr_write_data, value.into());
    }

    fn offer_push(self, model: &mut RtlModel, flow: u8, line: &Line) {
        model.set(self.push_valid, 1);
        model.set(self.push_flow, flow.into());
        model.bytes_mut(self.push_line).copy_from_slice(line);
    }
}

/// How the host reaches the NIC's registers.
enum HostBus {
    /// A cycle of the NIC takes one access.
    Direct(BusPorts),
    /// Through a queue, from a clock of its own.
    Queued(Box<(QueuedBus, InterfaceClocks)>),
}

struct NicPorts {
    now: PortHandle,
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
    ports: NicPorts,
    bus: HostBus,
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
    /// The last cycle in which the NIC did more than look at places that it has just looked at.
    moved_cycle: u64,
    looked_at: [u32; LOOKS],
    looks: usize,
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
        let (name, wire) = match shape {
            NicShape::Standard => ("nic", ""),
            NicShape::Wide => ("nic_wide", ""),
            NicShape::Clocked(_) => ("clocked_nic", "mac_"),
        };
        let mut model = RtlModel::new(name)?;
        let wire_port = |name: &str| format!("{wire}{name}");
        for ready in ["host_write_ready", &wire_port("tx_ready"), "host_read_ready"] {
            model.set_named(ready, 1);
        }
        let bus = match shape {
            NicShape::Standard | NicShape::Wide => {
                model.reset();
                HostBus::Direct(BusPorts::of(&model))
            }
            NicShape::Clocked(periods) => {
                let clocks = InterfaceClocks::start(&mut model, periods);
                HostBus::Queued(Box::new((QueuedBus::of(&model), clocks)))
            }
        };
        let port = |name| model.port(name);
        let wire_port = |name: &str| model.port(&wire_port(name));
        let ports = NicPorts {
            now: port("now"),
            host_read: port("host_read"),
            host_read_address: port("host_read_address"),
            host_data_valid: port("host_data_valid"),
            host_data: port("host_data"),
            host_read_ready: port("host_read_ready"),
            host_write: port("host_write"),
            host_write_address: port("host_write_address"),
            host_write_data: port("host_write_data"),
            tx_valid: wire_port("tx_valid"),
            tx_data: wire_port("tx_data"),
            tx_bytes: wire_port("tx_bytes"),
            tx_last: wire_port("tx_last"),
            tx_remote: wire_port("tx_remote"),
            rx_valid: wire_port("rx_valid"),
            rx_data: wire_port("rx_data"),
            rx_bytes: wire_port("rx_bytes"),
            rx_last: wire_port("rx_last"),
            rx_remote: wire_port("rx_remote"),
        };
        let situations = SituationCounts::of(&model);
        Ok(SimulatedNic {
            model,
            ports,
            bus,
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
            moved_cycle: 0,
            looked_at: [u32::MAX; LOOKS],
            looks: 0,
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

    /// For how many cycles the NIC has done nothing that is seen: it sent and got no line, wrote nothing to host memory, and read there only what
    /// it had just read. Whoever has written an entry or a register since then knows more.
    #[must_use]
    pub fn idle_cycles(&self) -> u64 {
        self.cycle - self.moved_cycle
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
        let HostBus::Direct(bus) = self.bus else {
            return self.run_edges_of_cycle();
        };
        let due = self.bus_writes.front().filter(|(at, _)| *at <= self.cycle);
        match due.copied() {
            Some((_, BusWrite::Register(address, value))) => {
                self.bus_writes.pop_front();
                self.run_cycle_with(bus, address, value);
            }
            Some((_, BusWrite::Push(flow, line))) => {
                if self.run_cycle_and_push(bus, flow, &line) {
                    self.bus_writes.pop_front();
                }
            }
            None => self.run_cycle(bus),
        }
    }

    /// A cycle of a NIC of one clock (`hw/bench/nic_stepped.sv`): its inputs are set, it begins with an edge, and then its outputs are there.
    fn run_cycle(&mut self, bus: BusPorts) {
        self.settle_writes();
        self.offer_packet();
        self.offer_data();
        self.model.set(self.ports.now, self.ticks());
        self.offer_room();
        self.model.tick();
        // Of the cycle that has ended.
        self.model.set(bus.push_valid, 0);
        self.take_packet();
        self.take_accesses();
        self.situations.note(&self.model);
        self.cycle += 1;
        self.settle_writes();
    }

    /// A cycle in which a register is written.
    fn run_cycle_with(&mut self, bus: BusPorts, address: u16, value: u32) {
        bus.offer_register(&mut self.model, address, value);
        self.run_cycle(bus);
        self.model.set(bus.csr_write, 0);
    }

    /// A cycle in which a line is pushed, if the NIC takes it: whether it does.
    fn run_cycle_and_push(&mut self, bus: BusPorts, flow: u8, line: &Line) -> bool {
        self.run_cycle(bus);
        let takes = self.model.get(bus.push_ready) == 1;
        if takes {
            bus.offer_push(&mut self.model, flow, line);
        }
        takes
    }

    fn run_edges_of_cycle(&mut self) {
        while !self.run_edges().has(InterfaceClock::Nic) {}
    }

    /// Goes on to the next edge of any clock of a clocked NIC: which have it.
    ///
    /// # Panics
    /// If the NIC has one clock.
    fn run_edges(&mut self) -> ClockEdges {
        let HostBus::Queued(queued) = &self.bus else {
            panic!("the NIC has one clock");
        };
        let edges = queued.1.next_edges();
        if edges.has(InterfaceClock::Nic) {
            self.model.set(self.ports.now, self.ticks());
        }
        if edges.has(InterfaceClock::Host) {
            self.settle_writes();
            self.offer_data();
            self.offer_room();
            self.offer_posted();
        }
        if edges.has(InterfaceClock::Receive) {
            self.offer_packet();
        }
        self.model.eval();
        if edges.has(InterfaceClock::Transmit) {
            self.take_packet();
        }
        if edges.has(InterfaceClock::Host) {
            self.take_accesses();
        }
        if let HostBus::Queued(queued) = &mut self.bus {
            let (bus, clocks) = &mut **queued;
            if edges.has(InterfaceClock::Host) {
                bus.take(&self.model);
            }
            clocks.run_edges(&mut self.model, edges);
        }
        if edges.has(InterfaceClock::Nic) {
            self.cycle += 1;
            self.settle_writes();
        }
        edges
    }

    /// Gives accesses that are due to the queue between the clocks.
    fn offer_posted(&mut self) {
        let HostBus::Queued(queued) = &mut self.bus else {
            return;
        };
        let bus = &mut queued.0;
        while let Some((_, write)) = self.bus_writes.front().filter(|(at, _)| *at <= self.cycle) {
            bus.put(BusAccess::Write(*write));
            self.bus_writes.pop_front();
        }
        bus.offer(&mut self.model);
    }

    /// Has a clocked NIC's queue take an access, and what it reads come back.
    fn access(&mut self, access: BusAccess) -> Option<u32> {
        if let HostBus::Queued(queued) = &mut self.bus {
            queued.0.put(access);
        }
        let until = self.cycle + ACCESS_CYCLES_MAX;
        loop {
            let HostBus::Queued(queued) = &mut self.bus else {
                return None;
            };
            match access {
                BusAccess::Write(_) if queued.0.is_clear() => return None,
                BusAccess::Read(_) => {
                    if let Some(answer) = queued.0.answers.pop_front() {
                        return Some(answer);
                    }
                }
                BusAccess::Write(_) => {}
            }
            assert!(self.cycle < until, "the NIC does not take {access:?}");
            self.run_edges();
        }
    }

    fn offer_room(&mut self) {
        let may_read = self.reads.len() < READS_MAX;
        self.model.set(self.ports.host_read_ready, u64::from(may_read));
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
        self.moved_cycle = self.cycle;
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
        self.moved_cycle = self.cycle;
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
            self.moved_cycle = self.cycle;
            let at = self.cycle + u64::from(self.timing.write_cycles);
            self.nic_writes.push_back((at, address, line));
        }
        let read = self.model.get(self.ports.host_read) & self.model.get(self.ports.host_read_ready);
        if read == 1 {
            let address = self.model.get(self.ports.host_read_address) as u32;
            if !self.looked_at.contains(&address) {
                self.moved_cycle = self.cycle;
                self.looked_at[self.looks % LOOKS] = address;
                self.looks += 1;
            }
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
        let HostBus::Direct(bus) = self.bus else {
            let answer = self.access(BusAccess::Read(address));
            return answer.expect("a read has an answer");
        };
        self.model.set(bus.csr_address, address.into());
        self.run_cycle(bus);
        // The data is there a cycle later.
        self.run_cycle(bus);
        self.model.get(bus.csr_read_data) as u32
    }

    fn write_register(&mut self, address: u16, value: u32) {
        let HostBus::Direct(bus) = self.bus else {
            self.access(BusAccess::Write(BusWrite::Register(address, value)));
            return;
        };
        self.run_cycle_with(bus, address, value);
    }

    fn push_line(&mut self, flow: u8, line: &Line) -> bool {
        let HostBus::Direct(bus) = self.bus else {
            self.access(BusAccess::Write(BusWrite::Push(flow, *line)));
            return true;
        };
        self.run_cycle_and_push(bus, flow, line)
    }
}
