//! How the new process makes a service of the state. Nothing that anybody else can see is changed by it.
//!
//! State that this version does not know is a reason to decline: the old process goes on. An app of which something else
//! cannot be gone on with is left out, alone: no app decides on what the others run on.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt::{self, Display};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use provost_datapath::{
    BodyForm, CompressedMessages, ConnectionSignals, EngineStart, FieldReader, ForeignBytes, NotSaved,
    ReceivedBlock, RestoreError, Restorer, SavedDatapath, SavedEngine, SavedState, Step,
};
use provost_engine::{AppIdentity, AttestedApp, DatapathContext};
use provost_frontend::{AppPort, CallQuota, PortRestoreError, PortSource, SendHeap};
use provost_marshalling::Encoding;
use provost_schema::SchemaHash;
use provost_shm::{Doorbell, Memfd, MemfdLimits, PacketSocket, SEALS_FIXED_SIZE};
use provost_wire::limits::REGION_BYTES_MAX;

use super::callers::ResumedCallers;
use super::restore_client::RestoringCallers;
use super::{restore_client, restore_end, restore_relay, state};
use crate::app_registry::{AttachedApp, ControlSocket, PendingRequest};
use crate::compose::{
    AcceptedOffer, AppEndpoint, ConnectionLimits, ConnectionSpec, JudgedConnections, NamesNothing,
    PeerEndpoint, SavedConnection, policies_among,
};
use crate::connections::ConnectionOpening;
use crate::control_plane::ControlPlane;
use crate::grpc::RestoredClient;
use crate::permits::{AppConnections, Permit};
use crate::policies::chain::{Chain, PolicyEngine, PreparedPolicy, stand_in, started};
use crate::policies::{Instance, closed};
use crate::relay::RestoredRelay;
use crate::runtime::{
    AdoptedApp, AdoptedConnection, AppId, ConnectionId, ConnectionPhase, EngineTag, FaultPlan, FittedEngine,
};
use crate::schemas::BoundSchema;
use crate::segments::AnnouncedSegments;
use crate::services::{EXPORTED_REQUEST, Offer};
use crate::transport::local::{self, LocalTransport, SavedEnd};
use crate::transport::{self, TransportKind};

/// What errors call a step that waits for room.
const STUCK_KIND: &str = "step of an app";

/// Why a service cannot be made of the state.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {reason}")]
pub(super) struct NotRestored {
    what: String,
    reason: String,
    scope: FailureScope,
}

/// Who cannot be gone on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FailureScope {
    /// The node: this process does not know what the other one has saved.
    Node,
    /// One app, and nobody else.
    App,
}

/// What is to go on once the old process has ended its part.
#[derive(Default)]
pub(crate) struct RestoredApps {
    pub(crate) adopted: Vec<Vec<AdoptedApp>>,
    pub(crate) resumed: Vec<Rc<AttachedApp>>,
    /// Processes that have not attached.
    pub(crate) unattached: Vec<PacketSocket>,
    pub(crate) callers: ResumedCallers,
    /// What was read of the state, which takes time to be freed: nobody waits for that once this process serves.
    pub(super) read: Vec<Vec<RestoringConnection>>,
}

/// Descriptors that are taken in order.
pub(super) struct Descriptors(VecDeque<OwnedFd>);

impl Descriptors {
    pub(super) fn new(all: Vec<OwnedFd>) -> Descriptors {
        Descriptors(all.into())
    }

    pub(super) fn take(&mut self, count: u32, what: &dyn Display) -> Result<Vec<OwnedFd>, NotRestored> {
        let count = count as usize;
        if count <= self.0.len() {
            Ok(self.0.drain(..count).collect())
        } else {
            Err(failed(what, &"descriptors are missing"))
        }
    }

    fn take_one(&mut self, what: &dyn Display) -> Result<OwnedFd, NotRestored> {
        self.0
            .pop_front()
            .ok_or_else(|| failed(what, &"a descriptor is missing"))
    }
}

