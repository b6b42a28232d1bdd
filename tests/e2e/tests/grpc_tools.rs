//! Tools that gRPC's users have, as they are: `ghz` and `h2load` make calls through a node and through two, and
//! `grpc_health_probe` asks a node whether it serves. The server counts what has come.

mod grpc_client;
#[path = "grpc_out/tonic_probe.rs"]
mod tonic_probe;

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use grpc_client::{GrpcProbe, HoldRequest, place, routed, run};
use prost::Message as _;
use provost_e2e::{Node, World, built, watched};
use serde_json::Value;
use tonic_probe::TonicServer;

const ROLE: &str = env!("CARGO_BIN_EXE_e2e-role");
const PROTO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/proto/probe.proto");
/// The versions that the module proxy has: the newest of both in November 2026.
const GHZ: &str = "github.com/bojand/ghz/cmd/ghz@v0.93.0";
const HEALTH_PROBE: &str = "github.com/grpc-ecosystem/grpc-health-probe@v0.4.62";
/// How `grpc_health_probe` ends where a service does not serve, and where it is not known.
const NOT_SERVING: i32 = 4;
const NOT_KNOWN: i32 = 3;

/// A program of a Go module, built once; none where there is no Go, said as the tests say it.
fn of_module(name: &str, module: &str) -> Option<PathBuf> {
    let folder = Path::new(ROLE).with_file_name("tools");
    let program = folder.join(name);
    if program.exists() {
        return Some(program);
    }
    let mut install = Command::new("go");
    match install.args(["install", module]).env("GOBIN", &folder).output() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            provost_skip::missing("go", "https://go.dev/dl");
            None
        }
        output => {
            let output = output.unwrap();
            assert!(output.status.success(), "go install {module}: {}", said(&output));
            Some(program)
        }
    }
}

fn said(output: &Output) -> String {
    [&output.stdout, &output.stderr]
        .map(|bytes| String::from_utf8_lossy(bytes))
        .concat()
}

/// A tonic server, a node that leads to it, and one that leads to that node.
struct ToolSetting {
    one: Node,
    two: Node,
    /// A client of the server itself.
    direct: GrpcProbe,
    world: World,
    _server: TonicServer,
}

impl ToolSetting {
    fn new() -> ToolSetting {
        let server = TonicServer::start();
        let mut world = World::new(ROLE);
        let exported = routed("grpc", server.address, "export = true\napp = \"front\"\n");
        let one = world.node("one", &exported);
        let two = world.node("two", &routed("tcp", one.address, ""));
        for node in [&one, &two] {
            node.operate(&["schema", "prefetch", PROTO]);
        }
        ToolSetting {
            one,
            two,
            direct: GrpcProbe::at(&format!("http://{}", server.address)),
            world,
            _server: server,
        }
    }

