//! What a reader expects of every file: that it is short, named for what it does, free of unfinished work, and that
//! unsafe code lives where it is looked for.

mod circles;
mod copies;
mod names;
mod promises;
mod ratchet;
mod transports;
mod walks;

use std::path::Path;

use serde::Deserialize;

use crate::Complaints;
use crate::layering;
use crate::source::{code_only, has_word};
use crate::workspace::{Package, PackageTarget, Workspace};
use copies::TextFile;

/// Lines of a Rust file with its tests.
const FILE_LINES_MAX: usize = 900;

/// Files that may be longer, each with the reason.
const LONG_FILES: [(&str, &str); 0] = [];

/// File names that say nothing about what is inside.
const EMPTY_NAMES: [&str; 8] = [
    "util", "utils", "common", "helper", "helpers", "manager", "misc", "stuff",
];

/// Beginnings of paths that exist on somebody's machine, not in the project. In two pieces each, so that this file
/// passes its own rule.
const MACHINE_PATHS: [(&str, &str); 3] = [("/ho", "me/"), ("/ro", "ot/"), ("/use", "rs/")];

/// In the first line of a file that is written by a program: what it looks like is that program's affair.
const GENERATED: &str = "@generated";

/// Where the glossary and the walks stand.
const MAP: &str = "ARCHITECTURE.md";
/// Where the settings of the rules stand.
const SETTINGS: &str = "xtask/tidy.toml";

/// Macros of unfinished work.
const UNFINISHED: [&str; 3] = ["todo!", "unimplemented!", "dbg!"];

