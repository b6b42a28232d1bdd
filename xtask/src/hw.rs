//! Chores of the NIC in `hw/`: its registers, lint, tests, proofs, synthesis. What needs a tool that is missing says so.

mod crossings;
mod logic_delay;
mod placement;
mod proofs;
mod registers;
mod resources;
mod synthesis;
mod tools;

use std::collections::BTreeSet;
use std::process::Command;

use crate::Complaints;
use crate::chores::{GoldenMode, reported};
use crate::programs::BuildTarget;
use crate::workspace::{PackageTarget, Workspace, run as run_command};

use proofs::ProofExtent;
use synthesis::FpgaFamily;
use tools::{YOSYS_MISSING, YosysProgram, rtl_files};

/// The packages whose tests run over the simulated hardware.
pub(crate) const TESTS: [&str; 3] = ["provost-nic-tests", "provost-nic-bench", "provost-transport-nic"];
/// What is linted: the NIC with a clock for each interface.
const LINTED: [&str; 1] = ["clocked_nic"];
/// With lines of how many bytes, as a logarithm.
const LINTED_LINE_BYTES_LOG2: [u32; 2] = [6, 7];
/// Lines of a SystemVerilog file.
const FILE_LINES_MAX: usize = 650;

/// What to do with the NIC.
#[derive(clap::Subcommand)]
pub(crate) enum HardwareChore {
    /// Checks that what follows from `hw/registers.toml` is fresh
    Regs {
        /// Write it anew
        #[arg(long)]
        bless: bool,
    },
    /// Lints the RTL (needs Verilator); warnings are errors
    Lint,
    /// Tests the RTL in simulation (needs Verilator)
    Test {
        /// Calls of the long test between two NICs
        #[arg(long)]
        calls: Option<u64>,
    },
    /// Proves properties of the RTL, and has mutants of it caught (needs yosys)
    Prove {
        /// Only what is quick, with one mutant each
        #[arg(long)]
        quick: bool,
        /// Only this proof
        proof: Option<String>,
    },
    /// Prints what each module needs of an FPGA, and the clock that it reaches (needs yosys, nextpnr-ecp5)
    Synth {
        /// Only this family
        #[arg(long, conflicts_with = "quick")]
        family: Option<FpgaFamily>,
        /// Only the checks that take less than a minute
        #[arg(long)]
        quick: bool,
        /// Only the clock that this module reaches on ECP5, placed alone
        #[arg(long, value_name = "MODULE", conflicts_with_all = ["quick", "family"])]
        place: Option<String>,
    },
}

/// Does it.
pub(crate) fn run(workspace: &Workspace, chore: &HardwareChore) -> Result<(), Complaints> {
    match chore {
        HardwareChore::Regs { bless: true } => registers::check(workspace, GoldenMode::Bless),
        HardwareChore::Regs { bless: false } => registers::check(workspace, GoldenMode::Check),
        HardwareChore::Lint => lint(workspace),
        HardwareChore::Test { calls } => test(workspace, *calls),
        HardwareChore::Prove { quick, proof } => {
            let extent = if *quick {
                ProofExtent::Quick
            } else {
                ProofExtent::Full
            };
            with_yosys(workspace, |yosys| {
                proofs::prove(workspace, yosys, extent, proof.as_deref())
            })
        }
        HardwareChore::Synth { quick: true, .. } => with_yosys(workspace, |yosys| {
            crossings::check(workspace, yosys)?;
            synthesis::check_quickly(workspace, yosys)
        }),
        HardwareChore::Synth {
            place: Some(module), ..
        } => with_yosys(workspace, |yosys| {
            synthesis::place_modules(workspace, yosys, Some(module))
        }),
        HardwareChore::Synth { family, .. } => with_yosys(workspace, |yosys| {
            crossings::check(workspace, yosys)?;
            synthesis::synthesize(workspace, yosys, *family)
        }),
    }
}

/// What continuous integration checks of the NIC before it builds and runs its tests ([`tests_over_model`]).
pub(crate) fn check_without_tests(workspace: &Workspace) -> Result<(), Complaints> {
    registers::check(workspace, GoldenMode::Check)?;
    lint(workspace)?;
    with_yosys(workspace, |yosys| {
        proofs::prove(workspace, yosys, ProofExtent::Quick, None)?;
        crossings::check(workspace, yosys)?;
        synthesis::check_quickly(workspace, yosys)
    })
}

