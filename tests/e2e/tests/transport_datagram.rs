//! Calls over the datagram transport, and connections that go over to it and back while apps call.

mod authority;
mod relay;

use std::net::SocketAddr;

use authority::Authority;
use provost::Code;
use provost_e2e::driver::{Ticket, WAIT_MAX};
use provost_e2e::script::{Answer, Ask, Echo, Fill, Hold, Metadatum, Pour};
use provost_e2e::{Agent, Node, NodeOptions, Server, World, built, eventually, scrape, watched};
use provost_namespaces::Namespace;
use rcgen::CertificateParams;
use relay::Relay;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const ROLE: &str = env!("CARGO_BIN_EXE_e2e-role");
/// What a node says of a connection that has gone over.
const WENT_OVER: &str = "migrated to another transport";

/// Two nodes, of which the one that serves listens by both transports at one port number.
struct Pair {
    world: World,
    a: Node,
    b: Node,
    server: Server,
    /// What the configuration of the client's node has beside its route.
    tables: String,
    /// Where datagrams are sent; to the other node, unless somebody is in between.
    datagrams: SocketAddr,
}

impl Pair {
    fn new(transport: &str) -> Pair {
        Pair::with(transport, "")
    }

    /// With further tables in the configuration of the client's node.
    fn with(transport: &str, tables: &str) -> Pair {
        Pair::of(World::new(ROLE), transport, tables, "")
    }

    /// Two nodes that prove to each other who they are, without which nothing is allowed, and encrypt what they say.
    fn sealed(transport: &str) -> Pair {
        let (world, authority) = (World::new(ROLE), Authority::new());
        let tables = |own: &str, other: &str, side: &str| {
            authority.vouch_for(own, world.directory()) + &only(other, side)
        };
        let (tables_a, tables_b) = (tables("a", "b", "client"), tables("b", "a", "server"));
        Pair::of(world, transport, &tables_a, &tables_b)
    }

    /// With further tables in the configurations of both.
    fn of(mut world: World, transport: &str, tables: &str, tables_b: &str) -> Pair {
        let b = listening(&mut world, "b", tables_b);
        let server = world.server(&b);
        let a = world.node("a", &routed(transport, b.address, tables));
        Pair {
            world,
            a,
            datagrams: b.address,
            b,
            server,
            tables: tables.to_owned(),
        }
    }

    /// Has the client's node reach the other one by this transport from now on.
    fn go_over(&mut self, transport: &str) {
        let before = self.a.program.log().matches(WENT_OVER).count();
        let endpoint = match transport {
            "datagram" => self.datagrams,
            _ => self.b.address,
        };
        self.a.reconfigure(&routed(transport, endpoint, &self.tables));
        // The process that serves now, which after a replacement is not the one that was started.
        let serving = Pid::from_raw(self.a.process() as i32).unwrap();
        kill_process(serving, Signal::HUP).unwrap();
        let program = &self.a.program;
        eventually("a connection goes over", WAIT_MAX, || {
            program.log().matches(WENT_OVER).count() > before
        });
    }
}

/// A policy that refuses all calls of connections whose peer has not proved to be this node.
fn only(peer: &str, side: &str) -> String {
    format!(
        "[[policy]]\nname = \"acl\"\nkind = \"access\"\nside = \"{side}\"\n[policy.config]\ndefault = \"deny\"\n\
         [[policy.config.rule]]\nname = \"known\"\nwhen = \"peer.identity == 'spiffe://test/{peer}'\"\n\
         action = \"allow\"\n"
    )
}

/// A node that listens by both transports at one port number.
fn listening(world: &mut World, name: &str, tables: &str) -> Node {
    let mut node = world.node(name, &NodeOptions::default());
    let address = node.address;
    node.reconfigure(&NodeOptions {
        tables: format!("{tables}[[listener]]\ntransport = \"datagram\"\naddress = \"{address}\"\n"),
        ..NodeOptions::default()
    });
    node.restart();
    node
}

