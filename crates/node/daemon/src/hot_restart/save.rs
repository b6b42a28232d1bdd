//! How the old process puts the state together, while everything rests.

use std::collections::HashSet;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use provost_datapath::{CompressedMessages, SavedEngine};
use provost_engine::AttestedApp;
use provost_frontend::SendHeap;
use tokio::sync::mpsc;

use super::state;
use crate::app_registry::{AttachedApp, PendingRequest};
use crate::connections::OpenConnection;
use crate::control_plane::ControlPlane;
use crate::grpc::CarriedClient;
use crate::observe;
use crate::runtime::{
    AppId, FrozenRuntime, SavedApp, SavedAround, SavedConnection, SavedEngineTag, WaitMode, save_apps,
};
use crate::transport::listener_name;

/// Bytes of the states of all gRPC clients, at most. Those beyond it are not carried.
const CLIENTS_BYTES_MAX: usize = 2 << 30;

/// Bytes of the states of all calls of other nodes that are passed on, likewise.
const RELAYS_BYTES_MAX: usize = 2 << 30;

/// What the preview had.
pub(super) struct Known {
    schemas: HashSet<[u8; 32]>,
}

/// In which order a process takes the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StateOrder {
    /// All of it at once.
    AtOnce,
    /// gRPC clients before the rest.
    ClientsFirst,
    /// Apps and callers after the rest, in batches.
    PartiesLast,
}

/// What is known of the process that reads the state.
pub(super) struct StateReader<'a> {
    pub(super) known: &'a Known,
    /// The newest forms of the states of engines that it reads, by kind.
    pub(super) newest_forms: Arc<[(String, u32)]>,
    pub(super) order: StateOrder,
    /// Where the parts go, as they are put together.
    pub(super) parts: mpsc::Sender<SavedPart>,
}

/// A part of the state.
pub(super) enum SavedPart {
    /// Some apps and callers.
    Parties(SavedDocument<state::SavedParties>),
    /// What did not go before, and does not come after.
    Rest(SavedDocument<state::Node>),
    /// There is nothing more.
    Complete,
}

/// A document, with the descriptors beside it.
pub(super) struct SavedDocument<T> {
    pub(super) document: T,
    pub(super) descriptors: Vec<OwnedFd>,
    pub(super) connections: usize,
    _emptied: EmptiedBuffers,
}

/// What a runtime has saved in, once that has been taken out. It is freed with what was taken, when the successor serves: while a runtime
/// saves, each of its buffers that another thread frees has the two wait for each other in the allocator.
#[derive(Default)]
struct EmptiedBuffers {
    connections: Vec<Vec<SavedConnection>>,
    engines: Vec<Vec<SavedEngine>>,
    tags: Vec<Vec<SavedEngineTag>>,
    descriptors: Vec<Vec<OwnedFd>>,
}

/// What takes long to get ready for, while this process goes on.
pub(super) fn preview(plane: &ControlPlane) -> io::Result<(state::Preview, Known)> {
    let mut known = Known {
        schemas: HashSet::new(),
    };
    let schemas = unknown_schemas(plane, &mut known);
    let sockets = plane.restarts.sockets();
    let preview = state::Preview {
        control_socket: plane
            .config
            .started
            .control
            .socket
            .as_os_str()
            .as_bytes()
            .to_vec(),
        schemas,
        listeners: sockets
            .listeners
            .iter()
            .zip(&plane.peers.addresses)
            .map(|((configured, _), bound)| state::Listener {
                configured: listener_name(configured.transport, configured.address),
                bound: listener_name(configured.transport, *bound),
            })
            .collect(),
        policies: Some(policies(plane)?),
        libraries: plane.policies.registry().libraries(),
        parties: plane.apps.count() as u32,
        connections: plane.connections.all().len() as u32,
    };
    Ok((preview, known))
}

/// The table of policies. Nobody changes it before this process has been replaced, or goes on.
fn policies(plane: &ControlPlane) -> io::Result<state::Policies> {
    let saved = plane.policies.save().map_err(io::Error::other)?;
    let instances = saved.instances.into_iter().map(|instance| state::PolicyInstance {
        attachment: instance.attachment,
        shared: Some(state::PolicyShared {
            version: instance.shared.version,
            state: instance.shared.bytes,
        }),
    });
    Ok(state::Policies {
        table: saved.table,
        instances: instances.collect(),
    })
}

