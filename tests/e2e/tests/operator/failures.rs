//! What a node says of what fails, and does not say of what does not.

use std::net::TcpListener;

use provost_e2e::driver::WAIT_MAX;
use provost_e2e::eventually;

use crate::command::{Operator, echo, setting, tested};

/// What the log says when something is not taken.
const NOT_TAKEN: &str = "what the node tells is not taken";

#[test]
fn what_is_not_taken_is_said_once_and_stands_in_the_status_until_it_is() {
    tested(|| {
        let files = tempfile::tempdir().unwrap();
        let folder = files.path().join("logs");
        std::fs::create_dir(&folder).unwrap();
        // Somebody had this port a moment ago, and nobody has it now.
        let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let (audit, access) = (folder.join("audit.log"), folder.join("access.log"));
        let tables = format!(
            "[observe]\naudit_file = \"{}\"\notlp_endpoint = \"http://{nobody}\"\notlp_interval_ms = 100\n\
             [[policy]]\nname = \"lines\"\nkind = \"access-log\"\n[policy.config]\npath = \"{}\"\n\
             [[policy]]\nname = \"spans\"\nkind = \"tracing\"\n[policy.config]\nendpoint = \"http://{nobody}\"\n\
             timeout_ms = 500\n",
            audit.display(),
            access.display()
        );
        let mut setting = setting(&tables);
        let operator = Operator::of(&setting.a);
        let status = || operator.text(&["status"]);
        std::fs::remove_dir_all(&folder).unwrap();
        let mut tell = || {
            operator.text(&["policy", "attach", "--kind", "null", "--name", "passing"]);
            operator.text(&["policy", "detach", "passing"]);
            setting.agent.succeeds(echo(50));
        };
        let parts = [
            format!("observe.audit_file: {}", audit.display()),
            format!("observe.otlp_endpoint: http://{nobody} takes no metrics"),
            format!("policy \"lines\": {} takes no lines", access.display()),
            format!("policy \"spans\": the collector at http://{nobody} takes no spans"),
        ];
        eventually("the status tells of each", WAIT_MAX, || {
            tell();
            let status = status();
            parts.iter().all(|part| status.contains(part.as_str()))
        });
        let logged = || setting.a.program.log().matches(NOT_TAKEN).count();
        eventually("the log tells of each", WAIT_MAX, || logged() == parts.len());

        std::fs::create_dir(&folder).unwrap();
        eventually("the files are no news any more", WAIT_MAX, || {
            tell();
            let status = status();
            !status.contains(&parts[0]) && !status.contains(&parts[2]) && status.contains(&parts[1])
        });
        let again = || setting.a.program.log().matches("is taken again").count();
        eventually("the log tells that they are taken again", WAIT_MAX, || {
            again() == 2
        });
        assert_eq!(
            logged(),
            parts.len(),
            "each is said once, and not at each attempt"
        );
    });
}

#[test]
fn a_close_without_open_calls_is_no_error_in_any_log() {
    tested(|| {
        let mut setting = setting("");
        setting.agent.succeeds(echo(50));
        let mut other = setting.world.agent(&setting.a);
        other.calls_well();
        drop(other);
        let closed = || {
            let log = setting.b.program.log();
            log.lines()
                .filter(|line| line.contains("connection closed"))
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        eventually("the other node tells of the end", WAIT_MAX, || {
            !closed().is_empty()
        });
        for line in closed() {
            assert!(
                line.contains("code=OK reason=\"the peer closed the connection\""),
                "{line}"
            );
        }
        let log = setting.a.program.log();
        assert!(!log.contains("UNAVAILABLE") && !log.contains("number="), "{log}");
    });
}
