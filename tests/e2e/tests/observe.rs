//! What a node tells: metrics that promtool accepts and a real Prometheus scrapes, health, an access log that may be
//! rotated, spans that a collector receives with the right parents.

mod collector;

use std::collections::BTreeSet;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use collector::{SpanCollector, hex, serve};
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
    MetricsService, MetricsServiceServer,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::metrics::v1::{HistogramDataPoint, Metric, ResourceMetrics, metric};
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use provost_e2e::driver::WAIT_MAX;
use provost_e2e::scrape::{self, value};
use provost_e2e::script::{Ask, Echo, Hold, Metadatum, StatusParts};
use provost_e2e::{NodeOptions, Setting, World, built, eventually, watched};
use rustix::process::Signal;
use serde_json::Value;
use tonic::service::Routes;

const ROLE: &str = env!("CARGO_BIN_EXE_e2e-role");

fn echo(calls: usize) -> Ask {
    Ask::Echo(Echo {
        calls,
        ..Echo::default()
    })
}

fn tables(text: impl Into<String>) -> NodeOptions {
    NodeOptions {
        tables: text.into(),
        ..NodeOptions::default()
    }
}

fn policy(kind: &str, config: &str) -> String {
    format!("[[policy]]\nname = \"{kind}\"\nkind = \"{kind}\"\n[policy.config]\n{config}\n")
}

/// A directory for what a node's configuration names before its world is there.
fn directory() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("pobs-").tempdir().unwrap()
}

fn get_unix(socket: &Path, path: &str) -> (u16, String) {
    scrape::get_unix(socket, path).unwrap()
}

fn is_missing(program: &str) -> bool {
    let missing = Command::new(program).arg("--version").output().is_err();
    if missing {
        provost_skip::missing(program, "Debian package prometheus");
    }
    missing
}

#[test]
fn metrics_count_the_calls_and_promtool_finds_nothing_to_say() {
    watched(|| {
        let place = directory();
        let (socket_a, socket_b) = (place.path().join("a"), place.path().join("b"));
        let options = |socket: &Path| {
            let observe = format!("[observe]\nlisten = \"unix:{}\"\n", socket.display());
            let tap = policy("tap", "");
            let log = policy("access-log", "path = \"/dev/null\"");
            tables(format!(
                "{observe}{}{tap}{log}{}",
                policy("metrics", ""),
                policy("tracing", "")
            ))
        };
        let mut setting = Setting::with(ROLE, &options(&socket_a), &options(&socket_b));
        setting.agent.succeeds(echo(20));
        let failure = StatusParts {
            code: 5,
            ..StatusParts::default()
        };
        setting.agent.fails(Ask::Fail(failure));
        let (status, page) = get_unix(&socket_a, "/metrics");
        assert_eq!(status, 200);
        let count = |page: &str, side: &str, method: &str, code: &str| {
            let name = format!("grpc_{side}_call_duration_seconds_count");
            let labels = [
                format!("grpc_method=\"probe.Probe/{method}\""),
                format!("grpc_status=\"{code}\""),
            ];
            value(
                page,
                &name,
                &[&labels[0], &labels[1], "policy=\"metrics\"", "kind=\"metrics\""],
            )
        };
        assert_eq!(count(&page, "client", "Echo", "OK"), Some(20.0), "{page}");
        assert_eq!(count(&page, "client", "Fail", "NOT_FOUND"), Some(1.0));
        assert_eq!(value(&page, "provost_apps", &[]), Some(1.0));
        assert_eq!(
            value(&page, "provost_connections", &["side=\"client\""]),
            Some(1.0)
        );
        assert_eq!(value(&page, "provost_policies", &["kind=\"tap\""]), Some(1.0));
        let busy = value(&page, "provost_runtime_busy_seconds_total", &["runtime=\"0\""]);
        assert!(busy.is_some_and(|busy| busy > 0.0), "{busy:?}");
        let (_, page_b) = get_unix(&socket_b, "/metrics");
        assert_eq!(count(&page_b, "server", "Echo", "OK"), Some(20.0), "{page_b}");
        promtool_accepts(&page);
        promtool_accepts(&page_b);
    });
}

