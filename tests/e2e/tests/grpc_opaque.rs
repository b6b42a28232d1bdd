//! Services of which no node has a schema: calls pass as the bytes that they are, and policies see what is beside them.

mod grpc_client;
#[path = "grpc_out/tonic_probe.rs"]
mod tonic_probe;

use std::net::SocketAddr;

use grpc_client::traffic::{CountingProxy, SteadyTraffic};
use grpc_client::{EchoMessage, GrpcProbe, NoContent, place, run, tcp_listener};
use provost_e2e::driver::WAIT_MAX;
use provost_e2e::script::{Ask, Echo, Fill, Pour};
use provost_e2e::{Node, NodeOptions, World, built, eventually, watched};
use tonic::{Code, Request};
use tonic_probe::TonicServer;
use tonic_probe::tonic_reflection::ReflectionManners;

const ROLE: &str = env!("CARGO_BIN_EXE_e2e-role");
const PROTO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/proto/probe.proto");
/// As `PROTO`, with a method more than servers have.
const LARGER_PROTO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/schemas/larger/probe.proto");
const EXPORTED: &str = "export = true\napp = \"front\"\n";

fn route(service: &str, transport: &str, endpoint: &str, more: &str) -> String {
    format!(
        "[[route]]\nservice = \"{service}\"\ntransport = \"{transport}\"\nendpoints = [\"{endpoint}\"]\n{more}"
    )
}

fn options(tables: String) -> NodeOptions {
    NodeOptions {
        tables,
        ..NodeOptions::default()
    }
}

/// A node through which clients call a tonic server whose schema it does not know.
struct OpaqueSetting {
    node: Node,
    world: World,
    server: TonicServer,
}

impl OpaqueSetting {
    fn new() -> OpaqueSetting {
        let server = TonicServer::start();
        let endpoint = server.address.to_string();
        OpaqueSetting::leading_to(&endpoint, server)
    }

    fn leading_to(endpoint: &str, server: TonicServer) -> OpaqueSetting {
        OpaqueSetting::with_route(endpoint, "", server)
    }

    fn with_route(endpoint: &str, more: &str, server: TonicServer) -> OpaqueSetting {
        let mut world = World::new(ROLE);
        let tables = tcp_listener("web", "web") + &route("probe.Probe", "grpc", endpoint, more);
        let node = world.node("one", &options(tables));
        OpaqueSetting { node, world, server }
    }

    fn probe(&self) -> GrpcProbe {
        GrpcProbe::at(&place(&self.node, "web"))
    }

    /// Tries to attach access rules to the node.
    fn attach(&self, rules: &str, more: &[&str]) -> Result<String, String> {
        let file = self.world.directory().join("rules.toml");
        std::fs::write(&file, rules).unwrap();
        let config = file.to_str().unwrap();
        let attach = [
            "policy", "attach", "--kind", "access", "--name", "acl", "--config", config,
        ];
        self.node.try_operate(&[&attach, more].concat())
    }
}

fn deny(condition: &str) -> String {
    format!("default = \"allow\"\n[[rule]]\nname = \"no\"\naction = \"deny\"\nwhen = '{condition}'\n")
}

/// Two nodes between clients and a tonic server. Node b leads to the server.
struct TwoNodes {
    a: Node,
    b: Node,
    world: World,
    _server: TonicServer,
}

impl TwoNodes {
    fn over(transport: &str) -> TwoNodes {
        let server = TonicServer::start();
        let mut world = World::new(ROLE);
        let exported = route("probe.Probe", "grpc", &server.address.to_string(), EXPORTED);
        let mut b = world.node("b", &options(exported.clone()));
        if transport == "datagram" {
            let listener = datagram_listener(b.address);
            b.reconfigure(&options(exported + &listener));
            b.restart();
        }
        let to_b = route("probe.Probe", transport, &b.address.to_string(), "");
        let a = world.node("a", &options(tcp_listener("web", "web") + &to_b));
        TwoNodes {
            a,
            b,
            world,
            _server: server,
        }
    }

