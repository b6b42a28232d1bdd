//! A node's service: its control plane, its runtimes, and how it starts and stops.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use provost_datapath::Link;
use provost_engine::{AppIdentity, EventSink, NoEvents, Site};
use provost_frontend::SendHeap;
use provost_shm::PacketListener;
use provost_transport_local::PeerWake;
use provost_transport_tcp::{Limits, TlsConfig, TlsConfigError};
use provost_wire::limits::STREAM_WINDOW_BYTES;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::LocalSet;

use crate::admin::AdminSocket;
use crate::config::{Config, Sources};
use crate::observe::{AuditLog, HttpListener, ObserveError};
use crate::permits::{AppConnections, Permits};
use crate::policies::{Change, ChangeError, Instance, Mode, Policies, Registry, Report};
use crate::reload::{ConfigState, ReloadError, Reloaded};
use crate::runtime::{AppId, ConnectionId, PathWaker, Runtime, RuntimeEvent, RuntimeOptions, Tag, Waiting};
use crate::schemas::{SchemaStore, StoreError};
use crate::services::Services;
use crate::{admin, apps, listen, observe, policies, reload};

/// Events of runtimes that wait for the control plane, at most.
const EVENTS_MAX: usize = 1024;
/// Changes that the program around the node asks for and that wait, at most.
const ORDERS_MAX: usize = 64;
/// Stack of the control plane's thread and of those on which handshakes run, in bytes.
const STACK_BYTES: usize = 512 << 10;
/// Threads on which handshakes run, beside one for each that the configuration allows: name look-ups.
const BLOCKING_THREADS_SPARE: usize = 64;
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
    addresses: Vec<SocketAddr>,
    thread: Option<JoinHandle<()>>,
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
        let (shutdown, asked) = watch::channel(Shutdown::Running);
        let (orders, ordered) = mpsc::channel(ORDERS_MAX);
        let (started, start) = std::sync::mpsc::sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("control".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || run(parts, asked, ordered, started))
            .map_err(|source| StartError::System {
                what: "the control plane's thread",
                source,
            })?;
        let addresses = start.recv().map_err(|_| StartError::Died)??;
        Ok(Node {
            shutdown,
            orders,
            addresses,
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
    pub(crate) next_app: Cell<AppId>,
    pub(crate) next_connection: Cell<ConnectionId>,
    pub(crate) own_user: u32,
    /// Where it listens for other nodes.
    pub(crate) addresses: Vec<SocketAddr>,
}

/// What the control plane keeps of an app.
pub(crate) struct AttachedApp {
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
    /// Its policies, in order.
    pub(crate) chain: Vec<Arc<Instance>>,
    /// Policies that apply to it and that it goes without, as they failed or did not fit.
    pub(crate) without: Vec<Tag>,
    /// The version of its transport's code.
    pub(crate) transport_version: u32,
    /// In which form messages go over its transport.
    pub(crate) encoding: provost_marshalling::Encoding,
}

impl Shared {
    /// The configuration in effect.
    pub(crate) fn live(&self) -> Rc<Config> {
        Rc::clone(&self.live.borrow())
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

fn run(parts: NodeParts, asked: watch::Receiver<Shutdown>, orders: mpsc::Receiver<Order>, started: Started) {
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
            return;
        }
    };
    let local = LocalSet::new();
    local.block_on(&runtime, serve(parts, asked, orders, started));
    drop(local);
    // Handshakes that are still under way have deadlines of their own; nobody waits for them.
    runtime.shutdown_background();
}

async fn serve(
    parts: NodeParts,
    mut asked: watch::Receiver<Shutdown>,
    orders: mpsc::Receiver<Order>,
    started: Started,
) {
    let (shared, listeners, addresses, events) = match start(parts) {
        Ok(begun) => begun,
        Err(error) => {
            let _ = started.send(Err(error));
            return;
        }
    };
    let admin_path = listeners.admin.as_ref().map(|admin| admin.path().to_path_buf());
    let admin = listeners
        .admin
        .map(|socket| admin::serve(Rc::clone(&shared), socket));
    let http = listeners.http.map(|listener| {
        tracing::info!(address = %listener.address(), "serving metrics and health");
        tokio::task::spawn_local(observe::serve(Rc::clone(&shared), listener))
    });
    let mut accepting = vec![tokio::task::spawn_local(apps::accept(
        Rc::clone(&shared),
        listeners.control,
    ))];
    for listener in listeners.tcp {
        accepting.push(tokio::task::spawn_local(listen::accept(
            Rc::clone(&shared),
            listener,
        )));
    }
    tokio::task::spawn_local(hear(Rc::clone(&shared), events));
    tokio::task::spawn_local(obey(Rc::clone(&shared), orders));
    tracing::info!(
        node = shared.config.node.name,
        socket = %shared.config.control.socket.display(),
        listeners = ?addresses,
        runtimes = shared.runtimes.len(),
        "serving"
    );
    let _ = started.send(Ok(addresses));
    let how = wait_for_shutdown(&mut asked, Shutdown::Drain).await;
    for task in accepting {
        task.abort();
    }
    let _ = std::fs::remove_file(&shared.config.control.socket);
    shared.services.stop_accepting();
    shared.draining.set(true);
    if how == Shutdown::Drain {
        drain(&shared, &mut asked).await;
    }
    if let Some(admin) = admin {
        admin.abort();
    }
    if let Some(http) = http {
        http.abort();
    }
    if let Some(path) = admin_path {
        let _ = std::fs::remove_file(path);
    }
    tracing::info!(connections = shared.connections.borrow().len(), "stopped");
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

struct Listeners {
    control: PacketListener,
    admin: Option<AdminSocket>,
    tcp: Vec<tokio::net::TcpListener>,
    http: Option<HttpListener>,
}

type Begun = (
    Rc<Shared>,
    Listeners,
    Vec<SocketAddr>,
    mpsc::Receiver<RuntimeEvent>,
);

fn start(parts: NodeParts) -> Result<Begun, StartError> {
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
    // The configuration was checked: what is there is an address.
    let address = config.observe.address().unwrap_or_default();
    let http = address.as_ref().map(HttpListener::open).transpose()?;
    let policies = Policies::new(
        Arc::new(kinds),
        &config.node.name,
        Arc::clone(&audit) as Arc<dyn EventSink>,
    );
    policies::load_engines(policies.registry(), &config.engines).map_err(StartError::Engine)?;
    policies.begin(config.all_attachments())?;
    let (events_in, events) = mpsc::channel(EVENTS_MAX);
    let runtimes = start_runtimes(&config, &events_in)?;
    let (tcp, addresses) = open_listeners(&config)?;
    let path = &config.control.socket;
    let control = PacketListener::bind(path, config.socket_mode()).map_err(|source| StartError::Socket {
        path: path.clone(),
        source,
    })?;
    let admin = admin::open(&config).map_err(|source| StartError::AdminSocket {
        path: config.admin.socket_beside(&config.control.socket),
        source,
    })?;
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
        next_app: Cell::new(1),
        next_connection: Cell::new(1),
        own_user: rustix::process::geteuid().as_raw(),
        addresses: addresses.clone(),
        config,
    };
    Ok((
        Rc::new(shared),
        Listeners {
            control,
            admin,
            tcp,
            http,
        },
        addresses,
        events,
    ))
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

fn open_listeners(config: &Config) -> Result<(Vec<tokio::net::TcpListener>, Vec<SocketAddr>), StartError> {
    let mut listeners = Vec::new();
    let mut addresses = Vec::new();
    for listener in &config.listeners {
        let open = || -> io::Result<_> {
            let opened = std::net::TcpListener::bind(listener.address)?;
            opened.set_nonblocking(true)?;
            let address = opened.local_addr()?;
            Ok((tokio::net::TcpListener::from_std(opened)?, address))
        };
        let (opened, address) = open().map_err(|source| StartError::Listener {
            address: listener.address,
            source,
        })?;
        listeners.push(opened);
        addresses.push(address);
    }
    Ok((listeners, addresses))
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
                shared
                    .connections
                    .borrow_mut()
                    .retain(|_, connection| connection.app != app);
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
                shared.connections.borrow_mut().remove(&id);
                tracing::info!(app, connection, code = %end.code, reason = end.reason, "connection ended");
            }
            RuntimeEvent::EngineFailed(failed) => policies::heal::engine_failed(&shared, *failed),
        }
        shared.gone.notify_waiters();
        shared.gone.notify_one();
    }
}
