//! `cargo xtask bench insight` as one interrupts it.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use provost_insight_probes::proxies::ProxyKind;
use rustix::process::{Pid, Signal, kill_process_group};

#[test]
fn an_interrupted_bench_prints_what_it_measured_and_what_it_did_not() {
    if ProxyKind::Haproxy.program().is_err() {
        return provost_skip::missing("haproxy", ProxyKind::Haproxy.remedy());
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bench.json");
    let mut bench = Command::new(env!("CARGO_BIN_EXE_provost-insight-bench"))
        .args(["--quick", "--only", "haproxy", "--json"])
        .arg(&file)
        .process_group(0)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(bench.stderr.take().unwrap()).lines();
    let seen: Vec<String> = (&mut lines)
        .map_while(Result::ok)
        .take_while(|line| !line.contains("round 2 of 8 done"))
        .collect();
    kill_process_group(Pid::from_child(&bench), Signal::INT).unwrap();
    let rest: Vec<String> = lines.map_while(Result::ok).collect();
    let status = bench.wait().unwrap();
    assert_eq!(status.code(), Some(1), "{seen:?} {rest:?}");
    let text = std::fs::read_to_string(&file).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let partial = json["partial"].as_str().unwrap();
    assert!(partial.contains("stopped by SIGINT"), "{partial}");
    let cells = json["cells"].as_array().unwrap();
    let added = cells
        .iter()
        .find(|cell| cell["setup"] == "haproxy tcp 100 B" || cell["what"] == "added 100 B c=1");
    assert!(
        added.is_some_and(|cell| cell["runs"].as_array().is_some_and(|runs| runs.len() >= 2)),
        "{text}"
    );
    let missing = json["missing"].to_string();
    for part in [
        "haproxy tcp, whole: ended after",
        "haproxy http1: stopped by SIGINT",
        "predict haproxy",
    ] {
        assert!(missing.contains(part), "{missing}");
    }
}
