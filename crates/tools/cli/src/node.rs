//! `provost status`, `apps`, `datapath` and `daemon`: the node, who is attached, and the way of calls.

use clap::{Args, Subcommand};
use provost_admin::v1::admin_client::AdminClient;
use provost_admin::v1::status::State;
use provost_admin::v1::{
    App, GetStatusRequest, ListAppsRequest, ListAppsResponse, ListDatapathsRequest, ListDatapathsResponse,
    Packets, Status, UpgradeDaemonRequest, UpgradeDaemonResponse,
};

use crate::watch::{FACT_AT, Listing, Shown, fact, show};
use provost_terminal::admin::{Node, Target};
use provost_terminal::failure::{Exit, Failure};
use provost_terminal::numbers;
use provost_terminal::output::{json_document, print};
use provost_terminal::table::{Align, Canvas, Cell, Look, Table, broken, broken_lines, clean};

/// `provost status`.
pub(crate) async fn status(listing: &Listing) -> Result<(), Failure> {
    show(listing, async |node: &mut Node| {
        node.call(GetStatusRequest {}, AdminClient::get_status).await
    })
    .await
}

impl Shown for Status {
    fn draw(&self, canvas: Canvas) -> String {
        let (state, look) = match self.state() {
            State::Serving => ("serving", Look::Good),
            State::Draining => ("draining", Look::Bad),
            State::BeingReplaced => ("being replaced", Look::Bad),
            State::Unspecified => ("unknown", Look::Bad),
        };
        let mut out = String::new();
        let process = format!(
            "{}  process {}, version {}, up {}",
            clean(&self.node),
            self.pid,
            self.version,
            numbers::age(self.uptime_s)
        );
        out += &fact("node", &process, canvas);
        out += &format!(
            "{} {}\n",
            Look::Heading.paint("state       ", canvas),
            look.paint(state, canvas)
        );
        let carried = format!(
            "{}, {}, {} in flight, {}",
            numbers::plural(self.apps.into(), "app"),
            numbers::plural(self.connections.into(), "connection"),
            numbers::plural(self.calls_in_flight, "call"),
            numbers::plural_of(self.policies.into(), "policy", "policies")
        );
        out += &fact("carries", &carried, canvas);
        if let Some(packets) = &self.packets {
            out += &long_fact("packets", &describe_packets(packets), canvas);
        }
        out += &fact("attach at", &self.control_socket, canvas);
        let listeners = if self.listeners.is_empty() {
            "nowhere".to_owned()
        } else {
            described_listeners(self).join(", ")
        };
        out += &long_fact("listens at", &listeners, canvas);
        for listener in &self.grpc_listeners {
            let clients = numbers::plural(listener.clients.into(), "client");
            let tls = match listener.tls.as_str() {
                "" => String::new(),
                tls => format!(", {tls}"),
            };
            let at = format!("{} ({}{tls}, {clients})", listener.address, listener.name);
            out += &long_fact("gRPC at", &at, canvas);
        }
        if !self.config_source.is_empty() {
            out += &long_fact("configured", &self.config_source, canvas);
        }
        if !self.config_error.is_empty() {
            out += &bad_fact("refused", &self.config_error, canvas);
        }
        for warning in &self.warnings {
            out += &bad_fact("warning", warning, canvas);
        }
        for policy in self.never_matched.iter().take(UNMATCHED_MAX) {
            out += &long_fact("unmatched", policy, canvas);
        }
        if let Some(more @ 1..) = self.never_matched.len().checked_sub(UNMATCHED_MAX) {
            let more = numbers::plural_of(more as u64, "policy", "policies");
            let more = format!("and {more} more: provost policy list");
            out += &fact("", &more, canvas);
        }
        if self.daemon_upgrades + self.daemon_rollbacks > 0 {
            let replaced = format!(
                "{} (service up {}), {} rolled back",
                numbers::plural(self.daemon_upgrades, "time"),
                numbers::age(self.service_uptime_s),
                self.daemon_rollbacks
            );
            out += &fact("replaced", &replaced, canvas);
        }
        out += &fact("you may", &self.caller_role, canvas);
        out.push('\n');
        out += &runtimes(self).draw(canvas);
        out
    }
}

