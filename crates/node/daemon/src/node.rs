//! A node's service: its control plane, its runtimes, and how it starts and stops.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use provost_datapath::BodyForm;
use provost_engine::EventSink;
use provost_shm::PacketSocket;
use provost_wire::limits::STREAM_WINDOW_BYTES;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::LocalSet;
use tracing::Instrument;

use crate::app_registry::{AppRegistry, AttachedApp};
use crate::apps::AppServer;
use crate::attempts::{ATTEMPT_THREADS_MAX, ConnectAttempts};
use crate::audit_log::AuditLog;
use crate::authority::AppAuthority;
use crate::callers::CallerTrust;
use crate::config::{Config, Sources};
use crate::configuration::Configuration;
use crate::connect::Connector;
use crate::connections::ConnectionRegistry;
use crate::control_plane::ControlPlane;
use crate::counts::{Counts, unix_ms};
use crate::enforcement;
use crate::grpc::GrpcAccess;
use crate::hot_restart::{self, PassedOn, Predecessor, ResumedCallers};
use crate::live_change::LiveChanges;
use crate::name_lookup::LOOKUP_THREADS_MAX;
use crate::peers::PeerAccess;
use crate::permits::{ConnectionBounds, Permits};
use crate::policies::{Change, ChangeError, Mode, Policies, PoliciesNotKept, PolicyFile, Registry, Report};
use crate::quiesce_barrier::QuiesceBarrier;
use crate::relay::RelayAccess;
use crate::reload::{ReloadError, Reloaded};
use crate::runtime::RuntimeCommand;
use crate::runtime_events::{self, EventsOfRuntimes};
use crate::runtimes::Runtimes;
use crate::schema_learning::SchemaLearning;
use crate::schemas::{COMPILING_THREADS_MAX, SchemaBounds, SchemaStore};
use crate::services::Services;
use crate::sockets::{self, Listeners};
use crate::start_error::StartError;
use crate::thread_pool::{self, WorkThreads};
use crate::transport::Limits;
use crate::upgrade::{
    self, OwnSockets, RestartDesk, UpgradeError, UpgradeOrder, UpgradeQueue, UpgradeReport, UpgradeRequest,
    UpgradeSender,
};
use crate::workload_api::WorkloadApi;
use crate::{admin, at_rest, listen, observe, page, policies, reload};

/// Changes that the program around the node asks for and that wait, at most.
const ORDERS_MAX: usize = 64;
/// How long gRPC clients that were told to go have the services to themselves. Most are gone after one round trip.
const CLIENTS_GRACE: Duration = Duration::from_millis(500);
/// Threads for what operators ask for and for hot restarts, beside those of attempts, look-ups and schemas.
const BLOCKING_THREADS_SPARE: usize = 16;
/// How long a process stays that another one has replaced, so that who asked for it gets an answer.
const ANSWER_PAUSE: Duration = Duration::from_millis(100);

/// How far a shutdown has been asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    Running,
    /// Take nothing new; end when calls in flight have, or when their time is up.
    Drain,
    Now,
}

/// What a node's service is started with.
pub struct NodeParts {
    pub config: Config,
    /// The kinds of policies that it has.
    pub kinds: Registry,
    /// Where the configuration came from, to be read again.
    pub sources: Sources,
}

/// A running service. Dropping it ends it at once.
pub struct Node {
    shutdown: watch::Sender<Shutdown>,
    orders: mpsc::Sender<Order>,
    upgrades: UpgradeSender,
    unheard_reloads: UnheardReloads,
    addresses: Vec<SocketAddr>,
    ended: watch::Receiver<Option<NodeEnd>>,
    thread: Option<JoinHandle<()>>,
}

/// Why a node has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeEnd {
    /// It was told to, or did not start.
    Stopped,
    /// Another process has taken over.
    Replaced { process: u32 },
    /// Another process had taken over, and has ended: nobody serves.
    Lost,
}

/// How a node begins.
enum Origin {
    Fresh,
    /// In the place of another process.
    Predecessor(Predecessor),
}

