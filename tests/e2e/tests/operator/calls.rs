//! What services look like, and calls by hand.

use provost_e2e::Setting;
use serde_json::{Value, json};

use crate::command::{Operator, setting, tested};

/// The admin API's own schema, and its socket: a gRPC server that is there on every node.
const ADMIN_PROTO: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../crates/node/admin/proto/provost/admin/v1/admin.proto"
);

/// Arguments of a call to the first node's admin API.
fn admin_call<'a>(address: &'a str, method: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut arguments = vec!["call", method, "--proto", ADMIN_PROTO, "--address", address];
    arguments.extend(more);
    arguments
}

fn address_of(setting: &Setting) -> String {
    format!("unix:{}", setting.a.admin_socket.display())
}

#[test]
fn a_service_is_described_as_a_schema_with_a_request_to_fill_in() {
    tested(|| {
        let setting = setting("");
        let operator = Operator::of(&setting.b);
        let known = operator.text(&["describe"]);
        assert!(known.contains("probe.Probe"), "{known}");
        let whole = operator.text(&["describe", "Probe"]);
        assert!(
            whole.starts_with("// probe.Probe, served by 1 app, schema "),
            "{whole}"
        );
        for line in [
            "  rpc Pour(PourRequest) returns (stream Drop);",
            "  map<string, string> labels = 4;",
            "message HoldRequest {",
        ] {
            assert!(whole.contains(line), "{line}: {whole}");
        }
        let one = operator.text(&["describe", "probe.Probe/Echo"]);
        assert!(!one.contains("HoldRequest"), "{one}");
        let to_type = one.lines().last().unwrap();
        assert!(
            to_type.starts_with("// provost call probe.Probe/Echo '{"),
            "{to_type}"
        );
        let described = operator.json(&["describe", "Probe/Echo"]);
        let template = &described["methods"][0]["template"];
        let expected = json!({ "text": "", "payload": "", "numbers": ["0"], "labels": { "key": "" } });
        assert_eq!(template, &expected);
        let said = operator.fails(5, &["describe", "probe.Prob"]);
        assert!(said.contains("did you mean probe.Probe?"), "{said}");
        let said = operator.fails(5, &["describe", "probe.Probe/Ech"]);
        assert!(said.contains("no method Ech: it has Echo, Hold"), "{said}");
        operator.fails(2, &["describe", "a/b/c"]);
    });
}

#[test]
fn a_call_prints_its_answer_and_its_status_is_the_exit_status() {
    tested(|| {
        let setting = setting("");
        let (operator, address) = (Operator::of(&setting.a), address_of(&setting));
        let call = |method, more: &[&str]| operator.text(&admin_call(&address, method, more));
        let status: Value = serde_json::from_str(&call("Admin/GetStatus", &[])).unwrap();
        assert_eq!(
            (&status["node"], &status["state"]),
            (&json!("a"), &json!("STATE_SERVING"))
        );
        let lines = call(
            "provost.admin.v1.Admin/GetStatus",
            &["{}", "--repeat", "3", "--json"],
        );
        let ends = lines.lines().filter(|line| line.contains("\"status\":\"OK\""));
        assert_eq!((lines.lines().count(), ends.count()), (9, 3), "{lines}");

        let asked = admin_call(&address, "Admin/GetSchema", &["{\"service\": \"probe.Prob\"}"]);
        let said = operator.fails(69, &asked);
        assert!(
            said.contains("NOT_FOUND: ") && said.contains("did you mean"),
            "{said}"
        );
        let asked = admin_call(
            &address,
            "Admin/Watch",
            &["{\"intervalMs\": 50}", "--timeout", "1"],
        );
        let followed = operator.run(&asked);
        assert_eq!(followed.code, Some(68), "{followed:?}");
        let answers = serde_json::Deserializer::from_str(&followed.stdout).into_iter::<Value>();
        assert!(
            answers.count() > 2,
            "what comes is printed as it comes: {followed:?}"
        );
        assert!(followed.stderr.contains("DEADLINE_EXCEEDED"), "{followed:?}");
    });
}

