//! The metrics of the node itself.

use std::collections::BTreeMap;

use provost_engine::{MetricDescription, MetricSink, MetricType};

use super::collected::Collected;
use super::process;
use crate::connections::OpenConnection;
use crate::control_plane::ControlPlane;
use crate::runtime::{QUEUEING_SECONDS, RuntimeTraffic};

macro_rules! metrics {
    ($($constant:ident = $name:literal, $kind:ident, $unit:literal, $help:literal;)*) => {
        $(static $constant: MetricDescription = MetricDescription {
            name: $name,
            help: $help,
            kind: MetricType::$kind,
            unit: $unit,
        };)*

        /// All metrics that a node reports beside those of its policies.
        pub static NODE_METRICS: &[&MetricDescription] = &[$(&$constant),*];
    };
}

metrics! {
    BUILD = "provost_build_info", Gauge, "1", "Always 1; the label says which version serves.";
    READY = "provost_ready", Gauge, "1", "1 while the node takes new apps and connections, else 0.";
    APPS = "provost_apps", Gauge, "{app}", "Apps that are attached.";
    GRPC_CLIENTS = "provost_grpc_clients", Gauge, "{client}",
        "Connections of gRPC clients to a listener, those that have called nothing yet among them.";
    GRPC_REFUSED = "provost_grpc_refused_handshakes_total", Counter, "{connection}",
        "Connections to a listener with TLS that came to nothing before their clients could call.";
    CONNECTIONS = "provost_connections", Gauge, "{connection}", "Open connections of all apps.";
    RUNTIME_APPS = "provost_runtime_apps", Gauge, "{app}", "Apps on a runtime thread.";
    RUNTIME_BUSY = "provost_runtime_busy_seconds_total", Counter, "s",
        "Time in which a runtime thread found something to do in each round.";
    RUNTIME_POLLING = "provost_runtime_polling_seconds_total", Counter, "s",
        "Time in which a runtime thread looked for something to do and found nothing.";
    RUNTIME_ASLEEP = "provost_runtime_asleep_seconds_total", Counter, "s", "Time in which a runtime thread slept.";
    RUNTIME_SLEEPS = "provost_runtime_sleeps_total", Counter, "{sleep}", "How often a runtime thread went to sleep.";
    IN_FLIGHT = "provost_runtime_calls_in_flight", Gauge, "{call}",
        "Calls of all apps of a runtime thread, made or served, that have begun and not ended.";
    QUEUEING = "provost_runtime_queueing_seconds", Histogram, "s",
        "Time from when a runtime thread took a step of a call from an app until the transport had taken it.";
    SUBMISSIONS = "provost_submission_ring_fullness", Gauge, "1",
        "Share of the fullest submission ring of an app that was taken in the last 10 to 20 seconds.";
    COMPLETIONS = "provost_completion_ring_fullness", Gauge, "1",
        "Share of the fullest completion ring of an app that was taken in the last 10 to 20 seconds.";
    RECEIVE_HEAP = "provost_receive_heap_bytes", Gauge, "By", "Memory of the receive heaps of all apps.";
    SEND_HEAP = "provost_send_heap_bytes", Gauge, "By", "Memory of the send heaps of all apps, as far as they mapped it.";
    HOT_RESTARTS = "provost_daemon_replacements_total", Counter, "{replacement}",
        "Replacements of the daemon by a new process (committed), and attempts after which the old one went on (rolled_back).";
    UPGRADES = "provost_engine_upgrades_total", Counter, "{change}",
        "Upgrades of engines that were carried out (committed), or left everything as it was (rolled_back).";
    ROLLBACKS = "provost_engine_rollbacks_total", Counter, "{change}",
        "Changes that were taken back: because an operator said so, or because an engine failed on trial.";
    POLICIES = "provost_policies", Gauge, "{policy}", "Policies that are attached.";
    POLICY_CHANGES = "provost_policy_changes_total", Counter, "{change}",
        "Changes of the table of policies that were committed, those that took a failed one back among them.";
    POLICY_ABSENT = "provost_policy_absent_connections", Gauge, "{connection}",
        "Connections that go without a policy which applies to them, because it failed or did not fit.";
    PACKETS_SENT = "provost_datagram_packets_sent_total", Counter, "{packet}",
        "Packets that the datagram transport handed to the network, those that it sent again among them.";
    PACKETS_RECEIVED = "provost_datagram_packets_received_total", Counter, "{packet}",
        "Packets that the datagram transport took from the network.";
    PACKETS_RESENT = "provost_datagram_packets_resent_total", Counter, "{packet}",
        "Packets that the datagram transport sent again, as they seemed lost or were not answered in time. Probes are not among them.";
    PROBES = "provost_datagram_probes_total", Counter, "{packet}",
        "Packets by which the datagram transport asked a server that works on a call whether its response got lost: long handlers cause them, not losses.";
    PACKETS_DUPLICATE = "provost_datagram_packets_duplicate_total", Counter, "{packet}",
        "Packets that the datagram transport took though they were here before: the network doubled them, or the peer sent them again or probed by them.";
    PACKETS_UNPROVEN = "provost_datagram_packets_unproven_total", Counter, "{packet}",
        "Packets that the datagram transport dropped because their senders did not show what only the peer knows: a session's token, a cookie, the tag of a sealed packet. Many of them are an attack.";
    PATH_FALLBACKS = "provost_datagram_path_fallbacks_total", Counter, "{fallback}",
        "How often a connection of the datagram transport went over to packets of 1,200 bytes, because larger ones vanish on the way to its peer: its path carries less than datagram.packet_bytes says.";
    ROUND_TRIP = "provost_datagram_round_trip_seconds", Gauge, "s",
        "The longest of the smoothed round trips of open connections over the datagram transport, as their clients measure them.";
    CERTIFICATE_ENDS = "provost_tls_certificate_expiry_seconds", Gauge, "s",
        "When the certificate ends with which this node proves itself to others, in seconds since 1970.";
    WORKLOAD_ANSWERS = "provost_spiffe_answers_total", Counter, "{answer}",
        "Answers of the SPIFFE Workload API that this node has taken: its certificate and its bundles were renewed so often.";
    SCHEMAS = "provost_services_offered", Gauge, "{service}", "Services that apps on this node serve.";
    AUDIT_WRITTEN = "provost_audit_records_total", Counter, "{record}", "Records of the audit log that were written.";
    AUDIT_DROPPED = "provost_audit_dropped_total", Counter, "{record}",
        "Records of the audit log that found no room in its queue.";
    EXPORTS = "provost_otlp_exports_total", Counter, "{export}",
        "Exports of metrics over OTLP that the collector took (success), and that it did not (failure).";
    CPU = "process_cpu_seconds_total", Counter, "s", "User and system time of the process.";
    RESIDENT = "process_resident_memory_bytes", Gauge, "By", "Resident memory of the process.";
    THREADS = "process_threads", Gauge, "{thread}", "Threads of the process.";
    DESCRIPTORS = "process_open_fds", Gauge, "{descriptor}", "Open descriptors of the process.";
    STARTED = "process_start_time_seconds", Gauge, "s", "When the process started, in seconds since 1970.";
}

