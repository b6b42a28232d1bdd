//! Answers to what is misspelt, typed twice, or meant for another node.

use std::path::PathBuf;

use provost_e2e::driver::WAIT_MAX;
use provost_e2e::{NodeOptions, World, built, eventually};

use crate::command::{Operator, ROLE, outcome, setting, tested};

const PROBE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/proto/probe.proto");

/// Tables that cannot be, each with the key that is at fault, its line, and what is said of it.
const FAULTS: [(&str, &str, usize, &str); 7] = [
    (
        "[log]\nlevel = \"inof\"\n",
        "log.level",
        2,
        "\"inof\" is no level",
    ),
    (
        "[[policy]]\nname = \"x\"\nkind = \"rate-limt\"\n",
        "policy[0].kind",
        3,
        "there is no kind of policy \"rate-limt\"",
    ),
    (
        "[[policy]]\nname = \"x\"\nkind = \"rate-limit\"\n[policy.config]\nbrust = 1\n",
        "policy[0].config",
        4,
        "brust",
    ),
    (
        "[[policy]]\nname = \"x\"\nkind = \"access\"\n[policy.config]\ndefault = \"allow\"\n\
         [[policy.config.rule]]\nname = \"r\"\nwhen = 'request.key =='\naction = \"deny\"\n",
        "policy[0].config.rule[0].when",
        8,
        "a value is expected here",
    ),
    (
        "[observe]\naudit_file = \"/nowhere/audit.log\"\n",
        "observe.audit_file",
        2,
        "/nowhere/audit.log cannot be written",
    ),
    (
        "[schemas]\nprefetch = [\"/nowhere/a.pb\"]\n",
        "schemas.prefetch[0]",
        2,
        "/nowhere/a.pb",
    ),
    (
        "[tls]\nca = \"/nowhere/ca.pem\"\ncert = \"/nowhere/cert.pem\"\nkey = \"/nowhere/key.pem\"\n",
        "tls.cert",
        3,
        "/nowhere/cert.pem",
    ),
];

#[test]
fn every_command_that_reads_a_configuration_finds_the_same_faults() {
    // Before the limit of the test begins, as the command is.
    let daemon = built::program("provostd", "provostd", ROLE);
    tested(move || {
        let setting = setting("");
        let operator = Operator::of(&setting.a);
        let file = setting.world.directory().join("a.toml");
        let path = file.to_str().unwrap();
        let original = std::fs::read_to_string(&file).unwrap();
        for (table, key, line, problem) in FAULTS {
            std::fs::write(&file, format!("{original}\n{table}")).unwrap();
            let line = format!("line {})", original.lines().count() + 1 + line);
            let mut start = std::process::Command::new(&daemon);
            start
                .args(["--check-config", "--config", path])
                .env_remove("PROVOSTD_LOG");
            let started = outcome(start);
            assert_eq!(started.code, Some(2), "{started:?}");
            let said = [
                operator.fails(5, &["config", "check", path]),
                started.stderr,
                operator.fails(5, &["config", "diff"]),
                operator.fails(5, &["config", "diff", path]),
                operator.fails(5, &["config", "reload"]),
            ];
            for said in said {
                for part in [path, key, problem, line.as_str()] {
                    assert!(said.contains(part), "{table}does not say {part}: {said}");
                }
            }
        }
        std::fs::write(&file, original).unwrap();
        operator.text(&["config", "reload"]);
    });
}

#[test]
fn a_policy_that_is_for_nothing_known_is_warned_of_with_what_may_be_meant() {
    tested(|| {
        let setting = setting("");
        let operator = Operator::of(&setting.a);
        let attach = |name: &str, more: &[&str]| {
            let command = [&["policy", "attach", "--kind", "null", "--name", name][..], more].concat();
            let done = operator.run(&command);
            assert_eq!(done.code, Some(0), "{done:?}");
            done.stderr
        };
        let said = attach("service-typo", &["--service", "probe.Prob"]);
        assert!(
            said.contains("no service \"probe.Prob\" is known") && said.contains("did you mean probe.Probe?"),
            "{said}"
        );
        let said = attach("method-typo", &["--service", "probe.Probe", "--method", "Ecko"]);
        assert!(
            said.contains("no method \"Ecko\"") && said.contains("did you mean Echo?"),
            "{said}"
        );
        assert_eq!(
            attach(
                "right",
                &["--service", "probe.*", "--method", "/probe.Probe/Echo"]
            ),
            ""
        );
        let warnings = operator.json(&["status"])["warnings"].to_string();
        for (name, is_told) in [("service-typo", true), ("method-typo", true), ("right", false)] {
            assert_eq!(warnings.contains(name), is_told, "{name}: {warnings}");
        }
    });
}

