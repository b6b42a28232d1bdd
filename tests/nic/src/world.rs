//! Hosts, and the wire between them.

use std::collections::BTreeMap;

use provost_datagram::{Call, Checking, Config, Endpoint, Event, Mark, MsgBuf, SessionId};
use provost_datagram_sim::PacketNetwork;
use provost_nic::{Balance, Board, FetchMode, FlowShape, MessageAreas, registers};
use provost_nic_host::{HostConfig, HostError, HostEvent, NicHost};
use provost_nic_model::{HostTiming, ModelUnavailable, NicShape, SimulatedNic, WirePacket};

use crate::random::SeededRandom;
use crate::traffic::{CallPattern, ClientRecord, ServerRecord};

/// Nanoseconds of a cycle.
const CYCLE_NS: u64 = 5;
/// Cycles between two looks of a host at its rings.
const POLL_CYCLES: u64 = 32;
/// Cycles that a packet travels.
const LATENCY_CYCLES: u64 = 100;

/// What a host has for a transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostKind {
    Nic,
    /// The datagram transport in software.
    Software,
}

/// What goes wrong on the wire, each in parts per thousand of the packets.
#[derive(Clone, Copy, Debug, Default)]
pub struct WireFaults {
    pub loss: u32,
    pub duplication: u32,
    pub reordering: u32,
    pub corruption: u32,
}

/// What a world consists of.
#[derive(Clone, Debug)]
pub struct WorldConfig {
    pub seed: u64,
    /// The client, and the server.
    pub hosts: [HostKind; 2],
    pub faults: WireFaults,
    /// Sessions of the client.
    pub sessions: usize,
    /// What calls look like.
    pub pattern: CallPattern,
    /// What each NIC's host is told.
    pub nic: [HostConfig; 2],
    /// How long host memory takes.
    pub timing: HostTiming,
}

/// The configuration of a NIC's host: two flows that call and serve, slots of 1 KiB.
#[must_use]
pub fn nic_config(fetch: FetchMode) -> HostConfig {
    let flow = |flow: u8| FlowShape {
        flow,
        base: 4096 + u32::from(flow) * 4096,
        slots_log2: 6,
        slot_lines_log2: 4,
        fetch,
        calls_max: 40,
    };
    HostConfig {
        flows: vec![flow(0), flow(1)],
        serving: (0, 2),
        balance: Balance::RoundRobin,
        table_base: 0,
        areas: None,
        sessions_max: 128,
        packet_bytes_max: 1024,
        checking: Checking::Packets,
        // 40 us, so that losses do not make the simulation long.
        timeout_ticks: 625,
        tries_max: 15,
        handshake_timeout_ns: 50_000,
        idle_ns_min: u64::MAX,
        secret: [1, 2],
    }
}

/// The same, with areas for messages of up to seven packets.
#[must_use]
pub fn nic_config_with_areas(fetch: FetchMode) -> HostConfig {
    HostConfig {
        sessions_max: 8,
        areas: Some(MessageAreas {
            base: 16_384,
            lines_log2: 7,
        }),
        ..nic_config(fetch)
    }
}

enum WorldHost {
    Nic(Box<(SimulatedNic, NicHost)>),
    Software(Box<Endpoint<u64>>),
}

/// A client, a server, and the wire.
pub struct World {
    config: WorldConfig,
    cycle: u64,
    hosts: Vec<WorldHost>,
    random: SeededRandom,
    /// Packets on their way, by the cycle in which they arrive.
    wire: BTreeMap<(u64, u64), (usize, WirePacket)>,
    packets: u64,
    /// The datagram transport's simulator, if that is between the hosts.
    pub network: Option<PacketNetwork>,
    /// The packets that were sent, and by whom, from when on somebody wants to see them.
    pub captured: Option<Vec<(usize, Vec<u8>)>>,
    turn: usize,
    sessions: Vec<SessionId>,
    ended: usize,
    free: Vec<usize>,
    session_of_call: BTreeMap<u64, usize>,
    /// What the client saw.
    pub client: ClientRecord,
    /// What the server saw.
    pub server: ServerRecord,
    /// Faults that the wire made: lost, doubled, delayed, damaged.
    pub faults_made: [u64; 4],
}

