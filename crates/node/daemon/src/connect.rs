//! Opening connections for apps: to another app of this node, or to another node; and those that other nodes open.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use provost_datapath::{BodyForm, CompressedMessages, ConnectionSignals, MissingMethods, PrivateBytes};
use provost_engine::DatapathContext;
use provost_frontend_grpc::WantedService;
use provost_marshalling as marshalling;
use provost_wire::Code;
use provost_wire::control::Connect;
use provost_wire::limits::NAME_BYTES_MAX;
use tracing::Instrument;

use crate::app_registry::{AppRegistry, AttachedApp};
use crate::attempts::ConnectAttempts;
use crate::authority::{AppAction, AppAuthority};
use crate::callers::{CallerTrust, peer_description};
use crate::compose::{AcceptedOffer, AppEndpoint, ConnectionLimits, ConnectionSpec, PeerEndpoint};
use crate::config::{RouteConfig, RouteTransport};
use crate::configuration::Configuration;
use crate::connections::{ConnectionOpening, ConnectionRegistry};
use crate::log;
use crate::peers::PeerAccess;
use crate::permits::Permit;
use crate::policies::chain::Chain;
use crate::policies::{ChangeError, Policies};
use crate::quiesce_barrier::{QuiesceBarrier, QuiesceGuard};
use crate::refusal::{Refusal, schema_hash};
use crate::runtime::{AppId, ConnectionId};
use crate::runtimes::Runtimes;
use crate::schema_learning::SchemaLearning;
use crate::schemas::BoundSchema;
use crate::services::{self, Match, Offer, Services};
use crate::suggestion;
use crate::thread_pool::{ThreadPool, WorkThreads};
use crate::transport::local::MethodMap;
use crate::transport::{
    self, CallerAttestation, ConnectRequest, Encoding, EstablishedPeer, GrpcServerTerms, GrpcServerTls,
    Hello, Limits, PeerAddress, RestoredRoute, RestoredServer, TransportKind,
};
use crate::turns::TurnOwner;

/// Longest time that an app may give a connection attempt.
const CONNECT_TIMEOUT_MAX: Duration = Duration::from_secs(3600);

/// What an endpoint of several has at least of the time of an attempt: shorter would be no time for a handshake over a long way.
const ENDPOINT_TIME_MIN: Duration = Duration::from_secs(1);

/// Longest address that an app may name, in bytes: a name of the DNS, and a port.
const ADDRESS_BYTES_MAX: usize = 262;

pub(crate) struct Connector {
    pub(crate) config: Rc<Configuration>,
    pub(crate) apps: Rc<AppRegistry>,
    pub(crate) connections: Rc<ConnectionRegistry>,
    pub(crate) runtimes: Rc<Runtimes>,
    pub(crate) services: Arc<Services>,
    pub(crate) policies: Rc<Policies>,
    pub(crate) peers: Rc<PeerAccess>,
    pub(crate) quiesce_barrier: Rc<QuiesceBarrier>,
    pub(crate) threads: WorkThreads,
    /// Those of apps that are under way.
    pub(crate) attempts: ConnectAttempts,
    pub(crate) authority: Rc<AppAuthority>,
    pub(crate) callers: CallerTrust,
    pub(crate) learning: SchemaLearning,
    /// Rotates over the endpoints of routes.
    pub(crate) turn: Cell<usize>,
}

/// What came of a request for a connection.
pub(crate) enum ConnectOutcome {
    Connected(OpenedConnection),
    /// The app has to bring its schema first.
    SchemaUnknown,
}

/// A connection of a client that has brought no schema, and by which one it calls.
pub(crate) struct ClientConnection {
    /// Its number at its app.
    pub(crate) number: u32,
    pub(crate) schema: Arc<BoundSchema>,
    pub(crate) limits: ConnectionLimits,
}

/// A connection that was opened.
pub(crate) struct OpenedConnection {
    /// Its number at its app.
    pub(crate) number: u32,
    /// Who the peer has proved to be; empty for nobody.
    pub(crate) peer: String,
}

