//! Calls of other nodes that go on to gRPC servers, by routes that the configuration exports (`[[route]] export = true`).
//!
//! ```text
//! other node ══ connection that a relay serves ══ RelayPort ══ connection on which it calls ══ gRPC server
//!               (policies of this node)            └─ServiceWanted─► RelayAccess::look_for ─► opens it
//! ```
//!
//! Each connection of another node for such a service gets a relay: an app without a process, under the name that the route
//! gives it. Shares, authority, policies and status see it as an app that serves the service. It lives as long as that
//! connection. The server is reached when the first call comes, and again when its connection has ended.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use provost_datapath::{BodyForm, CompressedMessages};
use provost_engine::AppIdentity;
use provost_frontend::{MethodShape, SendHeap};
use provost_frontend_grpc::{KnownMethods, ServiceBinding, ServiceRefusal};
use provost_runtime::{CallerEnding, NewCaller, RelayPort, RelayPortParts, ServiceAnswer};
use provost_shm::{Memfd, ShmError, now_ns};
use provost_wire::Code;
use tokio::sync::Notify;
use tracing::Instrument;

use crate::access::UNKNOWN_USER;
use crate::admission;
use crate::app_process::AppProcess;
use crate::app_registry::AttachedApp;
use crate::compose::{AppEndpoint, JudgedConnections};
use crate::config::AppTable;
use crate::connect::Connector;
use crate::connections::OpenConnection;
use crate::grpc::attached;
use crate::log::{self, EventSubject};
use crate::peer_shares::PeerParty;
use crate::permits::{self, AppConnections, Permit};
use crate::refusal::Refusal;
use crate::runtime::{AppId, ConnectionId, RuntimeCommand};
use crate::schemas::BoundSchema;
use crate::services::Offer;
use crate::transport::{EstablishedPeer, Limits};

mod carried;

pub(crate) use carried::{CarriedRelay, RelayOrigin, RestoredRelay};

/// How long relays whose calls were ended may take to be gone.
const LEAVING_WAIT: Duration = Duration::from_millis(500);

/// See the module's documentation.
pub(crate) struct RelayAccess {
    pub(crate) connector: Rc<Connector>,
    relays: RefCell<HashMap<AppId, Rc<NodeRelay>>>,
    /// Told when one has gone.
    gone: Notify,
    /// Memory of which a relay uses nothing: it has no heap to share.
    no_heap: SendHeap,
}

/// What stands between a connection of another node and a gRPC server.
pub(crate) struct NodeRelay {
    app: Rc<AttachedApp>,
    schema: Arc<BoundSchema>,
    /// The connection that it serves.
    serves: ConnectionId,
    peer: String,
    /// Longest message that the other node takes, in bytes.
    message_bytes_max: u32,
}

/// A relay for which there was room, and whose connection is counted. Nothing is done for it yet.
pub(crate) struct AdmittedRelay {
    app: Rc<AttachedApp>,
    permit: Permit,
    party: PeerParty,
    limits: Limits,
}

impl NodeRelay {
    /// The runtime that polls it.
    pub(crate) fn runtime(&self) -> usize {
        self.app.endpoint.runtime
    }

    /// Ends what is under way on its behalf.
    fn give_up(&self) {
        self.app.gone.set();
    }
}

// How one comes, and how it goes.
impl RelayAccess {
    /// Passes nothing on yet.
    pub(crate) fn new(connector: &Rc<Connector>) -> Result<RelayAccess, ShmError> {
        Ok(RelayAccess {
            connector: Rc::clone(connector),
            relays: RefCell::default(),
            gone: Notify::new(),
            no_heap: SendHeap::map(Memfd::create("provost-no-heap", 1)?)?,
        })
    }

    /// Opens a connection that another node has agreed on with this one, for a service that this node exports.
    pub(crate) async fn open(
        self: &Rc<Self>,
        id: ConnectionId,
        established: EstablishedPeer,
        offer: &Offer,
        admitted: AdmittedRelay,
    ) -> Result<(), Refusal> {
        let AdmittedRelay {
            app,
            permit,
            party,
            limits,
        } = admitted;
        drop((app, permit));
        // Others may have come since it was asked, and a reload: from here on it is counted among the apps, too.
        let AdmittedRelay { app, permit, .. } = self.admit(&offer.schema.service, party, limits)?;
        let own = self.connector.services.limits();
        let relay = Rc::new(NodeRelay {
            app: Rc::clone(&app),
            schema: Arc::clone(&offer.schema),
            serves: id,
            peer: established.address.to_string(),
            message_bytes_max: own
                .message_bytes_max
                .min(established.peer_limits.message_bytes_max),
        });
        self.attach(&relay).await?;
        let (endpoint, schema) = (&app.endpoint, &offer.schema);
        let opening = self
            .connector
            .open_remote(id, endpoint, schema, Some(offer), established, permit);
        if let Err(refusal) = opening.await {
            self.detach(&relay).await;
            return Err(refusal);
        }
        tokio::task::spawn_local(Rc::clone(self).attend(relay));
        Ok(())
    }

