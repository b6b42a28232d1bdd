//! gRPC within TLS, in and out of a node, with tonic as it is on the other side; and servers at Unix sockets.

mod authority;
mod grpc_client;
#[path = "grpc_out/tonic_probe.rs"]
mod tonic_probe;

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use authority::Authority;
use grpc_client::traffic::{CountingProxy, SteadyTraffic};
use grpc_client::{DripMessage, EchoMessage, FillReply, GrpcProbe, PourRequest, place, run, spawn};
use provost_e2e::driver::WAIT_MAX;
use provost_e2e::scrape::{metrics, value};
use provost_e2e::successor::Fault;
use provost_e2e::{Node, NodeOptions, World, built, eventually, watched};
use rcgen::CertificateParams;
use rustix::net::{AddressFamily, SocketType};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConnection, StreamOwned};
use tonic::transport::{Certificate, ClientTlsConfig, Identity, ServerTlsConfig};
use tonic::{Code, Status};
use tonic_probe::TonicServer;

const ROLE: &str = env!("CARGO_BIN_EXE_e2e-role");
const PROTO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/proto/probe.proto");
const LOCAL: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// The files of somebody for whom an authority has vouched.
struct VouchedFiles {
    directory: PathBuf,
    name: String,
}

impl VouchedFiles {
    /// With the names `localhost`, 127.0.0.1 and `spiffe://test/NAME`.
    fn new(authority: &Authority, name: &str, directory: &Path) -> VouchedFiles {
        authority.vouch_for(name, directory);
        VouchedFiles {
            directory: directory.to_owned(),
            name: name.to_owned(),
        }
    }

    fn path(&self, kind: &str) -> PathBuf {
        self.directory.join(format!("{}-{kind}.pem", self.name))
    }

    fn text(&self, kind: &str) -> String {
        std::fs::read_to_string(self.path(kind)).unwrap()
    }

    /// Keys of a table of the node's configuration.
    fn keys(&self, kinds: &[&str]) -> String {
        kinds.iter().fold(String::new(), |mut keys, kind| {
            writeln!(keys, "{kind} = \"{}\"", self.path(kind).display()).unwrap();
            keys
        })
    }

    fn identity(&self) -> Identity {
        Identity::from_pem(self.text("cert"), self.text("key"))
    }

    fn authority(&self) -> Certificate {
        Certificate::from_pem(self.text("ca"))
    }

    /// A client that trusts this one's authority.
    fn client(&self) -> ClientTlsConfig {
        ClientTlsConfig::new()
            .ca_certificate(self.authority())
            .domain_name("localhost")
    }

    fn server(&self) -> ServerTlsConfig {
        ServerTlsConfig::new().identity(self.identity())
    }
}

/// A listener with these lines in its `tls`.
fn listener(tls: &str) -> String {
    grpc_client::tcp_listener("web", "web") + "[grpc.listener.tls]\n" + tls
}

/// A route to a gRPC server, with these lines in its `tls`.
fn route(endpoint: &str, tls: &str) -> String {
    format!(
        "[[route]]\nservice = \"probe.Probe\"\ntransport = \"grpc\"\nendpoints = [\"{endpoint}\"]\n[route.tls]\n{tls}"
    )
}

fn options(tables: String) -> NodeOptions {
    NodeOptions {
        tables,
        ..NodeOptions::default()
    }
}

/// A node that knows the schema.
fn node_with(world: &mut World, tables: String) -> Node {
    let node = world.node("one", &options(tables));
    node.operate(&["schema", "prefetch", PROTO]);
    node
}

/// Runs a test's body within a limit. Whatever has to be built is built before.
fn tested(body: impl FnOnce() + Send + 'static) {
    built::program("provost", "provost-cli", ROLE);
    watched(body);
}

fn drips(count: u32) -> impl tonic::codegen::tokio_stream::Stream<Item = DripMessage> + Send + 'static {
    let drip = |number| DripMessage {
        number,
        payload: vec![number as u8; 3_000 * number as usize],
    };
    tonic::codegen::tokio_stream::iter((1..=count).map(drip))
}

