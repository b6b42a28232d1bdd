//! The configuration file: TOML, every key optional, checked whole before anything starts.
//!
//! `docs/configuration.md` documents each key, `packaging/provostd.toml` shows all of them with their defaults (a
//! test holds it against this file).

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use provost_wire::limits;
use serde::{Deserialize, Serialize};

use crate::admin::AdminConfig;
use crate::observe::ObserveConfig;
use crate::policies::{ATTACHMENTS_MAX, Attachment};

/// Runtime threads, at most.
const RUNTIMES_MAX: usize = 64;
/// Listeners and routes, at most each.
const ENTRIES_MAX: usize = 4096;
/// Longest spin before sleep: past this a runtime should say `busy_poll`.
const SPIN_US_MAX: u64 = 100_000;
/// What a Unix socket's address holds on Linux, in bytes, without the terminating zero.
const SOCKET_PATH_BYTES_MAX: usize = 107;

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
    /// Bounds.
    pub limits: LimitsConfig,
    /// How long things may take.
    pub timeouts: TimeoutsConfig,
    /// This node's identity towards others; without it, connections are plain TCP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsFiles>,
    /// Where schemas come from and are kept.
    pub schemas: SchemasConfig,
    /// What is logged, and how.
    pub log: LogConfig,
    /// Where the node tells about itself.
    pub observe: ObserveConfig,
    /// Kinds of policies of every datapath, without configuration, before those of `[[policy]]`.
    pub policies: Vec<String>,
    /// Policies and where they apply, in the order in which a call meets them on its way out.
    #[serde(rename = "policy", skip_serializing_if = "Vec::is_empty")]
    pub attachments: Vec<Attachment>,
    /// Where other nodes connect.
    #[serde(rename = "listener", skip_serializing_if = "Vec::is_empty")]
    pub listeners: Vec<ListenerConfig>,
    /// Where services are.
    #[serde(rename = "route", skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<RouteConfig>,
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
    /// Users whose processes may attach, by number. Root and the service's own user always may.
    pub allow_uids: Vec<u32>,
    /// Groups whose processes may attach, by number (a process's primary group).
    pub allow_gids: Vec<u32>,
    /// Whether any local process may attach that can open the socket.
    pub allow_any_user: bool,
    /// Whether an app may name the address that it wants to connect to; else only routes decide.
    pub allow_app_addresses: bool,
}

/// `[runtime]`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct RuntimeConfig {
    /// How many threads.
    pub threads: usize,
    /// How long a thread polls after the last work before it sleeps, in microseconds.
    pub spin_us: u64,
    /// Whether the threads never sleep.
    pub busy_poll: bool,
    /// Whether an app may ask that its rings be polled without sleep.
    pub allow_app_busy_poll: bool,
    /// Apps that have a thread for themselves, by the name with which they attach. Others share the rest.
    pub dedicated: Vec<String>,
}

/// `[limits]`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct LimitsConfig {
    /// Apps attached at once.
    pub apps: usize,
    /// Connections of all apps, outgoing and incoming.
    pub connections: usize,
    /// Connections of one app.
    pub connections_per_app: usize,
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
}

/// `[tls]`: PEM files. With them, every connection between nodes is mutual TLS.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TlsFiles {
    /// Authorities that peers' certificates must chain to.
    pub ca: PathBuf,
    /// This node's certificate chain.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Identities that may connect here (`spiffe://…` or DNS names); empty: any that `ca` vouches for.
    #[serde(default)]
    pub allow_peers: Vec<String>,
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
    /// How lines look.
    pub format: LogFormat,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// `[[listener]]`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ListenerConfig {
    /// Which transport.
    #[serde(default)]
    pub transport: ListenerTransport,
    /// Where, as `ip:port`; port 0 takes a free one and logs it.
    pub address: SocketAddr,
}

/// Transports that listen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ListenerTransport {
    /// The native protocol over TCP.
    #[default]
    Tcp,
}

/// `[[route]]`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
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
}

