//! The command line: which benchmark is run.

use clap::{Parser, Subcommand};

use crate::arguments::{Call, Datagram, Syscalls, Upgrade};
use crate::datagram::{self, Depth};
use crate::failure::Failure;
use crate::plan::{Scope, Suite};
use crate::process;
use crate::regime::RunOptions;
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
    Bind(RunOptions),
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

const CALL_EXAMPLES: &str = "Examples:
  cargo xtask bench call --quick                               under 6 minutes, on cores that are idle otherwise
  cargo xtask bench call --quick --regime background           beside a background job on each core
  cargo xtask bench call --regime idle,background,busy,one-core --json call.json
                                                               all regimes in turn; call.json holds them by name
  cargo xtask bench call --quick --only 'raw tcp,provost null' only these setups
  cargo xtask bench call --quick --only 'provost local,iceoryx2,shm'
                                                               one node beside shared memory without one
  cargo xtask bench call --quick --only 'provost null,provost datagram,provost tcp tls,raw'
                                                               nodes joined by TCP and by datagrams, plain and encrypted

Setups:
  raw tcp, raw tcp spin, raw udp    client and server on sockets: blocking, polled, UDP (small messages alone)
  tonic, tonic+envoy null           gRPC: client to server, and through a sidecar on either side
  shm, shm one core                 the least that shared memory can take
  floor, floor sleeping             the least that Provost's four processes can take, polling or sleeping at once,
  floor one core                    and sleeping at once on one core
  provost local, provost bare       one node with a null policy; two nodes over TCP without one
  provost local sleeping            as provost local; node and apps sleep at once, where others poll for a while first
  iceoryx2, iceoryx2 sleeping       client and server over iceoryx2, without a node: polling for a while first, and sleeping at once
  shmipc                            the same over shmipc, which sleeps at once
  provost null                      two nodes over TCP, a null policy in each
  provost datagram                  the same over the datagram transport
  provost tcp tls                   the same over TCP with mutual TLS
  provost datagram sealed           the same over the datagram transport, sealed by a key from mutual TLS";

const GRPC_EXAMPLES: &str = "Examples:
  cargo xtask bench grpc --quick                               under 8 minutes, once the clients are built
  cargo xtask bench grpc --quick --only ' two'                 two proxies in a row: as sidecars stand
  cargo xtask bench grpc --json grpc.json                      everything, kept

nginx and HAProxy are Debian's (packages nginx-light, haproxy); a setup whose program is missing has no figure. Two more clients call through
nodes and Envoys, as a check: ghz, which Go builds, and one with gRPC's C++ library (packages make, g++, pkg-config, libgrpc++-dev,
libprotobuf-dev, protobuf-compiler-grpc). They say no p99.9. --only ghz,c++ has them alone.";

const DATAGRAM_EXAMPLES: &str = "Examples:
  cargo xtask bench datagram --quick                           the ends of every scale, under 2 minutes
  cargo xtask bench datagram --only lat                        latency alone (table 2)
  cargo xtask bench datagram --only 'rate b',sessions          rates by batch and by sessions (figures 4 and 5)
  cargo xtask bench datagram --json d.json --plots plots       everything, kept
  cargo xtask bench datagram --only sim                        the simulated network: loss and incast (tables 4 and 5)";

fn scope(call: &Call) -> Scope {
    if call.run.quick { Scope::Quick } else { Scope::Full }
}

fn depth(options: &Datagram) -> Depth {
    if options.run.quick {
        Depth::Quick
    } else {
        Depth::Full
    }
}

/// Does what the command line says.
pub(crate) fn run() -> Result<(), Failure> {
    let command = Arguments::parse().command;
    if !matches!(command, Command::Role { .. }) {
        process::adopt_orphans()?;
    }
    match command {
        Command::Call(call) => bench::run(&call, Suite::Call, scope(&call)),
        Command::Datagram(options) => datagram::run(&options, depth(&options)),
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
