//! What continuous integration checks, cheap things first, each step with its time.

use std::time::Instant;

use crate::workspace::{Workspace, WorkspaceError, run};
use crate::{Complaints, chores, layering, licences, none, tidy};

/// Each fuzz target's share of a CI run.
const FUZZ_SECONDS: u64 = 2;
/// The share of a CI run of the simulators, of nodes and of the datagram transport, which run side by side.
const SIMULATOR_SECONDS: u64 = 60;
/// The share of a CI run of each soak.
const SOAK_MINUTES: &str = "1";

type Step = (&'static str, fn(&Workspace) -> Result<(), Complaints>);

/// The tests come last, so that their counts end the log. The hostile app is among them.
const STEPS: [Step; 13] = [
    ("format", |workspace| {
        cargo(workspace, &["fmt", "--all", "--check"])
    }),
    ("tidy", |workspace| none(tidy::complaints(workspace))),
    ("layering", |workspace| none(layering::complaints(workspace))),
    ("licences", |workspace| none(licences::complaints(workspace))),
    ("clippy", |workspace| {
        cargo(
            workspace,
            &[
                "clippy",
                "--quiet",
                "--workspace",
                "--all-targets",
                "--",
                "-D",
                "warnings",
            ],
        )
    }),
    ("loom", loom),
    // All at once: package by package, what they share is built for each set of its features.
    ("build", |workspace| {
        cargo(workspace, &["build", "--quiet", "--workspace", "--all-targets"])
    }),
    ("fuzz", |workspace| built(workspace, "provost-fuzz", FUZZ_SECONDS)),
    ("simulators", simulators),
    ("soaks", soaks),
    ("bench smoke", chores::bench_smoke),
    ("dpdk", chores::dpdk),
    ("tests", |workspace| cargo(workspace, &["test", "--workspace"])),
];

/// Runs the steps until one fails.
pub(crate) fn check_all(workspace: &Workspace) -> Result<(), Complaints> {
    for (name, step) in STEPS {
        let began = Instant::now();
        eprintln!("== {name}");
        step(workspace)?;
        eprintln!("== {name}: done in {} s", began.elapsed().as_secs());
    }
    Ok(())
}

/// The orderings of rings, wake words and buckets, in a target folder of its own, as the flag would rebuild everything
/// else.
fn loom(workspace: &Workspace) -> Result<(), Complaints> {
    let mut command = workspace.cargo(&["test", "--quiet", "--release", "--lib"]);
    command.args([
        "--package",
        "provost-ring",
        "--package",
        "provost-policy-rate-limit",
    ]);
    command
        .env("RUSTFLAGS", "--cfg loom")
        // Built once and run once: what optimizes across crates takes longer than it saves.
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
        .env("CARGO_TARGET_DIR", workspace.root.join("target/loom"));
    chores::reported(run(&mut command))
}

/// Changes of policies and engines, and then replacements of services, under calls and streams.
fn soaks(workspace: &Workspace) -> Result<(), Complaints> {
    // Of the whole workspace, as what was built is.
    let mut command = workspace.cargo(&["test", "--quiet", "--workspace"]);
    command.args(["--test", "policies", "--test", "takeover", "--"]);
    command.args(["--ignored", "--exact", "soak", "--nocapture"]);
    command.env("PROVOST_SOAK_MINUTES", SOAK_MINUTES);
    chores::reported(run(&mut command))
}

/// Each has one thread.
fn simulators(workspace: &Workspace) -> Result<(), Complaints> {
    let nodes = || built(workspace, "provost-sim", SIMULATOR_SECONDS);
    let datagrams = || built(workspace, "provost-datagram-sim", SIMULATOR_SECONDS);
    std::thread::scope(|scope| {
        let nodes = scope.spawn(nodes);
        let datagrams = datagrams();
        let nodes = nodes
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        nodes.and(datagrams)
    })
}

/// Runs a program that the step `build` has built for so many seconds.
fn built(workspace: &Workspace, name: &str, seconds: u64) -> Result<(), Complaints> {
    let mut command = workspace.program("debug", name);
    command.args(["--seconds", &seconds.to_string()]);
    chores::reported(run(&mut command))
}

fn cargo(workspace: &Workspace, arguments: &[&str]) -> Result<(), Complaints> {
    let outcome: Result<(), WorkspaceError> = run(&mut workspace.cargo(arguments));
    chores::reported(outcome)
}
