//! A chain of services as Dagger's flight registration (ASPLOS '21, section 5): passengers check in, for which a flight, the baggage and a passport are looked
//! at side by side, the passport by a register of citizens, and then the airport's register is written. Each service has a core and a flow. Services that call
//! each other are at different hosts, so that every call goes over both NICs. What handlers take is assumed.
//!
//! ```text
//!   host 0: front end ─┐  ┌► flight, baggage, passport ─┐  ┌► airport
//!   host 1:            └► check-in ──────────┘  citizens ◄┘ └─ (check-in, when the three have answered)
//! ```

use std::collections::HashMap;

use provost_nic::{Balance, ConnectionLine, ConnectionRole, EntryKind, FlowShape, RingDriver};
use provost_nic_model::{ModelUnavailable, NicShape, SimulatedNic};

use crate::core::HostCore;
use crate::handlers::{HandlerModel, HandlerPool, HandlerThreads, HandlerTime};
use crate::interface::{CYCLE_NS, HostInterface};
use crate::pair::{NIC_CALLS, PairFigures, PolicyUse, SMALL_BYTES, settings};
use crate::parts::{CallContent, CallLoad, ClientCore, SESSION_CALLS, payload};
use crate::wires::{ADDRESSES, NicWires, STALL_CYCLES, WIRE_CYCLES, cpu_seconds, load_connection};

/// Sessions between two services: for as many calls as a NIC takes.
const SESSIONS: u16 = (NIC_CALLS / SESSION_CALLS as usize) as u16;
/// Slots of a ring, as a logarithm: more than there are calls, in either direction.
const SLOTS_LOG2: u8 = 7;
/// Where rings begin, behind the lines of connections.
const RINGS_BASE: u32 = 64;
/// Flows of a host at most.
const FLOWS_MAX: usize = 8;

/// One service: where it is, what its handler takes, and which services it calls, side by side in each step.
struct ServiceTier {
    name: &'static str,
    host: usize,
    handler_ns: f64,
    steps: &'static [&'static [&'static str]],
    /// Calls that it may have on their way.
    calls_max: u8,
}

const FRONT_END: &str = "front end";
const CHECK_IN: &str = "check-in";

/// All but the front end, whose calls are measured.
const TIERS: [ServiceTier; 6] = [
    ServiceTier {
        name: CHECK_IN,
        host: 1,
        handler_ns: 500.0,
        steps: &[&["flight", "baggage", "passport"], &["airport"]],
        calls_max: 48,
    },
    // The service that computes for long.
    ServiceTier {
        name: "flight",
        host: 0,
        handler_ns: 10_000.0,
        steps: &[],
        calls_max: 0,
    },
    ServiceTier {
        name: "baggage",
        host: 0,
        handler_ns: 500.0,
        steps: &[],
        calls_max: 0,
    },
    ServiceTier {
        name: "passport",
        host: 0,
        handler_ns: 500.0,
        steps: &[&["citizens"]],
        calls_max: 24,
    },
    // Stores, as fast as one in memory.
    ServiceTier {
        name: "citizens",
        host: 1,
        handler_ns: 100.0,
        steps: &[],
        calls_max: 0,
    },
    ServiceTier {
        name: "airport",
        host: 0,
        handler_ns: 100.0,
        steps: &[],
        calls_max: 0,
    },
];
/// Calls of the front end on their way at most.
pub(crate) const FRONT_END_CALLS: u8 = 24;

/// A request that a service has taken.
struct TierCall {
    connection: u16,
    tag: u64,
    payload: Vec<u8>,
    /// When its handler goes on.
    ready_ns: f64,
    /// Calls of this step that have not ended, and steps that have begun.
    waiting: usize,
    steps_begun: usize,
    /// Calls of the next step that have begun, if not all could.
    begun_of_step: usize,
}

/// Sessions to another service.
struct TierEdge {
    to: &'static str,
    /// Connections, with calls that each takes.
    sessions: Vec<(u16, u8)>,
}

/// A core that answers calls, when those that it makes for them have ended.
struct TierCore {
    core: HostCore,
    handlers: HandlerPool,
    tier: &'static ServiceTier,
    edges: Vec<TierEdge>,
    /// By the order of coming.
    taken: HashMap<u64, TierCall>,
    taken_count: u64,
    /// Calls that this service makes: the call they are made for, edge, and session.
    made: HashMap<u64, (u64, usize, usize)>,
    made_count: u64,
    /// Responses by connection and slot, for a client that asks again.
    answered: HashMap<(u16, u8), (u64, Vec<u8>)>,
}

impl TierCore {
    fn act(&mut self, nic: &mut SimulatedNic, now_ns: f64) {
        while self.core.free_ns <= now_ns {
            if !self.go_on(nic) && !self.take_one(nic) {
                self.core.free_ns = now_ns + CYCLE_NS;
            }
        }
    }

