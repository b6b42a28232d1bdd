//! What is measured: setups, and the loads put on each.

use serde::{Deserialize, Serialize};

use crate::foreign::ForeignClient;
use crate::peers::NodelessPeer;
use crate::report::{BlockedUser, Traffic};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
/// Bytes of payload in flight, roughly, whatever the size of one.
const GOODPUT_BYTES_IN_FLIGHT: usize = 32 * MIB;
/// Calls in flight of small messages in goodput.
const GOODPUT_CALLS_MAX: usize = 64;
/// Calls in flight of the largest messages in goodput, so that nobody waits for one to be through.
const GOODPUT_CALLS_MIN: usize = 4;

/// Processes put together in one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Setup {
    /// Ping-pong over blocking sockets.
    RawTcp,
    /// Ping-pong over sockets that are polled without pause.
    RawTcpSpin,
    /// Ping-pong over blocking UDP sockets.
    RawUdp,
    /// A bare call through four processes in Provost's shape, that wait in this way.
    Floor(FloorWay),
    /// A bare call between two processes over shared memory, free to have a core each.
    SharedMemory,
    /// The same with both on one core, so that each hop is a context switch.
    SharedMemoryOneCore,
    /// gRPC, client to server.
    Tonic,
    /// gRPC through a sidecar on either side that routes and does nothing else.
    TonicEnvoyNull,
    /// Two nodes, no policy.
    ProvostBare,
    /// Two nodes, a null policy in each.
    ProvostNull,
    /// Two nodes, a null policy in each, and this between them; over TCP as it is, that is [`Setup::ProvostNull`].
    ProvostOver(NodeCarrier),
    /// Client and server on one node, a null policy.
    ProvostLocal(NodeWaiting),
    /// Client and server over shared memory of others, and nothing in between.
    NodelessPeer(NodelessPeer),
    /// gRPC through two sidecars, the client's with a policy.
    TonicEnvoy(EnvoyPolicy),
    /// Two nodes, the client's with policies.
    ProvostWith(Chain),
    /// gRPC through proxies of this kind, one or two in a row.
    Proxied(ProxyKind, ProxyHops),
    /// gRPC through two nodes, the client's with policies.
    ProxiedWith(Chain),
    /// The same server behind the same proxies, called by another client: a check of what tonic's says.
    Foreign(ForeignClient, ProxyKind, ProxyHops),
    /// A gRPC client, two nodes, an app that serves.
    GrpcToApp,
    /// An app that calls, two nodes, a gRPC server.
    AppToGrpc,
}

/// How the floor's processes wait. Which way is the best depends on what else the cores do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FloorWay {
    /// They spin for a while, yielding, before they sleep.
    Polling,
    /// They sleep at once.
    Sleeping,
    /// As above, all on one core, so that each hop is a context switch.
    SleepingOnOneCore,
}

/// What carries the calls between two nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum NodeCarrier {
    Tcp,
    /// TCP with mutual TLS.
    TcpTls,
    Datagram,
    /// The datagram transport, its packets sealed by a key from mutual TLS.
    DatagramSealed,
}

/// How a node and its apps wait for work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum NodeWaiting {
    /// As they are by default: they poll for a while before they sleep.
    Polling,
    /// They sleep at once.
    Sleeping,
}

/// What stands between a gRPC client and its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ProxyKind {
    Envoy,
    Nginx,
    Haproxy,
    Provost,
}

/// How many of them stand in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ProxyHops {
    One,
    /// One beside the client and one beside the server.
    Two,
}

/// What Envoy's egress sidecar does beside routing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum EnvoyPolicy {
    /// `local_ratelimit`, with a bucket that is never empty.
    RateLimit,
    /// `grpc_field_extraction` of the user and RBAC on it: native code.
    Rbac,
    /// A script that reads the body.
    Lua,
    /// A module that reads the body, in V8.
    Wasm,
}

/// The policies of the client's node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Chain {
    /// A rate limit that is never reached.
    RateLimit,
    /// Access by the user field.
    FieldAccess,
    /// Access by the user field in a list of a million.
    ListAccess,
    /// So many policies, different ones in turn.
    Of(usize),
    /// So many null policies.
    Nulls(usize),
    /// One of the others, with its defaults or what comes nearest to them.
    One(Kind),
}