#[test]
fn a_policy_is_checked_against_a_schema_that_no_app_has_connected_with() {
    tested(|| {
        let mut world = World::new(ROLE);
        let node = world.node("alone", &NodeOptions::default());
        let operator = Operator::of(&node);
        operator.text(&["schema", "prefetch", PROBE]);
        let rules = world.directory().join("rules.toml");
        let rule = |field: &str| {
            let text = format!(
                "default = \"allow\"\n[[rule]]\nname = \"r\"\nmethods = [\"/probe.Probe/Echo\"]\nwhen = 'request.{field} == \"a\"'\naction = \"deny\"\n"
            );
            std::fs::write(&rules, text).unwrap();
        };
        let attach = [
            "policy",
            "attach",
            "--kind",
            "access",
            "--service",
            "probe.Probe",
            "--config",
        ];
        let attach = [&attach[..], &[rules.to_str().unwrap()][..]].concat();
        rule("txet");
        let said = operator.fails(5, &attach);
        assert!(said.contains("probe.Probe") && said.contains("txet"), "{said}");
        assert!(operator.policies().is_empty());
        rule("text");
        operator.text(&attach);
    });
}

/// A service whose password stands at three places.
const ACCOUNTS: &str = "syntax = \"proto3\";\npackage shop;\n\
    service Accounts { rpc Login(Credentials) returns (Session); }\n\
    message Credentials { string name = 1; string password = 2; Credentials previous = 3; }\n\
    message Session { string token = 1; string password = 2; }\n";

#[test]
fn a_tap_is_warned_of_where_a_redacted_value_is_shown_all_the_same() {
    tested(|| {
        let mut world = World::new(ROLE);
        let node = world.node("alone", &NodeOptions::default());
        let operator = Operator::of(&node);
        let proto = world.directory().join("accounts.proto");
        std::fs::write(&proto, ACCOUNTS).unwrap();
        operator.text(&["schema", "prefetch", proto.to_str().unwrap()]);
        let attach = |name: &str, redact: &str| {
            let attach = ["policy", "attach", "--kind", "tap", "--name", name];
            let setting = format!("redact={redact}");
            let service = ["--service", "shop.Accounts", "--set", &setting];
            let done = operator.run(&[&attach[..], &service[..]].concat());
            assert_eq!(done.code, Some(0), "{done:?}");
            done.stderr
        };
        let says = |said: &str, parts: &[&str]| {
            for part in parts {
                assert!(said.contains(part), "{part:?} is missing in: {said}");
            }
        };
        let said = attach("look", "[\"previous.password\"]");
        says(
            &said,
            &[
                "warning: previous.password in the request of /shop.Accounts/Login is redacted",
                "a field of the same name and type is shown: password in the request of /shop.Accounts/Login",
                "and 2 other places",
            ],
        );
        operator.text(&["policy", "detach", "look"]);
        let both = "[\".shop.Credentials.password\", \".shop.Session.password\"]";
        assert_eq!(attach("look", both), "");
        // A second one that redacts nothing undoes what the first one does.
        let said = attach("all", "[]");
        says(
            &said,
            &[
                "password in the response of /shop.Accounts/Login is redacted by policy \"look\" and shown by this policy",
            ],
        );
        let set = ["policy", "set", "all", "--set", "redact_metadata=[]"];
        let redact = format!("redact={both}");
        let said = operator.run(&[&set[..], &["--set", &redact]].concat());
        assert_eq!(said.code, Some(0), "{said:?}");
        let warned = said.stderr;
        says(
            &warned,
            &["metadata \"authorization\" is redacted by policy \"look\" and shown by this policy"],
        );
        assert!(!warned.contains("password"), "{warned}");
    });
}

