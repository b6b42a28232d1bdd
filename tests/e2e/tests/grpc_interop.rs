//! gRPC's own interoperability tests (its `doc/interop-test-descriptions.md`): the client and the server of gRPC's Go implementation,
//! first with nothing between them, then with a node, then with two; in cleartext, and within TLS on both sides of the nodes. The
//! same client calls a server that is an app, and an app calls the same server.

mod authority;
mod grpc_client;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::time::Instant;

use authority::Authority;
use grpc_client::traffic::CountingProxy;
use grpc_client::{place, tcp_listener};
use provost_e2e::driver::WAIT_MAX;
use provost_e2e::{Node, NodeOptions, Program, World, eventually, watched};

const ROLE: &str = env!("CARGO_BIN_EXE_e2e-role");
/// Where the versions of the programs are written down.
const MODULE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../interop/go");
/// Those that need neither credentials, nor a name service, nor a server that says who it is (`pick_first_unary`): all that Go's client
/// and server pass by themselves.
const CASES: [&str; 18] = [
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
    "channel_soak",
    "orca_per_rpc",
    "orca_oob",
];
/// Those about compression, which Go's programs do not have: a client and a server of the tests' own, in Go, do.
const COMPRESSION_CASES: [&str; 4] = [
    "client_compressed_unary",
    "client_compressed_streaming",
    "server_compressed_unary",
    "server_compressed_streaming",
];
/// By which Go's client looks at the reports of load that the two last cases are about.
const READS_LOAD: &str =
    "-service_config_json={\"loadBalancingConfig\":[{\"test_backend_metrics_load_balancer\":{}}]}";

/// An address: for a name, such as `localhost`, Go's library asks the name server for SRV and TXT records too. Where that does not
/// answer, the first call takes five seconds.
const HOST: &str = "127.0.0.1";
/// How long a call of a soak case may take, and all of them: by default a second and ten, which a busy machine does not keep. How
/// fast nodes are is for the benchmarks to say.
const SOAK_PATIENCE: [&str; 2] = [
    "-soak_per_iteration_max_acceptable_latency_ms=20000",
    "-soak_overall_timeout_seconds=40",
];
/// How Go's server says at which port it listens.
const LISTENING: &str = "interop server listening on ";

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
            "github.com/fullstorydev/grpcurl/cmd/grpcurl",
            "./compressed",
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

    /// Begins calls of a soak case, one after the other, over one channel, against what listens at this port. They go on until the
    /// program is ended.
    fn begin_soak(&self, port: &str, security: &LinkSecurity, folder: &Path) -> Program {
        let mut client = self.command("client");
        client
            .arg(format!("-server_host={HOST}"))
            .arg(format!("-server_port={port}"))
            .args(["-test_case", "rpc_soak", "-soak_iterations=1000000"])
            .args(["-soak_per_iteration_max_acceptable_latency_ms=600000"])
            .args(["-soak_overall_timeout_seconds=600"])
            .args(security.of_client());
        Program::start("interop-client", client, folder)
    }

    /// Runs one case against what listens at this port; an error is what the client said, which case it was, and how long it
    /// took.
    fn run_case(&self, case: &str, port: u16, security: &LinkSecurity) -> Result<(), String> {
        let mut client = self.command("client");
        client
            .arg(format!("-server_host={HOST}"))
            .arg(format!("-server_port={port}"))
            .args(["-test_case", case])
            .args(SOAK_PATIENCE)
            .args(case.starts_with("orca").then_some(READS_LOAD))
            .args(security.of_client());
        let began = Instant::now();
        let output = client.output().unwrap();
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(format!(
            "{case}: {} after {:?}\n{said}",
            output.status,
            began.elapsed()
        ))
    }
}

