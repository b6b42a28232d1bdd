//! How the new process makes a service of the state. Nothing that anybody else can see is changed by it.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use provost_datapath::{
    Datapath, Engine, EngineStart, FieldReader, ForeignBytes, Link, NotSaved, Predecessor, ReceivedBlock,
    Restorer, SavedDatapath, SavedEngine, SavedState, Step,
};
use provost_engine::{AppIdentity, PeerIdentity, Site};
use provost_frontend::{AppPort, AppRole, CallQuota, Frontend, PortSource, SendHeap};
use provost_marshalling::{Encoding, Marshalling};
use provost_schema::SchemaHash;
use provost_shm::{Doorbell, Memfd, MemfdLimits, PacketSocket, SEALS_FIXED_SIZE};
use provost_transport_local::{End, LocalTransport, SavedEnd};
use provost_wire::limits::REGION_BYTES_MAX;
use tokio::sync::{Notify, oneshot};

use super::state;
use crate::apps::{self, App, Control, Following, PendingRequest};
use crate::compose::{self, AppEnd, Whereabouts};
use crate::node::{AttachedApp, OpenConnection, Shared, Terms};
use crate::permits::{AppConnections, Permit};
use crate::policies::chain::stand_in;
use crate::policies::{Instance, closed};
use crate::runtime::{
    AdoptedApp, AdoptedConnection, AppId, ConnectionId, ConnectionPhase, Fitted, Guard, NewApp,
    NewConnection, PathWaker, Tag, Waiting,
};
use crate::schemas::BoundSchema;
use crate::segments::AnnouncedSegments;
use crate::services::Offer;

/// What errors call a step that waits for room.
const STUCK_KIND: &str = "step of an app";

/// Why a service cannot be made of the state.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {reason}")]
pub(super) struct NotRestored {
    what: String,
    reason: String,
}

/// What is to go on once the old process has ended its part.
#[derive(Default)]
pub(crate) struct Restored {
    /// By runtime.
    pub(crate) adopted: Vec<Vec<AdoptedApp>>,
    pub(crate) resumed: Vec<(App, Following)>,
    /// Processes that have not attached.
    pub(crate) unattached: Vec<PacketSocket>,
}

/// Descriptors that are taken in order.
pub(super) struct Descriptors(VecDeque<OwnedFd>);

impl Descriptors {
    pub(super) fn new(all: Vec<OwnedFd>) -> Descriptors {
        Descriptors(all.into())
    }

    pub(super) fn take(&mut self, count: u32, what: &str) -> Result<Vec<OwnedFd>, NotRestored> {
        let count = count as usize;
        match count <= self.0.len() {
            true => Ok(self.0.drain(..count).collect()),
            false => Err(failed(what, &"descriptors are missing")),
        }
    }

    fn take_one(&mut self, what: &str) -> Result<OwnedFd, NotRestored> {
        self.0
            .pop_front()
            .ok_or_else(|| failed(what, &"a descriptor is missing"))
    }
}

pub(super) fn failed(what: &str, reason: &dyn std::fmt::Display) -> NotRestored {
    NotRestored {
        what: what.to_owned(),
        reason: reason.to_string(),
    }
}

/// Makes everything of the state but the sockets at which the node is found.
pub(super) fn node(
    shared: &Rc<Shared>,
    node: state::Node,
    descriptors: &mut Descriptors,
    unattached: Vec<PacketSocket>,
) -> Result<Restored, NotRestored> {
    shared.next_app.set(node.next_app);
    shared.next_connection.set(node.next_connection);
    shared.counts.takeovers.set(node.takeovers + 1);
    shared.counts.takeovers_undone.set(node.takeovers_undone);
    if node.began_unix_ms > 0 {
        shared.began_unix_ms.set(node.began_unix_ms);
    }
    shared.policies.number_from(node.last_change);
    for schema in &node.schemas {
        let added = shared.services.add_schema(schema, None);
        added.map_err(|error| failed("a schema", &error))?;
    }
    let mut apps = Vec::with_capacity(node.apps.len());
    for app in node.apps {
        apps.push(RestoringApp::begin(shared, app, descriptors)?);
    }
    let mut builder = Builder {
        shared,
        places: apps
            .iter()
            .enumerate()
            .map(|(at, app)| (app.identity.id, at))
            .collect(),
        apps: &apps,
        quotas: HashMap::new(),
        transports: HashMap::new(),
    };
    builder.offers()?;
    builder.local_connections()?;
    let mut connections: Vec<Vec<AdoptedConnection>> = Vec::with_capacity(apps.len());
    for app in &apps {
        connections.push(builder.connections(app)?);
    }
    drop(builder);
    finish(shared, apps, connections, unattached)
}