/// What is asked of a node while it runs.
struct Asked {
    shutdown: watch::Receiver<Shutdown>,
    orders: mpsc::Receiver<Order>,
    upgrades: UpgradeQueue,
    /// For those who ask from inside.
    own_upgrades: UpgradeSender,
    unheard_reloads: UnheardReloads,
}

/// Reloads of which nobody waits to hear, and that were not carried out yet.
type UnheardReloads = Arc<AtomicUsize>;

impl Node {
    /// Starts a node's service. When this returns, apps can attach and peers can connect.
    pub fn start(config: Config) -> Result<Node, StartError> {
        Node::start_with_kinds(config, Registry::with_built_ins())
    }

    /// Starts a node's service that has these kinds of policies: a program that runs a node may bring its own.
    pub fn start_with_kinds(config: Config, kinds: Registry) -> Result<Node, StartError> {
        Node::start_with(NodeParts {
            config,
            kinds,
            sources: Sources::default(),
        })
    }

    /// Starts a node's service of all its parts.
    pub fn start_with(parts: NodeParts) -> Result<Node, StartError> {
        Node::begin(parts, Origin::Fresh)
    }

    /// Takes a node's service over from another process. When this returns, this one has it; on failure the other one
    /// keeps it.
    pub fn hot_restart(parts: NodeParts, predecessor: Predecessor) -> Result<Node, StartError> {
        Node::begin(parts, Origin::Predecessor(predecessor))
    }

    fn begin(parts: NodeParts, origin: Origin) -> Result<Node, StartError> {
        let (upgrades, upgrades_asked) = upgrade::queue();
        let (ending, ended) = watch::channel(None);
        let own_upgrades = upgrades.clone();
        let (shutdown, asked) = watch::channel(Shutdown::Running);
        let (orders, ordered) = mpsc::channel(ORDERS_MAX);
        let (started, start) = std::sync::mpsc::sync_channel(1);
        let unheard_reloads = UnheardReloads::default();
        let unheard = Arc::clone(&unheard_reloads);
        let thread = std::thread::Builder::new()
            .name("control".to_owned())
            .stack_size(thread_pool::STACK_BYTES)
            .spawn(move || {
                let asked = Asked {
                    shutdown: asked,
                    orders: ordered,
                    upgrades: upgrades_asked,
                    own_upgrades,
                    unheard_reloads: unheard,
                };
                ending.send_replace(Some(run(parts, origin, asked, started)));
            })
            .map_err(|source| StartError::System {
                what: "the control plane's thread",
                source,
            })?;
        let addresses = start.recv().map_err(|_| StartError::Died)??;
        Ok(Node {
            shutdown,
            orders,
            upgrades,
            unheard_reloads,
            addresses,
            ended,
            thread: Some(thread),
        })
    }

    /// Where it listens for other nodes, in the order of the configuration.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Changes policies or engines while calls go on, and waits until that is done. (For programs that run a node
    /// themselves; operators have the admin API.)
    pub fn change(&self, change: Change, mode: Mode) -> Result<Report, ChangeError> {
        let (done, hears) = std::sync::mpsc::sync_channel(1);
        let order = Order::Change { change, mode, done };
        self.orders
            .blocking_send(order)
            .map_err(|_| ChangeError::Ending)?;
        hears.recv().map_err(|_| ChangeError::Ending)?
    }

    /// Reads the configuration again and makes it the one in effect, and waits until that is done.
    pub fn reload(&self) -> Result<Reloaded, ReloadError> {
        let (done, hears) = std::sync::mpsc::sync_channel(1);
        let ending = |_| ReloadError::Policy(ChangeError::Ending);
        self.orders
            .blocking_send(Order::Reload { done })
            .map_err(|_| ReloadError::Policy(ChangeError::Ending))?;
        hears.recv().map_err(ending)?
    }