/// All metrics of the node and its policies, as they are now.
pub(crate) fn collect(plane: &ControlPlane) -> Collected {
    let mut out = Collected::default();
    node(plane, &mut out);
    connections(plane, &mut out);
    policies(plane, &mut out);
    of_process(&mut out);
    for instance in plane.policies.table().instances() {
        out.begin_policy(&instance.name, instance.kind.name());
        instance.policy.metrics(&mut out);
        instance.verdicts.report(&mut out);
    }
    out
}

fn node(plane: &ControlPlane, out: &mut Collected) {
    out.number(
        &BUILD,
        &[
            ("version", env!("CARGO_PKG_VERSION")),
            ("node", &plane.config.started.node.name),
        ],
        1.0,
    );
    out.number(&READY, &[], f64::from(u8::from(is_ready(plane))));
    out.number(&APPS, &[], plane.apps.count() as f64);
    for (listener, clients) in plane.grpc.clients_by_listener() {
        out.number(&GRPC_CLIENTS, &[("listener", &listener)], clients as f64);
    }
    for (listener, refused) in plane.grpc.refused_handshakes() {
        out.number(&GRPC_REFUSED, &[("listener", &listener)], refused as f64);
    }
    for (at, runtime) in plane.runtimes.iter().enumerate() {
        let name = at.to_string();
        let labels = [("runtime", name.as_str())];
        let spent = runtime.spent();
        out.number(&RUNTIME_APPS, &labels, runtime.apps() as f64);
        out.number(&RUNTIME_BUSY, &labels, spent.busy_ns as f64 / 1e9);
        out.number(&RUNTIME_POLLING, &labels, spent.polling_ns as f64 / 1e9);
        out.number(&RUNTIME_ASLEEP, &labels, spent.asleep_ns as f64 / 1e9);
        out.number(&RUNTIME_SLEEPS, &labels, spent.sleeps as f64);
        traffic(&runtime.traffic(), &labels, out);
    }
    let loads = || plane.runtimes.iter().map(|runtime| runtime.load());
    out.number(
        &SUBMISSIONS,
        &[],
        loads().map(|load| load.submissions).fold(0.0, f64::max),
    );
    out.number(
        &COMPLETIONS,
        &[],
        loads().map(|load| load.completions).fold(0.0, f64::max),
    );
    let receive_bytes: u64 = loads().map(|load| load.receive_heap_bytes).sum();
    out.number(&RECEIVE_HEAP, &[], receive_bytes as f64);
    let apps = plane.apps.all();
    let send_bytes: u64 = apps.values().map(|app| app.shared_heap_bytes()).sum();
    out.number(&SEND_HEAP, &[], send_bytes as f64);
    changes(plane, out);
    let certificates = plane.peers.certificates.as_ref();
    if let Some(ends_unix_s) = certificates.and_then(|certificates| certificates.ends_unix_s()) {
        out.number(&CERTIFICATE_ENDS, &[], ends_unix_s as f64);
    }
    if let Some(workload) = &plane.peers.workload {
        out.number(&WORKLOAD_ANSWERS, &[], workload.answers() as f64);
    }
    let (written, dropped) = plane.audit.counts();
    out.number(&AUDIT_WRITTEN, &[], written as f64);
    out.number(&AUDIT_DROPPED, &[], dropped as f64);
}

