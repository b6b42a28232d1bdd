//! Nodes of the Provost setups: `provostd`, and how it is configured.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use crate::certificate;
use crate::failure::{Doing, Failure};
use crate::link::Host;
use crate::machine::is_program;
use crate::plan::{Chain, Kind, NodeCarrier, NodeWaiting};
use crate::process::{Environment, Process};
use crate::report::USER_BLOCKED;

/// The policies of a node's datapaths, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Policies(Vec<Policy>);

/// A policy: its kind, and its configuration in TOML.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Policy {
    kind: &'static str,
    config: String,
}

/// Entries of the list of [`Policies::list_access`].
const LIST_ENTRIES: usize = 1_000_000;
/// Calls a second that no bench reaches.
const RATE_UNREACHED: u64 = 1_000_000_000;

impl Policies {
    pub(crate) fn bare() -> Policies {
        Policies::default()
    }

    /// So many that do nothing.
    pub(crate) fn nulls(count: usize) -> Policies {
        Policies(vec![Policy::new("null", ""); count])
    }

    /// What a chain is made of; files go into `folder`.
    pub(crate) fn of(chain: Chain, folder: &Path) -> Result<Policies, Failure> {
        Ok(match chain {
            Chain::RateLimit => Policies(vec![Policy::rate_limit()]),
            Chain::FieldAccess => Policies(vec![Policy::field_access()]),
            Chain::ListAccess => Policies(vec![Policy::list_access(folder)?]),
            Chain::Nulls(count) => Policies::nulls(count),
            Chain::One(kind) => Policies(vec![Policy::one(kind, folder)]),
            Chain::Of(count) => {
                let turn = [
                    Policy::rate_limit(),
                    Policy::field_access(),
                    Policy::new("metrics", ""),
                    Policy::new("fault", ""),
                ];
                Policies(turn.into_iter().cycle().take(count).collect())
            }
        })
    }

    /// Name, kind and configuration of each, in order.
    pub(crate) fn each(&self) -> impl Iterator<Item = (String, &'static str, &str)> {
        let policies = self.0.iter().enumerate();
        policies.map(|(at, Policy { kind, config })| (format!("{kind}-{at}"), *kind, &**config))
    }

    fn toml(&self) -> String {
        let table = |(name, kind, config)| {
            let config = nested(config);
            format!("[[policy]]\nname = \"{name}\"\nkind = \"{kind}\"\n[policy.config]\n{config}\n")
        };
        self.each().map(table).collect()
    }
}

/// A policy's configuration as it stands in that of a node: its tables are within the policy's.
fn nested(config: &str) -> String {
    let nest = |line: &str| {
        let header = line.trim_start_matches('[');
        let opening = &line[..line.len() - header.len()];
        match opening {
            "" => format!("{line}\n"),
            _ => format!("{opening}policy.config.{header}\n"),
        }
    };
    config.lines().map(nest).collect()
}

impl Policy {
    fn new(kind: &'static str, config: impl Into<String>) -> Policy {
        let config = config.into();
        Policy { kind, config }
    }

    fn rate_limit() -> Policy {
        let config = format!("requests_per_second = {RATE_UNREACHED}\nburst = {RATE_UNREACHED}\n");
        Policy::new("rate-limit", config)
    }

    fn field_access() -> Policy {
        let when = format!("request.user == '{USER_BLOCKED}'");
        Policy::new("access", access_rule(&when))
    }

    /// Samples and spans of one call in a hundred; the log goes to a file, the spans to nobody.
    fn one(kind: Kind, folder: &Path) -> Policy {
        match kind {
            Kind::Fault => Policy::new("fault", ""),
            Kind::Qos => Policy::new("qos", ""),
            Kind::Metrics => Policy::new("metrics", ""),
            Kind::AccessLog => {
                let path = folder.join("access.log");
                Policy::new("access-log", format!("path = \"{}\"\n", path.display()))
            }
            Kind::Tap => Policy::new("tap", "percentage = 1.0\n"),
            Kind::Tracing => Policy::new("tracing", "sampling_ratio = 0.01\n"),
        }
    }

