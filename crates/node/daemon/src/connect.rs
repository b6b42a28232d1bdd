//! Opening connections for apps: to another app of this node, or to another node.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use provost_datapath::{Engine, Link};
use provost_frontend::{AppRole, CallQuota, SendHeap};
use provost_marshalling as marshalling;
use provost_shm::now_ns;
use provost_transport_local::End;
use provost_transport_tcp::{
    ConnectParams, Encoding, Established, Hello, Role, TcpTransport, TransportConfig,
};
use provost_wire::Code;
use provost_wire::control::Connect;
use provost_wire::limits::NAME_BYTES_MAX;
use tokio::sync::oneshot;

use crate::apps::{App, Outcome, Refusal, schema_hash};
use crate::compose::{self, Plan};
use crate::config::{Config, RouteTransport};
use crate::node::{OpenConnection, Shared};
use crate::permits::{Permit, TooMany};
use crate::runtime::{AppId, Command, NewConnection, PathWaker};
use crate::schemas::BoundSchema;
use crate::services::{self, Offer};

/// Longest time that an app may give a connection attempt.
const CONNECT_TIMEOUT_MAX: Duration = Duration::from_secs(3600);

thread_local! {
    /// Rotates over the endpoints of routes.
    static TURN: Cell<usize> = const { Cell::new(0) };
}