/// An app of which everything is there but its connections.
struct RestoringApp {
    identity: Arc<AppIdentity>,
    runtime: usize,
    control: Rc<Control>,
    send_heap: SendHeap,
    doorbell: Doorbell,
    port: RefCell<AppPort>,
    connections: AppConnections,
    requests: Vec<PendingRequest>,
    parts: Vec<ConnectionParts>,
    state: state::App,
}

/// A connection of which everything is there but its engines.
struct ConnectionParts {
    state: state::Connection,
    schema: Arc<BoundSchema>,
    link: Arc<Link>,
    waker: Arc<PathWaker>,
    descriptors: RefCell<Vec<Vec<OwnedFd>>>,
}

impl RestoringApp {
    fn begin(
        shared: &Rc<Shared>,
        mut app: state::App,
        descriptors: &mut Descriptors,
    ) -> Result<RestoringApp, NotRestored> {
        let what = format!("app {} ({})", app.id, app.name);
        let failed = |reason: &dyn std::fmt::Display| failed(&what, reason);
        let control = descriptors.take_one(&what)?;
        let announcing = control.try_clone().map_err(|error| failed(&error))?;
        let control = Control::new(control.into()).map_err(|error| failed(&error))?;
        let send_heap = map_send_heap(descriptors.take_one(&what)?).map_err(|error| failed(&error))?;
        let doorbell = [descriptors.take_one(&what)?, descriptors.take_one(&what)?];
        let source = PortSource {
            segments: Box::new(AnnouncedSegments::of_successor(announcing)),
            bytes_max: shared.config.limits.receive_heap_bytes,
        };
        let own = descriptors.take(app.port_descriptors, &what)?;
        let port = AppPort::restore(&app.port, own, source).map_err(|error| failed(&error))?;
        let mut requests = Vec::with_capacity(app.requests.len());
        for request in std::mem::take(&mut app.requests) {
            requests.push(PendingRequest {
                packet: request.packet,
                descriptors: descriptors.take(request.descriptors, &what)?,
                answer: request.answer,
            });
        }
        let runtime = apps::place(shared, &app.name);
        shared.runtimes[runtime].place_app();
        let mut parts = Vec::with_capacity(app.connections.len());
        for connection in std::mem::take(&mut app.connections) {
            parts.push(ConnectionParts::begin(shared, runtime, connection, descriptors)?);
        }
        Ok(RestoringApp {
            identity: Arc::new(AppIdentity {
                id: app.id,
                name: app.name.as_str().into(),
                pid: app.pid,
                uid: app.uid,
                gid: app.gid,
            }),
            runtime,
            control: Rc::new(control),
            send_heap,
            doorbell: Doorbell::from_ends(doorbell),
            port: RefCell::new(port),
            connections: AppConnections::default(),
            requests,
            parts,
            state: app,
        })
    }
}

impl ConnectionParts {
    fn begin(
        shared: &Shared,
        runtime: usize,
        connection: state::Connection,
        descriptors: &mut Descriptors,
    ) -> Result<ConnectionParts, NotRestored> {
        let what = format!("connection {} ({})", connection.id, connection.service);
        let engines = connection.engines.iter();
        let own = engines.map(|engine| descriptors.take(engine.descriptors, &what));
        let own = own.collect::<Result<Vec<_>, _>>()?;
        let mut fields = FieldReader::new("link", &connection.link);
        let link = Link::restore(&mut fields).map_err(|error| failed(&what, &error))?;
        Ok(ConnectionParts {
            schema: schema(shared, &connection.service, &connection.schema_hash, &what)?,
            link: Arc::new(link),
            waker: shared.runtimes[runtime].new_waker(),
            descriptors: RefCell::new(own),
            state: connection,
        })
    }

    fn role(&self) -> AppRole {
        match self.state.serves {
            true => AppRole::Server,
            false => AppRole::Client,
        }
    }

    fn encoding(&self) -> Encoding {
        match self.state.is_protobuf {
            true => Encoding::Protobuf,
            false => Encoding::Native,
        }
    }

