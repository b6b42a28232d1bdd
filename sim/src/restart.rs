//! A simulated hot restart: all workers of a node freeze, their apps are saved, and other workers go on with them; or they
//! do not, and the first ones go on as if nothing had been.
//!
//! ```text
//! Freezing ──all frozen──► Frozen ──after a while──► save ──► restore ──► predecessors leave, successors adopt
//!                                                       │         │
//!                                                       └── fails ┴─► predecessors go on
//! ```

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use provost_conformance::Random;
use provost_datapath::{
    ConnectionSignals, Datapath, EngineStart, FieldReader, ForeignBytes, Nanos, NotSaved, ReceivedBlock,
    RestoreError, Restorer, SavedState,
};
use provost_frontend::{AppPort, CallQuota, PortSource, SendHeap};
use provost_runtime::{
    AdoptedApp, AdoptedConnection, AdoptedPort, AppId, ConnectionId, FittedEngine, FrozenRuntime, NewApp,
    NewConnection, Reply, RuntimeCommand, SavedApp, SavedApps, SavedAround, SavedConnection, SavedRange,
};
use provost_shm::Doorbell;
use provost_transport_local::{End, LocalTransport, SavedEnd};

use crate::app::SimSegments;
use crate::compose::{LocalPeer, TransportHandle, TransportSource};
use crate::node::{NodeEnd, SimNode, SimRuntime, ThreadState};
use crate::platform::{SimClock, SimNetwork};
use crate::policy::LedgerJudging;

/// How long a node may rest, at most, in simulated nanoseconds.
const FROZEN_NS_MAX: Nanos = 2_000_000;

/// What a hot restart is meant to come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RestartPlan {
    Succeeds,
    /// The successor dies before anything is saved.
    DiesBeforeSaving,
    /// What one app's port saved arrives damaged.
    DamagedState,
    /// The successor dies when it has restored everything.
    DiesBeforeCommit,
}

impl RestartPlan {
    pub(crate) fn draw(random: &mut Random) -> RestartPlan {
        match random.below(6) {
            0 => RestartPlan::DiesBeforeSaving,
            1 => RestartPlan::DamagedState,
            2 => RestartPlan::DiesBeforeCommit,
            _ => RestartPlan::Succeeds,
        }
    }
}

/// A hot restart that is under way.
pub(crate) struct Restart {
    plan: RestartPlan,
    replies: Vec<Answer<FrozenRuntime>>,
    frozen_until: Option<Nanos>,
    seed: u64,
}

/// An answer that a worker gives in its own time.
pub(crate) struct Answer<T>(Arc<Mutex<Option<T>>>);

impl<T: Send + 'static> Answer<T> {
    /// Where the answer will be, and what is to be given to the worker.
    pub(crate) fn new() -> (Answer<T>, Reply<T>) {
        let place = Arc::new(Mutex::new(None));
        let answer = Answer(Arc::clone(&place));
        let reply = Reply::new(move |value| {
            *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
        });
        (answer, reply)
    }

    fn is_there(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    pub(crate) fn take(&self) -> Option<T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// What came of a hot restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RestartOutcome {
    Replaced,
    WentOn,
}

impl Restart {
    /// Freezes the runtimes of the node.
    pub(crate) fn begin(node: &mut SimNode, random: &mut Random, now: Nanos) -> Result<Restart, String> {
        let mut replies = Vec::new();
        for runtime in &mut node.runtimes {
            let (answer, reply) = Answer::new();
            runtime.send(RuntimeCommand::Freeze(reply), now)?;
            replies.push(answer);
        }
        Ok(Restart {
            plan: RestartPlan::draw(random),
            replies,
            frozen_until: None,
            seed: random.number(),
        })
    }

    /// When there is something to do.
    pub(crate) fn due(&self) -> Nanos {
        match self.frozen_until {
            Some(until) => until,
            None if self.replies.iter().all(Answer::is_there) => 0,
            None => Nanos::MAX,
        }
    }