    /// Takes a request or a response, if one has come.
    fn take_one(&mut self, nic: &mut SimulatedNic) -> bool {
        let Some(received) = self.core.receive(nic) else {
            return false;
        };
        let head = received.head;
        if head.kind == EntryKind::Request {
            let handled = self.handlers.handle(self.taken_count, self.core.free_ns);
            self.core.free_ns = handled.polling_free_ns;
            let call = TierCall {
                connection: head.connection,
                tag: head.tag,
                payload: received.payload,
                ready_ns: handled.done_ns,
                waiting: 0,
                steps_begun: 0,
                begun_of_step: 0,
            };
            self.taken.insert(self.taken_count, call);
            self.taken_count += 1;
            return true;
        }
        if head.kind == EntryKind::Repeat {
            // The client has asked again before it had the response.
            let kept = self.answered.get(&(head.connection, slot_of(head.tag)));
            if let Some((_, payload)) = kept.filter(|(tag, _)| *tag == head.tag) {
                let entry = (EntryKind::Response, head.connection, head.tag);
                self.core.send(nic, entry, payload);
                self.core.hand_over(nic);
            }
            return true;
        }
        assert_eq!(
            head.kind,
            EntryKind::Response,
            "{}: a call failed",
            self.tier.name
        );
        assert_eq!(
            received.payload,
            payload(head.tag, SMALL_BYTES),
            "the response to a call of {}",
            self.tier.name
        );
        let (parent, edge, session) = self.made.remove(&head.tag).expect("a call ends once");
        self.edges[edge].sessions[session].1 += 1;
        let call = self
            .taken
            .get_mut(&parent)
            .expect("a call waits for those that it makes");
        call.waiting -= 1;
        call.ready_ns = call.ready_ns.max(self.core.free_ns);
        true
    }

    /// Goes on with the eldest request that can: with its next step, or its response.
    fn go_on(&mut self, nic: &mut SimulatedNic) -> bool {
        let now_ns = self.core.free_ns;
        let steps = self.tier.steps;
        let can = |call: &TierCall| {
            let is_ready = call.ready_ns <= now_ns && (call.waiting == 0 || call.begun_of_step > 0);
            is_ready && (call.steps_begun == steps.len() || self.made.len() < self.tier.calls_max.into())
        };
        let next = self
            .taken
            .iter()
            .filter(|(_, call)| can(call))
            .map(|(number, _)| *number)
            .min();
        let Some(number) = next else {
            return false;
        };
        if self.taken[&number].steps_begun == steps.len() {
            let call = self.taken.remove(&number).expect("it was found");
            let entry = (EntryKind::Response, call.connection, call.tag);
            self.core.send(nic, entry, &call.payload);
            let slot = (call.connection, slot_of(call.tag));
            self.answered.insert(slot, (call.tag, call.payload));
        } else {
            self.begin_step(nic, number);
        }
        self.core.hand_over(nic);
        true
    }

