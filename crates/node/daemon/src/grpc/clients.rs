//! The clients that have come: from their first byte to the end of their connections.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use provost_datapath::{BodyForm, CompressedMessages};
use provost_engine::AppIdentity;
use provost_frontend::SendHeap;
use provost_frontend_grpc::{
    ByteCarrier, GrpcPort, GrpcPortParts, ServiceBinding, ServiceRefusal, WantedService,
};
use provost_grpc::{CallCounts, GrpcConfig};
use provost_http2::{Http2Config, KeepalivePolicy};
use provost_runtime::{CallerEnding, NewCaller, ServiceAnswer};
use provost_shm::now_ns;
use provost_wire::Code;
use tokio::sync::{Notify, Semaphore};
use tokio::task::AbortHandle;
use tracing::Instrument;

use super::GrpcAccess;
use super::listeners::GrpcListener;
use super::redirection::ClientRedirection;
use super::socket::{ArrivedClient, ClientParty};
use crate::access::{self, UNKNOWN_USER};
use crate::admission;
use crate::app_process::AppProcess;
use crate::app_registry::{AttachedApp, GoneSignal};
use crate::authority;
use crate::compose::{AppEndpoint, JudgedConnections};
use crate::config::{Config, GrpcListenerConfig};
use crate::connection_ends::ConnectionEnds;
use crate::log::{self, EventSubject};
use crate::permits::AppConnections;
use crate::places::{BoundedPlaces, HeldPlace, PlaceBounds};
use crate::policies::matches;
use crate::quiesce_barrier::QuiesceGuard;
use crate::refusal::Refusal;
use crate::runtime::{AppId, RuntimeCommand};

/// Clients that have connected and were not admitted yet, as they have called nothing. When there are more, one of the user or
/// the network that has most of them makes room.
const SILENT: PlaceBounds = PlaceBounds {
    all: 512,
    per_party: 512,
    grace: Duration::ZERO,
};
/// Services of one client that are looked for at once; more wait.
const LOOK_UPS_MAX: usize = 16;
/// What a client may send ahead of the node on all calls of a connection: the more it may have at a time, the less on each.
const SENT_AHEAD_BYTES_MAX: u32 = 128 << 20;
/// The same of one call. The least is what HTTP/2 has without being told.
const SENT_AHEAD_BYTES_OF_CALL: RangeInclusive<u32> = 65_535..=1 << 20;
/// What a client may send ahead on all calls together, at least.
const CONNECTION_WINDOW_BYTES_MIN: u32 = 4 << 20;
/// Messages of a client that may come whole though they are larger than that: so many bytes, or two of the largest.
const LARGE_MESSAGE_BYTES: usize = 16 << 20;
const LARGE_MESSAGES: usize = 2;
/// How long the handshakes of clients may take that are under way when all are told to go.
const HANDSHAKES_WAIT: Duration = Duration::from_secs(1);
/// How long clients that were told to go, and had their time, may take to be gone.
const LEAVING_WAIT: Duration = Duration::from_millis(500);

/// All clients that are connected.
pub(super) struct ClientRegistry {
    connected: RefCell<HashMap<AppId, Rc<GrpcClient>>>,
    pub(super) silent: Arc<BoundedPlaces<ClientParty>>,
    /// Told when one has gone.
    gone: Notify,
}

/// A client that has connected.
pub(crate) struct GrpcClient {
    pub(super) id: AppId,
    listener: RefCell<Rc<GrpcListener>>,
    /// The app that it is, if it may be.
    pub(super) name: String,
    /// The runtime that has its connection.
    pub(crate) runtime: usize,
    pub(super) process: AppProcess,
    /// Who it has proved to be by a certificate; empty for nobody.
    pub(super) proved: Arc<str>,
    pub(super) origin: String,
    /// Where it was going, if it was redirected here.
    redirection: Option<ClientRedirection>,
    /// Between which addresses its connection is.
    pub(super) ends: ConnectionEnds,
    /// What has become of its calls.
    pub(super) counts: Arc<CallCounts>,
    send_heap: SendHeap,
    /// Set by its first call that was let pass.
    pub(super) admitted: RefCell<Option<Rc<AttachedApp>>>,
    is_admitted: Notify,
    look_ups: Semaphore,
    attending: RefCell<Option<AbortHandle>>,
    pub(super) is_told_to_go: Cell<bool>,
    /// Whether a hot restart carries its connection.
    pub(super) carriage: CarriedConnection,
}

