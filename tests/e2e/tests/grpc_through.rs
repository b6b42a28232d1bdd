//! A node in the place of a sidecar: tonic's client and tonic's server, neither of which knows of Provost, with a node between
//! them.

mod grpc_client;
#[path = "grpc_out/tonic_probe.rs"]
mod tonic_probe;

use grpc_client::traffic::{CountingProxy, SteadyTraffic};
use grpc_client::{EchoMessage, GrpcProbe, place, run, spawn, tcp_listener};
use provost_e2e::driver::WAIT_MAX;
use provost_e2e::successor::Fault;
use provost_e2e::{Node, NodeOptions, World, built, eventually, memory_of, watched};
use tonic::Code;
use tonic_probe::TonicServer;

const ROLE: &str = env!("CARGO_BIN_EXE_e2e-role");
const PROTO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/proto/probe.proto");

/// A tonic server, and a node through which clients call it.
struct ThroughSetting {
    node: Node,
    server: TonicServer,
    world: World,
}

impl ThroughSetting {
    fn new() -> ThroughSetting {
        let server = TonicServer::start();
        let endpoint = server.address.to_string();
        ThroughSetting::leading_to(&endpoint, "", server)
    }

    /// Where the node finds the server at an endpoint, by a route with these lines more.
    fn leading_to(endpoint: &str, more: &str, server: TonicServer) -> ThroughSetting {
        let route = format!(
            "[[route]]\nservice = \"probe.Probe\"\ntransport = \"grpc\"\nendpoints = [\"{endpoint}\"]\n{more}"
        );
        let mut world = World::new(ROLE);
        let options = NodeOptions {
            tables: tcp_listener("web", "web")
                + "node_services = [\"channelz\"]\n"
                + &tcp_listener("plain", "web")
                + &route,
            ..NodeOptions::default()
        };
        let node = world.node("one", &options);
        // Neither end brings a schema.
        node.operate(&["schema", "prefetch", PROTO]);
        ThroughSetting { node, server, world }
    }

    fn probe(&self) -> GrpcProbe {
        GrpcProbe::at(&place(&self.node, "web"))
    }
}

/// Runs a test's body within a limit. Whatever has to be built is built before.
fn tested(body: impl FnOnce() + Send + 'static) {
    built::program("provost", "provost-cli", ROLE);
    watched(body);
}

#[test]
fn calls_of_all_kinds_pass_between_programs_that_know_nothing_of_the_node() {
    tested(|| {
        let setting = ThroughSetting::new();
        run(async {
            let probe = setting.probe();
            probe.calls_of_all_kinds().await;
        });
    });
}

#[test]
fn hot_restarts_keep_both_connections_and_all_calls() {
    const REPLACEMENTS: usize = 4;
    tested(|| {
        let server = TonicServer::start();
        let to_server = CountingProxy::to(&server.address.to_string());
        let endpoint = to_server.place().replace("http://", "");
        let mut setting = ThroughSetting::leading_to(&endpoint, "", server);
        let to_node = CountingProxy::to(&place(&setting.node, "web"));
        let traffic = SteadyTraffic::begin(&GrpcProbe::at(&to_node.place()), "hot");
        for fault in [
            Fault::EndsAtTheState,
            Fault::EndsAmongParties,
            Fault::DeclinesAmongParties,
            Fault::EndsBeforeTheCommit,
        ] {
            setting.node.set_faulty_successor(fault);
            println!("{}", setting.node.try_replace().expect_err("it fails"));
            traffic.go_on();
        }
        setting.node.set_successor(None);
        for _ in 0..REPLACEMENTS {
            println!("{:?}", setting.node.replace());
            traffic.go_on();
        }
        traffic.end();
        let connections = (to_node.connections(), to_server.connections());
        assert_eq!(connections, (1, 1), "an end was connected to again");
    });
}

