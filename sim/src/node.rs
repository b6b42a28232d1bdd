//! A simulated node: real workers of `provost-runtime` on the simulated platform, and as much of a control plane as attaches
//! apps, opens connections, and hears events.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use provost_conformance::Random;
use provost_datapath::{ConnectionSignals, Datapath, Nanos};
use provost_frontend::{CallQuota, SendHeap};
use provost_runtime::{
    AppId, ConnectionId, DatapathWaker, EngineTag, EventRefused, EventSink, FittedEngine, NewConnection,
    NextStep, Reply, RuntimeCommand, RuntimeEvent, RuntimeHandle, RuntimeOptions, RuntimeWorker, WaitMode,
};
use provost_shm::Wait;

use crate::app::ControlMailbox;
use crate::compose::{EndSpec, TransportHandle};
use crate::platform::{SimClock, SimNetwork, SimPlatform};

/// How long a runtime takes to wake, at most, in simulated nanoseconds.
const WAKE_NS_MAX: Nanos = 30_000;
/// How long a runtime may poll, or be woken again at once, though nothing moves, in simulated nanoseconds: several times as
/// long as the longest spin.
const IDLE_NS_MAX: Nanos = 1_000_000;
/// A sleep that is shorter does not count as one, in simulated nanoseconds.
const SLEEP_NS_MIN: Nanos = 5_000;

/// What the workers of a node have told.
#[derive(Clone, Default)]
pub(crate) struct NodeEvents(Arc<Mutex<VecDeque<RuntimeEvent>>>);

impl NodeEvents {
    pub(crate) fn take(&self) -> Vec<RuntimeEvent> {
        let mut events = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        events.drain(..).collect()
    }
}

impl EventSink for NodeEvents {
    fn try_send(&mut self, event: RuntimeEvent) -> Result<(), EventRefused> {
        let mut events = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        events.push_back(event);
        Ok(())
    }
}

/// A worker and the thread that it would have.
pub(crate) struct SimRuntime {
    pub(crate) handle: RuntimeHandle,
    worker: RuntimeWorker<SimPlatform>,
    pub(crate) due: Nanos,
    pub(crate) thread: ThreadState,
    random: Random,
    poll_ns: Nanos,
    /// When the last poll was over.
    polled_until: Nanos,
    /// Since when it polls, or is woken again at once, though nothing moves.
    idle_since: Nanos,
}

/// What a worker's thread does between two polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ThreadState {
    Polls,
    Sleeps,
    AwaitsOrders,
    HasEnded,
}

impl SimRuntime {
    pub(crate) fn new(
        seed: u64,
        clock: &SimClock,
        network: &SimNetwork,
        events: &NodeEvents,
    ) -> Result<SimRuntime, String> {
        let mut random = Random::new(seed);
        let options = RuntimeOptions {
            spin_ns: [0, 5_000, 50_000][random.below(3) as usize],
            waiting: WaitMode::Sleeps,
            time_slice: provost_shm::TimeSliceChoice::Kernel,
            completion_stall_ns: 1_000_000_000,
        };
        let poll_ns = random.between(500, 4_000);
        let platform = SimPlatform::new(clock.clone(), network.clone()).map_err(|error| error.to_string())?;
        let made = RuntimeHandle::with_worker(platform, options, events.clone());
        let (handle, worker) = made.map_err(|error| error.to_string())?;
        Ok(SimRuntime {
            handle,
            worker,
            due: clock.now(),
            thread: ThreadState::Polls,
            random,
            poll_ns,
            polled_until: clock.now(),
            idle_since: clock.now(),
        })
    }

    /// Gives it a command. Its inbox has room: a simulated control plane does one thing at a time.
    pub(crate) fn send(&mut self, command: RuntimeCommand, now: Nanos) -> Result<(), String> {
        let sent = self.handle.try_send(command);
        sent.map_err(|_| "the inbox of a runtime is full".to_owned())?;
        self.look_at_doorbells(now);
        Ok(())
    }

    /// When its thread has something to do.
    pub(crate) fn due(&self, now: Nanos) -> Nanos {
        match self.thread {
            ThreadState::Polls => self.due,
            ThreadState::Sleeps => {
                let ready_at = self.worker_platform().sockets_ready_at().unwrap_or(Nanos::MAX);
                match self.due.min(ready_at) {
                    Nanos::MAX => Nanos::MAX,
                    due => due.max(now).max(self.polled_until),
                }
            }
            // Looked at after each order.
            ThreadState::AwaitsOrders | ThreadState::HasEnded => Nanos::MAX,
        }
    }

    fn worker_platform(&self) -> &SimPlatform {
        self.worker.platform()
    }

    /// Wakes its thread if it sleeps and was rung for.
    pub(crate) fn look_at_doorbells(&mut self, now: Nanos) {
        if self.thread == ThreadState::Sleeps && self.worker.platform_mut().is_rung() {
            let latency = self.random.below(WAKE_NS_MAX);
            self.due = self.due.min(now + latency);
        }
    }

    /// Whether nothing is left of the connections that it had, and all memory of receive heaps was given back.
    pub(crate) fn check_empty(&self) -> Result<(), String> {
        if let Some(app) = self.worker.apps_with_blocks().next() {
            return Err(format!("app {app}: blocks of its receive heap are left"));
        }
        match self.worker_platform().watched_sockets() {
            0 => Ok(()),
            sockets => Err(format!("{sockets} sockets are watched that nobody reads")),
        }
    }