    fn saved_transport(&self) -> Option<SavedState> {
        let engine = self.state.engines.last()?;
        Some(saved_state(engine))
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

fn schema(shared: &Shared, service: &str, hash: &[u8], what: &str) -> Result<Arc<BoundSchema>, NotRestored> {
    let hash = SchemaHash::try_from(hash).map_err(|error| failed(what, &error))?;
    let known = shared.services.schema(service, hash);
    known.ok_or_else(|| failed(what, &format!("the schema {hash} of {service} is missing")))
}

/// Makes connections, of apps that are there.
struct Builder<'a> {
    shared: &'a Rc<Shared>,
    apps: &'a [RestoringApp],
    places: HashMap<AppId, usize>,
    /// By app and request: connections of a service share the quota with its offer.
    quotas: HashMap<(AppId, u64), Arc<CallQuota>>,
    /// Ends of connections within the node, and what counts them.
    transports: HashMap<ConnectionId, (LocalTransport, Arc<Permit>)>,
}

/// Gives the engines of one app's connections what their states name.
struct AppRestorer<'a> {
    builder: &'a Builder<'a>,
    app: &'a RestoringApp,
}

impl Restorer for AppRestorer<'_> {
    fn block(&mut self, saved: ReceivedBlock) -> Result<ReceivedBlock, NotSaved> {
        self.app.port.borrow_mut().claim(saved)
    }

    fn foreign(&mut self, kept: u32) -> Result<ForeignBytes, NotSaved> {
        let range = self.app.state.ranges.get(kept as usize);
        let heap = |range: &state::Range| {
            let owner = *self.builder.places.get(&range.app)?;
            self.builder.apps[owner]
                .send_heap
                .range(range.offset, range.bytes)
        };
        range.and_then(heap).ok_or(NotSaved::Foreign { kept })
    }
}

impl<'a> Builder<'a> {
    fn offers(&mut self) -> Result<(), NotRestored> {
        for app in self.apps {
            for offer in &app.state.offers {
                let what = format!("app {} offers {}", app.identity.id, offer.service);
                let quota = self.quota(app.identity.id, offer.request, offer.calls_max);
                let bound = self.shared.services.bind(Offer {
                    app: app.identity.id,
                    request: offer.request,
                    schema: schema(self.shared, &offer.service, &offer.schema_hash, &what)?,
                    quota,
                });
                bound.map_err(|error| failed(&what, &error.reason))?;
            }
        }
        Ok(())
    }

    fn quota(&mut self, app: AppId, request: u64, calls_max: u32) -> Arc<CallQuota> {
        let fresh = || Arc::new(CallQuota::new(calls_max));
        Arc::clone(self.quotas.entry((app, request)).or_insert_with(fresh))
    }

    /// Both ends of a connection within the node are made together.
    fn local_connections(&mut self) -> Result<(), NotRestored> {
        let mut waiting: HashMap<u64, (&RestoringApp, &ConnectionParts, SavedState, bool)> = HashMap::new();
        for app in self.apps {
            for parts in &app.parts {
                let Some(saved) = parts.saved_transport() else {
                    continue;
                };
                if saved.kind != provost_transport_local::KIND {
                    continue;
                }
                let what = format!("connection {}", parts.state.id);
                let pair = provost_transport_local::saved_pair(&saved);
                let (pair, is_client) = pair.map_err(|error| failed(&what, &error))?;
                match waiting.remove(&pair) {
                    None => {
                        waiting.insert(pair, (app, parts, saved, is_client));
                    }
                    Some(other) => {
                        let this = (app, parts, saved, is_client);
                        let (client, server) = match is_client {
                            true => (this, other),
                            false => (other, this),
                        };
                        self.local_pair((client.0, client.1, &client.2), (server.0, server.1, &server.2))?;
                    }
                }
            }
        }
        for (app, parts, saved, _) in waiting.into_values() {
            let what = format!("connection {}", parts.state.id);
            let mut restorer = AppRestorer { builder: self, app };
            let end = SavedEnd {
                state: &saved,
                end: end(parts),
                restorer: &mut restorer,
            };
            let restored = provost_transport_local::restore_alone(end);
            let restored = restored.map_err(|error| failed(&what, &error))?;
            let permit = Arc::new(self.shared.permits.count(&app.connections));
            self.transports.insert(parts.state.id, (restored, permit));
        }
        Ok(())
    }