/// Where to go for whom, and until when to try.
pub(crate) struct ConnectTarget {
    pub(crate) over: TransportKind,
    pub(crate) endpoint: String,
    /// Of which one it has to prove; empty: its host's name counts.
    pub(crate) server_identities: Vec<String>,
    /// How it is spoken to, where it is a gRPC server.
    pub(crate) grpc: GrpcServerTerms,
    pub(crate) caller: CallerAttestation,
    /// Whether the app's end takes messages as they are compressed there.
    pub(crate) compressed: CompressedMessages,
    pub(crate) deadline: Instant,
}

/// Where a connection leads.
pub(crate) enum ConnectionRoute {
    Local,
    Remote(RemoteRoute),
}

/// Whether calls of a service lead anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServiceReach {
    /// To an app of this node, or to an endpoint that was not unreachable when it was tried last.
    Leads,
    /// It is known, and nobody answers.
    Fails,
    /// No service of this name can be called here.
    Unknown,
}

/// Where to look for a service on other nodes.
pub(crate) struct RemoteRoute {
    pub(crate) over: TransportKind,
    pub(crate) endpoints: Vec<String>,
    server_identities: Vec<String>,
    pub(crate) grpc: GrpcServerTerms,
    /// Servers there are asked for schemas that are not known.
    pub(crate) has_reflection: bool,
}

impl Connector {
    /// Counts one more connection of an app, if there is room.
    pub(crate) fn permit(&self, app: &AttachedApp) -> Result<Permit, Refusal> {
        let taken = self.connections.permits.take(&app.connections);
        taken.map_err(|error| self.config.too_many_connections(app.name(), error))
    }

