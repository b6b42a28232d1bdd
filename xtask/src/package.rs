//! The Debian package: `cargo xtask package`. Everything in it is listed here; `tests/package` installs it.

#[cfg(test)]
mod container;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::Complaints;
use crate::jobs::TestJob;
use crate::profile_guided::{self, ProfileError};
use crate::workspace::{Workspace, WorkspaceError, output, run};

/// How the programs in a package are built.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum PackageBuild {
    /// As they are published: optimized across crates.
    Dist,
    /// So, and the service as a profile of its own runs has it optimized (needs LLVM's llvm-profdata).
    ProfileGuided,
    /// As quickly as can be, to try the package.
    Dev,
}

/// Why there is no package.
#[derive(Debug, thiserror::Error)]
enum PackageError {
    #[error(transparent)]
    Command(#[from] WorkspaceError),
    #[error(transparent)]
    Profile(#[from] ProfileError),
    #[error("{path}: {source}")]
    File { path: PathBuf, source: std::io::Error },
}

/// Files of the repository, where they are installed, and their permissions.
const FILES: [(&str, &str, u32); 12] = [
    (
        "packaging/provostd.service",
        "usr/lib/systemd/system/provostd.service",
        0o644,
    ),
    (
        "packaging/sysusers.conf",
        "usr/lib/sysusers.d/provost.conf",
        0o644,
    ),
    (
        "packaging/tmpfiles.conf",
        "usr/lib/tmpfiles.d/provost.conf",
        0o644,
    ),
    ("packaging/logrotate.conf", "etc/logrotate.d/provost", 0o644),
    (
        "packaging/provostd.toml",
        "usr/share/doc/provost/provostd.toml",
        0o644,
    ),
    ("packaging/installed.toml", "etc/provost/provostd.toml", 0o644),
    ("packaging/provostd.8", "usr/share/man/man8/provostd.8", 0o644),
    (
        "packaging/prometheus/provost.rules.yml",
        "usr/share/provost/prometheus/provost.rules.yml",
        0o644,
    ),
    (
        "packaging/grafana/provost.json",
        "usr/share/provost/grafana/provost.json",
        0o644,
    ),
    ("CHANGELOG.md", "usr/share/doc/provost/changelog.md", 0o644),
    ("LICENSE-APACHE", "usr/share/doc/provost/LICENSE-APACHE", 0o644),
    ("LICENSE-MIT", "usr/share/doc/provost/LICENSE-MIT", 0o644),
];
/// Programs, from where cargo builds them.
const PROGRAMS: [&str; 3] = ["provostd", "provost", "provost-insight"];
/// Those that write manual pages and completions of themselves. The page of the second takes the place of the first's about it.
const COMMAND_LINES: [&str; 2] = ["provost", "provost-insight"];
/// Shells with completions, and where those of each go, around the name of a program.
const COMPLETIONS: [(&str, &str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/", ""),
    ("zsh", "usr/share/zsh/vendor-completions/_", ""),
    ("fish", "usr/share/fish/vendor_completions.d/", ".fish"),
];
/// The packages with those programs.
const PACKAGES: [&str; 6] = [
    "--package",
    "provostd",
    "--package",
    "provost-cli",
    "--package",
    "provost-insight-cli",
];
/// Scripts that the package manager runs.
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

/// Builds the programs and a package of them, below the target folder, and says where it is.
pub(crate) fn build(workspace: &Workspace, how: PackageBuild) -> Result<(), Complaints> {
    let packed = built(workspace, how).and_then(|folder| pack(workspace, &folder, ""));
    println!("{}", packed.map_err(|error| vec![error.to_string()])?.display());
    Ok(())
}

/// Builds the programs, and returns their folder.
fn built(workspace: &Workspace, how: PackageBuild) -> Result<PathBuf, PackageError> {
    let (profile, folder) = match how {
        PackageBuild::Dist | PackageBuild::ProfileGuided => ("dist", "dist"),
        PackageBuild::Dev => ("dev", "debug"),
    };
    let folder = workspace.target.join(folder);
    run(workspace.cargo(&["build", "--profile", profile]).args(PACKAGES))?;
    if how != PackageBuild::ProfileGuided {
        return Ok(folder);
    }
    let guided = profile_guided::build(workspace)?;
    for program in COMMAND_LINES {
        install(&folder.join(program), &guided.join(program), 0o755)?;
    }
    Ok(guided)
}

/// Has packages of development builds tried, as an operator would.
pub(crate) fn try_built(workspace: &Workspace) -> Result<(), Complaints> {
    let mut build = workspace.cargo(&["build", "--package", "provost-hello"]);
    run(build.args(PACKAGES)).map_err(|error| vec![error.to_string()])?;
    let mut tryout = tryout(workspace)?;
    run(&mut tryout.command).map_err(|error| vec![error.to_string()])
}

/// Packs what lies in the folder of development builds, twice; the job installs, upgrades and removes the packages.
pub(crate) fn tryout(workspace: &Workspace) -> Result<TestJob, Complaints> {
    let command = prepare_tryout(workspace).map_err(|error| vec![error.to_string()])?;
    Ok(TestJob::new("the package under systemd", command))
}

fn prepare_tryout(workspace: &Workspace) -> Result<Command, PackageError> {
    let built = workspace.target.join("debug");
    let tryout = workspace.target.join("package/tryout");
    for (suffix, name) in [("", "first.deb"), ("+later", "second.deb")] {
        let package = pack(workspace, &built, suffix)?;
        install(&package, &tryout.join(name), 0o644)?;
    }
    for program in ["hello-server", "hello-client"] {
        install(&built.join(program), &tryout.join(program), 0o755)?;
    }
    let scripts = workspace.root.join("tests/package");
    install(&scripts.join("tryout.sh"), &tryout.join("tryout.sh"), 0o755)?;
    let mut boot = Command::new(scripts.join("boot.sh"));
    boot.arg(&tryout).arg("tryout.sh");
    Ok(boot)
}

/// Makes a package of programs that were built. A suffix tells packages of one version apart.
fn pack(workspace: &Workspace, built: &Path, suffix: &str) -> Result<PathBuf, PackageError> {
    let root = workspace.target.join("package/root");
    if root.exists() {
        fs::remove_dir_all(&root).map_err(|source| failed(&root, source))?;
    }
    for (from, to, mode) in FILES {
        install(&workspace.root.join(from), &root.join(to), mode)?;
    }
    for program in PROGRAMS {
        let installed = root.join("usr/bin").join(program);
        install(&built.join(program), &installed, 0o755)?;
        run(Command::new("strip").arg("--strip-unneeded").arg(&installed))?;
    }
    for program in COMMAND_LINES {
        write_pages(built, program, &root)?;
    }
    write_control(workspace, &root, suffix)?;
    let name = format!("package/provost_{}.deb", version(workspace, suffix));
    let package = workspace.target.join(name);
    run(Command::new("dpkg-deb")
        .args(["--root-owner-group", "--build"])
        .args([&root, &package])
        .stdout(Stdio::null()))?;
    Ok(package)
}

/// Manual pages and completions, as the program says them itself.
fn write_pages(built: &Path, program: &str, root: &Path) -> Result<(), PackageError> {
    let path = built.join(program);
    let pages = root.join("usr/share/man/man1");
    run(Command::new(&path).arg("man").arg(&pages).stdout(Stdio::null()))?;
    for (shell, before, after) in COMPLETIONS {
        let script = output(Command::new(&path).args(["completions", shell]))?;
        let to = format!("{before}{program}{after}");
        write(&root.join(to), &script, 0o644)?;
    }
    Ok(())
}

fn write_control(workspace: &Workspace, root: &Path, suffix: &str) -> Result<(), PackageError> {
    let template = workspace.root.join("packaging/debian/control");
    let template = fs::read_to_string(&template).map_err(|source| failed(&template, source))?;
    let architecture = output(Command::new("dpkg").arg("--print-architecture"))?;
    // What the programs are linked to here they need there.
    let library = output(Command::new("getconf").arg("GNU_LIBC_VERSION"))?;
    let library = String::from_utf8_lossy(&library);
    let control = template
        .replace("@VERSION@", &version(workspace, suffix))
        .replace("@ARCHITECTURE@", String::from_utf8_lossy(&architecture).trim())
        .replace("@LIBC@", library.trim().trim_start_matches("glibc "));
    write(&root.join("DEBIAN/control"), control.as_bytes(), 0o644)?;
    let kept = FILES.iter().filter(|(_, to, _)| to.starts_with("etc/"));
    let kept: String = kept.map(|(_, to, _)| format!("/{to}\n")).collect();
    write(&root.join("DEBIAN/conffiles"), kept.as_bytes(), 0o644)?;
    for script in SCRIPTS {
        let from = workspace.root.join("packaging/debian").join(script);
        install(&from, &root.join("DEBIAN").join(script), 0o755)?;
    }
    Ok(())
}

fn version(workspace: &Workspace, suffix: &str) -> String {
    let daemon = workspace.members.iter().find(|member| member.name == "provostd");
    let version = daemon.map_or("0", |member| &member.version);
    format!("{version}{suffix}")
}

fn install(from: &Path, to: &Path, mode: u32) -> Result<(), PackageError> {
    let bytes = fs::read(from).map_err(|source| failed(from, source))?;
    write(to, &bytes, mode)
}

fn write(path: &Path, bytes: &[u8], mode: u32) -> Result<(), PackageError> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(|source| failed(folder, source))?;
    }
    fs::write(path, bytes).map_err(|source| failed(path, source))?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(|source| failed(path, source))
}

fn failed(path: &Path, source: std::io::Error) -> PackageError {
    PackageError::File {
        path: path.to_owned(),
        source,
    }
}