/// Saves the whole node, in the order in which its reader takes the parts. Its barriers are closed and its runtimes rest.
pub(super) async fn node(
    plane: &ControlPlane,
    frozen: &[FrozenRuntime],
    reader: &StateReader<'_>,
) -> io::Result<()> {
    let heaps: Arc<[(AppId, SendHeap)]> = {
        let apps = plane.apps.all();
        let heaps = apps
            .iter()
            .map(|(app, attached)| (*app, attached.endpoint.send_heap.clone()));
        heaps.collect()
    };
    let around = SavedAround {
        heaps,
        newest_forms: Arc::clone(&reader.newest_forms),
    };
    let mut known = Known {
        schemas: reader.known.schemas.clone(),
    };
    let mut schemas = unknown_schemas(plane, &mut known);
    let mut writer = Writer::new(plane);
    let mut node = writer.found()?;
    let instances = policies(plane)?.instances.into_iter();
    node.shared = instances
        .map(|instance| instance.shared.unwrap_or_default())
        .collect();
    if reader.order == StateOrder::PartiesLast {
        node.schemas = std::mem::take(&mut schemas);
        let rest = std::mem::replace(&mut writer, Writer::new(plane)).document(std::mem::take(&mut node));
        reader.send(SavedPart::Rest(rest)).await?;
    }
    let mut left = PartiesOfRuntime::default();
    let mut room = PartiesRoom::default();
    // One after the other: the two ends of a connection within the node look into the same streams.
    for runtime in frozen {
        let mut being_saved = save_apps(runtime, around.clone());
        while let Some(saved) = being_saved.next().await? {
            saved.left_out.iter().for_each(warn_of_left_out);
            let mut came = PartiesOfRuntime::of(plane, saved.apps, &mut room);
            let now = match reader.order {
                StateOrder::AtOnce => PartiesOfRuntime::default(),
                StateOrder::ClientsFirst => came.take_clients(),
                StateOrder::PartiesLast => std::mem::take(&mut came),
            };
            left.append(came);
            if now.is_empty() {
                continue;
            }
            let mut first = Writer::new(plane);
            let mut parties = first.parties(now)?;
            parties.schemas = std::mem::take(&mut schemas);
            reader.send(SavedPart::Parties(first.document(parties))).await?;
        }
    }
    if reader.order != StateOrder::PartiesLast {
        left.sort();
        let parties = writer.parties(left)?;
        let state::SavedParties {
            apps,
            grpc_clients,
            relays,
            ..
        } = parties;
        let rest = writer.document(state::Node {
            schemas,
            apps,
            grpc_clients,
            relays,
            ..node
        });
        reader.send(SavedPart::Rest(rest)).await?;
    }
    reader.send(SavedPart::Complete).await
}

impl StateReader<'_> {
    async fn send(&self, part: SavedPart) -> io::Result<()> {
        let gone = |_| io::Error::other("nobody takes the state any more");
        self.parts.send(part).await.map_err(gone)
    }
}

/// What a runtime has saved of apps and callers.
#[derive(Default)]
struct PartiesOfRuntime {
    apps: Vec<SavedApp>,
    clients: Vec<SavedApp>,
    relays: Vec<SavedApp>,
}

/// What states of callers that are no apps may still take.
struct PartiesRoom {
    clients: CallersRoom,
    relays: CallersRoom,
}

impl Default for PartiesRoom {
    fn default() -> PartiesRoom {
        PartiesRoom {
            clients: CallersRoom::new(CLIENTS_BYTES_MAX),
            relays: CallersRoom::new(RELAYS_BYTES_MAX),
        }
    }
}

impl PartiesOfRuntime {
    /// Those for whose state there is room.
    fn of(plane: &ControlPlane, saved: Vec<SavedApp>, room: &mut PartiesRoom) -> PartiesOfRuntime {
        let (apps, callers): (Vec<_>, Vec<_>) = saved.into_iter().partition(|app| app.doorbell.is_some());
        let (relays, clients): (Vec<_>, Vec<_>) =
            callers.into_iter().partition(|app| plane.relays.has(app.app));
        PartiesOfRuntime {
            apps,
            clients: room.clients.of_those_with_room(clients),
            relays: room.relays.of_those_with_room(relays),
        }
    }

    fn take_clients(&mut self) -> PartiesOfRuntime {
        PartiesOfRuntime {
            clients: std::mem::take(&mut self.clients),
            ..PartiesOfRuntime::default()
        }
    }

    fn append(&mut self, more: PartiesOfRuntime) {
        self.apps.extend(more.apps);
        self.clients.extend(more.clients);
        self.relays.extend(more.relays);
    }

    fn is_empty(&self) -> bool {
        self.apps.is_empty() && self.clients.is_empty() && self.relays.is_empty()
    }

