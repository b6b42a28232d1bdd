//! `provost insight` as a user runs it, on the files that the documentation has.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use provost_insight::profile::Protocol;
use provost_insight_probes::StopSignal;
use provost_insight_probes::proxies::{ProxyJob, ProxyKind, RunningProxy, ServerAddress, free_address};

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/insight");

fn insight(folder: &Path, arguments: &str) -> Output {
    let arguments = arguments.replace("EXAMPLES", EXAMPLES);
    Command::new(env!("CARGO_BIN_EXE_provost-insight"))
        .args(arguments.split_whitespace())
        .current_dir(folder)
        .output()
        .unwrap()
}

fn stdout(output: &Output) -> String {
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A folder with the graph of the documentation's traces.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let derived = insight(
        folder.path(),
        "acg derive EXAMPLES/traces.json --machine synthetic --out acg.yaml",
    );
    stdout(&derived);
    assert!(
        stderr(&derived).starts_with("220 spans, 40 traces"),
        "{}",
        stderr(&derived)
    );
    folder
}

#[test]
fn what_was_there_stays_when_its_successor_cannot_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("acg.yaml");
    fs::write(&path, "as it was").unwrap();
    // As on a disk that is full: no file takes a byte.
    let script =
        format!("trap '' XFSZ; ulimit -f 0; exec \"$0\" acg derive {EXAMPLES}/traces.json --out acg.yaml");
    let output = Command::new("/bin/sh")
        .args(["-c", &script, env!("CARGO_BIN_EXE_provost-insight")])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert!(!output.status.success());
    assert!(stderr(&output).contains("acg.yaml: "), "{}", stderr(&output));
    assert_eq!(fs::read_to_string(&path).unwrap(), "as it was");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn from_traces_to_a_decision() {
    let folder = folder();
    let run = |arguments: &str| insight(folder.path(), arguments);
    assert!(stdout(&run("acg validate acg.yaml")).contains("4 services, 1 type of request, 4 calls"));
    let drawn = stdout(&run("acg show acg.yaml"));
    assert!(
        drawn.contains("reviews") && drawn.contains("25 % of the time"),
        "{drawn}"
    );
    let model = "--profile EXAMPLES/profile-proxy.json --draws 20 --samples 200";
    let predicted = stdout(&run(&format!("predict acg.yaml {model} --add-filter lua")));
    assert!(
        predicted.contains("filter:lua") && predicted.contains("is synthetic"),
        "{predicted}"
    );
    let json = stdout(&run(&format!("predict acg.yaml {model} --json")));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let p99 = json["prediction"]["added_us"]["p99"].clone();
    assert!(p99["low"].as_f64() <= p99["value"].as_f64() && p99["value"].as_f64() <= p99["high"].as_f64());
    let changes = stdout(&run(&format!(
        "whatif acg.yaml {model} --change parse/2 --change mode=tcp"
    )));
    assert!(changes.find("mode=tcp") < changes.find("parse/2"), "{changes}");
    let compared = stdout(&run(&format!(
        "compare acg.yaml {model} --provost EXAMPLES/profile-provost.json"
    )));
    for setup in ["no mesh", "example-proxy on every node", "example-node-service"] {
        assert!(compared.contains(setup), "{compared}");
    }
}

#[test]
fn a_budget_decides_the_exit_status() {
    let folder = folder();
    let model = "--profile EXAMPLES/profile-proxy.json --draws 5 --samples 50";
    let kept = insight(
        folder.path(),
        &format!("predict acg.yaml {model} --max-added-p99 1s --max-cores 100"),
    );
    stdout(&kept);
    let exceeded = insight(
        folder.path(),
        &format!("predict acg.yaml {model} --max-added-p99 1us"),
    );
    assert_eq!(exceeded.status.code(), Some(1));
    assert!(
        stderr(&exceeded).contains("over budget: shop GET /page: added p99"),
        "{}",
        stderr(&exceeded)
    );
}