    /// Opens a connection for an app. It has its number from here on, by which the log can be followed.
    ///
    /// What can be done twice is done without a guard: an attempt to reach another node may take long. Then one is taken,
    /// and left in `guard`.
    pub(crate) async fn connect<'a>(
        &'a self,
        app: &AttachedApp,
        connect: &Connect,
        guard: &mut Option<QuiesceGuard<'a>>,
    ) -> Result<ConnectOutcome, Refusal> {
        let id = self.connections.new_id();
        let span = tracing::info_span!("connect", connection = id);
        let connecting = async {
            // Whatever an app names is checked before it is written down.
            if connect.service.is_empty() || connect.service.len() > NAME_BYTES_MAX {
                let message = format!("name a service in 1 to {NAME_BYTES_MAX} bytes");
                return Err(Refusal::invalid(message));
            }
            let told = log::may_log_of(app.id(), app.uid());
            if told {
                tracing::info!(service = connect.service, "connection requested");
            }
            let outcome = self.connect_as(id, app, connect, guard).await;
            match &outcome {
                Ok(ConnectOutcome::SchemaUnknown) if told => {
                    tracing::info!("connection needs a schema first")
                }
                Err(refusal) if told => {
                    let reason = &*log::cut(&refusal.message);
                    tracing::info!(code = %refusal.code, reason, "connection refused");
                }
                Ok(_) | Err(_) => {}
            }
            outcome
        };
        connecting.instrument(span).await
    }

    async fn connect_as<'a>(
        &'a self,
        id: ConnectionId,
        app: &AttachedApp,
        connect: &Connect,
        guard: &mut Option<QuiesceGuard<'a>>,
    ) -> Result<ConnectOutcome, Refusal> {
        if connect.address.len() > ADDRESS_BYTES_MAX {
            let message = format!("name an address in at most {ADDRESS_BYTES_MAX} bytes");
            return Err(Refusal::invalid(message));
        }
        self.authority.may_connect(app, &connect.service)?;
        let hash = schema_hash(&connect.schema_hash)?;
        let identity = &app.endpoint.identity;
        let finding = self.services.find_schema(&connect.service, hash, identity);
        let Some(schema) = app.unless_gone(finding).await? else {
            return match self.services.service_of(hash) {
                // To be asked for the schema again would not help the app.
                Some(own_name) => Err(self.misnamed(app, &connect.service, &own_name)),
                None => Ok(ConnectOutcome::SchemaUnknown),
            };
        };
        let opened = self.open_to(id, app, connect, &schema, guard).await?;
        Ok(ConnectOutcome::Connected(opened))
    }

    /// Opens a connection for a client that brings no schema, as [`Connector::connect`] does for others: it calls by the
    /// schema that this node has of the service.
    pub(crate) async fn connect_client<'a>(
        &'a self,
        app: &AttachedApp,
        wanted: &WantedService,
        guard: &mut Option<QuiesceGuard<'a>>,
    ) -> Result<ClientConnection, Refusal> {
        let id = self.connections.new_id();
        let span = tracing::info_span!("connect", connection = id);
        let connecting = async {
            let told = log::may_log_of(app.id(), app.uid());
            let name = &*log::cut(&wanted.service);
            if told {
                tracing::info!(service = name, "connection requested");
            }
            let outcome = self.connect_client_as(id, app, wanted, guard).await;
            if let (Err(refusal), true) = (&outcome, told) {
                let reason = &*log::cut(&refusal.message);
                tracing::info!(service = name, code = %refusal.code, reason, "connection refused");
            }
            outcome
        };
        connecting.instrument(span).await
    }

    async fn connect_client_as<'a>(
        &'a self,
        id: ConnectionId,
        app: &AttachedApp,
        wanted: &WantedService,
        guard: &mut Option<QuiesceGuard<'a>>,
    ) -> Result<ClientConnection, Refusal> {
        let service = &wanted.service;
        if service.len() > NAME_BYTES_MAX {
            let message = format!("name a service in 1 to {NAME_BYTES_MAX} bytes");
            return Err(Refusal::invalid(message));
        }
        self.authority.may_connect(app, service)?;
        let connect = Connect {
            service: service.clone(),
            ..Connect::default()
        };
        let schema = self.schema_of_client(app, wanted).await?;
        let opened = self.open_to(id, app, &connect, &schema, guard).await?;
        self.leave_opaque(app.id(), service, id);
        let limits = self.connections.find(id).map(|open| open.spec.limits);
        Ok(ClientConnection {
            number: opened.number,
            schema,
            // One that has ended already takes nothing.
            limits: limits.unwrap_or(ConnectionLimits {
                message_bytes_max: 0,
                calls_max: 0,
                compressed: CompressedMessages::Decompressed,
            }),
        })
    }

    /// Opens a connection of what passes calls of other nodes on, by the schema by which they come.
    pub(crate) async fn connect_relay<'a>(
        &'a self,
        app: &AttachedApp,
        schema: &Arc<BoundSchema>,
        guard: &mut Option<QuiesceGuard<'a>>,
    ) -> Result<OpenedConnection, Refusal> {
        let id = self.connections.new_id();
        let connect = Connect {
            service: schema.service.clone(),
            ..Connect::default()
        };
        let span = tracing::info_span!("connect", connection = id);
        let opening = async {
            let opened = self.open_to(id, app, &connect, schema, guard).await;
            if let Err(refusal) = &opened
                && log::may_log_of(app.id(), app.uid())
            {
                let reason = &*log::cut(&refusal.message);
                tracing::info!(service = connect.service, code = %refusal.code, reason, "connection refused");
            }
            opened
        };
        opening.instrument(span).await
    }

    /// Opens a connection of an app by a schema that is known.
    async fn open_to<'a>(
        &'a self,
        id: ConnectionId,
        app: &AttachedApp,
        connect: &Connect,
        schema: &Arc<BoundSchema>,
        guard: &mut Option<QuiesceGuard<'a>>,
    ) -> Result<OpenedConnection, Refusal> {
        let identity = &app.endpoint.identity;
        if self.connections.is_draining() {
            let message = "the service on this node is shutting down";
            return Err(Refusal::new(Code::Unavailable, message));
        }
        let permit = self.permit(app)?;
        match self.route(app, connect)? {
            ConnectionRoute::Local => {
                let found = app
                    .unless_gone(self.services.match_local(schema, identity))
                    .await??;
                *guard = Some(self.quiesce_barrier.enter().await);
                self.connect_local(id, app, schema, found, permit).await
            }
            ConnectionRoute::Remote(route) => {
                let _attempt = self.attempts.begin(identity.id, identity.uid)?;
                let reaching = self.reach_any(schema, &route, &app.endpoint, connect.timeout_ns);
                let reached = app.unless_gone(reaching).await??;
                *guard = Some(self.quiesce_barrier.enter().await);
                self.open_remote(id, &app.endpoint, schema, None, reached, permit)
                    .await
            }
        }
    }

    /// Why an app cannot connect to a service under a name that its schema does not give it.
    fn misnamed(&self, app: &AttachedApp, service: &str, own_name: &str) -> Refusal {
        let message = format!(
            "there is no service {service}: the schema that the app brings calls it {own_name}; {}",
            self.known_services(app, service)
        );
        Refusal::new(Code::NotFound, message)
    }

    /// What is known here that an app may have meant by the name of a service.
    fn known_services(&self, app: &AttachedApp, service: &str) -> String {
        let config = self.config.live();
        let routed = config.routes.iter().map(|route| route.service.clone());
        let mut known: Vec<String> = self.services.bound().into_iter().chain(routed).collect();
        known.retain(|known| known != "*" && self.authority.may_know(app, known));
        known.sort();
        known.dedup();
        if known.is_empty() {
            // Schemas of some may be known all the same: their apps are gone.
            return "no service is served here now".to_owned();
        }
        suggestion::what_is_known(service, "service", &known)
    }

    /// Those of [`Connector::known_to`] that lead somewhere, whether anybody answers there or not.
    pub(crate) fn reachable_services(&self, app: &AttachedApp) -> Vec<String> {
        let config = self.config.live();
        let mut known = self.known_to(app);
        let is_redirected = app.destination.is_some();
        known.retain(|service| {
            is_redirected || self.services.is_bound(service) || config.route(service).is_some()
        });
        known
    }

    /// Services of which a client may be told that brings no schema, whether they can be called now or not.
    pub(crate) fn known_to(&self, app: &AttachedApp) -> Vec<String> {
        let schemas = self.services.schemas().into_iter();
        let mut known: Vec<String> = schemas.map(|(schema, _)| schema.service.clone()).collect();
        known.retain(|service| self.authority.may_know(app, service));
        known.sort();
        known.dedup();
        known
    }

    /// Whether calls of a service lead anywhere, as far as this node knows.
    pub(crate) fn reach_of(&self, app: &AttachedApp, service: &str) -> ServiceReach {
        let config = self.config.live();
        // Without a schema a service is known by a route that names it.
        let is_named = || config.routes.iter().any(|route| route.service == service);
        let is_known = self.services.schema_to_call(service).is_some() || is_named();
        if !self.authority.may_know(app, service) || !is_known {
            return ServiceReach::Unknown;
        }
        let is_bound = self.services.is_bound(service);
        let endpoints = match config.route(service) {
            Some(route) if route.transport == RouteTransport::Auto && is_bound => return ServiceReach::Leads,
            Some(route) => &route.endpoints[..],
            // It was on its way to a server of its own.
            None if app.destination.is_some() => return ServiceReach::Leads,
            None => &[],
        };
        let failed = |endpoint: &String| self.attempts.health.of(endpoint).failed_in_a_row > 0;
        let leads = match endpoints {
            [] => is_bound,
            _ => !endpoints.iter().all(failed),
        };
        if leads {
            ServiceReach::Leads
        } else {
            ServiceReach::Fails
        }
    }

    /// Says that no service of a name is known here, and which are.
    pub(crate) fn unknown_service(&self, app: &AttachedApp, service: &str) -> String {
        let name = log::cut(service);
        format!(
            "there is no service {name} here; {}",
            self.known_services(app, service)
        )
    }

    fn route(&self, app: &AttachedApp, connect: &Connect) -> Result<ConnectionRoute, Refusal> {
        if !connect.address.is_empty() {
            let config = self.config.live();
            if config.allows_app_addresses() {
                return Ok(ConnectionRoute::Remote(RemoteRoute {
                    over: TransportKind::default(),
                    endpoints: vec![connect.address.clone()],
                    server_identities: config.server_identities(None),
                    grpc: GrpcServerTerms::default(),
                    has_reflection: false,
                }));
            }
            return Err(Refusal::new(
                Code::PermissionDenied,
                "apps may not name addresses here: connect by the service's name alone, or set \
                 control.allow_app_addresses = true",
            ));
        }
        self.route_of(app, &connect.service)
    }

    /// Where calls of a service lead.
    pub(crate) fn route_of(&self, app: &AttachedApp, service: &str) -> Result<ConnectionRoute, Refusal> {
        let config = self.config.live();
        let is_bound = self.services.is_bound(service);
        match config.route(service) {
            Some(route) => Ok(match route.transport {
                RouteTransport::Auto if is_bound || route.endpoints.is_empty() => ConnectionRoute::Local,
                RouteTransport::Over(kind) if !kind.is_network() => ConnectionRoute::Local,
                transport => ConnectionRoute::Remote(self.remote_route(route, transport)?),
            }),
            None if is_bound => Ok(ConnectionRoute::Local),
            None if let Some(destination) = app.destination => Ok(ConnectionRoute::Remote(RemoteRoute {
                over: TransportKind::TO_SERVERS,
                endpoints: vec![destination.to_string()],
                server_identities: Vec::new(),
                grpc: self
                    .grpc_terms(None)
                    .map_err(|problem| Refusal::new(Code::Unavailable, problem))?,
                has_reflection: false,
            })),
            None => Err(Refusal::new(
                Code::Unavailable,
                format!(
                    "no app has bound {0} on this node, and no [[route]] of its configuration says where {0} is; {1}",
                    service,
                    self.known_services(app, service)
                ),
            )),
        }
    }

    /// A route that leads away, over a transport.
    fn remote_route(&self, route: &RouteConfig, transport: RouteTransport) -> Result<RemoteRoute, Refusal> {
        let grpc = self.grpc_terms(Some(route));
        Ok(RemoteRoute {
            over: transport.network(),
            endpoints: self.turned(&route.endpoints),
            server_identities: self.config.live().server_identities(Some(route)),
            grpc: grpc.map_err(|problem| Refusal::new(Code::Unavailable, problem))?,
            has_reflection: route.reflection,
        })
    }

    /// The route of a service whose servers are asked for its schema.
    pub(crate) fn reflecting_route(&self, service: &str) -> Option<RemoteRoute> {
        let config = self.config.live();
        let route = config.route(service).filter(|route| route.reflection)?;
        self.remote_route(route, route.transport).ok()
    }

    /// How gRPC servers of a route are spoken to.
    pub(crate) fn grpc_terms(&self, route: Option<&RouteConfig>) -> Result<GrpcServerTerms, String> {
        let mark = self.config.live().grpc.mark;
        Ok(match route {
            None => GrpcServerTerms {
                mark,
                ..GrpcServerTerms::default()
            },
            Some(route) => GrpcServerTerms {
                tls: self.grpc_tls(route)?,
                compression: route.compression.encoding(),
                age_max: Duration::from_secs(route.connection_age_s.into()),
                connections: route.connections.unwrap_or(1) as usize,
                mark,
                question: None,
            },
        })
    }

    /// What a connection of the process before to a gRPC server has to know here.
    pub(crate) fn restored_server(
        &self,
        app: &AppEndpoint,
        schema: &BoundSchema,
        limits: ConnectionLimits,
    ) -> RestoredServer {
        let live = self.config.live();
        let route = match live.route(&schema.service) {
            Some(route) => self.grpc_terms(Some(route)).map(|terms| RestoredRoute {
                endpoints: route.endpoints.clone(),
                terms,
            }),
            None => Err(format!("there is no route of {} any more", schema.service)),
        };
        RestoredServer {
            service: schema.service.clone(),
            methods: services::methods(schema),
            limits: Limits {
                message_bytes_max: limits.message_bytes_max,
                calls_in_flight_max: limits.calls_max,
                ..limits_of_end(self.services.limits(), limits.compressed)
            },
            options: self.config.started.transport_options(),
            share: PrivateBytes::of_connection(app.send_heap.share()),
            route,
        }
    }

    /// The TLS of a route, where it leads to gRPC servers that speak it.
    fn grpc_tls(&self, route: &RouteConfig) -> Result<Option<GrpcServerTls>, String> {
        let Some(tls) = &route.tls else {
            return Ok(None);
        };
        let source = self
            .peers
            .grpc
            .of_route(self.config.started.tls.as_ref(), route)?;
        Ok(Some(GrpcServerTls {
            source,
            given_name: tls.server_name.clone(),
        }))
    }

    /// The endpoints, from another one on each time.
    pub(crate) fn turned(&self, endpoints: &[String]) -> Vec<String> {
        let turn = self.turn.replace(self.turn.get().wrapping_add(1));
        let mut turned = endpoints.to_vec();
        turned.rotate_left(turn % endpoints.len().max(1));
        turned
    }

    /// Reaches one of the endpoints, within a time that is 0 for the configured one.
    async fn reach_any(
        &self,
        schema: &Arc<BoundSchema>,
        route: &RemoteRoute,
        caller: &AppEndpoint,
        timeout_ns: u64,
    ) -> Result<EstablishedPeer, Refusal> {
        let app = &caller.identity;
        let timeout = match timeout_ns {
            0 => Duration::from_millis(self.config.live().timeouts.connect_ms),
            asked => Duration::from_nanos(asked).min(CONNECT_TIMEOUT_MAX),
        };
        let deadline = Instant::now() + timeout;
        let mut failure = Refusal::new(Code::Unavailable, "the route has no endpoints");
        for (at, endpoint) in route.endpoints.iter().enumerate() {
            let left = deadline.saturating_duration_since(Instant::now());
            let share = left / u32::try_from(route.endpoints.len() - at).unwrap_or(u32::MAX);
            let target = ConnectTarget {
                over: route.over,
                endpoint: endpoint.clone(),
                server_identities: route.server_identities.clone(),
                grpc: route.grpc.clone(),
                caller: self.callers.attestation(app),
                compressed: caller.compressed,
                deadline: Instant::now() + share.max(ENDPOINT_TIME_MIN).min(left),
            };
            let owner = TurnOwner::App {
                app: app.id,
                user: app.uid,
            };
            match self.reach(schema, target, owner).await {
                Ok(reached) => return Ok(reached),
                Err(refusal) => failure = refusal,
            }
            if Instant::now() >= deadline {
                break;
            }
        }
        Err(failure)
    }

    /// Reaches another node and shakes hands with it. Dropping it gives up.
    pub(crate) async fn reach(
        &self,
        schema: &Arc<BoundSchema>,
        target: ConnectTarget,
        owner: TurnOwner,
    ) -> Result<EstablishedPeer, Refusal> {
        let Some(network) = &target.over.description().network else {
            let message = format!("{} does not lead to other nodes", target.over.name());
            return Err(Refusal::new(Code::FailedPrecondition, message));
        };
        let endpoint = target.endpoint.clone();
        // A Unix socket does not leave this node, so what goes there needs no TLS.
        let needs_node_tls = target.grpc.tls.is_none() && !PeerAddress::is_unix(&endpoint);
        let node_tls = needs_node_tls.then(|| self.peers.tls_client(&target.server_identities));
        let request = ConnectRequest {
            address: target.endpoint,
            hello: Hello {
                service: schema.service.clone(),
                schema_hash: schema.hash.0,
                methods: services::methods(schema),
                limits: limits_of_end(self.services.limits(), target.compressed),
                caller: Some(target.caller),
            },
            descriptor_set: Arc::clone(&schema.descriptor_set),
            tls: node_tls.flatten(),
            grpc: target.grpc,
            options: self.config.started.transport_options(),
            deadline: target.deadline,
        };
        let reached = self.attempts.reach(network, request, owner).await;
        let may_tell = match owner {
            TurnOwner::Node => true,
            TurnOwner::App { app, user } => log::may_log_of(app, user),
        };
        if !may_tell {
            return reached;
        }
        match &reached {
            Ok(peer) => tracing::info!(
                endpoint,
                peer = %peer.address,
                identity = peer.identity,
                transport = peer.kind.name(),
                "agreed with a peer"
            ),
            Err(failure) => {
                let reason = &*log::cut(&failure.message);
                tracing::info!(endpoint, reason, "a peer was not reached");
            }
        }
        reached
    }

    /// Opens a connection to another node. `offer` is what a server's app offers; a client's has none.
    pub(crate) async fn open_remote(
        &self,
        id: ConnectionId,
        app: &AppEndpoint,
        schema: &Arc<BoundSchema>,
        offer: Option<&Offer>,
        reached: EstablishedPeer,
        permit: Permit,
    ) -> Result<OpenedConnection, Refusal> {
        let (own, peers) = (self.services.limits(), reached.peer_limits);
        let version = self
            .policies
            .transport_version(reached.kind, &app.identity.name, id);
        let spec = ConnectionSpec {
            id,
            node: self.config.node_name(),
            app: app.clone(),
            schema: Arc::clone(schema),
            offer: offer.map(accepted),
            peer: PeerEndpoint {
                identity: reached.identity.as_str().into(),
                address: reached.address.to_string().into(),
                app: None,
                attested: self.callers.believed(&reached),
            },
            transport: reached.kind,
            transport_version: version,
            encoding: encoding(reached.encoding),
            limits: ConnectionLimits {
                message_bytes_max: own.message_bytes_max.min(peers.message_bytes_max),
                calls_max: match offer {
                    None => own.calls_in_flight_max.min(peers.calls_in_flight_max),
                    Some(_) => own.calls_in_flight_max,
                },
                compressed: compressed_over(app, reached.encoding, peers),
            },
        };
        let peer = reached.identity.clone();
        let opening = self.opening(spec);
        let context = Arc::clone(&opening.context);
        let chain = self.policies.chain(&context, &self.threads.policies).await?;
        self.check_authority(&opening.spec)?;
        let transport = reached.start(version, self.config.started.transport_options());
        let entered = opening.enter(&self.connections, chain, transport, None, permit);
        let entered = entered.map_err(|error| not_started(&error))?;
        if let Some(app) = offer.and_then(|offer| offer.app) {
            self.describe_peer(app, &context);
        }
        let number = entered.open(&self.connections, &self.runtimes).await?;
        Ok(OpenedConnection { number, peer })
    }

    async fn connect_local(
        &self,
        id: ConnectionId,
        app: &AttachedApp,
        schema: &Arc<BoundSchema>,
        found: Match,
        permit: Permit,
    ) -> Result<OpenedConnection, Refusal> {
        let offer = &found.offer;
        let app_of_server = offer.app.and_then(|app| self.apps.find(app));
        let server = app_of_server.ok_or_else(|| going_away(schema))?;
        let (server_app, client_app) = (&server.endpoint, &app.endpoint);
        let client = self.opening(self.local_spec(id, client_app, schema, None, server_app, &found));
        let server = self.opening(self.local_spec(
            self.connections.new_id(),
            server_app,
            &offer.schema,
            Some(offer),
            client_app,
            &found,
        ));
        // Both before anything is made of them: no change of policies comes between the two.
        let server_context = Arc::clone(&server.context);
        let (client_chain, server_chain) = chains(
            &self.policies,
            &self.threads.policies,
            &client.context,
            &server_context,
        )
        .await?;
        self.check_authority(&client.spec)?;
        // What another app may do is not for the client's ears: to it, the service is going.
        self.check_authority(&server.spec)
            .map_err(|_| going_away(schema))?;
        let (at_client, at_server) = transport::local::connect(
            transport::local::end(&client.signals, &client.waker),
            transport::local::end(&server.signals, &server.waker),
            found.methods.clone().map(|map| method_map(schema, map)),
        );
        // Both ends hold the client's permit: a local connection counts once, for the app that asked for it.
        let permit = Arc::new(permit);
        let connections = &self.connections;
        let server = server.enter(
            connections,
            server_chain,
            transport::ready(at_server),
            None,
            Arc::clone(&permit),
        );
        let server = server.map_err(|error| not_started(&error))?;
        self.describe_peer(server_app.identity.id, &server_context);
        let client = client.enter(
            connections,
            client_chain,
            transport::ready(at_client),
            None,
            permit,
        );
        let client = match client {
            Ok(client) => client,
            Err(error) => {
                server.abandon(connections);
                return Err(not_started(&error));
            }
        };
        if let Err(refusal) = server.open(connections, &self.runtimes).await {
            client.abandon(connections);
            return Err(refusal);
        }
        let number = client.open(connections, &self.runtimes).await?;
        let peer = String::new();
        Ok(OpenedConnection { number, peer })
    }

    fn local_spec(
        &self,
        id: ConnectionId,
        app: &AppEndpoint,
        schema: &Arc<BoundSchema>,
        offer: Option<&Offer>,
        peer: &AppEndpoint,
        found: &Match,
    ) -> ConnectionSpec {
        let limits = &self.config.started.limits;
        ConnectionSpec {
            id,
            node: self.config.node_name(),
            app: app.clone(),
            schema: Arc::clone(schema),
            offer: offer.map(accepted),
            peer: PeerEndpoint {
                identity: peer.proved.clone(),
                address: "".into(),
                app: Some(Arc::clone(&peer.identity)),
                attested: None,
            },
            transport: TransportKind::WITHIN_NODE,
            transport_version: TransportKind::WITHIN_NODE.first_version(),
            encoding: encoding(found.encoding),
            limits: ConnectionLimits {
                message_bytes_max: limits.message_bytes,
                calls_max: limits.calls_in_flight as u32,
                compressed: CompressedMessages::Decompressed,
            },
        }
    }

    /// Tells an app who is at the other end of a connection that it serves, before its runtime does.
    fn describe_peer(&self, app: AppId, context: &DatapathContext) {
        if let Some(app) = self.apps.find(app) {
            app.send_peer(peer_description(context));
        }
    }

    /// Checks that the app of an end may still have it: to get here takes time, and a reload ends only connections that have been
    /// entered by then.
    fn check_authority(&self, end: &ConnectionSpec) -> Result<(), Refusal> {
        let action = match end.serves() {
            None => AppAction::Connect,
            Some(_) => AppAction::Bind,
        };
        self.authority
            .still_may(action, &end.app.identity, &end.schema.service)?;
        Ok(())
    }

    fn opening(&self, spec: ConnectionSpec) -> ConnectionOpening {
        ConnectionOpening::new(spec, ConnectionSignals::new(), &self.connections, &self.runtimes)
    }
}

