//! The engine on one datapath: who passes, who waits, who is rejected, and what is kept when it changes.
#![cfg(not(loom))]

use std::sync::Arc;

use prost_reflect::Value;
use provost_engine::rig::churn::{Churn, Make, run};
use provost_engine::rig::{
    Rig, Service, config, end_of, environment, metadata_of, metric, policy, with_metadata, with_protobuf,
};
use provost_engine::{Code, Environment, Nanos, Parts, Policy, SharedState, Side, Step};
use provost_policies::kind;

const MILLISECOND: Nanos = 1_000_000;
const SECOND: Nanos = 1_000_000_000;
/// Where the tests' clocks begin.
const BOOT: Nanos = 1000 * SECOND;

fn service() -> Service {
    Service::from_source(
        "syntax = 'proto3'; package test;
         service Shop { rpc Buy(Order) returns (Receipt); rpc Look(Order) returns (Receipt); rpc Ask(Receipt) returns (Order); }
         message Order { string user = 1; uint64 item = 2; Place place = 3; double price = 4; repeated int32 tags = 5; }
         message Place { optional string city = 1; Kind kind = 2; }
         enum Kind { HOME = 0; WORK = 1; }
         message Receipt { bool ok = 1; }",
    )
}

fn limit(text: &str) -> Arc<dyn Policy> {
    configured(text, None)
}

fn configured(text: &str, shared: Option<&SharedState>) -> Arc<dyn Policy> {
    policy(&*kind("rate-limit").unwrap(), text, shared).unwrap()
}

/// Offers unary calls to the first method and says which came out on the other side.
fn offer(rig: &mut Rig, steps: impl IntoIterator<Item = Step>) -> Vec<u64> {
    steps.into_iter().for_each(|step| rig.send(step));
    rig.poll();
    rig.to_wire().iter().map(|step| step.call).collect()
}

fn calls(service: &Service, ids: std::ops::Range<u64>) -> Vec<Step> {
    ids.map(|id| service.request(id, 0, &[])).collect()
}

#[test]
fn a_burst_passes_and_the_rest_is_told_when_to_come_again() {
    let service = service();
    let limit = limit("requests_per_second = 100\nburst = 3");
    let mut rig = Rig::new(service.datapath_context(Side::Client), &*limit);
    rig.now = BOOT;
    assert_eq!(offer(&mut rig, calls(&service, 0..5)), [0, 1, 2]);
    let told = rig.to_app();
    assert_eq!(told.iter().map(|step| step.call).collect::<Vec<_>>(), [3, 4]);
    for step in &told {
        assert_eq!(end_of(step), Some(Code::ResourceExhausted));
        assert_eq!(metadata_of(step, "grpc-retry-pushback-ms").as_deref(), Some("10"));
        let reason = metadata_of(step, ":message").unwrap();
        assert!(reason.contains("rate limit test"), "{reason}");
    }
    rig.now += 10 * MILLISECOND;
    assert_eq!(offer(&mut rig, calls(&service, 5..7)), [5]);
    assert_eq!(metric(&*limit, "provost_rate_limit_ok_total"), 4.0);
    let rejected = "provost_rate_limit_rate_limited_total{action=reject}";
    assert_eq!(metric(&*limit, rejected), 3.0);
}

#[test]
fn a_rejection_names_what_shares_the_bucket_and_where_the_policy_stands() {
    let service = service();
    let environment = Environment {
        place: "/etc/limits.toml".into(),
        ..environment()
    };
    let text = "requests_per_second = 1\nburst = 1\nper = [\"app\", \"metadata:x-tenant\"]";
    let limit = kind("rate-limit").unwrap();
    let limit = limit.configure(&config(text), &environment, None).unwrap();
    let mut rig = Rig::new(service.datapath_context(Side::Client), &*limit);
    rig.now = BOOT;
    assert_eq!(offer(&mut rig, calls(&service, 0..2)), [0]);
    let told = metadata_of(&rig.to_app()[0], ":message");
    let expected = "rate limit test: try again in 1000 ms (per app, metadata:x-tenant) (/etc/limits.toml)";
    assert_eq!(told.as_deref(), Some(expected));
}