    fn local_pair(
        &mut self,
        client: (&RestoringApp, &ConnectionParts, &SavedState),
        server: (&RestoringApp, &ConnectionParts, &SavedState),
    ) -> Result<(), NotRestored> {
        let (client_id, server_id) = (client.1.state.id, server.1.state.id);
        let what = format!("connections {client_id} and {server_id}");
        let mut at_client = AppRestorer {
            builder: self,
            app: client.0,
        };
        let mut at_server = AppRestorer {
            builder: self,
            app: server.0,
        };
        let pair = provost_transport_local::restore_pair(
            SavedEnd {
                state: client.2,
                end: end(client.1),
                restorer: &mut at_client,
            },
            SavedEnd {
                state: server.2,
                end: end(server.1),
                restorer: &mut at_server,
            },
        );
        let (at_client, at_server) = pair.map_err(|error| failed(&what, &error))?;
        // It counts once, for the app that asked for it.
        let permit = Arc::new(self.shared.permits.count(&client.0.connections));
        self.transports
            .insert(client_id, (at_client, Arc::clone(&permit)));
        self.transports.insert(server_id, (at_server, permit));
        Ok(())
    }

    fn connections(&mut self, app: &RestoringApp) -> Result<Vec<AdoptedConnection>, NotRestored> {
        let mut adopted = Vec::with_capacity(app.parts.len());
        for parts in &app.parts {
            adopted.push(self.connection(app, parts)?);
        }
        Ok(adopted)
    }

    fn connection(
        &mut self,
        app: &RestoringApp,
        parts: &ConnectionParts,
    ) -> Result<AdoptedConnection, NotRestored> {
        let connection = &parts.state;
        let what = format!("connection {} ({})", connection.id, connection.service);
        let offer = (connection.offer_request != 0 || connection.serves).then(|| {
            let quota = self.quota(
                app.identity.id,
                connection.offer_request,
                connection.offer_calls_max,
            );
            (connection.offer_request, quota)
        });
        let site = self.site(app, parts);
        let (transport, permit) = match self.transports.remove(&connection.id) {
            Some((transport, permit)) => (Some(transport), Box::new(permit) as Box<dyn Send>),
            None => (
                None,
                Box::new(self.shared.permits.count(&app.connections)) as Box<dyn Send>,
            ),
        };
        let end = AppEnd {
            role: parts.role(),
            schema: &parts.schema,
            send_heap: app.send_heap.clone(),
            encoding: parts.encoding(),
            message_bytes_max: connection.message_bytes_max,
            calls_max: connection.calls_max,
            quota: offer.as_ref().map(|(_, quota)| Arc::clone(quota)),
            link: Arc::clone(&parts.link),
        };
        let chain = self.shared.policies.table().chain(&site);
        let mut plan = Vec::with_capacity(connection.engines.len());
        let mut transport = transport;
        for engine in &connection.engines {
            let fitted = fit(engine, &end, &site, &chain, &mut transport);
            plan.push(fitted.map_err(|reason| failed(&what, &reason))?);
        }
        let (starts, fitted): (Vec<_>, Vec<_>) = plan.into_iter().unzip();
        let datapath = self.datapath(app, parts, starts);
        let datapath = datapath.map_err(|error| failed(&what, &error))?;
        let has_engine = |instance: &Arc<Instance>| {
            let mut engines = connection.engines.iter();
            engines.any(|engine| *engine.policy == *instance.name)
        };
        let (own_chain, without): (Vec<_>, Vec<_>) = chain.into_iter().partition(has_engine);
        let transport_version = connection.engines.last().map_or(1, |engine| engine.version);
        let open = OpenConnection {
            app: app.identity.id,
            link: Arc::clone(&parts.link),
            waker: Arc::clone(&parts.waker),
            serves: connection.serves.then(|| connection.service.clone()),
            site,
            revision: 0,
            chain: own_chain,
            without: without.iter().map(|instance| instance.tag).collect(),
            transport_version,
            stays_because: None,
            encoding: parts.encoding(),
            terms: Terms {
                schema: Arc::clone(&parts.schema),
                message_bytes_max: connection.message_bytes_max,
                calls_max: connection.calls_max,
                offer,
            },
        };
        self.shared.connections.borrow_mut().insert(connection.id, open);
        let accepted_for = connection.is_unannounced.then_some(connection.offer_request);
        Ok(AdoptedConnection {
            number: connection.number,
            phase: ConnectionPhase {
                told_going_away: connection.told_going_away,
                is_closing: connection.is_closing,
                has_ended: connection.has_ended,
            },
            new: NewConnection {
                id: connection.id,
                app: app.identity.id,
                datapath,
                fitted,
                waker: Arc::clone(&parts.waker),
                permit,
                accepted_for,
                opened: oneshot::channel().0,
            },
        })
    }

