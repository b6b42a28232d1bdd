//! A hot restart between two builds: of an earlier commit, and of today's code.

use std::path::PathBuf;
use std::process::Command;

use crate::Complaints;
use crate::older_source::OlderSource;
use crate::workspace::{Workspace, WorkspaceError, run};

/// The commit that is built when none is named: the last one whose code, comments and command line had the words of before the
/// glossary. Every build since then goes on from what it saves.
const OLDER_COMMIT: &str = "a87b6fa";
/// The program of both builds: a node's service, as the end-to-end tests start it.
const PROGRAM: &str = "e2e-role";
/// The environment variable by which the test finds the older one.
const OLDER_ROLE: &str = "PROVOST_OLDER_ROLE";

/// Builds the older program, unless an earlier run did, and runs the test.
pub(crate) fn run_test(workspace: &Workspace, commit: Option<&str>) -> Result<(), Complaints> {
    let commit = commit.unwrap_or(OLDER_COMMIT);
    let older = older_program(workspace, commit).map_err(|error| vec![error.to_string()])?;
    let arguments = ["test", "--package", "provost-e2e", "--test", "older_build"];
    let mut command = workspace.cargo(&arguments);
    command.args(["--", "--nocapture"]).env(OLDER_ROLE, older);
    run(&mut command).map_err(|error| vec![error.to_string()])
}

/// The older program, beside what cargo builds. It shares the target folder with today's code, and so all that both depend on.
fn older_program(workspace: &Workspace, commit: &str) -> Result<PathBuf, WorkspaceError> {
    let older = OlderSource::of(workspace, commit);
    let program = older.folder.join(PROGRAM);
    if program.is_file() {
        return Ok(program);
    }
    let source = older.unpack(workspace)?;
    run(workspace
        .cargo(&["build", "--package", "provost-e2e", "--bin", PROGRAM])
        .current_dir(&source)
        .env("CARGO_TARGET_DIR", &workspace.target))?;
    // Today's program is built to the same place.
    run(Command::new("cp")
        .arg(workspace.target.join("debug").join(PROGRAM))
        .arg(&program))?;
    Ok(program)
}
