//! `provost`, as tests run it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use provost_e2e::script::{Ask, Echo};
use provost_e2e::{Node, NodeOptions, Setting, built, watched};
use serde_json::Value;

/// The program of nodes, servers and agents.
pub(crate) const ROLE: &str = env!("CARGO_BIN_EXE_e2e-role");

/// An operator of one node.
#[derive(Clone)]
pub(crate) struct Operator {
    pub(crate) program: PathBuf,
    pub(crate) socket: PathBuf,
}

/// What came of a command.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// The program `provost`.
pub(crate) fn program() -> PathBuf {
    built::program("provost", "provost-cli", ROLE)
}

/// Runs a test's body within a limit. Whatever has to be built is built before.
pub(crate) fn tested(body: impl FnOnce() + Send + 'static) {
    program();
    watched(body);
}

impl Operator {
    pub(crate) fn of(node: &Node) -> Operator {
        Operator::at(&node.admin_socket)
    }

    pub(crate) fn at(socket: &Path) -> Operator {
        Operator {
            program: program(),
            socket: socket.to_owned(),
        }
    }

    /// The command, with an environment that says nothing about colours.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(arguments)
            .env("PROVOST_ADMIN_SOCKET", &self.socket)
            .env_remove("NO_COLOR")
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Outcome {
        outcome(self.command(arguments))
    }

    pub(crate) fn run_with_input(&self, arguments: &[&str], input: &str) -> Outcome {
        let mut command = self.command(arguments);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        Outcome {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// What a command prints that succeeds.
    pub(crate) fn text(&self, arguments: &[&str]) -> String {
        let outcome = self.run(arguments);
        assert_eq!(outcome.code, Some(0), "{arguments:?}: {outcome:?}");
        outcome.stdout
    }

    /// The JSON that a command prints that succeeds.
    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let mut arguments = arguments.to_vec();
        arguments.push("--json");
        let text = self.text(&arguments);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// What a command says that fails with this exit status.
    pub(crate) fn fails(&self, code: i32, arguments: &[&str]) -> String {
        let outcome = self.run(arguments);
        assert_eq!(outcome.code, Some(code), "{arguments:?}: {outcome:?}");
        assert!(!outcome.stderr.is_empty(), "{arguments:?} says nothing");
        outcome.stderr
    }

    /// The names of the policies, in order.
    pub(crate) fn policies(&self) -> Vec<String> {
        let listed = self.json(&["policy", "list"]);
        let policies = listed["policies"].as_array().unwrap().iter();
        policies
            .map(|attached| attached["policy"]["name"].as_str().unwrap().to_owned())
            .collect()
    }
}

pub(crate) fn outcome(mut command: Command) -> Outcome {
    let output = command.output().unwrap();
    Outcome {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Two nodes, of which the first has these tables in its configuration.
pub(crate) fn setting(tables: &str) -> Setting {
    let options = NodeOptions {
        tables: tables.to_owned(),
        ..NodeOptions::default()
    };
    Setting::with(ROLE, &options, &NodeOptions::default())
}

/// Small calls, some at a time.
pub(crate) fn echo(calls: usize) -> Ask {
    Ask::Echo(Echo {
        calls,
        in_flight: 8,
        ..Echo::default()
    })
}

/// Whether a program is there that the system brings. Says so when it is not.
pub(crate) fn is_missing(program: &str, package: &str) -> bool {
    let found = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .any(|folder| folder.join(program).exists());
    if !found {
        provost_skip::missing(program, &format!("Debian package {package}"));
    }
    !found
}