/// A kind of policy that is neither a limit nor access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    Fault,
    Qos,
    Metrics,
    AccessLog,
    Tap,
    Tracing,
}

impl ProxyKind {
    /// The proxies of others.
    pub(crate) const OTHERS: [ProxyKind; 3] = [ProxyKind::Envoy, ProxyKind::Nginx, ProxyKind::Haproxy];

    /// As tables have it.
    pub(crate) fn name(self, hops: ProxyHops) -> &'static str {
        match (self, hops) {
            (ProxyKind::Envoy, ProxyHops::One) => "tonic+envoy one",
            (ProxyKind::Envoy, ProxyHops::Two) => "tonic+envoy two",
            (ProxyKind::Nginx, ProxyHops::One) => "tonic+nginx one",
            (ProxyKind::Nginx, ProxyHops::Two) => "tonic+nginx two",
            (ProxyKind::Haproxy, ProxyHops::One) => "tonic+haproxy one",
            (ProxyKind::Haproxy, ProxyHops::Two) => "tonic+haproxy two",
            (ProxyKind::Provost, ProxyHops::One) => "tonic+provost one",
            (ProxyKind::Provost, ProxyHops::Two) => "tonic+provost two",
        }
    }
}

/// As tables have it.
fn name_of_check(client: ForeignClient, proxy: ProxyKind, hops: ProxyHops) -> &'static str {
    let is_node = proxy == ProxyKind::Provost;
    match (client, is_node, hops) {
        (ForeignClient::Ghz, false, ProxyHops::One) => "ghz+envoy one",
        (ForeignClient::Ghz, false, ProxyHops::Two) => "ghz+envoy two",
        (ForeignClient::Ghz, true, ProxyHops::One) => "ghz+provost one",
        (ForeignClient::Ghz, true, ProxyHops::Two) => "ghz+provost two",
        (ForeignClient::Cpp, false, ProxyHops::One) => "c++ client+envoy one",
        (ForeignClient::Cpp, false, ProxyHops::Two) => "c++ client+envoy two",
        (ForeignClient::Cpp, true, ProxyHops::One) => "c++ client+provost one",
        (ForeignClient::Cpp, true, ProxyHops::Two) => "c++ client+provost two",
    }
}

impl Setup {
    /// What `bench policy` compares: mRPC's figure 6, and chains of policies.
    pub(crate) const POLICY: [Setup; 22] = [
        Setup::TonicEnvoyNull,
        Setup::TonicEnvoy(EnvoyPolicy::RateLimit),
        Setup::TonicEnvoy(EnvoyPolicy::Rbac),
        Setup::TonicEnvoy(EnvoyPolicy::Lua),
        Setup::TonicEnvoy(EnvoyPolicy::Wasm),
        Setup::ProvostBare,
        Setup::ProvostNull,
        Setup::ProvostWith(Chain::RateLimit),
        Setup::ProvostWith(Chain::FieldAccess),
        Setup::ProvostWith(Chain::ListAccess),
        Setup::ProvostWith(Chain::One(Kind::Fault)),
        Setup::ProvostWith(Chain::One(Kind::Qos)),
        Setup::ProvostWith(Chain::One(Kind::Metrics)),
        Setup::ProvostWith(Chain::One(Kind::AccessLog)),
        Setup::ProvostWith(Chain::One(Kind::Tap)),
        Setup::ProvostWith(Chain::One(Kind::Tracing)),
        Setup::ProvostWith(Chain::Nulls(1)),
        Setup::ProvostWith(Chain::Nulls(4)),
        Setup::ProvostWith(Chain::Nulls(8)),
        Setup::ProvostWith(Chain::Of(1)),
        Setup::ProvostWith(Chain::Of(4)),
        Setup::ProvostWith(Chain::Of(8)),
    ];