#[test]
fn plans_reloads_and_the_status_warn_of_what_attaching_warns_of() {
    tested(|| {
        let mut world = World::new(ROLE);
        let node = world.node("alone", &NodeOptions::default());
        let operator = Operator::of(&node);
        let proto = world.directory().join("accounts.proto");
        std::fs::write(&proto, ACCOUNTS).unwrap();
        operator.text(&["schema", "prefetch", proto.to_str().unwrap()]);
        let misspelt = "no service \"shop.Acounts\" is known on this node";
        let shown = "previous.password in the request of /shop.Accounts/Login is redacted";

        let plan = world.directory().join("plan.toml");
        let text = format!(
            "[nodes.a]\nsocket = \"{}\"\n\
             [[step]]\nnode = \"a\"\nattach = {{ kind = \"null\", name = \"typo\", service = \"shop.Acounts\" }}\n\
             [[step]]\nnode = \"a\"\nattach = {{ kind = \"tap\", name = \"look\", service = \"shop.Accounts\", \
             config = {{ redact = [\"previous.password\"] }} }}\n",
            node.admin_socket.display()
        );
        std::fs::write(&plan, text).unwrap();
        let plan = plan.to_str().unwrap();
        for arguments in [&["plan", "run", plan, "--dry-run"][..], &["plan", "run", plan]] {
            let said = operator.text(arguments);
            for part in [misspelt, shown, "warning: "] {
                assert!(said.contains(part), "{arguments:?} does not say {part:?}: {said}");
            }
        }
        let named = [
            format!("policy \"typo\": it applies to nothing: {misspelt}"),
            format!("policy \"look\": {shown}"),
        ];
        let warned = || operator.json(&["status"])["warnings"].as_array().unwrap().clone();
        let is_warned = |part: &String| warned().iter().any(|one| one.as_str().unwrap().contains(part));
        assert!(named.iter().all(is_warned), "{named:?}: {:?}", warned());
        operator.text(&["plan", "undo", plan]);
        assert!(!named.iter().any(is_warned), "{:?}", warned());

        let file = world.directory().join("alone.toml");
        let original = std::fs::read_to_string(&file).unwrap();
        let tables = "[[policy]]\nname = \"typo\"\nkind = \"null\"\nservice = \"shop.Acounts\"\n\
             [[policy]]\nname = \"look\"\nkind = \"tap\"\nservice = \"shop.Accounts\"\n\
             [policy.config]\nredact = [\"previous.password\"]\n";
        std::fs::write(&file, format!("{original}\n{tables}")).unwrap();
        let reloaded = operator.run(&["config", "reload"]);
        assert_eq!(reloaded.code, Some(0), "{reloaded:?}");
        for part in &named {
            assert!(reloaded.stderr.contains(part), "{part}: {reloaded:?}");
            eventually("the log has the warning", WAIT_MAX, || {
                node.program.log().contains(part)
            });
        }
        assert!(named.iter().all(is_warned), "{named:?}: {:?}", warned());
        // A schema that comes later takes the warning away, without a change of policies.
        let right = ACCOUNTS.replace("service Accounts", "service Acounts");
        std::fs::write(&proto, right).unwrap();
        operator.text(&["schema", "prefetch", proto.to_str().unwrap()]);
        assert!(!is_warned(&named[0]) && is_warned(&named[1]), "{:?}", warned());
    });
}

#[test]
fn a_rollback_says_what_it_does_and_does_it_once() {
    tested(|| {
        let setting = setting("");
        let operator = Operator::of(&setting.a);
        let said = operator.text(&["engine", "upgrade", "transport-tcp"]);
        assert!(
            said.contains("upgraded transport-tcp from version 1 to 2"),
            "{said}"
        );
        let said = operator.text(&["engine", "rollback", "transport-tcp"]);
        assert!(
            said.contains("rolled transport-tcp back from version 2 to 1"),
            "{said}"
        );
        let said = operator.fails(5, &["engine", "rollback", "transport-tcp"]);
        assert!(said.contains("nothing to go back to"), "{said}");
    });
}