    /// Lets it poll once.
    ///
    /// # Errors
    /// It polls for ever though nothing moves.
    pub(crate) fn poll(&mut self, now: Nanos) -> Result<(), String> {
        if self.thread == ThreadState::Sleeps {
            self.worker.sleep(Wait::Now);
        }
        if self.thread != ThreadState::Polls && now.saturating_sub(self.polled_until) >= SLEEP_NS_MIN {
            self.idle_since = now;
        }
        self.thread = ThreadState::Polls;
        self.polled_until = now + self.poll_ns;
        self.due = self.polled_until;
        match self.worker.poll_once() {
            NextStep::Poll => self.idle_since = now,
            NextStep::Yield => self.worker.yield_core(),
            NextStep::Sleep(wait) => {
                self.thread = ThreadState::Sleeps;
                self.due = match wait {
                    Wait::Now => now,
                    Wait::AtMost(ns) => now.saturating_add(ns).max(now + 1),
                    Wait::Forever => Nanos::MAX,
                };
                // What was rung before is still to be heard.
                self.look_at_doorbells(now);
            }
            NextStep::AwaitOrder => self.thread = ThreadState::AwaitsOrders,
            NextStep::Stop => self.thread = ThreadState::HasEnded,
        }
        match now.saturating_sub(self.idle_since) {
            0..=IDLE_NS_MAX => Ok(()),
            idle_ns => Err(format!(
                "it polls for {} µs though nothing moves",
                idle_ns / 1_000
            )),
        }
    }
}

/// An app as its node knows it.
pub(crate) struct NodeApp {
    pub(crate) runtime: usize,
    pub(crate) send_heap: SendHeap,
    pub(crate) mailbox: ControlMailbox,
    pub(crate) receive_bytes_max: u64,
    /// Calls of all its connections as a server.
    pub(crate) quota: Arc<CallQuota>,
}

/// One end of a connection as its node knows it.
pub(crate) struct NodeEnd {
    /// Which of the world's connections.
    pub(crate) pair: usize,
    pub(crate) app: AppId,
    pub(crate) spec: EndSpec,
    pub(crate) link: Arc<ConnectionSignals>,
    pub(crate) waker: Arc<DatapathWaker>,
    pub(crate) transport: TransportHandle,
    /// Its engines as far as the control plane knows.
    pub(crate) tags: Vec<EngineTag>,
}

/// Counts the connections that runtimes have.
#[derive(Clone, Debug, Default)]
pub(crate) struct OpenConnections(Arc<AtomicUsize>);

impl OpenConnections {
    pub(crate) fn count(&self) -> ConnectionPermit {
        self.0.fetch_add(1, Ordering::Relaxed);
        ConnectionPermit(self.clone())
    }

    pub(crate) fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// What an app knows of one open connection.
pub(crate) struct ConnectionPermit(OpenConnections);

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A node of the simulation: its workers and their apps.
pub(crate) struct SimNode {
    pub(crate) runtimes: Vec<SimRuntime>,
    pub(crate) events: NodeEvents,
    pub(crate) apps: BTreeMap<AppId, NodeApp>,
    pub(crate) ends: BTreeMap<ConnectionId, NodeEnd>,
    pub(crate) open: OpenConnections,
    /// When it last went on after a rest.
    pub(crate) rested_until: Nanos,
}

impl SimNode {
    pub(crate) fn new(
        random: &mut Random,
        clock: &SimClock,
        network: &SimNetwork,
    ) -> Result<SimNode, String> {
        let events = NodeEvents::default();
        let runtimes = random.between(1, 2);
        let runtimes = (0..runtimes).map(|_| SimRuntime::new(random.number(), clock, network, &events));
        Ok(SimNode {
            runtimes: runtimes.collect::<Result<_, _>>()?,
            events,
            apps: BTreeMap::new(),
            ends: BTreeMap::new(),
            open: OpenConnections::default(),
            rested_until: 0,
        })
    }

    /// A waker for a datapath of this app.
    pub(crate) fn new_waker(&self, app: AppId) -> Option<Arc<DatapathWaker>> {
        let app = self.apps.get(&app)?;
        Some(self.runtimes[app.runtime].handle.new_waker())
    }

    /// Has an end polled from now on.
    pub(crate) fn open(
        &mut self,
        id: ConnectionId,
        end: NodeEnd,
        datapath: (Datapath, Vec<FittedEngine>),
        accepted_for: Option<u64>,
        opened: Reply<u32>,
        now: Nanos,
    ) -> Result<(), String> {
        let (datapath, fitted) = datapath;
        let runtime = self.apps.get(&end.app).map(|app| app.runtime);
        let runtime = runtime.ok_or("a connection of an app that is not there")?;
        let connection = NewConnection {
            id,
            app: end.app,
            datapath,
            fitted,
            waker: Arc::clone(&end.waker),
            permit: Box::new(self.open.count()),
            accepted_for,
            opened,
        };
        self.ends.insert(id, end);
        self.runtimes[runtime].send(RuntimeCommand::Open(Box::new(connection)), now)
    }

    /// Gives the runtime of an app a command.
    pub(crate) fn send_to_app(
        &mut self,
        app: AppId,
        command: RuntimeCommand,
        now: Nanos,
    ) -> Result<(), String> {
        match self.apps.get(&app) {
            Some(known) => self.runtimes[known.runtime].send(command, now),
            None => Ok(()),
        }
    }

    pub(crate) fn describe(&self) -> String {
        let state = |runtime: &SimRuntime| format!("{:?} until {}", runtime.thread, runtime.due);
        let states: Vec<_> = self.runtimes.iter().map(state).collect();
        format!("runtimes {}, {} ends", states.join(", "), self.ends.len())
    }
}