/// Transports that a route can name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RouteTransport {
    /// `local` while the service is bound on this node, else `tcp`.
    #[default]
    Auto,
    /// Both ends on this node.
    Local,
    /// The native protocol over TCP.
    Tcp,
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
            allow_app_addresses: true,
        }
    }
}

impl Default for RuntimeConfig {
    fn default() -> RuntimeConfig {
        RuntimeConfig {
            threads: 1,
            spin_us: 50,
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
            connections_per_app: 4096,
            calls_in_flight: limits::CALLS_IN_FLIGHT_MAX,
            message_bytes: limits::MESSAGE_BYTES_MAX,
            send_heap_bytes: 1 << 30,
            receive_heap_bytes: 256 << 20,
            ring_slots: limits::RING_SLOTS_MAX,
            handshakes: 64,
            schemas: 1024,
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

/// Why a configuration was refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{path}: {source}")]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// It is not TOML, or a key or a type is wrong. The parser's message shows the line.
    #[error("{origin}: {source}")]
    Syntax {
        /// File, or where the text came from.
        origin: String,
        /// What the parser said.
        source: Box<toml::de::Error>,
    },
    /// Values are out of their range or contradict each other: all that were found.
    #[error("{origin}: {}", Listed(.problems))]
    Invalid {
        /// File, or where the text came from.
        origin: String,
        /// What is wrong, each with its key.
        problems: Vec<Problem>,
    },
}

/// One value that cannot stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The key with its table, such as `limits.message_bytes`.
    pub key: String,
    /// What is wrong with its value, and what would be right.
    pub message: String,
}

struct Listed<'a>(&'a [Problem]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, Problem { key, message }) in self.0.iter().enumerate() {
            let separator = if at == 0 { "" } else { "\n  " };
            write!(f, "{separator}{key}: {message}")?;
        }
        Ok(())
    }
}

