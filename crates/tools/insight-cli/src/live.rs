//! `provost insight live`: where the time of a running node's calls goes now.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use provost_admin::v1::admin_client::AdminClient;
use provost_admin::v1::{MethodStats, MethodWaits, PolicyWaits, Snapshot, WatchRequest};
use serde::Serialize;

use provost_terminal::admin::{Node, Target, seconds};
use provost_terminal::failure::{Exit, Failure};
use provost_terminal::output::{json_document, print};
use provost_terminal::table::{Align, Canvas, Table, clean};

pub(crate) const EXAMPLES: &str = "\
Divides the time of the calls that end while it looks. First method by method, by the medians that the nodes count: with the
socket of the node that serves the calls, a call's time is divided into the time beyond that node's policies (the handler and the
hop to it) and the rest (both nodes and the wire); without it, only the whole and the time in the node's queues are known. That time
includes policies: it is the 99th percentile of the time from taking a step of a call until it was handed on, and so no part
of a sum. Then node by node, as means of all calls that end there: how long each policy kept calls waiting, and the rest of their
time in the node (queues, other work of the thread, and what policies take to judge). A call between two apps of one node ends there
twice. Under a policy stand the methods whose calls it kept waiting, as means of the calls of that method. Each node that is asked needs a policy of the kind metrics.

Examples:
  provost policy attach --kind metrics
  provost insight live --seconds 10
  provost insight live --socket client.sock --peer-socket server.sock --json";

/// Options of `live`.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// How long to look
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0, value_parser = seconds)]
    seconds: f64,
    /// The admin socket of the node that serves the calls
    #[arg(long, value_name = "PATH")]
    peer_socket: Option<PathBuf>,
    #[command(flatten)]
    target: Target,
}

/// Where the time of one method's calls goes.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct MethodHops {
    app: String,
    method: String,
    /// Calls per second.
    rate: f64,
    /// From when the client's node met a call until it met its end; the median.
    total_us: f64,
    /// Of that, from when the serving node met it; the median.
    #[serde(skip_serializing_if = "Option::is_none")]
    served_us: Option<f64>,
    /// The difference of the two: both nodes before and behind their policies, and the wire.
    #[serde(skip_serializing_if = "Option::is_none")]
    wire_and_nodes_us: Option<f64>,
    /// In the client's node, for a step; the 99th percentile.
    queue_us_p99: f64,
    /// In the serving node, likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    peer_queue_us_p99: Option<f64>,
}

/// Where all that time goes.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct CallDivision {
    methods: Vec<MethodHops>,
    nodes: Vec<NodeTime>,
}

/// What calls spend in one node, as means over those that end there.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct NodeTime {
    /// Whose socket it was asked at: that of the calls' client, or of their server.
    node: &'static str,
    /// Calls that ended, per second.
    rate: f64,
    /// From taking the steps of a call until they were handed on, all together.
    in_node_us: f64,
    /// How long policies kept it waiting meanwhile.
    policies: Vec<PolicyTime>,
    /// The rest of it: queues, other work of the thread, judging.
    queueing_us: f64,
}

/// How long one policy keeps calls waiting.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct PolicyTime {
    policy: String,
    kind: String,
    waits_per_s: f64,
    us_per_wait: f64,
    us_per_call: f64,
    /// The same of the methods that it kept waiting.
    methods: Vec<MethodWait>,
}

/// How long one policy keeps the calls of one method waiting.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct MethodWait {
    /// Its service and name, such as `kv.Kv/Get`.
    method: String,
    waits_per_s: f64,
    us_per_wait: f64,
    /// `None` where no policy counts the method's calls, or none of them ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    us_per_call: Option<f64>,
}

impl MethodWait {
    fn of(waits: &MethodWaits, snapshot: &Snapshot) -> MethodWait {
        let method = waits.method.trim_start_matches('/').to_owned();
        let is_meant = |stats: &&MethodStats| format!("{}/{}", stats.service, stats.method) == method;
        let rate: f64 = snapshot
            .methods
            .iter()
            .filter(is_meant)
            .map(|stats| stats.rate)
            .sum();
        MethodWait {
            waits_per_s: waits.waits_per_s,
            us_per_wait: waits.wait_us_mean,
            us_per_call: (rate > 0.0).then(|| waits.waits_per_s * waits.wait_us_mean / rate),
            method,
        }
    }
}

