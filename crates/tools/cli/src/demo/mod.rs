//! `provost demo`: two nodes, a key-value service and its client, each a process of its own.
//!
//! ```text
//!   kv client ── shared memory ── provostd a ══ loopback TCP ══ provostd b ── shared memory ── kv server
//!   tonic client ─── Unix socket ── provostd a ══ loopback TCP ══ provostd b ── loopback TCP ── tonic server
//!   pinger ════════════════════════ loopback TCP ═══════════════════════════ echo      (twice: blocking, spinning)
//! ```
//!
//! All of them are this executable with a hidden subcommand ([`Part`]). The demonstration tells them what to do and
//! when ([`wire`]), so that the measurements take turns and share the machine's moods. Whatever happens, all of them
//! end with it, and what they left on disk is removed.

mod caller;
mod governing;
mod node;
mod operator;
mod plain_grpc;
mod program;
mod progress;
mod rawtcp;
mod report;
mod store;
mod tally;
mod third_act;
mod wire;
mod worker;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tokio::signal::unix::{SignalKind, signal};

use program::{Ending, Program, Role};
use progress::{Progress, Show};
use provost_kv::data::{self, DataError};
use provost_terminal::numbers::plural;
use rawtcp::Waiting;
use report::{Cell, Report, entries};
use wire::{Activity, Command, Event, Figures, Measure, Moved};
use worker::WorkerError;

/// Each measurement runs in so many slices, in turn with the others.
const ROUNDS: usize = 3;
/// Measurements that share the time.
const MEASUREMENTS: usize = 5;
/// Longest path that a Unix socket can have, with room for our file names in it, in bytes.
const SOCKET_DIRECTORY_BYTES_MAX: usize = 80;

/// Options of `provost demo`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// File to load: `key<TAB>value` lines, CSV records `key,value` (by the name's end), or plain lines
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// Size of the values that the measured gets and puts move [default: the data file's own values]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16_777_216))]
    value_bytes: Option<u32>,
    /// How long to measure, over all measurements
    #[arg(long, value_name = "S", default_value_t = 9.0, value_parser = seconds)]
    seconds: f64,
    /// Calls in flight where the rate is measured
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    in_flight: u16,
    /// Print the figures as JSON on standard output; progress goes to standard error
    #[arg(long)]
    json: bool,
    /// No progress
    #[arg(long, short)]
    quiet: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("a number of seconds from 0.1 to 3600 is expected".to_owned()),
    }
}

/// A program of the demonstration.
#[derive(Debug, clap::Args)]
pub(crate) struct Part {
    /// The process that started it.
    #[arg(long)]
    parent: i32,
    #[command(subcommand)]
    kind: PartKind,
}

#[derive(Debug, clap::Subcommand)]
enum PartKind {
    /// A node's service.
    Node(node::Options),
    /// The key-value server.
    Store,
    /// The key-value client.
    Caller(caller::Options),
    /// A gRPC server that knows nothing of Provost.
    GrpcServer,
    /// A gRPC client that knows nothing of Provost.
    GrpcClient {
        /// Where it connects.
        #[arg(long)]
        socket: PathBuf,
    },
    /// The far end of the bare TCP connection.
    Echo {
        #[arg(long)]
        waiting: Waiting,
        #[arg(long)]
        message_bytes: usize,
    },
    /// The near end of the bare TCP connection.
    Ping {
        #[arg(long)]
        address: SocketAddr,
        #[arg(long)]
        waiting: Waiting,
        #[arg(long)]
        message_bytes: usize,
    },
}

