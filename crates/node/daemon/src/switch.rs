//! Going over from one transport to another while calls go on.
//!
//! When a route names another transport, each connection that was made by that route gets a second one beside it, to the
//! same service. From then on new calls begin there; those in flight finish where they are, and then the old connection
//! ends. The app has one connection all the time, and sees nothing of it. If the other transport cannot be reached, the
//! connection stays as it is.

mod engine;

use std::collections::{HashMap, HashSet};
use std::net::{SocketAddr, ToSocketAddrs};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use provost_engine::{PeerIdentity, Side, Site};
use tokio::sync::oneshot;

use crate::config::{Config, RouteConfig};
use crate::connect::{Over, Target, encoding, reach};
use crate::node::Shared;
use crate::policies::plan::{Shape, renewed};
use crate::policies::{Instance, heal, transports};
use crate::remote::Reached;
use crate::runtime::{Command, ConnectionId, Done, Guard, NotReshaped, Planned, Reshape, Tag};

pub(crate) use engine::{KIND, Switch};

/// Attempts for one connection.
const ATTEMPTS_MAX: u32 = 3;
/// Between two of them.
const PAUSE: Duration = Duration::from_millis(500);

/// A connection that is to go over.
struct Candidate {
    id: ConnectionId,
    over: Over,
    endpoints: Vec<String>,
}

/// Brings connections to the transports of the routes in effect. `before` is the configuration that they were made by.
pub(crate) fn follow_routes(shared: &Rc<Shared>, before: Rc<Config>) {
    let shared = Rc::clone(shared);
    for open in shared.connections.borrow_mut().values_mut() {
        open.stays_because = None;
    }
    tokio::task::spawn_local(async move {
        let mut left_alone = HashSet::new();
        while let Some(candidate) = next_candidate(&shared, &before, &left_alone) {
            let id = candidate.id;
            left_alone.insert(id);
            go_over(&shared, &before, candidate).await;
        }
    });
}

fn over_name(over: Over) -> &'static str {
    match over {
        Over::Tcp => "tcp",
        Over::Datagram => "datagram",
    }
}

fn next_candidate(shared: &Shared, before: &Config, left_alone: &HashSet<ConnectionId>) -> Option<Candidate> {
    let live = shared.live();
    let connections = shared.connections.borrow();
    let differs = |(id, open): (&ConnectionId, &crate::node::OpenConnection)| {
        let site = &open.site;
        if left_alone.contains(id) || site.side != Side::Client || site.peer.transport == "local" {
            return None;
        }
        let route: &RouteConfig = live.route(&site.service)?;
        before.route(&site.service)?;
        let over = Over::of(route.transport)?;
        let has_somewhere = !route.endpoints.is_empty();
        (has_somewhere && over_name(over) != site.peer.transport).then(|| Candidate {
            id: *id,
            over,
            endpoints: route.endpoints.clone(),
        })
    };
    connections.iter().find_map(differs)
}

async fn go_over(shared: &Rc<Shared>, before: &Config, candidate: Candidate) {
    let Candidate { id, over, endpoints } = candidate;
    let transport = over_name(over);
    if !was_routed(shared, before, id).await {
        return;
    }
    let mut failure = String::new();
    for attempt in 0..ATTEMPTS_MAX {
        if attempt > 0 {
            tokio::time::sleep(PAUSE).await;
        }
        for endpoint in &endpoints {
            match go_to(shared, id, over, endpoint).await {
                Ok(Went::Over { pause_ns }) => {
                    tracing::info!(
                        connection = id,
                        transport,
                        endpoint,
                        pause_ns,
                        "went over to another transport"
                    );
                    return;
                }
                Ok(Went::Ended) => return,
                Err(reason) => failure = reason,
            }
            stay(shared, id, format!("cannot go over to {transport}: {failure}"));
        }
    }
    tracing::warn!(
        connection = id,
        transport,
        reason = failure,
        "a connection stays with the transport that it has"
    );
}

/// Notes why a connection stays with the transport that it has, for operators who look at it.
fn stay(shared: &Shared, id: ConnectionId, reason: String) {
    if let Some(open) = shared.connections.borrow_mut().get_mut(&id) {
        open.stays_because = Some(reason);
    }
}

/// Whether a connection leads to where its route led, and not to an address that its app named.
async fn was_routed(shared: &Shared, before: &Config, id: ConnectionId) -> bool {
    let Some(site) = site_of(shared, id) else {
        return false;
    };
    let endpoints = before.route(&site.service).map(|route| route.endpoints.clone());
    let peer: Option<SocketAddr> = site.peer.address.parse().ok();
    let found = tokio::task::spawn_blocking(move || {
        let endpoints = endpoints.unwrap_or_default();
        let leads_there = |endpoint: &String| {
            let addresses = endpoint.to_socket_addrs().ok();
            addresses.is_some_and(|mut addresses| addresses.any(|address| Some(address) == peer))
        };
        endpoints.iter().any(leads_there)
    });
    found.await.unwrap_or(false)
}

fn site_of(shared: &Shared, id: ConnectionId) -> Option<Arc<Site>> {
    let connections = shared.connections.borrow();
    connections.get(&id).map(|open| Arc::clone(&open.site))
}

