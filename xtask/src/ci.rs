//! What continuous integration checks, cheap things first, each step with its time.
//!
//! One pass lints and builds everything (see [`Workspace::load_linted`]). What it built then runs: side by side what does not
//! measure, alone what does.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::jobs::{JobRepeat, RunTally, TestJob};
use crate::programs::{self, BuildTarget, TestProgram};
use crate::workspace::{Workspace, WorkspaceError, run};
use crate::{Complaints, chores, commits, hw, layering, licences, none, package, publishable, tidy};

/// Each fuzz target's share of a CI run, with the built-in driver and under libFuzzer.
const FUZZ_SECONDS: u64 = 1;
/// The share of a CI run of the simulator of the datagram transport, with fresh seeds.
const SIMULATOR_SECONDS: u64 = 30;
/// How many seeds of the simulator of nodes every CI run takes, from 1 on.
const SIMULATED_SEEDS: u64 = 1000;
/// How many that no run took before.
const FRESH_SEEDS: u64 = 250;

/// With this in the environment, a tool that is missing fails a run.
pub(crate) const STRICT: &str = "PROVOST_STRICT";

/// Programs of tests that measure, or whose load disturbs the others: each runs alone, its tests side by side.
const ALONE: [(&str, &str, &str); 6] = [
    ("provost-hostile", "campaign", "keeps a node as busy as it can"),
    ("provostd", "idle", "measures that an idle node costs nothing"),
    ("provost", "rest", "measures that an idle app costs nothing"),
    (
        "provost-e2e",
        "limits",
        "measures that idle processes cost nothing",
    ),
    ("provost-e2e", "policy_rate_limit", "measures rates"),
    ("provost-e2e", "bystander", "measures one app beside another"),
];

/// Packages whose tests start whole nodes. On cores that are busy with other tests, one in some thousand may come too late; the
/// protocols, formats and simulators are repeatable, and so never repeated.
const WHOLE_NODES: [&str; 4] = ["provost-e2e", "provost-hostile", "provostd", "provost-cli"];

/// The program that compares what the compiler says with golden files: the linter writes types with their whole paths.
const COMPILER_ERRORS: &str = "misuse";

/// Programs of tests with a test `soak`, which a common run of the tests passes over, and their minutes in a CI run: one compares
/// memory early and late.
const SOAKS: [(&str, &str, &str); 2] = [
    ("provostd", "policies", "1"),
    ("provost-e2e", "hot_restart", "0.4"),
];

/// Programs of tests that have cargo build in the target folder.
const BUILDERS: [(&str, &str); 1] = [("provost-plugin", "libraries")];

/// Packages that are built again over DPDK, where there is one.
const OVER_DPDK: [&str; 2] = ["provost-dpdk", "provost-wire-tests"];

/// The package and the program of tests of whole nodes that is built again over the simulated NIC.
const NODES_OVER_NIC: (&str, &str) = ("provost-e2e", "transport_nic");

/// Runs the steps until one fails; of the programs at the end, all.
pub(crate) fn check_all(workspace: &Workspace) -> Result<(), Complaints> {
    let began = Instant::now();
    step("format", || cargo(workspace, &["fmt", "--all", "--check"]))?;
    step("tidy", || none(tidy::complaints(workspace)))?;
    step("layering", || none(layering::complaints(workspace)))?;
    step("commits", || none(commits::complaints(workspace, None)))?;
    step("licences", || none(licences::complaints(workspace)))?;
    step("publishable", || {
        none(publishable::complaints_with_contents(workspace))
    })?;
    let (workspace, programs) = build()?;
    let mut tally = RunTally::default();
    let over_dpdk = step("lint and build over DPDK", || {
        programs_over_dpdk(&workspace, &mut tally)
    })?;
    step("hardware", || hw::check_without_tests(&workspace))?;
    let mut programs = [programs, over_dpdk].concat();
    step("lint and build over the simulated NIC", || {
        put_over_nic(&workspace, &mut programs, &mut tally)
    })?;
    run_programs(&workspace, programs, &mut tally)?;
    eprintln!("== everything: done in {} s", began.elapsed().as_secs());
    tally.conclude()
}

/// Lints and builds the workspace; gives it, with the programs of its tests.
pub(crate) fn build() -> Result<(Workspace, Vec<TestProgram>), Complaints> {
    let workspace = Workspace::load_linted().map_err(|error| vec![error.to_string()])?;
    let programs = step("lint and build", || programs::build(&workspace, &[]))?;
    Ok((workspace, programs))
}

fn step<T>(name: &str, body: impl FnOnce() -> Result<T, Complaints>) -> Result<T, Complaints> {
    let began = Instant::now();
    eprintln!("== {name}");
    let done = body()?;
    eprintln!("== {name}: done in {} s", began.elapsed().as_secs());
    Ok(done)
}