    /// In the order in which a round runs them; what is compared closely stands together.
    pub(crate) const ALL: [Setup; 20] = [
        Setup::RawTcp,
        Setup::RawTcpSpin,
        Setup::RawUdp,
        Setup::Tonic,
        Setup::TonicEnvoyNull,
        Setup::SharedMemory,
        Setup::SharedMemoryOneCore,
        Setup::ProvostLocal(NodeWaiting::Polling),
        Setup::NodelessPeer(NodelessPeer::Iceoryx2),
        Setup::ProvostLocal(NodeWaiting::Sleeping),
        Setup::NodelessPeer(NodelessPeer::Iceoryx2Sleeping),
        Setup::NodelessPeer(NodelessPeer::Shmipc),
        Setup::Floor(FloorWay::SleepingOnOneCore),
        Setup::Floor(FloorWay::Sleeping),
        Setup::Floor(FloorWay::Polling),
        Setup::ProvostNull,
        Setup::ProvostOver(NodeCarrier::Datagram),
        Setup::ProvostOver(NodeCarrier::TcpTls),
        Setup::ProvostOver(NodeCarrier::DatagramSealed),
        Setup::ProvostBare,
    ];

    /// What `bench grpc` compares: programs that know nothing of Provost, through one proxy and through two.
    pub(crate) const GRPC: [Setup; 23] = [
        Setup::Tonic,
        Setup::Proxied(ProxyKind::Envoy, ProxyHops::One),
        Setup::Proxied(ProxyKind::Nginx, ProxyHops::One),
        Setup::Proxied(ProxyKind::Haproxy, ProxyHops::One),
        Setup::Proxied(ProxyKind::Provost, ProxyHops::One),
        Setup::Proxied(ProxyKind::Envoy, ProxyHops::Two),
        Setup::Proxied(ProxyKind::Nginx, ProxyHops::Two),
        Setup::Proxied(ProxyKind::Haproxy, ProxyHops::Two),
        Setup::Proxied(ProxyKind::Provost, ProxyHops::Two),
        Setup::GrpcToApp,
        Setup::AppToGrpc,
        Setup::TonicEnvoy(EnvoyPolicy::RateLimit),
        Setup::ProxiedWith(Chain::RateLimit),
        Setup::TonicEnvoy(EnvoyPolicy::Rbac),
        Setup::ProxiedWith(Chain::FieldAccess),
        Setup::Foreign(ForeignClient::Ghz, ProxyKind::Envoy, ProxyHops::One),
        Setup::Foreign(ForeignClient::Ghz, ProxyKind::Provost, ProxyHops::One),
        Setup::Foreign(ForeignClient::Ghz, ProxyKind::Envoy, ProxyHops::Two),
        Setup::Foreign(ForeignClient::Ghz, ProxyKind::Provost, ProxyHops::Two),
        Setup::Foreign(ForeignClient::Cpp, ProxyKind::Envoy, ProxyHops::One),
        Setup::Foreign(ForeignClient::Cpp, ProxyKind::Provost, ProxyHops::One),
        Setup::Foreign(ForeignClient::Cpp, ProxyKind::Envoy, ProxyHops::Two),
        Setup::Foreign(ForeignClient::Cpp, ProxyKind::Provost, ProxyHops::Two),
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Setup::Proxied(proxy, hops) => proxy.name(hops),
            Setup::Foreign(client, proxy, hops) => name_of_check(client, proxy, hops),
            Setup::ProxiedWith(Chain::FieldAccess) => "tonic+provost acl",
            Setup::ProxiedWith(_) => "tonic+provost rate",
            Setup::GrpcToApp => "tonic to provost",
            Setup::AppToGrpc => "provost to tonic",
            Setup::RawTcp => "raw tcp",
            Setup::RawTcpSpin => "raw tcp spin",
            Setup::RawUdp => "raw udp",
            Setup::Floor(FloorWay::Polling) => "floor",
            Setup::Floor(FloorWay::Sleeping) => "floor sleeping",
            Setup::Floor(FloorWay::SleepingOnOneCore) => "floor one core",
            Setup::SharedMemory => "shm",
            Setup::SharedMemoryOneCore => "shm one core",
            Setup::Tonic => "tonic",
            Setup::TonicEnvoyNull => "tonic+envoy null",
            Setup::ProvostBare => "provost bare",
            Setup::ProvostNull => "provost null",
            Setup::ProvostOver(NodeCarrier::Tcp) => "provost tcp",
            Setup::ProvostOver(NodeCarrier::TcpTls) => "provost tcp tls",
            Setup::ProvostOver(NodeCarrier::Datagram) => "provost datagram",
            Setup::ProvostOver(NodeCarrier::DatagramSealed) => "provost datagram sealed",
            Setup::ProvostLocal(NodeWaiting::Polling) => "provost local",
            Setup::ProvostLocal(NodeWaiting::Sleeping) => "provost local sleeping",
            Setup::NodelessPeer(peer) => peer.name(),
            Setup::TonicEnvoy(EnvoyPolicy::RateLimit) => "tonic+envoy rate",
            Setup::TonicEnvoy(EnvoyPolicy::Rbac) => "tonic+envoy rbac",
            Setup::TonicEnvoy(EnvoyPolicy::Lua) => "tonic+envoy lua",
            Setup::TonicEnvoy(EnvoyPolicy::Wasm) => "tonic+envoy wasm",
            Setup::ProvostWith(Chain::RateLimit) => "provost rate",
            Setup::ProvostWith(Chain::FieldAccess) => "provost acl",
            Setup::ProvostWith(Chain::ListAccess) => "provost acl 1M",
            Setup::ProvostWith(Chain::One(Kind::Fault)) => "provost fault",
            Setup::ProvostWith(Chain::One(Kind::Qos)) => "provost qos one",
            Setup::ProvostWith(Chain::One(Kind::Metrics)) => "provost metrics",
            Setup::ProvostWith(Chain::One(Kind::AccessLog)) => "provost log",
            Setup::ProvostWith(Chain::One(Kind::Tap)) => "provost tap 1 %",
            Setup::ProvostWith(Chain::One(Kind::Tracing)) => "provost trace 1 %",
            Setup::ProvostWith(Chain::Nulls(1)) => "provost 1 null",
            Setup::ProvostWith(Chain::Nulls(4)) => "provost 4 nulls",
            Setup::ProvostWith(Chain::Nulls(_)) => "provost 8 nulls",
            Setup::ProvostWith(Chain::Of(1)) => "provost chain 1",
            Setup::ProvostWith(Chain::Of(4)) => "provost chain 4",
            Setup::ProvostWith(Chain::Of(_)) => "provost chain 8",
        }
    }

    /// Whether there are processes between client and server whose rest is worth a look.
    pub(crate) fn has_services(self) -> bool {
        matches!(
            self,
            Setup::TonicEnvoyNull | Setup::ProvostNull | Setup::ProvostLocal(NodeWaiting::Polling)
        )
    }

    /// How its nodes and their apps wait.
    pub(crate) fn waiting(self) -> NodeWaiting {
        match self {
            Setup::ProvostLocal(waiting) => waiting,
            _ => NodeWaiting::Polling,
        }
    }

    /// Whether it can have one call in flight only.
    fn is_ping_pong(self) -> bool {
        matches!(
            self,
            Setup::RawTcpSpin | Setup::Floor(_) | Setup::SharedMemory | Setup::SharedMemoryOneCore
        )
    }

    /// Whether its client starts the other processes, which inherit memory from it.
    pub(crate) fn starts_from_client(self) -> bool {
        matches!(
            self,
            Setup::Floor(_) | Setup::SharedMemory | Setup::SharedMemoryOneCore
        )
    }

    /// What becomes of a blocked user's calls.
    pub(crate) fn blocked_user(self) -> BlockedUser {
        match self {
            Setup::TonicEnvoy(EnvoyPolicy::Rbac | EnvoyPolicy::Lua | EnvoyPolicy::Wasm)
            | Setup::ProvostWith(Chain::FieldAccess | Chain::ListAccess)
            | Setup::ProxiedWith(Chain::FieldAccess) => BlockedUser::IsDenied,
            // The second of the chain's policies is access by the user field.
            Setup::ProvostWith(Chain::Of(count)) if count > 1 => BlockedUser::IsDenied,
            _ => BlockedUser::Passes,
        }
    }

    /// What is measured of it.
    pub(crate) fn measures(self, suite: Suite, scope: Scope) -> Vec<Measure> {
        match suite {
            Suite::Call => self.call_measures(scope),
            Suite::Policy => self.policy_measures(scope),
            Suite::Grpc => self.grpc_measures(scope),
        }
    }

    fn grpc_measures(self, scope: Scope) -> Vec<Measure> {
        match self {
            Setup::TonicEnvoy(_) | Setup::ProxiedWith(_) => self.policy_measures(scope),
            // To build these clients takes longer than all the rest.
            Setup::Foreign(..) if scope == Scope::Smoke => Vec::new(),
            Setup::Foreign(..) => vec![Measure::rate(64, 1)],
            _ => self.call_measures(scope),
        }
    }

    fn policy_measures(self, scope: Scope) -> Vec<Measure> {
        let traffic = Traffic::Guarded(self.blocked_user());
        let measures = match scope {
            Scope::Smoke => vec![Measure::latency()],
            Scope::Quick => vec![Measure::latency(), Measure::rate(64, 1)],
            Scope::Full => vec![Measure::latency(), Measure::rate(64, 1), Measure::rate(64, 2)],
        };
        let guarded = |measure| Measure { traffic, ..measure };
        measures.into_iter().map(guarded).collect()
    }

    fn call_measures(self, scope: Scope) -> Vec<Measure> {
        let latency = vec![Measure::latency()];
        match (self, scope) {
            // To build them takes longer than all the rest.
            (Setup::NodelessPeer(_), Scope::Smoke) => Vec::new(),
            (_, Scope::Smoke) => latency,
            _ if self.is_ping_pong() => latency,
            // Their programs have one connection, and small messages.
            (Setup::NodelessPeer(_) | Setup::ProvostLocal(NodeWaiting::Sleeping), _) => {
                [latency, vec![Measure::rate(64, 1)]].concat()
            }
            // A datagram holds no large message.
            (Setup::RawUdp, Scope::Full) => [latency, rates()].concat(),
            (Setup::ProvostBare | Setup::RawUdp, Scope::Quick) => {
                [latency, vec![Measure::rate(64, 1)]].concat()
            }
            (Setup::ProvostBare, Scope::Full) => [latency, rates(), goodputs(&[64 * KIB, MIB])].concat(),
            (_, Scope::Quick) => [latency, vec![Measure::rate(64, 1)], goodputs(&[64 * KIB, MIB])].concat(),
            (_, Scope::Full) => [
                latency,
                rates(),
                goodputs(&[2 * KIB, 8 * KIB, 64 * KIB, 512 * KIB, MIB, 8 * MIB]),
            ]
            .concat(),
        }
    }
}

