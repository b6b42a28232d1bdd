//! The configuration's tables and keys, and their defaults.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use provost_shm::TimeSliceChoice;
use provost_wire::limits;
use serde::{Deserialize, Serialize};

use super::{
    AdminConfig, AppTable, GroupAccount, GrpcCompression, GrpcTable, KeyPlaces, ObserveConfig, PageConfig,
    RouteTls, TlsFiles, UserAccount,
};
use crate::policies::Attachment;
use crate::transport::{PACKET_BYTES_ETHERNET, TransportKind, TransportOptions};

/// The whole configuration of a node's service.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Who this node is.
    pub node: NodeConfig,
    /// The socket at which apps attach, and which apps may.
    pub control: ControlConfig,
    /// The socket of the admin API, and who may do what there.
    pub admin: AdminConfig,
    /// The threads of the data plane.
    pub runtime: RuntimeConfig,
    pub limits: LimitsConfig,
    /// How long things may take.
    pub timeouts: TimeoutsConfig,
    /// This node's identity towards others; without it, connections are plain TCP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsFiles>,
    /// How the datagram transport makes its packets.
    pub datagram: DatagramConfig,
    /// Where schemas come from and are kept.
    pub schemas: SchemasConfig,
    /// What is logged, and how.
    pub log: LogConfig,
    /// Where the node tells about itself.
    pub observe: ObserveConfig,
    /// The page that people look at.
    pub page: PageConfig,
    /// Libraries with engines, to load before policies are attached.
    pub engines: Vec<PathBuf>,
    /// Kinds of policies of every datapath, without configuration, before those of `[[policy]]`.
    pub policies: Vec<String>,
    /// Policies and where they apply, in the order in which a call meets them on its way out.
    #[serde(rename = "policy", skip_serializing_if = "Vec::is_empty")]
    pub attachments: Vec<Attachment>,
    /// To whom names of apps belong, and what those apps may do; without any, every app may do everything.
    #[serde(rename = "app", skip_serializing_if = "Vec::is_empty")]
    pub apps: Vec<AppTable>,
    /// Where clients that speak gRPC connect.
    pub grpc: GrpcTable,
    /// Where other nodes connect.
    #[serde(rename = "listener", skip_serializing_if = "Vec::is_empty")]
    pub listeners: Vec<ListenerConfig>,
    #[serde(rename = "route", skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<RouteConfig>,
    /// Where its keys stand.
    #[serde(skip)]
    pub places: Arc<KeyPlaces>,
}

/// `[node]`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct NodeConfig {
    /// Name of the node in logs.
    pub name: String,
}

/// `[control]`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ControlConfig {
    /// Path of the Unix socket.
    pub socket: PathBuf,
    /// Its permissions, in octal.
    pub mode: String,
    /// Users whose processes may attach. Root and the service's own user always may.
    pub allow_uids: Vec<UserAccount>,
    /// Groups whose members' processes may attach.
    pub allow_gids: Vec<GroupAccount>,
    /// Whether any local process may attach that can open the socket.
    pub allow_any_user: bool,
    /// Whether an app may name the address that it wants to connect to; else only routes decide. Without a word: it may
    /// where there is no `[tls]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_app_addresses: Option<bool>,
}

/// `[runtime]`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct RuntimeConfig {
    pub threads: usize,
    /// How long a thread polls after the last work before it sleeps, in microseconds.
    pub spin_us: u64,
    /// What slice of its core each thread asks the kernel for.
    pub time_slice: TimeSlice,
    /// Whether the threads never sleep.
    pub busy_poll: bool,
    /// Whether an app may ask that its rings be polled without sleep.
    pub allow_app_busy_poll: bool,
    /// Apps that have a thread for themselves, by the name with which they attach. Others share the rest.
    pub dedicated: Vec<String>,
}

/// What slice of its core a thread asks the kernel for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TimeSlice {
    /// A short one, unless a filter of system calls is in force.
    Auto,
    /// A short one: whatever filters system calls allows `sched_setattr`.
    Short,
    Kernel,
}

impl TimeSlice {
    pub(crate) fn choice(self) -> TimeSliceChoice {
        match self {
            TimeSlice::Auto => TimeSliceChoice::Auto,
            TimeSlice::Short => TimeSliceChoice::Short,
            TimeSlice::Kernel => TimeSliceChoice::Kernel,
        }
    }
}

