//! Crates that others depend on could be published as they are: what a registry shows of them is there, what they are made of
//! is in their packages, and what they stand on has versions. Nothing is published, and no URL is invented.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use crate::Complaints;
use crate::workspace::{Package, Workspace, output, run};

/// Crates that programs, tests, tools and engines of others name.
const PUBLIC: [&str; 7] = [
    "provost",
    "provost-build",
    "provost-test",
    "provost-admin",
    "provost-engine",
    "provost-datagram",
    "provost-datagram-rpc",
];
/// What crates.io takes: keywords, and characters of one; characters of a description.
const KEYWORDS_MAX: usize = 5;
const KEYWORD_CHARACTERS_MAX: usize = 20;
const DESCRIPTION_CHARACTERS_MAX: usize = 300;
/// The name of a place that is nowhere (RFC 2606): no page is there.
const NOWHERE: &str = ".invalid";
/// How a source takes in another file.
const INCLUDES: [&str; 3] = ["include_str!(\"", "include_bytes!(\"", "include!(\""];

/// What keeps the public crates, and those that they stand on, from being published.
pub(crate) fn complaints(workspace: &Workspace) -> Complaints {
    let mut complaints = Vec::new();
    for name in PUBLIC {
        match member(workspace, name) {
            Some(package) => complaints.extend(shown(workspace, package)),
            None => complaints.push(format!("{name}: listed as public, and not in the workspace")),
        }
    }
    for name in closure(workspace) {
        if let Some(package) = member(workspace, &name) {
            complaints.extend(versions(workspace, package));
            complaints.extend(left_outside(workspace, package));
        }
    }
    complaints
}

/// The same, and what cargo would pack for each public crate.
pub(crate) fn complaints_with_contents(workspace: &Workspace) -> Complaints {
    let mut complaints = complaints(workspace);
    complaints.extend(PUBLIC.iter().flat_map(|name| contents(workspace, name)));
    complaints
}

/// Builds the documentation of the public crates as docs.rs does: each with all of its features, and none of their
/// dependencies. A warning, such as a link that leads nowhere, fails it.
pub(crate) fn documentation(workspace: &Workspace) -> Command {
    let mut command = workspace.cargo(&["doc", "--quiet", "--no-deps", "--all-features"]);
    for name in PUBLIC {
        command.args(["--package", name]);
    }
    command.env("RUSTDOCFLAGS", "-D warnings");
    command
}

/// Builds that documentation now, for `cargo xtask documentation`.
pub(crate) fn document(workspace: &Workspace) -> Result<(), Complaints> {
    run(&mut documentation(workspace)).map_err(|error| vec![error.to_string()])
}

fn member<'a>(workspace: &'a Workspace, name: &str) -> Option<&'a Package> {
    workspace.members.iter().find(|package| package.name == name)
}

/// The public crates and all members that they need to be built.
fn closure(workspace: &Workspace) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut left: Vec<String> = PUBLIC.map(str::to_owned).into();
    while let Some(name) = left.pop() {
        if let Some(package) = member(workspace, &name)
            && found.insert(name)
        {
            let needed = package
                .dependencies
                .iter()
                .filter(|one| one.kind.as_deref() != Some("dev"));
            left.extend(needed.map(|one| one.name.clone()));
        }
    }
    found
}

/// What a registry shows of a crate.
fn shown(workspace: &Workspace, package: &Package) -> Complaints {
    let name = &package.name;
    let folder = package.manifest_path.parent().unwrap_or(&workspace.root);
    let mut complaints = Vec::new();
    let mut want = |holds: bool, what: &str| {
        if !holds {
            complaints.push(format!("{name}: {what}"));
        }
    };
    let description = package.description.as_deref().unwrap_or_default();
    let length = description.chars().count();
    want(
        length > 0 && length <= DESCRIPTION_CHARACTERS_MAX,
        "no description, or one above 300 characters",
    );
    want(package.license.is_some(), "no licence");
    want(package.rust_version.is_some(), "no rust-version");
    let keywords = &package.keywords;
    want((1..=KEYWORDS_MAX).contains(&keywords.len()), "1 to 5 keywords");
    want(
        keywords.iter().all(|word| is_keyword(word)),
        "keywords are 1 to 20 letters, digits, - and _",
    );
    want(
        !package.categories.is_empty(),
        "no category (https://crates.io/category_slugs)",
    );
    let is_invented = package
        .repository
        .as_deref()
        .is_some_and(|url| url.contains(NOWHERE));
    want(
        !is_invented,
        "its repository is a place that is nowhere: leave it out until there is one",
    );
    let readme = package
        .readme
        .as_ref()
        .map(|readme| std::fs::read_to_string(folder.join(readme)));
    let readme = readme.and_then(Result::ok).unwrap_or_default();
    want(
        readme.starts_with(&format!("# {name}\n")),
        "no README.md that begins with its name",
    );
    want(
        readme.contains(&description.to_owned()),
        "its README.md does not have its description",
    );
    complaints
}