/// Which clients a hot restart carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CarriedClients {
    /// Those whose connections can be handed over.
    AllThatCanBe,
    /// The successor is of a version that goes on with none.
    None,
}

/// Whether a hot restart carries a client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CarriedConnection {
    Carried,
    /// A successor cannot go on with what its bytes are within.
    ToldToGo,
}

/// What is known of a client that becomes one of those that are connected.
pub(super) struct KnownClient {
    pub(super) id: AppId,
    pub(super) listener: Rc<GrpcListener>,
    pub(super) name: String,
    pub(super) process: AppProcess,
    pub(super) proved: Arc<str>,
    pub(super) origin: String,
    pub(super) redirection: Option<ClientRedirection>,
    pub(super) ends: ConnectionEnds,
    pub(super) counts: Arc<CallCounts>,
    pub(super) send_heap: SendHeap,
    pub(super) carriage: CarriedConnection,
}

impl GrpcClient {
    pub(super) fn new(known: KnownClient, runtime: usize) -> GrpcClient {
        GrpcClient {
            id: known.id,
            listener: RefCell::new(known.listener),
            runtime,
            name: known.name,
            process: known.process,
            proved: known.proved,
            origin: known.origin,
            redirection: known.redirection,
            ends: known.ends,
            counts: known.counts,
            send_heap: known.send_heap,
            carriage: known.carriage,
            admitted: RefCell::new(None),
            is_admitted: Notify::new(),
            look_ups: Semaphore::new(LOOK_UPS_MAX),
            attending: RefCell::new(None),
            is_told_to_go: Cell::new(false),
        }
    }
}

impl ClientRegistry {
    pub(super) fn new() -> ClientRegistry {
        ClientRegistry {
            connected: RefCell::default(),
            silent: BoundedPlaces::new(SILENT),
            gone: Notify::new(),
        }
    }

    pub(super) fn find(&self, id: AppId) -> Option<Rc<GrpcClient>> {
        self.connected.borrow().get(&id).map(Rc::clone)
    }

    pub(super) fn insert(&self, client: &Rc<GrpcClient>) {
        self.connected.borrow_mut().insert(client.id, Rc::clone(client));
    }

    pub(super) fn all(&self) -> Vec<Rc<GrpcClient>> {
        self.connected.borrow().values().map(Rc::clone).collect()
    }
}

// How one comes, and how it goes.
impl GrpcAccess {
    /// Gives a client that has come to a runtime, if there is a place for it.
    pub(super) async fn let_in(self: &Rc<Self>, listener: &Rc<GrpcListener>, arrived: ArrivedClient) {
        // Nobody has a grace.
        let Some(place) = self.clients.silent.enter(arrived.party) else {
            return;
        };
        let name = app_name(&self.config.live(), &listener.config, &arrived.process);
        let send_heap = self.new_share(arrived.process.credentials.uid);
        let carriage = match arrived.redirection {
            None => CarriedConnection::of(&*arrived.carrier),
            // A successor would not know where it was going.
            Some(_) => CarriedConnection::ToldToGo,
        };
        let counts = Arc::default();
        let parts = self.port_parts(listener, arrived.carrier, &send_heap, &counts);
        let port = Box::new(GrpcPort::new(parts, now_ns()));
        let runtime = self.runtimes.place(&name);
        let known = KnownClient {
            id: self.apps.new_id(),
            listener: Rc::clone(listener),
            name,
            process: arrived.process,
            proved: arrived.proved.into(),
            origin: arrived.origin,
            redirection: arrived.redirection,
            ends: arrived.ends,
            counts,
            send_heap,
            carriage,
        };
        let client = Rc::new(GrpcClient::new(known, runtime));
        let runtime = &self.runtimes[client.runtime];
        runtime.place_app();
        // Before its runtime can say anything of it.
        self.clients.insert(&client);
        let new = Box::new(NewCaller { app: client.id, port });
        if runtime.send(RuntimeCommand::AttachCaller(new)).await.is_err() {
            self.forget(client.id);
            runtime.remove_app();
            return;
        }
        tracing::debug!(app = client.id, origin = client.origin, "a gRPC client has come");
        self.begin_attending(&client, Some(place));
    }

