//! `provost` as a user runs it.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// How long anything here may take.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// `provost`, with a directory of its own for what it puts on disk.
fn provost(directory: &TempDir, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_provost"));
    command
        .args(arguments)
        .env("TMPDIR", directory.path())
        .env_remove("XDG_RUNTIME_DIR")
        .stdin(Stdio::null());
    command
}

fn output(mut command: Command) -> Output {
    command.output().expect("provost runs")
}

fn is_empty(directory: &Path) -> bool {
    fs::read_dir(directory).unwrap().next().is_none()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn data_file(contents: &str) -> (TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data.tsv");
    fs::write(&path, contents).unwrap();
    let name = path.display().to_string();
    (directory, name)
}

#[test]
fn the_demonstration_loads_a_file_measures_and_leaves_nothing_behind() {
    let contents: String = (0..3_000)
        .map(|number| format!("key{number}\tvalue {number}\n"))
        .collect();
    let (_data_directory, data) = data_file(&contents);
    let directory = tempfile::tempdir().unwrap();
    let arguments = [
        "demo",
        "--data",
        &data,
        "--seconds",
        "1",
        "--in-flight",
        "8",
        "--json",
    ];
    let output = output(provost(&directory, &arguments));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    for moved in ["load", "check", "scan"] {
        assert_eq!(report[moved]["entries"], 3_000, "{report}");
    }
    let cells = report["cells"].as_array().unwrap();
    let setups: Vec<&str> = cells.iter().filter_map(|cell| cell["setup"].as_str()).collect();
    assert_eq!(
        setups,
        [
            "provost get",
            "provost put",
            "provost get",
            "raw tcp",
            "raw tcp spin"
        ]
    );
    for cell in cells {
        assert!(cell["median"]["calls"].as_u64().unwrap() > 0, "{cell}");
        assert!(cell["median"]["p50_us"].as_f64().unwrap() > 0.0, "{cell}");
    }
    let plain_grpc = &report["plain_grpc"];
    assert!(
        plain_grpc["calls"].as_u64().unwrap() > 0 && plain_grpc["failed"] == 0,
        "{plain_grpc}"
    );
    assert!(is_empty(directory.path()));
}

#[test]
fn bad_data_is_refused_with_its_line_before_anything_starts() {
    let (_data_directory, data) = data_file("a\t1\nb\n");
    let directory = tempfile::tempdir().unwrap();
    let missing = format!("{data}.missing");
    for (data, problem) in [(&data, "data.tsv:2: no tab"), (&missing, "cannot read")] {
        let output = output(provost(&directory, &["demo", "--data", data]));
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(problem), "{}", text(&output.stderr));
    }
    assert!(is_empty(directory.path()));
}

#[test]
fn an_interrupted_demonstration_ends_all_its_programs() {
    let directory = tempfile::tempdir().unwrap();
    let mut demo = provost(&directory, &["demo", "--seconds", "600"])
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until("the demonstration has started its programs", || {
        children(&demo).len() >= 8
    });
    let programs = children(&demo);
    let pid = Pid::from_raw(demo.id() as i32).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    let status = demo.wait().unwrap();
    assert!(!status.success());
    let mut stderr = String::new();
    demo.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert!(stderr.contains("interrupted"), "{stderr}");
    wait_until("its programs are gone", || {
        programs.iter().all(|program| !program_runs(*program))
    });
    assert!(is_empty(directory.path()));
}

#[test]
fn the_programs_of_a_demonstration_that_is_killed_die_with_it() {
    let directory = tempfile::tempdir().unwrap();
    let mut demo = provost(&directory, &["demo", "--seconds", "600", "--quiet"])
        .spawn()
        .unwrap();
    wait_until("the demonstration has started its programs", || {
        children(&demo).len() >= 8
    });
    let programs = children(&demo);
    demo.kill().unwrap();
    demo.wait().unwrap();
    wait_until("its programs are gone", || {
        programs.iter().all(|program| !program_runs(*program))
    });
}