    fn probe(&self) -> GrpcProbe {
        GrpcProbe::at(&place(&self.a, "web"))
    }
}

fn datagram_listener(address: SocketAddr) -> String {
    format!("[[listener]]\ntransport = \"datagram\"\naddress = \"{address}\"\n")
}

/// Runs a test's body within a limit. Whatever has to be built is built before.
fn tested(body: impl FnOnce() + Send + 'static) {
    built::program("provost", "provost-cli", ROLE);
    watched(body);
}

#[test]
fn calls_of_all_kinds_pass_a_node_that_has_no_schema() {
    tested(|| {
        let setting = OpaqueSetting::new();
        let probe = setting.probe();
        run(probe.calls_of_all_kinds());
        // A second client has what the first one has taught from the beginning.
        let second = setting.probe();
        run(second.calls_of_all_kinds());
        let mut listed = String::new();
        eventually("each client has one connection left", WAIT_MAX, || {
            listed = setting.node.operate(&["datapath", "--service", "probe.Probe"]);
            listed.matches("grpc/protobuf").count() == 2
        });
        // What the server does not have, it says itself; what cannot be a method does not reach it.
        let missing = run(probe.unary::<_, NoContent>("Missing", NoContent {})).unwrap_err();
        assert_eq!(missing.code(), Code::Unimplemented);
        let nameless = run(probe.unary::<_, NoContent>("No.Name", NoContent {})).unwrap_err();
        assert_eq!(nameless.code(), Code::Unimplemented);
        assert!(nameless.message().contains("there is no method"), "{nameless:?}");
        let unknown = probe.of_service("probe.Prob");
        let unknown = run(unknown.echo("")).unwrap_err();
        assert_eq!(unknown.code(), Code::Unimplemented);
        assert!(unknown.message().contains("probe.Probe"), "{unknown:?}");
    });
}

#[test]
fn policies_on_methods_metadata_and_identity_apply_to_opaque_services() {
    tested(|| {
        let setting = OpaqueSetting::new();
        let probe = setting.probe();
        assert_eq!(run(probe.echo("before")).unwrap(), "before");
        let tenant = |tenant: &str| {
            let mut request = Request::new(EchoMessage::default());
            request.metadata_mut().insert("tenant", tenant.parse().unwrap());
            run(probe.request::<_, EchoMessage>("Echo", request)).map(drop)
        };
        setting
            .attach(&deny("metadata[\"tenant\"] == \"other\""), &[])
            .unwrap();
        tenant("own").unwrap();
        assert_eq!(tenant("other").unwrap_err().code(), Code::PermissionDenied);
        setting.node.operate(&["policy", "detach", "acl"]);

        setting
            .attach(&deny("app.name == \"web\""), &["--method", "Echo"])
            .unwrap();
        assert_eq!(run(probe.echo("")).unwrap_err().code(), Code::PermissionDenied);
        // Another method, which is called for the first time.
        run(probe.counts("any"));
        setting.node.operate(&["policy", "detach", "acl"]);
        run(probe.echo("")).unwrap();
    });
}

#[test]
fn policies_on_fields_of_opaque_services_are_refused_with_the_reason() {
    tested(|| {
        let setting = OpaqueSetting::new();
        let probe = setting.probe();
        let rules = deny("request.text == \"secret\"");
        let refused = |when: &str| {
            let refused = setting.attach(&rules, &["--method", "Echo"]).unwrap_err();
            assert!(
                refused.contains("no schema of this service is known"),
                "{when}: {refused}"
            );
        };
        refused("before anybody has called");
        run(probe.echo("secret")).unwrap();
        refused("while a client calls");
        // With the schema it is attached, and the client's calls are judged by it.
        setting.node.operate(&["schema", "prefetch", PROTO]);
        setting
            .attach(&rules, &["--method", "Echo", "--side", "client"])
            .unwrap();
        eventually("the client calls by the schema", WAIT_MAX, || {
            run(probe.echo("secret")).is_err_and(|status| status.code() == Code::PermissionDenied)
        });
        run(probe.echo("open")).unwrap();
    });
}

