//! Letting other nodes in.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use provost_transport_datagram::Caller;
use provost_transport_tcp::{AcceptError, Decision, Established, Greeting, PeerIdentity, Role};
use provost_wire::Code;
use tokio::sync::Semaphore;

use crate::connect::{RemoteEnd, open_remote};
use crate::node::Shared;
use crate::permits::{AppConnections, Permit};
use crate::remote::{self, Reached};
use crate::services::Match;
use crate::sockets::PeerListener;

/// After an error of accept, such as having no descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
/// Between two log lines about errors of accept.
const COMPLAIN_EVERY: Duration = Duration::from_secs(10);

/// Lets peers in at one listener, for ever.
pub(crate) async fn accept(shared: Rc<Shared>, listener: PeerListener) {
    let handshakes = Arc::new(Semaphore::new(shared.config.limits.handshakes));
    let mut complained: Option<Instant> = None;
    loop {
        // Never closed, so that this waits for a place: until then peers wait in the listener's backlog.
        let Ok(place) = Arc::clone(&handshakes).acquire_owned().await else {
            return;
        };
        let (accepted, pass) = shared.peers_gate.enter_with(|| come(&listener)).await;
        match accepted {
            Ok((comer, peer)) => {
                let shared = Rc::clone(&shared);
                let under_way = UnderWay::note(&shared);
                tokio::task::spawn_local(async move {
                    let _place = place;
                    let _under_way = under_way;
                    let welcomed = match comer {
                        Comer::Tcp(stream) => welcome(&shared, stream).await,
                        Comer::Datagram(caller) => welcome_datagram(&shared, *caller).await,
                    };
                    if let Err(refusal) = welcomed {
                        tracing::info!(%peer, reason = refusal, "refused a peer");
                    }
                });
            }
            Err(error) => {
                drop(pass);
                if complained.is_none_or(|at| at.elapsed() >= COMPLAIN_EVERY) {
                    tracing::warn!(%error, "cannot let peers in: trying again");
                    complained = Some(Instant::now());
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// A peer that has come.
enum Comer {
    Tcp(tokio::net::TcpStream),
    Datagram(Box<Caller>),
}

async fn come(listener: &PeerListener) -> io::Result<(Comer, SocketAddr)> {
    match listener {
        PeerListener::Tcp(listener) => {
            let (stream, peer) = listener.accept().await?;
            Ok((Comer::Tcp(stream), peer))
        }
        PeerListener::Datagram(peers) => {
            let caller = peers.accept().await?;
            let peer = caller.address();
            Ok((Comer::Datagram(Box::new(caller)), peer))
        }
    }
}

/// A handshake that is under way.
struct UnderWay(Rc<Shared>);

impl UnderWay {
    fn note(shared: &Rc<Shared>) -> UnderWay {
        shared.handshakes.send_modify(|under_way| *under_way += 1);
        UnderWay(Rc::clone(shared))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.handshakes.send_modify(|under_way| *under_way -= 1);
    }
}

async fn welcome(shared: &Shared, stream: tokio::net::TcpStream) -> Result<(), String> {
    let stream = stream.into_std().map_err(|error| error.to_string())?;
    let services = Arc::clone(&shared.services);
    let tls = shared.tls_server.clone();
    let allowed = allowed_peers(shared);
    let deadline = handshake_deadline(shared);
    let handshake = tokio::task::spawn_blocking(move || {
        let mut found = None;
        let established = shake_hands(stream, tls, deadline, |greeting| {
            if let Some(refusal) = refuse_stranger(&allowed, greeting.peer) {
                return refusal;
            }
            let (decision, with) = services.decide(greeting.hello, greeting.schema);
            found = with;
            decision
        })?;
        Ok::<_, AcceptError>((established, found))
    });
    let (established, found) = match handshake.await {
        Ok(Ok(shaken)) => shaken,
        Ok(Err(error)) => return Err(error.to_string()),
        Err(_) => return Err("the handshake was cut short".to_owned()),
    };
    let found = found.ok_or("no service was agreed on")?;
    serve(shared, Reached::tcp(established, Role::Server), &found).await
}

async fn welcome_datagram(shared: &Shared, caller: Caller) -> Result<(), String> {
    let services = Arc::clone(&shared.services);
    let packets = remote::packets(&shared.config);
    let tls = shared.tls_server.clone();
    let allowed = allowed_peers(shared);
    let deadline = handshake_deadline(shared);
    let handshake = tokio::task::spawn_blocking(move || {
        let mut found = None;
        let decide = |hello: &_, schema: Option<&[u8]>, peer: &_| {
            if let Some(refusal) = refuse_stranger(&allowed, peer) {
                return refusal;
            }
            let (decision, with) = services.decide(hello, schema);
            found = with;
            decision
        };
        let established =
            provost_transport_datagram::accept(caller, packets, tls.as_deref(), deadline, decide);
        established.map(|established| (established, found))
    });
    let (established, found) = match handshake.await {
        Ok(Ok(shaken)) => shaken,
        Ok(Err(error)) => return Err(error.to_string()),
        Err(_) => return Err("the handshake was cut short".to_owned()),
    };
    let found = found.ok_or("no service was agreed on")?;
    serve(shared, Reached::datagram(established, Role::Server), &found).await
}

fn shake_hands(
    stream: TcpStream,
    tls: Option<Arc<rustls::ServerConfig>>,
    deadline: Instant,
    decide: impl FnMut(Greeting<'_>) -> Decision,
) -> Result<Established, AcceptError> {
    // The handshake blocks, with timeouts of its own.
    let _ = stream.set_nonblocking(false);
    provost_transport_tcp::accept(stream, tls, deadline, decide)
}

fn handshake_deadline(shared: &Shared) -> Instant {
    Instant::now() + Duration::from_millis(shared.live().timeouts.handshake_ms)
}

fn allowed_peers(shared: &Shared) -> Vec<String> {
    match &shared.live().tls {
        Some(tls) => tls.allow_peers.clone(),
        None => Vec::new(),
    }
}

/// A refusal of a peer that may not connect: any may that the authorities vouch for, unless a list says which.
fn refuse_stranger(allowed: &[String], peer: &PeerIdentity) -> Option<Decision> {
    let name = peer.name();
    let is_allowed = allowed.is_empty() || allowed.iter().any(|allowed| allowed == name);
    (!is_allowed).then(|| Decision::Refuse {
        code: Code::PermissionDenied,
        reason: format!("{name:?} is not among tls.allow_peers of the node that serves"),
    })
}

async fn serve(shared: &Shared, reached: Reached, found: &Match) -> Result<(), String> {
    let peer: SocketAddr = reached.peer_address;
    let identity = reached.identity.clone();
    let _pass = shared.gate.enter().await;
    let offer = &found.offer;
    let (app, runtime, send_heap, connections) = {
        let apps = shared.apps.borrow();
        let server = apps
            .get(&offer.app)
            .ok_or("the app that serves it is going away")?;
        (
            Arc::clone(&server.identity),
            server.runtime,
            server.send_heap.clone(),
            server.connections.clone(),
        )
    };
    let permit = take_permit(shared, &connections)?;
    let end = RemoteEnd {
        app: &app,
        runtime,
        send_heap: &send_heap,
        schema: &offer.schema,
        offer: Some(offer),
    };
    let number = open_remote(shared, &end, reached, permit)
        .await
        .map_err(|refusal| refusal.message)?;
    tracing::info!(
        app = offer.app,
        service = offer.schema.service,
        connection = number,
        %peer,
        identity,
        "accepted"
    );
    Ok(())
}

fn take_permit(shared: &Shared, app: &AppConnections) -> Result<Permit, String> {
    shared.permits.take(app).map_err(|error| error.to_string())
}