#[test]
fn check_accepts_a_schema_and_shows_where_another_is_wrong() {
    let directory = tempfile::tempdir().unwrap();
    let good = output(provost(&directory, &["check", "../../../apps/kv/proto/kv.proto"]));
    assert!(good.status.success(), "{}", text(&good.stderr));
    assert_eq!(text(&good.stdout), "ok: 1 file(s), packages: kv\n");
    let bad = directory.path().join("bad.proto");
    fs::write(&bad, "syntax = \"proto3\";\nmessage A {\n  Strin name = 1;\n}\n").unwrap();
    let bad = output(provost(&directory, &["check", &bad.display().to_string()]));
    assert!(!bad.status.success());
    let message = text(&bad.stderr);
    assert!(
        message.contains("bad.proto:3:") && message.contains("Strin"),
        "{message}"
    );
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < WAIT_MAX, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn children(process: &Child) -> Vec<u32> {
    let path = format!("/proc/{0}/task/{0}/children", process.id());
    let children = fs::read_to_string(path).unwrap_or_default();
    children
        .split_whitespace()
        .filter_map(|number| number.parse().ok())
        .collect()
}

fn program_runs(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // A process that is dead but not yet waited for has the state Z.
    !stat.is_empty() && !stat.contains(") Z ")
}

/// What stands for `provost-insight`: it says how it was called.
const INSIGHT: &str = "#!/bin/sh\necho \"insight $*\"\nexit 7\n";

#[test]
fn insight_becomes_the_program_beside_this_one() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("provost");
    fs::copy(env!("CARGO_BIN_EXE_provost"), &program).unwrap();
    let insight = || {
        let mut command = Command::new(&program);
        command.args(["insight", "predict", "--help"]).env("PATH", "");
        output(command)
    };
    let missing = insight();
    let said = text(&missing.stderr);
    assert_eq!(missing.status.code(), Some(1), "{said}");
    assert!(
        said.contains("cargo build --release --bin provost-insight"),
        "{said}"
    );
    let beside = directory.path().join("provost-insight");
    fs::write(&beside, INSIGHT).unwrap();
    fs::set_permissions(&beside, fs::Permissions::from_mode(0o755)).unwrap();
    let found = insight();
    assert_eq!(found.status.code(), Some(7), "{}", text(&found.stderr));
    assert_eq!(text(&found.stdout), "insight predict --help\n");
}

#[test]
fn a_variable_that_is_empty_is_as_none() {
    let directory = tempfile::tempdir().unwrap();
    let nothing = ["PROVOST_ADMIN_SOCKET", "PROVOST_GRPC_ADDRESS"];
    let ended = |arguments: &[&str], socket: &str| {
        let mut command = provost(&directory, arguments);
        command
            .envs(nothing.map(|name| (name, "")))
            .env("PROVOST_SOCKET", socket);
        let ended = output(command);
        (ended.status.code(), text(&ended.stdout) + &text(&ended.stderr))
    };
    let socket = directory.path().join("a.sock").display().to_string();
    let (code, said) = ended(&["status"], &socket);
    assert!(code == Some(3) && said.contains("a.admin.sock"), "{said}");
    let (code, said) = ended(&["call", "a.B/C"], &socket);
    assert!(code == Some(3) && said.contains("a.admin.sock"), "{said}");
    let (code, said) = ended(&["init", "--metrics", "none", "--output", "-"], "");
    assert!(code == Some(0) && said.contains("[control]"), "{said}");
    let elsewhere = directory.path().join("b.admin.sock").display().to_string();
    let (code, said) = ended(&["doctor", "--socket", &elsewhere], "");
    assert!(
        code == Some(1) && said.contains("/run/provost/provostd.sock"),
        "{said}"
    );
}

#[test]
fn help_names_the_variables_that_options_are_taken_from() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = provost(&directory, &["call", "--help"]);
    let names = ["PROVOST_ADMIN_SOCKET", "PROVOST_GRPC_ADDRESS"];
    names.iter().for_each(|name| {
        command.env_remove(name);
    });
    let help = text(&output(command).stdout);
    for name in names {
        assert!(help.contains(&format!("[env: {name}")), "{help}");
    }
}

/// The end of a pipe whose other end is closed.
fn unread() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

#[test]
fn a_plan_goes_on_though_nobody_reads_what_it_says() {
    let directory = tempfile::tempdir().unwrap();
    let made = |number: usize| directory.path().join(format!("made-{number}"));
    let step = |number| {
        let path = made(number).display().to_string();
        format!("[[step]]\nrun = {{ command = [\"touch\", \"{path}\"] }}\n")
    };
    let plan = directory.path().join("plan.toml");
    fs::write(&plan, (0..3).map(step).collect::<String>()).unwrap();
    let path = plan.display().to_string();
    let mut run = provost(&directory, &["plan", "run", &path]);
    let status = run.stdout(unread()).status().unwrap();
    assert!(
        status.success() && (0..3).all(|number| made(number).exists()),
        "{status}"
    );
    // How a command ends is its status, whether the reason is read or not.
    let mut again = provost(&directory, &["plan", "run", &path]);
    assert_eq!(again.stderr(unread()).status().unwrap().code(), Some(5));
}

#[test]
fn undoing_a_plan_that_was_never_run_says_that_there_is_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let plan = directory.path().join("plan.toml");
    fs::write(&plan, "[[step]]\nrun = { command = [\"true\"] }\n").unwrap();
    let path = plan.display().to_string();
    let undo = || output(provost(&directory, &["plan", "undo", &path]));
    let of_nothing = "there is nothing to undo";
    let never = undo();
    assert!(
        never.status.success() && text(&never.stdout).contains(of_nothing),
        "{never:?}"
    );
    assert!(!directory.path().join("plan.toml.journal").exists());
    let run = output(provost(&directory, &["plan", "run", &path]));
    assert!(run.status.success(), "{run:?}");
    let once = undo();
    assert!(
        once.status.success() && !text(&once.stdout).contains(of_nothing),
        "{once:?}"
    );
    let twice = undo();
    assert!(
        twice.status.success() && text(&twice.stdout).contains(of_nothing),
        "{twice:?}"
    );
}