impl World {
    /// A world, in which the client asks for its sessions.
    ///
    /// # Errors
    /// If there is no model of the NIC.
    ///
    /// # Panics
    /// If a NIC does not start.
    pub fn new(config: WorldConfig) -> Result<World, ModelUnavailable> {
        World::of_shapes(config, [NicShape::Standard; 2])
    }

    /// The same, with NICs of these shapes.
    ///
    /// # Errors
    /// If there is no model of one.
    ///
    /// # Panics
    /// If a NIC does not start.
    pub fn of_shapes(config: WorldConfig, shapes: [NicShape; 2]) -> Result<World, ModelUnavailable> {
        let mut hosts = Vec::new();
        for (side, kind) in config.hosts.iter().enumerate() {
            hosts.push(match kind {
                HostKind::Nic => {
                    let mut nic = SimulatedNic::of_shape(shapes[side], 1 << 15, config.timing)?;
                    let host = NicHost::start(&mut nic, config.nic[side].clone()).expect("the NIC starts");
                    WorldHost::Nic(Box::new((nic, host)))
                }
                HostKind::Software => WorldHost::Software(Box::new(software(side, config.pattern.bytes_max))),
            });
        }
        let mut world = World {
            random: SeededRandom::new(config.seed),
            cycle: 0,
            hosts,
            wire: BTreeMap::new(),
            packets: 0,
            network: None,
            captured: None,
            turn: 0,
            sessions: Vec::new(),
            ended: 0,
            free: Vec::new(),
            session_of_call: BTreeMap::new(),
            client: ClientRecord::default(),
            server: ServerRecord::default(),
            faults_made: [0; 4],
            config,
        };
        for _ in 0..world.config.sessions {
            let now_ns = world.now_ns();
            match &mut world.hosts[0] {
                WorldHost::Nic(it) => drop(it.1.connect(now_ns, 1).expect("there is room")),
                WorldHost::Software(endpoint) => drop(endpoint.connect(now_ns, 1).expect("there is room")),
            }
        }
        Ok(world)
    }

    fn now_ns(&self) -> u64 {
        1_000_000 + self.cycle * CYCLE_NS
    }

    #[must_use]
    pub fn cycle(&self) -> u64 {
        self.cycle
    }

    /// Sessions of the client that are open.
    #[must_use]
    pub fn sessions_open(&self) -> usize {
        self.sessions.len() - self.ended
    }

    /// A counter of a host's NIC.
    ///
    /// # Panics
    /// If the host has none.
    pub fn counter(&mut self, side: usize, name: registers::CounterName) -> u32 {
        match &mut self.hosts[side] {
            WorldHost::Nic(it) => it.0.read_register(registers::counter(name as u16)),
            WorldHost::Software(_) => panic!("host {side} has no NIC"),
        }
    }

    /// The NIC of a host, if it has one.
    #[must_use]
    pub fn nic(&self, side: usize) -> Option<&SimulatedNic> {
        match &self.hosts[side] {
            WorldHost::Nic(it) => Some(&it.0),
            WorldHost::Software(_) => None,
        }
    }

    /// Writes a register of a host's NIC.
    ///
    /// # Panics
    /// If the host has none.
    pub fn write_register(&mut self, side: usize, address: u16, value: u32) {
        match &mut self.hosts[side] {
            WorldHost::Nic(it) => it.0.write_register(address, value),
            WorldHost::Software(_) => panic!("host {side} has no NIC"),
        }
    }

    /// Runs until all sessions are open.
    ///
    /// # Panics
    /// If that takes longer than anything explains.
    pub fn connect(&mut self) {
        let until = self.cycle + 50_000_000;
        while self.sessions.len() < self.config.sessions {
            self.step();
            assert!(
                self.cycle < until,
                "only {} sessions are open",
                self.sessions.len()
            );
        }
    }