#[test]
fn a_rejection_whose_rule_is_hidden_says_only_when_to_come_again() {
    let service = service();
    let environment = Environment {
        place: "/etc/limits.toml".into(),
        ..environment()
    };
    let text = "requests_per_second = 1\nburst = 1\nper = [\"app\"]\nhide_rule = true";
    let limit = kind("rate-limit").unwrap();
    let limit = limit.configure(&config(text), &environment, None).unwrap();
    let mut rig = Rig::new(service.datapath_context(Side::Client), &*limit);
    rig.now = BOOT;
    assert_eq!(offer(&mut rig, calls(&service, 0..2)), [0]);
    let told = rig.to_app();
    let message = metadata_of(&told[0], ":message");
    assert_eq!(
        message.as_deref(),
        Some("over the rate limit: try again in 1000 ms")
    );
    let pushback = metadata_of(&told[0], "grpc-retry-pushback-ms");
    assert_eq!(pushback.as_deref(), Some("1000"));
}

#[test]
fn on_the_servers_side_the_peer_is_told_and_the_app_hears_nothing() {
    let service = service();
    let limit = limit("requests_per_second = 1\nburst = 1");
    let mut rig = Rig::new(service.datapath_context(Side::Server), &*limit);
    rig.now = BOOT;
    calls(&service, 0..2)
        .into_iter()
        .for_each(|step| rig.receive(step));
    rig.poll();
    assert_eq!(rig.to_app().len(), 1);
    let told = rig.to_wire();
    assert_eq!(told.len(), 1);
    assert_eq!(
        (told[0].call, end_of(&told[0])),
        (1, Some(Code::ResourceExhausted))
    );
    assert_eq!(
        metadata_of(&told[0], "grpc-retry-pushback-ms").as_deref(),
        Some("1000")
    );
}

#[test]
fn only_beginnings_are_charged() {
    let service = service();
    let limit = limit("requests_per_second = 1\nburst = 1");
    let mut rig = Rig::new(service.datapath_context(Side::Client), &*limit);
    rig.now = BOOT;
    let mut begin = service.request(0, 0, &[]);
    begin.parts = Parts::BEGIN;
    let rest = (0..20).map(|_| Step::new(0, Parts::MESSAGE));
    assert_eq!(offer(&mut rig, std::iter::once(begin).chain(rest)).len(), 21);
    assert_eq!(metric(&*limit, "provost_rate_limit_ok_total"), 1.0);
}

#[test]
fn unlimited_passes_everything() {
    let service = service();
    let limit = limit("requests_per_second = inf\nper = [\"app\"]");
    let mut rig = Rig::new(service.datapath_context(Side::Client), &*limit);
    assert_eq!(offer(&mut rig, calls(&service, 0..60)).len(), 60);
}

#[test]
fn datapaths_share_a_bucket_and_keys_do_not() {
    let service = service();
    let text = |per: &str| format!("requests_per_second = 1\nburst = 2\nper = [{per}]");
    let two_sites = || {
        let mut other = service.datapath_context(Side::Client);
        let mut app = (*other.app).clone();
        (app.name, app.uid) = ("other".into(), 1001);
        other.app = Arc::new(app);
        other.peer.address = "192.0.2.7:4001".into();
        other.runtime = 1;
        [service.datapath_context(Side::Client), other]
    };
    for (per, passed) in [
        ("", 2),
        ("\"app\"", 4),
        ("\"user\"", 4),
        ("\"peer\"", 2),
        ("\"method\"", 2),
    ] {
        let limit = limit(&text(per));
        let mut count = 0;
        for datapath_context in two_sites() {
            let mut rig = Rig::new(datapath_context, &*limit);
            rig.now = BOOT;
            count += offer(&mut rig, calls(&service, 0..3)).len();
        }
        assert_eq!(count, passed, "per = [{per}]");
    }
}

