//! The tap policy around calls: what samples show, what they hide, and that they are bounded.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use prost_reflect::{MapKey, Value as Dynamic};
use provost_datapath::PrivateBytes;
use provost_engine::rig::{
    Rig, Service, metric, policy, protobuf_of, with_compressed, with_metadata, with_protobuf,
};
use provost_engine::{Code, Parts, Policy, RecordedField, Sample, Side, Step};
use provost_observers::kind;
use serde_json::{Value, json};

const SHOP: &str = r#"
syntax = "proto3";
package shop;
message Card { string number = 1; int64 limit = 2; bytes pin = 3; }
message User { string name = 1; string password = 2; Card card = 3; }
message Order {
  User user = 1;
  repeated Card cards = 2;
  map<string, Card> by_name = 3;
  oneof pay { Card now = 4; double later = 5; }
  Color color = 6;
  optional uint32 count = 7;
  repeated string notes = 8;
  bytes blob = 9;
  bool express = 10;
}
enum Color { NONE = 0; RED = 1; }
message Receipt { string id = 1; Card card = 2; }
service Shop { rpc Buy(Order) returns (Receipt); rpc Ask(Order) returns (stream Receipt); }
"#;
const CANARY: &str = "canary-5f1d";

fn message(service: &Service, name: &str, fields: &[(&str, Dynamic)]) -> Dynamic {
    let descriptor = service.descriptors().get_message_by_name(name).unwrap();
    let mut dynamic = prost_reflect::DynamicMessage::new(descriptor);
    for (name, value) in fields {
        dynamic.set_field_by_name(name, value.clone());
    }
    Dynamic::Message(dynamic)
}

fn card(service: &Service, number: &str) -> Dynamic {
    let fields = [
        ("number", Dynamic::String(number.into())),
        ("limit", Dynamic::I64(-5)),
        ("pin", Dynamic::Bytes(CANARY.as_bytes().into())),
    ];
    message(service, "shop.Card", &fields)
}

fn order(service: &Service, number: &str, password: &str) -> Vec<(&'static str, Dynamic)> {
    let user = message(
        service,
        "shop.User",
        &[
            ("name", Dynamic::String("ann".into())),
            ("password", Dynamic::String(password.into())),
            ("card", card(service, number)),
        ],
    );
    let by_name = HashMap::from([(MapKey::String("main".into()), card(service, number))]);
    vec![
        ("user", user),
        (
            "cards",
            Dynamic::List(vec![card(service, number), card(service, number)]),
        ),
        ("by_name", Dynamic::Map(by_name)),
        ("now", card(service, number)),
        ("color", Dynamic::EnumNumber(1)),
        ("count", Dynamic::U32(0)),
        (
            "notes",
            Dynamic::List(vec![Dynamic::String("a\"b".into()), Dynamic::String("".into())]),
        ),
        ("blob", Dynamic::Bytes(CANARY.as_bytes().into())),
    ]
}

fn tap(text: &str) -> Arc<dyn Policy> {
    policy(&*kind("tap").unwrap(), text, None).unwrap()
}

fn samples(policy: &dyn Policy) -> Vec<Arc<Sample>> {
    policy.samples().unwrap().read(0, usize::MAX).samples
}

fn buy(rig: &mut Rig, service: &Service, call: u64, fields: &[(&str, Dynamic)], metadata: &[(&str, &str)]) {
    rig.send(with_metadata(service.request(call, 0, fields), metadata));
    rig.poll();
    rig.now += 2_000_000;
    let receipt = [
        ("id", Dynamic::String("r1".into())),
        ("card", card(service, CANARY)),
    ];
    rig.receive(service.response(call, 0, &receipt));
    rig.poll();
    rig.to_wire();
    rig.to_app();
}