    fn sort(&mut self) {
        for saved in [&mut self.apps, &mut self.clients, &mut self.relays] {
            saved.sort_by_key(|app| app.app);
        }
    }
}

/// The schemas that are not known yet; several services may come from one.
fn unknown_schemas(plane: &ControlPlane, known: &mut Known) -> Vec<Vec<u8>> {
    let mut sets: Vec<Arc<[u8]>> = Vec::new();
    let of_store = plane.services.schemas().into_iter().map(|(schema, _)| schema);
    let connections = plane.connections.all();
    let in_use = connections.values().map(|open| Arc::clone(&open.spec.schema));
    for schema in of_store.chain(in_use) {
        let is_new = known.schemas.insert(schema.hash.0);
        let is_there = || sets.iter().any(|set| Arc::ptr_eq(set, &schema.descriptor_set));
        if is_new && !is_there() {
            sets.push(Arc::clone(&schema.descriptor_set));
        }
    }
    sets.iter().map(|set| set.to_vec()).collect()
}

struct Writer<'a> {
    plane: &'a ControlPlane,
    descriptors: Vec<OwnedFd>,
    connections: usize,
    emptied: EmptiedBuffers,
}

fn warn_of_left_out((app, reason): &(AppId, String)) {
    tracing::warn!(
        app,
        reason,
        "a gRPC client or calls of another node cannot be carried: the connection ends"
    );
}

/// Bytes that the states of callers that are no apps may still take together.
struct CallersRoom {
    bytes_left: usize,
}

impl CallersRoom {
    fn new(bytes_max: usize) -> CallersRoom {
        CallersRoom {
            bytes_left: bytes_max,
        }
    }

    fn of_those_with_room(&mut self, mut saved: Vec<SavedApp>) -> Vec<SavedApp> {
        saved.retain(|caller| {
            let left = self.bytes_left.checked_sub(caller.port.len());
            match left {
                Some(left) => self.bytes_left = left,
                None => tracing::warn!(
                    app = caller.app,
                    "gRPC clients or calls of other nodes have left too much unread to carry all of them: this one's connection ends"
                ),
            }
            left.is_some()
        });
        saved
    }
}

