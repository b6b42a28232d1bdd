//! Programs of other packages that tests run, such as `provost`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

/// Folders whose sources the programs are made of.
const SOURCES: [&str; 2] = ["crates", "apps"];

/// How the names of variables begin by which cargo tells a program of the package that it is of.
const OF_PACKAGE: [&str; 2] = ["CARGO_PKG_", "CARGO_MANIFEST_"];

/// The path of a program, which lies beside `sibling` (a program that cargo has built for the test). When it is not
/// there, or older than its sources, it is built: a test of this package alone does not build those of others.
///
/// # Panics
///
/// When it cannot be built.
pub fn program(name: &str, package: &str, sibling: &str) -> PathBuf {
    static LOOKED_AT: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    let path = Path::new(sibling).with_file_name(name);
    // Whoever waits for another's build finds the program there.
    let mut looked_at = LOOKED_AT.lock().unwrap_or_else(PoisonError::into_inner);
    let is_new = looked_at.insert(path.clone());
    if is_new && built_at(&path).is_none_or(|built| built < newest_source()) {
        build(package, &path);
    }
    path
}

/// The path of a program that a test starts and does not look into: built where it is missing.
///
/// # Panics
///
/// When it cannot be built.
pub fn present(name: &str, package: &str, sibling: &str) -> PathBuf {
    let path = Path::new(sibling).with_file_name(name);
    if !path.exists() {
        build(package, &path);
    }
    path
}

fn built_at(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).and_then(|file| file.modified()).ok()
}

fn build(package: &str, path: &Path) {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet", "--bins", "--package", package]);
    if path.parent().is_some_and(|folder| folder.ends_with("release")) {
        command.arg("--release");
    }
    // The folder of a profile is in the target folder.
    if let Some(target) = path.ancestors().nth(2) {
        command.arg("--target-dir").arg(target);
    }
    // What cargo has told this test of its own package is not that program's: dependencies whose build scripts look at it (`ring`) would
    // be built anew, with all that is made of them, now and again by the next build outside of a test.
    for (name, _) in std::env::vars_os() {
        let begins_with = |start: &&str| name.to_str().is_some_and(|name| name.starts_with(*start));
        if OF_PACKAGE.iter().any(begins_with) {
            command.env_remove(name);
        }
    }
    let status = command.current_dir(root()).status();
    assert!(
        status.as_ref().is_ok_and(|status| status.success()),
        "cannot build {package}: {status:?}"
    );
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn newest_source() -> SystemTime {
    let mut newest = SystemTime::UNIX_EPOCH;
    let mut left: Vec<PathBuf> = SOURCES.iter().map(|folder| root().join(folder)).collect();
    while let Some(folder) = left.pop() {
        let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
        for path in entries.map(|entry| entry.path()) {
            let extension = path.extension().and_then(|extension| extension.to_str());
            if path.is_dir() {
                left.push(path);
            } else if matches!(extension, Some("rs" | "proto" | "toml")) {
                newest = newest.max(built_at(&path).unwrap_or(newest));
            }
        }
    }
    newest
}
