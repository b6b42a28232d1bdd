//! What continuous integration checks, cheap things first, each step with its time.

use std::time::Instant;

use crate::workspace::{Workspace, WorkspaceError, run};
use crate::{Complaints, chores, layering, licences, none, tidy};

/// Each fuzz target's share of a CI run.
const FUZZ_SECONDS: u64 = 3;
/// The share of a CI run of each simulator: of nodes, and of the datagram transport.
const SIMULATOR_SECONDS: &str = "30";
/// The hostile app's share of a CI run.
const HOSTILE_SECONDS: &str = "10";

type Step = (&'static str, fn(&Workspace) -> Result<(), Complaints>);

/// The tests come last, so that their counts end the log.
const STEPS: [Step; 12] = [
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
    ("fuzz", |workspace| chores::fuzz(workspace, None, FUZZ_SECONDS)),
    ("simulator", simulator),
    ("hostile app", hostile),
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
        .env("CARGO_TARGET_DIR", workspace.root.join("target/loom"));
    chores::reported(run(&mut command))
}

fn simulator(workspace: &Workspace) -> Result<(), Complaints> {
    for package in ["provost-sim", "provost-datagram-sim"] {
        cargo(
            workspace,
            &[
                "run",
                "--quiet",
                "--package",
                package,
                "--",
                "--seconds",
                SIMULATOR_SECONDS,
            ],
        )?;
    }
    Ok(())
}

fn hostile(workspace: &Workspace) -> Result<(), Complaints> {
    cargo(
        workspace,
        &[
            "run",
            "--quiet",
            "--package",
            "provost-hostile",
            "--",
            "--seconds",
            HOSTILE_SECONDS,
        ],
    )
}

fn cargo(workspace: &Workspace, arguments: &[&str]) -> Result<(), Complaints> {
    let outcome: Result<(), WorkspaceError> = run(&mut workspace.cargo(arguments));
    chores::reported(outcome)
}
