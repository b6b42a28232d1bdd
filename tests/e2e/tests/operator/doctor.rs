//! What `provost doctor` finds on a node that is well, and on others.

use provost_e2e::{Node, NodeOptions, Setting};
use serde_json::Value;

use crate::command::{Operator, ROLE, setting, tested};

/// What was found, by subject and health, and the exit status.
fn examined(node: &Node, more: &[&str]) -> (Option<i32>, Value) {
    let socket = node.socket.to_str().unwrap();
    let mut arguments = vec!["doctor", "--json", "--app-socket", socket];
    arguments.extend(more);
    let outcome = Operator::of(node).run(&arguments);
    let findings = serde_json::from_str(&outcome.stdout);
    let findings: Value = findings.unwrap_or_else(|error| panic!("{error}: {outcome:?}"));
    // Whatever is not well is told together with what to do.
    for finding in findings.as_array().unwrap() {
        let has_remedy = finding["remedy"]
            .as_str()
            .is_some_and(|remedy| !remedy.is_empty());
        assert_eq!(has_remedy, finding["health"] != "good", "{finding:#}");
    }
    (outcome.code, findings)
}

/// The findings of one subject.
fn of<'a>(findings: &'a Value, subject: &str) -> Vec<&'a Value> {
    let all = findings.as_array().unwrap().iter();
    all.filter(|finding| finding["subject"] == subject).collect()
}

#[test]
fn a_node_that_is_well_is_told_from_one_whose_peer_is_gone_and_whose_configuration_is_broken() {
    tested(|| {
        let mut setting = setting("");
        let (code, findings) = examined(&setting.a, &[]);
        assert_eq!(code, Some(0), "{findings:#}");
        let subjects = [
            "kernel",
            "descriptors",
            "clock",
            "apps",
            "node",
            "version",
            "config",
            "peer",
        ];
        for subject in subjects {
            assert_eq!(of(&findings, subject).len(), 1, "{subject}: {findings:#}");
            assert_ne!(of(&findings, subject)[0]["health"], "unknown", "{findings:#}");
        }

        setting.b.program.kill();
        let file = setting.world.directory().join("a.toml");
        let original = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, format!("{original}\n[limits]\nno_such_limit = 1\n")).unwrap();
        let operator = Operator::of(&setting.a);
        operator.fails(5, &["config", "reload"]);
        let (code, findings) = examined(&setting.a, &[]);
        assert_eq!(code, Some(1), "{findings:#}");
        for subject in ["peer", "config"] {
            let found = of(&findings, subject);
            assert_eq!(found[0]["health"], "wrong", "{findings:#}");
            assert_ne!(found[0]["remedy"], "", "{findings:#}");
        }
        let socket = setting.a.socket.to_str().unwrap();
        let said = operator.fails(1, &["doctor", "--app-socket", socket]);
        assert!(said.contains("2 things are wrong"), "{said}");
    });
}

#[test]
fn an_app_that_cannot_attach_is_told_why() {
    tested(|| {
        let options = NodeOptions {
            tables: "[[app]]\nname = \"shop\"\nusers = [\"root\"]\n\
                     [[app]]\nname = \"e2e-*\"\nmay_bind = [\"*\"]\nmay_connect = [\"*\"]\n"
                .to_owned(),
            ..NodeOptions::default()
        };
        let setting = Setting::with(ROLE, &options, &NodeOptions::default());
        let health = |more: &[&str]| {
            let (_, findings) = examined(&setting.a, more);
            let found = of(&findings, "apps")[0];
            (found["health"].clone(), found["found"].to_string())
        };
        assert_eq!(health(&["--app", "shop"]).0, "good");
        // Without a name it cannot know which one the app has.
        assert_eq!(health(&[]).0, "warning");
        let (refused, said) = health(&["--app", "shopp"]);
        assert_eq!(refused, "wrong", "{said}");
        assert!(said.contains("[[app]]"), "{said}");

        let nowhere = setting.world.directory().join("nowhere.sock");
        let operator = Operator::of(&setting.a);
        let outcome = operator.run(&["doctor", "--app-socket", nowhere.to_str().unwrap()]);
        assert_eq!(outcome.code, Some(1), "{outcome:?}");
        assert!(outcome.stdout.contains("nowhere.sock"), "{outcome:?}");
        assert!(outcome.stdout.contains("no such socket"), "{outcome:?}");
        let unreachable = Operator::at(&nowhere);
        let socket = setting.a.socket.to_str().unwrap();
        let outcome = unreachable.run(&["doctor", "--app", "shop", "--app-socket", socket]);
        assert_eq!(
            outcome.code,
            Some(0),
            "what could not be looked at is not wrong: {outcome:?}"
        );
        assert!(outcome.stdout.contains("unknown"), "{outcome:?}");
    });
}