/// Why the demonstration failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DemoError {
    #[error(transparent)]
    Data(#[from] DataError),
    #[error("cannot make a directory for sockets in {}: {source}", path.display())]
    Directory { path: PathBuf, source: std::io::Error },
    #[error("cannot run {name}: {source}")]
    Start {
        name: &'static str,
        source: std::io::Error,
    },
    #[error("{name} failed: {message}")]
    Failed { name: &'static str, message: String },
    #[error("{name} ended before its time ({end}); the end of its log:{log}")]
    Died {
        name: &'static str,
        end: String,
        log: String,
    },
    #[error("{name} took too long to {what}; the end of its log:{log}")]
    Slow {
        name: &'static str,
        what: String,
        log: String,
    },
    #[error("{name} said something unexpected: {got}")]
    Answer { name: &'static str, got: String },
    #[error("node {node} did not do what its operator asked: {message}")]
    Refused { node: &'static str, message: String },
    #[error("{} failed while the nodes were governed", plural(*.failed, "call"))]
    CallsFailed { failed: u64 },
    #[error("cannot watch for signals: {0}")]
    Signals(std::io::Error),
    #[error("interrupted")]
    Interrupted,
    #[error("cannot write the report: {0}")]
    Report(#[from] serde_json::Error),
}

/// Runs the demonstration.
pub(crate) async fn run(options: &Options) -> Result<String, DemoError> {
    let show = if options.quiet {
        Show::Nothing
    } else {
        Show::Progress
    };
    let mut progress = Progress::new(show);
    let directory = socket_directory()?;
    let mut stage = Stage {
        directory: directory.path(),
        programs: Vec::new(),
    };
    let outcome = tokio::select! {
        outcome = play(options, &mut stage, &mut progress) => outcome,
        signal = interrupted() => Err(signal.err().map_or(DemoError::Interrupted, DemoError::Signals)),
    };
    progress.clear();
    let stopped = stage.clear().await;
    let report = outcome?;
    stopped?;
    Ok(if options.json {
        report.to_json()? + "\n"
    } else {
        format!("\n{}\n", report.to_table())
    })
}

/// Runs one of its programs; what goes wrong is told to the demonstration as well as to the caller.
pub(crate) fn run_part(part: Part) -> Result<(), WorkerError> {
    match &part.kind {
        // Its parent is the process whose place it takes, which ends.
        PartKind::Node(options) if options.hot_restart => worker::die_with(part.parent)?,
        _ => worker::die_with_parent(part.parent)?,
    }
    let outcome = match part.kind {
        PartKind::Node(options) => node::run(options),
        PartKind::Store => store::run(),
        PartKind::Caller(options) => caller::run(&options),
        PartKind::GrpcServer => plain_grpc::serve(),
        PartKind::GrpcClient { socket } => plain_grpc::call(&socket),
        PartKind::Echo {
            waiting,
            message_bytes,
        } => rawtcp::echo(waiting, message_bytes),
        PartKind::Ping {
            address,
            waiting,
            message_bytes,
        } => rawtcp::ping(address, waiting, message_bytes),
    };
    if let Err(error) = &outcome {
        worker::send_event(&Event::Failed {
            message: error.to_string(),
        })?;
    }
    outcome
}

async fn interrupted() -> std::io::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hang_up.recv() => {}
    }
    Ok(())
}

/// A directory of this run's own, with a path that is short enough for Unix sockets. Removed when dropped.
fn socket_directory() -> Result<TempDir, DemoError> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let candidates = [runtime.unwrap_or_default(), std::env::temp_dir()];
    let fits = |path: &&PathBuf| path.is_dir() && path.as_os_str().len() <= SOCKET_DIRECTORY_BYTES_MAX;
    let parent = candidates
        .iter()
        .find(fits)
        .map_or(Path::new("/tmp"), PathBuf::as_path);
    tempfile::Builder::new()
        .prefix("provost-demo-")
        .tempdir_in(parent)
        .map_err(|source| DemoError::Directory {
            path: parent.to_owned(),
            source,
        })
}

/// The programs that run, in the order in which they started.
struct Stage<'a> {
    directory: &'a Path,
    programs: Vec<Program>,
}

impl Stage<'_> {
    async fn start(&mut self, role: Role<'_>) -> Result<usize, DemoError> {
        self.programs.push(Program::start(role, self.directory).await?);
        Ok(self.programs.len() - 1)
    }

    /// Ends all programs, the last that started first, and says what went wrong with the first that did not end well.
    async fn clear(&mut self) -> Result<(), DemoError> {
        let mut outcome = Ok(());
        while let Some(program) = self.programs.pop() {
            outcome = outcome.and(program.stop().await);
        }
        outcome
    }

    fn socket(&self, node: &str) -> PathBuf {
        self.directory.join(format!("{node}.sock"))
    }

    fn admin_socket(&self, node: &str) -> PathBuf {
        self.directory.join(format!("{node}.admin.sock"))
    }

    fn address(&self, program: usize) -> String {
        self.programs[program].address.clone().unwrap_or_default()
    }
}