/// Runs everything that was built. What fails does not keep the rest from running.
fn run_programs(
    workspace: &Workspace,
    programs: Vec<TestProgram>,
    tally: &mut RunTally,
) -> Result<(), Complaints> {
    let (alone, beside): (Vec<_>, Vec<_>) = programs.iter().partition(|program| is_alone(program));
    let mut jobs = vec![
        simulated_nodes(workspace, 1, SIMULATED_SEEDS),
        simulated_nodes(workspace, fresh_seed(), FRESH_SEEDS),
        seconds_of(workspace, "provost-datagram-sim", SIMULATOR_SECONDS),
        // Its seeds have 32 bits, and 0 is for one of its own.
        deep_fuzz(workspace, fresh_seed() as u32 | 1),
        loom(workspace),
        optimized_instructions(workspace, &programs)?,
        doc_tests(workspace),
        TestJob::new(
            "documentation as docs.rs builds it",
            publishable::documentation(workspace),
        )
        .that_builds(),
        without_tokio(workspace),
        seconds_of(workspace, "provost-fuzz", FUZZ_SECONDS),
    ];
    // As many at once as there are cores, each with one test at a time. Those of the node and of whole systems come last
    // among the members and take the longest, so they begin.
    jobs.extend(beside.into_iter().rev().map(|program| {
        let mut job = tests(workspace, program);
        job.command.env("RUST_TEST_THREADS", "1");
        job
    }));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    step("side by side", || {
        tally.run(jobs, cores);
        Ok(())
    })?;
    let alone = alone.into_iter().map(|program| tests(workspace, program));
    let alone = alone.collect();
    let mut whole = soaks(workspace, &programs)?;
    whole.push(package::tryout(workspace)?);
    whole.push(TestJob::new("bench smoke", chores::bench_smoke(workspace)));
    step("alone", || {
        tally.run(alone, 1);
        Ok(())
    })?;
    // They keep nodes busy for long, and measure nothing in time.
    step("whole nodes, side by side", || {
        tally.run(whole, cores);
        tally.repeat_alone();
        Ok(())
    })
}

fn is_alone(program: &TestProgram) -> bool {
    let named = |(package, target, _): &&(&str, &str, &str)| {
        program.package == *package && program.target.replace('-', "_") == target.replace('-', "_")
    };
    ALONE.iter().any(|alone| named(&alone))
}

fn tests(workspace: &Workspace, program: &TestProgram) -> TestJob {
    let mut command = program.command(workspace);
    command.env(chores::BENCH_CACHE, chores::bench_cache(workspace));
    if program.target == COMPILER_ERRORS {
        command.env_remove("RUSTC_WORKSPACE_WRAPPER");
    }
    let mut job = TestJob::new(format!("{} {}", program.package, program.target), command);
    if WHOLE_NODES.contains(&&*program.package) {
        job.repeat = JobRepeat::OnceAlone;
    }
    if BUILDERS.contains(&(&program.package, &program.target)) {
        job = job.that_builds();
    }
    job
}

/// The tests of what uses DPDK, linted and built with it; nothing where there is none to build against.
fn programs_over_dpdk(workspace: &Workspace, tally: &mut RunTally) -> Result<Vec<TestProgram>, Complaints> {
    if let Err(missing) = chores::find_dpdk() {
        if std::env::var_os(STRICT).is_some_and(|value| value != "0") {
            return Err(vec![missing]);
        }
        tally.skip("dpdk", &missing);
        return Ok(Vec::new());
    }
    let features = OVER_DPDK.map(|package| format!("{package}/dpdk")).join(",");
    // Of the whole workspace, so that what the features do not touch stays as it was built.
    let mut programs = programs::build(workspace, &["--features", &features])?;
    programs.retain(|program| OVER_DPDK.contains(&&*program.package));
    Ok(programs)
}

/// Puts the tests of the NIC, and of whole nodes over it, linted and built with the NIC's model, in the place of the same tests
/// without it. Those of nodes see what a node says that has no model, and run here, before the build: both start the same file, in
/// which the nodes are.
fn put_over_nic(
    workspace: &Workspace,
    programs: &mut Vec<TestProgram>,
    tally: &mut RunTally,
) -> Result<(), Complaints> {
    let is_of = |program: &TestProgram, package: &str, target: &str| {
        program.package == package && program.target.replace('-', "_") == target.replace('-', "_")
    };
    let (package, target) = NODES_OVER_NIC;
    let of_nodes = programs.iter().filter(|program| is_of(program, package, target));
    let jobs = of_nodes.map(|program| tests(workspace, program)).collect();
    if !hw::has_verilator() {
        // All of these pass without having tested anything.
        programs.retain(|program| !hw::TESTS.contains(&&*program.package));
        return Ok(());
    }
    tally.run(jobs, 1);
    let features = hw::TESTS.map(|package| format!("{package}/verilator"));
    let features = [&features[..], &[format!("{package}/nic")]].concat().join(",");
    let mut targets = hw::tests_over_model(workspace);
    targets.insert(BuildTarget::Test(target.into()));
    let mut over_nic = programs::build_tests(workspace, &targets, &["--features", &features])?;
    // Programs of other packages may bear one of these names.
    over_nic.retain(|program| hw::TESTS.contains(&&*program.package) || is_of(program, package, target));
    programs.retain(|program| {
        let is_same = |other: &TestProgram| is_of(program, &other.package, &other.target);
        !over_nic.iter().any(is_same)
    });
    programs.extend(over_nic);
    Ok(())
}

