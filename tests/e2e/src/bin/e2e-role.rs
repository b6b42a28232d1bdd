//! The programs that the end-to-end tests start: `provostd CONFIG`, `server`, `agent EXECUTOR`, and gRPC's
//! interoperability tests as apps: `interop-server`, `interop-client CASE`. A node that is told to be
//! replaced starts `provostd CONFIG --take-over` itself.
//!
//! Each ends when its standard input does, and when the test that started it dies.
#![forbid(unsafe_code)]

use std::alloc::System;
use std::process::ExitCode;

use provost_e2e::node::Beginning;
use provost_e2e::{agent, interop_client, interop_server, node, other_schemas, server, successor};
use provost_wiping::WipingAllocator;
use provostd::hot_restart::HOT_RESTART_OPTION;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

/// As `provostd` has it.
#[global_allocator]
static ALLOCATOR: WipingAllocator = WipingAllocator(System);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    // The process that a node's successor is started by is the one that it replaces.
    if !arguments.contains(&HOT_RESTART_OPTION) {
        die_with_parent();
    }
    let outcome = match arguments[..] {
        ["provostd", config] => node::run(config.as_ref(), Beginning::Fresh),
        ["provostd", config, HOT_RESTART_OPTION] => node::run(config.as_ref(), Beginning::HotRestart),
        ["successor", fault, ..] => fault.parse().and_then(successor::run),
        ["server", "compatible"] => other_schemas::serve_compatible().map_err(|status| status.to_string()),
        ["interop-server"] => interop_server::run().map_err(|status| status.to_string()),
        ["interop-client", case] => interop_client::run(case),
        ["server"] => server::run().map_err(|status| status.to_string()),
        ["agent", executor] => executor
            .parse()
            .and_then(|executor| agent::run(executor).map_err(|status| status.to_string())),
        _ => Err(format!("e2e-role: not a role: {arguments:?}")),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

/// Has the kernel kill this process when the test that started it dies.
fn die_with_parent() {
    let parent = std::env::var("E2E_PARENT")
        .ok()
        .and_then(|text| text.parse().ok());
    let armed = set_parent_process_death_signal(Some(Signal::KILL)).is_ok();
    if !armed || getppid().map(Pid::as_raw_pid) != parent {
        eprintln!("the test that started this program is gone");
        std::process::exit(1);
    }
}
