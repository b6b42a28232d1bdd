//! Compressed messages between a gRPC client and a gRPC server that know nothing of Provost: they pass one node, and two, as they came.
//! Both ends are driven by hand, so that the test sees every byte of a message.

#[allow(dead_code, reason = "these tests use a part of it")]
mod authority;
mod grpc_client;
mod raw_grpc;

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use authority::Authority;
use grpc_client::{EchoMessage, place, tcp_listener};
use prost::Message as _;
use provost_e2e::driver::WAIT_MAX;
use provost_e2e::{Node, NodeOptions, World, built, eventually, watched};
use provost_grpc::{
    EncodingSet, GrpcConfig, GrpcConnection, GrpcEvent, GrpcMessage, GrpcStatus, MessageEncoding,
    MessageForm, RequestHead, ResponseHead,
};
use provost_wire::Code;
use raw_grpc::{ByteStream, RawEnd};
use rustix::process::{Pid, Signal, kill_process};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection, StreamOwned};

const ROLE: &str = env!("CARGO_BIN_EXE_e2e-role");
const PROTO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/proto/probe.proto");
const GZIP: MessageEncoding = MessageEncoding::Gzip;
/// It is no gzip: whoever looked into it would refuse it.
const SEALED: &[u8] = b"nobody looks into this";
/// Messages that a node decompresses have so many bytes at most.
const PLAIN_BYTES_MAX: usize = 1 << 20;

/// What came of a call.
#[derive(Debug)]
struct RawAnswer {
    encoding: MessageEncoding,
    messages: Vec<GrpcMessage>,
    status: GrpcStatus,
}

/// How programs that are no nodes prove who they are, and whom they trust.
struct TlsEnds {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl TlsEnds {
    /// With the files of somebody for whom an authority has vouched.
    fn of(directory: &Path, name: &str) -> TlsEnds {
        let file = |kind: &str| directory.join(format!("{name}-{kind}.pem"));
        let certificate = |kind: &str| CertificateDer::from_pem_file(file(kind)).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut trusted = rustls::RootCertStore::empty();
        trusted.add(certificate("ca")).unwrap();
        let client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .unwrap();
        let mut client = client.with_root_certificates(trusted).with_no_client_auth();
        client.alpn_protocols = vec![b"h2".to_vec()];
        let server = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap();
        let key = PrivateKeyDer::from_pem_file(file("key")).unwrap();
        let mut server = server
            .with_no_client_auth()
            .with_single_cert(vec![certificate("cert")], key)
            .unwrap();
        server.alpn_protocols = vec![b"h2".to_vec()];
        TlsEnds {
            client: Arc::new(client),
            server: Arc::new(server),
        }
    }
}

fn socket_to(node: &Node) -> TcpStream {
    let place = place(node, "web");
    let (_, address) = place.split_once("://").unwrap();
    let socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(WAIT_MAX)).unwrap();
    socket
}

/// A client that compresses by gzip.
struct RawClient(RawEnd);

impl RawClient {
    fn of(node: &Node) -> RawClient {
        RawClient::over(Box::new(socket_to(node)))
    }

    fn within_tls(node: &Node, ends: &TlsEnds) -> RawClient {
        let name = "localhost".try_into().unwrap();
        let tls = ClientConnection::new(Arc::clone(&ends.client), name).unwrap();
        RawClient::over(Box::new(StreamOwned::new(tls, socket_to(node))))
    }

    fn over(stream: Box<dyn ByteStream>) -> RawClient {
        RawClient(RawEnd::new(
            GrpcConnection::client(GrpcConfig::default(), 1),
            stream,
        ))
    }

    fn begin(&mut self, method: &str, accepts: &str) -> u32 {
        let head = RequestHead {
            encoding: GZIP,
            accepts: EncodingSet::read(accepts.as_bytes()),
            ..RequestHead::new(format!("/probe.Probe/{method}"))
        };
        let now = self.0.now();
        self.0.grpc.call(&head, now).unwrap()
    }

    fn call(&mut self, method: &str, accepts: &str, messages: &[GrpcMessage]) -> RawAnswer {
        let call = self.begin(method, accepts);
        messages.iter().for_each(|message| self.0.send(call, message));
        let now = self.0.now();
        self.0.grpc.half_close(call, now).unwrap();
        self.answer(call)
    }

