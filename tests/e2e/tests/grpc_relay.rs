//! An unmodified gRPC server behind the second of two nodes: clients call the first one, which calls the other by the native
//! protocol.

#[allow(dead_code, reason = "these tests use a part of it")]
mod authority;
mod grpc_client;
#[path = "grpc_out/tonic_probe.rs"]
mod tonic_probe;

use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use authority::Authority;
use grpc_client::traffic::SteadyTraffic;
use grpc_client::{GrpcProbe, HoldReply, HoldRequest, PourRequest, place, run, spawn, tcp_listener};
use provost_e2e::driver::WAIT_MAX;
use provost_e2e::script::{Ask, Echo, Fill, Hold, Metadatum, Pour, Reading, StatusParts};
use provost_e2e::successor::Fault;
use provost_e2e::{Node, NodeOptions, World, built, eventually, watched};
use rustix::process::{Pid, Signal, kill_process};
use tonic::Code;
use tonic_probe::TonicServer;

const ROLE: &str = env!("CARGO_BIN_EXE_e2e-role");
const PROTO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/proto/probe.proto");
/// How often each node is replaced.
const REPLACEMENTS: usize = 2;
const EXPORTED: &str = "export = true\napp = \"front\"\n";

/// Node a, which clients call, node b, and a tonic server that b reaches.
struct RelaySetting {
    a: Node,
    b: Node,
    server: TonicServer,
    world: World,
}

fn route(transport: &str, endpoint: impl std::fmt::Display, more: &str) -> String {
    format!(
        "[[route]]\nservice = \"probe.Probe\"\ntransport = \"{transport}\"\nendpoints = [\"{endpoint}\"]\n{more}"
    )
}

fn options(tables: String) -> NodeOptions {
    NodeOptions {
        tables,
        ..NodeOptions::default()
    }
}

impl RelaySetting {
    fn over(transport: &str) -> RelaySetting {
        RelaySetting::with(transport, EXPORTED)
    }

    fn with(transport: &str, export: &str) -> RelaySetting {
        let world = World::new(ROLE);
        let server = TonicServer::start();
        let tables = [String::new(), route("grpc", server.address, export)];
        RelaySetting::between(world, transport, server, tables)
    }

    /// Nodes that prove to each other who they are. The server is at a Unix socket of the second one's host.
    fn within_tls(transport: &str) -> RelaySetting {
        let world = World::new(ROLE);
        let authority = Authority::new();
        let [a, b] = ["a", "b"].map(|node| authority.vouch_for(node, world.directory()));
        let socket = world.directory().join("server.sock");
        let server = TonicServer::at_unix(UnixListener::bind(&socket).unwrap());
        let b = route("grpc", format_args!("unix:{}", socket.display()), EXPORTED) + &b;
        RelaySetting::between(world, transport, server, [a, b])
    }

    /// With tables of node a beside its listener and its route, and all those of node b.
    fn between(
        mut world: World,
        transport: &str,
        server: TonicServer,
        [more_a, tables]: [String; 2],
    ) -> RelaySetting {
        let mut b = world.node("b", &options(tables.clone()));
        if transport == "datagram" {
            // At the same port.
            let listener = format!(
                "[[listener]]\ntransport = \"datagram\"\naddress = \"{}\"\n",
                b.address
            );
            b.reconfigure(&options(tables + &listener));
            b.restart();
        }
        let tables = tcp_listener("web", "web") + &route(transport, b.address, &more_a);
        let a = world.node("a", &options(tables));
        for node in [&a, &b] {
            node.operate(&["schema", "prefetch", PROTO]);
        }
        RelaySetting { a, b, server, world }
    }

    fn probe(&self) -> GrpcProbe {
        GrpcProbe::at(&place(&self.a, "web"))
    }
}

/// Runs a test's body within a limit. Whatever has to be built is built before.
fn tested(body: impl FnOnce() + Send + 'static) {
    built::program("provost", "provost-cli", ROLE);
    watched(body);
}

fn reload(node: &Node) {
    kill_process(Pid::from_raw(node.process() as i32).unwrap(), Signal::HUP).unwrap();
}