    /// Writes policies that were changed at run time into the files of the configuration, and says into which.
    pub fn write_config(&self) -> Result<PathBuf, ReloadError> {
        let (done, hears) = std::sync::mpsc::sync_channel(1);
        let ending = || ReloadError::Policy(ChangeError::Ending);
        self.orders
            .blocking_send(Order::Write { done })
            .map_err(|_| ending())?;
        hears.recv().map_err(|_| ending())?
    }

    /// Asks it to read the configuration again; what comes of it is in the log. If another process takes over meanwhile, that one is
    /// asked, by SIGHUP, when this one is joined.
    pub fn ask_to_reload(&self) {
        self.unheard_reloads.fetch_add(1, Ordering::Relaxed);
        let ordered = self.orders.try_send(Order::UnheardReload);
        if let Err(mpsc::error::TrySendError::Full(_)) = ordered {
            // When so many wait already, one of them reads what this one would.
            self.unheard_reloads.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Has another process take the service over, and waits until that is done. On success this node ends without a
    /// word to anybody; on failure it goes on as if nothing had happened.
    pub fn upgrade(&self, request: UpgradeRequest) -> Result<UpgradeReport, UpgradeError> {
        let (done, hears) = oneshot::channel();
        let order = UpgradeOrder { request, done };
        self.upgrades
            .blocking_send(order)
            .map_err(|_| UpgradeError::ShuttingDown)?;
        hears.blocking_recv().map_err(|_| UpgradeError::ShuttingDown)?
    }

    /// As [`Node::upgrade`], for those who have other things to wait for.
    #[must_use]
    pub fn begin_upgrade(
        &self,
        request: UpgradeRequest,
    ) -> oneshot::Receiver<Result<UpgradeReport, UpgradeError>> {
        let (done, hears) = oneshot::channel();
        upgrade::order(&self.upgrades, UpgradeOrder { request, done });
        hears
    }

    /// Waits until it has ended, and says why.
    pub fn ended(&self) -> impl Future<Output = NodeEnd> + use<> {
        let mut ended = self.ended.clone();
        async move {
            let end = ended.wait_for(Option::is_some).await;
            // A thread that died has said nothing.
            end.ok().and_then(|end| *end).unwrap_or(NodeEnd::Stopped)
        }
    }

    /// Asks it to end. A later call may ask for more haste.
    pub fn shut_down(&self, how: Shutdown) {
        self.shutdown.send_replace(how);
    }

    /// Whether it has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits until it has ended. If another process has taken over, that one is told what this one was told and has not done.
    pub fn join(mut self) {
        self.wait();
        let end = *self.ended.borrow();
        if let (Some(NodeEnd::Replaced { process }), Some(told)) = (end, self.told_last()) {
            hot_restart::pass_on(process, told);
        }
    }

    /// What it was told, and has not done if another process has taken over. It is asked for once nobody can tell it anything any more.
    pub(crate) fn told_last(&self) -> Option<PassedOn> {
        if *self.shutdown.borrow() != Shutdown::Running {
            return Some(PassedOn::Shutdown);
        }
        (self.unheard_reloads.load(Ordering::Relaxed) > 0).then_some(PassedOn::Reload)
    }

    fn wait(&mut self) {
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported by its own hook.
            let _ = thread.join();
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.shut_down(Shutdown::Now);
        self.wait();
    }
}

/// What the program around the node asks for.
enum Order {
    Change {
        change: Change,
        mode: Mode,
        done: std::sync::mpsc::SyncSender<Result<Report, ChangeError>>,
    },
    Reload {
        done: std::sync::mpsc::SyncSender<Result<Reloaded, ReloadError>>,
    },
    /// A reload of which nobody waits to hear.
    UnheardReload,
    Write {
        done: std::sync::mpsc::SyncSender<Result<PathBuf, ReloadError>>,
    },
}

/// Carries out what the program around the node asks for.
async fn obey(plane: ControlPlane, mut orders: mpsc::Receiver<Order>, unheard_reloads: UnheardReloads) {
    while let Some(order) = orders.recv().await {
        let (plane, unheard_reloads) = (plane.clone(), Arc::clone(&unheard_reloads));
        tokio::task::spawn_local(async move {
            // Whoever asked may have gone.
            match order {
                Order::Change { change, mode, done } => {
                    let _ = done.send(plane.changes.carry_out(change, mode).await);
                }
                Order::Reload { done } => {
                    let _ = done.send(reload::reload(&plane).await);
                }
                Order::UnheardReload => {
                    let outcome = reload::reload(&plane).await;
                    if !matches!(outcome, Err(ReloadError::Policy(ChangeError::Replaced))) {
                        unheard_reloads.fetch_sub(1, Ordering::Relaxed);
                    }
                }
                Order::Write { done } => {
                    let _ = done.send(reload::write_back(&plane).await);
                }
            }
        });
    }
}

type Started = std::sync::mpsc::SyncSender<Result<Vec<SocketAddr>, StartError>>;

fn run(parts: NodeParts, origin: Origin, asked: Asked, started: Started) -> NodeEnd {
    // Each kind of work that apps cause here has its turns, so that what the node itself wants never waits. Handshakes with
    // those who come, and policies of connections, have threads of their own ([`WorkThreads`]).
    let threads = ATTEMPT_THREADS_MAX + LOOKUP_THREADS_MAX + COMPILING_THREADS_MAX + BLOCKING_THREADS_SPARE;
    let runtime = thread_pool::event_loop("control-work", threads)
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(source) => {
            let what = "the control plane's event loop";
            let _ = started.send(Err(StartError::System { what, source }));
            return NodeEnd::Stopped;
        }
    };
    let local = LocalSet::new();
    // Whatever happens on this thread, and what it has others do, is said to be this node's.
    let span = tracing::info_span!("node", node = parts.config.node.name);
    let _entered = span.enter();
    let end = local.block_on(&runtime, serve(parts, origin, asked, started));
    drop(local);
    // Handshakes that are still under way have deadlines of their own; nobody waits for them.
    runtime.shutdown_background();
    end
}

async fn serve(parts: NodeParts, origin: Origin, mut asked: Asked, started: Started) -> NodeEnd {
    let begun = begin(parts, &origin, asked.own_upgrades.clone()).await;
    let (begun, events) = match begun {
        Ok(begun) => begun,
        Err(error) => {
            if let Origin::Predecessor(predecessor) = &origin {
                predecessor.decline(&error.to_string());
            }
            let _ = started.send(Err(error));
            return NodeEnd::Stopped;
        }
    };
    drop(origin);
    let plane = begun.plane.clone();
    let tasks = ServingTasks::start(begun);
    tokio::task::spawn_local(runtime_events::apply_events(plane.clone(), events));
    tokio::task::spawn_local(obey(plane.clone(), asked.orders, asked.unheard_reloads));
    tracing::info!(
        node = plane.config.started.node.name,
        socket = %plane.config.started.control.socket.display(),
        listeners = ?plane.peers.addresses,
        runtimes = plane.runtimes.count(),
        apps = plane.apps.count(),
        "serving"
    );
    count_schemas(&plane);
    // Apps of the process before may have been allowed more by its configuration.
    enforcement::enforce(&plane);
    let _ = started.send(Ok(plane.peers.addresses.clone()));
    match until_told_to_end(&plane, &mut asked.upgrades, &mut asked.shutdown).await {
        ServiceEnd::Replaced(end) => {
            upgrade::refuse_orders(&mut asked.upgrades);
            end
        }
        ServiceEnd::Told(how) => {
            upgrade::refuse_orders(&mut asked.upgrades);
            stop(&plane, tasks, how, &mut asked.shutdown).await;
            NodeEnd::Stopped
        }
    }
}

/// Counts the schemas of the process before for the users whose apps have gone on with them.
fn count_schemas(plane: &ControlPlane) {
    let connections = plane.connections.all();
    let bound = plane.services.bound_schemas().into_iter();
    let bound = bound.filter_map(|(app, schema)| Some((schema, plane.apps.find(app)?.uid())));
    // Those of others have brought none.
    let of_apps = connections.values().map(|open| &open.spec);
    let of_apps = of_apps.filter(|spec| spec.app.form == BodyForm::Native);
    let called = of_apps.map(|spec| (spec.schema.hash, spec.app.identity.uid));
    plane.services.count_for(called.chain(bound));
}

/// Why the service ends.
enum ServiceEnd {
    Told(Shutdown),
    Replaced(NodeEnd),
}

/// Waits until the service is told to end, or another process has taken over.
async fn until_told_to_end(
    plane: &ControlPlane,
    upgrades: &mut UpgradeQueue,
    shutdown: &mut watch::Receiver<Shutdown>,
) -> ServiceEnd {
    loop {
        let order = tokio::select! {
            how = wait_for_shutdown(shutdown, Shutdown::Drain) => return ServiceEnd::Told(how),
            Some(order) = upgrades.recv() => order,
        };
        // Not to be left half way once the other process is ready, whatever is asked for meanwhile.
        if let Some(end) = be_replaced(plane, order, shutdown).await {
            return ServiceEnd::Replaced(end);
        }
    }
}

/// Everything that a node starts with.
struct StartedNode {
    plane: ControlPlane,
    listeners: Listeners,
    unattached: Vec<PacketSocket>,
    resumed: Vec<Rc<AttachedApp>>,
    callers: ResumedCallers,
}

/// What lets apps, peers and operators in.
struct ServingTasks {
    accepting: Vec<tokio::task::JoinHandle<()>>,
    /// They tell about the node until it has ended.
    telling: Vec<tokio::task::JoinHandle<()>>,
    /// Files that belong to the sockets of the latter.
    paths: Vec<PathBuf>,
}

impl ServingTasks {
    fn start(begun: StartedNode) -> ServingTasks {
        let StartedNode {
            plane,
            listeners,
            unattached,
            resumed,
            callers,
        } = begun;
        let paths = listeners.paths();
        let server = Rc::new(AppServer {
            config: Rc::clone(&plane.config),
            apps: Rc::clone(&plane.apps),
            connections: Rc::clone(&plane.connections),
            runtimes: Rc::clone(&plane.runtimes),
            services: Arc::clone(&plane.services),
            quiesce_barrier: Rc::clone(&plane.quiesce_barrier),
            connector: Rc::clone(&plane.connector),
            authority: Rc::clone(&plane.authority),
        });
        for app in resumed {
            tokio::task::spawn_local(Rc::clone(&server).resume(app));
        }
        plane.connector.learn_schemas_ahead();
        let apps = tokio::task::spawn_local(server.accept(listeners.control, unattached));
        let peers = listeners.peers.into_iter();
        let peers =
            peers.map(|peers| tokio::task::spawn_local(listen::accept(Rc::clone(&plane.relays), peers)));
        plane.grpc.serve(listeners.grpc);
        callers.resume(&plane);
        let admin = listeners.admin.map(|socket| admin::serve(plane.clone(), socket));
        let http = listeners.http.map(|listener| {
            tracing::info!(address = %listener.address(), "serving metrics and health");
            tokio::task::spawn_local(observe::serve(plane.clone(), listener))
        });
        let page = listeners.page.map(|listener| {
            tracing::info!(address = %listener.address(), "serving the page");
            tokio::task::spawn_local(page::serve(plane.clone(), listener))
        });
        plane.peers.follow_certificates();
        tokio::task::spawn_local(at_rest::manage_memory(Rc::clone(&plane.connections)));
        tokio::task::spawn_local(observe::follow(plane.clone()));
        if let Ok(Some((collector, interval))) = plane.config.started.observe.collector() {
            tokio::task::spawn_local(observe::export(plane.clone(), collector, interval));
        }
        ServingTasks {
            accepting: std::iter::once(apps).chain(peers).collect(),
            telling: admin.into_iter().chain(http).chain(page).collect(),
            paths,
        }
    }
}

/// Lets nothing new in, lets calls in flight finish if there is time for it, and ends.
async fn stop(
    plane: &ControlPlane,
    tasks: ServingTasks,
    how: Shutdown,
    shutdown: &mut watch::Receiver<Shutdown>,
) {
    tasks.accepting.iter().for_each(tokio::task::JoinHandle::abort);
    plane.grpc.stop_accepting();
    plane.restarts.keep(OwnSockets::default());
    // It is gone when somebody has removed it.
    let _ = std::fs::remove_file(&plane.config.started.control.socket);
    plane.services.stop_accepting();
    plane.connections.stop_accepting();
    if how == Shutdown::Drain {
        drain(plane, shutdown).await;
    }
    tasks.telling.iter().for_each(tokio::task::JoinHandle::abort);
    for path in &tasks.paths {
        let _ = std::fs::remove_file(path);
    }
    plane.policies.keep_no_more();
    tracing::info!(connections = plane.connections.count(), "stopped");
}

/// Has another process take over. On success everything here is left as it is; `None`: it goes on.
async fn be_replaced(
    plane: &ControlPlane,
    order: UpgradeOrder,
    shutdown: &mut watch::Receiver<Shutdown>,
) -> Option<NodeEnd> {
    let UpgradeOrder { request, done } = order;
    let id = plane.restarts.new_id();
    let span = tracing::info_span!("hot_restart", upgrade = id);
    let is_to_end = async {
        let _how = wait_for_shutdown(shutdown, Shutdown::Drain).await;
    };
    let replaced = hot_restart::replace(plane, &request, is_to_end).instrument(span);
    match replaced.await {
        Ok(replaced) => {
            let process = replaced.report.process;
            plane.policies.keep_no_more();
            let _ = done.send(Ok(replaced.report.clone()));
            replaced.leave();
            // Whoever asked at the admin API still gets its answer.
            tokio::time::sleep(ANSWER_PAUSE).await;
            Some(NodeEnd::Replaced { process })
        }
        Err(error) => {
            let is_lost = matches!(error, UpgradeError::Lost { .. });
            if is_lost {
                tracing::error!(upgrade = id, %error, "nobody serves any more");
            } else {
                tracing::error!(upgrade = id, %error, "the service goes on in this process");
            }
            plane.counts.hot_restarts_undone.add_one();
            let _ = done.send(Err(error));
            is_lost.then_some(NodeEnd::Lost)
        }
    }
}

/// Waits until at least this much is asked for; whoever held the handle and is gone asks for everything.
async fn wait_for_shutdown(asked: &mut watch::Receiver<Shutdown>, least: Shutdown) -> Shutdown {
    loop {
        let now = *asked.borrow_and_update();
        if now == Shutdown::Now || (now == Shutdown::Drain && least == Shutdown::Drain) {
            return now;
        }
        if asked.changed().await.is_err() {
            return Shutdown::Now;
        }
    }
}

/// Lets calls in flight finish, for the configured time.
async fn drain(plane: &ControlPlane, shutdown: &mut watch::Receiver<Shutdown>) {
    let drain_ms = plane.config.live().timeouts.drain_ms;
    let limit = Duration::from_millis(drain_ms);
    tracing::info!(
        connections = plane.connections.count(),
        limit_ms = drain_ms,
        "draining"
    );
    let ending = async {
        // First, so that what they have sent already finds the services.
        plane.grpc.drain_clients().await;
        plane.relays.drain();
        let callers_gone = async || {
            plane.grpc.all_gone().await;
            plane.relays.all_gone().await;
        };
        let _ = tokio::time::timeout(CLIENTS_GRACE, callers_gone()).await;
        plane.connections.drain();
        plane.connections.all_ended().await;
        callers_gone().await;
    };
    tokio::select! {
        () = ending => {}
        () = tokio::time::sleep(limit) => tracing::warn!("calls in flight are cut short: timeouts.drain_ms is over"),
        _ = wait_for_shutdown(shutdown, Shutdown::Now) => {}
    }
}

/// Begins by itself, or in the place of another process.
async fn begin(
    parts: NodeParts,
    origin: &Origin,
    upgrades: UpgradeSender,
) -> Result<(StartedNode, EventsOfRuntimes), StartError> {
    let workload = WorkloadApi::of(&parts.config).await;
    let workload = workload.map_err(StartError::Workload)?;
    match origin {
        Origin::Fresh => start(parts, workload, upgrades),
        Origin::Predecessor(predecessor) => {
            WorkloadApi::check_answered(workload.as_deref()).map_err(StartError::Workload)?;
            succeed(parts, workload, upgrades, predecessor).await
        }
    }
}

fn start(
    parts: NodeParts,
    workload: Option<Rc<WorkloadApi>>,
    upgrades: UpgradeSender,
) -> Result<(StartedNode, EventsOfRuntimes), StartError> {
    let (peers, addresses) = sockets::open_peers(&parts.config)?;
    let (plane, events) = make(parts, addresses, workload, upgrades)?;
    let listeners = Listeners::open(&plane.config.started, peers)?;
    plane.restarts.keep(listeners.duplicate(&plane.config.started)?);
    // Last: what was kept stays as it was where a start fails.
    take_up_policies(&plane)?;
    listeners.fresh.stay();
    let begun = StartedNode {
        plane,
        listeners,
        unattached: Vec::new(),
        resumed: Vec::new(),
        callers: ResumedCallers::default(),
    };
    Ok((begun, events))
}

/// Goes on with what operators had made of the policies, or says what was lost of it.
fn take_up_policies(plane: &ControlPlane) -> Result<(), PoliciesNotKept> {
    let config = &plane.config.started;
    plane.policies.take_up(&PolicyFile {
        path: &config.admin.policies_file_beside(&config.control.socket),
        control_socket: &config.control.socket,
        is_persistent: config.admin.persist,
    })
}

/// Begins in the place of another process.
async fn succeed(
    parts: NodeParts,
    workload: Option<Rc<WorkloadApi>>,
    upgrades: UpgradeSender,
    predecessor: &Predecessor,
) -> Result<(StartedNode, EventsOfRuntimes), StartError> {
    let prepared = hot_restart::begin(predecessor, &parts.config)?;
    let (plane, events) = make(parts, prepared.addresses.clone(), workload, upgrades)?;
    let taken = hot_restart::complete(predecessor, prepared, &plane)?;
    let listeners = Listeners::hot_restart(&plane.config.started, taken.sockets)?;
    plane.restarts.keep(listeners.duplicate(&plane.config.started)?);
    predecessor.commit()?;
    for (runtime, apps) in plane.runtimes.iter().zip(taken.restored.adopted) {
        let told = runtime.send(RuntimeCommand::Adopt(Box::new(apps))).await;
        told.map_err(StartError::Adopt)?;
    }
    // Only now: nobody waits for the log while the service rests.
    tracing::info!(
        received_us = taken.received.as_micros() as u64,
        made_us = taken.made.as_micros() as u64,
        made_as_they_came = taken.restored.made_as_they_came,
        faults = taken.faults,
        "the state of another process has been restored"
    );
    plane.connections.report_restored();
    listeners.fresh.stay();
    reload::apply_configured(&plane, &taken.configured);
    let config = &plane.config.started;
    let path = config.admin.policies_file_beside(&config.control.socket);
    let keeping =
        policies::keep_after_predecessor(Rc::clone(&plane.policies), path, config.control.socket.clone());
    tokio::task::spawn_local(keeping);
    let begun = StartedNode {
        plane,
        listeners,
        unattached: taken.restored.unattached,
        resumed: taken.restored.resumed,
        callers: taken.restored.callers,
    };
    Ok((begun, events))
}

/// Everything but the sockets.
fn make(
    parts: NodeParts,
    addresses: Vec<SocketAddr>,
    workload: Option<Rc<WorkloadApi>>,
    upgrades: UpgradeSender,
) -> Result<(ControlPlane, EventsOfRuntimes), StartError> {
    let NodeParts {
        config,
        kinds,
        sources,
    } = parts;
    let services = Arc::new(services(&config)?);
    let audit = Arc::new(AuditLog::start(&config.node.name, &config.observe.audit_file)?);
    let events_of_policies = Arc::clone(&audit) as Arc<dyn EventSink>;
    let policies = Rc::new(Policies::new(
        Arc::new(kinds),
        &config.node.name,
        events_of_policies,
    ));
    if sources.file.is_some() || sources.directory.is_some() {
        policies.maker.set_place(&sources.place());
    }
    policies::load_engines(policies.registry(), &config.engines).map_err(StartError::Engine)?;
    policies.begin(config.all_attachments())?;
    let started = Runtimes::start(&config).map_err(|source| StartError::System {
        what: "a runtime thread",
        source,
    })?;
    let (runtimes, events) = (Rc::new(started.0), started.1);
    let permits = Permits::new(ConnectionBounds::from(&config.limits));
    let connections = Rc::new(ConnectionRegistry::new(permits));
    let threads = WorkThreads::new(config.limits.handshakes).map_err(|source| StartError::System {
        what: "threads for handshakes",
        source,
    })?;
    let peers = Rc::new(PeerAccess::new(&config, addresses, workload)?);
    let config = Rc::new(Configuration::new(config, sources));
    let authority = Rc::new(AppAuthority {
        config: Rc::clone(&config),
        audit: Arc::clone(&audit),
    });
    let apps = Rc::new(AppRegistry::new());
    let quiesce_barrier = Rc::new(QuiesceBarrier::new());
    let counts = Rc::new(Counts::default());
    counts.began_unix_ms.set(unix_ms());
    let connector = Rc::new(Connector {
        config: Rc::clone(&config),
        apps: Rc::clone(&apps),
        connections: Rc::clone(&connections),
        runtimes: Rc::clone(&runtimes),
        services: Arc::clone(&services),
        policies: Rc::clone(&policies),
        peers: Rc::clone(&peers),
        quiesce_barrier: Rc::clone(&quiesce_barrier),
        threads,
        attempts: ConnectAttempts::new(),
        authority: Rc::clone(&authority),
        callers: CallerTrust {
            config: Rc::clone(&config),
            peers: Rc::clone(&peers),
            audit: Arc::clone(&audit),
            reported: RefCell::default(),
        },
        learning: SchemaLearning::default(),
        turn: Cell::new(0),
    });
    let grpc = GrpcAccess::new(&connector).map_err(|error| StartError::System {
        what: "memory for gRPC clients",
        source: io::Error::other(error),
    })?;
    let relays = RelayAccess::new(&connector).map_err(|error| StartError::System {
        what: "memory for calls of other nodes",
        source: io::Error::other(error),
    })?;
    relays.follow_routes();
    let changes = Rc::new(LiveChanges::new(
        Rc::clone(&policies),
        Rc::clone(&connections),
        Rc::clone(&runtimes),
        Rc::clone(&counts),
    ));
    let plane = ControlPlane {
        config,
        apps,
        connections,
        runtimes,
        services,
        policies,
        changes,
        connector,
        grpc: Rc::new(grpc),
        relays: Rc::new(relays),
        peers,
        quiesce_barrier,
        restarts: Rc::new(RestartDesk::new(upgrades)),
        counts,
        authority,
        audit,
    };
    Ok((plane, events))
}

/// The services, with the schemas that the configuration names.
fn services(config: &Config) -> Result<Services, StartError> {
    let limits = Limits {
        message_bytes_max: config.limits.message_bytes,
        stream_window_bytes: STREAM_WINDOW_BYTES,
        calls_in_flight_max: config.limits.calls_in_flight as u32,
    };
    let bounds = SchemaBounds {
        node: config.limits.schemas,
        per_user: config.limits.schemas_per_user,
    };
    let schemas = SchemaStore::new(bounds, config.schemas.cache_dir.clone());
    for path in &config.schemas.prefetch {
        let services = schemas.prefetch(path)?;
        tracing::info!(path = %path.display(), services, "loaded schemas");
    }
    Ok(Services::new(schemas, limits))
}
