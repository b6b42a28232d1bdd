//! Chores of the repository, each one command: `cargo xtask <chore>`.
//!
//! The rules (`tidy`, `layering`, `licences`) are functions that return what breaks them, so that `cargo test -p xtask`
//! runs the same rules as the commands do.
#![forbid(unsafe_code)]

mod bench_older;
mod check;
mod chores;
mod ci;
mod commits;
mod fuzz;
mod hw;
mod jobs;
mod layering;
mod licences;
mod older_build;
mod older_source;
mod package;
mod profile_guided;
mod programs;
mod publishable;
mod source;
mod tidy;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use workspace::Workspace;

/// Chores of the Provost repository.
#[derive(Parser)]
#[command(name = "cargo xtask", version)]
struct ChoreArguments {
    #[command(subcommand)]
    chore: ChoreCommand,
}

#[derive(Subcommand)]
enum ChoreCommand {
    /// Checks file sizes, names, words, unsafe code and licence notes
    Tidy,
    /// Lists where the habits stand whose counts may only fall
    Habits,
    /// Lists the runs of lines that stand in two places
    Duplicates,
    /// Checks that crates depend downwards only
    Layering,
    /// Checks the licence of every dependency against `deny.toml`
    Licences,
    /// Checks that golden files (generated code, layout vectors) are what the code makes now
    Codegen {
        /// Write the golden files anew
        #[arg(long)]
        bless: bool,
    },
    /// Takes the pictures of the node's page in the documentation anew (needs Chromium)
    Pictures,
    /// Runs fuzz targets (all, or one) with the built-in driver
    Fuzz {
        /// Name of one target; `list` prints them
        target: Option<String>,
        /// How long each target runs
        #[arg(long, default_value_t = 5)]
        seconds: u64,
        /// Use libFuzzer, which knows what each input reaches (needs a C++ compiler)
        #[arg(long)]
        deep: bool,
        /// How it is built for libFuzzer
        #[arg(long, value_enum, default_value = "release", requires = "deep")]
        profile: fuzz::DeepProfile,
        /// Seed of what libFuzzer tries; 0: it chooses one
        #[arg(long, default_value_t = 0, requires = "deep")]
        seed: u32,
    },
    /// Builds and runs a benchmark: `bench call [--quick] [--json FILE]`, `bench bind`, `bench nic`; `bench help` tells more
    Bench {
        /// With the service as a profile of its own runs has it optimized (needs LLVM's llvm-profdata; building takes some minutes more)
        #[arg(long)]
        profile_guided: bool,
        /// Passed on to provost-bench
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Runs the benchmarks of an earlier commit and of today's code in turn, and prints one table
    BenchOlder(bench_older::OlderBench),
    /// Runs a test for long: `soak upgrade` changes policies and engines under calls and streams, `soak hot_restart` replaces
    /// whole services
    Soak {
        /// Which
        what: chores::SoakKind,
        /// How long
        #[arg(long, default_value_t = 60)]
        minutes: u64,
    },
    /// Builds an earlier commit and has one of its nodes replaced by today's, under calls, and back
    OlderBuild {
        /// The commit; without, one from before the glossary's names
        commit: Option<String>,
    },
    /// Has gRPC clients and servers of Go, Python, Node, Java and C++ call each other through two nodes
    Pairs,
    /// Checks that crates that others depend on could be published: what a registry shows, versions, contents
    Publishable,
    /// Builds the documentation of the crates that others depend on, as docs.rs does, with warnings as errors.
    Documentation,
    /// Builds the Debian package, into the target folder
    Package {
        /// How the programs are built
        #[arg(long, value_enum, default_value = "dist")]
        build: package::PackageBuild,
    },
    /// Installs, upgrades and removes packages of development builds under a systemd booted for it, as an operator would
    TryPackage,
    /// Lints and tests the wire over DPDK, where pkg-config finds libdpdk
    Dpdk,
    /// Checks formats, rules and lints, and runs the tests of the packages that changed
    Check {
        /// The commit to compare with; by default where this branch left origin/main, or the commit before the last
        #[arg(long)]
        base: Option<String>,
    },
    /// Checks the subjects of commits: `area: what`, at most 72 characters
    Commits {
        /// The commit after which to begin; by default the newest that was written before the rule
        #[arg(long)]
        base: Option<String>,
    },
    /// The NIC in `hw/`: `hw regs`, `hw lint`, `hw test`, `hw prove`, `hw synth`
    Hw {
        /// What to do with it
        #[command(subcommand)]
        chore: hw::HardwareChore,
    },
    /// Everything that continuous integration checks
    Ci {
        /// Only lint and build what its tests need, and run nothing
        #[arg(long)]
        only_build: bool,
    },
}

fn main() -> ExitCode {
    let chore = ChoreArguments::parse().chore;
    let outcome = Workspace::load()
        .map_err(|error| vec![error.to_string()])
        .and_then(|workspace| run(chore, &workspace));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(complaints) => {
            complaints.iter().for_each(|complaint| eprintln!("{complaint}"));
            if !complaints.is_empty() {
                eprintln!("xtask: {} complaint(s)", complaints.len());
            }
            ExitCode::FAILURE
        }
    }
}

