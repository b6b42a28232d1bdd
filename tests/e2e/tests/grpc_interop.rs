//! gRPC's own interoperability tests (its `doc/interop-test-descriptions.md`): the client and the server of gRPC's Go implementation,
//! first with nothing between them, then with a node, then with two; in cleartext, and within TLS on both sides of the nodes.

mod authority;
mod grpc_client;

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use authority::Authority;
use grpc_client::{place, tcp_listener};
use provost_e2e::driver::WAIT_MAX;
use provost_e2e::{Node, NodeOptions, Program, World, eventually, watched};

const ROLE: &str = env!("CARGO_BIN_EXE_e2e-role");
/// Where the versions of the programs are written down.
const MODULE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../interop/go");
/// Those that need neither credentials, nor a name service, nor a server that says who it is.
const CASES: [&str; 15] = [
    "empty_unary",
    "large_unary",
    "client_streaming",
    "server_streaming",
    "ping_pong",
    "empty_stream",
    "cancel_after_begin",
    "cancel_after_first_response",
    "timeout_on_sleeping_server",
    "custom_metadata",
    "status_code_and_message",
    "special_status_message",
    "unimplemented_method",
    "unimplemented_service",
    "rpc_soak",
];

/// Built once for all tests: a program that runs cannot be written.
static PROGRAMS: LazyLock<Option<InteropPrograms>> = LazyLock::new(InteropPrograms::build);

/// Go's programs, built for the tests.
struct InteropPrograms {
    folder: PathBuf,
}

impl InteropPrograms {
    /// Builds them, which takes a minute the first time; `None` where there is no Go, said as the tests say it.
    fn build() -> Option<InteropPrograms> {
        let folder = Path::new(ROLE).with_file_name("interop");
        std::fs::create_dir_all(&folder).unwrap();
        let packages = [
            "google.golang.org/grpc/interop/client",
            "google.golang.org/grpc/interop/server",
            "./descriptors",
        ];
        let built = Command::new("go")
            .current_dir(MODULE)
            .args(["build", "-o"])
            .arg(&folder)
            .args(packages)
            .output();
        match built {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                provost_skip::missing("go", "https://go.dev/dl");
                None
            }
            built => {
                let built = built.unwrap();
                let said = String::from_utf8_lossy(&built.stderr);
                assert!(built.status.success(), "go build: {said}");
                Some(InteropPrograms { folder })
            }
        }
    }

    fn command(&self, name: &str) -> Command {
        Command::new(self.folder.join(name))
    }

    /// Runs one case against what listens at this port; an error is what the client said.
    fn run_case(&self, case: &str, port: u16, security: &LinkSecurity) -> Result<(), String> {
        let mut client = self.command("client");
        client
            .arg(format!("-server_port={port}"))
            .args(["-test_case", case])
            .args(security.of_client());
        let output = client.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() {
            Ok(())
        } else {
            Err(said)
        }
    }
}

/// What the connections on both sides of the node are.
enum LinkSecurity {
    Cleartext,
    /// By the files of this folder, which name one host: `localhost`.
    Tls(PathBuf),
}

impl LinkSecurity {
    fn within_tls(folder: &Path) -> LinkSecurity {
        Authority::new().vouch_for("interop", folder);
        LinkSecurity::Tls(folder.to_owned())
    }

    fn file(folder: &Path, kind: &str) -> String {
        folder.join(format!("interop-{kind}.pem")).display().to_string()
    }

    fn of_client(&self) -> Vec<String> {
        match self {
            LinkSecurity::Cleartext => Vec::new(),
            LinkSecurity::Tls(folder) => vec![
                "-use_tls".to_owned(),
                "-use_test_ca".to_owned(),
                format!("-ca_file={}", LinkSecurity::file(folder, "ca")),
                "-server_host_override=localhost".to_owned(),
            ],
        }
    }

    fn of_server(&self) -> Vec<String> {
        match self {
            LinkSecurity::Cleartext => Vec::new(),
            LinkSecurity::Tls(folder) => vec![
                "-use_tls".to_owned(),
                format!("-tls_cert_file={}", LinkSecurity::file(folder, "cert")),
                format!("-tls_key_file={}", LinkSecurity::file(folder, "key")),
            ],
        }
    }

