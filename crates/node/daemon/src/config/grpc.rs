//! `[[grpc.listener]]`: where clients that speak gRPC connect.

use provost_grpc::MessageEncoding;
use provost_wire::limits::{MESSAGE_BYTES_MAX, NAME_BYTES_MAX};
use serde::{Deserialize, Serialize};

use super::{AppTable, Config, GrpcListenerTls, ListenAddress, parse_mode};

/// Listeners for gRPC, at most.
const LISTENERS_MAX: usize = 64;
/// Calls at a time of one connection, at most.
const CALLS_MAX: u32 = 16_384;
/// Bytes of the metadata of a call that a listener may take, at most.
const METADATA_BYTES_MAX: u32 = 64 << 10;
/// What a Unix socket's address holds on Linux, in bytes, without the terminating zero.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// `[grpc]`, which has listeners.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct GrpcTable {
    /// Where clients that speak gRPC connect.
    #[serde(rename = "listener", skip_serializing_if = "Vec::is_empty")]
    pub listeners: Vec<GrpcListenerConfig>,
    /// What connections to gRPC servers are marked with, so that rules of the firewall leave them out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mark: Option<u32>,
}

/// One `[[grpc.listener]]` of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct GrpcListenerConfig {
    /// What logs and commands call it.
    pub name: String,
    /// Where, as `ip:port` or `unix:PATH`; port 0 takes a free one and logs it.
    pub address: String,
    /// The name of the app that its clients are. At a Unix socket it may be left out: then it is that of the `[[app]]` to
    /// which the client's process belongs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app: Option<String>,
    /// How connections get here that were going elsewhere, if that is how its clients come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transparent: Option<TransparentMode>,
    /// Permissions of a Unix socket, in octal.
    #[serde(default = "mode_default")]
    pub mode: String,
    /// Largest message of a client, in bytes, as it comes.
    #[serde(default = "message_bytes_default")]
    pub message_bytes: u32,
    /// Calls at a time of one connection.
    #[serde(default = "calls_default")]
    pub calls: u32,
    /// Bytes of the metadata of a call, as HTTP/2 counts them.
    #[serde(default = "metadata_bytes_default")]
    pub metadata_bytes: u32,
    /// How replies are compressed of which the server behind asks nothing, for clients that take it.
    #[serde(default, skip_serializing_if = "GrpcCompression::is_none")]
    pub compression: GrpcCompression,
    /// Services that the node answers itself here. Others of these names go where all calls go.
    #[serde(default = "NodeService::for_clients")]
    pub node_services: Vec<NodeService>,
    /// TLS towards its clients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<GrpcListenerTls>,
}

/// How the kernel has connections come that were going elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TransparentMode {
    /// By a rule that changes where they go.
    Redirect,
    /// By a rule that does not.
    Tproxy,
}

/// How messages of gRPC are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum GrpcCompression {
    /// They are not compressed.
    #[default]
    Identity,
    /// By gzip, which is RFC 1952.
    Gzip,
    /// RFC 1951 within RFC 1950.
    Deflate,
    /// By Zstandard, which is RFC 8878.
    Zstd,
}

impl GrpcCompression {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives it a reference")]
    pub(super) fn is_none(&self) -> bool {
        *self == GrpcCompression::Identity
    }

    pub(crate) fn encoding(self) -> MessageEncoding {
        match self {
            GrpcCompression::Identity => MessageEncoding::Identity,
            GrpcCompression::Gzip => MessageEncoding::Gzip,
            GrpcCompression::Deflate => MessageEncoding::Deflate,
            GrpcCompression::Zstd => MessageEncoding::Zstd,
        }
    }
}

/// A service that the node answers itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeService {
    /// Health checks of clients: `grpc.health.v1.Health`.
    Health,
    /// `grpc.reflection.v1.ServerReflection`, and the same as `v1alpha`.
    Reflection,
    /// The node's connections of gRPC, with those of all clients and apps: `grpc.channelz.v1.Channelz`.
    Channelz,
}

impl NodeService {
    /// Those that tell a client of nothing but what it may call.
    fn for_clients() -> Vec<NodeService> {
        vec![NodeService::Health, NodeService::Reflection]
    }
}

fn mode_default() -> String {
    "0660".to_owned()
}

fn message_bytes_default() -> u32 {
    provost_grpc::RECEIVED_MESSAGE_BYTES_MAX_DEFAULT
}

fn calls_default() -> u32 {
    provost_http2::config::STREAMS_MAX_DEFAULT
}

fn metadata_bytes_default() -> u32 {
    provost_http2::config::HEADER_LIST_BYTES_MAX_DEFAULT
}

