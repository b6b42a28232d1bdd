//! The clocks of a NIC that has one for each of its interfaces, and its host's bus.

use std::collections::VecDeque;

use crate::model::{PortHandle, RtlModel};
use crate::simulated::BusWrite;

/// Picoseconds from edge to edge of each clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockPeriods {
    pub nic: u64,
    /// Of the host's memory and registers.
    pub host: u64,
    /// Of the wire, from the NIC and to it.
    pub transmit: u64,
    pub receive: u64,
}

/// Which clock, of a clocked NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InterfaceClock {
    Nic,
    Host,
    Transmit,
    Receive,
}

const CLOCKS: [(InterfaceClock, &str, &str); 4] = [
    (InterfaceClock::Nic, "clk", "rst"),
    (InterfaceClock::Host, "host_clk", "host_rst"),
    (InterfaceClock::Transmit, "mac_tx_clk", "mac_tx_rst"),
    (InterfaceClock::Receive, "mac_rx_clk", "mac_rx_rst"),
];
/// Edges of each clock for which its reset is held after all clocks run.
const RESET_EDGES: u64 = 4;

/// The clocks, each of which has its next edge at some time.
pub(crate) struct InterfaceClocks {
    ports: [PortHandle; 4],
    periods: [u64; 4],
    next: [u64; 4],
}

/// The clocks whose edges come at the same time.
#[derive(Clone, Copy)]
pub(crate) struct ClockEdges([bool; 4]);

impl ClockEdges {
    pub(crate) fn has(self, clock: InterfaceClock) -> bool {
        self.0[clock as usize]
    }
}

impl InterfaceClocks {
    /// Of a model that is reset on all sides.
    pub(crate) fn start(model: &mut RtlModel, periods: ClockPeriods) -> InterfaceClocks {
        let periods = [periods.nic, periods.host, periods.transmit, periods.receive];
        assert!(periods.iter().all(|period| *period > 0), "{periods:?}");
        let mut clocks = InterfaceClocks {
            ports: CLOCKS.map(|(_, clock, _)| model.port(clock)),
            periods,
            next: periods,
        };
        for (.., reset) in CLOCKS {
            model.set_named(reset, 1);
        }
        let longest = periods.into_iter().max().unwrap_or(0);
        while clocks.next.iter().any(|next| *next < RESET_EDGES * longest) {
            let edges = clocks.next_edges();
            clocks.run_edges(model, edges);
        }
        for (.., reset) in CLOCKS {
            model.set_named(reset, 0);
        }
        model.eval();
        clocks
    }

    /// Which clocks have the next edge.
    pub(crate) fn next_edges(&self) -> ClockEdges {
        let soonest = self.next.into_iter().min().unwrap_or(0);
        ClockEdges(self.next.map(|next| next == soonest))
    }

    /// The edges themselves, and what follows from them.
    pub(crate) fn run_edges(&mut self, model: &mut RtlModel, edges: ClockEdges) {
        for level in [1, 0] {
            for (port, edge) in self.ports.into_iter().zip(edges.0) {
                if edge {
                    model.set(port, level);
                }
            }
            model.eval();
        }
        for ((next, period), edge) in self.next.iter_mut().zip(self.periods).zip(edges.0) {
            *next += if edge { period } else { 0 };
        }
    }
}

/// An access of the host.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BusAccess {
    Read(u16),
    Write(BusWrite),
}

/// The bus between the host's clock and the NIC's, which takes accesses in turn and gives back what was read.
pub(crate) struct QueuedBus {
    valid: PortHandle,
    ready: PortHandle,
    writes: PortHandle,
    pushes: PortHandle,
    address: PortHandle,
    line: PortHandle,
    read_valid: PortHandle,
    read_data: PortHandle,
    /// What the queue has not taken.
    waiting: VecDeque<BusAccess>,
    pub(crate) answers: VecDeque<u32>,
}

impl QueuedBus {
    pub(crate) fn of(model: &RtlModel) -> QueuedBus {
        let port = |name: &str| model.port(&format!("host_{name}"));
        QueuedBus {
            valid: port("access_valid"),
            ready: port("access_ready"),
            writes: port("access_writes"),
            pushes: port("access_pushes"),
            address: port("access_address"),
            line: port("access_line"),
            read_valid: port("register_valid"),
            read_data: port("register_data"),
            waiting: VecDeque::new(),
            answers: VecDeque::new(),
        }
    }

    pub(crate) fn put(&mut self, access: BusAccess) {
        self.waiting.push_back(access);
    }

    /// Whether the queue has taken all accesses.
    pub(crate) fn is_clear(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Sets the inputs for an edge of the host's clock.
    pub(crate) fn offer(&self, model: &mut RtlModel) {
        model.set(self.valid, u64::from(!self.waiting.is_empty()));
        let Some(access) = self.waiting.front() else {
            return;
        };
        let (writes, pushes, address) = match access {
            BusAccess::Read(address) => (0, 0, *address),
            BusAccess::Write(BusWrite::Register(address, value)) => {
                model.bytes_mut(self.line)[..4].copy_from_slice(&value.to_le_bytes());
                (1, 0, *address)
            }
            BusAccess::Write(BusWrite::Push(flow, line)) => {
                model.bytes_mut(self.line).copy_from_slice(line);
                (1, 1, u16::from(*flow))
            }
        };
        model.set(self.writes, writes);
        model.set(self.pushes, pushes);
        model.set(self.address, address.into());
    }

    /// Looks at the outputs before that edge.
    pub(crate) fn take(&mut self, model: &RtlModel) {
        if model.get(self.ready) == 1 {
            self.waiting.pop_front();
        }
        if model.get(self.read_valid) == 1 {
            self.answers.push_back(model.get(self.read_data) as u32);
        }
    }
}