/// Calls of all kinds, with messages of many records of TLS.
async fn calls_of_all_kinds(probe: &GrpcProbe) {
    for bytes in [0, 100, 300_000, 3_000_000] {
        let message = EchoMessage {
            text: "text".to_owned(),
            payload: (0..=250).cycle().take(bytes).collect(),
            ..EchoMessage::default()
        };
        let reply = probe.unary::<_, EchoMessage>("Echo", message.clone()).await;
        assert!(reply.unwrap() == message, "{bytes}");
    }
    let request = PourRequest {
        count: 300,
        bytes: 20_000,
        ..PourRequest::default()
    };
    let mut pour = probe
        .server_streaming::<_, DripMessage>("Pour", request)
        .await
        .unwrap();
    let mut count = 0;
    while let Some(drip) = pour.message().await.unwrap() {
        count += 1;
        assert_eq!((drip.number, drip.payload.len()), (count, 20_000));
    }
    assert_eq!(count, 300);
    let filled: FillReply = probe.client_streaming("Fill", drips(100)).await.unwrap();
    assert_eq!((filled.count, filled.bytes), (100, 15_150_000));
    let mut chat = probe
        .streaming::<_, DripMessage>("Chat", drips(50))
        .await
        .unwrap();
    let mut answered = 0;
    while let Some(drip) = chat.message().await.unwrap() {
        answered += 1;
        assert_eq!(drip.payload.len(), 3_000 * answered as usize);
    }
    assert_eq!(answered, 50);
}

fn refused(outcome: Result<String, Status>) -> String {
    let status = outcome.expect_err("it should have failed");
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    status.message().to_owned()
}

#[test]
fn clients_call_within_tls_and_know_the_node_by_its_certificate() {
    tested(|| {
        let (authority, mut world) = (Authority::new(), World::new(ROLE));
        let files = VouchedFiles::new(&authority, "one", world.directory());
        let node = node_with(&mut world, listener(&files.keys(&["cert", "key"])));
        let _server = world.server(&node);
        let place = place(&node, "web");
        let probe = GrpcProbe::within_tls(&place, files.client());
        run(calls_of_all_kinds(&probe));
        let status = node.operate(&["status"]);
        assert!(status.contains("web, TLS, 1 client"), "{status}");
        assert!(node.operate(&["apps"]).contains("(TLS)"));

        // Who trusts another authority, or expects another name, does not call.
        let other = VouchedFiles::new(&Authority::new(), "other", world.directory());
        let stranger = GrpcProbe::within_tls(&place, other.client());
        assert!(run(stranger.echo("a")).is_err());
        let misled = GrpcProbe::within_tls(&place, files.client().domain_name("else.test"));
        assert!(run(misled.echo("a")).is_err());
        assert_eq!(run(probe.echo("still")).unwrap(), "still");
    });
}