/// A key of `[[grpc.listener]]` whose value cannot stand, and why.
type ListenerProblem = (&'static str, String);

impl GrpcListenerConfig {
    /// Where it listens. The error says what is wrong with the key `address`.
    pub fn listen_address(&self) -> Result<ListenAddress, String> {
        ListenAddress::parse(&self.address)
    }

    /// The permissions of its Unix socket.
    #[must_use]
    pub fn socket_mode(&self) -> u32 {
        // The configuration was checked; the fallback is the most careful mode.
        parse_mode(&self.mode).unwrap_or(0o600)
    }

    /// What one listener has in common with the one that a changed configuration makes of it: its socket. Listeners at free
    /// ports are told apart by their names.
    #[must_use]
    pub fn socket_key(&self) -> String {
        match self.listen_address() {
            Ok(ListenAddress::Tcp(address)) if address.port() == 0 => {
                format!("{} {}", self.address, self.name)
            }
            _ => self.address.clone(),
        }
    }

    fn problems(&self, config: &Config) -> Vec<ListenerProblem> {
        let mut problems = Vec::new();
        if self.name.is_empty() || self.name.len() > NAME_BYTES_MAX {
            problems.push(("name", format!("give it 1 to {NAME_BYTES_MAX} bytes")));
        }
        match self.listen_address() {
            Err(problem) => problems.push(("address", problem)),
            Ok(ListenAddress::Tcp(_)) => problems.extend(self.tcp_problem(config)),
            Ok(ListenAddress::Unix(path)) => {
                let bytes = path.as_os_str().len();
                if bytes > SOCKET_PATH_BYTES_MAX {
                    let problem =
                        format!("a path of {bytes} bytes; a Unix socket takes 1 to {SOCKET_PATH_BYTES_MAX}");
                    problems.push(("address", problem));
                }
                if path == config.control.socket {
                    problems.push(("address", "is control.socket too: name another path".to_owned()));
                }
            }
        }
        if let Some(app) = &self.app
            && (app.is_empty() || app.len() > NAME_BYTES_MAX)
        {
            problems.push(("app", format!("write a name of 1 to {NAME_BYTES_MAX} bytes")));
        }
        if parse_mode(&self.mode).is_none() {
            let problem = format!("\"{}\" is not an octal mode such as \"0660\"", self.mode);
            problems.push(("mode", problem));
        }
        self.range_problems(&mut problems);
        if self.transparent.is_some() && matches!(self.listen_address(), Ok(ListenAddress::Unix(_))) {
            let problem = "is for TCP: no connection is redirected to a Unix socket";
            problems.push(("transparent", problem.to_owned()));
        }
        problems.extend(self.tls_problem(config));
        problems
    }

    fn tls_problem(&self, config: &Config) -> Option<ListenerProblem> {
        let files = self.tls_files(config.tls.as_ref())?;
        if let Ok(ListenAddress::Unix(_)) = self.listen_address() {
            let problem = "is of no use at a Unix socket, where the kernel says who comes: remove the table";
            return Some(("tls", problem.to_owned()));
        }
        files.err()
    }

    fn range_problems(&self, problems: &mut Vec<ListenerProblem>) {
        for (key, value, least, most) in [
            ("message_bytes", self.message_bytes, 1024, MESSAGE_BYTES_MAX),
            ("calls", self.calls, 1, CALLS_MAX),
            ("metadata_bytes", self.metadata_bytes, 1024, METADATA_BYTES_MAX),
        ] {
            if value < least || value > most {
                problems.push((key, format!("{value} is out of range: {least} to {most}")));
            }
        }
    }

    /// Of a client that comes over TCP nothing is known but where it connects, so its listener has to say who it is.
    fn tcp_problem(&self, config: &Config) -> Option<ListenerProblem> {
        let Some(app) = &self.app else {
            let problem =
                "is missing: nothing proves who a client over TCP is, so say which app it counts as";
            return Some(("app", problem.to_owned()));
        };
        if config.apps.is_empty() {
            return None;
        }
        let problem = match config.app_table(app) {
            None => {
                format!("no [[app]] has the name \"{app}\": add one, with what its clients may connect to")
            }
            Some(table) if table.has_conditions() => format!(
                "[[app]] \"{}\" says whose the name is, and a client over TCP can prove nothing: give the listener an \
                 app of its own",
                table.name
            ),
            Some(_) => return None,
        };
        Some(("app", problem))
    }
}

impl AppTable {
    /// Whether its name belongs to some processes only.
    pub(super) fn has_conditions(&self) -> bool {
        !(self.users.is_empty()
            && self.groups.is_empty()
            && self.executables.is_empty()
            && self.cgroups.is_empty()
            && self.units.is_empty())
    }
}

impl Config {
    /// What is wrong with `[[grpc.listener]]`, each with its key.
    pub(super) fn grpc_problems(&self) -> Vec<(String, String)> {
        let listeners = &self.grpc.listeners;
        let mut problems = Vec::new();
        if self.grpc.mark == Some(0) {
            let problem = "0 is the mark of what nobody marks: take another number";
            problems.push(("grpc.mark".to_owned(), problem.to_owned()));
        }
        if listeners.len() > LISTENERS_MAX {
            let problem = format!("{} is out of range: 0 to {LISTENERS_MAX}", listeners.len());
            problems.push(("grpc.listener".to_owned(), problem));
        }
        for (at, listener) in listeners.iter().enumerate() {
            let key = |key: &str| format!("grpc.listener[{at}].{key}");
            let own = listener.problems(self).into_iter();
            problems.extend(own.map(|(of, problem)| (key(of), problem)));
            let before = &listeners[..at];
            if before.iter().any(|other| other.name == listener.name) {
                let problem = format!(
                    "\"{}\" is taken: give each listener a name of its own",
                    listener.name
                );
                problems.push((key("name"), problem));
            }
            let is_same_socket = |other: &&GrpcListenerConfig| other.socket_key() == listener.socket_key();
            if let Some(other) = before.iter().find(is_same_socket) {
                let problem = format!("\"{}\" is that of \"{}\" too", listener.address, other.name);
                problems.push((key("address"), problem));
            }
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::super::Sources;
    use super::super::tests::problems;
    use super::*;

    #[test]
    fn a_listener_is_read_with_its_defaults() {
        let text = "[[grpc.listener]]\nname = \"web\"\naddress = \"127.0.0.1:50051\"\napp = \"web\"\n\
                    [[grpc.listener]]\nname = \"local\"\naddress = \"unix:/run/provost/grpc.sock\"\n";
        let config = Config::parse(text, "test").unwrap();
        let [web, local] = &config.grpc.listeners[..] else {
            panic!("{config:?}");
        };
        assert_eq!(
            (web.message_bytes, web.calls, web.metadata_bytes),
            (4 << 20, 1000, 16 << 10)
        );
        assert_eq!((local.socket_mode(), local.app.as_deref()), (0o660, None));
        let again: Config = toml::from_str(&toml::to_string(&config).unwrap()).unwrap();
        assert_eq!(again, config);
    }

    #[test]
    fn every_problem_is_named_with_its_key() {
        let text = "[[grpc.listener]]\nname = \"\"\naddress = \"50051\"\nmode = \"rw\"\nmessage_bytes = 1\ncalls = 0\n\
                    metadata_bytes = 1\napp = \"\"\n[[grpc.listener]]\nname = \"a\"\naddress = \"127.0.0.1:1\"\n\
                    [[grpc.listener]]\nname = \"a\"\naddress = \"127.0.0.1:1\"\napp = \"a\"\n\
                    [[grpc.listener]]\nname = \"c\"\naddress = \"unix:/run/provost/provostd.sock\"\n";
        let keys = [
            "grpc.listener[0].name",
            "grpc.listener[0].address",
            "grpc.listener[0].app",
            "grpc.listener[0].mode",
            "grpc.listener[0].message_bytes",
            "grpc.listener[0].calls",
            "grpc.listener[0].metadata_bytes",
            "grpc.listener[1].app",
            "grpc.listener[2].name",
            "grpc.listener[2].address",
            "grpc.listener[3].address",
        ];
        assert_eq!(problems(text), keys);
    }

    #[test]
    fn a_client_over_tcp_is_no_app_whose_name_belongs_to_processes() {
        let listener = "[[grpc.listener]]\nname = \"web\"\naddress = \"127.0.0.1:0\"\napp = \"web\"\n";
        let with = |table: &str| format!("{listener}[[app]]\n{table}\n");
        assert_eq!(problems(&with("name = \"other\"")), ["grpc.listener[0].app"]);
        assert_eq!(
            problems(&with("name = \"web\"\nusers = [0]")),
            ["grpc.listener[0].app"]
        );
        assert!(Config::parse(&with("name = \"w*\""), "test").is_ok());
    }

    #[test]
    fn listeners_of_several_files_append_and_problems_have_their_place() {
        let listener = |name: &str, rest: &str| {
            format!("[[grpc.listener]]\nname = \"{name}\"\naddress = \"127.0.0.1:0\"\n{rest}\n")
        };
        let read = |second: &str| {
            let files = [
                ("1.toml", listener("a", "app = \"a\"")),
                ("2.toml", listener("b", second)),
            ];
            let files = files.map(|(name, text)| (name.to_owned(), text));
            Sources::default().read_files(&files.into())
        };
        assert_eq!(read("app = \"b\"").unwrap().grpc.listeners.len(), 2);
        let error = read("app = \"\"").unwrap_err().to_string();
        assert!(
            error.contains("grpc.listener[1].app") && error.contains("in 2.toml, line 4"),
            "{error}"
        );
    }

    #[test]
    fn free_ports_are_told_apart_by_name() {
        let text = "[[grpc.listener]]\nname = \"a\"\naddress = \"127.0.0.1:0\"\napp = \"a\"\n\
                    [[grpc.listener]]\nname = \"b\"\naddress = \"127.0.0.1:0\"\napp = \"a\"\n";
        assert!(Config::parse(text, "test").is_ok());
    }
}