pub(super) fn failed(what: &dyn Display, reason: &dyn Display) -> NotRestored {
    NotRestored {
        what: what.to_string(),
        reason: reason.to_string(),
        scope: FailureScope::Node,
    }
}

/// What an app alone has to answer for.
pub(super) fn failed_of_app(what: &dyn Display, reason: &dyn Display) -> NotRestored {
    NotRestored {
        scope: FailureScope::App,
        ..failed(what, reason)
    }
}

/// A state of an app's that was not restored.
pub(super) fn failed_state(what: &dyn Display, error: &RestoreError) -> NotRestored {
    match error {
        RestoreError::Damaged { .. } => failed_of_app(what, error),
        RestoreError::Kind { .. } | RestoreError::Version { .. } => failed(what, error),
    }
}

/// Makes everything of the state but the sockets at which the node is found. Some callers came before the rest.
pub(super) fn node(
    plane: &ControlPlane,
    node: state::Node,
    mut callers: RestoringCallers,
    descriptors: &mut Descriptors,
    unattached: Vec<PacketSocket>,
) -> Result<RestoredApps, NotRestored> {
    go_on_counting(plane, &node);
    for schema in &node.schemas {
        let added = plane.services.restore_schema(schema);
        added.map_err(|error| failed(&"a schema", &error))?;
    }
    let mut apps = Vec::with_capacity(node.apps.len());
    for app in node.apps {
        let (id, what) = (app.id, format!("app {} ({})", app.id, app.name));
        let mut own = Descriptors(descriptors.take(descriptors_of(&app), &what)?.into());
        let heap = own.0.get(SEND_HEAP_AT).and_then(|heap| heap.try_clone().ok());
        match RestoringApp::begin(plane, app, &mut own) {
            Ok(app) => apps.push(app),
            Err(error) => callers.left_out.add(id, heap, error)?,
        }
    }
    for client in node.grpc_clients {
        callers.add_client(plane, client, descriptors)?;
    }
    let RestoringCallers {
        clients,
        mut left_out,
        ..
    } = callers;
    apps.extend(clients);
    for relay in node.relays {
        let id = relay.app.as_ref().map_or(0, |app| app.id);
        let count = restore_client::descriptors_of(relay.app.as_ref());
        let mut own = Descriptors(
            descriptors
                .take(count, &format!("calls of another node {id}"))?
                .into(),
        );
        match restore_relay::begin(plane, relay, &mut own) {
            Ok(relay) => apps.push(relay),
            Err(error) => left_out.add(id, None, error)?,
        }
    }
    let connections = ConnectionBuilder::new(plane, &apps, left_out).build()?;
    restore_end::finish(plane, apps, connections, unattached)
}

/// How many descriptors an app has in the order of all.
fn descriptors_of(app: &state::App) -> u32 {
    let engines = app.connections.iter().flat_map(|connection| &connection.engines);
    let of_engines = engines.map(|engine| engine.descriptors);
    let of_requests = app.requests.iter().map(|request| request.descriptors);
    let counts = of_engines.chain(of_requests).chain([app.port_descriptors]);
    counts.fold(FIXED_DESCRIPTORS, u32::saturating_add)
}

/// An app's control socket, its send heap and the two ends of its doorbell come before those that are counted.
const FIXED_DESCRIPTORS: u32 = 4;
/// The place of its send heap among them.
const SEND_HEAP_AT: usize = 1;

/// Apps that are not gone on with.
#[derive(Default)]
pub(super) struct LeftOut {
    apps: HashSet<AppId>,
    /// Their send heaps, which messages to others may lie in.
    send_heaps: HashMap<AppId, SendHeap>,
}

