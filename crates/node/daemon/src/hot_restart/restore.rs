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
    BodyForm, CompressedMessages, FieldReader, NotSaved, ReceivedBlock, RestoreError, SavedDatapath,
    SavedEngine, SavedState, Step,
};
use provost_engine::AppIdentity;
use provost_frontend::{AppPort, PortRestoreError, PortSource, SendHeap};
use provost_schema::SchemaHash;
use provost_shm::{Doorbell, Memfd, MemfdLimits, PacketSocket, SEALS_FIXED_SIZE};
use provost_wire::limits::REGION_BYTES_MAX;

use super::callers::ResumedCallers;
use super::restore_connections::{ConnectionBuilder, RestoringConnections};
use super::{restore_client, restore_end, restore_relay, state};
use crate::app_registry::{AttachedApp, ControlSocket, PendingRequest};
use crate::compose::{AppEndpoint, JudgedConnections, NamesNothing};
use crate::control_plane::ControlPlane;
use crate::grpc::{CarriedListeners, RestoredClient};
use crate::permits::AppConnections;
use crate::relay::RestoredRelay;
use crate::runtime::{AdoptedApp, AppId};
use crate::schemas::BoundSchema;
use crate::segments::AnnouncedSegments;
use crate::transport::local;

/// What errors call a step that waits for room.
const STUCK_KIND: &str = "step of an app";

/// Why a service cannot be made of the state.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {reason}")]
pub(super) struct NotRestored {
    what: String,
    pub(super) reason: String,
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
    /// Connections that were made before all of the state had come.
    pub(crate) made_as_they_came: usize,
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

/// What has been made of the state so far. It comes in parts: what the node has, and in whichever order apps and callers of it.
#[derive(Default)]
pub(super) struct RestoringNode {
    apps: Vec<RestoringApp>,
    listeners: CarriedListeners,
    connections: RestoringConnections,
    left_out: LeftOut,
    /// Connections are made once it is known what the node has besides.
    has_rest: bool,
}

impl RestoringNode {
    /// Makes what the node has beside its apps, and those of its apps and callers that come with it.
    pub(super) fn add_rest(
        &mut self,
        plane: &ControlPlane,
        node: state::Node,
        descriptors: &mut Descriptors,
    ) -> Result<(), NotRestored> {
        go_on_counting(plane, &node);
        self.has_rest = true;
        let parties = state::SavedParties {
            schemas: node.schemas,
            grpc_clients: node.grpc_clients,
            apps: node.apps,
            relays: node.relays,
        };
        self.add(plane, parties, descriptors)
    }

    /// Makes apps and callers, and those of their connections of which everything is there.
    pub(super) fn add(
        &mut self,
        plane: &ControlPlane,
        parties: state::SavedParties,
        descriptors: &mut Descriptors,
    ) -> Result<(), NotRestored> {
        for schema in &parties.schemas {
            let added = plane.services.restore_schema(schema);
            added.map_err(|error| failed(&"a schema", &error))?;
        }
        for app in parties.apps {
            let (id, what) = (app.id, format!("app {} ({})", app.id, app.name));
            let mut own = Descriptors(descriptors.take(descriptors_of(&app), &what)?.into());
            let heap = own.0.get(SEND_HEAP_AT).and_then(|heap| heap.try_clone().ok());
            let begun = RestoringApp::begin(plane, app, &mut own);
            self.keep(id, heap, begun)?;
        }
        for client in parties.grpc_clients {
            let id = client.app.as_ref().map_or(0, |app| app.id);
            let count = restore_client::descriptors_of(client.app.as_ref());
            let own = descriptors.take(count, &format_args!("gRPC client {id}"))?;
            let begun = restore_client::begin(plane, client, &mut Descriptors::new(own), &mut self.listeners);
            self.keep(id, None, begun)?;
        }
        for relay in parties.relays {
            let id = relay.app.as_ref().map_or(0, |app| app.id);
            let count = restore_client::descriptors_of(relay.app.as_ref());
            let own = descriptors.take(count, &format_args!("calls of another node {id}"))?;
            let begun = restore_relay::begin(plane, relay, &mut Descriptors::new(own));
            self.keep(id, None, begun)?;
        }
        if self.has_rest {
            self.builder(plane).build_those_that_came()?;
        }
        Ok(())
    }