fn promtool_accepts(page: &str) {
    if is_missing("promtool") {
        return;
    }
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    promtool.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let said = promtool.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&said.stderr).into_owned() + &String::from_utf8_lossy(&said.stdout);
    assert!(said.status.success() && text.trim().is_empty(), "{text}");
}

/// A process that ends with the test.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

#[test]
fn a_real_prometheus_scrapes_a_node() {
    if is_missing("prometheus") {
        return;
    }
    watched(|| {
        let place = directory();
        let (node_port, port) = (free_port(), free_port());
        let observe = format!("[observe]\nlisten = \"127.0.0.1:{node_port}\"\n");
        let options = tables(observe + &policy("metrics", ""));
        let mut setting = Setting::with(ROLE, &options, &NodeOptions::default());
        let config = place.path().join("prometheus.yml");
        let text = format!(
            "global: {{ scrape_interval: 200ms, scrape_timeout: 200ms, evaluation_interval: 200ms }}\n\
             rule_files: [\"{}\"]\nscrape_configs:\n  - job_name: provost\n    \
             static_configs: [{{ targets: [\"127.0.0.1:{node_port}\"] }}]\n",
            packaged(RULES).display()
        );
        std::fs::write(&config, text).unwrap();
        let prometheus = Command::new("prometheus")
            .arg(format!("--config.file={}", config.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                place.path().join("data").display()
            ))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(place.path().join("log")).unwrap())
            .spawn();
        let _prometheus = Ends(prometheus.unwrap());
        setting.agent.succeeds(echo(30));
        let ask = |path: &str| {
            let Ok(stream) = TcpStream::connect(("127.0.0.1", port)) else {
                return Value::Null;
            };
            let (_, body) = scrape::get(stream, path).unwrap_or_default();
            serde_json::from_str(&body).unwrap_or_default()
        };
        let query = |expression: &str| ask(&format!("/api/v1/query?query={}", in_a_url(expression)));
        eventually("Prometheus has seen the calls", WAIT_MAX, || {
            let answer = query("sum(grpc_client_call_duration_seconds_count)");
            answer["data"]["result"][0]["value"][1] == "30"
        });
        // The rules, evaluated over what the node exports.
        let alerts = std::fs::read_to_string(packaged(RULES))
            .unwrap()
            .matches("- alert: ")
            .count();
        eventually("every rule is evaluated", WAIT_MAX, || {
            let answer = ask("/api/v1/rules");
            let groups = answer["data"]["groups"].as_array().into_iter().flatten();
            let rules: Vec<_> = groups
                .flat_map(|group| group["rules"].as_array().unwrap())
                .collect();
            rules.len() == alerts && rules.iter().all(|rule| rule["health"] == "ok")
        });
        let shown = |expression: &String| {
            let answer = query(expression);
            assert_eq!(answer["status"], "success", "{expression}: {answer}");
            !answer["data"]["result"].as_array().unwrap().is_empty()
        };
        let expressions = dashboard_expressions();
        eventually("most of the dashboard has something to show", WAIT_MAX, || {
            // Of what this node does not do, such as TLS, there is nothing.
            expressions.iter().filter(|expression| shown(expression)).count() * 4 >= expressions.len() * 3
        });
    });
}

/// What operators load into Prometheus and Grafana, below `packaging`.
const RULES: &str = "prometheus/provost.rules.yml";
const RULE_TESTS: &str = "prometheus/provost.test.yml";
const DASHBOARD: &str = "grafana/provost.json";
/// Labels whose names begin as metrics' do.
const LABELS: [&str; 2] = ["grpc_method", "grpc_status"];
/// What only a node with `[tls]` exports, or one with TLS towards gRPC clients.
const WITH_TLS: [&str; 3] = [
    "provost_tls_certificate_expiry_seconds",
    "provost_spiffe_answers_total",
    "provost_grpc_refused_handshakes_total",
];

fn packaged(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../packaging")
        .join(file)
}

/// All queries of the dashboard, for the last minute and all nodes.
fn dashboard_expressions() -> Vec<String> {
    let text = std::fs::read_to_string(packaged(DASHBOARD)).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let of_panels = targets.map(|target| &target["expr"]);
    let of_annotations = dashboard["annotations"]["list"].as_array().unwrap().iter();
    let all = of_panels.chain(of_annotations.map(|annotation| &annotation["expr"]));
    all.map(|expression| {
        let expression = expression.as_str().unwrap().replace("$__rate_interval", "1m");
        expression.replace("$instance", ".*")
    })
    .collect()
}

