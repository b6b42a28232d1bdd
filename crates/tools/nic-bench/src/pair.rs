//! Two NICs and the cores of their hosts: those of one make calls, those of the other answer them.

use provost_figures::Latencies;
use provost_nic::registers::{self, CounterName};
use provost_nic::{
    Balance, Board, CONTROL_CHECKING, CONTROL_ENABLE, ConnectionLine, ConnectionRole, EntryHead, EntryKind,
    FetchMode, FlowShape, RingDriver,
};
use provost_nic_model::{BusWrite, ModelUnavailable, NicShape, SimulatedNic, WirePacket};

use crate::core::HostCore;
use crate::handlers::HandlerModel;
use crate::interface::{CYCLE_NS, HostInterface};
use crate::parts::{CallContent, CallLoad, ClientCore, SESSION_CALLS, ServerCore};
use crate::wires::{ADDRESSES, NicWires, STALL_CYCLES, WIRE_CYCLES, cpu_seconds, load_connection};

/// Calls that a NIC has on their way at most: a limit of the RTL.
pub(crate) const NIC_CALLS: usize = 48;
/// Bytes of payload of an entry of one line: an RPC of 64 bytes.
pub(crate) const SMALL_BYTES: usize = provost_nic::PAYLOAD_FIRST_BYTES;
/// Slots of a ring, as a logarithm: more than there are calls.
const SLOTS_LOG2: u8 = 6;
/// Where rings begin, behind the lines of connections.
const RINGS_BASE: u32 = CONNECTIONS_MAX;
/// Connections of a NIC at most.
pub(crate) const CONNECTIONS_MAX: u32 = 2048;
/// Ticks of 64 ns until a request is sent again: 40 us.
const TIMEOUT_TICKS: u32 = 625;

/// Whether the server's NIC applies policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PolicyUse {
    /// No rule and no bucket is configured.
    Off,
    /// Eight rules that deny nothing of this, and a bucket that has tokens enough.
    On,
}

/// Another tenant of both NICs, with flows of its own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct NeighbourTenant {
    pub(crate) load: CallLoad,
    pub(crate) payload_bytes: usize,
}

/// What a pair consists of.
#[derive(Clone, Debug)]
pub(crate) struct PairConfig {
    pub(crate) interface: HostInterface,
    pub(crate) load: CallLoad,
    /// Of each host, each with a core.
    pub(crate) flows: u8,
    /// Sessions of each flow.
    pub(crate) sessions: u16,
    pub(crate) content: CallContent,
    pub(crate) policies: PolicyUse,
    pub(crate) wire_cycles: u64,
    /// What servers do with calls.
    pub(crate) handlers: HandlerModel,
    /// Whose all flows but the first are.
    pub(crate) neighbour: Option<NeighbourTenant>,
}

impl PairConfig {
    /// One flow, small calls, as many sessions as the calls need.
    pub(crate) fn new(interface: HostInterface, load: CallLoad) -> PairConfig {
        PairConfig {
            interface,
            load,
            flows: 1,
            sessions: (NIC_CALLS / usize::from(SESSION_CALLS)) as u16,
            content: CallContent::Echo(SMALL_BYTES),
            policies: PolicyUse::Off,
            wire_cycles: WIRE_CYCLES,
            handlers: HandlerModel::ECHO,
            neighbour: None,
        }
    }

    /// Load and content of the calls of a flow.
    fn calls_of(&self, flow: usize) -> (CallLoad, CallContent) {
        match self.neighbour {
            Some(neighbour) if flow > 0 => (neighbour.load, CallContent::Echo(neighbour.payload_bytes)),
            _ => (self.load, self.content),
        }
    }

    /// Calls that a flow may have on their way: what the NIC takes, divided among tenants.
    fn calls_max(&self) -> u8 {
        let tenants = 1 + usize::from(self.neighbour.is_some());
        (NIC_CALLS / tenants) as u8
    }

