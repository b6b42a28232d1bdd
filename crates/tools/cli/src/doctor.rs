//! `provost doctor`: what is wrong with this node, or with the way of this user's apps to it, and what to do.

use std::net::ToSocketAddrs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use provost_admin::v1::admin_client::AdminClient;
use provost_admin::v1::status::State;
use provost_admin::v1::{GetConfigRequest, GetConfigResponse, GetStatusRequest, Status};
use rustix::fs::{Access, access};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use serde::Serialize;

use provost_terminal::admin::{Node, Target, set_variable};
use provost_terminal::failure::{Exit, Failure};
use provost_terminal::numbers::{plural, plural_of};
use provost_terminal::output::{json_document, print};
use provost_terminal::table::{Canvas, Look, broken_lines};

/// Where apps attach unless something else is said.
const APP_SOCKET_DEFAULT: &str = "/run/provost/provostd.sock";
/// The name under which this command attaches.
const NAME_DEFAULT: &str = "provost-doctor";
/// The first Linux that has what a node needs, and the first that names an app's process without a gap (`SO_PEERPIDFD`).
const KERNEL_MIN: (u32, u32) = (5, 10);
const KERNEL_OF_PIDFDS: (u32, u32) = (6, 5);
/// Descriptors that an app needs for itself, beside those of its attachment.
const DESCRIPTORS_MIN: u64 = 256;
/// Descriptors that a node's service should be able to open: what a process has by default.
const NODE_DESCRIPTORS_MIN: u64 = 1024;
/// How long the name of a peer may take, and its answer.
const PEER_WAIT: Duration = Duration::from_secs(2);
/// Peers that are asked, at most.
const PEERS_MAX: usize = 32;
/// Where what was found stands in its line.
const FOUND_AT: usize = 21;
/// A clock that shows less was never set: 2025, in seconds since 1970.
const CLOCK_MIN_S: u64 = 1_735_689_600;

const EXAMPLES: &str = "\
Examples:
  provost doctor                                   run it as the user whose app cannot call
  sudo -u shop provost doctor
  sudo -u shop provost doctor --app shop           where [[app]] tables say whose names are
  provost doctor --socket /tmp/a.admin.sock        that node, and the socket at which its apps attach
  provost doctor --json

Exit status: 0 where nothing is wrong (warnings may be there), 1 where something is.";

/// What `provost doctor` is asked.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DoctorOptions {
    /// The socket at which apps attach [default: the one that the node tells, else /run/provost/provostd.sock]
    #[arg(long, value_name = "PATH", env = set_variable("PROVOST_SOCKET"))]
    app_socket: Option<PathBuf>,
    /// The name under which to attach, as the app in question does
    #[arg(long, value_name = "NAME")]
    app: Option<String>,
    #[command(flatten)]
    target: Target,
}

/// How well something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Health {
    Good,
    Warning,
    Wrong,
    /// It could not be looked at.
    Unknown,
}

/// One thing that was looked at.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Finding {
    subject: &'static str,
    health: Health,
    found: String,
    /// What to do; nothing where it is well.
    #[serde(skip_serializing_if = "str::is_empty")]
    remedy: String,
}

impl Finding {
    fn good(subject: &'static str, found: impl Into<String>) -> Finding {
        Finding::new(subject, Health::Good, found, "")
    }