/// A text as a part of a URL's query.
fn in_a_url(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric();
    text.bytes()
        .map(|byte| {
            if plain(byte) {
                char::from(byte).to_string()
            } else {
                format!("%{byte:02X}")
            }
        })
        .collect()
}

/// The metrics that a text names, without what Prometheus adds to the names of histograms.
fn metrics_named(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let names = words.filter(|word| {
        ["provost_", "grpc_", "process_"]
            .iter()
            .any(|start| word.starts_with(start))
    });
    names
        .filter(|name| !LABELS.contains(name))
        .map(|name| {
            let ends = ["_bucket", "_sum", "_count"];
            let base = ends.iter().find_map(|end| name.strip_suffix(end));
            base.unwrap_or(name).to_owned()
        })
        .collect()
}

#[test]
fn alerts_and_the_dashboard_name_metrics_that_a_node_exports() {
    watched(|| {
        let place = directory();
        let (client, server) = (place.path().join("a"), place.path().join("b"));
        let options = |socket: &Path| {
            // Nobody takes what is exported: that is counted.
            let collector = "otlp_endpoint = \"http://127.0.0.1:1\"\notlp_interval_ms = 100\n";
            let observe = format!("[observe]\nlisten = \"unix:{}\"\n{collector}", socket.display());
            let grpc = "[[grpc.listener]]\nname = \"g\"\naddress = \"127.0.0.1:0\"\napp = \"g\"\n";
            let log = policy("access-log", "path = \"/dev/null\"");
            let delay = policy("fault", "delay.percentage = 100\ndelay.fixed_delay_ms = 1");
            let policies = policy("metrics", "") + &policy("tracing", "") + &log + &delay;
            tables(format!("{observe}{grpc}{policies}"))
        };
        let mut setting = Setting::with(ROLE, &options(&client), &options(&server));
        setting.agent.succeeds(echo(20));
        let page = scrape::metrics(&client) + &scrape::metrics(&server);
        let documented = include_str!("../../../docs/observability.md");
        let rules = std::fs::read_to_string(packaged(RULES)).unwrap();
        for (file, text, least) in [
            (RULES, rules, 15),
            (DASHBOARD, dashboard_expressions().join(" "), 25),
        ] {
            let named = metrics_named(&text);
            assert!(named.len() >= least, "{file}: {named:?}");
            for name in named {
                let is_exported = page.contains(&format!("# TYPE {name} "));
                assert!(
                    is_exported || WITH_TLS.contains(&&*name),
                    "{file} names {name}, which no node exports: {page}"
                );
                assert!(
                    documented.contains(&format!("| `{name}` |")),
                    "{file}: {name} is not documented"
                );
            }
        }
    });
}

#[test]
fn each_alert_has_a_test_that_promtool_runs() {
    let rules = std::fs::read_to_string(packaged(RULES)).unwrap();
    let tests = std::fs::read_to_string(packaged(RULE_TESTS)).unwrap();
    let alerts = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "));
    for alert in alerts {
        assert!(
            tests.contains(&format!("  - name: {alert}\n")),
            "{alert} has no test"
        );
        assert!(
            tests.contains(&format!("alertname: {alert} }}")),
            "{alert} is not looked for on a node that is well"
        );
    }
    if is_missing("promtool") {
        return;
    }
    for (verb, file) in [("check", RULES), ("test", RULE_TESTS)] {
        let said = Command::new("promtool")
            .args([verb, "rules"])
            .arg(packaged(file))
            .output()
            .unwrap();
        assert!(said.status.success(), "{file}: {said:?}");
    }
}