/// What a chore found wrong, one line each; none where it has said so itself.
type Complaints = Vec<String>;

fn run(chore: ChoreCommand, workspace: &Workspace) -> Result<(), Complaints> {
    match chore {
        ChoreCommand::Habits => tidy::print_habits(workspace),
        ChoreCommand::Duplicates => tidy::print_duplicates(workspace),
        ChoreCommand::Tidy => none(tidy::complaints(workspace)),
        ChoreCommand::Layering => none(layering::complaints(workspace)),
        ChoreCommand::Licences => none(licences::complaints(workspace)),
        ChoreCommand::Pictures => chores::pictures(workspace),
        ChoreCommand::Codegen { bless: true } => chores::codegen(workspace, chores::GoldenMode::Bless),
        ChoreCommand::Codegen { bless: false } => chores::codegen(workspace, chores::GoldenMode::Check),
        ChoreCommand::Fuzz {
            target,
            seconds,
            deep: false,
            ..
        } => fuzz::run_built_in(workspace, target.as_deref(), seconds),
        ChoreCommand::Fuzz {
            target,
            seconds,
            deep: true,
            profile,
            seed,
        } => fuzz::run_deep(
            workspace,
            target.as_deref(),
            seconds,
            fuzz::DeepRun { profile, seed },
        ),
        ChoreCommand::Bench {
            profile_guided: true,
            arguments,
        } => profile_guided::bench(workspace, &arguments),
        ChoreCommand::Bench {
            profile_guided: false,
            arguments,
        } => chores::bench(workspace, &arguments),
        ChoreCommand::BenchOlder(options) => bench_older::compare(workspace, &options),
        ChoreCommand::Soak { what, minutes } => chores::soak(workspace, what, minutes),
        ChoreCommand::OlderBuild { commit } => older_build::run_test(workspace, commit.as_deref()),
        ChoreCommand::Pairs => chores::pairs(workspace),
        ChoreCommand::Publishable => none(publishable::complaints_with_contents(workspace)),
        ChoreCommand::Documentation => publishable::document(workspace),
        ChoreCommand::Package { build } => package::build(workspace, build),
        ChoreCommand::TryPackage => package::try_built(workspace),
        ChoreCommand::Dpdk => chores::dpdk(workspace),
        ChoreCommand::Check { base } => check::check_changed(workspace, base.as_deref()),
        ChoreCommand::Commits { base } => none(commits::complaints(workspace, base.as_deref())),
        ChoreCommand::Hw { chore } => hw::run(workspace, &chore),
        ChoreCommand::Ci { only_build: true } => ci::build().map(drop),
        ChoreCommand::Ci { only_build: false } => ci::check_all(workspace),
    }
}

fn none(complaints: Complaints) -> Result<(), Complaints> {
    if complaints.is_empty() {
        Ok(())
    } else {
        Err(complaints)
    }
}
