//! What a developer runs before a commit: the rules, and the tests of what changed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::workspace::{Package, Workspace, run};
use crate::{Complaints, chores, commits, layering, none, tidy};

/// Files that tests of a package read, outside its folder.
const READ_BY_TESTS: [(&str, &str); 8] = [
    ("README.md", "provost-hello"),
    ("docs/layout.md", "provost-marshal"),
    ("docs/protocol.md", "provost-session"),
    ("docs/configuration.md", "provostd"),
    ("docs/observability.md", "provostd"),
    ("packaging/provostd.toml", "provostd"),
    ("packaging/wireshark", "provost-datagram"),
    ("ARCHITECTURE.md", "xtask"),
];

/// Checks formats, rules and lints, and runs the tests of the packages that differ from a base.
pub(crate) fn check_changed(workspace: &Workspace, since: Option<&str>) -> Result<(), Complaints> {
    chores::reported(run(&mut workspace.cargo(&["fmt", "--all", "--check"])))?;
    none(tidy::complaints(workspace))?;
    none(layering::complaints(workspace))?;
    none(commits::complaints(workspace, since))?;
    // Of the whole workspace: cargo looks only at what changed and at what depends on it, and a part of the workspace would
    // have its dependencies built for another set of features.
    let lint = [
        "clippy",
        "--quiet",
        "--workspace",
        "--all-targets",
        "--",
        "-Dwarnings",
    ];
    chores::reported(run(&mut workspace.cargo(&lint)))?;
    test(workspace, &changed(workspace, since)?)
}

fn test(workspace: &Workspace, packages: &BTreeSet<&str>) -> Result<(), Complaints> {
    if packages.is_empty() {
        eprintln!("xtask: no package has changed: no tests to run");
        return Ok(());
    }
    let mut command = workspace.cargo(&["test", "--quiet"]);
    packages.iter().for_each(|package| {
        command.args(["--package", package]);
    });
    chores::reported(run(&mut command))
}

/// The packages with files that differ from those at the base, committed or not.
fn changed<'a>(workspace: &'a Workspace, since: Option<&str>) -> Result<BTreeSet<&'a str>, Complaints> {
    let base = since.map(str::to_owned).or_else(|| commits::base(workspace));
    let base = base.unwrap_or_else(|| "HEAD".into());
    let list = |arguments: &[&str]| commits::git(workspace, arguments).map_err(|complaint| vec![complaint]);
    let differing = list(&["diff", "--name-only", &base])?;
    let unknown = list(&["ls-files", "--others", "--exclude-standard"])?;
    let files: Vec<&Path> = differing.lines().chain(unknown.lines()).map(Path::new).collect();
    let folders: Vec<(PathBuf, &Package)> = workspace
        .members
        .iter()
        .filter_map(|package| {
            let folder = workspace.relative(&package.manifest_path).parent()?;
            Some((folder.to_owned(), package))
        })
        .collect();
    Ok(files.iter().flat_map(|file| owners(file, &folders)).collect())
}

/// The packages that have a file or whose tests read it.
fn owners<'a>(file: &Path, folders: &[(PathBuf, &'a Package)]) -> Vec<&'a str> {
    let inside = folders.iter().filter(|(folder, _)| file.starts_with(folder));
    let owner = inside.max_by_key(|(folder, _)| folder.components().count());
    let reads = |package: &&Package| {
        let read = |(path, reader): &(&str, &str)| file.starts_with(path) && package.name == *reader;
        READ_BY_TESTS.iter().any(read)
    };
    let readers = folders.iter().map(|(_, package)| *package).filter(reads);
    owner
        .map(|(_, package)| *package)
        .into_iter()
        .chain(readers)
        .map(|package| package.name.as_str())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_belong_to_the_packages_around_them_and_to_those_that_read_them() {
        let workspace = Workspace::load().unwrap();
        let folders: Vec<(PathBuf, &Package)> = workspace
            .members
            .iter()
            .map(|package| {
                let folder = workspace.relative(&package.manifest_path).parent();
                (folder.unwrap().to_owned(), package)
            })
            .collect();
        let owned = |file: &str| owners(Path::new(file), &folders);
        assert_eq!(owned("xtask/src/main.rs"), ["xtask"]);
        assert_eq!(owned("README.md"), ["provost-hello"]);
        assert_eq!(owned("Cargo.lock"), [""; 0]);
        for (_, reader) in READ_BY_TESTS {
            assert!(
                workspace.members.iter().any(|package| package.name == reader),
                "{reader}"
            );
        }
    }
}