#[test]
fn a_node_is_ready_until_it_drains() {
    watched(|| {
        let place = directory();
        let socket = place.path().join("a");
        let observe = format!("[observe]\nlisten = \"unix:{}\"\n", socket.display());
        let mut setting = Setting::with(ROLE, &tables(observe), &NodeOptions::default());
        assert_eq!(get_unix(&socket, "/healthz"), (200, "ok\n".into()));
        assert_eq!(get_unix(&socket, "/readyz"), (200, "ready\n".into()));
        assert_eq!(get_unix(&socket, "/other").0, 404);
        let hold = Hold {
            key: "ready".into(),
            milliseconds: 3000,
            ..Hold::default()
        };
        let held = setting.agent.begin(Ask::Hold(hold));
        let counts = Ask::Counts { key: "ready".into() };
        eventually("the call is with its handler", WAIT_MAX, || {
            setting.agent.succeeds(counts.clone()).begun == 1
        });
        setting.a.program.signal(Signal::TERM);
        eventually("the node says that it drains", WAIT_MAX, || {
            get_unix(&socket, "/readyz").0 == 503
        });
        assert_eq!(get_unix(&socket, "/healthz").0, 200, "it lives all the same");
        setting.agent.answer(held);
        assert!(setting.a.program.ends_within(WAIT_MAX).is_some());
        assert!(!socket.exists());
    });
}

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn an_access_log_has_a_line_for_each_call_over_a_rotation() {
    watched(|| {
        let place = directory();
        let log = place.path().join("access.log");
        let rotated: PathBuf = place.path().join("access.log.1");
        let config = format!("path = \"{}\"\nflush_interval_ms = 10", log.display());
        let options = tables(policy("access-log", &config));
        // A node reads its clock once a turn, so a call that is answered within one takes no time by it.
        let delay = tables(policy(
            "fault",
            "delay.percentage = 100\ndelay.fixed_delay_ms = 2",
        ));
        let mut setting = Setting::with(ROLE, &options, &delay);
        setting.agent.succeeds(echo(10));
        eventually("the first calls have lines", WAIT_MAX, || lines(&log).len() == 10);
        std::fs::rename(&log, &rotated).unwrap();
        setting.agent.succeeds(echo(5));
        eventually("the new file has the rest", WAIT_MAX, || lines(&log).len() == 5);
        assert_eq!(lines(&rotated).len(), 10);
        let line = &lines(&log)[0];
        let expected = [
            ("path", "/probe.Probe/Echo"),
            ("grpc_status", "OK"),
            ("side", "client"),
            ("node", "a"),
        ];
        for (key, value) in expected {
            assert_eq!(line[key], value, "{line}");
        }
        assert!(
            line["duration_ms"]
                .as_f64()
                .is_some_and(|duration| duration > 1.0)
        );
        assert_eq!(line["upstream_host"], setting.b.address.to_string());
    });
}

#[test]
fn each_end_of_a_call_within_one_node_is_told_of_once() {
    const CALLS: usize = 3;
    built::program("provost", "provost-cli", ROLE);
    watched(|| {
        let place = directory();
        let log = place.path().join("access.log");
        let config = format!("path = \"{}\"\nflush_interval_ms = 10", log.display());
        let mut world = World::new(ROLE);
        let node = world.node("one", &tables(policy("access-log", &config) + &policy("tap", "")));
        let _server = world.server(&node);
        let mut agent = world.agent(&node);
        agent.succeeds(echo(CALLS));
        eventually("all calls have lines", WAIT_MAX, || {
            lines(&log).len() >= 2 * CALLS
        });
        let tapped = node.operate(&["tap", "--recent", "100", "--json"]);
        let samples: Vec<Value> = tapped
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        for told in [&lines(&log), &samples] {
            for side in ["client", "server"] {
                let of_side = told.iter().filter(|one| one["side"] == side);
                assert_eq!(of_side.count(), CALLS, "{side}: {told:?}");
            }
        }
        let tested = node.operate(&["policy", "test", "--kind", "null", "--json"]);
        let tested: Value = serde_json::from_str(&tested).unwrap();
        assert_eq!(tested["samples"], 2 * CALLS, "{tested}");
    });
}

/// A collector that keeps the metrics that it gets, each time anew.
#[derive(Clone, Default)]
struct MetricsCollector(Arc<Mutex<Vec<ResourceMetrics>>>);