#[test]
fn connections_to_servers_have_a_greatest_age_of_which_calls_notice_nothing() {
    tested(|| {
        let server = TonicServer::start();
        let to_server = CountingProxy::to(&server.address.to_string());
        let endpoint = to_server.place().replace("http://", "");
        let setting = ThroughSetting::leading_to(&endpoint, "connection_age_s = 1\n", server);
        let to_node = CountingProxy::to(&place(&setting.node, "web"));
        let traffic = SteadyTraffic::begin(&GrpcProbe::at(&to_node.place()), "aging");
        eventually("connections follow each other", WAIT_MAX, || {
            to_server.connections() >= 4
        });
        traffic.end();
        assert_eq!(to_node.connections(), 1, "the client has connected again");
    });
}

#[test]
fn a_policy_is_attached_to_calls_between_programs_that_know_nothing_of_the_node() {
    tested(|| {
        let setting = ThroughSetting::new();
        run(async {
            let probe = setting.probe();
            let echo = async |text: &str| {
                let message = EchoMessage {
                    text: text.to_owned(),
                    ..EchoMessage::default()
                };
                probe
                    .unary::<_, EchoMessage>("Echo", message)
                    .await
                    .map(|reply| reply.text)
            };
            assert_eq!(echo("secret").await.unwrap(), "secret");
            let rules = setting.world.directory().join("acl.toml");
            let deny = "default = \"allow\"\n[[rule]]\nname = \"secrets\"\naction = \"deny\"\nwhen = 'request.text == \"secret\"'\n";
            std::fs::write(&rules, deny).unwrap();
            let rules = rules.to_str().unwrap();
            let attach = [
                "policy", "attach", "--kind", "access", "--name", "acl", "--config", rules,
            ];
            setting
                .node
                .operate(&[&attach[..], &["--method", "Echo", "--side", "client"]].concat());
            assert_eq!(echo("open").await.unwrap(), "open");
            assert_eq!(echo("secret").await.unwrap_err().code(), Code::PermissionDenied);
            setting.node.operate(&["policy", "detach", "acl"]);
            assert_eq!(echo("secret").await.unwrap(), "secret");
        });
        // A server that has ended and is there again is called again, by the same client.
        let probe = setting.probe();
        let ThroughSetting {
            node: _node,
            server,
            world: _world,
        } = setting;
        let address = server.address;
        server.ended();
        let again = TonicServer::at(address);
        eventually("the server is called again", WAIT_MAX, || {
            let message = EchoMessage::default();
            run(async { probe.unary::<_, EchoMessage>("Echo", message).await.is_ok() })
        });
        drop(again);
    });
}

#[derive(Clone, PartialEq, prost::Message)]
struct ChannelzRequest {
    #[prost(int64, tag = "1")]
    id: i64,
}

/// An entity's reference: each kind has its fields at other numbers.
#[derive(Clone, PartialEq, prost::Message)]
struct ChannelzRef {
    #[prost(int64, tag = "1")]
    channel: i64,
    #[prost(int64, tag = "3")]
    socket: i64,
    #[prost(int64, tag = "5")]
    server: i64,
    #[prost(string, tag = "6")]
    server_name: String,
    #[prost(int64, tag = "7")]
    subchannel: i64,
}