/// Where the programs that take commands are in [`Stage::programs`].
struct Cast {
    nodes: [usize; 2],
    caller: usize,
    grpc_client: usize,
    pingers: [(Waiting, usize); 2],
}

async fn play(
    options: &Options,
    stage: &mut Stage<'_>,
    progress: &mut Progress,
) -> Result<Report, DemoError> {
    let (data_name, pairs) = match &options.data {
        Some(path) => (path.display().to_string(), data::read_file(path)?),
        None => (data::SAMPLE_NAME.to_owned(), data::sample()?),
    };
    let message_bytes = measured_bytes(options, &pairs);
    let cast = start_all(options, message_bytes, stage).await?;
    progress.done(
        "started",
        &format!(
            "two nodes, servers, clients; data: {data_name}, {}",
            entries(pairs.len() as u64)
        ),
    );
    let load = moved(Command::Load, "load", &cast, stage, progress).await?;
    let check = moved(Command::Check, "check", &cast, stage, progress).await?;
    let scan = moved(Command::Scan, "scan", &cast, stage, progress).await?;
    let cells = measure_all(options, message_bytes, &cast, stage, progress).await?;
    let governed = govern(&cast, stage, progress).await?;
    let plain_grpc = govern_grpc(&cast, stage, progress).await?;
    let memory = cast.nodes.map(|node| resident_mib(stage.programs[node].pid()));
    Ok(Report {
        data: data_name,
        load,
        check,
        scan,
        governed,
        plain_grpc,
        service_memory_mib: memory.to_vec(),
        cells,
    })
}

/// How large a message of the yardstick is: as large as a value, and at least 64 bytes.
fn measured_bytes(options: &Options, pairs: &[data::FileEntry]) -> usize {
    let mean = pairs.iter().map(|pair| pair.value.len()).sum::<usize>() / pairs.len().max(1);
    options.value_bytes.map_or(mean, |bytes| bytes as usize).max(64)
}

async fn start_all(
    options: &Options,
    message_bytes: usize,
    stage: &mut Stage<'_>,
) -> Result<Cast, DemoError> {
    plain_grpc::write_schema(stage.directory)?;
    let server = stage.start(roles::grpc_server()).await?;
    let node_b = roles::node_b(stage.directory, &stage.address(server));
    let node_b = stage.start(node_b).await?;
    let socket_b = stage.socket("b");
    stage.start(roles::store(&socket_b)).await?;
    let node_a = stage
        .start(roles::node_a(stage.directory, &stage.address(node_b)))
        .await?;
    let socket_a = stage.socket("a");
    let caller = stage.start(roles::caller(&socket_a, options)).await?;
    let grpc_client = stage.start(roles::grpc_client(stage.directory)).await?;
    let mut pingers = [(Waiting::Blocking, 0), (Waiting::Spinning, 0)];
    for (waiting, pinger) in &mut pingers {
        let echo = stage.start(roles::echo(*waiting, message_bytes)).await?;
        let address = stage.address(echo);
        *pinger = stage
            .start(roles::ping(*waiting, message_bytes, &address))
            .await?;
    }
    Ok(Cast {
        nodes: [node_a, node_b],
        caller,
        grpc_client,
        pingers,
    })
}

async fn moved(
    command: Command,
    phase: &str,
    cast: &Cast,
    stage: &mut Stage<'_>,
    progress: &mut Progress,
) -> Result<Moved, DemoError> {
    match stage.programs[cast.caller].ask(command, phase, progress).await? {
        Event::Moved(moved) => {
            progress.done(phase, &moved.summary());
            Ok(moved)
        }
        other => Err(unexpected("kv client", &other)),
    }
}