impl LeftOut {
    /// Leaves an app out, unless what failed is not its own.
    pub(super) fn add(
        &mut self,
        app: AppId,
        heap: Option<OwnedFd>,
        error: NotRestored,
    ) -> Result<(), NotRestored> {
        if error.scope == FailureScope::Node {
            return Err(error);
        }
        tracing::warn!(app, reason = %error, "detaching an app that cannot be gone on with");
        self.apps.insert(app);
        if let Some(Ok(heap)) = heap.map(map_send_heap) {
            self.send_heaps.insert(app, heap);
        }
        Ok(())
    }
}

/// Goes on with the numbers of the old process.
fn go_on_counting(plane: &ControlPlane, node: &state::Node) {
    plane.apps.number_from(node.next_app);
    plane.connections.number_from(node.next_connection);
    plane.counts.hot_restarts.set(node.hot_restarts + 1);
    plane.counts.hot_restarts_undone.set(node.hot_restarts_undone);
    if node.began_unix_ms > 0 {
        plane.counts.began_unix_ms.set(node.began_unix_ms);
    }
    plane.policies.history.number_from(node.last_change);
}

/// An app, or a gRPC client, of which everything is there but its connections.
pub(super) struct RestoringApp {
    pub(super) endpoint: AppEndpoint,
    pub(super) party: RestoringParty,
    pub(super) connections: AppConnections,
    pub(super) requests: Vec<PendingRequest>,
    pub(super) parts: Vec<RestoringConnection>,
    /// A step that waited for room in its datapath.
    pub(super) stuck: Option<(u32, Step)>,
    pub(super) state: state::App,
}

/// Who makes the calls of what is restored.
pub(super) enum RestoringParty {
    App {
        control: ControlSocket,
        doorbell: Doorbell,
        port: Box<RefCell<AppPort>>,
    },
    Client(Box<RestoredClient>),
    Relay(Box<RestoredRelay>),
}

impl RestoringParty {
    /// The block of its receive heap to use for one that a state names.
    fn claim(&self, saved: ReceivedBlock) -> Result<ReceivedBlock, NotSaved> {
        match self {
            RestoringParty::App { port, .. } => port.borrow_mut().claim(saved),
            RestoringParty::Client(client) => client.port.borrow_mut().claim(&saved),
            RestoringParty::Relay(relay) => relay.port.borrow_mut().claim(&saved),
        }
    }
}

/// A connection of which everything is there but its engines.
pub(super) struct RestoringConnection {
    pub(super) state: state::Connection,
    pub(super) schema: Arc<BoundSchema>,
    descriptors: RefCell<Vec<Vec<OwnedFd>>>,
    opening: RefCell<Option<ConnectionOpening>>,
}

impl RestoringApp {
    fn begin(
        plane: &ControlPlane,
        mut app: state::App,
        descriptors: &mut Descriptors,
    ) -> Result<RestoringApp, NotRestored> {
        let what = format!("app {} ({})", app.id, app.name);
        let failed = |reason: &dyn Display| failed_of_app(&what, reason);
        let control = descriptors.take_one(&what)?;
        let announcing = control.try_clone().map_err(|error| failed(&error))?;
        let control = ControlSocket::new(control.into()).map_err(|error| failed(&error))?;
        let send_heap = map_send_heap(descriptors.take_one(&what)?).map_err(|error| failed(&error))?;
        let send_heap = send_heap.counted_in(&plane.apps.private_bytes_of(app.uid));
        let doorbell = [descriptors.take_one(&what)?, descriptors.take_one(&what)?];
        let source = PortSource {
            segments: Box::new(AnnouncedSegments::of_successor(announcing)),
            bytes_max: plane.config.started.limits.receive_heap_bytes,
        };
        let own = descriptors.take(app.port_descriptors, &what)?;
        let port = AppPort::restore(&app.port, own, source).map_err(|error| match &error {
            PortRestoreError::State(error) => failed_state(&what, error),
            error => failed(error),
        })?;
        let mut requests = Vec::with_capacity(app.requests.len());
        for request in std::mem::take(&mut app.requests) {
            requests.push(PendingRequest {
                packet: request.packet,
                descriptors: descriptors.take(request.descriptors, &what)?,
                answer: request.answer,
            });
        }
        let connections = std::mem::take(&mut app.connections).into_iter();
        let parts = connections.map(|connection| RestoringConnection::begin(plane, connection, descriptors));
        let parts = parts.collect::<Result<_, _>>()?;
        let stuck = app.stuck.as_ref().map(stuck_step).transpose();
        let stuck = stuck.map_err(|error| failed_state(&what, &error))?;
        let runtime = plane.runtimes.place(&app.name);
        plane.runtimes[runtime].place_app();
        Ok(RestoringApp {
            parts,
            stuck,
            endpoint: AppEndpoint {
                proved: "".into(),
                identity: Arc::new(AppIdentity {
                    id: app.id,
                    name: app.name.as_str().into(),
                    pid: app.pid,
                    uid: app.uid,
                    gid: app.gid,
                    user: plane.apps.name_of_user(app.uid),
                    workload: plane.connector.callers.workload(&plane.config.live(), &app.name),
                }),
                runtime,
                send_heap,
                judging: JudgedConnections::AllOfThem,
                form: BodyForm::Native,
                compressed: CompressedMessages::Decompressed,
            },
            party: RestoringParty::App {
                control,
                doorbell: Doorbell::from_ends(doorbell),
                port: Box::new(RefCell::new(port)),
            },
            connections: plane.connections.permits.of_app(app.uid),
            requests,
            state: app,
        })
    }

