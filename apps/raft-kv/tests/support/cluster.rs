//! Three members and some clients on the simulated network. A seed determines everything.

use std::cell::RefCell;
use std::rc::Rc;

use provost_datagram::{Config, Endpoint, Event};
use provost_datagram_sim::{Application, Host, Links, Random, Simulation};
use provost_raft_kv::client::{Client, ClientConfig, ReadRoute};
use provost_raft_kv::member::{Member, MemberConfig, ReadRule};
use provost_raft_kv::operation::Operation;
use provost_raft_kv::replica::{Replica, ReplicaConfig};

use super::disk::SimulatedDisk;
use super::history::CallHistory;

pub(crate) const MEMBERS: u16 = 3;
const CLIENTS: u16 = 4;
const KEYS: u64 = 4;
const TICK_NS: u64 = 10_000_000;
pub(crate) const MS: u64 = 1_000_000;
/// How long a run may take until everybody has an answer, once nothing goes wrong any more.
const CALM_NS: u64 = 60_000 * MS;

/// What runs on a host.
pub(crate) enum HostPart {
    Member(Box<SlowReplica>),
    Client(Box<ClientWorker>),
}

/// A member whose disk takes its time.
pub(crate) struct SlowReplica {
    replica: Replica<Host, SimulatedDisk>,
    sync_ns_max: u64,
    random: Random,
    /// When the disk is done with what it was given.
    synced_at_ns: Option<u64>,
}

impl SlowReplica {
    fn idle(&mut self, endpoint: &mut Endpoint<Host>, now_ns: u64) -> Option<u64> {
        if self.replica.is_sync_due() {
            let (random, sync_ns_max) = (&mut self.random, self.sync_ns_max);
            let synced_at_ns = *self
                .synced_at_ns
                .get_or_insert_with(|| now_ns + sync_ns_max / 2 + random.below(sync_ns_max / 2 + 1));
            if now_ns < synced_at_ns {
                return Some(synced_at_ns);
            }
            self.synced_at_ns = None;
        }
        let due_ns = self.replica.idle(endpoint, now_ns);
        assert!(self.replica.failure().is_none(), "a member has stopped");
        due_ns
    }
}

impl Application for HostPart {
    fn handle(&mut self, endpoint: &mut Endpoint<Host>, now_ns: u64, event: Event<'_>) {
        match self {
            HostPart::Member(member) => member.replica.handle(endpoint, now_ns, event),
            HostPart::Client(worker) => worker.client.handle(now_ns, event),
        }
    }

    fn idle(&mut self, endpoint: &mut Endpoint<Host>, now_ns: u64) -> Option<u64> {
        match self {
            HostPart::Member(member) => member.idle(endpoint, now_ns),
            HostPart::Client(worker) => worker.idle(endpoint, now_ns),
        }
    }
}

/// A client that asks one thing after the other, and notes what it is answered.
pub(crate) struct ClientWorker {
    client: Client<Host>,
    number: usize,
    history: Rc<RefCell<CallHistory>>,
    random: Random,
    operations_left: usize,
    values: u64,
    think_ns_max: u64,
    begin_ns: Option<u64>,
    is_waiting: bool,
    workload: ClientWork,
    /// When the operation began that waits for its answer.
    asked_ns: u64,
    /// How long each operation took.
    pub(crate) took_ns: Vec<u64>,
    /// What it has last seen, to compare with.
    seen: Option<Vec<u8>>,
}

impl ClientWorker {
    fn idle(&mut self, endpoint: &mut Endpoint<Host>, now_ns: u64) -> Option<u64> {
        while let Some((_, answer)) = self.client.poll_outcome() {
            self.history.borrow_mut().answer(self.number, &answer);
            self.is_waiting = false;
            self.took_ns.push(now_ns - self.asked_ns);
            if let provost_raft_kv::operation::RequestAnswer::Value(value) = answer {
                self.seen = value;
            }
            self.begin_ns = Some(now_ns + self.random.below(self.think_ns_max));
        }
        let begin_ns = *self.begin_ns.get_or_insert(now_ns);
        if !self.is_waiting && self.operations_left > 0 && begin_ns <= now_ns {
            let operation = self.operation();
            self.history.borrow_mut().ask(self.number, &operation);
            self.client
                .submit(now_ns, 0, operation)
                .expect("nothing is under way");
            self.is_waiting = true;
            self.asked_ns = now_ns;
            self.operations_left -= 1;
        }
        let due_ns = self.client.idle(endpoint, now_ns);
        let begins = (!self.is_waiting && self.operations_left > 0).then_some(begin_ns.max(now_ns + 1));
        due_ns.into_iter().chain(begins).min()
    }

