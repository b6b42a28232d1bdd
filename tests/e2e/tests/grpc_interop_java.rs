//! The cases of gRPC's interoperability tests that its Go client does not have, about compression, with its Java client: no node,
//! one, and two. They need Java and Maven, so `cargo xtask pairs` runs them.
//!
//! Java's own server answers those in which the server compresses. Those in which the client does begin with a probe, which
//! Java's server does not refuse as `doc/interop-test-descriptions.md` has it: there a server of this test answers, by
//! that text.

mod grpc_client;
#[allow(dead_code, reason = "another test uses the rest of it")]
mod languages;
mod raw_grpc;

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use grpc_client::tcp_listener;
use languages::{free_address, place_of, prepared};
use prost::Message;
use provost_e2e::driver::WAIT_MAX;
use provost_e2e::{NodeOptions, Program, World, eventually};
use provost_grpc::{
    GrpcConfig, GrpcConnection, GrpcEvent, GrpcMessage, GrpcStatus, MessageEncoding, MessageForm,
    ResponseHead,
};
use provost_wire::Code;
use raw_grpc::RawEnd;

const ROLE: &str = env!("CARGO_BIN_EXE_e2e-role");
const JAVA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../interop/java");
const PROGRAMS: &str = "io.grpc.testing.integration.TestService";
const MESSAGE_BYTES_MAX: u32 = 1 << 20;

#[derive(Clone, PartialEq, Message)]
struct BoolValue {
    #[prost(bool, tag = "1")]
    value: bool,
}

#[derive(Clone, PartialEq, Message)]
struct InteropPayload {
    #[prost(bytes = "vec", tag = "2")]
    body: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct SimpleRequest {
    #[prost(int32, tag = "2")]
    response_size: i32,
    #[prost(message, optional, tag = "8")]
    expect_compressed: Option<BoolValue>,
}

#[derive(Clone, PartialEq, Message)]
struct SimpleResponse {
    #[prost(message, optional, tag = "1")]
    payload: Option<InteropPayload>,
}

#[derive(Clone, PartialEq, Message)]
struct StreamedRequest {
    #[prost(message, optional, tag = "1")]
    payload: Option<InteropPayload>,
    #[prost(message, optional, tag = "2")]
    expect_compressed: Option<BoolValue>,
}

#[derive(Clone, PartialEq, Message)]
struct StreamedResponse {
    #[prost(int32, tag = "1")]
    aggregated_payload_size: i32,
}

/// A call that the server of the test answers.
struct AnsweredCall {
    method: String,
    encoding: MessageEncoding,
    /// What all messages together had of payload.
    payload_bytes: i32,
    response: Vec<u8>,
    /// Whether each message came compressed where it said so, and plain where not.
    is_as_expected: bool,
}

impl AnsweredCall {
    /// Takes a message; whether it came as it said.
    fn take(&mut self, message: GrpcMessage) -> bool {
        let is_compressed = message.form == MessageForm::Compressed;
        let plain = message.into_plain(self.encoding, MESSAGE_BYTES_MAX).unwrap();
        let expected = match self.method.as_str() {
            "UnaryCall" => {
                let request = SimpleRequest::decode(&*plain).unwrap();
                let body = vec![0; request.response_size as usize];
                let payload = Some(InteropPayload { body });
                self.response = SimpleResponse { payload }.encode_to_vec();
                request.expect_compressed
            }
            _ => {
                let request = StreamedRequest::decode(&*plain).unwrap();
                self.payload_bytes += request.payload.map_or(0, |payload| payload.body.len() as i32);
                let aggregated_payload_size = self.payload_bytes;
                let response = StreamedResponse {
                    aggregated_payload_size,
                };
                self.response = response.encode_to_vec();
                request.expect_compressed
            }
        };
        self.is_as_expected &= expected.is_none_or(|expected| expected.value == is_compressed);
        self.is_as_expected
    }
}

/// Serves one connection of `grpc.testing.TestService`, whose calls come one after the other.
fn serve(socket: TcpStream) {
    let mut end = RawEnd::new(GrpcConnection::server(GrpcConfig::default(), 1), Box::new(socket));
    let mut answered = None;
    while let Some(event) = end.next() {
        match event {
            GrpcEvent::Request { head, .. } => {
                let (_, method) = head.path.rsplit_once('/').unwrap();
                answered = Some(AnsweredCall {
                    method: method.to_owned(),
                    encoding: head.encoding,
                    payload_bytes: 0,
                    response: Vec::new(),
                    is_as_expected: true,
                });
            }
            // A call that was refused may go on saying something.
            GrpcEvent::Message { call, message } => {
                let as_expected = answered.as_mut().is_none_or(|answered| answered.take(message));
                if !as_expected && let Some(refused) = answered.take() {
                    answer(&mut end, call, refused);
                }
            }
            GrpcEvent::HalfClosed { call } => {
                if let Some(answered) = answered.take() {
                    answer(&mut end, call, answered);
                }
            }
            _ => {}
        }
    }
}

fn answer(end: &mut RawEnd, call: u32, answered: AnsweredCall) {
    let now = end.now();
    end.grpc.respond(call, &ResponseHead::default(), now).unwrap();
    let status = if answered.is_as_expected {
        let response = GrpcMessage {
            form: MessageForm::Plain,
            bytes: answered.response,
        };
        end.send(call, &response);
        GrpcStatus::ok()
    } else {
        GrpcStatus::new(Code::InvalidArgument, "a message is not compressed as it says")
    };
    end.grpc.finish(call, &status, &[], now).unwrap();
}

fn serve_by_the_text() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            std::thread::spawn(|| serve(socket));
        }
    });
    address
}