    fn id(&self) -> AppId {
        self.endpoint.identity.id
    }
}

impl RestoringConnection {
    pub(super) fn begin(
        plane: &ControlPlane,
        connection: state::Connection,
        descriptors: &mut Descriptors,
    ) -> Result<RestoringConnection, NotRestored> {
        let what = ConnectionLabel(&connection);
        let engines = connection.engines.iter();
        let own = engines.map(|engine| descriptors.take(engine.descriptors, &what));
        let own = own.collect::<Result<Vec<_>, _>>()?;
        let schema = schema(plane, &connection.service, &connection.schema_hash, &what)?;
        Ok(RestoringConnection {
            schema,
            descriptors: RefCell::new(own),
            opening: RefCell::new(None),
            state: connection,
        })
    }

    fn saved_transport(&self) -> Option<SavedState> {
        let engine = self.state.engines.last()?;
        Some(saved_state(engine))
    }

    /// What is to be restored, taken out.
    fn saved_datapath(&self) -> SavedDatapath {
        let engines = self.state.engines.iter().zip(self.descriptors.take());
        let engines = engines.map(|(engine, descriptors)| SavedEngine {
            state: saved_state(engine),
            version: engine.version,
            descriptors,
        });
        SavedDatapath {
            engines: engines.collect(),
            steps: self.state.steps.clone(),
        }
    }

    /// What one end of a connection within the node is restored with.
    fn saved_end<'a>(
        &self,
        state: &'a SavedState,
        restorer: &'a mut dyn Restorer,
    ) -> Result<SavedEnd<'a>, NotRestored> {
        let opening = self.opening.borrow();
        let opening = opening
            .as_ref()
            .ok_or_else(|| failed(&self.what(), &"it is restored already"))?;
        Ok(SavedEnd {
            state,
            end: transport::local::end(&opening.signals, &opening.waker),
            restorer,
        })
    }

    fn what(&self) -> ConnectionLabel<'_> {
        ConnectionLabel(&self.state)
    }
}

/// What errors call a connection. There are thousands of connections, and next to no errors.
struct ConnectionLabel<'a>(&'a state::Connection);

impl Display for ConnectionLabel<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "connection {} ({})", self.0.id, self.0.service)
    }
}

fn saved_state(engine: &state::Engine) -> SavedState {
    SavedState {
        kind: engine.kind.clone(),
        version: engine.state_version,
        bytes: engine.state.clone(),
    }
}

