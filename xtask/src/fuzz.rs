//! Fuzzing, with the built-in driver and with libFuzzer.

use std::path::PathBuf;
use std::process::Command;

use crate::Complaints;
use crate::chores::reported;
use crate::workspace::{Workspace, run};

/// What has the compiler count which branches were taken, for libFuzzer. It is all known to a stable toolchain.
const COVERAGE: &str = "--cfg fuzzing -Cdebug-assertions -Coverflow-checks -Cpasses=sancov-module \
                        -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
                        -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares";
/// Limits of one input: bytes, seconds, and mebibytes of the whole process.
const LIMITS: [&str; 3] = ["-max_len=65536", "-timeout=10", "-rss_limit_mb=2048"];

/// Runs fuzz targets with the built-in driver.
pub(crate) fn run_built_in(
    workspace: &Workspace,
    target: Option<&str>,
    seconds: u64,
) -> Result<(), Complaints> {
    let seconds = seconds.to_string();
    let mut arguments = vec!["--seconds", &seconds];
    arguments.extend(target);
    reported(run(&mut driver(workspace, &arguments)))
}

/// Runs one fuzz target, or each in turn, under libFuzzer, from its seeds and from the corpus that is kept of it. What it finds
/// joins `target/fuzz/corpora`.
pub(crate) fn run_deep(workspace: &Workspace, target: Option<&str>, seconds: u64) -> Result<(), Complaints> {
    let program = build_deep(workspace)?;
    let found = workspace.target.join("fuzz/corpora");
    let folder = found.display().to_string();
    let mut seeds = vec!["--write-seeds", &folder];
    seeds.extend(target);
    reported(run(&mut driver(workspace, &seeds)))?;
    let names = match target {
        Some(target) => vec![target.to_owned()],
        None => names(workspace)?,
    };
    let complaints = names.into_iter().filter_map(|name| {
        let mut command = Command::new(&program);
        command
            .current_dir(&workspace.root)
            .env("PROVOST_FUZZ_TARGET", &name)
            .arg(found.join(&name))
            .args(kept_corpus(workspace, &name))
            .args(LIMITS)
            .arg(format!("-max_total_time={seconds}"))
            .arg(format!(
                "-artifact_prefix={}/fuzz/{name}-",
                workspace.target.display()
            ));
        let output = match command.output() {
            Ok(output) => output,
            Err(error) => return Some(format!("{}: {error}", program.display())),
        };
        let said = String::from_utf8_lossy(&output.stderr);
        let last = said.lines().rev().find(|line| line.contains("cov:"));
        println!("{name:18} {}", last.unwrap_or("has no coverage"));
        (!output.status.success()).then(|| format!("{name}: {}\n{said}", output.status))
    });
    let complaints: Complaints = complaints.collect();
    if complaints.is_empty() {
        return Ok(());
    }
    Err(complaints)
}

fn driver(workspace: &Workspace, arguments: &[&str]) -> Command {
    let mut command = workspace.cargo(&["run", "--quiet", "--package", "provost-fuzz", "--"]);
    command.args(arguments);
    command
}

fn names(workspace: &Workspace) -> Result<Vec<String>, Complaints> {
    let listed = driver(workspace, &["list"]).output();
    let listed = listed.map_err(|error| vec![format!("provost-fuzz list: {error}")])?;
    let listed = String::from_utf8_lossy(&listed.stdout);
    Ok(listed.lines().map(str::to_owned).collect())
}

/// What is kept in the repository to start a target from, if anything is.
fn kept_corpus(workspace: &Workspace, name: &str) -> Option<PathBuf> {
    let folder = workspace.root.join("fuzz/corpora").join(name);
    folder.is_dir().then_some(folder)
}

/// Builds the targets with coverage, in a folder of their own, as the flags would rebuild everything else.
fn build_deep(workspace: &Workspace) -> Result<PathBuf, Complaints> {
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let folder = workspace.target.join("libfuzzer");
    let mut build = workspace.cargo_unlinted(&["build", "--quiet", "--release", "--package", "provost-fuzz"]);
    build
        .args(["--features", "libfuzzer", "--bin", "provost-libfuzzer"])
        // With a target, programs that run while it is built are built without the flags.
        .args(["--target", &triple])
        .env("CARGO_TARGET_DIR", &folder)
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1")
        .env("RUSTFLAGS", COVERAGE)
        .env_remove("RUSTC_WORKSPACE_WRAPPER");
    reported(run(&mut build))?;
    Ok(folder.join(triple).join("release/provost-libfuzzer"))
}