/// Runs a case about compression, by Go, against what listens at this port; an error is what the client said.
fn run_compression_case(programs: &InteropPrograms, case: &str, port: u16) -> Result<(), String> {
    let mut client = programs.command("compressed");
    let output = client.args([case, &format!("{HOST}:{port}")]).output().unwrap();
    let said = || format!("{case}: {}", String::from_utf8_lossy(&output.stderr));
    output.status.success().then_some(()).ok_or_else(said)
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

/// What failed, and what the programs said of it.
#[derive(Debug, Default)]
struct CaseFailures {
    names: Vec<String>,
    said: Vec<String>,
}

impl CaseFailures {
    /// Says what failed, with the ends of the logs of these programs before it: so that what is left of a long output still has it.
    fn none_or_fail(&self, programs: &[&Program]) {
        if self.names.is_empty() {
            return;
        }
        programs.iter().for_each(|program| program.show_log());
        panic!("{}\nfailed: {}", self.said.join("\n"), self.names.join(", "));
    }
}

/// Starts Go's server at a port that it chooses itself; the port.
fn start_server(programs: &InteropPrograms, security: &LinkSecurity, folder: &Path) -> (Program, u16) {
    let mut command = programs.command("server");
    command
        .arg("-port=0")
        .args(security.of_server())
        .env("GRPC_GO_LOG_SEVERITY_LEVEL", "info");
    listening(command, folder)
}

/// Starts a server that says its port; the port.
fn listening(command: Command, folder: &Path) -> (Program, u16) {
    let server = Program::start("interop-server", command, folder);
    let mut port = None;
    eventually("the server says its port", WAIT_MAX, || {
        let log = server.log();
        let address = log.split_once(LISTENING).map(|(_, rest)| rest);
        let line = address.and_then(|rest| rest.split_once('\n'));
        let said = line.and_then(|(address, _)| address.rsplit_once(':'));
        port = said.and_then(|(_, port)| port.trim().parse().ok());
        port.is_some()
    });
    (server, port.unwrap_or_default())
}

/// Go's server, a node whose clients call it, and a node whose clients call it through the first one.
struct InteropSetting {
    server_port: u16,
    node: Node,
    before: Node,
    security: LinkSecurity,
    server: Program,
    world: World,
}

/// Whether nodes have the schemas of what is called through them.
#[derive(Clone, Copy)]
enum NodeSchemas {
    Given,
    /// All services are opaque to them.
    None,
}

/// Routes to what the cases call.
fn routes(transport: &str, endpoint: SocketAddr, more: &str) -> String {
    // Go's server has no service of the second name: that is what a case is about.
    let services = [
        "grpc.testing.TestService",
        "grpc.testing.UnimplementedService",
        "xds.service.orca.v3.OpenRcaService",
    ];
    let routes = services.map(|service| {
        format!(
            "[[route]]\nservice = \"{service}\"\ntransport = \"{transport}\"\nendpoints = [\"{endpoint}\"]\n{more}"
        )
    });
    routes.concat()
}

impl InteropSetting {
    fn new(
        programs: &InteropPrograms,
        secure: fn(&Path) -> LinkSecurity,
        schemas: NodeSchemas,
    ) -> InteropSetting {
        let world = World::new(ROLE);
        let security = secure(world.directory());
        let serving = start_server(programs, &security, world.directory());
        InteropSetting::before(programs, world, serving, security, schemas)
    }

    /// A server of the cases about compression.
    fn compressing(programs: &InteropPrograms, schemas: NodeSchemas) -> InteropSetting {
        let world = World::new(ROLE);
        let mut command = programs.command("compressed");
        command.arg("serve");
        let serving = listening(command, world.directory());
        InteropSetting::before(programs, world, serving, LinkSecurity::Cleartext, schemas)
    }

    /// Nodes before a server that listens.
    fn before(
        programs: &InteropPrograms,
        mut world: World,
        (server, server_port): (Program, u16),
        security: LinkSecurity,
        schemas: NodeSchemas,
    ) -> InteropSetting {
        let address = SocketAddr::from(([127, 0, 0, 1], server_port));
        let given = match schemas {
            NodeSchemas::None => String::new(),
            NodeSchemas::Given => {
                let schema = world.directory().join("interop.pb");
                let written = programs.command("descriptors").arg(&schema).status().unwrap();
                assert!(written.success());
                format!("[schemas]\nprefetch = [\"{}\"]\n", schema.display())
            }
        };
        let options = |routes: String| NodeOptions {
            tables: format!(
                "{}{}{routes}{given}",
                tcp_listener("web", "web"),
                security.of_listener(),
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
            server,
            world,
        }
    }

    /// Runs each case without a node, with one and with two.
    fn run_all(&self, programs: &InteropPrograms) -> CaseFailures {
        self.run_each(&CASES, |case, port| programs.run_case(case, port, &self.security))
    }

    /// Has a client carry out each case without a node, with one and with two.
    fn run_each(
        &self,
        cases: &[&str],
        mut carry_out: impl FnMut(&str, u16) -> Result<(), String>,
    ) -> CaseFailures {
        let mut failures = CaseFailures::default();
        let [one, two] = [&self.node, &self.before].map(port_of);
        let placements = [
            ("no node", self.server_port),
            ("one node", one),
            ("two nodes", two),
        ];
        for case in cases {
            for (between, port) in placements {
                if let Err(said) = carry_out(case, port) {
                    failures.names.push(format!("{case} ({between} between)"));
                    failures.said.push(said);
                }
            }
        }
        failures
    }

    /// Has an app carry out each case, with one node and with two.
    fn run_app(&self, cases: &[&str]) -> CaseFailures {
        let mut failures = CaseFailures::default();
        for case in cases {
            for (between, node) in [("one node", &self.node), ("two nodes", &self.before)] {
                let mut command = Command::new(ROLE);
                command
                    .args(["interop-client", case])
                    .env("PROVOST_SOCKET", &node.socket);
                let name = format!("{case}-{}", node.address.port());
                let mut client = Program::start(&name, command, self.world.directory());
                let ended = client.ends_within(2 * WAIT_MAX);
                if ended.is_none_or(|status| !status.success()) {
                    failures.names.push(format!("{case} ({between} between)"));
                    failures.said.push(format!("{case}: {ended:?} {}", client.log()));
                }
            }
        }
        failures
    }

    fn programs(&self) -> [&Program; 3] {
        [&self.server, &self.node.program, &self.before.program]
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
    pass_through_nodes(|_| LinkSecurity::Cleartext, NodeSchemas::Given);
}

#[test]
fn gos_client_and_server_pass_grpcs_tests_through_nodes_within_tls() {
    pass_through_nodes(LinkSecurity::within_tls, NodeSchemas::Given);
}

#[test]
fn gos_client_and_server_pass_grpcs_tests_through_nodes_that_have_no_schema() {
    pass_through_nodes(|_| LinkSecurity::Cleartext, NodeSchemas::None);
}

#[test]
fn an_app_passes_grpcs_tests_with_gos_server() {
    app_passes(|_| LinkSecurity::Cleartext, NodeSchemas::Given);
}

#[test]
fn an_app_passes_grpcs_tests_with_gos_server_within_tls() {
    app_passes(LinkSecurity::within_tls, NodeSchemas::None);
}

#[test]
fn gos_client_passes_grpcs_tests_with_an_app() {
    app_is_passed(|_| LinkSecurity::Cleartext);
}

#[test]
fn gos_client_passes_grpcs_tests_with_an_app_within_tls() {
    app_is_passed(LinkSecurity::within_tls);
}

#[test]
fn gos_client_and_server_notice_no_hot_restart_of_the_node_between_them() {
    pass_hot_restarts(|_| LinkSecurity::Cleartext);
}

#[test]
fn gos_client_and_server_notice_no_hot_restart_within_tls() {
    pass_hot_restarts(LinkSecurity::within_tls);
}

#[test]
fn gos_client_and_server_compress_through_a_node_and_through_two() {
    compresses(NodeSchemas::Given, |setting, programs| {
        setting.run_each(&COMPRESSION_CASES, |case, port| {
            run_compression_case(programs, case, port)
        })
    });
}

#[test]
fn gos_client_and_server_compress_through_nodes_that_have_no_schema() {
    compresses(NodeSchemas::None, |setting, programs| {
        setting.run_each(&COMPRESSION_CASES, |case, port| {
            run_compression_case(programs, case, port)
        })
    });
}

#[test]
fn an_app_passes_the_cases_about_compression_with_gos_server() {
    compresses(NodeSchemas::Given, |setting, _| {
        setting.run_app(&COMPRESSION_CASES)
    });
}

#[test]
fn gos_client_passes_the_cases_about_compression_with_an_app() {
    let Some(programs) = &*PROGRAMS else {
        return;
    };
    watched(move || {
        let mut world = World::new(ROLE);
        let options = |more: &str| NodeOptions {
            tables: tcp_listener("web", "web") + more,
            ..NodeOptions::default()
        };
        let node = world.node("one", &options(""));
        let route = format!(
            "[[route]]\nservice = \"grpc.testing.TestService\"\ntransport = \"tcp\"\nendpoints = [\"{}\"]\n",
            node.address
        );
        let schema = world.directory().join("interop.pb");
        let written = programs.command("descriptors").arg(&schema).status().unwrap();
        assert!(written.success());
        let given = format!("[schemas]\nprefetch = [\"{}\"]\n", schema.display());
        let before = world.node("before", &options(&(route + &given)));
        let server = world.interop_server(&node);
        let mut failures = CaseFailures::default();
        for case in COMPRESSION_CASES {
            for (between, node) in [("one node", &node), ("two nodes", &before)] {
                if let Err(said) = run_compression_case(programs, case, port_of(node)) {
                    failures.names.push(format!("{case} ({between} between)"));
                    failures.said.push(said);
                }
            }
        }
        failures.none_or_fail(&[&server.program, &node.program, &before.program]);
    });
}

/// Cases about compression, with a server of Go behind the nodes.
fn compresses(schemas: NodeSchemas, run: fn(&InteropSetting, &'static InteropPrograms) -> CaseFailures) {
    let Some(programs) = &*PROGRAMS else {
        return;
    };
    watched(move || {
        let setting = InteropSetting::compressing(programs, schemas);
        run(&setting, programs).none_or_fail(&setting.programs());
    });
}

/// Without a file of a schema: what grpcurl knows of services the node has told it.
#[test]
fn grpcurl_finds_and_calls_services_by_reflection_alone() {
    let Some(programs) = &*PROGRAMS else {
        return;
    };
    watched(move || {
        let mut world = World::new(ROLE);
        let options = NodeOptions {
            tables: tcp_listener("web", "web")
                + "node_services = [\"health\", \"reflection\", \"channelz\"]\n",
            ..NodeOptions::default()
        };
        let node = world.node("one", &options);
        let _server = world.server(&node);
        let at = format!("{HOST}:{}", port_of(&node));
        let grpcurl = |of: &[&str], what: &[&str]| {
            let mut command = programs.command("grpcurl");
            let output = command.arg("-plaintext").args(of).arg(&at).args(what).output();
            let output = output.unwrap();
            let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "grpcurl {of:?} {what:?}: {said}");
            said.into_owned()
        };
        let listed = grpcurl(&[], &["list"]);
        for service in [
            "probe.Probe",
            "grpc.health.v1.Health",
            "grpc.channelz.v1.Channelz",
        ] {
            assert!(listed.lines().any(|line| line == service), "{listed}");
        }
        let described = grpcurl(&[], &["describe", "probe.Probe.Echo"]);
        assert!(described.contains("rpc Echo"), "{described}");
        let echoed = grpcurl(&["-d", r#"{"text": "by grpcurl"}"#], &["probe.Probe/Echo"]);
        assert!(echoed.contains("by grpcurl"), "{echoed}");
        let asked = r#"{"service": "probe.Probe"}"#;
        let health = grpcurl(&["-d", asked], &["grpc.health.v1.Health/Check"]);
        assert!(health.contains("SERVING"), "{health}");
        let servers = grpcurl(&[], &["grpc.channelz.v1.Channelz/GetServers"]);
        assert!(servers.contains("callsStarted"), "{servers}");
    });
}

/// An app as the client of the tests: through the node that calls Go's server, and through another one before it.
fn app_passes(secure: fn(&Path) -> LinkSecurity, schemas: NodeSchemas) {
    let Some(programs) = &*PROGRAMS else {
        return;
    };
    watched(move || {
        let setting = InteropSetting::new(programs, secure, schemas);
        setting.run_app(&CASES).none_or_fail(&setting.programs());
    });
}

/// An app as the server of the tests, which Go's client calls through its node.
fn app_is_passed(secure: fn(&Path) -> LinkSecurity) {
    let Some(programs) = &*PROGRAMS else {
        return;
    };
    watched(move || {
        let mut world = World::new(ROLE);
        let security = secure(world.directory());
        let options = NodeOptions {
            tables: tcp_listener("web", "web") + &security.of_listener(),
            ..NodeOptions::default()
        };
        let node = world.node("one", &options);
        let server = world.interop_server(&node);
        let mut failures = CaseFailures::default();
        for case in CASES {
            if let Err(said) = programs.run_case(case, port_of(&node), &security) {
                failures.names.push(case.to_owned());
                failures.said.push(said);
            }
        }
        failures.none_or_fail(&[&server.program, &node.program]);
    });
}

/// Large calls of Go's soak case go on while the node is replaced: none fails, on one connection.
fn pass_hot_restarts(secure: fn(&Path) -> LinkSecurity) {
    const REPLACEMENTS: usize = 4;
    let Some(programs) = &*PROGRAMS else {
        return;
    };
    watched(move || {
        let mut setting = InteropSetting::new(programs, secure, NodeSchemas::Given);
        let proxy = CountingProxy::to(&place(&setting.node, "web"));
        let place = proxy.place();
        let (_, port) = place.rsplit_once(':').unwrap();
        let soak = programs.begin_soak(port, &setting.security, setting.world.directory());
        let calls_go_on = || {
            let made = || soak.log().matches(" succeeded\n").count();
            let before = made();
            eventually("Go's client calls on", WAIT_MAX, || made() > before + 5);
        };
        calls_go_on();
        for _ in 0..REPLACEMENTS {
            println!("{:?}", setting.node.replace());
            calls_go_on();
        }
        let log = soak.log();
        assert!(!log.contains(" failed: "), "a call failed");
        assert_eq!(proxy.connections(), 1, "Go's client has connected again");
        let opened = setting.node.program.log().matches("connection opened").count();
        assert_eq!(opened, 1, "the node has connected to Go's server again");
    });
}

fn pass_through_nodes(secure: fn(&Path) -> LinkSecurity, schemas: NodeSchemas) {
    let Some(programs) = &*PROGRAMS else {
        return;
    };
    watched(move || {
        let setting = InteropSetting::new(programs, secure, schemas);
        let failures = setting.run_all(programs);
        failures.none_or_fail(&setting.programs());
        // They went that way.
        let log = setting.node.program.log();
        assert!(log.contains("transport=\"grpc\""));
        assert!(log.contains("calls of another node are passed on"));
    });
}
