//! What the node has for its connections with other nodes: its certificates, where it listens, and the handshakes
//! that are under way.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use provost_tls::PeerIdentity;
use tokio::sync::watch;

use crate::certificates::NodeCertificates;
use crate::config::Config;
use crate::grpc_certificates::{GrpcCertificates, GrpcTlsError};
use crate::places::{BoundedPlaces, PlaceBounds};
use crate::quiesce_barrier::QuiesceBarrier;
use crate::workload_api::{WorkloadApi, WorkloadSource};

/// See the module's documentation.
pub(crate) struct PeerAccess {
    /// What it proves itself with; none without TLS.
    pub(crate) certificates: Option<Rc<NodeCertificates>>,
    /// What it proves itself with to gRPC clients and servers.
    pub(crate) grpc: Rc<GrpcCertificates>,
    /// Where certificates come from in the place of files, if it is configured.
    pub(crate) workload: Option<Rc<WorkloadApi>>,
    pub(crate) addresses: Vec<SocketAddr>,
    /// Before peers are let in.
    pub(crate) barrier: QuiesceBarrier,
    /// How many handshakes are under way.
    handshakes: watch::Sender<usize>,
    /// Peers that have come and not spoken.
    pub(crate) silent: Arc<BoundedPlaces<IpAddr>>,
    /// Those with which hands are shaken.
    pub(crate) shaking: Arc<BoundedPlaces<IpAddr>>,
}

/// Peers that have come and not spoken: each keeps its socket and nothing else. When there are more, one of the network that
/// has most of them makes room.
const SILENT: PlaceBounds = PlaceBounds {
    all: 512,
    per_party: 512,
    grace: Duration::ZERO,
};
/// Of the handshakes that `limits.handshakes` allows, one network has one in so many.
const HANDSHAKES_SHARE: usize = 4;
/// How long a handshake goes on while others wait for its place.
const HANDSHAKE_GRACE: Duration = Duration::from_secs(1);

pub(crate) fn shaking(handshakes: usize) -> PlaceBounds {
    PlaceBounds {
        all: handshakes,
        per_party: (handshakes / HANDSHAKES_SHARE).max(1),
        grace: HANDSHAKE_GRACE,
    }
}

impl PeerAccess {
    pub(crate) fn new(
        config: &Config,
        addresses: Vec<SocketAddr>,
        workload: Option<Rc<WorkloadApi>>,
    ) -> Result<PeerAccess, GrpcTlsError> {
        let source = workload.as_ref().map(|workload| workload.source());
        let source = source.unwrap_or_else(|| WorkloadSource::new(Arc::default()));
        Ok(PeerAccess {
            certificates: NodeCertificates::load(config, &source)?,
            grpc: Rc::new(GrpcCertificates::load(config, source)?),
            workload,
            addresses,
            barrier: QuiesceBarrier::new(),
            handshakes: watch::Sender::new(0),
            silent: BoundedPlaces::new(SILENT),
            shaking: BoundedPlaces::new(shaking(config.limits.handshakes)),
        })
    }

    /// Has the files of all certificates read again when they change.
    pub(crate) fn follow_certificates(&self) {
        if let Some(certificates) = &self.certificates {
            tokio::task::spawn_local(Rc::clone(certificates).follow());
        }
        tokio::task::spawn_local(Rc::clone(&self.grpc).follow());
    }

    /// For a connection that this node makes to a server that has one of these identities; none without TLS.
    pub(crate) fn tls_client(&self, identities: &[String]) -> Option<Arc<rustls::ClientConfig>> {
        let certificates = self.certificates.as_ref();
        certificates.map(|certificates| certificates.current().client_for(identities))
    }

    /// For one that it accepts.
    pub(crate) fn tls_server(&self) -> Option<Arc<rustls::ServerConfig>> {
        let certificates = self.certificates.as_ref();
        certificates.map(|certificates| Arc::clone(&certificates.current().server))
    }

    /// The SPIFFE id of this node's certificate, if it has one.
    pub(crate) fn spiffe_id(&self) -> Option<String> {
        match &self.certificates.as_ref()?.current().identity {
            PeerIdentity::Spiffe(id) => Some(id.clone()),
            PeerIdentity::Dns(_) | PeerIdentity::Anonymous => None,
        }
    }

    /// Counts a handshake, until what this returns is dropped.
    pub(crate) fn begin_handshake(self: &Rc<Self>) -> HandshakeUnderWay {
        self.handshakes.send_modify(|under_way| *under_way += 1);
        HandshakeUnderWay(Rc::clone(self))
    }

    /// Waits until no handshake is under way.
    pub(crate) async fn no_handshakes(&self) {
        let mut handshakes = self.handshakes.subscribe();
        // Its sender is beside us.
        let _ = handshakes.wait_for(|under_way| *under_way == 0).await;
    }
}

/// A handshake that is under way.
pub(crate) struct HandshakeUnderWay(Rc<PeerAccess>);

impl Drop for HandshakeUnderWay {
    fn drop(&mut self) {
        self.0.handshakes.send_modify(|under_way| *under_way -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_network_has_a_quarter_of_the_handshakes() {
        let places = BoundedPlaces::new(shaking(64));
        let network = |last| IpAddr::from([192, 0, 2, last]);
        // Nobody loses its place so soon, so whoever is over its share gets none.
        let of_one: Vec<_> = (0..64).filter_map(|_| places.enter(network(1))).collect();
        assert_eq!(of_one.len(), 16);
        let of_others = (2..5).map(|last| (0..64).filter_map(|_| places.enter(network(last))).collect());
        let of_others: Vec<Vec<_>> = of_others.collect();
        assert!(of_others.iter().all(|held| held.len() == 16));
        assert!(places.enter(network(5)).is_none(), "all have 64");
    }
}
