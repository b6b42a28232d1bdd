//! A gRPC server that is called by its name, whose addresses change while calls go on, or are several that are called at a time. Names come from a file of hosts that only the
//! node sees, in a mount namespace of its own.

mod grpc_client;
#[allow(dead_code, reason = "other tests use the rest of it")]
mod languages;
mod together;
#[path = "grpc_out/tonic_probe.rs"]
mod tonic_probe;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use grpc_client::{
    CountsReply, CountsRequest, GrpcProbe, HoldReply, HoldRequest, NoContent, place, run, spawn, tcp_listener,
};
use provost_e2e::driver::WAIT_MAX;
use provost_e2e::{Node, NodeOptions, World, built, eventually, watched};
use together::{TogetherServer, TogetherTerms};
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

/// Something that channelz numbers. A kind of entity has its number in one of these fields.
#[derive(Clone, PartialEq, prost::Message)]
struct ToldRef {
    #[prost(int64, tag = "3")]
    socket: i64,
    #[prost(int64, tag = "7")]
    subchannel: i64,
}

/// A channel or a subchannel, with what it leads to.
#[derive(Clone, PartialEq, prost::Message)]
struct ToldChannel {
    #[prost(message, repeated, tag = "4")]
    subchannels: Vec<ToldRef>,
    #[prost(message, repeated, tag = "5")]
    sockets: Vec<ToldRef>,
}

/// An answer with channels: several, or a single one.
#[derive(Clone, PartialEq, prost::Message)]
struct ToldChannels {
    #[prost(message, repeated, tag = "1")]
    channels: Vec<ToldChannel>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct EntityId {
    #[prost(int64, tag = "1")]
    id: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct StreamCount {
    #[prost(int64, tag = "1")]
    started: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct HostAddress {
    #[prost(bytes = "vec", tag = "1")]
    ip: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct AddressChoice {
    #[prost(message, optional, tag = "1")]
    internet: Option<HostAddress>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ToldSocket {
    #[prost(message, optional, tag = "2")]
    data: Option<StreamCount>,
    #[prost(message, optional, tag = "4")]
    remote: Option<AddressChoice>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct SocketAnswer {
    #[prost(message, optional, tag = "1")]
    socket: Option<ToldSocket>,
}

/// The last part of the address that each connection to a server leads to, and how many streams were begun on it, as channelz says.
async fn told_connections(probe: &GrpcProbe) -> Vec<(u8, i64)> {
    let channelz = probe.of_service("grpc.channelz.v1.Channelz");
    let top: ToldChannels = channelz.unary("GetTopChannels", NoContent {}).await.unwrap();
    let mut told = Vec::new();
    for subchannel in top.channels.iter().flat_map(|channel| &channel.subchannels) {
        let id = subchannel.subchannel;
        let answer: ToldChannels = channelz.unary("GetSubchannel", EntityId { id }).await.unwrap();
        for named in answer.channels.iter().flat_map(|subchannel| &subchannel.sockets) {
            let id = named.socket;
            let answer: SocketAnswer = channelz.unary("GetSocket", EntityId { id }).await.unwrap();
            let socket = answer.socket.unwrap();
            let remote = socket
                .remote
                .and_then(|remote| remote.internet)
                .unwrap_or_default();
            let started = socket.data.unwrap_or_default().started;
            told.push((remote.ip.last().copied().unwrap_or_default(), started));
        }
    }
    told.sort_unstable();
    told
}

#[test]
fn further_connections_go_to_further_addresses_and_are_told_one_by_one() {
    /// Streams at a time on a connection.
    const STREAMS: usize = 2;
    /// More than come: the test says when they are answered.
    const CALLS: usize = 1_000;
    let Some(program) = together::program().filter(|_| hosts_can_be_set()) else {
        return;
    };
    watched(move || {
        let mut world = World::new(ROLE);
        let terms = |listen| TogetherTerms {
            streams: STREAMS,
            calls: CALLS,
            listen,
            tls: Vec::new(),
        };
        // Of three connections the second one goes to the other address, the third one to the first again.
        let first = TogetherServer::start(program, &world, terms("127.0.0.1:0"));
        let port = first.address.port();
        let second = TogetherServer::start(program, &world, terms(&format!("127.0.0.2:{port}")));
        NamedServers::new(world.directory(), &["127.0.0.1", "127.0.0.2"]);
        let route = format!(
            "[[route]]\nservice = \"probe.Probe\"\ntransport = \"grpc\"\nendpoints = [\"servers.test:{port}\"]\nconnections = 3\n"
        );
        let options = NodeOptions {
            tables: tcp_listener("web", "web")
                + &tcp_listener("debug", "debug")
                + "node_services = [\"channelz\"]\n"
                + &route,
            launcher: &WITH_HOSTS,
            ..NodeOptions::default()
        };
        let mut node = world.node("one", &options);
        let probe = GrpcProbe::at(&place(&node, "web"));
        let begin = || {
            let probe = probe.clone();
            spawn(async move { probe.unary::<_, HoldReply>("Hold", HoldRequest::default()).await })
        };
        let mut begun: Vec<_> = (0..STREAMS).map(|_| begin()).collect();
        first.are_under_way(STREAMS);
        // Another process knows the addresses too.
        node.replace();
        begun.extend((0..2 * STREAMS).map(|_| begin()));
        let debug = GrpcProbe::at(&place(&node, "debug"));
        eventually("all connections are told", WAIT_MAX, || {
            let told = run(told_connections(&debug));
            let ends: Vec<u8> = told.iter().map(|(end, _)| *end).collect();
            let streams: i64 = told.iter().map(|(_, streams)| streams).sum();
            ends == [1, 1, 2] && streams as usize == 3 * STREAMS
        });
        first.are_under_way(2 * STREAMS);
        second.are_under_way(STREAMS);
        first.release();
        second.release();
        for call in begun {
            run(call).unwrap().expect("no call fails");
        }
        assert_eq!((first.connections(), second.connections()), (2, 1));
    });
}