#[test]
fn clients_prove_who_they_are_and_policies_know_it() {
    tested(|| {
        let (authority, mut world) = (Authority::new(), World::new(ROLE));
        let files = VouchedFiles::new(&authority, "one", world.directory());
        let friend = VouchedFiles::new(&authority, "friend", world.directory());
        let guest = VouchedFiles::new(&authority, "guest", world.directory());
        let stranger = VouchedFiles::new(&Authority::new(), "stranger", world.directory());
        let tls = files.keys(&["cert", "key", "ca"]) + "client_auth = \"required\"\n";
        let mut node = node_with(&mut world, listener(&tls));
        let _server = world.server(&node);
        let at = place(&node, "web");
        let of = |own: &VouchedFiles| GrpcProbe::within_tls(&at, files.client().identity(own.identity()));
        let anonymous = GrpcProbe::within_tls(&at, files.client());
        let (by_friend, by_guest) = (of(&friend), of(&guest));
        run(calls_of_all_kinds(&by_friend));
        assert_eq!(run(by_guest.echo("a")).unwrap(), "a");
        assert!(run(of(&stranger).echo("a")).is_err());
        assert!(run(anonymous.echo("a")).is_err());
        assert!(node.operate(&["apps"]).contains("(TLS, spiffe://test/friend)"));
        eventually("it is said why", WAIT_MAX, || {
            node.program.log().contains("has no certificate")
        });

        // Policies at both ends know who calls.
        for (side, name) in [("client", "app.workload"), ("server", "peer.identity")] {
            let rules = world.directory().join("acl.toml");
            let allow = format!(
                "default = \"deny\"\n[[rule]]\nname = \"friends\"\naction = \"allow\"\nwhen = '{name} == \"spiffe://test/friend\"'\n"
            );
            std::fs::write(&rules, allow).unwrap();
            let attach = [
                "policy", "attach", "--kind", "access", "--name", "acl", "--side", side, "--config",
            ];
            node.operate(&[&attach[..], &[rules.to_str().unwrap()]].concat());
            assert_eq!(run(by_friend.echo("a")).unwrap(), "a", "{side}");
            let denied = run(by_guest.echo("a")).unwrap_err();
            assert_eq!(denied.code(), Code::PermissionDenied, "{side}: {denied}");
            node.operate(&["policy", "detach", "acl"]);
        }

        // A list says who may call.
        let listed = tls.clone() + "allow_clients = [\"spiffe://test/f*\"]\n";
        node.reconfigure(&options(listener(&listed)));
        node.operate(&["config", "reload"]);
        let denied = run(of(&guest).echo("a")).unwrap_err();
        assert_eq!(denied.code(), Code::PermissionDenied, "{denied}");
        assert!(denied.message().contains("allow_clients"), "{denied}");
        assert_eq!(run(of(&friend).echo("a")).unwrap(), "a");

        // Where a certificate is optional, none is as good as one, but not one of a stranger.
        node.reconfigure(&options(listener(&tls.replace("required", "optional"))));
        node.operate(&["config", "reload"]);
        let anonymous = GrpcProbe::within_tls(&at, files.client());
        assert_eq!(run(anonymous.echo("a")).unwrap(), "a");
        assert_eq!(run(of(&friend).echo("a")).unwrap(), "a");
        assert!(run(of(&stranger).echo("a")).is_err());
    });
}

/// A node whose clients call a server by a route with this `tls`, in cleartext.
fn node_towards(world: &mut World, endpoint: &str, tls: &str) -> (Node, GrpcProbe) {
    let tables = grpc_client::tcp_listener("web", "web") + &route(endpoint, tls);
    let node = node_with(world, tables);
    let probe = GrpcProbe::at(&place(&node, "web"));
    (node, probe)
}

/// Where the system's authorities are for one program: OpenSSL's variables, and what they are set to.
type SystemRoots<'a> = [(&'static str, &'a Path)];

/// What starts a node for which these are the system's authorities.
fn launcher(roots: &SystemRoots) -> &'static [&'static str] {
    let unset = ["env", "-u", "SSL_CERT_FILE", "-u", "SSL_CERT_DIR"].map(str::to_owned);
    let set = roots
        .iter()
        .map(|(variable, path)| format!("{variable}={}", path.display()));
    let words = unset.into_iter().chain(set);
    // The options of a node name what is there for ever.
    let words: Vec<&'static str> = words.map(|word| &*word.leak()).collect();
    words.leak()
}

#[test]
fn a_server_is_called_by_the_authorities_of_the_system() {
    tested(|| {
        let (authority, mut world) = (Authority::new(), World::new(ROLE));
        let files = VouchedFiles::new(&authority, "server", world.directory());
        let other = VouchedFiles::new(&Authority::new(), "other", world.directory());
        let server = TonicServer::within_tls(LOCAL, files.server());
        let endpoint = format!("localhost:{}", server.address.port());
        let tables = grpc_client::tcp_listener("web", "web") + &route(&endpoint, "");
        // As a distribution has it: files by the hash of whom they are about.
        let folder = world.directory().join("roots");
        std::fs::create_dir(&folder).unwrap();
        std::fs::copy(files.path("ca"), folder.join("0123abcd.0")).unwrap();
        let mut outcome = |name: &str, roots: &SystemRoots| {
            let options = NodeOptions {
                launcher: launcher(roots),
                ..options(tables.clone())
            };
            let node = world.node(name, &options);
            node.operate(&["schema", "prefetch", PROTO]);
            run(GrpcProbe::at(&place(&node, "web")).echo("a"))
        };
        let file = outcome("file", &[("SSL_CERT_FILE", &files.path("ca"))]);
        assert_eq!(file.unwrap(), "a");
        assert_eq!(outcome("folder", &[("SSL_CERT_DIR", &folder)]).unwrap(), "a");
        let denied = refused(outcome("stranger", &[("SSL_CERT_FILE", &other.path("ca"))]));
        assert!(
            denied.contains("UnknownIssuer") || denied.contains("authority"),
            "{denied}"
        );
    });
}

