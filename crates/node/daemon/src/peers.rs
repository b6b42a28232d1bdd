//! What the node has for its connections with other nodes: its TLS configurations, where it listens, and the handshakes
//! that are under way.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use provost_transport_tcp::{TlsConfig, TlsConfigError};
use tokio::sync::watch;

use crate::config::Config;
use crate::quiesce_barrier::QuiesceBarrier;

/// See the module's documentation.
pub(crate) struct PeerAccess {
    /// For connections that this node makes; none without TLS.
    pub(crate) tls_client: Option<Arc<rustls::ClientConfig>>,
    /// For those that it accepts.
    pub(crate) tls_server: Option<Arc<rustls::ServerConfig>>,
    /// Where it listens.
    pub(crate) addresses: Vec<SocketAddr>,
    /// Before peers are let in.
    pub(crate) barrier: QuiesceBarrier,
    /// How many handshakes are under way.
    handshakes: watch::Sender<usize>,
}

impl PeerAccess {
    pub(crate) fn new(config: &Config, addresses: Vec<SocketAddr>) -> Result<PeerAccess, TlsConfigError> {
        let tls = config.tls.as_ref().map(|files| TlsConfig {
            ca: files.ca.clone(),
            cert: files.cert.clone(),
            key: files.key.clone(),
        });
        Ok(PeerAccess {
            tls_client: tls.as_ref().map(TlsConfig::client).transpose()?,
            tls_server: tls.as_ref().map(TlsConfig::server).transpose()?,
            addresses,
            barrier: QuiesceBarrier::new(),
            handshakes: watch::Sender::new(0),
        })
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
