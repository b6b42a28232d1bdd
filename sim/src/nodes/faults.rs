//! What goes wrong in a world of nodes, when.

use provost_conformance::Random;
use provost_conformance::simulated::{PipeHandle, Setup, Weather};
use provost_datapath::Nanos;
use provost_frontend::AppRole;
use provost_session::handshake::{Encoding, Limits};

use super::NodesWorld;
use crate::outcome::{CallFate, ConnectionCourse, Memory};
use crate::restart::Restart;
use crate::sabotage::Sabotage;

/// How long a silent peer is waited for, in simulated nanoseconds.
const KEEPALIVE_NS: u64 = 80_000_000;
/// The longest time for which a carrier carries nothing, in nanoseconds.
const STALL_NS_MAX: u64 = 400_000_000;
/// How long two nodes may not reach each other, in simulated nanoseconds: keepalives bear some of that.
const PARTITION_NS_MAX: u64 = 150_000_000;
/// How long a stall may take that keepalives bear, with a hot restart beside it.
const SHORT_STALL_NS_MAX: u64 = 2_000_000;

/// How the two ends of a connection are joined.
pub(super) enum NodeRoute {
    WithinNode,
    /// Over a carrier that behaves as it pleases.
    Network(PipeHandle, Setup),
}

/// The source of faults.
pub(super) struct FaultSource {
    random: Random,
    next_at: Nanos,
    /// How long it takes on average from one to the next; 0 for none at all.
    every_ns: u64,
    memory: Memory,
    partition: Option<NodePartition>,
}

/// Two nodes that do not reach each other.
#[derive(Clone, Copy)]
struct NodePartition {
    between: [usize; 2],
    until: Nanos,
}

impl NodePartition {
    fn divides(&self, nodes: [usize; 2]) -> bool {
        self.between == nodes || self.between == [nodes[1], nodes[0]]
    }
}

impl FaultSource {
    pub(super) fn new(seed: u64, severity: u64, memory: Memory, now: Nanos) -> FaultSource {
        let every_ns = [0, 40_000_000, 10_000_000, 3_000_000][severity as usize % 4];
        let mut faults = FaultSource {
            random: Random::new(seed),
            next_at: now,
            every_ns,
            memory,
            partition: None,
        };
        faults.schedule(now);
        faults
    }

    pub(super) fn next_at(&self) -> Nanos {
        self.next_at
    }

    fn schedule(&mut self, now: Nanos) {
        self.next_at = match self.every_ns {
            0 => Nanos::MAX,
            every => now + 1 + self.random.below(2 * every),
        };
    }

    /// A new connection: how its ends are joined, and what may befall it.
    pub(super) fn new_route(&mut self, nodes: [usize; 2], now: Nanos) -> (NodeRoute, CallFate) {
        let random = &mut self.random;
        let mut fate = CallFate {
            memory: self.memory,
            course: ConnectionCourse::Fair,
        };
        if nodes[0] == nodes[1] && !random.one_in(3) {
            return (NodeRoute::WithinNode, fate);
        }
        let mut weather = weather(random);
        if self.every_ns != 0 && random.one_in(10) {
            weather.flip_one_in = 200;
            fate.course = ConnectionCourse::Damaged;
        }
        let setup = Setup {
            encoding: if random.one_in(2) {
                Encoding::Native
            } else {
                Encoding::Protobuf
            },
            limits: Limits::default(),
            keepalive_interval_ns: KEEPALIVE_NS,
            keepalive_timeout_ns: KEEPALIVE_NS,
        };
        let (pipe, course) = self.new_carrier(nodes, weather, now);
        fate.course = fate.course.max(course);
        (NodeRoute::Network(pipe, setup), fate)
    }

    /// A carrier to which a connection migrates. It damages nothing: calls may have begun that have no deadline.
    pub(super) fn other_carrier(&mut self, nodes: [usize; 2], now: Nanos) -> (PipeHandle, ConnectionCourse) {
        let weather = weather(&mut self.random);
        self.new_carrier(nodes, weather, now)
    }

    fn new_carrier(
        &mut self,
        nodes: [usize; 2],
        weather: Weather,
        now: Nanos,
    ) -> (PipeHandle, ConnectionCourse) {
        let pipe = PipeHandle::new(self.random.number(), weather);
        let partition = self.partition.filter(|partition| partition.divides(nodes));
        match partition {
            Some(partition) if partition.until > now => {
                pipe.stall_until(partition.until);
                (pipe, ConnectionCourse::Troubled)
            }
            _ => (pipe, ConnectionCourse::Fair),
        }
    }
}