#[test]
fn a_system_without_authorities_is_told_of_before_a_node_starts() {
    let command = built::program("provost", "provost-cli", ROLE);
    let daemon = built::program("provostd", "provostd", ROLE);
    watched(move || {
        let world = World::new(ROLE);
        let file = world.directory().join("checked.toml");
        std::fs::write(&file, route("localhost:1", "")).unwrap();
        let (empty, gone) = (
            world.directory().join("empty.pem"),
            world.directory().join("gone.pem"),
        );
        std::fs::write(&empty, "").unwrap();
        let authority = Authority::new();
        let good = VouchedFiles::new(&authority, "good", world.directory()).path("ca");
        let checked = |program: &Path, arguments: &[&str], roots: &Path| {
            let mut check = Command::new(program);
            let check = check.args(arguments).arg(&file).env_remove("SSL_CERT_DIR");
            let output = check.env("SSL_CERT_FILE", roots).output().unwrap();
            (
                output.status.code(),
                String::from_utf8_lossy(&output.stderr).into_owned(),
            )
        };
        for (program, arguments, code) in [
            (&command, &["config", "check"][..], 5),
            (&daemon, &["--check-config", "--config"][..], 2),
        ] {
            for missing in [&empty, &gone] {
                let (found, said) = checked(program, arguments, missing);
                assert_eq!(found, Some(code), "{said}");
                let place = missing.display().to_string();
                for part in ["route[0].tls", "ca-certificates", "SSL_CERT_FILE", &place] {
                    assert!(said.contains(part), "it does not say {part}: {said}");
                }
            }
            let (found, said) = checked(program, arguments, &good);
            assert_eq!(found, Some(0), "{said}");
        }
    });
}

#[test]
fn a_server_is_called_within_tls_and_both_ends_prove_who_they_are() {
    tested(|| {
        let (authority, mut world) = (Authority::new(), World::new(ROLE));
        let files = VouchedFiles::new(&authority, "server", world.directory());
        let own = VouchedFiles::new(&authority, "one", world.directory());
        let mutual = files.server().client_ca_root(files.authority());
        let server = TonicServer::within_tls(LOCAL, mutual);
        let endpoint = format!("localhost:{}", server.address.port());
        let (mut node, probe) = node_towards(&mut world, &endpoint, &own.keys(&["ca", "cert", "key"]));
        run(calls_of_all_kinds(&probe));
        let paths = node.operate(&["datapath", "--json"]);
        assert!(paths.contains("spiffe://test/server"), "{paths}");

        // The server is known by its identity, where that is said.
        let identity = "server_identities = [\"spiffe://test/somebody-else\"]\nendpoints";
        let routed = route(&endpoint, &own.keys(&["ca", "cert", "key"])).replacen("endpoints", identity, 1);
        node.reconfigure(&options(grpc_client::tcp_listener("web", "web") + &routed));
        node.operate(&["config", "reload"]);
        let again = GrpcProbe::at(&place(&node, "web"));
        let denied = refused(run(again.echo("a")));
        assert!(denied.contains("none of server_identities"), "{denied}");

        // Without a certificate of its own the node is not let in.
        node.reconfigure(&options(
            grpc_client::tcp_listener("web", "web") + &route(&endpoint, &own.keys(&["ca"])),
        ));
        node.operate(&["config", "reload"]);
        let again = GrpcProbe::at(&place(&node, "web"));
        eventually("the server wants a certificate", WAIT_MAX, || {
            refused(run(again.echo("a"))).contains("certificate")
        });
    });
}

/// What a client is told whose node cannot call a server.
fn told(world: &mut World, endpoint: &str, tls: &str) -> String {
    let (node, probe) = node_towards(world, endpoint, tls);
    let told = refused(run(probe.echo("a")));
    assert!(told.contains(endpoint), "{told}");
    let routes = node.operate(&["routes"]);
    assert!(routes.contains("failed 1"), "{routes}");
    told
}