    fn list_access(folder: &Path) -> Result<Policy, Failure> {
        let path = folder.join("blocked.txt");
        let others = (1..LIST_ENTRIES).map(|at| format!("user-{at:011}\n"));
        let text: String = std::iter::once(format!("{USER_BLOCKED}\n"))
            .chain(others)
            .collect();
        std::fs::write(&path, text).doing(|| format!("write {}", path.display()))?;
        let rule = access_rule("request.user in lists.blocked");
        let list = format!("[lists]\nblocked = {{ file = \"{}\" }}\n", path.display());
        Ok(Policy::new("access", rule + &list))
    }
}

fn access_rule(when: &str) -> String {
    format!(
        "default = \"allow\"\n[[rule]]\nname = \"blocked\"\nmethods = [\"/bench.Echo/Guarded\"]\nwhen = \"{when}\"\naction = \"deny\"\n"
    )
}

/// Who reaches a node, and how it reaches the service that the bench calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reach {
    /// Other nodes come to this address.
    pub(crate) nodes_at: Option<SocketAddr>,
    /// Programs that speak gRPC come to this address.
    pub(crate) grpc_at: Option<SocketAddr>,
    pub(crate) service: ServicePlace,
    /// What carries calls between it and other nodes.
    pub(crate) carrier: NodeCarrier,
    pub(crate) waiting: NodeWaiting,
}

/// Where the service is that the bench calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServicePlace {
    /// Bound here, and no route leads to it.
    Bound,
    /// Bound here, and a route says so.
    Local,
    /// At this address of another node.
    Peer(SocketAddr),
    /// A gRPC server has it, at this address.
    GrpcServer(SocketAddr),
}

impl Reach {
    /// The service is bound here, and other nodes reach it at `address`.
    pub(crate) fn listen(address: SocketAddr) -> Reach {
        Reach::to(ServicePlace::Bound).for_nodes(address)
    }

    /// Apps of the node reach the service there.
    pub(crate) fn to(service: ServicePlace) -> Reach {
        Reach {
            nodes_at: None,
            grpc_at: None,
            service,
            carrier: NodeCarrier::Tcp,
            waiting: NodeWaiting::Polling,
        }
    }

    /// Other nodes do too, at `address`.
    pub(crate) fn for_nodes(self, address: SocketAddr) -> Reach {
        Reach {
            nodes_at: Some(address),
            ..self
        }
    }

    /// Programs that speak gRPC do too, at `address`.
    pub(crate) fn for_grpc(self, address: SocketAddr) -> Reach {
        Reach {
            grpc_at: Some(address),
            ..self
        }
    }

    /// This carries the calls between the node and others.
    pub(crate) fn over(self, carrier: NodeCarrier) -> Reach {
        Reach { carrier, ..self }
    }

    /// The node waits so.
    pub(crate) fn waiting(self, waiting: NodeWaiting) -> Reach {
        Reach { waiting, ..self }
    }

    /// Whether somebody calls or answers who brings no schema.
    fn needs_schema(self) -> bool {
        self.grpc_at.is_some() || matches!(self.service, ServicePlace::GrpcServer(_))
    }

    fn toml(self) -> String {
        let transport = self.carrier.transport();
        let nodes = self
            .nodes_at
            .map(|address| format!("[[listener]]\ntransport = \"{transport}\"\naddress = \"{address}\"\n"));
        let grpc = self.grpc_at.map(|address| {
            format!("[[grpc.listener]]\nname = \"clients\"\naddress = \"{address}\"\napp = \"clients\"\n")
        });
        let runtime = match self.waiting {
            NodeWaiting::Polling => "",
            NodeWaiting::Sleeping => "[runtime]\nspin_us = 0\n",
        };
        [
            runtime,
            &nodes.unwrap_or_default(),
            &grpc.unwrap_or_default(),
            &self.route(),
        ]
        .concat()
    }

    /// Nodes that come here call the gRPC server.
    fn export(self) -> &'static str {
        match self.nodes_at {
            Some(_) => "export = true\napp = \"server\"\n",
            None => "",
        }
    }

    fn route(self) -> String {
        match self.service {
            ServicePlace::Bound => String::new(),
            ServicePlace::Local => route("*", "local", None),
            ServicePlace::Peer(address) => route("*", self.carrier.transport(), Some(address)),
            ServicePlace::GrpcServer(address) => route("bench.Echo", "grpc", Some(address)) + self.export(),
        }
    }
}