/// Policies that have judged no call, and are named, at most.
const UNMATCHED_MAX: usize = 4;

/// Where other nodes connect, with what carries their connections where that is not TCP.
fn described_listeners(status: &Status) -> Vec<String> {
    let transports = status.listener_transports.iter().map(String::as_str);
    // Earlier versions tell no transports.
    let transports = transports.chain(std::iter::repeat("tcp"));
    let described = |(address, transport): (&String, &str)| match transport {
        "tcp" => address.clone(),
        other => format!("{address} ({other})"),
    };
    status.listeners.iter().zip(transports).map(described).collect()
}

/// As [`fact`], over as many lines as it takes.
fn long_fact(name: &str, value: &str, canvas: Canvas) -> String {
    looking_fact(
        name,
        &broken(&clean(value), FACT_AT, canvas),
        Look::Normal,
        canvas,
    )
}

/// Something that is wrong. Errors of TOML and of expressions have lines, below which they point at what is wrong.
fn bad_fact(name: &str, value: &str, canvas: Canvas) -> String {
    looking_fact(name, &broken_lines(value, FACT_AT, canvas), Look::Bad, canvas)
}

fn looking_fact(name: &str, value: &str, look: Look, canvas: Canvas) -> String {
    let name = format!("{name:<width$}", width = FACT_AT - 1);
    format!(
        "{} {}\n",
        Look::Heading.paint(&name, canvas),
        look.paint(value, canvas)
    )
}

fn runtimes(status: &Status) -> Table {
    let mut table = Table::new(&[
        ("RUNTIME", Align::Right),
        ("APPS", Align::Right),
        ("DATAPATHS", Align::Right),
        ("BUSY", Align::Right),
    ]);
    for runtime in &status.runtimes {
        table.row([
            runtime.number.into(),
            runtime.apps.into(),
            runtime.datapaths.into(),
            numbers::percent(runtime.busy).into(),
        ]);
    }
    table
}

/// `provost apps`.
pub(crate) async fn apps(listing: &Listing) -> Result<(), Failure> {
    show(listing, async |node: &mut Node| {
        node.call(ListAppsRequest {}, AdminClient::list_apps).await
    })
    .await
}

impl Shown for ListAppsResponse {
    fn draw(&self, canvas: Canvas) -> String {
        if self.apps.is_empty() {
            return "no app is attached\n".to_owned();
        }
        let mut table = Table::new(&[
            ("ID", Align::Right),
            ("APP", Align::Left),
            ("PID", Align::Right),
            ("UID", Align::Right),
            ("RUNTIME", Align::Right),
            ("CONNS", Align::Right),
            ("IN FLIGHT", Align::Right),
            ("SEND HEAP", Align::Right),
            ("RECV HEAP", Align::Right),
            ("SERVES", Align::Left),
        ]);
        for app in &self.apps {
            table.row([
                app.id.into(),
                (&app.name).into(),
                process(app.pid).into(),
                user(app).into(),
                app.runtime.into(),
                app.connections.into(),
                app.calls_in_flight.into(),
                numbers::bytes(app.send_heap_bytes).into(),
                numbers::bytes(app.receive_heap_bytes).into(),
                serves(app).into(),
            ]);
        }
        table.draw(canvas)
    }
}

/// The process of an app; of a gRPC client over TCP none is known.
fn process(pid: i32) -> String {
    match pid {
        0 => "-".to_owned(),
        pid => pid.to_string(),
    }
}

fn user(app: &App) -> String {
    match app.uid {
        u32::MAX => "-".to_owned(),
        uid => uid.to_string(),
    }
}

/// What an app serves, or that it is a gRPC client.
fn serves(app: &App) -> String {
    match app.grpc_origin.as_str() {
        "" => app.serves.join(", "),
        origin => format!("gRPC client, {origin}"),
    }
}