#[test]
fn servers_that_do_not_prove_what_they_must_are_not_called_and_it_is_said_why() {
    tested(|| {
        let (authority, mut world) = (Authority::new(), World::new(ROLE));
        let files = VouchedFiles::new(&authority, "server", world.directory());
        let server = TonicServer::within_tls(LOCAL, files.server());
        let port = server.address.port();
        let ca = files.keys(&["ca"]);
        let name = told(
            &mut world,
            &format!("127.0.0.1:{port}"),
            &(ca.clone() + "server_name = \"else.test\"\n"),
        );
        assert!(name.contains("not of the host else.test"), "{name}");
        let other = VouchedFiles::new(&Authority::new(), "other", world.directory());
        let unknown = told(&mut world, &format!("localhost:{port}"), &other.keys(&["ca"]));
        assert!(unknown.contains("invalid peer certificate"), "{unknown}");

        let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(2020, 1, 1);
        authority.certify("old", "old", params, world.directory());
        let old = VouchedFiles {
            directory: world.directory().to_owned(),
            name: "old".to_owned(),
        };
        let server = TonicServer::within_tls(LOCAL, old.server());
        let expired = told(&mut world, &format!("localhost:{}", server.address.port()), &ca);
        assert!(expired.contains("xpired"), "{expired}");

        let cleartext = TonicServer::start();
        let plain = told(
            &mut world,
            &format!("localhost:{}", cleartext.address.port()),
            &ca,
        );
        assert!(plain.contains("does not speak TLS"), "{plain}");
    });
}

#[test]
fn calls_pass_within_tls_from_a_client_to_a_server() {
    tested(|| {
        let (authority, mut world) = (Authority::new(), World::new(ROLE));
        let of = |name: &str| VouchedFiles::new(&authority, name, world.directory());
        let (server_files, own, friend) = (of("server"), of("one"), of("friend"));
        let mutual = server_files.server().client_ca_root(server_files.authority());
        let server = TonicServer::within_tls(LOCAL, mutual);
        let tls = own.keys(&["cert", "key", "ca"]);
        let endpoint = format!("127.0.0.1:{}", server.address.port());
        let tables = listener(&(tls.clone() + "client_auth = \"required\"\n"))
            + &route(&endpoint, &(tls + "server_name = \"localhost\"\n"));
        let node = node_with(&mut world, tables);
        let client = own.client().identity(friend.identity());
        let probe = GrpcProbe::within_tls(&place(&node, "web"), client);
        run(async {
            calls_of_all_kinds(&probe).await;
            let mut many: Vec<_> = (0..100)
                .map(|_| {
                    let probe = probe.clone();
                    spawn(async move { probe.echo("many").await })
                })
                .collect();
            for one in many.drain(..) {
                assert_eq!(one.await.unwrap().unwrap(), "many");
            }
        });
    });
}

#[test]
fn servers_at_unix_sockets_are_called() {
    tested(|| {
        let mut world = World::new(ROLE);
        let path = world.directory().join("greeter.sock");
        let with_path = TonicServer::at_unix(UnixListener::bind(&path).unwrap());
        let name = format!("provost-e2e-{}", std::process::id());
        let abstract_address = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
        let without = TonicServer::at_unix(UnixListener::bind_addr(&abstract_address).unwrap());
        for endpoint in [
            format!("unix:{}", path.display()),
            format!("unix://{}", path.display()),
            format!("unix-abstract:{name}"),
        ] {
            let tables =
                grpc_client::tcp_listener("web", "web") + &route(&endpoint, "").replace("[route.tls]\n", "");
            let node = node_with(&mut world, tables);
            run(calls_of_all_kinds(&GrpcProbe::at(&place(&node, "web"))));
            let routes = node.operate(&["routes"]);
            assert!(routes.contains(&endpoint), "{routes}");
        }
        with_path.ended();
        without.ended();
        let tables = grpc_client::tcp_listener("web", "web")
            + &route("unix:/nowhere/x.sock", "").replace("[route.tls]\n", "");
        let node = node_with(&mut world, tables);
        let denied = refused(run(GrpcProbe::at(&place(&node, "web")).echo("a")));
        assert!(denied.contains("unix:/nowhere/x.sock"), "{denied}");
    });
}