    /// From now on a client is ended when it has to be. One that was admitted needs no place among the silent.
    pub(super) fn begin_attending(
        self: &Rc<Self>,
        client: &Rc<GrpcClient>,
        place: Option<HeldPlace<ClientParty>>,
    ) {
        let attending = Rc::clone(self).attend(Rc::clone(client), place);
        let attending = tokio::task::spawn_local(attending).abort_handle();
        client.attending.replace(Some(attending));
    }

    /// The share of private memory of a user's client, which has no heap.
    pub(super) fn new_share(&self, user: u32) -> SendHeap {
        self.no_heap.clone().counted_in(&self.apps.private_bytes_of(user))
    }

    /// What the port of a client of a listener is made of.
    pub(super) fn port_parts(
        &self,
        listener: &GrpcListener,
        carrier: Box<dyn ByteCarrier>,
        send_heap: &SendHeap,
        counts: &Arc<CallCounts>,
    ) -> GrpcPortParts {
        let live = self.config.live();
        GrpcPortParts {
            carrier,
            config: connection_config(&live, &listener.config),
            compression: listener.config.compression.encoding(),
            counts: Arc::clone(counts),
            share: Arc::clone(send_heap.share()),
            receive_heap_bytes: live.limits.receive_heap_bytes,
            node_methods: listener.methods(),
        }
    }

    /// Ends a client that has lost its place, or that is not to be here any more.
    async fn attend(self: Rc<Self>, client: Rc<GrpcClient>, place: Option<HeldPlace<ClientParty>>) {
        let is_admitted = match place {
            None => true,
            Some(mut place) => tokio::select! {
                biased;
                () = client.is_admitted.notified() => true,
                () = place.lost() => false,
            },
        };
        let app = client.admitted.borrow().clone();
        if let (true, Some(app)) = (is_admitted, app) {
            app.given_up.notified().await;
        } else {
            tracing::debug!(
                app = client.id,
                "a gRPC client has called nothing, and others have come"
            );
        }
        // What comes at the end takes memory then: every client has such a task, and most only wait.
        let ending = async move {
            let _guard = self.connector.quiesce_barrier.enter().await;
            self.detach(&client).await;
        };
        Box::pin(ending).await;
    }

    async fn detach(&self, client: &GrpcClient) {
        client.give_up();
        let command = || RuntimeCommand::Detach(client.id);
        // Taken again and again: a runtime that takes no commands for seconds gets some more.
        while self.runtimes[client.runtime].send(command()).await.is_err() {
            tracing::error!(app = client.id, "a runtime thread takes no commands");
        }
    }

    /// A client's connection has ended: what is under way on its behalf ends too.
    pub(crate) fn connection_ended(&self, id: AppId, reason: &str) {
        let Some(client) = self.clients.find(id) else {
            return;
        };
        client.give_up();
        if log::may_log(EventSubject::User(client.process.credentials.uid)) {
            let (name, reason) = (&client.name, &*log::cut(reason));
            tracing::info!(app = id, name, reason, "a gRPC client's connection has ended");
        }
    }

    /// Where a client comes from.
    pub(crate) fn origin_of(&self, id: AppId) -> Option<String> {
        self.clients.find(id).map(|client| client.origin.clone())
    }

    /// The clients of a listener that are connected.
    pub(super) fn clients_of(&self, listener: &Rc<GrpcListener>) -> Vec<Rc<GrpcClient>> {
        let mut clients = self.clients.all();
        clients.retain(|client| Rc::ptr_eq(&client.listener(), listener));
        clients
    }

    /// How many clients are connected to each listener.
    pub(crate) fn clients_by_listener(&self) -> BTreeMap<String, usize> {
        let mut counts = self.listener_names();
        for client in self.clients.connected.borrow().values() {
            *counts.entry(client.listener().config.name.clone()).or_default() += 1;
        }
        counts
    }