#[test]
fn metadata_and_fields_are_keys() {
    let service = service();
    let user = |id, name: &str| service.request(id, 0, &[("user", Value::String(name.into()))]);
    let item = |id, number| service.request(id, 0, &[("item", Value::U64(number))]);
    let passed = |per: &str, steps: Vec<Step>| {
        let text = format!("requests_per_second = 1\nburst = 1\nper = [{per}]");
        let limit = limit(&text);
        let mut datapath_context = service.datapath_context(Side::Client);
        // `Ask` has other fields: the policy is attached to the other methods.
        datapath_context.scope = Arc::from([true, true, false]);
        let mut rig = Rig::new(datapath_context, &*limit);
        rig.now = BOOT;
        offer(&mut rig, steps)
    };
    let users = vec![
        user(0, "ada"),
        user(1, "bob"),
        user(2, "ada"),
        user(3, ""),
        user(4, ""),
    ];
    assert_eq!(passed("\"message:user\", \"method\"", users), [0, 1, 3]);
    let items = vec![item(0, 7), item(1, 8), item(2, 7), item(3, 0)];
    assert_eq!(passed("\"message:item\"", items), [0, 1, 3]);
    let marked =
        |id, value: &str| with_metadata(service.request(id, 1, &[]), &[("x", "y"), ("x-user", value)]);
    let bare = |id| service.request(id, 1, &[]);
    let steps = vec![
        marked(0, "ada"),
        marked(1, "bob"),
        marked(2, "ada"),
        bare(3),
        bare(4),
    ];
    assert_eq!(passed("\"metadata:x-user\"", steps), [0, 1, 3]);
}

#[test]
fn a_field_that_cannot_be_a_key_keeps_the_policy_away() {
    let service = service();
    for (path, expected) in [
        ("user", "test.Receipt has no field \"user\""),
        ("price", "/test.Shop/Buy: it is a floating-point number"),
        ("tags", "a list or a map"),
        ("place", "it is a message"),
        ("place.street", "has no field \"street\""),
        ("user.name", "not a singular message"),
    ] {
        let text = format!("requests_per_second = 1\nper = [\"message:{path}\"]");
        let limit = limit(&text);
        let error = limit
            .prepare(&service.datapath_context(Side::Client))
            .err()
            .unwrap()
            .to_string();
        assert!(error.contains(expected), "{path}: {error}");
    }
    let mut datapath_context = service.datapath_context(Side::Client);
    datapath_context.scope = Arc::from([true, true, false]);
    for path in ["user", "item", "place.city", "place.kind"] {
        let text = format!("requests_per_second = 1\nper = [\"message:{path}\"]");
        assert!(limit(&text).prepare(&datapath_context).is_ok(), "{path}");
    }
}

#[test]
fn queued_calls_have_their_turn_in_order_and_only_as_many_wait_as_may() {
    let service = service();
    let text = "requests_per_second = 100\nburst = 2\non_limit = \"queue\"\nqueue_calls_max = 3";
    let limit = limit(text);
    let mut rig = Rig::new(service.datapath_context(Side::Client), &*limit);
    rig.now = BOOT;
    assert_eq!(offer(&mut rig, calls(&service, 0..7)), [0, 1]);
    let rejected = rig.to_app();
    assert_eq!(rejected.iter().map(|step| step.call).collect::<Vec<_>>(), [5, 6]);
    assert_eq!(
        metadata_of(&rejected[0], "grpc-retry-pushback-ms").as_deref(),
        Some("10")
    );
    assert_eq!(metric(&*limit, "provost_rate_limit_queued"), 3.0);
    for call in 2..5 {
        let turn = rig.wake_at().unwrap();
        assert_eq!(turn, BOOT + (call - 1) * 10 * MILLISECOND);
        rig.poll_at(turn - 1);
        assert!(rig.to_wire().is_empty());
        rig.poll_at(turn);
        assert_eq!(
            rig.to_wire().iter().map(|step| step.call).collect::<Vec<_>>(),
            [call]
        );
    }
    assert_eq!(rig.wake_at(), None);
    assert_eq!(metric(&*limit, "provost_rate_limit_queued"), 0.0);
    assert_eq!(metric(&*limit, "provost_rate_limit_queue_wait_seconds"), 3.0);
    assert_eq!(
        metric(&*limit, "provost_rate_limit_rate_limited_total{action=queue}"),
        3.0
    );
}