    fn site(&self, app: &RestoringApp, parts: &ConnectionParts) -> Arc<Site> {
        let connection = &parts.state;
        let peer_app = self.places.get(&connection.peer_app);
        compose::site(Whereabouts {
            node: &self.shared.config.node.name,
            app: Arc::clone(&app.identity),
            role: parts.role(),
            schema: &parts.schema,
            peer: PeerIdentity {
                identity: connection.peer_identity.as_str().into(),
                address: connection.peer_address.as_str().into(),
                transport: match connection.transport.as_str() {
                    "local" => "local",
                    "datagram" => "datagram",
                    _ => "tcp",
                },
                app: peer_app.map(|at| Arc::clone(&self.apps[*at].identity)),
            },
            connection: connection.id,
            runtime: app.runtime,
        })
    }

    fn datapath(
        &self,
        app: &RestoringApp,
        parts: &ConnectionParts,
        starts: Vec<EngineStart>,
    ) -> Result<Datapath, provost_datapath::RestoreError> {
        let descriptors = parts.descriptors.take();
        let engines = parts.state.engines.iter().zip(descriptors);
        let engines = engines.map(|(engine, descriptors)| SavedEngine {
            state: saved_state(engine),
            version: engine.version,
            descriptors,
        });
        let saved = SavedDatapath {
            engines: engines.collect(),
            steps: parts.state.steps.clone(),
        };
        let mut restorer = AppRestorer { builder: self, app };
        Datapath::restore(saved, starts, Arc::clone(&parts.link), &mut restorer)
    }
}

fn end(parts: &ConnectionParts) -> End {
    let wake: Arc<PathWaker> = Arc::clone(&parts.waker);
    End {
        link: Arc::clone(&parts.link),
        wake,
    }
}

/// How an engine is made of its state, and what is known of it.
fn fit(
    engine: &state::Engine,
    end: &AppEnd<'_>,
    site: &Arc<Site>,
    chain: &[Arc<Instance>],
    local: &mut Option<LocalTransport>,
) -> Result<(EngineStart, Fitted), String> {
    let tag = Tag(engine.tag);
    let start: EngineStart = match tag {
        Tag::FRONTEND => {
            let parts = end.frontend();
            Box::new(move |predecessor: Predecessor<'_>| {
                let saved = predecessor.saved.ok_or_else(|| nothing_saved("frontend"))?;
                let frontend = Frontend::restore(parts, saved, predecessor.restorer)?;
                Ok(Box::new(frontend) as Box<dyn Engine>)
            })
        }
        Tag::MARSHALLING => {
            let binding = end.marshalling();
            Box::new(move |predecessor: Predecessor<'_>| {
                let saved = predecessor.saved.ok_or_else(|| nothing_saved("marshalling"))?;
                let marshalling = Marshalling::restore(saved, binding, predecessor.restorer)?;
                Ok(Box::new(marshalling) as Box<dyn Engine>)
            })
        }
        Tag::TRANSPORT => transport(engine, local.take())?,
        _ => return policy(engine, site, chain),
    };
    Ok((start, Fitted::new(tag, Guard::default())))
}

fn transport(engine: &state::Engine, local: Option<LocalTransport>) -> Result<EngineStart, String> {
    if let Some(local) = local {
        return Ok(Box::new(move |_: Predecessor<'_>| {
            Ok(Box::new(local) as Box<dyn Engine>)
        }));
    }
    let kind = engine.kind.as_str();
    match crate::policies::transports::restoring(kind, engine.version) {
        Some(start) => Ok(start),
        None => Err(format!("this version has no transport {kind}")),
    }
}

