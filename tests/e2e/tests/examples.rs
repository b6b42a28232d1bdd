//! The programs of `examples`, in Go, Python and JavaScript, none of which knows of Provost: each client calls each server
//! through two nodes.

mod grpc_client;

use std::ffi::OsString;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use grpc_client::{place, tcp_listener};
use provost_e2e::driver::WAIT_MAX;
use provost_e2e::{Node, NodeOptions, Program, World, built, eventually, watched};

const ROLE: &str = env!("CARGO_BIN_EXE_e2e-role");
const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
const PROTO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../apps/hello/proto/hello.proto");

/// The programs of one language, ready to be run.
struct ExamplePrograms {
    language: &'static str,
    client: Vec<OsString>,
    server: Vec<OsString>,
    /// Where libraries of Node are found.
    modules: PathBuf,
}

impl ExamplePrograms {
    fn command(&self, program: &[OsString], arguments: &[&str]) -> Command {
        let mut command = Command::new(&program[0]);
        command
            .args(&program[1..])
            .args(arguments)
            .env("NODE_PATH", &self.modules);
        command
    }

    /// What a server of the language says to `name`.
    fn greeting(&self, name: &str) -> String {
        format!("Hello, {name}, from {}!", self.language)
    }
}

/// A folder of this build for what a language needs.
fn folder(language: &str) -> PathBuf {
    let folder = Path::new(ROLE).with_file_name("example-programs").join(language);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Runs what prepares programs; `None` where the tool is missing or does not find what it needs, said as the tests say it.
fn prepared(command: &mut Command, tool: &str, remedy: &str) -> Option<Output> {
    match command.output() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            provost_skip::missing(tool, remedy);
            None
        }
        output => {
            let output = output.unwrap();
            if output.status.success() {
                return Some(output);
            }
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            provost_skip::missing(&format!("{tool}: {said}"), remedy);
            None
        }
    }
}

fn go() -> Option<ExamplePrograms> {
    let folder = folder("go");
    let mut build = Command::new("go");
    build.current_dir(Path::new(EXAMPLES).join("go"));
    build
        .args(["build", "-o"])
        .arg(&folder)
        .args(["./client", "./server"]);
    prepared(&mut build, "go", "https://go.dev/dl")?;
    Some(ExamplePrograms {
        language: "Go",
        client: vec![folder.join("client").into()],
        server: vec![folder.join("server").into()],
        modules: PathBuf::new(),
    })
}

fn python() -> Option<ExamplePrograms> {
    let (folder, sources) = (folder("python"), Path::new(EXAMPLES).join("python"));
    let python = folder.join("bin/python");
    let has_grpc = |python: &Path| {
        let output = Command::new(python).args(["-c", "import grpc_tools"]).output();
        output.is_ok_and(|output| output.status.success())
    };
    if !has_grpc(&python) {
        let remedy = "Python 3 with venv, and grpcio from PyPI";
        prepared(
            Command::new("python3").args(["-m", "venv"]).arg(&folder),
            "python3",
            remedy,
        )?;
        let mut install = Command::new(folder.join("bin/pip"));
        install.args(["install", "--quiet", "--requirement"]);
        prepared(install.arg(sources.join("requirements.txt")), "pip", remedy)?;
    }
    let run = |file: &str| vec![python.clone().into(), sources.join(file).into()];
    Some(ExamplePrograms {
        language: "Python",
        client: run("client.py"),
        server: run("server.py"),
        modules: PathBuf::new(),
    })
}

fn node() -> Option<ExamplePrograms> {
    let (folder, sources) = (folder("node"), Path::new(EXAMPLES).join("node"));
    let modules = folder.join("node_modules");
    if !modules.join("@grpc/grpc-js/package.json").exists() {
        std::fs::copy(sources.join("package.json"), folder.join("package.json")).unwrap();
        let mut install = Command::new("npm");
        install
            .current_dir(&folder)
            .args(["install", "--no-audit", "--no-fund"]);
        prepared(
            &mut install,
            "npm",
            "Node.js with npm, and @grpc/grpc-js from its registry",
        )?;
    }
    prepared(
        Command::new("node").arg("--version"),
        "node",
        "https://nodejs.org",
    )?;
    let run = |file: &str| vec!["node".into(), sources.join(file).into()];
    Some(ExamplePrograms {
        language: "Node",
        client: run("client.js"),
        server: run("server.js"),
        modules,
    })
}

/// A server of a language, and two nodes between it and its clients.
struct ExampleSetting {
    a: Node,
    _b: Node,
    _server: Program,
    _world: World,
}

impl ExampleSetting {
    fn new(programs: &ExamplePrograms) -> ExampleSetting {
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

/// Where clients of a node connect, without the scheme.
fn place_of(node: &Node) -> String {
    place(node, "web").trim_start_matches("http://").to_owned()
}

/// What a client is told for a name.
fn greeted(client: &ExamplePrograms, place: &str, name: &str) -> String {
    let output = client.command(&client.client, &[place, name]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}: {output:?}", client.language);
    said.trim_end().to_owned()
}

/// Each client calls the server of `apps/hello`, which is an app of the node.
fn call_an_app(clients: &[ExamplePrograms]) {
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

/// An address at which nobody listens just now.
fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
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
    let all: Vec<ExamplePrograms> = [go(), python(), node()].into_iter().flatten().collect();
    watched(move || {
        call_an_app(&all);
        for server in &all {
            let setting = ExampleSetting::new(server);
            let place = place_of(&setting.a);
            assert_eq!(setting.greeted_app(), server.greeting("Ann"));
            for client in &all {
                assert_eq!(greeted(client, &place, "Ann"), server.greeting("Ann"));
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
    let Some(go) = go() else { return };
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
        assert_eq!(greeted(&go, &place_of(&node), "Ann"), go.greeting("Ann"));
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
        assert_eq!(greeted(&go, &place_of(&node), "Ann"), go.greeting("Ann"));
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
