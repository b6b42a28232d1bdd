//! The transport within one node passes the suite of all transports.

use std::sync::Arc;

use provost_conformance::{Pair, run_within_node};
use provost_datapath::Link;
use provost_transport_local::{End, PeerWake, connect};

/// The suite polls both ends anyway.
struct Polled;

impl PeerWake for Polled {
    fn wake(&self) {}
}

fn pair() -> Pair {
    let end = || End {
        link: Arc::new(Link::new()),
        wake: Arc::new(Polled),
    };
    let (client, server) = (end(), end());
    let (client_link, server_link) = (client.link.clone(), server.link.clone());
    let (client, server) = connect(client, server, None);
    Pair {
        client: provost_conformance::End {
            engine: Box::new(client),
            link: client_link,
        },
        server: provost_conformance::End {
            engine: Box::new(server),
            link: server_link,
        },
        between: Box::new(|_| None),
    }
}

#[test]
fn within_one_node() {
    run_within_node(pair);
}