    fn answer(&mut self, of: u32) -> RawAnswer {
        let (mut encoding, mut messages) = (MessageEncoding::Identity, Vec::new());
        loop {
            match self.0.next().expect("the node is there") {
                GrpcEvent::Response { call, head } if call == of => encoding = head.encoding,
                GrpcEvent::Message { call, message } if call == of => messages.push(message),
                GrpcEvent::Ended { call, status, .. } if call == of => {
                    return RawAnswer {
                        encoding,
                        messages,
                        status,
                    };
                }
                _ => {}
            }
        }
    }
}

/// A server that answers with the messages that came, as they came: at once, or when the request has ended.
struct RawServer {
    address: SocketAddr,
    _thread: JoinHandle<()>,
}

impl RawServer {
    fn start() -> RawServer {
        RawServer::start_with(|socket| Box::new(socket))
    }

    fn within_tls(ends: &TlsEnds) -> RawServer {
        let config = Arc::clone(&ends.server);
        RawServer::start_with(move |socket| {
            let tls = ServerConnection::new(Arc::clone(&config)).unwrap();
            Box::new(StreamOwned::new(tls, socket))
        })
    }

    fn start_with(wrap: impl Fn(TcpStream) -> Box<dyn ByteStream> + Send + 'static) -> RawServer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let serving = move || {
            for socket in listener.incoming().flatten() {
                socket.set_read_timeout(Some(WAIT_MAX)).unwrap();
                let stream = wrap(socket);
                std::thread::spawn(|| serve(stream));
            }
        };
        RawServer {
            address,
            _thread: std::thread::spawn(serving),
        }
    }
}

fn serve(stream: Box<dyn ByteStream>) {
    let mut end = RawEnd::new(GrpcConnection::server(GrpcConfig::default(), 1), stream);
    let is_over = |error: &dyn std::fmt::Display| println!("a call has ended before: {error}");
    while let Some(event) = end.next() {
        let now = end.now();
        match event {
            GrpcEvent::Request { call, head } => {
                let head = ResponseHead {
                    encoding: head.encoding,
                    ..ResponseHead::default()
                };
                if let Err(error) = end.grpc.respond(call, &head, now) {
                    is_over(&error);
                }
            }
            GrpcEvent::Message { call, message } => end.send(call, &message),
            GrpcEvent::HalfClosed { call } => {
                if let Err(error) = end.grpc.finish(call, &GrpcStatus::ok(), &[], now) {
                    is_over(&error);
                }
            }
            _ => {}
        }
    }
}

/// The node that clients call, one that it leads to perhaps, and the server.
struct CompressedSetting {
    front: Node,
    behind: Option<Node>,
    /// What the configuration of the first has beside its route.
    tables: String,
    _server: RawServer,
    world: World,
}

fn options(tables: String) -> NodeOptions {
    NodeOptions {
        tables,
        ..NodeOptions::default()
    }
}

fn route(transport: &str, endpoint: SocketAddr, more: &str) -> String {
    format!(
        "[[route]]\nservice = \"probe.Probe\"\ntransport = \"{transport}\"\nendpoints = [\"{endpoint}\"]\n{more}"
    )
}

fn listener() -> String {
    tcp_listener("web", "web") + &format!("message_bytes = {PLAIN_BYTES_MAX}\n")
}

/// A table of TLS beside HTTP/2, with these files of a name.
fn tls_table(table: &str, directory: &Path, name: &str, kinds: &[&str]) -> String {
    kinds.iter().fold(format!("[{table}]\n"), |lines, kind| {
        let file = directory.join(format!("{name}-{kind}.pem"));
        lines + &format!("{kind} = \"{}\"\n", file.display())
    })
}

impl CompressedSetting {
    fn of_one_node() -> CompressedSetting {
        let (server, mut world) = (RawServer::start(), World::new(ROLE));
        let front = world.node("one", &options(listener() + &route("grpc", server.address, "")));
        front.operate(&["schema", "prefetch", PROTO]);
        CompressedSetting {
            front,
            behind: None,
            tables: listener(),
            _server: server,
            world,
        }
    }

    fn of_two_nodes() -> CompressedSetting {
        CompressedSetting::of_two_nodes_over("tcp")
    }

    /// Two nodes of which the second listens by both transports at one port number.
    fn of_two_nodes_over(transport: &str) -> CompressedSetting {
        let (server, mut world) = (RawServer::start(), World::new(ROLE));
        let mut behind = world.node("b", &NodeOptions::default());
        let exported = route("grpc", server.address, "export = true\napp = \"front\"\n");
        let datagrams = format!(
            "[[listener]]\ntransport = \"datagram\"\naddress = \"{}\"\n",
            behind.address
        );
        behind.reconfigure(&options(exported + &datagrams));
        behind.restart();
        let tables = listener();
        let routed = tables.clone() + &route(transport, behind.address, "");
        let front = world.node("a", &options(routed));
        for node in [&front, &behind] {
            node.operate(&["schema", "prefetch", PROTO]);
        }
        CompressedSetting {
            front,
            behind: Some(behind),
            tables,
            _server: server,
            world,
        }
    }