    /// Where clients call through one node, and through two.
    fn placements(&self) -> [(&'static str, String); 2] {
        [("one", &self.one), ("two", &self.two)].map(|(name, node)| (name, address_of(node)))
    }

    /// So many calls were carried out under a key, each once.
    fn assert_carried_out(&self, key: &str, calls: u64) {
        let counts = run(self.direct.counts(key));
        assert_eq!(
            (counts.begun, counts.finished),
            (calls, calls),
            "{key}: {counts:?}"
        );
    }
}

fn address_of(node: &Node) -> String {
    place(node, "web").replace("http://", "")
}

/// Runs a test's body within a limit. Whatever has to be built is built before.
fn tested(body: impl FnOnce() + Send + 'static) {
    built::program("provost", "provost-cli", ROLE);
    watched(body);
}

/// What ghz reports of so many calls of a method.
fn reported(ghz: &Path, address: &str, method: &str, data: &str, calls: u64) -> Value {
    let mut command = Command::new(ghz);
    command.args([
        "--insecure",
        "--format=json",
        "--connections=8",
        "--concurrency=32",
    ]);
    let (call, total) = (format!("--call={method}"), format!("--total={calls}"));
    let output = command.args([&call, &total, "--data", data, address]).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", said(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// It brings no schema: what it calls the node tells it by reflection.
#[test]
fn ghz_makes_calls_through_a_node_and_through_two() {
    const CALLS: u64 = 2_000;
    const STREAMS: u64 = 100;
    let Some(ghz) = of_module("ghz", GHZ) else {
        return;
    };
    tested(move || {
        let setting = ToolSetting::new();
        for (name, address) in setting.placements() {
            let asked = format!("{{\"key\": \"ghz-{name}\"}}");
            let unary = reported(&ghz, &address, "probe.Probe.Hold", &asked, CALLS);
            let streamed = format!("{{\"key\": \"pour-{name}\", \"count\": 50, \"bytes\": 1000}}");
            let streams = reported(&ghz, &address, "probe.Probe.Pour", &streamed, STREAMS);
            for (report, calls) in [(unary, CALLS), (streams, STREAMS)] {
                println!("{name}: {calls} calls, average {} ns", report["average"]);
                assert_eq!(report["count"], calls, "{report}");
                let only_ok = serde_json::json!({ "OK": calls });
                assert_eq!(report["statusCodeDistribution"], only_ok, "{report}");
            }
            setting.assert_carried_out(&format!("ghz-{name}"), CALLS);
            setting.assert_carried_out(&format!("pour-{name}"), STREAMS);
        }
    });
}

/// Has h2load make so many requests, of which each has a status of 200; none where there is no h2load, said as the tests say it.
fn load_http2(url: &str, more: &[&OsStr], requests: u64) -> Option<()> {
    let mut command = Command::new("h2load");
    command.args(["-c", "8", "-m", "16", "-n", &requests.to_string()]);
    command.args(["-H", "content-type: application/grpc", "-H", "te: trailers"]);
    let output = match command.args(more).arg(url).output() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            provost_skip::missing("h2load", "apt-get install nghttp2-client");
            return None;
        }
        output => output.unwrap(),
    };
    let said = said(&output);
    let succeeded = format!("{requests} done, {requests} succeeded, 0 failed, 0 errored, 0 timeout");
    for part in [succeeded, format!("status codes: {requests} 2xx")] {
        assert!(said.contains(&part), "{said}");
    }
    Some(())
}

fn held(key: &str) -> Vec<u8> {
    let asked = HoldRequest {
        key: key.to_owned(),
        milliseconds: 0,
    };
    asked.encode_to_vec()
}

/// It knows HTTP/2 and nothing of gRPC. Calls that fail have a status of 200 too, so the server says what it has carried out.
#[test]
fn h2load_makes_calls_through_a_node_and_through_two() {
    const CALLS: u64 = 4_000;
    tested(|| {
        let setting = ToolSetting::new();
        for (name, address) in setting.placements() {
            let url = format!("http://{address}/probe.Probe/Hold");
            let key = format!("h2load-{name}");
            let message = held(&key);
            let body = setting.world.directory().join("body");
            let prefix = (message.len() as u32).to_be_bytes();
            std::fs::write(&body, [&[0][..], &prefix, &message].concat()).unwrap();
            let Some(()) = load_http2(&url, &["-d".as_ref(), body.as_ref()], CALLS) else {
                return;
            };
            setting.assert_carried_out(&key, CALLS);

            // Requests that caches may answer: GET, with the message in the query.
            let key = format!("get-{name}");
            let url = format!("{url}?{}", BASE64_URL_SAFE_NO_PAD.encode(held(&key)));
            load_http2(&url, &[], CALLS);
            setting.assert_carried_out(&key, CALLS);
        }
    });
}

#[test]
fn grpc_health_probe_is_told_whether_a_node_serves() {
    let Some(program) = of_module("grpc-health-probe", HEALTH_PROBE) else {
        return;
    };
    tested(move || {
        let setting = ToolSetting::new();
        let asked = |address: &str, service: &str| {
            let output = Command::new(&program)
                .args(["-addr", address, "-service", service])
                .output()
                .unwrap();
            (output.status.code(), said(&output))
        };
        for (_, address) in setting.placements() {
            for service in ["", "probe.Probe"] {
                let (code, said) = asked(&address, service);
                assert!(code == Some(0) && said.contains("status: SERVING"), "{said}");
            }
            let (code, said) = asked(&address, "probe.Prob");
            assert!(code == Some(NOT_KNOWN) && said.contains("NotFound"), "{said}");
        }

        // Nobody listens there.
        let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut world = World::new(ROLE);
        let node = world.node("alone", &routed("grpc", nobody, ""));
        node.operate(&["schema", "prefetch", PROTO]);
        run(GrpcProbe::at(&place(&node, "web")).echo("a")).unwrap_err();
        let (code, said) = asked(&address_of(&node), "probe.Probe");
        assert!(
            code == Some(NOT_SERVING) && said.contains("NOT_SERVING"),
            "{said}"
        );
    });
}
