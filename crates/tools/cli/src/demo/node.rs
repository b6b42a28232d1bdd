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

/// Where programs that speak gRPC connect to node a, in the directory of sockets.
pub(crate) const GRPC_SOCKET: &str = "grpc.sock";

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
    /// Where the gRPC server is, on a node that listens for peers.
    #[arg(long)]
    server: Option<String>,
    /// The schema of what it serves.
    #[arg(long)]
    schema: PathBuf,
    /// Replaces the node at the other end of standard input.
    #[arg(long = "take-over")]
    pub(crate) hot_restart: bool,
}

/// Runs the node until it is told to stop by SIGTERM.
pub(crate) fn run(options: Options) -> Result<(), WorkerError> {
    let takes_over = options.hot_restart;
    let config = config(options)?;
    config.check("the demonstration").map_err(service)?;
    provostd::log::start(&config.log).map_err(service)?;
    let node = if takes_over {
        let parts = NodeParts {
            config,
            kinds: Registry::with_built_ins(),
            sources: Sources::default(),
        };
        let seat = Predecessor::at_standard_input().map_err(service)?;
        Node::hot_restart(parts, seat).map_err(service)?
    } else {
        Node::start(config).map_err(service)?
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .map_err(WorkerError::Socket)?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).map_err(WorkerError::Socket)?;
        // A successor is told of by the operator's answer.
        if !takes_over {
            worker::send_event(&Event::Ready {
                address: node.addresses().first().map(ToString::to_string),
            })?;
        }
        tokio::select! {
            _ = terminate.recv() => node.shut_down(Shutdown::Drain),
            _ = node.ended() => {}
        }
        Ok::<_, WorkerError>(())
    })?;
    node.join();
    Ok(())
}

fn config(options: Options) -> Result<Config, WorkerError> {
    let mut config = Config::default();
    config.control.socket = options.directory.join(format!("{}.sock", options.name));
    config.control.mode = "0600".to_owned();
    config.node.name = options.name;
    config.policies = vec!["null".to_owned()];
    config.schemas.prefetch = vec![options.schema];
    let route = |service: &str, over: TransportKind, endpoint: String| RouteConfig {
        service: service.to_owned(),
        transport: RouteTransport::Over(over),
        endpoints: vec![endpoint],
        ..RouteConfig::default()
    };
    match options.peer {
        Some(peer) => {
            config.routes = ["kv.Kv", "hello.Greeter"]
                .map(|service| route(service, TransportKind::Tcp, peer.clone()))
                .into();
            let socket = options.directory.join(GRPC_SOCKET);
            let listener = format!(
                "name = \"programs\"\naddress = \"unix:{}\"\napp = \"greeter-client\"\n",
                socket.display()
            );
            config.grpc.listeners = vec![toml::from_str(&listener).map_err(service)?];
        }
        None => {
            config.listeners.push(ListenerConfig {
                transport: TransportKind::Tcp,
                address: (Ipv4Addr::LOCALHOST, 0).into(),
            });
            let exported = options.server.map(|server| RouteConfig {
                export: true,
                app: Some("greeter".to_owned()),
                ..route("hello.Greeter", TransportKind::Grpc, server)
            });
            config.routes.extend(exported);
        }
    }
    Ok(config)
}

fn service(error: impl std::error::Error) -> WorkerError {
    WorkerError::Service(error.to_string())
}