    /// Nothing of a client is left at its runtime.
    pub(crate) fn forget(&self, id: AppId) -> Option<Rc<GrpcClient>> {
        let client = self.clients.connected.borrow_mut().remove(&id)?;
        if let Some(attending) = client.attending.take() {
            attending.abort();
        }
        client.give_up();
        let listener = client.listener();
        let ended = &listener.ended_calls;
        ended.set(ended.get().plus(client.counts.now()));
        self.watches.forget_client(id);
        self.clients.gone.notify_one();
        Some(client)
    }
}

// What one calls.
impl GrpcAccess {
    /// Looks for a service that a client calls, and tells its port.
    pub(crate) fn look_for(self: &Rc<Self>, id: AppId, wanted: WantedService) {
        let Some(client) = self.clients.find(id) else {
            return;
        };
        let access = Rc::clone(self);
        let span = tracing::info_span!("request", app = id);
        let looking = async move {
            // Never closed, so that this waits for a permit.
            let _turn = client.look_ups.acquire().await;
            let mut guard = None;
            let found = access.find_service(&client, &wanted, &mut guard).await;
            let _guard = match guard {
                Some(guard) => guard,
                None => access.connector.quiesce_barrier.enter().await,
            };
            let answer = ServiceAnswer {
                app: id,
                service: wanted.service,
                found: found.map_err(|refusal| ServiceRefusal {
                    code: refusal.code,
                    message: refusal.message,
                }),
            };
            let command = RuntimeCommand::AnswerService(Box::new(answer));
            if let Err(error) = access.runtimes[client.runtime].send(command).await {
                tracing::error!(%error, "a gRPC client was not answered");
            }
        };
        tokio::task::spawn_local(looking.instrument(span));
    }

    async fn find_service<'a>(
        &'a self,
        client: &GrpcClient,
        wanted: &WantedService,
        guard: &mut Option<QuiesceGuard<'a>>,
    ) -> Result<ServiceBinding, Refusal> {
        let app = self.admitted(client)?;
        let connection = self.connector.connect_client(&app, wanted, guard).await?;
        let schema = &connection.schema;
        Ok(ServiceBinding {
            connection: connection.number,
            tables: Arc::clone(&schema.tables),
            methods: Arc::clone(&schema.methods().bindings),
            methods_known: schema.methods_known(),
            message_bytes_max: connection.limits.message_bytes_max,
            compressed: connection.limits.compressed,
        })
    }

    /// The app that a client is. With its first call it becomes one, if it may.
    pub(super) fn admitted(&self, client: &GrpcClient) -> Result<Rc<AttachedApp>, Refusal> {
        if let Some(app) = &*client.admitted.borrow() {
            return Ok(Rc::clone(app));
        }
        if self.clients.find(client.id).is_none() {
            // Nobody would take away what it became.
            return Err(Refusal::new(Code::Cancelled, "the client is gone"));
        }
        let admitted = self.admit(client);
        let (uid, name, origin) = (client.process.credentials.uid, &client.name, &client.origin);
        match &admitted {
            Ok(app) => {
                client.admitted.replace(Some(Rc::clone(app)));
                client.is_admitted.notify_one();
                if log::may_log(EventSubject::User(uid)) {
                    let listener = &client.listener().config.name;
                    tracing::info!(app = client.id, name, origin, listener, "a gRPC client calls");
                }
            }
            Err(refusal) if log::may_log(EventSubject::User(uid)) => {
                let reason = &*log::cut(&refusal.message);
                tracing::warn!(name, origin, reason, "refused a gRPC client");
            }
            Err(_) => {}
        }
        admitted
    }

    /// Its workload identity: what its certificate proves goes before what is configured.
    fn workload(&self, live: &Config, client: &GrpcClient) -> Arc<str> {
        if client.proved.is_empty() {
            self.connector.callers.workload(live, &client.name)
        } else {
            Arc::clone(&client.proved)
        }
    }

    fn admit(&self, client: &GrpcClient) -> Result<Rc<AttachedApp>, Refusal> {
        let live = self.config.live();
        let mut process = client.process.clone();
        let credentials = process.credentials.clone();
        if credentials.uid != UNKNOWN_USER {
            access::check(&live.control, access::own_user(), &credentials)
                .map_err(|denied| Refusal::new(Code::PermissionDenied, self.config.refusal(denied)))?;
        }
        check_identity(&client.listener().config, &client.proved)?;
        if let Some(redirection) = &client.redirection {
            redirection.check_is_of_others()?;
        }
        admission::check_room(&self.config, &self.apps, credentials.uid)?;
        let connections = self.connector.connections.permits.of_app(credentials.uid);
        if let Some(table) = self.authority.admit(&live, &client.name, &mut process)? {
            admission::check_attachments(&self.config, &self.apps, &table)?;
            connections.set_bound(table.connections);
        }
        let app = Rc::new(AttachedApp {
            destination: client.redirection.map(|redirection| redirection.destination),
            ..attached(self.endpoint_of(client), process, connections)
        });
        self.apps.insert(Rc::clone(&app));
        Ok(app)
    }

    /// The end of connections that a client has.
    pub(super) fn endpoint_of(&self, client: &GrpcClient) -> AppEndpoint {
        let credentials = &client.process.credentials;
        AppEndpoint {
            runtime: client.runtime,
            proved: Arc::clone(&client.proved),
            send_heap: client.send_heap.clone(),
            judging: JudgedConnections::AllOfThem,
            form: BodyForm::Protobuf,
            compressed: CompressedMessages::Passed,
            identity: Arc::new(AppIdentity {
                id: client.id,
                name: client.name.as_str().into(),
                pid: credentials.pid,
                uid: credentials.uid,
                gid: credentials.gid,
                user: self.apps.name_of_user(credentials.uid),
                workload: self.workload(&self.config.live(), client),
            }),
        }
    }
}