    /// One node, or two that meet each other within TLS; so are the client's connection and the server's.
    fn within_tls(node_count: usize) -> (CompressedSetting, TlsEnds) {
        let (authority, mut world) = (Authority::new(), World::new(ROLE));
        let directory = world.directory().to_owned();
        let [tls_front, tls_behind] = ["front", "behind"].map(|name| authority.vouch_for(name, &directory));
        authority.vouch_for("outer", &directory);
        let ends = TlsEnds::of(&directory, "outer");
        let server = RawServer::within_tls(&ends);
        let tables = listener() + &tls_table("grpc.listener.tls", &directory, "outer", &["cert", "key"]);
        let to_server = |more: &str| {
            route("grpc", server.address, more) + &tls_table("route.tls", &directory, "outer", &["ca"])
        };
        let behind = (node_count == 2).then(|| {
            let exported = to_server("export = true\napp = \"front\"\n");
            world.node("b", &options(exported + &tls_behind))
        });
        let onwards = match &behind {
            Some(behind) => route("tcp", behind.address, "") + &tls_front,
            None => to_server(""),
        };
        let front = world.node("a", &options(tables.clone() + &onwards));
        for node in behind.iter().chain([&front]) {
            node.operate(&["schema", "prefetch", PROTO]);
        }
        let setting = CompressedSetting {
            front,
            behind,
            tables,
            _server: server,
            world,
        };
        (setting, ends)
    }

    /// Has the first node reach the second one by this transport from now on.
    fn migrate_to(&mut self, transport: &str) {
        const MIGRATED: &str = "migrated to another transport";
        let endpoint = self.behind.as_ref().expect("two nodes").address;
        let before = self.front.program.log().matches(MIGRATED).count();
        let tables = self.tables.clone() + &route(transport, endpoint, "");
        self.front.reconfigure(&options(tables));
        let serving = Pid::from_raw(self.front.process() as i32).unwrap();
        kill_process(serving, Signal::HUP).unwrap();
        eventually("a connection migrates", WAIT_MAX, || {
            self.front.program.log().matches(MIGRATED).count() > before
        });
    }