/// The policies of both ends of a connection on this node, of one state of the table.
async fn chains(
    policies: &Policies,
    threads: &ThreadPool,
    client: &Arc<DatapathContext>,
    server: &Arc<DatapathContext>,
) -> Result<(Chain, Chain), ChangeError> {
    loop {
        let first = policies.chain(client, threads).await?;
        let generation = policies.generation();
        let second = policies.chain(server, threads).await?;
        if policies.generation() == generation {
            return Ok((first, second));
        }
    }
}

/// What the server of a connection on this node has of the client's methods.
fn method_map(client: &BoundSchema, methods: Vec<Option<u16>>) -> MethodMap {
    let client_methods = services::methods(client);
    let names = client_methods.iter().map(|method| method.name.as_str());
    let missing = MissingMethods::of(&client.service, names, |at| {
        methods.get(at).copied().flatten().is_none()
    });
    MethodMap { methods, missing }
}

fn accepted(offer: &Offer) -> AcceptedOffer {
    AcceptedOffer {
        request: offer.request,
        quota: Arc::clone(&offer.quota),
    }
}

fn going_away(schema: &BoundSchema) -> Refusal {
    Refusal::new(Code::Unavailable, format!("{} is going away", schema.service))
}

fn not_started(error: &provost_datapath::RestoreError) -> Refusal {
    Refusal::new(Code::Internal, format!("an engine did not start: {error}"))
}

/// What an end is ready to receive.
pub(crate) fn limits_of_end(limits: Limits, compressed: CompressedMessages) -> Limits {
    match compressed {
        CompressedMessages::Passed => limits.taking_compressed(),
        CompressedMessages::Decompressed => limits,
    }
}

/// Whether messages of an app go to a peer as they are compressed: both know how to read them, and nobody makes another form of
/// them on their way.
fn compressed_over(app: &AppEndpoint, encoding: Encoding, peer_limits: Limits) -> CompressedMessages {
    if app.form == BodyForm::Protobuf && encoding == Encoding::Protobuf && peer_limits.takes_compressed() {
        CompressedMessages::Passed
    } else {
        CompressedMessages::Decompressed
    }
}

/// The form of messages, as marshalling has it.
pub(crate) fn encoding(agreed: Encoding) -> marshalling::Encoding {
    match agreed {
        Encoding::Native => marshalling::Encoding::Native,
        Encoding::Protobuf => marshalling::Encoding::Protobuf,
    }
}
