//! Migrating connections to another transport while calls go on.
//!
//! When a route names another transport, each connection that was made by that route gets a second one beside it, to the
//! same service. From then on new calls begin there; those in flight finish where they are, and then the old connection
//! ends. The app has one connection all the time, and sees nothing of it. If the other transport cannot be reached, the
//! connection stays as it is. The change itself is a live change like any other ([`crate::live_change`]).

use provost_datapath::CompressedMessages;
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::Instrument;

use crate::config::{Config, RouteConfig};
use crate::connect::{ConnectTarget, Connector, encoding};
use crate::connections::OpenConnection;
use crate::live_change::{LiveChanges, MigrationOutcome};
use crate::runtime::ConnectionId;
use crate::transport::{EstablishedPeer, TransportKind};
use crate::turns::TurnOwner;

/// Attempts for one connection.
const ATTEMPTS_MAX: u32 = 3;
/// Between two of them.
const PAUSE: Duration = Duration::from_millis(500);

/// Brings connections to the transports of the routes in effect.
pub(crate) struct RouteFollower {
    pub(crate) connector: Rc<Connector>,
    pub(crate) changes: Rc<LiveChanges>,
    /// The configuration that the connections were made by.
    pub(crate) before: Rc<Config>,
}

/// A connection that is to migrate.
struct MigrationCandidate {
    id: ConnectionId,
    over: TransportKind,
    /// From another one on for each connection, so that they stay spread.
    endpoints: Vec<String>,
}

impl RouteFollower {
    /// Starts a task that migrates one connection after the other.
    pub(crate) fn start(self) {
        for open in self.connector.connections.all_mut().values_mut() {
            open.stays_because = None;
        }
        tokio::task::spawn_local(async move {
            let mut left_alone = HashSet::new();
            while let Some(candidate) = self.next_candidate(&left_alone) {
                left_alone.insert(candidate.id);
                let span = tracing::info_span!("migrate", connection = candidate.id);
                self.migrate(candidate).instrument(span).await;
            }
        });
    }

    fn next_candidate(&self, left_alone: &HashSet<ConnectionId>) -> Option<MigrationCandidate> {
        let live = self.connector.config.live();
        let connections = self.connector.connections.all();
        let candidate = |(id, open): (&ConnectionId, &OpenConnection)| {
            let spec = &open.spec;
            if left_alone.contains(id) || spec.serves().is_some() || !spec.transport.is_network() {
                return None;
            }
            let route: &RouteConfig = live.route(&spec.schema.service)?;
            self.before.route(&spec.schema.service)?;
            let over = route.transport.network();
            let differs = over.is_network() && over != spec.transport && !route.endpoints.is_empty();
            differs.then(|| MigrationCandidate {
                id: *id,
                over,
                endpoints: self.connector.turned(&route.endpoints),
            })
        };
        connections.iter().find_map(candidate)
    }

    async fn migrate(&self, candidate: MigrationCandidate) {
        let MigrationCandidate { id, over, endpoints } = candidate;
        let transport = over.name();
        if !self.was_routed(id).await {
            return;
        }
        let mut failure = String::new();
        for attempt in 0..ATTEMPTS_MAX {
            if attempt > 0 {
                tokio::time::sleep(PAUSE).await;
            }
            for endpoint in &endpoints {
                match self.migrate_to(id, over, endpoint).await {
                    Ok(MigrationOutcome::Over { pause_ns }) => {
                        tracing::info!(
                            connection = id,
                            transport,
                            endpoint,
                            pause_ns,
                            "migrated to another transport"
                        );
                        return;
                    }
                    Ok(MigrationOutcome::Ended) => return,
                    Err(reason) => failure = reason,
                }
                if let Some(mut open) = self.connector.connections.find_mut(id) {
                    open.stays_because = Some(format!("cannot go over to {transport}: {failure}"));
                }
            }
        }
        tracing::warn!(
            connection = id,
            transport,
            reason = failure,
            "a connection stays with the transport that it has"
        );
    }

    /// Whether a connection leads to where its route led, and not to an address that its app named.
    async fn was_routed(&self, id: ConnectionId) -> bool {
        let spec = self
            .connector
            .connections
            .find(id)
            .map(|open| Arc::clone(&open.spec));
        let Some(spec) = spec else {
            return false;
        };
        let route = self.before.route(&spec.schema.service);
        let endpoints = route.map(|route| route.endpoints.clone()).unwrap_or_default();
        let connect_ms = self.connector.config.live().timeouts.connect_ms;
        for endpoint in endpoints {
            let deadline = Instant::now() + Duration::from_millis(connect_ms);
            let lookup = &self.connector.attempts.lookup;
            let addresses = lookup.resolve(&endpoint, TurnOwner::Node, deadline).await;
            if addresses.is_ok_and(|found| {
                found
                    .iter()
                    .any(|address| address.to_string() == *spec.peer.address)
            }) {
                return true;
            }
        }
        false
    }

    /// Has the app of a connection connect anew, which its route leads over the other transport. Calls in flight end first.
    fn have_connect_anew(&self, id: ConnectionId, over: TransportKind) {
        if let Some(open) = self.connector.connections.find(id) {
            open.drain();
            let transport = over.name();
            tracing::info!(
                connection = id,
                transport,
                "the app is to connect anew, over another transport"
            );
        }
    }

    async fn migrate_to(
        &self,
        id: ConnectionId,
        over: TransportKind,
        endpoint: &str,
    ) -> Result<MigrationOutcome, String> {
        let connector = &self.connector;
        let spec = connector.connections.find(id).map(|open| Arc::clone(&open.spec));
        let Some(spec) = spec else {
            return Ok(MigrationOutcome::Ended);
        };
        let live = connector.config.live();
        let connect_ms = live.timeouts.connect_ms;
        let target = ConnectTarget {
            over,
            endpoint: endpoint.to_owned(),
            server_identities: live.server_identities(live.route(&spec.schema.service)),
            grpc: connector.grpc_terms(live.route(&spec.schema.service))?,
            caller: connector.callers.attestation(&spec.app.identity),
            compressed: spec.app.compressed,
            deadline: Instant::now() + Duration::from_millis(connect_ms),
        };
        let reached = connector
            .reach(&spec.schema, target, TurnOwner::Node)
            .await
            .map_err(|refusal| refusal.message)?;
        if !over.migrates() || !spec.transport.migrates() {
            self.have_connect_anew(id, over);
            return Ok(MigrationOutcome::Ended);
        }
        // A policy that came meanwhile would know the connection as it was. (A process that takes over waits for both in
        // this order.)
        let unchanged = connector.policies.hold().await;
        let _unchanged = unchanged.map_err(|error| error.to_string())?;
        let _guard = connector.quiesce_barrier.enter().await;
        match connector.connections.find(id).map(|open| fits(&reached, &open)) {
            None => return Ok(MigrationOutcome::Ended),
            Some(false) => return Err("the service there has another schema or other limits".to_owned()),
            Some(true) => {}
        }
        let options = connector.config.started.transport_options();
        self.changes.migrate(id, reached, options).await
    }
}

/// Whether a connection can go on with this peer.
fn fits(reached: &EstablishedPeer, open: &OpenConnection) -> bool {
    let (spec, peers) = (&open.spec, reached.peer_limits);
    encoding(reached.encoding) == spec.encoding
        && peers.message_bytes_max >= spec.limits.message_bytes_max
        && peers.calls_in_flight_max >= spec.limits.calls_max
        && (peers.takes_compressed() || spec.limits.compressed == CompressedMessages::Decompressed)
}
