//! Opening connections for apps: to another app of this node, or to another node.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use provost_datapath::{Engine, Link};
use provost_engine::{AppIdentity, PeerIdentity, Site};
use provost_frontend::{AppRole, SendHeap};
use provost_marshalling as marshalling;
use provost_transport_local::End;
use provost_transport_tcp::{Encoding, Hello};
use provost_wire::Code;
use provost_wire::control::Connect;
use provost_wire::limits::NAME_BYTES_MAX;
use tokio::sync::oneshot;

use crate::apps::{App, Outcome, Refusal, schema_hash};
use crate::compose::{self, Plan, Whereabouts};
use crate::config::RouteTransport;
use crate::gate::Pass;
use crate::node::{OpenConnection, Shared, Terms};
use crate::permits::{Permit, TooMany};
use crate::policies::chain::Chain;
use crate::policies::{ChangeError, Policies};
use crate::remote::{self, Reached};
use crate::runtime::{Command, ConnectionId, NewConnection, PathWaker};
use crate::schemas::BoundSchema;
use crate::services::{self, Match, Offer};

/// Longest time that an app may give a connection attempt.
const CONNECT_TIMEOUT_MAX: Duration = Duration::from_secs(3600);

thread_local! {
    /// Rotates over the endpoints of routes.
    static TURN: Cell<usize> = const { Cell::new(0) };
}

/// Opens a connection for an app.
///
/// What can be done twice is done without a pass: an attempt to reach another node may take long. Then one is taken, and
/// left in `pass`.
pub(crate) async fn connect<'a>(
    shared: &'a Rc<Shared>,
    app: &App,
    connect: &Connect,
    pass: &mut Option<Pass<'a>>,
) -> Result<Outcome, Refusal> {
    if connect.service.is_empty() || connect.service.len() > NAME_BYTES_MAX {
        let message = format!("name a service in 1 to {NAME_BYTES_MAX} bytes");
        return Err(Refusal::new(Code::InvalidArgument, message));
    }
    let hash = schema_hash(&connect.schema_hash)?;
    let Some(schema) = shared.services.schema(&connect.service, hash) else {
        return Ok(Outcome::SchemaUnknown);
    };
    if shared.draining.get() {
        let message = "the service on this node is shutting down";
        return Err(Refusal::new(Code::Unavailable, message));
    }
    let permit = shared.permits.take(&app.connections)?;
    let way = way(shared, connect)?;
    let opened = match way {
        Way::Local => {
            *pass = Some(shared.gate.enter().await);
            connect_local(shared, app, &schema, permit).await?
        }
        Way::Remote(over, endpoints) => {
            let attempt = Attempt {
                over,
                endpoints,
                timeout_ns: connect.timeout_ns,
                permit,
            };
            connect_remote(shared, app, &schema, attempt, pass).await?
        }
    };
    let (number, peer) = opened;
    tracing::info!(
        app = app.id,
        service = connect.service,
        connection = number,
        peer,
        "connected"
    );
    Ok(Outcome::Connected {
        connection: number,
        peer,
    })
}

impl From<TooMany> for Refusal {
    fn from(error: TooMany) -> Refusal {
        Refusal::new(Code::ResourceExhausted, error.to_string())
    }
}

/// How a connection goes.
enum Way {
    Local,
    Remote(Over, Vec<String>),
}

/// What carries a connection to another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    Tcp,
    Datagram,
}

impl Over {
    /// What a route's transport means for a service that is on another node.
    pub(crate) fn of(transport: RouteTransport) -> Option<Over> {
        match transport {
            RouteTransport::Auto | RouteTransport::Tcp => Some(Over::Tcp),
            RouteTransport::Datagram => Some(Over::Datagram),
            RouteTransport::Local => None,
        }
    }
}

fn way(shared: &Shared, connect: &Connect) -> Result<Way, Refusal> {
    let config = shared.live();
    if !connect.address.is_empty() {
        return match config.control.allow_app_addresses {
            true => Ok(Way::Remote(Over::Tcp, vec![connect.address.clone()])),
            false => Err(Refusal::new(
                Code::PermissionDenied,
                "apps may not name addresses here: connect by the service's name alone, or set \
                 control.allow_app_addresses = true",
            )),
        };
    }
    let is_bound = shared.services.is_bound(&connect.service);
    match config.route(&connect.service) {
        Some(route) => match route.transport {
            RouteTransport::Auto if is_bound || route.endpoints.is_empty() => Ok(Way::Local),
            transport => Ok(match Over::of(transport) {
                None => Way::Local,
                Some(over) => Way::Remote(over, turned(&route.endpoints)),
            }),
        },
        None if is_bound => Ok(Way::Local),
        None => Err(Refusal::new(
            Code::Unavailable,
            format!(
                "no app has bound {0} on this node, and no [[route]] of its configuration says where {0} is",
                connect.service
            ),
        )),
    }
}