fn policy(
    engine: &state::Engine,
    site: &Arc<Site>,
    chain: &[Arc<Instance>],
) -> Result<(EngineStart, Fitted), String> {
    let instance = chain.iter().find(|instance| *instance.name == *engine.policy);
    let instance = instance.ok_or_else(|| format!("policy \"{}\" is not attached here", engine.policy))?;
    let guard = Guard {
        trial: None,
        stand_in: stand_in(instance, site),
    };
    if engine.stands_in {
        let (name, site) = (Arc::clone(&instance.name), Arc::new(instance.site(site)));
        let start: EngineStart =
            Box::new(move |predecessor: Predecessor<'_>| Ok(closed::engine(&name, &site, predecessor.saved)));
        return Ok((start, Fitted::standing_in(instance.tag, guard)));
    }
    let prepared = instance.prepare(site);
    let prepared = prepared.map_err(|error| format!("policy \"{}\": {error}", engine.policy))?;
    let start: EngineStart = Box::new(move |predecessor: Predecessor<'_>| prepared(predecessor.saved));
    Ok((start, Fitted::new(instance.tag, guard)))
}

fn nothing_saved(kind: &'static str) -> provost_datapath::RestoreError {
    provost_datapath::RestoreError::Damaged {
        kind,
        reason: "nothing was saved".to_owned(),
    }
}

/// Every connection has been made: the apps are put down, and what is to be polled is given out.
fn finish(
    shared: &Rc<Shared>,
    apps: Vec<RestoringApp>,
    connections: Vec<Vec<AdoptedConnection>>,
    unattached: Vec<PacketSocket>,
) -> Result<Restored, NotRestored> {
    let mut restored = Restored {
        adopted: shared.runtimes.iter().map(|_| Vec::new()).collect(),
        resumed: Vec::with_capacity(apps.len()),
        unattached,
    };
    let stuck = apps.iter().map(stuck_step).collect::<Result<Vec<_>, _>>()?;
    for ((app, connections), stuck) in apps.into_iter().zip(connections).zip(stuck) {
        let mut port = app.port.into_inner();
        port.end_claims();
        let given_up = Arc::new(Notify::new());
        let mut requests = std::collections::BTreeMap::new();
        for request in app.requests {
            let number = shared.next_request.replace(shared.next_request.get() + 1);
            requests.insert(number, request);
        }
        let attached = AttachedApp {
            control: app.control,
            requests: Rc::new(RefCell::new(requests)),
            takes_regions: app.state.takes_regions,
            identity: Arc::clone(&app.identity),
            runtime: app.runtime,
            send_heap: app.send_heap.clone(),
            connections: app.connections.clone(),
            given_up: Arc::clone(&given_up),
        };
        shared.apps.borrow_mut().insert(app.identity.id, attached);
        restored.adopted[app.runtime].push(AdoptedApp {
            new: NewApp {
                app: app.identity.id,
                port,
                doorbell: app.doorbell,
                waiting: match app.state.busy_poll {
                    true => Waiting::BusyPolls,
                    false => Waiting::Sleeps,
                },
            },
            places: app.state.places,
            stuck,
            leaving: Some(app.state.leaving_ns).filter(|until| *until != 0),
            connections,
        });
        let following = match app.state.takes_regions {
            true => Following::Follows,
            false => Following::StaysBehind,
        };
        let app = App {
            id: app.identity.id,
            runtime: app.runtime,
            send_heap: app.send_heap,
            connections: app.connections,
            identity: app.identity,
            given_up,
        };
        restored.resumed.push((app, following));
    }
    Ok(restored)
}

/// A step as the app submitted it names neither blocks nor ranges.
fn stuck_step(app: &RestoringApp) -> Result<Option<(u32, Step)>, NotRestored> {
    struct Nothing;
    impl Restorer for Nothing {
        fn block(&mut self, saved: ReceivedBlock) -> Result<ReceivedBlock, NotSaved> {
            Err(NotSaved::Block { at: saved.at })
        }

        fn foreign(&mut self, kept: u32) -> Result<ForeignBytes, NotSaved> {
            Err(NotSaved::Foreign { kept })
        }
    }
    let Some(stuck) = &app.state.stuck else {
        return Ok(None);
    };
    let mut fields = FieldReader::new(STUCK_KIND, &stuck.step);
    let step = Step::restore(&mut fields, &mut Nothing);
    let step = step.map_err(|error| failed(&format!("app {}", app.identity.id), &error))?;
    Ok(Some((stuck.connection, step)))
}