fn map_send_heap(descriptor: OwnedFd) -> Result<SendHeap, provost_shm::ShmError> {
    // It was checked when the app brought it, and its size cannot change.
    let limits = MemfdLimits {
        bytes_min: 1,
        bytes_max: REGION_BYTES_MAX,
        seals: SEALS_FIXED_SIZE,
    };
    SendHeap::map(Memfd::verify_foreign(descriptor, limits)?)
}

fn schema(
    plane: &ControlPlane,
    service: &str,
    hash: &[u8],
    what: &dyn Display,
) -> Result<Arc<BoundSchema>, NotRestored> {
    let hash = SchemaHash::try_from(hash).map_err(|error| failed(what, &error))?;
    let known = plane.services.schema(service, hash);
    known.ok_or_else(|| failed(what, &format!("the schema {hash} of {service} is missing")))
}

/// Makes connections, of apps that are there.
struct ConnectionBuilder<'a> {
    plane: &'a ControlPlane,
    apps: &'a [RestoringApp],
    places: HashMap<AppId, usize>,
    /// By app and request: connections of a service share the quota with its offer.
    quotas: HashMap<(AppId, u64), Arc<CallQuota>>,
    /// Ends of connections within the node, and what counts them.
    transports: HashMap<ConnectionId, (LocalTransport, Arc<Permit>)>,
    left_out: LeftOut,
}

/// Gives the engines of one app's connections what their states name.
struct AppRestorer<'a> {
    builder: &'a ConnectionBuilder<'a>,
    app: &'a RestoringApp,
}

impl Restorer for AppRestorer<'_> {
    fn block(&mut self, saved: ReceivedBlock) -> Result<ReceivedBlock, NotSaved> {
        self.app.party.claim(saved)
    }

    fn foreign(&mut self, kept: u32) -> Result<ForeignBytes, NotSaved> {
        let range = self.app.state.ranges.get(kept as usize);
        let heap = |range: &state::Range| {
            let heap = match self.builder.places.get(&range.app) {
                Some(owner) => &self.builder.apps[*owner].endpoint.send_heap,
                None => self.builder.left_out.send_heaps.get(&range.app)?,
            };
            heap.range(range.offset, range.bytes)
        };
        range.and_then(heap).ok_or(NotSaved::Foreign { kept })
    }
}

/// One end of a connection within the node whose other end was not found yet.
struct LocalEnd<'a> {
    app: &'a RestoringApp,
    connection: &'a RestoringConnection,
    saved: SavedState,
}