    /// Everything has come: makes what waited for more, and puts all in its place.
    pub(super) fn finish(
        mut self,
        plane: &ControlPlane,
        unattached: Vec<PacketSocket>,
    ) -> Result<RestoredApps, NotRestored> {
        let made_as_they_came = self.connections.count();
        let connections = self.builder(plane).finish()?;
        let restored = restore_end::finish(plane, self.apps, connections, unattached)?;
        Ok(RestoredApps {
            made_as_they_came,
            ..restored
        })
    }

    fn keep(
        &mut self,
        id: AppId,
        heap: Option<OwnedFd>,
        begun: Result<RestoringApp, NotRestored>,
    ) -> Result<(), NotRestored> {
        match begun {
            Ok(app) => {
                self.apps.push(app);
                Ok(())
            }
            Err(error) => self.left_out.add(id, heap, error),
        }
    }

    fn builder<'a>(&'a mut self, plane: &'a ControlPlane) -> ConnectionBuilder<'a> {
        ConnectionBuilder {
            plane,
            apps: &self.apps,
            done: &mut self.connections,
            left_out: &mut self.left_out,
        }
    }
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
    pub(super) apps: HashSet<AppId>,
    /// Their send heaps, which messages to others may lie in.
    pub(super) send_heaps: HashMap<AppId, SendHeap>,
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
    pub(super) fn claim(&self, saved: ReceivedBlock) -> Result<ReceivedBlock, NotSaved> {
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
                share: None,
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

    pub(super) fn id(&self) -> AppId {
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
            state: connection,
        })
    }

    /// Whether both of its ends are of this node.
    pub(super) fn is_within_node(&self) -> bool {
        let transport = self.state.engines.last();
        transport.is_some_and(|engine| engine.kind == local::KIND)
    }

    pub(super) fn saved_transport(&self) -> Option<SavedState> {
        let engine = self.state.engines.last()?;
        Some(saved_state(engine))
    }

    /// Which connection within the node it is an end of, and whether it is the client's.
    pub(super) fn saved_pair(&self) -> Result<(u64, bool), NotRestored> {
        let saved = self.saved_transport();
        let saved = saved.ok_or_else(|| failed(&self.what(), &"it has no engines"))?;
        local::saved_pair(&saved).map_err(|error| failed_state(&self.what(), &error))
    }

    /// What is to be restored, taken out.
    pub(super) fn saved_datapath(&self) -> SavedDatapath {
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

    pub(super) fn what(&self) -> ConnectionLabel<'_> {
        ConnectionLabel(&self.state)
    }
}

/// What errors call a connection. There are thousands of connections, and next to no errors.
pub(super) struct ConnectionLabel<'a>(&'a state::Connection);

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

pub(super) fn schema(
    plane: &ControlPlane,
    service: &str,
    hash: &[u8],
    what: &dyn Display,
) -> Result<Arc<BoundSchema>, NotRestored> {
    let hash = SchemaHash::try_from(hash).map_err(|error| failed(what, &error))?;
    let known = plane.services.schema(service, hash);
    known.ok_or_else(|| failed(what, &format!("the schema {hash} of {service} is missing")))
}

/// A step as the app submitted it names neither blocks nor ranges.
pub(super) fn stuck_step(stuck: &state::Stuck) -> Result<(u32, Step), RestoreError> {
    let mut fields = FieldReader::new(STUCK_KIND, &stuck.step);
    let step = Step::restore(&mut fields, &mut NamesNothing)?;
    Ok((stuck.connection, step))
}