#[test]
fn what_names_nothing_there_is_refused() {
    tested(|| {
        let setting = setting("");
        let operator = Operator::of(&setting.a);
        let table: [(&[&str], &str); 7] = [
            (&["datapath", "--service", "probe.Prob"], "service \"probe.Prob\""),
            (&["datapath", "--app", "nobody"], "app \"nobody\""),
            (
                &["engine", "upgrade", "transport-tcp", "--connection", "999"],
                "no connection 999",
            ),
            (
                &["engine", "upgrade", "transport-tcp", "--app", "nobody"],
                "no app \"nobody\"",
            ),
            (
                &["engine", "upgrade", "transport-tpc"],
                "did you mean transport-tcp?",
            ),
            (
                &["engine", "upgrade", "rate-limit"],
                "no policy of the kind \"rate-limit\" is attached",
            ),
            (&["engine", "rollback", "rate-limit"], "nothing to go back to"),
        ];
        for (command, part) in table {
            let said = operator.fails(5, command);
            assert!(said.contains(part), "{command:?}: {said}");
        }
        // By its name as well as by its kind.
        operator.text(&["policy", "attach", "--kind", "null", "--name", "mine"]);
        operator.text(&["engine", "upgrade", "mine"]);
        // Every name that is listed is known.
        for engine in operator.json(&["engine", "list"])["engines"].as_array().unwrap() {
            let kind = engine["kind"].as_str().unwrap();
            if engine["example"]
                .as_str()
                .is_some_and(|example| !example.is_empty())
            {
                assert_eq!(operator.json(&["policy", "example", kind]), *engine);
            }
            let done = operator.run(&["engine", "upgrade", kind]);
            assert!(!done.stderr.contains("there is no engine"), "{kind}: {done:?}");
        }
    });
}

#[test]
fn what_is_mistyped_is_named_with_what_may_be_meant() {
    tested(|| {
        let mut world = World::new(ROLE);
        let node = world.node("alone", &NodeOptions::default());
        let operator = Operator::of(&node);
        let attach = |more: &[&'static str]| [&["policy", "attach", "--kind"][..], more].concat();
        let table = [
            (attach(&["rat-limit"]), 5, "did you mean rate-limit?"),
            (
                attach(&["nonsense"]),
                5,
                "there is no kind of policy \"nonsense\"",
            ),
            (
                attach(&["rate-limit", "--set", "burst=abc"]),
                5,
                "burst: invalid type: string \"abc\"",
            ),
            (
                attach(&["rate-limit", "--set", "burts=3"]),
                5,
                "unknown field `burts`, expected one of `requests_per_second`, `burst`",
            ),
            (
                attach(&["fault", "--set", "delay.percentage=half"]),
                5,
                "delay.percentage: invalid type",
            ),
            (
                vec!["schema", "prefetch", "/nowhere/a.proto"],
                2,
                "/nowhere/a.proto: there is no such file",
            ),
            (
                vec!["policy", "detach", "nobody"],
                5,
                "no policy is attached under the name \"nobody\"",
            ),
            (
                vec!["status", "--socket", "/nowhere/a.sock"],
                3,
                "cannot reach provostd at /nowhere/a.sock",
            ),
            (vec!["staus"], 2, "a similar subcommand exists: 'status'"),
        ];
        for (command, code, part) in table {
            let said = operator.fails(code, &command);
            assert!(said.contains(part), "{command:?} does not say {part:?}: {said}");
        }
        let missing = "/nowhere/a.toml";
        let named = [
            attach(&["access", "--config"]),
            vec!["schema", "prefetch"],
            vec!["config", "check"],
            vec!["config", "diff"],
            vec!["plan", "run"],
        ];
        for command in named {
            let said = operator.fails(2, &[&command[..], &[missing]].concat());
            assert!(
                said.contains("/nowhere/a.toml: No such file"),
                "{command:?}: {said}"
            );
        }
        assert!(operator.policies().is_empty());
        // A warning that nobody reads does not end the command in its midst.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut warned = operator.command(&attach(&["null", "--service", "no.Such"]));
        assert_eq!(warned.stderr(writer).status().unwrap().code(), Some(0));
        assert_eq!(operator.policies(), ["null"]);
    });
}

#[test]
fn a_call_that_cannot_be_made_is_answered_with_what_to_type() {
    tested(|| {
        let mut world = World::new(ROLE);
        let options = NodeOptions {
            tables: format!(
                "[[grpc.listener]]\nname = \"g\"\naddress = \"unix:{}/grpc.sock\"\n",
                world.directory().display()
            ),
            ..NodeOptions::default()
        };
        let node = world.node("alone", &options);
        let operator = Operator::of(&node);
        let call = |method: &'static str, more: &[&'static str]| [&["call", method][..], more].concat();
        let said = operator.fails(5, &call("probe.Probe/Echo", &[]));
        assert!(
            said.contains("give it with --proto FILE") && said.contains("schema prefetch"),
            "{said}"
        );
        operator.text(&["schema", "prefetch", PROBE]);
        let load = |message: &'static str| vec!["load", "Probe/Echo", message, "--calls", "1"];
        let table = [
            (
                call("probe.Probe.Echo", &[]),
                2,
                "or probe.Probe/Echo; provost describe",
            ),
            (
                vec!["load", "probe.Probe.Echo"],
                2,
                "or probe.Probe/Echo; provost describe",
            ),
            (
                call("Probe/Echo", &["text=Ann"]),
                2,
                "a probe.EchoMessage is such as {\"text\": …}",
            ),
            (
                load("{\"text\": \"{{nubmer}}\"}"),
                2,
                "nothing stands for {{nubmer}}: there are {{number}} and {{random}}",
            ),
        ];
        for (command, code, part) in table {
            let said = operator.fails(code, &command);
            assert!(said.contains(part), "{command:?} does not say {part:?}: {said}");
        }
        // Where something else than a gRPC server answers.
        let address = node.address.to_string();
        let said = operator.fails(78, &["call", "Probe/Echo", "--address", &address]);
        assert!(
            said.contains("is what answers there a gRPC server, in cleartext?"),
            "{said}"
        );
        // The socket of apps is not the operators'.
        let said = operator.fails(3, &["status", "--socket", node.socket.to_str().unwrap()]);
        assert!(
            said.contains("apps attach there; operators have a socket beside it"),
            "{said}"
        );
        // A path from here is as good as a whole one. The call arrives, and nobody serves it.
        let mut beside = operator.command(&["call", "Probe/Echo", "--address", "unix:grpc.sock"]);
        beside.current_dir(world.directory());
        let said = outcome(beside);
        assert!(
            said.code == Some(78) && said.stderr.contains("probe.Probe"),
            "{said:?}"
        );
    });
}

