//! A node's service: its control plane, its runtimes, and how it starts and stops.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use provost_datapath::Link;
use provost_engine::{AppIdentity, EventSink, NoEvents, Site};
use provost_frontend::{CallQuota, SendHeap};
use provost_transport_local::PeerWake;
use provost_transport_tcp::{Limits, TlsConfig, TlsConfigError};
use provost_wire::limits::STREAM_WINDOW_BYTES;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::LocalSet;

use crate::apps::{Control, PendingRequests};
use crate::config::{Config, Sources};
use crate::gate::Gate;
use crate::observe::{AuditLog, ObserveError};
use crate::permits::{AppConnections, Permits};
use crate::policies::{Change, ChangeError, Instance, Mode, Policies, Registry, Report};
use crate::reload::{ConfigState, ReloadError, Reloaded};
use crate::runtime::{
    AppId, Command, ConnectionId, PathWaker, Runtime, RuntimeEvent, RuntimeOptions, Tag, Waiting,
};
use crate::schemas::{BoundSchema, SchemaStore, StoreError};
use crate::services::Services;
use crate::sockets::{self, Listeners, OwnSockets};
use crate::takeover::{self, Seat, SeatError, UpgradeError, UpgradeOrder, UpgradeReport, UpgradeRequest};
use crate::{admin, apps, listen, observe, policies, reload};

/// Events of runtimes that wait for the control plane, at most.
const EVENTS_MAX: usize = 1024;
/// Changes that the program around the node asks for and that wait, at most.
const ORDERS_MAX: usize = 64;
/// Stack of the control plane's thread and of those on which handshakes run, in bytes.
const STACK_BYTES: usize = 512 << 10;
/// Threads on which handshakes run, beside one for each that the configuration allows: name look-ups.
const BLOCKING_THREADS_SPARE: usize = 64;
/// How long a process stays that another one has replaced, so that who asked for it gets an answer.
const ANSWER_PAUSE: Duration = Duration::from_millis(100);
/// How long a thread for handshakes stays without one.
const BLOCKING_KEEPALIVE: Duration = Duration::from_secs(2);