fn held(key: &str, milliseconds: u32) -> HoldRequest {
    HoldRequest {
        key: key.to_owned(),
        milliseconds,
    }
}

#[test]
fn calls_of_all_kinds_pass_two_nodes_over_tcp() {
    tested(|| {
        let setting = RelaySetting::over("tcp");
        let probe = setting.probe();
        run(probe.calls_of_all_kinds());
        let listed = setting.b.operate(&["datapath", "--service", "probe.Probe"]);
        assert!(
            listed.contains("tcp/protobuf") && listed.contains("grpc/protobuf"),
            "{listed}"
        );
        let apps = setting.b.operate(&["apps"]);
        assert!(
            apps.contains("front") && apps.contains("node at 127.0.0.1"),
            "{apps}"
        );
    });
}

#[test]
fn calls_of_all_kinds_pass_two_nodes_over_datagrams() {
    tested(|| {
        let setting = RelaySetting::over("datagram");
        let probe = setting.probe();
        run(probe.calls_of_all_kinds());
        let listed = setting.b.operate(&["datapath", "--service", "probe.Probe"]);
        assert!(listed.contains("datagram/protobuf"), "{listed}");
    });
}

#[test]
fn apps_of_one_node_call_a_grpc_server_behind_another() {
    tested(|| {
        let mut setting = RelaySetting::over("tcp");
        let mut agent = setting.world.agent(&setting.a);
        for bytes in [0, 1, 65_536, 1_000_003, 8 << 20] {
            agent.succeeds(Ask::Echo(Echo {
                bytes,
                calls: 2,
                ..Echo::default()
            }));
        }
        agent.succeeds(Ask::Echo(Echo {
            calls: 500,
            in_flight: 20,
            ..Echo::default()
        }));
        let poured = agent.succeeds(Ask::Pour(Pour {
            messages: 300,
            bytes: 20_000,
            ..Pour::default()
        }));
        assert_eq!((poured.count, poured.bytes), (300, 6_000_000));
        let filled = agent.succeeds(Ask::Fill(Fill {
            messages: 300,
            bytes: 20_000,
            ..Fill::default()
        }));
        assert_eq!((filled.count, filled.bytes), (300, 6_000_000));
        let chatted = agent.succeeds(Ask::Chat {
            messages: 50,
            bytes: 5_000,
        });
        assert_eq!(chatted.count, 50);
        let parts = StatusParts {
            code: 9,
            message: "naïve “message” and 100%".to_owned(),
            details: vec![0, 1, 254, 255],
        };
        assert_eq!(agent.fails(Ask::Fail(parts.clone())), parts.into());
        let sent = Metadatum {
            key: "trace-bin".to_owned(),
            value: vec![0, 10, 255],
        };
        let mirrored = agent.succeeds(Ask::Mirror(vec![sent.clone()]));
        assert!(mirrored.initial.contains(&sent), "{:?}", mirrored.initial);
        // Deadlines, and calls and streams that are given up, end at the server.
        let failure = agent.fails(Ask::Hold(Hold {
            key: "late".to_owned(),
            milliseconds: 600_000,
            timeout_ms: Some(200),
            ..Hold::default()
        }));
        assert_eq!(failure.code, provost::Code::DeadlineExceeded, "{failure:?}");
        agent.succeeds(Ask::Pour(Pour {
            key: "poured".to_owned(),
            messages: 1_000_000,
            bytes: 1_000,
            reading: Reading::Dropping(10),
            ..Pour::default()
        }));
        for key in ["late", "poured"] {
            eventually("the handler has ended", WAIT_MAX, || {
                let key = key.to_owned();
                agent.succeeds(Ask::Counts { key }).cancelled == 1
            });
        }
    });
}

