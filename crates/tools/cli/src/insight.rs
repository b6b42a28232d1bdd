//! `provost insight`: a program of its own, `provost-insight`, as what it measures with (BPF, symbols of other programs) is nothing
//! that a node's operator needs.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use provost_terminal::failure::Failure;

/// The program, beside this one or on the path.
const PROGRAM: &str = "provost-insight";

/// Becomes that program, with these arguments.
pub(crate) fn run(arguments: &[OsString]) -> Result<(), Failure> {
    let program = installed().unwrap_or_else(|| PROGRAM.into());
    let error = Command::new(&program).args(arguments).exec();
    Err(Failure::failed(format!(
        "cannot start {}: {error}; it is in the package, or is built by: cargo build --release --bin {PROGRAM}",
        program.display()
    )))
}

/// Where it stands beside this program.
fn installed() -> Option<PathBuf> {
    let here = std::env::current_exe().ok()?;
    let beside = here.with_file_name(PROGRAM);
    beside.is_file().then_some(beside)
}