#[test]
fn what_cannot_be_used_is_refused_with_its_place() {
    let folder = folder();
    let refused = |arguments: &str| {
        let output = insight(folder.path(), arguments);
        assert_eq!(output.status.code(), Some(5), "{arguments}: {}", stderr(&output));
        stderr(&output)
    };
    let text = fs::read_to_string(folder.path().join("acg.yaml")).unwrap();
    fs::write(
        folder.path().join("elsewhere.yaml"),
        text.replace("machine: synthetic", "machine: other"),
    )
    .unwrap();
    let elsewhere = "predict elsewhere.yaml --profile EXAMPLES/profile-proxy.json";
    assert!(refused(elsewhere).contains("--rescale"));
    let rescaled = insight(
        folder.path(),
        &format!("{elsewhere} --rescale 1.5 --rescale-error 20 --draws 5 --samples 50"),
    );
    assert!(stdout(&rescaled).contains("rescaled from another machine by 1.5 ± 20 %"));
    fs::write(
        folder.path().join("cycle.yaml"),
        text.replace("id: shop\n", "id: shop\n    from: stock\n"),
    )
    .unwrap();
    assert!(refused("acg show cycle.yaml").contains("no call comes from outside"));
    fs::write(
        folder.path().join("old.json"),
        "{\"format\":\"provost-insight-profile\",\"version\":0}",
    )
    .unwrap();
    assert!(refused("fit old.json").contains("version 0"));
    // Files in each other's place, and folders in that of files.
    assert!(refused("predict acg.yaml --profile acg.yaml").contains("no profile: one is JSON"));
    assert!(
        refused("predict EXAMPLES/profile-proxy.json --profile EXAMPLES/profile-proxy.json")
            .contains("a profile, and no graph")
    );
    let model = "--profile EXAMPLES/profile-proxy.json";
    assert!(refused(&format!("compare acg.yaml {model} --provost acg.yaml")).contains("no profile"));
    assert!(refused(&format!("report acg.yaml {model} --validation acg.yaml")).contains("validate --json"));
    fs::write(
        folder.path().join("unknown.yaml"),
        text.replace("machine: synthetic", "machin: synthetic"),
    )
    .unwrap();
    let unknown = refused("acg show unknown.yaml");
    assert!(
        unknown.contains("unknown field `machin`") && unknown.matches("line ").count() == 1,
        "{unknown}"
    );
    for (arguments, says) in [
        (
            "profile --proxy haproxy --out /nowhere/profile.json",
            "/nowhere/profile.json: No such file",
        ),
        ("profile --proxy haproxy --out .", "Is a directory"),
        ("profile --proxy haproxy --slice 0", "0 is not in 1.."),
        ("profile --proxy haproxy --repetitions 0", "0 is not in 1.."),
        ("profile --proxy haproxy --rates 0", "0 calls a second is no rate"),
        (
            "profile --proxy haproxy --rates 500,nan",
            "NaN calls a second is no rate",
        ),
        (
            "profile --proxy haproxy --repetitions 4000000000",
            "more than a profile has room for",
        ),
        (
            "profile --proxy haproxy --filter lua",
            "of Envoy and provostd only",
        ),
        (
            "profile --proxy envoy --workload echo-tcp --filter lua",
            "over plain TCP no filter",
        ),
        (
            "profile --proxy haproxy --upstream-port 80",
            "for a proxy that runs already",
        ),
        (
            "validate --proxy haproxy --sizes 99999999999",
            "messages have at most",
        ),
        (
            "predict acg.yaml --profile x.json --draws 0",
            "0 is not in 1..=2000",
        ),
        (
            "predict acg.yaml --profile x.json --samples 0",
            "0 is not in 1..=1000000",
        ),
        (
            "predict acg.yaml --profile x.json --rescale 1e300 --rescale-error 5",
            "a number above 0 is needed",
        ),
        (
            "predict-traces x.json --profile x.json --request-bytes inf",
            "a number above 0 is needed",
        ),
        (
            "acg derive EXAMPLES/traces.json --sampled 5",
            "a share above 0 is needed",
        ),
        ("acg derive EXAMPLES/traces.json --requests 0", "0 is not in 1.."),
        (
            "acg derive EXAMPLES/traces.json --metrics-seconds 60",
            "--metrics-before",
        ),
        ("fit .", "Is a directory"),
        ("profil", "a similar subcommand exists: 'profile'"),
    ] {
        let output = insight(folder.path(), arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments}: {}", stderr(&output));
        assert!(stderr(&output).contains(says), "{arguments}: {}", stderr(&output));
    }
    fs::write(folder.path().join("text.txt"), "hello").unwrap();
    assert!(refused("acg derive text.txt").contains("--format"));
}