#[test]
fn what_cannot_be_called_is_said_before_anything_is_sent() {
    tested(|| {
        let setting = setting("");
        let (operator, address) = (Operator::of(&setting.a), address_of(&setting));
        let call = |code, method, more: &[&str]| operator.fails(code, &admin_call(&address, method, more));
        let said = call(2, "Admin/GetSchema", &["{\"servic\": \"x\"}"]);
        assert!(
            said.contains("message 1 is no provost.admin.v1.GetSchemaRequest"),
            "{said}"
        );
        assert!(call(2, "Admin/GetSchema", &["{"]).contains("no JSON"));
        assert!(call(2, "Admin", &[]).contains("which method of Admin?"));
        assert!(call(5, "Admin/GetStat", &[]).contains("it has GetStatus"));
        assert!(call(2, "Admin/GetStatus", &["-H", "grpc-timeout: 1S"]).contains("--timeout"));
        let nowhere = [
            "call",
            "Admin/GetStatus",
            "--proto",
            ADMIN_PROTO,
            "--address",
            "unix:/no/such.sock",
        ];
        let said = operator.fails(3, &nowhere);
        assert!(
            said.contains("/no/such.sock") && said.contains("No such file"),
            "{said}"
        );
    });
}

#[test]
fn a_load_makes_as_many_calls_as_it_is_told_and_tells_failed_ones_apart() {
    tested(|| {
        let setting = setting("");
        let (operator, address) = (Operator::of(&setting.a), address_of(&setting));
        let mut arguments = admin_call(
            &address,
            "Admin/GetStatus",
            &["--calls", "200", "--connections", "2"],
        );
        arguments[0] = "load";
        let closed = operator.json(&arguments);
        assert_eq!(
            (&closed["calls"], &closed["good"]),
            (&json!(200), &json!(200)),
            "{closed}"
        );
        let times = &closed["latency_us"];
        let at = |name: &str| times[name].as_f64().unwrap();
        assert!(
            1.0 < at("min") && at("min") <= at("p50") && at("p50") <= at("p99") && at("p99") <= at("max")
        );
        let distribution = closed["histogram_us"].as_array().unwrap();
        assert_eq!(distribution.last().unwrap()[1], 200);
        arguments.extend(["--rate", "100"]);
        let open = operator.json(&arguments);
        assert_eq!(
            (&open["calls"], &open["good"]),
            (&json!(200), &json!(200)),
            "{open}"
        );
        // The last one begins 1.99 s after the first.
        assert!(open["seconds"].as_f64().unwrap() >= 1.99, "{open}");
        let lines = operator.text(&[&arguments[..], &["--csv"]].concat());
        let lines: Vec<_> = lines.lines().collect();
        assert!(
            lines[0].starts_with("second,calls,failed,in_flight,p50_us"),
            "{lines:?}"
        );
        assert!(lines.len() >= 2 && lines[1].starts_with("1,"), "{lines:?}");

        let asked = ["{\"service\": \"probe.{{number}}\"}", "--calls", "20"];
        let mut arguments = admin_call(&address, "Admin/GetSchema", &asked);
        arguments[0] = "load";
        let said = operator.fails(1, &arguments);
        assert!(
            said.contains("none of 20 calls ended well: NOT_FOUND: "),
            "{said}"
        );
        assert!(said.contains("no service probe."), "{said}");
    });
}

/// Two nodes, of which the first lets gRPC clients in.
fn setting_with_listener() -> Setting {
    setting("[[grpc.listener]]\nname = \"door\"\naddress = \"127.0.0.1:0\"\napp = \"by-hand\"\n")
}