    fn operation(&mut self) -> Operation {
        let key = vec![b'a' + self.random.below(KEYS) as u8];
        self.values += 1;
        let value = format!("{}-{}", self.number, self.values).into_bytes();
        let pick = match self.workload {
            ClientWork::Mixed => self.random.below(10),
            ClientWork::Puts => 5,
        };
        match pick {
            0..5 => Operation::Get { key },
            5..8 => Operation::Put { key, value },
            _ => Operation::CompareAndSet {
                key,
                expected: self.seen.clone(),
                value,
            },
        }
    }

    fn is_done(&self) -> bool {
        self.operations_left == 0 && !self.is_waiting
    }
}

/// What clients ask the members for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientWork {
    /// All of them, everything.
    Mixed,
    /// One of them, nothing but writes.
    Puts,
}

/// What a run is like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunPlan {
    pub(crate) seed: u64,
    pub(crate) operations: usize,
    pub(crate) think_ns_max: u64,
    pub(crate) reads: ReadRule,
    pub(crate) snapshot_entries: u64,
    /// Whether clients read from members of their own.
    pub(crate) spread: bool,
    pub(crate) workload: ClientWork,
    pub(crate) links: Links,
    /// How long a disk takes to have something survive, from half of this on.
    pub(crate) sync_ns_max: u64,
}

impl RunPlan {
    pub(crate) fn of(seed: u64) -> RunPlan {
        RunPlan {
            seed,
            operations: 60,
            think_ns_max: 100 * MS,
            reads: ReadRule::Linearizable,
            snapshot_entries: 1_000_000,
            spread: false,
            workload: ClientWork::Mixed,
            links: Links::default(),
            sync_ns_max: MS / 2,
        }
    }
}

pub(crate) struct SimulatedCluster {
    pub(crate) simulation: Simulation<HostPart>,
    pub(crate) history: Rc<RefCell<CallHistory>>,
    pub(crate) random: Random,
    disks: Vec<SimulatedDisk>,
    config: Config,
    plan: RunPlan,
    restarts: u64,
}

impl SimulatedCluster {
    pub(crate) fn new(plan: RunPlan) -> SimulatedCluster {
        let config = Config {
            peer_timeout_ns: 300 * MS,
            ..Config::default()
        };
        let history = Rc::default();
        let disks: Vec<SimulatedDisk> = (0..MEMBERS).map(|_| SimulatedDisk::default()).collect();
        let members = (0..MEMBERS).map(|host| member(&plan, host, 0, disks[usize::from(host)].clone()));
        let clients = (0..CLIENTS).map(|number| client(&plan, number, &history));
        let parts = members.chain(clients).collect();
        SimulatedCluster {
            simulation: Simulation::new(plan.seed, plan.links, &config, parts),
            history,
            random: Random::new(plan.seed ^ 0x5eed),
            disks,
            config,
            plan,
            restarts: 0,
        }
    }

    pub(crate) fn replica(&self, host: Host) -> &Replica<Host, SimulatedDisk> {
        match self.simulation.application(host) {
            HostPart::Member(member) => &member.replica,
            HostPart::Client(_) => panic!("host {host} is a client"),
        }
    }

    /// How long each operation of the first client took.
    pub(crate) fn took_ns(&self) -> &[u64] {
        match self.simulation.application(MEMBERS) {
            HostPart::Client(worker) => &worker.took_ns,
            HostPart::Member(_) => panic!("members are before clients"),
        }
    }

    /// A member that leads, once there is one beside `before`.
    pub(crate) fn leader_after(&mut self, before: Option<Host>) -> Host {
        let leader = |simulation: &Simulation<HostPart>| {
            (0..MEMBERS).find(|host| match simulation.application(*host) {
                HostPart::Member(member) => Some(*host) != before && member.replica.member().is_leader(),
                HostPart::Client(_) => false,
            })
        };
        let until_ns = self.simulation.now_ns() + CALM_NS;
        self.simulation
            .run_until(until_ns, |simulation| leader(simulation).is_some());
        leader(&self.simulation).expect("a minute is enough for an election")
    }