    /// The app that a relay is, if there is room for it. `limits` are what the other node is ready to receive.
    pub(crate) fn admit(
        &self,
        service: &str,
        party: PeerParty,
        limits: Limits,
    ) -> Result<AdmittedRelay, Refusal> {
        let (live, apps) = (self.connector.config.live(), &self.connector.apps);
        let Some(name) = live.exported(service) else {
            let message = format!("no exported [[route]] of this node leads to {service} any more");
            return Err(Refusal::new(Code::Unavailable, message));
        };
        admission::check_room(&self.connector.config, apps, UNKNOWN_USER)?;
        let connections = self.connector.connections.permits.of_app(UNKNOWN_USER);
        let mut process = AppProcess::unknown();
        let table = self.connector.authority.admit(&live, name, &mut process)?;
        if let Some(table) = &table {
            admission::check_attachments(&self.connector.config, apps, table)?;
            connections.set_bound(table.connections);
        }
        self.check_share(&party, table.as_ref(), &connections)?;
        let endpoint = self.endpoint(apps.new_id(), name, &process, compressed_for(limits));
        let app = Rc::new(attached(endpoint, process, connections));
        let permit = self.connector.permit(&app)?;
        Ok(AdmittedRelay {
            app,
            permit,
            party,
            limits,
        })
    }

    /// Checks that the relays of one peer leave room to those of others. They count as one user, together with clients over TCP.
    fn check_share(
        &self,
        party: &PeerParty,
        table: Option<&AppTable>,
        connections: &AppConnections,
    ) -> Result<(), Refusal> {
        let (config, apps) = (&self.connector.config, &self.connector.apps);
        let live = config.live();
        let check = |key: &str, [most, taken]: [usize; 2], of_peer: &dyn Fn() -> usize| {
            permits::check_share(most, taken, of_peer).map_err(|of_peer| {
                let message = format!(
                    "the peer has {of_peer} of the {most} that {key} allows calls which are passed on: the rest is for other peers"
                );
                config.over_limit(key, message)
            })
        };
        let relays = || self.of_party(party).len();
        let attached = [live.limits.apps_per_user, apps.count_of_user(UNKNOWN_USER)];
        check("limits.apps_per_user", attached, &relays)?;
        if let Some((table, most)) = table.and_then(|table| Some((table, table.attachments?))) {
            let attached = [most, apps.count_of_table(&live, &table.name)];
            check(&live.key_of_app_table(table, "attachments"), attached, &relays)?;
        }
        let (most, taken) = self.connector.connections.permits.of_user(connections);
        check("limits.connections_per_user", [most, taken], &|| {
            let mut count = 0;
            for relay in self.of_party(party) {
                self.connector.connections.each_of_app(relay, |_| count += 1);
            }
            count
        })
    }

    /// The relays of one peer.
    fn of_party(&self, party: &PeerParty) -> Vec<AppId> {
        let connections = &self.connector.connections;
        let serves = |relay: &NodeRelay| {
            let open = connections.find(relay.serves);
            open.is_some_and(|open| open.serves_party(party))
        };
        let relays = self.relays.borrow();
        let of_party = relays.iter().filter(|(_, relay)| serves(relay));
        of_party.map(|(app, _)| *app).collect()
    }

    /// The end of connections that a relay has.
    fn endpoint(
        &self,
        id: AppId,
        name: &str,
        process: &AppProcess,
        compressed: CompressedMessages,
    ) -> AppEndpoint {
        let (apps, credentials) = (&self.connector.apps, &process.credentials);
        let identity = AppIdentity {
            id,
            name: name.into(),
            pid: credentials.pid,
            uid: credentials.uid,
            gid: credentials.gid,
            user: apps.name_of_user(credentials.uid),
            workload: self
                .connector
                .callers
                .workload(&self.connector.config.live(), name),
        };
        AppEndpoint {
            runtime: self.connector.runtimes.place(name),
            send_heap: self
                .no_heap
                .clone()
                .counted_in(&apps.private_bytes_of(credentials.uid)),
            judging: JudgedConnections::ThoseItServes,
            form: BodyForm::Protobuf,
            compressed,
            // Who the other node has proved to be is known of its connection.
            proved: "".into(),
            identity: Arc::new(identity),
        }
    }

