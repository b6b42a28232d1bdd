//! Letting other nodes in.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use provost_wire::Code;
use tokio::sync::{mpsc, oneshot};
use tracing::Instrument;

use crate::app_registry::AttachedApp;
use crate::connect::Connector;
use crate::log::{self, EventSubject};
use crate::peer_shares::PeerParty;
use crate::permits::Permit;
use crate::places::{HeldPlace, let_losers_go, network_of};
use crate::refusal::Refusal;
use crate::relay::{AdmittedRelay, RelayAccess};
use crate::runtime::ConnectionId;
use crate::services::{CallingPeer, Match, Offer};
use crate::transport::{
    Decision, EstablishedPeer, HandshakeTerms, IncomingPeer, Limits, PeerIdentity, PeerListener, SpeakingPeer,
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
    let welcomed = shake_hands(relays, caller.address, peer, terms, shaking).await?;
    serve(relays, id, welcomed).await
}

/// A peer with which all is agreed.
struct WelcomedPeer {
    established: EstablishedPeer,
    found: Match,
    admission: PeerAdmission,
}

/// What was counted for a peer before it was told that it is welcome.
enum PeerAdmission {
    App(Rc<AttachedApp>, Permit),
    Relay(AdmittedRelay),
}

/// A handshake asks, from its thread, whether there is room for its peer.
struct AdmissionRequest {
    offer: Arc<Offer>,
    party: PeerParty,
    /// What the peer is ready to receive.
    limits: Limits,
    answer: oneshot::Sender<Result<(), Refusal>>,
}

/// Shakes hands on a thread for it, as long as it has its place.
async fn shake_hands(
    relays: &RelayAccess,
    address: SocketAddr,
    peer: SpeakingPeer,
    terms: HandshakeTerms,
    mut place: HeldPlace<IpAddr>,
) -> Result<WelcomedPeer, String> {
    let connector = &*relays.connector;
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
    let (asks, mut asked) = mpsc::channel(1);
    let mut handshake = connector.threads.peer_handshakes.run(move || {
        let _entered = span.enter();
        let network = network_of(address.ip());
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
            let room = with.as_ref().map_or(Ok(()), |with| {
                let party = PeerParty::at(identity.name(), &address.to_string());
                ask_for_room(&asks, &with.offer, party, hello.limits)
            });
            if let Err(Refusal { code, message }) = room {
                let reason = message;
                return Decision::Refuse { code, reason };
            }
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
    let mut admission = None;
    let ended = loop {
        tokio::select! {
            biased;
            Some(request) = asked.recv() => {
                let AdmissionRequest { offer, party, limits, answer } = request;
                let admitted = admit(relays, &offer, party, limits);
                let told = admitted.as_ref().map(drop).map_err(Refusal::clone);
                admission = admitted.ok();
                // It has been given up, if nobody hears this.
                let _ = answer.send(told);
            }
            ended = &mut handshake => break ended,
            () = place.lost() => {
                given_up.store(true, Ordering::Relaxed);
                (peer.stop)();
                // The connection may have been agreed on before: it is ended all the same.
                return Err("it took long, and others have come".to_owned());
            }
        }
    };
    let (established, found) = ended.map_err(|_| "the handshake was cut short")??;
    Ok(WelcomedPeer {
        established,
        found,
        admission: admission.ok_or("nobody asked whether there is room")?,
    })
}

/// Has the control plane say whether there is room for a peer, which it counts then.
fn ask_for_room(
    asks: &mpsc::Sender<AdmissionRequest>,
    offer: &Arc<Offer>,
    party: PeerParty,
    limits: Limits,
) -> Result<(), Refusal> {
    let given_up = || {
        Refusal::new(
            Code::Unavailable,
            "the node that serves has given the handshake up",
        )
    };
    let (answer, answered) = oneshot::channel();
    let request = AdmissionRequest {
        offer: Arc::clone(offer),
        party,
        limits,
        answer,
    };
    asks.blocking_send(request).map_err(|_| given_up())?;
    answered.blocking_recv().map_err(|_| given_up())?
}

/// Counts a peer that is to get what was found for it, if there is room.
fn admit(
    relays: &RelayAccess,
    offer: &Offer,
    party: PeerParty,
    limits: Limits,
) -> Result<PeerAdmission, Refusal> {
    let connector = &*relays.connector;
    let Some(app) = offer.app else {
        let admitted = relays.admit(&offer.schema.service, party, limits);
        return admitted.map(PeerAdmission::Relay);
    };
    let app = connector.apps.find(app).ok_or_else(app_goes)?;
    app.check_attached().map_err(|_| app_goes())?;
    let permit = permit(connector, &app, &party)?;
    Ok(PeerAdmission::App(app, permit))
}

fn app_goes() -> Refusal {
    Refusal::new(Code::Unavailable, "the app that serves it is going away")
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

async fn serve(relays: &Rc<RelayAccess>, id: ConnectionId, welcomed: WelcomedPeer) -> Result<(), String> {
    let connector = &*relays.connector;
    let _guard = connector.quiesce_barrier.enter().await;
    let WelcomedPeer {
        established,
        found,
        admission,
    } = welcomed;
    let offer = &found.offer;
    let (app, permit) = match admission {
        PeerAdmission::App(app, permit) => (app, permit),
        PeerAdmission::Relay(admitted) => {
            let opened = relays.open(id, established, offer, admitted).await;
            return opened.map_err(|refusal| refusal.message);
        }
    };
    app.check_attached().map_err(|_| app_goes().message)?;
    connector
        .open_remote(id, &app.endpoint, &offer.schema, Some(offer), established, permit)
        .await
        .map_err(|refusal| refusal.message)?;
    Ok(())
}

/// Counts one more connection of an app, if there is room for one of this peer.
fn permit(connector: &Connector, app: &AttachedApp, party: &PeerParty) -> Result<Permit, Refusal> {
    let connections = &connector.connections;
    let of_peer = || connections.count_of_peer(app.id(), party);
    connections
        .permits
        .check_peer(&app.connections, of_peer)
        .map_err(|error| connector.config.too_many_connections(app.name(), error))?;
    connector.permit(app)
}