    /// The table of the node's listener.
    fn of_listener(&self) -> String {
        match self {
            LinkSecurity::Cleartext => String::new(),
            LinkSecurity::Tls(folder) => format!(
                "[grpc.listener.tls]\ncert = \"{}\"\nkey = \"{}\"\n",
                LinkSecurity::file(folder, "cert"),
                LinkSecurity::file(folder, "key")
            ),
        }
    }

    /// The table of the node's routes.
    fn of_route(&self) -> String {
        match self {
            LinkSecurity::Cleartext => String::new(),
            LinkSecurity::Tls(folder) => format!(
                "[route.tls]\nca = \"{}\"\nserver_name = \"localhost\"\n",
                LinkSecurity::file(folder, "ca")
            ),
        }
    }
}

/// A port at which nobody listens just now.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// Go's server, a node whose clients call it, and a node whose clients call it through the first one.
struct InteropSetting {
    server_port: u16,
    node: Node,
    before: Node,
    security: LinkSecurity,
    _server: Program,
    _world: World,
}

/// Routes to what the cases call.
fn routes(transport: &str, endpoint: SocketAddr, more: &str) -> String {
    // Go's server has no service of the second name: that is what a case is about.
    let services = ["grpc.testing.TestService", "grpc.testing.UnimplementedService"];
    let routes = services.map(|service| {
        format!(
            "[[route]]\nservice = \"{service}\"\ntransport = \"{transport}\"\nendpoints = [\"{endpoint}\"]\n{more}"
        )
    });
    routes.concat()
}

impl InteropSetting {
    fn new(programs: &InteropPrograms, secure: fn(&Path) -> LinkSecurity) -> InteropSetting {
        let mut world = World::new(ROLE);
        let security = secure(world.directory());
        let server_port = free_port();
        let mut command = programs.command("server");
        command
            .arg(format!("-port={server_port}"))
            .args(security.of_server());
        let server = Program::start("interop-server", command, world.directory());
        let address = SocketAddr::from(([127, 0, 0, 1], server_port));
        eventually("the server listens", WAIT_MAX, || {
            TcpStream::connect(address).is_ok()
        });

        let schema = world.directory().join("interop.pb");
        let written = programs.command("descriptors").arg(&schema).status().unwrap();
        assert!(written.success());
        let options = |routes: String| NodeOptions {
            tables: format!(
                "{}{}{routes}[schemas]\nprefetch = [\"{}\"]\n",
                tcp_listener("web", "web"),
                security.of_listener(),
                schema.display()
            ),
            ..NodeOptions::default()
        };
        let exported = routes(
            "grpc",
            address,
            &("export = true\napp = \"front\"\n".to_owned() + &security.of_route()),
        );
        let node = world.node("one", &options(exported));
        InteropSetting {
            server_port,
            before: world.node("before", &options(routes("tcp", node.address, ""))),
            node,
            security,
            _server: server,
            _world: world,
        }
    }
}

/// The port of a node's listener.
fn port_of(node: &Node) -> u16 {
    let place = place(node, "web");
    let (_, port) = place.rsplit_once(':').unwrap();
    port.parse().unwrap()
}

#[test]
fn gos_client_and_server_pass_grpcs_tests_through_a_node_and_through_two() {
    pass_through_nodes(|_| LinkSecurity::Cleartext);
}

#[test]
fn gos_client_and_server_pass_grpcs_tests_through_nodes_within_tls() {
    pass_through_nodes(LinkSecurity::within_tls);
}

fn pass_through_nodes(secure: fn(&Path) -> LinkSecurity) {
    let Some(programs) = &*PROGRAMS else {
        return;
    };
    watched(move || {
        let setting = InteropSetting::new(programs, secure);
        let ports = [&setting.node, &setting.before].map(port_of);
        let mut failures = Vec::new();
        for case in CASES {
            programs
                .run_case(case, setting.server_port, &setting.security)
                .unwrap_or_else(|said| panic!("{case}, no node between: {said}"));
            for (nodes, port) in (1..).zip(ports) {
                if let Err(said) = programs.run_case(case, port, &setting.security) {
                    failures.push(format!("{case}, {nodes} nodes: {said}"));
                }
            }
        }
        assert!(failures.is_empty(), "with nodes between: {}", failures.join("\n"));
        // They went that way.
        assert!(setting.node.program.log().contains("transport=\"grpc\""));
        assert!(
            setting
                .node
                .program
                .log()
                .contains("calls of another node are passed on")
        );
    });
}