    /// Makes the calls of a step, as many as this service may have on their way.
    fn begin_step(&mut self, nic: &mut SimulatedNic, number: u64) {
        let call = self.taken.get_mut(&number).expect("it was found");
        let step = self.tier.steps[call.steps_begun];
        for to in &step[call.begun_of_step..] {
            if self.made.len() >= self.tier.calls_max.into() {
                return;
            }
            let edge = self
                .edges
                .iter()
                .position(|edge| edge.to == *to)
                .expect("every service that is called has sessions");
            let sessions = &mut self.edges[edge].sessions;
            let session = sessions
                .iter()
                .position(|(_, free)| *free > 0)
                .expect("sessions are for as many calls as there may be");
            sessions[session].1 -= 1;
            let (connection, tag) = (sessions[session].0, self.made_count);
            self.made_count += 1;
            self.made.insert(tag, (number, edge, session));
            self.core.send(
                nic,
                (EntryKind::Request, connection, tag),
                &payload(tag, SMALL_BYTES),
            );
            call.waiting += 1;
            call.begun_of_step += 1;
        }
        call.steps_begun += 1;
        call.begun_of_step = 0;
    }
}

/// The slot of a request's session, as its tag says it.
fn slot_of(tag: u64) -> u8 {
    (tag >> 32) as u8 % SESSION_CALLS
}

/// All services of the chain, both NICs, and who checks in.
pub(crate) struct ServiceChain {
    wires: NicWires,
    front_end: ClientCore,
    tiers: Vec<TierCore>,
}

/// Where a service is: its host, and its flow there. The front end has the first of host 0.
fn place(name: &str) -> (usize, u8) {
    if name == FRONT_END {
        return (0, 0);
    }
    let at = TIERS
        .iter()
        .position(|tier| tier.name == name)
        .expect("the service is one of the chain");
    let host = TIERS[at].host;
    let before = TIERS[..at].iter().filter(|tier| tier.host == host).count();
    (host, (before + usize::from(host == 0)) as u8)
}

fn shape(flow: u8, calls_max: u8, interface: &HostInterface) -> FlowShape {
    let mut shape = FlowShape {
        flow,
        base: 0,
        slots_log2: SLOTS_LOG2,
        slot_lines_log2: 0,
        fetch: interface.fetch,
        // A flow that makes none is told one.
        calls_max: calls_max.max(1),
    };
    shape.base = RINGS_BASE + u32::from(flow) * shape.lines();
    shape
}

impl ServiceChain {
    /// The chain with open sessions. The threads are those of the service that computes for long; the others run handlers where they poll.
    pub(crate) fn new(
        interface: &HostInterface,
        load: CallLoad,
        threads: HandlerThreads,
    ) -> Result<ServiceChain, ModelUnavailable> {
        let last = shape(FLOWS_MAX as u8 - 1, 1, interface);
        let nic = || {
            SimulatedNic::of_shape(
                NicShape::Wide,
                (last.base + last.lines()) as usize,
                interface.timing(),
            )
        };
        let mut nics = [nic()?, nic()?];
        let mut core_of = |name: &str, calls_max: u8| {
            let (host, flow) = place(name);
            let ring = RingDriver::start(&mut nics[host], shape(flow, calls_max, interface));
            HostCore::new(ring.expect("the shape can be"), interface.clone())
        };
        let front_end = core_of(FRONT_END, FRONT_END_CALLS);
        let cores = TIERS
            .iter()
            .map(|tier| core_of(tier.name, tier.calls_max))
            .collect::<Vec<_>>();
        nics.iter_mut().for_each(|nic| settings(nic, PolicyUse::Off));
        let mut connections = 0..RINGS_BASE as u16;
        let to_check_in = open_edge(&mut nics, &mut connections, (FRONT_END, CHECK_IN));
        let own = to_check_in.sessions.into_iter().map(|(connection, _)| connection);
        let front_end = ClientCore::new(front_end, own, load, CallContent::Echo(SMALL_BYTES), 1);
        let tiers = TIERS.iter().zip(cores).map(|(tier, core)| {
            let to = tier.steps.iter().flat_map(|step| step.iter());
            let longest = TIERS.iter().map(|tier| tier.handler_ns).fold(0.0, f64::max);
            let threads = if tier.handler_ns == longest {
                threads
            } else {
                HandlerThreads::Polling
            };
            TierCore {
                core,
                handlers: HandlerPool::new(HandlerModel {
                    threads,
                    time: HandlerTime::Same { ns: tier.handler_ns },
                }),
                tier,
                edges: to
                    .map(|to| open_edge(&mut nics, &mut connections, (tier.name, *to)))
                    .collect(),
                taken: HashMap::new(),
                taken_count: 0,
                made: HashMap::new(),
                made_count: 0,
                answered: HashMap::new(),
            }
        });
        let tiers = tiers.collect();
        let mut chain = ServiceChain {
            wires: NicWires::new(nics, WIRE_CYCLES),
            front_end,
            tiers,
        };
        chain.wires.align();
        let now_ns = chain.wires.now_ns();
        chain.front_end.start(now_ns);
        chain.tiers.iter_mut().for_each(|tier| tier.core.free_ns = now_ns);
        Ok(chain)
    }

