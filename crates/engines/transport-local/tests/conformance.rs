//! The transport within one node passes the suite of all transports.

use std::sync::Arc;

use provost_conformance::{
    LeftState, Node, Pair, Successors, content, run_within_node, run_within_node_with_hot_restarts,
};
use provost_datapath::{ConnectionSignals, Engine, Progress, RestoreError, Restorer, Step};
use provost_session::Role;
use provost_transport_local::{End, LocalEnd, LocalTransport, PeerWake, SavedEnd, connect, restore_pair};
use provost_wire::descriptor::Parts;

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

#[test]
fn a_poll_copies_so_many_bytes_and_small_messages_have_their_turn() {
    let Pair { client, server, .. } = pair();
    let (mut client, mut server) = (Node::new(client), Node::new(server));
    let begin = |call| Step::new(call, Parts::BEGIN | Parts::MESSAGE | Parts::END);
    for call in 1..=8 {
        client.send(begin(call), &content(call, 600 << 10));
    }
    client.poll(1);
    let taken = |server: &mut Node, now| {
        let before = server.events.len();
        server.poll(now);
        server.events.len() - before
    };
    assert_eq!(taken(&mut server, 1), 2);
    // Another connection of the same runtime has copied much in this round.
    server.buffers.note_copied(4 << 20, 2);
    assert_eq!(taken(&mut server, 2), 1);
    assert_eq!((taken(&mut server, 3), taken(&mut server, 4)), (2, 2));
    assert_eq!(server.progress, Progress::Busy);
    for call in 9..=40 {
        client.send(begin(call), &content(call, 1 << 10));
    }
    client.poll(5);
    // The last long one, and all that are short.
    assert_eq!(taken(&mut server, 5), 33);
    client.poll(6);
    assert_eq!(client.sent.len(), 40);
}
