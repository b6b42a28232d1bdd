//! The whole service is replaced by another process while apps call: not one call fails, is lost, doubled or reordered.

use provost_e2e::driver::Ticket;
use provost_e2e::script::{Answer, Ask, Done, Echo, Fill, Pour};
use provost_e2e::{Agent, Node, NodeOptions, Replacement, Setting, World, watched};

const ROLE: &str = env!("CARGO_BIN_EXE_e2e-role");
/// Replacements of a node under load, one behind the other.
const REPLACEMENTS: usize = 8;

/// Calls of all kinds, under way at once.
fn load() -> Vec<Ask> {
    vec![
        Ask::Echo(Echo {
            calls: 20_000,
            in_flight: 8,
            ..Echo::default()
        }),
        Ask::Echo(Echo {
            calls: 20_000,
            ..Echo::default()
        }),
        Ask::Echo(Echo {
            bytes: 300_000,
            calls: 600,
            in_flight: 3,
            ..Echo::default()
        }),
        Ask::Pour(Pour {
            key: "pour".to_owned(),
            messages: 30_000,
            bytes: 500,
            ..Pour::default()
        }),
        Ask::Pour(Pour {
            key: "large".to_owned(),
            messages: 300,
            bytes: 400_000,
            ..Pour::default()
        }),
        Ask::Fill(Fill {
            messages: 20_000,
            bytes: 2_000,
            ..Fill::default()
        }),
        Ask::Chat {
            messages: 6_000,
            bytes: 5_000,
        },
    ]
}

fn begin(agent: &mut Agent) -> Vec<Ticket> {
    load().into_iter().map(|ask| agent.begin(ask)).collect()
}

/// Everything that was begun has come to a good end.
fn end(agent: &mut Agent, tickets: Vec<Ticket>) -> Vec<Done> {
    let asks = load();
    let mut all = Vec::new();
    for (ticket, ask) in tickets.into_iter().zip(asks) {
        match agent.answer(ticket) {
            Answer::Done(done) => all.push(done),
            other => panic!("{ask:?} came to {other:?}"),
        }
    }
    all
}

fn replace_under_load(agent: &mut Agent, mut replace: impl FnMut() -> Vec<Replacement>) {
    let tickets = begin(agent);
    std::thread::sleep(std::time::Duration::from_millis(100));
    for _ in 0..REPLACEMENTS {
        for replacement in replace() {
            println!("{replacement:?}");
        }
    }
    let slowest = end(agent, tickets)
        .into_iter()
        .map(|done| (done.slowest_us, done.elapsed_ms))
        .collect::<Vec<_>>();
    println!("slowest calls, µs: {slowest:?}");
}

#[test]
fn the_clients_node_is_replaced_again_and_again() {
    watched(|| {
        let mut setting = Setting::new(ROLE);
        let (agent, a) = (&mut setting.agent, &mut setting.a);
        replace_under_load(agent, || vec![a.replace()]);
        setting.others_are_served();
    });
}

#[test]
fn the_servers_node_is_replaced_again_and_again() {
    watched(|| {
        let mut setting = Setting::new(ROLE);
        let (agent, b) = (&mut setting.agent, &mut setting.b);
        replace_under_load(agent, || vec![b.replace()]);
        setting.others_are_served();
    });
}

#[test]
fn both_nodes_are_replaced_again_and_again() {
    watched(|| {
        let mut setting = Setting::new(ROLE);
        let (agent, a, b) = (&mut setting.agent, &mut setting.a, &mut setting.b);
        replace_under_load(agent, || vec![a.replace(), b.replace()]);
        setting.others_are_served();
    });
}

#[test]
fn a_node_with_both_ends_is_replaced_again_and_again() {
    watched(|| {
        let mut world = World::new(ROLE);
        let mut node: Node = world.node("n", &NodeOptions::default());
        let _server = world.server(&node);
        let mut agent = world.agent(&node);
        replace_under_load(&mut agent, || vec![node.replace()]);
        world.agent(&node).calls_well();
    });
}