    fn wrong(subject: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Finding {
        Finding::new(subject, Health::Wrong, found, remedy)
    }

    fn warning(subject: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Finding {
        Finding::new(subject, Health::Warning, found, remedy)
    }

    fn unknown(subject: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Finding {
        Finding::new(subject, Health::Unknown, found, remedy)
    }

    fn new(
        subject: &'static str,
        health: Health,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Finding {
        Finding {
            subject,
            health,
            found: found.into(),
            remedy: remedy.into(),
        }
    }

    fn draw(&self, canvas: Canvas) -> String {
        let (word, look) = match self.health {
            Health::Good => ("good   ", Look::Good),
            Health::Warning => ("warning", Look::Heading),
            Health::Wrong => ("WRONG  ", Look::Bad),
            Health::Unknown => ("unknown", Look::Heading),
        };
        let mut lines = format!(
            "{} {:<12} {}\n",
            look.paint(word, canvas),
            self.subject,
            broken_lines(&self.found, FOUND_AT, canvas)
        );
        if !self.remedy.is_empty() {
            let remedy = broken_lines(&self.remedy, FOUND_AT, canvas);
            lines += &format!("{:FOUND_AT$}{remedy}\n", "");
        }
        lines
    }
}

/// Looks at everything, and prints what it found.
pub(crate) async fn run(asked: &DoctorOptions) -> Result<(), Failure> {
    let told = ask(&asked.target).await;
    let status = told.as_ref().ok().map(|told| &told.status);
    let mut findings = vec![kernel(), descriptors(), clock()];
    let app_socket = app_socket(asked.app_socket.as_deref(), status);
    findings.push(attachment(&app_socket, asked.app.as_deref()).await);
    findings.extend(status.map(|status| node_descriptors(status.pid)));
    findings.extend(node(told, &asked.target).await);
    let text = if asked.target.json {
        json_document(&findings)?
    } else {
        let canvas = Canvas::of_stdout();
        findings.iter().map(|finding| finding.draw(canvas)).collect()
    };
    print(&text)?;
    match count(&findings, Health::Wrong) {
        0 => Ok(()),
        1 => Err(Failure::failed("one thing is wrong")),
        wrong => Err(Failure::failed(format!("{wrong} things are wrong"))),
    }
}

fn count(findings: &[Finding], health: Health) -> usize {
    findings.iter().filter(|finding| finding.health == health).count()
}

fn kernel() -> Finding {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    judge_kernel(&release)
}

fn judge_kernel(release: &str) -> Finding {
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|digits| digits.parse().unwrap_or(0));
    let version: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let found = format!("Linux {release}");
    if version < KERNEL_MIN {
        Finding::wrong("kernel", found, "Provost needs Linux 5.10 or later")
    } else if version < KERNEL_OF_PIDFDS {
        Finding::warning(
            "kernel",
            found,
            "before Linux 6.5 the process of an app is looked up by its number: [[app]] tables hold, with less certainty",
        )
    } else {
        Finding::good("kernel", found)
    }
}

fn descriptors() -> Finding {
    judge_descriptors(getrlimit(Resource::Nofile).current)
}

fn judge_descriptors(limit: Option<u64>) -> Finding {
    match limit {
        Some(limit) if limit < DESCRIPTORS_MIN => Finding::warning(
            "descriptors",
            format!("this user's processes may open {limit} descriptors"),
            "an app needs a dozen for the node, and its own: raise it with `ulimit -n`, LimitNOFILE= or limits.conf",
        ),
        Some(limit) => Finding::good("descriptors", format!("up to {limit} in each process")),
        None => Finding::good("descriptors", "no limit"),
    }
}

fn clock() -> Finding {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    judge_clock(since.ok())
}

fn judge_clock(since_1970: Option<Duration>) -> Finding {
    match since_1970.map(|since| since.as_secs()) {
        Some(seconds) if seconds >= CLOCK_MIN_S => Finding::good("clock", "is set"),
        _ => Finding::wrong(
            "clock",
            "shows a time before 2025",
            "set it (systemd-timesyncd, chrony): certificates are not valid yet by this clock",
        ),
    }
}

/// Descriptors of the node's service, whose limit is not that of whoever asks.
fn node_descriptors(pid: i32) -> Finding {
    let of_process = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}"));
    let name = of_process("comm").ok();
    // A node in a container tells a number that is another process's here.
    let is_node = name.is_some_and(|name| name.contains("provost"));
    judge_node_descriptors(pid, of_process("limits").ok().filter(|_| is_node).as_deref())
}

fn judge_node_descriptors(pid: i32, limits: Option<&str>) -> Finding {
    const SUBJECT: &str = "node limits";
    let line = limits.and_then(|limits| {
        limits
            .lines()
            .find_map(|line| line.strip_prefix("Max open files"))
    });
    let Some(soft) = line.and_then(|line| line.split_whitespace().next()) else {
        return Finding::unknown(
            SUBJECT,
            format!("how many descriptors the service may open is not seen from here (/proc/{pid}/limits)"),
            "look at that file where the service runs: on its machine, in its container, as a user who sees its process",
        );
    };
    match soft.parse::<u64>() {
        Ok(soft) if soft < NODE_DESCRIPTORS_MIN => Finding::warning(
            SUBJECT,
            format!("the service (process {pid}) may open {soft} descriptors"),
            "each app, client and connection takes some: raise LimitNOFILE= of its unit, or `ulimit -n` where it is started",
        ),
        Ok(soft) => Finding::good(SUBJECT, format!("the service may open up to {soft} descriptors")),
        Err(_) => Finding::good(SUBJECT, format!("descriptors that the service may open: {soft}")),
    }
}

/// Where apps attach: as somebody said, or as the node tells.
fn app_socket(said: Option<&Path>, status: Option<&Status>) -> PathBuf {
    let told = status.filter(|status| !status.control_socket.is_empty());
    match (said.filter(|path| !path.as_os_str().is_empty()), told) {
        (Some(path), _) => path.to_owned(),
        (None, None) => APP_SOCKET_DEFAULT.into(),
        (None, Some(status)) => {
            // A path that does not begin at the root begins where the service was started.
            let started_in = std::fs::read_link(format!("/proc/{}/cwd", status.pid));
            started_in.unwrap_or_default().join(&status.control_socket)
        }
    }
}

/// Attaches as an app of this user does.
async fn attachment(socket: &Path, name: Option<&str>) -> Finding {
    let app = provost::App::builder()
        .name(name.unwrap_or(NAME_DEFAULT))
        .socket(socket);
    let attached = tokio::task::spawn_blocking(move || app.attach().map(drop));
    match attached.await {
        Ok(Ok(())) => {
            let place = socket.display();
            Finding::good("apps", format!("an app of this user attaches at {place}"))
        }
        Ok(Err(status)) => judge_refusal(&status, socket, name),
        Err(error) => Finding::unknown("apps", error.to_string(), "look at the log of provostd"),
    }
}

fn judge_refusal(status: &provost::Status, socket: &Path, name: Option<&str>) -> Finding {
    let said = status.message();
    let is_denied = status.code() == provost::Code::PermissionDenied;
    if is_denied && name.is_none() && said.contains("[[app]]") {
        let remedy = "say under which name the app attaches: provost doctor --app NAME";
        return Finding::warning("apps", said, remedy);
    }
    let remedy = remedy_of_refusal(status.code(), access(socket, Access::WRITE_OK));
    Finding::wrong("apps", said, remedy)
}

/// What to do about a refusal, by whether this user may write to the socket.
fn remedy_of_refusal(code: provost::Code, may_write: rustix::io::Result<()>) -> &'static str {
    match (code, may_write) {
        (provost::Code::PermissionDenied, _) => {
            "the message has the rule: control.allow_uids and allow_gids say who may attach, [[app]] tables under which \
             name and from which program"
        }
        (provost::Code::Unavailable, Err(Errno::ACCESS)) => {
            "this user may not open the socket. With the package: usermod --append --groups provost USER, then log in anew"
        }
        (provost::Code::Unavailable, Err(_)) => {
            "there is no such socket: start provostd, or name its socket with --app-socket or PROVOST_SOCKET"
        }
        (provost::Code::Unavailable, Ok(())) => {
            "nobody answers there: start provostd (systemctl status provostd)"
        }
        _ => "look at the log of provostd (journalctl --unit provostd)",
    }
}

/// What the node tells of itself.
struct NodeAnswers {
    status: Status,
    config: Result<GetConfigResponse, Failure>,
}

async fn ask(target: &Target) -> Result<NodeAnswers, Failure> {
    let mut node = Node::connect(target).await?;
    let status = node.call(GetStatusRequest {}, AdminClient::get_status).await?;
    let config = node.call(GetConfigRequest {}, AdminClient::get_config).await;
    Ok(NodeAnswers { status, config })
}

/// What the node says of itself, and the peers that its configuration names.
async fn node(told: Result<NodeAnswers, Failure>, target: &Target) -> Vec<Finding> {
    let NodeAnswers { status, config } = match told {
        Ok(told) => told,
        Err(failure) => {
            let remedy = remedy_of_silence(failure.exit, access(&target.socket, Access::WRITE_OK));
            return vec![Finding::unknown("node", failure.message, remedy)];
        }
    };
    let mut findings = judge_status(&status);
    match config {
        Ok(config) => findings.extend(peers(&config.toml).await),
        Err(failure) => findings.push(Finding::unknown(
            "peers",
            failure.message,
            "run it as root, or as a user whom [admin] lets look at the configuration",
        )),
    }
    findings
}

/// What to do where the node tells nothing, by whether this user may open its admin socket.
fn remedy_of_silence(exit: Exit, may_open: rustix::io::Result<()>) -> &'static str {
    match (exit, may_open) {
        (Exit::Denied, _) | (_, Err(Errno::ACCESS)) => {
            "run it as root, or as a user whom [admin] lets look, to have the node itself looked at"
        }
        (Exit::Unreachable, Err(_)) => {
            "start provostd (systemctl start provostd), or name its admin socket with --socket or PROVOST_ADMIN_SOCKET"
        }
        (Exit::Unreachable, Ok(())) => {
            "it has ended, or is just ending: start it (systemctl start provostd), or find out why (journalctl --unit provostd)"
        }
        _ => "look at the log of provostd (journalctl --unit provostd)",
    }
}