#[test]
fn a_hot_restart_goes_on_with_calls_of_opaque_services() {
    const REPLACEMENTS: usize = 3;
    tested(|| {
        let server = TonicServer::start();
        let to_server = CountingProxy::to(&server.address.to_string());
        let endpoint = to_server.place().replace("http://", "");
        let mut setting = OpaqueSetting::leading_to(&endpoint, server);
        let to_node = CountingProxy::to(&place(&setting.node, "web"));
        let traffic = SteadyTraffic::begin(&GrpcProbe::at(&to_node.place()), "hot");
        traffic.go_on();
        let before = to_server.connections();
        for _ in 0..REPLACEMENTS {
            println!("{:?}", setting.node.replace());
            traffic.go_on();
        }
        let connections = (to_node.connections(), to_server.connections());
        assert_eq!(connections, (1, before), "an end was connected to again");
        traffic.end();
        // The methods that were called before are known to the new process.
        run(setting.probe().calls_of_all_kinds());
        drop(setting.server);
    });
}

#[test]
fn calls_pass_two_nodes_that_have_no_schema() {
    tested(|| {
        for transport in ["tcp", "datagram"] {
            let setting = TwoNodes::over(transport);
            let probe = setting.probe();
            run(probe.calls_of_all_kinds());
            let listed = setting.b.operate(&["datapath", "--service", "probe.Probe"]);
            assert!(listed.contains(&format!("{transport}/protobuf")), "{listed}");
            drop(probe);
        }
    });
}

#[test]
fn one_of_two_nodes_may_have_the_schema() {
    tested(|| {
        let mut setting = TwoNodes::over("tcp");
        // Apps bring it, so it is known at the first node.
        let mut agent = setting.world.agent(&setting.a);
        agent.succeeds(Ask::Echo(Echo {
            bytes: 300_000,
            calls: 3,
            ..Echo::default()
        }));
        let poured = agent.succeeds(Ask::Pour(Pour {
            messages: 100,
            bytes: 20_000,
            ..Pour::default()
        }));
        assert_eq!((poured.count, poured.bytes), (100, 2_000_000));
        let filled = agent.succeeds(Ask::Fill(Fill {
            messages: 100,
            bytes: 20_000,
            ..Fill::default()
        }));
        assert_eq!((filled.count, filled.bytes), (100, 2_000_000));
        let attach = "policy attach --kind access --name acl --app front --method Echo --config";
        let rules = setting.world.directory().join("rules.toml");
        std::fs::write(&rules, deny("request.text == \"secret\"")).unwrap();
        let attach: Vec<&str> = attach.split(' ').chain(rules.to_str()).collect();
        // The first node's word is not taken for what a field is.
        let refused = setting.b.try_operate(&attach).unwrap_err();
        assert!(refused.contains("no schema of this service"), "{refused}");

        let setting = TwoNodes::over("tcp");
        setting.b.operate(&["schema", "prefetch", PROTO]);
        let probe = setting.probe();
        run(probe.calls_of_all_kinds());
        let refused = setting.b.try_operate(&attach).unwrap_err();
        assert!(refused.contains("no schema of this service"), "{refused}");
    });
}

#[test]
fn an_app_that_another_node_serves_needs_typed_messages() {
    tested(|| {
        let mut world = World::new(ROLE);
        let b = world.node("b", &NodeOptions::default());
        let _server = world.server(&b);
        let to_b = route("*", "tcp", &b.address.to_string(), "");
        let a = world.node("a", &options(tcp_listener("web", "web") + &to_b));
        let probe = GrpcProbe::at(&place(&a, "web"));
        let mut refused = None;
        eventually("it is said what is missing", WAIT_MAX, || {
            refused = run(probe.echo("")).err();
            let refused = refused.as_ref();
            refused.is_some_and(|refused| refused.message().contains("the calling node has no schema"))
        });
        assert_eq!(
            refused.map(|refused| refused.code()),
            Some(Code::FailedPrecondition)
        );
        a.operate(&["schema", "prefetch", PROTO]);
        eventually("with the schema it is called", WAIT_MAX, || {
            run(probe.echo("typed")).is_ok()
        });
    });
}