impl NodeTime {
    fn of(node: &'static str, snapshot: &Snapshot) -> NodeTime {
        let rate: f64 = snapshot.methods.iter().map(|stats| stats.rate).sum();
        let each_us = |stats: &MethodStats| stats.rate * stats.time_in_queue_us_per_call;
        // Without a call there is nothing to divide by, and nothing to divide.
        let per_call = |us_per_s: f64| if rate > 0.0 { us_per_s / rate } else { 0.0 };
        let in_node_us = per_call(snapshot.methods.iter().map(each_us).sum());
        let policy = |waits: &PolicyWaits| PolicyTime {
            policy: waits.policy.clone(),
            kind: waits.kind.clone(),
            waits_per_s: waits.waits_per_s,
            us_per_wait: waits.wait_us_mean,
            us_per_call: per_call(waits.waits_per_s * waits.wait_us_mean),
            methods: waits
                .methods
                .iter()
                .map(|waits| MethodWait::of(waits, snapshot))
                .collect(),
        };
        let policies: Vec<PolicyTime> = snapshot.policies.iter().map(policy).collect();
        let held_us: f64 = policies.iter().map(|policy| policy.us_per_call).sum();
        NodeTime {
            node,
            rate,
            in_node_us,
            policies,
            // A call that waited and was denied leaves no time in the node, and one at the edge of the interval only one of the two.
            queueing_us: (in_node_us - held_us).max(0.0),
        }
    }
}

fn nodes(called: &Snapshot, served: Option<&Snapshot>) -> Vec<NodeTime> {
    let server = served.map(|served| NodeTime::of("server", served));
    [NodeTime::of("client", called)]
        .into_iter()
        .chain(server)
        .collect()
}

/// Runs it, on an event loop of its own.
pub(crate) fn run_blocking(options: &Options) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::failed(format!("cannot start: {error}")))?;
    runtime.block_on(run(options))
}

async fn run(options: &Options) -> Result<(), Failure> {
    let client = Node::connect(&options.target).await?;
    let timeout = Duration::from_secs_f64(options.target.timeout);
    let (called, served) = match &options.peer_socket {
        Some(socket) => {
            let server = Node::connect_to(socket, timeout).await?;
            let both = tokio::join!(
                snapshot(client, options.seconds),
                snapshot(server, options.seconds)
            );
            (both.0?, Some(both.1?))
        }
        None => (snapshot(client, options.seconds).await?, None),
    };
    let division = CallDivision {
        methods: hops(&called, served.as_ref()),
        nodes: nodes(&called, served.as_ref()),
    };
    if division.methods.is_empty() {
        let message = if called.counted_by.is_empty() {
            "the node counts no calls: attach a policy of the kind metrics"
        } else {
            "no app of this node had a call that ended meanwhile: look for longer with --seconds"
        };
        return Err(Failure::new(Exit::Refused, message));
    }
    print(&if options.target.json {
        json_document(&division)?
    } else {
        division.draw(Canvas::of_stdout())
    })
}

/// What a node counts over so many seconds.
async fn snapshot(mut node: Node, seconds: f64) -> Result<Snapshot, Failure> {
    let request = WatchRequest {
        interval_ms: (seconds * 1e3) as u32,
    };
    let mut snapshots = node.stream(request, AdminClient::watch).await?;
    match snapshots.message().await {
        Ok(Some(snapshot)) => Ok(snapshot),
        Ok(None) => Err(Failure::new(
            Exit::Unreachable,
            "the node ended before it had counted",
        )),
        Err(status) => Err(node.failure(&status)),
    }
}

/// Calls that the apps of one node made, and how those of the other served them.
fn hops(called: &Snapshot, served: Option<&Snapshot>) -> Vec<MethodHops> {
    let made = |stats: &&MethodStats| stats.side == "client" && stats.rate > 0.0;
    let hop = |stats: &MethodStats| {
        let is_same = |other: &&MethodStats| {
            other.side == "server"
                && (&other.service, &other.method) == (&stats.service, &stats.method)
                && other.rate > 0.0
        };
        let peer = served.and_then(|served| served.methods.iter().find(is_same));
        MethodHops {
            app: stats.app.clone(),
            method: format!("{}/{}", stats.service, stats.method),
            rate: stats.rate,
            total_us: stats.latency_us_p50,
            served_us: peer.map(|peer| peer.latency_us_p50),
            wire_and_nodes_us: peer.map(|peer| stats.latency_us_p50 - peer.latency_us_p50),
            queue_us_p99: stats.time_in_queue_us_p99,
            peer_queue_us_p99: peer.map(|peer| peer.time_in_queue_us_p99),
        }
    };
    called.methods.iter().filter(made).map(hop).collect()
}

impl CallDivision {
    fn draw(&self, canvas: Canvas) -> String {
        draw_methods(&self.methods, canvas) + "\n" + &draw_nodes(&self.nodes, canvas)
    }
}

fn draw_nodes(nodes: &[NodeTime], canvas: Canvas) -> String {
    let mut table = Table::new(&[
        ("NODE", Align::Left),
        ("PART", Align::Left),
        ("WAITS/s", Align::Right),
        ("µs/WAIT", Align::Right),
        ("µs/CALL", Align::Right),
    ]);
    for node in nodes {
        for policy in node.policies.iter().filter(|policy| policy.waits_per_s > 0.0) {
            table.row([
                node.node.into(),
                format!("policy {} ({})", clean(&policy.policy), clean(&policy.kind)).into(),
                format!("{:.0}", policy.waits_per_s).into(),
                format!("{:.1}", policy.us_per_wait).into(),
                format!("{:.1}", policy.us_per_call).into(),
            ]);
            for wait in &policy.methods {
                table.row([
                    node.node.into(),
                    format!("  {}", clean(&wait.method)).into(),
                    format!("{:.0}", wait.waits_per_s).into(),
                    format!("{:.1}", wait.us_per_wait).into(),
                    wait.us_per_call
                        .map_or("-".to_owned(), |us| format!("{us:.1}"))
                        .into(),
                ]);
            }
        }
        let rest = format!("{:.1}", node.queueing_us);
        table.row([
            node.node.into(),
            "queues, judging".into(),
            "-".into(),
            "-".into(),
            rest.into(),
        ]);
    }
    table.draw(canvas)
}

