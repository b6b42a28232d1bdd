//! The metrics policy around calls: what is counted, under which labels, and that it goes on over changes.

use provost_engine::rig::{Rig, Service, config, environment, metric, metrics, policy};
use provost_engine::{
    Code, EgressEvent, EgressEvents, MethodCalls, MetricType, Parts, Policy, PolicyKind, SharedState, Side,
    Step,
};
use provost_observers::kind;

const ECHO: &str = r#"
syntax = "proto3";
package test;
message Text { string text = 1; }
service Echo { rpc Say(Text) returns (Text); rpc Chat(stream Text) returns (stream Text); }
"#;

const STARTED: &str = "grpc_client_attempt_started_total{app=app,grpc_method=test.Echo/Say}";
const ENDED: &str = "grpc_client_call_duration_seconds{app=app,grpc_method=test.Echo/Say,grpc_status=OK}";
const IN_FLIGHT: &str = "provost_calls_in_flight{app=app,grpc_method=test.Echo/Say,side=client}";

fn say(rig: &mut Rig, service: &Service, call: u64) {
    rig.send(service.request(call, 0, &[]));
    rig.poll();
    assert_eq!(rig.to_wire().len(), 1);
}

fn answer(rig: &mut Rig, service: &Service, call: u64) {
    rig.receive(service.response(call, 0, &[]));
    rig.poll();
    assert_eq!(rig.to_app().len(), 1);
}

fn say_calls(policy: &dyn Policy) -> MethodCalls {
    let calls = policy.calls().unwrap();
    calls.into_iter().find(|calls| &*calls.method == "Say").unwrap()
}

/// What a policy saved, with the name of a ledger (its first bytes) that this process does not know.
fn from_another_process(policy: &dyn Policy) -> SharedState {
    let mut saved = policy.save();
    saved.bytes[0] ^= 1;
    saved
}

fn default(kind: &dyn PolicyKind) -> std::sync::Arc<dyn Policy> {
    policy(kind, "", None).unwrap()
}

#[test]
fn a_call_is_counted_when_it_begins_and_when_it_ends() {
    let service = Service::from_source(ECHO);
    let policy = default(&*kind("metrics").unwrap());
    let mut rig = Rig::new(service.datapath_context(Side::Client), &*policy);
    say(&mut rig, &service, 1);
    assert_eq!(
        (metric(&*policy, STARTED), metric(&*policy, IN_FLIGHT)),
        (1.0, 1.0)
    );
    assert!(metrics(&*policy).iter().all(|(name, _)| name != ENDED));
    rig.now += 250_000;
    answer(&mut rig, &service, 1);
    assert_eq!((metric(&*policy, ENDED), metric(&*policy, IN_FLIGHT)), (1.0, 0.0));
    let calls = say_calls(&*policy);
    assert_eq!(
        (calls.started, calls.ended_total(), calls.failed_total()),
        (1, 1, 0)
    );
    let median = calls.latency_quantile(0.5).unwrap();
    assert!(median > 0.000_2 && median <= 0.000_3, "{median}");
    assert!(calls.sent_bytes > 0 && calls.received_bytes > 0);
}

#[test]
fn what_is_sent_and_what_ends_a_call_depends_on_the_side() {
    let service = Service::from_source(ECHO);
    let policy = default(&*kind("metrics").unwrap());
    let mut rig = Rig::new(service.datapath_context(Side::Server), &*policy);
    rig.receive(service.request(1, 0, &[]));
    rig.receive(service.request(2, 1, &[]));
    rig.poll();
    rig.receive(Step::cancel(2, Code::Cancelled));
    rig.send(Step {
        status: Code::NotFound,
        ..Step::new(1, Parts::STATUS)
    });
    rig.poll();
    let ended = |method: &str, status: &str| {
        let labels = format!("app=app,grpc_method=test.Echo/{method},grpc_status={status}");
        metric(
            &*policy,
            &format!("grpc_server_call_duration_seconds{{{labels}}}"),
        )
    };
    assert_eq!(
        (ended("Say", "NOT_FOUND"), ended("Chat", "CANCELLED")),
        (1.0, 1.0)
    );
    let say = say_calls(&*policy);
    assert!(say.received_bytes > 0 && say.sent_bytes == 0);
}

