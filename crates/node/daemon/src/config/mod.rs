//! The configuration: TOML files, every key optional, checked whole before anything starts or changes.
//!
//! `docs/configuration.md` documents each key, `packaging/provostd.toml` shows all of them with their defaults (a
//! test holds it against this module).

mod accounts;
mod admin;
mod apps;
mod check;
mod diff;
mod export;
mod grpc;
mod grpc_tls;
mod key_places;
mod lines;
mod model;
mod node_tls;
mod observe;
mod page;
mod sources;

use std::fmt;
use std::path::PathBuf;

use crate::policies::Attachment;

pub use accounts::{AccountKind, GroupAccount, GroupKind, NamedAccount, UserAccount, UserKind};
pub use admin::AdminConfig;
pub use apps::AppTable;
pub use diff::{ConfigChange, TakesEffect, diff};
pub use grpc::{GrpcCompression, GrpcListenerConfig, GrpcTable, NodeService, TransparentMode};
pub use grpc_tls::{ClientAuth, GrpcListenerTls, RouteTls};
pub use key_places::KeyPlaces;
pub use model::*;
pub(crate) use node_tls::{NodeTlsOrigin, WorkloadEndpoint};
pub use node_tls::{SpiffeTable, TlsFiles};
pub use observe::{ListenAddress, ObserveConfig};
pub use page::{PageConfig, TokenRole};
pub use sources::{Adjust, FurtherCheck, Sources};

