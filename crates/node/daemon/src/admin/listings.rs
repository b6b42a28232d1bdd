//! What there is: apps, datapaths, policies, kinds of engines.

use std::collections::HashMap;

use provost_admin::v1;
use provost_datapath::Packets;
use provost_engine::{MetricDescription, MetricSink};

use crate::config::{RouteConfig, RouteTransport};
use crate::control_plane::ControlPlane;
use crate::inspect::{self, AttachedBy, DatapathReport};
use crate::live_change::JournalEntry;
use crate::policies::Origin;
use crate::runtime::AppId;

use super::changes;
use super::desk::Desk;
use super::status::unix_us;

/// The apps that are attached, by number.
pub(crate) async fn apps(desk: &Desk) -> v1::ListAppsResponse {
    let plane = &desk.plane;
    let polled = inspect::polled(plane).await;
    let connections = plane.connections.all();
    let mut apps: Vec<_> = plane
        .apps
        .all()
        .iter()
        .map(|(id, app)| v1::App {
            id: *id,
            name: app.endpoint.identity.name.to_string(),
            pid: app.endpoint.identity.pid,
            uid: app.endpoint.identity.uid,
            gid: app.endpoint.identity.gid,
            runtime: app.endpoint.runtime as u32,
            serves: plane.services.served_by(*id),
            connections: connections.values().filter(|one| one.app() == *id).count() as u32,
            calls_in_flight: connections
                .iter()
                .filter(|(_, connection)| connection.app() == *id)
                .filter_map(|(number, _)| polled.paths.get(number))
                .map(|path| path.calls_in_flight as u64)
                .sum(),
            send_heap_bytes: app.shared_heap_bytes(),
            receive_heap_bytes: polled.receive_heaps.get(id).copied().unwrap_or(0),
            grpc_origin: origin_of(plane, *id),
        })
        .collect();
    apps.sort_by_key(|app| app.id);
    v1::ListAppsResponse { apps }
}

/// Where a caller that has no process on this node comes from; empty for apps.
fn origin_of(plane: &ControlPlane, app: AppId) -> String {
    let relayed = || plane.relays.origin_of(app);
    plane.grpc.origin_of(app).or_else(relayed).unwrap_or_default()
}

/// The routes of the configuration, each with what came of attempts at its endpoints.
pub(crate) fn routes(desk: &Desk) -> v1::ListRoutesResponse {
    let plane = &desk.plane;
    let config = plane.config.live();
    let connections = plane.connections.all();
    let of_clients = connections.values().filter(|one| one.spec.offer.is_none());
    let services = of_clients.map(|one| one.spec.schema.service.as_str());
    let by_route = connections_by_route(&config.routes, services);
    let describe = |route: &RouteConfig| v1::Route {
        service: route.service.clone(),
        transport: match route.transport {
            RouteTransport::Auto => String::new(),
            RouteTransport::Over(kind) => kind.name().to_owned(),
        },
        server_identities: route.server_identities.clone(),
        endpoints: route
            .endpoints
            .iter()
            .map(|endpoint| endpoint_of(desk, endpoint))
            .collect(),
        connections: by_route.get(route.service.as_str()).copied().unwrap_or(0),
        local_apps: plane.services.bound_by(&route.service),
    };
    v1::ListRoutesResponse {
        routes: config.routes.iter().map(describe).collect(),
    }
}

/// How many connections each route leads, by its name, of clients that call these services. Each is looked at once.
fn connections_by_route<'a>(
    routes: &'a [RouteConfig],
    services: impl Iterator<Item = &'a str>,
) -> HashMap<&'a str, u32> {
    let mut by_route: HashMap<&str, u32> = routes.iter().map(|route| (route.service.as_str(), 0)).collect();
    for service in services {
        let of_name = by_route.contains_key(service);
        let route = if of_name { service } else { "*" };
        if let Some(count) = by_route.get_mut(route) {
            *count += 1;
        }
    }
    by_route
}

fn endpoint_of(desk: &Desk, address: &str) -> v1::Endpoint {
    let attempts = desk.plane.connector.attempts.health.of(address);
    v1::Endpoint {
        address: address.to_owned(),
        reached: attempts.reached,
        failed: attempts.failed,
        failed_in_a_row: attempts.failed_in_a_row,
        reached_at_unix_us: attempts.reached_at.map_or(0, unix_us),
        failed_at_unix_us: attempts.failed_at.map_or(0, unix_us),
        problem: attempts.problem,
    }
}

/// The datapaths that were asked for, by connection.
pub(crate) async fn datapaths(desk: &Desk, asked: &v1::ListDatapathsRequest) -> v1::ListDatapathsResponse {
    let all = inspect::datapaths(&desk.plane).await;
    let is_asked = |datapath: &DatapathReport| {
        let app = &datapath.app;
        let of_app = asked.app.is_empty() || *app.name == *asked.app || app.id.to_string() == asked.app;
        of_app && (asked.service.is_empty() || *datapath.service == *asked.service)
    };
    let datapaths = all.into_iter().filter(is_asked).map(datapath).collect();
    v1::ListDatapathsResponse { datapaths }
}

