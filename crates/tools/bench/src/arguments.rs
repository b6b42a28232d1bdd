//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::datagram::{self, Depth};
use crate::failure::Failure;
use crate::plan::{Scope, Suite};
use crate::process;
use crate::regime::CoreRegime;
use crate::roles::{self, Role};
use crate::syscalls;
use crate::{bench, bind, qos, upgrade};

/// Benchmarks of Provost beside raw TCP, tonic and Envoy.
#[derive(Parser)]
#[command(name = "cargo xtask bench", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Calls: latency, rate, goodput, CPU time and memory of every setup
    #[command(after_help = CALL_EXAMPLES)]
    Call(Call),
    /// Policies: rate limit and access by field beside Envoy's, and chains of policies (mRPC, figure 6)
    Policy(Call),
    /// Programs that speak gRPC, through one and two nodes, Envoys, nginx and HAProxies
    #[command(after_help = GRPC_EXAMPLES)]
    Grpc(Call),
    /// What live upgrades of engines, policies and whole daemons do to calls (mRPC, figures 7a and 7b)
    Upgrade(Upgrade),
    /// Small calls beside large ones, with and without QoS (mRPC, table 4)
    Qos(Call),
    /// Binding and connecting: a schema that is never seen before, and one that is known
    Bind(BindOptions),
    /// The datagram transport over wires between two processes, beside the bare wires (eRPC, section 6)
    #[command(after_help = DATAGRAM_EXAMPLES)]
    Datagram(Datagram),
    /// One short run of each setup, to see that all of them work
    Smoke,
    /// System calls and context switches of each process for each call (needs perf)
    Syscalls(Syscalls),
    /// A process of a setup
    #[command(hide = true)]
    Role {
        /// The role, as JSON
        role: String,
    },
}

/// Where a benchmark leaves its figures, beside the table that it prints.
#[derive(Args, Clone, Debug)]
pub(crate) struct FigureFiles {
    /// Write the figures to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Draw plots into this folder
    #[arg(long, value_name = "FOLDER")]
    pub(crate) plots: Option<PathBuf>,
}

/// How calls are measured.
#[derive(Args, Clone, Debug)]
pub(crate) struct Call {
    /// Fewer loads and shorter runs: under 6 minutes
    #[arg(long)]
    pub(crate) quick: bool,
    #[command(flatten)]
    pub(crate) files: FigureFiles,
    /// What else the cores do (several in turn, separated by commas)
    #[arg(long, value_enum, value_delimiter = ',', default_value = "idle")]
    pub(crate) regime: Vec<CoreRegime>,
    /// The cores that everything runs on
    #[arg(long, value_delimiter = ',', default_value = "0,1")]
    pub(crate) cores: Vec<usize>,
    /// Only setups whose name contains this (several, separated by commas)
    #[arg(long, value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// Rounds [default: 3, with --quick 5]
    #[arg(long)]
    pub(crate) rounds: Option<usize>,
    /// Length of a run in seconds [default: 1.5, with --quick 0.8]
    #[arg(long)]
    pub(crate) seconds: Option<f64>,
    /// Before each run, wait up to this many seconds for the cores to be otherwise idle
    #[arg(long, default_value_t = 0.0)]
    pub(crate) quiet: f64,
}

/// How changes are measured.
#[derive(Args, Clone, Debug)]
pub(crate) struct Upgrade {
    /// Fewer changes: under a minute
    #[arg(long)]
    pub(crate) quick: bool,
    #[command(flatten)]
    pub(crate) files: FigureFiles,
    /// What else the cores do (several in turn, separated by commas)
    #[arg(long, value_enum, value_delimiter = ',', default_value = "idle")]
    pub(crate) regime: Vec<CoreRegime>,
    /// The cores that everything runs on
    #[arg(long, value_delimiter = ',', default_value = "0,1")]
    pub(crate) cores: Vec<usize>,
    /// Only experiments whose name contains this (several, separated by commas)
    #[arg(long, value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// Changes of each experiment [default: 1000 of an engine, 30 of a daemon; with --quick 100 and 6]
    #[arg(long)]
    pub(crate) changes: Option<usize>,
    /// Time between two changes of an engine, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 50)]
    pub(crate) every: u64,
}

/// How binding and connecting are measured.
#[derive(Args, Clone, Debug)]
pub(crate) struct BindOptions {
    /// Fewer rounds
    #[arg(long)]
    pub(crate) quick: bool,
    /// Write the figures to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// What else the cores do (several in turn, separated by commas)
    #[arg(long, value_enum, value_delimiter = ',', default_value = "idle")]
    pub(crate) regime: Vec<CoreRegime>,
    /// The cores that everything runs on
    #[arg(long, value_delimiter = ',', default_value = "0,1")]
    pub(crate) cores: Vec<usize>,
}

/// How system calls are counted.
#[derive(Args, Clone, Debug)]
pub(crate) struct Syscalls {
    /// Count for a shorter time
    #[arg(long)]
    pub(crate) quick: bool,
    /// Write the figures to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// What else the cores do (several in turn, separated by commas)
    #[arg(long, value_enum, value_delimiter = ',', default_value = "idle")]
    pub(crate) regime: Vec<CoreRegime>,
    /// The cores that everything runs on
    #[arg(long, value_delimiter = ',', default_value = "0,1")]
    pub(crate) cores: Vec<usize>,
    /// Only setups whose name contains this (several, separated by commas)
    #[arg(long, value_delimiter = ',')]
    pub(crate) only: Vec<String>,
}

