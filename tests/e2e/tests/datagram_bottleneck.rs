//! Datagrams through networks that are slower than the hosts, with queues of any length, and that lose or mark besides: beside TCP
//! through the same network, in turn, and two connections beside each other.

use std::time::{Duration, Instant};

use provost_e2e::script::{Ask, Echo};
use provost_e2e::{Agent, Node, NodeOptions, Server, World, built, watched};
use provost_namespaces::Namespace;

const ROLE: &str = env!("CARGO_BIN_EXE_e2e-role");
/// Calls of a connection, each with so many bytes there and back: a second of the network.
const CALLS: usize = 100;
const MESSAGE_BYTES: usize = 64 << 10;
/// One attempt may have met somebody else's load on the machine.
const ATTEMPTS: usize = 3;

/// Where rules of the network stand: at its one interface, for what comes in.
const CHAIN: [&str; 2] = [
    "nft add table inet net",
    "nft add chain inet net input { type filter hook input priority 0 ; }",
];
const LOSSES: &str = "nft add rule inet net input numgen random mod 1000 < 5 counter drop";
const MARKS: &str =
    "nft add rule inet net input ip ecn ect0 numgen random mod 1000 < 100 counter ip ecn set ce";

fn load() -> Ask {
    Ask::Echo(Echo {
        bytes: MESSAGE_BYTES,
        calls: CALLS,
        in_flight: 8,
        ..Echo::default()
    })
}

/// A network of its own with frames of Ethernet's size, 100 Mb/s, and so much that waits before it loses; and what these commands make
/// of it.
fn slow_network(queue: &str, commands: &[&str]) -> std::io::Result<Namespace> {
    let network = Namespace::new()?;
    network.command("ip link set dev lo mtu 1500")?;
    network.command(&format!(
        "tc qdisc add dev lo root tbf rate 100mbit burst 32k limit {queue}"
    ))?;
    for command in commands {
        network.command(command)?;
    }
    Ok(network)
}

/// Runs this with hosts in such a network.
fn through(queue: &str, commands: &[&str], body: impl FnOnce(&mut SlowHosts) + Send + 'static) {
    // Before the limit of the test begins, as the command is.
    built::program("provost", "provost-cli", ROLE);
    match slow_network(queue, commands) {
        Ok(network) => watched(move || {
            let ran = network.run(|| {
                body(&mut SlowHosts::new());
                Ok(())
            });
            ran.unwrap();
        }),
        Err(error) => provost_skip::error(&error),
    }
}

/// A node that serves, listening by both transports, and one for each of them that calls by it.
struct SlowHosts {
    world: World,
    over_tcp: Node,
    over_datagrams: Node,
    _serving: (Node, Server),
}

impl SlowHosts {
    fn new() -> SlowHosts {
        let mut world = World::new(ROLE);
        let mut serving = world.node("b", &NodeOptions::default());
        let address = serving.address;
        serving.reconfigure(&NodeOptions {
            tables: format!("[[listener]]\ntransport = \"datagram\"\naddress = \"{address}\"\n"),
            ..NodeOptions::default()
        });
        serving.restart();
        let server = world.server(&serving);
        let [over_tcp, over_datagrams] = ["tcp", "datagram"].map(|transport| {
            let tables = format!(
                "[[route]]\nservice = \"probe.Probe\"\ntransport = \"{transport}\"\nendpoints = [\"{address}\"]\n"
            );
            let options = NodeOptions {
                tables,
                ..NodeOptions::default()
            };
            world.node(transport, &options)
        });
        SlowHosts {
            world,
            over_tcp,
            over_datagrams,
            _serving: (serving, server),
        }
    }

    fn agents(&mut self) -> [Agent; 2] {
        [&self.over_tcp, &self.over_datagrams].map(|node| self.world.agent(node))
    }
}

/// Of the packets that the calling node sent, hardly one was sent again: the network loses none.
fn hardly_any_was_sent_again(hosts: &SlowHosts) {
    let status = hosts.over_datagrams.operate(&["status", "--json"]);
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    let packets = |kind: &str| status["packets"][kind].as_u64().unwrap();
    let (sent, again) = (packets("sent"), packets("resent"));
    assert!(
        sent > 0 && again * 10 < sent,
        "{again} of {sent} packets were sent again"
    );
}

fn time(agent: &mut Agent) -> Duration {
    let began = Instant::now();
    agent.succeeds(load());
    began.elapsed()
}

/// Whether this comes true in one attempt of some; says what each was.
fn once<T: std::fmt::Debug>(mut attempt: impl FnMut() -> T, is_good: impl Fn(&T) -> bool) {
    let mut seen = Vec::new();
    for _ in 0..ATTEMPTS {
        let one = attempt();
        if is_good(&one) {
            return;
        }
        seen.push(one);
    }
    panic!("{seen:?}");
}

/// Datagrams take at most half as long again as TCP does.
fn are_as_fast_as_tcp(hosts: &mut SlowHosts) {
    let [mut tcp, mut datagrams] = hosts.agents();
    once(
        || [time(&mut tcp), time(&mut datagrams)],
        |[tcp, datagrams]| *datagrams < *tcp * 3 / 2,
    );
}

#[test]
fn a_network_with_a_short_queue_is_filled_as_by_tcp() {
    through("64k", &[], are_as_fast_as_tcp);
}

#[test]
fn a_network_with_a_long_queue_is_filled_as_by_tcp() {
    through("1m", &[], |hosts| {
        are_as_fast_as_tcp(hosts);
        hardly_any_was_sent_again(hosts);
    });
}

#[test]
fn a_slow_network_that_loses_is_filled_as_by_tcp() {
    through("256k", &[CHAIN[0], CHAIN[1], LOSSES], are_as_fast_as_tcp);
}

#[test]
fn a_slow_network_that_marks_is_filled_as_by_tcp() {
    through("256k", &[CHAIN[0], CHAIN[1], MARKS], are_as_fast_as_tcp);
}

#[test]
fn two_connections_share_a_slow_network() {
    through("1m", &[], |hosts| {
        let [_, mut one] = hosts.agents();
        let [_, mut other] = hosts.agents();
        let attempt = || {
            let alone = time(&mut one);
            let began = Instant::now();
            let tickets = (one.begin(load()), other.begin(load()));
            one.answer(tickets.0);
            let first = began.elapsed();
            other.answer(tickets.1);
            (alone, first, began.elapsed())
        };
        // Whoever of them is done before the other had not much more than its half.
        once(attempt, |(alone, first, both)| {
            *both < *alone * 3 && *first > *alone * 5 / 4
        });
        hardly_any_was_sent_again(hosts);
    });
}
