//! The access log policy around calls: what its lines say, that a rotation loses none, that state goes on.

use std::path::Path;

use provost_engine::rig::{Rig, Service, metric, policy, with_metadata};
use provost_engine::{Code, Parts, Side, Step};
use provost_observers::kind;
use serde_json::Value;

const ECHO: &str = r#"
syntax = "proto3";
package test;
message Text { string text = 1; }
service Echo { rpc Say(Text) returns (Text); }
"#;
const TRACEPARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn config(path: &Path, more: &str) -> String {
    format!("path = {path:?}\n{more}")
}

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn call(rig: &mut Rig, service: &Service, call: u64) {
    rig.send(with_metadata(
        service.request(call, 0, &[]),
        &[("traceparent", TRACEPARENT)],
    ));
    rig.poll();
    rig.now += 1_500_000;
    rig.receive(service.response(call, 0, &[]));
    rig.poll();
}

#[test]
fn a_call_has_a_line_that_says_all_of_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("access.log");
    let service = Service::from_source(ECHO);
    let policy = policy(&*kind("access-log").unwrap(), &config(&path, ""), None).unwrap();
    let mut rig = Rig::new(service.datapath_context(Side::Client), &*policy);
    call(&mut rig, &service, 7);
    drop((rig, policy));
    let lines = lines(&path);
    assert_eq!(lines.len(), 1);
    let expected = serde_json::json!({
        "start_time": lines[0]["start_time"],
        "node": "node", "app": "app", "side": "client", "transport": "tcp",
        "upstream_host": "192.0.2.7:4000", "connection_id": 1, "call_id": 7,
        "path": "/test.Echo/Say", "grpc_status": "OK", "grpc_status_number": 0,
        "duration_ms": 1.5, "response_duration_ms": 1.5,
        "bytes_received": 8, "bytes_sent": 8, "messages_received": 1, "messages_sent": 1,
        "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736", "span_id": "00f067aa0ba902b7",
    });
    assert_eq!(lines[0], expected);
}

#[test]
fn only_the_calls_that_are_asked_for_have_lines() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("access.log");
    let service = Service::from_source(ECHO);
    let text = config(&path, "status = [\"CANCELLED\"]\nduration_min_ms = 1");
    let policy = policy(&*kind("access-log").unwrap(), &text, None).unwrap();
    let mut rig = Rig::new(service.datapath_context(Side::Client), &*policy);
    call(&mut rig, &service, 1);
    for (id, after) in [(2, 1_000_000), (3, 1000)] {
        rig.send(Step::new(id, Parts::BEGIN));
        rig.poll();
        rig.now += after;
        rig.send(Step::cancel(id, Code::Cancelled));
        rig.poll();
    }
    drop((rig, policy));
    let lines = lines(&path);
    assert_eq!(lines.len(), 1);
    assert_eq!(
        (&lines[0]["call_id"], &lines[0]["cancelled"]),
        (&Value::from(2), &Value::from(true))
    );
}

#[test]
fn a_call_that_spans_a_change_of_the_policy_has_its_line_and_counters_go_on() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("access.log");
    let service = Service::from_source(ECHO);
    let first = policy(&*kind("access-log").unwrap(), &config(&path, ""), None).unwrap();
    let mut rig = Rig::new(service.datapath_context(Side::Client), &*first);
    call(&mut rig, &service, 1);
    rig.send(service.request(2, 0, &[]));
    rig.poll();
    let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while metric(&*first, "provost_access_log_lines_total") < 1.0 && std::time::Instant::now() < until {
        std::thread::yield_now();
    }
    let second = policy(
        &*kind("access-log").unwrap(),
        &config(&path, ""),
        Some(&first.save()),
    )
    .unwrap();
    rig.replace(&*second).unwrap();
    rig.receive(service.response(2, 0, &[]));
    rig.poll();
    drop(first);
    drop(rig);
    let total = metric(&*second, "provost_access_log_lines_total");
    assert!((1.0..=2.0).contains(&total), "{total}");
    drop(second);
    assert_eq!(lines(&path).len(), 2);
}

#[test]
fn calls_beyond_the_queue_are_counted() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("access.log");
    let service = Service::from_source(ECHO);
    let text = config(&path, "queue_max = 64\nflush_interval_ms = 60000");
    let policy = policy(&*kind("access-log").unwrap(), &text, None).unwrap();
    let mut rig = Rig::new(service.datapath_context(Side::Client), &*policy);
    // The writer has looked once by the time when it rests for a minute; at most one batch of the calls is written.
    for id in 1..=200 {
        call(&mut rig, &service, id);
        rig.to_wire();
        rig.to_app();
    }
    let dropped = metric(&*policy, "provost_access_log_dropped_total");
    drop((rig, policy));
    assert!(dropped > 0.0);
    assert_eq!(lines(&path).len() as f64 + dropped, 200.0);
}

#[test]
fn what_cannot_work_is_refused_with_its_key() {
    let problem = |text: &str| {
        let error = policy(&*kind("access-log").unwrap(), text, None)
            .map(|_| ())
            .unwrap_err();
        error.to_string()
    };
    assert!(problem("path = \"/none/at/all\"").starts_with("path: /none/at/all: "));
    assert!(problem("status = [\"FINE\"]").starts_with("status: \"FINE\" is no status"));
    assert!(problem("queue_max = 1").starts_with("queue_max: 1 is not between"));
    policy(
        &*kind("access-log").unwrap(),
        kind("access-log").unwrap().example(),
        None,
    )
    .unwrap();
}