/// A message of so many bytes as it passes a tap, compressed: whether the sample shows it, and whether it was decompressed.
fn tapped_compressed(bytes: usize, config: &str) -> (bool, bool) {
    let service = Service::from_source(SHOP);
    let policy = policy(&*kind("tap").unwrap(), config, None).unwrap();
    let mut rig = Rig::new(service.datapath_context(Side::Client), &*policy);
    let protobuf = service.protobuf(
        0,
        &[("notes", Dynamic::List(vec![Dynamic::String("x".repeat(bytes))]))],
    );
    let share = PrivateBytes::of_attachment(&PrivateBytes::of_node());
    rig.send(with_compressed(
        service.request(1, 0, &[]),
        &protobuf,
        64 << 20,
        &share,
    ));
    rig.poll();
    let sent = rig.to_wire().pop().unwrap();
    rig.receive(service.response(1, 0, &[]));
    rig.poll();
    let sample: Value = serde_json::from_str(&samples(&*policy)[0].json).unwrap();
    let is_shown = sample["steps"][0]["message"].is_object();
    (is_shown, protobuf_of(&sent).is_some())
}

#[test]
fn a_compressed_message_that_a_sample_has_no_room_for_is_not_decompressed() {
    assert_eq!(tapped_compressed(1_000, ""), (true, true));
    assert_eq!(tapped_compressed(1_000_000, ""), (false, false));
    assert_eq!(
        tapped_compressed(1_000_000, "sample_bytes_max = 2000000"),
        (true, true)
    );
    assert_eq!(tapped_compressed(1_000, "sample_bytes_max = 999"), (false, false));
}

#[test]
fn what_is_shown_and_hidden_of_a_service_is_known_before_a_call() {
    let service = Service::from_source(SHOP);
    let context = service.datapath_context(Side::Client);
    let of = |text: &str| tap(text).disclosure(&context).unwrap();
    let places = |fields: &BTreeSet<RecordedField>, name: &str| -> Vec<String> {
        let named = fields.iter().filter(|field| field.name == name);
        named.map(|field| field.place.clone()).collect()
    };
    let found = of("redact = [\"user.card.number\"]\nmethods = [\"/shop.Shop/Buy\"]");
    let hidden = places(&found.hidden, "number");
    assert_eq!(hidden, ["user.card.number in the request of /shop.Shop/Buy"]);
    // The card is looked at once where nothing of it is hidden, whichever of the places is the first.
    assert_eq!(places(&found.shown, "number").len(), 1, "{found:?}");
    let shown = found.shown.iter().find(|field| field.name == "number").unwrap();
    let hidden = found.hidden.first().unwrap();
    assert!(shown.is_alike(hidden) && shown.is_same_field(hidden));
    // What is shown by its length, and what is yes or no, tells nothing.
    assert!(places(&found.shown, "pin").is_empty() && places(&found.shown, "express").is_empty());
    assert!(!places(&of("redact_bytes = false").shown, "pin").is_empty());
    // Hidden wherever it occurs, it is shown nowhere.
    let found = of("redact = [\".shop.Card.number\"]");
    assert!(!found.hidden.is_empty() && places(&found.shown, "number").is_empty());
}