#[test]
fn policies_of_either_node_judge_by_fields_and_once() {
    tested(|| {
        let setting = RelaySetting::over("tcp");
        let probe = setting.probe();
        let rules = setting.world.directory().join("acl.toml");
        let deny = "default = \"allow\"\n[[rule]]\nname = \"secrets\"\naction = \"deny\"\nwhen = 'request.text == \"secret\"'\n";
        std::fs::write(&rules, deny).unwrap();
        let rules = rules.to_str().unwrap();
        let attach = [
            "policy", "attach", "--kind", "access", "--config", rules, "--method", "Echo",
        ];
        for (node, app) in [(&setting.a, "web"), (&setting.b, "front")] {
            assert_eq!(run(probe.echo("secret")).unwrap(), "secret");
            node.operate(&[&attach[..], &["--app", app]].concat());
            assert_eq!(run(probe.echo("open")).unwrap(), "open");
            assert_eq!(
                run(probe.echo("secret")).unwrap_err().code(),
                Code::PermissionDenied
            );
            let listed = node.operate(&["datapath", "--service", "probe.Probe"]);
            assert_eq!(listed.matches("access").count(), 1, "{listed}");
            node.operate(&["policy", "detach", "access"]);
        }
        // A call counts once, though it leaves node b again.
        let limit =
            "policy attach --kind rate-limit --app front --set requests_per_second=0.01 --set burst=6";
        setting.b.operate(&limit.split(' ').collect::<Vec<_>>());
        for _ in 0..6 {
            run(probe.echo("counted")).unwrap();
        }
        assert_eq!(
            run(probe.echo("counted")).unwrap_err().code(),
            Code::ResourceExhausted
        );
    });
}

#[test]
fn a_tap_at_the_second_node_sees_the_calls() {
    tested(|| {
        let setting = RelaySetting::over("tcp");
        let probe = setting.probe();
        setting.b.operate(&["policy", "attach", "--kind", "tap"]);
        let reader = Command::new(built::program("provost", "provost-cli", ROLE))
            .args(["tap", "-n", "2", "--json"])
            .env("PROVOST_ADMIN_SOCKET", &setting.b.admin_socket)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let calling = spawn(async move {
            while !over.load(Ordering::Relaxed) {
                probe.echo("seen by the tap").await.unwrap();
            }
        });
        let output = reader.wait_with_output().unwrap();
        is_over.store(true, Ordering::Relaxed);
        run(calling).unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            text.contains("front") && text.contains("/probe.Probe/Echo"),
            "{text}"
        );
    });
}

#[test]
fn what_is_not_exported_is_refused() {
    tested(|| {
        let mut setting = RelaySetting::with("tcp", "");
        let probe = setting.probe();
        let refused = run(probe.echo("any")).unwrap_err();
        assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
        assert!(refused.message().contains("no exported"), "{refused:?}");
        // Node b's own apps call it all the same.
        let mut agent = setting.world.agent(&setting.b);
        agent.calls_well();
        // A reload exports it, and takes that back.
        let server = setting.server.address;
        setting.b.reconfigure(&options(route("grpc", server, EXPORTED)));
        reload(&setting.b);
        eventually("calls pass", WAIT_MAX, || run(probe.echo("any")).is_ok());
        setting.b.reconfigure(&options(route("grpc", server, "")));
        reload(&setting.b);
        let mut refused = None;
        eventually("calls pass no more", WAIT_MAX, || {
            refused = run(probe.echo("any")).err();
            refused.is_some()
        });
        assert_eq!(refused.unwrap().code(), Code::Unavailable);
        eventually("nothing is left of it", WAIT_MAX, || {
            !setting.b.operate(&["apps"]).contains("front")
        });
    });
}

#[test]
fn a_server_that_is_down_is_reached_when_it_is_back() {
    tested(|| {
        let setting = RelaySetting::over("tcp");
        let probe = setting.probe();
        run(probe.echo("there")).unwrap();
        let RelaySetting {
            a: _a,
            b: _b,
            server,
            world: _world,
        } = setting;
        let address = server.address;
        server.ended();
        let mut refused = None;
        eventually("the server is missed", WAIT_MAX, || {
            refused = run(probe.echo("gone")).err();
            refused.is_some()
        });
        let refused = refused.unwrap();
        assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
        let again = TonicServer::at(address);
        eventually("the server is called again", WAIT_MAX, || {
            run(probe.echo("back")).is_ok()
        });
        drop(again);
    });
}

