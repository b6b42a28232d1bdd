//! Benchmarks of Provost beside raw TCP, tonic, and tonic behind two Envoys, in one run on the same cores.
//!
//! `call` runs every setup of [`plan`] in turn, round after round, so that a noisy minute does not hit all runs of one
//! cell. Each role (server, sidecar, service, client) is a process of its own: this program started again with a
//! hidden subcommand. A client measures itself by HDR histogram over a window in the middle of its load, and the CPU
//! time of every process over the same window. `datagram` has setups of its own.
#![deny(unsafe_code)]

mod arguments;
mod bench;
mod bind;
mod certificate;
mod command_line;
mod datagram;
mod envoy;
mod envoy_policy;
mod failure;
mod foreign;
mod grpc_targets;
mod idle;
mod in_turn;
mod link;
mod load;
mod machine;
#[allow(unsafe_code, reason = "shared memory of the floor's own")]
mod mailbox;
mod node;
mod operator;
mod peers;
mod plan;
mod plot;
mod process;
mod proxies;
mod qos;
mod regime;
mod report;
mod roles;
mod slices;
mod stack;
mod syscalls;
mod targets;
mod timeline;
mod upgrade;

/// Generated from `proto/bench.proto`: what the benchmark calls.
pub mod proto {
    provost::include_proto!("bench");
}

use std::process::ExitCode;

pub use failure::Failure;

/// Runs the program with the process's arguments.
#[must_use]
pub fn main() -> ExitCode {
    match command_line::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("provost-bench: {failure}");
            ExitCode::FAILURE
        }
    }
}