const CALL_EXAMPLES: &str = "Examples:
  cargo xtask bench call --quick                               under 6 minutes, on cores that are idle otherwise
  cargo xtask bench call --quick --regime background           beside a background job on each core
  cargo xtask bench call --regime idle,background,busy,one-core --json call.json
                                                               all regimes in turn; call.json holds them by name
  cargo xtask bench call --quick --only 'raw tcp,provost null' only these setups
  cargo xtask bench call --quick --only 'provost null,provost datagram,provost tcp tls,raw'
                                                               nodes joined by TCP and by datagrams, plain and encrypted

Setups:
  raw tcp, raw tcp spin, raw udp    client and server on sockets: blocking, polled, UDP (small messages alone)
  tonic, tonic+envoy null           gRPC: client to server, and through a sidecar on either side
  shm, shm one core, floor          the least that shared memory, and Provost's four processes, can take
  provost local, provost bare       one node with a null policy; two nodes over TCP without one
  provost null                      two nodes over TCP, a null policy in each
  provost datagram                  the same over the datagram transport
  provost tcp tls                   the same over TCP with mutual TLS
  provost datagram sealed           the same over the datagram transport, sealed by a key from mutual TLS";

const GRPC_EXAMPLES: &str = "Examples:
  cargo xtask bench grpc --quick                               under 5 minutes
  cargo xtask bench grpc --quick --only ' two'                 two proxies in a row: as sidecars stand
  cargo xtask bench grpc --json grpc.json                      everything, kept

nginx and HAProxy are Debian's (packages nginx-light, haproxy); a setup whose program is missing has no figure.";

const DATAGRAM_EXAMPLES: &str = "Examples:
  cargo xtask bench datagram --quick                           the ends of every scale, under 2 minutes
  cargo xtask bench datagram --only lat                        latency alone (table 2)
  cargo xtask bench datagram --only 'rate b',sessions          rates by batch and by sessions (figures 4 and 5)
  cargo xtask bench datagram --json d.json --plots plots       everything, kept
  cargo xtask bench datagram --only sim                        the simulated network: loss and incast (tables 4 and 5)";

/// How the datagram transport is measured.
#[derive(Args, Clone, Debug)]
pub(crate) struct Datagram {
    /// The ends of every scale, and shorter runs: under 2 minutes
    #[arg(long)]
    pub(crate) quick: bool,
    #[command(flatten)]
    pub(crate) files: FigureFiles,
    /// What else the cores do (several in turn, separated by commas)
    #[arg(long, value_enum, value_delimiter = ',', default_value = "idle")]
    pub(crate) regime: Vec<CoreRegime>,
    /// The cores of the two processes: the first and the last of these. With one core they take turns on it
    #[arg(long, value_delimiter = ',', default_value = "0,1")]
    pub(crate) cores: Vec<usize>,
    /// Only what contains this in its setup and name (several, separated by commas)
    #[arg(long, value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// Rounds [default: 3]
    #[arg(long)]
    pub(crate) rounds: Option<usize>,
    /// Length of a run in seconds [default: 1, with --quick 0.35]
    #[arg(long)]
    pub(crate) seconds: Option<f64>,
}

impl Datagram {
    fn smoke() -> Datagram {
        Datagram {
            quick: true,
            files: FigureFiles {
                json: None,
                plots: None,
            },
            regime: vec![CoreRegime::Idle],
            cores: vec![0, 1],
            only: Vec::new(),
            rounds: None,
            seconds: None,
        }
    }

    fn depth(&self) -> Depth {
        if self.quick { Depth::Quick } else { Depth::Full }
    }
}

impl Call {
    fn smoke() -> Call {
        Call {
            quick: true,
            files: FigureFiles {
                json: None,
                plots: None,
            },
            regime: vec![CoreRegime::Idle],
            cores: vec![0, 1],
            only: Vec::new(),
            rounds: Some(1),
            seconds: Some(0.3),
            quiet: 0.0,
        }
    }

    pub(crate) fn quiet_limit(&self) -> Duration {
        Duration::try_from_secs_f64(self.quiet).unwrap_or_default()
    }
}

fn scope(call: &Call) -> Scope {
    if call.quick { Scope::Quick } else { Scope::Full }
}

/// Does what the command line says.
pub(crate) fn run() -> Result<(), Failure> {
    let command = Arguments::parse().command;
    if !matches!(command, Command::Role { .. }) {
        process::adopt_orphans()?;
    }
    match command {
        Command::Call(call) => bench::run(&call, Suite::Call, scope(&call)),
        Command::Datagram(options) => datagram::run(&options, options.depth()),
        Command::Upgrade(options) => upgrade::run(&options),
        Command::Qos(call) => qos::run(&call),
        Command::Policy(call) => bench::run(&call, Suite::Policy, scope(&call)),
        Command::Grpc(call) => bench::run(&call, Suite::Grpc, scope(&call)),
        Command::Bind(options) => bind::run(&options),
        Command::Smoke => {
            bench::run(&Call::smoke(), Suite::Call, Scope::Smoke)?;
            bench::run(&Call::smoke(), Suite::Policy, Scope::Smoke)?;
            bench::run(&Call::smoke(), Suite::Grpc, Scope::Smoke)?;
            datagram::run(&Datagram::smoke(), Depth::Smoke)
        }
        Command::Syscalls(options) => syscalls::run(&options),
        Command::Role { role } => {
            let role: Role = serde_json::from_str(&role)
                .map_err(|error| Failure::role("role", format!("is not one: {error}")))?;
            roles::play(role)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Setup;

    #[test]
    fn the_help_names_each_setup() {
        let (_, listed) = CALL_EXAMPLES.split_once("Setups:").unwrap();
        for setup in Setup::ALL {
            let named = |line: &str| {
                line.split([',', '\n']).any(|name| {
                    let name = name.trim_start();
                    name == setup.name() || name.starts_with(&format!("{}  ", setup.name()))
                })
            };
            assert!(named(listed), "{} is not in the help", setup.name());
        }
    }
}
