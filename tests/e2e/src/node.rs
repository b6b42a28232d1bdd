//! A node's service, as the tests start it.

use std::path::Path;

use provostd::{Config, Node, Shutdown};
use rustix::process::{Resource, Rlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};

/// The environment variable that bounds how many descriptors the node has.
pub(crate) const DESCRIPTORS_MAX: &str = "E2E_DESCRIPTORS_MAX";

/// Runs a node with this configuration until it is told to stop by SIGTERM. Says `ready <address>` before.
pub fn run(config: &Path) -> Result<(), String> {
    limit_descriptors()?;
    let config = Config::load(config).map_err(|error| error.to_string())?;
    provostd::log::start(&config.log).map_err(|error| error.to_string())?;
    let node = Node::start(config).map_err(|error| error.to_string())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).map_err(|error| error.to_string())?;
        match node.addresses() {
            [address, ..] => println!("ready {address}"),
            [] => return Err("the node does not listen".to_owned()),
        }
        terminate.recv().await;
        Ok(())
    })?;
    node.shut_down(Shutdown::Drain);
    node.join();
    Ok(())
}

fn limit_descriptors() -> Result<(), String> {
    let Some(max) = std::env::var(DESCRIPTORS_MAX)
        .ok()
        .and_then(|text| text.parse().ok())
    else {
        return Ok(());
    };
    let limit = Rlimit {
        current: Some(max),
        maximum: Some(max),
    };
    setrlimit(Resource::Nofile, limit).map_err(|error| error.to_string())
}