impl<'a> Writer<'a> {
    fn new(plane: &'a ControlPlane) -> Writer<'a> {
        Writer {
            plane,
            descriptors: Vec::new(),
            connections: 0,
            emptied: EmptiedBuffers::default(),
        }
    }

    /// A document, with what was taken for it.
    fn document<T>(self, document: T) -> SavedDocument<T> {
        SavedDocument {
            document,
            descriptors: self.descriptors,
            connections: self.connections,
            _emptied: self.emptied,
        }
    }

    /// Writes apps and callers. Those of which the control plane has heard the end are no more.
    fn parties(&mut self, saved: PartiesOfRuntime) -> io::Result<state::SavedParties> {
        let mut apps = Vec::with_capacity(saved.apps.len());
        for app in saved.apps {
            apps.extend(self.app(app)?);
        }
        Ok(state::SavedParties {
            schemas: Vec::new(),
            apps,
            grpc_clients: self.clients(saved.clients)?,
            relays: self.relays(saved.relays)?,
        })
    }

    /// What the node has beside its apps.
    fn found(&mut self) -> io::Result<state::Node> {
        let sockets = self.plane.restarts.sockets();
        let mut node = state::Node {
            next_app: self.plane.apps.next_id(),
            next_connection: self.plane.connections.next_id(),
            hot_restarts: self.plane.counts.hot_restarts.get(),
            hot_restarts_undone: self.plane.counts.hot_restarts_undone.get(),
            began_unix_ms: self.plane.counts.began_unix_ms.get(),
            last_change: self.plane.policies.history.last_number(),
            ..state::Node::default()
        };
        if let Some(control) = &sockets.control {
            self.descriptors.push(control.try_clone()?);
            node.control_sockets = 1;
        }
        for (_, listener) in &sockets.listeners {
            self.descriptors.push(listener.try_clone()?);
            node.listeners += 1;
        }
        let unattached = self.plane.apps.unattached()?;
        node.unattached = unattached.len() as u32;
        self.descriptors.extend(unattached);
        if let Some((admin, path)) = &sockets.admin {
            self.descriptors.push(admin.try_clone()?);
            node.parts.push(state::Part {
                name: ADMIN_PART.to_owned(),
                state: path.as_os_str().as_bytes().to_vec(),
                descriptors: 1,
            });
        }
        for (name, listener) in [(HTTP_PART, &sockets.http), (PAGE_PART, &sockets.page)] {
            let Some((socket, address)) = listener else {
                continue;
            };
            self.descriptors.push(socket.try_clone()?);
            node.parts.push(state::Part {
                name: name.to_owned(),
                state: address.as_bytes().to_vec(),
                descriptors: 1,
            });
        }
        for inherited in self.plane.grpc.sockets()? {
            self.descriptors.push(inherited.socket);
            node.parts.push(state::Part {
                name: GRPC_PART.to_owned(),
                state: inherited.key.into_bytes(),
                descriptors: 1,
            });
        }
        node.parts.push(state::Part {
            name: observe::state_transfer::PART.to_owned(),
            state: observe::state_transfer::save(self.plane),
            descriptors: 0,
        });
        Ok(node)
    }

    fn app(&mut self, mut saved: SavedApp) -> io::Result<Option<state::App>> {
        let Some(attached) = self.plane.apps.find(saved.app) else {
            return Ok(None);
        };
        let Some(control) = &attached.control else {
            return Ok(None);
        };
        let heap = attached.endpoint.send_heap.memory();
        let heap = heap.ok_or_else(|| io::Error::other("the memory of a send heap was not kept"))?;
        self.descriptors.push(control.duplicate()?);
        self.descriptors.push(heap.try_clone()?.into_descriptor());
        self.descriptors
            .extend(saved.doorbell.take().into_iter().flatten());
        let port_descriptors = self.port(&mut saved);
        let requests = attached.requests.borrow();
        let requests = requests.values().map(|pending| self.request(pending));
        let requests = requests.collect::<io::Result<Vec<_>>>()?;
        let identity = &attached.endpoint.identity;
        Ok(Some(state::App {
            name: identity.name.to_string(),
            pid: identity.pid,
            uid: identity.uid,
            gid: identity.gid,
            takes_regions: attached.takes_regions,
            program: attached.process.program_bytes(),
            port_descriptors,
            offers: self.offers(&attached),
            requests,
            ..self.of_runtime(saved)?
        }))
    }

    /// Writes clients that speak gRPC.
    fn clients(&mut self, saved: Vec<SavedApp>) -> io::Result<Vec<state::GrpcClient>> {
        let mut clients = Vec::with_capacity(saved.len());
        for client in saved {
            // One of which the control plane has heard the end is no more.
            if let Some(carried) = self.plane.grpc.carried(client.app) {
                clients.push(self.client(client, carried)?);
            }
        }
        Ok(clients)
    }

    fn client(&mut self, mut saved: SavedApp, carried: CarriedClient) -> io::Result<state::GrpcClient> {
        let watches = carried.watches.into_iter().map(|watch| state::HealthWatch {
            stream: watch.stream,
            service: watch.service,
            told: watch.told,
        });
        let port_descriptors = self.port(&mut saved);
        Ok(state::GrpcClient {
            app: Some(state::App {
                name: carried.name,
                pid: carried.pid,
                uid: carried.uid,
                gid: carried.gid,
                program: carried.program,
                port_descriptors,
                ..self.of_runtime(saved)?
            }),
            listener: carried.listener,
            proved: carried.proved,
            origin: carried.origin,
            is_admitted: carried.is_admitted,
            is_told_to_go: carried.is_told_to_go,
            watches: watches.collect(),
        })
    }

    /// Writes calls of other nodes.
    fn relays(&mut self, saved: Vec<SavedApp>) -> io::Result<Vec<state::SavedRelay>> {
        let mut relays = Vec::with_capacity(saved.len());
        for relay in saved {
            // As with clients.
            if let Some(carried) = self.plane.relays.carried(relay.app) {
                relays.push(state::SavedRelay {
                    app: Some(state::App {
                        name: carried.name,
                        ..self.of_runtime(relay)?
                    }),
                    message_bytes_max: carried.message_bytes_max,
                    takes_compressed: carried.compressed == CompressedMessages::Passed,
                });
            }
        }
        Ok(relays)
    }

    /// Takes the descriptors of a port; how many it has.
    fn port(&mut self, saved: &mut SavedApp) -> u32 {
        let count = saved.port_descriptors.len() as u32;
        self.descriptors.append(&mut saved.port_descriptors);
        self.emptied
            .descriptors
            .push(std::mem::take(&mut saved.port_descriptors));
        count
    }

    /// What the runtime of an app knows of it, but for the descriptors of its port.
    fn of_runtime(&mut self, mut saved: SavedApp) -> io::Result<state::App> {
        let connections = self.plane.connections.all();
        let mut own = Vec::with_capacity(saved.connections.len());
        for connection in saved.connections.drain(..) {
            let open = connections
                .get(&connection.id)
                .ok_or_else(|| io::Error::other(format!("connection {} is not known", connection.id)))?;
            own.push(self.connection(connection, open));
        }
        self.emptied.connections.push(saved.connections);
        let ranges = saved.ranges.into_iter().map(|range| state::Range {
            app: range.app,
            offset: range.offset,
            bytes: range.bytes,
        });
        Ok(state::App {
            id: saved.app,
            busy_poll: saved.waiting == WaitMode::BusyPolls,
            port: saved.port,
            places: saved.places,
            leaving_ns: saved.leaving.unwrap_or(0),
            connections: own,
            ranges: ranges.collect(),
            ..state::App::default()
        })
    }

    fn offers(&self, attached: &AttachedApp) -> Vec<state::Offer> {
        let offers = self.plane.services.offers_of(attached.id());
        let offers = offers.into_iter().map(|offer| state::Offer {
            service: offer.schema.service.clone(),
            schema_hash: offer.schema.hash.0.to_vec(),
            request: offer.request,
            calls_max: offer.quota.max(),
        });
        offers.collect()
    }

    fn request(&mut self, pending: &PendingRequest) -> io::Result<state::PendingRequest> {
        for descriptor in &pending.descriptors {
            self.descriptors.push(descriptor.try_clone()?);
        }
        Ok(state::PendingRequest {
            packet: pending.packet.clone(),
            descriptors: pending.descriptors.len() as u32,
            answer: pending.answer.clone(),
        })
    }

    fn connection(&mut self, mut saved: SavedConnection, open: &OpenConnection) -> state::Connection {
        self.connections += 1;
        let mut engines = Vec::with_capacity(saved.datapath.engines.len());
        for (engine, tag) in saved.datapath.engines.drain(..).zip(&saved.tags) {
            let mut policies = open.chain.iter();
            let policy = policies.find(|instance| instance.tag == tag.tag);
            engines.push(state::Engine {
                policy: policy.map_or_else(String::new, |instance| instance.name.to_string()),
                kind: engine.state.kind,
                state_version: engine.state.version,
                state: engine.state.bytes,
                version: engine.version,
                tag: tag.tag.0,
                descriptors: engine.descriptors.len() as u32,
                stands_in: tag.stands_in,
            });
            self.descriptors.extend(engine.descriptors);
        }
        self.emptied.engines.push(saved.datapath.engines);
        self.emptied.tags.push(saved.tags);
        let (spec, peer) = (&open.spec, &open.spec.peer);
        let (offer_request, offer_calls_max) = match &spec.offer {
            Some(offer) => (offer.request, offer.quota.max()),
            None => (0, 0),
        };
        state::Connection {
            id: saved.id,
            number: saved.number,
            serves: spec.serves().is_some(),
            service: spec.schema.service.clone(),
            schema_hash: spec.schema.hash.0.to_vec(),
            is_protobuf: spec.encoding == provost_marshalling::Encoding::Protobuf,
            message_bytes_max: spec.limits.message_bytes_max,
            calls_max: spec.limits.calls_max,
            passes_compressed: spec.limits.compressed == CompressedMessages::Passed,
            offer_request,
            offer_calls_max,
            is_unannounced: saved.accepted_for.is_some(),
            told_going_away: saved.phase.told_going_away,
            is_closing: saved.phase.is_closing,
            has_ended: saved.phase.has_ended,
            peer_identity: peer.identity.to_string(),
            peer_address: peer.address.to_string(),
            transport: spec.transport.name().to_owned(),
            peer_app: peer.app.as_ref().map_or(0, |app| app.id),
            link: saved.link,
            engines,
            steps: saved.datapath.steps,
            attested: peer.attested.as_deref().map(attested),
        }
    }
}

fn attested(app: &AttestedApp) -> state::AttestedApp {
    state::AttestedApp {
        node: app.node.to_string(),
        name: app.name.to_string(),
        user: app.user.to_string(),
        uid: app.uid,
        workload: app.workload.to_string(),
    }
}

/// The admin socket, among [`state::Node::parts`].
pub(super) const ADMIN_PART: &str = "admin";
/// A socket for gRPC clients, likewise, by what it is called ([`crate::config::GrpcListenerConfig::socket_key`]).
pub(super) const GRPC_PART: &str = "grpc-listener";
/// The socket of metrics and health, likewise.
pub(super) const HTTP_PART: &str = "http";
/// The socket of the page, with what the configuration called its address.
pub(super) const PAGE_PART: &str = "page";
