//! Fuzzing, with the built-in driver and with libFuzzer.

use std::path::PathBuf;
use std::process::Command;

use crate::Complaints;
use crate::chores::reported;
use crate::workspace::{Workspace, run};

/// Limits of one input: bytes, seconds, and mebibytes of the whole process.
const LIMITS: [&str; 3] = ["-max_len=65536", "-timeout=10", "-rss_limit_mb=2048"];

/// How targets are built for libFuzzer.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum DeepProfile {
    /// To try many inputs.
    Release,
    /// To have it built quickly.
    Dev,
}

/// How targets are run under libFuzzer.
#[derive(Clone, Copy)]
pub(crate) struct DeepRun {
    pub(crate) profile: DeepProfile,
    /// The seed of what libFuzzer tries; 0 has it choose one.
    pub(crate) seed: u32,
}

/// Runs fuzz targets with the built-in driver.
pub(crate) fn run_built_in(
    workspace: &Workspace,
    target: Option<&str>,
    seconds: u64,
) -> Result<(), Complaints> {
    let seconds = seconds.to_string();
    let mut arguments = vec!["--seconds", &seconds];
    arguments.extend(target);
    reported(run(&mut driver(workspace, &arguments)?))
}

/// Runs one fuzz target, or each in turn, under libFuzzer, from its seeds and from the corpus that is kept of it. What it finds
/// joins `target/fuzz/corpora`.
pub(crate) fn run_deep(
    workspace: &Workspace,
    target: Option<&str>,
    seconds: u64,
    deep: DeepRun,
) -> Result<(), Complaints> {
    let program = build_deep(workspace, deep.profile)?;
    let found = workspace.target.join("fuzz/corpora");
    let folder = found.display().to_string();
    let mut seeds = vec!["--write-seeds", &folder];
    seeds.extend(target);
    reported(run(&mut driver(workspace, &seeds)?))?;
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
            .arg(format!("-seed={}", deep.seed))
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
        (!output.status.success()).then(|| {
            let again = how_to_repeat(&name, &said, seconds, deep);
            format!("{name}: {}\n{said}\n{again}", output.status)
        })
    });
    let complaints: Complaints = complaints.collect();
    if complaints.is_empty() {
        return Ok(());
    }
    Err(complaints)
}

/// How what libFuzzer has found can be had again: by the input that it kept, or else by the same seed.
fn how_to_repeat(name: &str, said: &str, seconds: u64, deep: DeepRun) -> String {
    let kept = said
        .lines()
        .find_map(|line| line.split("Test unit written to ").nth(1));
    if let Some(input) = kept {
        return format!(
            "to replay it: cargo run -p provost-fuzz -- {name} --replay {}",
            input.trim()
        );
    }
    let profile = match deep.profile {
        DeepProfile::Release => "release",
        DeepProfile::Dev => "dev",
    };
    let seed = deep.seed;
    format!(
        "to try it again: cargo xtask fuzz {name} --deep --profile {profile} --seed {seed} --seconds {seconds}"
    )
}

/// The built-in driver. It is built with the features of the whole workspace, as everything else is: with those of its package alone,
/// most of what it depends on would be built a second time.
fn driver(workspace: &Workspace, arguments: &[&str]) -> Result<Command, Complaints> {
    let mut build = workspace.cargo(&["build", "--quiet", "--workspace", "--bin", "provost-fuzz"]);
    reported(run(&mut build))?;
    let mut command = workspace.program("debug", "provost-fuzz");
    command.args(arguments);
    Ok(command)
}

fn names(workspace: &Workspace) -> Result<Vec<String>, Complaints> {
    let listed = driver(workspace, &["list"])?.output();
    let listed = listed.map_err(|error| vec![format!("provost-fuzz list: {error}")])?;
    let listed = String::from_utf8_lossy(&listed.stdout);
    Ok(listed.lines().map(str::to_owned).collect())
}

/// What is kept in the repository to start a target from, if anything is.
fn kept_corpus(workspace: &Workspace, name: &str) -> Option<PathBuf> {
    let folder = workspace.root.join("fuzz/corpora").join(name);
    folder.is_dir().then_some(folder)
}

/// Builds the targets with coverage. What they depend on is built as everywhere else.
fn build_deep(workspace: &Workspace, profile: DeepProfile) -> Result<PathBuf, Complaints> {
    let (arguments, folder): (&[&str], _) = match profile {
        DeepProfile::Release => (&["--release"], "release"),
        DeepProfile::Dev => (&[], "debug"),
    };
    let mut build = workspace.cargo_unlinted(&["build", "--quiet", "--workspace"]);
    build
        .args([
            "--features",
            "provost-fuzz/libfuzzer",
            "--bin",
            "provost-libfuzzer",
        ])
        .args(arguments)
        .env(
            "RUSTC_WORKSPACE_WRAPPER",
            workspace.root.join("fuzz/covered-rustc"),
        );
    reported(run(&mut build))?;
    Ok(workspace.target.join(folder).join("provost-libfuzzer"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_can_be_replayed_or_tried_again() {
        let deep = DeepRun {
            profile: DeepProfile::Dev,
            seed: 4711,
        };
        let said = "==1==ERROR: libFuzzer: timeout\nartifact_prefix='t/fuzz/frame-'; Test unit written to t/fuzz/frame-timeout-0af1\n";
        let replay = "cargo run -p provost-fuzz -- frame --replay t/fuzz/frame-timeout-0af1";
        assert!(how_to_repeat("frame", said, 1, deep).ends_with(replay));
        let again = "cargo xtask fuzz frame --deep --profile dev --seed 4711 --seconds 1";
        assert!(how_to_repeat("frame", "killed", 1, deep).ends_with(again));
    }
}
