//! Builds the libraries that the tests load.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use tempfile::TempDir;

/// A library in a folder of its own, which only its owner can write.
pub(crate) struct Built {
    folder: TempDir,
    name: &'static str,
}

impl Built {
    fn new(name: &'static str) -> Built {
        let folder = tempfile::tempdir().unwrap();
        Built { folder, name }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join(self.name)
    }

    pub(crate) fn set_mode(&self, mode: u32) {
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(self.path(), permissions).unwrap();
    }

    pub(crate) fn set_folder_mode(&self, mode: u32) {
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(self.folder.path(), permissions).unwrap();
    }
}

/// The workspace: these tests and those of other packages, which lie elsewhere in it, build from there.
fn root() -> &'static Path {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let is_workspace = |folder: &&Path| folder.join("Cargo.lock").exists();
    package.ancestors().find(is_workspace).expect("a workspace")
}

/// Builds an example in Rust by cargo, with features.
pub(crate) fn example(package: &str, features: &str) -> Built {
    example_with(package, features, &[])
}

/// The same with more arguments for cargo.
pub(crate) fn example_with(package: &str, features: &str, arguments: &[&str]) -> Built {
    // All versions of a package are built to the same place.
    static BUILDING: Mutex<()> = Mutex::new(());
    let _one_at_a_time = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let built = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--package", package, "--features", features])
        .args(arguments)
        .arg("--target-dir")
        .arg(target)
        .current_dir(root())
        .output()
        .unwrap();
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    let library = Built::new("engine.so");
    let name = format!("lib{}.so", package.replace('-', "_"));
    std::fs::copy(target.join("debug").join(name), library.path()).unwrap();
    library.set_mode(0o755);
    library
}

/// Builds an engine in C from a file of these tests or of the examples, with definitions.
pub(crate) fn c_engine(source: &str, definitions: &[&str]) -> Built {
    let definitions: Vec<_> = definitions
        .iter()
        .map(|definition| format!("-D{definition}"))
        .collect();
    c_engine_with(source, &definitions)
}

/// The same with arguments for the compiler.
pub(crate) fn c_engine_with(source: &str, arguments: &[impl AsRef<OsStr>]) -> Built {
    let library = Built::new("engine.so");
    let built = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"])
        .args(["-I", "crates/core/engine/include", "-I", "sdk/examples/c"])
        .arg("-o")
        .arg(library.path())
        .arg(source)
        .args(arguments)
        .current_dir(root())
        .output()
        .expect("a C compiler, `cc`");
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    library.set_mode(0o755);
    library
}