    /// Goes on when it is time; says what came of it at the end.
    pub(crate) fn go_on(
        &mut self,
        node: &mut SimNode,
        clock: &SimClock,
        network: &SimNetwork,
    ) -> Result<Option<RestartOutcome>, String> {
        let now = clock.now();
        if self.frozen_until.is_none() {
            let mut random = Random::new(self.seed);
            self.frozen_until = Some(now + random.below(FROZEN_NS_MAX));
            return Ok(None);
        }
        let frozen: Vec<FrozenRuntime> = self.replies.iter().filter_map(Answer::take).collect();
        let outcome = self.carry_out(&frozen, node, clock, network);
        match outcome {
            Ok(Some(successors)) => {
                frozen.into_iter().for_each(FrozenRuntime::leave);
                thaw(&mut node.runtimes, now)?;
                if node
                    .runtimes
                    .iter()
                    .any(|runtime| runtime.thread != ThreadState::HasEnded)
                {
                    return Err("a runtime that was to leave goes on".to_owned());
                }
                successors.take_over(node, now)?;
                Ok(Some(RestartOutcome::Replaced))
            }
            Ok(None) => {
                drop(frozen);
                thaw(&mut node.runtimes, now)?;
                Ok(Some(RestartOutcome::WentOn))
            }
            Err(error) => Err(format!("a hot restart failed: {error}")),
        }
    }

    fn carry_out(
        &self,
        frozen: &[FrozenRuntime],
        node: &mut SimNode,
        clock: &SimClock,
        network: &SimNetwork,
    ) -> Result<Option<SuccessorNodes>, String> {
        if self.plan == RestartPlan::DiesBeforeSaving {
            return Ok(None);
        }
        let heaps = node.apps.iter();
        let around = SavedAround {
            heaps: heaps.map(|(id, app)| (*id, app.send_heap.clone())).collect(),
            newest_forms: Arc::from([]),
        };
        let mut saved = Vec::new();
        for (runtime, frozen) in node.runtimes.iter_mut().zip(frozen) {
            let (answer, reply) = Answer::<io::Result<()>>::new();
            let batches = Arc::new(Mutex::new(Vec::new()));
            let taken = Arc::clone(&batches);
            let take = move |batch: SavedApps| {
                let mut apps = taken.lock().unwrap_or_else(PoisonError::into_inner);
                apps.extend(batch.apps);
                ControlFlow::Continue(())
            };
            frozen.save(around.clone(), Box::new(take), reply);
            runtime.poll(clock.now())?;
            let all = answer.take().ok_or("a frozen runtime saves nothing")?;
            all.map_err(|error| error.to_string())?;
            saved.append(&mut batches.lock().unwrap_or_else(PoisonError::into_inner));
        }
        saved.sort_by_key(|app| app.app);
        let is_damaged = self.plan == RestartPlan::DamagedState && !saved.is_empty();
        if is_damaged {
            let at = Random::new(self.seed).below(saved.len() as u64) as usize;
            let bytes = saved[at].port.len();
            saved[at].port.truncate(bytes / 2);
        }
        let restored = SuccessorNodes::restore(saved, node, clock, network, self.seed);
        match (restored, is_damaged) {
            (Ok(_), true) => Err("a damaged state was restored".to_owned()),
            (Err(_), true) => Ok(None),
            (Ok(successors), false) if self.plan == RestartPlan::Succeeds => Ok(Some(successors)),
            (Ok(_), false) => Ok(None),
            // An app's memory may be too full to be there twice: then the predecessors go on.
            (Err(error), false) if error.contains("no room") => Ok(None),
            (Err(error), false) => Err(error),
        }
    }
}

/// Lets workers find out what became of them.
fn thaw(runtimes: &mut [SimRuntime], now: Nanos) -> Result<(), String> {
    runtimes.iter_mut().try_for_each(|runtime| runtime.poll(now))
}

/// What goes on once the predecessors have left.
struct SuccessorNodes {
    runtimes: Vec<SimRuntime>,
    adopted: Vec<Vec<AdoptedApp>>,
    ends: BTreeMap<ConnectionId, NodeEnd>,
    quotas: BTreeMap<AppId, Arc<CallQuota>>,
}

/// An app of which everything is there but its connections.
struct RestoringApp {
    id: AppId,
    runtime: usize,
    port: RefCell<AppPort>,
    doorbell: Doorbell,
    waiting: provost_runtime::WaitMode,
    places: Vec<u32>,
    leaving: Option<Nanos>,
    ranges: Vec<SavedRange>,
    quota: Arc<CallQuota>,
    connections: Vec<SavedConnection>,
}

struct AppRestorer<'a> {
    app: &'a RestoringApp,
    heaps: &'a BTreeMap<AppId, SendHeap>,
}

impl Restorer for AppRestorer<'_> {
    fn block(&mut self, saved: ReceivedBlock) -> Result<ReceivedBlock, NotSaved> {
        self.app.port.borrow_mut().claim(saved)
    }

    fn foreign(&mut self, kept: u32) -> Result<ForeignBytes, NotSaved> {
        let range = self.app.ranges.get(kept as usize);
        let bytes = range.and_then(|range| self.heaps.get(&range.app)?.range(range.offset, range.bytes));
        bytes.ok_or(NotSaved::Foreign { kept })
    }
}