/// The programs of tests that run over the NIC's model.
pub(crate) fn tests_over_model(workspace: &Workspace) -> BTreeSet<BuildTarget> {
    let members = workspace.members.iter();
    let targets = members
        .filter(|package| TESTS.contains(&&*package.name))
        .flat_map(|package| &package.targets);
    let target = |target: &PackageTarget| {
        let name = target.name.clone();
        match target.kind.first()?.as_str() {
            "test" => Some(BuildTarget::Test(name)),
            "bin" => Some(BuildTarget::Program(name)),
            "lib" => Some(BuildTarget::Libraries),
            _ => None,
        }
    };
    targets.filter_map(target).collect()
}

fn with_yosys(
    workspace: &Workspace,
    act: impl FnOnce(&YosysProgram) -> Result<(), Complaints>,
) -> Result<(), Complaints> {
    match YosysProgram::find(workspace) {
        Some(yosys) => act(&yosys),
        None => {
            eprintln!("xtask: {YOSYS_MISSING}");
            Ok(())
        }
    }
}

/// Whether Verilator is there; says so if not.
pub(crate) fn has_verilator() -> bool {
    let version = Command::new("verilator").arg("--version").output();
    let found = version.is_ok_and(|output| output.status.success());
    if !found {
        eprintln!("xtask: skipped: no verilator (Debian: apt-get install verilator)");
    }
    found
}

fn lint(workspace: &Workspace) -> Result<(), Complaints> {
    crate::none(length_complaints(workspace)?)?;
    if !has_verilator() {
        return Ok(());
    }
    let all = LINTED
        .iter()
        .flat_map(|top| LINTED_LINE_BYTES_LOG2.map(|log2| (top, log2)));
    for (top, line_bytes_log2) in all {
        let mut command = Command::new("verilator");
        command
            .current_dir(&workspace.root)
            .args(["--lint-only", "-Wall", "--top-module", top]);
        command.arg(format!("+define+NIC_LINE_BYTES_LOG2={line_bytes_log2}"));
        command.args(rtl_files(workspace)?.iter().map(|name| format!("hw/rtl/{name}")));
        reported(run_command(&mut command))?;
    }
    Ok(())
}

fn length_complaints(workspace: &Workspace) -> Result<Complaints, Complaints> {
    let mut complaints = Complaints::new();
    for name in rtl_files(workspace)? {
        let path = workspace.root.join("hw/rtl").join(&name);
        let text = std::fs::read_to_string(&path).map_err(|error| vec![format!("{name}: {error}")])?;
        let lines = text.lines().count();
        if lines > FILE_LINES_MAX {
            complaints.push(format!("hw/rtl/{name}: {lines} lines; at most {FILE_LINES_MAX}"));
        }
        let stem = name.trim_end_matches(".sv");
        let declared = [format!("module {stem} "), format!("package {stem};")];
        if !declared.iter().any(|declared| text.contains(declared.as_str())) {
            complaints.push(format!("hw/rtl/{name}: no module or package {stem} in it"));
        }
    }
    Ok(complaints)
}

fn test(workspace: &Workspace, calls: Option<u64>) -> Result<(), Complaints> {
    if !has_verilator() {
        return Ok(());
    }
    let mut packages = vec!["--package", "provost-nic-model"];
    packages.extend(TESTS.iter().flat_map(|package| ["--package", package]));
    let features = TESTS.map(|package| format!("{package}/verilator")).join(",");
    let features = ["--features", &features];
    let lints = [
        &["clippy", "--quiet", "--all-targets"][..],
        &packages,
        &features,
        &["--", "-D", "warnings"],
    ]
    .concat();
    reported(run_command(&mut workspace.cargo(&lints)))?;
    let mut tests = workspace.cargo(&[&["test"][..], &packages, &features, &["--", "--nocapture"]].concat());
    if let Some(calls) = calls {
        tests.env("PROVOST_NIC_CALLS", calls.to_string());
    }
    reported(run_command(&mut tests))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rtl_files_are_short_and_named_for_their_module() {
        assert_eq!(
            length_complaints(&Workspace::load().unwrap()),
            Ok(Complaints::new())
        );
    }
}