impl Config {
    /// Reads and checks a file.
    pub fn load(path: &Path) -> Result<Config, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.to_path_buf(),
            source,
        })?;
        Config::parse(&text, &path.display().to_string())
    }

    /// Reads and checks a text; `origin` says in errors where it came from.
    pub fn parse(text: &str, origin: &str) -> Result<Config, ConfigError> {
        let config: Config = toml::from_str(text).map_err(|source| ConfigError::Syntax {
            origin: origin.into(),
            source: Box::new(source),
        })?;
        config.check(origin)?;
        Ok(config)
    }

    /// Checks ranges and references, and lists everything that is wrong.
    pub fn check(&self, origin: &str) -> Result<(), ConfigError> {
        let mut problems = Problems::default();
        self.check_control(&mut problems);
        self.check_runtime(&mut problems);
        self.check_limits(&mut problems);
        self.check_timeouts(&mut problems);
        self.check_paths_of_calls(&mut problems);
        if let Err(problem) = self.observe.address() {
            problems.add("observe.listen", problem);
        }
        if problems.0.is_empty() {
            Ok(())
        } else {
            Err(ConfigError::Invalid {
                origin: origin.into(),
                problems: problems.0,
            })
        }
    }

    /// The control socket's permissions.
    #[must_use]
    pub fn socket_mode(&self) -> u32 {
        // `check` has seen that it parses; the fallback is the most careful mode.
        parse_mode(&self.control.mode).unwrap_or(0o600)
    }

    /// The admin socket's permissions.
    #[must_use]
    pub fn admin_mode(&self) -> u32 {
        parse_mode(&self.admin.mode).unwrap_or(0o600)
    }

    /// The route of a service: its own, else the one of `*`.
    #[must_use]
    pub fn route(&self, service: &str) -> Option<&RouteConfig> {
        let named = self.routes.iter().find(|route| route.service == service);
        named.or_else(|| self.routes.iter().find(|route| route.service == "*"))
    }

    fn check_control(&self, problems: &mut Problems) {
        let socket_bytes = self.control.socket.as_os_str().len();
        if socket_bytes == 0 || socket_bytes > SOCKET_PATH_BYTES_MAX {
            let message =
                format!("a path of {socket_bytes} bytes; a Unix socket takes 1 to {SOCKET_PATH_BYTES_MAX}");
            problems.add("control.socket", message);
        }
        if parse_mode(&self.control.mode).is_none() {
            let message = format!("\"{}\" is not an octal mode such as \"0660\"", self.control.mode);
            problems.add("control.mode", message);
        }
        self.check_admin(problems);
        if self.node.name.is_empty() || self.node.name.len() > limits::NAME_BYTES_MAX {
            problems.add(
                "node.name",
                format!("give it 1 to {} bytes", limits::NAME_BYTES_MAX),
            );
        }
    }

    fn check_admin(&self, problems: &mut Problems) {
        if !self.admin.enabled {
            return;
        }
        let socket = self.admin.socket_beside(&self.control.socket);
        let bytes = socket.as_os_str().len();
        if bytes > SOCKET_PATH_BYTES_MAX {
            let message = format!(
                "{} has {bytes} bytes; a Unix socket takes 1 to {SOCKET_PATH_BYTES_MAX}: name a shorter path, or set \
                 admin.enabled = false",
                socket.display()
            );
            problems.add("admin.socket", message);
        }
        if socket == self.control.socket {
            let message = "is control.socket too: give each a path of its own";
            problems.add("admin.socket", message.into());
        }
        if parse_mode(&self.admin.mode).is_none() {
            let message = format!("\"{}\" is not an octal mode such as \"0660\"", self.admin.mode);
            problems.add("admin.mode", message);
        }
    }

    fn check_runtime(&self, problems: &mut Problems) {
        let runtime = &self.runtime;
        problems.range("runtime.threads", runtime.threads, 1, RUNTIMES_MAX);
        problems.range("runtime.spin_us", runtime.spin_us, 0, SPIN_US_MAX);
        if runtime.dedicated.len() >= runtime.threads && !runtime.dedicated.is_empty() {
            let message = format!(
                "{} apps want a thread each, and one must remain for the others: raise runtime.threads to {}",
                runtime.dedicated.len(),
                runtime.dedicated.len() + 1
            );
            problems.add("runtime.dedicated", message);
        }
    }

    fn check_limits(&self, problems: &mut Problems) {
        let at = &self.limits;
        problems.range("limits.apps", at.apps, 1, 1 << 20);
        problems.range("limits.connections", at.connections, 1, 1 << 20);
        problems.range(
            "limits.connections_per_app",
            at.connections_per_app,
            1,
            at.connections.max(1),
        );
        problems.range(
            "limits.calls_in_flight",
            at.calls_in_flight,
            1,
            limits::CALLS_IN_FLIGHT_MAX,
        );
        problems.range(
            "limits.message_bytes",
            at.message_bytes,
            1024,
            limits::MESSAGE_BYTES_MAX,
        );
        problems.range(
            "limits.send_heap_bytes",
            at.send_heap_bytes,
            1 << 20,
            limits::REGION_BYTES_MAX,
        );
        problems.range(
            "limits.receive_heap_bytes",
            at.receive_heap_bytes,
            1 << 20,
            limits::REGION_BYTES_MAX,
        );
        if at.receive_heap_bytes < 2 * u64::from(at.message_bytes) {
            let message = format!(
                "{} bytes do not hold two messages of limits.message_bytes = {}: raise the one or lower the other",
                at.receive_heap_bytes, at.message_bytes
            );
            problems.add("limits.receive_heap_bytes", message);
        }
        problems.range(
            "limits.ring_slots",
            at.ring_slots,
            limits::RING_SLOTS_MIN,
            limits::RING_SLOTS_MAX,
        );
        problems.range("limits.handshakes", at.handshakes, 1, 4096);
        problems.range("limits.schemas", at.schemas, 1, 1 << 16);
    }

    fn check_timeouts(&self, problems: &mut Problems) {
        const DAY_MS: u64 = 24 * 3600 * 1000;
        let at = &self.timeouts;
        problems.range("timeouts.connect_ms", at.connect_ms, 1, DAY_MS);
        problems.range("timeouts.handshake_ms", at.handshake_ms, 1, DAY_MS);
        problems.range(
            "timeouts.keepalive_interval_ms",
            at.keepalive_interval_ms,
            10,
            DAY_MS,
        );
        problems.range(
            "timeouts.keepalive_timeout_ms",
            at.keepalive_timeout_ms,
            10,
            DAY_MS,
        );
        problems.range("timeouts.completion_stall_ms", at.completion_stall_ms, 10, DAY_MS);
        problems.range("timeouts.drain_ms", at.drain_ms, 0, DAY_MS);
    }

    /// What can be seen without the kinds: which there are is known when libraries have been loaded.
    fn check_policies(&self, problems: &mut Problems) {
        let count = self.policies.len() + self.attachments.len();
        problems.range("policy", count, 0, ATTACHMENTS_MAX);
        for (at, attachment) in self.attachments.iter().enumerate() {
            for bad in attachment.problems() {
                problems.add(format!("policy[{at}].{}", bad.key), bad.problem);
            }
            let is_same = |earlier: &Attachment| earlier.name == attachment.name;
            if self.attachments[..at].iter().any(is_same) {
                let message = format!(
                    "\"{}\" is taken: give each policy a name of its own",
                    attachment.name
                );
                problems.add(format!("policy[{at}].name"), message);
            }
        }
    }

    /// All policies, in order: those of `policies`, named after their kinds, then those of `[[policy]]`.
    #[must_use]
    pub fn all_attachments(&self) -> Vec<Attachment> {
        let mut all: Vec<Attachment> = Vec::new();
        for kind in &self.policies {
            let mut attachment = Attachment::of_kind(kind);
            let is_taken = |name: &str, all: &[Attachment]| {
                let mut others = all.iter().chain(&self.attachments);
                others.any(|other| other.name == name)
            };
            let mut count = 1;
            while is_taken(&attachment.name, &all) {
                count += 1;
                attachment.name = format!("{kind}-{count}");
            }
            all.push(attachment);
        }
        all.extend(self.attachments.iter().cloned());
        all
    }

    fn check_paths_of_calls(&self, problems: &mut Problems) {
        self.check_policies(problems);
        problems.range("listener", self.listeners.len(), 0, ENTRIES_MAX);
        problems.range("route", self.routes.len(), 0, ENTRIES_MAX);
        for (at, route) in self.routes.iter().enumerate() {
            check_route(&format!("route[{at}]"), route, problems);
            if self.routes[..at]
                .iter()
                .any(|earlier| earlier.service == route.service)
            {
                let message = format!(
                    "\"{}\" has a route already: give one all endpoints",
                    route.service
                );
                problems.add(format!("route[{at}].service"), message);
            }
        }
    }
}