/// Which datapaths.
#[derive(Args, Debug)]
pub(crate) struct Datapaths {
    /// Only those of this app (name or number)
    #[arg(long, value_name = "APP", default_value = "", hide_default_value = true)]
    app: String,
    /// Only those of this service
    #[arg(long, value_name = "SERVICE", default_value = "", hide_default_value = true)]
    service: String,
    #[command(flatten)]
    listing: Listing,
}

/// `provost datapath`.
pub(crate) async fn datapaths(asked: &Datapaths) -> Result<(), Failure> {
    show(&asked.listing, async |node: &mut Node| {
        let request = ListDatapathsRequest {
            app: asked.app.clone(),
            service: asked.service.clone(),
        };
        let listed = node.call(request, AdminClient::list_datapaths).await?;
        // Who watches may wait for one to come.
        if listed.datapaths.is_empty() && asked.listing.watch.is_none() {
            asked.nothing_found()?;
        }
        Ok(listed)
    })
    .await
}

impl Datapaths {
    /// Nothing is an answer, unless something was named: the name may be misspelt.
    fn nothing_found(&self) -> Result<(), Failure> {
        let named = [("app", &self.app), ("service", &self.service)];
        let named = named.iter().filter(|(_, name)| !name.is_empty());
        let named: Vec<_> = named.map(|(what, name)| format!("{what} \"{name}\"")).collect();
        if named.is_empty() {
            return Ok(());
        }
        let message = format!(
            "there is no datapath of {}: `provost datapath` lists all",
            named.join(" and ")
        );
        Err(Failure::new(Exit::Refused, message))
    }
}

impl Shown for ListDatapathsResponse {
    fn draw(&self, canvas: Canvas) -> String {
        if self.datapaths.is_empty() {
            return "no datapath\n".to_owned();
        }
        let mut table = Table::new(&[
            ("CONN", Align::Right),
            ("APP", Align::Left),
            ("SIDE", Align::Left),
            ("SERVICE", Align::Left),
            ("PEER", Align::Left),
            ("VIA", Align::Left),
            ("CALLS", Align::Right),
            ("ENGINES (APP TO WIRE)", Align::Left),
        ]);
        for path in &self.datapaths {
            let peer = if path.peer_identity.is_empty() {
                path.peer.clone()
            } else {
                format!("{} {}", path.peer_identity, path.peer)
            };
            let engines: Vec<_> = path.engines.iter().map(describe_engine).collect();
            let faulty = path.engines.iter().any(|engine| !engine.fault.is_empty());
            let look = if faulty { Look::Bad } else { Look::Normal };
            table.row([
                path.connection.into(),
                (&path.app).into(),
                (&path.side).into(),
                (&path.service).into(),
                peer.into(),
                format!("{}/{}", path.transport, path.encoding).into(),
                path.calls_begun.into(),
                Cell::new(engines.join(" > "), look),
            ]);
        }
        let mut out = table.draw(canvas);
        for path in &self.datapaths {
            if let Some(packets) = &path.packets {
                out += &format!("connection {}: {}\n", path.connection, describe_packets(packets));
            }
            if !path.stays_because.is_empty() {
                let reason = clean(&path.stays_because);
                let line = format!(
                    "connection {} stays with {}: {reason}",
                    path.connection, path.transport
                );
                out += &(Look::Bad.paint(&line, canvas) + "\n");
            }
        }
        out
    }
}

/// Such as `1200 packets sent (3 again, 2 probes), 1100 received (1 twice), round trip 45 µs`.
fn describe_packets(packets: &Packets) -> String {
    let probes = match packets.probes {
        0 => String::new(),
        probes => format!(", {}", numbers::plural(probes, "probe")),
    };
    let duplicates = match packets.duplicates {
        0 => String::new(),
        duplicates => format!(" ({duplicates} twice)"),
    };
    let mut text = format!(
        "{} sent ({} again{probes}), {} received{duplicates}",
        numbers::plural(packets.sent, "packet"),
        packets.resent,
        packets.received
    );
    if let Some(round_trip_us) = packets.round_trip_us.filter(|us| *us > 0.0) {
        text += &format!(", round trip {}", numbers::time_us(round_trip_us));
    }
    text
}

