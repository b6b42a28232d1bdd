//! A gRPC server that is called by its name, whose addresses change while calls go on. Names come from a file of hosts that only the
//! node sees, in a mount namespace of its own.

mod grpc_client;
#[path = "grpc_out/tonic_probe.rs"]
mod tonic_probe;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use grpc_client::{CountsReply, CountsRequest, GrpcProbe, HoldReply, HoldRequest, place, run, tcp_listener};
use provost_e2e::driver::WAIT_MAX;
use provost_e2e::{Node, NodeOptions, World, built, eventually, watched};
use tonic_probe::TonicServer;

const ROLE: &str = env!("CARGO_BIN_EXE_e2e-role");
const PROTO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/proto/probe.proto");
/// By which servers count the calls of this test.
const KEY: &str = "named";
/// Starts a node that has the file `hosts` beside its configuration in the place of the system's.
const WITH_HOSTS: [&str; 5] = [
    "unshare",
    "--mount",
    "sh",
    "-c",
    "mount --bind \"$(dirname \"$2\")/hosts\" /etc/hosts && exec \"$0\" \"$@\"",
];

/// Whether a node can have hosts of its own here; if not, the test says why.
fn hosts_can_be_set() -> bool {
    let tried = Command::new(WITH_HOSTS[0])
        .args(["--mount", "mount", "--bind", "/etc/hosts", "/etc/hosts"])
        .output();
    match tried {
        Ok(output) if output.status.success() => true,
        Ok(output) => {
            provost_skip::forbidden(String::from_utf8_lossy(&output.stderr));
            false
        }
        Err(error) => {
            provost_skip::missing("unshare", &format!("Debian package util-linux: {error}"));
            false
        }
    }
}

/// Where the name leads: to these addresses, in this order.
struct NamedServers(PathBuf);

impl NamedServers {
    fn new(directory: &Path, addresses: &[&str]) -> NamedServers {
        let servers = NamedServers(directory.join("hosts"));
        servers.lead_to(addresses);
        servers
    }

    /// The file stays the same one, as it is mounted.
    fn lead_to(&self, addresses: &[&str]) {
        let lines = addresses
            .iter()
            .map(|address| format!("{address} servers.test\n"));
        std::fs::write(&self.0, lines.collect::<String>()).unwrap();
    }
}

async fn call(probe: &GrpcProbe) {
    let request = HoldRequest {
        key: KEY.to_owned(),
        milliseconds: 1,
    };
    let reply: Result<HoldReply, _> = probe.unary("Hold", request).await;
    reply.expect("no call fails");
}

/// The calls that have come to a server.
fn calls_at(server: SocketAddr) -> u64 {
    let probe = GrpcProbe::at(&format!("http://{server}"));
    let key = KEY.to_owned();
    let counts: CountsReply = run(probe.unary("Counts", CountsRequest { key })).unwrap();
    counts.begun
}

/// Connections that the node has opened to servers of the name.
fn connections(node: &Node) -> usize {
    let log = node.program.log();
    let agreed = |line: &&str| line.contains("agreed with a peer") && line.contains("servers.test");
    log.lines().filter(agreed).count()
}

#[test]
fn calls_follow_a_name_whose_addresses_change() {
    if !hosts_can_be_set() {
        return;
    }
    built::program("provost", "provost-cli", ROLE);
    watched(|| {
        let mut world = World::new(ROLE);
        let first = TonicServer::start();
        let second_address = SocketAddr::from(([127, 0, 0, 2], first.address.port()));
        let second = TonicServer::at(second_address);
        let names = NamedServers::new(world.directory(), &["127.0.0.1"]);
        let route = format!(
            "[[route]]\nservice = \"probe.Probe\"\ntransport = \"grpc\"\nendpoints = [\"servers.test:{}\"]\nconnection_age_s = 1\n",
            first.address.port()
        );
        let options = NodeOptions {
            tables: tcp_listener("web", "web") + &route,
            launcher: &WITH_HOSTS,
            ..NodeOptions::default()
        };
        let node = world.node("one", &options);
        node.operate(&["schema", "prefetch", PROTO]);
        let probe = GrpcProbe::at(&place(&node, "web"));
        for _ in 0..10 {
            run(call(&probe));
        }
        assert_eq!((calls_at(first.address), calls_at(second.address)), (10, 0));

        // Those that began go on, and new connections are made where the name leads.
        names.lead_to(&["127.0.0.2"]);
        eventually("the second server is called", WAIT_MAX, || {
            run(call(&probe));
            calls_at(second.address) > 0
        });
        let at_first = calls_at(first.address);
        let opened = connections(&node);
        eventually("connections follow each other", WAIT_MAX, || {
            run(call(&probe));
            connections(&node) >= opened + 2
        });
        assert_eq!(calls_at(first.address), at_first, "the name leads there no more");

        // Of several addresses those are called that answer.
        first.ended();
        names.lead_to(&["127.0.0.1", "127.0.0.2"]);
        let opened = connections(&node);
        eventually("connections follow each other", WAIT_MAX, || {
            run(call(&probe));
            connections(&node) >= opened + 2
        });
        drop(second);
    });
}