#[test]
fn a_successor_in_this_process_counts_on_without_a_gap() {
    let service = Service::from_source(ECHO);
    let kind = kind("metrics").unwrap();
    let first = default(&*kind);
    let mut rig = Rig::new(service.datapath_context(Side::Client), &*first);
    say(&mut rig, &service, 1);
    let second = policy(&*kind, "services_max = 7", Some(&first.save())).unwrap();
    // Between the two the old engine still counts.
    say(&mut rig, &service, 2);
    rig.replace(&*second).unwrap();
    drop(first);
    assert_eq!(
        (metric(&*second, STARTED), metric(&*second, IN_FLIGHT)),
        (2.0, 2.0)
    );
    answer(&mut rig, &service, 1);
    answer(&mut rig, &service, 2);
    assert_eq!((metric(&*second, ENDED), metric(&*second, IN_FLIGHT)), (2.0, 0.0));
}

#[test]
fn a_successor_in_another_process_counts_on_from_what_was_saved() {
    let service = Service::from_source(ECHO);
    let first = default(&*kind("metrics").unwrap());
    let mut rig = Rig::new(service.datapath_context(Side::Client), &*first);
    for call in 1..=3 {
        say(&mut rig, &service, call);
    }
    answer(&mut rig, &service, 1);
    let second = policy(
        &*kind("metrics").unwrap(),
        "",
        Some(&from_another_process(&*first)),
    )
    .unwrap();
    rig.replace(&*second).unwrap();
    assert_eq!((metric(&*second, STARTED), metric(&*second, ENDED)), (3.0, 1.0));
    assert_eq!(metric(&*second, IN_FLIGHT), 2.0);
    answer(&mut rig, &service, 2);
    assert_eq!((metric(&*second, ENDED), metric(&*second, IN_FLIGHT)), (2.0, 1.0));
    // And once more: what was before and what came since are one.
    let third = policy(
        &*kind("metrics").unwrap(),
        "",
        Some(&from_another_process(&*second)),
    )
    .unwrap();
    assert_eq!((metric(&*third, STARTED), metric(&*third, ENDED)), (3.0, 2.0));
}

fn left(parts: Parts, method: u16, taken_at: u64) -> EgressEvent {
    EgressEvent {
        method,
        parts,
        taken_at,
    }
}

const REQUEST: Parts = Parts(Parts::BEGIN.0 | Parts::MESSAGE.0 | Parts::END.0);
const RESPONSE: Parts = Parts(Parts::MESSAGE.0 | Parts::STATUS.0);

fn time_in_queue(direction: &str, method: &str, side: &str) -> String {
    format!("provost_{direction}_time_in_queue_seconds{{app=app,grpc_method=test.Echo/{method},side={side}}}")
}

#[test]
fn the_time_of_steps_in_the_service_is_counted_by_method_and_direction() {
    let service = Service::from_source(ECHO);
    for (side, to_wire, to_app) in [
        (Side::Client, "request", "response"),
        (Side::Server, "response", "request"),
    ] {
        let policy = default(&*kind("metrics").unwrap());
        let mut rig = Rig::new(service.datapath_context(side), &*policy);
        let (out, back) = match side {
            Side::Client => (REQUEST, RESPONSE),
            Side::Server => (RESPONSE, REQUEST),
        };
        rig.on_egress(&EgressEvents {
            // Room for a stream, a call that was given up, and what came from another process tell nothing.
            to_wire: &[
                left(out, 0, 1_000_000),
                left(out, 1, 2_000_000),
                left(Parts::WINDOW, 0, 1),
                left(Parts::CANCEL, 0, 1),
                left(out, 0, 0),
            ],
            to_app: &[left(back, 0, 2_900_000), left(back, 0, 2_950_000)],
            now: 3_000_000,
        });
        let count = |direction, method| metric(&*policy, &time_in_queue(direction, method, side.name()));
        assert_eq!((count(to_wire, "Say"), count(to_wire, "Chat")), (1.0, 1.0));
        assert_eq!((count(to_app, "Say"), count(to_app, "Chat")), (2.0, 0.0));
        let calls = say_calls(&*policy);
        let times: Vec<_> = calls
            .time_in_queue
            .iter()
            .filter(|(_, count)| *count > 0)
            .collect();
        assert_eq!(times, [&(0.000_05, 1), &(0.000_1, 1), &(0.002, 1)]);
        let p99 = calls.time_in_queue_quantile(0.99).unwrap();
        assert!(p99 > 0.001 && p99 <= 0.002, "{p99}");
    }
}