fn draw_methods(hops: &[MethodHops], canvas: Canvas) -> String {
    let mut table = Table::new(&[
        ("APP", Align::Left),
        ("METHOD", Align::Left),
        ("CALLS/s", Align::Right),
        ("CALL µs", Align::Right),
        ("SERVED µs", Align::Right),
        ("WIRE, NODES µs", Align::Right),
        ("QUEUE p99 µs", Align::Right),
        ("PEER QUEUE p99 µs", Align::Right),
    ]);
    let known = |us: Option<f64>| us.map_or("-".to_owned(), |us| format!("{us:.1}"));
    for hop in hops {
        table.row([
            clean(&hop.app).into(),
            clean(&hop.method).into(),
            format!("{:.0}", hop.rate).into(),
            format!("{:.1}", hop.total_us).into(),
            known(hop.served_us).into(),
            known(hop.wire_and_nodes_us).into(),
            format!("{:.1}", hop.queue_us_p99).into(),
            known(hop.peer_queue_us_p99).into(),
        ]);
    }
    table.draw(canvas)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(side: &str, method: &str, latency: f64) -> MethodStats {
        MethodStats {
            side: side.into(),
            service: "kv.Kv".into(),
            method: method.into(),
            rate: 10.0,
            latency_us_p50: latency,
            ..MethodStats::default()
        }
    }

    #[test]
    fn a_call_is_divided_where_its_other_side_is_known() {
        let called = Snapshot {
            methods: vec![
                stats("client", "Get", 50.0),
                stats("client", "Put", 70.0),
                stats("server", "Get", 9.0),
            ],
            ..Snapshot::default()
        };
        let served = Snapshot {
            methods: vec![stats("client", "Put", 1.0), stats("server", "Get", 20.0)],
            ..Snapshot::default()
        };
        let hops = hops(&called, Some(&served));
        assert_eq!(hops.len(), 2);
        assert_eq!(
            (hops[0].served_us, hops[0].wire_and_nodes_us),
            (Some(20.0), Some(30.0))
        );
        assert_eq!((hops[1].total_us, hops[1].served_us), (70.0, None));
    }

    #[test]
    fn what_policies_hold_is_told_apart_from_the_rest_of_a_nodes_time() {
        let mut snapshot = Snapshot {
            methods: vec![stats("client", "Get", 50.0), stats("client", "Put", 70.0)],
            ..Snapshot::default()
        };
        snapshot.methods[0].time_in_queue_us_per_call = 400.0;
        snapshot.methods[1].time_in_queue_us_per_call = 100.0;
        let waits = |policy: &str, waits_per_s, wait_us_mean| PolicyWaits {
            policy: policy.into(),
            kind: "fault".into(),
            waits_per_s,
            wait_us_mean,
            methods: Vec::new(),
        };
        snapshot.policies = vec![waits("trial", 5.0, 600.0), waits("idle", 0.0, 0.0)];
        let of_method = |method: &str, waits_per_s, wait_us_mean| MethodWaits {
            method: method.into(),
            waits_per_s,
            wait_us_mean,
        };
        snapshot.policies[0].methods = vec![
            of_method("/kv.Kv/Get", 4.0, 500.0),
            of_method("/kv.Kv/Nobody", 1.0, 1000.0),
        ];
        let node = NodeTime::of("client", &snapshot);
        // 20 calls a second with 5 waits of 600 µs: 150 of the 250 µs that a call is in the node on average.
        assert_eq!(
            (node.rate, node.in_node_us, node.queueing_us),
            (20.0, 250.0, 100.0)
        );
        let held: Vec<f64> = node.policies.iter().map(|policy| policy.us_per_call).collect();
        assert_eq!(held, [150.0, 0.0]);
        // Of 10 calls of Get a second 4 waited 500 µs. Nobody counts the other method's calls.
        let by_method: Vec<(&str, Option<f64>)> = node.policies[0]
            .methods
            .iter()
            .map(|wait| (&*wait.method, wait.us_per_call))
            .collect();
        assert_eq!(by_method, [("kv.Kv/Get", Some(200.0)), ("kv.Kv/Nobody", None)]);
        let drawn = draw_nodes(&[node], Canvas::of_stdout());
        let line = drawn.lines().find(|line| line.contains("kv.Kv/Get")).unwrap();
        let figures: Vec<&str> = line.split_whitespace().skip(2).collect();
        assert_eq!(figures, ["4", "500.0", "200.0"]);
        assert_eq!(NodeTime::of("server", &Snapshot::default()).queueing_us, 0.0);
    }
}
