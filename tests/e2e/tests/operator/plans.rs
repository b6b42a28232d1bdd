//! Plans over two nodes.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use provost_e2e::driver::WAIT_MAX;
use provost_e2e::{Setting, eventually};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::command::{Operator, echo, setting, tested};

/// A plan's beginning: both nodes, the second one through a fake ssh.
fn nodes(setting: &Setting) -> String {
    let ssh = fake_ssh(setting.world.directory());
    format!(
        "[nodes.a]\nsocket = \"{}\"\n[nodes.b]\nssh = \"ops@b\"\nssh_command = [\"{}\"]\nsocket = \"{}\"\nprovost = \"{}\"\n",
        setting.a.admin_socket.display(),
        ssh.display(),
        setting.b.admin_socket.display(),
        crate::command::program().display()
    )
}

/// Does what ssh does: `-- host words`, which a shell takes apart. Writes down what it was given.
fn fake_ssh(directory: &Path) -> PathBuf {
    let path = directory.join("fake ssh");
    let script = "#!/bin/sh\n[ \"$1\" = -- ] && [ \"$2\" = ops@b ] || exit 255\necho \"$3\" >> \"$(dirname \"$0\")/ssh.log\"\nexec sh -c \"$3\"\n";
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn write_plan(setting: &Setting, steps: &str) -> String {
    let path = setting.world.directory().join("plan.toml");
    std::fs::write(&path, format!("{}{steps}", nodes(setting))).unwrap();
    path.display().to_string()
}

const GOOD: &str = r#"
[[step]]
node = "b"
attach = { kind = "rate-limit", name = "limit it", app = "it's *", config = { requests_per_second = 1000000 } }
check = [{ serving = true, for_s = 0.3 }]
[[step]]
node = "a"
attach = { kind = "metrics" }
check = [{ error_rate_max = 0.01, rate_min = 1, for_s = 1, within_s = 20 }]
[[step]]
node = "a"
upgrade = { kind = "transport-tcp" }
"#;

#[test]
fn a_plan_is_rehearsed_and_carried_out_on_both_nodes_under_calls() {
    tested(|| {
        let mut setting = setting("");
        let plan = write_plan(&setting, &GOOD.replace("limit it", "limit"));
        let operator = Operator::of(&setting.a);
        let (a, b) = (Operator::of(&setting.a), Operator::of(&setting.b));
        operator.text(&["plan", "check", &plan]);
        let dry_runs = operator.text(&["plan", "run", &plan, "--dry-run"]);
        assert!(
            dry_runs.contains("nothing was changed") && dry_runs.contains("would attach limit"),
            "{dry_runs}"
        );
        assert!(a.policies().is_empty() && b.policies().is_empty());

        let mut run = operator.command(&["plan", "run", &plan]);
        let run = run
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let pid = Pid::from_child(&run);
        while rustix::process::test_kill_process(pid).is_ok() && !is_over(run.id()) {
            setting.agent.succeeds(echo(50));
        }
        let output = run.wait_with_output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{said}{errors}");
        assert!(said.contains("all 3 steps are done"), "{said}");
        assert_eq!(
            (a.policies(), b.policies()),
            (vec!["metrics".to_owned()], vec!["limit".to_owned()])
        );
        let ssh = std::fs::read_to_string(setting.world.directory().join("ssh.log")).unwrap();
        assert!(ssh.contains(r"'--app=it'\''s *'"), "{ssh}");
        // It is done: it can be undone, and then there is nothing left to undo.
        operator.text(&["plan", "undo", &plan]);
        assert!(a.policies().is_empty() && b.policies().is_empty());
        setting.others_are_served();
    });
}

fn is_over(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.is_empty() || stat.contains(") Z ")
}

#[test]
fn what_was_done_is_undone_in_reverse_when_a_check_fails() {
    tested(|| {
        let setting = setting("");
        let (a, b) = (Operator::of(&setting.a), Operator::of(&setting.b));
        b.text(&["policy", "attach", "--kind", "null", "--name", "old"]);
        b.text(&["policy", "attach", "--kind", "fault", "--name", "chaos"]);
        let steps = r#"
[[step]]
node = "b"
attach = { kind = "null", name = "new", position = 0 }
[[step]]
node = "b"
detach = { name = "old" }
[[step]]
node = "b"
order = { names = ["chaos", "new"] }
[[step]]
run = { command = ["touch", "DIR/done"], undo = ["rm", "DIR/done"] }
[[step]]
node = "a"
attach = { kind = "null", name = "last" }
check = [{ command = ["sh", "-c", "echo not today >&2; exit 1"], within_s = 0 }]
"#;
        let directory = setting.world.directory().display().to_string();
        let plan = write_plan(&setting, &steps.replace("DIR", &directory));
        let outcome = a.run(&["plan", "run", &plan, "--json"]);
        assert_eq!(outcome.code, Some(6), "{outcome:?}");
        assert!(
            outcome.stderr.contains("not today") && outcome.stderr.contains("everything is undone"),
            "{outcome:?}"
        );
        let events: Vec<Value> = outcome
            .stdout
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let undone: Vec<_> = events
            .iter()
            .filter(|event| event["event"] == "undone")
            .map(|event| event["step"].as_u64().unwrap())
            .collect();
        assert_eq!(undone, [5, 4, 3, 2, 1]);
        assert_eq!(
            (a.policies(), b.policies()),
            (vec![], vec!["old".to_owned(), "chaos".to_owned()])
        );
        assert!(!Path::new(&format!("{directory}/done")).exists());
        // A step that is refused is undone as well, but for itself.
        let refused = write_plan(
            &setting,
            "[[step]]\nnode = \"b\"\nattach = { kind = \"null\", name = \"x\" }\n[[step]]\nnode = \"b\"\nattach = { kind = \"null\", name = \"old\" }\n",
        );
        let outcome = a.run(&["plan", "run", &refused]);
        assert_eq!(outcome.code, Some(6), "{outcome:?}");
        assert_eq!(b.policies(), ["old", "chaos"]);
    });
}

#[test]
fn a_run_that_is_killed_is_gone_on_with_or_undone() {
    tested(|| {
        let setting = setting("");
        let (a, b) = (Operator::of(&setting.a), Operator::of(&setting.b));
        let wait = setting.world.directory().join("go");
        let steps = format!(
            "[[step]]\nnode = \"b\"\nattach = {{ kind = \"null\", name = \"one\" }}\n\
             [[step]]\nnode = \"a\"\nattach = {{ kind = \"null\", name = \"two\" }}\n\
             check = [{{ command = [\"test\", \"-e\", \"{}\"], within_s = 60 }}]\n\
             [[step]]\nnode = \"a\"\nattach = {{ kind = \"null\", name = \"three\" }}\n",
            wait.display()
        );
        let plan = write_plan(&setting, &steps);
        let interrupted = |signal: Signal| {
            let mut run = a.command(&["plan", "run", &plan]);
            let mut run = run
                .stdout(std::process::Stdio::null())
                .stderr(std::process::Stdio::null())
                .spawn()
                .unwrap();
            eventually("the second step is done", WAIT_MAX, || a.policies() == ["two"]);
            kill_process(Pid::from_child(&run), signal).unwrap();
            run.wait().unwrap().code()
        };
        interrupted(Signal::KILL);
        let said = a.fails(5, &["plan", "run", &plan]);
        assert!(said.contains("--resume"), "{said}");
        std::fs::write(&wait, "").unwrap();
        a.text(&["plan", "run", &plan, "--resume"]);
        assert_eq!(
            (a.policies(), b.policies()),
            (vec!["two".to_owned(), "three".to_owned()], vec!["one".to_owned()])
        );
        a.fails(5, &["plan", "run", &plan, "--resume"]);
        a.text(&["plan", "undo", &plan]);
        assert!(a.policies().is_empty() && b.policies().is_empty());

        // Ctrl-C undoes by itself.
        std::fs::remove_file(&wait).unwrap();
        assert_eq!(interrupted(Signal::INT), Some(6));
        assert!(a.policies().is_empty() && b.policies().is_empty());
    });
}
