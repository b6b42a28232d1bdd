//! `provost insight live`: where the time of a running node's calls goes now.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use provost_admin::v1::admin_client::AdminClient;
use provost_admin::v1::{MethodStats, Snapshot, WatchRequest};
use serde::Serialize;

use provost_terminal::admin::{Node, Target, seconds};
use provost_terminal::failure::{Exit, Failure};
use provost_terminal::output::{json_document, print};
use provost_terminal::table::{Align, Canvas, Table, clean};

pub(crate) const EXAMPLES: &str = "\
Divides the time of the calls that end while it looks, by the medians that the nodes count. With the socket of the node
that serves the calls, a call's time is divided into the time beyond that node's policies (the handler and the hop to it) and
the rest (both nodes and the wire); without it, only the whole and the time in the node's queues are known. Time in queues
includes policies: it is the 99th percentile of the time from taking a step of a call until it was handed on, and so no part
of a sum. Each node that is asked needs a policy of the kind metrics.

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
    let hops = hops(&called, served.as_ref());
    if hops.is_empty() {
        let message = if called.counted_by.is_empty() {
            "the node counts no calls: attach a policy of the kind metrics"
        } else {
            "no app of this node had a call that ended meanwhile: look for longer with --seconds"
        };
        return Err(Failure::new(Exit::Refused, message));
    }
    print(&if options.target.json {
        json_document(&hops)?
    } else {
        draw(&hops, Canvas::of_stdout())
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

fn draw(hops: &[MethodHops], canvas: Canvas) -> String {
    let mut table = Table::new(&[
        ("APP", Align::Left),
        ("METHOD", Align::Left),
        ("CALLS/s", Align::Right),
        ("CALL µs", Align::Right),
        ("SERVED µs", Align::Right),
        ("WIRE, NODES µs", Align::Right),
        ("QUEUE p99", Align::Right),
        ("PEER QUEUE p99", Align::Right),
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
}
