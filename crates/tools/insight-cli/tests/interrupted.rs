//! What stays of a measurement that an operator interrupts, as a terminal does it: the signal goes to the whole group.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, getpgid, kill_process, kill_process_group};
use serde_json::Value;

/// How long whatever is asked to end may take on a busy machine.
const END_TIME_MAX: Duration = Duration::from_secs(30);

/// A run in folders of its own, so that what it leaves behind is found: the proxies work where it does.
struct InterruptedRun {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStderr>>,
    folder: PathBuf,
}

impl InterruptedRun {
    fn start(folder: &Path, arguments: &[&str]) -> InterruptedRun {
        let temporary = folder.join("tmp");
        fs::create_dir_all(&temporary).unwrap();
        // Whoever started the tests may have had SIGHUP ignored.
        let mut child = Command::new("env")
            .args(["--default-signal=HUP", env!("CARGO_BIN_EXE_provost-insight")])
            .args(arguments)
            .current_dir(folder)
            .env("TMPDIR", temporary)
            .process_group(0)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = child.stderr.take().unwrap();
        InterruptedRun {
            child,
            lines: BufReader::new(stderr).lines(),
            folder: folder.to_owned(),
        }
    }

    /// Waits for a line, and returns those before it with it.
    fn until(&mut self, wanted: &str) -> Vec<String> {
        let mut seen = Vec::new();
        for line in &mut self.lines {
            seen.push(line.unwrap());
            if seen.last().is_some_and(|line| line.contains(wanted)) {
                return seen;
            }
        }
        panic!("no line has {wanted}: {seen:?}");
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// What ^C does at a terminal.
    fn interrupt(&self) {
        kill_process_group(self.pid(), Signal::INT).unwrap();
    }

    /// Programs that work in its folder.
    fn companions(&self) -> Vec<u32> {
        let entries = fs::read_dir("/proc").unwrap().flatten();
        let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let is_here = |id: &u32| fs::read_link(format!("/proc/{id}/cwd")).is_ok_and(|cwd| cwd == self.folder);
        ids.filter(|id| *id != self.child.id()).filter(is_here).collect()
    }

    /// Reads the rest, and makes sure that nobody is left.
    fn end(mut self) -> (Output, Vec<String>) {
        let seen: Vec<String> = (&mut self.lines).map_while(Result::ok).collect();
        let mut stdout = self.child.stdout.take().unwrap();
        let mut printed = Vec::new();
        std::io::Read::read_to_end(&mut stdout, &mut printed).unwrap();
        let status = self.child.wait().unwrap();
        let began = Instant::now();
        while !self.companions().is_empty() {
            assert!(
                began.elapsed() < END_TIME_MAX,
                "left behind: {:?}",
                self.companions()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        let output = Output {
            status,
            stdout: printed,
            stderr: Vec::new(),
        };
        (output, seen)
    }
}

/// A proxy that is installed, and whether the kernel grants tracing.
fn proxy_and_tracing() -> Option<(&'static str, bool)> {
    let doctor = Command::new(env!("CARGO_BIN_EXE_provost-insight"))
        .args(["doctor", "--json"])
        .output()
        .unwrap();
    let doctor: Value = serde_json::from_slice(&doctor.stdout).unwrap();
    let checks = doctor["checks"].as_array().unwrap();
    let granted = |name: &str| {
        checks
            .iter()
            .any(|check| check["name"] == name && check["granted"] == true)
    };
    let proxies = ["haproxy", "nginx"];
    let found = proxies.into_iter().find(|name| granted(&format!("proxy {name}")));
    if found.is_none() {
        provost_skip::missing("a proxy", "HAProxy: apt-get install haproxy");
    }
    Some((found?, granted("tp_btf/sys_enter")))
}

fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().canonicalize().unwrap();
    (folder, path)
}

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).unwrap().next().is_none()
}

fn run(folder: &Path, arguments: &str) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_provost-insight"))
        .args(arguments.split_whitespace())
        .current_dir(folder)
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&said).into_owned())
}

/// A profile of many rounds, which nobody waits for.
fn long_profile(proxy: &str) -> Vec<&str> {
    let load = ["--workload", "echo-http", "--sizes", "100", "--rates", "2000"];
    let length = [
        "--in-flight",
        "2",
        "--slice",
        "20",
        "--repetitions",
        "9000",
        "--out",
        "profile.json",
    ];
    [&["profile", "--proxy", proxy][..], &load, &length].concat()
}