fn datapath(datapath: DatapathReport) -> v1::Datapath {
    let engine = |line: inspect::EngineLine| v1::Engine {
        kind: line.engine.kind.to_owned(),
        version: line.engine.version,
        policy: line.policy.as_deref().unwrap_or_default().to_owned(),
        waiting_tx: line.engine.tx_waiting as u32,
        waiting_rx: line.engine.rx_waiting as u32,
        held: line.engine.held as u32,
        fault: line.engine.fault.unwrap_or_default(),
    };
    let peer = datapath.peer;
    v1::Datapath {
        connection: datapath.connection,
        app_id: datapath.app.id,
        app: datapath.app.name.to_string(),
        service: datapath.service.to_string(),
        side: datapath.side.name().to_owned(),
        peer: match &peer.app {
            Some(app) => app.name.to_string(),
            None => peer.address.to_string(),
        },
        peer_identity: peer.identity.to_string(),
        transport: peer.transport.to_owned(),
        encoding: datapath.encoding.to_owned(),
        runtime: datapath.runtime as u32,
        calls_begun: datapath.calls_begun,
        calls_in_flight: datapath.calls_in_flight as u64,
        engines: datapath.engines.into_iter().map(engine).collect(),
        packets: packets(datapath.packets, datapath.round_trip_ns),
        stays_because: datapath.stays_because.unwrap_or_default(),
    }
}

/// Packets, where there are any.
pub(crate) fn packets(packets: Packets, round_trip_ns: Option<u64>) -> Option<v1::Packets> {
    (packets != Packets::default()).then(|| v1::Packets {
        sent: packets.sent,
        received: packets.received,
        resent: packets.resent,
        probes: packets.probes,
        duplicates: packets.duplicates,
        round_trip_us: round_trip_ns.map(|ns| ns as f64 / 1e3),
    })
}

/// The attached policies, in order, with what they have counted.
pub(crate) fn policies(desk: &Desk) -> v1::ListPoliciesResponse {
    let live = desk.plane.policies.live();
    let described = inspect::policies(&desk.plane).into_iter().enumerate();
    let policies = described.map(|(position, described)| {
        let mut policy = changes::policy(&described.attachment);
        policy.version = described.version;
        let mut numbers = Numbers::default();
        let of_name = live.iter().filter(|live| *live.name == *policy.name);
        of_name.for_each(|live| live.policy.metrics(&mut numbers));
        v1::AttachedPolicy {
            policy: Some(policy),
            position: position as u32,
            datapaths: described.datapaths as u32,
            origin: match described.origin {
                AttachedBy::Configuration => "configuration",
                AttachedBy::Operator => "run time",
            }
            .to_owned(),
            metrics: numbers.0,
            exceptions: described.exceptions,
            calls_judged: described.calls_judged,
        }
    });
    v1::ListPoliciesResponse {
        policies: policies.collect(),
    }
}

/// What the node proves itself with.
pub(crate) fn certificates(desk: &Desk) -> v1::Certificates {
    let peers = &desk.plane.peers;
    let (between_nodes, workload) = (peers.certificates.as_ref(), peers.workload.as_ref());
    v1::Certificates {
        others: peers.grpc.describe(),
        workload_api: workload.map_or_else(String::new, |workload| workload.endpoint().to_string()),
        ..between_nodes.map(|one| one.describe()).unwrap_or_default()
    }
}

/// The last changes of what runs, the newest first.
pub(crate) fn changes(desk: &Desk) -> v1::ListChangesResponse {
    let describe = |change: JournalEntry| v1::LiveChange {
        id: change.id,
        summary: change.summary,
        state: change.state.to_owned(),
        began_unix_us: unix_us(change.began),
        changed_unix_us: unix_us(change.changed),
        number: change.number,
        datapaths: change.datapaths as u32,
        pause_us_max: change.pause_ns_max as f64 / 1e3,
        problem: change.problem,
    };
    let newest_first = desk.plane.changes.journal.newest_first();
    v1::ListChangesResponse {
        changes: newest_first.into_iter().map(describe).collect(),
    }
}

/// Series of one policy that are listed, at most: those of many keys are for the metrics endpoint.
const METRICS_MAX: usize = 64;

/// Counters and gauges, and of histograms how many observations there were.
#[derive(Default)]
struct Numbers(Vec<v1::Metric>);

impl MetricSink for Numbers {
    fn number(&mut self, metric: &'static MetricDescription, labels: &[(&str, &str)], value: f64) {
        if self.0.len() < METRICS_MAX {
            let label = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
            self.0.push(v1::Metric {
                name: metric.name.to_owned(),
                labels: labels.iter().map(label).collect(),
                value,
            });
        }
    }

    fn histogram(
        &mut self,
        metric: &'static MetricDescription,
        labels: &[(&str, &str)],
        _cumulative: &[(f64, u64)],
        _sum: f64,
        count: u64,
    ) {
        self.number(metric, labels, count as f64);
    }
}

/// The kinds of engines, by version.
pub(crate) fn engines(desk: &Desk) -> v1::ListEnginesResponse {
    let kinds = inspect::engines(&desk.plane).into_iter();
    let engines = kinds.map(|engine| v1::EngineKind {
        kind: engine.kind.name,
        version: engine.kind.version,
        summary: engine.kind.summary,
        source: match engine.kind.origin {
            Origin::BuiltIn => "built in".to_owned(),
            Origin::Library(path) => path,
        },
        datapaths: engine.datapaths as u32,
        example: engine.kind.example,
        current: engine.is_current,
    });
    v1::ListEnginesResponse {
        engines: engines.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_counts_for_the_route_of_its_name_or_for_the_one_of_all_others() {
        let route = |service: &str| RouteConfig {
            service: service.to_owned(),
            transport: RouteTransport::Auto,
            endpoints: vec!["127.0.0.1:1".to_owned()],
            ..RouteConfig::default()
        };
        let routes = [route("a.A"), route("*"), route("b.B")];
        let by_route = connections_by_route(&routes, ["a.A", "a.A", "c.C", "d.D", "e.E"].into_iter());
        assert_eq!([by_route["a.A"], by_route["*"], by_route["b.B"]], [2, 3, 0]);
        let by_route = connections_by_route(&routes[..1], ["a.A", "c.C"].into_iter());
        assert_eq!((by_route["a.A"], by_route.len()), (1, 1));
    }
}
