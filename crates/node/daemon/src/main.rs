//! `provostd`: the managed RPC service of a node.
#![forbid(unsafe_code)]

use std::alloc::System;
use std::collections::HashSet;
use std::fmt::Display;
use std::io::{ErrorKind, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;
use provost_wiping::WipingAllocator;
use provostd::config::{ConfigError, ListenerConfig, LogFormat, RouteConfig, RouteTransport, Sources};
use provostd::hot_restart::{PassedOn, Predecessor, UpgradeRequest, pass_on};
use provostd::log::FilterError;
use provostd::policies::Registry;
use provostd::{Config, Node, NodeEnd, NodeParts, Shutdown, StartError, TransportKind, notify};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// What is freed may hold keys.
#[global_allocator]
static ALLOCATOR: WipingAllocator = WipingAllocator(System);

const EXAMPLES: &str = "\
Examples:
  provostd                                     all defaults: apps attach at /run/provost/provostd.sock
  provostd --socket /tmp/a.sock --listen 127.0.0.1:7700
                                               a node that serves others over TCP
  provostd --socket /tmp/b.sock --route kv.Kv=127.0.0.1:7700
                                               a node whose apps call kv.Kv at that one
  provostd --config /etc/provost/provostd.toml
  provostd --config-dir /etc/provost/conf.d    every .toml file of a directory, merged
  provostd --check-config --config FILE        says what is wrong with a file, and ends
  provostd --print-default-config > FILE       every key with its default

SIGHUP: read the configuration again; policies, routes and some limits change at once, what needs a restart is logged.
SIGTERM or SIGINT: take nothing new, let calls in flight finish, end; a second one: end at once.
SIGUSR2: have the program, as it is on disk now, replace this process while apps keep calling.
PROVOSTD_LOG overrides log.level. Keys of the configuration: docs/configuration.md.";

/// The managed RPC service of a node: apps attach to it over shared memory, and it carries their calls.
#[derive(Parser, Debug)]
#[command(name = "provostd", version, after_help = EXAMPLES)]
struct Options {
    /// The configuration file (TOML); without it, every key has its default.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A directory whose .toml files are read in the order of their names, after --config: tables merge, lists append.
    #[arg(long, value_name = "DIR")]
    config_dir: Option<PathBuf>,
    /// The socket at which apps attach, instead of control.socket.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// The socket of the admin API, instead of admin.socket.
    #[arg(long, value_name = "PATH")]
    admin_socket: Option<PathBuf>,
    /// Where to listen for other nodes, beside the configured listeners. May be given several times.
    #[arg(long, value_name = "IP:PORT")]
    listen: Vec<SocketAddr>,
    /// Where a service is, instead of its configured route. May be given several times.
    #[arg(long, value_name = "SERVICE=HOST:PORT", value_parser = parse_route)]
    route: Vec<RouteConfig>,
    /// Threads of the data plane, instead of runtime.threads.
    #[arg(long, value_name = "COUNT")]
    threads: Option<usize>,
    /// A kind of policy for every datapath, unless one of that name is configured. May be given several times.
    #[arg(long, value_name = "NAME")]
    policy: Vec<String>,
    /// A level or filter for the log, instead of log.level.
    #[arg(long, value_name = "LEVEL")]
    log: Option<String>,
    /// Log JSON, instead of log.format.
    #[arg(long)]
    log_json: bool,
    /// Replaces the process at the other end of standard input, which has started this one.
    #[arg(long = "take-over", hide = true)]
    hot_restart: bool,
    /// Only check the configuration.
    #[arg(long)]
    check_config: bool,
    /// Only print a configuration file with every key and its default.
    #[arg(long)]
    print_default_config: bool,
}

/// The example, which a test holds against the defaults.
const DEFAULT_CONFIG: &str = include_str!("../../../../packaging/provostd.toml");

/// The configuration is at fault; the same code as of clap for its options.
const EXIT_USAGE: u8 = 2;

fn main() -> ExitCode {
    let options = Options::parse();
    if options.print_default_config {
        return print(DEFAULT_CONFIG);
    }
    if let Err(error) = provostd::core_dumps::forbid() {
        complain(format_args!("core dumps cannot be turned off: {error}"));
    }
    let only_check = options.check_config;
    let predecessor = if options.hot_restart && !only_check {
        Predecessor::at_standard_input().map(Some)
    } else {
        Ok(None)
    };
    let predecessor = match predecessor {
        Ok(predecessor) => predecessor,
        Err(error) => {
            complain(error);
            return ExitCode::from(EXIT_USAGE);
        }
    };
    let (config, sources) = match configure(options) {
        Ok(configured) => configured,
        Err(error) => {
            complain(&error);
            if let Some(predecessor) = predecessor {
                predecessor.decline(&error.to_string());
            }
            return ExitCode::from(EXIT_USAGE);
        }
    };
    if only_check {
        return print("the configuration is good\n");
    }
    match run(config, sources, predecessor) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(error);
            ExitCode::FAILURE
        }
    }
}