impl NodeCarrier {
    /// As configurations name it.
    fn transport(self) -> &'static str {
        match self {
            NodeCarrier::Tcp | NodeCarrier::TcpTls => "tcp",
            NodeCarrier::Datagram | NodeCarrier::DatagramSealed => "datagram",
        }
    }

    fn is_encrypted(self) -> bool {
        matches!(self, NodeCarrier::TcpTls | NodeCarrier::DatagramSealed)
    }
}

fn route(service: &str, transport: &str, endpoint: Option<SocketAddr>) -> String {
    let endpoints = endpoint.map(|address| format!("endpoints = [\"{address}\"]\n"));
    format!(
        "[[route]]\nservice = \"{service}\"\ntransport = \"{transport}\"\n{}",
        endpoints.unwrap_or_default()
    )
}

/// A node that runs.
pub(crate) struct Node {
    pub(crate) process: Process,
    pub(crate) socket: PathBuf,
}

impl Node {
    /// Starts a node; its files go into `folder`.
    pub(crate) fn start(
        name: &str,
        reach: Reach,
        policies: &Policies,
        folder: &Path,
    ) -> Result<Node, Failure> {
        Node::start_on(&Host::Here, name, reach, policies, folder)
    }

    /// As [`Node::start`], on a host.
    pub(crate) fn start_on(
        host: &Host,
        name: &str,
        reach: Reach,
        policies: &Policies,
        folder: &Path,
    ) -> Result<Node, Failure> {
        let program = program()?;
        let in_folder = |suffix: &str| folder.join(format!("{name}.{suffix}"));
        let (socket, path, log) = (in_folder("sock"), in_folder("toml"), in_folder("log"));
        let mut text = configuration(name, &socket, reach, policies);
        if reach.needs_schema() {
            let schema = folder.join("bench.pb");
            std::fs::write(&schema, crate::proto::echo_client::DESCRIPTOR_SET)
                .doing(|| format!("write {}", schema.display()))?;
            text += &format!("[schemas]\nprefetch = [\"{}\"]\n", schema.display());
        }
        if reach.carrier.is_encrypted() {
            text += &certificate::tls_table(folder)?;
        }
        std::fs::write(&path, text).doing(|| format!("write {}", path.display()))?;
        let arguments = ["--config".to_string(), path.to_string_lossy().into_owned()];
        let mut process = Process::start_program(name, host, &program, &arguments, &log)?;
        // Another daemon may replace it, with the same arguments.
        process.end_with_it(&path);
        process
            .wait_for("it lets apps attach", || socket.exists())
            .map_err(|error| {
                let said = std::fs::read_to_string(&log).unwrap_or_default();
                Failure::role(
                    name,
                    format!("{error}; it said: {}", said.lines().last().unwrap_or("nothing")),
                )
            })?;
        Ok(Node { process, socket })
    }

    /// The environment of an app of this node.
    pub(crate) fn environment(&self) -> Environment {
        [("PROVOST_SOCKET".into(), self.socket.clone())].into()
    }
}

/// Where the node's admin API is, beside the socket at which apps attach.
pub(crate) fn admin_socket(socket: &Path) -> PathBuf {
    socket.with_extension("admin")
}

/// `provostd`, as cargo has built it beside this program.
fn program() -> Result<PathBuf, Failure> {
    let bench = std::env::current_exe().doing(|| "find this program".into())?;
    let program = bench.with_file_name("provostd");
    if is_program(&program) {
        Ok(program)
    } else {
        Err(Failure::Unavailable(format!(
            "{} is missing: build the package provostd",
            program.display()
        )))
    }
}

fn configuration(name: &str, socket: &Path, reach: Reach, policies: &Policies) -> String {
    format!(
        "[node]\nname = \"{name}\"\n[control]\nsocket = \"{}\"\nmode = \"0600\"\n[admin]\nsocket = \"{}\"\n{}{}",
        socket.display(),
        admin_socket(socket).display(),
        reach.toml(),
        policies.toml()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_sleeps_at_once_where_that_is_measured_alone() {
        let text = |waiting| {
            let reach = Reach::to(ServicePlace::Local).waiting(waiting);
            configuration("service", Path::new("service.sock"), reach, &Policies::nulls(1))
        };
        assert!(text(NodeWaiting::Sleeping).contains("[runtime]\nspin_us = 0\n"));
        assert!(!text(NodeWaiting::Polling).contains("[runtime]"));
    }
}