    /// Makes calls with numbers from the last on, as many at a time as slots allow, until so many have ended.
    ///
    /// # Panics
    /// If nothing ends for longer than anything explains.
    pub fn call(&mut self, calls: u64) {
        let until = self.client.made + calls;
        let (mut ended_before, mut since) = (0, self.cycle);
        loop {
            if self.cycle.is_multiple_of(POLL_CYCLES) {
                self.begin_calls(until);
            }
            self.step();
            let ended = self.calls_ended();
            if ended == until {
                return;
            }
            if ended != ended_before {
                (ended_before, since) = (ended, self.cycle);
            }
            assert!(
                self.cycle - since < 20_000_000,
                "nothing ends any more: {ended} of {until} calls have"
            );
        }
    }

    /// Opens the sessions and makes so many calls; each is executed once and ends well once.
    ///
    /// # Panics
    /// If that is not so.
    pub fn calls_end_well(&mut self, calls: u64) {
        self.connect();
        self.call(calls);
        assert_eq!(self.client.failed, BTreeMap::default());
        assert_eq!(self.client.completed.len() as u64, calls);
        assert!(self.client.completed.values().all(|times| *times == 1));
        assert_eq!(self.server.executed.len() as u64, calls);
        assert!(self.server.executed.values().all(|times| *times == 1));
    }

    /// Begins as many calls as slots allow, so many at most.
    pub fn begin(&mut self, calls: u64) {
        self.begin_calls(self.client.made + calls);
    }

    fn calls_ended(&self) -> u64 {
        self.client.completed.len() as u64
            + self.client.failed.values().sum::<u64>()
            + self.client.answered_by_nic.values().sum::<u64>()
    }

    fn begin_calls(&mut self, until: u64) {
        let now_ns = self.now_ns();
        // In turns, so that none goes without when not all slots can be used.
        self.turn = (self.turn + 1) % self.sessions.len().max(1);
        for at in (self.turn..self.sessions.len()).chain(0..self.turn) {
            while self.free[at] > 0 && self.client.made < until {
                let tag = self.client.made;
                let request = self.config.pattern.request(tag);
                let method = self.config.pattern.method(tag);
                match &mut self.hosts[0] {
                    WorldHost::Nic(it) => {
                        let (nic, host) = &mut **it;
                        match host.call(nic, self.sessions[at], tag, method, &request) {
                            Ok(()) => {}
                            Err(HostError::Ring(_) | HostError::Busy) => return,
                            Err(error) => panic!("call {tag}: {error}"),
                        }
                    }
                    WorldHost::Software(endpoint) => {
                        let call = Call {
                            method,
                            tag,
                            request: MsgBuf::from_slice(&request),
                            response: MsgBuf::with_capacity(self.config.pattern.bytes_max),
                        };
                        endpoint
                            .call(now_ns, self.sessions[at], call)
                            .expect("a slot is free");
                    }
                }
                self.free[at] -= 1;
                self.session_of_call.insert(tag, at);
                self.client.made += 1;
            }
        }
    }

    /// Asks for the end of all sessions, and runs until they have ended.
    ///
    /// # Panics
    /// If that takes longer than anything explains.
    pub fn disconnect(&mut self) {
        let now_ns = self.now_ns();
        for session in self.sessions.clone() {
            match &mut self.hosts[0] {
                WorldHost::Nic(it) => it.1.disconnect(&mut it.0, now_ns, session).expect("it is open"),
                WorldHost::Software(endpoint) => endpoint.disconnect(now_ns, session),
            }
        }
        let until = self.cycle + 50_000_000;
        while self.sessions_open() > 0 {
            self.step();
            assert!(self.cycle < until, "{} sessions do not end", self.sessions_open());
        }
    }