/// Why a configuration was refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{path}: {source}")]
    Read {
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// It is not TOML, or a key or a type is wrong. The parser's message shows the line.
    #[error("{origin}: {source}{}", hint(.source))]
    Syntax {
        /// File, or where the text came from.
        origin: String,
        /// What the parser said.
        source: Box<toml::de::Error>,
    },
    /// Two files set the same key.
    #[error("{key} is set in {first} and in {second}: remove one of them")]
    Twice {
        key: String,
        /// The file that sets it first.
        first: String,
        /// The one that sets it again.
        second: String,
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

/// What to write, where the parser says it in words of its own: how many brackets a table has, what an address is.
fn hint(error: &toml::de::Error) -> &'static str {
    let (message, shown) = (error.message(), error.to_string());
    let is_entry = shown.contains(" | [[");
    if message == "invalid type: map, expected a sequence" && !is_entry {
        "there may be several: write two brackets, such as [[listener]]\n"
    } else if message.starts_with("invalid type: map, expected") && is_entry {
        "there is one of it: write one bracket, such as [control]\n"
    } else if message == "invalid socket address syntax" {
        "write \"ip:port\", such as \"0.0.0.0:7700\"\n"
    } else {
        ""
    }
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
    /// Reads and checks a text; `origin` says in errors where it came from.
    pub fn parse(text: &str, origin: &str) -> Result<Config, ConfigError> {
        let config: Config = toml::from_str(text).map_err(|source| ConfigError::Syntax {
            origin: origin.into(),
            source: Box::new(source),
        })?;
        config.check(origin)?;
        Ok(config)
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
}

pub(crate) fn parse_mode(mode: &str) -> Option<u32> {
    u32::from_str_radix(mode, 8).ok().filter(|mode| *mode <= 0o777)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::path::Path;

    use super::*;

    /// The keys of what is wrong with this text.
    pub(super) fn problems(text: &str) -> Vec<String> {
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

    /// The example, with its commented tables and keys in effect.
    fn uncommented(example: &str) -> toml::Value {
        let is_code = |line: &str| {
            let key = line.split_once(" = ").map_or("", |(key, _)| key);
            let is_key = !key.is_empty() && key.chars().all(|c| c.is_ascii_lowercase() || c == '_');
            line.starts_with('[') || is_key
        };
        let lines = example.lines().map(|line| match line.strip_prefix("# ") {
            Some(code) if is_code(code) => code,
            _ => line,
        });
        let text: Vec<_> = lines.collect();
        toml::from_str(&text.join("\n")).unwrap()
    }

    /// The paths to all tables at or below a value: keys, and numbers of entries.
    fn tables(at: &toml::Value, path: &[String], found: &mut Vec<Vec<String>>) {
        let below = |step: String| [path, &[step]].concat();
        if let Some(table) = at.as_table() {
            found.push(path.to_vec());
            for (key, value) in table {
                tables(value, &below(key.clone()), found);
            }
        }
        for (at, entry) in at.as_array().into_iter().flatten().enumerate() {
            tables(entry, &below(at.to_string()), found);
        }
    }

    fn table_at<'a>(document: &'a mut toml::Value, path: &[String]) -> &'a mut toml::Table {
        let at = path
            .iter()
            .fold(document, |at, step| match step.parse::<usize>() {
                Ok(entry) => &mut at[entry],
                Err(_) => &mut at[step.as_str()],
            });
        at.as_table_mut().unwrap()
    }

    #[test]
    fn the_example_s_commented_tables_show_every_key() {
        let document = uncommented(include_str!("../../../../../packaging/provostd.toml"));
        let whole: Config = document.clone().try_into().unwrap();
        assert!(whole.tls.is_some() && whole.grpc.listeners[0].tls.is_some());
        let mut paths = Vec::new();
        tables(&document, &[], &mut paths);
        // What is shown and what there is, by table. The refusal of a key that there is not names those that there are.
        let mut keys: BTreeMap<String, [BTreeSet<String>; 2]> = BTreeMap::new();
        for path in paths {
            let mut probe = document.clone();
            let table = table_at(&mut probe, &path);
            let shown: Vec<_> = table.keys().cloned().collect();
            table.insert("unheard_of".into(), true.into());
            // Policies have whatever keys their kinds have.
            let Err(error) = probe.try_into::<Config>() else {
                assert_eq!(path, ["policy", "0", "config"]);
                continue;
            };
            let (_, known) = error.message().split_once("expected").unwrap();
            let known = known.split('`').skip(1).step_by(2).map(str::to_owned);
            let names: Vec<_> = path
                .iter()
                .filter(|step| step.parse::<usize>().is_err())
                .cloned()
                .collect();
            let of_table = keys.entry(names.join(".")).or_default();
            of_table[0].extend(shown);
            of_table[1].extend(known);
        }
        assert!(keys.len() > 15, "{:?}", keys.keys());
        for (table, [shown, known]) in keys {
            let lacks: Vec<_> = known
                .difference(&shown)
                .filter(|key| *key != "takeover_ms")
                .collect();
            assert!(lacks.is_empty(), "the example lacks {lacks:?} of [{table}]");
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
    fn what_the_parser_says_in_words_of_its_own_has_what_to_write_below() {
        let said = |text: &str| Config::parse(text, "test").unwrap_err().to_string();
        for list in ["[listener]\naddress = \"127.0.0.1:1\"\n", "policy = {}\n"] {
            assert!(
                said(list).contains("\nthere may be several: write two brackets"),
                "{list}"
            );
        }
        for one in ["[[grpc]]\nmark = 1\n", "[[control]]\nmode = \"0600\"\n"] {
            assert!(
                said(one).contains("\nthere is one of it: write one bracket"),
                "{one}"
            );
        }
        let address = said("[[listener]]\naddress = \"localhost:7700\"\n");
        assert!(address.contains("\nwrite \"ip:port\""), "{address}");
        let transport = said("[[route]]\nservice = \"a.B\"\ntransport = \"udp\"\n");
        assert!(
            transport.contains("expected one of `auto`, `local`, `tcp`"),
            "{transport}"
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
        let listener = "[[listener]]\ntransport = \"grpc\"\naddress = \"127.0.0.1:1\"\n";
        assert_eq!(problems(listener), ["listener[0].transport"]);
        let grpc = "[[route]]\nservice = \"a.B\"\ntransport = \"grpc\"\n";
        assert_eq!(problems(grpc), ["route[0].endpoints"]);
        let grpc = format!("{grpc}endpoints = [\"h:1\"]\n");
        assert!(Config::parse(&grpc, "test").is_ok());
        let tls = "[tls]\nca = \"c\"\ncert = \"c\"\nkey = \"k\"\n";
        assert_eq!(problems(&format!("{tls}{grpc}")), ["route[0].transport"]);
        // Nor does a NIC, in either direction.
        let nic = |table: &str| format!("{tls}[[{table}]]\ntransport = \"nic\"\n");
        let listener = format!("{}address = \"127.0.0.1:1\"\n", nic("listener"));
        assert_eq!(problems(&listener), ["listener[0].transport"]);
        let route = format!("{}service = \"a.B\"\nendpoints = [\"h:1\"]\n", nic("route"));
        assert_eq!(problems(&route), ["route[0].transport"]);
        let tcp = "[[route]]\nservice = \"a.B\"\ntransport = \"tcp\"\nendpoints = [\"h:1\"]\n";
        for (key, line) in [
            ("compression", "compression = \"gzip\"\n"),
            ("connection_age_s", "connection_age_s = 1\n"),
            ("connections", "connections = 2\n"),
            ("reflection", "reflection = true\n"),
        ] {
            assert_eq!(problems(&format!("{tcp}{line}")), [format!("route[0].{key}")]);
            let grpc = tcp.replace("tcp", "grpc");
            assert!(Config::parse(&format!("{grpc}{line}"), "test").is_ok(), "{key}");
        }
        for connections in ["0", "17"] {
            let route = format!("{}connections = {connections}\n", tcp.replace("tcp", "grpc"));
            assert_eq!(problems(&route), ["route[0].connections"]);
        }
        let port = "[[route]]\nservice = \"a.B\"\nendpoints = [\"host\"]\n";
        assert_eq!(problems(port), ["route[0].endpoints"]);
    }

    #[test]
    fn an_address_is_listened_at_once() {
        let listener = |transport: &str, port: u16| {
            format!("[[listener]]\ntransport = \"{transport}\"\naddress = \"127.0.0.1:{port}\"\n")
        };
        let [tcp, datagram, free] = [("tcp", 7700), ("datagram", 7700), ("tcp", 0)]
            .map(|(transport, port)| listener(transport, port));
        let grpc = "[[grpc.listener]]\nname = \"g\"\napp = \"g\"\naddress = \"127.0.0.1:7700\"\n";
        let metrics = "[observe]\nlisten = \"127.0.0.1:7700\"\n";
        for good in [
            format!("{tcp}{datagram}"),
            format!("{free}{free}"),
            format!("{datagram}{grpc}"),
        ] {
            assert!(Config::parse(&good, "test").is_ok(), "{good}");
        }
        assert_eq!(problems(&format!("{tcp}{tcp}")), ["listener[1].address"]);
        assert_eq!(problems(&format!("{tcp}{grpc}")), ["grpc.listener[0].address"]);
        assert_eq!(problems(&format!("{metrics}{grpc}")), ["observe.listen"]);
        let error = Config::parse(&format!("{tcp}{metrics}"), "test").unwrap_err();
        let said = "observe.listen: 127.0.0.1:7700 is listener[0].address too";
        assert!(error.to_string().contains(said), "{error}");
    }

    #[test]
    fn a_route_has_servers_of_its_own_else_those_of_the_node() {
        let route = "[[route]]\nservice = \"a.B\"\nendpoints = [\"h:1\"]\n";
        let own = format!("{route}server_identities = [\"spiffe://x/b\"]\n");
        assert_eq!(problems(&own), ["route[0].server_identities"]);
        let tls = "[tls]\nca = \"c\"\ncert = \"c\"\nkey = \"k\"\nserver_identities = [\"spiffe://x/*\"]\n";
        let bad = format!("{tls}allow_peers = [\"\"]\n");
        assert_eq!(problems(&bad), ["tls.allow_peers"]);
        for (route, expected) in [(own.as_str(), "spiffe://x/b"), (route, "spiffe://x/*")] {
            let config = Config::parse(&format!("{tls}{route}"), "test").unwrap();
            assert_eq!(config.server_identities(config.route("a.B")), [expected]);
            assert_eq!(config.server_identities(None), ["spiffe://x/*"]);
        }
    }

    #[test]
    fn a_service_without_a_route_of_its_own_takes_the_star() {
        let text = "[[route]]\nservice = \"*\"\nendpoints = [\"h:1\"]\n[[route]]\nservice = \"a.B\"\n";
        let config = Config::parse(text, "test").unwrap();
        assert_eq!(config.route("a.B").unwrap().service, "a.B");
        assert_eq!(config.route("c.D").unwrap().service, "*");
    }
}