#[test]
fn a_method_that_a_typed_server_lacks_is_refused_by_its_name() {
    tested(|| {
        let mut world = World::new(ROLE);
        let b = world.node("b", &NodeOptions::default());
        let _server = world.server(&b);
        let to_b = route("*", "tcp", &b.address.to_string(), "");
        let a = world.node("a", &options(tcp_listener("web", "web") + &to_b));
        a.operate(&["schema", "prefetch", LARGER_PROTO]);
        let probe = GrpcProbe::at(&place(&a, "web"));
        run(probe.unary::<_, NoContent>("Counts", NoContent {})).unwrap();
        let refused = run(probe.unary::<_, NoContent>("Later", NoContent {})).unwrap_err();
        assert_eq!(
            (refused.code(), refused.message()),
            (Code::Unimplemented, "the service probe.Probe has no method Later")
        );
    });
}

/// Has the node's route ask the server for its schema.
const REFLECTION: &str = "reflection = true\n";

#[test]
fn a_route_learns_the_schema_from_the_servers_reflection() {
    tested(|| {
        for version in ["v1", "v1alpha"] {
            let server = TonicServer::reflecting(version, ReflectionManners::Honest);
            let endpoint = server.address.to_string();
            let setting = OpaqueSetting::with_route(&endpoint, REFLECTION, server);
            run(setting.probe().calls_of_all_kinds());
            let listed = setting.node.operate(&["schema", "list"]);
            assert!(
                listed.contains(&format!("reflection of {endpoint}")) && listed.contains("Chat"),
                "{listed}"
            );
            // Policies read fields, and clients are told the files.
            setting
                .attach(&deny("request.text == \"secret\""), &["--method", "Echo"])
                .unwrap();
            let refused = run(setting.probe().echo("secret")).unwrap_err();
            assert_eq!(refused.code(), Code::PermissionDenied);
            let described = setting.node.operate(&["describe", "probe.Probe"]);
            assert!(described.contains("reflection of"), "{described}");
        }
    });
}

#[test]
fn servers_that_tell_nonsense_of_themselves_are_refused_with_the_reason() {
    tested(|| {
        for (manners, reasons) in [
            (ReflectionManners::Garbage, &["no answer"][..]),
            // On a busy machine, its time ends first.
            (ReflectionManners::Endless, &["more than 1024 files", "in time"]),
            (ReflectionManners::Huge, &["bytes"]),
            (ReflectionManners::Silent, &["in time"]),
        ] {
            let server = TonicServer::reflecting("v1", manners);
            let endpoint = server.address.to_string();
            let more = REFLECTION.to_owned() + "[timeouts]\nconnect_ms = 5000\n";
            let setting = OpaqueSetting::with_route(&endpoint, &more, server);
            let probe = setting.probe();
            let mut said = String::new();
            eventually("the reason is told", WAIT_MAX, || {
                let refused = run(probe.echo("")).unwrap_err();
                assert_eq!(refused.code(), Code::Unavailable);
                said = refused.message().to_owned();
                said.contains("by reflection is of no use")
            });
            let is_told = reasons.iter().any(|reason| said.contains(reason));
            assert!(is_told, "{manners:?}: {said}");
            // With the schema it is called all the same.
            setting.node.operate(&["schema", "prefetch", PROTO]);
            eventually("it is called", WAIT_MAX, || run(probe.echo("")).is_ok());
        }
    });
}

#[test]
fn a_server_without_reflection_is_called_without_a_schema() {
    tested(|| {
        let server = TonicServer::start();
        let endpoint = server.address.to_string();
        let setting = OpaqueSetting::with_route(&endpoint, REFLECTION, server);
        run(setting.probe().calls_of_all_kinds());
        let listed = setting.node.operate(&["schema", "list"]);
        assert!(listed.contains("none: methods that were called"), "{listed}");
    });
}