#[test]
fn what_a_client_does_not_read_is_bounded_at_both_nodes() {
    tested(|| {
        let setting = RelaySetting::over("tcp");
        let probe = setting.probe();
        run(probe.echo("begin")).unwrap();
        let before = [&setting.a, &setting.b].map(|node| node.usage().resident_bytes);
        run(async {
            let request = PourRequest {
                key: "unread".to_owned(),
                count: 20_000,
                bytes: 50_000,
                ..PourRequest::default()
            };
            let pour = probe.server_streaming::<_, grpc_client::DripMessage>("Pour", request);
            let mut pour = pour.await.unwrap();
            pour.message().await.unwrap();
            // Others are served meanwhile, again and again, so that time passes in which more could have come.
            for _ in 0..200 {
                probe.echo("beside").await.unwrap();
            }
            let nodes = [&setting.a, &setting.b].into_iter().zip(before);
            for (node, before) in nodes {
                let grown = node.usage().resident_bytes.saturating_sub(before);
                assert!(grown < 64 << 20, "{grown}");
            }
        });
    });
}

/// Hot restarts of each node in turn, and some that fail.
fn replaced_in_turn(setting: &mut RelaySetting) {
    let traffic = SteadyTraffic::begin(&setting.probe(), "relayed");
    for fault in [
        Fault::EndsAtTheState,
        Fault::EndsAmongParties,
        Fault::DeclinesAmongParties,
        Fault::EndsBeforeTheCommit,
    ] {
        setting.b.set_faulty_successor(fault);
        println!("{}", setting.b.try_replace().expect_err("it fails"));
        traffic.go_on();
    }
    setting.b.set_successor(None);
    for _ in 0..REPLACEMENTS {
        println!("b: {:?}", setting.b.replace());
        traffic.go_on();
        println!("a: {:?}", setting.a.replace());
        traffic.go_on();
    }
    let apps = setting.b.operate(&["apps"]);
    assert_eq!(apps.matches("node at 127.0.0.1").count(), 1, "{apps}");
    traffic.end();
    let log = setting.a.program.log();
    let connected = log.matches("agreed with a peer").count();
    assert_eq!(connected, 1, "the first node has connected again: {log}");
}

#[test]
fn hot_restarts_of_either_node_keep_calls_and_streams_over_tcp() {
    tested(|| replaced_in_turn(&mut RelaySetting::over("tcp")));
}

#[test]
fn hot_restarts_of_either_node_keep_calls_and_streams_over_datagrams() {
    tested(|| replaced_in_turn(&mut RelaySetting::over("datagram")));
}

/// As above, and each node knows the other one by its certificate.
fn replaced_in_turn_within_tls(transport: &str) {
    let mut setting = RelaySetting::within_tls(transport);
    replaced_in_turn(&mut setting);
    for (node, other) in [(&setting.a, "b"), (&setting.b, "a")] {
        let identity = format!("identity=\"spiffe://test/{other}\"");
        let log = node.program.log();
        assert!(log.contains(&identity), "{identity} is not in {log}");
    }
}

#[test]
fn hot_restarts_of_either_node_keep_calls_and_streams_over_tcp_within_tls() {
    tested(|| replaced_in_turn_within_tls("tcp"));
}

#[test]
fn hot_restarts_of_either_node_keep_calls_and_streams_over_datagrams_within_tls() {
    tested(|| replaced_in_turn_within_tls("datagram"));
}

/// A table of an app with a bound of its connections.
fn bounded(app: &str, connections: u32) -> String {
    format!(
        "[[app]]\nname = \"{app}\"\nconnections = {connections}\nmay_bind = [\"*\"]\nmay_connect = [\"*\"]\n"
    )
}

/// Why the next call ends that has to wait for another connection.
fn refused_for_want_of_connections(probe: &GrpcProbe) {
    let refused = run(probe.echo("one more")).unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
    assert!(
        refused.message().contains("connections = 1 of its [[app]]"),
        "{refused:?}"
    );
}