    /// Denies calls by a field of their requests.
    fn deny_secrets(&self) {
        self.deny_when("acl", r#"request.text == "secret""#, &["--method", "Echo"]);
    }

    /// Denies what clients of the first node call, by a condition.
    fn deny_when(&self, name: &str, condition: &str, of: &[&str]) {
        let rules = self.world.directory().join(format!("{name}.toml"));
        let deny = format!(
            "default = \"allow\"\n[[rule]]\nname = \"secrets\"\naction = \"deny\"\nwhen = '{condition}'\n"
        );
        std::fs::write(&rules, deny).unwrap();
        let rules = rules.to_str().unwrap();
        let attach = ["policy", "attach", "--kind", "access", "--name", name];
        let more = ["--config", rules, "--side", "client"];
        self.front.operate(&[&attach[..], &more[..], of].concat());
    }
}

fn tested(body: impl FnOnce() + Send + 'static) {
    built::program("provost", "provost-cli", ROLE);
    watched(body);
}

fn message(form: MessageForm, bytes: &[u8]) -> GrpcMessage {
    let bytes = bytes.to_vec();
    GrpcMessage { form, bytes }
}

/// A message of `probe.Echo` in gzip that no node would make: each byte is stored as it is, so the bytes show who has written them.
fn stored(text: &str, payload_bytes: usize) -> Vec<u8> {
    let echo = EchoMessage {
        text: text.to_owned(),
        payload: vec![0; payload_bytes],
        ..EchoMessage::default()
    };
    // Two members (RFC 1952, section 2.2), which decompress to what both have.
    let plain = echo.encode_to_vec();
    let (first, second) = plain.split_at(1);
    [GZIP.compress(first), GZIP.compress(second)].concat()
}

/// Calls of both kinds whose messages nobody may look into.
fn sealed_messages_pass(client: &mut RawClient) {
    let sealed = [message(MessageForm::Compressed, SEALED)];
    let answer = client.call("Echo", "gzip", &sealed);
    assert_eq!(
        (answer.status.code, answer.encoding),
        (Code::Ok, GZIP),
        "{answer:?}"
    );
    assert_eq!(answer.messages, sealed);
    let mixed = [
        message(MessageForm::Compressed, SEALED),
        message(MessageForm::Plain, b"\x0a\x01a"),
        message(MessageForm::Compressed, &[7; 300_000]),
    ];
    let answer = client.call("Chat", "gzip", &mixed);
    assert_eq!(
        (answer.status.code, answer.encoding),
        (Code::Ok, GZIP),
        "{answer:?}"
    );
    assert_eq!(answer.messages, mixed);
}

#[test]
fn compressed_messages_pass_one_node_as_they_came() {
    tested(|| {
        let setting = CompressedSetting::of_one_node();
        sealed_messages_pass(&mut RawClient::of(&setting.front));
    });
}

#[test]
fn compressed_messages_pass_two_nodes_as_they_came() {
    tested(|| {
        let setting = CompressedSetting::of_two_nodes();
        sealed_messages_pass(&mut RawClient::of(&setting.front));
    });
}

#[test]
fn compressed_messages_pass_datagrams_as_they_came() {
    tested(|| {
        let setting = CompressedSetting::of_two_nodes_over("datagram");
        sealed_messages_pass(&mut RawClient::of(&setting.front));
    });
}

#[test]
fn compressed_messages_pass_as_they_came_within_tls() {
    tested(|| {
        for node_count in [1, 2] {
            let (setting, ends) = CompressedSetting::within_tls(node_count);
            let mut client = RawClient::within_tls(&setting.front, &ends);
            sealed_messages_pass(&mut client);
            // A policy that reads fields sees the same messages.
            setting.deny_secrets();
            let mut echo = |text: &str| {
                let sent = [message(MessageForm::Compressed, &stored(text, 10_000))];
                (client.call("Echo", "gzip", &sent), sent)
            };
            let (answer, sent) = echo("open");
            assert_eq!(answer.messages, sent, "{answer:?}");
            let (answer, _) = echo("secret");
            assert_eq!(answer.status.code, Code::PermissionDenied, "{answer:?}");
            let seen = setting.front.operate(&["apps"]);
            assert!(seen.contains("(TLS)"), "{seen}");
        }
    });
}

#[test]
fn compressed_messages_pass_as_they_came_while_connections_migrate() {
    tested(|| {
        let mut setting = CompressedSetting::of_two_nodes();
        let mut client = RawClient::of(&setting.front);
        // With this there is a connection, which migrates.
        sealed_messages_pass(&mut client);
        for transport in ["datagram", "tcp"] {
            // One begins before, goes on meanwhile, and ends behind it.
            let call = client.begin("Chat", "gzip");
            let sent: Vec<GrpcMessage> = (0..12)
                .map(|nth| message(MessageForm::Compressed, &[nth; 10_000]))
                .collect();
            let (before, behind) = sent.split_at(6);
            before.iter().for_each(|message| client.0.send(call, message));
            client.0.write();
            setting.migrate_to(transport);
            behind.iter().for_each(|message| client.0.send(call, message));
            let now = client.0.now();
            client.0.grpc.half_close(call, now).unwrap();
            let answer = client.answer(call);
            assert_eq!((answer.status.code, answer.encoding), (Code::Ok, GZIP));
            assert!(
                answer.messages == sent,
                "every message comes once, in order, as it was"
            );
            sealed_messages_pass(&mut client);
        }
    });
}

#[test]
fn a_client_that_does_not_take_the_servers_encoding_gets_its_messages_plain() {
    tested(|| {
        let setting = CompressedSetting::of_two_nodes();
        let mut client = RawClient::of(&setting.front);
        let sent = stored("open", 1_000);
        let answer = client.call("Echo", "zstd", &[message(MessageForm::Compressed, &sent)]);
        let plain = GZIP.decompress(&sent, u32::MAX).unwrap();
        assert_eq!(
            answer.messages,
            [message(MessageForm::Plain, &plain)],
            "{answer:?}"
        );
        let answer = client.call("Echo", "zstd", &[message(MessageForm::Compressed, SEALED)]);
        assert_eq!(answer.status.code, Code::Internal, "{answer:?}");
    });
}

#[test]
fn a_policy_on_a_field_judges_what_is_compressed_and_what_goes_on_is_what_came() {
    tested(|| {
        for setting in [
            CompressedSetting::of_one_node(),
            CompressedSetting::of_two_nodes(),
        ] {
            setting.deny_secrets();
            let mut client = RawClient::of(&setting.front);
            let mut echo =
                |bytes: &[u8]| client.call("Echo", "gzip", &[message(MessageForm::Compressed, bytes)]);
            let open = stored("open", 10_000);
            let answer = echo(&open);
            assert_eq!(
                answer.messages,
                [message(MessageForm::Compressed, &open)],
                "{answer:?}"
            );
            let answer = echo(&stored("secret", 10_000));
            assert_eq!(answer.status.code, Code::PermissionDenied, "{answer:?}");
            // Who cannot read a message does not let it pass: one that is damaged, and one that grows over the bound.
            for unreadable in [SEALED.to_vec(), stored("open", PLAIN_BYTES_MAX)] {
                let answer = echo(&unreadable);
                assert_eq!(answer.status.code, Code::PermissionDenied, "{answer:?}");
            }
            setting.front.operate(&["policy", "detach", "acl"]);
            // Nobody reads it now, so nobody minds.
            assert_eq!(echo(SEALED).status.code, Code::Ok);
        }
    });
}

/// Policies that read no message look into none: what is neither protobuf nor gzip passes them, on every node.
#[test]
fn policies_that_read_no_field_look_into_no_message() {
    tested(|| {
        for setting in [
            CompressedSetting::of_one_node(),
            CompressedSetting::of_two_nodes(),
        ] {
            for node in setting.behind.iter().chain([&setting.front]) {
                node.operate(&["policy", "attach", "--kind", "null"]);
                node.operate(&["policy", "attach", "--kind", "metrics"]);
            }
            setting.deny_when("roles", r#""role" in metadata"#, &[]);
            let mut client = RawClient::of(&setting.front);
            let mut call = |method: &str, form: MessageForm| {
                let sent = [message(form, SEALED)];
                (client.call(method, "gzip", &sent), sent)
            };
            let forms = [MessageForm::Plain, MessageForm::Compressed];
            for (form, method) in forms
                .into_iter()
                .flat_map(|form| [(form, "Echo"), (form, "Chat")])
            {
                let (answer, sent) = call(method, form);
                assert_eq!(answer.status.code, Code::Ok, "{method}: {answer:?}");
                assert_eq!(answer.messages, sent);
            }
            // One that reads a field has to look.
            setting.deny_secrets();
            for form in forms {
                let (answer, _) = call("Echo", form);
                assert_eq!(answer.status.code, Code::PermissionDenied, "{answer:?}");
            }
        }
    });
}

#[test]
fn a_tap_shows_what_is_compressed_and_what_goes_on_is_what_came() {
    tested(|| {
        let setting = CompressedSetting::of_two_nodes();
        let attach = ["policy", "attach", "--kind", "tap", "--name", "tap"];
        let more = ["--method", "Echo", "--side", "client"];
        setting.front.operate(&[&attach[..], &more[..]].concat());
        let mut reader = Command::new(built::program("provost", "provost-cli", ROLE))
            .args(["tap", "-n", "1", "--json"])
            .env("PROVOST_ADMIN_SOCKET", &setting.front.admin_socket)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut client = RawClient::of(&setting.front);
        let open = [message(MessageForm::Compressed, &stored("a tap reads this", 100))];
        // Nobody knows when the reader has begun to look.
        while reader.try_wait().unwrap().is_none() {
            let answer = client.call("Echo", "gzip", &open);
            assert_eq!(answer.messages, open, "{answer:?}");
        }
        let shown = reader.wait_with_output().unwrap();
        let shown = String::from_utf8_lossy(&shown.stdout);
        assert!(shown.contains("a tap reads this"), "{shown}");
    });
}

#[test]
fn hot_restarts_go_on_with_compressed_messages_that_are_held() {
    tested(|| {
        for mut setting in [
            CompressedSetting::of_one_node(),
            CompressedSetting::of_two_nodes(),
        ] {
            let mut client = RawClient::of(&setting.front);
            let call = client.begin("Chat", "gzip");
            // More than the windows let through: the client reads none of its replies meanwhile.
            let sent: Vec<GrpcMessage> = (0..12)
                .map(|nth| message(MessageForm::Compressed, &[nth; 10_000]))
                .collect();
            sent.iter().for_each(|message| client.0.send(call, message));
            client.0.write();
            std::thread::sleep(Duration::from_millis(200));
            println!("{:?}", setting.front.replace());
            let now = client.0.now();
            client.0.grpc.half_close(call, now).unwrap();
            let answer = client.answer(call);
            assert_eq!(answer.status.code, Code::Ok);
            assert_eq!(answer.encoding, GZIP);
            let plain = |message: &GrpcMessage| message.form == MessageForm::Plain;
            assert!(!answer.messages.iter().any(plain));
            assert!(
                answer.messages == sent,
                "every message comes once, in order, as it was"
            );
        }
    });
}