fn judge_status(status: &Status) -> Vec<Finding> {
    let serves = format!(
        "{} (process {}) serves {}",
        status.node,
        status.pid,
        plural(status.apps.into(), "app")
    );
    let mut findings = vec![match status.state() {
        State::Serving => Finding::good("node", serves),
        State::Draining => Finding::wrong(
            "node",
            "takes nothing new: it is ending",
            "start it again, or find out who stopped it (journalctl --unit provostd)",
        ),
        State::BeingReplaced => Finding::warning("node", "is being replaced", "look again in a moment"),
        State::Unspecified => Finding::unknown(
            "node",
            "says nothing of its state",
            "provostd and this command are of different versions: install both of one",
        ),
    }];
    let own = env!("CARGO_PKG_VERSION");
    findings.push(if status.version == own {
        Finding::good("version", own)
    } else {
        Finding::warning(
            "version",
            format!("provostd is {}, this command {own}", status.version),
            "install both of one version; then have the daemon replaced by the program on disk: provost daemon upgrade",
        )
    });
    if status.config_error.is_empty() {
        findings.push(Finding::good("config", status.config_source.clone()));
    } else {
        findings.push(Finding::wrong(
            "config",
            status.config_error.clone(),
            "the last good configuration holds: mend the file, then `provost config reload`",
        ));
    }
    findings.extend(status.warnings.iter().map(|warning| finding_of(warning)));
    findings
}

