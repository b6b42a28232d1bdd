//! Profile-guided optimization (PGO) of the service: `provostd` is built with counters, calls of the benchmarks are made through it, and it
//! is built again by what was counted. (The rustc book, "Profile-guided Optimization".)
//!
//! Counters come in a form that changes with LLVM, so a tool of LLVM's puts them together: the one of the Rust toolchain (`rustup component
//! add llvm-tools`), or one that is installed and not much older than the compiler's LLVM.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use crate::Complaints;
use crate::chores::{BENCH_CACHE, INSIGHT, NIC, bench_cache, reported};
use crate::workspace::{Workspace, WorkspaceError, output, run};

/// Versions of LLVM, from the compiler's down, whose tools are looked for by their names in Debian.
const VERSIONS_TRIED: u32 = 4;
/// The load that is counted: calls of each transport and size, with policies, and of gRPC.
const TRAINING: [(&str, &str); 3] = [
    ("call", "provost null,provost local,provost datagram"),
    ("policy", "provost"),
    ("grpc", "provost"),
];
/// What each of them is run with.
const TRAINING_LENGTH: [&str; 5] = ["--quick", "--rounds", "1", "--seconds", "0.3"];

/// Why nothing was built by a profile.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProfileError {
    #[error(transparent)]
    Command(#[from] WorkspaceError),
    #[error("{path}: {source}")]
    File { path: PathBuf, source: std::io::Error },
    #[error(
        "no llvm-profdata for LLVM {llvm}: `rustup component add llvm-tools`, or Debian's llvm-{oldest} or newer; \
         without one, build with the profile `dist`"
    )]
    NoTool { llvm: u32, oldest: u32 },
    #[error("cannot tell the compiler's host and LLVM from `rustc -vV`: {0}")]
    Compiler(String),
}

/// Runs the benchmarks with the service as a profile has it optimized.
pub(crate) fn bench(workspace: &Workspace, arguments: &[String]) -> Result<(), Complaints> {
    if let Some(first) = arguments.first()
        && [INSIGHT, NIC].contains(&&**first)
    {
        return Err(vec![format!("bench {first}: not with --profile-guided")]);
    }
    let programs = build(workspace).map_err(|error| vec![error.to_string()])?;
    let mut command = Command::new(programs.join("provost-bench"));
    command.env(BENCH_CACHE, bench_cache(workspace)).args(arguments);
    reported(run(command.current_dir(&workspace.root)))
}

/// Builds `provostd` by a profile and the benchmarks without, and returns the folder with both.
pub(crate) fn build(workspace: &Workspace) -> Result<PathBuf, ProfileError> {
    let folder = workspace.target.join("profile-guided");
    let build = GuidedBuild {
        compiler: CompilerTools::find(workspace)?,
        source: workspace.root.clone(),
        profile: "dist",
        package: "provostd",
        folder: folder.clone(),
    };
    let mut bench = workspace.cargo(&[
        "build",
        "--quiet",
        "--profile",
        "dist",
        "--package",
        "provost-bench",
    ]);
    run(&mut bench)?;
    let bench = workspace.target.join("dist/provost-bench");
    let counted = build.counted(workspace, |program, counts| {
        let trained = folder.join("training");
        let bench = placed(&bench, &trained)?;
        placed(program, &trained)?;
        for (what, setups) in TRAINING {
            let mut command = Command::new(&bench);
            command
                .args([what, "--only", setups])
                .args(TRAINING_LENGTH)
                .env(BENCH_CACHE, bench_cache(workspace))
                .env(COUNTS_VARIABLE, counts);
            run(&mut command)?;
        }
        Ok(())
    })?;
    let program = build.guided(workspace, &counted)?;
    let programs = folder.join("programs");
    placed(&bench, &programs)?;
    placed(&program, &programs)?;
    Ok(programs)
}

/// The folder of the build by a profile.
const GUIDED: &str = "guided";

/// Where a program that counts writes what it has counted.
const COUNTS_VARIABLE: &str = "LLVM_PROFILE_FILE";

/// The compiler, and the tool that reads what its programs count.
struct CompilerTools {
    host: String,
    profdata: PathBuf,
}

impl CompilerTools {
    fn find(workspace: &Workspace) -> Result<CompilerTools, ProfileError> {
        let rustc = |arguments: &[&str]| -> Result<String, ProfileError> {
            let mut rustc = Command::new("rustc");
            let told = output(rustc.current_dir(&workspace.root).args(arguments))?;
            Ok(String::from_utf8_lossy(&told).trim().to_owned())
        };
        let told = rustc(&["-vV"])?;
        let field = |name: &str| told.lines().find_map(|line| line.strip_prefix(name));
        let llvm: Option<u32> =
            field("LLVM version: ").and_then(|version| version.split('.').next()?.parse().ok());
        let (Some(host), Some(llvm)) = (field("host: "), llvm) else {
            return Err(ProfileError::Compiler(told));
        };
        let own =
            Path::new(&rustc(&["--print", "sysroot"])?).join(format!("lib/rustlib/{host}/bin/llvm-profdata"));
        let oldest = llvm.saturating_sub(VERSIONS_TRIED - 1);
        let installed = (oldest..=llvm)
            .rev()
            .map(|version| format!("llvm-profdata-{version}").into());
        let works = |tool: &PathBuf| {
            let asked = Command::new(tool).arg("--version").output();
            asked.is_ok_and(|answer| answer.status.success())
        };
        let profdata = std::iter::once(own).chain(installed).find(works);
        Ok(CompilerTools {
            host: host.to_owned(),
            profdata: profdata.ok_or(ProfileError::NoTool { llvm, oldest })?,
        })
    }
}

