//! The log of a node: one connection can be followed by its number, from the request for it to its end.

mod support;

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use provost_wire::control::{reply, request};
use provostd::policies::{Attachment, Change, Mode, Position, Reach, Upgrade};
use serde_json::Value;
use support::*;
use tracing_subscriber::fmt::MakeWriter;

/// What the process has logged, one JSON object on a line, as `log.format = "json"` writes it.
#[derive(Clone, Default)]
struct CapturedLog(Arc<Mutex<Vec<u8>>>);

impl Write for CapturedLog {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for CapturedLog {
    type Writer = CapturedLog;

    fn make_writer(&self) -> CapturedLog {
        self.clone()
    }
}

impl CapturedLog {
    /// Captures the log of this whole process, all its threads.
    fn start() -> CapturedLog {
        let log = CapturedLog::default();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(log.clone())
            .with_max_level(tracing::Level::DEBUG)
            .json()
            .flatten_event(true);
        subscriber.init();
        log
    }

    fn lines(&self) -> Vec<Value> {
        let bytes = self.0.lock().unwrap().clone();
        let text = String::from_utf8(bytes).unwrap();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// What is said of one connection of a node, on its events or the spans around them.
    fn of_connection(&self, node: &str, id: u64) -> Vec<Value> {
        let is_about = |line: &Value| {
            field(line, "node") == Some(node.into()) && field(line, "connection") == Some(id.into())
        };
        self.lines().into_iter().filter(is_about).collect()
    }

    /// The last event of a node with this message, once there is one after the first `skipped` lines of the log.
    fn last_of(&self, node: &str, message: &str, skipped: usize) -> Value {
        let until = Instant::now() + WAIT_MAX;
        loop {
            let is_it = |line: &Value| line["message"] == message && field(line, "node") == Some(node.into());
            if let Some(line) = self.lines().into_iter().skip(skipped).rfind(is_it) {
                return line;
            }
            assert!(Instant::now() < until, "{node} has not logged \"{message}\"");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    /// The same, once a message is among it.
    fn until(&self, node: &str, id: u64, message: &str) -> Vec<Value> {
        let until = Instant::now() + WAIT_MAX;
        loop {
            let lines = self.of_connection(node, id);
            if messages(&lines).contains(&message) {
                return lines;
            }
            assert!(Instant::now() < until, "no \"{message}\" in {lines:#?}");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}

/// A field of an event, or of the nearest of its spans that has it.
fn field(line: &Value, name: &str) -> Option<Value> {
    let spans = line["spans"].as_array().cloned().unwrap_or_default();
    let of_spans = spans.iter().rev().find_map(|span| span.get(name).cloned());
    line.get(name).cloned().or(of_spans)
}

fn messages(lines: &[Value]) -> Vec<&str> {
    lines.iter().filter_map(|line| line["message"].as_str()).collect()
}

/// Each message with what has to come before it, and nothing that is worse than a notice.
fn assert_sequence(lines: &[Value], expected: &[&str]) {
    let said = messages(lines);
    let mut rest = said.iter();
    for message in expected {
        assert!(
            rest.any(|said| said == message),
            "\"{message}\" is missing, or comes too early: {said:#?}"
        );
    }
    for line in lines {
        let level = line["level"].as_str().unwrap();
        assert!(level == "INFO" || level == "DEBUG", "{line:#}");
    }
}

fn named(name: &'static str) -> impl FnOnce(&mut provostd::Config) {
    move |config| config.node.name = name.into()
}

#[test]
fn a_connection_is_followed_by_its_number_from_the_request_to_its_end() {
    let log = CapturedLog::start();
    let serving = TestNode::start_with(named("serving"));
    let mut server = TestApp::attach(&serving);
    server.bind();
    let endpoint = serving.node.addresses()[0].to_string();
    let calling = TestNode::start_with(|config| {
        named("calling")(config);
        config.routes.push(provostd::config::RouteConfig {
            service: SERVICE.to_owned(),
            transport: provostd::config::RouteTransport::Over(provostd::TransportKind::Tcp),
            endpoints: vec![endpoint],
            ..provostd::config::RouteConfig::default()
        });
    });
    let mut client = TestApp::attach(&calling);
    client.connect();
    let opened = log
        .lines()
        .into_iter()
        .find(|line| line["message"] == "connection opened" && field(line, "node") == Some("calling".into()));
    let id = field(&opened.expect("an opened connection"), "connection")
        .unwrap()
        .as_u64()
        .unwrap();

    let change = |change| calling.node.change(change, Mode::Apply).expect("a change");
    change(Change::Attach {
        attachment: Attachment::of_kind("null"),
        at: Position::Last,
    });
    change(Change::Upgrade(Upgrade {
        kind: "transport-tcp".into(),
        version: Some(2),
        policy: None,
        reach: Reach::All,
    }));
    server.unbind();
    let lines = log.until("calling", id, "connection closed");
    assert_sequence(
        &lines,
        &[
            "connection requested",
            "agreed with a peer",
            "connection opened",
            "connection changed",
            "connection changed",
            "connection closed",
        ],
    );
    // The request that it came by, and the app that asked for it, are beside it on whatever thread.
    let agreed = lines
        .iter()
        .find(|line| line["message"] == "agreed with a peer")
        .unwrap();
    assert!(
        field(agreed, "request").is_some() && field(agreed, "app").is_some(),
        "{agreed:#}"
    );
    // Each of the two changes has a number of its own, beside the connection's.
    let changes: Vec<_> = lines
        .iter()
        .filter(|line| line["message"] == "connection changed")
        .collect();
    let numbers: Vec<_> = changes
        .iter()
        .map(|line| field(line, "change").unwrap())
        .collect();
    assert_eq!(numbers.len(), 2);
    assert_ne!(numbers[0], numbers[1]);
    let states: Vec<_> = log
        .lines()
        .into_iter()
        .filter(|line| line["message"] == "live change" && line["change"] == numbers[0])
        .map(|line| line["to"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(states, ["Applying", "OnProbation"]);

    let accepted = log
        .lines()
        .into_iter()
        .find(|line| line["message"] == "connection opened" && field(line, "node") == Some("serving".into()));
    let accepted = field(&accepted.expect("an accepted connection"), "connection").unwrap();
    let lines = log.until("serving", accepted.as_u64().unwrap(), "connection closed");
    assert_sequence(
        &lines,
        &[
            "a peer has come",
            "agreed with a peer",
            "connection opened",
            "connection closed",
        ],
    );

    // One that is refused has its number, too, at the node that asks and at the one that refuses.
    let before = log.lines().len();
    let refused = client.ask(request::Body::Connect(connect_request()), None);
    assert!(matches!(refused, reply::Body::Failed(_)), "{refused:?}");
    let refused = number(&log.last_of("calling", "connection refused", before));
    assert!(refused > id);
    let lines = log.of_connection("calling", refused);
    assert_sequence(&lines, &["connection requested", "connection refused"]);
    assert!(!messages(&lines).contains(&"connection opened"));

    let refusal = log.last_of("serving", "connection refused", before);
    assert_ne!(Some(number(&refusal)), accepted.as_u64());
    let reason = field(&refusal, "reason").expect("why it was refused").to_string();
    assert!(reason.contains(SERVICE), "{reason}");
    let lines = log.of_connection("serving", number(&refusal));
    assert_sequence(&lines, &["a peer has come", "connection refused"]);
    let peer = field(&lines[0], "peer").expect("where the peer is");
    assert_eq!(field(&refusal, "peer"), Some(peer), "the span around both");
    assert!(!messages(&lines).contains(&"connection opened"));
}

/// Of which connection an event tells.
fn number(line: &Value) -> u64 {
    let number = field(line, "connection").and_then(|number| number.as_u64());
    number.unwrap_or_else(|| panic!("no connection in {line:#}"))
}