#[test]
fn calls_of_all_kinds_go_through_the_nodes_own_listener() {
    tested(|| {
        let setting = setting_with_listener();
        let operator = Operator::of(&setting.a);
        let call = |arguments: &[&str]| {
            let text = operator.text(&[&["call"], arguments].concat());
            let answers = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
            answers.map(Result::unwrap).collect::<Vec<_>>()
        };
        let echoed = call(&["Probe/Echo", "{\"text\": \"a\", \"labels\": {\"x\": \"y\"}}"]);
        assert_eq!(echoed[0]["text"], "a");
        assert_eq!(echoed[0]["labels"], json!({ "x": "y" }));
        let poured = call(&["Probe/Pour", "{\"count\": 3, \"bytes\": 5}"]);
        assert_eq!(poured.len(), 3, "{poured:?}");
        let drops = "{\"payload\": \"AQI=\"} {\"payload\": \"AQI=\"} {\"payload\": \"AQI=\"}";
        let filled = call(&["Probe/Fill", drops]);
        assert_eq!(filled.len(), 1, "{filled:?}");
        assert_eq!(filled[0]["count"], "3", "{filled:?}");
        let chat = operator.run_with_input(&["call", "Probe/Chat", "-"], drops);
        let answers = serde_json::Deserializer::from_str(&chat.stdout).into_iter::<Value>();
        assert_eq!((chat.code, answers.count()), (Some(0), 3), "{chat:?}");
        let broken = operator.run_with_input(&["call", "Probe/Chat", "-"], "{} {\"payload\": 7}");
        assert_eq!(broken.code, Some(2), "{broken:?}");
        assert!(broken.stderr.contains("message 2 is no probe.Drop"), "{broken:?}");
        // The server has no stream that ends well in the middle.
        let broken = operator.run_with_input(&["call", "Probe/Fill", "-", "--json"], "{} {\"payload\": 7}");
        assert_eq!(broken.code, Some(2), "{broken:?}");
        assert!(!broken.stdout.contains("\"message\""), "{broken:?}");

        let mirrored = operator.text(&["call", "Probe/Mirror", "-H", "tenant: blue", "--json"]);
        let metadata: Value = serde_json::from_str(mirrored.lines().next().unwrap()).unwrap();
        assert_eq!(metadata["metadata"]["tenant"], "blue", "{mirrored}");

        let status = operator.json(&["status"]);
        let listener = &status["grpc_listeners"][0];
        assert_eq!(listener["name"], "door", "{status}");
        let address = listener["address"].as_str().unwrap();
        let shown = operator.text(&["status"]);
        assert!(shown.contains(&format!("{address} (door, ")), "{shown}");
        let said = Operator::of(&setting.b).fails(5, &["call", "Probe/Echo"]);
        assert!(
            said.contains("no [[grpc.listener]]") && said.contains("--address"),
            "{said}"
        );
    });
}

#[test]
fn a_call_that_waits_for_room_takes_as_long_as_since_it_was_due() {
    tested(|| {
        let setting = setting_with_listener();
        let load = "load Probe/Hold {\"milliseconds\":100} --calls 10 --in-flight 1 --rate 100";
        let report = Operator::of(&setting.a).json(&load.split(' ').collect::<Vec<_>>());
        assert_eq!(report["good"], 10, "{report}");
        // Ten calls one after the other take a second, and the last was due after 90 ms.
        let longest_us = report["latency_us"]["max"].as_f64().unwrap();
        assert!(longest_us >= 900_000.0, "{report}");
    });
}

#[test]
fn a_load_through_a_node_is_governed_as_its_apps_are() {
    tested(|| {
        let setting = setting_with_listener();
        let operator = Operator::of(&setting.a);
        let attach =
            "policy attach --kind rate-limit --app by-hand --set requests_per_second=1 --set burst=10";
        operator.text(&attach.split(' ').collect::<Vec<_>>());
        let load = [
            "load",
            "Probe/Echo",
            "{\"text\": \"{{random}}\"}",
            "--calls",
            "40",
            "--in-flight",
            "1",
        ];
        let report = operator.json(&load);
        let good = report["good"].as_u64().unwrap();
        assert!((10..40).contains(&good), "{report}");
        let refused = &report["failures"]["RESOURCE_EXHAUSTED"]["calls"];
        assert_eq!(refused.as_u64(), Some(40 - good), "{report}");
    });
}