impl<'a> ConnectionBuilder<'a> {
    fn new(plane: &'a ControlPlane, apps: &'a [RestoringApp], left_out: LeftOut) -> ConnectionBuilder<'a> {
        let connections = apps.iter().map(|app| app.parts.len()).sum();
        ConnectionBuilder {
            plane,
            places: apps.iter().enumerate().map(|(at, app)| (app.id(), at)).collect(),
            apps,
            quotas: HashMap::new(),
            transports: HashMap::with_capacity(connections),
            left_out,
        }
    }

    /// The connections of each app; none for an app that is left out.
    fn build(mut self) -> Result<Vec<Option<Vec<AdoptedConnection>>>, NotRestored> {
        for app in self.apps {
            let begun = self.offers(app).and_then(|()| self.openings(app));
            self.unless_left_out(app, begun)?;
        }
        self.local_connections()?;
        let mut built = Vec::with_capacity(self.apps.len());
        for app in self.apps {
            let of_app = |builder: &mut Self| -> Result<Vec<AdoptedConnection>, NotRestored> {
                let connections = app.parts.iter();
                connections
                    .map(|connection| builder.connection(app, connection))
                    .collect()
            };
            built.push(if self.is_left_out(app) {
                None
            } else {
                let connections = of_app(&mut self);
                self.unless_left_out(app, connections)?
            });
        }
        let none_is_kept = built.iter().all(Option::is_none);
        if none_is_kept && self.left_out.apps.len() > 1 {
            return Err(failed(&"the apps", &"none of them can be gone on with"));
        }
        Ok(built)
    }

    fn is_left_out(&self, app: &RestoringApp) -> bool {
        self.left_out.apps.contains(&app.id())
    }

    /// What was done for an app; if it failed for a reason of the app's own, everything of the app is taken back.
    fn unless_left_out<T>(
        &mut self,
        app: &RestoringApp,
        done: Result<T, NotRestored>,
    ) -> Result<Option<T>, NotRestored> {
        match done {
            Ok(done) => Ok(Some(done)),
            Err(error) => {
                self.left_out.add(app.id(), None, error)?;
                self.plane.services.unbind_all(app.id());
                self.plane.connections.forget_app(app.id());
                Ok(None)
            }
        }
    }

    fn openings(&mut self, app: &RestoringApp) -> Result<(), NotRestored> {
        for connection in &app.parts {
            let opening = self.opening(app, connection)?;
            connection.opening.replace(Some(opening));
        }
        Ok(())
    }

    fn offers(&mut self, app: &RestoringApp) -> Result<(), NotRestored> {
        // What is exported takes so many calls of all nodes.
        if let RestoringParty::Relay(relay) = &app.party
            && let Some(quota) = self.plane.services.exported_quota(relay.service())
        {
            self.quotas.insert((app.id(), EXPORTED_REQUEST), quota);
        }
        for offer in &app.state.offers {
            let what = format!("app {} offers {}", app.id(), offer.service);
            let quota = self.quota(app.id(), offer.request, offer.calls_max);
            let bound = self.plane.services.bind(Offer {
                app: Some(app.id()),
                request: offer.request,
                schema: schema(self.plane, &offer.service, &offer.schema_hash, &what)?,
                quota,
            });
            bound.map_err(|error| failed_of_app(&what, &error.reason))?;
        }
        Ok(())
    }

    fn quota(&mut self, app: AppId, request: u64, calls_max: u32) -> Arc<CallQuota> {
        let fresh = || Arc::new(CallQuota::new(calls_max));
        Arc::clone(self.quotas.entry((app, request)).or_insert_with(fresh))
    }

    /// The opening of a connection with the specification and the signals that were saved.
    fn opening(
        &mut self,
        app: &RestoringApp,
        connection: &RestoringConnection,
    ) -> Result<ConnectionOpening, NotRestored> {
        let (state, what) = (&connection.state, connection.what());
        let transport = TransportKind::parse(&state.transport);
        let transport = transport.ok_or_else(|| {
            let reason = format!("this version has no transport {}", state.transport);
            failed(&what, &reason)
        })?;
        let offer = state.serves.then(|| AcceptedOffer {
            request: state.offer_request,
            quota: self.quota(app.id(), state.offer_request, state.offer_calls_max),
        });
        let peer_app = self.places.get(&state.peer_app);
        let spec = ConnectionSpec {
            id: state.id,
            node: self.plane.config.node_name(),
            app: app.endpoint.clone(),
            schema: Arc::clone(&connection.schema),
            offer,
            peer: PeerEndpoint {
                identity: state.peer_identity.as_str().into(),
                address: state.peer_address.as_str().into(),
                app: peer_app.map(|at| Arc::clone(&self.apps[*at].endpoint.identity)),
                attested: state.attested.as_ref().map(attested),
            },
            transport,
            transport_version: state
                .engines
                .last()
                .map_or(transport.first_version(), |engine| engine.version),
            encoding: if state.is_protobuf {
                Encoding::Protobuf
            } else {
                Encoding::Native
            },
            limits: ConnectionLimits {
                message_bytes_max: state.message_bytes_max,
                calls_max: state.calls_max,
                compressed: state.compressed(),
            },
        };
        let mut fields = FieldReader::new("link", &state.link);
        let signals = ConnectionSignals::restore(&mut fields).map_err(|error| failed_state(&what, &error))?;
        let plane = self.plane;
        Ok(ConnectionOpening::new(
            spec,
            signals,
            &plane.connections,
            &plane.runtimes,
        ))
    }

    /// Both ends of a connection within the node are made together.
    fn local_connections(&mut self) -> Result<(), NotRestored> {
        let mut waiting: HashMap<u64, (LocalEnd<'_>, bool)> = HashMap::new();
        for app in self.apps {
            for connection in &app.parts {
                if self.is_left_out(app) {
                    break;
                }
                let Some(saved) = connection.saved_transport() else {
                    continue;
                };
                if saved.kind != local::KIND {
                    continue;
                }
                let pair = local::saved_pair(&saved);
                let (pair, is_client) = pair.map_err(|error| failed_state(&connection.what(), &error))?;
                let this = LocalEnd {
                    app,
                    connection,
                    saved,
                };
                let Some((other, _)) = waiting.remove(&pair) else {
                    waiting.insert(pair, (this, is_client));
                    continue;
                };
                let paired = if is_client {
                    self.local_pair(&this, &other)
                } else {
                    self.local_pair(&other, &this)
                };
                if let Err(error) = paired {
                    // Which of the two cannot be gone on with is not known.
                    let of_other = failed_of_app(&other.connection.what(), &error.reason);
                    self.unless_left_out::<()>(this.app, Err(error))?;
                    self.unless_left_out::<()>(other.app, Err(of_other))?;
                }
            }
        }
        for (alone, _) in waiting.into_values() {
            let restored = self.local_alone(&alone);
            self.unless_left_out(alone.app, restored)?;
        }
        Ok(())
    }

    fn local_alone(&mut self, alone: &LocalEnd<'_>) -> Result<(), NotRestored> {
        let mut restorer = AppRestorer {
            builder: self,
            app: alone.app,
        };
        let end = alone.connection.saved_end(&alone.saved, &mut restorer)?;
        let restored = local::restore_alone(end);
        let restored = restored.map_err(|error| failed_state(&alone.connection.what(), &error))?;
        let permit = Arc::new(self.plane.connections.permits.count(&alone.app.connections));
        self.transports
            .insert(alone.connection.state.id, (restored, permit));
        Ok(())
    }

    fn local_pair(&mut self, client: &LocalEnd<'_>, server: &LocalEnd<'_>) -> Result<(), NotRestored> {
        let (client_id, server_id) = (client.connection.state.id, server.connection.state.id);
        let mut at_client = AppRestorer {
            builder: self,
            app: client.app,
        };
        let mut at_server = AppRestorer {
            builder: self,
            app: server.app,
        };
        let pair = local::restore_pair(
            client.connection.saved_end(&client.saved, &mut at_client)?,
            server.connection.saved_end(&server.saved, &mut at_server)?,
        );
        let what = || format!("connections {client_id} and {server_id}");
        let (at_client, at_server) = pair.map_err(|error| failed_state(&what(), &error))?;
        // It counts once, for the app that asked for it.
        let permit = Arc::new(self.plane.connections.permits.count(&client.app.connections));
        self.transports
            .insert(client_id, (at_client, Arc::clone(&permit)));
        self.transports.insert(server_id, (at_server, permit));
        Ok(())
    }

    fn connection(
        &mut self,
        app: &RestoringApp,
        connection: &RestoringConnection,
    ) -> Result<AdoptedConnection, NotRestored> {
        let (state, what) = (&connection.state, connection.what());
        let opening = connection.opening.take();
        let opening = opening.ok_or_else(|| failed(&what, &"it is restored already"))?;
        let chain = self
            .chain(connection, &opening.context)
            .map_err(|reason| failed(&what, &reason))?;
        let (transport, permit): (EngineStart, Box<dyn Send>) = match self.transports.remove(&state.id) {
            Some((local, permit)) => (transport::ready(local), Box::new(permit)),
            None => {
                let start = self.network_transport(connection, &opening.spec);
                let start = start.map_err(|reason| failed(&what, &reason))?;
                (
                    start,
                    Box::new(self.plane.connections.permits.count(&app.connections)),
                )
            }
        };
        let mut restorer = AppRestorer { builder: self, app };
        let saved = SavedConnection {
            datapath: connection.saved_datapath(),
            restorer: &mut restorer,
        };
        let entered = opening.enter(&self.plane.connections, chain, transport, Some(saved), permit);
        let mut new = entered.map_err(|error| failed_state(&what, &error))?.connection;
        new.accepted_for = state.is_unannounced.then_some(state.offer_request);
        Ok(AdoptedConnection {
            number: state.number,
            phase: ConnectionPhase {
                told_going_away: state.told_going_away,
                is_closing: state.is_closing,
                has_ended: state.has_ended,
            },
            new: *new,
        })
    }

    fn network_transport(
        &self,
        connection: &RestoringConnection,
        spec: &ConnectionSpec,
    ) -> Result<EngineStart, String> {
        let engine = connection.state.engines.last().ok_or("it has no engines")?;
        let (connector, schema) = (&self.plane.connector, &connection.schema);
        let server = || connector.restored_server(&spec.app, schema, spec.limits);
        let start = transport::restoring_connection(&engine.kind, engine.version, server);
        start.ok_or_else(|| format!("this version has no transport {}", engine.kind))
    }

    /// The policies of a connection, in the order in which their engines were saved.
    fn chain(
        &self,
        connection: &RestoringConnection,
        context: &Arc<DatapathContext>,
    ) -> Result<Chain, String> {
        let engines = &connection.state.engines;
        let tags: Vec<EngineTag> = engines.iter().map(|engine| EngineTag(engine.tag)).collect();
        let policies =
            policies_among(&tags).ok_or("its engines are in an order that this version does not know")?;
        let mut attached = self.plane.policies.table().chain(context);
        let mut chain = Chain {
            engines: Vec::with_capacity(policies.len()),
            left_out: Vec::new(),
        };
        for engine in &engines[policies] {
            let at = attached
                .iter()
                .position(|instance| *instance.name == *engine.policy);
            let at = at.ok_or_else(|| format!("policy \"{}\" is not attached here", engine.policy))?;
            chain.engines.push(policy(engine, attached.remove(at), context)?);
        }
        chain.left_out = attached;
        Ok(chain)
    }
}