    fn slot_lines_log2(&self) -> u8 {
        let largest = (0..2)
            .map(|flow| self.calls_of(flow).1.bytes_max())
            .max()
            .unwrap_or(0);
        let lines = provost_nic::entry_lines(largest);
        lines.next_power_of_two().trailing_zeros() as u8
    }

    fn shape(&self, flow: u8) -> FlowShape {
        let mut shape = FlowShape {
            flow,
            base: 0,
            slots_log2: SLOTS_LOG2,
            slot_lines_log2: self.slot_lines_log2(),
            fetch: self.interface.fetch,
            calls_max: self.calls_max(),
        };
        shape.base = RINGS_BASE + u32::from(flow) * shape.lines();
        shape
    }

    fn memory_lines(&self) -> usize {
        let last = self.shape(self.flows - 1);
        (last.base + last.lines()) as usize
    }
}

/// What a run came to.
#[derive(Clone, Debug)]
pub(crate) struct PairFigures {
    pub(crate) calls: u64,
    pub(crate) cycles: u64,
    pub(crate) latencies: Latencies,
    /// CPU time that the simulation took.
    pub(crate) cpu_seconds: f64,
    /// Of the server's NIC: connections found in its cache, and fetched.
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) resent: u64,
    pub(crate) failed: u64,
}

impl PairFigures {
    /// Millions of calls a second, in virtual time.
    pub(crate) fn mrps(&self) -> f64 {
        self.calls as f64 * 1e3 / (self.cycles as f64 * CYCLE_NS)
    }

    pub(crate) fn p50_us(&self) -> f64 {
        self.latencies.report(1.0, 0).p50_us
    }

    pub(crate) fn p99_us(&self) -> f64 {
        self.latencies.report(1.0, 0).p99_us
    }

    pub(crate) fn cycles_per_call(&self) -> f64 {
        self.cycles as f64 / self.calls as f64
    }
}

/// Two NICs and their hosts, as the module says.
pub(crate) struct NicPair {
    config: PairConfig,
    wires: NicWires,
    clients: Vec<ClientCore>,
    servers: Vec<ServerCore>,
}

impl NicPair {
    /// Two NICs with open sessions.
    pub(crate) fn new(config: PairConfig) -> Result<NicPair, ModelUnavailable> {
        let timing = config.interface.timing();
        let nic = || SimulatedNic::of_shape(NicShape::Wide, config.memory_lines(), timing);
        let mut nics = [nic()?, nic()?];
        let mut cores = [Vec::new(), Vec::new()];
        for (side, nic) in nics.iter_mut().enumerate() {
            for flow in 0..config.flows {
                let ring = RingDriver::start(nic, config.shape(flow)).expect("the shape can be");
                cores[side].push(HostCore::new(ring, config.interface.clone()));
            }
            settings(nic, config.policies);
            for connection in 0..u16::from(config.flows) * config.sessions {
                open(nic, &config, side, connection);
            }
        }
        let [client_cores, server_cores] = cores;
        let client = |(flow, core): (usize, HostCore)| {
            let first = flow as u16 * config.sessions;
            let connections = first..first + config.sessions;
            let (load, content) = config.calls_of(flow);
            ClientCore::new(core, connections, load, content, flow as u64 + 1)
        };
        let mut pair = NicPair {
            clients: client_cores.into_iter().enumerate().map(client).collect(),
            servers: server_cores
                .into_iter()
                .enumerate()
                .map(|(flow, core)| ServerCore::new(core, config.handlers, config.calls_of(flow).1))
                .collect(),
            wires: NicWires::new(nics, config.wire_cycles),
            config,
        };
        pair.wires.align();
        let now_ns = pair.wires.now_ns();
        pair.clients.iter_mut().for_each(|client| client.start(now_ns));
        pair.servers.iter_mut().for_each(|server| server.start(now_ns));
        Ok(pair)
    }