#[test]
fn a_sample_shows_the_call_with_its_messages() {
    let service = Service::from_source(SHOP);
    let policy = tap("redact_bytes = false");
    let mut rig = Rig::new(service.datapath_context(Side::Client), &*policy);
    let metadata = [
        ("x-user", "ann"),
        ("x-user", "bob"),
        ("authorization", "Bearer x"),
    ];
    buy(&mut rig, &service, 3, &order(&service, "4711", "pw"), &metadata);
    let samples = samples(&*policy);
    let shown: Value = serde_json::from_str(&samples[0].json).unwrap();
    let card = json!({ "number": "4711", "limit": "-5", "pin": "Y2FuYXJ5LTVmMWQ=" });
    let request = json!({
        "user": { "name": "ann", "password": "pw", "card": card },
        "cards": [card, card],
        "by_name": { "main": card },
        "now": card,
        "color": "RED",
        "count": 0,
        "notes": ["a\"b", ""],
        "blob": "Y2FuYXJ5LTVmMWQ=",
    });
    assert_eq!(shown["steps"][0]["message"], request);
    assert_eq!(shown["steps"][0]["metadata"]["x-user"], json!(["ann", "bob"]));
    assert_eq!(shown["steps"][0]["metadata"]["authorization"], "[redacted]");
    assert_eq!(shown["steps"][0]["parts"], "BEGIN|MESSAGE|END");
    assert_eq!(shown["steps"][1]["message"]["id"], "r1");
    assert_eq!(
        (&shown["steps"][1]["at_ms"], &shown["duration_ms"]),
        (&json!(2.0), &json!(2.0))
    );
    let expected = [
        ("path", json!("/shop.Shop/Buy")),
        ("app", json!("app")),
        ("side", json!("client")),
        ("grpc_status", json!("OK")),
        ("call_id", json!(3)),
        ("peer", json!({ "transport": "tcp", "address": "192.0.2.7:4000" })),
    ];
    for (key, value) in expected {
        assert_eq!(shown[key], value, "{key}");
    }
    // What a dry run is fed with is the call as it was.
    let step = &samples[0].steps[0];
    assert!(step.is_whole() && step.parts.contains(Parts::BEGIN) && samples[0].method == 0);
}

#[test]
fn what_is_redacted_is_nowhere_in_what_is_shown() {
    let service = Service::from_source(SHOP);
    let text = "redact = [\"user.password\", \".shop.Card.number\"]\nredact_metadata = [\"X-Secret\"]";
    let policy = tap(text);
    for side in [Side::Client, Side::Server] {
        let mut rig = Rig::new(service.datapath_context(side), &*policy);
        let metadata = [("x-secret", CANARY)];
        let request = with_metadata(service.request(1, 0, &order(&service, CANARY, CANARY)), &metadata);
        let response = service.response(1, 0, &[("card", card(&service, CANARY))]);
        let (there, back) = if side == Side::Client {
            rig.send(request);
            (rig.poll(), rig.receive(response))
        } else {
            rig.receive(request);
            (rig.poll(), rig.send(response))
        };
        let _ = (there, back, rig.poll());
    }
    let samples = samples(&*policy);
    assert_eq!(samples.len(), 2);
    for sample in samples {
        assert!(!sample.json.contains(CANARY), "{}", sample.json);
        assert!(!sample.json.contains("Y2FuYXJ5"), "{}", sample.json);
        assert!(sample.json.contains("[redacted]") && sample.json.contains("\"name\":\"ann\""));
    }
}

#[test]
fn a_redacted_value_that_is_shown_elsewhere_is_warned_of() {
    let service = Service::from_source(SHOP);
    let policy = tap("redact = [\"user.password\"]\nredact_metadata = [\"x-secret\"]");
    let mut rig = Rig::new(service.datapath_context(Side::Client), &*policy);
    let metadata = [
        ("x-debug", "it is hunter22"),
        ("x-secret", "ann-token"),
        ("x-user", "ann-token"),
    ];
    buy(
        &mut rig,
        &service,
        3,
        &order(&service, "4711", "hunter22"),
        &metadata,
    );
    buy(
        &mut rig,
        &service,
        4,
        &order(&service, "4711", "hunter22"),
        &metadata[1..2],
    );
    let samples = samples(&*policy);
    let shown: Value = serde_json::from_str(&samples[0].json).unwrap();
    let expected = json!([
        "the value of password, which is redacted, is shown in steps[0].metadata.x-debug",
        "the value of x-secret, which is redacted, is shown in steps[0].metadata.x-user",
    ]);
    assert_eq!(shown["warnings"], expected, "{shown}");
    let shown: Value = serde_json::from_str(&samples[1].json).unwrap();
    assert!(shown["warnings"].is_null(), "{shown}");
}