    pub(crate) fn cut_off(&mut self, host: Host) {
        (0..MEMBERS)
            .filter(|other| *other != host)
            .for_each(|other| self.simulation.network.part(host, other, true));
    }

    pub(crate) fn heal(&mut self) {
        for one in 0..MEMBERS + CLIENTS {
            for other in 0..one {
                self.simulation.network.part(one, other, false);
            }
        }
    }

    /// The member's machine stops, loses what was not synced, and starts again.
    pub(crate) fn restart(&mut self, host: Host) {
        self.restarts += 1;
        let disk = self.disks[usize::from(host)].clone();
        disk.stop(self.random.below(101) as usize);
        let part = member(&self.plan, host, self.restarts, disk);
        self.simulation.restart(host, &self.config, part);
    }

    pub(crate) fn is_done(simulation: &Simulation<HostPart>) -> bool {
        (MEMBERS..MEMBERS + CLIENTS).all(|host| match simulation.application(host) {
            HostPart::Client(worker) => worker.is_done(),
            HostPart::Member(_) => false,
        })
    }

    /// Nothing goes wrong any more: everybody is answered, and all members come to have the same.
    pub(crate) fn settle(&mut self) {
        self.heal();
        self.simulation.network.faults = provost_datagram_sim::PacketFaults::default();
        let until_ns = self.simulation.now_ns() + CALM_NS;
        let seed = self.plan.seed;
        let done = self.simulation.run_until(until_ns, Self::is_done);
        assert!(done, "seed {seed}: not everybody was answered");
        let same = |simulation: &Simulation<HostPart>| {
            let store = |host| match simulation.application(host) {
                HostPart::Member(member) => {
                    let member = member.replica.member();
                    Some((member.applied(), member.store()))
                }
                HostPart::Client(_) => None,
            };
            (1..MEMBERS).all(|host| store(host) == store(0))
        };
        let until_ns = self.simulation.now_ns() + CALM_NS;
        assert!(
            self.simulation.run_until(until_ns, same),
            "seed {seed}: members differ"
        );
    }

    pub(crate) fn assert_linearizable(&self) {
        let wrong = self.history.borrow().not_linearizable();
        assert!(
            wrong.is_empty(),
            "seed {}: not linearizable: {wrong:?}",
            self.plan.seed
        );
    }
}

fn member(plan: &RunPlan, host: Host, restarts: u64, disk: SimulatedDisk) -> HostPart {
    let config = MemberConfig {
        id: u64::from(host) + 1,
        members: (1..=u64::from(MEMBERS)).collect(),
        reads: plan.reads,
        snapshot_entries: plan.snapshot_entries,
        seed: plan.seed << 16 | restarts << 8 | u64::from(host),
    };
    let others = (0..MEMBERS).filter(|other| *other != host);
    let config_replica = ReplicaConfig {
        peers: others.map(|other| (u64::from(other) + 1, other)).collect(),
        key: *b"key of the tests",
        tick_ns: TICK_NS,
    };
    let member = Member::new(config, disk).expect("the disk keeps what was written");
    HostPart::Member(Box::new(SlowReplica {
        replica: Replica::new(member, config_replica),
        sync_ns_max: plan.sync_ns_max,
        random: Random::new(plan.seed << 32 | restarts << 8 | u64::from(host)),
        synced_at_ns: None,
    }))
}

fn client(plan: &RunPlan, number: u16, history: &Rc<RefCell<CallHistory>>) -> HostPart {
    let config = ClientConfig {
        members: (0..MEMBERS).map(|host| (u64::from(host) + 1, host)).collect(),
        slots: 1,
        attempt_ns: 200 * MS,
        pause_ns: 10 * MS,
        route: if plan.spread {
            ReadRoute::Member(usize::from(number % MEMBERS))
        } else {
            ReadRoute::Leader
        },
    };
    HostPart::Client(Box::new(ClientWorker {
        client: Client::new(config),
        number: usize::from(number),
        history: Rc::clone(history),
        random: Random::new(plan.seed << 8 | u64::from(number)),
        operations_left: match plan.workload {
            ClientWork::Puts if number > 0 => 0,
            _ => plan.operations,
        },
        workload: plan.workload,
        asked_ns: 0,
        took_ns: Vec::new(),
        values: 0,
        think_ns_max: plan.think_ns_max,
        begin_ns: None,
        is_waiting: false,
        seen: None,
    }))
}