/// Writes to standard output. A reader that has gone away, such as `head`, is no failure.
fn print(text: &str) -> ExitCode {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            complain(format_args!("cannot write to standard output: {error}"));
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

/// Writes to standard error. Whether somebody reads that changes nothing.
fn complain(error: impl Display) {
    let _ = writeln!(std::io::stderr(), "provostd: {error}");
}

fn parse_route(text: &str) -> Result<RouteConfig, String> {
    let (service, endpoint) = text
        .split_once('=')
        .ok_or("write it as SERVICE=HOST:PORT, such as kv.Kv=127.0.0.1:7700")?;
    Ok(RouteConfig {
        service: service.to_owned(),
        transport: RouteTransport::Over(TransportKind::default()),
        endpoints: vec![endpoint.to_owned()],
        ..RouteConfig::default()
    })
}

/// Why there is no configuration to start with.
#[derive(Debug, thiserror::Error)]
enum ConfigureError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The level of the log, which the environment may have.
    #[error(transparent)]
    Log(#[from] FilterError),
}

/// The configuration, with what the options say instead, and where it comes from.
fn configure(options: Options) -> Result<(Config, Sources), ConfigureError> {
    let sources = Sources {
        file: options.config.clone(),
        directory: options.config_dir.clone(),
        adjust: Arc::new(move |config| adjust(&options, config)),
    };
    let config = provostd::read_configuration(&sources)?;
    provostd::log::check(&config.log)?;
    Ok((config, sources))
}

/// What the options say instead of the files, or beside them.
fn adjust(options: &Options, config: &mut Config) {
    if let Some(socket) = &options.socket {
        config.control.socket.clone_from(socket);
    }
    if options.admin_socket.is_some() {
        config.admin.socket.clone_from(&options.admin_socket);
    }
    let listeners = options.listen.iter().map(|address| ListenerConfig {
        transport: TransportKind::default(),
        address: *address,
    });
    config.listeners.extend(listeners);
    let mut replaced = HashSet::new();
    for route in &options.route {
        let is_first = replaced.insert(&route.service);
        let route = route.clone();
        match config.routes.iter_mut().find(|old| old.service == route.service) {
            Some(old) if is_first => *old = route,
            Some(old) => old.endpoints.extend(route.endpoints),
            None => config.routes.push(route),
        }
    }
    if let Some(threads) = options.threads {
        config.runtime.threads = threads;
    }
    for kind in &options.policy {
        // What was written back after a change at run time has it already.
        if !config
            .attachments
            .iter()
            .any(|attachment| attachment.name == *kind)
        {
            config.policies.push(kind.clone());
        }
    }
    if let Some(level) = &options.log {
        config.log.level.clone_from(level);
    }
    if options.log_json {
        config.log.format = LogFormat::Json;
    }
}

#[derive(Debug, thiserror::Error)]
enum RunError {
    #[error(transparent)]
    Log(#[from] FilterError),
    #[error(transparent)]
    Start(#[from] StartError),
    #[error("the process that had taken over has ended")]
    Lost,
    #[error("cannot wait for signals: {0}")]
    Signals(#[from] std::io::Error),
}

/// Runs the service; with a predecessor in the place of another process.
fn run(config: Config, sources: Sources, predecessor: Option<Predecessor>) -> Result<(), RunError> {
    provostd::log::start(&config.log)?;
    end_on_panic();
    allow_all_descriptors();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()?;
    runtime.block_on(async {
        // Before the service starts: from its first moment on it can be told to stop.
        let mut signals = Signals::catch()?;
        let parts = NodeParts {
            config,
            kinds: Registry::with_built_ins(),
            sources,
        };
        let has_taken_over = predecessor.is_some();
        let node = match predecessor {
            None => Node::start_with(parts)?,
            Some(predecessor) => Node::hot_restart(parts, predecessor)?,
        };
        notify::ready();
        let took_over_at = has_taken_over.then(Instant::now);
        let end = until_ended(&mut signals, &node, took_over_at).await;
        node.join();
        match end {
            NodeEnd::Stopped => Ok(()),
            NodeEnd::Replaced { process } => {
                signals.pass_on_until_known(process).await;
                Ok(())
            }
            NodeEnd::Lost => Err(RunError::Lost),
        }
    })
}

/// How long after it has taken over a process may be told to stop, and be told so twice where it was meant once: by a service manager,
/// which tells all processes of a service, and by the process before, which passes on what it was told.
const TOLD_TWICE_WITHIN: Duration = Duration::from_secs(3);

/// Does as it is told until the node has ended, at whoever's request.
async fn until_ended(signals: &mut Signals, node: &Node, took_over_at: Option<Instant>) -> NodeEnd {
    tokio::select! {
        () = signals.until_told_to_stop(node) => {}
        end = node.ended() => return end,
    }
    let mut may_be_told_twice = took_over_at.is_some_and(|at| at.elapsed() < TOLD_TWICE_WITHIN);
    tracing::info!("told to stop: letting calls in flight finish");
    notify::stopping();
    node.shut_down(Shutdown::Drain);
    loop {
        tokio::select! {
            end = node.ended() => return end,
            () = signals.until_told_to_stop(node) => {}
        }
        if std::mem::take(&mut may_be_told_twice) {
            tracing::info!(
                "told to stop a second time, perhaps by the process before: calls in flight still finish"
            );
        } else {
            tracing::warn!("told to stop again: ending at once");
            node.shut_down(Shutdown::Now);
        }
    }
}

/// A thread that panicked would leave apps waiting for ever: better to end, and to be started again.
fn end_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::abort();
    }));
}