/// Calls one after the other, over connections of which each has so many, until it is told to stop; how many there were.
fn calling(
    connect: impl Fn() -> GrpcProbe + Send + 'static,
    stop: &Arc<AtomicBool>,
) -> tokio::task::JoinHandle<Result<usize, Status>> {
    let stop = Arc::clone(stop);
    spawn(async move {
        let mut count = 0;
        while !stop.load(Ordering::Relaxed) {
            let probe = connect();
            for _ in 0..5 {
                probe.echo("a").await?;
                count += 1;
            }
        }
        Ok(count)
    })
}

#[test]
fn certificates_rotate_under_calls_in_both_directions() {
    tested(|| {
        let (before, after, mut world) = (Authority::new(), Authority::new(), World::new(ROLE));
        let files = |authority: &Authority, name: &str| VouchedFiles::new(authority, name, world.directory());
        let (server_files, later) = (files(&before, "server"), files(&after, "later"));
        let (own, out) = (files(&before, "one"), files(&before, "out"));
        let both = server_files.text("ca") + &later.text("ca");
        let mutual = |ca: String| server_files.server().client_ca_root(Certificate::from_pem(ca));
        let server = TonicServer::within_tls(LOCAL, mutual(both.clone()));
        let address = server.address;
        let tables = listener(&own.keys(&["cert", "key"]))
            + &route(
                &format!("localhost:{}", address.port()),
                &(server_files.keys(&["ca"]) + &out.keys(&["cert", "key"])),
            );
        let node = node_with(&mut world, tables);
        let at = place(&node, "web");
        let trusting = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(both))
            .domain_name("localhost");
        let stop = Arc::new(AtomicBool::new(false));
        let (to, config) = (at.clone(), trusting.clone());
        let calls = calling(move || GrpcProbe::within_tls(&to, config.clone()), &stop);
        run(async {
            while GrpcProbe::within_tls(&at, trusting.clone())
                .echo("a")
                .await
                .is_err()
            {}
        });

        // Both of the node's certificates come from another authority now.
        after.vouch_for("one", world.directory());
        after.vouch_for("out", world.directory());
        let of_later = GrpcProbe::within_tls(&at, later.client());
        eventually("the listener has the new certificate", WAIT_MAX, || {
            run(of_later.echo("a")).is_ok()
        });
        eventually("both were read", WAIT_MAX, || {
            node.program.log().matches("certificates were read again").count() >= 2
        });
        // A file that is no good leaves the last good one in use.
        std::fs::write(own.path("cert"), "no certificate").unwrap();
        eventually("it is said", WAIT_MAX, || {
            node.program
                .log()
                .contains("certificates were not taken: the last good ones stay")
        });
        assert_eq!(
            run(GrpcProbe::within_tls(&at, later.client()).echo("a")).unwrap(),
            "a"
        );
        assert!(
            node.operate(&["status"])
                .contains("the last good ones are in use")
        );
        stop.store(true, Ordering::Relaxed);
        let count = run(calls).unwrap().expect("no call fails");
        assert!(count > 0);

        // A server that knows the other authority only lets the node in, by its new certificate.
        server.ended();
        let _server = TonicServer::within_tls(address, mutual(later.text("ca")));
        eventually("the node proves itself anew", WAIT_MAX, || {
            run(GrpcProbe::within_tls(&at, later.client()).echo("a")).is_ok()
        });
    });
}

/// A connection from an address that is not that of other clients here: shares go by networks.
fn connect(place: &str) -> TcpStream {
    let to: SocketAddr = place.strip_prefix("http://").unwrap().parse().unwrap();
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &SocketAddr::from(([127, 0, 0, 2], 0))).unwrap();
    rustix::net::connect(&socket, &to).unwrap();
    TcpStream::from(socket)
}

/// Bytes until the other end closes.
fn until_closed(stream: &mut TcpStream) -> Vec<u8> {
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    let mut bytes = Vec::new();
    // It may close by a reset, as it has not read everything.
    if let Err(error) = stream.read_to_end(&mut bytes) {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
    }
    bytes
}

/// The first bytes of a client that speaks TLS.
fn first_record() -> Vec<u8> {
    let recorder = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = recorder.local_addr().unwrap();
    let probe = GrpcProbe::within_tls(&format!("http://{address}"), ClientTlsConfig::new());
    let call = spawn(async move { probe.echo("a").await });
    let mut bytes = vec![0; 4_096];
    let count = recorder.accept().unwrap().0.read(&mut bytes).unwrap();
    call.abort();
    bytes.truncate(count);
    bytes
}