enum Went {
    Over {
        pause_ns: u64,
    },
    /// The connection has ended meanwhile.
    Ended,
}

async fn go_to(shared: &Rc<Shared>, id: ConnectionId, over: Over, endpoint: &str) -> Result<Went, String> {
    let schema = shared
        .connections
        .borrow()
        .get(&id)
        .map(|open| Arc::clone(&open.terms.schema));
    let Some(schema) = schema else {
        return Ok(Went::Ended);
    };
    let target = Target {
        over,
        endpoint: endpoint.to_owned(),
        deadline: Instant::now() + Duration::from_millis(shared.live().timeouts.connect_ms),
    };
    let reached = reach(shared, &schema, target)
        .await
        .map_err(|refusal| refusal.message)?;
    // A policy that came meanwhile would know the connection as it was. (A process that takes over waits for both in this
    // order.)
    let _unchanged = shared.policies.hold().await;
    let _pass = shared.gate.enter().await;
    let Some((chain, site)) = seen_from(shared, id, &reached) else {
        return Ok(Went::Ended);
    };
    let there = Arc::clone(&site);
    let renewing = tokio::task::spawn_blocking(move || renewed(&chain, &there)).await;
    let policies = renewing.map_err(|error| error.to_string())?;
    let policies = policies.map_err(|error| error.to_string())?;
    let Some(asked) = ask(shared, id, reached, policies).await? else {
        return Ok(Went::Ended);
    };
    match asked.await {
        Ok(Ok(done)) => {
            let pause_ns = done.pause_ns;
            note(shared, id, site, done);
            Ok(Went::Over { pause_ns })
        }
        Ok(Err(NotReshaped::Failed { problem, .. })) => Err(problem),
        Ok(Err(NotReshaped::Stale { .. })) => Err("its policies were changed at the same time".to_owned()),
        Ok(Err(NotReshaped::Unknown)) | Err(_) => Ok(Went::Ended),
    }
}

/// The policies of a connection, and what they are to know of it once it has gone over.
fn seen_from(
    shared: &Shared,
    id: ConnectionId,
    reached: &Reached,
) -> Option<(Vec<Arc<Instance>>, Arc<Site>)> {
    let connections = shared.connections.borrow();
    let open = connections.get(&id)?;
    let peer = PeerIdentity {
        identity: reached.identity.clone().into(),
        address: reached.peer_address.to_string().into(),
        transport: reached.transport(),
        app: None,
    };
    let site = Site {
        peer,
        ..(*open.site).clone()
    };
    Some((open.chain.clone(), Arc::new(site)))
}

/// Asks the connection's runtime to put the new transport beside the old one, and to tell the policies.
async fn ask(
    shared: &Rc<Shared>,
    id: ConnectionId,
    reached: Reached,
    policies: Vec<(Tag, Planned)>,
) -> Result<Option<oneshot::Receiver<Result<Done, NotReshaped>>>, String> {
    let (done, hears) = oneshot::channel();
    let (runtime, reshape) = {
        let connections = shared.connections.borrow();
        let Some(open) = connections.get(&id) else {
            return Ok(None);
        };
        let agreement = reached.agreement();
        let peer_limits = agreement.peer_limits;
        let is_alike = encoding(agreement.encoding) == open.encoding
            && peer_limits.message_bytes_max >= open.terms.message_bytes_max
            && peer_limits.calls_in_flight_max >= open.terms.calls_max;
        if !is_alike {
            return Err("the service there has another schema or other limits".to_owned());
        }
        let shape = Shape::of(open);
        let mut policies: HashMap<Tag, Planned> = policies.into_iter().collect();
        let mut keep = |tag: &Tag| policies.remove(tag).unwrap_or(Planned::Keep(*tag));
        let expected = shape.engines();
        let mut planned: Vec<Planned> = expected
            .iter()
            .filter(|tag| **tag != Tag::TRANSPORT)
            .map(&mut keep)
            .collect();
        let start = engine::beside(reached, shared.config.clone(), open.transport_version);
        planned.push(Planned::Replace {
            was: Tag::TRANSPORT,
            tag: Tag::TRANSPORT,
            start,
            guard: Guard::default(),
        });
        let reshape = Reshape {
            connection: id,
            expected,
            planned,
            done,
        };
        (open.site.runtime, reshape)
    };
    let told = shared.runtimes[runtime]
        .tell(Command::Reshape(Box::new(reshape)))
        .await;
    told.map_err(|overloaded| overloaded.to_string())?;
    Ok(Some(hears))
}

/// Notes what became of a connection.
fn note(shared: &Rc<Shared>, id: ConnectionId, site: Arc<Site>, done: Done) {
    if let Some(open) = shared.connections.borrow_mut().get_mut(&id) {
        open.revision = done.revision;
        // As new ones of TCP have it, so that the table of versions finds what it expects.
        let version = match site.peer.transport {
            "tcp" => shared.policies.transport_version(transports::TCP, &site),
            _ => None,
        };
        open.transport_version = version.unwrap_or(1);
        open.stays_because = None;
        open.site = site;
    }
    heal::heard_of_change(shared, id);
    // An engine may take long to drop.
    let retired = done.retired;
    tokio::task::spawn_blocking(move || drop(retired));
}
