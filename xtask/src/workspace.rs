//! The workspace as `cargo metadata` tells it, and the commands that chores run in it.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

/// How the names of variables begin by which cargo tells a program of the package that it is of.
const OF_PACKAGE: [&str; 2] = ["CARGO_PKG_", "CARGO_MANIFEST_"];

/// Packages outside the workspace, with a lock of their own.
const OUTSIDE: [&str; 1] = ["crates/tools/bench-peers"];

/// Why the workspace or a command in it was of no use.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WorkspaceError {
    /// A program could not be started.
    #[error("cannot start {program}: {source}")]
    Start { program: String, source: std::io::Error },
    #[error("failed ({status}): {command}")]
    Failed {
        command: String,
        status: std::process::ExitStatus,
    },
    /// `cargo metadata` said something else than expected.
    #[error("cannot read cargo metadata: {0}")]
    Metadata(#[from] serde_json::Error),
}

/// The repository: its root and its member crates.
pub(crate) struct Workspace {
    /// Where the root `Cargo.toml` lies.
    pub(crate) root: PathBuf,
    pub(crate) target: PathBuf,
    /// The members, without what they depend on from elsewhere.
    pub(crate) members: Vec<Package>,
    /// The compiler that lints what it builds, where that is wanted.
    linter: Option<PathBuf>,
}

/// One package of `cargo metadata`.
#[derive(Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) manifest_path: PathBuf,
    pub(crate) description: Option<String>,
    pub(crate) readme: Option<PathBuf>,
    pub(crate) repository: Option<String>,
    pub(crate) rust_version: Option<String>,
    #[serde(default)]
    pub(crate) keywords: Vec<String>,
    #[serde(default)]
    pub(crate) categories: Vec<String>,
    pub(crate) license: Option<String>,
    pub(crate) license_file: Option<String>,
    pub(crate) dependencies: Vec<PackageDependency>,
    pub(crate) targets: Vec<PackageTarget>,
}

/// An edge of the dependency graph, of any kind (normal, build, dev).
#[derive(Deserialize)]
pub(crate) struct PackageDependency {
    pub(crate) name: String,
    /// The versions that will do.
    pub(crate) req: String,
    pub(crate) kind: Option<String>,
}

/// A crate of a package.
#[derive(Deserialize)]
pub(crate) struct PackageTarget {
    pub(crate) name: String,
    pub(crate) kind: Vec<String>,
    pub(crate) src_path: PathBuf,
}

#[derive(Deserialize)]
struct CargoMetadata {
    packages: Vec<Package>,
    workspace_root: PathBuf,
    target_directory: PathBuf,
}

impl Workspace {
    /// Asks cargo for the workspace that this program belongs to.
    pub(crate) fn load() -> Result<Workspace, WorkspaceError> {
        let metadata = metadata(&["--no-deps"])?;
        Ok(Workspace {
            root: metadata.workspace_root,
            target: metadata.target_directory,
            members: metadata.packages,
            linter: None,
        })
    }

    /// The same workspace, in which every build lints the members as well, and a warning is an error. `clippy-driver`
    /// compiles as rustc does, so nothing is compiled twice for it.
    pub(crate) fn load_linted() -> Result<Workspace, WorkspaceError> {
        let workspace = Workspace::load()?;
        let mut rustc = Command::new("rustc");
        rustc.current_dir(&workspace.root).args(["--print", "sysroot"]);
        let sysroot = output(&mut rustc)?;
        let driver = Path::new(String::from_utf8_lossy(&sysroot).trim()).join("bin/clippy-driver");
        Ok(Workspace {
            linter: Some(driver),
            ..workspace
        })
    }

    /// Every package of the graph that Linux needs, members included, and of the graphs of packages of this repository that lie
    /// outside the workspace. Those that only other systems need are never built, so they are not even downloaded.
    pub(crate) fn packages_all(&self) -> Result<Vec<Package>, WorkspaceError> {
        let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        let mut packages = Vec::new();
        for folder in OUTSIDE.into_iter().chain(["."]) {
            let manifest = self.root.join(folder).join("Cargo.toml");
            let manifest = manifest.to_string_lossy();
            let arguments = ["--manifest-path", &manifest, "--filter-platform", &platform];
            packages.extend(metadata(&arguments)?.packages);
        }
        packages.sort_by(|one, other| (&one.name, &one.version).cmp(&(&other.name, &other.version)));
        packages.dedup_by(|one, other| (&one.name, &one.version) == (&other.name, &other.version));
        Ok(packages)
    }