/// `ServerData`, and of `ChannelData` what has the same numbers with others' names.
#[derive(Clone, PartialEq, prost::Message)]
struct ServerCounts {
    #[prost(int64, tag = "2")]
    started: i64,
    #[prost(int64, tag = "3")]
    succeeded: i64,
    #[prost(int64, tag = "4")]
    failed: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ChannelCounts {
    #[prost(string, tag = "2")]
    target: String,
    #[prost(int64, tag = "4")]
    started: i64,
    #[prost(int64, tag = "5")]
    succeeded: i64,
    #[prost(int64, tag = "6")]
    failed: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct SocketCounts {
    #[prost(int64, tag = "1")]
    started: i64,
    #[prost(int64, tag = "4")]
    messages_sent: i64,
    #[prost(int64, tag = "5")]
    messages_received: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct InternetAddress {
    #[prost(bytes = "vec", tag = "1")]
    ip: Vec<u8>,
    #[prost(int32, tag = "2")]
    port: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct SocketAddress {
    #[prost(message, optional, tag = "1")]
    internet: Option<InternetAddress>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ToldServer {
    #[prost(message, optional, tag = "1")]
    named: Option<ChannelzRef>,
    #[prost(message, optional, tag = "2")]
    data: Option<ServerCounts>,
    #[prost(message, repeated, tag = "3")]
    listen: Vec<ChannelzRef>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ToldChannel {
    #[prost(message, optional, tag = "1")]
    named: Option<ChannelzRef>,
    #[prost(message, optional, tag = "2")]
    data: Option<ChannelCounts>,
    #[prost(message, repeated, tag = "4")]
    subchannels: Vec<ChannelzRef>,
    #[prost(message, repeated, tag = "5")]
    sockets: Vec<ChannelzRef>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ToldSocket {
    #[prost(message, optional, tag = "2")]
    data: Option<SocketCounts>,
    #[prost(message, optional, tag = "3")]
    local: Option<SocketAddress>,
    #[prost(message, optional, tag = "4")]
    remote: Option<SocketAddress>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ServerList {
    #[prost(message, repeated, tag = "1")]
    servers: Vec<ToldServer>,
    #[prost(bool, tag = "2")]
    end: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ChannelList {
    #[prost(message, repeated, tag = "1")]
    channels: Vec<ToldChannel>,
    #[prost(bool, tag = "2")]
    end: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
struct SocketList {
    #[prost(message, repeated, tag = "1")]
    sockets: Vec<ChannelzRef>,
    #[prost(bool, tag = "2")]
    end: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
struct OneChannel {
    #[prost(message, optional, tag = "1")]
    told: Option<ToldChannel>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct OneSocket {
    #[prost(message, optional, tag = "1")]
    told: Option<ToldSocket>,
}

async fn channelz<R: prost::Message + Default + 'static>(
    probe: &GrpcProbe,
    method: &str,
    id: i64,
) -> Result<R, tonic::Status> {
    let channelz = probe.of_service("grpc.channelz.v1.Channelz");
    channelz.unary(method, ChannelzRequest { id }).await
}

#[test]
fn channelz_tells_of_clients_and_of_connections_to_servers() {
    tested(|| {
        let setting = ThroughSetting::new();
        run(async {
            let probe = setting.probe();
            for _ in 0..3 {
                probe.echo("counted").await.unwrap();
            }
            let list: ServerList = channelz(&probe, "GetServers", 0).await.unwrap();
            assert!(list.end && list.servers.len() == 2, "{list:?}");
            let is_asked = |server: &&ToldServer| server.named.as_ref().unwrap().server_name == "web";
            let server = list.servers.iter().find(is_asked).unwrap();
            let counts = server.data.as_ref().unwrap();
            // With the call that asks.
            assert_eq!((counts.started, counts.succeeded, counts.failed), (4, 3, 0));
            let id = server.named.as_ref().unwrap().server;
            let list: SocketList = channelz(&probe, "GetServerSockets", id).await.unwrap();
            let [socket] = &list.sockets[..] else {
                panic!("{list:?}");
            };
            let told: OneSocket = channelz(&probe, "GetSocket", socket.socket).await.unwrap();
            let told = told.told.unwrap();
            let port: i32 = place(&setting.node, "web")
                .rsplit(':')
                .next()
                .unwrap()
                .parse()
                .unwrap();
            assert_eq!(told.local.unwrap().internet.unwrap().port, port);
            assert_eq!(told.remote.unwrap().internet.unwrap().ip, [127, 0, 0, 1]);
            assert!(told.data.unwrap().messages_received >= 5);
            let listening: OneSocket = channelz(&probe, "GetSocket", server.listen[0].socket)
                .await
                .unwrap();
            assert_eq!(
                listening.told.unwrap().local.unwrap().internet.unwrap().port,
                port
            );

            let list: ChannelList = channelz(&probe, "GetTopChannels", 0).await.unwrap();
            let [channel] = &list.channels[..] else {
                panic!("{list:?}");
            };
            let counts = channel.data.as_ref().unwrap();
            assert_eq!(counts.target, setting.server.address.to_string());
            assert_eq!((counts.started, counts.succeeded, counts.failed), (3, 3, 0));
            let id = channel.named.as_ref().unwrap().channel;
            let one: OneChannel = channelz(&probe, "GetChannel", id).await.unwrap();
            assert_eq!(one.told.as_ref(), Some(channel));
            let id = channel.subchannels[0].subchannel;
            let one: OneChannel = channelz(&probe, "GetSubchannel", id).await.unwrap();
            let id = one.told.unwrap().sockets[0].socket;
            let told: OneSocket = channelz(&probe, "GetSocket", id).await.unwrap();
            let told = told.told.unwrap();
            let port = i32::from(setting.server.address.port());
            assert_eq!(told.remote.unwrap().internet.unwrap().port, port);
            let data = told.data.unwrap();
            assert_eq!(
                (data.started, data.messages_sent, data.messages_received),
                (3, 3, 3)
            );

            for nothing in [0, 7, i64::MAX] {
                let refused = channelz::<OneChannel>(&probe, "GetChannel", nothing).await;
                assert_eq!(refused.unwrap_err().code(), Code::NotFound, "{nothing}");
            }
            // Elsewhere it is a service as any, and nobody has it.
            let plain = GrpcProbe::at(&place(&setting.node, "plain"));
            let refused = channelz::<ServerList>(&plain, "GetServers", 0).await;
            assert_eq!(refused.unwrap_err().code(), Code::Unimplemented);
        });
    });
}

/// What the kernel counts of a process: page faults so far, and bytes of memory that belong to no file.
fn faults_and_resident(process: u32) -> (u64, u64) {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let after_name = stat.rsplit(')').next().unwrap();
    let faults = after_name.split_whitespace().nth(7).unwrap().parse().unwrap();
    (faults, memory_of(process, "RssAnon:").unwrap())
}

#[test]
fn large_messages_take_the_memory_of_those_before_them_and_leave_none_at_rest() {
    /// Of a message, and so of memory that it takes twice: on its way there and back.
    const BYTES: usize = 1 << 20;
    const AT_A_TIME: usize = 32;
    const ROUNDS: usize = 10;
    /// Without memory that is kept, each call has most of its pages mapped anew.
    const FAULTS_MAX: u64 = (BYTES / 4096 / 4) as u64;
    /// What is left of them after a moment's rest.
    const LEFT_MAX: u64 = 4 << 20;
    tested(|| {
        let setting = ThroughSetting::new();
        let process = setting.node.process();
        let call = |rounds: usize| {
            run(async {
                let probe = setting.probe();
                let caller = || {
                    let probe = probe.clone();
                    spawn(async move {
                        for _ in 0..rounds {
                            let message = EchoMessage {
                                payload: vec![7; BYTES],
                                ..EchoMessage::default()
                            };
                            let reply: EchoMessage = probe.unary("Echo", message).await.unwrap();
                            assert_eq!(reply.payload.len(), BYTES);
                        }
                    })
                };
                let callers: Vec<_> = (0..AT_A_TIME).map(|_| caller()).collect();
                for caller in callers {
                    caller.await.unwrap();
                }
            });
        };
        let (_, at_first) = faults_and_resident(process);
        call(ROUNDS);
        let (before, _) = faults_and_resident(process);
        call(ROUNDS);
        let (after, in_use) = faults_and_resident(process);
        let faults = (after - before) / (ROUNDS * AT_A_TIME) as u64;
        println!("{faults} page faults a call; {at_first} bytes at first, {in_use} after the calls");
        assert!(faults <= FAULTS_MAX, "{faults} page faults a call");
        eventually("the memory of calls is given back", WAIT_MAX, || {
            let (_, now) = faults_and_resident(process);
            now < at_first + LEFT_MAX
        });
    });
}
