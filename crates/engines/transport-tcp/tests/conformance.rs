//! TCP passes the suite of all transports, plain and with mutual TLS.

#[path = "../../../core/tls/tests/certificates/mod.rs"]
mod certificates;
mod pairs;

use std::sync::Arc;

use pairs::{Tls, established, mutual_tls};
use provost_conformance::{End, Heirs, Pair, Saved, run, run_with_successions};
use provost_datapath::{Engine, Link, RestoreError, Restorer};
use provost_transport_tcp::{Handover, Role, TcpTransport, TcpVersion, TransportConfig};

/// Bytes of a turn: less than a chunk of a large message.
const TURN_BYTES: u32 = 16 << 10;

fn pair(version: TcpVersion, tls: Option<&Tls>) -> Pair {
    let config = TransportConfig {
        keepalive_interval_ns: 0,
        version,
        ..TransportConfig::default()
    };
    let end = |established, role| {
        let link = Arc::new(Link::new());
        End {
            engine: Box::new(TcpTransport::new(established, role, config, link.clone(), 0)),
            link,
        }
    };
    let (client, server) = established(tls);
    let (client, server) = (end(client, Role::Client), end(server, Role::Server));
    let heirs = TcpHeirs {
        links: [client.link.clone(), server.link.clone()],
        version,
    };
    Pair {
        client,
        server,
        between: Box::new(|_| None),
        heirs: Box::new(heirs),
        successions: None,
    }
}

/// Successors of another version each time: an operator goes up and back.
struct TcpHeirs {
    links: [Arc<Link>; 2],
    version: TcpVersion,
}

impl Heirs for TcpHeirs {
    fn one(
        &mut self,
        role: Role,
        saved: Saved,
        restorer: &mut dyn Restorer,
    ) -> Result<Box<dyn Engine>, RestoreError> {
        self.version = match self.version {
            TcpVersion::One => TcpVersion::Two,
            TcpVersion::Two => TcpVersion::One,
        };
        let link = &self.links[usize::from(role == Role::Server)];
        let handover = Handover {
            descriptors: saved.descriptors,
            link: link.clone(),
            restorer,
        };
        let heir = TcpTransport::restore(self.version, &saved.state, handover)?;
        assert_eq!(heir.version(), self.version.number());
        Ok(Box::new(heir))
    }
}

#[test]
fn plain() {
    run(|| pair(TcpVersion::One, None));
}

/// As under a policy that has other connections take their turns: little is moved in a poll, and little is on its way.
#[test]
fn plain_in_turns() {
    run(|| {
        let pair = pair(TcpVersion::One, None);
        for link in [&pair.client.link, &pair.server.link] {
            link.set_turn_bytes(TURN_BYTES);
        }
        pair
    });
}

#[test]
fn plain_with_version_2() {
    run(|| pair(TcpVersion::Two, None));
}

#[test]
fn plain_with_successions() {
    run_with_successions(1, || pair(TcpVersion::One, None));
}

#[test]
fn over_tls_with_successions() {
    let tls = mutual_tls();
    run_with_successions(2, || pair(TcpVersion::One, Some(&tls)));
}

#[test]
fn over_tls() {
    let tls = mutual_tls();
    run(|| pair(TcpVersion::One, Some(&tls)));
}
