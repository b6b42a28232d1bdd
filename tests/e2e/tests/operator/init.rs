//! A first configuration: what `provost init` writes is what a node starts with.

use std::path::Path;
use std::process::Command;

use provost_e2e::driver::WAIT_MAX;
use provost_e2e::{Program, built, eventually};

use crate::command::{Operator, Outcome, ROLE, outcome, program, tested};

/// `provost init` in a directory, as a user who has said nothing of sockets before.
fn init(directory: &Path, arguments: &[&str]) -> Outcome {
    let mut command = Command::new(program());
    command
        .arg("init")
        .args(arguments)
        .current_dir(directory)
        .env_remove("PROVOST_SOCKET")
        .env_remove("XDG_RUNTIME_DIR");
    outcome(command)
}

#[test]
fn what_is_written_starts_a_node_and_nothing_is_written_over() {
    let daemon = built::present("provostd", "provostd", ROLE);
    tested(move || {
        let directory = tempfile::Builder::new().prefix("pinit-").tempdir().unwrap();
        let at = directory.path();
        let arguments = [
            "--name",
            "first",
            "--app-socket",
            "n.sock",
            "--listen",
            "127.0.0.1:0",
        ];
        let more = ["--grpc", "unix:g.sock", "--metrics", "none", "--output", "n.toml"];
        let asked = [&arguments[..], &more[..]].concat();
        let written = init(at, &asked);
        assert_eq!(written.code, Some(0), "{written:?}");
        for said in [
            "wrote n.toml",
            "provostd --config n.toml",
            "export PROVOST_SOCKET=",
        ] {
            assert!(written.stdout.contains(said), "{said}: {written:?}");
        }
        let operator = Operator::at(&at.join("n.admin.sock"));
        let file = at.join("n.toml");
        operator.text(&["config", "check", file.to_str().unwrap()]);

        let mut command = Command::new(daemon);
        command.arg("--config").arg(&file).current_dir("/");
        let node = Program::start("node", command, at);
        eventually("the node serves", WAIT_MAX, || {
            operator.run(&["status"]).code == Some(0)
        });
        let status = operator.json(&["status"]);
        assert_eq!(status["node"], "first", "{status}");
        assert_eq!(operator.policies(), ["metrics"]);
        assert!(at.join("g.sock").exists(), "{}", node.log());

        // A node answers at its socket now, and the file is there.
        let before = std::fs::read_to_string(&file).unwrap();
        let refused = init(at, &asked);
        assert_eq!(refused.code, Some(5), "{refused:?}");
        assert!(refused.stderr.contains("--force"), "{refused:?}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), before);
        let forced = init(at, &[&asked[..], &["--force", "--name", "second"]].concat()[2..]);
        assert_eq!(forced.code, Some(0), "{forced:?}");
        assert!(forced.stdout.contains("warning: a node answers at"), "{forced:?}");
        assert!(
            std::fs::read_to_string(&file)
                .unwrap()
                .contains("name = \"second\"")
        );
    });
}

#[test]
fn what_a_start_would_refuse_is_not_written() {
    tested(|| {
        let directory = tempfile::Builder::new().prefix("pinit-").tempdir().unwrap();
        let at = directory.path();
        for file in ["ca.pem", "node.pem", "node.key"] {
            std::fs::write(at.join(file), "no certificate").unwrap();
        }
        let refused = init(at, &["--tls-dir", ".", "--metrics", "none"]);
        assert_eq!(refused.code, Some(5), "{refused:?}");
        for said in ["nothing was written", "provostd.toml", "tls"] {
            assert!(refused.stderr.contains(said), "{said}: {refused:?}");
        }
        let left = std::fs::read_dir(at).unwrap().count();
        assert_eq!(left, 3, "no draft is left behind");
    });
}