    pub fn step(&mut self) {
        self.deliver();
        for side in 0..self.hosts.len() {
            let mut sent = Vec::new();
            let polls = self.cycle.is_multiple_of(POLL_CYCLES);
            let now_ns = self.now_ns();
            let mut events = Vec::new();
            match &mut self.hosts[side] {
                WorldHost::Nic(it) => {
                    let (nic, host) = &mut **it;
                    if polls {
                        host.poll(nic, now_ns).expect("the NIC answers");
                        events.extend(std::iter::from_fn(|| host.poll_event()));
                    }
                    nic.step();
                    sent.extend(std::iter::from_fn(|| nic.sent()));
                }
                WorldHost::Software(endpoint) => {
                    if polls {
                        endpoint.handle_timers(now_ns);
                    }
                }
            }
            for event in events {
                self.handle(side, event);
            }
            if polls {
                self.poll_software(side, &mut sent);
            }
            for packet in sent {
                self.send(side, packet);
            }
        }
        self.cycle += 1;
    }

    /// The next packet that has arrived, and at which host.
    fn arrived(&mut self) -> Option<(usize, WirePacket)> {
        let now_ns = self.now_ns();
        if let Some(network) = &mut self.network {
            return network.arrived(now_ns).map(|packet| {
                let remote = packet.from.into();
                let bytes = packet.bytes;
                (usize::from(packet.to), WirePacket { remote, bytes })
            });
        }
        let entry = self.wire.first_entry()?;
        (entry.key().0 <= self.cycle).then(|| entry.remove())
    }

    fn deliver(&mut self) {
        while let Some((to, packet)) = self.arrived() {
            let now_ns = self.now_ns();
            match &mut self.hosts[to] {
                WorldHost::Nic(it) => it.0.inject(packet),
                WorldHost::Software(endpoint) => {
                    let event = endpoint.receive(now_ns, packet.remote, Mark::None, &packet.bytes);
                    if let Some(event) = event {
                        let mut it = Software {
                            endpoint,
                            side: to,
                            now_ns,
                        };
                        it.handle(
                            event,
                            &self.config.pattern,
                            &mut self.client,
                            &mut self.server,
                            &mut self.sessions,
                            &mut self.free,
                            &mut self.ended,
                            &mut self.session_of_call,
                        );
                    }
                }
            }
        }
    }

    fn poll_software(&mut self, side: usize, sent: &mut Vec<WirePacket>) {
        let now_ns = self.now_ns();
        let WorldHost::Software(endpoint) = &mut self.hosts[side] else {
            return;
        };
        loop {
            while let Some(event) = endpoint.poll_event() {
                Software {
                    endpoint,
                    side,
                    now_ns,
                }
                .handle(
                    event,
                    &self.config.pattern,
                    &mut self.client,
                    &mut self.server,
                    &mut self.sessions,
                    &mut self.free,
                    &mut self.ended,
                    &mut self.session_of_call,
                );
            }
            let packets = endpoint.transmit(now_ns, 64, |to, head, payload| {
                sent.push(WirePacket {
                    remote: to,
                    bytes: [head, payload].concat(),
                });
            });
            if packets == 0 {
                return;
            }
        }
    }

    fn handle(&mut self, side: usize, event: HostEvent) {
        let WorldHost::Nic(it) = &mut self.hosts[side] else {
            return;
        };
        let (nic, host) = &mut **it;
        match event {
            HostEvent::Connected(session) => {
                self.sessions.push(session);
                self.free.push(host.free_slots(session).into());
            }
            HostEvent::Ended(_) if side == 0 => self.ended += 1,
            HostEvent::Request {
                request,
                method,
                flow,
                payload,
                ..
            } => {
                let (status, response) = self.server.execute(&self.config.pattern, method, flow, &payload);
                host.respond(nic, request, status, &response);
            }
            HostEvent::Completed { tag, outcome } => {
                let at = self.session_of_call.remove(&tag).expect("a call ends once");
                self.free[at] += 1;
                match outcome {
                    // What the server's NIC answers itself has no payload; no response here is empty.
                    Ok((status, response)) if response.is_empty() => {
                        *self.client.answered_by_nic.entry(status).or_default() += 1;
                    }
                    Ok((status, response)) => {
                        self.client.complete(&self.config.pattern, tag, status, &response)
                    }
                    Err(error) => *self.client.failed.entry(error.to_string()).or_default() += 1,
                }
            }
            _ => {}
        }
    }