    /// Runs until so many calls have ended, and measures so many more.
    pub(crate) fn run(&mut self, warmup: u64, calls: u64) -> Result<PairFigures, String> {
        self.run_until(warmup)?;
        let before = self.counters();
        self.clients
            .iter_mut()
            .for_each(|client| client.latencies = Latencies::default());
        let (cycle, began) = (self.wires.cycle, cpu_seconds());
        self.run_until(calls)?;
        let (cycles, cpu_seconds) = (self.wires.cycle - cycle, cpu_seconds() - began);
        let after = self.counters();
        let [hits, misses, resent] = std::array::from_fn(|at| after[at] - before[at]);
        let mut latencies = Latencies::default();
        let measured = self.measured();
        measured
            .iter()
            .for_each(|client| latencies.add(&client.latencies));
        Ok(PairFigures {
            calls: latencies.count(),
            cycles,
            latencies,
            cpu_seconds,
            hits,
            misses,
            resent,
            failed: measured.iter().map(|client| client.failed).sum(),
        })
    }

    /// Those whose calls are measured: all, or those of the first tenant.
    fn measured(&self) -> &[ClientCore] {
        let tenant_flows = if self.config.neighbour.is_some() {
            1
        } else {
            self.clients.len()
        };
        &self.clients[..tenant_flows]
    }

    /// Calls of the other tenant that have ended, well and otherwise.
    pub(crate) fn neighbour_calls(&self) -> (u64, u64) {
        let others = &self.clients[self.measured().len()..];
        let count = |of: fn(&ClientCore) -> u64| others.iter().map(of).sum();
        (
            count(|client| client.latencies.count()),
            count(|client| client.failed),
        )
    }

    fn counters(&mut self) -> [u64; 3] {
        let [client, server] = &mut self.wires.nics;
        let counter = |nic: &mut SimulatedNic, name: CounterName| {
            u64::from(nic.read_register(registers::counter(name as u16)))
        };
        let counters = [
            counter(server, CounterName::ConnectionHits),
            counter(server, CounterName::ConnectionMisses),
            counter(client, CounterName::Retransmissions),
        ];
        self.wires.align();
        counters
    }

    fn ended(&self) -> u64 {
        self.measured()
            .iter()
            .map(|client| client.latencies.count() + client.failed)
            .sum()
    }

    fn run_until(&mut self, calls: u64) -> Result<(), String> {
        let (mut ended, mut since) = (self.ended(), self.wires.cycle);
        while ended < calls {
            self.step();
            let now_ended = self.ended();
            if now_ended != ended {
                (ended, since) = (now_ended, self.wires.cycle);
            }
            if self.wires.cycle - since > STALL_CYCLES {
                return Err(format!(
                    "{}: {ended} of {calls} calls have ended, and no more do",
                    self.config.interface.name
                ));
            }
        }
        Ok(())
    }

    fn step(&mut self) {
        let (clients, servers) = (&mut self.clients, &mut self.servers);
        self.wires.step(|[client_nic, server_nic], now_ns| {
            clients
                .iter_mut()
                .for_each(|client| client.act(client_nic, now_ns));
            servers
                .iter_mut()
                .for_each(|server| server.act(server_nic, now_ns));
        });
    }
}

pub(crate) fn settings(nic: &mut SimulatedNic, policies: PolicyUse) {
    nic.write_register(registers::TABLE_BASE, 0);
    nic.write_register(registers::TIMEOUT, TIMEOUT_TICKS);
    nic.write_register(registers::TRIES_MAX, 15);
    nic.write_register(registers::CONTROL_FLOW, 0);
    if policies == PolicyUse::On {
        for rule in 0..registers::RULE_CONTROL_COUNT {
            // A range of a field that begins above its end.
            nic.write_register(registers::rule_low(rule), 1);
            nic.write_register(registers::rule_high(rule), 0);
            nic.write_register(registers::rule_control(rule), 1 | 4 | u32::from(4 * rule) << 3);
        }
        nic.write_register(registers::bucket_burst(0), u32::from(u16::MAX));
        nic.write_register(registers::bucket_period(0), 1);
    }
    nic.write_register(registers::CONTROL, CONTROL_ENABLE | CONTROL_CHECKING);
}

