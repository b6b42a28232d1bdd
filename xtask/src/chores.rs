//! Chores that start other programs of the workspace.

use std::path::PathBuf;
use std::process::Command;

use crate::workspace::{Workspace, WorkspaceError, replace_with, run};
use crate::{Complaints, hw};

/// What to do with golden files.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum GoldenMode {
    /// Compare them with what the code makes now.
    Check,
    /// Write them anew.
    Bless,
}

/// Packages with a test `golden`, which writes the golden files anew when a variable is set.
const GOLDEN_PACKAGES: [&str; 3] = ["provost-marshal", "provost-build", "provost-admin"];
/// Those variables.
const BLESS_VARIABLES: [&str; 2] = ["BLESS", "PROVOST_BLESS"];

/// Runs the golden tests.
pub(crate) fn codegen(workspace: &Workspace, golden: GoldenMode) -> Result<(), Complaints> {
    let mut arguments = vec!["test", "--quiet", "--test", "golden"];
    arguments.extend(GOLDEN_PACKAGES.iter().flat_map(|package| ["--package", package]));
    let mut command = workspace.cargo(&arguments);
    if golden == GoldenMode::Bless {
        command.envs(BLESS_VARIABLES.map(|variable| (variable, "1")));
    }
    reported(run(&mut command))
}

/// The folder of the documentation whose pictures are taken by a test.
const PICTURES_FOLDER: &str = "docs/operators";
/// The variable that names it to the test.
const PICTURES_VARIABLE: &str = "PROVOST_PICTURES";

/// Takes the pictures of the node's page anew, in Chromium.
pub(crate) fn pictures(workspace: &Workspace) -> Result<(), Complaints> {
    let arguments = [
        "test",
        "--quiet",
        "--package",
        "provost-e2e",
        "--test",
        "page",
        "--",
        "--ignored",
    ];
    let mut command = workspace.cargo(&arguments);
    command.env(PICTURES_VARIABLE, workspace.root.join(PICTURES_FOLDER));
    reported(run(&mut command))
}

/// Whether there is a DPDK to build against; else what is missing.
pub(crate) fn find_dpdk() -> Result<(), String> {
    const WANTED: &str = "libdpdk >= 22.11";
    let found = Command::new("pkg-config")
        .args(["--exists", "--print-errors", WANTED])
        .output();
    if found.is_ok_and(|output| output.status.success()) {
        return Ok(());
    }
    Err(format!(
        "pkg-config finds no {WANTED} (Debian: apt-get install libdpdk-dev pkg-config)"
    ))
}

/// Lints and tests the wire over DPDK.
pub(crate) fn dpdk(workspace: &Workspace) -> Result<(), Complaints> {
    find_dpdk().map_err(|missing| vec![missing])?;
    let packages = [
        "--package",
        "provost-dpdk",
        "--package",
        "provost-wire-tests",
        "--features",
        "dpdk",
    ];
    let lints = [
        &["clippy", "--quiet", "--all-targets"][..],
        &packages,
        &["--", "-D", "warnings"],
    ]
    .concat();
    reported(run(&mut workspace.cargo(&lints)))?;
    reported(run(&mut workspace.cargo(&[&["test"][..], &packages].concat())))
}

/// The profile of packages and of figures to publish.
const DIST: &str = "dist";

/// Builds what the benchmarks start (themselves and the service), then runs them.
pub(crate) fn bench(workspace: &Workspace, arguments: &[String]) -> Result<(), Complaints> {
    match arguments.split_first().map(|(first, rest)| (&**first, rest)) {
        Some((INSIGHT, rest)) => return bench_insight(workspace, rest),
        Some((NIC, rest)) => return bench_nic(workspace, rest),
        _ => {}
    }
    let mut build = workspace.cargo(&["build", "--quiet", "--profile", DIST]);
    build.args(["--package", "provost-bench", "--package", "provostd"]);
    reported(run(&mut build))?;
    reported(run(start_bench(workspace, DIST).args(arguments)))
}

/// The benchmark of `provost insight`, which starts nodes among the proxies that it measures.
pub(crate) const INSIGHT: &str = "insight";