    fn send(&mut self, from: usize, packet: WirePacket) {
        let to = packet.remote as usize;
        let mut bytes = packet.bytes;
        if let Some(captured) = &mut self.captured {
            captured.push((from, bytes.clone()));
        }
        let now_ns = self.now_ns();
        if let Some(network) = &mut self.network {
            return network.send(now_ns, (from as u16, to as u16), bytes);
        }
        let faults = self.config.faults;
        if self.random.chance(faults.loss) {
            self.faults_made[0] += 1;
            return;
        }
        let mut copies = 1;
        if self.random.chance(faults.duplication) {
            self.faults_made[1] += 1;
            copies = 2;
        }
        if self.random.chance(faults.corruption) {
            self.faults_made[3] += 1;
            let at = self.random.below(bytes.len() as u64) as usize;
            bytes[at] ^= 1 + self.random.below(255) as u8;
        }
        for _ in 0..copies {
            let mut at = self.cycle + LATENCY_CYCLES;
            if self.random.chance(faults.reordering) {
                self.faults_made[2] += 1;
                at += self.random.below(4000);
            }
            self.packets += 1;
            let packet = WirePacket {
                remote: from as u64,
                bytes: bytes.clone(),
            };
            self.wire.insert((at, self.packets), (to, packet));
        }
    }
}

fn software(side: usize, bytes_max: usize) -> Endpoint<u64> {
    Endpoint::new(Config {
        packet_bytes_max: 1024,
        checking: Checking::Packets,
        slots: 8,
        // Enough for as many calls as there are slots, each of several packets.
        credits: 8 * bytes_max.div_ceil(1000) as u16,
        message_bytes_max: bytes_max.max(1000) as u32,
        secret: [side as u64 + 11, 12],
        timeout_ns_initial: 100_000,
        timeout_ns_min: 50_000,
        timeout_ns_max: 2_000_000,
        ..Config::default()
    })
    .expect("the configuration is one to work with")
}

struct Software<'w> {
    endpoint: &'w mut Endpoint<u64>,
    side: usize,
    now_ns: u64,
}

impl Software<'_> {
    #[expect(
        clippy::too_many_arguments,
        reason = "the parts of the world that are not borrowed already"
    )]
    fn handle(
        &mut self,
        event: Event<'_>,
        pattern: &CallPattern,
        client: &mut ClientRecord,
        server: &mut ServerRecord,
        sessions: &mut Vec<SessionId>,
        free: &mut Vec<usize>,
        ended: &mut usize,
        session_of_call: &mut BTreeMap<u64, usize>,
    ) {
        match event {
            Event::Connected(session) => {
                sessions.push(session);
                free.push(8);
            }
            Event::Ended(..) if self.side == 0 => *ended += 1,
            Event::Request {
                handle,
                method,
                payload,
            } => {
                let (status, response) = server.execute(pattern, method, 0, &payload);
                self.endpoint
                    .respond(self.now_ns, handle, status, MsgBuf::from_slice(&response))
                    .expect("the request waits");
            }
            Event::Completed(completion) => {
                let tag = completion.tag;
                free[session_of_call.remove(&tag).expect("a call ends once")] += 1;
                match completion.outcome {
                    Ok(status) if completion.response.is_empty() => {
                        *client.answered_by_nic.entry(status).or_default() += 1;
                    }
                    Ok(status) => client.complete(pattern, tag, status, &completion.response),
                    Err(error) => *client.failed.entry(error.to_string()).or_default() += 1,
                }
            }
            _ => {}
        }
    }
}
