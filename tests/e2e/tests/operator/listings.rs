//! What is shown: tables, JSON, exit statuses.

use std::path::Path;

use provost_e2e::driver::WAIT_MAX;
use provost_e2e::script::{Ask, Hold};
use provost_e2e::{Setting, eventually};

use crate::command::{Operator, echo, setting, tested};

#[test]
fn status_apps_and_datapaths_say_what_there_is() {
    tested(|| {
        let mut setting = setting("");
        let (a, b) = (Operator::of(&setting.a), Operator::of(&setting.b));
        let status = a.json(&["status"]);
        assert_eq!(status["node"], "a");
        assert_eq!(status["state"], "serving");
        assert_eq!(status["pid"], setting.a.program.id());
        assert_eq!((&status["apps"], &status["connections"]), (&1.into(), &1.into()));
        assert_eq!(status["caller_role"], "admin");
        let warning = status["warnings"][0].as_str().unwrap_or_default();
        assert!(
            warning.starts_with("open: the configuration has no [[app]]"),
            "{status}"
        );

        let hold = setting.agent.begin(Ask::Hold(Hold {
            key: "listed".into(),
            milliseconds: 60_000,
            ..Hold::default()
        }));
        eventually("the call is counted at both ends", WAIT_MAX, || {
            [&a, &b].iter().all(|node| {
                let listed = node.json(&["datapath"]);
                listed["datapaths"][0]["calls_in_flight"] == 1
            })
        });
        assert_eq!(a.json(&["status"])["calls_in_flight"], 1);
        let apps = b.json(&["apps"]);
        let server = &apps["apps"][0];
        assert_eq!(server["serves"], serde_json::json!(["probe.Probe"]));
        assert_eq!(server["pid"], setting.server.program.id());
        assert_eq!(server["calls_in_flight"], 1);
        assert!(server["send_heap_bytes"].as_u64().unwrap() > 0, "{apps}");
        assert!(server["receive_heap_bytes"].as_u64().unwrap() > 0, "{apps}");

        let datapaths = a.json(&["datapath", "--service", "probe.Probe"]);
        let datapath = &datapaths["datapaths"][0];
        assert_eq!(datapath["side"], "client");
        assert_eq!(datapath["transport"], "tcp");
        assert_eq!(datapath["encoding"], "native");
        assert_eq!(datapath["peer"], setting.b.address.to_string());
        let engines = datapath["engines"].as_array().unwrap().iter();
        let kinds: Vec<_> = engines.map(|engine| engine["kind"].as_str().unwrap()).collect();
        assert_eq!(
            (kinds.first(), kinds.last()),
            (Some(&"frontend"), Some(&"transport-tcp"))
        );
        // One number everywhere: in listings, in the log, and below in the table.
        let number = datapath["connection"].as_u64().unwrap();
        let logged = format!("connection opened connection={number} ");
        assert!(setting.a.program.log().contains(&logged), "{logged}");
        a.fails(5, &["datapath", "--app", "nobody"]);

        // The same as tables: a heading and a row, no line cut and no colour where no terminal is.
        let table = a.text(&["datapath"]);
        let lines: Vec<_> = table.lines().collect();
        assert!(lines[0].starts_with("CONN  APP") && lines.len() == 2, "{table}");
        assert!(
            lines[1].contains("probe.Probe") && lines[1].contains("transport-tcp"),
            "{table}"
        );
        assert!(
            lines[1].trim_start().starts_with(&format!("{number} ")),
            "{table}"
        );
        for listing in ["status", "apps", "datapath"] {
            assert!(!a.text(&[listing]).contains('\x1b'));
        }
        let _ = hold;
    });
}