/// The orderings of rings, wake words and buckets, in a target folder of its own, as the flag would rebuild everything
/// else. What explores them is optimized, as are the crates that are explored (their profiles say so); the rest does nothing there.
fn loom(workspace: &Workspace) -> TestJob {
    let mut command = workspace.cargo_unlinted(&["test", "--quiet", "--lib"]);
    command.args(["--package", "provost-ring", "--package", "provost-policies"]);
    command.args(["--config", "profile.dev.package.\"*\".opt-level=0"]);
    for explorer in ["loom", "generator"] {
        command.args(["--config", &format!("profile.dev.package.{explorer}.opt-level=2")]);
    }
    command
        .env("RUSTFLAGS", "--cfg loom")
        .env("CARGO_TARGET_DIR", workspace.target.join("loom"));
    TestJob::new("loom", command)
}

/// What a call over datagrams costs in instructions as packages have it. The example is built in a target folder of its own, as
/// nothing else of a run is optimized like that.
fn optimized_instructions(workspace: &Workspace, programs: &[TestProgram]) -> Result<TestJob, Complaints> {
    let target = workspace.target.join("optimized");
    let mut build = workspace.cargo_unlinted(&["build", "--quiet", "--profile", "dist"]);
    build.args(["--package", "provost-datagram", "--example", "pingpong"]);
    build.env("CARGO_TARGET_DIR", &target);
    let counts =
        |program: &&TestProgram| program.package == "provost-datagram" && program.target == "instructions";
    let found = programs.iter().find(counts);
    let program = found.ok_or_else(|| vec!["provost-datagram counts no instructions".into()])?;
    let mut command = program.command(workspace);
    command.env("PINGPONG", target.join("dist/examples/pingpong"));
    Ok(TestJob::new("instructions of an optimized call over datagrams", command).after(build))
}

/// From another seed in each run, so that all runs together try ever more. The log names it, and a target that fails says how to
/// have its input again.
fn deep_fuzz(workspace: &Workspace, seed: u32) -> TestJob {
    let mut command = workspace.program("debug", "xtask");
    command.envs(workspace.environment());
    command.args(["fuzz", "--deep", "--profile", "dev"]);
    command.args(["--seed", &seed.to_string()]);
    command.args(["--seconds", &FUZZ_SECONDS.to_string()]);
    TestJob::new(format!("libFuzzer, from seed {seed}"), command).that_builds()
}

/// The library as programs have it that use another runtime.
fn without_tokio(workspace: &Workspace) -> TestJob {
    let command = workspace.cargo(&[
        "check",
        "--quiet",
        "--package",
        "provost",
        "--no-default-features",
    ]);
    TestJob::new("the library without tokio", command).that_builds()
}

fn doc_tests(workspace: &Workspace) -> TestJob {
    let command = workspace.cargo(&["test", "--quiet", "--workspace", "--doc"]);
    TestJob::new("examples in documentation", command).that_builds()
}

/// Changes of policies and engines, and then replacements of services, under calls and streams.
fn soaks(workspace: &Workspace, programs: &[TestProgram]) -> Result<Vec<TestJob>, Complaints> {
    let soak = |(package, target, minutes): &(&str, &str, &str)| {
        let found = programs
            .iter()
            .find(|program| program.package == *package && program.target == *target);
        let program = found.ok_or_else(|| vec![format!("{package} has no tests named {target}")])?;
        let mut command = program.command(workspace);
        command
            .args(["--ignored", "--exact", "soak", "--nocapture"])
            .env("PROVOST_SOAK_MINUTES", minutes);
        Ok(TestJob::new(format!("soak of {target}"), command))
    };
    SOAKS.iter().map(soak).collect()
}

/// Whole nodes from so many seeds. The log names the first, and one that fails says how to replay it.
fn simulated_nodes(workspace: &Workspace, first_seed: u64, seeds: u64) -> TestJob {
    let mut command = workspace.program("debug", "provost-sim");
    command.args(["--seed", &first_seed.to_string()]);
    command.args(["--seeds", &seeds.to_string()]);
    TestJob::new(format!("provost-sim, {seeds} seeds from {first_seed}"), command)
}

/// A seed far above the fixed ones: the time in milliseconds.
fn fresh_seed() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(1, |since| since.as_millis() as u64)
}

/// A program of the workspace for so many seconds.
fn seconds_of(workspace: &Workspace, name: &str, seconds: u64) -> TestJob {
    let mut command = workspace.program("debug", name);
    command.args(["--seconds", &seconds.to_string()]);
    TestJob::new(name, command)
}

fn cargo(workspace: &Workspace, arguments: &[&str]) -> Result<(), Complaints> {
    let outcome: Result<(), WorkspaceError> = run(&mut workspace.cargo(arguments));
    chores::reported(outcome)
}