/// What a warning of the node's is about is in front of it.
fn finding_of(warning: &str) -> Finding {
    let (subject, found) = match warning.split_once(": ") {
        Some(("open", found)) => ("open", found),
        Some(("policies", found)) => ("policies", found),
        Some(("certificates", found)) => ("certificates", found),
        _ => ("node", warning),
    };
    Finding::warning(subject, found, remedy_of(subject))
}

/// What to do about a warning of the node's, by what it is about.
fn remedy_of(subject: &str) -> &'static str {
    match subject {
        "open" => "write [[app]] tables (docs/authority.md), unless all who may attach trust each other",
        "policies" => "`provost policy list` shows what each is for",
        "certificates" => "`provost certs` shows those in use, and where each comes from",
        _ => "the log has more of it (journalctl --unit provostd)",
    }
}

/// Asks each peer of the configuration's routes for a connection.
async fn peers(toml: &str) -> Vec<Finding> {
    let endpoints = endpoints_of(toml);
    let left = endpoints.len().saturating_sub(PEERS_MAX);
    // All at once: those that do not answer take their time together.
    let asked = endpoints.into_iter().take(PEERS_MAX);
    let asked =
        asked.map(|(endpoint, transport)| tokio::spawn(async move { peer(endpoint, &transport).await }));
    let mut findings = Vec::new();
    for answer in asked.collect::<Vec<_>>() {
        findings.push(answer.await.unwrap_or_else(|error| {
            Finding::unknown(
                "peers",
                format!("one could not be asked: {error}"),
                "`provost routes` shows how each of them is",
            )
        }));
    }
    if left > 0 {
        let found = plural_of(left as u64, "more was not asked", "more were not asked");
        findings.push(Finding::unknown(
            "peers",
            found,
            "`provost routes` shows how each of them is",
        ));
    }
    findings
}