#[test]
fn only_methods_to_which_the_policy_is_attached_have_times() {
    let service = Service::from_source(ECHO);
    let policy = default(&*kind("metrics").unwrap());
    let mut datapath_context = service.datapath_context(Side::Client);
    datapath_context.scope = [false, true].into();
    let mut rig = Rig::new(datapath_context, &*policy);
    rig.on_egress(&EgressEvents {
        to_wire: &[left(REQUEST, 0, 1), left(REQUEST, 1, 1), left(REQUEST, 9, 1)],
        to_app: &[],
        now: 2,
    });
    let count = |method| metric(&*policy, &time_in_queue("request", method, "client"));
    assert_eq!((count("Say"), count("Chat")), (0.0, 1.0));
}

#[test]
fn times_go_on_in_another_process_and_what_was_saved_without_them_is_read() {
    let service = Service::from_source(ECHO);
    let first = default(&*kind("metrics").unwrap());
    let mut rig = Rig::new(service.datapath_context(Side::Client), &*first);
    say(&mut rig, &service, 1);
    let leave = |rig: &mut Rig| {
        rig.on_egress(&EgressEvents {
            to_wire: &[left(REQUEST, 0, 1)],
            to_app: &[left(RESPONSE, 1, 1)],
            now: 5,
        });
    };
    leave(&mut rig);
    let saved = from_another_process(&*first);
    let second = policy(&*kind("metrics").unwrap(), "", Some(&saved)).unwrap();
    rig.replace(&*second).unwrap();
    leave(&mut rig);
    let count =
        |policy: &dyn Policy, direction, method| metric(policy, &time_in_queue(direction, method, "client"));
    assert_eq!(count(&*second, "request", "Say"), 2.0);
    assert_eq!(count(&*second, "response", "Chat"), 2.0);
    // Two methods with two histograms, each of 41 buckets behind their number, and a sum.
    const TIMES_BYTES: usize = 2 * 2 * (4 + 41 * 8 + 8);
    let mut older = saved.clone();
    older.bytes.truncate(saved.bytes.len() - TIMES_BYTES);
    let third = policy(&*kind("metrics").unwrap(), "", Some(&older)).unwrap();
    assert_eq!(metric(&*third, STARTED), 1.0);
    assert_eq!(count(&*third, "request", "Say"), 0.0);
    older.bytes = saved.bytes[..saved.bytes.len() - 1].to_vec();
    let kind = kind("metrics").unwrap();
    assert!(kind.configure(&config(""), &environment(), Some(&older)).is_err());
}

#[test]
fn damaged_or_newer_state_is_refused() {
    let saved = default(&*kind("metrics").unwrap()).save();
    let kind = kind("metrics").unwrap();
    let refused = |change: &dyn Fn(&mut SharedState)| {
        let mut saved = saved.clone();
        change(&mut saved);
        kind.configure(&config(""), &environment(), Some(&saved)).is_err()
    };
    assert!(refused(&|saved| saved.version = 9));
    assert!(refused(&|saved| saved.bytes.truncate(5)));
    assert!(!refused(&|_| {}));
}

/// A datapath of a client whose app has this name.
fn of_app(service: &Service, app: &str, policy: &dyn Policy) -> Rig {
    let mut datapath_context = service.datapath_context(Side::Client);
    datapath_context.app = std::sync::Arc::new(provost_engine::AppIdentity {
        name: app.into(),
        ..(*datapath_context.app).clone()
    });
    Rig::new(datapath_context, policy)
}

fn started(policy: &dyn Policy, app: &str, method: &str) -> f64 {
    let name = format!("grpc_client_attempt_started_total{{app={app},grpc_method={method}}}");
    metric(policy, &name)
}

fn in_flight(policy: &dyn Policy, app: &str, method: &str) -> Option<f64> {
    let name = format!("provost_calls_in_flight{{app={app},grpc_method={method},side=client}}");
    let mut all = metrics(policy).into_iter();
    all.find(|(found, _)| *found == name).map(|(_, value)| value)
}