#[test]
fn a_plan_that_was_run_is_not_run_again_before_it_is_undone() {
    tested(|| {
        let setting = setting("");
        let operator = Operator::of(&setting.a);
        let plan = setting.world.directory().join("plan.toml");
        let text = format!(
            "[nodes.a]\nsocket = \"{}\"\n[[step]]\nnode = \"a\"\nattach = {{ kind = \"null\", name = \"one\" }}\n",
            setting.a.admin_socket.display()
        );
        std::fs::write(&plan, text).unwrap();
        let plan = plan.to_str().unwrap();
        operator.text(&["plan", "run", plan]);
        let said = operator.fails(5, &["plan", "run", plan]);
        assert!(
            said.contains("1 step stands") && said.contains("provost plan undo"),
            "{said}"
        );
        assert_eq!(operator.policies(), ["one"]);
        operator.text(&["plan", "undo", plan]);
        assert!(operator.policies().is_empty());
        operator.text(&["plan", "run", plan]);
        assert_eq!(operator.policies(), ["one"]);
    });
}

#[test]
fn the_socket_of_apps_leads_the_command_to_the_same_node() {
    tested(|| {
        let setting = setting("");
        let status = |socket: &PathBuf| {
            let mut command = Operator::of(&setting.a).command(&["status"]);
            command
                .env_remove("PROVOST_ADMIN_SOCKET")
                .env("PROVOST_SOCKET", socket);
            outcome(command)
        };
        let found = status(&setting.b.socket);
        assert!(found.code == Some(0) && found.stdout.contains(" b"), "{found:?}");
        let missing = status(&PathBuf::from("/nowhere/other.sock"));
        assert_eq!(missing.code, Some(3), "{missing:?}");
        assert!(
            missing.stderr.contains("/nowhere/other.admin.sock"),
            "{missing:?}"
        );
    });
}