#[test]
fn exit_statuses_tell_an_absent_daemon_a_wrong_word_and_a_refusal_apart() {
    tested(|| {
        let setting = setting("");
        let operator = Operator::of(&setting.a);
        let nowhere = Operator::at(&setting.world.directory().join("no.sock"));
        let said = nowhere.fails(3, &["status"]);
        assert!(said.contains("no.sock") && said.contains("--socket"), "{said}");
        operator.fails(2, &["policy", "attach"]);
        operator.fails(2, &["status", "--timeout", "0"]);
        let said = operator.fails(5, &["policy", "attach", "--kind", "rate-limt"]);
        assert!(
            said.contains("rate-limt") && said.contains("rate-limit"),
            "{said}"
        );
        operator.fails(5, &["policy", "detach", "nothing"]);
        operator.fails(5, &["policy", "show", "nothing"]);
        let json = operator.fails(5, &["policy", "detach", "nothing", "--json"]);
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["error"]["exit"], 5);
    });
}

#[test]
fn schemas_are_listed_prefetched_and_compared() {
    tested(|| {
        let setting = setting("");
        let operator = Operator::of(&setting.b);
        let listed = operator.json(&["schema", "list"]);
        assert_eq!(listed["schemas"][0]["service"], "probe.Probe");
        assert_eq!(listed["schemas"][0]["apps"], 1);
        let own = concat!(env!("CARGO_MANIFEST_DIR"), "/proto/probe.proto");
        let same = operator.json(&["schema", "check", own]);
        assert_eq!(same["verdicts"][0]["verdict"], "equal");
        let compatible = concat!(env!("CARGO_MANIFEST_DIR"), "/schemas/compatible/probe.proto");
        let incompatible = concat!(env!("CARGO_MANIFEST_DIR"), "/schemas/incompatible/probe.proto");
        assert_eq!(
            operator.json(&["schema", "check", compatible])["verdicts"][0]["verdict"],
            "compatible"
        );
        let outcome = operator.run(&["schema", "check", incompatible]);
        assert_eq!(outcome.code, Some(5), "{outcome:?}");
        assert!(
            outcome.stdout.contains("incompatible") && outcome.stdout.contains("field number"),
            "{outcome:?}"
        );
        let taken = operator.json(&["schema", "prefetch", compatible]);
        assert_eq!(taken["schemas"][0]["service"], "probe.Probe");
        assert_eq!(
            operator.json(&["schema", "list"])["schemas"]
                .as_array()
                .unwrap()
                .len(),
            2
        );
        sources_are_compiled_for_the_configuration(&setting);
        // Without a node.
        let nowhere = Operator::at("/nowhere".as_ref());
        nowhere.text(&["schema", "check", compatible, "--against", own]);
        nowhere.fails(5, &["schema", "check", incompatible, "--against", own]);
    });
}

/// A `.proto` in the configuration is answered with what to type, and that makes what the configuration takes.
fn sources_are_compiled_for_the_configuration(setting: &Setting) {
    let (operator, folder) = (Operator::of(&setting.b), setting.world.directory());
    let file = folder.join("b.toml");
    let original = std::fs::read_to_string(&file).unwrap();
    let name = |schema: &Path| {
        let table = format!("{original}\n[schemas]\nprefetch = [{schema:?}]\n");
        std::fs::write(&file, table).unwrap();
    };
    let sources = folder.join("sources");
    std::fs::create_dir(&sources).unwrap();
    let source = sources.join("probe.proto");
    std::fs::copy(concat!(env!("CARGO_MANIFEST_DIR"), "/proto/probe.proto"), &source).unwrap();
    let typed = format!("provost schema compile {} --output FILE.pb", source.display());
    let path = file.to_str().unwrap();
    for named in [&source, &sources] {
        name(named);
        let said = operator.fails(5, &["config", "check", path]);
        assert!(
            said.contains(&typed) && said.contains("schemas.prefetch[0]"),
            "{said}"
        );
    }
    let made = folder.join("probe.pb");
    let (source, output) = (source.to_str().unwrap(), made.to_str().unwrap());
    operator.text(&["schema", "compile", source, "--output", output]);
    name(&made);
    operator.text(&["config", "check", path]);
    let same = operator.text(&["schema", "check", output]);
    assert!(same.contains("equal"), "{same}");
    let unwritable = operator.fails(2, &["schema", "compile", source, "--output", "/nowhere/a.pb"]);
    assert!(unwritable.contains("/nowhere/a.pb"), "{unwritable}");
    std::fs::write(&file, original).unwrap();
}

