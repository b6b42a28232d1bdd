//! A node's service, as the tests start it.

use std::path::Path;

use provostd::config::Sources;
use provostd::policies::Registry;
use provostd::takeover::Seat;
use provostd::{Config, Node, NodeParts, Shutdown};
use rustix::process::{Resource, Rlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};

/// The environment variable that bounds how many descriptors the node has.
pub(crate) const DESCRIPTORS_MAX: &str = "E2E_DESCRIPTORS_MAX";

/// How a node begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beginning {
    /// By itself. It says `ready <address>` when it serves.
    Fresh,
    /// In the place of the process that has started it.
    TakeOver,
}

/// Runs a node with this configuration until it is told to stop by SIGTERM, or another process has taken over.
pub fn run(path: &Path, beginning: Beginning) -> Result<(), String> {
    limit_descriptors()?;
    let sources = Sources {
        file: Some(path.to_owned()),
        ..Sources::default()
    };
    let config = Config::load(path).map_err(|error| error.to_string())?;
    provostd::log::start(&config.log).map_err(|error| error.to_string())?;
    let parts = NodeParts {
        config,
        kinds: Registry::with_built_ins(),
        sources,
    };
    let node = match beginning {
        Beginning::Fresh => Node::start_with(parts).map_err(|error| error.to_string())?,
        Beginning::TakeOver => {
            let seat = Seat::at_standard_input().map_err(|error| error.to_string())?;
            Node::take_over(parts, seat).map_err(|error| error.to_string())?
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).map_err(|error| error.to_string())?;
        match (beginning, node.addresses()) {
            (Beginning::TakeOver, _) => {}
            (Beginning::Fresh, [address, ..]) => println!("ready {address}"),
            (Beginning::Fresh, []) => return Err("the node does not listen".to_owned()),
        }
        tokio::select! {
            _ = terminate.recv() => {}
            () = node.ended() => {}
        }
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