/// Opens a connection for an app.
pub(crate) async fn connect(shared: &Rc<Shared>, app: &App, connect: &Connect) -> Result<Outcome, Refusal> {
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
        Way::Local => connect_local(shared, app, &schema, permit).await?,
        Way::Tcp(endpoints) => {
            connect_tcp(shared, app, &schema, &endpoints, connect.timeout_ns, permit).await?
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
    Tcp(Vec<String>),
}

fn way(shared: &Shared, connect: &Connect) -> Result<Way, Refusal> {
    let config = &shared.config;
    if !connect.address.is_empty() {
        return match config.control.allow_app_addresses {
            true => Ok(Way::Tcp(vec![connect.address.clone()])),
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
            RouteTransport::Local => Ok(Way::Local),
            RouteTransport::Auto if is_bound || route.endpoints.is_empty() => Ok(Way::Local),
            RouteTransport::Auto | RouteTransport::Tcp => Ok(Way::Tcp(turned(&route.endpoints))),
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

async fn connect_tcp(
    shared: &Rc<Shared>,
    app: &App,
    schema: &Arc<BoundSchema>,
    endpoints: &[String],
    timeout_ns: u64,
    permit: Permit,
) -> Result<(u32, String), Refusal> {
    let timeout = match timeout_ns {
        0 => Duration::from_millis(shared.config.timeouts.connect_ms),
        asked => Duration::from_nanos(asked).min(CONNECT_TIMEOUT_MAX),
    };
    let deadline = Instant::now() + timeout;
    let mut failure = Refusal::new(Code::Unavailable, "the route has no endpoints");
    for endpoint in endpoints {
        let params = ConnectParams {
            address: endpoint.clone(),
            hello: Hello {
                service: schema.service.clone(),
                schema_hash: schema.hash.0,
                methods: services::methods(schema),
                limits: shared.services.limits(),
            },
            descriptor_set: Arc::clone(&schema.descriptor_set),
            tls: shared.tls_client.clone(),
            deadline,
        };
        let attempt = tokio::task::spawn_blocking(move || provost_transport_tcp::connect(&params));
        match attempt.await {
            Ok(Ok(established)) => {
                let peer = established.peer.name().to_owned();
                let number = open_tcp(
                    shared,
                    &TcpEnd {
                        app: app.id,
                        runtime: app.runtime,
                        send_heap: &app.send_heap,
                        schema,
                        offer: None,
                    },
                    established,
                    permit,
                )
                .await?;
                return Ok((number, peer));
            }
            Ok(Err(error)) => failure = Refusal::new(error.code, error.message),
            Err(_) => failure = Refusal::new(Code::Internal, "the connection attempt was cut short"),
        }
        if Instant::now() >= deadline {
            break;
        }
    }
    Err(failure)
}

/// The app's end of a connection over TCP.
pub(crate) struct TcpEnd<'a> {
    pub(crate) app: AppId,
    pub(crate) runtime: usize,
    pub(crate) send_heap: &'a SendHeap,
    pub(crate) schema: &'a BoundSchema,
    /// What a server's app offers; none for a client's.
    pub(crate) offer: Option<&'a Offer>,
}

/// Puts a connection's datapath on its app's runtime, and says which number it has there.
pub(crate) async fn open_tcp(
    shared: &Shared,
    end: &TcpEnd<'_>,
    established: Established,
    permit: Permit,
) -> Result<u32, Refusal> {
    let link = Arc::new(Link::new());
    let (role, app_role) = match end.offer {
        None => (Role::Client, AppRole::Client),
        Some(_) => (Role::Server, AppRole::Server),
    };
    let agreement = &established.agreement;
    let encoding = encoding(agreement.encoding);
    let peer_limits = agreement.peer_limits;
    let own = shared.services.limits();
    let calls_max = match end.offer {
        None => own.calls_in_flight_max.min(peer_limits.calls_in_flight_max),
        Some(_) => own.calls_in_flight_max,
    };
    let transport = TcpTransport::new(
        established,
        role,
        transport_config(&shared.config),
        Arc::clone(&link),
        now_ns(),
    );
    let datapath = compose::datapath(Plan {
        role: app_role,
        schema: end.schema,
        send_heap: end.send_heap.clone(),
        encoding,
        message_bytes_max: own.message_bytes_max.min(peer_limits.message_bytes_max),
        calls_max,
        quota: end.offer.map(|offer| Arc::clone(&offer.quota)),
        policies: &shared.config.policies,
        transport: Box::new(transport),
        link: Arc::clone(&link),
    });
    let place = Place {
        app: end.app,
        runtime: end.runtime,
        link,
        waker: shared.runtimes[end.runtime].new_waker(),
        serves: end
            .offer
            .map(|offer| (offer.request, offer.schema.service.clone())),
    };
    open(shared, place, datapath, permit).await
}

async fn connect_local(
    shared: &Rc<Shared>,
    app: &App,
    schema: &Arc<BoundSchema>,
    permit: Permit,
) -> Result<(u32, String), Refusal> {
    let found = shared.services.match_local(schema)?;
    let offer = &found.offer;
    let server = {
        let apps = shared.apps.borrow();
        let gone = || Refusal::new(Code::Unavailable, format!("{} is going away", schema.service));
        let server = apps.get(&offer.app).ok_or_else(gone)?;
        (server.runtime, server.send_heap.clone())
    };
    let (server_runtime, server_heap) = server;
    let (client_link, server_link) = (Arc::new(Link::new()), Arc::new(Link::new()));
    let client_waker = shared.runtimes[app.runtime].new_waker();
    let server_waker = shared.runtimes[server_runtime].new_waker();
    let ends = provost_transport_local::connect(
        local_end(&client_link, &client_waker),
        local_end(&server_link, &server_waker),
        found.methods.clone(),
    );
    let side = |role,
                schema: &BoundSchema,
                heap: SendHeap,
                quota: Option<Arc<CallQuota>>,
                transport,
                link: &Arc<Link>| {
        compose::datapath(Plan {
            role,
            schema,
            send_heap: heap,
            encoding: encoding(found.encoding),
            message_bytes_max: shared.config.limits.message_bytes,
            calls_max: shared.config.limits.calls_in_flight as u32,
            quota,
            policies: &shared.config.policies,
            transport,
            link: Arc::clone(link),
        })
    };
    let client_transport: Box<dyn Engine> = Box::new(ends.0);
    let server_transport: Box<dyn Engine> = Box::new(ends.1);
    let quota = Some(Arc::clone(&offer.quota));
    let client_path = side(
        AppRole::Client,
        schema,
        app.send_heap.clone(),
        None,
        client_transport,
        &client_link,
    );
    let server_path = side(
        AppRole::Server,
        &offer.schema,
        server_heap,
        quota,
        server_transport,
        &server_link,
    );
    let server_place = Place {
        app: offer.app,
        runtime: server_runtime,
        link: server_link,
        waker: server_waker,
        serves: Some((offer.request, schema.service.clone())),
    };
    let client_place = Place {
        app: app.id,
        runtime: app.runtime,
        link: client_link,
        waker: client_waker,
        serves: None,
    };
    // Both ends hold the client's permit: a local connection counts once, for the app that asked for it.
    let permit = Arc::new(permit);
    open(shared, server_place, server_path, Arc::clone(&permit)).await?;
    let number = open(shared, client_place, client_path, permit).await?;
    Ok((number, String::new()))
}

fn local_end(link: &Arc<Link>, waker: &Arc<PathWaker>) -> End {
    let wake: Arc<PathWaker> = Arc::clone(waker);
    End {
        link: Arc::clone(link),
        wake,
    }
}

/// Where a datapath goes, and what the control plane keeps of it.
struct Place {
    app: AppId,
    runtime: usize,
    link: Arc<Link>,
    waker: Arc<PathWaker>,
    /// For a server's end: the request that offered the service, and its name.
    serves: Option<(u64, String)>,
}

async fn open(
    shared: &Shared,
    place: Place,
    datapath: provost_datapath::Datapath,
    permit: impl Send + 'static,
) -> Result<u32, Refusal> {
    let (opened, number) = oneshot::channel();
    let id = shared.next_connection.replace(shared.next_connection.get() + 1);
    let (accepted_for, serves) = place.serves.unzip();
    let command = Command::Open(Box::new(NewConnection {
        id,
        app: place.app,
        datapath,
        waker: Arc::clone(&place.waker),
        permit: Box::new(permit),
        accepted_for,
        opened,
    }));
    // Known before it carries calls, so that a drain waits for them.
    let open = OpenConnection {
        app: place.app,
        link: place.link,
        waker: place.waker,
        serves,
    };
    if shared.draining.get() {
        open.drain();
    }
    shared.connections.borrow_mut().insert(id, open);
    let told = shared.runtimes[place.runtime].tell(command).await;
    let opened = match told {
        Ok(()) => number
            .await
            .map_err(|_| Refusal::new(Code::Unavailable, "the app is going away")),
        Err(overloaded) => Err(Refusal::new(Code::ResourceExhausted, overloaded.to_string())),
    };
    if opened.is_err() {
        shared.connections.borrow_mut().remove(&id);
        shared.gone.notify_one();
    }
    opened
}

fn encoding(agreed: Encoding) -> marshalling::Encoding {
    match agreed {
        Encoding::Native => marshalling::Encoding::Native,
        Encoding::Protobuf => marshalling::Encoding::Protobuf,
    }
}

fn transport_config(config: &Config) -> TransportConfig {
    TransportConfig {
        keepalive_interval_ns: config.timeouts.keepalive_interval_ms * 1_000_000,
        keepalive_timeout_ns: config.timeouts.keepalive_timeout_ms * 1_000_000,
        ..TransportConfig::default()
    }
}