/// The endpoints, from another one on each time.
fn turned(endpoints: &[String]) -> Vec<String> {
    let turn = TURN.with(|turn| turn.replace(turn.get().wrapping_add(1)));
    let mut turned = endpoints.to_vec();
    turned.rotate_left(turn % endpoints.len().max(1));
    turned
}

/// An attempt to reach another node.
struct Attempt {
    over: Over,
    endpoints: Vec<String>,
    /// 0 for the configured one.
    timeout_ns: u64,
    permit: Permit,
}

async fn connect_remote<'a>(
    shared: &'a Rc<Shared>,
    app: &App,
    schema: &Arc<BoundSchema>,
    attempt: Attempt,
    pass: &mut Option<Pass<'a>>,
) -> Result<(u32, String), Refusal> {
    let Attempt {
        over,
        endpoints,
        timeout_ns,
        permit,
    } = attempt;
    let timeout = match timeout_ns {
        0 => Duration::from_millis(shared.live().timeouts.connect_ms),
        asked => Duration::from_nanos(asked).min(CONNECT_TIMEOUT_MAX),
    };
    let deadline = Instant::now() + timeout;
    let mut failure = Refusal::new(Code::Unavailable, "the route has no endpoints");
    for endpoint in &endpoints {
        let target = Target {
            over,
            endpoint: endpoint.clone(),
            deadline,
        };
        match reach(shared, schema, target).await {
            Ok(reached) => {
                *pass = Some(shared.gate.enter().await);
                let peer = reached.identity.clone();
                let end = RemoteEnd {
                    app: &app.identity,
                    runtime: app.runtime,
                    send_heap: &app.send_heap,
                    schema,
                    offer: None,
                };
                let number = open_remote(shared, &end, reached, permit).await?;
                return Ok((number, peer));
            }
            Err(refusal) => failure = refusal,
        }
        if Instant::now() >= deadline {
            break;
        }
    }
    Err(failure)
}

/// Where to go, and until when to try.
pub(crate) struct Target {
    pub(crate) over: Over,
    pub(crate) endpoint: String,
    pub(crate) deadline: Instant,
}

/// Shakes hands with another node, off this thread.
pub(crate) async fn reach(
    shared: &Shared,
    schema: &Arc<BoundSchema>,
    target: Target,
) -> Result<Reached, Refusal> {
    let hello = Hello {
        service: schema.service.clone(),
        schema_hash: schema.hash.0,
        methods: services::methods(schema),
        limits: shared.services.limits(),
    };
    let call = remote::Call {
        over: target.over,
        address: target.endpoint,
        hello,
        descriptor_set: Arc::clone(&schema.descriptor_set),
        tls: shared.tls_client.clone(),
        packets: remote::packets(&shared.config),
        deadline: target.deadline,
    };
    match tokio::task::spawn_blocking(move || call.make()).await {
        Ok(Ok(reached)) => Ok(reached),
        Ok(Err((code, message))) => Err(Refusal::new(code, message)),
        Err(_) => Err(Refusal::new(
            Code::Internal,
            "the connection attempt was cut short",
        )),
    }
}

/// The app's end of a connection to another node.
pub(crate) struct RemoteEnd<'a> {
    pub(crate) app: &'a Arc<AppIdentity>,
    pub(crate) runtime: usize,
    pub(crate) send_heap: &'a SendHeap,
    pub(crate) schema: &'a Arc<BoundSchema>,
    /// What a server's app offers; none for a client's.
    pub(crate) offer: Option<&'a Offer>,
}

/// Puts a connection's datapath on its app's runtime, and says which number it has there.
pub(crate) async fn open_remote(
    shared: &Shared,
    end: &RemoteEnd<'_>,
    reached: Reached,
    permit: Permit,
) -> Result<u32, Refusal> {
    let link = Arc::new(Link::new());
    let app_role = match end.offer {
        None => AppRole::Client,
        Some(_) => AppRole::Server,
    };
    let site = compose::site(Whereabouts {
        node: &shared.config.node.name,
        app: Arc::clone(end.app),
        role: app_role,
        schema: end.schema,
        peer: PeerIdentity {
            identity: reached.identity.as_str().into(),
            address: reached.peer_address.to_string().into(),
            transport: reached.transport(),
            app: None,
        },
        connection: shared.new_connection(),
        runtime: end.runtime,
    });
    let chain = shared.policies.chain(&site).await?;
    let encoding = encoding(reached.agreement().encoding);
    let peer_limits = reached.agreement().peer_limits;
    let own = shared.services.limits();
    let calls_max = match end.offer {
        None => own.calls_in_flight_max.min(peer_limits.calls_in_flight_max),
        Some(_) => own.calls_in_flight_max,
    };
    let wanted = shared.policies.transport_version(reached.kind(), &site);
    let version = wanted.unwrap_or(1);
    let transport = reached.into_engine(&shared.config, version, Arc::clone(&link));
    let opening = Opening {
        site,
        transport_version: version,
        encoding,
        link: Arc::clone(&link),
        waker: shared.runtimes[end.runtime].new_waker(),
        serves: end
            .offer
            .map(|offer| (offer.request, offer.schema.service.clone())),
    };
    let plan = Plan {
        role: app_role,
        schema: end.schema,
        send_heap: end.send_heap.clone(),
        encoding,
        message_bytes_max: own.message_bytes_max.min(peer_limits.message_bytes_max),
        calls_max,
        quota: end.offer.map(|offer| Arc::clone(&offer.quota)),
        policies: Vec::new(),
        transport,
        link,
    };
    opening.enter(shared, chain, plan, permit)?.open(shared).await
}

