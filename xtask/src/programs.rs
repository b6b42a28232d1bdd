//! One pass that lints and builds everything, and the test programs that it makes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

use crate::Complaints;
use crate::workspace::{Workspace, show, start_error};

/// A program of tests, built and ready to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TestProgram {
    /// The package whose tests they are.
    pub(crate) package: String,
    /// The package's crate that they test, or their own name.
    pub(crate) target: String,
    path: PathBuf,
    folder: PathBuf,
    version: String,
}

impl TestProgram {
    /// The command that runs it as `cargo test` would: in its package's folder.
    pub(crate) fn command(&self, workspace: &Workspace) -> Command {
        let mut command = Command::new(&self.path);
        command
            .current_dir(&self.folder)
            .envs(workspace.environment())
            .env("CARGO_MANIFEST_DIR", &self.folder)
            .env("CARGO_PKG_NAME", &self.package)
            .env("CARGO_PKG_VERSION", &self.version);
        command
    }
}

/// Targets of the workspace whose tests are built.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum BuildTarget {
    /// The tests within all libraries: cargo tells those of members not apart.
    Libraries,
    /// The program of tests with this name.
    Test(String),
    /// The tests within the program with this name.
    Program(String),
}

/// Builds everything in the workspace with these further arguments, and returns the programs of tests.
pub(crate) fn build(workspace: &Workspace, arguments: &[&str]) -> Result<Vec<TestProgram>, Complaints> {
    let command = workspace.cargo(&["build", "--quiet", "--workspace", "--all-targets"]);
    built_by(workspace, command, arguments)
}

/// Builds the tests of some targets, and what they need, with these further arguments. The features of all else are those of the
/// whole workspace, so that nothing is built again for want of a few.
pub(crate) fn build_tests(
    workspace: &Workspace,
    targets: &BTreeSet<BuildTarget>,
    arguments: &[&str],
) -> Result<Vec<TestProgram>, Complaints> {
    let mut command = workspace.cargo(&["test", "--no-run", "--quiet", "--workspace"]);
    for target in targets {
        match target {
            BuildTarget::Libraries => command.arg("--lib"),
            BuildTarget::Test(name) => command.args(["--test", name]),
            BuildTarget::Program(name) => command.args(["--bin", name]),
        };
    }
    built_by(workspace, command, arguments)
}

fn built_by(
    workspace: &Workspace,
    mut command: Command,
    arguments: &[&str],
) -> Result<Vec<TestProgram>, Complaints> {
    command
        .args(arguments)
        .arg("--message-format=json-render-diagnostics")
        .stderr(Stdio::inherit());
    eprintln!("xtask: {}", show(&command));
    let output = command
        .output()
        .map_err(|source| vec![start_error(&command, source).to_string()])?;
    if !output.status.success() {
        return Err(vec![format!("failed ({}): {}", output.status, show(&command))]);
    }
    let told = String::from_utf8_lossy(&output.stdout);
    Ok(told.lines().filter_map(|line| program(workspace, line)).collect())
}

/// A line of what cargo tells of a build. Those that tell something else than an artifact have none of these keys.
#[derive(Deserialize)]
struct CargoMessage {
    manifest_path: PathBuf,
    target: MessageTarget,
    profile: MessageProfile,
    executable: PathBuf,
}

#[derive(Deserialize)]
struct MessageTarget {
    name: String,
}

#[derive(Deserialize)]
struct MessageProfile {
    test: bool,
}

fn program(workspace: &Workspace, line: &str) -> Option<TestProgram> {
    let message: CargoMessage = serde_json::from_str(line).ok()?;
    let package = workspace
        .members
        .iter()
        .find(|package| package.manifest_path == message.manifest_path)?;
    message.profile.test.then(|| TestProgram {
        package: package.name.clone(),
        target: message.target.name,
        path: message.executable,
        folder: message.manifest_path.parent().unwrap_or(Path::new("/")).into(),
        version: package.version.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_tests_are_read_from_what_cargo_tells() {
        let workspace = Workspace::load().unwrap();
        let manifest = workspace.root.join("xtask/Cargo.toml");
        let line = |test: bool| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":{manifest:?},"target":{{"name":"some"}},"profile":{{"test":{test}}},"executable":"/x/some"}}"#
            )
        };
        let found = program(&workspace, &line(true)).unwrap();
        assert_eq!((found.package.as_str(), found.target.as_str()), ("xtask", "some"));
        assert_eq!(found.folder, workspace.root.join("xtask"));
        assert_eq!(program(&workspace, &line(false)), None);
        assert_eq!(
            program(&workspace, r#"{"reason":"build-finished","success":true}"#),
            None
        );
    }
}