/// Which question the bench answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Suite {
    /// What a call costs.
    Call,
    Policy,
    /// What a proxy costs programs that speak gRPC.
    Grpc,
}

impl Suite {
    pub(crate) fn setups(self) -> &'static [Setup] {
        match self {
            Suite::Call => &Setup::ALL,
            Suite::Policy => &Setup::POLICY,
            Suite::Grpc => &Setup::GRPC,
        }
    }
}

/// How much of the plan is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// One short latency run of each setup: does it work?
    Smoke,
    /// Latency, one rate, two goodputs.
    Quick,
    Full,
}

/// One kind of load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Measure {
    /// Its name in tables and files.
    pub(crate) what: String,
    /// Payload of a request, in bytes.
    pub(crate) size_bytes: usize,
    /// Calls in flight on each connection.
    pub(crate) calls_in_flight: usize,
    /// Connections, each with a client thread of its own.
    pub(crate) connections: usize,
    pub(crate) traffic: Traffic,
}

impl Measure {
    pub(crate) fn latency() -> Measure {
        Measure {
            what: "lat".into(),
            size_bytes: 64,
            calls_in_flight: 1,
            connections: 1,
            traffic: Traffic::Plain,
        }
    }

    pub(crate) fn rate(calls_in_flight: usize, connections: usize) -> Measure {
        let suffix = if connections == 1 {
            String::new()
        } else {
            format!(" k={connections}")
        };
        Measure {
            what: format!("rate c={calls_in_flight}{suffix}"),
            size_bytes: 32,
            calls_in_flight,
            connections,
            traffic: Traffic::Plain,
        }
    }

