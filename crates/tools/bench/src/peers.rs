//! Calls between two processes without a node, by what others have for that: iceoryx2 and shmipc. Their crates are dependencies of
//! `provost-bench-peers` alone, a package outside the workspace, which is built when it is asked for, and left out where it
//! cannot be.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use crate::envoy::cache_folder;
use crate::failure::{Doing, Failure};
use crate::foreign::{absolute, built};
use crate::load;
use crate::report::{Load, Report};

/// Where the package is.
const MANIFEST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../bench-peers/Cargo.toml");

/// What carries calls, and how it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum NodelessPeer {
    /// Polls for a while, yielding its core, before it sleeps.
    Iceoryx2,
    /// Sleeps as soon as there is nothing to do.
    Iceoryx2Sleeping,
    /// Sleeps so, as it always does.
    Shmipc,
}

impl NodelessPeer {
    /// As tables have it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            NodelessPeer::Iceoryx2 => "iceoryx2",
            NodelessPeer::Iceoryx2Sleeping => "iceoryx2 sleeping",
            NodelessPeer::Shmipc => "shmipc",
        }
    }

    /// As the program has it.
    fn word(self) -> &'static str {
        match self {
            NodelessPeer::Iceoryx2 => "iceoryx2",
            NodelessPeer::Iceoryx2Sleeping => "iceoryx2-sleeping",
            NodelessPeer::Shmipc => "shmipc",
        }
    }

    /// Arguments that have it answer there, and make a file when it does.
    pub(crate) fn server_arguments(self, address: &Path, ready: &Path) -> [String; 4] {
        let path = |path: &Path| path.to_string_lossy().into_owned();
        ["serve".into(), self.word().into(), path(address), path(ready)]
    }

    /// Arguments that have it call there.
    fn client_arguments(self, address: &str, load: &Load) -> [String; 5] {
        [
            "call".into(),
            self.word().into(),
            address.into(),
            load.size_bytes.to_string(),
            load.calls_in_flight.to_string(),
        ]
    }
}

/// The program, which is built when it is first asked for.
///
/// # Errors
/// It cannot be built here.
pub(crate) fn program() -> Result<PathBuf, Failure> {
    // Asked for in each round; a build that fails is tried once.
    static PROGRAM: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| build().map_err(|failure| failure.to_string()));
    program.clone().map_err(Failure::Unavailable)
}

fn build() -> Result<PathBuf, Failure> {
    let folder = absolute(&cache_folder().join("peers"))?;
    if !folder.join("release").exists() {
        eprintln!("building iceoryx2 and shmipc into {}", folder.display());
    }
    let mut cargo = Command::new("cargo");
    cargo.args([
        "build",
        "--quiet",
        "--locked",
        "--release",
        "--manifest-path",
        MANIFEST,
    ]);
    cargo.arg("--target-dir").arg(&folder);
    // Whoever builds this workspace with lints builds a program of others without.
    cargo.env_remove("RUSTC_WORKSPACE_WRAPPER");
    built(
        &mut cargo,
        "provost-bench-peers",
        "cargo, its sources and crates.io",
    )?;
    Ok(folder.join("release/provost-bench-peers"))
}

/// Has a client make load on a server.
pub(crate) fn load(
    peer: NodelessPeer,
    program: &Path,
    address: &str,
    load: &Load,
) -> Result<Report, Failure> {
    let no_pipe = || Failure::role("client", "has no pipe");
    let mut child = Command::new(program)
        .args(peer.client_arguments(address, load))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .doing(|| format!("start {}", program.display()))?;
    let mut input = child.stdin.take().ok_or_else(no_pipe)?;
    let mut output = BufReader::new(child.stdout.take().ok_or_else(no_pipe)?);
    let mut said = String::new();
    output
        .read_line(&mut said)
        .doing(|| "read what the client says".into())?;
    if said != "ready\n" {
        return Err(Failure::role(
            "client",
            format!("said '{said}' instead of being ready"),
        ));
    }
    let window = load::watch(load, child.id(), |is_measuring| {
        // A client that has ended has not said what it came to, which is seen below.
        let _ = writeln!(input, "{}", if is_measuring { "measure" } else { "stop" });
    });
    said.clear();
    output
        .read_to_string(&mut said)
        .doing(|| "read what the client says".into())?;
    let status = child.wait().doing(|| "wait for the client".into())?;
    if !status.success() {
        return Err(Failure::role("client", format!("failed ({status})")));
    }
    Ok(window.beside(load, read(&said)?))
}

/// What a client says at its end.
fn read(said: &str) -> Result<Report, Failure> {
    serde_json::from_str(said)
        .map_err(|error| Failure::role("client", format!("said what is no report: {error}")))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn load_of(seconds: f64) -> Load {
        Load {
            size_bytes: 32,
            calls_in_flight: 64,
            interval_us: 0,
            connections: 1,
            warmup_seconds: 0.0,
            seconds,
            watched: Vec::new(),
            cores: vec![0],
            traffic: Default::default(),
        }
    }

    /// A client that says what it was called with and told where its calls are counted.
    fn client_that_says(text: &str, folder: &Path) -> PathBuf {
        let path = folder.join("client");
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
        path
    }

    #[test]
    fn a_client_is_told_when_to_measure_and_its_report_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let told = folder.path().join("told");
        let report = serde_json::to_string(&Report {
            count: 50,
            rps: 1_000.0,
            p50_us: 7.0,
            ..Report::default()
        });
        let script = format!(
            "echo \"$@\" > {told}; echo ready; read a; read b; echo $a $b >> {told}; echo '{report}'",
            told = told.display(),
            report = report.unwrap(),
        );
        let program = client_that_says(&script, folder.path());
        let report = load(NodelessPeer::Iceoryx2Sleeping, &program, "there", &load_of(0.01)).unwrap();
        assert_eq!((report.count, report.p50_us), (50, 7.0));
        assert_eq!(report.gbps, 1_000.0 * 32.0 * 8.0 / 1e9);
        assert!(report.cpu_seconds.contains_key("client"));
        let told = std::fs::read_to_string(told).unwrap();
        assert_eq!(told, "call iceoryx2-sleeping there 32 64\nmeasure stop\n");
    }

    #[test]
    fn a_client_that_fails_has_no_figures() {
        let folder = tempfile::tempdir().unwrap();
        let report = serde_json::to_string(&Report::default()).unwrap();
        let says = |end: &str| format!("echo ready; read a; read b; {end}");
        for script in [
            "exit 1".into(),
            "echo ready; exit 1".into(),
            says("echo nothing"),
            says(&format!("echo '{report}'; exit 1")),
        ] {
            let program = client_that_says(&script, folder.path());
            assert!(
                load(NodelessPeer::Shmipc, &program, "there", &load_of(0.01)).is_err(),
                "{script}"
            );
        }
    }
}