fn traffic(traffic: &RuntimeTraffic, labels: &[(&str, &str)], out: &mut Collected) {
    out.number(&IN_FLIGHT, labels, traffic.calls_under_way as f64);
    let bounds = QUEUEING_SECONDS.into_iter().chain([f64::INFINITY]);
    let mut count = 0;
    let cumulative: Vec<(f64, u64)> = bounds
        .zip(traffic.queued)
        .map(|(bound, queued)| {
            count += queued;
            (bound, count)
        })
        .collect();
    out.histogram(
        &QUEUEING,
        labels,
        &cumulative,
        traffic.queued_ns as f64 / 1e9,
        count,
    );
}

fn changes(plane: &ControlPlane, out: &mut Collected) {
    let counts = &plane.counts;
    let by_outcome = [
        (&HOT_RESTARTS, "committed", &counts.hot_restarts),
        (&HOT_RESTARTS, "rolled_back", &counts.hot_restarts_undone),
        (&UPGRADES, "committed", &counts.upgrades),
        (&UPGRADES, "rolled_back", &counts.upgrades_undone),
    ];
    for (metric, outcome, count) in by_outcome {
        out.number(metric, &[("outcome", outcome)], count.get() as f64);
    }
    for (cause, count) in [("operator", &counts.rollbacks), ("failure", &counts.taken_back)] {
        out.number(&ROLLBACKS, &[("cause", cause)], count.get() as f64);
    }
    if plane.config.started.observe.otlp_endpoint.is_empty() {
        return;
    }
    for (outcome, count) in [("success", &counts.exports), ("failure", &counts.exports_failed)] {
        out.number(&EXPORTS, &[("outcome", outcome)], count.get() as f64);
    }
}

fn connections(plane: &ControlPlane, out: &mut Collected) {
    let connections = plane.connections.all();
    let mut open: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    let mut services: BTreeMap<&str, ()> = BTreeMap::new();
    for connection in connections.values() {
        let context = &connection.context;
        *open
            .entry((context.side.name(), context.peer.transport))
            .or_default() += 1;
        if let Some(service) = connection.spec.serves() {
            services.insert(service, ());
        }
    }
    for ((side, transport), count) in open {
        out.number(
            &CONNECTIONS,
            &[("side", side), ("transport", transport)],
            count as f64,
        );
    }
    out.number(&SCHEMAS, &[], services.len() as f64);
    packets(plane, out);
}

fn packets(plane: &ControlPlane, out: &mut Collected) {
    let packets = plane.connections.packets();
    out.number(&PACKETS_SENT, &[], packets.sent as f64);
    out.number(&PACKETS_RECEIVED, &[], packets.received as f64);
    out.number(&PACKETS_RESENT, &[], packets.resent as f64);
    out.number(&PROBES, &[], packets.probes as f64);
    out.number(&PACKETS_DUPLICATE, &[], packets.duplicates as f64);
    out.number(&PACKETS_UNPROVEN, &[], packets.unproven as f64);
    out.number(&PATH_FALLBACKS, &[], packets.path_fallbacks as f64);
    let connections = plane.connections.all();
    let trip = |connection: &OpenConnection| connection.signals.packets().round_trip_ns();
    if let Some(longest_ns) = connections.values().filter_map(trip).max() {
        out.number(&ROUND_TRIP, &[], longest_ns as f64 / 1e9);
    }
}

fn policies(plane: &ControlPlane, out: &mut Collected) {
    let mut attached: BTreeMap<&str, u64> = BTreeMap::new();
    let table = plane.policies.table();
    for entry in &table.entries {
        *attached.entry(entry.live.kind.name()).or_default() += 1;
    }
    for (kind, count) in attached {
        out.number(&POLICIES, &[("kind", kind)], count as f64);
    }
    out.number(&POLICY_CHANGES, &[], plane.policies.generation() as f64);
    let connections = plane.connections.all();
    let without = connections
        .values()
        .map(|connection| connection.without.len())
        .sum::<usize>();
    out.number(&POLICY_ABSENT, &[], without as f64);
}

fn of_process(out: &mut Collected) {
    let Some(numbers) = process::read() else { return };
    out.number(&CPU, &[], numbers.cpu_seconds);
    out.number(&RESIDENT, &[], numbers.resident_bytes);
    out.number(&THREADS, &[], numbers.threads);
    out.number(&DESCRIPTORS, &[], numbers.open_descriptors);
    out.number(&STARTED, &[], numbers.start_seconds);
}

/// Whether the node takes new apps and connections.
pub(crate) fn is_ready(plane: &ControlPlane) -> bool {
    let is_being_replaced = plane.quiesce_barrier.is_closed() || plane.peers.barrier.is_closed();
    !plane.connections.is_draining() && !is_being_replaced
}