#[test]
fn a_path_to_nowhere_keeps_the_tap_from_being_attached() {
    let service = Service::from_source(SHOP);
    let datapath_context = service.datapath_context(Side::Client);
    let problem = |text: &str| {
        tap(text)
            .prepare(&datapath_context)
            .map(|_| ())
            .unwrap_err()
            .problem
    };
    assert!(problem("redact = [\"user.pasword\"]").contains("shop.User has no field \"pasword\""));
    assert!(problem("redact = [\"user.name.first\"]").contains("shop.User.name has no fields"));
    assert!(problem("redact = [\".shop.Card.pan\"]").contains("shop.Card has no field \"pan\""));
    // Of a message that this service does not have, there is nothing to hide.
    assert!(
        tap("redact = [\".other.Thing.secret\"]")
            .prepare(&datapath_context)
            .is_ok()
    );
}

#[test]
fn only_the_calls_that_are_asked_for_are_sampled() {
    let service = Service::from_source(SHOP);
    let count = |text: &str, metadata: &[(&str, &str)]| {
        let policy = tap(text);
        let mut rig = Rig::new(service.datapath_context(Side::Client), &*policy);
        for call in 1..=200 {
            buy(&mut rig, &service, call, &[], metadata);
        }
        samples(&*policy).len()
    };
    assert_eq!(count("", &[]), 200);
    assert_eq!(count("percentage = 0.0", &[]), 0);
    let half = count("percentage = 50.0", &[]);
    assert!((50..150).contains(&half), "{half}");
    assert_eq!(count("methods = [\"/shop.Shop/Ask\"]", &[]), 0);
    assert_eq!(count("methods = [\"/shop.*\"]", &[]), 200);
    assert_eq!(count("methods = [\"Buy\"]", &[]), 200);
    assert_eq!(count("methods = [\"Ask*\"]", &[]), 0);
    assert_eq!(count("status = [\"UNAVAILABLE\"]", &[]), 0);
    assert_eq!(count("metadata = { x-user = \"ann\" }", &[("x-user", "bob")]), 0);
    assert_eq!(count("metadata = { x-user = \"*\" }", &[("x-user", "bob")]), 200);
}

#[test]
fn readers_go_on_where_they_were_and_learn_what_they_missed() {
    let service = Service::from_source(SHOP);
    let policy = tap("samples_max = 4");
    let source = policy.samples().unwrap();
    let mut rig = Rig::new(service.datapath_context(Side::Client), &*policy);
    for call in 1..=3 {
        buy(&mut rig, &service, call, &[], &[]);
    }
    let first = source.read(0, 2);
    let calls = |batch: &provost_engine::SampleBatch| {
        batch.samples.iter().map(|sample| sample.call).collect::<Vec<_>>()
    };
    assert_eq!((calls(&first), first.missed), (vec![1, 2], 0));
    for call in 4..=10 {
        buy(&mut rig, &service, call, &[], &[]);
    }
    let second = source.read(first.next, usize::MAX);
    assert_eq!((calls(&second), second.missed), (vec![7, 8, 9, 10], 4));
    assert_eq!((source.next(), second.next), (10, 10));
    assert!(source.read(second.next, usize::MAX).samples.is_empty());
}