/// Why the service did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The control socket could not be made.
    #[error("control.socket {}: {source}{}", path.display(), socket_hint(source))]
    Socket {
        /// Its path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The admin socket could not be made.
    #[error("admin.socket {}: {source}{}", path.display(), socket_hint(source))]
    AdminSocket {
        /// Its path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A listener could not be opened.
    #[error("listener {address}: {source}")]
    Listener {
        /// Its address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// A schema that is to be loaded at the start is not usable.
    #[error("schemas.prefetch: {0}")]
    Schema(#[from] StoreError),
    /// What the node tells about itself cannot be had.
    #[error(transparent)]
    Observe(#[from] ObserveError),
    /// A library of the configuration's list cannot be loaded.
    #[error("engines: {0}")]
    Engine(String),
    /// A policy of the configuration cannot be attached.
    #[error(transparent)]
    Policy(#[from] ChangeError),
    /// The TLS files are not usable.
    #[error("tls: {0}")]
    Tls(#[from] TlsConfigError),
    /// A thread or a descriptor was refused by the system.
    #[error("{what}: {source}")]
    System {
        /// What was wanted.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// Another process keeps the service.
    #[error("cannot take over: {0}")]
    TakeOver(#[from] SeatError),
    /// The control plane ended before it began.
    #[error("the control plane's thread ended unexpectedly")]
    Died,
}

fn socket_hint(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::AddrInUse => ": another service answers there; stop it, or name another path",
        io::ErrorKind::NotFound => ": make its directory, or name another path",
        io::ErrorKind::PermissionDenied => ": run as a user who may write there, or name another path",
        _ => "",
    }
}

/// How far a shutdown has been asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// It has not.
    Running,
    /// Take nothing new; end when calls in flight have, or when their time is up.
    Drain,
    /// End at once.
    Now,
}

/// Checks what [`Config::check`] cannot see: that engines load, and that policies take their configurations.
pub fn check_policies(config: &Config, kinds: Registry) -> Result<(), StartError> {
    let policies = Policies::new(Arc::new(kinds), &config.node.name, Arc::new(NoEvents));
    policies::load_engines(policies.registry(), &config.engines).map_err(StartError::Engine)?;
    Ok(policies.begin(config.all_attachments())?)
}

/// What a node's service is started with.
pub struct NodeParts {
    /// Its configuration.
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
    upgrades: takeover::UpgradeSender,
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
    Replaced {
        /// Which.
        process: u32,
    },
    /// Another process had taken over, and has ended: nobody serves.
    Lost,
}

/// How a node begins.
enum Origin {
    /// By itself.
    Fresh,
    /// In the place of another process.
    Seat(Seat),
}

/// What is asked of a node while it runs.
struct Asked {
    shutdown: watch::Receiver<Shutdown>,
    orders: mpsc::Receiver<Order>,
    upgrades: takeover::Upgrades,
    /// For those who ask from inside.
    own_upgrades: takeover::UpgradeSender,
}

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
    pub fn take_over(parts: NodeParts, seat: Seat) -> Result<Node, StartError> {
        Node::begin(parts, Origin::Seat(seat))
    }

    fn begin(parts: NodeParts, origin: Origin) -> Result<Node, StartError> {
        let (upgrades, upgrades_asked) = takeover::queue();
        let (ending, ended) = watch::channel(None);
        let own_upgrades = upgrades.clone();
        let (shutdown, asked) = watch::channel(Shutdown::Running);
        let (orders, ordered) = mpsc::channel(ORDERS_MAX);
        let (started, start) = std::sync::mpsc::sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("control".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                let asked = Asked {
                    shutdown: asked,
                    orders: ordered,
                    upgrades: upgrades_asked,
                    own_upgrades,
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

    /// Asks it to read the configuration again; what comes of it is in the log.
    pub fn ask_to_reload(&self) {
        let (done, _) = std::sync::mpsc::sync_channel(1);
        // When so many wait already, one of them reads what this one would.
        let _ = self.orders.try_send(Order::Reload { done });
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
        takeover::order(&self.upgrades, UpgradeOrder { request, done });
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

    /// Waits until it has ended.
    pub fn join(mut self) {
        self.wait();
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

/// What the tasks of the control plane share. They all run on one thread.
pub(crate) struct Shared {
    /// What the node was started with. Keys that a reload may change are read from `live`.
    pub(crate) config: Config,
    /// The configuration in effect: with those keys as they are now.
    pub(crate) live: RefCell<Rc<Config>>,
    pub(crate) config_state: RefCell<ConfigState>,
    pub(crate) services: Arc<Services>,
    /// Where policies and the admin API account for what they do.
    pub(crate) audit: Arc<AuditLog>,
    pub(crate) policies: Policies,
    pub(crate) runtimes: Vec<Runtime>,
    pub(crate) permits: Permits,
    pub(crate) tls_client: Option<Arc<rustls::ClientConfig>>,
    pub(crate) tls_server: Option<Arc<rustls::ServerConfig>>,
    pub(crate) apps: RefCell<HashMap<AppId, AttachedApp>>,
    pub(crate) connections: RefCell<HashMap<ConnectionId, OpenConnection>>,
    /// Told when an app or a connection is gone.
    pub(crate) gone: Notify,
    /// Nothing new is taken, and what is open finishes.
    pub(crate) draining: Cell<bool>,
    /// When the service began, in whatever process, in milliseconds since 1970.
    pub(crate) began_unix_ms: Cell<u64>,
    /// What was done to the node as a whole.
    pub(crate) counts: observe::Counts,
    pub(crate) next_app: Cell<AppId>,
    pub(crate) next_connection: Cell<ConnectionId>,
    pub(crate) own_user: u32,
    /// Where it listens for other nodes.
    pub(crate) addresses: Vec<SocketAddr>,
    /// Before everything that is done for apps, and that they or peers can notice.
    pub(crate) gate: Gate,
    /// Before peers are let in.
    pub(crate) peers_gate: Gate,
    /// Handshakes with peers that are under way.
    pub(crate) handshakes: watch::Sender<usize>,
    /// Control sockets of processes that have not attached.
    pub(crate) unattached: RefCell<BTreeMap<u64, OwnedFd>>,
    /// Numbers requests of apps, and processes that have not attached.
    pub(crate) next_request: Cell<u64>,
    pub(crate) sockets: RefCell<OwnSockets>,
    /// The program that this process runs, where it was when it was started.
    pub(crate) program: PathBuf,
    /// Where requests for an upgrade go.
    pub(crate) upgrades: takeover::UpgradeSender,
    /// Where runtimes' events go, to know when all have been heard.
    pub(crate) events: mpsc::Sender<RuntimeEvent>,
}

/// What the control plane keeps of an app.
pub(crate) struct AttachedApp {
    pub(crate) control: Rc<Control>,
    pub(crate) requests: Rc<PendingRequests>,
    /// Whether its library takes another completion region.
    pub(crate) takes_regions: bool,
    /// Who it is.
    pub(crate) identity: Arc<AppIdentity>,
    pub(crate) runtime: usize,
    pub(crate) send_heap: SendHeap,
    pub(crate) connections: AppConnections,
    /// Tells the app's task that its runtime has given it up.
    pub(crate) given_up: Arc<Notify>,
}

/// What the control plane keeps of a connection.
pub(crate) struct OpenConnection {
    pub(crate) app: AppId,
    pub(crate) link: Arc<Link>,
    pub(crate) waker: Arc<PathWaker>,
    /// The service, where the app serves it.
    pub(crate) serves: Option<String>,
    /// Where it is, as its policies are told.
    pub(crate) site: Arc<Site>,
    /// How often its engines were changed: its runtime counts, this is the last that was heard of.
    pub(crate) revision: u64,
    /// Its policies, in order.
    pub(crate) chain: Vec<Arc<Instance>>,
    /// Policies that apply to it and that it goes without, as they failed or did not fit.
    pub(crate) without: Vec<Tag>,
    /// The version of its transport's code.
    pub(crate) transport_version: u32,
    /// Why it has not gone over to the transport that its route names, if it should have.
    pub(crate) stays_because: Option<String>,
    /// In which form messages go over its transport.
    pub(crate) encoding: provost_marshalling::Encoding,
    /// What it has beside that.
    pub(crate) terms: Terms,
}

/// What a process that takes over makes a connection's engines with, beside their states.
#[derive(Clone)]
pub(crate) struct Terms {
    pub(crate) schema: Arc<BoundSchema>,
    pub(crate) message_bytes_max: u32,
    pub(crate) calls_max: u32,
    /// For a server's end: the request that offered the service, and its quota.
    pub(crate) offer: Option<(u64, Arc<CallQuota>)>,
}

impl Shared {
    /// The configuration in effect.
    pub(crate) fn live(&self) -> Rc<Config> {
        Rc::clone(&self.live.borrow())
    }

    /// Waits until no handshake is under way.
    pub(crate) async fn no_handshakes(&self) {
        // Its sender is beside us.
        let _ = self
            .handshakes
            .subscribe()
            .wait_for(|under_way| *under_way == 0)
            .await;
    }

    /// A number for a connection that no other has had.
    pub(crate) fn new_connection(&self) -> ConnectionId {
        self.next_connection.replace(self.next_connection.get() + 1)
    }
}

impl OpenConnection {
    /// Asks the connection to finish its calls and end.
    pub(crate) fn drain(&self) {
        self.link.drain();
        self.waker.wake();
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
    Write {
        done: std::sync::mpsc::SyncSender<Result<PathBuf, ReloadError>>,
    },
}

/// Carries out what the program around the node asks for.
async fn obey(shared: Rc<Shared>, mut orders: mpsc::Receiver<Order>) {
    while let Some(order) = orders.recv().await {
        let shared = Rc::clone(&shared);
        tokio::task::spawn_local(async move {
            // Whoever asked may have gone.
            match order {
                Order::Change { change, mode, done } => {
                    let _ = done.send(policies::carry_out(&shared, change, mode).await);
                }
                Order::Reload { done } => {
                    let _ = done.send(reload::reload(&shared).await);
                }
                Order::Write { done } => {
                    let _ = done.send(reload::write_back(&shared).await);
                }
            }
        });
    }
}

type Started = std::sync::mpsc::SyncSender<Result<Vec<SocketAddr>, StartError>>;

fn run(parts: NodeParts, origin: Origin, asked: Asked, started: Started) -> NodeEnd {
    let threads = parts.config.limits.handshakes + BLOCKING_THREADS_SPARE;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(threads)
        .thread_stack_size(STACK_BYTES)
        .thread_keep_alive(BLOCKING_KEEPALIVE)
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
    let end = local.block_on(&runtime, serve(parts, origin, asked, started));
    drop(local);
    // Handshakes that are still under way have deadlines of their own; nobody waits for them.
    runtime.shutdown_background();
    end
}

async fn serve(parts: NodeParts, origin: Origin, mut asked: Asked, started: Started) -> NodeEnd {
    let upgrades = asked.own_upgrades.clone();
    let begun = match &origin {
        Origin::Fresh => start(parts, upgrades),
        Origin::Seat(seat) => succeed(parts, upgrades, seat),
    };
    let (shared, listeners, came, events) = match begun {
        Ok(begun) => begun,
        Err(error) => {
            if let Origin::Seat(seat) = &origin {
                seat.decline(&error.to_string());
            }
            let _ = started.send(Err(error));
            return NodeEnd::Stopped;
        }
    };
    drop(origin);
    let paths = listeners.paths(&shared.config);
    for (runtime, apps) in shared.runtimes.iter().zip(came.adopted) {
        // Its inbox is empty.
        let _ = runtime.tell(Command::Adopt(Box::new(apps))).await;
    }
    for (app, following) in came.resumed {
        tokio::task::spawn_local(apps::resume(Rc::clone(&shared), app, following));
    }
    let admin = listeners
        .admin
        .map(|socket| admin::serve(Rc::clone(&shared), socket));
    let http = listeners.http.map(|listener| {
        tracing::info!(address = %listener.address(), "serving metrics and health");
        tokio::task::spawn_local(observe::serve(Rc::clone(&shared), listener))
    });
    if let Ok(Some((collector, interval))) = shared.config.observe.collector() {
        tokio::task::spawn_local(observe::export(Rc::clone(&shared), collector, interval));
    }
    let mut accepting = vec![tokio::task::spawn_local(apps::accept(
        Rc::clone(&shared),
        listeners.control,
        came.unattached,
    ))];
    for listener in listeners.peers {
        accepting.push(tokio::task::spawn_local(listen::accept(
            Rc::clone(&shared),
            listener,
        )));
    }
    tokio::task::spawn_local(hear(Rc::clone(&shared), events));
    tokio::task::spawn_local(obey(Rc::clone(&shared), asked.orders));
    tracing::info!(
        node = shared.config.node.name,
        socket = %shared.config.control.socket.display(),
        listeners = ?shared.addresses,
        runtimes = shared.runtimes.len(),
        apps = shared.apps.borrow().len(),
        "serving"
    );
    let _ = started.send(Ok(shared.addresses.clone()));
    let how = loop {
        let order = tokio::select! {
            how = wait_for_shutdown(&mut asked.shutdown, Shutdown::Drain) => break how,
            Some(order) = asked.upgrades.recv() => order,
        };
        // Not to be left half way, whatever is asked for meanwhile.
        if let Some(end) = be_replaced(&shared, order).await {
            if let NodeEnd::Replaced { process } = end
                && *asked.shutdown.borrow() != Shutdown::Running
            {
                takeover::pass_shutdown_on(process);
            }
            return end;
        }
    };
    for task in accepting {
        task.abort();
    }
    shared.sockets.take();
    let _ = std::fs::remove_file(&shared.config.control.socket);
    shared.services.stop_accepting();
    shared.draining.set(true);
    if how == Shutdown::Drain {
        drain(&shared, &mut asked.shutdown).await;
    }
    if let Some(admin) = admin {
        admin.abort();
    }
    if let Some(http) = http {
        http.abort();
    }
    for path in &paths[1..] {
        let _ = std::fs::remove_file(path);
    }
    tracing::info!(connections = shared.connections.borrow().len(), "stopped");
    NodeEnd::Stopped
}

/// Has another process take over. On success everything here is left as it is; `None`: it goes on.
async fn be_replaced(shared: &Rc<Shared>, order: UpgradeOrder) -> Option<NodeEnd> {
    let UpgradeOrder { request, done } = order;
    match takeover::give(shared, &request).await {
        Ok(replaced) => {
            let process = replaced.report.process;
            let _ = done.send(Ok(replaced.report.clone()));
            replaced.leave();
            // Whoever asked at the admin API still gets its answer.
            tokio::time::sleep(ANSWER_PAUSE).await;
            Some(NodeEnd::Replaced { process })
        }
        Err(error) => {
            let is_lost = matches!(error, UpgradeError::Lost { .. });
            match is_lost {
                true => tracing::error!(%error, "nobody serves any more"),
                false => tracing::error!(%error, "the service goes on in this process"),
            }
            shared.counts.takeovers_undone.add_one();
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
async fn drain(shared: &Shared, asked: &mut watch::Receiver<Shutdown>) {
    let drain_ms = shared.live().timeouts.drain_ms;
    let limit = Duration::from_millis(drain_ms);
    tracing::info!(
        connections = shared.connections.borrow().len(),
        limit_ms = drain_ms,
        "draining"
    );
    for connection in shared.connections.borrow().values() {
        connection.drain();
    }
    let all_gone = async {
        while !shared.connections.borrow().is_empty() {
            shared.gone.notified().await;
        }
    };
    tokio::select! {
        () = all_gone => {}
        () = tokio::time::sleep(limit) => tracing::warn!("calls in flight are cut short: timeouts.drain_ms is over"),
        _ = wait_for_shutdown(asked, Shutdown::Now) => {}
    }
}

type Begun = (
    Rc<Shared>,
    Listeners,
    takeover::Restored,
    mpsc::Receiver<RuntimeEvent>,
);

fn start(parts: NodeParts, upgrades: takeover::UpgradeSender) -> Result<Begun, StartError> {
    let (peers, addresses) = sockets::open_peers(&parts.config)?;
    let (shared, events) = make(parts, addresses, upgrades)?;
    let listeners = Listeners::open(&shared.config, peers)?;
    shared.sockets.replace(listeners.duplicate(&shared.config)?);
    Ok((shared, listeners, takeover::Restored::default(), events))
}

/// Begins in the place of another process.
fn succeed(parts: NodeParts, upgrades: takeover::UpgradeSender, seat: &Seat) -> Result<Begun, StartError> {
    let prepared = takeover::begin(seat, &parts.config)?;
    let (shared, events) = make(parts, prepared.addresses.clone(), upgrades)?;
    let taken = takeover::complete(seat, prepared, &shared)?;
    let listeners = Listeners::take_over(&shared.config, taken.sockets)?;
    shared.sockets.replace(listeners.duplicate(&shared.config)?);
    seat.commit()?;
    reload::apply_configured(&shared, &taken.configured);
    Ok((shared, listeners, taken.restored, events))
}

/// Everything but the sockets.
fn make(
    parts: NodeParts,
    addresses: Vec<SocketAddr>,
    upgrades: takeover::UpgradeSender,
) -> Result<(Rc<Shared>, mpsc::Receiver<RuntimeEvent>), StartError> {
    let NodeParts {
        config,
        kinds,
        sources,
    } = parts;
    let tls = tls_configs(&config)?;
    let limits = Limits {
        message_bytes_max: config.limits.message_bytes,
        stream_window_bytes: STREAM_WINDOW_BYTES,
        calls_in_flight_max: config.limits.calls_in_flight as u32,
    };
    let mut schemas = SchemaStore::new(config.limits.schemas, config.schemas.cache_dir.clone());
    for path in &config.schemas.prefetch {
        let services = schemas.prefetch(path)?;
        tracing::info!(path = %path.display(), services, "loaded schemas");
    }
    let audit = Arc::new(AuditLog::start(&config.node.name, &config.observe.audit_file)?);
    let policies = Policies::new(
        Arc::new(kinds),
        &config.node.name,
        Arc::clone(&audit) as Arc<dyn EventSink>,
    );
    policies::load_engines(policies.registry(), &config.engines).map_err(StartError::Engine)?;
    policies.begin(config.all_attachments())?;
    let (events_in, events) = mpsc::channel(EVENTS_MAX);
    let runtimes = start_runtimes(&config, &events_in)?;
    let shared = Shared {
        services: Arc::new(Services::new(schemas, limits)),
        audit,
        policies,
        live: RefCell::new(Rc::new(config.clone())),
        config_state: RefCell::new(ConfigState {
            sources,
            read_at: SystemTime::now(),
            error: None,
        }),
        runtimes,
        permits: Permits::new(config.limits.connections, config.limits.connections_per_app),
        tls_client: tls.client,
        tls_server: tls.server,
        apps: RefCell::default(),
        connections: RefCell::default(),
        gone: Notify::new(),
        draining: Cell::new(false),
        began_unix_ms: Cell::new(unix_ms()),
        counts: observe::Counts::default(),
        next_app: Cell::new(1),
        next_connection: Cell::new(1),
        own_user: rustix::process::geteuid().as_raw(),
        addresses,
        gate: Gate::new(),
        peers_gate: Gate::new(),
        handshakes: watch::Sender::new(0),
        unattached: RefCell::default(),
        next_request: Cell::new(1),
        sockets: RefCell::default(),
        program: takeover::own_program(),
        upgrades,
        events: events_in,
        config,
    };
    Ok((Rc::new(shared), events))
}

/// Milliseconds since 1970.
pub(crate) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

#[derive(Default)]
struct TlsConfigs {
    client: Option<Arc<rustls::ClientConfig>>,
    server: Option<Arc<rustls::ServerConfig>>,
}

fn tls_configs(config: &Config) -> Result<TlsConfigs, StartError> {
    let Some(files) = &config.tls else {
        return Ok(TlsConfigs::default());
    };
    let tls = TlsConfig {
        ca: files.ca.clone(),
        cert: files.cert.clone(),
        key: files.key.clone(),
    };
    Ok(TlsConfigs {
        client: Some(tls.client()?),
        server: Some(tls.server()?),
    })
}

fn start_runtimes(config: &Config, events: &mpsc::Sender<RuntimeEvent>) -> Result<Vec<Runtime>, StartError> {
    let options = RuntimeOptions {
        spin_ns: config.runtime.spin_us * 1000,
        waiting: match config.runtime.busy_poll {
            true => Waiting::BusyPolls,
            false => Waiting::Sleeps,
        },
        completion_stall_ns: config.timeouts.completion_stall_ms * 1_000_000,
    };
    let start = |at: usize| Runtime::start(&format!("runtime-{at}"), options, events.clone());
    (0..config.runtime.threads)
        .map(start)
        .collect::<io::Result<_>>()
        .map_err(|source| StartError::System {
            what: "a runtime thread",
            source,
        })
}

/// Hears what runtimes have to tell.
async fn hear(shared: Rc<Shared>, mut events: mpsc::Receiver<RuntimeEvent>) {
    while let Some(event) = events.recv().await {
        match event {
            RuntimeEvent::Faulted { app, fault } => {
                let apps = shared.apps.borrow();
                if let Some(attached) = apps.get(&app) {
                    tracing::warn!(app, name = %attached.identity.name, %fault, "detaching an app that is at fault");
                    attached.given_up.notify_one();
                }
            }
            RuntimeEvent::Detached { app } => {
                let removed = shared.apps.borrow_mut().remove(&app);
                shared.forget_connections(|connection| connection.app == app);
                if let Some(attached) = removed {
                    shared.runtimes[attached.runtime].remove_app();
                    tracing::info!(app, name = %attached.identity.name, "detached");
                }
            }
            RuntimeEvent::Closed {
                id,
                app,
                connection,
                end,
            } => {
                shared.forget_connection(id);
                tracing::info!(app, connection, code = %end.code, reason = end.reason, "connection ended");
            }
            RuntimeEvent::EngineFailed(failed) => policies::heal::engine_failed(&shared, *failed),
        }
        shared.gone.notify_waiters();
        shared.gone.notify_one();
    }
}