/// Where unsafe code may be, each with the reason. Every other crate forbids it.
const UNSAFE_ALLOWED: &[(&str, &str)] = &[
    ("crates/base/ring/", "slots shared between two processes"),
    ("crates/base/allocations/", "the trait of allocators"),
    ("crates/base/wiping/", "the trait of allocators"),
    ("crates/sys/shm/", "mapping memory"),
    ("crates/sys/shared-wire/", "packets in shared memory"),
    (
        "crates/sys/registered/",
        "mapping memory and cutting it into blocks",
    ),
    (
        "crates/sys/ticks/src/machine.rs",
        "reading the processor's counter",
    ),
    (
        "crates/sys/crc/src/sse42.rs",
        "an instruction that not every processor has",
    ),
    ("crates/sys/net/", "system calls that have no safe wrapper"),
    (
        "crates/sys/processes/",
        "system calls and look-ups of names that have no safe wrapper",
    ),
    ("crates/sys/namespaces/", "moving a thread into a namespace"),
    (
        "crates/sys/udp/",
        "batches of messages, whose headers point at each other",
    ),
    (
        "crates/sys/xdp/",
        "rings and frames that are shared with the kernel",
    ),
    ("crates/sys/dpdk/", "the C shim to DPDK"),
    ("crates/sys/nic-model/", "the models that Verilator wrote in C++"),
    (
        "crates/core/marshal/",
        "one module that reads memory an app can write",
    ),
    (
        "crates/core/engine/src/abi/",
        "the C ABI, on the side of a loaded library",
    ),
    (
        "crates/core/engine/tests/allocations.rs",
        "an allocator that counts",
    ),
    (
        "crates/core/datagram/tests/allocations.rs",
        "an allocator that counts",
    ),
    (
        "apps/hello/tests/datagram/allocations.rs",
        "an allocator that counts",
    ),
    (
        "sdk/examples/numbered/src/other_abi.rs",
        "exports a description that no service takes",
    ),
    ("crates/core/plugin/", "the C ABI, on the side of the service"),
    ("crates/engines/frontend/", "reads memory an app can write"),
    ("crates/node/daemon/tests/afresh.rs", "an allocator that counts"),
    (
        "crates/node/daemon/tests/allocations.rs",
        "an allocator that counts",
    ),
    ("crates/app/provost/", "containers that live in shared memory"),
    (
        "crates/tools/bench/src/datagram/trust.rs",
        "shared memory without copies, to the same program",
    ),
    (
        "crates/tools/bench/src/mailbox.rs",
        "the floor's own shared memory, which must not be what is measured against it",
    ),
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TidySettings {
    ratchet: ratchet::HabitCounts,
    #[serde(default)]
    twice: Vec<copies::AllowedCopies>,
}

/// Everything in the repository that breaks a rule.
pub(crate) fn complaints(workspace: &Workspace) -> Complaints {
    every_complaint(workspace).unwrap_or_else(|complaint| vec![complaint])
}

fn every_complaint(workspace: &Workspace) -> Result<Complaints, String> {
    let settings = settings(workspace)?;
    let map = std::fs::read_to_string(workspace.root.join(MAP)).unwrap_or_default();
    let banned = names::banned(&map);
    let texts = texts(workspace)?;
    let mut counts = ratchet::HabitCounts::default();
    let mut complaints = layering::complaints(workspace);
    for TextFile { path, text } in &texts {
        complaints.extend(name_complaint(path));
        complaints.extend(text_complaints(path, text));
        if is_kept_by_hand(path, text) {
            complaints.extend(names::complaints(path, text, &banned));
            counts.add(&ratchet::found(text));
        }
    }
    complaints.extend(counts.complaints(settings.ratchet));
    let document = std::fs::read_to_string(workspace.root.join(promises::DOCUMENT)).unwrap_or_default();
    complaints.extend(promises::complaints(&document, &texts));
    let kept = kept_by_hand(texts);
    complaints.extend(circles::complaints(&kept));
    complaints.extend(copies::complaints(&kept));
    for package in &workspace.members {
        complaints.extend(package_complaints(workspace, package));
    }
    complaints.extend(licence_file_complaints(&workspace.root));
    complaints.extend(walks::complaints(&map, &workspace.root));
    Ok(complaints)
}

/// Prints what stands twice: first without a reason, then with one.
pub(crate) fn print_duplicates(workspace: &Workspace) -> Result<(), Complaints> {
    let settings = settings(workspace).map_err(|complaint| vec![complaint])?;
    let texts = texts(workspace).map_err(|complaint| vec![complaint])?;
    let runs = copies::runs(&kept_by_hand(texts));
    let (with, without): (Vec<_>, Vec<_>) =
        runs.iter().partition(|run| run.reason(&settings.twice).is_some());
    for run in &without {
        println!("{}", run.shown());
    }
    for run in &with {
        println!(
            "{}: {}",
            run.shown(),
            run.reason(&settings.twice).unwrap_or_default()
        );
    }
    println!("{} without a reason, {} with one", without.len(), with.len());
    Ok(())
}

/// Prints where the habits stand that are on their way out.
pub(crate) fn print_habits(workspace: &Workspace) -> Result<(), Complaints> {
    let texts = texts(workspace).map_err(|complaint| vec![complaint])?;
    for TextFile { path, text } in kept_by_hand(texts) {
        for (habit, line) in ratchet::found(&text) {
            println!("{}:{line}: {}", path.display(), habit.advice());
        }
    }
    Ok(())
}

fn settings(workspace: &Workspace) -> Result<TidySettings, String> {
    let text = std::fs::read_to_string(workspace.root.join(SETTINGS))
        .map_err(|error| format!("{SETTINGS}: {error}"))?;
    toml::from_str(&text).map_err(|error| format!("{SETTINGS}: {error}"))
}

/// The files of the repository that are text.
fn texts(workspace: &Workspace) -> Result<Vec<TextFile>, String> {
    let files = workspace.files().map_err(|error| error.to_string())?;
    let text = |path| {
        // Binary files have nothing that the rules are about.
        let text = std::fs::read_to_string(workspace.root.join(&path)).ok()?;
        Some(TextFile { path, text })
    };
    Ok(files.into_iter().filter_map(text).collect())
}

/// The Rust files whose style people answer for.
fn kept_by_hand(texts: Vec<TextFile>) -> Vec<TextFile> {
    let kept = texts
        .into_iter()
        .filter(|file| is_kept_by_hand(&file.path, &file.text));
    kept.collect()
}

fn is_kept_by_hand(path: &Path, text: &str) -> bool {
    let is_generated = text.lines().next().is_some_and(|line| line.contains(GENERATED));
    path.extension().is_some_and(|extension| extension == "rs") && !is_generated
}

fn name_complaint(path: &Path) -> Option<String> {
    let stem = path.file_stem()?.to_str()?.to_lowercase();
    EMPTY_NAMES
        .contains(&stem.as_str())
        .then(|| format!("{}: name the file for what it does, not '{stem}'", path.display()))
}

fn text_complaints(path: &Path, text: &str) -> Complaints {
    let mut complaints = machine_path_complaints(path, text);
    if is_kept_by_hand(path, text) {
        complaints.extend(length_complaint(path, text));
        complaints.extend(code_complaints(path, text));
        complaints.extend(transports::complaints(path, text));
    }
    complaints
}

fn machine_path_complaints(path: &Path, text: &str) -> Complaints {
    let mut complaints = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let lower = line.to_lowercase();
        for (head, tail) in MACHINE_PATHS {
            let word = format!("{head}{tail}");
            if lower.contains(&word) {
                complaints.push(format!(
                    "{}:{}: '{word}' is a path of some machine",
                    path.display(),
                    number + 1
                ));
            }
        }
    }
    complaints
}