    /// A path below the root, as the repository names it.
    pub(crate) fn relative<'a>(&self, path: &'a Path) -> &'a Path {
        path.strip_prefix(&self.root).unwrap_or(path)
    }

    /// Files that git tracks or would track.
    pub(crate) fn files(&self) -> Result<Vec<PathBuf>, WorkspaceError> {
        let mut git = Command::new("git");
        git.current_dir(&self.root).args([
            "ls-files",
            "-z",
            "--deduplicate",
            "--cached",
            "--others",
            "--exclude-standard",
        ]);
        let listed = output(&mut git)?;
        let names = listed.split(|byte| *byte == 0).filter(|name| !name.is_empty());
        let paths = names.map(|name| PathBuf::from(String::from_utf8_lossy(name).into_owned()));
        Ok(paths.filter(|path| self.root.join(path).is_file()).collect())
    }

    /// `cargo` with these arguments, at the root.
    pub(crate) fn cargo(&self, arguments: &[&str]) -> Command {
        let mut command = self.cargo_unlinted(arguments);
        command.envs(self.environment());
        command
    }

    /// `cargo` whose builds lint nothing, for what is built with flags of its own.
    pub(crate) fn cargo_unlinted(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(cargo_program());
        command.current_dir(&self.root).args(arguments);
        // What cargo has told this program of its own package is not that command's: dependencies whose build scripts look at it (`ring`)
        // would be built anew, with all that is made of them, and again by the next build that was typed.
        for (name, _) in std::env::vars_os() {
            let begins_with = |start: &&str| name.to_str().is_some_and(|name| name.starts_with(*start));
            if OF_PACKAGE.iter().any(begins_with) {
                command.env_remove(name);
            }
        }
        command
    }

    /// What decides, besides the arguments, how cargo builds. Two commands with different ones build everything twice, so
    /// tests that start cargo themselves get it as well.
    pub(crate) fn environment(&self) -> Vec<(&'static str, OsString)> {
        let mut environment = vec![("CARGO", OsString::from(cargo_program()))];
        if let Some(linter) = &self.linter {
            environment.push(("RUSTC_WORKSPACE_WRAPPER", linter.into()));
            // `clippy-driver` reads its arguments from here, with this text between them.
            environment.push(("CLIPPY_ARGS", "-Dwarnings__CLIPPY_HACKERY__".into()));
        }
        environment
    }

    /// A program of the workspace that was built before into the folder of a profile, at the root.
    pub(crate) fn program(&self, profile_folder: &str, name: &str) -> Command {
        let mut command = Command::new(self.target.join(profile_folder).join(name));
        command.current_dir(&self.root);
        command
    }
}

/// Runs a command with its output where ours goes, and says first what it is.
pub(crate) fn run(command: &mut Command) -> Result<(), WorkspaceError> {
    let shown = show(command);
    eprintln!("xtask: {shown}");
    let status = command.status().map_err(|source| start_error(command, source))?;
    if status.success() {
        Ok(())
    } else {
        Err(WorkspaceError::Failed {
            command: shown,
            status,
        })
    }
}

/// Has a command go on in the place of this process; returns only if it cannot be started.
pub(crate) fn replace_with(command: &mut Command) -> WorkspaceError {
    eprintln!("xtask: {}", show(command));
    let failure = command.exec();
    start_error(command, failure)
}

fn metadata(arguments: &[&str]) -> Result<CargoMetadata, WorkspaceError> {
    let mut command = Command::new(cargo_program());
    command
        .current_dir(own_folder())
        .args(["metadata", "--format-version", "1"])
        .args(arguments);
    Ok(serde_json::from_slice(&output(&mut command)?)?)
}

/// The folder of a crate of the workspace that this program works on. Cargo says when it starts a program which one that is; where it
/// was compiled may be another checkout, from which somebody has copied the target folder.
fn own_folder() -> PathBuf {
    let folder = std::env::var_os("CARGO_MANIFEST_DIR");
    folder.map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from)
}

/// What a command prints, which must succeed.
pub(crate) fn output(command: &mut Command) -> Result<Vec<u8>, WorkspaceError> {
    command.stderr(std::process::Stdio::inherit());
    let output = command.output().map_err(|source| start_error(command, source))?;
    if !output.status.success() {
        return Err(WorkspaceError::Failed {
            command: show(command),
            status: output.status,
        });
    }
    Ok(output.stdout)
}

pub(crate) fn start_error(command: &Command, source: std::io::Error) -> WorkspaceError {
    WorkspaceError::Start {
        program: command.get_program().to_string_lossy().into_owned(),
        source,
    }
}

/// A command as one would type it.
pub(crate) fn show(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}

/// The cargo that runs us, so that a toolchain chosen on the command line stays chosen.
fn cargo_program() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargo_is_told_nothing_of_this_package() {
        assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some());
        let workspace = Workspace::load().unwrap();
        let cargo = workspace.cargo(&["build"]);
        let taken_away = |name: &str| {
            let mut changed = cargo.get_envs();
            changed.any(|(changed, value)| changed == name && value.is_none())
        };
        assert!(taken_away("CARGO_MANIFEST_DIR") && taken_away("CARGO_PKG_NAME"));
        assert!(!taken_away("PATH"));
    }
}