    fn goodput(size_bytes: usize) -> Measure {
        let size = if size_bytes >= MIB {
            format!("{}M", size_bytes / MIB)
        } else {
            format!("{}K", size_bytes / KIB)
        };
        let calls_in_flight =
            (GOODPUT_BYTES_IN_FLIGHT / size_bytes).clamp(GOODPUT_CALLS_MIN, goodput_calls_max(size_bytes));
        Measure {
            what: format!("gp {size}"),
            size_bytes,
            calls_in_flight,
            connections: 1,
            traffic: Traffic::Plain,
        }
    }
}

/// Fewer calls the larger they are: past a bandwidth-delay product more in flight only adds memory traffic.
fn goodput_calls_max(size_bytes: usize) -> usize {
    match size_bytes {
        0..=32_768 => GOODPUT_CALLS_MAX,
        32_769..=131_072 => GOODPUT_CALLS_MAX / 2,
        _ => GOODPUT_CALLS_MAX / 4,
    }
}

fn rates() -> Vec<Measure> {
    [(1, 1), (8, 1), (64, 1), (128, 1), (64, 2), (64, 4)]
        .map(|(calls, connections)| Measure::rate(calls, connections))
        .to_vec()
}

fn goodputs(sizes_bytes: &[usize]) -> Vec<Measure> {
    sizes_bytes.iter().copied().map(Measure::goodput).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_loads_are_those_of_the_files() {
        let full = Setup::ProvostNull.measures(Suite::Call, Scope::Full);
        let names: Vec<_> = full.iter().map(|measure| measure.what.as_str()).collect();
        for name in ["lat", "rate c=64", "rate c=64 k=4", "gp 2K", "gp 64K", "gp 8M"] {
            assert!(names.contains(&name), "{name} is not in {names:?}");
        }
    }

    #[test]
    fn nodes_over_each_carrier_are_measured_alike() {
        for carrier in [
            NodeCarrier::TcpTls,
            NodeCarrier::Datagram,
            NodeCarrier::DatagramSealed,
        ] {
            let setup = Setup::ProvostOver(carrier);
            assert!(Setup::ALL.contains(&setup), "{} is not in the plan", setup.name());
            for scope in [Scope::Smoke, Scope::Quick, Scope::Full] {
                let over_tcp = Setup::ProvostNull.measures(Suite::Call, scope);
                assert_eq!(setup.measures(Suite::Call, scope), over_tcp, "{}", setup.name());
            }
        }
    }

    #[test]
    fn what_a_node_is_held_against_has_its_small_loads_once_it_is_built() {
        for peer in [
            NodelessPeer::Iceoryx2,
            NodelessPeer::Iceoryx2Sleeping,
            NodelessPeer::Shmipc,
        ] {
            let setup = Setup::NodelessPeer(peer);
            assert!(Setup::ALL.contains(&setup), "{} is not in the plan", setup.name());
            assert_eq!(setup.measures(Suite::Call, Scope::Smoke), []);
            for scope in [Scope::Quick, Scope::Full] {
                let of_node = Setup::ProvostLocal(NodeWaiting::Polling).measures(Suite::Call, scope);
                let of_peer = setup.measures(Suite::Call, scope);
                assert_eq!(of_peer, [Measure::latency(), Measure::rate(64, 1)]);
                assert!(of_peer.iter().all(|measure| of_node.contains(measure)));
            }
        }
    }

    #[test]
    fn raw_datagrams_carry_small_messages_alone() {
        let sizes = |scope| {
            Setup::RawUdp
                .measures(Suite::Call, scope)
                .into_iter()
                .map(|measure| measure.size_bytes)
        };
        assert!(sizes(Scope::Full).count() > sizes(Scope::Quick).count());
        assert!(sizes(Scope::Full).all(|bytes| bytes <= 64));
    }

    #[test]
    fn large_messages_have_few_in_flight() {
        assert_eq!(Measure::goodput(2 * KIB).calls_in_flight, 64);
        assert_eq!(Measure::goodput(64 * KIB).calls_in_flight, 32);
        assert_eq!(Measure::goodput(MIB).calls_in_flight, 16);
        assert_eq!(Measure::goodput(8 * MIB).calls_in_flight, 4);
    }
}