/// Such as `limit=rate-limit@2`, with what waits before it and why it has failed.
fn describe_engine(engine: &provost_admin::v1::Engine) -> String {
    let mut text = if engine.policy.is_empty() || engine.policy == engine.kind {
        engine.kind.clone()
    } else {
        format!("{}={}", engine.policy, engine.kind)
    };
    if engine.version > 1 {
        text += &format!("@{}", engine.version);
    }
    let waiting = engine.waiting_tx + engine.waiting_rx;
    if waiting > 0 {
        text += &format!("({waiting} wait)");
    }
    if engine.held > 0 {
        text += &format!("({} held)", engine.held);
    }
    if !engine.fault.is_empty() {
        text += &format!("[failed: {}]", engine.fault);
    }
    text
}

/// What to do with the daemon.
#[derive(Subcommand, Debug)]
pub(crate) enum Daemon {
    /// Replace the daemon by a new process, which takes over connections and calls in flight
    #[command(after_help = DAEMON_EXAMPLES)]
    Upgrade(DaemonUpgrade),
}

const DAEMON_EXAMPLES: &str = "\
The new process takes over sockets, memory and calls, and serves, or the old one goes on as if nothing had been: exit
status 6 then, and the reason on standard error. Needs the role admin.

Examples:
  provost daemon upgrade                                    the program that runs, as it is on disk now
  provost daemon upgrade --binary /opt/provost/2.0/provostd --json";

/// How long a replacement is waited for unless something else is said, in seconds: the new process may take a minute.
pub(crate) const REPLACED_WITHIN_S: f64 = 120.0;
/// What a replacement may take on top of the time that the new process has to get ready, in seconds.
const REPLACED_SPARE_S: f64 = 60.0;

/// How long a replacement is waited for, in seconds: longer than the default, where the new process may take so long until it serves.
pub(crate) fn replaced_within(timeout_s: f64, ready_ms: u32) -> f64 {
    if timeout_s == REPLACED_WITHIN_S && ready_ms > 0 {
        timeout_s.max(f64::from(ready_ms) / 1000.0 + REPLACED_SPARE_S)
    } else {
        timeout_s
    }
}

/// By what the daemon is replaced.
#[derive(Args, Debug)]
#[command(mut_arg("timeout", |timeout| timeout
    .default_value("120")
    .help("How long an answer may take, in seconds; by default longer where --ready-ms needs it")))]
pub(crate) struct DaemonUpgrade {
    /// The new program, on the node [default: the one that runs, as it is on disk now]
    #[arg(long, value_name = "PATH", default_value = "", hide_default_value = true)]
    binary: String,
    /// How long the new process may take until it serves, in milliseconds, ten minutes at most [default: the daemon's, a minute]
    #[arg(long, value_name = "MS", default_value_t = 0, hide_default_value = true)]
    ready_ms: u32,
    #[command(flatten)]
    target: Target,
}

/// `provost daemon`.
pub(crate) async fn daemon(command: &Daemon) -> Result<(), Failure> {
    let Daemon::Upgrade(asked) = command;
    let target = Target {
        timeout: replaced_within(asked.target.timeout, asked.ready_ms),
        ..asked.target.clone()
    };
    let mut node = Node::connect(&target).await?;
    let request = UpgradeDaemonRequest {
        binary: asked.binary.clone(),
        timeout_ms: asked.ready_ms,
    };
    let done = node.call(request, AdminClient::upgrade_daemon).await?;
    print(&if asked.target.json {
        json_document(&done)?
    } else {
        broken(&describe_upgrade(&done), 0, Canvas::of_stdout()) + "\n"
    })
}