/// Java's programs with all that they need; `None` where Java or Maven is missing, said as the tests say it.
fn java_libraries() -> Option<PathBuf> {
    let folder = Path::new(ROLE).with_file_name("interop-java");
    let mut fetch = Command::new("mvn");
    fetch.current_dir(JAVA);
    fetch.args(["--quiet", "--batch-mode", "dependency:copy-dependencies"]);
    fetch.arg(format!("-DoutputDirectory={}", folder.display()));
    prepared(&mut fetch, "mvn", "a JDK, and Maven")?;
    Some(folder)
}

fn java(libraries: &Path, program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("java");
    command.args(["-classpath", &format!("{}/*", libraries.display())]);
    command.arg(format!("{PROGRAMS}{program}")).args(arguments);
    command
}

/// Has Java's client, which gives up by itself, ask for cases against a server: without a node, through one, and through two. What failed.
fn failures(
    libraries: &Path,
    world: &mut World,
    name: &str,
    server: SocketAddr,
    cases: &[&str],
) -> Vec<String> {
    let route = |transport: &str, endpoint: SocketAddr, more: &str| NodeOptions {
        tables: format!(
            "{}[[route]]\nservice = \"grpc.testing.TestService\"\ntransport = \"{transport}\"\nendpoints = [\"{endpoint}\"]\n{more}",
            tcp_listener("web", "web")
        ),
        ..NodeOptions::default()
    };
    let exported = route("grpc", server, "export = true\napp = \"front\"\n");
    let one = world.node(&format!("{name}-one"), &exported);
    let two = world.node(&format!("{name}-two"), &route("tcp", one.address, ""));
    let places = [server.to_string(), place_of(&one), place_of(&two)];
    let mut failures = Vec::new();
    for case in cases {
        for (between, place) in places.iter().enumerate() {
            let (host, port) = place.rsplit_once(':').unwrap();
            let asked = [
                "--use_tls=false".to_owned(),
                format!("--server_host={host}"),
                format!("--server_port={port}"),
                format!("--test_case={case}"),
            ];
            let asked = asked.each_ref().map(String::as_str);
            let output = java(libraries, "Client", &asked).output().unwrap();
            println!("{case}, {between} nodes: {}", output.status);
            if !output.status.success() {
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                failures.push(format!("{case}, {between} nodes between: {said}"));
            }
        }
    }
    failures
}

#[test]
#[ignore = "needs Java and Maven: cargo xtask pairs"]
fn javas_client_compresses_requests_as_its_server_is_told() {
    let Some(libraries) = java_libraries() else {
        return;
    };
    let mut world = World::new(ROLE);
    let cases = ["client_compressed_unary", "client_compressed_streaming"];
    let failures = failures(&libraries, &mut world, "text", serve_by_the_text(), &cases);
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
#[ignore = "needs Java and Maven: cargo xtask pairs"]
fn javas_client_and_server_pass_the_cases_in_which_the_server_compresses() {
    let Some(libraries) = java_libraries() else {
        return;
    };
    let mut world = World::new(ROLE);
    let address = free_address();
    let port = format!("--port={}", address.port());
    let command = java(&libraries, "Server", &["--use_tls=false", &port]);
    let _server = Program::start("java-server", command, world.directory());
    eventually("Java's server listens", WAIT_MAX, || {
        TcpStream::connect(address).is_ok()
    });
    let cases = ["server_compressed_unary", "server_compressed_streaming"];
    let failures = failures(&libraries, &mut world, "java", address, &cases);
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