#[tonic::async_trait]
impl MetricsService for MetricsCollector {
    async fn export(
        &self,
        request: tonic::Request<ExportMetricsServiceRequest>,
    ) -> Result<tonic::Response<ExportMetricsServiceResponse>, tonic::Status> {
        *self.0.lock().unwrap() = request.into_inner().resource_metrics;
        Ok(tonic::Response::new(ExportMetricsServiceResponse::default()))
    }
}

impl MetricsCollector {
    fn metric(&self, name: &str) -> Option<Metric> {
        let resources = self.0.lock().unwrap();
        let scopes = resources.iter().flat_map(|resource| &resource.scope_metrics);
        let mut metrics = scopes.flat_map(|scope| &scope.metrics);
        metrics.find(|metric| metric.name == name).cloned()
    }

    /// How many calls of `Echo` were counted.
    fn echoes(&self) -> Option<u64> {
        let Some(metric::Data::Histogram(histogram)) = self.metric("grpc_client_call_duration_seconds")?.data
        else {
            return None;
        };
        let is_echo = |point: &&HistogramDataPoint| format!("{:?}", point.attributes).contains("/Echo");
        histogram
            .data_points
            .iter()
            .find(is_echo)
            .map(|point| point.count)
    }
}

#[test]
fn a_collector_receives_the_metrics_also_of_the_process_that_takes_over() {
    watched(|| {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let collector = MetricsCollector::default();
        let address = serve(
            &runtime,
            Routes::new(MetricsServiceServer::new(collector.clone())),
        );
        let observe = format!("[observe]\notlp_endpoint = \"{address}\"\notlp_interval_ms = 100\n");
        let options = tables(observe + &policy("metrics", ""));
        let mut setting = Setting::with(ROLE, &options, &NodeOptions::default());
        setting.agent.succeeds(echo(12));
        eventually("the calls are exported", WAIT_MAX, || {
            collector.echoes() == Some(12)
        });
        setting.a.replace();
        setting.agent.succeeds(echo(3));
        eventually("those of the new process are added", WAIT_MAX, || {
            collector.echoes() == Some(15)
        });
        let exports = collector.metric("provost_otlp_exports_total").unwrap();
        assert!(matches!(&exports.data, Some(metric::Data::Sum(sum)) if sum.is_monotonic));
        let resources = collector.0.lock().unwrap().clone();
        let resource = format!("{:?}", resources[0].resource);
        assert!(
            resource.contains("\"provostd\"") && resource.contains("service.instance.id"),
            "{resource}"
        );
        runtime.shutdown_background();
    });
}

#[test]
fn a_trace_goes_from_the_client_through_both_nodes_to_the_handler() {
    watched(|| {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let collector = SpanCollector::default();
        let config = format!(
            "endpoint = \"{}\"\nschedule_delay_ms = 10\nphases = false",
            collector.serve(&runtime)
        );
        let options = tables(policy("tracing", &config));
        let mut setting = Setting::with(ROLE, &options, &options);
        // The server returns the metadata that its handler saw.
        let pair = Metadatum {
            key: "x-some-bin".into(),
            value: vec![1],
        };
        let done = setting.agent.succeeds(Ask::Mirror(vec![pair]));
        let seen = done.initial.iter().find(|pair| pair.key == "traceparent");
        let seen = String::from_utf8(seen.expect("the handler has a trace context").value.clone()).unwrap();
        let spans = || {
            let of_call = |span: &Span| span.name == "probe.Probe/Mirror";
            collector.spans().into_iter().filter(of_call).collect::<Vec<_>>()
        };
        eventually("both nodes have exported their spans", WAIT_MAX, || {
            spans().len() == 2
        });
        let of_kind = |kind: SpanKind| spans().into_iter().find(|span| span.kind == kind as i32).unwrap();
        let (client, server) = (of_kind(SpanKind::Client), of_kind(SpanKind::Server));
        assert!(client.parent_span_id.is_empty());
        assert_eq!(
            (&server.trace_id, &server.parent_span_id),
            (&client.trace_id, &client.span_id)
        );
        assert_eq!(
            seen,
            format!("00-{}-{}-01", hex(&server.trace_id), hex(&server.span_id))
        );
        assert!(
            client.start_time_unix_nano
                <= server.end_time_unix_nano + Duration::from_secs(1).as_nanos() as u64
        );
        runtime.shutdown_background();
    });
}