fn is_keyword(word: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    (1..=KEYWORD_CHARACTERS_MAX).contains(&word.len()) && word.chars().all(is_part)
}

/// Dependencies on members have the versions that these have: a registry knows no paths.
fn versions(workspace: &Workspace, package: &Package) -> Complaints {
    let needed = package
        .dependencies
        .iter()
        .filter(|one| one.kind.as_deref() != Some("dev"));
    let wrong = needed.filter_map(|one| {
        let version = &member(workspace, &one.name)?.version;
        let has_version = one.req == format!("^{version}");
        (!has_version).then(|| {
            format!(
                "{}: depends on {} {}, which has version {version}: name it under [workspace.dependencies]",
                package.name, one.name, one.req
            )
        })
    });
    wrong.collect()
}

/// Files outside of a package that its sources take in, and that would not be there.
fn left_outside(workspace: &Workspace, package: &Package) -> Complaints {
    let folder = package.manifest_path.parent().unwrap_or(&workspace.root);
    let files = workspace.files().unwrap_or_default();
    let mut complaints = Vec::new();
    for file in files {
        let path = workspace.root.join(&file);
        let inner = path.strip_prefix(folder).ok();
        let is_source = inner.is_some_and(|inner| inner.starts_with("src") || inner == Path::new("build.rs"));
        if !is_source || path.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let depth = inner.map_or(0, |inner| inner.components().count());
        for include in INCLUDES {
            let taken = text
                .split(include)
                .skip(1)
                .filter_map(|rest| rest.split('"').next());
            let outside = taken.filter(|taken| taken.matches("../").count() >= depth);
            complaints.extend(
                outside.map(|taken| format!("{}: takes in {taken}, which is in no package", file.display())),
            );
        }
    }
    complaints
}

/// What cargo would put into the package.
fn contents(workspace: &Workspace, name: &str) -> Complaints {
    let mut cargo = Command::new("cargo");
    cargo
        .args([
            "package",
            "--list",
            "--allow-dirty",
            "--offline",
            "--package",
            name,
        ])
        .current_dir(&workspace.root);
    let listed = match output(&mut cargo) {
        Ok(listed) => String::from_utf8_lossy(&listed).into_owned(),
        Err(error) => return vec![format!("{name}: {error}")],
    };
    let has = |file: &str| listed.lines().any(|line| line == file);
    let wanted = ["Cargo.toml", "README.md", "src/lib.rs"];
    let missing = wanted.iter().filter(|file| !has(file));
    missing
        .map(|file| format!("{name}: its package lacks {file}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_crates_could_be_published() {
        let workspace = Workspace::load().expect("cargo metadata");
        assert_eq!(complaints_with_contents(&workspace), Complaints::new());
        assert!(closure(&workspace).len() > PUBLIC.len());
    }

    #[test]
    fn what_is_missing_is_told() {
        let mut workspace = Workspace::load().expect("cargo metadata");
        for package in &mut workspace.members {
            package.keywords.clear();
            package.version = "9.9.9".to_owned();
            package.repository = Some("https://example.invalid/provost".to_owned());
        }
        let told = complaints(&workspace).join("\n");
        for part in [
            "provost-build: 1 to 5 keywords",
            "which has version 9.9.9",
            "a place that is nowhere",
        ] {
            assert!(told.contains(part), "{part}: {told}");
        }
        assert!(is_keyword("rpc") && !is_keyword("remote procedure call") && !is_keyword(""));
    }
}
