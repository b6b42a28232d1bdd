//! Saved pairs of ends of every form, written by the code of their day, are gone on with by today's.

use std::sync::Arc;

use provost_conformance::fixtures::{Fixtures, FromFixture, ToFixture};
use provost_conformance::{BIDI, Node, UNARY, content};
use provost_datapath::{ConnectionSignals, MissingMethods, SavedState, Step};
use provost_transport_local::{
    End, LocalTransport, MethodMap, PeerWake, SavedEnd, connect, restore_pair, saved_pair,
};
use provost_wire::descriptor::Parts;

struct Polled;

impl PeerWake for Polled {
    fn wake(&self) {}
}

fn end(link: &Arc<ConnectionSignals>) -> End {
    End {
        link: link.clone(),
        wake: Arc::new(Polled),
    }
}

fn node(engine: LocalTransport, link: Arc<ConnectionSignals>) -> Node {
    Node::new(provost_conformance::End {
        engine: Box::new(engine),
        link,
    })
}

/// Both ends of a connection with steps in both directions, bodies that were read and not given back, and a refusal.
fn busy(missing: MissingMethods) -> (SavedState, SavedState) {
    let links = [
        Arc::new(ConnectionSignals::new()),
        Arc::new(ConnectionSignals::new()),
    ];
    let is_named = !missing.is_empty();
    let map = MethodMap {
        methods: vec![Some(3), None, Some(1), Some(0)],
        missing,
    };
    let (client, server) = connect(end(&links[0]), end(&links[1]), Some(map));
    let [client_link, server_link] = links;
    let (mut client, mut server) = (node(client, client_link), node(server, server_link));
    let begin = |call, method| Step {
        method,
        ..Step::new(call, Parts::BEGIN | Parts::MESSAGE)
    };
    client.send(begin(1, BIDI), &content(1, 10_000));
    // The server does not have this method.
    client.send(begin(2, 1), &content(2, 100));
    client.poll(1);
    server.poll(1);
    server.send(Step::new(1, Parts::MESSAGE), &content(3, 500));
    server.send(Step::new(1, Parts::MESSAGE), &content(4, 9_000));
    server.poll(1);
    client.send(begin(3, UNARY), &content(5, 50));
    client.send(Step::new(1, Parts::END), &content(0, 0));
    if is_named {
        client.poll(2);
        client.send(begin(4, 1), &content(6, 50));
        client.poll(2);
    }
    (client.save(&mut ToFixture), server.save(&mut ToFixture))
}

fn busy_unnamed() -> (SavedState, SavedState) {
    busy(MissingMethods::default())
}

fn go_on(client: &SavedState, server: &SavedState) -> String {
    let links = [
        Arc::new(ConnectionSignals::new()),
        Arc::new(ConnectionSignals::new()),
    ];
    let (mut from_client, mut from_server) = (FromFixture::default(), FromFixture::default());
    assert_eq!(saved_pair(client).map(|(_, is_client)| is_client), Ok(true));
    let (client, server) = restore_pair(
        SavedEnd {
            state: client,
            end: end(&links[0]),
            restorer: &mut from_client,
        },
        SavedEnd {
            state: server,
            end: end(&links[1]),
            restorer: &mut from_server,
        },
    )
    .unwrap();
    let [client_link, server_link] = links;
    let (mut client, mut server) = (node(client, client_link), node(server, server_link));
    for _ in 0..10 {
        client.poll(2);
        server.poll(2);
    }
    let mut facts = String::new();
    for (who, node) in [("client", &client), ("server", &server)] {
        for event in &node.events {
            let sum = event.message.iter().fold(0_u64, |sum, byte| {
                sum.wrapping_mul(31).wrapping_add(u64::from(*byte))
            });
            facts += &format!(
                "{who} gets {} {:?} {} {:?} {} {sum}\n",
                event.call,
                event.parts,
                event.method,
                event.status,
                event.status_message()
            );
        }
        facts += &format!("{who} gets back {:?}\n", node.sent);
    }
    facts
}

#[test]
fn fixtures_are_gone_on_with() {
    let fixtures = Fixtures::of(env!("CARGO_MANIFEST_DIR"));
    let (client, server) = busy_unnamed();
    fixtures.add("client", &client);
    fixtures.add("server", &server);
    for name in fixtures
        .names("v")
        .iter()
        .filter(|name| name.ends_with("-client"))
    {
        let server = name.replace("-client", "-server");
        fixtures.check(name, &go_on(&fixtures.state(name), &fixtures.state(&server)));
    }
}

#[test]
fn names_of_methods_that_the_server_lacks_are_kept() {
    let fixtures = Fixtures::of(env!("CARGO_MANIFEST_DIR"));
    let missing = MissingMethods::of("a.B", ["Get", "Later"].into_iter(), |at| at == 1);
    let (client, server) = busy(missing);
    fixtures.add("client-named", &client);
    fixtures.add("server-named", &server);
    let (client, server) = (
        fixtures.state("v2-client-named"),
        fixtures.state("v3-server-named"),
    );
    let facts = go_on(&client, &server);
    let told = "client gets 4 CANCEL 0 Unimplemented the service a.B has no method Later";
    assert!(facts.contains(told), "{facts}");
    fixtures.check("v3-server-named", &facts);
}

#[test]
fn ends_of_two_connections_are_not_made_one() {
    let ((client, _), (_, server)) = (busy_unnamed(), busy_unnamed());
    let links = [
        Arc::new(ConnectionSignals::new()),
        Arc::new(ConnectionSignals::new()),
    ];
    let (mut from_client, mut from_server) = (FromFixture::default(), FromFixture::default());
    let client = SavedEnd {
        state: &client,
        end: end(&links[0]),
        restorer: &mut from_client,
    };
    let server = SavedEnd {
        state: &server,
        end: end(&links[1]),
        restorer: &mut from_server,
    };
    assert!(restore_pair(client, server).is_err());
}
