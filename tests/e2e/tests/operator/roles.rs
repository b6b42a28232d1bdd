//! Who may do what, and what the audit log says of it.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use provost_e2e::driver::WAIT_MAX;
use provost_e2e::eventually;
use serde_json::Value;

use crate::command::{Operator, Outcome, outcome, setting, tested};

/// Users that nobody is.
const VIEWER: u32 = 64_001;
const CHANGER: u32 = 64_002;
const STRANGER: u32 = 64_003;

#[test]
fn roles_are_kept_and_what_is_done_or_refused_is_audited() {
    if !rustix::process::geteuid().is_root() {
        return provost_skip::forbidden("only root can run programs as other users");
    }
    tested(|| {
        let place = tempfile::Builder::new().prefix("prole-").tempdir().unwrap();
        let log = place.path().join("audit.log");
        let tables = format!(
            "[admin]\nmode = \"0666\"\nview_uids = [{VIEWER}]\noperate_gids = [{CHANGER}]\n[observe]\naudit_file = \"{}\"\n",
            log.display()
        );
        let setting = setting(&tables);
        let operator = for_everybody(&Operator::of(&setting.a), setting.world.directory());
        let run_as = |user: u32, arguments: &[&str]| -> Outcome {
            let mut command = operator.command(arguments);
            command.uid(user).gid(user);
            outcome(command)
        };
        let attach = ["policy", "attach", "--kind", "null"];

        let refused = run_as(STRANGER, &["status"]);
        assert_eq!(refused.code, Some(4), "{refused:?}");
        let file = setting.world.directory().join("a.toml");
        for part in ["\"view\"", "admin.view_uids", &format!("({})", file.display())] {
            assert!(refused.stderr.contains(part), "{refused:?}");
        }
        assert_eq!(run_as(VIEWER, &["status"]).code, Some(0));
        let refused = run_as(VIEWER, &attach);
        assert_eq!(refused.code, Some(4), "{refused:?}");
        assert!(refused.stderr.contains("\"operate\""), "{refused:?}");
        assert_eq!(run_as(VIEWER, &["tap", "-n", "1"]).code, Some(4));
        let done = run_as(CHANGER, &attach);
        assert_eq!(done.code, Some(0), "{done:?}");
        let refused = run_as(CHANGER, &["daemon", "upgrade"]);
        assert_eq!(refused.code, Some(4), "{refused:?}");
        assert!(refused.stderr.contains("\"admin\""), "{refused:?}");
        assert_eq!(run_as(CHANGER, &["engine", "load", "/x.so"]).code, Some(4));
        assert_eq!(operator.run(&["policy", "detach", "null"]).code, Some(0));

        eventually("everything is in the log", WAIT_MAX, || records(&log).len() >= 7);
        let records = records(&log);
        let of = |user: u32, method: &str| -> &Value {
            let is_it = |record: &&Value| record["who"]["uid"] == user && record["method"] == method;
            records
                .iter()
                .find(is_it)
                .unwrap_or_else(|| panic!("{user} {method}: {records:#?}"))
        };
        assert_eq!(of(STRANGER, "GetStatus")["outcome"], "PERMISSION_DENIED");
        assert_eq!(of(VIEWER, "AttachPolicy")["outcome"], "PERMISSION_DENIED");
        assert_eq!(of(VIEWER, "AttachPolicy")["number"], 0);
        let attached = of(CHANGER, "AttachPolicy");
        assert_eq!(attached["outcome"], "OK");
        assert_eq!(attached["number"], 1);
        assert_eq!(attached["who"]["gid"], CHANGER);
        assert_eq!(attached["who"]["role"], "operate");
        assert_eq!(attached["arguments"]["policy"]["kind"], "null");
        assert!(
            attached["after"].as_str().unwrap().contains("kind = \"null\""),
            "{attached}"
        );
        assert!(attached["time"].as_str().unwrap().ends_with('Z'));
        let detached = of(0, "DetachPolicy");
        assert_eq!(detached["who"]["user"], "root");
        assert_eq!(detached["number"], 2);
        assert!(
            detached["before"].as_str().unwrap().contains("kind = \"null\""),
            "{detached}"
        );
        // What was only looked at is not there.
        assert!(
            records
                .iter()
                .all(|record| record["who"]["uid"] != VIEWER || record["outcome"] != "OK")
        );
    });
}

/// A copy of the program, and a way to the socket, for any user.
fn for_everybody(operator: &Operator, directory: &Path) -> Operator {
    let readable = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(directory, readable.clone()).unwrap();
    let program = directory.join("provost");
    // By another process: a file that this one writes could be held open by what other tests start meanwhile, and so
    // not be run.
    let mut copy = Command::new("cp");
    copy.arg(&operator.program).arg(&program);
    assert_eq!(outcome(copy).code, Some(0));
    std::fs::set_permissions(&program, readable).unwrap();
    Operator {
        program,
        ..operator.clone()
    }
}

fn records(log: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let records = text.lines().filter_map(|line| serde_json::from_str(line).ok());
    records
        .filter(|record: &Value| record["event"] == "admin")
        .collect()
}