#[test]
fn apps_and_services_beyond_the_bound_are_counted_together() {
    let service = Service::from_source(ECHO);
    let policy = policy(&*kind("metrics").unwrap(), "services_max = 1", None).unwrap();
    let mut rigs = ["a", "b", "c"].map(|app| of_app(&service, app, &*policy));
    rigs.iter_mut().for_each(|rig| say(rig, &service, 1));
    let started = |app, method| started(&*policy, app, method);
    assert_eq!(
        (started("a", "test.Echo/Say"), started("other", "other")),
        (1.0, 2.0)
    );
    assert_eq!(in_flight(&*policy, "a", "test.Echo/Say"), Some(1.0));
    assert_eq!(in_flight(&*policy, "other", "other"), Some(2.0));
    assert_eq!(in_flight(&*policy, "b", "test.Echo/Say"), None);
    answer(&mut rigs[1], &service, 1);
    assert_eq!(in_flight(&*policy, "other", "other"), Some(1.0));
}

/// A service of one method.
fn with_method(service: &str, method: &str) -> Service {
    Service::from_source(&format!(
        "syntax = \"proto3\"; package test; message Text {{ string text = 1; }}
         service {service} {{ rpc {method}(Text) returns (Text); }}"
    ))
}

#[test]
fn an_app_that_says_other_methods_of_its_service_each_time_has_series_up_to_the_bound() {
    let policy = policy(&*kind("metrics").unwrap(), "services_max = 4", None).unwrap();
    for _ in 0..2 {
        for number in 0..20 {
            let service = with_method("Echo", &format!("Say{number}"));
            say(&mut of_app(&service, "a", &*policy), &service, 1);
        }
    }
    let started_series = metrics(&*policy)
        .into_iter()
        .filter(|(name, _)| name.contains("started_total"));
    assert_eq!(started_series.count(), 5);
    assert_eq!(started(&*policy, "a", "test.Echo/Say3"), 2.0);
    assert_eq!(started(&*policy, "other", "other"), 32.0);
}

#[test]
fn methods_that_are_called_other_are_those_of_their_services() {
    let policy = default(&*kind("metrics").unwrap());
    for (name, calls) in [("One", 1), ("Two", 2)] {
        let service = with_method(name, "other");
        let mut rig = of_app(&service, "a", &*policy);
        (0..calls).for_each(|call| say(&mut rig, &service, call));
    }
    let started = |method| started(&*policy, "a", method);
    assert_eq!((started("test.One/other"), started("test.Two/other")), (1.0, 2.0));
}

#[test]
fn a_bound_that_was_only_tried_changes_nothing() {
    let service = Service::from_source(ECHO);
    let kind = kind("metrics").unwrap();
    let kept = default(&*kind);
    drop(policy(&*kind, "services_max = 1", Some(&kept.save())).unwrap());
    for app in ["a", "b"] {
        say(&mut of_app(&service, app, &*kept), &service, 1);
        assert_eq!(started(&*kept, app, "test.Echo/Say"), 1.0);
    }
}

#[test]
fn an_app_that_goes_away_takes_its_calls_in_flight_along() {
    let service = Service::from_source(ECHO);
    let policy = default(&*kind("metrics").unwrap());
    let mut rig = Rig::new(service.datapath_context(Side::Client), &*policy);
    say(&mut rig, &service, 1);
    assert_eq!(metric(&*policy, IN_FLIGHT), 1.0);
    drop(rig);
    assert!(
        metrics(&*policy)
            .iter()
            .all(|(name, value)| name != IN_FLIGHT || *value == 0.0)
    );
}

#[test]
fn misspelt_keys_and_values_out_of_range_are_named() {
    let problem = |text: &str| {
        let error = policy(&*kind("metrics").unwrap(), text, None)
            .map(|_| ())
            .unwrap_err();
        error.to_string()
    };
    assert!(problem("service_max = 3").contains("service_max"));
    assert!(problem("services_max = 0").starts_with("services_max: 0 is not between"));
    policy(
        &*kind("metrics").unwrap(),
        kind("metrics").unwrap().example(),
        None,
    )
    .unwrap();
}

#[test]
fn names_have_the_endings_that_prometheus_asks_for() {
    for metric in kind("metrics").unwrap().metrics() {
        let ends = |suffix| metric.name.ends_with(suffix);
        match metric.kind {
            MetricType::Counter => assert!(ends("_total"), "{}", metric.name),
            MetricType::Histogram => assert!(ends("_seconds") || ends("_bytes"), "{}", metric.name),
            MetricType::Gauge => assert!(!ends("_total"), "{}", metric.name),
        }
    }
}