fn bench_insight(workspace: &Workspace, arguments: &[String]) -> Result<(), Complaints> {
    let mut build = workspace.cargo(&["build", "--quiet", "--profile", DIST]);
    build.args(["--package", "provost-insight-probes", "--package", "provostd"]);
    reported(run(&mut build))?;
    let mut command = workspace.program(DIST, "provost-insight-bench");
    command.args(arguments).env(BENCH_CACHE, bench_cache(workspace));
    // It keeps what it has measured when it is interrupted; who waited for it would not.
    reported(Err(replace_with(&mut command)))
}

/// The benchmark of the simulated NIC, which starts no service.
pub(crate) const NIC: &str = "nic";
/// The datagram transport's figures that are shown beside the NIC's.
const BESIDE_NIC: [&str; 5] = [
    "datagram",
    "--quick",
    "--only",
    "provost shm lat,provost shm rate b=3",
    "--json",
];

fn bench_nic(workspace: &Workspace, arguments: &[String]) -> Result<(), Complaints> {
    let mut build = workspace.cargo(&["build", "--quiet", "--release", "--package", "provost-nic-bench"]);
    if hw::has_verilator() {
        build.args(["--features", "provost-nic-bench/verilator"]);
    }
    reported(run(&mut build))?;
    let mut command = workspace.program("release", "provost-nic-bench");
    command.args(arguments);
    let is_partial = |argument: &String| {
        ["--datagram", "--only", "--help", "-h"]
            .iter()
            .any(|option| argument.starts_with(option))
    };
    if !arguments.iter().any(is_partial) {
        let file = workspace.target.join("beside-nic.json");
        let package = ["--package", "provost-bench"];
        let build = [&["build", "--quiet", "--release"][..], &package].concat();
        reported(run(&mut workspace.cargo(&build)))?;
        reported(run(start_bench(workspace, "release").args(BESIDE_NIC).arg(&file)))?;
        command.arg("--datagram").arg(file);
    }
    reported(run(&mut command))
}

/// Whether the benchmarks still run. Their figures mean nothing, so they are those that were built with the tests.
pub(crate) fn bench_smoke(workspace: &Workspace) -> Command {
    let mut command = start_bench(workspace, "debug");
    command.arg("smoke");
    command
}

fn start_bench(workspace: &Workspace, folder: &str) -> Command {
    let mut command = workspace.program(folder, "provost-bench");
    command.env(BENCH_CACHE, bench_cache(workspace));
    command
}

/// In this variable benchmarks, and tests of what they start, are told where others' programs are.
pub(crate) const BENCH_CACHE: &str = "PROVOST_BENCH_CACHE";

/// Where benchmarks, and continuous integration, install others' programs.
pub(crate) fn bench_cache(workspace: &Workspace) -> PathBuf {
    workspace.target.join("bench")
}

/// What is run for long.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum SoakKind {
    /// Changes of policies and engines while calls and streams go on.
    Upgrade,
    /// Replacements of whole services while calls and streams go on.
    HotRestart,
    /// Changes of policies, transports and nodes while programs of Go and Python call through two nodes.
    Grpc,
}

/// Has clients and servers of five languages call each other, and Java's client ask what Go's does not; their tools must be there.
pub(crate) fn pairs(workspace: &Workspace) -> Result<(), Complaints> {
    let tests = ["--test", "grpc_pairs", "--test", "grpc_interop_java"];
    let mut command = workspace.cargo(&[&["test", "--workspace"], &tests[..]].concat());
    command.args(["--", "--nocapture", "--include-ignored"]);
    command.env("PROVOST_PAIRS", "all").env("PROVOST_STRICT", "1");
    reported(run(&mut command))
}

/// Runs a test for so many minutes, in release mode.
pub(crate) fn soak(workspace: &Workspace, what: SoakKind, minutes: u64) -> Result<(), Complaints> {
    let (package, test) = match what {
        SoakKind::Upgrade => ("provostd", "policies"),
        SoakKind::HotRestart => ("provost-e2e", "hot_restart"),
        SoakKind::Grpc => ("provost-e2e", "grpc_changes"),
    };
    let mut command = workspace.cargo(&["test", "--release", "--package", package, "--test", test]);
    command.args(["--", "--ignored", "--exact", "soak", "--nocapture"]);
    command.env("PROVOST_SOAK_MINUTES", minutes.to_string());
    reported(run(&mut command))
}

pub(crate) fn reported(outcome: Result<(), WorkspaceError>) -> Result<(), Complaints> {
    outcome.map_err(|error| vec![error.to_string()])
}