async fn measure_all(
    options: &Options,
    message_bytes: usize,
    cast: &Cast,
    stage: &mut Stage<'_>,
    progress: &mut Progress,
) -> Result<Vec<Cell>, DemoError> {
    let in_flight = usize::from(options.in_flight);
    let many = format!("{in_flight} in flight");
    let ping = format!("{message_bytes} B to and fro");
    let mut turns = vec![
        Turn::new(cast.caller, Activity::Get, 1, ("provost get", "1 in flight")),
        Turn::new(cast.caller, Activity::Put, 1, ("provost put", "1 in flight")),
        Turn::new(cast.caller, Activity::Get, in_flight, ("provost get", &many)),
    ];
    for (waiting, pinger) in cast.pingers {
        let setup = match waiting {
            Waiting::Blocking => "raw tcp",
            Waiting::Spinning => "raw tcp spin",
        };
        turns.push(Turn::new(pinger, Activity::Ping, 1, (setup, &ping)));
    }
    debug_assert_eq!(turns.len(), MEASUREMENTS);
    let slice_seconds = options.seconds / (ROUNDS * MEASUREMENTS) as f64;
    let slices = (ROUNDS * MEASUREMENTS) as u64;
    for slice in 0..slices {
        progress.at("measure", slice, slices);
        let turn = &mut turns[slice as usize % MEASUREMENTS];
        turn.take(slice_seconds, stage, progress).await?;
    }
    progress.done(
        "measure",
        &format!(
            "{:.0} s, {ROUNDS} rounds of {MEASUREMENTS} measurements",
            options.seconds
        ),
    );
    Ok(turns.into_iter().map(|turn| turn.cell).collect())
}

/// The second act; no call may fail in it.
async fn govern(
    cast: &Cast,
    stage: &mut Stage<'_>,
    progress: &mut Progress,
) -> Result<governing::Governed, DemoError> {
    let nodes = governing::Nodes {
        client_side: stage.admin_socket("a"),
        server_side: stage.admin_socket("b"),
    };
    let caller = &mut stage.programs[cast.caller];
    let (governed, successors) = governing::play(nodes, caller, progress).await?;
    for (node, successor) in cast
        .nodes
        .into_iter()
        .zip([successors.client_side, successors.server_side])
    {
        stage.programs[node].was_replaced_by(successor);
    }
    progress.done("govern", &governed.summary());
    match governed.failed {
        0 => Ok(governed),
        failed => Err(DemoError::CallsFailed { failed }),
    }
}

/// The third act; no call may fail in it, but those that are made again.
async fn govern_grpc(
    cast: &Cast,
    stage: &mut Stage<'_>,
    progress: &mut Progress,
) -> Result<governing::Governed, DemoError> {
    let nodes = governing::Nodes {
        client_side: stage.admin_socket("a"),
        server_side: stage.admin_socket("b"),
    };
    let client = &mut stage.programs[cast.grpc_client];
    let (governed, successor) = third_act::play(nodes, client, progress).await?;
    stage.programs[cast.nodes[1]].was_replaced_by(successor);
    progress.done("grpc", &governed.summary());
    match governed.failed {
        0 => Ok(governed),
        failed => Err(DemoError::CallsFailed { failed }),
    }
}

/// A measurement that takes its slices in turn with others.
struct Turn {
    program: usize,
    activity: Activity,
    in_flight: usize,
    cell: Cell,
}

impl Turn {
    fn new(
        program: usize,
        activity: Activity,
        in_flight: usize,
        (setup, what): (&'static str, &str),
    ) -> Turn {
        Turn {
            program,
            activity,
            in_flight,
            cell: Cell {
                setup,
                what: what.to_owned(),
                figures: Figures::default(),
            },
        }
    }

    async fn take(
        &mut self,
        seconds: f64,
        stage: &mut Stage<'_>,
        progress: &mut Progress,
    ) -> Result<(), DemoError> {
        let measure = Command::Measure(Measure {
            activity: self.activity,
            in_flight: self.in_flight,
            seconds,
        });
        match stage.programs[self.program]
            .ask(measure, "measure", progress)
            .await?
        {
            Event::Measured(figures) => self.cell.figures = figures,
            other => return Err(unexpected(self.cell.setup, &other)),
        }
        Ok(())
    }
}

fn unexpected(name: &'static str, event: &Event) -> DemoError {
    DemoError::Answer {
        name,
        got: format!("{event:?}"),
    }
}

/// Resident memory of a process, as the kernel tells it; 0 when it does not.
fn resident_mib(pid: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").trim().parse::<f64>().ok());
    kib.unwrap_or(0.0) / 1024.0
}

/// What the programs are started with.
mod roles {
    use super::*;