impl RestoringApp {
    fn begin(saved: SavedApp, node: &SimNode) -> Result<RestoringApp, String> {
        let known = node.apps.get(&saved.app).ok_or("an app that nobody knows")?;
        let source = PortSource {
            segments: Box::new(SimSegments::of_successor(&known.mailbox)),
            bytes_max: known.receive_bytes_max,
        };
        let descriptors: Vec<OwnedFd> = saved.port_descriptors;
        let port = AppPort::restore(&saved.port, descriptors, source).map_err(|error| error.to_string())?;
        Ok(RestoringApp {
            id: saved.app,
            runtime: known.runtime,
            port: RefCell::new(port),
            doorbell: Doorbell::from_ends(saved.doorbell.ok_or("an app without a doorbell")?),
            waiting: saved.waiting,
            places: saved.places,
            leaving: saved.leaving,
            ranges: saved.ranges,
            quota: Arc::new(CallQuota::new(crate::nodes::SERVER_CALLS_MAX)),
            connections: saved.connections,
        })
    }
}

impl SuccessorNodes {
    fn restore(
        saved: Vec<SavedApp>,
        node: &SimNode,
        clock: &SimClock,
        network: &SimNetwork,
        seed: u64,
    ) -> Result<SuccessorNodes, String> {
        let mut random = Random::new(seed);
        let runtimes = node
            .runtimes
            .iter()
            .map(|_| SimRuntime::new(random.number(), clock, network, &node.events));
        let runtimes = runtimes.collect::<Result<Vec<_>, _>>()?;
        let heaps: BTreeMap<AppId, SendHeap> = node
            .apps
            .iter()
            .map(|(id, app)| (*id, app.send_heap.clone()))
            .collect();
        let mut apps = saved
            .into_iter()
            .map(|app| RestoringApp::begin(app, node))
            .collect::<Result<Vec<_>, _>>()?;
        let mut ends = restored_ends(&apps, node, &runtimes)?;
        let mut local = local_transports(&apps, &ends, &heaps)?;
        for (id, transport) in &local {
            if let Some(end) = ends.get_mut(id) {
                end.transport = TransportHandle::Local(transport.handle());
            }
        }
        let quotas = apps.iter().map(|app| (app.id, Arc::clone(&app.quota))).collect();
        let mut connections: Vec<Vec<AdoptedConnection>> = Vec::new();
        for app in &mut apps {
            let own = std::mem::take(&mut app.connections);
            let restored = own.into_iter().map(|connection| {
                let end = ends.get(&connection.id).ok_or("a connection that nobody knows")?;
                let made = local.remove(&connection.id);
                restore_connection(connection, app, end, made, &heaps, node)
            });
            connections.push(restored.collect::<Result<_, _>>()?);
        }
        let mut adopted: Vec<Vec<AdoptedApp>> = runtimes.iter().map(|_| Vec::new()).collect();
        for (app, connections) in apps.into_iter().zip(connections) {
            let mut port = app.port.into_inner();
            port.end_claims();
            adopted[app.runtime].push(AdoptedApp {
                new: AdoptedPort::App(Box::new(NewApp {
                    app: app.id,
                    port,
                    doorbell: app.doorbell,
                    waiting: app.waiting,
                })),
                places: app.places,
                stuck: None,
                leaving: app.leaving,
                connections,
            });
        }
        Ok(SuccessorNodes {
            runtimes,
            adopted,
            ends,
            quotas,
        })
    }

    fn take_over(self, node: &mut SimNode, now: Nanos) -> Result<(), String> {
        node.runtimes = self.runtimes;
        node.ends = self.ends;
        for (id, quota) in self.quotas {
            if let Some(app) = node.apps.get_mut(&id) {
                app.quota = quota;
            }
        }
        for (runtime, apps) in node.runtimes.iter_mut().zip(self.adopted) {
            runtime.send(RuntimeCommand::Adopt(Box::new(apps)), now)?;
        }
        Ok(())
    }
}

/// What the control plane knows of each end, for other workers.
fn restored_ends(
    apps: &[RestoringApp],
    node: &SimNode,
    runtimes: &[SimRuntime],
) -> Result<BTreeMap<ConnectionId, NodeEnd>, String> {
    let mut ends = BTreeMap::new();
    for app in apps {
        for connection in &app.connections {
            let known = node.ends.get(&connection.id);
            let known = known.ok_or_else(|| format!("connection {} is not known", connection.id))?;
            let mut fields = FieldReader::new("link", &connection.link);
            let link = ConnectionSignals::restore(&mut fields).map_err(|error| error.to_string())?;
            let mut spec = known.spec.clone();
            spec.quota = Arc::clone(&app.quota);
            let end = NodeEnd {
                pair: known.pair,
                app: app.id,
                spec,
                link: Arc::new(link),
                waker: runtimes[app.runtime].handle.new_waker(),
                transport: known.transport.clone(),
                tags: connection.tags.iter().map(|saved| saved.tag).collect(),
            };
            ends.insert(connection.id, end);
        }
    }
    Ok(ends)
}