/// The user nobody, who has no capability, with programs that he can run.
struct UnprivilegedUser {
    folder: tempfile::TempDir,
    /// Programs of proxies, by the variables that name them.
    programs: Vec<(&'static str, std::path::PathBuf)>,
}

impl UnprivilegedUser {
    /// `None` where nobody can give up privileges.
    fn new() -> Option<UnprivilegedUser> {
        let is_root =
            fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
        if !is_root || !Path::new(UnprivilegedUser::SETPRIV).exists() {
            provost_skip::forbidden("only root can give up privileges, and setpriv does that");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(folder.path(), mode).unwrap();
        let mut nobody = UnprivilegedUser {
            folder,
            programs: Vec::new(),
        };
        nobody.give(
            Path::new(env!("CARGO_BIN_EXE_provost-insight")),
            "provost-insight",
        );
        Some(nobody)
    }

    const SETPRIV: &str = "/usr/bin/setpriv";
    const ID: &str = "65534";

    /// Puts a program where he can read it.
    fn give(&mut self, program: &Path, name: &str) -> std::path::PathBuf {
        let given = self.folder.path().join(name);
        if fs::hard_link(program, &given).is_err() {
            fs::copy(program, &given).unwrap();
        }
        given
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let user = [
            "--reuid",
            UnprivilegedUser::ID,
            "--regid",
            UnprivilegedUser::ID,
            "--clear-groups",
        ];
        Command::new(UnprivilegedUser::SETPRIV)
            .args(user)
            .args(["--no-new-privs", "--"])
            .arg(self.folder.path().join("provost-insight"))
            .args(arguments)
            .envs(self.programs.iter().map(|(name, path)| (name, path)))
            .current_dir("/")
            .output()
            .unwrap()
    }
}

/// A profile of few calls.
const BRIEF: [&str; 5] = ["--quick", "--repetitions", "1", "--slice", "50"];

/// What is missing is said with what to do, and sums are measured all the same.
#[test]
fn without_privileges_there_are_remedies_and_sums() {
    let Some(nobody) = UnprivilegedUser::new() else {
        return;
    };
    let run = |arguments: &[&str]| nobody.run(arguments);
    let report: serde_json::Value = serde_json::from_str(&stdout(&run(&["doctor", "--json"]))).unwrap();
    let checks = report["checks"].as_array().unwrap();
    let named = |name: &str| checks.iter().find(|check| check["name"] == name).unwrap();
    let tracing = named("tp_btf/sys_enter");
    assert_eq!(tracing["granted"], false);
    assert!(
        tracing["remedy"].as_str().unwrap().contains("CAP_BPF"),
        "{tracing}"
    );
    assert!(!tracing["detail"].as_str().unwrap().is_empty());
    sums_are_measured(
        run,
        checks,
        &["only sums were measured; see `provost insight doctor`"],
    );
}

/// A profile where tracepoints tell nothing: it has sums alone, and its notes say why.
fn sums_are_measured(run: impl Fn(&[&str]) -> Output, checks: &[serde_json::Value], notes_have: &[&str]) {
    let is_granted = |check: &str| {
        checks
            .iter()
            .any(|one| one["name"] == check && one["granted"] == true)
    };
    let Some(proxy) = ["nginx", "haproxy"]
        .into_iter()
        .find(|name| is_granted(&format!("proxy {name}")))
    else {
        return provost_skip::missing("a proxy", "nginx or HAProxy: apt-get install haproxy");
    };
    let brief = [
        &["profile", "--proxy", proxy, "--workload", "echo-http"][..],
        &BRIEF,
    ];
    let profile: serde_json::Value = serde_json::from_str(&stdout(&run(&brief.concat()))).unwrap();
    let notes = profile["notes"].to_string();
    assert!(notes_have.iter().all(|part| notes.contains(part)), "{notes}");
    assert_eq!(profile["observations"].as_array().map(Vec::len), Some(0));
    assert_eq!(profile["totals"].as_array().map(Vec::len), Some(2));
}

/// In a container the tool sees other numbers than the kernel's tracepoints have: nothing that they write down would be the proxy's.
#[test]
fn in_a_pid_namespace_of_its_own_there_are_sums_and_the_reason() {
    const UNSHARE: &str = "/usr/bin/unshare";
    let run = |arguments: &[&str]| {
        Command::new(UNSHARE)
            .args(["--pid", "--fork", "--mount-proc", "--kill-child", "--"])
            .arg(env!("CARGO_BIN_EXE_provost-insight"))
            .args(arguments)
            .output()
            .unwrap()
    };
    if !Path::new(UNSHARE).exists() || !run(&["--version"]).status.success() {
        return provost_skip::forbidden("nobody but root makes PID namespaces, and unshare does that");
    }
    let report: serde_json::Value = serde_json::from_str(&stdout(&run(&["doctor", "--json"]))).unwrap();
    let checks = report["checks"].as_array().unwrap();
    let named = |name: &str| checks.iter().find(|check| check["name"] == name).unwrap();
    let numbers = named("process numbers");
    assert_eq!(numbers["granted"], false);
    assert!(
        numbers["remedy"].as_str().unwrap().contains("--pid=host"),
        "{numbers}"
    );
    let methods = report["methods"].as_array().unwrap();
    let read = methods.iter().find(|one| one["component"] == "read").unwrap();
    assert_eq!(read["method"], serde_json::Value::Null);
    let notes_have = ["in a PID namespace of its own", "only sums were measured"];
    sums_are_measured(run, checks, &notes_have);
}

/// Envoy is measured by its access log: the best rung that is left.
#[test]
fn without_privileges_envoy_is_measured_by_its_access_log() {
    let Some(mut nobody) = UnprivilegedUser::new() else {
        return;
    };
    let Ok(envoy) = ProxyKind::Envoy.program() else {
        return provost_skip::missing("envoy", ProxyKind::Envoy.remedy());
    };
    let given = nobody.give(&envoy, "envoy");
    nobody.programs.push(("ENVOY_BIN", given));
    let arguments = [
        &["profile", "--proxy", "envoy", "--workload", "echo-http"][..],
        &BRIEF,
    ];
    let text = stdout(&nobody.run(&arguments.concat()));
    let profile: serde_json::Value = serde_json::from_str(&text).unwrap();
    let notes = profile["notes"].to_string();
    let says = "the kernel grants no BPF tracepoints: sums were measured, and what the access log tells; see `provost insight doctor`";
    assert!(notes.contains(says), "{notes}");
    let entries = |name: &str| profile[name].as_array().unwrap().clone();
    let granted = |method: &str| {
        let ladder = entries("ladder");
        let rung = ladder.iter().find(|rung| rung["method"] == method).unwrap();
        rung["granted"].as_bool().unwrap()
    };
    assert!(granted("access_log") && !granted("tp_btf"), "{text}");
    // Of each size what Envoy takes within itself, and the rest.
    assert_eq!((entries("totals").len(), entries("observations").len()), (2, 4));
    let methods = entries("methods");
    let within = methods
        .iter()
        .find(|one| one["component"] == "other_user")
        .unwrap();
    assert_eq!(within["method"], "access_log");
    assert!(within["overhead_us_per_message"].is_number(), "{methods:?}");
}

/// What another user has started is measured by sums, though its program is hidden.
#[test]
fn without_privileges_another_users_proxy_has_sums() {
    let Some(nobody) = UnprivilegedUser::new() else {
        return;
    };
    if ProxyKind::Haproxy.program().is_err() {
        return provost_skip::missing("haproxy", ProxyKind::Haproxy.remedy());
    }
    let upstream = free_address().unwrap();
    let job = ProxyJob {
        protocol: Protocol::Http1,
        listen: free_address().unwrap(),
        upstream: ServerAddress::Tcp(upstream),
        filters: vec![],
        variant: None,
        access_log: None,
    };
    let proxy = RunningProxy::start(ProxyKind::Haproxy, &job, &StopSignal::never()).unwrap();
    let process = proxy.processes()[0].to_string();
    let (listen, port) = (job.listen.to_string(), upstream.port().to_string());
    let whose = ["profile", "--proxy", &process, "--workload", "echo-http"];
    let place = ["--listen", &listen, "--upstream-port", &port];
    let arguments = [&whose[..], &place, &BRIEF].concat();
    let profile: serde_json::Value = serde_json::from_str(&stdout(&nobody.run(&arguments))).unwrap();
    assert_eq!(profile["proxy"]["name"], "haproxy");
    let totals = profile["totals"].as_array().unwrap();
    assert!(
        totals.len() == 2 && totals.iter().all(|one| one["added_cpu_us"].as_f64() > Some(0.0)),
        "{totals:?}"
    );
    drop(proxy);
    let ended = nobody.run(&arguments);
    assert_eq!(ended.status.code(), Some(1));
    let why = stderr(&ended);
    assert!(
        why.contains(&format!(
            "there is no process {process}, or none that this user can see"
        )),
        "{why}"
    );
}

#[test]
fn an_application_is_measured_beside_its_prediction_and_the_profile_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &str| insight(folder.path(), &format!("validate {arguments}"));
    let doctor = stdout(&insight(folder.path(), "doctor --json"));
    let doctor: serde_json::Value = serde_json::from_str(&doctor).unwrap();
    let is_there = |check: &&serde_json::Value| check["name"] == "proxy haproxy" && check["granted"] == true;
    if doctor["checks"]
        .as_array()
        .unwrap()
        .iter()
        .find(is_there)
        .is_none()
    {
        return provost_skip::missing("a proxy", "HAProxy: apt-get install haproxy");
    }
    let brief = "--proxy haproxy --protocol tcp --shape chain --rounds 1 --quick";
    let report = stdout(&run(&format!("{brief} --json --profile-out profile.json")));
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    let [chain] = report["applications"].as_array().unwrap().as_slice() else {
        panic!("one was asked for: {report}");
    };
    assert_eq!(chain["name"], "chain tcp 100 B");
    assert_eq!(chain["proxies"], 3);
    let predicted = &chain["predicted_added_us"];
    let within = |low: &str, high: &str| predicted[low].as_f64() <= predicted[high].as_f64();
    assert!(within("low", "value") && within("value", "high"), "{predicted}");
    for measured in ["base_us", "measured_cpu_us"] {
        assert!(chain[measured].as_f64() > Some(0.0), "{measured}: {chain}");
    }
    let fitted = stdout(&insight(folder.path(), "fit profile.json"));
    assert!(fitted.contains("ipc"), "{fitted}");
    // What cannot be is refused before anything is measured.
    for (arguments, status, reason) in [
        ("--rounds 0", 2, "0 is not in 1.."),
        (
            "--proxy nobody-has-this",
            5,
            "neither a proxy that this tool configures (envoy, nginx, haproxy, provostd) nor a program",
        ),
        (
            "--proxy haproxy --profile-out /nowhere/profile.json",
            2,
            "/nowhere/profile.json: No such file",
        ),
        ("--proxy haproxy --sizes 99999999999", 2, "at most 67108864 bytes"),
    ] {
        let refused = run(arguments);
        assert_eq!(
            refused.status.code(),
            Some(status),
            "{arguments}: {}",
            stderr(&refused)
        );
        assert!(stderr(&refused).contains(reason), "{}", stderr(&refused));
    }
}

#[test]
fn fits_and_single_traces_are_shown() {
    let folder = folder();
    let fitted = stdout(&insight(
        folder.path(),
        "fit EXAMPLES/profile-provost.json --out again.json",
    ));
    assert!(fitted.contains("wakeup"), "{fitted}");
    let again = stdout(&insight(folder.path(), "fit again.json --json"));
    assert!(again.contains("\"repetitions\": 4"), "{again}");
    let each = "predict-traces EXAMPLES/traces.json --profile EXAMPLES/profile-proxy.json --machine synthetic --draws 10";
    assert!(stdout(&insight(folder.path(), each)).contains("99 %"));
}

#[test]
fn the_report_is_drawn_by_a_browser() {
    let folder = folder();
    let report = "report acg.yaml --profile EXAMPLES/profile-proxy.json --provost EXAMPLES/profile-provost.json --add-filter lua \
                  --draws 20 --samples 200 --out report.html";
    stdout(&insight(folder.path(), report));
    let page = fs::read_to_string(folder.path().join("report.html")).unwrap();
    assert!(page.contains("</html>") && !page.contains("<script"));
    let Some(browser) = browser() else {
        return provost_skip::forbidden("no Chromium is installed, so nobody looked at the report");
    };
    let image = folder.path().join("report.png");
    let mut drawing = Command::new(browser)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--window-size=1000,3000",
        ])
        .arg(format!(
            "--user-data-dir={}",
            folder.path().join("browser").display()
        ))
        .arg(format!("--screenshot={}", image.display()))
        .arg(format!("file://{}", folder.path().join("report.html").display()))
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let begin = Instant::now();
    while drawing.try_wait().unwrap().is_none() {
        if begin.elapsed() > Duration::from_secs(120) {
            drawing.kill().unwrap();
            drawing.wait().unwrap();
            panic!("the browser does not end");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let drawn = fs::metadata(&image).unwrap().len();
    // A page of this size without anything on it is far smaller.
    assert!(drawn > 50_000, "{drawn} bytes");
}

fn browser() -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .flat_map(|folder| ["chromium", "chromium-browser", "google-chrome"].map(|name| folder.join(name)))
        .find(|candidate| candidate.is_file())
}