    /// Runs until so many check-ins have ended, and measures so many more.
    pub(crate) fn run(&mut self, warmup: u64, calls: u64) -> Result<PairFigures, String> {
        self.run_until(warmup)?;
        self.front_end.latencies = Default::default();
        let (cycle, began) = (self.wires.cycle, cpu_seconds());
        self.run_until(calls)?;
        let latencies = std::mem::take(&mut self.front_end.latencies);
        Ok(PairFigures {
            calls: latencies.count(),
            cycles: self.wires.cycle - cycle,
            latencies,
            cpu_seconds: cpu_seconds() - began,
            hits: 0,
            misses: 0,
            resent: 0,
            failed: self.front_end.failed,
        })
    }

    fn run_until(&mut self, calls: u64) -> Result<(), String> {
        let ended = |chain: &ServiceChain| chain.front_end.latencies.count() + chain.front_end.failed;
        let (mut before, mut since) = (ended(self), self.wires.cycle);
        while before < calls {
            let (front_end, tiers) = (&mut self.front_end, &mut self.tiers);
            self.wires.step(|nics, now_ns| {
                front_end.act(&mut nics[0], now_ns);
                tiers
                    .iter_mut()
                    .for_each(|tier| tier.act(&mut nics[tier.tier.host], now_ns));
            });
            if ended(self) != before {
                (before, since) = (ended(self), self.wires.cycle);
            }
            if self.wires.cycle - since > STALL_CYCLES {
                return Err(format!(
                    "{before} of {calls} check-ins have ended, and no more do"
                ));
            }
        }
        Ok(())
    }
}

/// Opens sessions from one service to another, at the other host.
fn open_edge(
    nics: &mut [SimulatedNic; 2],
    connections: &mut std::ops::Range<u16>,
    (from, to): (&'static str, &'static str),
) -> TierEdge {
    let ends = [place(from), place(to)];
    let sessions = connections.take(SESSIONS.into()).map(|connection| {
        for (end, (host, flow)) in ends.into_iter().enumerate() {
            let token = |host: usize| (host as u32 + 1) << 24 | u32::from(connection);
            let line = ConnectionLine {
                role: [ConnectionRole::Client, ConnectionRole::Server][end],
                slots: SESSION_CALLS,
                balance: Balance::Static,
                bucket: 0,
                flows: (flow, 1),
                local_token: token(host),
                remote_token: token(1 - host),
                remote_number: connection,
                payload_bytes_max: SMALL_BYTES as u16,
                remote: ADDRESSES[1 - host],
            };
            load_connection(&mut nics[host], connection, &line);
        }
        (connection, SESSION_CALLS)
    });
    TierEdge {
        to,
        sessions: sessions.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every check-in is carried, by calls of every service whose bytes are all checked; it takes as long as what is on its way at least, workers of the
    /// service that computes for long raise the rate by as many as there are, and a run replays exactly.
    #[test]
    fn check_ins_go_through_every_service_and_workers_raise_their_rate() {
        let run = |calls, threads| {
            let load = CallLoad::Closed { calls };
            match ServiceChain::new(&HostInterface::coherent(1), load, threads) {
                Ok(mut chain) => Some((chain.run(0, 300).expect("check-ins end"), chain)),
                Err(reason) => {
                    provost_skip::missing("a model of the NIC", &reason.to_string());
                    None
                }
            }
        };
        let saturated = usize::from(FRONT_END_CALLS);
        let (Some((one, chain)), Some((polling, _)), Some((workers, _)), Some((again, _))) = (
            run(1, HandlerThreads::Polling),
            run(saturated, HandlerThreads::Polling),
            run(saturated, HandlerThreads::Workers(4)),
            run(saturated, HandlerThreads::Workers(4)),
        ) else {
            return;
        };
        for tier in &chain.tiers {
            assert!(
                tier.taken_count >= 300,
                "{}: {} calls",
                tier.tier.name,
                tier.taken_count
            );
        }
        // Check-in, flight and airport follow each other.
        assert!(one.p50_us() > 10.6, "{}", one.p50_us());
        assert!(
            polling.mrps() < 0.1,
            "one thread computes 10 us for each: {}",
            polling.mrps()
        );
        // The one thread also answers those who ask again, as their calls wait longer than the time-out.
        let gain = workers.mrps() / polling.mrps();
        assert!((3.0..5.0).contains(&gain), "{gain}");
        assert_eq!((workers.cycles, workers.p99_us()), (again.cycles, again.p99_us()));
    }
}