    /// What the port of a relay is made of.
    fn port_parts(
        &self,
        endpoint: &AppEndpoint,
        schema: &BoundSchema,
        message_bytes_max: u32,
    ) -> RelayPortParts {
        let methods = schema.schema.service(&schema.service);
        RelayPortParts {
            service: schema.service.clone(),
            tables: Arc::clone(&schema.tables),
            methods: methods.map_or_else(|| Arc::from([]), MethodShape::of_service),
            message_bytes_max,
            share: Arc::clone(endpoint.send_heap.share()),
            receive_heap_bytes: self.connector.config.live().limits.receive_heap_bytes,
        }
    }

    /// Gives a relay's port to its runtime.
    async fn attach(&self, relay: &Rc<NodeRelay>) -> Result<(), Refusal> {
        let (app, schema) = (&relay.app, &relay.schema);
        let parts = self.port_parts(&app.endpoint, schema, relay.message_bytes_max);
        let port = Box::new(RelayPort::new(parts, now_ns()));
        let runtime = &self.connector.runtimes[relay.runtime()];
        runtime.place_app();
        // Before its runtime can say anything of it.
        self.connector.apps.insert(Rc::clone(app));
        self.relays.borrow_mut().insert(app.id(), Rc::clone(relay));
        let new = Box::new(NewCaller { app: app.id(), port });
        if let Err(overloaded) = runtime.send(RuntimeCommand::AttachCaller(new)).await {
            runtime.remove_app();
            self.connector.apps.remove(app.id());
            self.forget(app.id());
            return Err(Refusal::new(Code::ResourceExhausted, overloaded.to_string()));
        }
        if log::may_log(EventSubject::User(UNKNOWN_USER)) {
            let (name, service, peer) = (app.name(), &schema.service, &relay.peer);
            tracing::info!(
                app = app.id(),
                name,
                service,
                peer,
                "calls of another node are passed on"
            );
        }
        Ok(())
    }

    /// Ends a relay that is not to be here any more.
    async fn attend(self: Rc<Self>, relay: Rc<NodeRelay>) {
        tokio::select! {
            () = relay.app.given_up.notified() => {}
            () = relay.app.gone.wait() => return,
        }
        let _guard = self.connector.quiesce_barrier.enter().await;
        self.detach(&relay).await;
    }

    async fn detach(&self, relay: &NodeRelay) {
        relay.give_up();
        let command = || RuntimeCommand::Detach(relay.app.id());
        // Taken again and again: a runtime that takes no commands for seconds gets some more.
        while self.connector.runtimes[relay.runtime()]
            .send(command())
            .await
            .is_err()
        {
            tracing::error!(app = relay.app.id(), "a runtime thread takes no commands");
        }
    }

    fn find(&self, id: AppId) -> Option<Rc<NodeRelay>> {
        self.relays.borrow().get(&id).map(Rc::clone)
    }

    fn all(&self) -> Vec<Rc<NodeRelay>> {
        self.relays.borrow().values().map(Rc::clone).collect()
    }

    /// Whether an app is a relay.
    pub(crate) fn has(&self, id: AppId) -> bool {
        self.relays.borrow().contains_key(&id)
    }

    /// The node whose calls a relay passes on.
    pub(crate) fn origin_of(&self, id: AppId) -> Option<String> {
        Some(format!("node at {}", self.find(id)?.peer))
    }

    /// The connection that a relay served has ended: what is under way on its behalf ends too.
    pub(crate) fn connection_ended(&self, id: AppId, reason: &str) {
        let Some(relay) = self.find(id) else {
            return;
        };
        relay.give_up();
        if log::may_log(EventSubject::User(UNKNOWN_USER)) {
            tracing::info!(
                app = id,
                name = relay.app.name(),
                reason,
                "calls are passed on no more"
            );
        }
    }

    /// Nothing of a relay is left at its runtime.
    pub(crate) fn forget(&self, id: AppId) {
        let relay = self.relays.borrow_mut().remove(&id);
        if let Some(relay) = relay {
            relay.give_up();
            self.gone.notify_one();
        }
    }
}