#[test]
fn calls_are_counted_tapped_and_run_through_a_policy_that_is_not_attached() {
    tested(|| {
        let mut setting = setting("");
        let operator = Operator::of(&setting.a);
        let said = operator.fails(5, &["tap", "--count", "1"]);
        assert!(said.contains("tap"), "{said}");
        operator.text(&["policy", "attach", "--kind", "metrics"]);
        operator.text(&["policy", "attach", "--kind", "tap"]);

        let mut tap = operator.command(&["tap", "--count", "2", "--json", "--method", "/probe.Probe/E*"]);
        let tap = tap.stdout(std::process::Stdio::piped()).spawn().unwrap();
        let mut top = operator.command(&["top", "--once", "--interval", "2", "--json"]);
        let top = top.stdout(std::process::Stdio::piped()).spawn().unwrap();
        let stop = std::time::Instant::now() + std::time::Duration::from_secs(3);
        while std::time::Instant::now() < stop {
            setting.agent.succeeds(echo(20));
        }
        let tapped = tap.wait_with_output().unwrap();
        let tapped = String::from_utf8(tapped.stdout).unwrap();
        let samples: Vec<serde_json::Value> = tapped
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(samples.len(), 2, "{tapped}");
        for sample in &samples {
            assert_eq!(sample["method"], "/probe.Probe/Echo");
            assert_eq!(sample["status"], "OK");
        }
        // A name alone is taken too, as `policy attach` takes it.
        let named = |method: &str| operator.text(&["tap", "--recent", "1", "--json", "--method", method]);
        assert!(named("Echo").contains("\"/probe.Probe/Echo\""));
        assert_eq!(named("Ech"), "");
        let top = top.wait_with_output().unwrap();
        let snapshot: serde_json::Value = serde_json::from_slice(&top.stdout).unwrap();
        let methods = snapshot["methods"].as_array().unwrap();
        let method = methods.iter().find(|method| method["method"] == "Echo").unwrap();
        assert_eq!(
            (&method["service"], &method["method"]),
            (&"probe.Probe".into(), &"Echo".into())
        );
        assert!(method["rate"].as_f64().unwrap() > 0.0, "{snapshot}");
        assert!(method["latency_us_p99"].as_f64().unwrap() >= method["latency_us_p50"].as_f64().unwrap());
        let table = operator.text(&["top", "--once", "--interval", "0.2"]);
        assert!(table.contains("Echo") && table.starts_with("APP"), "{table}");

        let tested = operator.json(&[
            "policy",
            "test",
            "--kind",
            "rate-limit",
            "--set",
            "requests_per_second=1",
            "--set",
            "burst=1",
        ]);
        let denied: u64 = tested["denied"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["count"].as_u64().unwrap())
            .sum();
        let samples = tested["samples"].as_u64().unwrap();
        assert!(
            samples > 100 && denied > samples / 2 && denied < samples,
            "{tested}"
        );
        // What is denied to the same app for the same reason is one group.
        let groups = tested["denied"].as_array().unwrap();
        assert_eq!(groups.len(), 1, "{tested}");
        assert_eq!(groups[0]["code"], "RESOURCE_EXHAUSTED");
        assert_eq!(groups[0]["reason"], "rate limit rate-limit: try again in … ms");
        let free = operator.json(&["policy", "test", "--kind", "null"]);
        assert_eq!(free["passed"], free["samples"]);
        // Nothing was attached by it.
        assert_eq!(operator.policies(), ["metrics", "tap"]);
    });
}
