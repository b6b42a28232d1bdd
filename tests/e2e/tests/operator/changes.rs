//! What is changed, under calls.

use provost::Code;
use provost_e2e::driver::WAIT_MAX;
use provost_e2e::script::{Answer, Ask, Echo};
use provost_e2e::{NodeOptions, World, eventually};

use crate::command::{Operator, ROLE, echo, setting, tested};

#[test]
fn policies_are_attached_set_ordered_and_detached_while_calls_go_on() {
    tested(|| {
        let mut setting = setting("");
        let operator = Operator::of(&setting.a);
        let attach = [
            "policy",
            "attach",
            "--kind",
            "rate-limit",
            "--name",
            "limit",
            "--service",
            "probe.*",
            "--method",
            "Echo",
            "--side",
            "client",
            "--set",
            "requests_per_second=1",
            "--set",
            "burst=1",
        ];
        let mut dry = attach.to_vec();
        dry.push("--dry-run");
        let said = operator.text(&dry);
        assert!(
            said.contains("would attach limit") && said.contains("requests_per_second = 1"),
            "{said}"
        );
        assert_eq!(operator.policies(), Vec::<String>::new());

        let done = operator.json(&attach);
        assert_eq!((&done["datapaths"], &done["number"]), (&1.into(), &1.into()));
        operator.fails(5, &attach);
        let failure = setting.agent.fails(echo(50));
        assert_eq!(failure.code, Code::ResourceExhausted);
        let shown = operator.text(&["policy", "show", "limit"]);
        assert!(shown.contains("app *") || shown.contains("probe.*"), "{shown}");
        assert!(shown.contains("provost_rate_limit"), "{shown}");

        // One key is set, the other stays.
        operator.text(&["policy", "set", "limit", "--set", "requests_per_second=1000000"]);
        operator.text(&["policy", "set", "limit", "--set", "burst=100000"]);
        let config = operator.json(&["policy", "show", "limit"])["policy"]["config"].to_string();
        assert!(
            config.contains("1000000") && config.contains("100000"),
            "{config}"
        );
        setting.agent.succeeds(echo(50));
        let from_input = operator.run_with_input(
            &[
                "policy", "attach", "--kind", "null", "--name", "second", "--config", "-",
            ],
            "",
        );
        assert_eq!(from_input.code, Some(0), "{from_input:?}");
        operator.text(&["policy", "order", "second", "limit"]);
        assert_eq!(operator.policies(), ["second", "limit"]);
        operator.fails(5, &["policy", "order", "second"]);
        operator.text(&["policy", "detach", "limit"]);
        operator.text(&["policy", "detach", "second"]);
        assert_eq!(operator.policies(), Vec::<String>::new());
        setting.others_are_served();
    });
}

#[test]
fn a_transport_and_the_whole_daemon_are_upgraded_and_no_call_fails() {
    tested(|| {
        let mut setting = setting("");
        let operator = Operator::of(&setting.a);
        let calls = setting.agent.begin(Ask::Echo(Echo {
            calls: 30_000,
            in_flight: 8,
            ..Echo::default()
        }));
        let version = |operator: &Operator| {
            let listed = operator.json(&["datapath"]);
            let engines = listed["datapaths"][0]["engines"].as_array().unwrap();
            engines.last().unwrap()["version"].as_u64().unwrap()
        };
        let before = version(&operator);
        let done = operator.json(&["engine", "upgrade", "transport-tcp"]);
        assert_eq!(done["datapaths"], 1);
        assert!(version(&operator) > before);
        let said = operator.text(&["engine", "list"]);
        assert!(said.contains("transport-tcp"), "{said}");
        operator.text(&["engine", "rollback", "transport-tcp"]);
        assert_eq!(version(&operator), before);

        let before = operator.json(&["status"]);
        operator.fails(5, &["daemon", "upgrade", "--binary", "/nowhere/provostd"]);
        // A program that starts, and is no daemon.
        operator.fails(6, &["daemon", "upgrade", "--binary", "/bin/false"]);
        assert_eq!(operator.json(&["status"])["pid"], before["pid"]);
        let done = operator.json(&["daemon", "upgrade"]);
        let _successor = Successor(done["pid"].as_i64().unwrap() as i32);
        let after = operator.json(&["status"]);
        assert_eq!(after["pid"], done["pid"]);
        assert_ne!(after["pid"], before["pid"]);
        assert_eq!(
            (&after["daemon_upgrades"], &after["apps"]),
            (&1.into(), &1.into())
        );
        assert!(
            after["service_uptime_s"].as_f64() > after["uptime_s"].as_f64(),
            "{after}"
        );
        assert!(matches!(setting.agent.answer(calls), Answer::Done(_)));
        eventually("the replaced process has ended", WAIT_MAX, || {
            !setting.a.program.is_running()
        });
        setting.agent.calls_well();
    });
}

/// A process that nobody waits for; killed at the end of the test.
struct Successor(i32);