#[test]
fn bounds_of_connections_hold_for_relays_and_clients_that_a_hot_restart_carries() {
    tested(|| {
        let mut setting = RelaySetting::over("tcp");
        let probe = setting.probe();
        run(probe.echo("carried")).unwrap();
        let other = probe.of_service("probe.Other");

        // The new process of each node has a bound that its apps have reached already.
        let at_b = route("grpc", setting.server.address, EXPORTED) + &bounded("front", 1);
        setting.b.reconfigure(&options(at_b));
        println!("b: {:?}", setting.b.replace());
        let to_b = route("tcp", setting.b.address, "");
        let to_other = to_b.replace("probe.Probe", "probe.Other");
        let at_a = tcp_listener("web", "web") + &to_b + &to_other + &bounded("web", 1);
        setting.a.reconfigure(&options(at_a));
        println!("a: {:?}", setting.a.replace());
        run(probe.echo("goes on")).unwrap();

        refused_for_want_of_connections(&other);
        let address = setting.server.address;
        let RelaySetting {
            mut a,
            b: _b,
            server,
            world: _world,
        } = setting;
        server.ended();
        let _again = TonicServer::at(address);
        let mut refused = None;
        eventually("the relay wants another connection", WAIT_MAX, || {
            refused = run(probe.echo("one more")).err();
            refused
                .as_ref()
                .is_some_and(|status| status.code() == Code::ResourceExhausted)
        });
        refused_for_want_of_connections(&probe);

        // A table that is gone bounds nothing: what is refused now is that node b does not know the service.
        a.reconfigure(&options(tcp_listener("web", "web") + &to_b + &to_other));
        reload(&a);
        eventually("the bound is gone", WAIT_MAX, || {
            run(other.echo("any")).unwrap_err().code() != Code::ResourceExhausted
        });
    });
}

#[test]
fn one_node_leaves_others_some_of_the_calls_that_are_passed_on() {
    tested(|| {
        let mut world = World::new(ROLE);
        let authority = Authority::new();
        let socket = world.directory().join("server.sock");
        let _server = TonicServer::at_unix(UnixListener::bind(&socket).unwrap());
        let at_b = route("grpc", format_args!("unix:{}", socket.display()), EXPORTED)
            + &bounded("front", 16).replace("connections =", "attachments =")
            + &authority.vouch_for("b", world.directory());
        let b = world.node("b", &options(at_b));
        b.operate(&["schema", "prefetch", PROTO]);
        let mut calling = |name: &str| {
            let tables = tcp_listener("web", "web")
                + &route("tcp", b.address, "")
                + &authority.vouch_for(name, world.directory());
            let node = world.node(name, &options(tables));
            node.operate(&["schema", "prefetch", PROTO]);
            node
        };
        let (a, c) = (calling("a"), calling("c"));
        let probe = |node: &Node| GrpcProbe::at(&place(node, "web"));
        let of_a: Vec<GrpcProbe> = (0..10).map(|_| probe(&a)).collect();
        for probe in &of_a {
            run(probe.echo("one of ten")).unwrap();
        }
        let refused = run(probe(&a).echo("one more")).unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
        assert!(
            refused.message().contains("the peer has 10 of the 16"),
            "{refused:?}"
        );
        run(probe(&c).echo("another node's")).unwrap();
    });
}

#[test]
fn the_second_node_shuts_down_when_calls_have_ended() {
    tested(|| {
        let mut setting = RelaySetting::over("tcp");
        let probe = setting.probe();
        let caller = probe.clone();
        let short = spawn(async move { caller.unary::<_, HoldReply>("Hold", held("short", 700)).await });
        eventually("the call is at the server", WAIT_MAX, || {
            run(probe.counts("short")).begun == 1
        });
        let process = Pid::from_raw(setting.b.process() as i32).unwrap();
        kill_process(process, Signal::TERM).unwrap();
        run(short).unwrap().unwrap();
        assert!(setting.b.program.ends_within(WAIT_MAX).is_some());
    });
}
