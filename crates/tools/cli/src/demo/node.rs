//! A node of the demonstration: `provostd` with a configuration of a few lines.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use provostd::config::{ListenerConfig, RouteConfig, RouteTransport, Sources};
use provostd::hot_restart::Predecessor;
use provostd::policies::Registry;
use provostd::{Config, Node, NodeParts, Shutdown, TransportKind};
use tokio::signal::unix::{SignalKind, signal};

use super::wire::Event;
use super::worker::{self, WorkerError};

/// What a node is told.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Its name; its socket is `<name>.sock`.
    #[arg(long)]
    name: String,
    /// Where its socket goes.
    #[arg(long)]
    directory: PathBuf,
    /// Where kv.Kv is; without it, the node listens for peers that call its own.
    #[arg(long)]
    peer: Option<String>,
    /// Replaces the node at the other end of standard input.
    #[arg(long = "take-over")]
    pub(crate) hot_restart: bool,
}

/// Runs the node until it is told to stop by SIGTERM.
pub(crate) fn run(options: Options) -> Result<(), WorkerError> {
    let takes_over = options.hot_restart;
    let config = config(options);
    config.check("the demonstration").map_err(service)?;
    provostd::log::start(&config.log).map_err(service)?;
    let node = match takes_over {
        false => Node::start(config).map_err(service)?,
        true => {
            let parts = NodeParts {
                config,
                kinds: Registry::with_built_ins(),
                sources: Sources::default(),
            };
            let seat = Predecessor::at_standard_input().map_err(service)?;
            Node::hot_restart(parts, seat).map_err(service)?
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .map_err(WorkerError::Socket)?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).map_err(WorkerError::Socket)?;
        // A successor is told of by the operator's answer.
        if !takes_over {
            worker::tell(&Event::Ready {
                address: node.addresses().first().map(ToString::to_string),
            })?;
        }
        tokio::select! {
            _ = terminate.recv() => {}
            _ = node.ended() => {}
        }
        Ok::<_, WorkerError>(())
    })?;
    node.shut_down(Shutdown::Drain);
    node.join();
    Ok(())
}

fn config(options: Options) -> Config {
    let mut config = Config::default();
    config.control.socket = options.directory.join(format!("{}.sock", options.name));
    config.control.mode = "0600".to_owned();
    config.node.name = options.name;
    config.policies = vec!["null".to_owned()];
    match options.peer {
        Some(peer) => config.routes.push(RouteConfig {
            service: "kv.Kv".to_owned(),
            transport: RouteTransport::Over(TransportKind::Tcp),
            endpoints: vec![peer],
            ..RouteConfig::default()
        }),
        None => config.listeners.push(ListenerConfig {
            transport: TransportKind::Tcp,
            address: (Ipv4Addr::LOCALHOST, 0).into(),
        }),
    }
    config
}

fn service(error: impl std::error::Error) -> WorkerError {
    WorkerError::Service(error.to_string())
}