/// A program of a package, and where both builds of it go.
struct GuidedBuild {
    compiler: CompilerTools,
    source: PathBuf,
    profile: &'static str,
    package: &'static str,
    folder: PathBuf,
}

impl GuidedBuild {
    /// The profile: what was counted while the load was made, which gets the program and the names of files to count into. As long as
    /// the program is the same, it is counted once. What was built by an earlier profile goes: cargo does not look into profiles.
    fn counted(
        &self,
        workspace: &Workspace,
        load: impl FnOnce(&Path, &Path) -> Result<(), ProfileError>,
    ) -> Result<PathBuf, ProfileError> {
        let counts = self.folder.join("counts");
        let program = self.build(
            workspace,
            "counting",
            &format!("-Cprofile-generate={}", counts.display()),
        )?;
        let counted = self.folder.join("counted.profdata");
        if changed(&counted) > changed(&program) {
            return Ok(counted);
        }
        for old in [&counts, &self.folder.join(GUIDED)] {
            if old.exists() {
                std::fs::remove_dir_all(old).map_err(|source| failed(old, source))?;
            }
        }
        load(&program, &counts.join("%p-%m.profraw"))?;
        // What was killed has not written all of it.
        let mut merge = Command::new(&self.compiler.profdata);
        merge.args(["merge", "--failure-mode=all", "--output"]);
        run(merge.arg(&counted).arg(&counts))?;
        Ok(counted)
    }

    /// The program as a profile has it optimized.
    fn guided(&self, workspace: &Workspace, counted: &Path) -> Result<PathBuf, ProfileError> {
        self.build(workspace, GUIDED, &format!("-Cprofile-use={}", counted.display()))
    }

    /// What runs while the program is compiled counts nothing, as the target is named.
    fn build(&self, workspace: &Workspace, kind: &str, flag: &str) -> Result<PathBuf, ProfileError> {
        let folder = self.folder.join(kind);
        let mut cargo = workspace.cargo_unlinted(&["build", "--quiet", "--profile", self.profile]);
        cargo
            .current_dir(&self.source)
            .args([
                "--package",
                self.package,
                "--target",
                &self.compiler.host,
                "--target-dir",
            ])
            .arg(&folder)
            .env("CARGO_ENCODED_RUSTFLAGS", flag);
        run(&mut cargo)?;
        Ok(folder
            .join(&self.compiler.host)
            .join(self.profile)
            .join(self.package))
    }
}

/// When a file was written last, if it is there.
fn changed(path: &Path) -> Option<SystemTime> {
    path.metadata().and_then(|metadata| metadata.modified()).ok()
}

/// Copies a program into a folder.
fn placed(program: &Path, folder: &Path) -> Result<PathBuf, ProfileError> {
    std::fs::create_dir_all(folder).map_err(|source| failed(folder, source))?;
    let to = folder.join(program.file_name().unwrap_or_default());
    // Not written over: it may be running.
    let _ = std::fs::remove_file(&to);
    std::fs::copy(program, &to).map_err(|source| failed(&to, source))?;
    Ok(to)
}

fn failed(path: &Path, source: std::io::Error) -> ProfileError {
    ProfileError::File {
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROGRAM: &str = "#[inline(never)]
pub fn often(number: u64) -> u64 { std::hint::black_box(number) * 3 }
fn main() {
    let turns = std::env::args().nth(1).unwrap().parse().unwrap();
    println!(\"{}\", (0..turns).map(often).sum::<u64>());
}
";

    #[test]
    fn a_program_is_counted_once_and_built_by_what_was_counted() {
        let workspace = Workspace::load().unwrap();
        let compiler = match CompilerTools::find(&workspace) {
            Err(ProfileError::NoTool { oldest, .. }) => {
                return provost_skip::missing("llvm-profdata", &format!("apt-get install llvm-{oldest}"));
            }
            compiler => compiler.unwrap(),
        };
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("source");
        let manifest = "[package]\nname = \"tiny\"\nversion = \"0.1.0\"\nedition = \"2024\"\n[workspace]\n";
        std::fs::create_dir_all(source.join("src")).unwrap();
        std::fs::write(source.join("Cargo.toml"), manifest).unwrap();
        std::fs::write(source.join("src/main.rs"), PROGRAM).unwrap();
        let profdata = compiler.profdata.clone();
        let build = GuidedBuild {
            compiler,
            source,
            profile: "release",
            package: "tiny",
            folder: folder.path().join("built"),
        };
        let load = |program: &Path, counts: &Path| {
            Ok(run(Command::new(program)
                .arg("12345")
                .env(COUNTS_VARIABLE, counts))?)
        };
        let counted = build.counted(&workspace, load).unwrap();
        let mut show = Command::new(profdata);
        let shown = output(show.args(["show", "--function=often", "--counts"]).arg(&counted)).unwrap();
        let shown = String::from_utf8(shown).unwrap();
        assert!(shown.contains("12345"), "{shown}");
        let again = build.counted(&workspace, |_, _| panic!("it is counted already"));
        assert_eq!(again.unwrap(), counted);

        let program = build.guided(&workspace, &counted).unwrap();
        let ran = output(Command::new(program).arg("10")).unwrap();
        assert_eq!(String::from_utf8(ran).unwrap(), "135\n");
        std::fs::write(build.source.join("src/main.rs"), format!("{PROGRAM}// changed\n")).unwrap();
        assert_eq!(
            build.counted(&workspace, load).unwrap(),
            counted,
            "it is another program"
        );
        assert!(
            !build.folder.join(GUIDED).exists(),
            "what another profile has made is gone"
        );
        std::fs::remove_file(&counted).unwrap();
        build
            .guided(&workspace, &counted)
            .expect_err("the profile is gone");
    }
}