// What one calls.
impl RelayAccess {
    /// Reaches the server of a relay, and tells its port.
    pub(crate) fn look_for(self: &Rc<Self>, id: AppId, service: String) {
        let Some(relay) = self.find(id) else {
            return;
        };
        let access = Rc::clone(self);
        let span = tracing::info_span!("request", app = id);
        let looking = async move {
            let mut guard = None;
            let found = access.reach_server(&relay, &mut guard).await;
            let _guard = match guard {
                Some(guard) => guard,
                None => access.connector.quiesce_barrier.enter().await,
            };
            let answer = ServiceAnswer {
                app: id,
                service,
                found: found.map_err(|refusal| ServiceRefusal {
                    code: refusal.code,
                    message: refusal.message,
                }),
            };
            let command = RuntimeCommand::AnswerService(Box::new(answer));
            if let Err(error) = access.connector.runtimes[relay.runtime()].send(command).await {
                tracing::error!(%error, "calls that are passed on were not answered");
            }
        };
        tokio::task::spawn_local(looking.instrument(span));
    }

    async fn reach_server<'a>(
        &'a self,
        relay: &NodeRelay,
        guard: &mut Option<crate::quiesce_barrier::QuiesceGuard<'a>>,
    ) -> Result<ServiceBinding, Refusal> {
        let (app, schema) = (&relay.app, &relay.schema);
        if self.connector.config.live().exported(&schema.service) != Some(app.name()) {
            let message = format!(
                "no [[route]] that leads to {} is exported to other nodes any more",
                schema.service
            );
            return Err(Refusal::new(Code::Unavailable, message));
        }
        let opened = self.connector.connect_relay(app, schema, guard).await?;
        Ok(ServiceBinding {
            connection: opened.number,
            tables: Arc::clone(&schema.tables),
            methods: Arc::default(),
            methods_known: KnownMethods::All,
            message_bytes_max: self.connector.services.limits().message_bytes_max,
            compressed: app.endpoint.compressed,
        })
    }
}

/// What becomes of compressed messages for another node: it says what it takes.
fn compressed_for(limits: Limits) -> CompressedMessages {
    if limits.takes_compressed() {
        CompressedMessages::Passed
    } else {
        CompressedMessages::Decompressed
    }
}

// How all go.
impl RelayAccess {
    /// Has the nodes whose calls are passed on connect anew. Calls that are under way go on.
    pub(crate) fn drain(&self) {
        self.drain_those(|_| true);
    }

    /// Exports what the configuration in effect does; relays by routes that are exported no more, or under another name, end
    /// with the calls that are under way.
    pub(crate) fn follow_routes(&self) {
        let live = self.connector.config.live();
        let routes = live.routes.iter().filter(|route| route.export);
        self.connector
            .services
            .export(routes.map(|route| route.service.clone()));
        self.drain_those(|relay| live.exported(&relay.schema.service) != Some(relay.app.name()));
    }

    fn drain_those(&self, is_meant: impl Fn(&NodeRelay) -> bool) {
        for relay in self.all().iter().filter(|relay| is_meant(relay)) {
            if let Some(open) = self.connector.connections.find(relay.serves) {
                OpenConnection::drain(&open);
            }
        }
    }

    /// Waits until there is none.
    pub(crate) async fn all_gone(&self) {
        while !self.relays.borrow().is_empty() {
            self.gone.notified().await;
        }
    }

    /// Has all nodes connect anew, and ends the calls that are under way after so long.
    pub(crate) async fn see_off(&self, limit: Duration) {
        self.drain();
        if tokio::time::timeout(limit, self.all_gone()).await.is_ok() {
            return;
        }
        let left = self.all();
        tracing::warn!(relays = left.len(), "calls that are passed on are cut short");
        for relay in &left {
            let ending = CallerEnding {
                app: relay.app.id(),
                refusal: ServiceRefusal {
                    code: Code::Unavailable,
                    message: "the service on the node that passes the call on is being replaced: call again"
                        .to_owned(),
                },
            };
            let command = RuntimeCommand::EndCaller(Box::new(ending));
            if self.connector.runtimes[relay.runtime()]
                .send(command)
                .await
                .is_err()
            {
                tracing::error!(app = relay.app.id(), "a runtime thread takes no commands");
            }
        }
        let _ = tokio::time::timeout(LEAVING_WAIT, self.all_gone()).await;
        // Who does not read what it is told needs not be waited for.
        for relay in self.all() {
            self.detach(&relay).await;
        }
    }
}