async fn connect_local(
    shared: &Rc<Shared>,
    app: &App,
    schema: &Arc<BoundSchema>,
    permit: Permit,
) -> Result<(u32, String), Refusal> {
    let found = shared.services.match_local(schema)?;
    let offer = &found.offer;
    let (server_app, server_runtime, server_heap) = {
        let apps = shared.apps.borrow();
        let gone = || Refusal::new(Code::Unavailable, format!("{} is going away", schema.service));
        let server = apps.get(&offer.app).ok_or_else(gone)?;
        (
            Arc::clone(&server.identity),
            server.runtime,
            server.send_heap.clone(),
        )
    };
    let client = LocalEnd {
        app: &app.identity,
        runtime: app.runtime,
        send_heap: app.send_heap.clone(),
        schema,
        peer: &server_app,
        offer: None,
    };
    let server = LocalEnd {
        app: &server_app,
        runtime: server_runtime,
        send_heap: server_heap,
        schema: &offer.schema,
        peer: &app.identity,
        offer: Some(offer),
    };
    let (client_site, server_site) = (client.site(shared), server.site(shared));
    // Both before anything is made of them: no change of policies comes between the two.
    let (client_chain, server_chain) = chains(&shared.policies, &client_site, &server_site).await?;
    let (client_opening, server_opening) = (
        client.opening(shared, client_site, &found),
        server.opening(shared, server_site, &found),
    );
    let ends = provost_transport_local::connect(
        local_end(&client_opening),
        local_end(&server_opening),
        found.methods.clone(),
    );
    let client_plan = client.plan(shared, &found, Box::new(ends.0), &client_opening.link);
    let server_plan = server.plan(shared, &found, Box::new(ends.1), &server_opening.link);
    // Both ends hold the client's permit: a local connection counts once, for the app that asked for it.
    let permit = Arc::new(permit);
    let server = server_opening.enter(shared, server_chain, server_plan, Arc::clone(&permit))?;
    let client = match client_opening.enter(shared, client_chain, client_plan, permit) {
        Ok(client) => client,
        Err(refusal) => {
            server.forget(shared);
            return Err(refusal);
        }
    };
    if let Err(refusal) = server.open(shared).await {
        client.forget(shared);
        return Err(refusal);
    }
    let number = client.open(shared).await?;
    Ok((number, String::new()))
}

/// The policies of both ends of a connection on this node, of one state of the table.
async fn chains(
    policies: &Policies,
    client: &Arc<Site>,
    server: &Arc<Site>,
) -> Result<(Chain, Chain), ChangeError> {
    loop {
        let first = policies.chain(client).await?;
        let generation = policies.generation();
        let second = policies.chain(server).await?;
        if policies.generation() == generation {
            return Ok((first, second));
        }
    }
}

/// One end of a connection on this node.
struct LocalEnd<'a> {
    app: &'a Arc<AppIdentity>,
    runtime: usize,
    send_heap: SendHeap,
    schema: &'a Arc<BoundSchema>,
    peer: &'a Arc<AppIdentity>,
    /// What a server's app offers; none for a client's.
    offer: Option<&'a Arc<Offer>>,
}

