//! Letting other nodes in.

use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use provost_wire::Code;
use tracing::Instrument;

use crate::app_registry::AttachedApp;
use crate::connect::Connector;
use crate::log::{self, EventSubject};
use crate::peer_shares::PeerParty;
use crate::permits::Permit;
use crate::places::{HeldPlace, let_losers_go, network_of};
use crate::refusal::Refusal;
use crate::relay::RelayAccess;
use crate::runtime::ConnectionId;
use crate::services::{CallingPeer, Match};
use crate::transport::{
    Decision, EstablishedPeer, HandshakeTerms, IncomingPeer, PeerIdentity, PeerListener, SpeakingPeer,
};

/// After an error of accept, such as having no descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
/// Between two log lines about errors of accept.
const COMPLAIN_EVERY: Duration = Duration::from_secs(10);

/// Lets peers in at one listener, for ever.
pub(crate) async fn accept(relays: Rc<RelayAccess>, listener: Box<dyn PeerListener>) {
    let connector = Rc::clone(&relays.connector);
    let mut complained: Option<Instant> = None;
    loop {
        let (accepted, guard) = connector.peers.barrier.enter_with(|| listener.accept()).await;
        match accepted {
            Ok(caller) => {
                let relays = Rc::clone(&relays);
                let under_way = connector.peers.begin_handshake();
                let id = connector.connections.new_id();
                let span = tracing::info_span!("accept", connection = id, peer = %caller.address);
                let welcoming = async move {
                    let _held = under_way;
                    let subject = EventSubject::Peer(network_of(caller.address.ip()));
                    if log::may_log(subject) {
                        tracing::info!("a peer has come");
                    }
                    if let Err(reason) = welcome(&relays, id, caller).await
                        && log::may_log(subject)
                    {
                        tracing::info!(reason = &*log::cut(&reason), "connection refused");
                    }
                };
                tokio::task::spawn_local(welcoming.instrument(span));
                drop(guard);
                let_losers_go().await;
            }
            Err(error) => {
                drop(guard);
                if complained.is_none_or(|at| at.elapsed() >= COMPLAIN_EVERY) {
                    tracing::warn!(%error, "cannot let peers in: trying again");
                    complained = Some(Instant::now());
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Shakes hands with a peer, and opens the connection for the app that it has asked for. Until it speaks it keeps a place
/// among those that are silent; the handshake takes one of few.
async fn welcome(relays: &Rc<RelayAccess>, id: ConnectionId, caller: IncomingPeer) -> Result<(), String> {
    let connector = &*relays.connector;
    let live = connector.config.live();
    let deadline = Instant::now() + Duration::from_millis(live.timeouts.handshake_ms);
    let network = network_of(caller.address.ip());
    let mut place = connector.peers.silent.enter(network).ok_or("there is no place")?;
    let spoken = tokio::time::timeout_at(deadline.into(), caller.speaks);
    let spoken = tokio::select! {
        biased;
        spoken = spoken => spoken.map_err(|_| "it has said nothing")?,
        () = place.lost() => return Err("it has said nothing, and others have come".to_owned()),
    };
    let peer = spoken.map_err(|error| error.to_string())?;
    let waiting = connector.peers.shaking.enter_until(network, deadline);
    let shaking = tokio::select! {
        biased;
        shaking = waiting => shaking.ok_or("too many handshakes are under way")?,
        () = place.lost() => return Err("too many peers wait for a handshake".to_owned()),
    };
    drop(place);
    let terms = HandshakeTerms {
        tls: connector.peers.tls_server(),
        options: connector.config.started.transport_options(),
        deadline,
    };
    let (established, found) = shake_hands(connector, network, peer, terms, shaking).await?;
    serve(relays, id, established, &found).await
}

/// Shakes hands on a thread for it, as long as it has its place.
async fn shake_hands(
    connector: &Connector,
    network: IpAddr,
    peer: SpeakingPeer,
    terms: HandshakeTerms,
    mut place: HeldPlace<IpAddr>,
) -> Result<(EstablishedPeer, Match), String> {
    let live = connector.config.live();
    let allowed = live
        .tls
        .as_ref()
        .map(|tls| tls.allow_peers.clone())
        .unwrap_or_default();
    let services = Arc::clone(&connector.services);
    let span = tracing::Span::current();
    let deadline = terms.deadline;
    let is_given_up = Arc::new(AtomicBool::new(false));
    let given_up = Arc::clone(&is_given_up);
    let mut handshake = connector.threads.peer_handshakes.run(move || {
        let _entered = span.enter();
        let (mut found, mut claimed) = (None, None);
        let mut established = (peer.handshake)(terms, &mut |hello, schema, identity| {
            if let Some(refusal) = refuse_stranger(&allowed, identity) {
                return refusal;
            }
            let (decision, with) = services.decide(CallingPeer {
                address: network,
                hello,
                schema,
                deadline,
                is_given_up: &is_given_up,
            });
            found = with;
            claimed.clone_from(&hello.caller);
            decision
        })?;
        established.claimed = claimed;
        let found = found.ok_or("no service was agreed on")?;
        if log::may_log(EventSubject::Peer(network)) {
            tracing::info!(
                service = found.offer.schema.service,
                identity = established.identity,
                transport = established.kind.name(),
                "agreed with a peer"
            );
        }
        Ok::<_, String>((established, found))
    });
    let ended = tokio::select! {
        biased;
        ended = &mut handshake => ended,
        () = place.lost() => {
            given_up.store(true, Ordering::Relaxed);
            (peer.stop)();
            // The connection may have been agreed on before: it is ended all the same.
            return Err("it took long, and others have come".to_owned());
        }
    };
    ended.map_err(|_| "the handshake was cut short")?
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

async fn serve(
    relays: &Rc<RelayAccess>,
    id: ConnectionId,
    established: EstablishedPeer,
    found: &Match,
) -> Result<(), String> {
    let connector = &*relays.connector;
    let _guard = connector.quiesce_barrier.enter().await;
    let offer = &found.offer;
    let Some(app) = offer.app else {
        let opened = relays.open(id, established, offer).await;
        return opened.map_err(|refusal| refusal.message);
    };
    let app = connector
        .apps
        .find(app)
        .ok_or("the app that serves it is going away")?;
    let permit = permit(connector, &app, &established).map_err(|refusal| refusal.message)?;
    connector
        .open_remote(id, &app.endpoint, &offer.schema, Some(offer), established, permit)
        .await
        .map_err(|refusal| refusal.message)?;
    Ok(())
}

/// Counts one more connection of an app, if there is room for one of this peer.
fn permit(
    connector: &Connector,
    app: &AttachedApp,
    established: &EstablishedPeer,
) -> Result<Permit, Refusal> {
    let connections = &connector.connections;
    let party = PeerParty::at(&established.identity, &established.address.to_string());
    let of_peer = || connections.count_of_peer(app.id(), &party);
    connections
        .permits
        .check_peer(&app.connections, of_peer)
        .map_err(|error| connector.config.too_many_connections(app.name(), error))?;
    connector.permit(app)
}