/// How a carrier behaves that damages nothing.
fn weather(random: &mut Random) -> Weather {
    match random.below(4) {
        0 => Weather::fair(),
        1 => Weather {
            piece_bytes_max: 300,
            capacity_bytes: 4_000,
            ..Weather::rough()
        },
        _ => Weather::rough(),
    }
}

impl NodesWorld {
    /// Lets go wrong what is due.
    pub(super) fn strike(&mut self) -> Result<(), String> {
        let now = self.clock.now();
        self.faults.schedule(now);
        self.report.faults += 1;
        let (blow, whom) = (self.faults.random.below(13), self.faults.random.number());
        self.trace.note(&[9, now, blow]);
        match blow {
            0 => self.hurt_carrier(whom, |pipe| pipe.break_now()),
            1 => {
                let until = now + self.faults.random.below(STALL_NS_MAX);
                self.hurt_carrier(whom, |pipe| pipe.stall_until(until));
            }
            2 => {
                let until = now + self.faults.random.below(SHORT_STALL_NS_MAX);
                self.hurt_carrier(whom, |pipe| pipe.stall_until(until));
            }
            3 => self.drain(whom),
            4 => self.close_client(whom, now),
            5 | 6 => return self.kill_some(whom),
            7 => self.divide(whom, now),
            _ => return self.begin_restart(whom, now),
        }
        Ok(())
    }

    fn hurt_carrier(&mut self, whom: u64, blow: impl FnOnce(&PipeHandle)) {
        // The younger half: the others are mostly gone.
        let count = self.pairs.len();
        let at = count / 2 + whom as usize % (count - count / 2).max(1);
        if let Some((pipe, _)) = self.pairs.get(at).and_then(|pair| pair.carrier.as_ref()) {
            blow(pipe);
            if self.options.sabotage != Some(Sabotage::UnseenFault) {
                self.worsen(at);
            }
        }
    }

    /// Something happened to a connection, and so to those that it migrated from and to.
    pub(super) fn worsen(&mut self, pair: usize) {
        let first = self.pairs[pair].first(pair);
        for (at, (pair, fate)) in self.pairs.iter().zip(&mut self.fates).enumerate() {
            if pair.first(at) == first {
                fate.worsen();
            }
        }
    }

    /// Two nodes do not reach each other for a while.
    fn divide(&mut self, whom: u64, now: Nanos) {
        let one = whom as usize % self.nodes.len();
        let partition = NodePartition {
            between: [one, (one + 1) % self.nodes.len()],
            until: now + self.faults.random.below(PARTITION_NS_MAX),
        };
        for at in 0..self.pairs.len() {
            let pair = &self.pairs[at];
            if let Some((pipe, _)) = pair.carrier.as_ref().filter(|_| partition.divides(pair.nodes)) {
                pipe.stall_until(partition.until);
                self.worsen(at);
            }
        }
        self.faults.partition = Some(partition);
    }

    /// A node asks the peers of its apps to begin nothing new.
    fn drain(&mut self, whom: u64) {
        let at = whom as usize % self.nodes.len();
        if self.restarts[at].is_some() {
            return;
        }
        let mut drained = Vec::new();
        for end in self.nodes[at].ends.values() {
            if end.spec.role == AppRole::Server {
                end.link.drain();
                end.waker.wake();
                drained.push(end.pair);
            }
        }
        drained.into_iter().for_each(|pair| self.worsen(pair));
        let now = self.clock.now();
        let runtimes = &mut self.nodes[at].runtimes;
        runtimes
            .iter_mut()
            .for_each(|runtime| runtime.look_at_doorbells(now));
    }

    fn close_client(&mut self, whom: u64, now: Nanos) {
        let at = whom as usize % self.apps.len();
        if self.apps[at].role != AppRole::Client {
            return;
        }
        if let Some(process) = &mut self.apps[at].process {
            process.close_all(now);
            let closed: Vec<usize> = process
                .connections
                .values()
                .map(|connection| connection.pair)
                .collect();
            closed.into_iter().for_each(|pair| self.worsen(pair));
        }
    }

    fn kill_some(&mut self, whom: u64) -> Result<(), String> {
        let at = whom as usize % self.apps.len();
        self.kill(at)
    }

    fn begin_restart(&mut self, whom: u64, now: Nanos) -> Result<(), String> {
        let at = whom as usize % self.nodes.len();
        if self.restarts[at].is_none() {
            let restart = Restart::begin(&mut self.nodes[at], &mut self.faults.random, now)?;
            self.restarts[at] = Some(restart);
        }
        Ok(())
    }
}