/// `[limits]`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct LimitsConfig {
    /// Apps attached at once.
    pub apps: usize,
    /// Connections of all apps, outgoing and incoming.
    pub connections: usize,
    /// Apps of one user attached at once.
    pub apps_per_user: usize,
    /// Connections of one app.
    pub connections_per_app: usize,
    /// Connections of all apps of one user.
    pub connections_per_user: usize,
    /// Calls in flight on one connection.
    pub calls_in_flight: usize,
    /// Largest message, in bytes.
    pub message_bytes: u32,
    /// Largest send heap that an app may bring, in bytes.
    pub send_heap_bytes: u64,
    /// Largest receive heap of one app, in bytes.
    pub receive_heap_bytes: u64,
    /// Slots of a ring that an app may ask for.
    pub ring_slots: u32,
    /// Handshakes with other nodes under way at once.
    pub handshakes: usize,
    /// Schemas kept in memory.
    pub schemas: usize,
    /// Schemas that apps of one user have brought.
    pub schemas_per_user: usize,
}

/// `[timeouts]`, all in milliseconds.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct TimeoutsConfig {
    /// For a connection to another node, handshake included, when the app names none.
    pub connect_ms: u64,
    /// For the handshake of a connection from another node.
    pub handshake_ms: u64,
    /// A connection on which nothing came for this long is asked whether its peer is there.
    pub keepalive_interval_ms: u64,
    /// A peer that does not answer for this long is gone.
    pub keepalive_timeout_ms: u64,
    /// An app whose completion ring stays full for this long is detached.
    pub completion_stall_ms: u64,
    /// How long calls in flight get to finish when the service is told to stop.
    pub drain_ms: u64,
    /// How long a new process that is to replace this one may take to take over, while nobody serves.
    #[serde(alias = "takeover_ms")]
    pub hot_restart_ms: u64,
}

/// `[datagram]`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct DatagramConfig {
    /// What carries the packets.
    pub wire: DatagramWire,
    /// Bytes of the largest packet, without the headers of IP and UDP; both ends use the lesser of theirs.
    pub packet_bytes: u32,
}

/// What carries the packets of the datagram transport.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DatagramWire {
    #[default]
    Udp,
}

/// `[schemas]`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct SchemasConfig {
    /// Where schemas are kept over restarts; none: nowhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_dir: Option<PathBuf>,
    /// Serialized `FileDescriptorSet`s, or directories of `.pb` files, to load at the start.
    pub prefetch: Vec<PathBuf>,
}

/// `[log]`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogConfig {
    /// A level (`error`, `warn`, `info`, `debug`, `trace`) or a filter such as `info,provostd=debug`.
    pub level: String,
    pub format: LogFormat,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    Text,
    /// One JSON object a line.
    Json,
}

/// `[[listener]]`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ListenerConfig {
    #[serde(default)]
    pub transport: TransportKind,
    /// Where, as `ip:port`; port 0 takes a free one and logs it.
    pub address: SocketAddr,
}

/// `[[route]]`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RouteConfig {
    /// Full name of a service, or `*` for every service that no other route names.
    pub service: String,
    /// What carries its calls.
    #[serde(default)]
    pub transport: RouteTransport,
    /// Where it is, each as `host:port`; tried in order from a rotating start.
    #[serde(default)]
    pub endpoints: Vec<String>,
    /// Identities of which a server there has to prove one, instead of those of `[tls]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub server_identities: Vec<String>,
    /// TLS towards gRPC servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<RouteTls>,
    /// How messages to gRPC servers are compressed of which the caller asks nothing.
    #[serde(default, skip_serializing_if = "GrpcCompression::is_none")]
    pub compression: GrpcCompression,
    /// How many connections to a gRPC server the calls of one client may have, by default 1: another is opened when the server allows
    /// no more calls on those that there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connections: Option<u32>,
    /// For how long calls begin on a connection to gRPC servers, in seconds; 0 for ever.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub connection_age_s: u32,
    /// Whether servers there are asked for schemas that this node does not have, by server reflection. Only gRPC servers.
    #[serde(default, skip_serializing_if = "is_false")]
    pub reflection: bool,
    /// Whether calls of other nodes go there as well, while no app of this node has bound the service. Only to gRPC servers.
    #[serde(default, skip_serializing_if = "is_false")]
    pub export: bool,
    /// The app that serves calls of other nodes here, as policies and listings have it; with `export` alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives it a reference")]
