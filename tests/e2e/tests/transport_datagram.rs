//! Calls over the datagram transport, and connections that go over to it and back while apps call.

use provost::Code;
use provost_e2e::driver::{PATIENCE, Ticket};
use provost_e2e::script::{Answer, Ask, Echo, Fill, Pour};
use provost_e2e::{Agent, Node, NodeOptions, Server, World, eventually, watched};

const ROLE: &str = env!("CARGO_BIN_EXE_e2e-role");
/// What a node says of a connection that has gone over.
const WENT_OVER: &str = "went over to another transport";

/// Two nodes, of which the one that serves listens by both transports at one port number.
struct Pair {
    world: World,
    a: Node,
    b: Node,
    server: Server,
}

impl Pair {
    fn new(transport: &str) -> Pair {
        let mut world = World::new(ROLE);
        let mut b = world.node("b", &NodeOptions::default());
        b.reconfigure(&listening(&b));
        b.restart();
        let server = world.server(&b);
        let a = world.node("a", &routed(transport, &b));
        Pair { world, a, b, server }
    }

    /// Has the client's node reach the other one by this transport from now on.
    fn go_over(&mut self, transport: &str) {
        let before = self.a.program.log().matches(WENT_OVER).count();
        self.a.reconfigure(&routed(transport, &self.b));
        self.a.program.signal(rustix::process::Signal::HUP);
        let program = &self.a.program;
        eventually("a connection goes over", PATIENCE, || {
            program.log().matches(WENT_OVER).count() > before
        });
    }
}

fn listening(b: &Node) -> NodeOptions {
    NodeOptions {
        tables: format!(
            "[[listener]]\ntransport = \"datagram\"\naddress = \"{}\"\n",
            b.address
        ),
        ..NodeOptions::default()
    }
}

fn routed(transport: &str, b: &Node) -> NodeOptions {
    NodeOptions {
        tables: format!(
            "[[route]]\nservice = \"probe.Probe\"\ntransport = \"{transport}\"\nendpoints = [\"{}\"]\n",
            b.address
        ),
        ..NodeOptions::default()
    }
}

/// Calls of all kinds, under way at once.
fn load() -> Vec<Ask> {
    vec![
        Ask::Echo(Echo {
            calls: 3_000,
            in_flight: 8,
            ..Echo::default()
        }),
        Ask::Echo(Echo {
            bytes: 300_000,
            calls: 60,
            in_flight: 3,
            ..Echo::default()
        }),
        Ask::Pour(Pour {
            key: "pour".to_owned(),
            messages: 5_000,
            bytes: 500,
            ..Pour::default()
        }),
        Ask::Fill(Fill {
            messages: 3_000,
            bytes: 2_000,
            ..Fill::default()
        }),
        Ask::Chat {
            messages: 1_000,
            bytes: 5_000,
        },
    ]
}

fn begin(agent: &mut Agent, asks: &[Ask]) -> Vec<Ticket> {
    asks.iter().map(|ask| agent.begin(ask.clone())).collect()
}

/// Everything that was begun has come to a good end.
fn end(agent: &mut Agent, tickets: Vec<Ticket>, asks: &[Ask]) {
    for (ticket, ask) in tickets.into_iter().zip(asks) {
        match agent.answer(ticket) {
            Answer::Done(_) => {}
            other => panic!("{ask:?} came to {other:?}"),
        }
    }
}

#[test]
fn calls_and_streams_of_all_sizes_go_over_datagrams() {
    watched(|| {
        let mut pair = Pair::new("datagram");
        let mut agent = pair.world.agent(&pair.a);
        let asks = load();
        let tickets = begin(&mut agent, &asks);
        end(&mut agent, tickets, &asks);
        agent.succeeds(Ask::Echo(Echo {
            bytes: 8 << 20,
            calls: 2,
            ..Echo::default()
        }));
    });
}

#[test]
fn connections_go_over_and_back_while_apps_call() {
    watched(|| {
        let mut pair = Pair::new("tcp");
        let mut agent = pair.world.agent(&pair.a);
        agent.calls_well();
        let asks = load();
        let tickets = begin(&mut agent, &asks);
        pair.go_over("datagram");
        pair.go_over("tcp");
        end(&mut agent, tickets, &asks);
        let tickets = begin(&mut agent, &asks);
        pair.go_over("datagram");
        end(&mut agent, tickets, &asks);
    });
}

#[test]
fn both_nodes_are_replaced_while_calls_go_over_datagrams() {
    watched(|| {
        let mut pair = Pair::new("datagram");
        let mut agent = pair.world.agent(&pair.a);
        let asks = load();
        let tickets = begin(&mut agent, &asks);
        for _ in 0..2 {
            println!("{:?}", pair.a.replace());
            println!("{:?}", pair.b.replace());
        }
        end(&mut agent, tickets, &asks);
        agent.calls_well();
    });
}

#[test]
fn a_peer_that_starts_again_is_found_again() {
    watched(|| {
        let mut pair = Pair::new("datagram");
        let mut agent = pair.world.agent(&pair.a);
        agent.calls_well();
        drop(pair.server);
        pair.b.restart();
        let _server = pair.world.server(&pair.b);
        let mut codes = Vec::new();
        eventually("calls are answered again", PATIENCE, || {
            let ticket = agent.begin(Ask::Echo(Echo::default()));
            match agent.answer(ticket) {
                Answer::Done(_) => true,
                Answer::Failed(failure) => {
                    codes.push(failure.code);
                    false
                }
                other => panic!("{other:?}"),
            }
        });
        let unavailable = Code::Unavailable as u32;
        assert!(codes.iter().all(|code| *code == unavailable), "{codes:?}");
    });
}