#[test]
fn a_call_whose_deadline_comes_before_its_turn_is_rejected_at_once_and_not_charged() {
    let service = service();
    let limit = limit("requests_per_second = 100\nburst = 1\non_limit = \"queue\"");
    let mut rig = Rig::new(service.datapath_context(Side::Client), &*limit);
    rig.now = BOOT;
    let with_deadline = |id, after| {
        let mut step = service.request(id, 0, &[]);
        step.deadline = BOOT + after;
        step
    };
    let steps = vec![
        with_deadline(0, 1),
        with_deadline(1, 10 * MILLISECOND),
        with_deadline(2, 10 * MILLISECOND + 1),
        with_deadline(3, 15 * MILLISECOND),
        with_deadline(4, 25 * MILLISECOND),
    ];
    assert_eq!(offer(&mut rig, steps), [0]);
    assert_eq!(
        rig.to_app().iter().map(|step| step.call).collect::<Vec<_>>(),
        [1, 3]
    );
    rig.poll_at(BOOT + 20 * MILLISECOND);
    assert_eq!(
        rig.to_wire().iter().map(|step| step.call).collect::<Vec<_>>(),
        [2, 4]
    );
}

#[test]
fn who_gives_up_waiting_gives_the_token_back() {
    let service = service();
    let limit = limit("requests_per_second = 100\nburst = 1\non_limit = \"queue\"");
    let mut rig = Rig::new(service.datapath_context(Side::Client), &*limit);
    rig.now = BOOT;
    assert_eq!(offer(&mut rig, calls(&service, 0..3)), [0]);
    assert_eq!(offer(&mut rig, [Step::cancel(2, Code::Cancelled)]), []);
    assert_eq!(metric(&*limit, "provost_rate_limit_queued"), 1.0);
    assert_eq!(offer(&mut rig, calls(&service, 3..4)), []);
    rig.poll_at(BOOT + 20 * MILLISECOND);
    assert_eq!(
        rig.to_wire().iter().map(|step| step.call).collect::<Vec<_>>(),
        [1, 3]
    );
    drop(rig);
    assert_eq!(metric(&*limit, "provost_rate_limit_queued"), 0.0);
}

#[test]
fn buckets_live_on_in_another_engine_and_with_another_rate() {
    let service = service();
    let text = "requests_per_second = 10\nburst = 10\nper = [\"message:user\"]";
    let mut datapath_context = service.datapath_context(Side::Client);
    datapath_context.scope = Arc::from([true, true, false]);
    let by = |name: &str, ids: std::ops::Range<u64>| -> Vec<Step> {
        ids.map(|id| service.request(id, 0, &[("user", Value::String(name.into()))]))
            .collect()
    };
    let first = configured(text, None);
    let mut rig = Rig::new(datapath_context, &*first);
    rig.now = BOOT;
    assert_eq!(offer(&mut rig, by("ada", 0..7)).len(), 7);
    let second = configured(text, Some(&first.save()));
    rig.replace(&*second).unwrap();
    assert_eq!(rig.engine().unwrap().version(), 2);
    assert_eq!(offer(&mut rig, by("ada", 10..15)).len(), 3);
    assert_eq!(offer(&mut rig, by("bob", 20..25)).len(), 5);
    // Faster, and all of ada's ten tokens are missing still.
    let faster = text.replace("= 10\nb", "= 1000\nb");
    let third = configured(&faster, Some(&second.save()));
    rig.replace(&*third).unwrap();
    assert_eq!(offer(&mut rig, by("ada", 30..35)).len(), 0);
    assert_eq!(offer(&mut rig, by("bob", 40..50)).len(), 5);
    rig.now += MILLISECOND;
    assert_eq!(offer(&mut rig, by("ada", 50..55)).len(), 1);
    // Other keys begin anew.
    let other = configured("requests_per_second = 10\nper = [\"app\"]", Some(&third.save()));
    rig.replace(&*other).unwrap();
    assert_eq!(offer(&mut rig, by("ada", 60..75)).len(), 10);
}

#[test]
fn a_call_that_waits_is_charged_once_however_often_the_engine_changes() {
    let service = service();
    let text = "requests_per_second = 100\nburst = 1\non_limit = \"queue\"";
    let mut limit = limit(text);
    let mut rig = Rig::new(service.datapath_context(Side::Client), &*limit);
    rig.now = BOOT;
    assert_eq!(offer(&mut rig, calls(&service, 0..5)), [0]);
    for _ in 0..10 {
        let next = configured(text, Some(&limit.save()));
        rig.replace(&*next).unwrap();
        // The same policy, as when policies are reordered.
        rig.replace(&*next).unwrap();
        limit = next;
        rig.poll();
        assert_eq!(metric(&*limit, "provost_rate_limit_queued"), 4.0);
    }
    for call in 1..5 {
        rig.poll_at(BOOT + call * 10 * MILLISECOND);
        assert_eq!(
            rig.to_wire().iter().map(|step| step.call).collect::<Vec<_>>(),
            [call]
        );
    }
}