// How all go.
impl GrpcAccess {
    /// Tells all clients to begin no more calls. Their connections end with those that are under way.
    pub(crate) async fn drain_clients(&self) {
        for client in self.clients.all() {
            self.drain_client(&client).await;
        }
    }

    /// The same for those of one listener.
    pub(super) async fn drain_clients_of(&self, listener: &Rc<GrpcListener>) {
        for client in self.clients.all() {
            if Rc::ptr_eq(&client.listener(), listener) {
                self.drain_client(&client).await;
            }
        }
    }

    pub(super) async fn drain_client(&self, client: &GrpcClient) {
        if client.is_told_to_go.replace(true) {
            return;
        }
        // A runtime that takes no command for seconds has others to fear for.
        if self.runtimes[client.runtime]
            .send(RuntimeCommand::DrainCaller(client.id))
            .await
            .is_err()
        {
            tracing::error!(app = client.id, "a runtime thread takes no commands");
        }
    }

    /// Ends the calls of a client with a status.
    async fn end_client(&self, client: &GrpcClient) {
        let ending = CallerEnding {
            app: client.id,
            refusal: ServiceRefusal {
                code: Code::Unavailable,
                message: "the service on this node is being replaced: call again".to_owned(),
            },
        };
        let command = RuntimeCommand::EndCaller(Box::new(ending));
        if self.runtimes[client.runtime].send(command).await.is_err() {
            tracing::error!(app = client.id, "a runtime thread takes no commands");
        }
    }

    /// Waits until no client is connected.
    pub(crate) async fn all_gone(&self) {
        while !self.clients.connected.borrow().is_empty() {
            self.clients.gone.notified().await;
        }
    }

    /// Has all clients go that a hot restart does not carry, and ends the connections of those that have calls under way after
    /// so long.
    pub(crate) async fn see_off(&self, carried: CarriedClients, limit: Duration) {
        self.end_handshakes(HANDSHAKES_WAIT).await;
        for client in self.not_carried(carried) {
            self.drain_client(&client).await;
        }
        if tokio::time::timeout(limit, self.gone_unless(carried))
            .await
            .is_ok()
        {
            return;
        }
        let left = self.not_carried(carried);
        tracing::warn!(clients = left.len(), "calls of gRPC clients are cut short");
        for client in left {
            self.end_client(&client).await;
        }
        let _ = tokio::time::timeout(LEAVING_WAIT, self.gone_unless(carried)).await;
        // Who does not read what it is told needs not be waited for.
        for client in self.not_carried(carried) {
            self.detach(&client).await;
        }
    }