fn transport_state(connection: &SavedConnection) -> Option<&SavedState> {
    let engine = connection.datapath.engines.last()?;
    Some(&engine.state).filter(|state| state.kind == provost_transport_local::KIND)
}

/// Both ends of a connection within the node are made together.
fn local_transports(
    apps: &[RestoringApp],
    ends: &BTreeMap<ConnectionId, NodeEnd>,
    heaps: &BTreeMap<AppId, SendHeap>,
) -> Result<HashMap<ConnectionId, LocalTransport>, String> {
    let mut waiting: BTreeMap<u64, (ConnectionId, &RestoringApp, &SavedState, bool)> = BTreeMap::new();
    let mut made = HashMap::new();
    let text = |error: RestoreError| error.to_string();
    let end_of = |id: ConnectionId| {
        let end = ends.get(&id).ok_or("an end that is not there")?;
        Ok::<_, String>(End {
            link: Arc::clone(&end.link),
            wake: Arc::new(LocalPeer(Arc::clone(&end.waker))),
        })
    };
    for app in apps {
        for connection in &app.connections {
            let Some(state) = transport_state(connection) else {
                continue;
            };
            let (pair, is_client) = provost_transport_local::saved_pair(state).map_err(text)?;
            let this = (connection.id, app, state, is_client);
            let Some(other) = waiting.remove(&pair) else {
                waiting.insert(pair, this);
                continue;
            };
            let (client, server) = if is_client { (this, other) } else { (other, this) };
            let (mut at_client, mut at_server) = (
                AppRestorer { app: client.1, heaps },
                AppRestorer { app: server.1, heaps },
            );
            let restored = provost_transport_local::restore_pair(
                SavedEnd {
                    state: client.2,
                    end: end_of(client.0)?,
                    restorer: &mut at_client,
                },
                SavedEnd {
                    state: server.2,
                    end: end_of(server.0)?,
                    restorer: &mut at_server,
                },
            );
            let (at_client, at_server) = restored.map_err(text)?;
            made.insert(client.0, at_client);
            made.insert(server.0, at_server);
        }
    }
    for (id, app, state, _) in waiting.into_values() {
        let alone = SavedEnd {
            state,
            end: end_of(id)?,
            restorer: &mut AppRestorer { app, heaps },
        };
        made.insert(id, provost_transport_local::restore_alone(alone).map_err(text)?);
    }
    Ok(made)
}

fn restore_connection(
    connection: SavedConnection,
    app: &RestoringApp,
    end: &NodeEnd,
    made: Option<LocalTransport>,
    heaps: &BTreeMap<AppId, SendHeap>,
    node: &SimNode,
) -> Result<AdoptedConnection, String> {
    let mut transport = Some(match made {
        Some(made) => TransportSource::Made(made),
        None => TransportSource::Saved(end.transport.clone()),
    });
    let mut starts: Vec<EngineStart> = Vec::new();
    let mut fitted: Vec<FittedEngine> = Vec::new();
    let last = connection.tags.len().saturating_sub(1);
    for (at, (saved, engine)) in connection
        .tags
        .iter()
        .zip(&connection.datapath.engines)
        .enumerate()
    {
        let transport = (at == last).then(|| transport.take()).flatten();
        starts.push(
            end.spec
                .successor(&engine.state.kind, LedgerJudging::Done, transport)?,
        );
        let plan = end.spec.fault_plan(saved.tag);
        fitted.push(if saved.stands_in {
            FittedEngine::standing_in(saved.tag, plan)
        } else {
            FittedEngine::new(saved.tag, plan)
        });
    }
    let mut restorer = AppRestorer { app, heaps };
    let datapath = Datapath::restore(connection.datapath, starts, Arc::clone(&end.link), &mut restorer);
    let datapath = datapath.map_err(|error| format!("connection {}: {error}", connection.id))?;
    Ok(AdoptedConnection {
        number: connection.number,
        phase: connection.phase,
        new: NewConnection {
            id: connection.id,
            app: app.id,
            datapath,
            fitted,
            waker: Arc::clone(&end.waker),
            permit: Box::new(node.open.count()),
            accepted_for: connection.accepted_for,
            opened: Reply::ignored(),
        },
    })
}