/// What came of a replacement, in a line.
pub(crate) fn describe_upgrade(done: &UpgradeDaemonResponse) -> String {
    format!(
        "process {} (version {}) serves: no call moved for {:.1} ms; took over {}, {}, {}, {} of state",
        done.pid,
        clean(&done.version),
        done.pause_ms,
        numbers::plural(done.apps.into(), "app"),
        numbers::plural(done.connections.into(), "connection"),
        numbers::plural(done.descriptors.into(), "descriptor"),
        numbers::bytes(done.state_bytes)
    )
}

#[cfg(test)]
mod tests {
    use provost_admin::v1::{Datapath, Engine, GrpcListener, Runtime};

    use super::*;

    #[derive(clap::Parser)]
    struct UpgradeCommandLine {
        #[command(flatten)]
        options: DaemonUpgrade,
    }

    #[test]
    fn a_replacement_is_waited_for_as_long_as_the_new_process_may_take() {
        let timeout = |arguments: &[&str]| {
            let arguments = ["upgrade"].iter().chain(arguments);
            let parsed = <UpgradeCommandLine as clap::Parser>::parse_from(arguments);
            replaced_within(parsed.options.target.timeout, parsed.options.ready_ms)
        };
        assert!(timeout(&[]) > 60.0);
        assert_eq!(timeout(&["--timeout", "5"]), 5.0);
        assert_eq!(timeout(&["--ready-ms", "1000"]), timeout(&[]));
        assert!(timeout(&["--ready-ms", "180000"]) > 180.0);
        assert_eq!(timeout(&["--timeout", "5", "--ready-ms", "180000"]), 5.0);
    }

    #[test]
    fn a_status_is_facts_and_runtimes() {
        let status = Status {
            node: "a".into(),
            version: "0.1.0".into(),
            pid: 7,
            uptime_s: 61.0,
            state: State::Serving.into(),
            control_socket: "/run/provost/provostd.sock".into(),
            listeners: vec!["127.0.0.1:7700".into(), "127.0.0.1:7700".into()],
            listener_transports: vec!["tcp".into(), "datagram".into()],
            apps: 2,
            connections: 1,
            calls_in_flight: 64,
            policies: 3,
            caller_role: "admin".into(),
            runtimes: vec![Runtime {
                number: 0,
                apps: 2,
                datapaths: 1,
                busy: 0.25,
            }],
            ..Status::default()
        };
        let expected = "\
node         a  process 7, version 0.1.0, up 1 min 1 s
state        serving
carries      2 apps, 1 connection, 64 calls in flight, 3 policies
attach at    /run/provost/provostd.sock
listens at   127.0.0.1:7700, 127.0.0.1:7700 (datagram)
you may      admin

RUNTIME  APPS  DATAPATHS    BUSY
      0     2          1  25.0 %
";
        assert_eq!(status.draw(Canvas::plain()), expected);
        let json = serde_json::to_value(&status).unwrap();
        assert_eq!(json["state"], "serving");
        let back: Status = serde_json::from_value(json).unwrap();
        assert_eq!(back, status);
    }

    #[test]
    fn a_status_fits_eighty_columns_whatever_there_is_to_say() {
        let words = "word ".repeat(40);
        let status = Status {
            node: "a".into(),
            control_socket: format!("/run/{}", "d".repeat(90)),
            listeners: (7700..7712).map(|port| format!("10.0.0.1:{port}")).collect(),
            grpc_listeners: vec![GrpcListener {
                name: "local".into(),
                address: "127.0.0.1:50051".into(),
                clients: 3,
                tls: format!("TLS, {words}"),
            }],
            config_error: words.clone(),
            warnings: vec![words.clone()],
            never_matched: (0..6).map(|at| format!("policy-{at}: {words}")).collect(),
            packets: Some(Packets {
                sent: u64::MAX,
                received: u64::MAX,
                ..Packets::default()
            }),
            ..Status::default()
        };
        let canvas = Canvas {
            width: Some(80),
            ..Canvas::plain()
        };
        let drawn = status.draw(canvas);
        let widest = drawn.lines().map(unicode_width::UnicodeWidthStr::width).max();
        assert!(widest.is_some_and(|widest| widest <= 80), "{drawn}");
        for said in [
            "10.0.0.1:7711",
            "(local, TLS,",
            "policy-3",
            "and 2 policies more: provost policy list",
        ] {
            assert!(drawn.contains(said), "{said}: {drawn}");
        }
        assert!(!drawn.contains("policy-4"), "{drawn}");
    }