/// A state that the first release has written.
const SAVED_BY_1: &[u8] = include_bytes!("rate-limit-saved-1.bin");

#[test]
fn a_state_of_the_first_release_is_read() {
    let service = service();
    let text = "requests_per_second = 10\nburst = 10\nper = [\"app\"]";
    let saved = SharedState {
        version: 1,
        bytes: SAVED_BY_1.to_vec(),
    };
    let limit = configured(text, Some(&saved));
    let mut rig = Rig::new(service.datapath_context(Side::Client), &*limit);
    rig.now = BOOT;
    assert_eq!(offer(&mut rig, calls(&service, 0..10)).len(), 4);
    // What is unknown or damaged is left out.
    for (version, bytes) in [(2, SAVED_BY_1), (1, &SAVED_BY_1[..50])] {
        let odd = SharedState {
            version,
            bytes: bytes.to_vec(),
        };
        let fresh = configured(text, Some(&odd));
        let mut rig = Rig::new(service.datapath_context(Side::Client), &*fresh);
        rig.now = BOOT;
        assert_eq!(offer(&mut rig, calls(&service, 0..10)).len(), 10);
    }
}

#[test]
fn calls_survive_changes_at_random_moments() {
    let service = service();
    let make = |text: &'static str| move |shared: Option<&SharedState>| configured(text, shared);
    let policies = [
        make("requests_per_second = 2000\nburst = 2\non_limit = \"queue\"\nqueue_calls_max = 8"),
        make("requests_per_second = 3000\nburst = 3\non_limit = \"queue\"\nper = [\"method\"]"),
        make("requests_per_second = 1000\nburst = 4"),
        make("requests_per_second = \"unlimited\""),
    ];
    let makers: Vec<Make<'_>> = policies.iter().map(|make| make as Make<'_>).collect();
    let mut denied = 0;
    for seed in 0..60 {
        let side = [Side::Client, Side::Server][seed as usize % 2];
        let outcome = run(&Churn {
            service: &service,
            side,
            seed,
            actions: 1500,
            gap_ns: 500_000,
            policies: &makers,
            request: &|step| step,
        });
        assert!(outcome.answered > 10 && outcome.changes > 10, "{outcome:?}");
        denied += outcome.denied;
    }
    assert!(denied > 60);
}

#[test]
fn calls_in_protobuf_share_the_buckets_of_native_ones_and_malformed_ones_end() {
    let service = service();
    let limit = limit("requests_per_second = 1\nburst = 1\nper = [\"message:user\"]\non_limit = \"queue\"");
    let mut datapath_context = service.datapath_context(Side::Client);
    datapath_context.scope = Arc::from([true, false, false]);
    let mut rig = Rig::new(datapath_context, &*limit);
    rig.now = BOOT;
    let of = |user: &str| [("user", Value::String(user.into()))];
    let natively = service.request(1, 0, &of("ann"));
    let as_protobuf =
        |call, user: &str| with_protobuf(service.request(call, 0, &[]), &service.protobuf(0, &of(user)));
    let malformed = with_protobuf(service.request(4, 0, &[]), &[0x0a, 9, b'a']);
    // The second one of ann waits.
    let steps = [natively, as_protobuf(2, "ann"), as_protobuf(3, "bob"), malformed];
    assert_eq!(offer(&mut rig, steps), [1, 3]);
    let told = rig.to_app();
    assert_eq!(
        told.iter()
            .map(|step| (step.call, end_of(step)))
            .collect::<Vec<_>>(),
        [(4, Some(Code::Internal))]
    );
    rig.now += SECOND;
    assert_eq!(offer(&mut rig, []), [2]);
    assert_eq!(metric(&*limit, "provost_rate_limit_ok_total"), 2.0);
}