impl Drop for Successor {
    fn drop(&mut self) {
        if let Some(process) = rustix::process::Pid::from_raw(self.0) {
            let _ = rustix::process::kill_process(process, rustix::process::Signal::KILL);
        }
    }
}

#[test]
fn what_was_attached_at_run_time_is_said_to_be_lost_at_the_next_start_or_is_there_again() {
    tested(|| {
        let mut world = World::new(ROLE);
        let options = |tables: &str| NodeOptions {
            tables: format!("{tables}[[policy]]\nname = \"always\"\nkind = \"null\"\n"),
            ..NodeOptions::default()
        };
        let mut node = world.node("a", &options(""));
        let operator = Operator::of(&node);
        let change = || {
            operator.text(&["policy", "attach", "--kind", "null", "--name", "mine"]);
            operator.text(&["policy", "detach", "always"]);
        };
        change();
        node.restart();
        assert_eq!(operator.policies(), ["always"]);
        let said = "lost what operators had done at run time (attached \"mine\", detached \"always\")";
        assert!(operator.text(&["status"]).contains(said));
        assert!(node.program.log().contains("as configured again"));
        // Once: it is no news to those who change something, nor at the start after.
        node.restart();
        assert!(!operator.text(&["status"]).contains("lost"));

        node.reconfigure(&options("[admin]\npersist = true\n"));
        node.restart();
        change();
        for _ in 0..2 {
            node.restart();
            assert_eq!(operator.policies(), ["mine"]);
        }
        assert!(!operator.text(&["status"]).contains("lost"));
        // Where the configuration says something else by now, that counts.
        node.reconfigure(&options(
            "[admin]\npersist = true\n[[policy]]\nname = \"newer\"\nkind = \"null\"\n",
        ));
        node.restart();
        assert_eq!(operator.policies(), ["newer", "always"]);
        let said = operator.text(&["status"]);
        assert!(
            said.contains("attached \"mine\"") && said.contains("policies.toml.old"),
            "{said}"
        );
    });
}

#[test]
fn a_process_that_takes_over_keeps_policies_and_one_that_cannot_says_so() {
    tested(|| {
        let mut world = World::new(ROLE);
        let folder = world.directory().join("kept");
        std::fs::create_dir(&folder).unwrap();
        let options = NodeOptions {
            tables: format!(
                "[admin]\npersist = true\npolicies_file = \"{}/policies.toml\"\n",
                folder.display()
            ),
            ..NodeOptions::default()
        };
        let mut node = world.node("a", &options);
        let operator = Operator::of(&node);
        let attach = |name: &str| {
            let attached = operator.json(&["policy", "attach", "--kind", "null", "--name", name]);
            attached["warnings"].to_string()
        };
        assert!(!attach("before").contains("lost when the service stops"));
        let holds = |process: u32| {
            let lock = std::fs::read_to_string(folder.join("policies.toml.lock"));
            lock.is_ok_and(|text| text.ends_with(&format!("process {process}")))
        };
        assert!(holds(node.process()));
        let process = node.replace().process;
        eventually("the successor keeps policies", WAIT_MAX, || holds(process));
        attach("after");
        let kept = std::fs::read_to_string(folder.join("policies.toml")).unwrap();
        assert!(
            kept.contains("\"before\"") && kept.contains("\"after\""),
            "{kept}"
        );

        std::fs::remove_dir_all(&folder).unwrap();
        let said = attach("third");
        assert!(said.contains("lost when the service stops"), "{said}");
        assert!(said.contains("policies.toml: No such file"), "{said}");
        let shown = operator.run(&["policy", "detach", "third"]);
        let shown = shown.stdout + &shown.stderr;
        assert!(shown.contains("lost when the service stops"), "{shown}");
        std::fs::create_dir(&folder).unwrap();
        assert!(!attach("fourth").contains("lost when the service stops"));
    });
}

#[test]
fn a_reload_names_what_it_undoes() {
    tested(|| {
        let mut world = World::new(ROLE);
        let options = NodeOptions {
            tables: "[[policy]]\nname = \"always\"\nkind = \"null\"\n".to_owned(),
            ..NodeOptions::default()
        };
        let node = world.node("a", &options);
        let operator = Operator::of(&node);
        operator.text(&["policy", "attach", "--kind", "null", "--name", "mine"]);
        operator.text(&["policy", "attach", "--kind", "null", "--name", "too"]);
        operator.text(&["policy", "detach", "always"]);
        let said = operator.run(&["config", "reload"]);
        let said = said.stdout + &said.stderr;
        assert!(
            said.contains("detached: mine, too (attached at run time)"),
            "{said}"
        );
        assert!(
            said.contains("attached again: always (detached at run time)"),
            "{said}"
        );
        let again = operator.run(&["config", "reload"]);
        assert!(!(again.stdout + &again.stderr).contains("at run time"));
    });
}