fn length_complaint(path: &Path, text: &str) -> Option<String> {
    let lines = text.lines().count();
    let listed = LONG_FILES.iter().any(|(name, _)| path == Path::new(name));
    (lines > FILE_LINES_MAX && !listed).then(|| {
        format!(
            "{}: {lines} lines, over {FILE_LINES_MAX}: split it",
            path.display()
        )
    })
}

fn code_complaints(path: &Path, text: &str) -> Complaints {
    let may_be_unsafe = UNSAFE_ALLOWED.iter().any(|(folder, _)| path.starts_with(folder));
    let mut complaints = Vec::new();
    for (number, line) in code_only(text).lines().enumerate() {
        let place = format!("{}:{}", path.display(), number + 1);
        for unfinished in UNFINISHED
            .into_iter()
            .filter(|unfinished| has_word(line, unfinished))
        {
            complaints.push(format!("{place}: {unfinished} is unfinished work"));
        }
        if !may_be_unsafe && has_word(line, "unsafe") {
            complaints.push(format!(
                "{place}: unsafe code is allowed only in the crates that `tidy` lists"
            ));
        }
    }
    complaints
}

fn package_complaints(workspace: &Workspace, package: &Package) -> Complaints {
    let mut complaints = Vec::new();
    if package.license.as_deref() != Some("Apache-2.0 OR MIT") {
        complaints.push(format!(
            "{}: put `license.workspace = true` into its Cargo.toml",
            package.name
        ));
    }
    let is_root = |target: &&PackageTarget| target.kind.iter().any(|kind| is_shipped(kind));
    for root in package.targets.iter().filter(is_root) {
        let text = std::fs::read_to_string(&root.src_path).unwrap_or_default();
        complaints.extend(root_complaint(workspace.relative(&root.src_path), &text));
    }
    complaints
}

/// A crate forbids unsafe code; one that has a single file of it denies it, which that file then allows.
fn root_complaint(path: &Path, text: &str) -> Option<String> {
    let folder = path.parent().unwrap_or(path);
    let has_file = UNSAFE_ALLOWED
        .iter()
        .any(|(allowed, _)| Path::new(allowed).starts_with(folder));
    let attribute = if has_file {
        "#![deny(unsafe_code)]"
    } else {
        "#![forbid(unsafe_code)]"
    };
    let may_be_unsafe = UNSAFE_ALLOWED.iter().any(|(folder, _)| path.starts_with(folder));
    let satisfied = may_be_unsafe || text.contains(attribute) || text.contains("#![forbid(unsafe_code)]");
    (!satisfied).then(|| format!("{}: put `{attribute}` at its top", path.display()))
}

/// Whether a target is code that is built for users (not a test, example, bench or build script).
fn is_shipped(kind: &str) -> bool {
    matches!(kind, "lib" | "bin" | "proc-macro" | "rlib" | "cdylib")
}

fn licence_file_complaints(root: &Path) -> Complaints {
    let missing = ["LICENSE-APACHE", "LICENSE-MIT"]
        .into_iter()
        .filter(|name| !root.join(name).is_file());
    missing.map(|name| format!("{name} is missing")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_bites() {
        let path = Path::new("crates/base/wire/src/lib.rs");
        assert!(name_complaint(Path::new("a/utils.rs")).is_some());
        assert!(name_complaint(Path::new("a/frame.rs")).is_none());
        assert_eq!(text_complaints(path, "fn a() { dbg!(1); }").len(), 1);
        assert_eq!(text_complaints(path, "unsafe fn a() {}").len(), 1);
        assert_eq!(
            text_complaints(Path::new("crates/sys/shm/src/lib.rs"), "unsafe fn a() {}"),
            Complaints::new()
        );
        assert_eq!(
            text_complaints(path, "// unsafe, todo!\nfn a() {}"),
            Complaints::new()
        );
        assert_eq!(text_complaints(path, &"\n".repeat(FILE_LINES_MAX + 1)).len(), 1);
        assert_eq!(
            text_complaints(Path::new("a.md"), &format!("see {}{}x", "/ho", "me/")).len(),
            1
        );
    }

    #[test]
    fn the_repository_is_tidy() {
        assert_eq!(complaints(&Workspace::load().unwrap()), Complaints::new());
    }
}
