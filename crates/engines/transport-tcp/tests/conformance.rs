//! TCP passes the suite of all transports, plain and with mutual TLS.

#[path = "../../../core/tls/tests/certificates/mod.rs"]
mod certificates;
mod pairs;

use std::sync::Arc;

use pairs::{Tls, established, established_apart, mutual_tls};
use provost_conformance::{End, LeftState, Pair, Successors, run, run_with_hot_restarts};
use provost_datapath::{ConnectionSignals, Engine, RestoreError, Restorer};
use provost_transport_tcp::{Established, Role, StateTransfer, TcpTransport, TcpVersion, TransportConfig};

/// Bytes of a turn: less than a chunk of a large message.
const TURN_BYTES: u32 = 16 << 10;

fn pair(version: TcpVersion, tls: Option<&Tls>) -> Pair {
    pair_of(version, established(tls))
}

fn pair_of(version: TcpVersion, (client, server): (Established, Established)) -> Pair {
    let config = TransportConfig {
        keepalive_interval_ns: 0,
        ..TransportConfig::default()
    };
    let end = |established: Established| {
        let carrier = established.carrier.with_version(version);
        let established = Established {
            carrier,
            ..established
        };
        let link = Arc::new(ConnectionSignals::new());
        End {
            engine: Box::new(TcpTransport::new(established, config, link.clone(), 0)),
            link,
        }
    };
    let (client, server) = (end(client), end(server));
    let successors = TcpSuccessors {
        links: [client.link.clone(), server.link.clone()],
        version,
    };
    Pair {
        client,
        server,
        between: Box::new(|_| None),
        successors: Box::new(successors),
        hot_restarts: None,
        turn_bytes: None,
    }
}

/// Successors of another version each time: an operator goes up and back.
struct TcpSuccessors {
    links: [Arc<ConnectionSignals>; 2],
    version: TcpVersion,
}

impl Successors for TcpSuccessors {
    fn one(
        &mut self,
        role: Role,
        saved: LeftState,
        restorer: &mut dyn Restorer,
    ) -> Result<Box<dyn Engine>, RestoreError> {
        self.version = match self.version {
            TcpVersion::One => TcpVersion::Two,
            TcpVersion::Two => TcpVersion::One,
        };
        let link = &self.links[usize::from(role == Role::Server)];
        let state_transfer = StateTransfer {
            descriptors: saved.descriptors,
            link: link.clone(),
            restorer,
        };
        let successor = provost_transport_tcp::restore(self.version, &saved.state, state_transfer)?;
        assert_eq!(successor.version(), self.version.number());
        Ok(Box::new(successor))
    }
}

#[test]
fn plain() {
    run(|| pair(TcpVersion::One, None));
}

/// As under a policy that has other connections take their turns: little is moved in a poll, and little is on its way.
#[test]
fn plain_in_turns() {
    run(|| Pair {
        turn_bytes: Some(TURN_BYTES),
        ..pair_of(TcpVersion::One, established_apart())
    });
}

/// The same within a host, where there is no queue of a network to be kept short.
#[test]
fn plain_in_turns_within_a_host() {
    run(|| Pair {
        turn_bytes: Some(TURN_BYTES),
        ..pair(TcpVersion::One, None)
    });
}

#[test]
fn plain_with_version_2() {
    run(|| pair(TcpVersion::Two, None));
}

#[test]
fn plain_with_hot_restarts() {
    run_with_hot_restarts(1, || pair(TcpVersion::One, None));
}

#[test]
fn over_tls_with_hot_restarts() {
    let tls = mutual_tls();
    run_with_hot_restarts(2, || pair(TcpVersion::One, Some(&tls)));
}

#[test]
fn over_tls() {
    let tls = mutual_tls();
    run(|| pair(TcpVersion::One, Some(&tls)));
}
