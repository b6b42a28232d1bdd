//! The transport within one node passes the suite of all transports.

use std::sync::Arc;

use provost_conformance::{LeftState, Pair, Successors, run_within_node, run_within_node_with_hot_restarts};
use provost_datapath::{ConnectionSignals, Engine, RestoreError, Restorer};
use provost_session::Role;
use provost_transport_local::{End, LocalEnd, LocalTransport, PeerWake, SavedEnd, connect, restore_pair};

/// The suite polls both ends anyway.
struct Polled;

impl PeerWake for Polled {
    fn wake(&self) {}
}

fn pair() -> Pair {
    let end = || End {
        link: Arc::new(ConnectionSignals::new()),
        wake: Arc::new(Polled),
    };
    let (client, server) = (end(), end());
    let (client_link, server_link) = (client.link.clone(), server.link.clone());
    let (client, server) = connect(client, server, None);
    let successors = LocalSuccessors {
        client: (client.handle(), client_link.clone()),
        server: (server.handle(), server_link.clone()),
    };
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
        successors: Box::new(successors),
        hot_restarts: None,
        turn_bytes: None,
    }
}

struct LocalSuccessors {
    client: (LocalEnd, Arc<ConnectionSignals>),
    server: (LocalEnd, Arc<ConnectionSignals>),
}

impl Successors for LocalSuccessors {
    fn one(
        &mut self,
        role: Role,
        saved: LeftState,
        restorer: &mut dyn Restorer,
    ) -> Result<Box<dyn Engine>, RestoreError> {
        let (end, link) = match role {
            Role::Client => &self.client,
            Role::Server => &self.server,
        };
        let successor = LocalTransport::restore(&saved.state, end, link.clone(), restorer)?;
        Ok(Box::new(successor))
    }

    fn both(
        &mut self,
        client: (LeftState, &mut dyn Restorer),
        server: (LeftState, &mut dyn Restorer),
    ) -> Result<[Box<dyn Engine>; 2], RestoreError> {
        let end = |link: &Arc<ConnectionSignals>| End {
            link: link.clone(),
            wake: Arc::new(Polled),
        };
        let client = SavedEnd {
            state: &client.0.state,
            end: end(&self.client.1),
            restorer: client.1,
        };
        let server = SavedEnd {
            state: &server.0.state,
            end: end(&self.server.1),
            restorer: server.1,
        };
        let (client, server) = restore_pair(client, server)?;
        (self.client.0, self.server.0) = (client.handle(), server.handle());
        Ok([Box::new(client), Box::new(server)])
    }

    fn can_part(&self) -> bool {
        false
    }
}

#[test]
fn within_one_node() {
    run_within_node(pair);
}

#[test]
fn with_hot_restarts() {
    run_within_node_with_hot_restarts(6, pair);
}
