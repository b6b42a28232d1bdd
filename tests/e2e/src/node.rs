//! A node's service, as the tests start it, and as it starts the process that replaces it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use provostd::config::Sources;
use provostd::hot_restart::{Predecessor, UpgradeRequest};
use provostd::policies::Registry;
use provostd::{Config, Node, NodeParts, Shutdown};
use rustix::process::{Resource, Rlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};

/// The environment variable that bounds how many descriptors the node has.
pub(crate) const DESCRIPTORS_MAX: &str = "E2E_DESCRIPTORS_MAX";
/// The environment variable with the path of a file that names the program to be replaced by, if it is another one.
pub(crate) const SUCCESSOR: &str = "E2E_SUCCESSOR";

/// How long a program that is not this one may take to get ready to take over.
const READY_WITHIN: Duration = Duration::from_secs(2);
/// How often a node that nobody's death would end looks whether its test is there.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// How a node begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beginning {
    /// By itself. It says `ready <address>` when it serves.
    Fresh,
    /// In the place of the process that has started it.
    HotRestart,
}

/// Runs a node with this configuration until it is told to stop by SIGTERM, or another process has taken over. SIGUSR2
/// has it replaced, SIGHUP has it read its configuration again.
pub fn run(path: &Path, beginning: Beginning) -> Result<(), String> {
    if beginning == Beginning::HotRestart {
        end_with_the_test();
    }
    limit_descriptors()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let node = runtime.block_on(async {
        // Before the node starts: from its first moment on it can be told things.
        let mut terminate = signal(SignalKind::terminate()).map_err(|error| error.to_string())?;
        let mut replace = signal(SignalKind::user_defined2()).map_err(|error| error.to_string())?;
        let mut hang_up = signal(SignalKind::hangup()).map_err(|error| error.to_string())?;
        let node = start(path, beginning)?;
        let ended = node.ended();
        tokio::pin!(ended);
        loop {
            tokio::select! {
                _ = terminate.recv() => {
                    node.shut_down(Shutdown::Drain);
                    return Ok(node);
                }
                _ = &mut ended => return Ok(node),
                _ = hang_up.recv() => node.ask_to_reload(),
                _ = replace.recv() => drop(node.begin_upgrade(UpgradeRequest {
                    binary: successor(),
                    ready_within: successor().map(|_| READY_WITHIN),
                    arguments: None,
                })),
            }
        }
    });
    node.map(Node::join)
}

fn start(path: &Path, beginning: Beginning) -> Result<Node, String> {
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
    if beginning == Beginning::HotRestart {
        let seat = Predecessor::at_standard_input().map_err(|error| error.to_string())?;
        return Node::hot_restart(parts, seat).map_err(|error| error.to_string());
    }
    let node = Node::start_with(parts).map_err(|error| error.to_string())?;
    match node.addresses() {
        [address, ..] => println!("ready {address}"),
        [] => return Err("the node does not listen".to_owned()),
    }
    Ok(node)
}

fn successor() -> Option<PathBuf> {
    let path = std::env::var_os(SUCCESSOR)?;
    let named = std::fs::read_to_string(path).ok()?;
    Some(named.trim().into()).filter(|path: &PathBuf| !path.as_os_str().is_empty())
}

fn end_with_the_test() {
    let Ok(test) = std::env::var("E2E_PARENT") else {
        return;
    };
    std::thread::spawn(move || {
        while Path::new("/proc").join(&test).exists() {
            std::thread::sleep(LOOK_EVERY);
        }
        std::process::exit(1);
    });
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
