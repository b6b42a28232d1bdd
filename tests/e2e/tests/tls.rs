//! Mutual TLS between nodes, with certificates made here.

mod authority;

use authority::Authority;
use provost::Code;
use provost_e2e::agent::Executor;
use provost_e2e::script::{Answer, Ask, Echo, Pour};
use provost_e2e::{Agent, Node, NodeOptions, Server, World, watched};

const ROLE: &str = env!("CARGO_BIN_EXE_e2e-role");

fn options(tables: String) -> NodeOptions {
    NodeOptions {
        tables,
        ..NodeOptions::default()
    }
}

/// A server on node b, whose `[tls]` is given.
fn served(tables_b: impl FnOnce(&World) -> String) -> (World, Node, Server) {
    let mut world = World::new(ROLE);
    let tables = tables_b(&world);
    let b = world.node("b", &options(tables));
    let server = world.server(&b);
    (world, b, server)
}

/// An agent on another node, whose `[tls]` is given, and what it says of its first connection.
fn client(world: &mut World, name: &str, b: &Node, tables: String) -> (Node, Agent, Answer) {
    let a = world.node(
        name,
        &NodeOptions {
            peer: Some(b.address),
            ..options(tables)
        },
    );
    let mut agent = world.starting_agent(&a, Executor::TokioCurrent);
    let answer = agent.first_answer();
    (a, agent, answer)
}

fn is_refused(answer: &Answer) -> bool {
    let codes = [Code::Unavailable, Code::Unauthenticated, Code::PermissionDenied].map(Code::number);
    matches!(answer, Answer::Failed(parts) if codes.contains(&parts.code))
}

#[test]
fn nodes_of_one_authority_call_each_other() {
    watched(|| {
        let authority = Authority::new();
        let (mut world, b, _server) = served(|world| authority.vouch_for("b", world.directory()));
        let tables = authority.vouch_for("a", world.directory());
        let (_a, mut agent, first) = client(&mut world, "a", &b, tables);
        assert_eq!(first, Answer::Ready);
        for bytes in [10, 100_000, 4 << 20] {
            agent.succeeds(Ask::Echo(Echo {
                bytes,
                calls: 3,
                ..Echo::default()
            }));
        }
        let pour = Pour {
            messages: 500,
            bytes: 5_000,
            ..Pour::default()
        };
        assert_eq!(agent.succeeds(Ask::Pour(pour)).count, 500);
    });
}

#[test]
fn a_node_of_another_authority_is_refused() {
    watched(|| {
        let authority = Authority::new();
        let (mut world, b, _server) = served(|world| authority.vouch_for("b", world.directory()));
        let tables = Authority::new().vouch_for("a", world.directory());
        let (_a, _agent, first) = client(&mut world, "a", &b, tables);
        assert!(is_refused(&first), "{first:?}");
    });
}

#[test]
fn a_node_without_tls_is_refused() {
    watched(|| {
        let authority = Authority::new();
        let (mut world, b, _server) = served(|world| authority.vouch_for("b", world.directory()));
        let (_a, _agent, first) = client(&mut world, "a", &b, String::new());
        assert!(is_refused(&first), "{first:?}");
    });
}

#[test]
fn a_node_that_is_not_on_the_list_is_refused() {
    watched(|| {
        let authority = Authority::new();
        let (mut world, b, _server) = served(|world| {
            let tables = authority.vouch_for("b", world.directory());
            format!("{tables}allow_peers = [\"spiffe://test/a\"]\n")
        });
        let stranger = authority.vouch_for("c", world.directory());
        let (_c, _agent, first) = client(&mut world, "c", &b, stranger);
        assert!(is_refused(&first), "{first:?}");
        let friend = authority.vouch_for("a", world.directory());
        let (_a, mut agent, first) = client(&mut world, "a", &b, friend);
        assert_eq!(first, Answer::Ready);
        agent.calls_well();
    });
}