    #[test]
    fn errors_and_warnings_keep_their_lines_and_say_nothing_to_the_terminal() {
        let status = Status {
            config_error:
                "a.toml: TOML parse error at line 1\n  |\n1 | x = \x1b[2J\n  |     ^\nno such key\n".into(),
            warnings: vec!["policies: acl:\n  request.nam\n          ^".into()],
            ..Status::default()
        };
        let drawn = status.draw(Canvas::plain());
        let expected = "\
refused      a.toml: TOML parse error at line 1
               |
             1 | x = \\u{1b}[2J
               |     ^
             no such key
warning      policies: acl:
               request.nam
                       ^
";
        assert!(drawn.contains(expected), "{drawn}");
    }

    #[test]
    fn apps_are_a_row_each() {
        assert_eq!(
            ListAppsResponse::default().draw(Canvas::plain()),
            "no app is attached\n"
        );
        let listed = ListAppsResponse {
            apps: vec![App {
                id: 1,
                name: "kv-\x1b[31mserver".into(),
                pid: 77,
                uid: 1000,
                serves: vec!["kv.Kv".into()],
                connections: 3,
                calls_in_flight: 5,
                send_heap_bytes: 1 << 20,
                ..App::default()
            }],
        };
        let expected = "\
ID  APP                  PID   UID  RUNTIME  CONNS  IN FLIGHT  SEND HEAP  RECV HEAP  SERVES
 1  kv-\\u{1b}[31mserver   77  1000        0      3          5    1.0 MiB        0 B  kv.Kv
";
        assert_eq!(listed.draw(Canvas::plain()), expected);
    }

    #[test]
    fn a_datapath_shows_its_engines_in_order() {
        let engine = |kind: &str, version, policy: &str| Engine {
            kind: kind.into(),
            version,
            policy: policy.into(),
            ..Engine::default()
        };
        let mut failed = engine("fault", 1, "chaos");
        failed.fault = "out of memory".into();
        failed.waiting_tx = 3;
        failed.held = 2;
        let listed = ListDatapathsResponse {
            datapaths: vec![Datapath {
                connection: 4,
                app: "shop".into(),
                service: "kv.Kv".into(),
                side: "client".into(),
                peer: "10.0.0.2:7700".into(),
                transport: "tcp".into(),
                encoding: "native".into(),
                calls_begun: 9,
                engines: vec![
                    engine("frontend", 1, ""),
                    engine("rate-limit", 2, "limit"),
                    failed,
                    engine("transport-tcp", 1, ""),
                ],
                packets: Some(Packets {
                    sent: 1200,
                    received: 1100,
                    resent: 3,
                    round_trip_us: Some(45.2),
                    probes: 2,
                    duplicates: 1,
                }),
                stays_because: "cannot go over to datagram: nobody listens".into(),
                ..Datapath::default()
            }],
        };
        let expected = "\
CONN  APP   SIDE    SERVICE  PEER           VIA         CALLS  ENGINES (APP TO WIRE)
   4  shop  client  kv.Kv    10.0.0.2:7700  tcp/native      9  frontend > limit=rate-limit@2 > chaos=fault(3 wait)(2 held)[failed: out of memory] > transport-tcp
connection 4: 1200 packets sent (3 again, 2 probes), 1100 received (1 twice), round trip 45 µs
connection 4 stays with tcp: cannot go over to datagram: nobody listens
";
        assert_eq!(listed.draw(Canvas::plain()), expected);
    }
}