fn check_route(key: &str, route: &RouteConfig, problems: &mut Problems) {
    if route.service.is_empty() || route.service.len() > limits::NAME_BYTES_MAX {
        problems.add(
            format!("{key}.service"),
            "name a service in full, such as \"kv.Kv\", or \"*\"".into(),
        );
    }
    match (route.transport, route.endpoints.is_empty()) {
        (RouteTransport::Tcp, true) => {
            let message = format!("tcp needs at least one \"host:port\" for \"{}\"", route.service);
            problems.add(format!("{key}.endpoints"), message);
        }
        (RouteTransport::Local, false) => {
            let message = "a local service has no endpoints: remove them, or use transport = \"auto\"";
            problems.add(format!("{key}.endpoints"), message.into());
        }
        _ => {}
    }
    for endpoint in &route.endpoints {
        let port = endpoint.rsplit_once(':').and_then(|(host, port)| {
            let port: u16 = port.parse().ok()?;
            (!host.is_empty() && port != 0).then_some(port)
        });
        if port.is_none() {
            let message = format!("\"{endpoint}\" is not \"host:port\" with a port from 1 to 65535");
            problems.add(format!("{key}.endpoints"), message);
        }
    }
}

#[derive(Default)]
struct Problems(Vec<Problem>);

impl Problems {
    fn add(&mut self, key: impl Into<String>, message: String) {
        self.0.push(Problem {
            key: key.into(),
            message,
        });
    }

