//! The transport engine.

use std::sync::Arc;

use provost_engine::{Context, Engine, Interest, Link, Nanos, Ports, Progress, SavedState};
use provost_session::Role;

use crate::Established;

/// How a transport behaves.
#[derive(Clone, Copy, Debug)]
pub struct TransportConfig {
    /// After how long without a byte from the peer it is asked whether it is there, in nanoseconds; 0 for never.
    pub keepalive_interval_ns: u64,
    /// How long it may take to answer, in nanoseconds.
    pub keepalive_timeout_ns: u64,
    /// How long an orderly end may take, in nanoseconds.
    pub linger_ns: u64,
}

impl Default for TransportConfig {
    fn default() -> TransportConfig {
        TransportConfig {
            keepalive_interval_ns: 10_000_000_000,
            keepalive_timeout_ns: 10_000_000_000,
            linger_ns: 2_000_000_000,
        }
    }
}

/// The last engine of a datapath whose peer is reached over TCP.
pub struct TcpTransport {
    link: Arc<Link>,
    established: Established,
}

impl TcpTransport {
    /// Takes over a connection. `link` carries what is not a step: draining, closing, why the connection ended.
    #[must_use]
    pub fn new(
        established: Established,
        role: Role,
        config: TransportConfig,
        link: Arc<Link>,
        now: Nanos,
    ) -> TcpTransport {
        let _ = (role, config, now);
        TcpTransport { link, established }
    }
}

impl Engine for TcpTransport {
    fn kind(&self) -> &'static str {
        "transport-tcp"
    }

    fn do_work(&mut self, ports: Ports<'_>, context: &mut Context<'_>) -> Progress {
        let _ = (ports, context, &self.link, &self.established);
        todo!()
    }

    fn wake_at(&self) -> Option<Nanos> {
        None
    }

    fn interest(&self) -> Option<Interest> {
        None
    }

    fn decompose(self: Box<Self>) -> SavedState {
        todo!()
    }
}