/// The endpoints of all routes, each once, with the transport to it.
fn endpoints_of(toml: &str) -> Vec<(String, String)> {
    let config: toml::Table = toml::from_str(toml).unwrap_or_default();
    let routes = config.get("route").and_then(toml::Value::as_array);
    let mut endpoints = Vec::new();
    for route in routes.into_iter().flatten() {
        let transport = route.get("transport").and_then(toml::Value::as_str);
        let named = route.get("endpoints").and_then(toml::Value::as_array);
        for endpoint in named.into_iter().flatten().filter_map(toml::Value::as_str) {
            let entry = (endpoint.to_owned(), transport.unwrap_or("tcp").to_owned());
            if !endpoints.contains(&entry) {
                endpoints.push(entry);
            }
        }
    }
    endpoints
}

async fn peer(endpoint: String, transport: &str) -> Finding {
    if let Some(name) = endpoint.strip_prefix("unix:") {
        return unix_server(&endpoint, name.strip_prefix("//").unwrap_or(name)).await;
    }
    if let Some(name) = endpoint.strip_prefix("unix-abstract:") {
        return unix_server(&endpoint, &format!("\0{name}")).await;
    }
    let is_datagram = matches!(transport, "datagram" | "nic");
    let asked = endpoint.clone();
    let looked =
        tokio::task::spawn_blocking(move || asked.to_socket_addrs().map(Iterator::collect::<Vec<_>>));
    let addresses = match tokio::time::timeout(PEER_WAIT, looked).await {
        Ok(Ok(Ok(addresses))) if !addresses.is_empty() => addresses,
        Ok(Ok(Err(error))) => {
            let found = format!("{endpoint}: {error}");
            return Finding::wrong(
                "peer",
                found,
                "is the name right, and does this machine's resolver know it?",
            );
        }
        _ => {
            let found = format!("{endpoint}: its name leads to no address within 2 s");
            return Finding::wrong(
                "peer",
                found,
                "look at this machine's resolver (/etc/resolv.conf)",
            );
        }
    };
    if is_datagram {
        let found = format!("{endpoint} is {}; datagrams are not tried", addresses[0]);
        return Finding::good("peer", found);
    }
    let connected = tokio::time::timeout(PEER_WAIT, tokio::net::TcpStream::connect(&*addresses)).await;
    match connected {
        Ok(Ok(_)) => Finding::good("peer", format!("{endpoint} takes connections")),
        Ok(Err(error)) => Finding::wrong(
            "peer",
            format!("{endpoint}: {error}"),
            "does its node run, and is this address one of its [[listener]]s?",
        ),
        Err(_) => Finding::wrong(
            "peer",
            format!("{endpoint}: no answer within 2 s"),
            "does a firewall drop what goes there, or is the machine down?",
        ),
    }
}

