//! The programs of `examples`, in Go, Python and JavaScript, none of which knows of Provost: each client calls each server
//! through two nodes.

mod grpc_client;
#[allow(dead_code, reason = "another test uses the rest of it")]
mod languages;

use std::net::{SocketAddr, TcpStream};
use std::process::Command;

use grpc_client::tcp_listener;
use languages::{LanguagePrograms, ProgramSources, free_address, place_of};
use provost_e2e::driver::WAIT_MAX;
use provost_e2e::{Node, NodeOptions, Program, World, built, eventually, watched};

const ROLE: &str = env!("CARGO_BIN_EXE_e2e-role");
const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
const PROTO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../apps/hello/proto/hello.proto");

/// What a server of the language says to `name`.
fn greeting(programs: &LanguagePrograms, name: &str) -> String {
    format!("Hello, {name}, from {}!", programs.language)
}

fn examples() -> ProgramSources {
    ProgramSources {
        name: "example-programs",
        folder: EXAMPLES.into(),
    }
}

/// A server of a language, and two nodes between it and its clients.
struct ExampleSetting {
    a: Node,
    _b: Node,
    _server: Program,
    _world: World,
}

impl ExampleSetting {
    fn new(programs: &LanguagePrograms) -> ExampleSetting {
        let address = free_address();
        let mut world = World::new(ROLE);
        let command = programs.command(&programs.server, &[&address.to_string()]);
        let server = Program::start("example-server", command, world.directory());
        eventually("the server listens", WAIT_MAX, || {
            TcpStream::connect(address).is_ok()
        });
        let options = |tables: String| NodeOptions {
            tables,
            ..NodeOptions::default()
        };
        let route = |transport: &str, endpoint: SocketAddr| {
            format!(
                "[[route]]\nservice = \"hello.Greeter\"\ntransport = \"{transport}\"\nendpoints = [\"{endpoint}\"]\n"
            )
        };
        let exported = route("grpc", address) + "export = true\napp = \"greeter\"\n";
        let b = world.node("b", &options(exported));
        let a = world.node(
            "a",
            &options(tcp_listener("web", "web") + &route("tcp", b.address)),
        );
        for node in [&a, &b] {
            node.operate(&["schema", "prefetch", PROTO]);
        }
        ExampleSetting {
            a,
            _b: b,
            _server: server,
            _world: world,
        }
    }

    /// What the client of `apps/hello`, which is an app of node a, is told.
    fn greeted_app(&self) -> String {
        let mut client = Command::new(built::program("hello-client", "provost-hello", ROLE));
        client.arg("Ann").env("PROVOST_SOCKET", &self.a.socket);
        let output = client.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
    }
}

/// What a client is told for a name.
fn greeted(client: &LanguagePrograms, place: &str, name: &str) -> String {
    let output = client.command(&client.client, &[place, name]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}: {output:?}", client.language);
    said.trim_end().to_owned()
}

/// Each client calls the server of `apps/hello`, which is an app of the node.
fn call_an_app(clients: &[LanguagePrograms]) {
    let mut world = World::new(ROLE);
    let options = NodeOptions {
        tables: tcp_listener("web", "web"),
        ..NodeOptions::default()
    };
    let node = world.node("one", &options);
    let mut server = Command::new(built::program("hello-server", "provost-hello", ROLE));
    server.env("PROVOST_SOCKET", &node.socket);
    let _server = Program::start("hello-server", server, world.directory());
    eventually("the app serves", WAIT_MAX, || {
        node.operate(&["apps"]).contains("hello.Greeter")
    });
    for client in clients {
        assert_eq!(greeted(client, &place_of(&node), "Ann"), "Hello, Ann!");
    }
}

#[test]
fn clients_of_each_language_and_apps_call_servers_of_each_through_two_nodes() {
    for (program, package) in [
        ("provost", "provost-cli"),
        ("hello-client", "provost-hello"),
        ("hello-server", "provost-hello"),
    ] {
        built::program(program, package, ROLE);
    }
    let sources = examples();
    let all: Vec<LanguagePrograms> = [sources.go(), sources.python(), sources.node()]
        .into_iter()
        .flatten()
        .collect();
    watched(move || {
        call_an_app(&all);
        for server in &all {
            let setting = ExampleSetting::new(server);
            let place = place_of(&setting.a);
            assert_eq!(setting.greeted_app(), greeting(server, "Ann"));
            for client in &all {
                assert_eq!(greeted(client, &place, "Ann"), greeting(server, "Ann"));
            }
            let refused = server.command(&server.client, &[&place, ""]).output().unwrap();
            let said = String::from_utf8_lossy(&refused.stderr);
            assert!(!refused.status.success(), "{}", server.language);
            assert!(said.contains("say who you are"), "{}: {said}", server.language);
        }
    });
}

/// The route of a server of Go whose node has no schema: it learns that from the server, by what Go's library tells of it.
#[test]
fn a_schema_is_learned_from_the_reflection_of_a_server_in_go() {
    built::program("provost", "provost-cli", ROLE);
    let Some(go) = examples().go() else { return };
    watched(move || {
        let address = free_address();
        let mut world = World::new(ROLE);
        let command = go.command(&go.server, &[&address.to_string()]);
        let _server = Program::start("example-server", command, world.directory());
        eventually("the server listens", WAIT_MAX, || {
            TcpStream::connect(address).is_ok()
        });
        let route = format!(
            "[[route]]\nservice = \"hello.Greeter\"\ntransport = \"grpc\"\nendpoints = [\"{address}\"]\nreflection = true\n"
        );
        let options = NodeOptions {
            tables: tcp_listener("web", "web") + &route,
            ..NodeOptions::default()
        };
        let node = world.node("one", &options);
        assert_eq!(greeted(&go, &place_of(&node), "Ann"), greeting(&go, "Ann"));
        let listed = node.operate(&["schema", "list"]);
        assert!(listed.contains(&format!("reflection of {address}")), "{listed}");
        // What is learned is typed: a policy reads a field of it.
        let rules = world.directory().join("acl.toml");
        let deny = "default = \"allow\"\n[[rule]]\nname = \"eve\"\naction = \"deny\"\nwhen = 'request.name == \"Eve\"'\n";
        std::fs::write(&rules, deny).unwrap();
        let rules = rules.to_str().unwrap();
        let attach = ["policy", "attach", "--kind", "access", "--name", "acl"];
        let more = ["--config", rules, "--method", "Greet", "--side", "client"];
        node.operate(&[&attach[..], &more[..]].concat());
        assert_eq!(greeted(&go, &place_of(&node), "Ann"), greeting(&go, "Ann"));
        let refused = go
            .command(&go.client, &[&place_of(&node), "Eve"])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(
            !refused.status.success() && said.contains("PermissionDenied"),
            "{said}"
        );
    });
}
