//! Letting other nodes in.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use provost_wire::Code;
use tokio::sync::Semaphore;
use tracing::Instrument;

use crate::connect::Connector;
use crate::runtime::ConnectionId;
use crate::services::Match;
use crate::transport::{Decision, EstablishedPeer, HandshakeTerms, IncomingPeer, PeerIdentity, PeerListener};

/// After an error of accept, such as having no descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
/// Between two log lines about errors of accept.
const COMPLAIN_EVERY: Duration = Duration::from_secs(10);

/// Lets peers in at one listener, for ever.
pub(crate) async fn accept(connector: Rc<Connector>, listener: Box<dyn PeerListener>) {
    let handshakes = Arc::new(Semaphore::new(connector.config.started.limits.handshakes));
    let mut complained: Option<Instant> = None;
    loop {
        // Never closed, so that this waits for a permit: until then peers wait in the listener's backlog.
        let Ok(permit) = Arc::clone(&handshakes).acquire_owned().await else {
            return;
        };
        let (accepted, guard) = connector.peers.barrier.enter_with(|| listener.accept()).await;
        match accepted {
            Ok(caller) => {
                let connector = Rc::clone(&connector);
                let under_way = connector.peers.begin_handshake();
                let id = connector.connections.new_id();
                let span = tracing::info_span!("accept", connection = id, peer = %caller.address);
                let welcoming = async move {
                    let _held = (permit, under_way);
                    tracing::info!("a peer has come");
                    if let Err(reason) = welcome(&connector, id, caller).await {
                        tracing::info!(reason, "connection refused");
                    }
                };
                tokio::task::spawn_local(welcoming.instrument(span));
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

/// Shakes hands with a peer, and opens the connection for the app that it has asked for.
async fn welcome(connector: &Connector, id: ConnectionId, caller: IncomingPeer) -> Result<(), String> {
    let live = connector.config.live();
    let terms = HandshakeTerms {
        tls: connector.peers.tls_server.clone(),
        options: connector.config.started.transport_options(),
        deadline: Instant::now() + Duration::from_millis(live.timeouts.handshake_ms),
    };
    let allowed = live
        .tls
        .as_ref()
        .map(|tls| tls.allow_peers.clone())
        .unwrap_or_default();
    let services = Arc::clone(&connector.services);
    let span = tracing::Span::current();
    let handshake = tokio::task::spawn_blocking(move || {
        let _entered = span.enter();
        let mut found = None;
        let established = (caller.handshake)(terms, &mut |hello, schema, peer| {
            if let Some(refusal) = refuse_stranger(&allowed, peer) {
                return refusal;
            }
            let (decision, with) = services.decide(hello, schema);
            found = with;
            decision
        })?;
        let found = found.ok_or("no service was agreed on")?;
        tracing::info!(
            service = found.offer.schema.service,
            identity = established.identity,
            transport = established.kind.name(),
            "agreed with a peer"
        );
        Ok::<_, String>((established, found))
    });
    let (established, found) = handshake.await.map_err(|_| "the handshake was cut short")??;
    serve(connector, id, established, &found).await
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
    connector: &Connector,
    id: ConnectionId,
    established: EstablishedPeer,
    found: &Match,
) -> Result<(), String> {
    let _guard = connector.quiesce_barrier.enter().await;
    let offer = &found.offer;
    let app = connector
        .apps
        .find(offer.app)
        .ok_or("the app that serves it is going away")?;
    let permit = connector.connections.permits.take(&app.connections);
    let permit = permit.map_err(|error| error.to_string())?;
    connector
        .open_remote(id, &app.endpoint, &offer.schema, Some(offer), established, permit)
        .await
        .map_err(|refusal| refusal.message)?;
    Ok(())
}