impl LocalEnd<'_> {
    fn role(&self) -> AppRole {
        match self.offer {
            None => AppRole::Client,
            Some(_) => AppRole::Server,
        }
    }

    fn site(&self, shared: &Shared) -> Arc<Site> {
        compose::site(Whereabouts {
            node: &shared.config.node.name,
            app: Arc::clone(self.app),
            role: self.role(),
            schema: self.schema,
            peer: PeerIdentity {
                identity: "".into(),
                address: "".into(),
                transport: "local",
                app: Some(Arc::clone(self.peer)),
            },
            connection: shared.new_connection(),
            runtime: self.runtime,
        })
    }

    fn opening(&self, shared: &Shared, site: Arc<Site>, found: &Match) -> Opening {
        Opening {
            site,
            transport_version: 1,
            encoding: encoding(found.encoding),
            link: Arc::new(Link::new()),
            waker: shared.runtimes[self.runtime].new_waker(),
            serves: self
                .offer
                .map(|offer| (offer.request, offer.schema.service.clone())),
        }
    }

    fn plan(&self, shared: &Shared, found: &Match, transport: Box<dyn Engine>, link: &Arc<Link>) -> Plan<'_> {
        Plan {
            role: self.role(),
            schema: self.schema,
            send_heap: self.send_heap.clone(),
            encoding: encoding(found.encoding),
            message_bytes_max: shared.config.limits.message_bytes,
            calls_max: shared.config.limits.calls_in_flight as u32,
            quota: self.offer.map(|offer| Arc::clone(&offer.quota)),
            policies: Vec::new(),
            transport,
            link: Arc::clone(link),
        }
    }
}

fn local_end(opening: &Opening) -> End {
    let wake: Arc<PathWaker> = Arc::clone(&opening.waker);
    End {
        link: Arc::clone(&opening.link),
        wake,
    }
}

/// A connection that is about to open, and what the control plane keeps of it.
struct Opening {
    site: Arc<Site>,
    transport_version: u32,
    encoding: marshalling::Encoding,
    link: Arc<Link>,
    waker: Arc<PathWaker>,
    /// For a server's end: the request that offered the service, and its name.
    serves: Option<(u64, String)>,
}

/// A connection that changes of policies know of, and whose runtime does not yet.
struct Entered {
    connection: Box<NewConnection>,
    runtime: usize,
    number: oneshot::Receiver<u32>,
}

impl Opening {
    /// Puts the datapath together, and down among the connections, with the policies that were got ready.
    fn enter(
        self,
        shared: &Shared,
        chain: Chain,
        mut plan: Plan<'_>,
        permit: impl Send + 'static,
    ) -> Result<Entered, Refusal> {
        let (instances, without) = (
            chain.instances(),
            chain.left_out.iter().map(|out| out.tag).collect(),
        );
        plan.policies = chain
            .start()
            .map_err(|error| Refusal::new(Code::Internal, format!("a policy did not start: {error}")))?;
        let (message_bytes_max, calls_max) = (plan.message_bytes_max, plan.calls_max);
        let (schema, quota) = (Arc::clone(plan.schema), plan.quota.clone());
        let (datapath, fitted) = compose::datapath(plan);
        let (opened, number) = oneshot::channel();
        let id = self.site.connection;
        let (accepted_for, serves) = self.serves.unzip();
        let terms = Terms {
            schema,
            message_bytes_max,
            calls_max,
            offer: accepted_for.zip(quota),
        };
        let connection = Box::new(NewConnection {
            id,
            app: self.site.app.id,
            datapath,
            fitted,
            waker: Arc::clone(&self.waker),
            permit: Box::new(permit),
            accepted_for,
            opened,
        });
        let runtime = self.site.runtime;
        // Known before it carries calls, so that a drain waits for them, and a change of policies changes it too.
        let open = OpenConnection {
            app: self.site.app.id,
            link: self.link,
            waker: self.waker,
            serves,
            site: self.site,
            revision: 0,
            chain: instances,
            without,
            transport_version: self.transport_version,
            stays_because: None,
            encoding: self.encoding,
            terms,
        };
        if shared.draining.get() {
            open.drain();
        }
        shared.connections.borrow_mut().insert(id, open);
        Ok(Entered {
            connection,
            runtime,
            number,
        })
    }
}

impl Entered {
    /// Gives it to its runtime, and says which number it has there.
    async fn open(self, shared: &Shared) -> Result<u32, Refusal> {
        let id = self.connection.id;
        let told = shared.runtimes[self.runtime]
            .tell(Command::Open(self.connection))
            .await;
        let opened = match told {
            Ok(()) => self
                .number
                .await
                .map_err(|_| Refusal::new(Code::Unavailable, "the app is going away")),
            Err(overloaded) => Err(Refusal::new(Code::ResourceExhausted, overloaded.to_string())),
        };
        if opened.is_err() {
            forget(shared, id);
        }
        opened
    }

    fn forget(self, shared: &Shared) {
        forget(shared, self.connection.id);
    }
}

fn forget(shared: &Shared, id: ConnectionId) {
    shared.forget_connection(id);
    shared.gone.notify_one();
}

impl From<ChangeError> for Refusal {
    fn from(error: ChangeError) -> Refusal {
        Refusal::new(Code::FailedPrecondition, error.to_string())
    }
}

pub(crate) fn encoding(agreed: Encoding) -> marshalling::Encoding {
    match agreed {
        Encoding::Native => marshalling::Encoding::Native,
        Encoding::Protobuf => marshalling::Encoding::Protobuf,
    }
}
