//! Files and what is in effect.

use crate::command::{Operator, setting, tested};

#[test]
fn files_are_checked_compared_reloaded_and_written_back() {
    tested(|| {
        let setting = setting("");
        let operator = Operator::of(&setting.a);
        let file = setting.world.directory().join("a.toml");
        let path = file.to_str().unwrap();
        assert_eq!(
            operator.text(&["config", "check", path]),
            "the configuration is good\n"
        );
        assert_eq!(operator.text(&["config", "diff"]), "nothing would change\n");
        let original = std::fs::read_to_string(&file).unwrap();

        let policy = "[[policy]]\nname = \"first\"\nkind = \"null\"\n";
        std::fs::write(&file, format!("{original}{policy}")).unwrap();
        let diff = operator.text(&["config", "diff"]);
        assert!(diff.contains("policy.first.kind\n+ \"null\""), "{diff}");
        operator.fails(1, &["config", "diff", "--exit-code"]);
        assert_eq!(operator.policies(), Vec::<String>::new());
        operator.text(&["config", "reload"]);
        assert_eq!(operator.policies(), ["first"]);

        std::fs::write(&file, format!("{original}{policy}name = \"twice\"\n")).unwrap();
        let said = operator.fails(5, &["config", "check", path]);
        assert!(said.contains("a.toml"), "{said}");
        operator.fails(5, &["config", "reload"]);
        assert_eq!(operator.policies(), ["first"]);
        let status = operator.json(&["status"]);
        assert!(
            status["config_error"].as_str().unwrap().contains("a.toml"),
            "{status}"
        );
        std::fs::write(&file, format!("{original}{policy}")).unwrap();
        operator.text(&["config", "reload"]);
        assert_eq!(operator.json(&["status"])["config_error"], "");

        operator.text(&[
            "policy",
            "attach",
            "--kind",
            "null",
            "--name",
            "second",
            "--position",
            "0",
        ]);
        let shown = operator.text(&["config", "show"]);
        assert!(shown.contains("name = \"second\""), "{shown}");
        assert!(operator.text(&["config", "write"]).contains("a.toml"));
        let written = std::fs::read_to_string(&file).unwrap();
        assert!(written.contains("name = \"second\""), "{written}");
        assert_eq!(operator.text(&["config", "diff"]), "nothing would change\n");
        operator.text(&["config", "reload"]);
        assert_eq!(operator.policies(), ["second", "first"]);
    });
}
