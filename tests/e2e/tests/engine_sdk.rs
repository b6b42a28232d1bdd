//! Engines that were built apart, on a running service: loaded, attached, upgraded and taken back by the command line
//! while calls go on.

#[path = "../../../crates/core/plugin/tests/build/mod.rs"]
#[allow(dead_code, reason = "these tests use a part of it")]
mod build;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use provost_e2e::script::{Ask, Echo};
use provost_e2e::{Answer, Setting, built, watched};
use serde_json::Value;

const ROLE: &str = env!("CARGO_BIN_EXE_e2e-role");
/// Exit statuses of `provost`: it was refused; it was tried and undone.
const REFUSED: i32 = 5;
const UNDONE: i32 = 6;
/// The metadata in which the example puts a call's number on its connection.
const NUMBER: &str = "x-call-number";
/// Versions of the example, by feature.
const PANICS: u32 = 3;
const FAILS_RESTORE: u32 = 6;

/// `provost`, told to talk to a node.
struct Cli {
    program: PathBuf,
    socket: PathBuf,
}

impl Cli {
    fn of(setting: &Setting) -> Cli {
        Cli {
            program: built::program("provost", "provost-cli", ROLE),
            socket: setting.a.admin_socket.clone(),
        }
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(&self.program);
        command.args(arguments).arg("--socket").arg(&self.socket);
        command.output().expect("provost runs")
    }

    fn succeeds(&self, arguments: &[&str]) {
        let output = self.run(arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {error}");
    }

    /// What it says on failure.
    fn fails(&self, arguments: &[&str], status: i32) -> String {
        let output = self.run(arguments);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {error}");
        error
    }

    fn load(&self, library: &Path) {
        self.succeeds(&["engine", "load", &library.display().to_string()]);
    }

    fn upgrade(&self, version: u32) {
        self.succeeds(&["engine", "upgrade", "numbered", "--version", &version.to_string()]);
    }

    /// The current version of the example; `None` while it is not known.
    fn current(&self) -> Option<u64> {
        let output = self.run(&["engine", "list", "--json"]);
        let listed: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let engines = listed["engines"].as_array().expect("a list of engines").clone();
        let is_current = |engine: &&Value| engine["kind"] == "numbered" && engine["current"] == true;
        engines.iter().find(is_current)?["version"].as_u64()
    }
}

/// Builds what a test needs before its time begins to count; the test then finds it built.
fn build_first(features: &[&str]) {
    let _ = built::program("provost", "provost-cli", ROLE);
    for features in features {
        build::example("example-numbered", features);
    }
}

/// The number that the next call gets.
fn number(setting: &mut Setting) -> u64 {
    let done = setting.agent.succeeds(Ask::Mirror(Vec::new()));
    let pair = done.initial.iter().find(|pair| pair.key == NUMBER);
    let text = String::from_utf8(pair.expect("the call has a number").value.clone()).unwrap();
    text.parse().unwrap()
}

/// Many calls, eight at a time, meanwhile something else; none of the calls fails.
fn under_load(setting: &mut Setting, calls: usize, meanwhile: impl FnOnce()) {
    let load = setting.agent.begin(Ask::Echo(Echo {
        calls,
        in_flight: 8,
        ..Echo::default()
    }));
    meanwhile();
    match setting.agent.answer(load) {
        Answer::Done(_) => {}
        other => panic!("a call failed meanwhile: {other:?}"),
    }
}

#[test]
fn an_engine_is_loaded_attached_and_upgraded_to_and_fro_under_load_with_its_state() {
    build_first(&["", "version-2"]);
    watched(|| {
        let libraries = ["", "version-2"].map(|features| build::example("example-numbered", features));
        let mut setting = Setting::new(ROLE);
        let cli = Cli::of(&setting);
        libraries.iter().for_each(|library| cli.load(&library.path()));
        let attach = ["policy", "attach", "--kind", "numbered", "--kind-version", "1"];
        cli.succeeds(&attach);
        assert_eq!(cli.current(), Some(1));
        let first = number(&mut setting);
        let calls = 4000;
        under_load(&mut setting, calls, || {
            for version in [2, 1, 2, 1] {
                cli.upgrade(version);
                assert_eq!(cli.current(), Some(u64::from(version)));
            }
        });
        // Each call had a number of its own, whichever version gave it.
        assert_eq!(number(&mut setting), first + calls as u64 + 1);
        cli.succeeds(&["policy", "detach", "numbered"]);
        setting.agent.calls_well();
    });
}

#[test]
fn a_version_that_panics_is_taken_back_and_no_call_fails() {
    build_first(&["", "panics", "fails-restore"]);
    watched(|| {
        let libraries =
            ["", "panics", "fails-restore"].map(|features| build::example("example-numbered", features));
        let mut setting = Setting::new(ROLE);
        let cli = Cli::of(&setting);
        libraries.iter().for_each(|library| cli.load(&library.path()));
        cli.succeeds(&["policy", "attach", "--kind", "numbered", "--kind-version", "1"]);
        let first = number(&mut setting);
        let calls = 2000;
        under_load(&mut setting, calls, || {
            // It fails at its third step: while it is put in, or soon after.
            let panics = ["engine", "upgrade", "numbered", "--version", &PANICS.to_string()];
            let tried = cli.run(&panics);
            assert!(matches!(tried.status.code(), Some(0 | UNDONE)), "{tried:?}");
        });
        provost_e2e::eventually("version 1 is back", provost_e2e::driver::WAIT_MAX, || {
            cli.current() == Some(1)
        });
        let refused = [
            "engine",
            "upgrade",
            "numbered",
            "--version",
            &FAILS_RESTORE.to_string(),
        ];
        let said = cli.fails(&refused, UNDONE);
        assert!(said.contains("likes no state"), "{said}");
        assert_eq!(cli.current(), Some(1));
        // What the version that was taken back had counted is not known any more.
        assert!(number(&mut setting) > first);
        setting.others_are_served();
    });
}

#[test]
fn a_library_of_another_abi_is_refused_and_nothing_is_changed() {
    build_first(&["other-abi", ""]);
    watched(|| {
        let other = build::example("example-numbered", "other-abi");
        let first = build::example("example-numbered", "");
        let mut setting = Setting::new(ROLE);
        let cli = Cli::of(&setting);
        let before = cli.run(&["engine", "list", "--json"]).stdout;
        let said = cli.fails(&["engine", "load", &other.path().display().to_string()], REFUSED);
        assert!(said.contains("engine ABI"), "{said}");
        let none = cli.fails(&["policy", "attach", "--kind", "numbered"], REFUSED);
        assert!(none.contains("numbered"), "{none}");
        assert_eq!(cli.run(&["engine", "list", "--json"]).stdout, before);
        setting.agent.calls_well();
        // The same kind in the right form is taken afterwards.
        cli.load(&first.path());
        cli.succeeds(&["policy", "attach", "--kind", "numbered"]);
        assert_eq!(number(&mut setting), 1);
    });
}