    fn range<T: PartialOrd + fmt::Display>(&mut self, key: &str, value: T, least: T, most: T) {
        if value < least || value > most {
            self.add(key, format!("{value} is out of range: {least} to {most}"));
        }
    }
}

fn parse_mode(mode: &str) -> Option<u32> {
    u32::from_str_radix(mode, 8).ok().filter(|mode| *mode <= 0o777)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        match Config::parse(text, "test") {
            Err(ConfigError::Invalid { problems, .. }) => problems.into_iter().map(|at| at.key).collect(),
            other => panic!("expected problems, got {other:?}"),
        }
    }

    #[test]
    fn nothing_at_all_is_the_default() {
        assert_eq!(Config::parse("", "test").unwrap(), Config::default());
    }

    #[test]
    fn the_example_shows_every_key_with_its_default() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../packaging/provostd.toml");
        let example = std::fs::read_to_string(&path).unwrap();
        assert_eq!(Config::parse(&example, "example").unwrap(), Config::default());
        let written = toml::to_string(&Config::default()).unwrap();
        let keys = written
            .lines()
            .filter_map(|line| line.split_once(" = ").map(|(key, _)| key.trim()));
        for key in keys {
            assert!(example.contains(&format!("{key} = ")), "the example lacks {key}");
        }
        let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/configuration.md");
        let document = std::fs::read_to_string(document).unwrap();
        let keys = written
            .lines()
            .filter_map(|line| line.split_once(" = ").map(|(key, _)| key.trim()));
        for key in keys {
            assert!(
                document.contains(&format!("`{key}`")),
                "docs/configuration.md lacks {key}"
            );
        }
    }

    #[test]
    fn a_misspelt_key_is_named_with_its_line() {
        let error = Config::parse("[limits]\nmesage_bytes = 1\n", "node.toml")
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("node.toml") && error.contains("line 2") && error.contains("mesage_bytes"),
            "{error}"
        );
    }

    #[test]
    fn every_problem_is_listed_with_its_key() {
        let text = "[[policy]]\nname = \"a b\"\nkind = \"null\"\n[control]\nmode = \"rw\"\n[runtime]\nthreads = 0\n\
                    [limits]\nmessage_bytes = 1\n[[route]]\nservice = \"a.B\"\ntransport = \"tcp\"\n";
        let expected = [
            "control.mode",
            "runtime.threads",
            "limits.message_bytes",
            "policy[0].name",
            "route[0].endpoints",
        ];
        assert_eq!(problems(text), expected);
    }

    #[test]
    fn contradictions_are_found() {
        assert_eq!(
            problems("[limits]\nreceive_heap_bytes = 67108864"),
            ["limits.receive_heap_bytes"]
        );
        assert_eq!(problems("[runtime]\ndedicated = [\"a\"]"), ["runtime.dedicated"]);
        let twice = "[[route]]\nservice = \"a.B\"\n[[route]]\nservice = \"a.B\"\n";
        assert_eq!(problems(twice), ["route[1].service"]);
        let port = "[[route]]\nservice = \"a.B\"\nendpoints = [\"host\"]\n";
        assert_eq!(problems(port), ["route[0].endpoints"]);
    }

    #[test]
    fn a_service_without_a_route_of_its_own_takes_the_star() {
        let text = "[[route]]\nservice = \"*\"\nendpoints = [\"h:1\"]\n[[route]]\nservice = \"a.B\"\n";
        let config = Config::parse(text, "test").unwrap();
        assert_eq!(config.route("a.B").unwrap().service, "a.B");
        assert_eq!(config.route("c.D").unwrap().service, "*");
    }
}