#[test]
fn an_interrupted_profile_keeps_its_rounds_and_says_that_it_is_partial() {
    let Some((proxy, has_tracing)) = proxy_and_tracing() else {
        return;
    };
    let (_guard, folder) = folder();
    let mut profiling = InterruptedRun::start(&folder, &long_profile(proxy));
    profiling.until("round 2 of 9000 done");
    let companions = profiling.companions();
    assert!(!companions.is_empty(), "its proxy works where it does");
    // What a terminal sends to the tool's group is not for its proxies.
    for companion in companions {
        let group = getpgid(Pid::from_raw(companion.cast_signed())).unwrap();
        assert_ne!(group, profiling.pid());
    }
    let began = Instant::now();
    profiling.interrupt();
    let (output, said) = profiling.end();
    assert!(began.elapsed() < END_TIME_MAX);
    assert_eq!(output.status.code(), Some(1), "{said:?}");
    let said = said.join("\n");
    assert!(
        said.contains("SIGINT: stopping; what was measured is kept"),
        "{said}"
    );
    assert!(said.contains("the profile is partial: ended after"), "{said}");
    assert!(is_empty(&folder.join("tmp")), "its temporary folders are removed");
    let text = fs::read_to_string(folder.join("profile.json")).unwrap();
    let profile: Value = serde_json::from_str(&text).unwrap();
    let why = profile["partial"].as_str().unwrap();
    assert!(why.ends_with("stopped by SIGINT"), "{why}");
    let whole = profile["whole_rounds"].as_u64().unwrap();
    assert!(whole >= 2, "{whole}");
    assert!(profile["totals"].as_array().unwrap().len() as u64 >= 3 * whole);
    if !has_tracing {
        return provost_skip::forbidden("the kernel grants no BPF tracepoints: there is nothing to fit");
    }
    let says = format!("the profile is partial: {why}; {whole} whole rounds count");
    let (status, fitted) = run(&folder, "fit profile.json");
    assert_eq!(status, Some(0), "{fitted}");
    assert!(fitted.contains(&format!("note: {says}")), "{fitted}");
    let traces = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/insight/traces.json");
    run(&folder, &format!("acg derive {traces} --out acg.yaml"));
    let predict = "predict acg.yaml --profile profile.json --mode http1 --draws 10 --samples 20";
    let (status, predicted) = run(&folder, predict);
    assert_eq!(status, Some(0), "{predicted}");
    let words: Vec<&str> = predicted.split_whitespace().collect();
    assert!(words.join(" ").contains(&says), "{predicted}");
    // With what is left of one whole round there is no interval.
    fs::write(
        folder.join("one.json"),
        text.replace(&format!("\"whole_rounds\": {whole}"), "\"whole_rounds\": 1"),
    )
    .unwrap();
    let (status, refused) = run(&folder, &predict.replace("profile.json", "one.json"));
    assert_eq!(status, Some(5), "{refused}");
    assert!(
        refused.contains("1 whole round") && refused.contains("stopped by SIGINT"),
        "{refused}"
    );
}

#[test]
fn an_interrupted_validation_keeps_what_it_measured() {
    let Some((proxy, _)) = proxy_and_tracing() else {
        return;
    };
    let (_guard, folder) = folder();
    let kind = ["--proxy", proxy, "--protocol", "http1", "--shape", "chain"];
    let length = ["--quick", "--rounds", "9000"];
    let outcome = ["--json", "--profile-out", "profile.json"];
    let arguments = [&["validate"][..], &kind, &length, &outcome].concat();
    let mut validating = InterruptedRun::start(&folder, &arguments);
    validating.until("round 1 of 9000 done");
    validating.interrupt();
    let (output, said) = validating.end();
    assert_eq!(output.status.code(), Some(1), "{said:?}");
    assert!(is_empty(&folder.join("tmp")));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let partial = report["partial"].as_str().unwrap();
    assert!(partial.contains("stopped by SIGINT"), "{partial}");
    // Of one round nothing is predicted.
    let kept = &report["unpredicted"][0];
    assert_eq!(kept["name"], "chain http1 100 B", "{report}");
    assert_eq!(kept["rounds"], 1);
    assert!(
        kept["base_us"].as_f64() > Some(0.0) && kept["cpu_us"].as_f64() > Some(0.0),
        "{report}"
    );
    let profile = fs::read_to_string(folder.join("profile.json")).unwrap();
    assert!(profile.contains("stopped by SIGINT"));
}

#[test]
fn what_never_served_and_ignores_signals_ends_all_the_same() {
    let (_guard, folder) = folder();
    let script = folder.join("deaf.sh");
    fs::write(
        &script,
        "trap '' TERM INT\nsleep 1000 &\nwhile :; do sleep 1000; done\n",
    )
    .unwrap();
    let command = format!("/bin/sh {}", script.display());
    let arguments = ["profile", "--proxy", &command, "--workload", "echo-tcp"];
    let start = || {
        let run = InterruptedRun::start(&folder, &arguments);
        let began = Instant::now();
        // The shell and what it has started.
        while run.companions().len() < 3 {
            assert!(began.elapsed() < END_TIME_MAX);
            std::thread::sleep(Duration::from_millis(10));
        }
        run
    };
    let once = start();
    once.interrupt();
    let (output, said) = once.end();
    assert_eq!(output.status.code(), Some(1));
    let said = said.join("\n");
    assert!(
        said.contains("stopped by SIGINT before anything was measured"),
        "{said}"
    );
    // A terminal that goes away, of which the shell tells, and then the kernel.
    let mut once = start();
    kill_process_group(once.pid(), Signal::HUP).unwrap();
    once.until("SIGHUP: stopping");
    kill_process(once.pid(), Signal::HUP).unwrap();
    let (output, said) = once.end();
    assert_eq!(output.status.code(), Some(1));
    let said = said.join("\n");
    assert!(
        said.contains("stopped by SIGHUP before anything was measured"),
        "{said}"
    );
    // While the first one is obeyed, which takes a while here, the second one ends everything at once.
    let mut twice = start();
    twice.interrupt();
    twice.until("SIGINT: stopping");
    kill_process(twice.pid(), Signal::TERM).unwrap();
    let (output, _) = twice.end();
    assert_eq!(output.status.code(), Some(128 + 15));
}

#[test]
fn a_killed_profile_leaves_no_proxy_behind() {
    let Some((proxy, _)) = proxy_and_tracing() else {
        return;
    };
    if !Path::new("/usr/bin/setpriv").exists() {
        return provost_skip::missing("setpriv", "apt-get install util-linux");
    }
    let (_guard, folder) = folder();
    let mut profiling = InterruptedRun::start(&folder, &long_profile(proxy));
    profiling.until("round 1 of 9000 done");
    assert!(!profiling.companions().is_empty());
    kill_process(profiling.pid(), Signal::KILL).unwrap();
    let (output, _) = profiling.end();
    assert!(!output.status.success());
}