/// Raises the soft limit on open descriptors to the hard one: a connection is a descriptor, and an app is six.
fn allow_all_descriptors() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "cannot raise the limit on open descriptors");
    }
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
    replace: Signal,
}

impl Signals {
    fn catch() -> std::io::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
            replace: signal(SignalKind::user_defined2())?,
        })
    }

    /// Another process has taken over: tells the service manager so, and that process what this one is told until the manager knows.
    async fn pass_on_until_known(&mut self, process: u32) {
        let known = async {
            let _ = tokio::task::spawn_blocking(move || notify::replaced_by(process)).await;
            // A signal from before that is seen when the runtime next looks at its descriptors, as it does before it is late.
            tokio::time::sleep(Duration::from_millis(1)).await;
        };
        let mut known = std::pin::pin!(known);
        loop {
            // First what was told before the manager knew.
            tokio::select! {
                biased;
                _ = self.terminate.recv() => pass_on(process, PassedOn::Shutdown),
                _ = self.interrupt.recv() => pass_on(process, PassedOn::Shutdown),
                _ = self.hang_up.recv() => pass_on(process, PassedOn::Reload),
                _ = self.replace.recv() => {
                    tracing::warn!("told to be replaced, and another process has just taken over: that one stays");
                }
                () = &mut known => return,
            }
        }
    }

    /// Lets the node read its configuration again, or be replaced, whenever it is told to, until it is told to stop.
    async fn until_told_to_stop(&mut self, node: &Node) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
                _ = self.hang_up.recv() => {
                    tracing::info!("told to read the configuration again");
                    node.ask_to_reload();
                }
                _ = self.replace.recv() => {
                    tracing::info!("told to be replaced");
                    // What comes of it is in the log.
                    drop(node.begin_upgrade(UpgradeRequest::default()));
                }
            }
        }
    }
}