/// Asks a gRPC server at a Unix socket for a connection; the name of an abstract one begins with a zero.
async fn unix_server(endpoint: &str, name: &str) -> Finding {
    let connected = tokio::time::timeout(PEER_WAIT, tokio::net::UnixStream::connect(name)).await;
    match connected {
        Ok(Ok(_)) => Finding::good("peer", format!("{endpoint} takes connections")),
        Ok(Err(error)) => Finding::wrong(
            "peer",
            format!("{endpoint}: {error}"),
            "does the server run, and may this user open its socket?",
        ),
        Err(_) => Finding::wrong(
            "peer",
            format!("{endpoint}: no answer within 2 s"),
            "does the server still take connections?",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn servers_at_unix_sockets_are_asked_there() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("server.sock");
        let _server = tokio::net::UnixListener::bind(&path).unwrap();
        for endpoint in [
            format!("unix:{}", path.display()),
            format!("unix://{}", path.display()),
        ] {
            assert_eq!(peer(endpoint, "grpc").await.health, Health::Good);
        }
        let name = format!("provost-doctor-{}", std::process::id());
        let _server = tokio::net::UnixListener::bind(format!("\0{name}")).unwrap();
        assert_eq!(
            peer(format!("unix-abstract:{name}"), "grpc").await.health,
            Health::Good
        );
        let gone = peer("unix:/no/such/server.sock".to_owned(), "grpc").await;
        assert_eq!(gone.health, Health::Wrong);
        assert!(gone.remedy.contains("does the server run"), "{gone:?}");
    }

    #[test]
    fn kernels_are_judged_by_their_version() {
        let health = |release| judge_kernel(release).health;
        assert_eq!(health("6.18.5-cloud"), Health::Good);
        assert_eq!(health("6.1.0-18-amd64"), Health::Warning);
        assert_eq!(health("5.9.16"), Health::Wrong);
        assert_eq!(health("nonsense"), Health::Wrong);
    }

    #[test]
    fn a_clock_that_was_never_set_is_told_of() {
        assert_eq!(
            judge_clock(Some(Duration::from_secs(86_400))).health,
            Health::Wrong
        );
        assert_eq!(judge_clock(None).health, Health::Wrong);
        let set = judge_clock(Some(Duration::from_secs(CLOCK_MIN_S)));
        assert_eq!(set.health, Health::Good);
    }

    #[test]
    fn each_refusal_of_an_app_has_its_own_remedy() {
        use provost::Code;
        for (code, may_write, expected) in [
            (Code::PermissionDenied, Ok(()), "control.allow_uids"),
            (
                Code::Unavailable,
                Err(Errno::ACCESS),
                "usermod --append --groups provost",
            ),
            (Code::Unavailable, Err(Errno::NOENT), "--app-socket"),
            (Code::Unavailable, Ok(()), "systemctl status provostd"),
            (Code::ResourceExhausted, Ok(()), "the log of provostd"),
        ] {
            let remedy = remedy_of_refusal(code, may_write);
            assert!(remedy.contains(expected), "{code:?} {may_write:?}: {remedy}");
        }
    }

    #[test]
    fn each_warning_of_a_node_has_its_own_remedy() {
        for (warning, line, expected) in [
            (
                "open: the configuration has no [[app]]",
                "warning open         the configuration has no [[app]]",
                "docs/authority.md",
            ),
            (
                "policies: one is for nothing known",
                "warning policies     one is for nothing known",
                "provost policy list",
            ),
            (
                "certificates: cert.pem ends in 2 d",
                "warning certificates cert.pem ends in 2 d",
                "provost certs",
            ),
            (
                "something: else",
                "warning node         something: else",
                "journalctl",
            ),
        ] {
            let finding = finding_of(warning);
            assert!(finding.remedy.contains(expected), "{finding:?}");
            assert!(finding.draw(Canvas::plain()).starts_with(line), "{finding:?}");
        }
    }

    #[test]
    fn apps_attach_where_was_said_or_where_the_node_tells() {
        let status = |socket: &str| Status {
            control_socket: socket.into(),
            pid: std::process::id() as i32,
            ..Status::default()
        };
        let told = status("/tmp/a.sock");
        let said = Path::new("/tmp/b.sock");
        assert_eq!(app_socket(Some(said), Some(&told)), said);
        assert_eq!(app_socket(None, Some(&told)), Path::new("/tmp/a.sock"));
        assert_eq!(
            app_socket(Some(Path::new("")), Some(&told)),
            Path::new("/tmp/a.sock")
        );
        let beside = std::env::current_dir().unwrap().join("a.sock");
        assert_eq!(app_socket(None, Some(&status("a.sock"))), beside);
        assert_eq!(app_socket(None, None), Path::new(APP_SOCKET_DEFAULT));
    }

    #[test]
    fn the_descriptors_of_the_service_are_judged_and_not_those_of_whoever_asks() {
        let limits = |soft: &str| {
            format!(
                "Limit                     Soft Limit           Hard Limit           Units     \n\
                 Max processes             95929                95929                processes \n\
                 Max open files            {soft:<20} 1048576              files     \n"
            )
        };
        let judged = |soft: &str| judge_node_descriptors(7, Some(&limits(soft)));
        let few = judged("40");
        assert_eq!(few.health, Health::Warning);
        assert!(
            few.found.contains("may open 40") && few.remedy.contains("LimitNOFILE="),
            "{few:?}"
        );
        assert_eq!(judged("1024").health, Health::Good);
        assert_eq!(judged("unlimited").health, Health::Good);
        let unseen = judge_node_descriptors(7, None);
        assert_eq!(unseen.health, Health::Unknown);
        assert!(unseen.found.contains("/proc/7/limits"), "{unseen:?}");
        // The first process of a machine is no node.
        assert_eq!(node_descriptors(1).health, Health::Unknown);
    }

    #[test]
    fn a_node_that_does_not_run_is_not_a_matter_of_rights() {
        for (exit, may_open, expected) in [
            (Exit::Denied, Ok(()), "run it as root"),
            (Exit::Unreachable, Err(Errno::ACCESS), "run it as root"),
            (Exit::Unreachable, Err(Errno::NOENT), "start provostd"),
            (Exit::Unreachable, Ok(()), "it has ended"),
            (Exit::TimedOut, Ok(()), "the log of provostd"),
        ] {
            let remedy = remedy_of_silence(exit, may_open);
            assert!(remedy.contains(expected), "{exit:?} {may_open:?}: {remedy}");
        }
    }

    #[test]
    fn few_descriptors_are_told_of() {
        assert_eq!(judge_descriptors(Some(64)).health, Health::Warning);
        assert_eq!(judge_descriptors(Some(1024)).health, Health::Good);
        assert_eq!(judge_descriptors(None).health, Health::Good);
    }

    #[test]
    fn a_node_that_ends_or_has_another_version_or_a_refused_configuration_is_told_of() {
        let well = Status {
            state: State::Serving.into(),
            version: env!("CARGO_PKG_VERSION").into(),
            ..Status::default()
        };
        assert!(
            judge_status(&well)
                .iter()
                .all(|finding| finding.health == Health::Good)
        );
        let ill = Status {
            state: State::Draining.into(),
            version: "0.0.9".into(),
            config_error: "limits: not a table".into(),
            warnings: vec!["open: anybody may do anything".into()],
            ..Status::default()
        };
        let findings = judge_status(&ill);
        assert_eq!(count(&findings, Health::Wrong), 2, "{findings:?}");
        assert_eq!(count(&findings, Health::Warning), 2, "{findings:?}");
        let unexplained = findings.iter().filter(|finding| finding.remedy.is_empty());
        assert_eq!(unexplained.count(), 0, "{findings:?}");
    }

    #[tokio::test]
    async fn peers_are_told_of_in_the_order_of_the_routes() {
        let taking = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoints = [
            "unix:/no/such.sock".to_owned(),
            taking.local_addr().unwrap().to_string(),
        ];
        let config =
            format!("[[route]]\nservice = \"a.A\"\ntransport = \"grpc\"\nendpoints = {endpoints:?}\n");
        let told = peers(&config).await;
        let healths: Vec<_> = told.iter().map(|finding| finding.health).collect();
        assert_eq!(healths, [Health::Wrong, Health::Good], "{told:?}");
        assert!(
            told.iter()
                .zip(&endpoints)
                .all(|(one, endpoint)| one.found.starts_with(endpoint))
        );
    }

    #[test]
    fn every_endpoint_of_the_routes_is_asked_once() {
        let config = "[[route]]\nservice = \"a.A\"\nendpoints = [\"h:1\", \"i:2\"]\n\
                      [[route]]\nservice = \"b.B\"\ntransport = \"datagram\"\nendpoints = [\"h:1\"]\n\
                      [[route]]\nservice = \"c.C\"\ntransport = \"tcp\"\nendpoints = [\"i:2\"]\n\
                      [[route]]\nservice = \"d.D\"\ntransport = \"local\"\n";
        let expected = [("h:1", "tcp"), ("i:2", "tcp"), ("h:1", "datagram")];
        let expected = expected.map(|(endpoint, transport)| (endpoint.to_owned(), transport.to_owned()));
        assert_eq!(endpoints_of(config), expected);
        assert!(endpoints_of("not toml [").is_empty());
    }
}