/// How a policy's engine is made of its state.
fn policy(
    engine: &state::Engine,
    instance: Arc<Instance>,
    context: &Arc<DatapathContext>,
) -> Result<PreparedPolicy, String> {
    let guard = FaultPlan {
        probation: None,
        stand_in: stand_in(&instance, context),
    };
    let engine = if engine.stands_in {
        PolicyEngine {
            start: closed::start(&instance.name, &Arc::new(instance.datapath_context(context))),
            fitted: FittedEngine::standing_in(instance.tag, guard),
        }
    } else {
        let prepared = instance.prepare(context);
        let prepared = prepared.map_err(|error| format!("policy \"{}\": {error}", instance.name))?;
        PolicyEngine {
            start: started(prepared),
            fitted: FittedEngine::new(instance.tag, guard),
        }
    };
    Ok(PreparedPolicy { instance, engine })
}

fn attested(state: &state::AttestedApp) -> Arc<AttestedApp> {
    Arc::new(AttestedApp {
        node: state.node.as_str().into(),
        name: state.name.as_str().into(),
        user: state.user.as_str().into(),
        uid: state.uid,
        workload: state.workload.as_str().into(),
    })
}

/// A step as the app submitted it names neither blocks nor ranges.
pub(super) fn stuck_step(stuck: &state::Stuck) -> Result<(u32, Step), RestoreError> {
    let mut fields = FieldReader::new(STUCK_KIND, &stuck.step);
    let step = Step::restore(&mut fields, &mut NamesNothing)?;
    Ok((stuck.connection, step))
}