#[test]
fn long_streams_and_large_messages_are_bounded() {
    let service = Service::from_source(SHOP);
    let policy = tap("steps_max = 3\nsample_bytes_max = 200\nbytes_max = 1000");
    let mut rig = Rig::new(service.datapath_context(Side::Client), &*policy);
    let long = "x".repeat(300);
    rig.send(service.request(1, 1, &[("notes", Dynamic::List(vec![Dynamic::String(long)]))]));
    rig.poll();
    for _ in 0..5 {
        let mut step = service.response(1, 1, &[("id", Dynamic::String("r".into()))]);
        step.parts = Parts::MESSAGE;
        rig.receive(step);
        rig.poll();
    }
    rig.receive(Step::cancel(1, Code::Unavailable));
    rig.poll();
    let samples = samples(&*policy);
    let shown: Value = serde_json::from_str(&samples[0].json).unwrap();
    assert_eq!(shown["steps"].as_array().unwrap().len(), 3);
    assert_eq!(shown["steps"][0]["message_left_out"], true);
    assert_eq!(shown["steps"][1]["message"]["id"], "r");
    assert_eq!(
        (&shown["messages_left_out"], &shown["grpc_status"]),
        (&json!(3), &json!("UNAVAILABLE"))
    );
    assert!(metric(&*policy, "provost_tap_bytes") <= 2000.0);
}

#[test]
fn counters_go_on_and_a_call_in_flight_outlives_the_change() {
    let service = Service::from_source(SHOP);
    let first = tap("");
    let mut rig = Rig::new(service.datapath_context(Side::Client), &*first);
    buy(&mut rig, &service, 1, &[], &[]);
    rig.send(service.request(2, 0, &[]));
    rig.poll();
    let second = policy(&*kind("tap").unwrap(), "", Some(&first.save())).unwrap();
    rig.replace(&*second).unwrap();
    rig.receive(service.response(2, 0, &[]));
    rig.poll();
    assert_eq!(rig.to_app().len(), 1);
    buy(&mut rig, &service, 3, &[], &[]);
    assert_eq!(metric(&*second, "provost_tap_samples_total"), 2.0);
}

#[test]
fn what_cannot_work_is_refused_with_its_key() {
    let problem = |text: &str| {
        let error = policy(&*kind("tap").unwrap(), text, None)
            .map(|_| ())
            .unwrap_err();
        error.to_string()
    };
    assert!(problem("percentage = 101.0").starts_with("percentage: 101 is not between"));
    assert!(problem("samples_max = 0").starts_with("samples_max: 0 is not between"));
    assert!(problem("redact = [\".\"]").starts_with("redact: \".\" names no field"));
    assert!(problem("status = [\"ok\"]").starts_with("status: \"ok\" is no status"));
    policy(&*kind("tap").unwrap(), kind("tap").unwrap().example(), None).unwrap();
}

#[test]
fn a_message_in_protobuf_is_shown_as_a_native_one_and_passes_as_it_came() {
    let service = Service::from_source(SHOP);
    let policy = tap("redact = [\"user.password\"]");
    let mut rig = Rig::new(service.datapath_context(Side::Client), &*policy);
    let fields = order(&service, "4711", CANARY);
    let natively = service.request(1, 0, &fields);
    let mut unusual = service.protobuf(0, &fields);
    unusual.extend([0xf8, 0x7f, 1]);
    let malformed = [0x0a, 9, b'x'];
    rig.send(natively);
    rig.send(with_protobuf(service.request(2, 0, &[]), &unusual));
    rig.send(with_protobuf(service.request(3, 0, &[]), &malformed));
    rig.poll();
    let sent = rig.to_wire();
    assert_eq!(protobuf_of(&sent[1]), Some(&unusual[..]));
    assert_eq!(protobuf_of(&sent[2]), Some(&malformed[..]));
    for call in 1..=3 {
        rig.receive(Step::new(call, Parts::STATUS));
    }
    rig.poll();
    let samples = samples(&*policy);
    let shown = |at: usize| serde_json::from_str::<Value>(&samples[at].json).unwrap();
    let steps = [0, 1, 2].map(|at| shown(at)["steps"][0].clone());
    assert_eq!(steps[1]["message"]["user"]["card"]["number"], "4711");
    assert_eq!(steps[1]["message"], steps[0]["message"]);
    assert_eq!(steps[1]["message_bytes"], unusual.len());
    assert_eq!(steps[2]["message_left_out"], true);
    assert!(samples.iter().all(|sample| !sample.json.contains(CANARY)));
}