/// Tells a NIC of a connection, whose requests go to the flow of the same number as that from which they come.
fn open(nic: &mut SimulatedNic, config: &PairConfig, side: usize, connection: u16) {
    let token = |side: usize| (side as u32 + 1) << 24 | u32::from(connection);
    let line = ConnectionLine {
        role: [ConnectionRole::Client, ConnectionRole::Server][side],
        slots: SESSION_CALLS,
        balance: Balance::Static,
        bucket: 0,
        flows: ((connection / config.sessions) as u8, 1),
        local_token: token(side),
        remote_token: token(1 - side),
        remote_number: connection,
        payload_bytes_max: provost_nic::LINE_BYTES as u16 * 32 - 24,
        remote: ADDRESSES[1 - side],
    };
    load_connection(nic, connection, &line);
}

/// Cycles that a NIC without load adds to an RPC of 64 bytes: from a line pushed to the packet sent, and from a packet to its slot.
pub(crate) fn added_cycles() -> Result<[u64; 2], ModelUnavailable> {
    let config = PairConfig::new(
        HostInterface::ideal(FetchMode::Push),
        CallLoad::Closed { calls: 1 },
    );
    let mut pair = NicPair::new(PairConfig {
        wire_cycles: 1,
        ..config
    })?;
    let mut out = None;
    let [client, server] = &mut pair.wires.nics;
    let head = EntryHead {
        kind: EntryKind::Request,
        bytes: SMALL_BYTES as u16,
        connection: 0,
        code: 0,
        tag: 0,
        remote: 0,
    };
    let began = client.cycle();
    client.post_bus(began, BusWrite::Push(0, head.encode(true, &[7; SMALL_BYTES])));
    while out.is_none() && client.cycle() < began + STALL_CYCLES {
        client.step();
        out = client.sent();
    }
    let sent_cycles = client.cycle() - began;
    let came = server.cycle();
    if let Some(packet) = out {
        server.inject(WirePacket {
            remote: ADDRESSES[0],
            ..packet
        });
    }
    let slot = pair.config.shape(0).receive_base();
    while !EntryHead::phase(&server.read_line(slot)) && server.cycle() < came + STALL_CYCLES {
        server.step();
    }
    Ok([sent_cycles, server.cycle() - came])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pair, or `None` where there is no model of the NIC.
    fn pair(config: PairConfig) -> Option<NicPair> {
        match NicPair::new(config) {
            Ok(pair) => Some(pair),
            Err(reason) => {
                provost_skip::missing("a model of the NIC", &reason.to_string());
                None
            }
        }
    }

    #[test]
    fn a_core_is_as_fast_as_its_interface_was_solved_for() {
        let all = [
            (HostInterface::doorbell(1), 4.3),
            (HostInterface::doorbell(3), 7.9),
            (HostInterface::coherent(1), 8.1),
            (HostInterface::coherent(4), 12.4),
        ];
        for (interface, mrps) in all {
            let batch = interface.batch as usize;
            let load = CallLoad::Closed {
                calls: NIC_CALLS / batch * batch,
            };
            let Some(mut pair) = pair(PairConfig::new(interface, load)) else {
                return;
            };
            let found = pair.run(500, 2_000).expect("calls end");
            assert_eq!((found.failed, found.resent), (0, 0));
            assert!(
                (found.mrps() / mrps - 1.0).abs() < 0.05,
                "{} instead of {mrps}",
                found.mrps()
            );
        }
    }

    #[test]
    fn a_run_replays_exactly_and_waits_longer_under_more_load() {
        let run = |mean_ns| {
            let load = CallLoad::Open { mean_ns };
            let found = pair(PairConfig::new(HostInterface::coherent(1), load))?.run(200, 1_000);
            let found = found.expect("calls end");
            Some((found.cycles, found.p50_us()))
        };
        let (Some(light), Some(again), Some(heavy)) = (run(1_000.0), run(1_000.0), run(135.0)) else {
            return;
        };
        assert_eq!(light, again);
        assert!(heavy.1 > light.1, "{heavy:?} {light:?}");
    }

    #[test]
    fn every_size_and_every_interface_carries_calls_on_all_flows() {
        for interface in [
            HostInterface::push(),
            HostInterface::doorbell(3),
            HostInterface::coherent(4),
        ] {
            for payload_bytes in [SMALL_BYTES, 1000, 2024] {
                let load = CallLoad::Closed {
                    calls: interface.batch as usize,
                };
                let config = PairConfig {
                    flows: 8,
                    content: CallContent::Echo(payload_bytes),
                    policies: PolicyUse::On,
                    ..PairConfig::new(interface.clone(), load)
                };
                let Some(mut pair) = pair(config) else {
                    return;
                };
                let found = pair.run(0, 200).expect("calls end");
                assert_eq!(found.failed, 0);
                assert!(found.hits > 0 && found.cycles > 0);
            }
        }
    }

    #[test]
    fn a_connection_that_is_not_cached_is_fetched_and_costs_time() {
        let mean_us = |sessions| {
            let config = PairConfig {
                sessions,
                ..PairConfig::new(HostInterface::coherent(1), CallLoad::Closed { calls: 1 })
            };
            let found = pair(config)?.run(200, 200).expect("calls end");
            Some((found.latencies.report(1.0, 0).mean_us, found.misses))
        };
        let (Some((few_us, few)), Some((many_us, many))) = (mean_us(64), mean_us(200)) else {
            return;
        };
        assert_eq!(few, 0, "as many as the cache has lines are all found");
        assert!(
            many > 100 && many_us > few_us,
            "{many} misses, {many_us} us and {few_us} us"
        );
    }

    /// Two tenants share both NICs, each with a flow. One makes twice as many calls as its flow may have, of 64 bytes or of 2 KB; the other's rate
    /// and p99 are those that it has beside a tenant that says nothing, within a tenth.
    #[test]
    fn a_flooding_flow_leaves_the_other_its_rate_and_its_p99() {
        for payload_bytes in [SMALL_BYTES, LARGE_BYTES] {
            for interface in [HostInterface::coherent(4), HostInterface::doorbell(3)] {
                if !is_left_alone(&interface, payload_bytes) {
                    return;
                }
            }
        }
    }

    /// Bytes of payload of the largest packet.
    const LARGE_BYTES: usize = 32 * provost_nic::LINE_BYTES - 24;

    /// Checks one interface beside floods of these calls; whether there was a model to check.
    fn is_left_alone(interface: &HostInterface, payload_bytes: usize) -> bool {
        let beside = |calls| {
            let mean_ns = 2.0 * interface.call_ns();
            let load = CallLoad::Closed { calls };
            let config = PairConfig {
                flows: 2,
                neighbour: Some(NeighbourTenant { load, payload_bytes }),
                ..PairConfig::new(interface.clone(), CallLoad::Open { mean_ns })
            };
            let mut pair = pair(config)?;
            let found = pair.run(200, 4_000).expect("calls end");
            Some((found, pair.neighbour_calls()))
        };
        let (Some((alone, silent)), Some((flooded, flooding)), Some((again, _))) =
            (beside(0), beside(NIC_CALLS), beside(NIC_CALLS))
        else {
            return false;
        };
        assert_eq!((silent, alone.failed, flooded.failed), ((0, 0), 0, 0));
        // It has as many bytes carried as the other, or more.
        let flooding_bytes = flooding.0 * payload_bytes as u64;
        assert!(flooding_bytes > 4_000 * SMALL_BYTES as u64, "{flooding:?}");
        let rate = flooded.mrps() / alone.mrps();
        let p99 = flooded.p99_us() / alone.p99_us();
        println!(
            "simulated: {}, flood of {payload_bytes} bytes: rate {rate:.3}, p99 {p99:.3} of that without a flood",
            interface.name
        );
        assert!((0.99..1.01).contains(&rate) && p99 < 1.1, "{rate} {p99}");
        assert_eq!((flooded.cycles, flooded.p99_us()), (again.cycles, again.p99_us()));
        true
    }
}