    /// Clients that a hot restart does not carry.
    fn not_carried(&self, carried: CarriedClients) -> Vec<Rc<GrpcClient>> {
        let mut clients = self.clients.all();
        clients.retain(|client| {
            carried == CarriedClients::None || client.carriage == CarriedConnection::ToldToGo
        });
        clients
    }

    /// Waits until those are gone.
    async fn gone_unless(&self, carried: CarriedClients) {
        while !self.not_carried(carried).is_empty() {
            self.clients.gone.notified().await;
        }
    }
}

impl GrpcClient {
    /// The listener to which it came.
    pub(super) fn listener(&self) -> Rc<GrpcListener> {
        Rc::clone(&self.listener.borrow())
    }

    /// It came to this listener when another process had it.
    pub(super) fn stay_with(&self, listener: Rc<GrpcListener>) {
        self.listener.replace(listener);
    }

    /// Ends what is under way on its behalf.
    fn give_up(&self) {
        if let Some(app) = &*self.admitted.borrow() {
            app.gone.set();
        }
    }
}

impl CarriedConnection {
    /// Whether what carries a connection can be handed over.
    pub(super) fn of(carrier: &dyn ByteCarrier) -> CarriedConnection {
        match carrier.carried_socket() {
            Some(_) => CarriedConnection::Carried,
            None => CarriedConnection::ToldToGo,
        }
    }
}

/// A client as an app among the others.
pub(crate) fn attached(
    endpoint: AppEndpoint,
    process: AppProcess,
    connections: AppConnections,
) -> AttachedApp {
    AttachedApp {
        endpoint,
        control: None,
        requests: RefCell::new(BTreeMap::new()),
        takes_regions: false,
        process,
        connections,
        destination: None,
        given_up: Notify::new(),
        gone: GoneSignal::default(),
    }
}

/// The name of the app that a client is: what its listener says, else whose its process is. What has no name is called after
/// its process, as an app is that brings none.
fn app_name(live: &Config, listener: &GrpcListenerConfig, process: &AppProcess) -> String {
    if let Some(app) = &listener.app {
        return app.clone();
    }
    let named = authority::name_of(live, process).map(str::to_owned);
    named.unwrap_or_else(|| format!("process {}", process.credentials.pid))
}

/// Whether a client has proved to be one that its listener lets call.
fn check_identity(listener: &GrpcListenerConfig, proved: &str) -> Result<(), Refusal> {
    let allowed = listener.tls.as_ref().map_or(&[][..], |tls| &tls.allow_clients);
    if allowed.is_empty() || allowed.iter().any(|pattern| matches(pattern, proved)) {
        return Ok(());
    }
    let message = format!(
        "\"{proved}\" may not call here: tls.allow_clients of [[grpc.listener]] \"{}\" does not have it",
        listener.name
    );
    Err(Refusal::new(Code::PermissionDenied, message))
}

/// The bounds of a client's connection.
fn connection_config(live: &Config, listener: &GrpcListenerConfig) -> GrpcConfig {
    let keepalive = KeepalivePolicy {
        interval_ns: live.timeouts.keepalive_interval_ms * 1_000_000,
        timeout_ns: live.timeouts.keepalive_timeout_ms * 1_000_000,
    };
    let large_message_bytes_max = LARGE_MESSAGE_BYTES.max(LARGE_MESSAGES * listener.message_bytes as usize);
    let (least, most) = SENT_AHEAD_BYTES_OF_CALL.into_inner();
    let stream_window_bytes = (SENT_AHEAD_BYTES_MAX / listener.calls.max(1)).clamp(least, most);
    let sent_ahead_bytes = stream_window_bytes as usize * listener.calls as usize;
    GrpcConfig {
        http2: Http2Config {
            streams_max: listener.calls,
            stream_window_bytes,
            // So that calls which nobody reads take nothing from the others.
            connection_window_bytes: (stream_window_bytes * listener.calls).max(CONNECTION_WINDOW_BYTES_MIN),
            header_list_bytes_max: listener.metadata_bytes,
            keepalive: Some(keepalive),
            ..Http2Config::default()
        },
        received_message_bytes_max: listener.message_bytes,
        // So that no call fails for want of room.
        partial_bytes_max: sent_ahead_bytes + large_message_bytes_max,
        large_message_bytes_max,
        ..GrpcConfig::default()
    }
}