fn is_zero(value: &u32) -> bool {
    *value == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives it a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

/// What a route says of the transport.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RouteTransport {
    /// `local` while the service is bound on this node, else the default transport to other nodes.
    #[default]
    Auto,
    Over(TransportKind),
}

impl RouteTransport {
    /// What carries the connections of such a route, if they do not stay on this node.
    #[must_use]
    pub fn network(self) -> TransportKind {
        match self {
            RouteTransport::Auto => TransportKind::default(),
            RouteTransport::Over(kind) => kind,
        }
    }
}

impl Config {
    /// Identities of which a server has to prove one, where a route leads to it; empty: its host's name counts.
    pub(crate) fn server_identities(&self, route: Option<&RouteConfig>) -> Vec<String> {
        let of_route = route.map(|route| &route.server_identities);
        let of_node = self.tls.as_ref().map(|tls| &tls.server_identities);
        let first = of_route.filter(|identities| !identities.is_empty()).or(of_node);
        first.cloned().unwrap_or_default()
    }

    /// What it says to all transports.
    pub(crate) fn transport_options(&self) -> TransportOptions {
        TransportOptions {
            keepalive_interval_ns: self.timeouts.keepalive_interval_ms * 1_000_000,
            keepalive_timeout_ns: self.timeouts.keepalive_timeout_ms * 1_000_000,
            packet_bytes: self.datagram.packet_bytes,
        }
    }
}

/// What a configuration calls [`RouteTransport::Auto`].
const AUTO: &str = "auto";

impl Serialize for RouteTransport {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            RouteTransport::Auto => serializer.serialize_str(AUTO),
            RouteTransport::Over(kind) => kind.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for RouteTransport {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<RouteTransport, D::Error> {
        let name = String::deserialize(deserializer)?;
        if name == AUTO {
            return Ok(RouteTransport::Auto);
        }
        let unknown = || {
            let known = TransportKind::NAMES.join("`, `");
            serde::de::Error::custom(format!(
                "unknown variant `{name}`, expected one of `{AUTO}`, `{known}`"
            ))
        };
        TransportKind::parse(&name)
            .map(RouteTransport::Over)
            .ok_or_else(unknown)
    }
}

impl Default for DatagramConfig {
    fn default() -> DatagramConfig {
        DatagramConfig {
            wire: DatagramWire::Udp,
            packet_bytes: PACKET_BYTES_ETHERNET,
        }
    }
}

impl Default for NodeConfig {
    fn default() -> NodeConfig {
        NodeConfig { name: "node".into() }
    }
}

impl Default for ControlConfig {
    fn default() -> ControlConfig {
        ControlConfig {
            socket: "/run/provost/provostd.sock".into(),
            mode: "0660".into(),
            allow_uids: Vec::new(),
            allow_gids: Vec::new(),
            allow_any_user: false,
            allow_app_addresses: None,
        }
    }
}

impl Default for RuntimeConfig {
    fn default() -> RuntimeConfig {
        RuntimeConfig {
            threads: 1,
            spin_us: 50,
            time_slice: TimeSlice::Auto,
            busy_poll: false,
            allow_app_busy_poll: false,
            dedicated: Vec::new(),
        }
    }
}

impl Default for LimitsConfig {
    fn default() -> LimitsConfig {
        LimitsConfig {
            apps: 4096,
            connections: 16384,
            apps_per_user: 1024,
            connections_per_app: 4096,
            connections_per_user: 8192,
            calls_in_flight: limits::CALLS_IN_FLIGHT_MAX,
            message_bytes: limits::MESSAGE_BYTES_MAX,
            send_heap_bytes: 1 << 30,
            receive_heap_bytes: 256 << 20,
            ring_slots: limits::RING_SLOTS_MAX,
            handshakes: 64,
            schemas: 1024,
            schemas_per_user: 512,
        }
    }
}

impl Default for TimeoutsConfig {
    fn default() -> TimeoutsConfig {
        TimeoutsConfig {
            connect_ms: 5_000,
            handshake_ms: 5_000,
            keepalive_interval_ms: 10_000,
            keepalive_timeout_ms: 10_000,
            completion_stall_ms: 10_000,
            drain_ms: 10_000,
            hot_restart_ms: 5_000,
        }
    }
}

impl Default for LogConfig {
    fn default() -> LogConfig {
        LogConfig {
            level: "info".into(),
            format: LogFormat::Text,
        }
    }
}