fn routed(transport: &str, endpoint: SocketAddr, tables: &str) -> NodeOptions {
    NodeOptions {
        tables: format!(
            "{tables}[[route]]\nservice = \"probe.Probe\"\ntransport = \"{transport}\"\nendpoints = [\"{endpoint}\"]\n",
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
fn connections_that_go_over_stay_spread_over_the_endpoints() {
    built::program("provost", "provost-cli", ROLE);
    watched(|| {
        const CONNECTIONS: usize = 4;
        let mut world = World::new(ROLE);
        let servers = ["b", "c"].map(|name| listening(&mut world, name, ""));
        let _servers = servers.each_ref().map(|node| world.server(node));
        let [b, c] = servers.each_ref().map(|node| node.address);
        let routed = |transport: &str| NodeOptions {
            tables: format!(
                "[[route]]\nservice = \"probe.Probe\"\ntransport = \"{transport}\"\nendpoints = [\"{b}\", \"{c}\"]\n"
            ),
            ..NodeOptions::default()
        };
        let mut a = world.node("a", &routed("tcp"));
        let mut agents: Vec<Agent> = (0..CONNECTIONS).map(|_| world.agent(&a)).collect();
        agents.iter_mut().for_each(Agent::calls_well);
        let served_by = |transport: &str| {
            servers.each_ref().map(|node| {
                let paths = told(node, &["datapath"])["datapaths"].clone();
                let paths = paths.as_array().into_iter().flatten();
                paths.filter(|path| path["transport"] == transport).count()
            })
        };
        assert_eq!(served_by("tcp"), [CONNECTIONS / 2; 2]);
        a.reconfigure(&routed("datagram"));
        a.operate(&["config", "reload"]);
        eventually("all connections go over", WAIT_MAX, || {
            served_by("datagram").iter().sum::<usize>() == CONNECTIONS
        });
        assert_eq!(served_by("datagram"), [CONNECTIONS / 2; 2]);
        agents.iter_mut().for_each(Agent::calls_well);
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
fn sealed_connections_go_over_and_back_and_nobody_hears_or_disturbs_them() {
    watched(|| {
        let mut pair = Pair::sealed("tcp");
        let relay = Relay::to(pair.b.address);
        pair.datagrams = relay.address;
        let mut agent = pair.world.agent(&pair.a);
        let (service, canary) = ("probe.Probe", "a canary in clear text");
        let sings = || {
            Ask::Mirror(vec![Metadatum {
                key: "song-bin".to_owned(),
                value: canary.as_bytes().to_vec(),
            }])
        };
        let asks = load();
        let tickets = begin(&mut agent, &asks);
        pair.go_over("datagram");
        agent.succeeds(sings());
        println!("{:?}", pair.b.replace());
        println!("{:?}", pair.a.replace());
        agent.succeeds(sings());
        pair.go_over("tcp");
        pair.go_over("datagram");
        agent.succeeds(sings());
        end(&mut agent, tickets, &asks);
        let packets = relay.packets();
        assert!(packets > 1_000, "{packets} packets went by");
        assert!(!relay.has_heard(service) && !relay.has_heard(canary));
        // What is not sealed, the same ear hears.
        let mut plain = Pair::new("tcp");
        let relay = Relay::to(plain.b.address);
        plain.datagrams = relay.address;
        let mut agent = plain.world.agent(&plain.a);
        plain.go_over("datagram");
        agent.succeeds(sings());
        assert!(relay.has_heard(service) && relay.has_heard(canary));
    });
}

#[test]
fn a_peer_that_starts_again_is_found_again() {
    is_found_again(|| Pair::new("datagram"));
}

#[test]
fn a_sealed_peer_that_starts_again_is_found_again() {
    is_found_again(|| Pair::sealed("datagram"));
}

fn is_found_again(pair: impl FnOnce() -> Pair + Send + 'static) {
    watched(|| {
        let mut pair = pair();
        let mut agent = pair.world.agent(&pair.a);
        agent.calls_well();
        drop(pair.server);
        pair.b.restart();
        let _server = pair.world.server(&pair.b);
        let mut codes = Vec::new();
        eventually("calls are answered again", WAIT_MAX, || {
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

/// Runs a test in a network of its own, whose loopback interface loses so many UDP packets of a thousand.
fn losing(lost_per_mille: u32, body: impl FnOnce(&Namespace) + Send + 'static) {
    let lossy = || {
        let network = Namespace::new()?;
        network.command("nft add table inet lossy")?;
        network.command("nft add chain inet lossy input { type filter hook input priority 0 ; }")?;
        network.command(&format!(
            "nft add rule inet lossy input meta l4proto udp numgen random mod 1000 < {lost_per_mille} counter drop"
        ))?;
        Ok::<Namespace, std::io::Error>(network)
    };
    let network = match lossy() {
        Ok(network) => network,
        Err(error) => return provost_skip::error(&error),
    };
    watched(move || {
        let ran = network.run(|| {
            body(&network);
            Ok(())
        });
        ran.unwrap();
    });
}

/// What `provost` says of a node, with `--json`.
fn told(node: &Node, arguments: &[&str]) -> Value {
    let text = node.operate(&[arguments, &["--json"]].concat());
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// The transport of the client's connection, and the kinds of its engines.
fn carried(a: &Node) -> (String, Vec<String>) {
    let path = told(a, &["datapath"])["datapaths"][0].clone();
    let kinds = path["engines"].as_array().into_iter().flatten();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let kinds = kinds.map(|engine| text(&engine["kind"])).collect();
    (text(&path["transport"]), kinds)
}

/// Packets that a node has counted, of one kind.
fn packets(node: &Node, kind: &str) -> u64 {
    told(node, &["status"])["packets"][kind].as_u64().unwrap_or(0)
}

fn packets_resent(a: &Node) -> u64 {
    packets(a, "resent")
}

#[test]
fn losses_replacements_and_going_over_are_nothing_that_apps_notice() {
    built::program("provost", "provost-cli", ROLE);
    losing(20, |network| {
        let mut pair = Pair::new("datagram");
        let mut agent = pair.world.agent(&pair.a);
        let asks = [
            Ask::Echo(Echo {
                calls: 400,
                in_flight: 8,
                ..Echo::default()
            }),
            Ask::Echo(Echo {
                bytes: 4 << 20,
                calls: 2,
                ..Echo::default()
            }),
            Ask::Pour(Pour {
                key: "pour".to_owned(),
                messages: 2_000,
                bytes: 500,
                ..Pour::default()
            }),
            Ask::Fill(Fill {
                messages: 1_000,
                bytes: 2_000,
                ..Fill::default()
            }),
            Ask::Chat {
                messages: 100,
                bytes: 5_000,
            },
        ];
        let tickets = begin(&mut agent, &asks);
        println!("{:?}", pair.a.replace());
        println!("{:?}", pair.b.replace());
        end(&mut agent, tickets, &asks);
        let resent = packets_resent(&pair.a);
        assert!(resent > 0, "no packet was sent again");
        // Each kind apart: what came twice came to the server's node, of what was sent again here; and nothing is asked for there.
        assert!(packets(&pair.a, "probes") < packets(&pair.a, "sent"));
        assert!(packets(&pair.b, "duplicates") > 0, "nothing came twice");
        assert_eq!((packets_resent(&pair.b), packets(&pair.b, "probes")), (0, 0));
        let tickets = begin(&mut agent, &asks);
        pair.a.replace();
        assert!(packets_resent(&pair.a) >= resent, "the new process counts anew");
        pair.go_over("tcp");
        pair.go_over("datagram");
        end(&mut agent, tickets, &asks);
        let rules = network.command("nft list chain inet lossy input").unwrap();
        assert!(!rules.contains("packets 0 "), "nothing was lost: {rules}");
    });
}

#[test]
fn policies_hold_for_calls_over_datagrams_and_through_replacements() {
    built::program("provost", "provost-cli", ROLE);
    watched(|| {
        // In the file of node a, as the reload by which it goes over leaves it no others. Its own engine, on the client's
        // side, has to learn of the other transport.
        let rule = "[[policy]]\nname = \"acl\"\nkind = \"access\"\nside = \"client\"\n\
                    [policy.config]\ndefault = \"allow\"\n[[policy.config.rule]]\nname = \"no-datagrams\"\n\
                    methods = [\"/probe.Probe/Mirror\"]\nwhen = \"peer.transport == 'datagram'\"\naction = \"deny\"\n";
        let mut pair = Pair::with("tcp", rule);
        let mut agent = pair.world.agent(&pair.a);
        agent.succeeds(Ask::Mirror(Vec::new()));
        pair.go_over("datagram");
        assert_eq!(agent.fails(Ask::Mirror(Vec::new())).code, Code::PermissionDenied);

        let limit = ["policy", "attach", "--kind", "rate-limit", "--method", "Echo"];
        let bucket = ["--set", "requests_per_second=0.01", "--set", "burst=5"];
        pair.b.operate(&[&limit[..], &bucket[..]].concat());
        for _ in 0..3 {
            agent.calls_well();
        }
        pair.a.replace();
        pair.b.replace();
        for _ in 0..2 {
            agent.calls_well();
        }
        assert_eq!(
            agent.fails(Ask::Echo(Echo::default())).code,
            Code::ResourceExhausted
        );
        assert_eq!(agent.fails(Ask::Mirror(Vec::new())).code, Code::PermissionDenied);
        pair.go_over("tcp");
        agent.succeeds(Ask::Mirror(Vec::new()));
        assert_eq!(
            agent.fails(Ask::Echo(Echo::default())).code,
            Code::ResourceExhausted
        );
    });
}

#[test]
fn calls_to_a_peer_that_dies_or_falls_silent_end() {
    watched(|| {
        for signal in [Signal::KILL, Signal::STOP] {
            let timeouts = "[timeouts]\nkeepalive_interval_ms = 300\nkeepalive_timeout_ms = 300\n";
            let mut pair = Pair::with("datagram", timeouts);
            let mut agent = pair.world.agent(&pair.a);
            let hold = agent.begin(Ask::Hold(Hold {
                key: "held".to_owned(),
                milliseconds: 600_000,
                ..Hold::default()
            }));
            agent.calls_well();
            pair.b.program.signal(signal);
            assert_eq!(agent.failure(hold).code, Code::Unavailable, "{signal:?}");
        }
    });
}

#[test]
fn an_operator_switches_the_transport_and_sees_what_came_of_it() {
    built::program("provost", "provost-cli", ROLE);
    watched(|| {
        let directory = tempfile::tempdir().unwrap();
        let metrics = directory.path().join("metrics.sock");
        let tables = format!("[observe]\nlisten = \"unix:{}\"\n", metrics.display());
        let mut pair = Pair::with("tcp", &tables);
        let mut agent = pair.world.agent(&pair.a);
        agent.calls_well();
        assert_eq!(carried(&pair.a).0, "tcp");
        pair.a
            .reconfigure(&routed("datagram", pair.b.address, &pair.tables));
        let diff = pair.a.operate(&["config", "diff"]);
        let route = "route.probe.Probe.transport\n- \"tcp\"\n+ \"datagram\"";
        assert!(diff.contains(route), "{diff}");
        pair.a.operate(&["config", "reload"]);
        eventually("the connection is carried by datagrams", WAIT_MAX, || {
            let (transport, kinds) = carried(&pair.a);
            transport == "datagram" && kinds.last().is_some_and(|kind| kind == "transport-datagram")
        });
        agent.calls_well();
        let path = told(&pair.a, &["datapath"])["datapaths"][0].clone();
        assert!(path["packets"]["round_trip_us"].as_f64().unwrap() > 0.0, "{path}");
        let node = &told(&pair.a, &["status"])["packets"];
        assert!(
            node["sent"].as_u64() > Some(0) && node["round_trip_us"].is_null(),
            "{node}"
        );
        assert_eq!(path["stays_because"], "", "{path}");
        let engines = told(&pair.a, &["engine", "list"]);
        let engines = engines["engines"].as_array().unwrap();
        let datagram = engines
            .iter()
            .find(|engine| engine["kind"] == "transport-datagram");
        assert_eq!(datagram.unwrap()["datapaths"], 1);
        let page = scrape::metrics(&metrics);
        for packets in ["sent", "received"] {
            let name = format!("provost_datagram_packets_{packets}_total");
            assert!(
                scrape::value(&page, &name, &[]).is_some_and(|count| count > 0.0),
                "{page}"
            );
        }
        let round_trip_s = scrape::value(&page, "provost_datagram_round_trip_seconds", &[]);
        assert!(round_trip_s.is_some_and(|seconds| seconds > 0.0), "{page}");
    });
}

#[test]
fn a_connection_whose_peer_offers_no_datagrams_stays_and_the_operator_is_told_why() {
    built::program("provost", "provost-cli", ROLE);
    watched(|| {
        let mut world = World::new(ROLE);
        let b = world.node("b", &NodeOptions::default());
        let _server = world.server(&b);
        let mut a = world.node("a", &routed("tcp", b.address, ""));
        let mut agent = world.agent(&a);
        a.reconfigure(&routed("datagram", b.address, ""));
        a.operate(&["config", "reload"]);
        eventually("the operator is told", WAIT_MAX, || {
            let told = a.operate(&["datapath"]);
            told.contains("stays with tcp") && told.contains("listener with transport = \"datagram\"")
        });
        assert_eq!(carried(&a).0, "tcp");
        agent.calls_well();
        // Who takes it back is told nothing any more.
        a.reconfigure(&routed("tcp", b.address, ""));
        a.operate(&["config", "reload"]);
        eventually("nothing is left to tell", WAIT_MAX, || {
            !a.operate(&["datapath"]).contains("stays")
        });
    });
}

#[test]
fn an_encrypted_connection_stays_where_it_is_if_the_other_way_is_not_encrypted() {
    built::program("provost", "provost-cli", ROLE);
    watched(|| {
        let (mut world, authority) = (World::new(ROLE), Authority::new());
        let [own, tables_b, tables_c] =
            ["a", "b", "c"].map(|node| authority.vouch_for(node, world.directory()));
        let b = listening(&mut world, "b", &tables_b);
        let _server = world.server(&b);
        let plain = listening(&mut world, "plain", "");
        let elsewhere = format!("{tables_c}allow_peers = [\"spiffe://test/somebody-else\"]\n");
        let closed = listening(&mut world, "closed", &elsewhere);
        let mut a = world.node("a", &routed("tcp", b.address, &own));
        let mut agent = world.agent(&a);
        for (there, why) in [
            (&plain, "does not speak TLS"),
            (&closed, "is not among tls.allow_peers"),
        ] {
            a.reconfigure(&routed("datagram", there.address, &own));
            a.operate(&["config", "reload"]);
            eventually(why, WAIT_MAX, || a.operate(&["datapath"]).contains(why));
            assert_eq!(carried(&a).0, "tcp");
            agent.calls_well();
            // Connections go where their route says only from where it said before.
            a.reconfigure(&routed("tcp", b.address, &own));
            a.operate(&["config", "reload"]);
        }
    });
}

#[test]
fn a_server_that_names_a_workload_only_is_known_by_its_identity() {
    watched(|| {
        let (mut world, authority) = (World::new(ROLE), Authority::new());
        let [own, tables_b] = ["a", "b"]
            .map(|node| authority.certify(node, node, CertificateParams::default(), world.directory()));
        let b = listening(&mut world, "b", &tables_b);
        let _server = world.server(&b);
        let tables = format!("{own}server_identities = [\"spiffe://test/b\"]\n");
        let a = world.node("a", &routed("datagram", b.address, &tables));
        world.agent(&a).calls_well();
    });
}