#[test]
fn a_client_that_came_before_a_reload_is_accepted_with_what_its_listener_had() {
    tested(|| {
        let (authority, mut world) = (Authority::new(), World::new(ROLE));
        let vouched = |name: &str| VouchedFiles::new(&authority, name, world.directory());
        let (before, after) = (vouched("before"), vouched("after"));
        let mut node = node_with(&mut world, listener(&before.keys(&["cert", "key"])));
        let at = place(&node, "web");
        let mut early = connect(&at);
        // Those who come later are let in later. (Nobody serves what this one calls.)
        let told = run(GrpcProbe::within_tls(&at, before.client()).echo("a")).unwrap_err();
        assert!(told.message().contains("no app has bound"), "{told}");
        node.reconfigure(&options(listener(&after.keys(&["cert", "key"]))));
        node.operate(&["config", "reload"]);
        early.write_all(&first_record()).unwrap();
        early.set_read_timeout(Some(WAIT_MAX)).unwrap();
        let mut kind = [0];
        early.read_exact(&mut kind).expect("the node answers");
        assert_eq!(kind, [22], "it shakes hands");
    });
}

#[test]
fn peers_that_break_the_handshake_keep_nobody_out_and_are_named_in_the_log() {
    tested(|| {
        let (authority, mut world) = (Authority::new(), World::new(ROLE));
        let files = VouchedFiles::new(&authority, "one", world.directory());
        let plain = grpc_client::tcp_listener("plain", "plain");
        let socket = world.directory().join("metrics");
        let tables = format!(
            "{plain}{}[observe]\nlisten = \"unix:{}\"\n[timeouts]\nhandshake_ms = 500\n",
            listener(&files.keys(&["cert", "key"])),
            socket.display()
        );
        let few = NodeOptions {
            limits: "handshakes = 8\n".to_owned(),
            ..options(tables)
        };
        let node = world.node("one", &few);
        let _server = world.server(&node);
        let (at, plain) = (place(&node, "web"), place(&node, "plain"));
        let hello = first_record();
        assert_eq!(hello[0], 22);

        let silent: Vec<TcpStream> = (0..50).map(|_| connect(&at)).collect();
        let mut torn: Vec<TcpStream> = (0..50).map(|_| connect(&at)).collect();
        for stream in &mut torn {
            let _ = stream.write_all(&hello[..hello.len() / 2]);
        }
        let probe = GrpcProbe::within_tls(&at, files.client());
        assert_eq!(run(probe.echo("a")).unwrap(), "a");

        for said in [
            &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..],
            b"POST /probe.Probe/Echo HTTP/1.1\r\n\r\n",
            &[0xff; 100],
            &[22, 3, 1, 0, 100, 7, 7, 7],
        ] {
            let mut stream = connect(&at);
            stream.write_all(said).unwrap();
            until_closed(&mut stream);
        }
        let mut within_tls = connect(&plain);
        within_tls.write_all(&hello).unwrap();
        until_closed(&mut within_tls);
        for stream in silent.into_iter().chain(torn) {
            let mut stream = stream;
            until_closed(&mut stream);
        }
        for words in [
            "it speaks cleartext HTTP/2, and the listener has TLS",
            "it speaks cleartext HTTP/1",
            "the client speaks TLS, and here nobody does",
        ] {
            // A connection is closed before the log is told.
            eventually(words, WAIT_MAX, || node.program.log().contains(words));
        }
        let refused = value(
            &metrics(&socket),
            "provost_grpc_refused_handshakes_total",
            &["listener=\"web\""],
        );
        assert!(refused.is_some_and(|count| count >= 50.0), "{refused:?}");
        assert_eq!(run(probe.echo("still")).unwrap(), "still");
    });
}