    fn part(name: &'static str, ending: Ending, arguments: &[&std::ffi::OsStr]) -> Role<'static> {
        let parent = std::process::id().to_string();
        let mut all: Vec<std::ffi::OsString> = vec!["demo-part".into(), "--parent".into(), parent.into()];
        all.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        Role {
            name,
            arguments: all,
            environment: Vec::new(),
            ending,
        }
    }

    fn attached<'a>(mut role: Role<'a>, socket: &'a Path) -> Role<'a> {
        role.environment.push(("PROVOST_SOCKET", socket));
        role
    }

    pub(super) fn grpc_server() -> Role<'static> {
        part("grpc server", Ending::EndOfInput, &["grpc-server".as_ref()])
    }

    pub(super) fn grpc_client(directory: &Path) -> Role<'static> {
        let socket = directory.join(node::GRPC_SOCKET);
        let arguments = ["grpc-client".as_ref(), "--socket".as_ref(), socket.as_os_str()];
        part("grpc client", Ending::EndOfInput, &arguments)
    }

    pub(super) fn node_b(directory: &Path, server: &str) -> Role<'static> {
        let schema = directory.join("hello.pb");
        let arguments = [
            "node".as_ref(),
            "--schema".as_ref(),
            schema.as_os_str(),
            "--server".as_ref(),
            server.as_ref(),
            "--name".as_ref(),
            "b".as_ref(),
            "--directory".as_ref(),
            directory.as_os_str(),
        ];
        part("provostd b", Ending::Terminate, &arguments)
    }

    pub(super) fn node_a(directory: &Path, peer: &str) -> Role<'static> {
        let schema = directory.join("hello.pb");
        let arguments = [
            "node".as_ref(),
            "--name".as_ref(),
            "a".as_ref(),
            "--directory".as_ref(),
            directory.as_os_str(),
            "--peer".as_ref(),
            peer.as_ref(),
            "--schema".as_ref(),
            schema.as_os_str(),
        ];
        part("provostd a", Ending::Terminate, &arguments)
    }

    pub(super) fn store(socket: &Path) -> Role<'_> {
        attached(part("kv server", Ending::EndOfInput, &["store".as_ref()]), socket)
    }

    pub(super) fn caller<'a>(socket: &'a Path, options: &Options) -> Role<'a> {
        let mut role = part("kv client", Ending::EndOfInput, &["caller".as_ref()]);
        if let Some(data) = &options.data {
            role.arguments.extend(["--data".into(), data.into()]);
        }
        if let Some(bytes) = options.value_bytes {
            role.arguments
                .extend(["--value-bytes".into(), bytes.to_string().into()]);
        }
        attached(role, socket)
    }

    pub(super) fn echo(waiting: Waiting, message_bytes: usize) -> Role<'static> {
        let mut role = part("tcp echo", Ending::EndOfInput, &["echo".as_ref()]);
        role.arguments.extend(yardstick(waiting, message_bytes));
        role
    }

    pub(super) fn ping(waiting: Waiting, message_bytes: usize, address: &str) -> Role<'static> {
        let mut role = part(
            "tcp ping",
            Ending::EndOfInput,
            &["ping".as_ref(), "--address".as_ref(), address.as_ref()],
        );
        role.arguments.extend(yardstick(waiting, message_bytes));
        role
    }

    fn yardstick(waiting: Waiting, message_bytes: usize) -> [std::ffi::OsString; 4] {
        let waiting = match waiting {
            Waiting::Blocking => "blocking",
            Waiting::Spinning => "spinning",
        };
        [
            "--waiting".into(),
            waiting.into(),
            "--message-bytes".into(),
            message_bytes.to_string().into(),
        ]
    }
}