#[test]
fn hot_restarts_keep_connections_within_tls() {
    const REPLACEMENTS: usize = 3;
    watched(|| {
        let (authority, mut world) = (Authority::new(), World::new(ROLE));
        let files = VouchedFiles::new(&authority, "one", world.directory());
        let mut node = world.node("one", &options(listener(&files.keys(&["cert", "key"]))));
        let _server = world.server(&node);
        let proxy = CountingProxy::to(&place(&node, "web"));
        let probe = GrpcProbe::within_tls(&proxy.place(), files.client());
        let traffic = SteadyTraffic::begin(&probe, "hot");
        node.set_faulty_successor(Fault::EndsBeforeTheCommit);
        println!("{}", node.try_replace().expect_err("it fails"));
        traffic.go_on();
        node.set_successor(None);
        for _ in 0..REPLACEMENTS {
            println!("{:?}", node.replace());
            traffic.go_on();
        }
        traffic.end();
        assert_eq!(proxy.connections(), 1, "the client has connected again");
        let fresh = GrpcProbe::within_tls(&place(&node, "web"), files.client());
        assert_eq!(run(fresh.echo("c")).unwrap(), "c");
    });
}

/// The connection of a client that speaks TLS 1.2 and nothing newer, which has said what begins HTTP/2.
fn speak_tls_1_2(place: &str, files: &VouchedFiles) -> StreamOwned<ClientConnection, TcpStream> {
    let mut trusted = rustls::RootCertStore::empty();
    let authority = CertificateDer::from_pem_slice(files.text("ca").as_bytes()).unwrap();
    trusted.add(authority).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS12])
        .unwrap();
    let mut config = config.with_root_certificates(trusted).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let name = "localhost".try_into().unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let socket = connect(place);
    socket.set_read_timeout(Some(WAIT_MAX)).unwrap();
    let mut stream = StreamOwned::new(connection, socket);
    stream
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
        .unwrap();
    stream
}

/// The kind of the next frame that comes; none if the connection is closed.
fn next_frame(stream: &mut impl Read) -> Option<u8> {
    let mut head = [0; 9];
    stream.read_exact(&mut head).ok()?;
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
    stream.read_exact(&mut vec![0; length as usize]).ok()?;
    Some(head[3])
}

/// Records of TLS 1.2 are carried by no hot restart.
#[test]
fn hot_restarts_tell_clients_of_tls_1_2_to_connect_anew() {
    const SETTINGS: u8 = 4;
    const GOAWAY: u8 = 7;
    watched(|| {
        let (authority, mut world) = (Authority::new(), World::new(ROLE));
        let files = VouchedFiles::new(&authority, "one", world.directory());
        let mut node = world.node("one", &options(listener(&files.keys(&["cert", "key"]))));
        let mut old = speak_tls_1_2(&place(&node, "web"), &files);
        assert_eq!(next_frame(&mut old), Some(SETTINGS));
        println!("{:?}", node.replace());
        let kinds: Vec<u8> = std::iter::from_fn(|| next_frame(&mut old)).collect();
        assert!(kinds.contains(&GOAWAY), "{kinds:?}");
        let mut fresh = speak_tls_1_2(&place(&node, "web"), &files);
        assert_eq!(next_frame(&mut fresh), Some(SETTINGS));
    });
}

#[test]
fn hot_restarts_keep_connections_to_servers_within_tls() {
    const REPLACEMENTS: usize = 3;
    tested(|| {
        let (authority, mut world) = (Authority::new(), World::new(ROLE));
        let files = VouchedFiles::new(&authority, "one", world.directory());
        let server = TonicServer::within_tls(LOCAL, files.server());
        let to_server = CountingProxy::to(&server.address.to_string());
        let endpoint = to_server.place().replace("http://", "");
        let tables = listener(&files.keys(&["cert", "key"])) + &route(&endpoint, &files.keys(&["ca"]));
        let mut node = node_with(&mut world, tables);
        let to_node = CountingProxy::to(&place(&node, "web"));
        let probe = GrpcProbe::within_tls(&to_node.place(), files.client());
        let traffic = SteadyTraffic::begin(&probe, "hot");
        node.set_faulty_successor(Fault::EndsBeforeTheCommit);
        println!("{}", node.try_replace().expect_err("it fails"));
        traffic.go_on();
        node.set_successor(None);
        for _ in 0..REPLACEMENTS {
            println!("{:?}", node.replace());
            traffic.go_on();
        }
        traffic.end();
        let connections = (to_node.connections(), to_server.connections());
        assert_eq!(connections, (1, 1), "an end was connected to again");
    });
}
